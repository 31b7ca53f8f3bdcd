/* Shards of a program: see lastbit/shard.h. Rows that many values share (extents, placements, meshes) are found
 * again. */
#include "program/program_store.h"

#include "base/array.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- building -------------------------------------------------------------------------------------------------- */

uint32_t lb_program_add_shard(lb_program *program, const lb_shard *row)
{
    return lb_program_append(program, LB_TABLE_SHARDS, row, 1);
}

static int by_value(const void *x, const void *y)
{
    const lb_shard *a = x, *b = y;
    if (a->value != b->value) return a->value < b->value ? -1 : 1;
    return a->at == b->at ? 0 : a->at < b->at ? -1 : 1;
}

void lb_program_sort_shards(lb_program *program)
{
    if (program->n_shards) qsort(program->shards, program->n_shards, sizeof *program->shards, by_value);
}

/* Programs have many values and few ways to share them out: a run of rows like this one lies near the end, if
 * anywhere. */
#define LOOKED_AT 512

static bool same_extent(const lb_extent *a, const lb_extent *b)
{
    return a->dim == b->dim && a->whole == b->whole && a->from == b->from && a->size == b->size;
}

uint32_t lb_program_add_extents(lb_program *program, const lb_extent *rows, uint32_t count)
{
    const uint32_t end = program->n_extents, begin = end > LOOKED_AT ? end - LOOKED_AT : 0;
    for (uint32_t i = begin; i + count <= end; i++) {
        uint32_t k = 0;
        while (k < count && same_extent(&program->extents[i + k], &rows[k])) k++;
        if (k == count) return i;
    }
    return lb_program_append(program, LB_TABLE_EXTENTS, rows, count);
}

static bool same_placement(const lb_placement *a, const lb_placement *b)
{
    return a->kind == b->kind && a->dim == b->dim && a->reduce == b->reduce;
}

uint32_t lb_program_add_placements(lb_program *program, const lb_placement *rows, uint32_t count)
{
    const uint32_t end = program->n_placements, begin = end > LOOKED_AT ? end - LOOKED_AT : 0;
    for (uint32_t i = begin; i + count <= end; i++) {
        uint32_t k = 0;
        while (k < count && same_placement(&program->placements[i + k], &rows[k])) k++;
        if (k == count) return i;
    }
    return lb_program_append(program, LB_TABLE_PLACEMENTS, rows, count);
}

static bool is_mesh(const lb_program *program, const lb_mesh *mesh, const lb_mesh_axis *axes, uint32_t n_axes,
                    const uint32_t *ranks, uint32_t n_ranks)
{
    if (mesh->axes != n_axes || mesh->ranks != n_ranks) return false;
    for (uint32_t i = 0; i < n_axes; i++) {
        const lb_mesh_axis *axis = &program->mesh_axes[mesh->first_axis + i];
        if (axis->name != axes[i].name || axis->size != axes[i].size) return false;
    }
    return !n_ranks || !memcmp(program->refs + mesh->first_rank, ranks, n_ranks * sizeof *ranks);
}

uint32_t lb_program_mesh(lb_program *program, const lb_mesh_axis *axes, uint32_t n_axes, const uint32_t *ranks,
                         uint32_t n_ranks)
{
    for (uint32_t i = 0; i < program->n_meshes; i++)
        if (is_mesh(program, &program->meshes[i], axes, n_axes, ranks, n_ranks)) return i;
    lb_mesh mesh = {.axes = n_axes, .ranks = n_ranks};
    mesh.first_axis = lb_program_append(program, LB_TABLE_MESH_AXES, axes, n_axes);
    mesh.first_rank = lb_program_add_refs(program, ranks, n_ranks);
    if (mesh.first_axis == LB_NONE || mesh.first_rank == LB_NONE) return LB_NONE;
    return lb_program_append(program, LB_TABLE_MESHES, &mesh, 1);
}

static uint32_t string_of(lb_program *program, const lb_program *from, uint32_t string)
{
    return string == LB_NONE ? LB_NONE : lb_program_string(program, from->strings[string]);
}

static uint32_t copy_mesh(lb_program *program, const lb_program *from, const lb_mesh *mesh)
{
    uint32_t row = LB_NONE;
    lb_mesh_axis *axes = malloc((mesh->axes + 1) * sizeof *axes);
    for (uint32_t i = 0; axes && i < mesh->axes; i++) {
        axes[i] = from->mesh_axes[mesh->first_axis + i];
        axes[i].name = string_of(program, from, axes[i].name);
    }
    if (axes) row = lb_program_mesh(program, axes, mesh->axes, from->refs + mesh->first_rank, mesh->ranks);
    free(axes);
    return row;
}

