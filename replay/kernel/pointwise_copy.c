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

static bool same_bits(const copy_job *j)
{
    return j->to.dtype == j->from.dtype && !j->cast && (!j->compute || !lb_dtype_is_float(j->from.dtype));
}

/* Elements [start, start + n) of the source as `to`'s dtype, dense. */
static void gather(const copy_job *j, int64_t start, size_t n, void *buffer)
{
    const lb_walker *from = &j->from, *to = &j->to;
    lb_cast here = j->cast ? *j->cast : (lb_cast)LB_CAST_INIT;
    double rounded[LB_LANES];
    const bool rounds = j->compute && (from->dtype == LB_F32 || from->dtype == LB_F64);
    LB_EACH_RUN(from, start, n, p, stride, count, at, {
        char *out = (char *)buffer + at * to->element;
        if (here.rounding == LB_STOCHASTIC) here.counter = j->cast->counter + (uint64_t)start + at;
        if (!rounds) {
            lb_convert_strided(to->dtype, out, 1, from->dtype, p, stride, count, j->cast ? &here : NULL);
        } else {
            lb_load_f64_strided(rounded, from->dtype, p, stride, count);
            lb_round_to_grid_f64(rounded, count, j->compute, NULL);
            lb_store_f64(to->dtype, out, rounded, count, j->cast ? &here : NULL);
        }
    });
}

/* Elements [first, last) in chunks: gathered, converted, scattered. A dense side is used in place. */
static void copy_range(const copy_job *j, int64_t first, int64_t last)
{
    _Alignas(64) char buffer[LB_LANES * 16];
    const lb_walker *to = &j->to, *from = &j->from;
    const bool dense = lb_walker_is_dense(to) && from->data != to->data;
    const bool repeats = from->single && !(j->cast && j->cast->rounding == LB_STOCHASTIC);
    if (repeats) {
        gather(j, 0, 1, buffer);
        repeat(buffer, buffer, to->element, LB_LANES);
    }
    for (int64_t start = first; start < last; start += LB_LANES) {
        const size_t n = (size_t)(last - start < LB_LANES ? last - start : LB_LANES);
        char *out = dense ? to->data + start * (int64_t)to->element : buffer;
        if (!repeats)
            gather(j, start, n, out);
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
static void copy_matrices(const copy_job *j, int64_t first, int64_t last)
{
    const lb_walker *from = &j->from;
    const int inner = from->ndim - 1;
    const int64_t rows = from->shape[inner - 1], columns = from->shape[inner], step = from->stride[inner];
    for (int64_t m = first; m < last; m++) {
        int64_t rest = m, offset = 0;
        for (int d = inner - 2; d >= 0; d--) {
            offset += rest % from->shape[d] * from->stride[d];
            rest /= from->shape[d];
        }
        char *to = j->to.data + m * rows * columns * (int64_t)from->element;
        const char *source = from->data + offset * (int64_t)from->element;
        if (from->element == 2)
            transpose_u16((uint16_t *)to, (const uint16_t *)source, rows, columns, step);
        else if (from->element == 4)
            transpose_u32((uint32_t *)to, (const uint32_t *)source, rows, columns, step);
        else
            transpose_u64((uint64_t *)to, (const uint64_t *)source, rows, columns, step);
    }
}

static bool is_transposed(const copy_job *j)
{
    const lb_walker *from = &j->from;
    const int inner = from->ndim - 1;
    const bool sized = from->element == 2 || from->element == 4 || from->element == 8;
    const bool aligned = ((uintptr_t)from->data | (uintptr_t)j->to.data) % (from->element ? from->element : 1) == 0;
    return inner >= 1 && sized && aligned && same_bits(j) && lb_walker_is_dense(&j->to) && j->to.data != from->data &&
           from->stride[inner - 1] == 1 && from->stride[inner] != 1 && from->shape[inner] >= 4 &&
           from->shape[inner - 1] >= 4;
}

static void copy_part(const void *context, int64_t first, int64_t last)
{
    const copy_job *j = context;
    const bool dense =
        lb_walker_is_dense(&j->to) && lb_walker_is_dense(&j->from) && !j->from.single && !j->cast && !j->compute;
    if (j->transposed)
        copy_matrices(j, first, last);
    else if (dense && j->to.data != j->from.data)
        lb_convert(j->to.dtype, j->to.data + first * (int64_t)j->to.element, j->from.dtype,
                   j->from.data + first * (int64_t)j->from.element, (size_t)(last - first), NULL);
    else
        copy_range(j, first, last);
}

static void copy_all(copy_job *j, int64_t n)
{
    if (n == 0 ||
        (same_bits(j) && j->to.data == j->from.data && lb_walker_is_dense(&j->to) && lb_walker_is_dense(&j->from)))
        return;
    j->transposed = is_transposed(j);
    const int inner = j->from.ndim - 1;
    const int64_t unit = j->transposed ? j->from.shape[inner] * j->from.shape[inner - 1] : 1; /* elements of one step */
    const int64_t grain = j->transposed ? 1 : LB_LANES, steps = n / unit;
    lb_pointwise_lanes_share(n, steps, grain, copy_part, j);
}

lb_status lb_pointwise_copy(lb_call *call, const lb_tensor *result, const lb_tensor *source)
{
    if (!result->data) return LB_OK;
    const lb_strided_walk w = lb_strided_walk_of(&result->layout);
    copy_job j = {.cast = call->method.cast, .compute = call->method.compute};
    if (lb_dtype_bits(result->dtype) < 8 || lb_dtype_bits(source->dtype) < 8)
        return lb_fail(call->err, LB_ERR_UNSUPPORTED, "copy between %s and %s", lb_dtype_name(source->dtype),
                       lb_dtype_name(result->dtype));
    if (!lb_walker_of(&j.to, &w, result) || !lb_walker_of(&j.from, &w, source))
        return lb_fail(call->err, LB_ERR_INVALID, "%s: the source does not broadcast to the result",
                       call->row ? call->row->name : "copy");
    copy_all(&j, w.n);
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
