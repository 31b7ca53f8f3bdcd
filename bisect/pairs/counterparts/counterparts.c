/* Values that stand for the same thing: see counterparts.h. */
#include "counterparts/counterparts.h"

#include "exact/given_anew.h"
#include "counterparts/counterpart_exits.h"
#include "counterparts/counterpart_orders.h"
#include "counterparts/norms.h"
#include "counterparts/rank_parts.h"
#include "shadow/number_lanes.h"
#include "shadow/shadow_numbers.h"

#include "base/array.h"
#include <lastbit/processor.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct maker {
    const lb_exact_side *sides[2];
    const lb_step_sources *sources[2];
    const lb_contents *contents;
    lb_counterparts *out;
    bool failed;
} maker;

static int64_t numel(const lb_program *p, uint32_t v)
{
    return lb_layout_numel(&p->values[v].layout);
}

bool lb_counterparts_add_piece(lb_counterparts *out, lb_content_run piece)
{
    lb_content_run *more = lb_array_grow(out->pieces, out->n_pieces, sizeof *more);
    if (!more) return false;
    out->pieces = more;
    out->pieces[out->n_pieces++] = piece;
    return true;
}

lb_counterpart *lb_counterparts_close(lb_counterparts *out, lb_counterpart_kind kind, uint32_t b, uint32_t first)
{
    lb_counterpart *more = lb_array_grow(out->list, out->n, sizeof *more);
    if (!more) return NULL;
    out->list = more;
    out->list[out->n] = (lb_counterpart){.kind = kind,
                                         .b = b,
                                         .first = first,
                                         .n = out->n_pieces - first,
                                         .of = {LB_NONE, LB_NONE},
                                         .until = {LB_NONE, LB_NONE}};
    return &out->list[out->n++];
}

bool lb_counterparts_add(lb_counterparts *out, lb_counterpart_kind kind, uint32_t a, uint32_t b, int64_t elements)
{
    const uint32_t first = out->n_pieces;
    return lb_counterparts_add_piece(out, (lb_content_run){a, 0, 1, 0, 1, elements}) &&
           lb_counterparts_close(out, kind, b, first);
}

bool lb_counterparts_add_values(lb_counterparts *out, lb_counterpart_kind kind, const lb_exact_side *a, uint32_t va,
                                const lb_exact_side *b, uint32_t vb)
{
    const lb_layout *x = &a->program->values[va].layout, *y = &b->program->values[vb].layout;
    const uint32_t first = out->n_pieces;
    const bool turned = lb_counterpart_orders_turned(x, y), channels = !turned && lb_counterpart_orders_channels(x, y);
    if (!turned && !channels) return lb_counterparts_add(out, kind, va, vb, lb_layout_numel(y));
    const bool added =
        turned ? lb_counterpart_orders_add_turned(out, va, x, y) : lb_counterpart_orders_add_channels(out, va, x, y);
    lb_counterpart *made = added ? lb_counterparts_close(out, kind, vb, first) : NULL;
    if (made) made->turned_by_shape = true;
    return made != NULL;
}

/* One value of A, all of it? */
static bool is_one_value(const lb_counterpart *c)
{
    return c->n == 1 || c->turned_by_shape;
}

/* ---- ops that read weights ---- */

static bool is_product(const lb_program *p, uint32_t op)
{
    static const char *const names[] = {"aten::mm", "aten::addmm", "aten::linear", "aten::matmul"};
    return lb_op_name_among(p, &p->ops[op], names, sizeof names / sizeof *names) >= 0;
}

static uint32_t only_result(const lb_program *p, uint32_t op)
{
    const uint32_t v = p->ops[op].results ? lb_op_results(p, &p->ops[op])[0] : LB_NONE;
    return v != LB_NONE && lb_dtype_is_float(p->values[v].dtype) ? v : LB_NONE;
}

typedef struct readers {
    uint32_t *list, n; /* ops, ascending */
} readers;

static uint32_t source_of_result(const lb_program *p, const uint32_t *source_of, uint32_t op)
{
    const uint32_t v = lb_op_outcomes(&p->ops[op]) ? lb_op_outcome(p, &p->ops[op], 0) : LB_NONE;
    return v == LB_NONE ? LB_NONE : source_of[v];
}

/* The computing ops of a phase that read the tensor of a source, or what is made of it alone; not those that make
 * that. */
static readers readers_of(const lb_exact_side *s, const uint32_t *source_of, uint32_t source, lb_phase phase)
{
    const lb_program *p = s->program;
    readers r = {0};
    for (uint32_t v = 0; v < p->n_values; v++) {
        if (source_of[v] != source) continue;
        for (uint32_t k = s->graph.first_use[v]; k < s->graph.first_use[v + 1]; k++) {
            const uint32_t op = s->graph.uses[k];
            if (p->ops[op].phase != phase || !lb_value_graph_computes(p, &p->ops[op]) ||
                source_of_result(p, source_of, op) == source)
                continue;
            uint32_t *more = lb_array_grow(r.list, r.n, sizeof *more);
            if (!more) return r;
            r.list = more, r.list[r.n++] = op;
        }
    }
    if (r.n > 1) qsort(r.list, r.n, sizeof *r.list, lb_by_u32);
    uint32_t kept = 0;
    for (uint32_t k = 0; k < r.n; k++)
        if (!kept || r.list[kept - 1] != r.list[k]) r.list[kept++] = r.list[k];
    r.n = kept;
    return r;
}

/* Is a value made of one parameter alone, with as many elements: 1 + w, -exp(w)? That parameter; LB_NONE. */
static uint32_t image_of(const lb_exact_side *s, const uint32_t *of, uint32_t v)
{
    const lb_value_graph *g = &s->graph;
    const lb_program *p = s->program;
    const uint32_t first = g->first_pred[v], n = g->first_pred[v + 1] - first;
    uint32_t source = LB_NONE;
    if (g->giver[v] == LB_NONE || p->ops[g->giver[v]].phase != LB_PHASE_FORWARD) return LB_NONE;
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t one = of[g->preds[first + k]];
        if (one == LB_NONE || (source != LB_NONE && one != source)) return LB_NONE;
        source = one;
    }
    const bool parameter = source != LB_NONE && p->values[source].flags & LB_VALUE_PARAMETER;
    return parameter && numel(p, source) == numel(p, v) ? source : LB_NONE;
}

