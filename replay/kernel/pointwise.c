/* The driver of elementwise kernels, see pointwise.h.
 *
 * The result decides the order in which elements are visited; chunks of every operand are gathered in that order
 * (strided_walk.h). */
#include "kernel/strided_walk.h"
#include "kernel/pointwise.h"

#include <math.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

/* Elements one by one, for rows so short that a call for each costs more than its elements. */
#define SHORT_ROW 16

typedef enum compute { COMPUTE_F32, COMPUTE_F64, COMPUTE_I64 } compute;

static lb_dtype compute_dtype(compute type)
{
    return type == COMPUTE_F32 ? LB_F32 : type == COMPUTE_F64 ? LB_F64 : LB_I64;
}

static void load(const lb_walker *walker, compute type, void *buffer, int64_t start, size_t n)
{
    const size_t wide = type == COMPUTE_F32 ? 4 : 8;
    const bool same = walker->dtype == compute_dtype(type);
    LB_EACH_RUN(walker, start, n, p, stride, count, at, {
        char *to = (char *)buffer + at * wide;
        if (same && stride == 0)
            repeat(to, p, wide, count);
        else if (same && stride == 1 && count >= SHORT_ROW)
            memcpy(to, p, count * wide);
        else if (same && wide == 4)
            for (size_t k = 0; k < count; k++) memcpy(to + 4 * k, p + 4 * (int64_t)k * stride, 4);
        else if (same)
            for (size_t k = 0; k < count; k++) memcpy(to + 8 * k, p + 8 * (int64_t)k * stride, 8);
        else if (type == COMPUTE_F32)
            lb_load_f32_strided((float *)to, walker->dtype, p, stride, count);
        else if (type == COMPUTE_F64)
            lb_load_f64_strided((double *)to, walker->dtype, p, stride, count);
        else
            lb_convert_strided(LB_I64, to, 1, walker->dtype, p, stride, count, NULL);
    });
}

static void store(const lb_walker *walker, compute type, const void *buffer, int64_t start, size_t n,
                  const lb_cast *cast)
{
    const size_t wide = type == COMPUTE_F32 ? 4 : 8;
    lb_cast here;
    LB_EACH_RUN(walker, start, n, p, stride, count, at, {
        const char *from = (const char *)buffer + at * wide;
        if (cast && cast->rounding == LB_STOCHASTIC) { /* element k of the result draws number counter + k */
            here = *cast;
            here.counter += (uint64_t)start + at;
        }
        const lb_cast *how = cast && cast->rounding == LB_STOCHASTIC ? &here : cast;
        if (type == COMPUTE_F32)
            lb_store_f32_strided(walker->dtype, p, stride, (const float *)from, count, how);
        else if (type == COMPUTE_F64)
            lb_store_f64_strided(walker->dtype, p, stride, (const double *)from, count, how);
        else
            lb_convert_strided(walker->dtype, p, stride, LB_I64, from, 1, count, how);
    });
}

/* ---- reading the call ------------------------------------------------------------------------------------------- */

typedef struct job {
    const lb_pointwise *op;
    lb_lane_loop loop;
    compute type;
    lb_method method;
    lb_strided_walk w;
    int n_in, n_out;
    bool out_wanted[LB_LANES_OUTPUTS];
    lb_lanes lanes;                 /* scalars filled in */
    lb_dtype grid[LB_LANES_INPUTS]; /* a single operand is rounded to this dtype first; 0: not */
    double number[LB_LANES_INPUTS]; /* storage of operands that are Python scalars */
    int64_t integer[LB_LANES_INPUTS];
    lb_walker in[LB_LANES_INPUTS], out[LB_LANES_OUTPUTS]; /* last: only those in use are set */
} job;

static bool supported(lb_dtype dtype)
{
    return lb_dtype_valid(dtype) && lb_dtype_bits(dtype) >= 8 && !lb_dtype_is_complex(dtype) && dtype != LB_U64;
}

