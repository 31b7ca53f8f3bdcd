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
static uint32_t user(const lb_recogniser *t, uint32_t from, const char *name, uint32_t arg)
{
    for (uint32_t e = t->flow->first_use[from]; e < t->flow->first_use[from + 1]; e++) {
        const uint32_t op = t->flow->uses[e];
        if (lb_slice_op_defines(t->program, &t->program->ops[op]) && lb_recogniser_is(t, op, name) &&
            lb_recogniser_maker(t, lb_recogniser_arg(t, op, arg)) == from)
            return op;
    }
    return LB_NONE;
}

static bool made_by(const lb_recogniser *t, uint32_t op, uint32_t arg, uint32_t maker)
{
    const lb_reading r = lb_recogniser_arg(t, op, arg);
    return r.op != LB_NONE && lb_recogniser_maker(t, r) == maker;
}

static bool reads(const lb_recogniser *t, uint32_t op, uint32_t arg, uint32_t value)
{
    const lb_reading r = lb_recogniser_arg(t, op, arg);
    if (r.op == LB_NONE) return false;
    const lb_value *a = lb_recogniser_value(t, r.value), *b = lb_recogniser_value(t, value);
    return r.value == value ||
           (a->storage == b->storage && a->version == b->version && lb_layout_same_shape(&a->layout, &b->layout));
}

/* X ← beta X + B X by addmm: the op that makes it, LB_NONE. */
static uint32_t fused_step(const lb_recogniser *t, iteration *it, uint32_t gram, uint32_t x, double abc[3])
{
    double alpha = 1;
    const uint32_t update = user(t, gram, "addmm", 0);
    if (update == LB_NONE || !made_by(t, update, 1, gram) || !made_by(t, update, 2, gram)) return LB_NONE;
    if (!lb_recogniser_number(t, update, 3, &abc[1]) || !lb_recogniser_number(t, update, 4, &abc[2])) return LB_NONE;
    const uint32_t next = user(t, update, "addmm", 1);
    if (next == LB_NONE || !reads(t, next, 0, x) || !reads(t, next, 2, x) || !lb_recogniser_number(t, next, 3, &abc[0]))
        return LB_NONE;
    if (lb_recogniser_number(t, next, 4, &alpha) && alpha != 1) return LB_NONE;
    take(it, update), take(it, next);
    return next;
}

/* The same op by op. (c A) A is what c * A @ A says in Python, c (A A) the other way to write it. */
static uint32_t separate_step(const lb_recogniser *t, iteration *it, uint32_t gram, uint32_t x, double abc[3])
{
    uint32_t square = LB_NONE, scaled = LB_NONE, linear = LB_NONE;
    for (uint32_t e = t->flow->first_use[gram]; e < t->flow->first_use[gram + 1]; e++) {
        const uint32_t op = t->flow->uses[e];
        double factor;
        if (lb_recogniser_is(t, op, "mm") && made_by(t, op, 0, gram) && made_by(t, op, 1, gram)) {
            square = op, scaled = user(t, op, "mul", 0);
            if (scaled == LB_NONE || !lb_recogniser_number(t, scaled, 1, &abc[2])) return LB_NONE;
            take(it, square), take(it, scaled);
        } else if (lb_recogniser_is(t, op, "mul") && lb_recogniser_number(t, op, 1, &factor)) {
            const uint32_t product = user(t, op, "mm", 0);
            if (product != LB_NONE && made_by(t, product, 1, gram))
                scaled = product, abc[2] = factor, take(it, product), take(it, op);
            else
                linear = op, abc[1] = factor, take(it, op);
        }
    }
    if (scaled == LB_NONE || linear == LB_NONE) return LB_NONE;
    uint32_t sum = user(t, linear, "add", 0);
    if (sum == LB_NONE) sum = user(t, linear, "add", 1);
    if (sum == LB_NONE || (!made_by(t, sum, 1, scaled) && !made_by(t, sum, 0, scaled))) return LB_NONE;
    const uint32_t product = user(t, sum, "mm", 0);
    if (product == LB_NONE || !reads(t, product, 1, x)) return LB_NONE;
    uint32_t next = user(t, product, "add", 1);
    const uint32_t other = next != LB_NONE ? 0 : 1;
    if (next == LB_NONE) next = user(t, product, "add", 0);
    const uint32_t kept = next == LB_NONE ? LB_NONE : lb_recogniser_maker(t, lb_recogniser_arg(t, next, other));
    if (kept == LB_NONE || !lb_recogniser_is(t, kept, "mul") || !reads(t, kept, 0, x) ||
        !lb_recogniser_number(t, kept, 1, &abc[0]))
        return LB_NONE;
    take(it, sum), take(it, product), take(it, kept), take(it, next);
    return next;
}

static uint32_t gram_of(const lb_recogniser *t, uint32_t maker)
{
    for (uint32_t e = t->flow->first_use[maker]; e < t->flow->first_use[maker + 1]; e++) {
        const uint32_t op = t->flow->uses[e];
        if (!lb_recogniser_is(t, op, "mm") || !made_by(t, op, 0, maker) || lb_recogniser_arg(t, op, 1).op == LB_NONE)
            continue;
        if (is_turned(lb_recogniser_value(t, lb_recogniser_arg(t, op, 0).value),
                      lb_recogniser_value(t, lb_recogniser_arg(t, op, 1).value)))
            return op;
    }
    return LB_NONE;
}

lb_status lb_recogniser_newton_schulz(lb_recogniser *t)
{
    uint32_t behind = 0; /* ops before this one belong to an iteration that was found */
    for (uint32_t i = 0; i < t->program->n_ops; i++) {
        const lb_op *op = &t->program->ops[i];
        if (op->phase != LB_PHASE_OPTIMIZER || i < behind || !lb_recogniser_is(t, i, "mm")) continue;
        const lb_reading x = lb_recogniser_arg(t, i, 0), turned = lb_recogniser_arg(t, i, 1);
        if (x.op == LB_NONE || turned.op == LB_NONE ||
            !is_turned(lb_recogniser_value(t, x.value), lb_recogniser_value(t, turned.value)))
            continue;
        iteration it = {.composite = lb_recogniser_composite(t, LB_COMPOSITE_NEWTON_SCHULZ)};
        lb_composite *c = &it.composite;
        uint32_t gram = i, value = x.value, steps = 0;
        while (gram != LB_NONE && steps < MOST_STEPS) {
            const uint32_t before = it.n_ops;
            double *abc = &c->numbers[1 + 3 * steps];
            uint32_t next = fused_step(t, &it, gram, value, abc);
            if (next == LB_NONE) next = separate_step(t, &it, gram, value, abc);
            if (next == LB_NONE) {
                it.n_ops = before;
                break;
            }
            take(&it, gram);
            c->outputs[LB_NEWTON_Y] = value = lb_recogniser_result(t, next);
            steps++, behind = next;
            gram = gram_of(t, next);
        }
        c->numbers[LB_NEWTON_STEPS] = steps;
        c->inputs[LB_NEWTON_X] = x.value;
        if (steps) LB_TRY(lb_recogniser_add(t, c, it.ops, it.n_ops));
    }
    return LB_OK;
}
