/* What one step leaves for the next: see left_values.h. */
#include "implementations/left_values.h"

#include "base/array.h"
#include "implementations/counterparts.h"

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
