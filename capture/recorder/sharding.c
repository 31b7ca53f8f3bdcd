/* Shards: see sharding.h. */
#include "recorder/sharding.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

static lb_status no_memory(lb_err *err)
{
    return lb_fail(err, LB_ERR_NOMEM, "out of memory in the recorder");
}

/* ---- a copy in one allocation ------------------------------------------------------------------------------------ */

typedef struct arena {
    char *bytes; /* NULL: only counting */
    size_t used;
} arena;

static void *room(arena *arena, size_t bytes)
{
    void *at = arena->bytes ? arena->bytes + arena->used : NULL;
    arena->used += (bytes + 7) & ~(size_t)7;
    return at;
}

static void *copy_of(arena *arena, const void *from, size_t bytes)
{
    void *at = room(arena, bytes);
    if (at && bytes) memcpy(at, from, bytes);
    return at;
}

static char *text_of(arena *arena, const char *text)
{
    return text ? copy_of(arena, text, strlen(text) + 1) : NULL;
}

static void copy_sharding(arena *arena, const lb_sharding *from, lb_sharding *to)
{
    *to = *from;
    to->name = text_of(arena, from->name);
    to->extents = copy_of(arena, from->extents, from->n_extents * sizeof *from->extents);
    to->ranks = copy_of(arena, from->ranks, from->n_ranks * sizeof *from->ranks);
    lb_sharding_axis *axes = copy_of(arena, from->axes, from->n_axes * sizeof *axes);
    to->axes = axes;
    for (uint32_t i = 0; i < from->n_axes; i++) {
        char *name = text_of(arena, from->axes[i].name), *reduce = text_of(arena, from->axes[i].reduce);
        if (axes) axes[i].name = name, axes[i].reduce = reduce;
    }
}

static lb_status keep(const lb_sharding *from, lb_sharding_note *note, lb_err *err)
{
    arena a = {NULL, 0};
    copy_sharding(&a, from, &note->said);
    a = (arena){malloc(a.used + 1), 0};
    note->memory = a.bytes;
    if (!a.bytes) return no_memory(err);
    copy_sharding(&a, from, &note->said);
    return LB_OK;
}

/* ---- what was said ----------------------------------------------------------------------------------------------- */

static lb_layout part_of(const lb_sharding *sharding)
{
    int64_t shape[LB_MAX_DIMS] = {0};
    int ndim = 0;
    for (uint32_t i = 0; i < sharding->n_extents; i++) {
        const lb_extent *extent = &sharding->extents[i];
        if (extent->dim == LB_EXTENT_FLAT) return lb_layout_contiguous(1, &extent->size);
        shape[extent->dim] += extent->size;
        ndim = extent->dim + 1;
    }
    return lb_layout_contiguous(ndim, shape);
}

static lb_status check(const lb_host_tensor *tensor, const lb_sharding *sharding, int64_t *elements, lb_err *err)
{
    uint64_t ranks = 1;
    LB_TRY(lb_shard_extents_check(sharding->extents, sharding->n_extents, elements, err));
    const int64_t has = lb_layout_numel(&tensor->layout);
    if (sharding->at < 0 || *elements > has || sharding->at > has - *elements)
        return lb_fail(err, LB_ERR_INVALID, "a part of %lld elements from element %lld on in a tensor of %lld",
                       (long long)*elements, (long long)sharding->at, (long long)has);
    for (uint32_t i = 0; i < sharding->n_axes && ranks <= sharding->n_ranks; i++) {
        const lb_sharding_axis *axis = &sharding->axes[i];
        if (!axis->size || axis->kind > LB_PLACEMENT_PARTIAL || axis->dim < LB_EXTENT_FLAT || axis->dim >= LB_MAX_DIMS)
            return lb_fail(err, LB_ERR_INVALID, "axis %u of the mesh has %u ranks, placement %u and dimension %d", i,
                           axis->size, axis->kind, axis->dim);
        ranks *= axis->size;
    }
    if (sharding->n_axes && ranks != sharding->n_ranks)
        return lb_fail(err, LB_ERR_INVALID, "a mesh of %llu ranks lists %u", (unsigned long long)ranks,
                       sharding->n_ranks);
    return LB_OK;
}