/* Per value: the source that it shows, or is made of alone. */
static uint32_t *list_source_of(const lb_exact_side *s)
{
    const lb_value_graph *g = &s->graph;
    const lb_program *p = s->program;
    uint32_t *of = malloc((p->n_values + 1) * sizeof *of);
    for (uint32_t v = 0; of && v < p->n_values; v++) of[v] = lb_value_graph_source(g, v);
    for (uint32_t i = 0; of && i < p->n_ops; i++)
        for (uint32_t r = 0; r < lb_op_outcomes(&p->ops[i]); r++) {
            const uint32_t v = lb_op_outcome(p, &p->ops[i], r);
            if (v != LB_NONE && of[v] == LB_NONE && g->given[v] && g->giver[v] == i) of[v] = image_of(s, of, v);
        }
    return of;
}

/* The op that computed what a value shows, through windows and copies; LB_NONE. */
static uint32_t computed_by(const lb_exact_side *s, uint32_t v)
{
    const lb_value_graph *g = &s->graph;
    for (uint32_t depth = 0; depth < 64 && g->giver[v] != LB_NONE; depth++) {
        const uint32_t first = g->first_pred[v];
        if (lb_value_graph_is_computed(g, v)) return g->giver[v];
        if (g->first_pred[v + 1] - first != 1) return LB_NONE;
        v = g->preds[first];
    }
    return LB_NONE;
}

/* Does the op add the source to what is a sum already? (x + product) + bias holds the residual stream, product + bias
 * does not. */
static bool adds_to_sum(const lb_exact_side *s, const uint32_t *source_of, uint32_t source, uint32_t op)
{
    const lb_program *p = s->program;
    if (!lb_value_graph_adds(p, op)) return false;
    for (uint32_t k = 0; k < p->ops[op].args && k < 2; k++) {
        const lb_arg *arg = &lb_op_args(p, &p->ops[op])[k];
        if (arg->tag != LB_ARG_VALUE || arg->u.value == LB_NONE || source_of[arg->u.value] == source) continue;
        const uint32_t before = computed_by(s, arg->u.value);
        if (before != LB_NONE && lb_value_graph_adds(p, before)) return true;
    }
    return false;
}

/* Is a bias in what the op gives? */
static bool gives_biased(const lb_program *p, const lb_op *op)
{
    static const char *const sums[] = {"aten::addmm", "aten::baddbmm", "aten::addmv", "aten::addbmm"};
    static const char *const may[] = {"aten::linear", "aten::convolution"};
    const lb_arg *bias = op->args > 2 ? &lb_op_args(p, op)[2] : NULL;
    if (lb_op_name_among(p, op, sums, sizeof sums / sizeof *sums) >= 0) return true;
    return bias && lb_op_name_among(p, op, may, 2) >= 0 && bias->tag == LB_ARG_VALUE && bias->u.value != LB_NONE;
}

/* Does one side's product have the bias in it, and the other side's not? */
static bool is_biased_on_one_side(const lb_program *pa, const lb_op *a, const lb_program *pb, const lb_op *b)
{
    static const char *const bare[] = {"aten::mm", "aten::bmm", "aten::mv", "aten::dot"};
    return (gives_biased(pa, a) && lb_op_name_among(pb, b, bare, 4) >= 0) ||
           (gives_biased(pb, b) && lb_op_name_among(pa, a, bare, 4) >= 0);
}

/* Whether ops of both sides that read the same tensor give the same thing: in forward the last reader of a norm's
 * weight, or a bias, gives the result, whatever ops come before; in backward only a product says so by itself. */
static bool may_anchor(const maker *m, uint32_t *const source_of[2], const uint32_t source[2], const uint32_t ops[2],
                       const uint32_t values[2])
{
    const lb_program *pa = m->sides[0]->program, *pb = m->sides[1]->program;
    if (values[0] == LB_NONE || values[1] == LB_NONE || numel(pa, values[0]) != numel(pb, values[1]) ||
        numel(pa, values[0]) < 2)
        return false;
    if (pa->ops[ops[0]].phase != LB_PHASE_FORWARD) return is_product(pa, ops[0]) && is_product(pb, ops[1]);
    if (is_biased_on_one_side(pa, &pa->ops[ops[0]], pb, &pb->ops[ops[1]])) return false;
    return adds_to_sum(m->sides[0], source_of[0], source[0], ops[0]) ==
           adds_to_sum(m->sides[1], source_of[1], source[1], ops[1]);
}

/* A later anchor of the same value takes the place of an earlier one: a product, and the sum with its bias. */
static void anchor(maker *m, uint32_t va, uint32_t vb)
{
    for (uint32_t i = 0; i < m->out->n; i++) {
        lb_counterpart *c = &m->out->list[i];
        if (c->kind != LB_COUNTERPART_ANCHOR || !is_one_value(c)) continue;
        const uint32_t before = m->out->pieces[c->first].tensor;
        if (c->b == vb && before == va) return;
        if (c->b != vb && before != va) continue;
        if (m->sides[0]->graph.giver[va] < m->sides[0]->graph.giver[before] ||
            m->sides[1]->graph.giver[vb] < m->sides[1]->graph.giver[c->b])
            return;
        c->kind = LB_COUNTERPART_DROPPED;
    }
    m->failed |= !lb_counterparts_add_values(m->out, LB_COUNTERPART_ANCHOR, m->sides[0], va, m->sides[1], vb);
}

/* What forward multiplied by the tensor where backward gives the gradient of that product: the other operand;
 * LB_NONE. */
static uint32_t multiplied(const lb_exact_side *s, const uint32_t *source_of, uint32_t source, uint32_t op)
{
    const lb_program *p = s->program;
    const uint32_t forward = s->graph.forward[op];
    if (forward == LB_NONE || !is_product(p, forward)) return LB_NONE;
    for (uint32_t k = p->ops[forward].args; k-- > 0;) {
        const lb_arg *arg = &lb_op_args(p, &p->ops[forward])[k];
        if (arg->tag == LB_ARG_VALUE && arg->u.value != LB_NONE && source_of[arg->u.value] != source)
            return arg->u.value;
    }
    return LB_NONE;
}

