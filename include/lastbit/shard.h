/* Shards: which part of a larger tensor a value is, and over which ranks that tensor is spread.
 *
 * Simplest use:
 *
 *     const lb_extent rows[] = {{.dim = 0, .whole = 8, .from = 2, .size = 1}, {.dim = 1, .whole = 6, .from = 0, .size = 6}};
 *     int64_t elements;
 *     LB_TRY(lb_shard_extents_check(rows, 2, &elements, err));                   // row 2 of a tensor [8, 6]: 6 elements
 *
 * The ranks of a mesh stand in a grid whose axes have names ("dp", "tp"). A placement says, axis by axis, how the ranks
 * along it share a tensor: each has all of it, each has a part along one of its dimensions, or the sum over them is it.
 * What a rank has follows from that, but not its bounds (uneven parts, zigzags, parts of parts), so these are written
 * down as extents: along each dimension of the whole the ranges that are there, in the order in which they lie in the
 * value.
 *
 *      whole [8, 6]           extents {0, 8, 2, 1} {0, 8, 6, 2} {1, 6, 0, 6}: the value is [3, 6], its rows are rows 2,
 *                             6 and 7
 *      whole [8, 6], flat     extents {0, 8, 0, 8} {1, 6, 0, 6} {-1, 48, 12, 20}: elements 12 to 31, row-major
 *
 * The part begins at element `at` of the value's elements in row-major order and goes on in its own row-major order;
 * the value may have another shape (a part may lie flat) and more elements (padding, other tensors).
 */
#ifndef LASTBIT_SHARD_H
#define LASTBIT_SHARD_H

#include <lastbit/error.h>

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lb_extent {
    int32_t dim; /* LB_EXTENT_FLAT: of the elements in row-major order; it stands last then, and no dimension is cut */
    int64_t whole; /* size of the dimension in the whole */
    int64_t from, size;
} lb_extent;
#define LB_EXTENT_FLAT (-1)
LB_API bool lb_shard_extents_are_flat(const lb_extent *extents, uint32_t n);
/* Dimensions follow each other from 0 on, ranges lie inside the whole. Sets the elements of the part; LB_ERR_INVALID
 * says what is wrong. */
LB_API lb_status lb_shard_extents_check(const lb_extent *extents, uint32_t n, int64_t *elements, lb_err *err);

enum lb_placement_kind {
    LB_PLACEMENT_REPLICATE = 0, /* the same on all */
    LB_PLACEMENT_SHARD = 1,     /* parts along `dim`, or of the elements where that is LB_EXTENT_FLAT */
    LB_PLACEMENT_PARTIAL = 2    /* terms that `reduce` makes the tensor of */
};

typedef struct lb_placement {
    uint8_t kind; /* lb_placement_kind */
    int32_t dim;
    uint32_t reduce; /* string: "sum", …, or LB_NONE */
} lb_placement;

typedef struct lb_mesh_axis {
    uint32_t name; /* string, or LB_NONE */
    uint32_t size; /* ranks along it */
} lb_mesh_axis;

typedef struct lb_mesh {
    uint32_t first_axis, axes;  /* rows of mesh_axes */
    uint32_t first_rank, ranks; /* rows of refs: ranks, the last axis running fastest */
} lb_mesh;

typedef struct lb_shard {
    uint32_t value;
    uint32_t name; /* string: the whole's, where the value has another; LB_NONE: the value's own */
    uint32_t mesh; /* row of meshes, or LB_NONE: not told */
    uint32_t first_placement, placements; /* rows of placements, one for each axis of the mesh */
    uint32_t first_extent, extents;       /* rows of extents, by dimension */
    int64_t at;
} lb_shard;

#ifdef __cplusplus
}
#endif
#endif
