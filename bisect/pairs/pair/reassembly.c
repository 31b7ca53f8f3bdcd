/* Putting parts together: see reassembly.h. */
#include "pair/reassembly.h"

#include "pair/batch_rows.h"
#include "pair/regenerated.h"
#include "program/shard_axes.h"

#include <stdlib.h>
#include <string.h>

void lb_reassemblies_release(lb_reassemblies *joins)
{
    free(joins->list), free(joins->part_ops);
    memset(joins, 0, sizeof *joins);
}

bool lb_reassembly_values(const lb_reassemblies *joins, const lb_reassembly *join, const lb_program *pb,
                          uint32_t outcome, uint32_t *values)
{
    for (uint32_t k = 0; k < join->parts; k++) {
        const lb_op *op = &pb->ops[joins->part_ops[join->first + k]];
        if (outcome >= op->results + op->written) return false;
        values[k] = lb_op_outcome(pb, op, outcome);
        if (values[k] == LB_NONE) return false;
    }
    return true;
}

static bool same_but_for(const lb_layout *a, const lb_layout *b, int dim)
{
    for (int d = 0; d < a->ndim; d++)
        if (d != dim && a->shape[d] != b->shape[d]) return false;
    return true;
}

/* ---- grids ---- */

enum { MOST_AXES = 8 };

/* Which dimension each axis of a mesh cuts; -1: none. The last axis runs fastest. */
typedef struct grid {
    uint32_t axes, size[MOST_AXES];
    int dim[MOST_AXES];
} grid;

/* The mesh of so many ranks with several axes. */
static bool find_mesh(const lb_program *program, uint32_t ranks, grid *grid)
{
    for (uint32_t i = 0; i < program->n_meshes; i++) {
        const lb_mesh *mesh = &program->meshes[i];
        uint32_t several = 0, all = 1;
        for (uint32_t k = 0; k < mesh->axes && k < MOST_AXES; k++) {
            grid->size[k] = program->mesh_axes[mesh->first_axis + k].size;
            several += grid->size[k] > 1, all *= grid->size[k];
        }
        grid->axes = mesh->axes;
        if (mesh->axes <= MOST_AXES && all == ranks && several > 1) return true;
    }
    return false;
}

/* All ranks along an axis hold the same, wherever they stand along the others. */
static bool are_alike_along(const lb_program *program, const uint32_t *values, uint32_t n, const grid *grid,
                            uint32_t axis)
{
    uint32_t inner = 1;
    for (uint32_t k = axis + 1; k < grid->axes; k++) inner *= grid->size[k];
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t first = i - i / inner % grid->size[axis] * inner;
        const lb_digest digest = program->values[values[i]].logical, y = program->values[values[first]].logical;
        if (lb_digest_is_none(digest) || !lb_digest_equal(digest, y)) return false;
    }
    return true;
}

/* Each axis that is not left out takes the first dimension that is left to be cut; `inward`: the outermost axis
 * first. */
static bool cut_dims_but(const lb_layout *whole, const lb_layout *part, uint32_t left_out, bool inward, grid *grid)
{
    int64_t ratio[LB_MAX_DIMS], left = 1;
    for (int d = 0; d < whole->ndim; d++) {
        if (!part->shape[d] || whole->shape[d] % part->shape[d]) return false;
        ratio[d] = whole->shape[d] / part->shape[d];
    }
    for (uint32_t i = 0; i < grid->axes; i++) {
        const uint32_t k = inward ? i : grid->axes - 1 - i;
        grid->dim[k] = -1;
        for (int d = 0; d < whole->ndim && grid->dim[k] < 0 && grid->size[k] > 1 && !(left_out >> k & 1); d++)
            if (ratio[d] > 1 && ratio[d] % grid->size[k] == 0) grid->dim[k] = d, ratio[d] /= grid->size[k];
    }
    for (int d = 0; d < whole->ndim; d++) left *= ratio[d];
    return left == 1;
}