static int category(lb_dtype dtype)
{
    return dtype == LB_BOOL ? 1 : lb_dtype_is_integer(dtype) ? 2 : 3;
}

/* torch's promotion of two float dtypes; enough for what COMMON needs. */
static lb_dtype wider(lb_dtype a, lb_dtype b)
{
    if (!a || a == b) return b ? b : a;
    if (!b) return a;
    if (category(a) != category(b)) return category(a) > category(b) ? a : b;
    if (category(a) != 3) return lb_dtype_bits(a) >= lb_dtype_bits(b) ? a : b;
    if (lb_dtype_bits(a) == lb_dtype_bits(b)) return LB_F32; /* bf16 with f16 */
    return lb_dtype_bits(a) > lb_dtype_bits(b) ? a : b;
}

/* The dtype the operands promote to: tensors with dimensions, then 0-dim tensors, then scalars, by category. */
static lb_dtype common_dtype(const lb_call *call, const char *pattern)
{
    lb_dtype dims = 0, zero = 0, scalar = 0;
    for (uint32_t k = 0; k < call->n_args && pattern[k]; k++) {
        if (pattern[k] != 'x' && pattern[k] != 'o') continue;
        const lb_operand *arg = &call->args[k];
        if (arg->tag == LB_OPERAND_TENSOR && arg->tensor.layout.ndim > 0)
            dims = wider(dims, arg->tensor.dtype);
        else if (arg->tag == LB_OPERAND_TENSOR)
            zero = wider(zero, arg->tensor.dtype);
        else if (arg->tag == LB_OPERAND_FLOAT)
            scalar = wider(scalar, LB_F32);
        else if (arg->tag == LB_OPERAND_INT)
            scalar = wider(scalar, LB_I64);
        else if (arg->tag == LB_OPERAND_BOOL)
            scalar = wider(scalar, LB_BOOL);
    }
    lb_dtype best = dims;
    if (!best || (zero && category(zero) > category(best))) best = zero ? zero : best;
    if (!best || (scalar && category(scalar) > category(best))) best = scalar ? scalar : best;
    return best;
}

static compute compute_of(const lb_call *call, const lb_pointwise *op, lb_dtype common)
{
    bool integers = category(common) != 3, f64 = common == LB_F64;
    for (uint32_t k = 0; k < call->n_results; k++) {
        if (!call->results[k].data) continue;
        if (call->results[k].dtype == LB_F64) f64 = true;
        if (!lb_dtype_is_integer(call->results[k].dtype)) integers = false;
    }
    if (integers && op->i64) return COMPUTE_I64;
    return f64 ? COMPUTE_F64 : COMPUTE_F32;
}

static lb_status bad_argument(lb_call *call, uint32_t k, const char *what)
{
    return lb_fail(call->err, LB_ERR_INVALID, "%s: argument %u %s", call->row ? call->row->name : "op", k, what);
}

static lb_status read_operand(lb_call *call, job *job, uint32_t k, char letter)
{
    const lb_operand *arg = &call->args[k];
    const int at = job->n_in;
    if (at >= LB_LANES_INPUTS) return bad_argument(call, k, "is one operand too many");
    lb_tensor scalar = {.layout = {.ndim = 0}};
    const lb_tensor *tensor = &scalar;
    job->lanes.given[at] = true;
    switch (arg->tag) {
    case LB_OPERAND_TENSOR:
        tensor = &arg->tensor;
        if (!supported(tensor->dtype))
            return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: operand of dtype %s", call->row->name,
                           lb_dtype_name(tensor->dtype));
        break;
    case LB_OPERAND_INT:
    case LB_OPERAND_BOOL:
        job->integer[at] = arg->i;
        scalar.data = &job->integer[at];
        scalar.dtype = LB_I64;
        job->lanes.scalar[at] = true;
        break;
    case LB_OPERAND_FLOAT:
        job->number[at] = arg->f;
        scalar.data = &job->number[at];
        scalar.dtype = LB_F64;
        job->lanes.scalar[at] = true;
        break;
    case LB_OPERAND_NONE:
        if (letter != 'o') return bad_argument(call, k, "is missing");
        scalar.data = &job->integer[at];
        scalar.dtype = LB_I64;
        job->lanes.given[at] = false;
        break;
    default: return bad_argument(call, k, "is neither a tensor nor a number");
    }
    if (!lb_walker_of(&job->in[at], &job->w, tensor)) return bad_argument(call, k, "does not broadcast to the result");
    job->lanes.single[at] = job->in[at].single;
    job->n_in++;
    return LB_OK;
}

