/* Tensors that may be one weight on both sides: see weight_tensors.h. */
#include "counterparts/weight_tensors.h"

#include <stdlib.h>

enum { LEAST_ELEMENTS = 2 };

static bool open_list(lb_weight_tensors *tensors, const lb_exact_side *s)
{
    const size_t most = 2 * (size_t)s->program->n_values + 1;
    *tensors = (lb_weight_tensors){.list = calloc(most, sizeof *tensors->list),
                                   .values = malloc(most * sizeof *tensors->values)};
    return tensors->list && tensors->values;
}

void lb_weight_tensors_release(lb_weight_tensors *tensors)
{
    free(tensors->list), free(tensors->values);
}

static void add(lb_weight_tensors *tensors, uint32_t value, const lb_tensor *tensor)
{
    if (lb_layout_numel(&tensor->layout) < LEAST_ELEMENTS) return;
    tensors->list[tensors->n] = (lb_content_tensor){"", *tensor}, tensors->values[tensors->n++] = value;
}

/* Whole numbers of 64 bits are places. */
static bool are_codes(lb_dtype dtype)
{
    return lb_dtype_bits(dtype) <= (lb_dtype_is_float(dtype) ? 8 : 32) && !lb_dtype_is_complex(dtype) &&
           dtype != LB_BOOL;
}

/* A side's sources that the other does not hold; `codes`: these, else longer floats. */
static bool list_alone(const lb_table_question *asked, int side, bool codes, lb_weight_tensors *tensors)
{
    const lb_step_sources *sources = asked->sources[side];
    uint8_t *held = lb_step_sources_held(asked->contents, side, sources->n, false);
    const bool room = held != NULL;
    for (uint32_t i = 0; i < sources->n && room; i++) {
        const lb_tensor *tensor = &sources->tensors[i].tensor;
        if (held[i] || !tensor->data || sources->list[i].kind == LB_SOURCE_BATCH) continue;
        if (codes ? are_codes(tensor->dtype) : lb_dtype_is_float(tensor->dtype) && !are_codes(tensor->dtype))
            add(tensors, sources->list[i].value, tensor);
    }
    free(held);
    return room;
}

bool lb_weight_tensors_held(const lb_table_question *asked, int side, lb_weight_tensors *tensors)
{
    return open_list(tensors, asked->sides[side]) && list_alone(asked, side, false, tensors);
}

/* What a value follows from: something else than what comes behind, nothing that the step was given (lanes 0, 1,
 * 2 …), sources that are no input of the model, or such of which some are codes. */
typedef enum origin { ELSEWHERE, NOTHING, SOURCES, CODES } origin;

/* Per value; malloc'ed; NULL: no memory. */
static uint8_t *list_origins(const lb_table_question *asked, int side)
{
    const lb_exact_side *s = asked->sides[side];
    const lb_program *program = s->program;
    const lb_value_graph *graph = &s->graph;
    uint8_t *origins = calloc((size_t)program->n_values + 1, 1);
    for (uint32_t v = 0; origins && v < program->n_values; v++) {
        const uint32_t giver = graph->giver[v];
        if (giver == LB_NONE) continue;
        if (lb_op_is_source(program, &program->ops[giver])) {
            const uint32_t row = asked->sources[side]->row_of[lb_op_results(program, &program->ops[giver])[0]];
            if (row != LB_NONE && asked->sources[side]->list[row].kind != LB_SOURCE_BATCH)
                origins[v] = are_codes(program->values[v].dtype) ? CODES : SOURCES;
            continue;
        }
        if (program->ops[giver].flags & LB_OP_RANDOM) continue;
        origin from = NOTHING;
        for (uint32_t k = graph->first_pred[v]; k < graph->first_pred[v + 1] && from != ELSEWHERE; k++) {
            const origin pred = graph->preds[k] < v ? (origin)origins[graph->preds[k]] : ELSEWHERE;
            from = pred == ELSEWHERE || pred > from ? pred : from;
        }
        origins[v] = (uint8_t)from;
    }
    return origins;
}

/* Is it in the list, or is what it was copied from, as a step dequantises one tensor in every call? */
static bool is_listed(const lb_exact_side *s, const lb_weight_tensors *tensors, uint32_t v)
{
    const lb_value *values = s->program->values;
    bool listed = lb_value_graph_source(&s->graph, v) != LB_NONE;
    for (uint32_t i = 0; i < tensors->n && !listed && !lb_digest_is_none(values[v].logical); i++) {
        const lb_value *other = &values[tensors->values[i]];
        listed = other->dtype == values[v].dtype && lb_layout_same_shape(&other->layout, &values[v].layout) &&
                 lb_digest_equal(other->logical, values[v].logical);
    }
    return listed;
}

/* What ops of a side make of its sources; `codes`: of codes alone, and casts, too. Which of it is the weight its
 * numbers say: where a step's tokens are constants of the program, products with weights are made, too. */
static bool list_made(const lb_table_question *asked, int side, bool codes, lb_weight_tensors *tensors)
{
    const lb_exact_side *s = asked->sides[side];
    const lb_program *program = s->program;
    uint8_t *origins = list_origins(asked, side);
    for (uint32_t v = 0; v < program->n_values && origins; v++) {
        if (origins[v] < (codes ? CODES : SOURCES) || !s->kept[v] || asked->met[side][v] != LB_NONE ||
            !(codes ? s->graph.given[v] && !is_listed(s, tensors, v) : lb_value_graph_is_computed(&s->graph, v)))
            continue;
        const lb_layout *l = &program->values[v].layout;
        const lb_tensor exact = {s->kept[v], LB_F64, lb_layout_contiguous(l->ndim, l->shape)};
        add(tensors, v, &exact);
    }
    free(origins);
    return origins != NULL;
}

bool lb_weight_tensors_made(const lb_table_question *asked, int side, lb_weight_tensors *tensors)
{
    return open_list(tensors, asked->sides[side]) && list_made(asked, side, false, tensors);
}

bool lb_weight_tensors_coded(const lb_table_question *asked, int side, lb_weight_tensors *tensors)
{
    return open_list(tensors, asked->sides[side]) && list_alone(asked, side, true, tensors) &&
           list_made(asked, side, true, tensors);
}
