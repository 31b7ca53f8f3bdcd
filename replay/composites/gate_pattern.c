/* Gated activations written out: see gate_pattern.h.
 *
 * Products are a tree whose leaves may stand in any order. The leaf that is a function of another one (sigmoid, 1 +
 * exp, 1 + tanh, 1 + erf) says which of them is the gate; what is left is the other factor. What the function is taken
 * of is compared as a polynomial of the gate, so that it doesn't matter how that was written. */
#include "composites/gate_pattern.h"

#include <math.h>

enum { DEEPEST = 6, DEGREE = 3, MOST_LEAVES = 16 };

static void take(lb_gate_pattern *written, uint32_t op)
{
    if (written->n_ops < LB_GATE_PATTERN_OPS) written->ops[written->n_ops++] = op;
}

static bool near(double x, double y)
{
    return fabs(x - y) <= 1e-6 * fabs(y);
}

/* ---- what the function is taken of ------------------------------------------------------------------------------- */

static bool multiply(const double *p, const double *q, double *product)
{
    double sum[2 * DEGREE + 1] = {0};
    for (int i = 0; i <= DEGREE; i++)
        for (int k = 0; k <= DEGREE; k++) sum[i + k] += p[i] * q[k];
    for (int i = 0; i <= DEGREE; i++) product[i] = sum[i];
    return sum[4] == 0 && sum[5] == 0 && sum[6] == 0;
}

/* `r` as p0 + p1 x + p2 x² + p3 x³. */
static bool polynomial(const lb_recogniser *recogniser, lb_reading reading, lb_reading x, double *p,
                       lb_gate_pattern *written, int depth)
{
    double q[DEGREE + 1] = {0}, number = 0, alpha = 1;
    for (int i = 0; i <= DEGREE; i++) p[i] = 0;
    if (lb_recogniser_same(recogniser, reading, x)) {
        p[1] = 1;
        return true;
    }
    reading = lb_recogniser_peel(recogniser, reading);
    const uint32_t op = lb_recogniser_maker(recogniser, reading);
    if (op == LB_NONE || depth == DEEPEST || !lb_recogniser_forward(recogniser, op)) return false;
    const lb_reading a = lb_recogniser_arg(recogniser, op, 0), b = lb_recogniser_arg(recogniser, op, 1);
    const bool numbered = lb_recogniser_number(recogniser, op, 1, &number),
               adds = lb_recogniser_is(recogniser, op, "add"), multiplies = lb_recogniser_is(recogniser, op, "mul");
    if (a.op == LB_NONE || !polynomial(recogniser, a, x, p, written, depth + 1)) return false;
    take(written, op);
    if (lb_recogniser_is(recogniser, op, "neg")) {
        for (int i = 0; i <= DEGREE; i++) p[i] = -p[i];
        return true;
    }
    if (lb_recogniser_is(recogniser, op, "pow") && numbered && (number == 2 || number == 3)) {
        for (int i = 0; i <= DEGREE; i++) q[i] = p[i];
        for (int i = 1; i < (int)number; i++)
            if (!multiply(p, q, p)) return false;
        return true;
    }
    if (numbered && (multiplies || lb_recogniser_is(recogniser, op, "div"))) {
        for (int i = 0; i <= DEGREE; i++) p[i] = multiplies ? p[i] * number : p[i] / number;
        return true;
    }
    if (adds && numbered) {
        p[0] += number;
        return true;
    }
    if (b.op == LB_NONE || !(adds || multiplies) || !polynomial(recogniser, b, x, q, written, depth + 1)) return false;
    if (multiplies) return multiply(p, q, p);
    lb_recogniser_number(recogniser, op, 2, &alpha);
    for (int i = 0; i <= DEGREE; i++) p[i] += alpha * q[i];
    return true;
}

/* Sigmoid, or one plus something. */
static bool is_function(const lb_recogniser *recogniser, uint32_t op)
{
    double one = 0;
    if (op == LB_NONE || !lb_recogniser_forward(recogniser, op)) return false;
    return lb_recogniser_is(recogniser, op, "sigmoid") ||
           (lb_recogniser_is(recogniser, op, "add") && lb_recogniser_number(recogniser, op, 1, &one) && one == 1);
}

/* Whether that is one of x: sigmoid(x), 1 + erf(…), 1 + tanh(…), or 1 + exp(-x), which has to stand under the others:
 * `*under`. */
static bool is_function_of(const lb_recogniser *recogniser, uint32_t op, lb_reading x, lb_gate_pattern *written,
                           bool *under)
{
    static const struct {
        const char *name;
        lb_gate_act act;
        double p[DEGREE + 1];
    } functions[] = {{"exp", LB_GATE_SILU, {0, -1, 0, 0}},
                     {"erf", LB_GATE_GELU, {0, 0.70710678118654752440, 0, 0}},
                     {"tanh", LB_GATE_GELU_TANH, {0, 0.79788456080286535588, 0, 0.79788456080286535588 * 0.044715}}};
    double p[DEGREE + 1];
    const lb_gate_pattern before = *written;
    *under = false;
    take(written, op);
    if (lb_recogniser_is(recogniser, op, "sigmoid")) {
        written->act = LB_GATE_SILU;
        return lb_recogniser_same(recogniser, lb_recogniser_arg(recogniser, op, 0), x);
    }
    const uint32_t inner = lb_recogniser_maker(recogniser, lb_recogniser_arg(recogniser, op, 0));
    for (int i = 0; inner != LB_NONE && i < 3; i++) {
        if (!lb_recogniser_is(recogniser, inner, functions[i].name) ||
            !polynomial(recogniser, lb_recogniser_arg(recogniser, inner, 0), x, p, written, 0))
            continue;
        bool same = true;
        for (int k = 0; k <= DEGREE; k++) same &= near(p[k], functions[i].p[k]);
        written->act = functions[i].act, *under = i == 0;
        take(written, inner);
        if (same) return true;
    }
    *written = before;
    return false;
}

