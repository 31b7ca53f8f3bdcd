/* The working set of one kernel call: its tensors as dense row-major arrays of the type it computes in.
 *
 * That type is f32, or f64 as soon as a float input or a result is f64. A tensor that is dense and of that type already
 * is borrowed; any other is converted (and rounded to `method.compute`). Results are written in place where that is
 * safe and rounded once, with `method.cast`, by `lb_frame_end` otherwise. So a kernel between begin and end is plain
 * loops:
 *
 *      lb_frame f = lb_frame_begin(call);
 *      const float *x = lb_frame_input(&f, 0);
 *      float *y = lb_frame_output(&f, 0);
 *      if (lb_frame_ok(&f)) loops(x, y);
 *      return lb_frame_end(&f);
 *
 * Every getter returns NULL once something has failed, and end reports it. An output never overlaps an input. */
#ifndef LB_REPLAY_FRAME_H
#define LB_REPLAY_FRAME_H

#include "kernel/ops.h"

#define LB_FRAME_BUFFERS 32

/* NULL comes with a failure of the frame, which every loop asks about first: the analyser sees one file at a time and
 * is told. */
#ifdef __clang_analyzer__
#define LB_FRAME_GIVES __attribute__((returns_nonnull))
#else
#define LB_FRAME_GIVES
#endif

typedef struct lb_frame {
    lb_call *call;
    lb_dtype type; /* LB_F32 or LB_F64 */
    bool wide;     /* type is LB_F64 */
    lb_status status;
    uint32_t n_buffers, n_outputs;
    void *buffers[LB_FRAME_BUFFERS];
    struct lb_frame_output_row {
        const lb_tensor *target;
        void *data;
        lb_dtype type;
    } outputs[16];
} lb_frame;

lb_frame lb_frame_begin(lb_call *call);
lb_status lb_frame_end(lb_frame *frame);
static inline bool lb_frame_ok(const lb_frame *frame)
{
    return frame->status == LB_OK;
}
/* Keeps the first failure. */
void lb_frame_fail(lb_frame *frame, lb_status status, const char *message);
#ifdef __clang_analyzer__ /* which sees one file at a time */
#define lb_frame_fail(frame, code, ...)                                                                                \
    ((lb_frame_fail)((frame), (code), __VA_ARGS__), (void)((frame)->status = LB_ERR_INVALID))
#endif

/* Arg `i` as reals; NULL when it is NONE. */
const void *lb_frame_input(lb_frame *frame, uint32_t i);
const void *lb_frame_tensor(lb_frame *frame, const lb_tensor *tensor) LB_FRAME_GIVES;
/* As int64; floats are truncated, bools are 0 and 1. */
const int64_t *lb_frame_integers(lb_frame *frame, const lb_tensor *tensor);
/* Its raw elements, row-major. */
const void *lb_frame_bytes(lb_frame *frame, const lb_tensor *tensor) LB_FRAME_GIVES;
/* Result `r` as reals. A result that is not wanted gets a buffer of `elements`, which is dropped. */
void *lb_frame_output(lb_frame *frame, uint32_t r, int64_t elements);
int64_t *lb_frame_output_integers(lb_frame *frame, uint32_t r, int64_t elements);
/* Raw elements of the result's dtype; NULL also when it is not wanted. */
void *lb_frame_output_bytes(lb_frame *frame, uint32_t r);
/* Any view of a result; `target` must stay until end. */
void *lb_frame_output_view(lb_frame *frame, const lb_tensor *target, int64_t elements);
int64_t *lb_frame_output_view_integers(lb_frame *frame, const lb_tensor *target, int64_t elements);
/* Freed by end. Not cleared. */
void *lb_frame_scratch(lb_frame *frame, size_t bytes) LB_FRAME_GIVES;
void *lb_frame_reals(lb_frame *frame, int64_t elements) LB_FRAME_GIVES; /* of the frame's type */

/* One real of the frame's type among those that the above gave. */
static inline double lb_frame_get(const lb_frame *frame, const void *x, int64_t i)
{
    return frame->wide ? ((const double *)x)[i] : ((const float *)x)[i];
}
static inline void lb_frame_set(const lb_frame *frame, void *x, int64_t i, double value)
{
    if (frame->wide)
        ((double *)x)[i] = value;
    else
        ((float *)x)[i] = (float)value;
}
/* y = |x|, which may be the same. */
void lb_frame_absolute(const lb_frame *frame, const void *x, void *y, int64_t n);

/* ---- args ------------------------------------------------------------------------------------------------------ */

/* NULL when arg `i` is absent, NONE or no tensor. */
const lb_tensor *lb_frame_arg_tensor(const lb_call *call, uint32_t i);
bool lb_frame_arg_given(const lb_call *call, uint32_t i); /* present and not NONE */
int64_t lb_frame_arg_int(const lb_call *call, uint32_t i, int64_t otherwise);
double lb_frame_arg_float(const lb_call *call, uint32_t i, double otherwise);
/* The numbers of list arg `i` as integers (a lone INT counts as a list of one); returns how many, at most `max`. */
int lb_frame_arg_ints(const lb_call *call, uint32_t i, int64_t *numbers, int max);
/* `dim` with negatives wrapped; 0-dim tensors have one dimension of size 1. -1 when out of range. */
int lb_frame_wrap_dim(int64_t dim, int ndim);

/* ---- shapes ---------------------------------------------------------------------------------------------------- */

/* A dense tensor around one dimension: outer * size * inner elements. */
typedef struct lb_around {
    int64_t outer, size, inner;
} lb_around;
lb_around lb_frame_shape_around(const lb_layout *layout, int dim);
/* The same elements with `dim` moved to the end, so that what runs along it is a dense row. */
lb_tensor lb_frame_dim_last(const lb_tensor *tensor, int dim);
static inline int64_t lb_tensor_numel(const lb_tensor *tensor)
{
    return lb_layout_numel(&tensor->layout);
}

/* ---- 16-bit partial results ------------------------------------------------------------------------------------- */

/* Rounds n reals of the frame's type to `dtype` if that has 16 bits: what ops do that add up in their own dtype. */
void lb_frame_round(const lb_frame *frame, void *x, int64_t n, lb_dtype dtype);
/* By how much the twin of such an op grows, since the bound assumes the roundoff of f32: 2^16 when arg `i` is bf16,
 * 2^13 for f16, else 1. */
double lb_frame_twin_scale(const lb_call *call, uint32_t i);
/* What one rounding to 16 bits adds to a twin, per magnitude that is rounded; 0 when arg `i` has no 16 bits. */
double lb_frame_twin_rounding(const lb_call *call, uint32_t i);

#endif
