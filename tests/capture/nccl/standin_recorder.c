/* A stand-in for liblastbit_capture.so as far as the shim calls it: it reads all bytes that it is given, and writes a
 * line for each op into FOLDER/rank-NNNNN.txt instead of an archive. It lets the shim run under a sanitizer that the
 * recorder was not built with, and where the recorder's libraries are not.
 *
 *     NAME GROUP SEQUENCE ORDER sent HASH received HASH arguments NUMBER … */
#include <lastbit/capture.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lb_recorder {
    FILE *out;
};

struct lb_pending {
    char text[400];
};

static size_t width_of(lb_dtype dtype)
{
    switch (dtype) {
    case LB_F64:
    case LB_I64:
    case LB_U64: return 8;
    case LB_F32:
    case LB_I32:
    case LB_U32: return 4;
    case LB_F16:
    case LB_BF16: return 2;
    default: return 1;
    }
}

static void say_bytes(char *text, size_t room, const char *what, const lb_recorded_operand *operand)
{
    const size_t used = strlen(text);
    if (operand->tag != LB_ARG_VALUE) return;
    const lb_host_tensor *seen = operand->u.tensor;
    uint32_t hash = 2166136261u;
    const size_t bytes = (size_t)seen->layout.shape[0] * width_of(seen->dtype); /* the shim's tensors are vectors */
    for (size_t i = 0; seen->data && i < bytes; i++) hash = (hash ^ ((const unsigned char *)seen->data)[i]) * 16777619u;
    snprintf(text + used, room - used, seen->data ? " %s %08x" : " %s nothing", what, hash);
}

lb_status lb_recorder_open(const char *folder, const lb_recorder_options *options, lb_recorder **recorder, lb_err *err)
{
    char path[4096];
    (void)err;
    snprintf(path, sizeof path, "%s/rank-%05d.txt", folder, (int)options->rank);
    *recorder = malloc(sizeof **recorder);
    (*recorder)->out = fopen(path, "we");
    return (*recorder)->out ? LB_OK : LB_ERR_IO;
}

lb_status lb_recorder_close(lb_recorder *recorder, lb_err *err)
{
    (void)err;
    const bool failed = fclose(recorder->out) != 0;
    free(recorder);
    return failed ? LB_ERR_IO : LB_OK;
}

lb_status lb_recorder_step_begin(lb_recorder *recorder, int64_t step, const char *shard, lb_err *err)
{
    (void)shard, (void)err;
    fprintf(recorder->out, "step %" PRId64 "\n", step);
    return LB_OK;
}

lb_status lb_recorder_step_end(lb_recorder *recorder, bool complete, lb_err *err)
{
    (void)recorder, (void)complete, (void)err;
    return LB_OK;
}

void lb_recorder_forget(lb_recorder *recorder, int64_t storage)
{
    (void)recorder, (void)storage;
}

lb_status lb_recorder_op_begin(lb_recorder *recorder, const lb_recorded_call *call, lb_pending **pending, lb_err *err)
{
    (void)recorder, (void)err;
    char *text = (*pending = calloc(1, sizeof **pending))->text;
    snprintf(text, sizeof(*pending)->text, "%s", call->name);
    say_bytes(text, sizeof(*pending)->text, "sent", &call->args[0]);
    for (uint32_t i = 2; i < call->n_args; i++) {
        const size_t used = strlen(text);
        if (call->args[i].tag == LB_ARG_INT)
            snprintf(text + used, sizeof(*pending)->text - used, " %u=%" PRId64, i, call->args[i].u.i);
    }
    return LB_OK;
}

lb_status lb_recorder_op_end(lb_recorder *recorder, lb_pending *pending, const lb_recorded_operand *results, uint32_t n,
                             uint32_t *op, lb_err *err)
{
    (void)err;
    for (uint32_t i = 0; i < n; i++) say_bytes(pending->text, sizeof pending->text, "received", &results[i]);
    fprintf(recorder->out, "%s", pending->text);
    free(pending);
    *op = 0;
    return LB_OK;
}

void lb_recorder_op_failed(lb_recorder *recorder, lb_pending *pending)
{
    fprintf(recorder->out, "%s failed\n", pending->text);
    free(pending);
}

lb_status lb_recorder_collective(lb_recorder *recorder, uint32_t op, const char *group, const char *reduce,
                                 const char *algorithm, uint64_t sequence, const int32_t *ranks, uint32_t n_ranks,
                                 lb_err *err)
{
    (void)op, (void)ranks, (void)err;
    fprintf(recorder->out, " of %s %" PRIu64 " among %u, %s by %s\n", group, sequence, n_ranks,
            reduce ? reduce : "moved", algorithm ? algorithm : "any order");
    return LB_OK;
}

lb_status lb_recorder_notice(lb_recorder *recorder, const char *kind, const char *message, lb_err *err)
{
    (void)err;
    fprintf(recorder->out, "%s: %s\n", kind, message);
    return LB_OK;
}

lb_status lb_recorder_trigger(lb_recorder *recorder, const char *why, lb_err *err)
{
    (void)recorder, (void)why, (void)err;
    return LB_OK;
}

lb_status lb_recorder_table(lb_recorder *recorder, const char *name, const char *json, lb_err *err)
{
    (void)recorder, (void)name, (void)json, (void)err;
    return LB_OK;
}

bool lb_keep_level_parse(const char *text, lb_level *level)
{
    (void)text;
    *level = LB_LEVEL_OPS;
    return true;
}

lb_host_tensor lb_host_tensor_of(const void *data, lb_dtype dtype, int ndim, const int64_t *shape)
{
    lb_host_tensor seen = {.data = data, .dtype = dtype};
    seen.layout.ndim = ndim;
    for (int i = 0; i < ndim; i++) seen.layout.shape[i] = shape[i];
    return seen;
}