static bool is_same(const lb_sharding_note *a, const lb_sharding_note *b)
{
    return a->storage == b->storage && a->first == b->first && a->said.at == b->said.at &&
           lb_layout_same_shape(&a->part, &b->part);
}

lb_status lb_sharding_notes_add(lb_sharding_notes *notes, const lb_tracked *storage, const lb_host_tensor *tensor,
                                const lb_sharding *sharding, lb_err *err)
{
    lb_sharding_note note = {.storage = storage->id, .key = storage->key};
    note.first = tensor->layout.offset * (int64_t)(lb_dtype_bits(tensor->dtype) / 8);
    LB_TRY(check(tensor, sharding, &note.elements, err));
    note.part = part_of(sharding), note.tensor = tensor->layout;
    LB_TRY(keep(sharding, &note, err));
    for (uint32_t i = notes->n; i-- > 0;) /* what is said twice is said soon again, or of a parameter */
        if (is_same(&notes->list[i], &note)) {
            free(notes->list[i].memory);
            notes->list[i] = note;
            return LB_OK;
        }
    lb_sharding_note *grown = lb_array_grow(notes->list, notes->n, sizeof *grown);
    if (!grown) {
        free(note.memory);
        return no_memory(err);
    }
    notes->list = grown;
    notes->list[notes->n++] = note;
    notes->sorted = false;
    return LB_OK;
}

static int by_storage(const void *x, const void *y)
{
    const lb_sharding_note *a = x, *b = y;
    if (a->storage != b->storage) return a->storage < b->storage ? -1 : 1;
    if (a->first != b->first) return a->first < b->first ? -1 : 1;
    return (a->said.at > b->said.at) - (a->said.at < b->said.at);
}

/* ---- rows of a program ------------------------------------------------------------------------------------------- */

/* The tensor itself, in its own order: a transposed view of it has another. */
static bool is_tensor(const lb_sharding_note *note, const lb_value *value)
{
    if (note->said.at || !lb_layout_same_shape(&note->part, &value->layout)) return false;
    if (!lb_layout_same_shape(&note->tensor, &value->layout)) return lb_layout_is_contiguous(&value->layout);
    for (int d = 0; d < value->layout.ndim; d++)
        if (value->layout.shape[d] > 1 && value->layout.stride[d] != note->tensor.stride[d]) return false;
    return true;
}

/* It lies flat, in a value of its own or in a larger one. */
static bool is_inside(const lb_sharding_note *note, const lb_value *value)
{
    return value->layout.ndim == 1 && lb_layout_is_contiguous(&value->layout) &&
           lb_layout_is_contiguous(&note->tensor) &&
           note->said.at + note->elements <= lb_layout_numel(&value->layout) &&
           (note->part.ndim != 1 || lb_shard_extents_are_flat(note->said.extents, note->said.n_extents));
}

static uint32_t mesh_row(lb_program *program, const lb_sharding *sharding)
{
    uint32_t row = LB_NONE;
    lb_mesh_axis *axes = malloc((sharding->n_axes + 1) * sizeof *axes);
    for (uint32_t i = 0; axes && i < sharding->n_axes; i++)
        axes[i] = (lb_mesh_axis){lb_program_name(program, sharding->axes[i].name), sharding->axes[i].size};
    if (axes)
        row = lb_program_mesh(program, axes, sharding->n_axes, (const uint32_t *)sharding->ranks, sharding->n_ranks);
    free(axes);
    return row;
}

