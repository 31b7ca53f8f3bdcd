/* The graph of a step's values: see value_graph.h. */
#include "exact/value_graph.h"

#include "shadow/cross_feed.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_DEFS = 256, MOST_INPUTS = 4096 };

bool lb_value_graph_computes(const lb_program *p, const lb_op *op)
{
    static const char *const moves[] = {
        "aten::lift_fresh",        "aten::copy_",    "aten::empty",     "aten::empty_like", "aten::_foreach_copy_",
        "aten::zeros_like",        "aten::zeros",    "aten::new_zeros", "aten::new_empty",  "aten::empty_strided",
        "aten::new_empty_strided", "fsdp::chunk_cat"};
    return lb_op_computes(p, op) && !lb_cross_feed_op_hands_on(p, op) &&
           lb_op_name_among(p, op, moves, sizeof moves / sizeof *moves) < 0;
}

bool lb_value_graph_is_computed(const lb_value_graph *g, uint32_t value)
{
    return g->given[value] && lb_value_graph_computes(g->program, &g->program->ops[g->giver[value]]);
}

bool lb_value_graph_adds(const lb_program *p, uint32_t op)
{
    static const char *const names[] = {"aten::add", "aten::add_"};
    return lb_op_name_among(p, &p->ops[op], names, sizeof names / sizeof *names) >= 0;
}

/* ATen calls those that take a tensor's shape and not its numbers `…_like` and `new_…`. */
static bool reads_shapes_alone(const lb_program *p, const lb_op *op)
{
    static const char like[] = "_like", made[] = "aten::new_";
    const char *name = lb_op_name(p, op);
    const size_t n = strcspn(name, "."), ending = sizeof like - 1;
    return !strncmp(name, made, sizeof made - 1) || (n > ending && !strncmp(name + n - ending, like, ending));
}

/* An `out` form writes over all that stands where its result goes, which says nothing of the result. */
static bool is_written_over(const lb_program *p, const lb_op *op, uint32_t v)
{
    static const char out[] = "out";
    const char *name = lb_op_name(p, op), *overload = strchr(name, '.');
    const size_t n = strlen(name), ending = sizeof out - 1;
    if (!overload || n < ending || strcmp(name + n - ending, out)) return false;
    const uint32_t w = lb_op_writes(p, op, p->values[v].storage);
    return w != LB_NONE && p->values[w].layout.offset == p->values[v].layout.offset &&
           lb_layout_same_shape(&p->values[w].layout, &p->values[v].layout);
}

typedef struct edges {
    uint32_t *from, *to, n; /* `to` follows from `from` */
    bool failed;
} edges;

static void add_edge(edges *e, uint32_t to, uint32_t from)
{
    uint32_t *x = lb_array_grow(e->from, e->n, sizeof *x);
    if (x) e->from = x;
    uint32_t *y = x ? lb_array_grow(e->to, e->n, sizeof *y) : NULL;
    if (y) e->to = y;
    e->failed |= !x || !y;
    if (y) e->from[e->n] = from, e->to[e->n++] = to;
}

/* Rows by their key, a counting sort. */
static bool sort_edges(const uint32_t *keys, const uint32_t *rows, uint32_t n, uint32_t n_keys, uint32_t **first,
                       uint32_t **sorted)
{
    *first = calloc((size_t)n_keys + 2, sizeof **first), *sorted = malloc(((size_t)n + 1) * sizeof **sorted);
    if (!*first || !*sorted) return false;
    for (uint32_t i = 0; i < n; i++) (*first)[keys[i] + 2]++;
    for (uint32_t k = 2; k < n_keys + 2; k++) (*first)[k] += (*first)[k - 1];
    for (uint32_t i = 0; i < n; i++) (*sorted)[(*first)[keys[i] + 1]++] = rows[i];
    return true;
}

typedef struct inputs {
    uint32_t list[MOST_INPUTS], n;
} inputs;

static void note_input(void *context, uint32_t value)
{
    inputs *in = context;
    if (value != LB_NONE && in->n < MOST_INPUTS) in->list[in->n++] = value;
}

static bool defines(const lb_program *p, const lb_op *op)
{
    return !(op->flags & (LB_OP_VIEW | LB_OP_FAILED)) && (lb_op_computes(p, op) || lb_op_is_source(p, op));
}

/* A window on results: read by op `reader`, or left at the end (`reader` is n_ops). */
static void link_window(lb_value_graph *g, edges *e, uint32_t value, uint32_t reader)
{
    const lb_program *p = g->program;
    uint32_t defs[MOST_DEFS],
        n = reader < p->n_ops ? lb_slice_flow_defs_of(g->flow, reader, value, defs, MOST_DEFS) : 0, given;
    if (n > MOST_DEFS) n = MOST_DEFS;
    if (!n && (defs[0] = lb_cross_feed_giver_of_storage(p, p->values[value].storage, reader, &given)) != LB_NONE) n = 1;
    for (uint32_t k = 0; k < n; k++) {
        const lb_op *op = &p->ops[defs[k]];
        if (g->giver[value] == LB_NONE || defs[k] > g->giver[value]) g->giver[value] = defs[k];
        for (uint32_t r = lb_op_outcomes(op);
             r-- > 0;) { /* written values last: these are newer than what is listed as result */
            const uint32_t v = lb_op_outcome(p, op, r);
            if (v == LB_NONE || v == value || p->values[v].storage != p->values[value].storage) continue;
            add_edge(e, value, v);
            break;
        }
    }
}

