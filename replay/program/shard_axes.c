/* Dimensions that ranks share out: see shard_axes.h. */
#include "program/shard_axes.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

void lb_shard_axes_release(lb_shard_axes *axes)
{
    for (uint32_t i = 0; i < axes->n; i++) free(axes->list[i].sizes), free(axes->list[i].ranges);
    free(axes->list);
    *axes = (lb_shard_axes){0};
}

/* One dimension of one value. */
typedef struct telling {
    const lb_extent *first;
    uint32_t n, part;
    lb_layout whole;
    int dim;
} telling;

static bool says_same(const lb_shard_axis *axis, const telling *telling)
{
    uint32_t k = 0;
    for (uint32_t i = 0; i < axis->n; i++) {
        if (axis->ranges[i].part != telling->part) continue;
        if (k == telling->n || axis->ranges[i].from != telling->first[k].from ||
            axis->ranges[i].size != telling->first[k].size)
            return false;
        k++;
    }
    return k == telling->n;
}

static bool add_ranges(lb_shard_axis *axis, const telling *telling)
{
    int64_t at = 0;
    for (uint32_t i = 0; i < telling->n; i++) {
        lb_shard_range *grown = lb_array_grow(axis->ranges, axis->n, sizeof *grown);
        if (!grown) return false;
        axis->ranges = grown;
        grown[axis->n++] = (lb_shard_range){telling->part, at, telling->first[i].from, telling->first[i].size};
        at += telling->first[i].size;
    }
    axis->sizes[telling->part] = at;
    return true;
}

static void measure_beside(const telling *telling, int64_t *outer, int64_t *inner)
{
    *outer = *inner = 1;
    for (int d = 0; d < telling->dim; d++) *outer *= telling->whole.shape[d];
    for (int d = telling->dim + 1; d < telling->whole.ndim; d++) *inner *= telling->whole.shape[d];
}

/* The first axis of that size that has nothing of this part yet, or the same. */
static bool add_telling(lb_shard_axes *axes, const telling *telling)
{
    lb_shard_axis axis = {.whole = telling->whole.shape[telling->dim]};
    measure_beside(telling, &axis.outer, &axis.inner);
    for (uint32_t i = 0; i < axes->n; i++) {
        lb_shard_axis *known = &axes->list[i];
        if (known->whole != axis.whole || known->outer != axis.outer || known->inner != axis.inner) continue;
        if (known->sizes[telling->part] < 0) return add_ranges(known, telling);
        if (says_same(known, telling)) return true;
    }
    lb_shard_axis *grown = lb_array_grow(axes->list, axes->n, sizeof *grown);
    if (!grown) return false;
    axes->list = grown;
    axis.sizes = malloc((axes->parts + 1) * sizeof *axis.sizes);
    if (!axis.sizes) return false;
    for (uint32_t k = 0; k < axes->parts; k++) axis.sizes[k] = -1;
    grown[axes->n++] = axis;
    return add_ranges(&grown[axes->n - 1], telling);
}

static int by_place(const void *x, const void *y)
{
    const lb_shard_range *a = x, *b = y;
    return (a->from > b->from) - (a->from < b->from);
}

/* All parts are known, together they are the whole, and not in their own order. */
static bool is_axis(const lb_shard_axes *axes, lb_shard_axis *axis)
{
    bool in_order = true;
    int64_t at = 0;
    for (uint32_t k = 0; k < axes->parts; k++)
        if (axis->sizes[k] < 0) return false;
    for (uint32_t i = 0; i < axis->n; i++) in_order &= axis->ranges[i].from == at, at += axis->ranges[i].size;
    qsort(axis->ranges, axis->n, sizeof *axis->ranges, by_place);
    at = 0;
    for (uint32_t i = 0; i < axis->n; at += axis->ranges[i++].size)
        if (axis->ranges[i].from != at) return false;
    return !in_order && at == axis->whole;
}

static void drop_others(lb_shard_axes *axes)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < axes->n; i++)
        if (is_axis(axes, &axes->list[i]))
            axes->list[n++] = axes->list[i];
        else
            free(axes->list[i].sizes), free(axes->list[i].ranges);
    axes->n = n;
}

lb_status lb_shard_axes_find(const lb_program *program, uint32_t parts, uint32_t (*part_of)(const void *, uint32_t),
                             const void *context, lb_shard_axes *axes, lb_err *err)
{
    bool done = true;
    *axes = (lb_shard_axes){.parts = parts};
    for (uint32_t i = 0; i < program->n_shards && done; i++) {
        const lb_shard *shard = &program->shards[i];
        if (lb_shard_is_flat(program, shard)) continue;
        telling telling = {.part = part_of(context, shard->value), .whole = lb_shard_whole(program, shard)};
        const lb_extent *extent = program->extents + shard->first_extent, *end = extent + shard->extents;
        for (; extent < end && done; extent += telling.n) {
            telling.first = extent, telling.dim = extent->dim;
            for (telling.n = 1; extent + telling.n < end && extent[telling.n].dim == extent->dim;) telling.n++;
            if (telling.n > 1 || extent->size < extent->whole) done = add_telling(axes, &telling);
        }
    }
    if (!done) {
        lb_shard_axes_release(axes);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for shards");
    }
    drop_others(axes);
    return LB_OK;
}

static bool has_sizes(const lb_shard_axes *axes, const lb_shard_axis *axis, const int64_t *sizes, int64_t times)
{
    for (uint32_t k = 0; k < axes->parts; k++)
        if (sizes[k] != axis->sizes[k] * times) return false;
    return true;
}

const lb_shard_axis *lb_shard_axes_match(const lb_shard_axes *axes, int64_t whole, const int64_t *sizes, int64_t *inner)
{
    for (uint32_t i = 0; i < axes->n; i++) {
        const lb_shard_axis *axis = &axes->list[i];
        const int64_t times = axis->whole > 0 && whole % axis->whole == 0 ? whole / axis->whole : 0;
        if (!times || !has_sizes(axes, axis, sizes, times)) continue;
        *inner = 1;
        if (times == 1 || times == axis->outer) return axis; /* flattened with what stands before it, */
        *inner = times;
        if (times == axis->inner || axis->outer == 1) return axis; /* or with what stands behind it */
    }
    return NULL;
}
