/* Results that two sides cut differently: see cut_results.h. */
#include "pair/cut_results.h"

#include <stdlib.h>
#include <string.h>

static bool is_called(const lb_program *p, const lb_boundary *b, const lb_layer_names_map *rules, const char *path)
{
    char *mapped = lb_layer_names_map_apply(rules, lb_program_text(p, p->scopes[b->scope].path));
    const bool same = mapped && !strcmp(mapped, path);
    free(mapped);
    return same;
}

/* `path`: by the rules. */
static const lb_boundary *same_boundary(const lb_program_view *side, const lb_layer_names_map *rules,
                                        const lb_boundary *like, const char *path, uint32_t part)
{
    const lb_program *p = side->program;
    for (uint32_t i = 0; i < p->n_boundaries; i++) {
        const lb_boundary *b = &p->boundaries[i];
        if (b->output && !b->recompute && b->value != LB_NONE && b->call == like->call &&
            b->position == like->position && lb_program_view_part_of_value(side, b->value) == part &&
            is_called(p, b, rules, path))
            return b;
    }
    return NULL;
}

/* The one dimension in which the second is a part of the first; -1. */
static int cut_dim(const lb_layout *whole, const lb_layout *part)
{
    int dim = -1;
    if (whole->ndim != part->ndim) return -1;
    for (int d = 0; d < whole->ndim; d++) {
        if (whole->shape[d] == part->shape[d]) continue;
        if (dim >= 0 || part->shape[d] > whole->shape[d]) return -1;
        dim = d;
    }
    return dim;
}

/* Do all ranks of `side` together have as much of it as each of the other's has? */
static bool make_whole(const lb_program_view *side, const lb_boundary *b, const lb_layout *whole)
{
    const lb_program *p = side->program;
    const char *path = lb_program_text(p, p->scopes[b->scope].path);
    const int dim = cut_dim(whole, &p->values[b->value].layout);
    int64_t total = 0;
    for (uint32_t part = 0; dim >= 0 && part < side->n_parts; part++) {
        const lb_boundary *other = same_boundary(side, NULL, b, path, part);
        if (!other || cut_dim(whole, &p->values[other->value].layout) != dim) return false;
        total += p->values[other->value].layout.shape[dim];
    }
    return dim >= 0 && total == whole->shape[dim];
}

bool lb_cut_results_find(const lb_program_view *const sides[2], const lb_layer_names_map *const rules[2],
                         lb_cut_tensors *out)
{
    const lb_program *pa = sides[0]->program, *pb = sides[1]->program;
    bool room = true;
    for (uint32_t i = 0; i < pa->n_boundaries && !out->result && room; i++) {
        const lb_boundary *a = &pa->boundaries[i];
        if (!a->output || a->recompute || a->value == LB_NONE || lb_program_view_part_of_value(sides[0], a->value))
            continue;
        char *path = lb_layer_names_map_apply(rules[0], lb_program_text(pa, pa->scopes[a->scope].path));
        const lb_boundary *b = path ? same_boundary(sides[1], rules[1], a, path, 0) : NULL;
        room = path != NULL;
        free(path);
        if (!b) continue;
        const lb_layout *x = &pa->values[a->value].layout, *y = &pb->values[b->value].layout;
        if (make_whole(sides[1], b, x) || make_whole(sides[0], a, y))
            room = (out->result = strdup(lb_program_text(pa, pa->scopes[a->scope].path))) != NULL;
    }
    return room;
}
