/* What the members of a collective bring: see collective_streams.h. */
#include "ranks/collective_streams.h"

#include "kernel/frame.h"
#include "machine/operands.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

/* ---- members ---------------------------------------------------------------------------------------------------- */

static lb_status append(lb_stream_values *values, uint32_t value, lb_err *err)
{
    uint32_t *grown = lb_array_grow(values->values, values->n, sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective");
    values->values = grown;
    values->values[values->n++] = value;
    return LB_OK;
}

static lb_status append_arg(lb_stream_values *values, const lb_program *program, const lb_arg *arg, lb_err *err)
{
    if (arg->tag == LB_ARG_VALUE) return append(values, arg->u.value, err);
    for (uint32_t i = 0; arg->tag == LB_ARG_LIST && i < arg->count; i++)
        LB_TRY(append_arg(values, program, &program->args[arg->u.first + i], err));
    return LB_OK;
}

lb_status lb_collective_streams_collect(lb_collective_streams *streams, lb_stream_member *member)
{
    const lb_op *op = member->op;
    int8_t at = streams->name->inputs;
    if (at >= 0 && (uint32_t)at < op->args)
        LB_TRY(append_arg(&member->inputs, member->program, &lb_op_args(member->program, op)[at], streams->err));
    uint32_t n = op->written ? op->written : op->results;
    const uint32_t *refs = op->written ? lb_op_written(member->program, op) : lb_op_results(member->program, op);
    for (uint32_t i = 0; i < n; i++)
        if (refs[i] != LB_NONE) LB_TRY(append(&member->outputs, refs[i], streams->err));
    member->starts = calloc(member->inputs.n + 1, sizeof *member->starts);
    if (!member->starts) return lb_fail(streams->err, LB_ERR_NOMEM, "out of memory for a collective");
    for (uint32_t i = 0; i < member->inputs.n; i++)
        member->starts[i + 1] =
            member->starts[i] + lb_layout_numel(&member->program->values[member->inputs.values[i]].layout);
    return LB_OK;
}

int64_t lb_collective_streams_length(const lb_stream_member *member)
{
    return member->starts[member->inputs.n];
}

lb_dtype lb_collective_streams_dtype(const lb_collective_streams *streams)
{
    for (uint32_t r = 0; r < streams->n; r++)
        if (streams->members[r].inputs.n) {
            lb_dtype recorded = streams->members[r].program->values[streams->members[r].inputs.values[0]].dtype;
            const lb_choice *choice = streams->members[r].choice;
            if (streams->shows && lb_dtype_is_float(recorded) && !lb_dtype_is_complex(recorded)) return LB_F64;
            if (lb_dtype_is_complex(recorded))
                return lb_memory_held_dtype(lb_operands_choice_dtype(choice, recorded), recorded);
            if (!choice->region || !lb_dtype_is_float(recorded)) return recorded;
            if (choice->widen_only && lb_dtype_precision(choice->region) <= lb_dtype_precision(recorded))
                return recorded;
            return choice->region;
        }
    return LB_U8;
}

lb_tensor lb_collective_streams_cut_in_front(const lb_collective_streams *streams, const lb_stream_member *member,
                                             lb_tensor tensor)
{
    const uint32_t at = (uint32_t)streams->name->dim;
    if (!at || at >= member->op->args || lb_op_args(member->program, member->op)[at].tag != LB_ARG_INT) return tensor;
    const int dim = lb_frame_wrap_dim(lb_op_args(member->program, member->op)[at].u.i, tensor.layout.ndim);
    const lb_layout was = tensor.layout;
    for (int d = 0; dim > 0 && d <= dim; d++) {
        const int from = d ? d - 1 : dim;
        tensor.layout.shape[d] = was.shape[from], tensor.layout.stride[d] = was.stride[from];
    }
    return tensor;
}

lb_status lb_collective_streams_fill(lb_collective_streams *streams, lb_stream_member *member)
{
    member->stream = malloc((size_t)(lb_collective_streams_length(member) + 1) * streams->size);
    if (!member->stream) return lb_fail(streams->err, LB_ERR_NOMEM, "out of memory for a collective");
    for (uint32_t i = 0; i < member->inputs.n; i++) {
        lb_tensor input, dense;
        LB_TRY(lb_machine_input(member->machine, member->inputs.values[i], &input, &streams->known, streams->err));
        input = lb_collective_streams_cut_in_front(streams, member, input);
        dense = (lb_tensor){member->stream + (size_t)member->starts[i] * streams->size, streams->dtype,
                            lb_layout_contiguous(input.layout.ndim, input.layout.shape)};
        lb_memory_tensor_copy(&dense, &input, NULL);
    }
    return LB_OK;
}

bool lb_collective_streams_is_undefined(const lb_collective_streams *streams, const lb_stream_member *member)
{
    bool root_only = streams->name->kind == LB_EXCHANGE_BROADCAST || streams->name->kind == LB_EXCHANGE_SCATTER;
    if (root_only && member != &streams->members[streams->root]) return false;
    for (uint32_t i = 0; i < member->inputs.n; i++)
        if (member->program->values[member->inputs.values[i]].flags & LB_VALUE_UNDEFINED) return true;
    return false;
}

/* ---- rank swaps ------------------------------------------------------------------------------------------------- */

bool lb_collective_streams_excludes(const lb_stream_member *member)
{
    return member->choice->contribution == LB_CONTRIBUTE_EXCLUDE;
}

static void stream_to_f64(const lb_collective_streams *streams, const lb_stream_member *member, double *out, int64_t at,
                          int64_t n)
{
    lb_load_f64(out, streams->dtype, member->stream + (size_t)at * streams->size, (size_t)n);
}

/* The mean of those that contribute their own, for each that does not. */
static lb_status replace_by_mean(lb_collective_streams *streams)
{
    uint32_t others = 0;
    bool wanted = false;
    for (uint32_t r = 0; r < streams->n; r++) {
        others += streams->members[r].choice->contribution == LB_CONTRIBUTE_OWN;
        wanted |= streams->members[r].choice->contribution == LB_CONTRIBUTE_MEAN;
    }
    if (!wanted || !lb_dtype_is_float(streams->dtype)) return LB_OK;
    int64_t n = lb_collective_streams_length(&streams->members[0]);
    double *sum = calloc((size_t)n + 1, sizeof *sum), *one = malloc(((size_t)n + 1) * sizeof *one);
    for (uint32_t r = 0; sum && one && r < streams->n; r++) {
        if (streams->members[r].choice->contribution != LB_CONTRIBUTE_OWN ||
            lb_collective_streams_length(&streams->members[r]) != n)
            continue;
        stream_to_f64(streams, &streams->members[r], one, 0, n);
        for (int64_t i = 0; i < n; i++) sum[i] += one[i] / others;
    }
    for (uint32_t r = 0; sum && one && r < streams->n; r++)
        if (streams->members[r].choice->contribution == LB_CONTRIBUTE_MEAN &&
            lb_collective_streams_length(&streams->members[r]) == n)
            lb_store_f64(streams->dtype, streams->members[r].stream, sum, (size_t)n, NULL);
    bool ok = sum && one;
    free(sum);
    free(one);
    return ok ? LB_OK : lb_fail(streams->err, LB_ERR_NOMEM, "out of memory for a collective");
}

lb_status lb_collective_streams_swap(lb_collective_streams *streams)
{
    for (uint32_t r = 0; r < streams->n; r++) {
        lb_stream_member *member = &streams->members[r];
        bool gone = member->choice->contribution == LB_CONTRIBUTE_ZERO ||
                    (lb_collective_streams_excludes(member) && streams->name->kind != LB_EXCHANGE_ALL_REDUCE &&
                     streams->name->kind != LB_EXCHANGE_REDUCE_SCATTER);
        if (gone) memset(member->stream, 0, (size_t)lb_collective_streams_length(member) * streams->size);
    }
    return replace_by_mean(streams);
}

/* ---- PreMulSum --------------------------------------------------------------------------------------------------- */

/* NCCL's FuncPreMulSum (src/device/reduce_kernel.h): each rank multiplies what it brings, rounded to the payload's
 * type, before the first addition. */
lb_status lb_collective_streams_multiply(lb_collective_streams *streams, lb_stream_member *member)
{
    const lb_arg *args = lb_op_args(member->program, member->op);
    const lb_arg *scalar = member->op->args > LB_NCCL_SCALAR ? &args[LB_NCCL_SCALAR] : NULL;
    const bool integer = lb_dtype_is_integer(streams->dtype);
    if (!streams->name->nccl || !scalar || scalar->tag != (integer ? LB_ARG_INT : LB_ARG_FLOAT))
        return lb_fail(streams->err, LB_ERR_UNSUPPORTED, "the scalar of a PreMulSum was not recorded");
    for (int64_t i = 0; i < lb_collective_streams_length(member); i++) {
        char *at = member->stream + (size_t)i * streams->size;
        if (integer) {
            int64_t number;
            lb_convert(LB_I64, &number, streams->dtype, at, 1, NULL);
            number = (int64_t)((uint64_t)number * (uint64_t)scalar->u.i);
            lb_convert(streams->dtype, at, LB_I64, &number, 1, NULL);
        } else if (streams->dtype == LB_F64) {
            lb_from_f64(streams->dtype, at, lb_to_f64(streams->dtype, at) * scalar->u.f, NULL);
        } else {
            lb_from_f64(streams->dtype, at, (float)lb_to_f64(streams->dtype, at) * (float)scalar->u.f, NULL);
        }
    }
    return LB_OK;
}

void lb_collective_streams_release(lb_collective_streams *streams)
{
    for (uint32_t r = 0; streams->members && r < streams->n; r++) {
        free(streams->members[r].inputs.values);
        free(streams->members[r].outputs.values);
        free(streams->members[r].starts);
        free(streams->members[r].stream);
    }
    free(streams->members);
}