uint32_t lb_program_copy_shard(lb_program *program, const lb_program *from, const lb_shard *shard, uint32_t value)
{
    lb_shard row = *shard;
    lb_placement *placed = malloc((shard->placements + 1) * sizeof *placed);
    row.value = value, row.name = string_of(program, from, shard->name);
    if (shard->mesh != LB_NONE) row.mesh = copy_mesh(program, from, &from->meshes[shard->mesh]);
    for (uint32_t i = 0; placed && i < shard->placements; i++) {
        placed[i] = from->placements[shard->first_placement + i];
        placed[i].reduce = string_of(program, from, placed[i].reduce);
    }
    row.first_placement = placed ? lb_program_add_placements(program, placed, shard->placements) : LB_NONE;
    row.first_extent = lb_program_add_extents(program, from->extents + shard->first_extent, shard->extents);
    free(placed);
    const bool done = row.first_placement != LB_NONE && row.first_extent != LB_NONE &&
                      (row.mesh == LB_NONE) == (shard->mesh == LB_NONE);
    return done ? lb_program_add_shard(program, &row) : LB_NONE;
}

/* ---- rules ----------------------------------------------------------------------------------------------------- */

static lb_status wrong(lb_err *err, uint32_t row, const char *what, int64_t found, int64_t limit)
{
    return lb_fail(err, LB_ERR_INVALID, "extent %" PRIu32 ": %s: found %" PRId64 ", limit %" PRId64, row, what, found,
                   limit);
}

/* What the extents so far come to. */
typedef struct measure {
    int64_t whole, part; /* elements, but for the dimension at hand */
    int64_t along;       /* of the part along that */
    int32_t dim;
} measure;

static lb_status close_dimension(measure *measure, uint32_t row, lb_err *err)
{
    if (measure->dim >= 0 && __builtin_mul_overflow(measure->part, measure->along, &measure->part))
        return wrong(err, row, "more elements than can be counted", measure->along, INT64_MAX);
    measure->along = 0;
    return LB_OK;
}

static lb_status add_range(measure *measure, const lb_extent *extent, uint32_t row, lb_err *err)
{
    const bool next = extent->dim == measure->dim + 1;
    if (extent->dim >= LB_MAX_DIMS ||
        (!next && (!row || extent->dim != measure->dim || extent->whole != extent[-1].whole)))
        return wrong(err, row, "dimensions follow each other", extent->dim, measure->dim + 1);
    if (next) {
        LB_TRY(close_dimension(measure, row, err));
        if (__builtin_mul_overflow(measure->whole, extent->whole, &measure->whole))
            return wrong(err, row, "more elements than can be counted", extent->whole, INT64_MAX);
        measure->dim = extent->dim;
    }
    if (__builtin_add_overflow(measure->along, extent->size, &measure->along) || measure->along > extent->whole)
        return wrong(err, row, "more than the whole has", extent->size, extent->whole);
    return LB_OK;
}

