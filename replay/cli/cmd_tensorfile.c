/* Computed values as a safetensors file: see cmd_tensorfile.h. */
#include "cli/cmd_tensorfile.h"

#include <errno.h>
#include <lastbit/json_text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lb_tensorfile {
    char *path;
    lb_output *out;
    FILE *data; /* the tensors until the header is known, which stands before them; it has no name */
    json_t *header, *metadata;
    uint64_t written;
    lb_err err;
};

lb_status lb_tensorfile_open(const char *path, const char *capture, lb_tensorfile **out, lb_err *err)
{
    lb_tensorfile *file = *out = calloc(1, sizeof *file);
    if (!file) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT; /* values are private */
    how.replace = true;
    how.inputs = (const char *[]){capture, NULL};
    file->err = (lb_err)LB_ERR_INIT;
    file->path = strdup(path);
    file->header = json_object();
    file->metadata = json_object();
    if (!file->path || !file->header || !file->metadata)
        lb_fail(&file->err, LB_ERR_NOMEM, "out of memory");
    else if (lb_output_open(path, &how, &file->out, &file->err) == LB_OK)
        file->data = lb_output_scratch(path, &file->err);
    if (file->err.status == LB_OK) return LB_OK;
    *out = NULL;
    return lb_tensorfile_close(file, false, err);
}

static void describe(lb_tensorfile *file, const lb_event *event, const char *place)
{
    const lb_op *op = &event->program->ops[event->op];
    const char *layer = lb_op_layer(event->program, op);
    json_object_set_new(file->metadata, place,
                        json_sprintf("%s in %s, %s%s", lb_op_name(event->program, op), *layer ? layer : "-",
                                     lb_phase_name((lb_phase)op->phase), event->swapped ? ", swapped" : ""));
}

static void add_tensor(lb_tensorfile *file, const char *name, const lb_tensor *tensor)
{
    const char *dtype = lb_dtype_safetensors(tensor->dtype);
    const size_t bytes = lb_dtype_bytes(tensor->dtype, (size_t)lb_layout_numel(&tensor->layout));
    if (!*dtype) {
        lb_fail(&file->err, LB_ERR_UNSUPPORTED, "safetensors has no %s: choose other ops by --select",
                lb_dtype_name(tensor->dtype));
        return;
    }
    void *dense = malloc(bytes + 1);
    if (!dense)
        lb_fail(&file->err, LB_ERR_NOMEM, "out of memory: %zu bytes", bytes);
    else if (lb_tensor_gather(tensor, dense, &file->err) == LB_OK && fwrite(dense, 1, bytes, file->data) != bytes)
        lb_fail(&file->err, LB_ERR_IO, "%s: cannot write what is to be in it: %s", file->path, strerror(errno));
    free(dense);
    json_t *shape = json_array();
    for (int d = 0; d < tensor->layout.ndim; d++) json_array_append_new(shape, json_integer(tensor->layout.shape[d]));
    json_object_set_new(file->header, name,
                        json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype, "shape", shape, "data_offsets",
                                  (json_int_t)file->written, (json_int_t)(file->written + bytes)));
    file->written += bytes;
}

void lb_tensorfile_add(lb_tensorfile *file, const lb_event *event)
{
    char place[96], name[128];
    snprintf(place, sizeof place, "step%lld.rank%d.op%u", (long long)event->step, (int)event->rank, event->op);
    for (uint32_t i = 0; i < event->n_results && file->err.status == LB_OK; i++) {
        if (!event->computed[i].data) continue;
        snprintf(name, sizeof name, "%s.%u", place, i);
        add_tensor(file, name, &event->computed[i]);
        describe(file, event, place);
        const uint32_t v = event->values[i];
        const lb_value *value = v == LB_NONE ? NULL : &event->program->values[v];
        if (value && value->name != LB_NONE)
            json_object_set_new(file->metadata, name,
                                json_sprintf("%s%s", value->flags & LB_VALUE_GRADIENT ? "grad:" : "",
                                             lb_program_text(event->program, value->name)));
    }
}

/* What was written beside, from its beginning. */
static bool copy_data(lb_tensorfile *file)
{
    static char buffer[1 << 16];
    uint64_t copied = 0;
    bool fine = fflush(file->data) == 0 && fseek(file->data, 0, SEEK_SET) == 0; /* rewind would hide what did not fit */
    for (size_t n; fine && (n = fread(buffer, 1, sizeof buffer, file->data)) > 0; copied += n)
        lb_output_write(file->out, buffer, n);
    return fine && !ferror(file->data) && copied == file->written;
}

/* Length, header, bytes. The header is padded with spaces so that the bytes start at a multiple of 8. */
static void assemble(lb_tensorfile *file)
{
    static const char spaces[8] = "       ";
    json_object_set(file->header, "__metadata__", file->metadata);
    char *header = json_dumps(file->header, JSON_COMPACT);
    if (!header) {
        lb_fail(&file->err, LB_ERR_NOMEM, "%s: out of memory", file->path);
        return;
    }
    const size_t used = strlen(header);
    const uint64_t length = (used + 7) / 8 * 8;
    lb_output_write(file->out, &length, 8);
    lb_output_write(file->out, header, used);
    lb_output_write(file->out, spaces, length - used);
    free(header);
    if (!copy_data(file))
        lb_fail(&file->err, LB_ERR_IO, "%s: cannot write what is to be in it: %s", file->path, strerror(errno));
}

lb_status lb_tensorfile_close(lb_tensorfile *file, bool keep, lb_err *err)
{
    if (!file) return LB_OK;
    if (keep && file->err.status == LB_OK) assemble(file);
    if (file->data) fclose(file->data);
    if (keep && file->err.status == LB_OK)
        lb_output_close(file->out, &file->err);
    else
        lb_output_abandon(file->out);
    json_decref(file->header);
    json_decref(file->metadata);
    const lb_status status = file->err.status;
    if (status != LB_OK) lb_fail(err, status, "%s", file->err.message);
    free(file->path);
    free(file);
    return status;
}
