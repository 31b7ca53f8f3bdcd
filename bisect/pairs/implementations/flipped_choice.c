/* Choices that rounding has moved: see flipped_choice.h. */
#include "implementations/flipped_choice.h"

#include "subprogram/exact_run.h"

#include <lastbit/replay.h>

#include <stdlib.h>
#include <string.h>

/* ---- the numbers that a choice is made of ---- */

enum { MOST_VIEWS = 32 };

static double *copy_of(const double *numbers, int64_t n)
{
    double *copy = malloc(((size_t)n + 1) * sizeof *copy);
    if (copy) memcpy(copy, numbers, (size_t)n * sizeof *copy);
    return copy;
}

/* What B goes on with there instead of its own; NULL: nothing. */
static double *taken_from_a(const lb_region_question *q, uint32_t v)
{
    for (uint32_t i = 0; i < q->counterparts->n; i++) {
        const lb_counterpart *c = &q->counterparts->list[i];
        if (c->b == v && lb_counterpart_can_be_put(q->counterparts, c, q->sides[0], q->sides[1]))
            return lb_counterpart_taken(q->counterparts, c, q->sides[0], q->sides[1]);
    }
    return NULL;
}

static double *numbers_of(const lb_region_question *q, int side, uint32_t v, uint32_t depth);

/* Of a view: the elements of what it shows, which lies in memory row by row. */
static double *shown_numbers(const lb_region_question *q, int side, uint32_t v, uint32_t depth)
{
    const lb_value_graph *g = &q->sides[side]->graph;
    const uint32_t first = g->first_pred[v];
    if (g->given[v] || g->first_pred[v + 1] - first != 1) return NULL;
    const lb_value *view = &g->program->values[v], *whole = &g->program->values[g->preds[first]];
    if (view->storage != whole->storage || view->dtype != whole->dtype || !lb_layout_is_contiguous(&whole->layout))
        return NULL;
    double *numbers = numbers_of(q, side, g->preds[first], depth - 1);
    const int64_t n = lb_layout_numel(&view->layout), most = lb_layout_numel(&whole->layout);
    double *shown = numbers ? malloc(((size_t)n + 1) * sizeof *shown) : NULL;
    int64_t at[LB_MAX_DIMS] = {0}, from = view->layout.offset - whole->layout.offset;
    bool inside = shown != NULL;
    for (int64_t i = 0; i < n && inside; i++) {
        inside = from >= 0 && from < most;
        if (inside) shown[i] = numbers[from];
        for (int d = view->layout.ndim - 1; d >= 0; d--) {
            from += view->layout.stride[d];
            if (++at[d] < view->layout.shape[d]) break;
            from -= at[d] * view->layout.stride[d], at[d] = 0;
        }
    }
    free(numbers);
    if (!inside) free(shown), shown = NULL;
    return shown;
}

/* In exact arithmetic, but for what is chosen or given: as recorded. malloc'ed; NULL: not known. */
static double *numbers_of(const lb_region_question *q, int side, uint32_t v, uint32_t depth)
{
    const lb_exact_side *s = q->sides[side];
    const lb_value *value = &s->program->values[v];
    const int64_t n = lb_layout_numel(&value->layout);
    double *taken = side ? taken_from_a(q, v) : NULL;
    if (taken) return taken;
    if (lb_exact_side_taken(s, v)) return copy_of(lb_exact_side_taken(s, v), n);
    if (s->kept[v]) return copy_of(s->kept[v], n);
    if (lb_region_is_source(s, v) || !lb_dtype_is_float(value->dtype)) return lb_exact_side_recorded(s, v);
    return depth ? shown_numbers(q, side, v, depth) : NULL;
}

/* ---- the choice, made again ---- */

typedef struct inputs {
    uint32_t list[8], n;
    bool too_many;
} inputs;

static void add_input(void *context, uint32_t v)
{
    inputs *in = context;
    for (uint32_t i = 0; i < in->n; i++)
        if (in->list[i] == v) return;
    in->too_many |= in->n == sizeof in->list / sizeof *in->list;
    if (v != LB_NONE && !in->too_many) in->list[in->n++] = v;
}

/* `*out`: what the op gives of these numbers as `result`, malloc'ed; NULL: it cannot be run by itself. */
static lb_status choose_again(const lb_exact_side *s, uint32_t op, uint32_t result, const inputs *in,
                              double *const *numbers, double **out, lb_err *err)
{
    const lb_subprogram_parts parts = {.program = s->own,
                                       .ops = &op,
                                       .n_ops = 1,
                                       .leaves = in->list,
                                       .n_leaves = in->n,
                                       .outputs = &result,
                                       .n_outputs = 1};
    lb_subprogram *made;
    lb_err why = LB_ERR_INIT;
    *out = NULL;
    lb_status status = lb_subprogram_new(&parts, &made, &why);
    if (status == LB_OK) status = lb_subprogram_run_exact(made, (const double *const *)numbers, out, &why);
    lb_subprogram_free(made);
    if (status != LB_OK) free(*out), *out = NULL;
    return status == LB_ERR_NOMEM ? lb_fail(err, status, "%s", why.message) : LB_OK;
}