/* Group i of A beside group j of B. False when out of memory. */
static bool put_groups(maker *m, lb_counterpart_kind kind, const lb_rank_parts parts[2], uint32_t i, uint32_t j,
                       bool *added)
{
    const uint32_t *a = parts[0].first + i, *b = parts[1].first + j;
    return lb_rank_parts_put(m->out, kind, m->sides[0], parts[0].values + a[0], a[1] - a[0], m->sides[1],
                             parts[1].values + b[0], b[1] - b[0], added);
}

/* As anchor() says of one value: may an anchor of these parts, whose first ones are given, be added? An earlier one
 * gives way to it. The first part of a group tells: the others come later on both sides. */
static bool takes_place(maker *m, uint32_t va, uint32_t vb)
{
    const lb_value_graph *a = &m->sides[0]->graph, *b = &m->sides[1]->graph;
    uint32_t group = 0;
    for (uint32_t i = 0; i < m->out->n; i++) {
        lb_counterpart *c = &m->out->list[i];
        if (c->kind != LB_COUNTERPART_ANCHOR || !c->in_parts || !c->n || (group && c->group == group)) continue;
        const uint32_t before = m->out->pieces[c->first].tensor;
        if ((before != va) == (c->b != vb)) continue;
        if (a->giver[va] < a->giver[before] || b->giver[vb] < b->giver[c->b]) return false;
        group = c->group;
    }
    for (uint32_t i = 0; i < m->out->n && group; i++)
        if (m->out->list[i].in_parts && m->out->list[i].group == group) m->out->list[i].kind = LB_COUNTERPART_DROPPED;
    return true;
}

/* Ranks of one side, or of both, read the tensor with their own part of the batch. */
static void anchor_ranks(maker *m, uint32_t *const source_of[2], const uint32_t source[2], const readers r[2])
{
    lb_rank_parts parts[2] = {{0}, {0}};
    for (int k = 0; k < 2 && !m->failed; k++) {
        uint32_t *values = malloc((r[k].n + 1) * sizeof *values);
        bool all = values != NULL;
        m->failed |= !values;
        for (uint32_t i = 0; i < r[k].n && all; i++)
            all = (values[i] = only_result(m->sides[k]->program, r[k].list[i])) != LB_NONE;
        if (all) m->failed |= !lb_rank_parts_group(m->sides[k], values, r[k].n, &parts[k]);
        free(values);
    }
    for (uint32_t i = 0; i < parts[0].n_groups && parts[0].n_groups == parts[1].n_groups && !m->failed; i++) {
        const lb_program *p[] = {m->sides[0]->program, m->sides[1]->program};
        bool added, sums[2];
        uint32_t ops[2];
        for (int k = 0; k < 2; k++) {
            ops[k] = m->sides[k]->graph.giver[parts[k].values[parts[k].first[i]]];
            sums[k] = adds_to_sum(m->sides[k], source_of[k], source[k], ops[k]);
        }
        if (sums[0] != sums[1] || is_biased_on_one_side(p[0], &p[0]->ops[ops[0]], p[1], &p[1]->ops[ops[1]]) ||
            !takes_place(m, parts[0].values[parts[0].first[i]], parts[1].values[parts[1].first[i]]))
            continue;
        m->failed |= !put_groups(m, LB_COUNTERPART_ANCHOR, parts, i, i, &added);
    }
    for (int k = 0; k < 2; k++) lb_rank_parts_release(&parts[k]);
}

static void anchor_readers(maker *m, uint32_t *const source_of[2], const uint32_t source[2], lb_phase phase)
{
    readers r[2];
    for (int k = 0; k < 2; k++) r[k] = readers_of(m->sides[k], source_of[k], source[k], phase);
    /* In backward each part goes back from the loss of its own tokens: what several have is not to be compared token by
     * token. */
    const bool by_token = m->sides[0]->tokens != NULL;
    if ((by_token && phase == LB_PHASE_FORWARD) || (r[0].n != r[1].n && phase == LB_PHASE_FORWARD))
        anchor_ranks(m, source_of, source, r);
    for (uint32_t i = 0; i < r[0].n && r[0].n == r[1].n && !by_token; i++) {
        const uint32_t ops[] = {r[0].list[i], r[1].list[i]}, before = m->out->n;
        uint32_t values[2];
        for (int k = 0; k < 2; k++) values[k] = only_result(m->sides[k]->program, ops[k]);
        if (!may_anchor(m, source_of, source, ops, values)) continue;
        for (int k = 0; k < 2 && phase == LB_PHASE_FORWARD; k++) values[k] = lb_norms_result(m->sides[k], values[k]);
        anchor(m, values[0], values[1]);
        for (int k = 0; k < 2 && phase == LB_PHASE_BACKWARD && m->out->n > before; k++)
            m->out->list[before].of[k] = multiplied(m->sides[k], source_of[k], source[k], ops[k]);
    }
    free(r[0].list), free(r[1].list);
}

static bool is_one_tensor(const lb_content *c)
{
    return c->relation != LB_CONTENT_NONE && c->relation != LB_CONTENT_FUSED && c->relation != LB_CONTENT_SPLIT &&
           c->relation != LB_CONTENT_PERMUTED && c->relation != LB_CONTENT_PADDED && c->relation != LB_CONTENT_MOVED;
}

static void find_anchors(maker *m)
{
    uint32_t *source_of[2] = {list_source_of(m->sides[0]), list_source_of(m->sides[1])};
    for (uint32_t i = 0; i < m->sources[1]->n && source_of[0] && source_of[1] && !m->failed; i++) {
        const lb_content *c = &m->contents->list[i];
        const lb_value *v = &m->sides[1]->program->values[m->sources[1]->list[i].value];
        if (!is_one_tensor(c) || !lb_dtype_is_float(v->dtype) || c->all < 2) continue;
        for (lb_phase phase = LB_PHASE_FORWARD; phase <= LB_PHASE_BACKWARD; phase++) {
            const uint32_t source[] = {m->sources[0]->list[c->tensor].value, m->sources[1]->list[i].value};
            anchor_readers(m, source_of, source, phase);
        }
    }
    m->failed |= !source_of[0] || !source_of[1];
    free(source_of[0]), free(source_of[1]);
}

