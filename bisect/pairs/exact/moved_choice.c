/* Choices that a run makes anew: see moved_choice.h. */
#include "exact/moved_choice.h"

#include <math.h>
#include <stdlib.h>

/* Relative L2, of what a choice reads, from what was recorded: far beyond rounding in f32. */
static const double MOVED = 1e-3;

/* Values that follow from one choice: more are not looked through. */
enum { MOST_FOLLOWED = 256 };

typedef struct followed {
    uint32_t list[MOST_FOLLOWED], n;
    bool steers; /* a shape or Python may depend on one of them */
} followed;

static void follow(followed *f, uint32_t v)
{
    for (uint32_t i = 0; i < f->n; i++)
        if (f->list[i] == v) return;
    f->steers |= f->n == MOST_FOLLOWED;
    if (!f->steers) f->list[f->n++] = v;
}

/* How many places the op chooses among, where its results are places along one dimension; at most so many where the
 * program does not say which. INT64_MAX: not known. */
static int64_t count_places(const lb_program *p, const lb_op *op)
{
    static const struct chooser {
        const char *name;
        uint32_t dim;   /* the argument */
        bool last_else; /* the last dimension, where the argument is left out */
    } choosers[] = {{"aten::topk", 2, true},     {"aten::sort", 1, true},     {"aten::argsort", 1, true},
                    {"aten::max.dim", 1, false}, {"aten::min.dim", 1, false}, {"aten::argmax", 1, false},
                    {"aten::argmin", 1, false}};
    const lb_arg *args = lb_op_args(p, op);
    for (size_t i = 0; i < sizeof choosers / sizeof *choosers; i++) {
        const struct chooser *chooser = &choosers[i];
        if (!lb_op_is(p, op, chooser->name) || args[0].tag != LB_ARG_VALUE) continue;
        const lb_layout *from = &p->values[args[0].u.value].layout;
        const bool given = op->args > chooser->dim, told = given && args[chooser->dim].tag == LB_ARG_INT;
        if (!told && (given || !chooser->last_else)) return lb_layout_numel(from);
        int64_t dim = told ? args[chooser->dim].u.i : -1;
        dim += dim < 0 ? from->ndim : 0;
        return dim >= 0 && dim < from->ndim ? from->shape[dim] : INT64_MAX;
    }
    return INT64_MAX;
}

/* Counts how often each place was chosen: of what may be chosen each has its count (`minlength`), so that no choice
 * makes them more. */
static bool counts_all_places(const lb_exact_side *s, const lb_op *op)
{
    enum { CHOSEN, WEIGHTS, MINLENGTH, ARGUMENTS };
    const lb_program *p = s->program;
    const lb_arg *args = lb_op_args(p, op);
    if (!lb_op_is(p, op, "aten::bincount") || op->args < ARGUMENTS || args[CHOSEN].tag != LB_ARG_VALUE ||
        args[MINLENGTH].tag != LB_ARG_INT)
        return false;
    const uint32_t choice = lb_value_graph_whole(&s->graph, args[CHOSEN].u.value);
    return lb_value_graph_is_computed(&s->graph, choice) &&
           count_places(p, &p->ops[s->graph.giver[choice]]) <= args[MINLENGTH].u.i;
}

/* Does a shape or a step of Python depend on what the op gives? */
static bool steers(const lb_exact_side *s, const lb_op *op)
{
    return op->flags & LB_OP_DECISION && !counts_all_places(s, op);
}

/* What the readers of a value make of it that is no float, either. Returns how many readers there are. Python may look
 * at the smallest and the largest place (one_hot does): these are checked, and steer nothing. */
static uint32_t follow_readers(followed *f, const lb_exact_side *s, uint32_t v)
{
    const lb_value_graph *g = &s->graph;
    const lb_program *p = g->program;
    for (uint32_t k = g->first_use[v]; k < g->first_use[v + 1]; k++) {
        const lb_op *op = &p->ops[g->uses[k]];
        if (lb_op_is(p, op, "aten::aminmax")) continue;
        f->steers |= steers(s, op);
        for (uint32_t i = 0; i < lb_op_outcomes(op); i++) {
            const uint32_t next = lb_op_outcome(p, op, i);
            if (next != LB_NONE && !lb_dtype_is_float(p->values[next].dtype)) follow(f, next);
        }
    }
    return g->first_use[v + 1] - g->first_use[v];
}

/* Does everything that reads the value, or what is made of it, only compute numbers from it? Whole numbers that are
 * made of it and that no op reads may be what Python goes on with: counts of rows, of which it makes shapes. */
static bool steers_nothing(const lb_exact_side *s, uint32_t choice)
{
    followed f = {.list = {choice}, .n = 1};
    for (uint32_t i = 0; i < f.n && !f.steers; i++) {
        const uint32_t v = f.list[i];
        uint32_t readers = follow_readers(&f, s, v), at = 0, window;
        while ((window = lb_exact_side_window(s, v, &at)) != LB_NONE) readers += follow_readers(&f, s, window);
        f.steers |= i && !readers && s->program->values[v].dtype != LB_BOOL;
    }
    return !f.steers;
}