/* Do the exact numbers give another choice than the recorded one, or none? */
static lb_status has_flipped(const lb_region_question *q, int side, uint32_t op, uint32_t result, bool *flipped,
                             lb_err *err)
{
    const lb_exact_side *s = q->sides[side];
    const int64_t n = lb_layout_numel(&s->program->values[result].layout);
    inputs in = {.n = 0};
    double *numbers[sizeof in.list / sizeof *in.list] = {NULL}, *again = NULL;
    lb_op_each_input(s->program, &s->program->ops[op], add_input, &in);
    bool known = !in.too_many;
    for (uint32_t i = 0; i < in.n && known; i++)
        known = (numbers[i] = numbers_of(q, side, in.list[i], MOST_VIEWS)) != NULL;
    const lb_status status = known ? choose_again(s, op, result, &in, numbers, &again, err) : LB_OK;
    double *recorded = again ? lb_exact_side_recorded(s, result) : NULL;
    *flipped = !recorded || memcmp(recorded, again, (size_t)n * sizeof *again) != 0;
    for (uint32_t i = 0; i < in.n; i++) free(numbers[i]);
    free(again), free(recorded);
    return status;
}

/* ---- the choices of a region ---- */

/* Does it read numbers, and not make a mask of positions, which may be floats, too? */
static bool reads_floats(const lb_exact_side *s, uint32_t op)
{
    const lb_value_graph *g = &s->graph;
    const lb_op *o = &s->program->ops[op];
    const uint32_t v = lb_op_outcomes(o) ? lb_op_outcome(s->program, o, 0) : LB_NONE;
    for (uint32_t k = v == LB_NONE ? 0 : g->first_pred[v]; v != LB_NONE && k < g->first_pred[v + 1]; k++)
        if (lb_dtype_is_float(s->program->values[g->preds[k]].dtype) && !lb_region_is_made_of_positions(s, g->preds[k]))
            return true;
    return false;
}

/* Of other numbers another choice is what follows from them. Asked for something else (more experts) it is no flip. */
static bool is_choice(const lb_region_frontier *f, const lb_region *r, int side, uint32_t op)
{
    const lb_program *p = f->asked->sides[side]->program;
    return lb_op_kind_is_discontinuous(p, &p->ops[op]) && reads_floats(f->asked->sides[side], op) &&
           !(r->reason == LB_REGION_ARGUMENTS && r->op[side] == op) && lb_region_begins_at(f, side, op);
}

static bool is_lone_choice(const lb_region_frontier *f, int side, uint32_t v)
{
    const lb_exact_side *s = f->asked->sides[side];
    return v != LB_NONE && lb_dtype_is_integer(s->program->values[v].dtype) &&
           s->graph.first_use[v + 1] > s->graph.first_use[v] && s->quantities[v].tells &&
           f->asked->met[side][v] == LB_NONE;
}

/* Is the op that is named of the region a choice on either side? */
static bool is_named(const lb_region_frontier *f, const lb_region *r, int side, uint32_t op)
{
    const lb_program *p = f->asked->sides[side]->program;
    return r->reason != LB_REGION_ARGUMENTS && op != LB_NONE && lb_op_kind_is_discontinuous(p, &p->ops[op]);
}

lb_status lb_flipped_choice_in(const lb_region_frontier *f, const lb_region *r, bool any, bool *flipped, lb_err *err)
{
    any &= is_named(f, r, 0, r->op[0]) || is_named(f, r, 1, r->op[1]);
    *flipped = false;
    for (int k = 0; k < 2; k++) {
        const lb_program *p = f->asked->sides[k]->program;
        for (uint32_t i = 0; i < r->n[k] && !*flipped; i++) {
            const uint32_t op = f->regions->ops[r->first[k] + i];
            if (!is_choice(f, r, k, op)) continue;
            for (uint32_t j = 0; j < p->ops[op].results && !*flipped; j++) {
                const uint32_t v = lb_op_results(p, &p->ops[op])[j];
                if (!is_lone_choice(f, k, v)) continue;
                *flipped = any;
                if (!any) LB_TRY(has_flipped(f->asked, k, op, v, flipped, err));
            }
        }
    }
    return LB_OK;
}