/* The last value that an op of the step writes to a source's memory; LB_NONE. */
static uint32_t last_written(const lb_exact_side *s, uint32_t source)
{
    const lb_program *p = s->program;
    for (uint32_t i = p->n_ops; i-- > 0;) {
        const lb_op *op = &p->ops[i];
        const bool writes = !(op->flags & (LB_OP_VIEW | LB_OP_FAILED)) && !lb_op_is_source(p, op);
        const uint32_t value = writes ? lb_op_writes(p, op, p->values[source].storage) : LB_NONE;
        if (value != LB_NONE) return value;
    }
    return LB_NONE;
}

/* The value that is in a parameter's memory at the end, where an op of the step wrote all of it; LB_NONE. */
static uint32_t final_of(const lb_exact_side *s, uint32_t source)
{
    const uint32_t value = last_written(s, source);
    return value != LB_NONE && numel(s->program, value) == numel(s->program, source) && s->graph.given[value] ? value
                                                                                                              : LB_NONE;
}

/* The same; of a parameter that the step gives anew, that, and of one that it leaves alone what it began with. */
static uint32_t final_or_source(const lb_exact_side *s, uint32_t source)
{
    if (last_written(s, source) != LB_NONE) return final_of(s, source);
    const uint32_t anew = lb_given_anew(s, source);
    return anew == LB_NONE ? source : anew;
}

/* A parameter of B, or a tensor that is made of parameters of A: functions are given weights that nothing calls so. */
static bool is_parameter(const maker *m, uint32_t row)
{
    const lb_content *c = &m->contents->list[row];
    bool of_a = c->n > 0;
    for (uint32_t k = 0; k < c->n && of_a; k++) {
        const lb_step_source *a = &m->sources[0]->list[m->contents->runs[c->first + k].tensor];
        of_a = m->sides[0]->program->values[a->value].flags & LB_VALUE_PARAMETER;
    }
    return of_a || m->sides[1]->program->values[m->sources[1]->list[row].value].flags & LB_VALUE_PARAMETER;
}

/* Does one side alone update the parameter in its place, or a part of it? */
static bool is_updated_on_one_side(const maker *m, uint32_t row)
{
    const lb_content *c = &m->contents->list[row];
    const uint32_t b = m->sources[1]->list[row].value;
    uint32_t written = 0;
    if (!is_parameter(m, row)) return false;
    for (uint32_t k = 0; k < c->n; k++) {
        const uint32_t a = m->contents->runs[c->first + k].tensor;
        written += last_written(m->sides[0], m->sources[0]->list[a].value) != LB_NONE;
    }
    return last_written(m->sides[1], b) == LB_NONE ? written > 0 : written < c->n;
}

/* Do all ranks that begin with the source have the value alike? What one of them has of its part of a batch is no
 * gradient yet. */
static bool is_of_all_ranks(const lb_exact_side *s, uint32_t source, uint32_t v)
{
    const uint64_t *ranks = s->view->ranks_of;
    const uint64_t begin = ranks ? ranks[s->graph.giver[source]] : 0;
    return !ranks || (ranks[s->graph.giver[v]] & begin) == begin;
}

/* A gradient of the parameter that backward gives. */
static bool is_gradient_of(const lb_exact_side *s, uint32_t source, uint32_t v)
{
    const lb_program *p = s->program;
    const lb_value *value = &p->values[v];
    return value->flags & LB_VALUE_GRADIENT && value->name == p->values[source].name && s->graph.giver[v] != LB_NONE &&
           p->ops[s->graph.giver[v]].phase == LB_PHASE_BACKWARD &&
           lb_layout_same_shape(&value->layout, &p->values[source].layout) && is_of_all_ranks(s, source, v);
}

/* Marks what a value is made of in backward. */
static void mark_made_of(const lb_exact_side *s, uint32_t value, uint8_t *marked, uint32_t *stack)
{
    uint32_t n = 1;
    marked[value] = 1, stack[0] = value;
    while (n) {
        const uint32_t v = stack[--n], giver = s->graph.giver[v];
        if (giver == LB_NONE || s->program->ops[giver].phase != LB_PHASE_BACKWARD) continue;
        for (uint32_t k = s->graph.first_pred[v]; k < s->graph.first_pred[v + 1]; k++)
            if (!marked[s->graph.preds[k]]) marked[s->graph.preds[k]] = 1, stack[n++] = s->graph.preds[k];
    }
}

/* Are all gradients that the side's backward gave of the parameter in this one? Where the program adds them up itself
 * they are not. */
static bool is_sum_of_all(const lb_exact_side *s, uint32_t source, uint32_t found)
{
    const uint32_t n = s->program->n_values;
    uint32_t others = 0;
    for (uint32_t v = 0; v < found; v++) others += is_gradient_of(s, source, v);
    if (!others || s->view->n_parts > 1) return true;
    uint8_t *marked = calloc((size_t)n + 1, 1);
    uint32_t *stack = malloc(((size_t)n + 1) * sizeof *stack);
    bool all = true;
    if (marked && stack) mark_made_of(s, found, marked, stack);
    for (uint32_t v = 0; v < n && marked && stack; v++) all &= marked[v] || v == found || !is_gradient_of(s, source, v);
    free(marked), free(stack);
    return all;
}

/* The gradient of a parameter as backward left it; LB_NONE. */
static uint32_t gradient_of(const lb_exact_side *s, uint32_t source)
{
    uint32_t found = LB_NONE;
    for (uint32_t v = 0; v < s->program->n_values; v++)
        if (is_gradient_of(s, source, v) && (found == LB_NONE || s->graph.giver[v] >= s->graph.giver[found])) found = v;
    return found == LB_NONE || is_sum_of_all(s, source, found) ? found : LB_NONE;
}

/* The same; of a parameter that is given anew, whose gradient no name tells, what the new one follows from. */
static uint32_t gradient_or_from(const lb_exact_side *s, uint32_t source)
{
    const uint32_t found = gradient_of(s, source);
    return found != LB_NONE || last_written(s, source) != LB_NONE ? found : lb_given_anew_from(s, source);
}

/* Zeros that an optimizer begins with are those of a bias, and a copy of a parameter has its numbers: a state and a
 * parameter need not end alike. */