/* Axes along which the ranks hold the same cut nothing, if that leaves enough of them. Weights are shared out along the
 * innermost, batches along the outermost. */
static bool cut_dims(const lb_layout *whole, const lb_program *pb, const uint32_t *values, uint32_t n, grid *grid)
{
    const lb_value *first = &pb->values[values[0]];
    const bool weight = first->flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE);
    uint32_t alike = 0;
    for (uint32_t k = 0; k < grid->axes; k++) alike |= (uint32_t)are_alike_along(pb, values, n, grid, k) << k;
    return cut_dims_but(whole, &first->layout, alike, !weight, grid) ||
           cut_dims_but(whole, &first->layout, 0, !weight, grid);
}

/* Tensors that say themselves which part they are need no guess. */
static bool is_grid(const lb_program *pa, uint32_t whole, const lb_program *pb, const uint32_t *values, uint32_t n,
                    grid *grid)
{
    const lb_value *value = &pa->values[whole], *first = &pb->values[values[0]];
    uint32_t told;
    if (lb_dtype_is_complex(value->dtype) || first->layout.ndim != value->layout.ndim || !find_mesh(pb, n, grid))
        return false;
    for (uint32_t k = 0; k < n; k++)
        if (!lb_layout_same_shape(&pb->values[values[k]].layout, &first->layout) ||
            lb_program_shards_of(pb, values[k], &told))
            return false;
    return !lb_layout_same_shape(&value->layout, &first->layout) && cut_dims(&value->layout, pb, values, n, grid);
}

uint32_t lb_reassembly_replicas(const lb_layout *whole, const lb_layout *part, uint32_t parts)
{
    const int64_t one = lb_layout_numel(part), all = lb_layout_numel(whole);
    return all ? (uint32_t)(one * parts / all) : 1;
}

/* Where the first element of a rank's part stands along each dimension. */
static void find_corner(const grid *grid, const lb_layout *part, uint32_t rank, int64_t *corner)
{
    uint32_t at[MOST_AXES];
    memset(corner, 0, LB_MAX_DIMS * sizeof *corner);
    for (uint32_t k = grid->axes; k-- > 0; rank /= grid->size[k]) at[k] = rank % grid->size[k];
    for (uint32_t k = 0; k < grid->axes; k++)
        if (grid->dim[k] >= 0) corner[grid->dim[k]] = corner[grid->dim[k]] * grid->size[k] + at[k];
    for (int d = 0; d < part->ndim; d++) corner[d] *= part->shape[d];
}

static lb_reassembly_piece *pieces_of_grid(const grid *grid, const lb_layout *whole, const lb_layout *part, uint32_t n,
                                           uint32_t *n_pieces)
{
    const int last = part->ndim - 1;
    const int64_t width = part->shape[last], rows = width ? lb_layout_numel(part) / width : 0;
    lb_reassembly_piece *pieces = malloc(((size_t)rows * n + 1) * sizeof *pieces);
    int64_t corner[LB_MAX_DIMS];
    *n_pieces = 0;
    for (uint32_t k = 0; pieces && k < n; k++) {
        find_corner(grid, part, k, corner);
        for (int64_t row = 0; row < rows; row++) {
            int64_t rest = row, to = corner[last], step = whole->shape[last];
            for (int d = last - 1; d >= 0; d--) {
                to += (corner[d] + rest % part->shape[d]) * step;
                rest /= part->shape[d], step *= whole->shape[d];
            }
            pieces[(*n_pieces)++] = (lb_reassembly_piece){.part = k, .from = row * width, .to = to, .size = width};
        }
    }
    return pieces;
}

static lb_reassembly_piece *find_grid(const lb_layout *whole, const lb_program *pb, const uint32_t *values, uint32_t n,
                                      uint32_t *n_pieces)
{
    const lb_layout *part = &pb->values[values[0]].layout;
    grid grid;
    if (!find_mesh(pb, n, &grid) || !cut_dims(whole, pb, values, n, &grid)) return NULL;
    return pieces_of_grid(&grid, whole, part, n, n_pieces);
}