static lb_status read_scalar(lb_call *call, job *job, uint32_t k, int at, char letter)
{
    const lb_operand none = {.tag = LB_OPERAND_NONE};
    const lb_operand *arg = k < call->n_args ? &call->args[k] : &none;
    if (at >= LB_LANES_SCALARS) return bad_argument(call, k, "is one scalar too many");
    job->lanes.given_s[at] = arg->tag != LB_OPERAND_NONE;
    switch (arg->tag) {
    case LB_OPERAND_NONE:
        job->lanes.s[at] = letter == '1' ? 1 : letter == 'n' ? NAN : 0;
        job->lanes.i[at] = letter == '1';
        return LB_OK;
    case LB_OPERAND_INT:
    case LB_OPERAND_BOOL:
    case LB_OPERAND_FLOAT:
        job->lanes.s[at] = arg->f;
        job->lanes.i[at] = arg->i;
        return LB_OK;
    case LB_OPERAND_TENSOR: /* a 0-dim tensor where a scalar may stand (lr of a fused optimizer) */
        if (lb_layout_numel(&arg->tensor.layout) != 1 || !supported(arg->tensor.dtype)) break;
        job->lanes.s[at] = lb_to_f64(arg->tensor.dtype, arg->tensor.data);
        lb_convert(LB_I64, &job->lanes.i[at], arg->tensor.dtype, arg->tensor.data, 1, NULL);
        return LB_OK;
    default: break;
    }
    return bad_argument(call, k, "is not a number");
}

/* Scalars and single elements take the common dtype first: `bf16_tensor == 0.1` compares with bf16(0.1). Not so in the
 * exact shadow, where a source of f32 may stand beside a mean in f64. CUDA's loops convert each operand to the common
 * dtype as they load it, and so a 0-dim tensor that lies there, whatever the op; numbers, and 0-dim tensors of the
 * host, they keep (torch's CUDALoops.cuh, LoadWithCast; Loops.cuh, opmath_gpu_kernel_with_scalars). */
static void round_to_common(job *job, const lb_call *call, lb_dtype common)
{
    if (job->method.exact && lb_dtype_is_float(job->lanes.result)) return;
    if (category(common) != 3 || common == LB_F64 || (common == LB_F32 && job->type == COMPUTE_F32)) return;
    const int operands = job->op->flags & LB_POINTWISE_COMMON         ? job->n_in
                         : job->op->flags & LB_POINTWISE_COMMON_FIRST ? 1
                                                                      : 0;
    for (int k = 0; k < job->n_in; k++) {
        const bool takes = k < operands || (call->cuda && !call->host_scalars && !job->lanes.scalar[k]);
        if (takes && job->in[k].single && job->in[k].dtype != common) job->grid[k] = common;
    }
    if (!(job->op->flags & LB_POINTWISE_COMMON)) return;
    for (int k = 0; k < LB_LANES_SCALARS; k++)
        if (job->lanes.given_s[k]) lb_round_to_grid_f64(&job->lanes.s[k], 1, common, NULL);
}