static bool list_edges(lb_value_graph *g, edges *preds, edges *uses)
{
    const lb_program *p = g->program;
    inputs *in = malloc(sizeof *in);
    uint8_t *linked = calloc(p->n_values + 1, 1);
    for (uint32_t i = 0; in && linked && i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        if (!defines(p, op)) continue;
        in->n = 0;
        if (!reads_shapes_alone(p, op)) lb_op_each_input(p, op, note_input, in);
        for (uint32_t k = 0; k < in->n; k++) {
            const uint32_t v = in->list[k];
            if (is_written_over(p, op, v)) {
                in->list[k--] = in->list[--in->n];
                continue;
            }
            if (g->giver[v] == LB_NONE && !linked[v]) link_window(g, preds, v, i), linked[v] = 1;
            g->read[v] = 1;
            add_edge(uses, i, v);
        }
        for (uint32_t r = 0; r < lb_op_outcomes(op); r++) {
            const uint32_t v = lb_op_outcome(p, op, r);
            if (v == LB_NONE || g->giver[v] != LB_NONE) continue;
            g->giver[v] = i, g->given[v] = 1;
            for (uint32_t k = 0; k < in->n; k++) add_edge(preds, v, in->list[k]);
        }
    }
    for (uint32_t i = 0; in && linked && i < p->n_boundaries; i++) {
        const lb_boundary *b = &p->boundaries[i];
        if (b->value == LB_NONE || g->giver[b->value] != LB_NONE || linked[b->value]) continue;
        link_window(g, preds, b->value, b->op), linked[b->value] = 1;
    }
    const bool room = in && linked && !preds->failed && !uses->failed;
    free(in), free(linked);
    return room;
}

typedef struct made_node {
    int64_t node;
    uint32_t op;
} made_node;

static int by_node(const void *x, const void *y)
{
    const made_node *a = x, *b = y;
    return a->node != b->node ? (a->node > b->node) - (a->node < b->node) : (a->op > b->op) - (a->op < b->op);
}

/* An op of forward has the sequence number that is given next: the first that saw the count go past a node is the one
 * that made it. */
static bool link_nodes(lb_value_graph *g)
{
    const lb_program *p = g->program;
    made_node *made = malloc(((size_t)p->n_ops + 1) * sizeof *made);
    uint32_t n = 0;
    for (uint32_t i = 0; made && i < p->n_ops; i++)
        if (p->ops[i].phase == LB_PHASE_FORWARD && !lb_op_is_source(p, &p->ops[i]))
            made[n++] = (made_node){p->ops[i].node - 1, i};
    if (n) qsort(made, n, sizeof *made, by_node);
    for (uint32_t i = 0; made && i < p->n_ops; i++) {
        uint32_t low = 0, high = n;
        g->forward[i] = LB_NONE;
        if (p->ops[i].phase != LB_PHASE_BACKWARD || p->ops[i].node < 0) continue;
        while (low < high) {
            const uint32_t middle = low + (high - low) / 2;
            if (made[middle].node < p->ops[i].node)
                low = middle + 1;
            else
                high = middle;
        }
        if (low < n && made[low].node == p->ops[i].node && made[low].op < i) g->forward[i] = made[low].op;
    }
    free(made);
    return made != NULL;
}

lb_status lb_value_graph_make(const lb_program *p, lb_value_graph *g, lb_err *err)
{
    edges preds = {0}, uses = {0};
    *g = (lb_value_graph){.program = p};
    LB_TRY(lb_slice_flow_new(p, &g->flow, err));
    g->giver = malloc((p->n_values + 1) * sizeof *g->giver);
    g->given = calloc(p->n_values + 1, 1), g->read = calloc(p->n_values + 1, 1);
    g->forward = malloc(((size_t)p->n_ops + 1) * sizeof *g->forward);
    bool room = g->giver && g->given && g->read && g->forward && link_nodes(g);
    if (room) memset(g->giver, 0xFF, (p->n_values + 1) * sizeof *g->giver);
    room = room && list_edges(g, &preds, &uses);
    room = room && sort_edges(preds.to, preds.from, preds.n, p->n_values, &g->first_pred, &g->preds);
    room = room && sort_edges(uses.from, uses.to, uses.n, p->n_values, &g->first_use, &g->uses);
    free(preds.from), free(preds.to), free(uses.from), free(uses.to);
    if (room) return LB_OK;
    lb_value_graph_release(g);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u values", p->n_values);
}

void lb_value_graph_release(lb_value_graph *g)
{
    lb_slice_flow_free(g->flow);
    free(g->giver), free(g->given), free(g->read), free(g->first_pred), free(g->preds), free(g->first_use),
        free(g->uses), free(g->forward);
    *g = (lb_value_graph){0};
}

uint32_t lb_value_graph_source(const lb_value_graph *g, uint32_t value)
{
    const lb_program *p = g->program;
    for (uint32_t depth = 0; depth < 64 && g->giver[value] != LB_NONE; depth++) {
        const lb_op *op = &p->ops[g->giver[value]];
        const uint32_t first = g->first_pred[value], n = g->first_pred[value + 1] - first;
        if (lb_op_is_source(p, op) && (g->given[value] || n == 1)) return lb_op_results(p, op)[0];
        if (n < 1 || (g->given[value] && !lb_cross_feed_op_hands_on(p, op)) || (!g->given[value] && n != 1))
            return LB_NONE;
        value = g->preds[first];
    }
    return LB_NONE;
}

uint32_t lb_value_graph_whole(const lb_value_graph *g, uint32_t value)
{
    const uint32_t first = g->first_pred[value];
    if (g->given[value] || g->first_pred[value + 1] - first != 1) return value;
    const lb_layout *window = &g->program->values[value].layout, *result = &g->program->values[g->preds[first]].layout;
    const bool whole = lb_layout_numel(window) == lb_layout_numel(result) && lb_layout_is_contiguous(window) &&
                       lb_layout_is_contiguous(result);
    return whole ? g->preds[first] : value;
}
