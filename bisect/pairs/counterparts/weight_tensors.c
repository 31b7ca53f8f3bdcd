/* Tensors that may be one weight on both sides: see weight_tensors.h. */
#include "counterparts/weight_tensors.h"

#include <stdlib.h>

enum { LEAST_ELEMENTS = 2 };

static bool open_list(lb_weight_tensors *t, const lb_exact_side *s)
{
    const size_t most = 2 * (size_t)s->program->n_values + 1;
    *t = (lb_weight_tensors){.list = calloc(most, sizeof *t->list), .values = malloc(most * sizeof *t->values)};
    return t->list && t->values;
}

void lb_weight_tensors_release(lb_weight_tensors *t)
{
    free(t->list), free(t->values);
}

static void add(lb_weight_tensors *t, uint32_t value, const lb_tensor *tensor)
{
    if (lb_layout_numel(&tensor->layout) < LEAST_ELEMENTS) return;
    t->list[t->n] = (lb_content_tensor){"", *tensor}, t->values[t->n++] = value;
}

/* Whole numbers of 64 bits are places. */
static bool are_codes(lb_dtype dtype)
{
    return lb_dtype_bits(dtype) <= (lb_dtype_is_float(dtype) ? 8 : 32) && !lb_dtype_is_complex(dtype) &&
           dtype != LB_BOOL;
}

/* A side's sources that the other does not hold; `codes`: these, else longer floats. */
static bool list_alone(const lb_table_question *q, int side, bool codes, lb_weight_tensors *t)
{
    const lb_step_sources *sources = q->sources[side];
    uint8_t *held = lb_step_sources_held(q->contents, side, sources->n, false);
    const bool room = held != NULL;
    for (uint32_t i = 0; i < sources->n && room; i++) {
        const lb_tensor *tensor = &sources->tensors[i].tensor;
        if (held[i] || !tensor->data || sources->list[i].kind == LB_SOURCE_BATCH) continue;
        if (codes ? are_codes(tensor->dtype) : lb_dtype_is_float(tensor->dtype) && !are_codes(tensor->dtype))
            add(t, sources->list[i].value, tensor);
    }
    free(held);
    return room;
}

bool lb_weight_tensors_held(const lb_table_question *q, int side, lb_weight_tensors *t)
{
    return open_list(t, q->sides[side]) && list_alone(q, side, false, t);
}

/* What a value follows from: something else than what comes behind, nothing that the step was given (lanes 0, 1,
 * 2 …), sources that are no input of the model, or such of which some are codes. */
typedef enum origin { ELSEWHERE, NOTHING, SOURCES, CODES } origin;

/* Per value; malloc'ed; NULL: no memory. */
static uint8_t *list_origins(const lb_table_question *q, int side)
{
    const lb_exact_side *s = q->sides[side];
    const lb_program *p = s->program;
    const lb_value_graph *g = &s->graph;
    uint8_t *origins = calloc((size_t)p->n_values + 1, 1);
    for (uint32_t v = 0; origins && v < p->n_values; v++) {
        const uint32_t giver = g->giver[v];
        if (giver == LB_NONE) continue;
        if (lb_op_is_source(p, &p->ops[giver])) {
            const uint32_t row = q->sources[side]->row_of[lb_op_results(p, &p->ops[giver])[0]];
            if (row != LB_NONE && q->sources[side]->list[row].kind != LB_SOURCE_BATCH)
                origins[v] = are_codes(p->values[v].dtype) ? CODES : SOURCES;
            continue;
        }
        if (p->ops[giver].flags & LB_OP_RANDOM) continue;
        origin from = NOTHING;
        for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1] && from != ELSEWHERE; k++) {
            const origin pred = g->preds[k] < v ? (origin)origins[g->preds[k]] : ELSEWHERE;
            from = pred == ELSEWHERE || pred > from ? pred : from;
        }
        origins[v] = (uint8_t)from;
    }
    return origins;
}

/* What ops of a side make of its sources; `codes`: of codes alone, and casts, too. Which of it is the weight its
 * numbers say: where a step's tokens are constants of the program, products with weights are made, too. */
static bool list_made(const lb_table_question *q, int side, bool codes, lb_weight_tensors *t)
{
    const lb_exact_side *s = q->sides[side];
    const lb_program *p = s->program;
    uint8_t *origins = list_origins(q, side);
    for (uint32_t v = 0; v < p->n_values && origins; v++) {
        if (origins[v] < (codes ? CODES : SOURCES) || !s->kept[v] || q->met[side][v] != LB_NONE ||
            !(codes ? s->graph.given[v] : lb_value_graph_is_computed(&s->graph, v)))
            continue;
        const lb_layout *l = &p->values[v].layout;
        const lb_tensor exact = {s->kept[v], LB_F64, lb_layout_contiguous(l->ndim, l->shape)};
        add(t, v, &exact);
    }
    free(origins);
    return origins != NULL;
}

bool lb_weight_tensors_made(const lb_table_question *q, int side, lb_weight_tensors *t)
{
    return open_list(t, q->sides[side]) && list_made(q, side, false, t);
}

bool lb_weight_tensors_coded(const lb_table_question *q, int side, lb_weight_tensors *t)
{
    return open_list(t, q->sides[side]) && list_alone(q, side, true, t) && list_made(q, side, true, t);
}