static lb_status read_call(lb_call *call, const lb_pointwise *op, bool twin, job *j)
{
    memset(j, 0, offsetof(job, in));
    j->op = op;
    j->method = call->method;
    const lb_tensor *first = NULL;
    if (call->n_results > LB_LANES_OUTPUTS) return bad_argument(call, 0, "stands in a call with too many results");
    for (uint32_t k = 0; k < call->n_results; k++) {
        if (!call->results[k].data) continue;
        if (!supported(call->results[k].dtype))
            return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: result of dtype %s", call->row->name,
                           lb_dtype_name(call->results[k].dtype));
        if (!first) first = &call->results[k];
    }
    j->n_out = (int)call->n_results;
    if (!first) return LB_OK;
    j->w = lb_strided_walk_of(&first->layout);
    const lb_dtype common = common_dtype(call, op->pattern);
    j->type = twin ? COMPUTE_F64 : compute_of(call, op, common);
    j->lanes.common = common;
    j->lanes.result = first->dtype;
    const double unit = category(common) == 3 ? lb_dtype_unit_roundoff(common) : 0;
    j->lanes.coarse = unit > 0x1p-24 ? unit * 0x1p24 : 1;
    j->lanes.grain = unit > 0x1p-24 ? lb_dtype_min_subnormal(common) * 0x1p23 : 0;
    for (uint32_t k = 0; k < call->n_results; k++) {
        if (!call->results[k].data) continue;
        j->out_wanted[k] = true;
        if (!lb_layout_same_shape(&first->layout, &call->results[k].layout) ||
            !lb_walker_of(&j->out[k], &j->w, &call->results[k]))
            return bad_argument(call, k, "belongs to results of different shapes");
    }
    int scalars = 0;
    for (uint32_t k = 0; op->pattern[k]; k++) {
        const char letter = op->pattern[k];
        if (letter == 'x' || letter == 'o') {
            if (k >= call->n_args) return bad_argument(call, k, "is missing");
            LB_TRY(read_operand(call, j, k, letter));
        } else if (letter == 's' || letter == '1' || letter == 'n') {
            LB_TRY(read_scalar(call, j, k, scalars++, letter));
        } else if (letter == 't' && k < call->n_args && call->args[k].tag == LB_OPERAND_STRING) {
            j->lanes.text = call->args[k].string ? call->args[k].string[0] : 0;
        }
    }
    j->loop = twin ? op->twin : j->type == COMPUTE_F32 ? op->f32 : j->type == COMPUTE_F64 ? op->f64 : op->i64;
    if (!j->loop && j->type == COMPUTE_F32) {
        j->loop = op->f64;
        j->type = COMPUTE_F64;
    }
    if (op->flags & (LB_POINTWISE_COMMON | LB_POINTWISE_COMMON_FIRST) || call->cuda) round_to_common(j, call, common);
    if (!j->loop) return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: not for these dtypes", call->row->name);
    return LB_OK;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

typedef struct buffers {
    _Alignas(64) char in[LB_LANES_INPUTS][LB_LANES * 8];
    _Alignas(64) char out[LB_LANES_OUTPUTS][LB_LANES * 8];
} buffers;

static void round_inputs(const job *job, void *buffer, size_t n)
{
    if (!job->method.compute || job->type == COMPUTE_I64) return;
    if (job->type == COMPUTE_F32)
        lb_round_to_grid_f32(buffer, n, job->method.compute, NULL);
    else
        lb_round_to_grid_f64(buffer, n, job->method.compute, NULL);
}