static bool is_state_beside_parameter(const maker *m, uint32_t row)
{
    const lb_content *c = &m->contents->list[row];
    const lb_step_source *b = &m->sources[1]->list[row];
    bool unlike = false;
    for (uint32_t k = 0; k < c->n; k++) {
        const lb_step_source *a = &m->sources[0]->list[m->contents->runs[c->first + k].tensor];
        const bool states[] = {lb_step_source_is_state(a), lb_step_source_is_state(b)};
        const bool parameters[] = {m->sides[0]->program->values[a->value].flags & LB_VALUE_PARAMETER,
                                   m->sides[1]->program->values[b->value].flags & LB_VALUE_PARAMETER};
        unlike |= (states[0] && parameters[1]) || (parameters[0] && states[1]);
    }
    return unlike;
}

/* A parameter that is given anew, or lies in memory that nothing calls a parameter: no name tells its states. */
static bool has_nameless_states(const maker *m, int side, uint32_t row, uint32_t final)
{
    const lb_step_source *source = &m->sources[side]->list[row];
    return !*source->name || (final != source->value && last_written(m->sides[side], source->value) == LB_NONE);
}

/* What both sides have in the place of a tensor that B is made of A's: `find` says what that is. */
static void add_image(maker *m, uint32_t row, lb_counterpart_kind kind,
                      uint32_t (*find)(const lb_exact_side *, uint32_t))
{
    const lb_content *c = &m->contents->list[row];
    const uint32_t found = find(m->sides[1], m->sources[1]->list[row].value), first = m->out->n_pieces,
                   vb = found == LB_NONE ? LB_NONE
                                         : lb_value_graph_whole(&m->sides[1]->graph, found); /* B can go on from it */
    bool fits = vb != LB_NONE && lb_dtype_is_float(m->sides[1]->program->values[vb].dtype);
    bool nameless = fits && has_nameless_states(m, 1, row, found);
    for (uint32_t k = 0; k < c->n && fits; k++) {
        lb_content_run run = m->contents->runs[c->first + k];
        const uint32_t of_row = run.tensor;
        run.tensor = find(m->sides[0], m->sources[0]->list[of_row].value);
        fits = run.tensor != LB_NONE;
        nameless |= fits && has_nameless_states(m, 0, of_row, run.tensor);
        m->failed |= fits && !lb_counterparts_add_piece(m->out, run);
    }
    lb_counterpart *image = fits ? lb_counterparts_close(m->out, kind, vb, first) : NULL;
    if (!fits) m->out->n_pieces = first;
    const char *name = m->sources[1]->list[row].name;
    if (image && kind == LB_COUNTERPART_FINAL) image->shift = c->shift;
    if (image) image->nameless = kind == LB_COUNTERPART_FINAL && nameless;
    if (image) image->name = *name || !c->n ? name : m->sources[0]->list[m->contents->runs[c->first].tensor].name;
    m->failed |= fits && !image;
}

/* Memory that on both sides the update alone reads: states, and weights in f32 of a model in fewer bits. */
static bool is_kept_on_both(const maker *m, uint32_t row)
{
    const lb_content *c = &m->contents->list[row];
    bool kept = m->sources[1]->list[row].kept && c->n;
    for (uint32_t k = 0; k < c->n && kept; k++) kept = m->sources[0]->list[m->contents->runs[c->first + k].tensor].kept;
    return kept;
}

/* A tensor with a name, or kept memory; or what forward reads in the place of parameters: an average that has their
 * numbers is another one. */
static bool stands_for_itself(const maker *m, uint32_t row)
{
    const lb_exact_side *b = m->sides[1];
    const uint32_t source = m->sources[1]->list[row].value;
    bool read = false;
    if (*m->sources[1]->list[row].name || is_kept_on_both(m, row)) return true;
    if (!is_parameter(m, row)) return false;
    for (uint32_t v = 0; v < b->program->n_values && !read; v++)
        for (uint32_t k = b->graph.first_use[v]; k < b->graph.first_use[v + 1] && !read; k++)
            read = (v == source || lb_value_graph_source(&b->graph, v) == source) &&
                   b->program->ops[b->graph.uses[k]].phase == LB_PHASE_FORWARD;
    return read;
}

static void find_images(maker *m)
{
    for (uint32_t i = 0; i < m->sources[1]->n && !m->failed; i++) {
        if (m->contents->list[i].relation == LB_CONTENT_NONE || !stands_for_itself(m, i)) continue;
        if (is_parameter(m, i)) add_image(m, i, LB_COUNTERPART_GRADIENT, gradient_or_from);
        if (is_state_beside_parameter(m, i)) continue;
        add_image(m, i, LB_COUNTERPART_FINAL, is_updated_on_one_side(m, i) ? final_or_source : final_of);
    }
}

/* ---- memory that outlives the step ---- */

/* Is what the storage holds at the end compared already? */
static bool is_paired(const maker *m, int side, int64_t storage)
{
    const lb_value *values = m->sides[side]->program->values;
    for (uint32_t i = 0; i < m->out->n; i++) {
        const lb_counterpart *c = &m->out->list[i];
        if (c->kind != LB_COUNTERPART_FINAL) continue;
        if (side && values[c->b].storage == storage) return true;
        for (uint32_t k = 0; k < c->n && !side; k++)
            if (values[m->out->pieces[c->first + k].tensor].storage == storage) return true;
    }
    return false;
}

/* What the step leaves in memory that was there before, and is no parameter or state that the other side has by its
 * numbers (an average of weights, a buffer), in the order of its writes. */
static uint32_t list_left(const maker *m, int side, uint32_t *values)
{
    const lb_exact_side *s = m->sides[side];
    const lb_program *p = s->program;
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->sources[side]->n; i++) {
        const uint32_t source = m->sources[side]->list[i].value;
        const lb_value *v = &p->values[source];
        if (!lb_dtype_is_float(v->dtype) || v->flags & LB_VALUE_GRADIENT || numel(p, source) < 2) continue;
        const uint32_t final = is_paired(m, side, v->storage) ? LB_NONE : final_of(s, source);
        if (final == LB_NONE) continue;
        uint32_t at = n++;
        for (; at && s->graph.giver[values[at - 1]] > s->graph.giver[final]; at--) values[at] = values[at - 1];
        values[at] = final;
    }
    return n;
}

/* Both sides leave as many, of the same shapes: they stand beside each other in the order of their writes. Where
 * numbers tell that two of them changed places, lb_counterparts_drop_wrong does. */
