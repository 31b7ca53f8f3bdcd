/* Captures of collectives whose bytes are given, for Python (recorded_collectives.py): what each rank brought and
 * received is written as PyTorch's recorder writes such a call. */
#include <lastbit/capture.h>

#include <stdlib.h>
#include <string.h>

typedef struct recording {
    lb_recorder *recorder;
    void **held; /* buffers: each is an allocation of its own as long as the capture is written */
    int n_held, room;
    int32_t ranks[64];
    uint32_t n_ranks;
    uint64_t calls;
} recording;

LB_API recording *recording_open(const char *folder, int rank, int world)
{
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    recording *r = calloc(1, sizeof *r);
    options.level = LB_LEVEL_OPS, options.rank = rank, options.world = world;
    for (int i = 0; i < world && i < 64; i++) r->ranks[i] = i;
    r->n_ranks = (uint32_t)world;
    if (lb_recorder_open(folder, &options, &r->recorder, NULL) == LB_OK) return r;
    free(r);
    return NULL;
}

static lb_host_tensor buffer(recording *r, int dtype, int64_t count, const void *bytes, lb_layout *layout)
{
    if (r->n_held == r->room) {
        r->room = r->room ? 2 * r->room : 16;
        r->held = realloc(r->held, (size_t)r->room * sizeof *r->held);
    }
    const size_t size = lb_dtype_bytes((lb_dtype)dtype, (size_t)count);
    void *data = calloc(size + 1, 1);
    if (bytes) memcpy(data, bytes, size);
    r->held[r->n_held++] = data;
    const lb_host_tensor tensor = lb_host_tensor_of(data, (lb_dtype)dtype, 1, &count);
    *layout = tensor.layout;
    return tensor;
}

LB_API int recording_begin(recording *r, int64_t step)
{
    return lb_recorder_step_begin(r->recorder, step, NULL, NULL);
}
LB_API int recording_end(recording *r)
{
    return lb_recorder_step_end(r->recorder, true, NULL);
}

/* `name`: c10d::allreduce_ or c10d::reduce_, in place, or c10d::_reduce_scatter_base_; `received`: elements of `out`,
 * 0: this rank receives nothing. */
LB_API int recording_call(recording *r, const char *name, const char *reduce, int root, int dtype, int64_t count,
                          const void *in, int64_t received, const void *out)
{
    const bool scatters = strstr(name, "scatter") != NULL;
    lb_layout layout;
    lb_pending *pending;
    uint32_t op;
    const lb_host_tensor given = buffer(r, dtype, count, in, &layout),
                         taken = scatters ? buffer(r, dtype, received, NULL, &layout) : given;
    const lb_recorded_operand input = {.tag = LB_ARG_VALUE, .u.tensor = &given};
    const lb_recorded_operand output = {
        .tag = LB_ARG_VALUE, .flags = LB_OPERAND_WRITTEN | LB_OPERAND_OVERWRITTEN, .u.tensor = &taken};
    const lb_recorded_operand none = {.tag = LB_ARG_NONE}, place = {.tag = LB_ARG_INT, .u.i = root};
    const lb_recorded_operand list = {.tag = LB_ARG_LIST, .flags = LB_OPERAND_WRITTEN, .count = 1, .u.items = &input};
    const lb_recorded_operand scattered[] = {output, input, none, none}, in_place[] = {list, none, none, place};
    lb_recorded_call call = LB_CALL_INIT;
    call.name = name, call.phase = LB_PHASE_COMMUNICATION, call.flags = LB_OP_COLLECTIVE | LB_OP_MUTABLE;
    call.args = scatters ? scattered : in_place, call.n_args = 4;
    lb_status status = lb_recorder_op_begin(r->recorder, &call, &pending, NULL);
    if (status != LB_OK) return status;
    if (received) memcpy((void *)taken.data, out, lb_dtype_bytes((lb_dtype)dtype, (size_t)received));
    status = lb_recorder_op_end(r->recorder, pending, NULL, 0, &op, NULL);
    if (status != LB_OK) return status;
    return lb_recorder_collective(r->recorder, op, "world", reduce, NULL, r->calls++, r->ranks, r->n_ranks, NULL);
}

LB_API int recording_close(recording *r)
{
    const lb_status status = lb_recorder_close(r->recorder, NULL);
    for (int i = 0; i < r->n_held; i++) free(r->held[i]);
    free(r->held), free(r);
    return status;
}