lb_status lb_shard_extents_check(const lb_extent *extents, uint32_t n, int64_t *elements, lb_err *err)
{
    measure measure = {1, 1, 0, -1};
    *elements = 1;
    for (uint32_t i = 0; i < n; i++) {
        const lb_extent *extent = &extents[i];
        if (extent->whole < 0 || extent->from < 0 || extent->size < 0 || extent->size > extent->whole ||
            extent->from > extent->whole - extent->size)
            return wrong(err, i, "reaches beyond the whole", extent->from, extent->whole);
        if (extent->dim != LB_EXTENT_FLAT) {
            LB_TRY(add_range(&measure, extent, i, err));
            continue;
        }
        if (!i || i + 1 != n) return wrong(err, i, "the elements come last", i, n);
        LB_TRY(close_dimension(&measure, i, err));
        if (extent->whole != measure.whole || measure.part != measure.whole)
            return wrong(err, i, "elements of a whole tensor", extent->whole, measure.whole);
        return *elements = extent->size, LB_OK;
    }
    LB_TRY(close_dimension(&measure, n, err));
    return *elements = measure.part, LB_OK;
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

const lb_shard *lb_program_shards_of(const lb_program *program, uint32_t value, uint32_t *n)
{
    const uint32_t low =
        (uint32_t)lb_array_first(program->shards, program->n_shards, sizeof program->shards[0], &value, lb_by_u32);
    *n = 0;
    while (low + *n < program->n_shards && program->shards[low + *n].value == value) ++*n;
    return *n ? &program->shards[low] : NULL;
}

bool lb_shard_extents_are_flat(const lb_extent *extents, uint32_t n)
{
    return n && extents[n - 1].dim == LB_EXTENT_FLAT;
}

bool lb_shard_is_flat(const lb_program *program, const lb_shard *shard)
{
    return shard->extents && lb_shard_extents_are_flat(program->extents + shard->first_extent, shard->extents);
}

lb_layout lb_shard_whole(const lb_program *program, const lb_shard *shard)
{
    int64_t shape[LB_MAX_DIMS] = {0};
    int ndim = 0;
    for (uint32_t i = 0; i < shard->extents; i++) {
        const lb_extent *extent = &program->extents[shard->first_extent + i];
        if (extent->dim == ndim && ndim < LB_MAX_DIMS) shape[ndim++] = extent->whole;
    }
    return lb_layout_contiguous(ndim, shape);
}

lb_layout lb_shard_part(const lb_program *program, const lb_shard *shard)
{
    int64_t shape[LB_MAX_DIMS] = {0};
    int ndim = 0;
    for (uint32_t i = 0; i < shard->extents; i++) {
        const lb_extent *extent = &program->extents[shard->first_extent + i];
        if (extent->dim == LB_EXTENT_FLAT) return lb_layout_contiguous(1, &extent->size);
        if (extent->dim < 0 || extent->dim >= LB_MAX_DIMS) continue;
        if (extent->dim == ndim) ndim++;
        shape[extent->dim] += extent->size;
    }
    return lb_layout_contiguous(ndim, shape);
}

int64_t lb_program_mesh_coordinate(const lb_program *program, const lb_mesh *mesh, uint32_t axis, int32_t rank)
{
    int64_t below = 1;
    for (uint32_t a = axis + 1; a < mesh->axes; a++) below *= program->mesh_axes[mesh->first_axis + a].size;
    for (uint32_t r = 0; r < mesh->ranks; r++)
        if (program->refs[mesh->first_rank + r] == (uint32_t)rank)
            return r / below % program->mesh_axes[mesh->first_axis + axis].size;
    return -1;
}

/* ---- as text --------------------------------------------------------------------------------------------------- */

typedef struct writer {
    char *text;
    size_t size, used;
} writer;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void
put(writer *writer, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    const int n = vsnprintf(writer->text + writer->used, writer->size - writer->used, format, list);
    va_end(list);
    if (n < 0) return;
    writer->used += (size_t)n < writer->size - writer->used ? (size_t)n : writer->size - writer->used - 1;
}

static void put_placement(writer *writer, const lb_program *program, const lb_shard *shard, uint32_t axis)
{
    const lb_mesh *mesh = &program->meshes[shard->mesh];
    const lb_mesh_axis *a = &program->mesh_axes[mesh->first_axis + axis];
    const lb_placement *placed = &program->placements[shard->first_placement + axis];
    const char *name = lb_program_text(program, a->name);
    if (*name) put(writer, "%s ", name);
    const int64_t at = lb_program_mesh_coordinate(program, mesh, axis, program->rank);
    if (at >= 0) put(writer, "%" PRId64 " of ", at);
    put(writer, "%" PRIu32 " ", a->size);
    if (placed->kind == LB_PLACEMENT_REPLICATE)
        put(writer, "replicate, ");
    else if (placed->kind == LB_PLACEMENT_PARTIAL)
        put(writer, "partial(%s), ", lb_program_text(program, placed->reduce));
    else if (placed->dim == LB_EXTENT_FLAT)
        put(writer, "shard(flat), ");
    else
        put(writer, "shard(%" PRId32 "), ", placed->dim);
}

static void put_extents(writer *writer, const lb_program *program, const lb_shard *shard)
{
    const bool flat = lb_shard_is_flat(program, shard);
    int32_t dim = -2;
    for (uint32_t i = 0; i < shard->extents; i++) {
        const lb_extent *extent = &program->extents[shard->first_extent + i];
        if (flat && extent->dim != LB_EXTENT_FLAT) continue;
        put(writer, dim == -2 ? flat ? "elements [" : "[" : extent->dim == dim ? " " : ", ");
        dim = extent->dim;
        if (extent->from == 0 && extent->size == extent->whole)
            put(writer, ":");
        else
            put(writer, "%" PRId64 ":%" PRId64, extent->from, extent->from + extent->size);
    }
    put(writer, dim == -2 ? "[] of [" : "] of [");
    const lb_layout whole = lb_shard_whole(program, shard);
    for (int d = 0; d < whole.ndim; d++) put(writer, d ? ", %" PRId64 : "%" PRId64, whole.shape[d]);
    put(writer, "]");
}

void lb_shard_text(const lb_program *program, const lb_shard *shard, char *text, size_t size)
{
    writer writer = {text, size, 0};
    if (!size) return;
    *text = '\0';
    const uint32_t axes = shard->mesh == LB_NONE ? 0 : shard->placements;
    for (uint32_t axis = 0; axis < axes; axis++) put_placement(&writer, program, shard, axis);
    put_extents(&writer, program, shard);
}