static void find_left(maker *m)
{
    uint32_t *values[2], n[2] = {0, 0};
    for (int k = 0; k < 2; k++) values[k] = malloc((m->sources[k]->n + 1) * sizeof **values);
    m->failed |= !values[0] || !values[1];
    for (int k = 0; k < 2 && !m->failed; k++) n[k] = list_left(m, k, values[k]);
    bool alike = n[0] == n[1];
    for (uint32_t i = 0; i < n[0] && alike; i++)
        alike = lb_layout_same_shape(&m->sides[0]->program->values[values[0][i]].layout,
                                     &m->sides[1]->program->values[values[1][i]].layout);
    for (uint32_t i = 0; i < n[0] && alike && !m->failed; i++)
        m->failed |= !lb_counterparts_add(m->out, LB_COUNTERPART_FINAL, values[0][i], values[1][i],
                                          numel(m->sides[0]->program, values[0][i]));
    free(values[0]), free(values[1]);
}

/* The first source of B that begins with exactly the numbers of A's; LB_NONE. */
static uint32_t with_numbers_of(const maker *m, uint32_t row)
{
    const lb_step_source *a = &m->sources[0]->list[row];
    for (uint32_t i = 0; i < m->sources[1]->n; i++)
        if (!lb_digest_is_none(a->digest) && lb_digest_equal(m->sources[1]->list[i].digest, a->digest) &&
            numel(m->sides[1]->program, m->sources[1]->list[i].value) == numel(m->sides[0]->program, a->value))
            return i;
    return LB_NONE;
}

/* A copy of a parameter that A keeps (an average) may be no tensor of its own on B as the step begins, as it holds the
 * parameter's numbers then: what A leaves in it stands beside a new one that B makes of these. Which of several that is
 * the numbers tell later. */
static void find_copies(maker *m)
{
    const lb_exact_side *a = m->sides[0], *b = m->sides[1];
    for (uint32_t i = 0; i < m->sources[0]->n && !m->failed; i++) {
        const uint32_t source = m->sources[0]->list[i].value;
        const bool lone = a->program->values[source].flags & LB_VALUE_PARAMETER &&
                          !is_paired(m, 0, a->program->values[source].storage);
        const uint32_t final = lone ? final_of(a, source) : LB_NONE,
                       row = final == LB_NONE ? LB_NONE : with_numbers_of(m, i),
                       given = row == LB_NONE ? LB_NONE : lb_given_anew(b, m->sources[1]->list[row].value);
        if (given != LB_NONE)
            m->failed |= !lb_counterparts_add(m->out, LB_COUNTERPART_FINAL, final, given, numel(a->program, final));
    }
}

lb_status lb_counterparts_find(const lb_exact_side *a, const lb_exact_side *b, const lb_step_sources *sources_a,
                               const lb_step_sources *sources_b, const lb_contents *contents, lb_counterparts *out,
                               lb_err *err)
{
    maker m = {.sides = {a, b}, .sources = {sources_a, sources_b}, .contents = contents, .out = out};
    *out = (lb_counterparts){0};
    find_anchors(&m);
    m.failed |= !lb_counterpart_exits_find(a, b, sources_a, contents, out);
    find_images(&m);
    if (!m.failed) find_copies(&m);
    if (!m.failed) find_left(&m);
    if (!m.failed) return LB_OK;
    lb_counterparts_release(out);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for the values of %u ops", a->program->n_ops);
}

void lb_counterparts_release(lb_counterparts *c)
{
    free(c->list), free(c->pieces), free(c->lone[0]), free(c->lone[1]);
    *c = (lb_counterparts){0};
}

/* ---- numbers ---- */

static void take_run(const lb_content_run *r, const double *from, bool negated, double *x, uint8_t *known)
{
    if (r->from_stride == 1 && r->to_stride == 1 && !negated) {
        memcpy(x + r->to, from + r->from, (size_t)r->n * sizeof *x);
        memset(known + r->to, 1, (size_t)r->n);
        return;
    }
    for (int64_t i = 0; i < r->n; i++) {
        const double number = from[r->from + i * r->from_stride];
        x[r->to + i * r->to_stride] = negated ? -number : number;
        known[r->to + i * r->to_stride] = 1;
    }
}

double *lb_counterpart_expected(const lb_counterparts *all, const lb_counterpart *one, const lb_exact_side *a,
                                int64_t elements, uint8_t **known, double *noise)
{
    double *x = calloc((size_t)elements + 1, sizeof *x);
    *known = calloc((size_t)elements + 1, 1), *noise = 0;
    bool whole = x && *known;
    for (uint32_t k = 0; k < one->n && whole; k++) {
        const lb_content_run *r = &all->pieces[one->first + k];
        const double *from = a->kept[r->tensor];
        whole = from != NULL;
        if (!whole) break;
        *noise = fmax(*noise, a->noise[r->tensor]);
        take_run(r, from, one->negated, x, *known);
    }
    for (int64_t i = 0; i < elements && whole && one->shift != 0; i++)
        if ((*known)[i]) x[i] += one->shift;
    if (whole) return x;
    free(x), free(*known);
    *known = NULL;
    return NULL;
}

double *lb_counterpart_forced(const lb_counterparts *all, const lb_counterpart *one, const lb_exact_side *a,
                              int64_t elements)
{
    uint8_t *known = NULL;
    double noise, *numbers = lb_counterpart_expected(all, one, a, elements, &known, &noise);
    for (int64_t k = 0; numbers && k < elements; k++)
        if (!known[k]) numbers[k] = lb_exact_side_own();
    free(known);
    return numbers;
}

double *lb_counterpart_taken(const lb_counterparts *all, const lb_counterpart *one, const lb_exact_side *a,
                             const lb_exact_side *b)
{
    const int64_t n = numel(b->program, one->b);
    uint8_t *known = NULL;
    double noise, *numbers = lb_counterpart_expected(all, one, a, n, &known, &noise);
    const double *own =
        b->held[one->b] ? b->held[one->b] : b->kept[one->b]; /* held: a table of several parts, put in one by one */
    for (int64_t k = 0; numbers && k < n; k++)
        if (!known[k]) numbers[k] = own ? own[k] : 0;
    free(known);
    return numbers;
}

