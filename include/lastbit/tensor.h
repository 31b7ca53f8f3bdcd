/* A tensor as it is passed here: a strided view of bytes that it does not own.
 *
 * Simplest use:
 *
 *     float numbers[6] = {0, 1, 2, 3, 4, 5}, rows[6];
 *     lb_tensor matrix = {numbers, LB_F32, lb_layout_contiguous(2, (int64_t[]){2, 3})};
 *     LB_TRY(lb_tensor_gather(&matrix, rows, err));
 *
 * Words are DLPack's: shape and stride in elements, offset in elements from the start of the storage. Strides
 * may be 0 (expanded). `lb_layout_dense_range` gives the storage elements a view can touch; that range is what
 * the archive keeps as one blob, so that every alias of a storage finds its bytes there.
 */
#ifndef LASTBIT_TENSOR_H
#define LASTBIT_TENSOR_H

#include <lastbit/dtype.h>
#include <lastbit/error.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LB_MAX_DIMS 16

/* Where the elements of a value lie in their storage. A 0-dim tensor has one element. */
typedef struct lb_layout {
    int32_t ndim;
    int64_t offset; /* elements from the start of the storage */
    int64_t shape[LB_MAX_DIMS];
    int64_t stride[LB_MAX_DIMS]; /* elements */
} lb_layout;

/* A view: `data` points at element 0 of the view (offset already applied). It owns nothing. */
typedef struct lb_tensor {
    void *data;
    lb_dtype dtype;
    lb_layout layout;
} lb_tensor;

/* Number of elements; -1 when a size is negative or the product overflows int64. */
LB_API int64_t lb_layout_numel(const lb_layout *layout);
/* Row-major strides for the given shape, offset 0. */
LB_API lb_layout lb_layout_contiguous(int ndim, const int64_t *shape);
LB_API bool lb_layout_is_contiguous(const lb_layout *layout);
LB_API bool lb_layout_same_shape(const lb_layout *a, const lb_layout *b);
/* As many dimensions, of the same sizes in any order. */
LB_API bool lb_layout_same_sizes(const lb_layout *a, const lb_layout *b);
/* The half-open range [*first, *last) of storage elements that the view can touch (empty view: both 0).
 * Fails with LB_ERR_INVALID on overflow or a negative first element. */
LB_API lb_status lb_layout_dense_range(const lb_layout *layout, int64_t *first, int64_t *last, lb_err *err);

/* A part of a view, in NumPy's basic indexing: "3", "0,:,4:-1", "...,::2", also in brackets. An index drops its
 * dimension; steps are positive. `*part` has the offset of its element 0 relative to that of `layout`. LB_ERR_INVALID
 * when the text is no such thing, has too many items, or an index is out of range. */
LB_API lb_status lb_layout_slice(const lb_layout *layout, const char *text, lb_layout *part, lb_err *err);

/* Visits a view as runs along its innermost dimension, after dropping dimensions of size 1 and merging
 * neighbours: for (lb_rows r = lb_rows_of(&layout); lb_rows_next(&r);) use(data + r.offset, r.count, r.stride);
 * Order is row-major; an empty view yields nothing. Offsets are relative to element 0 of the view. */
typedef struct lb_rows {
    int64_t offset, count, stride; /* elements */
    int32_t ndim;                  /* outer dimensions */
    bool started, empty;
    int64_t shape[LB_MAX_DIMS], outer_stride[LB_MAX_DIMS], index[LB_MAX_DIMS];
} lb_rows;
LB_API lb_rows lb_rows_of(const lb_layout *layout);
LB_API bool lb_rows_next(lb_rows *rows);

/* Copies the elements in row-major order, bits untouched, into `bytes` (numel * element size). Dtypes below 8
 * bits must be contiguous (LB_ERR_UNSUPPORTED otherwise). */
LB_API lb_status lb_tensor_gather(const lb_tensor *tensor, void *bytes, lb_err *err);
/* The reverse: writes row-major `bytes` into the view. */
LB_API lb_status lb_tensor_scatter(const lb_tensor *tensor, const void *bytes, lb_err *err);

#ifdef __cplusplus
}
#endif
#endif
