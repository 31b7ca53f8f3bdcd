/* Weights that one side holds and the other makes: see made_weights.h. */
#include "counterparts/made_weights.h"

#include <stdlib.h>
#include <string.h>

/* Scales of scales, a zero point, a cast: each may have rounded. */
static const double ROUNDINGS = 4;

enum { LEAST_ELEMENTS = 2 };

/* Tensors of a side, each with the value that it is. */
typedef struct tensors {
    lb_content_tensor *list;
    uint32_t *values, n;
} tensors;

static bool open_tensors(tensors *t, const lb_exact_side *s)
{
    *t = (tensors){.list = calloc((size_t)s->program->n_values + 1, sizeof *t->list),
                   .values = malloc(((size_t)s->program->n_values + 1) * sizeof *t->values)};
    return t->list && t->values;
}

static void close_tensors(tensors *t)
{
    free(t->list), free(t->values);
}

static void add_tensor(tensors *t, uint32_t value, const lb_tensor *tensor)
{
    if (!lb_dtype_is_float(tensor->dtype) || lb_layout_numel(&tensor->layout) < LEAST_ELEMENTS) return;
    t->list[t->n] = (lb_content_tensor){"", *tensor}, t->values[t->n++] = value;
}

/* Floats of more than 8 bits that a side begins with and the other does not hold. */
static bool list_alone(const lb_table_question *q, int side, tensors *t)
{
    const lb_step_sources *sources = q->sources[side];
    uint8_t *held = lb_step_sources_held(q->contents, side, sources->n, false);
    const bool room = held && open_tensors(t, q->sides[side]);
    for (uint32_t i = 0; i < sources->n && room; i++) {
        const lb_tensor *tensor = &sources->tensors[i].tensor;
        if (!held[i] && tensor->data && sources->list[i].kind != LB_SOURCE_BATCH && lb_dtype_bits(tensor->dtype) > 8)
            add_tensor(t, sources->list[i].value, tensor);
    }
    free(held);
    return room;
}

/* Per value: it follows from sources that are no input of the model, and an op gave it. malloc'ed; NULL: no memory. */
static uint8_t *list_made(const lb_table_question *q, int side)
{
    const lb_exact_side *s = q->sides[side];
    const lb_program *p = s->program;
    const lb_value_graph *g = &s->graph;
    uint8_t *made = calloc((size_t)p->n_values + 1, 1);
    for (uint32_t v = 0; made && v < p->n_values; v++) {
        const uint32_t giver = g->giver[v], first = g->first_pred[v], last = g->first_pred[v + 1];
        if (giver == LB_NONE) continue;
        if (lb_op_is_source(p, &p->ops[giver])) {
            const uint32_t row = q->sources[side]->row_of[lb_op_results(p, &p->ops[giver])[0]];
            made[v] = row != LB_NONE && q->sources[side]->list[row].kind != LB_SOURCE_BATCH;
            continue;
        }
        made[v] = first < last && !(p->ops[giver].flags & LB_OP_RANDOM);
        for (uint32_t k = first; k < last && made[v]; k++) made[v] = g->preds[k] < v && made[g->preds[k]];
    }
    return made;
}

/* What a side makes that something else goes on from: not the steps on the way. */
static bool list_last_made(const lb_table_question *q, int side, tensors *t)
{
    const lb_exact_side *s = q->sides[side];
    const lb_program *p = s->program;
    uint8_t *made = list_made(q, side);
    uint8_t *goes_on = calloc((size_t)p->n_values + 1, 1); /* something that is not made follows from it */
    const bool room = made && goes_on && open_tensors(t, s);
    for (uint32_t v = p->n_values; v-- > 0 && room;)
        for (uint32_t k = s->graph.first_pred[v]; k < s->graph.first_pred[v + 1]; k++) {
            goes_on[s->graph.preds[k]] |= !made[v] || (!lb_value_graph_is_computed(&s->graph, v) && goes_on[v]);
        }
    for (uint32_t v = 0; v < p->n_values && room; v++) {
        if (!made[v] || !goes_on[v] || !s->kept[v] || q->met[side][v] != LB_NONE ||
            !lb_value_graph_is_computed(&s->graph, v))
            continue;
        const lb_layout *l = &p->values[v].layout;
        const lb_tensor exact = {s->kept[v], LB_F64, lb_layout_contiguous(l->ndim, l->shape)};
        add_tensor(t, v, &exact);
    }
    free(made), free(goes_on);
    return room;
}

static bool put(const tensors *a, const tensors *b, const lb_contents *found, lb_counterparts *out)
{
    bool room = true;
    for (uint32_t i = 0; i < found->n && room; i++) {
        const lb_content *c = &found->list[i];
        const uint32_t first = out->n_pieces;
        if (c->relation == LB_CONTENT_NONE || c->found < c->all) continue;
        for (uint32_t k = 0; k < c->n && room; k++) {
            lb_content_run run = found->runs[c->first + k];
            run.tensor = a->values[run.tensor];
            room = lb_counterparts_add_piece(out, run);
        }
        lb_counterpart *weight = room ? lb_counterparts_close(out, LB_COUNTERPART_TABLE, b->values[i], first) : NULL;
        room = weight != NULL;
        if (weight) weight->state = LB_COUNTERPART_SAME;
    }
    return room;
}

static lb_status match(const tensors *a, const tensors *b, lb_counterparts *out, lb_err *err)
{
    lb_contents found;
    if (!a->n || !b->n) return LB_OK;
    LB_TRY(lb_contents_match_roundings(a->list, a->n, b->list, b->n, ROUNDINGS, &found, err));
    const bool room = put(a, b, &found, out);
    lb_contents_release(&found);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for weights that a step makes");
}

lb_status lb_made_weights_find(const lb_table_question *q, lb_counterparts *out, lb_err *err)
{
    lb_status status = LB_OK;
    for (int k = 0; k < 2 && status == LB_OK; k++) { /* B makes them, then A */
        tensors of[2] = {{0}, {0}};
        const bool room = list_alone(q, k, &of[k]) && list_last_made(q, !k, &of[!k]);
        status = room ? match(&of[0], &of[1], out, err)
                      : lb_fail(err, LB_ERR_NOMEM, "out of memory for weights that a step makes");
        close_tensors(&of[0]), close_tensors(&of[1]);
    }
    return status;
}
