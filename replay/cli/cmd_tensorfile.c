/* Computed values as a safetensors file: see cmd_tensorfile.h. */
#include "cmd_tensorfile.h"

#include <errno.h>
#include <lastbit/json_text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct lb_tensorfile {
    char *path, *part;
    FILE *data; /* of `part` */
    json_t *header, *metadata;
    uint64_t written;
    lb_err err;
};

static char *with_suffix(const char *path, const char *suffix)
{
    char *text = malloc(strlen(path) + strlen(suffix) + 1);
    if (text) strcat(strcpy(text, path), suffix);
    return text;
}

lb_status lb_tensorfile_open(const char *path, lb_tensorfile **out, lb_err *err)
{
    lb_tensorfile *file = *out = calloc(1, sizeof *file);
    if (!file) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    file->err = (lb_err)LB_ERR_INIT;
    file->path = strdup(path);
    file->part = with_suffix(path, ".part");
    file->header = json_object();
    file->metadata = json_object();
    if (!file->path || !file->part || !file->header || !file->metadata)
        lb_fail(&file->err, LB_ERR_NOMEM, "out of memory");
    else if (!(file->data = fopen(file->part, "wb+")))
        lb_fail(&file->err, LB_ERR_IO, "%s: %s", file->part, strerror(errno));
    else
        fchmod(fileno(file->data), 0600); /* values are private */
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
        lb_fail(&file->err, LB_ERR_IO, "%s: %s", file->part, strerror(errno));
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

/* Length, header, bytes. The header is padded with spaces so that the bytes start at a multiple of 8. */
static void assemble(lb_tensorfile *file)
{
    json_object_set(file->header, "__metadata__", file->metadata);
    char *header = json_dumps(file->header, JSON_COMPACT);
    FILE *out = header ? fopen(file->path, "wb") : NULL;
    if (!out) {
        lb_fail(&file->err, LB_ERR_IO, "%s: %s", file->path, header ? strerror(errno) : "out of memory");
        free(header);
        return;
    }
    struct stat st;
    const bool is_ours = fstat(fileno(out), &st) == 0 && S_ISREG(st.st_mode); /* no device, no pipe */
    if (is_ours) fchmod(fileno(out), 0600);
    const size_t used = strlen(header);
    const uint64_t length = (used + 7) / 8 * 8;
    static const char spaces[8] = "       ";
    bool fine = fwrite(&length, 8, 1, out) == 1 && fwrite(header, 1, used, out) == used &&
                fwrite(spaces, 1, length - used, out) == length - used;
    static char buffer[1 << 16];
    rewind(file->data);
    for (size_t n; fine && (n = fread(buffer, 1, sizeof buffer, file->data)) > 0;)
        fine = fwrite(buffer, 1, n, out) == n;
    fine &= !ferror(file->data);
    fine &= fclose(out) == 0;
    if (!fine) lb_fail(&file->err, LB_ERR_IO, "%s: %s", file->path, strerror(errno));
    if (!fine && is_ours) unlink(file->path);
    free(header);
}

lb_status lb_tensorfile_close(lb_tensorfile *file, bool keep, lb_err *err)
{
    if (!file) return LB_OK;
    if (keep && file->err.status == LB_OK) assemble(file);
    if (file->data) {
        fclose(file->data);
        unlink(file->part);
    }
    json_decref(file->header);
    json_decref(file->metadata);
    const lb_status status = file->err.status;
    if (status != LB_OK) lb_fail(err, status, "%s", file->err.message);
    free(file->path);
    free(file->part);
    free(file);
    return status;
}