/* ---- dimensions and pieces ---- */

static int find_dim(const lb_batch_rows *rows, const lb_program *pa, uint32_t whole, const lb_program *pb,
                    const uint32_t *values, uint32_t n)
{
    const lb_layout *layout = &pa->values[whole].layout, *first = &pb->values[values[0]].layout;
    int dim = LB_REASSEMBLY_SAME;
    if (rows) return n == 1 ? lb_batch_rows_dim(rows, layout, first) : LB_REASSEMBLY_NONE;
    if (first->ndim != layout->ndim) return LB_REASSEMBLY_NONE;
    for (int d = 0; d < layout->ndim && dim == LB_REASSEMBLY_SAME; d++)
        if (layout->shape[d] != first->shape[d]) dim = d;
    int64_t size = 0;
    for (uint32_t k = 0; k < n; k++) {
        const lb_layout *part = &pb->values[values[k]].layout;
        if (part->ndim != layout->ndim || !same_but_for(layout, part, dim)) return LB_REASSEMBLY_NONE;
        size += dim >= 0 ? part->shape[dim] : 0;
    }
    return dim < 0 || size == layout->shape[dim] ? dim : LB_REASSEMBLY_NONE;
}

int lb_reassembly_dim(const lb_batch_rows *rows, const lb_program *pa, uint32_t whole, const lb_program *pb,
                      const uint32_t *values, uint32_t n)
{
    const int dim = find_dim(rows, pa, whole, pb, values, n);
    grid grid;
    return dim == LB_REASSEMBLY_NONE && !rows && is_grid(pa, whole, pb, values, n, &grid) ? LB_REASSEMBLY_GRID : dim;
}

/* The axis that the parts of all ranks share out along `dim`, where they do not follow each other. */
static const lb_shard_axis *find_axis(const lb_program_view *view, const lb_layout *whole, int dim,
                                      const uint32_t *values, uint32_t n, int64_t *inner)
{
    const lb_shard_axis *axis = NULL;
    if (!view->axes || !view->axes->n || n != view->axes->parts || dim < 0) return NULL;
    int64_t *sizes = malloc((n + 1) * sizeof *sizes);
    bool in_order = sizes;
    for (uint32_t k = 0; k < n && in_order; k++) {
        sizes[k] = view->program->values[values[k]].layout.shape[dim];
        in_order = lb_program_view_part_of_value(view, values[k]) == k;
    }
    if (in_order) axis = lb_shard_axes_match(view->axes, whole->shape[dim], sizes, inner);
    free(sizes);
    return axis;
}

static lb_reassembly_piece *pieces_of_axis(const lb_shard_axis *axis, int64_t whole, int64_t inner, uint32_t *n_pieces)
{
    const int64_t outer = whole / (axis->whole * inner);
    lb_reassembly_piece *pieces = malloc(((size_t)outer * axis->n + 1) * sizeof *pieces);
    *n_pieces = 0;
    for (int64_t o = 0; pieces && o < outer; o++)
        for (uint32_t i = 0; i < axis->n; i++) {
            const lb_shard_range *range = &axis->ranges[i];
            pieces[(*n_pieces)++] = (lb_reassembly_piece){.part = range->part,
                                                          .from = (o * axis->sizes[range->part] + range->at) * inner,
                                                          .to = (o * axis->whole + range->from) * inner,
                                                          .size = range->size * inner};
        }
    return pieces;
}

/* In how many blocks the parts are put together along `dim`: 1 where some part has other ones, or none of them is as
 * long as its others. */
static uint32_t count_blocks(const lb_program_view *view, int dim, const uint32_t *values, uint32_t n)
{
    const uint32_t blocks = view->blocks ? view->blocks[values[0]] : 1;
    for (uint32_t k = 0; k < n && blocks > 1; k++)
        if (view->blocks[values[k]] != blocks || view->program->values[values[k]].layout.shape[dim] % blocks) return 1;
    return blocks > 1 ? blocks : 1;
}

