/* Copies and fills: any dtype to any other, any layout, broadcast; what creation, `_to_copy` and `clone` consist of.
 *
 * Dense to dense is one conversion; a transposed source is copied in tiles; everything else goes through chunks that
 * are gathered and scattered by runs of constant stride. */
#include "kernel/strided_walk.h"
#include "kernel/pointwise.h"

typedef struct copy_job {
    lb_walker to, from;
    const lb_cast *cast;
    lb_dtype compute;
    bool transposed; /* same dtype, dense result, the source's second innermost dimension is its dense one */
} copy_job;

static bool same_bits(const copy_job *copy_job)
{
    return copy_job->to.dtype == copy_job->from.dtype && !copy_job->cast &&
           (!copy_job->compute || !lb_dtype_is_float(copy_job->from.dtype));
}

/* Elements [start, start + n) of the source as `to`'s dtype, dense. */
static void gather(const copy_job *copy_job, int64_t start, size_t n, void *buffer)
{
    const lb_walker *from = &copy_job->from, *to = &copy_job->to;
    lb_cast here = copy_job->cast ? *copy_job->cast : (lb_cast)LB_CAST_INIT;
    double rounded[LB_LANES];
    const bool rounds = copy_job->compute && (from->dtype == LB_F32 || from->dtype == LB_F64);
    LB_EACH_RUN(from, start, n, p, stride, count, at, {
        char *out = (char *)buffer + at * to->element;
        if (here.rounding == LB_STOCHASTIC) here.counter = copy_job->cast->counter + (uint64_t)start + at;
        if (!rounds) {
            lb_convert_strided(to->dtype, out, 1, from->dtype, p, stride, count, copy_job->cast ? &here : NULL);
        } else {
            lb_load_f64_strided(rounded, from->dtype, p, stride, count);
            lb_round_to_grid_f64(rounded, count, copy_job->compute, NULL);
            lb_store_f64(to->dtype, out, rounded, count, copy_job->cast ? &here : NULL);
        }
    });
}

/* Elements [first, last) in chunks: gathered, converted, scattered. A dense side is used in place. */
static void copy_range(const copy_job *copy_job, int64_t first, int64_t last)
{
    _Alignas(64) char buffer[LB_LANES * 16];
    const lb_walker *to = &copy_job->to, *from = &copy_job->from;
    const bool dense = lb_walker_is_dense(to) && from->data != to->data;
    const bool repeats = from->single && !(copy_job->cast && copy_job->cast->rounding == LB_STOCHASTIC);
    if (repeats) {
        gather(copy_job, 0, 1, buffer);
        repeat(buffer, buffer, to->element, LB_LANES);
    }
    for (int64_t start = first; start < last; start += LB_LANES) {
        const size_t n = (size_t)(last - start < LB_LANES ? last - start : LB_LANES);
        char *out = dense ? to->data + start * (int64_t)to->element : buffer;
        if (!repeats)
            gather(copy_job, start, n, out);
        else if (dense)
            memcpy(out, buffer, n * to->element);
        if (dense) continue;
        LB_EACH_RUN(to, start, n, p, stride, count, at, {
            lb_convert_strided(to->dtype, p, stride, to->dtype, buffer + at * to->element, 1, count, NULL);
        });
    }
}

#define TILE 16
/* One matrix: rows of the result are `rows` × `columns` dense; the source steps by 1 along rows and `step` along
 * columns. */
#define TRANSPOSE(NAME, TYPE)                                                                                          \
    static void NAME(TYPE *to, const TYPE *from, int64_t rows, int64_t columns, int64_t step)                          \
    {                                                                                                                  \
        for (int64_t r0 = 0; r0 < rows; r0 += TILE)                                                                    \
            for (int64_t c0 = 0; c0 < columns; c0 += TILE) {                                                           \
                const int64_t r1 = r0 + TILE < rows ? r0 + TILE : rows;                                                \
                const int64_t c1 = c0 + TILE < columns ? c0 + TILE : columns;                                          \
                for (int64_t r = r0; r < r1; r++)                                                                      \
                    for (int64_t c = c0; c < c1; c++) to[r * columns + c] = from[r + c * step];                        \
            }                                                                                                          \
    }
TRANSPOSE(transpose_u16, uint16_t)
TRANSPOSE(transpose_u32, uint32_t)
TRANSPOSE(transpose_u64, uint64_t)

