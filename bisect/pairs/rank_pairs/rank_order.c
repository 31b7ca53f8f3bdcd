/* Ranks that stand for each other: see rank_order.h. */
#include "rank_pairs/rank_order.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_AXES = 8 };

/* The grid that all ranks of a run stand in. */
typedef struct grid {
    const lb_program *program;
    const lb_mesh *mesh; /* NULL: not told */
} grid;

/* The mesh of all ranks with most axes. */
static grid grid_of(const lb_program *const *programs, uint32_t n)
{
    grid g = {NULL, NULL};
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t i = 0; i < programs[k]->n_meshes; i++) {
            const lb_mesh *mesh = &programs[k]->meshes[i];
            if (mesh->ranks == n && mesh->axes <= MOST_AXES && (!g.mesh || mesh->axes > g.mesh->axes))
                g = (grid){programs[k], mesh};
        }
    return g;
}

static const lb_mesh_axis *axis_of(const grid *grid, uint32_t i)
{
    return &grid->program->mesh_axes[grid->mesh->first_axis + i];
}

static const char *name_of(const grid *grid, uint32_t i)
{
    return lb_program_text(grid->program, axis_of(grid, i)->name);
}

/* The place in the mesh of a rank; LB_NONE. */
static uint32_t place_of(const grid *grid, int32_t rank)
{
    for (uint32_t i = 0; i < grid->mesh->ranks; i++)
        if ((int32_t)grid->program->refs[grid->mesh->first_rank + i] == rank) return i;
    return LB_NONE;
}

/* The same axis in the larger grid; LB_NONE. */
static uint32_t find_axis(const grid *large, const grid *small, uint32_t i)
{
    for (uint32_t k = 0; k < large->mesh->axes; k++)
        if (*name_of(small, i) && !strcmp(name_of(large, k), name_of(small, i)) &&
            axis_of(large, k)->size == axis_of(small, i)->size)
            return k;
    return LB_NONE;
}

static uint32_t coordinate(const grid *grid, uint32_t place, uint32_t axis)
{
    uint32_t inner = 1;
    for (uint32_t k = axis + 1; k < grid->mesh->axes; k++) inner *= axis_of(grid, k)->size;
    return place / inner % axis_of(grid, axis)->size;
}

/* Of a rank of the larger run, the rank of the smaller that it stands for; -1: that is not told. */
static int32_t stands_for(const grid *small, const grid *large, int32_t rank)
{
    const uint32_t place = place_of(large, rank);
    uint32_t at = 0;
    for (uint32_t i = 0; i < small->mesh->axes; i++) {
        const uint32_t axis = find_axis(large, small, i);
        if (place == LB_NONE || axis == LB_NONE) return -1;
        at = at * axis_of(small, i)->size + coordinate(large, place, axis);
    }
    return at < small->mesh->ranks ? (int32_t)small->program->refs[small->mesh->first_rank + at] : -1;
}

bool lb_rank_order(const lb_program *const *few, uint32_t n_few, const lb_program **many, uint32_t n_many, bool *told)
{
    const grid small = grid_of(few, n_few), large = grid_of(many, n_many);
    *told = false;
    if (!small.mesh || !large.mesh || n_few < 2 || n_few == n_many) return true;
    const lb_program **order = malloc(n_many * sizeof *order);
    uint32_t n = 0;
    for (uint32_t i = 0; order && i < n_few; i++)
        for (uint32_t k = 0; k < n_many; k++)
            if (stands_for(&small, &large, many[k]->rank) == few[i]->rank && n < n_many) order[n++] = many[k];
    *told = order && n == n_many;
    if (*told) memcpy(many, order, n * sizeof *order);
    free(order);
    return order != NULL;
}
