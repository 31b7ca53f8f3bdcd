/* New parameters in the place of old ones: see given_anew.h. */
#include "exact/given_anew.h"

enum { MOST_BETWEEN = 64 };

/* The first op behind all of backward; LB_NONE: there is no backward. */
static uint32_t behind_backward(const lb_program *p)
{
    for (uint32_t i = p->n_ops; i-- > 0;)
        if (p->ops[i].phase == LB_PHASE_BACKWARD) return i + 1;
    return LB_NONE;
}

static bool is_read(const lb_exact_side *s, uint32_t v)
{
    return s->graph.first_use[v] < s->graph.first_use[v + 1];
}

/* Or is a window on it read? */
static bool is_read_at_all(const lb_exact_side *s, uint32_t v)
{
    uint32_t at = 0, window;
    bool read = is_read(s, v);
    while (!read && (window = lb_exact_side_window(s, v, &at)) != LB_NONE) read = is_read(s, window);
    return read;
}

/* Does a value follow from the source by ops from `begin` on? */
static bool follows_from(const lb_exact_side *s, uint32_t value, uint32_t source, uint32_t begin)
{
    const lb_value_graph *g = &s->graph;
    uint32_t list[MOST_BETWEEN] = {value}, n = 1;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = g->first_pred[list[i]]; k < g->first_pred[list[i] + 1]; k++) {
            const uint32_t from = g->preds[k];
            bool known = false;
            if (from == source || lb_value_graph_source(g, from) == source) return true;
            for (uint32_t j = 0; j < n && !known; j++) known = list[j] == from;
            if (!known && n < MOST_BETWEEN && g->giver[from] != LB_NONE && g->giver[from] >= begin) list[n++] = from;
        }
    return false;
}

uint32_t lb_given_anew(const lb_exact_side *s, uint32_t source)
{
    const lb_program *p = s->program;
    const uint32_t begin = behind_backward(p);
    for (uint32_t v = p->n_values; begin != LB_NONE && v-- > 0;) {
        const uint32_t giver = s->graph.giver[v];
        if (giver == LB_NONE || giver < begin || !s->graph.given[v] || !lb_dtype_is_float(p->values[v].dtype)) continue;
        if (!lb_value_graph_computes(p, &p->ops[giver]) || is_read_at_all(s, v)) continue;
        if (lb_layout_same_shape(&p->values[v].layout, &p->values[source].layout) && follows_from(s, v, source, begin))
            return v;
    }
    return LB_NONE;
}

uint32_t lb_given_anew_from(const lb_exact_side *s, uint32_t source)
{
    const lb_value_graph *g = &s->graph;
    const lb_program *p = s->program;
    const uint32_t given = lb_given_anew(s, source);
    uint32_t list[MOST_BETWEEN] = {given}, n = given != LB_NONE, found = LB_NONE;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = g->first_pred[list[i]]; k < g->first_pred[list[i] + 1]; k++) {
            const uint32_t from = lb_value_graph_whole(g, g->preds[k]), giver = g->giver[from];
            bool known = giver == LB_NONE || lb_op_is_source(p, &p->ops[giver]) || from == found;
            if (known || !lb_layout_same_shape(&p->values[from].layout, &p->values[source].layout)) continue;
            if (p->ops[giver].phase == LB_PHASE_BACKWARD) {
                if (found != LB_NONE) return LB_NONE;
                found = from;
                continue;
            }
            for (uint32_t j = 0; j < n && !known; j++) known = list[j] == from;
            if (!known && n < MOST_BETWEEN) list[n++] = from;
        }
    return found;
}