/* Elements [first, last). Not inlined: its buffers are 64 KiB of stack. */
static __attribute__((noinline)) void run_range(const void *context, int64_t first, int64_t last)
{
    const job *job = context;
    buffers buffers;
    lb_lanes lanes = job->lanes;
    const lb_dtype dtype = compute_dtype(job->type);
    const size_t wide = job->type == COMPUTE_F32 ? 4 : 8;
    bool in_place[LB_LANES_INPUTS], out_in_place[LB_LANES_OUTPUTS];
    for (int k = 0; k < job->n_in; k++) {
        const lb_walker *walker = &job->in[k];
        const bool as_is = walker->dtype == dtype && (job->method.compute == 0 || job->type == COMPUTE_I64);
        in_place[k] = as_is && lb_walker_is_dense(walker) && !walker->single;
        lanes.in[k] = buffers.in[k];
        if (walker->single) { /* once for all chunks */
            const size_t n = (size_t)(last - first < LB_LANES ? last - first : LB_LANES);
            load(walker, job->type, buffers.in[k], 0, 1);
            if (job->grid[k] && job->type == COMPUTE_F32)
                lb_round_to_grid_f32((float *)buffers.in[k], 1, job->grid[k], NULL);
            if (job->grid[k] && job->type == COMPUTE_F64)
                lb_round_to_grid_f64((double *)buffers.in[k], 1, job->grid[k], NULL);
            const bool common =
                job->op->flags & LB_POINTWISE_COMMON || (job->op->flags & LB_POINTWISE_COMMON_FIRST && k == 0);
            if (!lanes.scalar[k] || common)
                round_inputs(job, buffers.in[k], 1); /* torch reads other numbers as they are */
            repeat(buffers.in[k], buffers.in[k], wide, n);
        }
    }
    for (int k = 0; k < LB_LANES_OUTPUTS; k++) {
        const lb_walker *walker = &job->out[k];
        lanes.out[k] = buffers.out[k];
        out_in_place[k] = k < job->n_out && job->out_wanted[k] && walker->dtype == dtype &&
                          lb_walker_is_dense(walker) && !job->method.cast;
    }
    for (int64_t at = first; at < last; at += LB_LANES) {
        lanes.n = (size_t)(last - at < LB_LANES ? last - at : LB_LANES);
        for (int k = 0; k < job->n_in; k++) {
            const lb_walker *walker = &job->in[k];
            if (in_place[k]) {
                lanes.in[k] = walker->data + at * (int64_t)wide;
            } else if (!walker->single) {
                load(walker, job->type, buffers.in[k], at, lanes.n);
                round_inputs(job, buffers.in[k], lanes.n);
            }
        }
        for (int k = 0; k < job->n_out; k++)
            if (out_in_place[k]) lanes.out[k] = job->out[k].data + at * (int64_t)wide;
        job->loop(&lanes);
        for (int k = 0; k < job->n_out; k++)
            if (job->out_wanted[k] && !out_in_place[k])
                store(&job->out[k], job->type, buffers.out[k], at, lanes.n, job->method.cast);
    }
}

void lb_pointwise_lanes_share(int64_t elements, int64_t steps, int64_t grain,
                              void (*part)(const void *, int64_t, int64_t), const void *job)
{
#ifdef _OPENMP
    if (elements >= LB_LANES_PARALLEL && omp_get_max_threads() > 1 && !omp_in_parallel()) {
        const int64_t chunks = (steps + grain - 1) / grain;
#pragma omp parallel
        {
            const int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
            const int64_t first = chunks * me / threads * grain, last = chunks * (me + 1) / threads * grain;
            if (first < steps) part(job, first, last < steps ? last : steps);
        }
        return;
    }
#endif
    (void)elements, (void)grain;
    if (steps > 0) part(job, 0, steps);
}

static lb_status run(lb_call *call, const lb_pointwise *op, bool twin)
{
    job job;
    LB_TRY(read_call(call, op, twin, &job));
    lb_pointwise_lanes_share(job.w.n, job.w.n, LB_LANES, run_range, &job);
    return LB_OK;
}

lb_status lb_pointwise_run(lb_call *call, const lb_pointwise *op)
{
    return run(call, op, false);
}

lb_status lb_pointwise_twin(lb_call *call, const lb_pointwise *op)
{
    return run(call, op, true);
}
