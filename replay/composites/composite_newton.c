/* Recognises Newton–Schulz iterations in optimizers, by the chain of Gram products that they are made of:
 *
 *      A = X X'     B = b A + c A A     X ← a X + B X
 *
 * with addmm (torch.optim.Muon), or every product, factor and sum an op of its own. Coefficients may change from step
 * to step. */
#include "composites/recogniser.h"

#include <string.h>

enum { MOST_OPS = 96, MOST_STEPS = (LB_COMPOSITE_NUMBERS - 1) / 3 };

typedef struct iteration {
    lb_composite composite;
    uint32_t ops[MOST_OPS], n_ops;
} iteration;

static void take(iteration *it, uint32_t op)
{
    if (it->n_ops < MOST_OPS) it->ops[it->n_ops++] = op;
}

static bool is_turned(const lb_value *a, const lb_value *b)
{
    const lb_layout *x = &a->layout, *y = &b->layout;
    return x->ndim == 2 && y->ndim == 2 && a->storage == b->storage && a->version == b->version &&
           x->offset == y->offset && x->shape[0] == y->shape[1] && x->shape[1] == y->shape[0] &&
           x->stride[0] == y->stride[1] && x->stride[1] == y->stride[0];
}

/* The op after `from` that reads what it made and computes something, of this name, with that contents as arg `arg`. */
static uint32_t user(const lb_recogniser *recogniser, uint32_t from, const char *name, uint32_t arg)
{
    for (uint32_t e = recogniser->flow->first_use[from]; e < recogniser->flow->first_use[from + 1]; e++) {
        const uint32_t op = recogniser->flow->uses[e];
        if (lb_slice_op_defines(recogniser->program, &recogniser->program->ops[op]) &&
            lb_recogniser_is(recogniser, op, name) &&
            lb_recogniser_maker(recogniser, lb_recogniser_arg(recogniser, op, arg)) == from)
            return op;
    }
    return LB_NONE;
}

static bool made_by(const lb_recogniser *recogniser, uint32_t op, uint32_t arg, uint32_t maker)
{
    const lb_reading reading = lb_recogniser_arg(recogniser, op, arg);
    return reading.op != LB_NONE && lb_recogniser_maker(recogniser, reading) == maker;
}

static bool reads(const lb_recogniser *recogniser, uint32_t op, uint32_t arg, uint32_t value)
{
    const lb_reading reading = lb_recogniser_arg(recogniser, op, arg);
    if (reading.op == LB_NONE) return false;
    const lb_value *a = lb_recogniser_value(recogniser, reading.value), *b = lb_recogniser_value(recogniser, value);
    return reading.value == value ||
           (a->storage == b->storage && a->version == b->version && lb_layout_same_shape(&a->layout, &b->layout));
}

/* X ← beta X + B X by addmm: the op that makes it, LB_NONE. */
static uint32_t fused_step(const lb_recogniser *recogniser, iteration *it, uint32_t gram, uint32_t x, double abc[3])
{
    double alpha = 1;
    const uint32_t update = user(recogniser, gram, "addmm", 0);
    if (update == LB_NONE || !made_by(recogniser, update, 1, gram) || !made_by(recogniser, update, 2, gram))
        return LB_NONE;
    if (!lb_recogniser_number(recogniser, update, 3, &abc[1]) || !lb_recogniser_number(recogniser, update, 4, &abc[2]))
        return LB_NONE;
    const uint32_t next = user(recogniser, update, "addmm", 1);
    if (next == LB_NONE || !reads(recogniser, next, 0, x) || !reads(recogniser, next, 2, x) ||
        !lb_recogniser_number(recogniser, next, 3, &abc[0]))
        return LB_NONE;
    if (lb_recogniser_number(recogniser, next, 4, &alpha) && alpha != 1) return LB_NONE;
    take(it, update), take(it, next);
    return next;
}