/* ---- the product ------------------------------------------------------------------------------------------------- */

typedef struct product {
    const lb_recogniser *recogniser;
    lb_reading x;
    uint32_t function;
    bool under;                        /* the function stands under the others */
    uint32_t gates, functions, others; /* how many leaves are what */
    uint32_t strays;                   /* leaves on the wrong side of a division */
    double factor;
    lb_gate_pattern *written;
} product;

static uint32_t maker_of(const lb_recogniser *recogniser, lb_reading reading)
{
    return lb_recogniser_maker(recogniser, lb_recogniser_peel(recogniser, reading));
}

/* Multiplies elements, or divides them. */
static bool is_product(const lb_recogniser *recogniser, uint32_t op)
{
    static const char *const names[] = {"mul", "div", "reciprocal", NULL};
    return op != LB_NONE && lb_recogniser_forward(recogniser, op) && lb_recogniser_is_any(recogniser, op, names);
}

static uint32_t product_behind(const lb_recogniser *recogniser, lb_reading reading)
{
    const uint32_t op = maker_of(recogniser, reading);
    return is_product(recogniser, op) ? op : LB_NONE;
}

/* Whether the gate or its function is among the leaves below. */
static bool holds(const product *product, lb_reading reading, int depth)
{
    if (reading.op == LB_NONE || depth == DEEPEST) return false;
    if (lb_recogniser_same(product->recogniser, reading, product->x) ||
        maker_of(product->recogniser, reading) == product->function)
        return true;
    const uint32_t op = product_behind(product->recogniser, reading);
    return op != LB_NONE && (holds(product, lb_recogniser_arg(product->recogniser, op, 0), depth + 1) ||
                             holds(product, lb_recogniser_arg(product->recogniser, op, 1), depth + 1));
}

static void gather(product *p, lb_reading r, bool under, int depth);

static void gather_operands(product *product, uint32_t op, bool under, int depth)
{
    const bool inverts = lb_recogniser_is(product->recogniser, op, "reciprocal"),
               divides = lb_recogniser_is(product->recogniser, op, "div");
    double number;
    take(product->written, op);
    gather(product, lb_recogniser_arg(product->recogniser, op, 0), under != inverts, depth + 1);
    if (inverts) return;
    if (!lb_recogniser_number(product->recogniser, op, 1, &number))
        gather(product, lb_recogniser_arg(product->recogniser, op, 1), under != divides, depth + 1);
    else
        product->factor *= under != divides ? 1 / number : number;
}

static void gather(product *product, lb_reading reading, bool under, int depth)
{
    const uint32_t op = reading.op == LB_NONE ? LB_NONE : product_behind(product->recogniser, reading);
    const bool is_gate = reading.op != LB_NONE && lb_recogniser_same(product->recogniser, reading, product->x),
               is_its_function =
                   reading.op != LB_NONE && !is_gate && maker_of(product->recogniser, reading) == product->function;
    if (!is_gate && !is_its_function && op != LB_NONE && holds(product, reading, depth)) {
        gather_operands(product, op, under, depth);
        return;
    }
    product->strays += under != (is_its_function && product->under);
    if (is_gate)
        product->gates++, product->written->gate = reading;
    else if (is_its_function)
        product->functions++;
    else
        product->others++, product->written->up = reading;
}

/* The leaves of a tree of products and what its inner ones are made of. */
static void list_leaves(const lb_recogniser *recogniser, lb_reading reading, lb_reading *leaves, uint32_t *n, int depth)
{
    if (reading.op == LB_NONE || depth == DEEPEST || *n == MOST_LEAVES) return;
    leaves[(*n)++] = reading;
    const uint32_t op = product_behind(recogniser, reading);
    for (uint32_t i = 0; op != LB_NONE && i < 2; i++)
        list_leaves(recogniser, lb_recogniser_arg(recogniser, op, i), leaves, n, depth + 1);
}

bool lb_gate_pattern_read(const lb_recogniser *recogniser, uint32_t mul, lb_gate_pattern *written)
{
    lb_reading leaves[MOST_LEAVES];
    uint32_t n = 0;
    if (!is_product(recogniser, mul)) return false;
    for (uint32_t i = 0; i < 2; i++) list_leaves(recogniser, lb_recogniser_arg(recogniser, mul, i), leaves, &n, 1);
    for (uint32_t f = 0; f < n; f++) {
        const uint32_t function = maker_of(recogniser, leaves[f]);
        for (uint32_t x = 0; x < n && is_function(recogniser, function); x++) {
            *written = (lb_gate_pattern){.up = {LB_NONE, LB_NONE}};
            product product = {
                .recogniser = recogniser, .x = leaves[x], .function = function, .factor = 1, .written = written};
            if (x == f || !is_function_of(recogniser, function, leaves[x], written, &product.under)) continue;
            gather_operands(&product, mul, false, 0);
            if (product.gates == 2 && !product.others)
                product.gates = 1, product.others = 1, written->up = written->gate; /* gated by itself */
            if (product.gates == 1 && product.functions == 1 && product.others == 1 && !product.strays &&
                written->up.op != LB_NONE && near(product.factor, written->act == LB_GATE_SILU ? 1 : 0.5))
                return true;
        }
    }
    return false;
}
