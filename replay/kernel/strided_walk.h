/* How a tensor is walked in an order that the result of an op decides: dimensions merged where they can be, any flat
 * range of elements reachable. Private to the elementwise driver and its copies. */
#ifndef LB_REPLAY_STRIDED_WALK_H
#define LB_REPLAY_STRIDED_WALK_H

#include <lastbit/dtype.h>
#include <lastbit/tensor.h>
#include <string.h>

/* One tensor as it is walked: innermost dimension last. */
typedef struct lb_walker {
    char *data;
    lb_dtype dtype;
    bool single; /* the same element everywhere */
    int ndim;
    size_t element;
    int64_t shape[LB_MAX_DIMS], stride[LB_MAX_DIMS];
} lb_walker;

/* The order in which all cursors walk: dimensions of the result without those of size 1. */
typedef struct lb_strided_walk {
    int ndim;
    int dim[LB_MAX_DIMS]; /* dimension of the result, outermost first */
    int64_t shape[LB_MAX_DIMS];
    int64_t n;
    const lb_layout *result;
} lb_strided_walk;

/* Dimensions of `result`, largest stride outermost. Keeps the pointer. */
lb_strided_walk lb_strided_walk_of(const lb_layout *result);
/* False when `tensor` does not broadcast to the result. */
bool lb_walker_of(lb_walker *walker, const lb_strided_walk *w, const lb_tensor *tensor);

static inline bool lb_walker_is_dense(const lb_walker *walker)
{
    return walker->ndim == 1 && walker->stride[0] == 1;
}

/* `count` copies of the element at `from`, which may be the first of them. */
static inline void repeat(void *to, const void *from, size_t element, size_t count)
{
    if (element == 4) {
        uint32_t value, *out = to;
        memcpy(&value, from, 4);
        for (size_t k = 0; k < count; k++) out[k] = value;
    } else if (element == 8) {
        uint64_t value, *out = to;
        memcpy(&value, from, 8);
        for (size_t k = 0; k < count; k++) out[k] = value;
    } else {
        for (size_t k = 0; k < count; k++) memmove((char *)to + k * element, from, element);
    }
}

/* Splits elements [start, start + n) of a walker into runs of constant stride and calls `run` for each. */
#define LB_EACH_RUN(c, start, n, pointer, stride_, count, at, ...)                                                     \
    do {                                                                                                               \
        const lb_walker *c_ = (c);                                                                                     \
        const int inner_ = c_->ndim - 1;                                                                               \
        const int64_t stride_ = c_->stride[inner_];                                                                    \
        if (inner_ == 0) {                                                                                             \
            const size_t count = (n), at = 0;                                                                          \
            char *pointer = c_->data + (int64_t)c_->element * stride_ * (int64_t)(start);                              \
            (void)at;                                                                                                  \
            __VA_ARGS__;                                                                                               \
            break;                                                                                                     \
        }                                                                                                              \
        int64_t index_[LB_MAX_DIMS], rest_ = (start), offset_ = 0;                                                     \
        for (int d_ = inner_; d_ >= 0; d_--) {                                                                         \
            index_[d_] = d_ ? rest_ % c_->shape[d_] : rest_;                                                           \
            rest_ = d_ ? rest_ / c_->shape[d_] : 0;                                                                    \
            offset_ += index_[d_] * c_->stride[d_];                                                                    \
        }                                                                                                              \
        for (size_t at = 0; at < (n);) {                                                                               \
            const size_t left_ = (size_t)(c_->shape[inner_] - index_[inner_]);                                         \
            const size_t count = left_ < (n) - at ? left_ : (n) - at;                                                  \
            char *pointer = c_->data + (int64_t)c_->element * offset_;                                                 \
            __VA_ARGS__;                                                                                               \
            at += count;                                                                                               \
            if (at >= (n)) break;                                                                                      \
            offset_ -= index_[inner_] * stride_; /* next row */                                                        \
            index_[inner_] = 0;                                                                                        \
            for (int d_ = inner_ - 1; d_ >= 0; d_--) {                                                                 \
                offset_ += c_->stride[d_];                                                                             \
                if (++index_[d_] < c_->shape[d_] || d_ == 0) break;                                                    \
                offset_ -= index_[d_] * c_->stride[d_];                                                                \
                index_[d_] = 0;                                                                                        \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

#endif