static lb_reassembly_piece *pieces_of_blocks(const lb_program_view *view, int dim, const uint32_t *values, uint32_t n,
                                             uint32_t blocks, uint32_t *n_pieces)
{
    lb_reassembly_piece *pieces = malloc(((size_t)blocks * n + 1) * sizeof *pieces);
    int64_t at = 0;
    *n_pieces = 0;
    for (uint32_t i = 0; pieces && i < blocks; i++)
        for (uint32_t k = 0; k < n; k++) {
            const int64_t size = view->program->values[values[k]].layout.shape[dim] / blocks;
            pieces[(*n_pieces)++] = (lb_reassembly_piece){.part = k, .from = i * size, .to = at, .size = size};
            at += size;
        }
    return pieces;
}

lb_reassembly_piece *lb_reassembly_pieces(const lb_batch_rows *rows, const lb_layout *whole, int dim,
                                          const lb_program_view *view, const uint32_t *values, uint32_t n,
                                          uint32_t *n_pieces)
{
    int64_t at = 0, inner;
    if (dim == LB_REASSEMBLY_GRID) return find_grid(whole, view->program, values, n, n_pieces);
    const lb_shard_axis *axis = rows ? NULL : find_axis(view, whole, dim, values, n, &inner);
    if (axis) return pieces_of_axis(axis, whole->shape[dim], inner, n_pieces);
    if (!rows) return pieces_of_blocks(view, dim, values, n, count_blocks(view, dim, values, n), n_pieces);
    *n_pieces = (uint32_t)rows->few;
    lb_reassembly_piece *pieces = malloc((*n_pieces + 1) * sizeof *pieces);
    for (uint32_t k = 0; pieces && k < *n_pieces; k++) {
        const int64_t size = whole->shape[dim] / rows->few;
        pieces[k] = (lb_reassembly_piece){.part = 0, .from = rows->places[k] * size, .to = at, .size = size};
        at += size;
    }
    return pieces;
}

int lb_reassembly_outcome_dim(const lb_reassemblies *joins, const lb_reassembly *join, const lb_program *pa,
                              const lb_program *pb, uint32_t outcome)
{
    uint32_t v = lb_op_outcome(pa, &pa->ops[join->whole], outcome);
    uint32_t *values = malloc((join->parts + 1) * sizeof *values);
    int dim = LB_REASSEMBLY_NONE;
    if (values && v != LB_NONE && lb_reassembly_values(joins, join, pb, outcome, values))
        dim = lb_reassembly_dim(joins->rows, pa, v, pb, values, join->parts);
    free(values);
    return dim;
}

lb_reassembly_piece *lb_reassembly_outcome_pieces(const lb_reassemblies *joins, const lb_reassembly *join,
                                                  const lb_program *pa, const lb_program_view *view, uint32_t outcome,
                                                  int *dim, uint32_t *n_pieces)
{
    uint32_t v = lb_op_outcome(pa, &pa->ops[join->whole], outcome);
    uint32_t *values = malloc((join->parts + 1) * sizeof *values);
    lb_reassembly_piece *pieces = NULL;
    *dim = LB_REASSEMBLY_NONE, *n_pieces = 0;
    if (values && v != LB_NONE && lb_reassembly_values(joins, join, view->program, outcome, values))
        *dim = lb_reassembly_dim(joins->rows, pa, v, view->program, values, join->parts);
    if (*dim >= 0)
        pieces = lb_reassembly_pieces(joins->rows, &pa->values[v].layout, *dim, view, values, join->parts, n_pieces);
    free(values);
    return pieces;
}

/* A piece's place in the whole and in the part, and how many bytes go over for each of the `outer` places before the
 * dimension. */
typedef struct passage {
    int64_t outer;
    size_t whole, part, run, whole_step, part_step;
} passage;