/* Matrices [first, last) of a transposed source. */
static void copy_matrices(const copy_job *copy_job, int64_t first, int64_t last)
{
    const lb_walker *from = &copy_job->from;
    const int inner = from->ndim - 1;
    const int64_t rows = from->shape[inner - 1], columns = from->shape[inner], step = from->stride[inner];
    for (int64_t m = first; m < last; m++) {
        int64_t rest = m, offset = 0;
        for (int d = inner - 2; d >= 0; d--) {
            offset += rest % from->shape[d] * from->stride[d];
            rest /= from->shape[d];
        }
        char *to = copy_job->to.data + m * rows * columns * (int64_t)from->element;
        const char *source = from->data + offset * (int64_t)from->element;
        if (from->element == 2)
            transpose_u16((uint16_t *)to, (const uint16_t *)source, rows, columns, step);
        else if (from->element == 4)
            transpose_u32((uint32_t *)to, (const uint32_t *)source, rows, columns, step);
        else
            transpose_u64((uint64_t *)to, (const uint64_t *)source, rows, columns, step);
    }
}

static bool is_transposed(const copy_job *copy_job)
{
    const lb_walker *from = &copy_job->from;
    const int inner = from->ndim - 1;
    const bool sized = from->element == 2 || from->element == 4 || from->element == 8;
    const bool aligned =
        ((uintptr_t)from->data | (uintptr_t)copy_job->to.data) % (from->element ? from->element : 1) == 0;
    return inner >= 1 && sized && aligned && same_bits(copy_job) && lb_walker_is_dense(&copy_job->to) &&
           copy_job->to.data != from->data && from->stride[inner - 1] == 1 && from->stride[inner] != 1 &&
           from->shape[inner] >= 4 && from->shape[inner - 1] >= 4;
}

static void copy_part(const void *context, int64_t first, int64_t last)
{
    const copy_job *copy_job = context;
    const bool dense = lb_walker_is_dense(&copy_job->to) && lb_walker_is_dense(&copy_job->from) &&
                       !copy_job->from.single && !copy_job->cast && !copy_job->compute;
    if (copy_job->transposed)
        copy_matrices(copy_job, first, last);
    else if (dense && copy_job->to.data != copy_job->from.data)
        lb_convert(copy_job->to.dtype, copy_job->to.data + first * (int64_t)copy_job->to.element, copy_job->from.dtype,
                   copy_job->from.data + first * (int64_t)copy_job->from.element, (size_t)(last - first), NULL);
    else
        copy_range(copy_job, first, last);
}

static void copy_all(copy_job *copy_job, int64_t n)
{
    if (n == 0 || (same_bits(copy_job) && copy_job->to.data == copy_job->from.data &&
                   lb_walker_is_dense(&copy_job->to) && lb_walker_is_dense(&copy_job->from)))
        return;
    copy_job->transposed = is_transposed(copy_job);
    const int inner = copy_job->from.ndim - 1;
    const int64_t unit = copy_job->transposed ? copy_job->from.shape[inner] * copy_job->from.shape[inner - 1]
                                              : 1; /* elements of one step */
    const int64_t grain = copy_job->transposed ? 1 : LB_LANES, steps = n / unit;
    lb_pointwise_lanes_share(n, steps, grain, copy_part, copy_job);
}

lb_status lb_pointwise_copy(lb_call *call, const lb_tensor *result, const lb_tensor *source)
{
    if (!result->data) return LB_OK;
    const lb_strided_walk walk = lb_strided_walk_of(&result->layout);
    copy_job copy_job = {.cast = call->method.cast, .compute = call->method.compute};
    if (lb_dtype_bits(result->dtype) < 8 || lb_dtype_bits(source->dtype) < 8)
        return lb_fail(call->err, LB_ERR_UNSUPPORTED, "copy between %s and %s", lb_dtype_name(source->dtype),
                       lb_dtype_name(result->dtype));
    if (!lb_walker_of(&copy_job.to, &walk, result) || !lb_walker_of(&copy_job.from, &walk, source))
        return lb_fail(call->err, LB_ERR_INVALID, "%s: the source does not broadcast to the result",
                       call->row ? call->row->name : "copy");
    copy_all(&copy_job, walk.n);
    return LB_OK;
}

lb_status lb_pointwise_fill(lb_call *call, const lb_tensor *result, const lb_operand *value)
{
    lb_tensor source = {.layout = {.ndim = 0}};
    int64_t integer = value->i;
    double number = value->f;
    switch (value->tag) {
    case LB_OPERAND_TENSOR: source = value->tensor; break;
    case LB_OPERAND_INT:
    case LB_OPERAND_BOOL:
        source.data = &integer;
        source.dtype = LB_I64;
        break;
    case LB_OPERAND_FLOAT:
        source.data = &number;
        source.dtype = LB_F64;
        break;
    default:
        return lb_fail(call->err, LB_ERR_INVALID, "%s: no value to fill with", call->row ? call->row->name : "fill");
    }
    return lb_pointwise_copy(call, result, &source);
}
