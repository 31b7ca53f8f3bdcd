/* What one step leaves for the next: see left_values.h. */
#include "implementations/left_values.h"

#include "base/array.h"
#include <string.h>

/* Exact runs from the same numbers agree to the rounding of f64; numbers in another order do not agree at all. */
#define MOST_APART 1e-3

static bool agree(const lb_exact_side *const sides[2], uint32_t a, uint32_t b)
{
    const lb_value *x = &sides[0]->program->values[a], *y = &sides[1]->program->values[b];
    const int64_t n = lb_layout_numel(&x->layout);
    if (!lb_dtype_is_float(x->dtype) || !lb_dtype_is_float(y->dtype) || n < 2 || lb_layout_numel(&y->layout) != n)
        return false;
    if (lb_digest_is_none(x->logical) || lb_digest_is_none(y->logical) || !sides[0]->kept[a] || !sides[1]->kept[b])
        return false;
    return lb_counterparts_distance(sides[0]->kept[a], sides[1]->kept[b], n) < MOST_APART;
}

bool lb_left_values_learn(lb_source_memory *memory, const lb_exact_side *const sides[2], const uint32_t *met)
{
    const lb_program *b = sides[1]->program;
    for (uint32_t v = 0; met && v < b->n_values; v++) {
        if (met[v] == LB_NONE || !agree(sides, met[v], v)) continue;
        lb_left_value *more = lb_array_grow(memory->left, memory->n_left, sizeof *more);
        if (!more) return false;
        memory->left = more;
        memory->left[memory->n_left++] =
            (lb_left_value){{sides[0]->program->values[met[v]].logical, b->values[v].logical}};
    }
    return true;
}

/* ---- parameters that are given other memory ---- */

/* The parameter whose memory this was as the step began; NULL. */
static const lb_value *parameter_in(const lb_exact_side *s, int64_t storage)
{
    const lb_program *p = s->program;
    for (uint32_t v = 0; v < p->n_values; v++)
        if (p->values[v].storage == storage && p->values[v].flags & LB_VALUE_PARAMETER &&
            p->values[v].name != LB_NONE && s->graph.giver[v] != LB_NONE &&
            lb_op_is_source(p, &p->ops[s->graph.giver[v]]))
            return &p->values[v];
    return NULL;
}

/* What a step begins with of the parameter; NULL: it reads none. */
static const lb_value *begins_with(const lb_program *p, const char *name, const lb_layout *shape)
{
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (!lb_op_is_source(p, &p->ops[i]) || !p->ops[i].results) continue;
        const lb_value *v = &p->values[lb_op_results(p, &p->ops[i])[0]];
        if (v->flags & LB_VALUE_PARAMETER && v->name != LB_NONE && !strcmp(lb_program_text(p, v->name), name) &&
            lb_layout_same_shape(&v->layout, shape))
            return v;
    }
    return NULL;
}

/* The last value that an op computed with these bits; LB_NONE. */
static uint32_t last_with(const lb_exact_side *s, lb_digest digest, const lb_layout *shape)
{
    const lb_program *p = s->program;
    for (uint32_t v = p->n_values; v-- > 0;)
        if (s->graph.given[v] && lb_value_graph_computes(p, &p->ops[s->graph.giver[v]]) &&
            lb_digest_equal(p->values[v].logical, digest) && lb_layout_same_shape(&p->values[v].layout, shape))
            return v;
    return LB_NONE;
}

/* What the parameter ends with that ends as `final` in its own memory; `final` where it is that. */
static uint32_t follow(const lb_exact_side *s, const lb_program *after, uint32_t final)
{
    const lb_value *left = &s->program->values[final], *parameter = parameter_in(s, left->storage);
    const lb_value *next =
        parameter && after ? begins_with(after, lb_program_text(s->program, parameter->name), &left->layout) : NULL;
    if (!next || lb_digest_is_none(next->logical) || lb_digest_is_none(left->logical) ||
        lb_digest_equal(next->logical, left->logical))
        return final;
    const uint32_t given = last_with(s, next->logical, &left->layout);
    return given == LB_NONE ? final : given;
}

void lb_left_values_follow(const lb_source_memory *memory, const lb_exact_side *const sides[2],
                           lb_counterparts *counterparts)
{
    for (uint32_t i = 0; i < counterparts->n; i++) {
        lb_counterpart *c = &counterparts->list[i];
        if (c->kind != LB_COUNTERPART_FINAL || c->n != 1) continue;
        for (int k = 0; k < 2; k++) {
            uint32_t *of = k ? &c->b : &counterparts->pieces[c->first].tensor;
            const uint32_t given = sides[k]->view->n_parts == 1 ? follow(sides[k], memory->after[k], *of) : *of;
            if (given == *of) continue;
            c->is_rebound = true, c->rebound = sides[k]->program->values[*of].storage;
            *of = given;
        }
    }
}