static passage passage_of(const lb_layout *whole, int dim, const lb_reassembly_piece *piece, const lb_layout *part,
                          size_t element)
{
    passage found = {.outer = 1};
    int64_t inner = 1;
    if (dim == LB_REASSEMBLY_GRID) {
        found.whole = (size_t)piece->to * element, found.part = (size_t)piece->from * element;
        found.run = (size_t)piece->size * element;
        return found;
    }
    for (int d = 0; d < dim; d++) found.outer *= whole->shape[d];
    for (int d = dim + 1; d < whole->ndim; d++) inner *= whole->shape[d];
    const size_t width = (size_t)inner * element;
    found.whole = (size_t)piece->to * width, found.part = (size_t)piece->from * width,
    found.run = (size_t)piece->size * width;
    found.whole_step = (size_t)whole->shape[dim] * width, found.part_step = (size_t)part->shape[dim] * width;
    return found;
}

void lb_reassembly_cut(const lb_layout *whole, int dim, const lb_reassembly_piece *pieces, uint32_t n, uint32_t place,
                       const lb_layout *part, size_t element, const void *numbers, void *out)
{
    for (uint32_t i = 0; i < n; i++) {
        if (pieces[i].part != place) continue;
        const passage passage = passage_of(whole, dim, &pieces[i], part, element);
        for (int64_t o = 0; o < passage.outer; o++)
            memcpy((char *)out + passage.part + (size_t)o * passage.part_step,
                   (const char *)numbers + passage.whole + (size_t)o * passage.whole_step, passage.run);
    }
}

void lb_reassembly_place(const lb_layout *whole, int dim, const lb_reassembly_piece *piece, const lb_layout *part,
                         size_t element, const void *numbers, void *out)
{
    const passage passage = passage_of(whole, dim, piece, part, element);
    for (int64_t o = 0; o < passage.outer; o++)
        memcpy((char *)out + passage.whole + (size_t)o * passage.whole_step,
               (const char *)numbers + passage.part + (size_t)o * passage.part_step, passage.run);
}

static bool read_part(const lb_reassembling *how, uint32_t value, lb_tensor *part)
{
    bool exact;
    if (how->bytes) return lb_regenerated_value(how->bytes, value, part, &exact) && exact;
    /* Without a replay only kept bytes count, for a caller that compares what was recorded. */
    return lb_program_view_value(how->b, value, part, NULL) == LB_OK;
}

bool lb_reassembly_assemble(const lb_reassembling *how, const lb_layout *whole, int dim, const uint32_t *values,
                            uint32_t n, lb_tensor *tensor)
{
    lb_tensor part;
    uint32_t n_pieces;
    if (dim < 0 || !read_part(how, values[0], &part) || lb_dtype_bits(part.dtype) < 8) return false;
    size_t element = lb_dtype_bits(part.dtype) / 8;
    *tensor = (lb_tensor){NULL, part.dtype, lb_layout_contiguous(whole->ndim, whole->shape)};
    tensor->data = malloc((size_t)lb_layout_numel(whole) * element + 1);
    lb_reassembly_piece *pieces = lb_reassembly_pieces(how->rows, whole, dim, how->b, values, n, &n_pieces);
    bool done = tensor->data && pieces;
    for (uint32_t k = 0; k < n && done; k++) {
        done = read_part(how, values[k], &part) && part.dtype == tensor->dtype;
        void *dense = done ? malloc((size_t)lb_layout_numel(&part.layout) * element + 1) : NULL;
        done = dense && lb_tensor_gather(&part, dense, NULL) == LB_OK;
        for (uint32_t i = 0; i < n_pieces && done; i++)
            /* Parts outside and pieces inside: each part is read and made dense once, however many
             * rows are taken of it. */
            if (pieces[i].part == k)
                lb_reassembly_place(whole, dim, &pieces[i], &part.layout, element, dense, tensor->data);
        free(dense);
    }
    free(pieces);
    if (!done) free(tensor->data), tensor->data = NULL;
    return done;
}