static uint32_t placement_rows(lb_program *program, const lb_sharding *sharding)
{
    uint32_t row = LB_NONE;
    lb_placement *list = malloc((sharding->n_axes + 1) * sizeof *list);
    for (uint32_t i = 0; list && i < sharding->n_axes; i++)
        list[i] = (lb_placement){sharding->axes[i].kind, sharding->axes[i].dim,
                                 lb_program_name(program, sharding->axes[i].reduce)};
    if (list) row = lb_program_add_placements(program, list, sharding->n_axes);
    free(list);
    return row;
}

static lb_status add_row(lb_program *program, uint32_t value, const lb_sharding *sharding, lb_err *err)
{
    lb_shard row = {.value = value,
                    .mesh = LB_NONE,
                    .placements = sharding->n_axes,
                    .extents = sharding->n_extents,
                    .at = sharding->at};
    row.name = lb_program_name(program, sharding->name);
    if (sharding->n_axes) {
        row.mesh = mesh_row(program, sharding);
        if (row.mesh == LB_NONE) return no_memory(err);
    }
    row.first_placement = placement_rows(program, sharding);
    row.first_extent = lb_program_add_extents(program, sharding->extents, sharding->n_extents);
    const bool done = row.first_placement != LB_NONE && row.first_extent != LB_NONE;
    return done && lb_program_add_shard(program, &row) != LB_NONE ? LB_OK : no_memory(err);
}

/* The notes of a storage from that byte on. */
static uint32_t find(const lb_sharding_notes *notes, int64_t storage, int64_t first)
{
    const lb_sharding_note wanted = {.storage = storage, .first = first, .said = {.at = INT64_MIN}};
    return (uint32_t)lb_array_first(notes->list, notes->n, sizeof notes->list[0], &wanted, by_storage);
}

static lb_status apply(const lb_sharding_notes *notes, lb_program *program, uint32_t row, lb_err *err)
{
    const lb_value *value = &program->values[row];
    const int64_t first = value->layout.offset * (int64_t)(lb_dtype_bits(value->dtype) / 8);
    const uint32_t begin = find(notes, value->storage, first);
    uint32_t end = begin;
    bool itself = false;
    while (end < notes->n && notes->list[end].storage == value->storage && notes->list[end].first == first)
        itself |= is_tensor(&notes->list[end++], value);
    /* A buffer of several gradients holds others behind the first: it is none of them. */
    const int64_t last = first + lb_layout_numel(&value->layout) * (int64_t)(lb_dtype_bits(value->dtype) / 8);
    const bool shared = end < notes->n && notes->list[end].storage == value->storage && notes->list[end].first < last;
    for (uint32_t i = begin; i < end; i++) {
        const lb_sharding_note *note = &notes->list[i];
        if (itself ? is_tensor(note, value) : !shared && is_inside(note, value))
            LB_TRY(add_row(program, row, &note->said, err));
    }
    return LB_OK;
}

lb_status lb_sharding_notes_apply(lb_sharding_notes *notes, lb_program *program, lb_err *err)
{
    if (!notes->n) return LB_OK;
    if (!notes->sorted) qsort(notes->list, notes->n, sizeof *notes->list, by_storage);
    notes->sorted = true;
    for (uint32_t v = 0; v < program->n_values; v++) LB_TRY(apply(notes, program, v, err));
    lb_program_sort_shards(program);
    return LB_OK;
}

void lb_sharding_notes_sweep(lb_sharding_notes *notes, const lb_tracked_set *storages)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < notes->n; i++) {
        const lb_tracked *tracked = lb_tracked_set_find(storages, notes->list[i].key);
        if (tracked && tracked->id == notes->list[i].storage)
            notes->list[n++] = notes->list[i];
        else
            free(notes->list[i].memory);
    }
    notes->n = n;
}

void lb_sharding_notes_release(lb_sharding_notes *notes)
{
    for (uint32_t i = 0; i < notes->n; i++) free(notes->list[i].memory);
    free(notes->list);
    *notes = (lb_sharding_notes){0};
}