/* The same op by op. (c A) A is what c * A @ A says in Python, c (A A) the other way to write it. */
static uint32_t separate_step(const lb_recogniser *recogniser, iteration *it, uint32_t gram, uint32_t x, double abc[3])
{
    uint32_t square = LB_NONE, scaled = LB_NONE, linear = LB_NONE;
    for (uint32_t e = recogniser->flow->first_use[gram]; e < recogniser->flow->first_use[gram + 1]; e++) {
        const uint32_t op = recogniser->flow->uses[e];
        double factor;
        if (lb_recogniser_is(recogniser, op, "mm") && made_by(recogniser, op, 0, gram) &&
            made_by(recogniser, op, 1, gram)) {
            square = op, scaled = user(recogniser, op, "mul", 0);
            if (scaled == LB_NONE || !lb_recogniser_number(recogniser, scaled, 1, &abc[2])) return LB_NONE;
            take(it, square), take(it, scaled);
        } else if (lb_recogniser_is(recogniser, op, "mul") && lb_recogniser_number(recogniser, op, 1, &factor)) {
            const uint32_t product = user(recogniser, op, "mm", 0);
            if (product != LB_NONE && made_by(recogniser, product, 1, gram))
                scaled = product, abc[2] = factor, take(it, product), take(it, op);
            else
                linear = op, abc[1] = factor, take(it, op);
        }
    }
    if (scaled == LB_NONE || linear == LB_NONE) return LB_NONE;
    uint32_t sum = user(recogniser, linear, "add", 0);
    if (sum == LB_NONE) sum = user(recogniser, linear, "add", 1);
    if (sum == LB_NONE || (!made_by(recogniser, sum, 1, scaled) && !made_by(recogniser, sum, 0, scaled)))
        return LB_NONE;
    const uint32_t product = user(recogniser, sum, "mm", 0);
    if (product == LB_NONE || !reads(recogniser, product, 1, x)) return LB_NONE;
    uint32_t next = user(recogniser, product, "add", 1);
    const uint32_t other = next != LB_NONE ? 0 : 1;
    if (next == LB_NONE) next = user(recogniser, product, "add", 0);
    const uint32_t kept =
        next == LB_NONE ? LB_NONE : lb_recogniser_maker(recogniser, lb_recogniser_arg(recogniser, next, other));
    if (kept == LB_NONE || !lb_recogniser_is(recogniser, kept, "mul") || !reads(recogniser, kept, 0, x) ||
        !lb_recogniser_number(recogniser, kept, 1, &abc[0]))
        return LB_NONE;
    take(it, sum), take(it, product), take(it, kept), take(it, next);
    return next;
}

static uint32_t gram_of(const lb_recogniser *recogniser, uint32_t maker)
{
    for (uint32_t e = recogniser->flow->first_use[maker]; e < recogniser->flow->first_use[maker + 1]; e++) {
        const uint32_t op = recogniser->flow->uses[e];
        if (!lb_recogniser_is(recogniser, op, "mm") || !made_by(recogniser, op, 0, maker) ||
            lb_recogniser_arg(recogniser, op, 1).op == LB_NONE)
            continue;
        if (is_turned(lb_recogniser_value(recogniser, lb_recogniser_arg(recogniser, op, 0).value),
                      lb_recogniser_value(recogniser, lb_recogniser_arg(recogniser, op, 1).value)))
            return op;
    }
    return LB_NONE;
}

lb_status lb_recogniser_newton_schulz(lb_recogniser *recogniser)
{
    uint32_t behind = 0; /* ops before this one belong to an iteration that was found */
    for (uint32_t i = 0; i < recogniser->program->n_ops; i++) {
        const lb_op *op = &recogniser->program->ops[i];
        if (op->phase != LB_PHASE_OPTIMIZER || i < behind || !lb_recogniser_is(recogniser, i, "mm")) continue;
        const lb_reading x = lb_recogniser_arg(recogniser, i, 0), turned = lb_recogniser_arg(recogniser, i, 1);
        if (x.op == LB_NONE || turned.op == LB_NONE ||
            !is_turned(lb_recogniser_value(recogniser, x.value), lb_recogniser_value(recogniser, turned.value)))
            continue;
        iteration it = {.composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_NEWTON_SCHULZ)};
        lb_composite *composite = &it.composite;
        uint32_t gram = i, value = x.value, steps = 0;
        while (gram != LB_NONE && steps < MOST_STEPS) {
            const uint32_t before = it.n_ops;
            double *abc = &composite->numbers[1 + 3 * steps];
            uint32_t next = fused_step(recogniser, &it, gram, value, abc);
            if (next == LB_NONE) next = separate_step(recogniser, &it, gram, value, abc);
            if (next == LB_NONE) {
                it.n_ops = before;
                break;
            }
            take(&it, gram);
            composite->outputs[LB_NEWTON_Y] = value = lb_recogniser_result(recogniser, next);
            steps++, behind = next;
            gram = gram_of(recogniser, next);
        }
        composite->numbers[LB_NEWTON_STEPS] = steps;
        composite->inputs[LB_NEWTON_X] = x.value;
        if (steps) LB_TRY(lb_recogniser_add(recogniser, composite, it.ops, it.n_ops));
    }
    return LB_OK;
}