/* Adds up the squares of differences and of x, over what is a number below 2^96 on both sides. */
LB_INLINE void add_squares_body(const double *x, const double *y, int64_t n, double *difference, double *size)
{
    const double most = 0x1p96;
    lb_eight apart = {0}, all = {0};
    double last[2][LB_LANES] = {{0}};
    for (int64_t i = 0; i < n; i += LB_LANES) {
        lb_eight a, b;
        const bool whole = i + LB_LANES <= n;
        for (int64_t k = i; !whole && k < n; k++) last[0][k - i] = x[k], last[1][k - i] = y[k];
        memcpy(&a, whole ? x + i : last[0], sizeof a), memcpy(&b, whole ? y + i : last[1], sizeof b);
        const lb_eight_bits counts = (LB_LANES_SIZES(a) < most) & (LB_LANES_SIZES(b) < most);
        a = LB_LANES_CHOSEN(counts, a), b = LB_LANES_CHOSEN(counts, b);
        apart += (a - b) * (a - b), all += a * a;
    }
    for (int k = 0; k < LB_LANES; k++) *difference += apart[k], *size += all[k];
}
LB_PER_ISA(add_squares, add_squares_body,
           (const double *x, const double *y, int64_t n, double *difference, double *size), (x, y, n, difference, size))

double lb_counterparts_distance(const double *x, const double *y, int64_t n)
{
    double difference = 0, size = 0;
    add_squares(x, y, n, &difference, &size);
    return size > 0 ? sqrt(difference / size) : difference > 0 ? INFINITY : 0;
}

bool lb_counterpart_can_be_put(const lb_counterparts *all, const lb_counterpart *c, const lb_exact_side *a,
                               const lb_exact_side *b)
{
    const bool kind = c->kind == LB_COUNTERPART_ANCHOR || c->kind == LB_COUNTERPART_SHARED ||
                      c->kind == LB_COUNTERPART_GRADIENT || c->kind == LB_COUNTERPART_SERVES;
    return kind && b->graph.given[c->b] && !c->refuted &&
           (c->n != 1 || c->in_parts || c->kind == LB_COUNTERPART_GRADIENT ||
            lb_counterpart_orders_agree(&a->program->values[all->pieces[c->first].tensor].layout,
                                        &b->program->values[c->b].layout));
}

/* Of these shapes the elements do not stand as the sizes of the dimensions say (heads put together differently). */
static void refute(lb_counterparts *all, const lb_counterpart *one, const lb_exact_side *a, const lb_exact_side *b)
{
    const lb_value *va = a->program->values, *vb = b->program->values;
    const uint32_t first = all->pieces[one->first].tensor;
    for (uint32_t i = 0; i < all->n; i++) {
        lb_counterpart *c = &all->list[i];
        c->refuted |= c->turned_by_shape && lb_layout_same_shape(&vb[c->b].layout, &vb[one->b].layout) &&
                      lb_layout_same_shape(&va[all->pieces[c->first].tensor].layout, &va[first].layout);
    }
}

/* A's numbers, where B's value is one of A's as it stands; NULL: it is put together. */
static const double *as_it_stands(const lb_counterparts *all, const lb_counterpart *c, const lb_exact_side *a,
                                  int64_t n)
{
    const lb_content_run *r = &all->pieces[c->first];
    const bool whole =
        c->n == 1 && c->shift == 0 && r->n == n && !r->from && !r->to && r->from_stride == 1 && r->to_stride == 1;
    return whole ? a->kept[r->tensor] : NULL;
}

/* Relative L2 beyond which what agrees within the noise alone is no proof, and how large a value has to be, of the
 * largest of its phase: the gradient of a bias that changes nothing is noise, and 0. */
static const double STEADY = 1e-6, NOTHING = 1e-9;

static lb_phase phase_at(const lb_exact_side *s, uint32_t v)
{
    return s->graph.giver[v] == LB_NONE ? LB_PHASE_OTHER : (lb_phase)s->program->ops[s->graph.giver[v]].phase;
}

/* What the last bits of f64 carry as far as the sides are apart may be the same or not. */
static void doubt_unsteady(lb_counterparts *all, const lb_exact_side *b)
{
    double largest[LB_PHASE_OTHER + 1] = {0};
    for (uint32_t i = 0; i < all->n; i++) {
        const lb_counterpart *c = &all->list[i];
        if (c->kind < LB_COUNTERPART_TURNED && c->state != LB_COUNTERPART_UNKNOWN)
            largest[phase_at(b, c->b)] = fmax(largest[phase_at(b, c->b)], c->largest);
    }
    for (uint32_t i = 0; i < all->n; i++) {
        lb_counterpart *c = &all->list[i];
        c->unsteady &= c->largest > NOTHING * largest[phase_at(b, c->b)];
        if (c->unsteady) c->state = LB_COUNTERPART_UNKNOWN;
    }
}

/* Of numbers that are not equal in exact arithmetic, where rounding on one side alone may move them by `slack`. From
 * place to place that is the rounding of one layer's tensors: what is no further apart than that is taken for it, and a
 * difference of that size is not seen. */
static lb_counterpart_state state_of(lb_counterparts *all, double distance, double slack)
{
    const double room = LB_COUNTERPARTS_SLACK_TIMES * slack, large = 0x1p-10, usual = 2, largest = 0x1p-7;
    if (!(slack > 0 && distance <= room)) return LB_COUNTERPART_APART;
    if (room <= large) return LB_COUNTERPART_SAME;
    if (!all->from_place_to_place || distance > usual * slack || slack > largest) return LB_COUNTERPART_UNKNOWN;
    all->resolution = fmax(all->resolution, slack);
    return LB_COUNTERPART_SAME;
}

/* Are the numbers of both sides those that were compared last? */
static bool is_compared(const lb_counterparts *all, const lb_counterpart *c, const lb_exact_side *a,
                        const lb_exact_side *b)
{
    const lb_counterpart_compared *last = &c->compared;
    bool same = last->is_known && last->values[0] == all->pieces[c->first].tensor && last->values[1] == c->b &&
                last->negated == c->negated && b->changed[c->b] <= last->changes[1];
    for (uint32_t k = 0; k < c->n && same; k++) same = a->changed[all->pieces[c->first + k].tensor] <= last->changes[0];
    return same;
}

