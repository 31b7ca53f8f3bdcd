/* Covering a tensor by parts: see shard_cover.h. */
#include "program/shard_cover.h"

#include <stdlib.h>

/* The one dimension along which a shard has one range and not all; -1: it has all of it; -2: neither. */
static int cut_dim(const lb_program *program, const lb_shard *shard, const lb_extent **range)
{
    int dim = -1;
    for (uint32_t i = 0; i < shard->extents; i++) {
        const lb_extent *extent = &program->extents[shard->first_extent + i];
        if (extent->from == 0 && extent->size == extent->whole) continue;
        if (dim != -1 || extent->dim == LB_EXTENT_FLAT) return -2;
        dim = extent->dim, *range = extent;
    }
    return dim;
}

static const lb_extent *range_of(const lb_program *program, const lb_layout *whole, uint32_t value)
{
    uint32_t n;
    const lb_extent *range = NULL;
    const lb_shard *shard = lb_program_shards_of(program, value, &n);
    if (n != 1) return NULL;
    const lb_layout all = lb_shard_whole(program, shard), part = lb_shard_part(program, shard);
    if (!lb_layout_same_shape(&all, whole) || !lb_layout_same_shape(&part, &program->values[value].layout)) return NULL;
    return cut_dim(program, shard, &range) >= 0 ? range : NULL;
}

uint32_t lb_shard_cover(const lb_program *program, const lb_layout *whole, const uint32_t *values, uint32_t n,
                        uint32_t *order)
{
    const lb_extent **ranges = malloc((n + 1) * sizeof *ranges);
    uint32_t found = 0;
    int64_t at = 0;
    bool known = ranges;
    for (uint32_t i = 0; i < n && known; i++) {
        ranges[i] = range_of(program, whole, values[i]);
        known = ranges[i] && ranges[i]->dim == ranges[0]->dim;
    }
    for (bool more = known && n; more;) {
        more = false;
        for (uint32_t i = 0; i < n && !more; i++) {
            if (ranges[i]->from != at || !ranges[i]->size) continue;
            at += ranges[i]->size, order[found++] = i, more = true;
        }
    }
    const bool covered = known && n && at == ranges[0]->whole;
    free(ranges);
    return covered ? found : 0;
}

static bool is_partial(const lb_program *program, const lb_shard *shard)
{
    for (uint32_t i = 0; i < shard->placements; i++)
        if (program->placements[shard->first_placement + i].kind == LB_PLACEMENT_PARTIAL) return true;
    return false;
}

bool lb_shard_is_copy(const lb_program *p, uint32_t a, const lb_program *q, uint32_t b)
{
    uint32_t n, m;
    const lb_shard *x = lb_program_shards_of(p, a, &n), *y = lb_program_shards_of(q, b, &m);
    if (n != 1 || m != 1 || x->extents != y->extents || x->at != y->at || is_partial(p, x) || is_partial(q, y))
        return false;
    for (uint32_t i = 0; i < x->extents; i++) {
        const lb_extent *e = &p->extents[x->first_extent + i], *f = &q->extents[y->first_extent + i];
        if (e->dim != f->dim || e->whole != f->whole || e->from != f->from || e->size != f->size) return false;
    }
    return true;
}