static bool is_index(const lb_program *p, uint32_t v)
{
    return lb_dtype_is_integer(p->values[v].dtype) && p->values[v].dtype != LB_BOOL;
}

static bool is_read_in_forward(const lb_exact_side *s, uint32_t v)
{
    for (uint32_t k = s->graph.first_use[v]; k < s->graph.first_use[v + 1]; k++)
        if (s->program->ops[s->graph.uses[k]].phase != LB_PHASE_BACKWARD) return true;
    return false;
}

/* Do places that are chosen in the same call of a module steer something? A router may choose groups and then experts:
 * either both are made anew or neither. */
static bool stands_beside_steering(const lb_exact_side *s, const lb_op *op)
{
    const lb_program *p = s->program;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *other = &p->ops[i];
        if (other->scope != op->scope || other->call != op->call || lb_op_is_source(p, other) ||
            lb_op_is(p, other, "aten::aminmax"))
            continue;
        for (uint32_t k = 0; k < lb_op_outcomes(other); k++) {
            const uint32_t v = lb_op_outcome(p, other, k);
            if (v != LB_NONE && is_index(p, v) && !steers_nothing(s, v)) return true;
        }
    }
    return false;
}

static bool can_be_made(const lb_exact_side *s, const lb_op *op)
{
    bool places = false;
    for (uint32_t i = 0; i < lb_op_outcomes(op); i++) {
        const uint32_t v = lb_op_outcome(s->program, op, i);
        if (v == LB_NONE || lb_dtype_is_float(s->program->values[v].dtype)) continue;
        if (!steers_nothing(s, v)) return false;
        places |= is_index(s->program, v) && is_read_in_forward(s, v) && !counts_all_places(s, op);
    }
    return !places || !stands_beside_steering(s, op);
}

/* What the run at hand goes on with there; beside the last run, what that left where nothing changes. NULL: not
 * kept. */
static const double *numbers_of(const lb_exact_side *s, uint32_t v)
{
    const double *taken = lb_exact_side_taken(s, v);
    if (taken) return taken;
    return s->kept[v] || !s->former.asks ? s->kept[v] : s->former.numbers[v];
}

/* Are its numbers none that were recorded, but for rounding? In 16 bits rounding may be as far. */
static bool is_moved(const lb_exact_side *s, uint32_t v)
{
    const lb_value *value = &s->program->values[v];
    const int64_t n = lb_layout_numel(&value->layout);
    const double *now = numbers_of(s, v);
    if (!now || !lb_dtype_is_float(value->dtype) || lb_dtype_bits(value->dtype) < 32) return false;
    double *recorded = lb_exact_side_recorded(s, v), off = 0, size = 0;
    bool masked = false /* on one of them alone */, whole = true;
    for (int64_t i = 0; recorded && i < n; i++) {
        if (!isfinite(now[i]) || !isfinite(recorded[i]))
            masked |= isfinite(now[i]) || isfinite(recorded[i]);
        else
            off += (now[i] - recorded[i]) * (now[i] - recorded[i]), size += recorded[i] * recorded[i];
        whole &= recorded[i] == floor(recorded[i]) && now[i] == floor(now[i]);
    }
    free(recorded);
    return masked || off > (whole ? 0 : MOVED * MOVED * size); /* counts and masks have no rounding */
}

enum { MOST_BETWEEN = 4 };

/* A float that an op reads, or what it is a window on, or what a mask that it reads was made of (`depth` ops back). */
static bool has_moved(const lb_exact_side *s, const uint8_t *anew, uint32_t v, uint32_t depth)
{
    const lb_value_graph *g = &s->graph;
    const bool is_float = lb_dtype_is_float(s->program->values[v].dtype);
    if (anew[v] || (is_float && is_moved(s, v))) return true;
    if (!depth || (is_float && (g->given[v] || numbers_of(s, v)))) return false;
    for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1]; k++)
        if (has_moved(s, anew, g->preds[k], depth - 1)) return true;
    return false;
}

bool lb_moved_choice_is_made(const lb_exact_side *s, uint8_t *anew, uint32_t number)
{
    const lb_program *p = s->program;
    const lb_op *op = &p->ops[number];
    bool moved = false;
    if (steers(s, op) || !lb_op_outcomes(op)) return false;
    for (uint32_t k = 0; k < op->args && !moved; k++) {
        const lb_arg *arg = &lb_op_args(p, op)[k];
        if (arg->tag != LB_ARG_VALUE || arg->u.value == LB_NONE) continue;
        moved = has_moved(s, anew, lb_value_graph_whole(&s->graph, arg->u.value), MOST_BETWEEN);
    }
    moved = moved && can_be_made(s, op);
    for (uint32_t i = 0; i < lb_op_outcomes(op) && moved; i++) {
        const uint32_t v = lb_op_outcome(p, op, i);
        if (v != LB_NONE) anew[v] = !lb_dtype_is_float(p->values[v].dtype);
    }
    return moved;
}