/* Distance, size and whether the numbers agree. False: not all of them were kept. */
static bool compare_numbers(const lb_counterparts *all, lb_counterpart *c, const lb_exact_side *a,
                            const lb_exact_side *b)
{
    const int64_t n = numel(b->program, c->b);
    const uint32_t va = all->pieces[c->first].tensor;
    const double *x = as_it_stands(all, c, a, n), *y = b->kept[c->b];
    uint8_t *known = NULL;
    double noise = a->noise[va], *made = NULL;
    if (!y || (!x && !(x = made = lb_counterpart_expected(all, c, a, n, &known, &noise)))) return false;
    for (int64_t k = 0; made && k < n; k++)
        if (!known[k]) made[k] = y[k]; /* padding */
    c->distance = lb_counterparts_distance(x, y, n), c->largest = lb_shadow_numbers_largest(x, n);
    c->compared = (lb_counterpart_compared){
        true, lb_shadow_numbers_agree(x, y, n, noise), {va, c->b}, {a->changes, b->changes}, c->negated};
    free(made), free(known);
    return true;
}

void lb_counterparts_compare(lb_counterparts *all, const lb_exact_side *a, const lb_exact_side *b)
{
    all->resolution = 0;
    for (uint32_t i = 0; i < all->n; i++) {
        lb_counterpart *c = &all->list[i];
        if (c->kind >= LB_COUNTERPART_TURNED) continue;
        const uint32_t va = all->pieces[c->first].tensor;
        c->state = LB_COUNTERPART_UNKNOWN, c->in_doubt = c->unsteady = false;
        if (!is_compared(all, c, a, b) && !compare_numbers(all, c, a, b)) continue;
        const double slack = c->kind == LB_COUNTERPART_SHARED ? all->most_slack : c->slack;
        bool same = c->compared.agree;
        c->unsteady = same && c->distance > STEADY;
        /* The same numbers in another order are one quantity where the shapes say that the order is another one. */
        if (!same && is_one_value(c) && !c->in_parts && !c->negated &&
            (c->refuted ||
             !lb_counterpart_orders_agree(&a->program->values[va].layout, &b->program->values[c->b].layout))) {
            same = lb_quantities_agree(&a->quantities[va], &b->quantities[c->b]);
            if (same && c->turned_by_shape) refute(all, c, a, b);
        }
        same |= c->any_order;
        /* Of a distance of 0 they differ in what is masked, which is no rounding. */
        c->state = same              ? LB_COUNTERPART_SAME
                   : c->distance > 0 ? state_of(all, c->distance, slack)
                                     : LB_COUNTERPART_APART;
        c->in_doubt = c->state == LB_COUNTERPART_UNKNOWN;
    }
    doubt_unsteady(all, b);
}

/* ---- anchors by their numbers ---- */

/* Parts that meet (parted.h) name one of B's: do A's meet parts of another op than this one? */
static bool are_parts_elsewhere(const lb_counterparts *all, const lb_counterpart *c, uint32_t *const met[2],
                                const lb_exact_side *const sides[2])
{
    if (!c->by_token || !c->n) return false;
    const uint32_t va = all->pieces[c->first].tensor, here[] = {va, c->b}, other[] = {met[1][c->b], met[0][va]};
    for (int k = 0; k < 2; k++) {
        if (other[k] == LB_NONE) continue;
        const uint32_t *giver = sides[k]->graph.giver, mine = giver[here[k]], its = giver[other[k]];
        if (mine != its && (its == LB_NONE || mine == LB_NONE || !lb_rank_parts_same_op(sides[k], mine, its)))
            return true;
    }
    return false;
}

/* Does either side give these numbers elsewhere on the other? */
static bool is_elsewhere(const lb_counterparts *all, const lb_counterpart *c, uint32_t *const met[2],
                         const lb_exact_side *const sides[2])
{
    if (c->in_parts) return are_parts_elsewhere(all, c, met, sides);
    const uint32_t of_b = met[1][c->b];
    bool among = of_b == LB_NONE;
    for (uint32_t k = 0; k < c->n; k++) {
        const uint32_t va = all->pieces[c->first + k].tensor;
        if (met[0][va] != LB_NONE && met[0][va] != c->b && is_one_value(c)) return true;
        among |= va == of_b;
    }
    return !among;
}

bool lb_counterparts_drop_wrong(lb_counterparts *all, uint32_t *const met[2], const lb_exact_side *a,
                                const lb_exact_side *b)
{
    const lb_exact_side *const sides[] = {a, b};
    bool any = false;
    for (uint32_t i = 0; i < all->n; i++) {
        lb_counterpart *c = &all->list[i];
        if (c->kind != LB_COUNTERPART_ANCHOR || c->state != LB_COUNTERPART_APART || !is_elsewhere(all, c, met, sides))
            continue;
        c->kind = LB_COUNTERPART_DROPPED, c->state = LB_COUNTERPART_UNKNOWN;
        any = true;
    }
    return any;
}

enum { MOST_MADE_OF = 32 };

/* Does a value follow from one source and nothing else, within a few ops? */
static bool is_of_one_source(const lb_exact_side *s, uint32_t value)
{
    const lb_value_graph *g = &s->graph;
    uint32_t list[MOST_MADE_OF] = {value}, n = 1, source = LB_NONE;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t giver = g->giver[list[i]], first = g->first_pred[list[i]], last = g->first_pred[list[i] + 1];
        if (giver != LB_NONE && lb_op_is_source(g->program, &g->program->ops[giver])) {
            if (source != LB_NONE && source != giver) return false;
            source = giver;
        }
        if (n + (last - first) > MOST_MADE_OF) return false;
        for (uint32_t k = first; k < last; k++) list[n++] = g->preds[k];
    }
    return source != LB_NONE;
}

void lb_counterparts_drop_remade(lb_counterparts *all, const lb_exact_side *a, const lb_exact_side *b)
{
    for (uint32_t i = 0; i < all->n; i++) {
        lb_counterpart *c = &all->list[i];
        const uint32_t va = all->pieces[c->first].tensor, ga = a->graph.giver[va], gb = b->graph.giver[c->b];
        if (c->kind != LB_COUNTERPART_ANCHOR || c->state != LB_COUNTERPART_APART || !is_one_value(c) || ga == LB_NONE ||
            gb == LB_NONE ||
            !strcmp(lb_op_name(a->program, &a->program->ops[ga]), lb_op_name(b->program, &b->program->ops[gb])) ||
            !is_of_one_source(a, va) || !is_of_one_source(b, c->b))
            continue;
        c->kind = LB_COUNTERPART_DROPPED, c->state = LB_COUNTERPART_UNKNOWN;
    }
}
