/* Results that two sides cut differently: see cut_results.h. */
#include "pair/cut_results.h"

#include <stdlib.h>
#include <string.h>

static bool is_called(const lb_program *program, const lb_boundary *boundary, const lb_layer_names_map *rules,
                      const char *path)
{
    char *mapped = lb_layer_names_map_apply(rules, lb_program_text(program, program->scopes[boundary->scope].path));
    const bool same = mapped && !strcmp(mapped, path);
    free(mapped);
    return same;
}

/* `path`: by the rules. */
static const lb_boundary *same_boundary(const lb_program_view *side, const lb_layer_names_map *rules,
                                        const lb_boundary *like, const char *path, uint32_t part)
{
    const lb_program *program = side->program;
    for (uint32_t i = 0; i < program->n_boundaries; i++) {
        const lb_boundary *boundary = &program->boundaries[i];
        if (boundary->output && !boundary->recompute && boundary->value != LB_NONE && boundary->call == like->call &&
            boundary->position == like->position && lb_program_view_part_of_value(side, boundary->value) == part &&
            is_called(program, boundary, rules, path))
            return boundary;
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
static bool make_whole(const lb_program_view *side, const lb_boundary *boundary, const lb_layout *whole)
{
    const lb_program *program = side->program;
    const char *path = lb_program_text(program, program->scopes[boundary->scope].path);
    const int dim = cut_dim(whole, &program->values[boundary->value].layout);
    int64_t total = 0;
    for (uint32_t part = 0; dim >= 0 && part < side->n_parts; part++) {
        const lb_boundary *other = same_boundary(side, NULL, boundary, path, part);
        if (!other || cut_dim(whole, &program->values[other->value].layout) != dim) return false;
        total += program->values[other->value].layout.shape[dim];
    }
    return dim >= 0 && total == whole->shape[dim];
}

bool lb_cut_results_find(const lb_program_view *const sides[2], const lb_layer_names_map *const rules[2],
                         lb_cut_tensors *out)
{
    const lb_program *pa = sides[0]->program, *pb = sides[1]->program;
    bool room = true;
    for (uint32_t i = 0; i < pa->n_boundaries && !out->result && room; i++) {
        const lb_boundary *boundary = &pa->boundaries[i];
        if (!boundary->output || boundary->recompute || boundary->value == LB_NONE ||
            lb_program_view_part_of_value(sides[0], boundary->value))
            continue;
        char *path = lb_layer_names_map_apply(rules[0], lb_program_text(pa, pa->scopes[boundary->scope].path));
        const lb_boundary *b = path ? same_boundary(sides[1], rules[1], boundary, path, 0) : NULL;
        room = path != NULL;
        free(path);
        if (!b) continue;
        const lb_layout *x = &pa->values[boundary->value].layout, *y = &pb->values[b->value].layout;
        if (make_whole(sides[1], b, x) || make_whole(sides[0], boundary, y))
            room = (out->result = strdup(lb_program_text(pa, pa->scopes[boundary->scope].path))) != NULL;
    }
    return room;
}
