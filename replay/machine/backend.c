/* Ops run by PyTorch in a child process: see backend.h. */
#include "machine/backend.h"

#include "kernel/value_memory.h"
#include "machine/python_child.h"

#include <lastbit/text_stream.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_MODULES 16

struct lb_backend {
    lb_python_child child;
};

/* The first words of an answer: how many tensors follow; an error text becomes the error. */
static lb_status get_count(lb_backend *backend, uint32_t *count, lb_err *err)
{
    uint32_t words[2];
    char text[401];
    LB_TRY(lb_python_child_get(&backend->child, words, sizeof words, err));
    *count = words[1];
    if (!words[0]) return LB_OK;
    const size_t n = words[1] < sizeof text ? words[1] : sizeof text - 1;
    LB_TRY(lb_python_child_get(&backend->child, text, n, err));
    text[n] = 0;
    return lb_fail(err, LB_ERR_UNSUPPORTED, "PyTorch: %s", text);
}

/* ---- the call as text -------------------------------------------------------------------------------------------- */

static void put_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c < 0x20 || *c == '"' || *c == '\\')
            fprintf(out, "\\u%04x", *c);
        else
            fputc(*c, out);
    fputc('"', out);
}

static void put_real(FILE *out, double x)
{
    if (isfinite(x))
        fprintf(out, "%.17g%s", x, x == rint(x) && fabs(x) < 1e15 ? ".0" : "");
    else
        fputs(isnan(x) ? "\"nan\"" : x > 0 ? "\"inf\"" : "\"-inf\"", out);
}

static void put_tensor(FILE *out, const lb_tensor *tensor)
{
    if (!tensor->dtype) {
        fputs("null", out);
        return;
    }
    fprintf(out, "{\"tensor\": [\"%s\", [", lb_dtype_name(tensor->dtype));
    for (int d = 0; d < tensor->layout.ndim; d++) fprintf(out, "%s%" PRId64, d ? ", " : "", tensor->layout.shape[d]);
    fputs("]]}", out);
}

static void put_operand(FILE *out, const lb_operand *operand)
{
    switch (operand->tag) {
    case LB_OPERAND_NONE: fputs("null", out); return;
    case LB_OPERAND_TENSOR: put_tensor(out, &operand->tensor); return;
    case LB_OPERAND_INT: fprintf(out, "%" PRId64, operand->i); return;
    case LB_OPERAND_FLOAT: put_real(out, operand->f); return;
    case LB_OPERAND_BOOL: fputs(operand->i ? "true" : "false", out); return;
    case LB_OPERAND_DTYPE: fprintf(out, "{\"dtype\": \"%s\"}", lb_dtype_name((lb_dtype)operand->i)); return;
    case LB_OPERAND_STRING: put_text(out, operand->string); return;
    case LB_OPERAND_TENSORS:
    case LB_OPERAND_NUMBERS: break;
    }
    fputc('[', out);
    for (uint32_t i = 0; i < operand->count; i++) {
        if (i) fputs(", ", out);
        if (operand->tag == LB_OPERAND_TENSORS)
            put_tensor(out, &operand->tensors[i]);
        else if (operand->floats[i] == (double)operand->ints[i])
            fprintf(out, "%" PRId64, operand->ints[i]);
        else
            put_real(out, operand->floats[i]);
    }
    fputc(']', out);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static lb_tensor dense(const lb_tensor *tensor, void *data)
{
    return (lb_tensor){.data = data,
                       .dtype = tensor->dtype,
                       .layout = lb_layout_contiguous(tensor->layout.ndim, tensor->layout.shape)};
}

static lb_status send_tensor(lb_backend *backend, const lb_tensor *tensor, lb_err *err)
{
    const size_t bytes = tensor->dtype ? lb_dtype_bytes(tensor->dtype, (size_t)lb_layout_numel(&tensor->layout)) : 0;
    void *data = malloc(bytes + 1);
    if (!data) return lb_fail(err, LB_ERR_NOMEM, "no memory for a tensor that PyTorch reads");
    lb_tensor copy = dense(tensor, data);
    if (bytes) lb_memory_tensor_copy(&copy, tensor, NULL);
    const lb_status status = lb_python_child_put(&backend->child, data, bytes, err);
    free(data);
    return status;
}

/* A tensor that is not as recorded, or not wanted, is read and dropped. */
static lb_status receive_tensor(lb_backend *backend, const lb_tensor *tensor, bool *fits, lb_err *err)
{
    uint32_t there;
    char name[17] = "";
    uint64_t bytes;
    LB_TRY(lb_python_child_get(&backend->child, &there, sizeof there, err));
    if (!there) {
        *fits = !tensor || !tensor->data;
        return LB_OK;
    }
    LB_TRY(lb_python_child_get(&backend->child, name, 16, err));
    LB_TRY(lb_python_child_get(&backend->child, &bytes, sizeof bytes, err));
    void *data = bytes < SIZE_MAX ? malloc((size_t)bytes + 1) : NULL;
    if (!data) return lb_fail(err, LB_ERR_NOMEM, "no memory for a result of PyTorch");
    lb_status status = lb_python_child_get(&backend->child, data, (size_t)bytes, err);
    if (status == LB_OK && tensor && tensor->data) {
        lb_tensor from = dense(tensor, data);
        *fits = !strcmp(name, lb_dtype_name(tensor->dtype)) &&
                bytes == lb_dtype_bytes(tensor->dtype, (size_t)lb_layout_numel(&tensor->layout));
        if (*fits && bytes) lb_memory_tensor_copy(tensor, &from, NULL);
    }
    free(data);
    return status;
}

lb_status lb_backend_run(lb_backend *backend, const char *op, const lb_operand *args, uint32_t n_args,
                         const lb_tensor *results, uint32_t n_results, lb_err *err)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = *backend->child.gone ? NULL : lb_text_stream_open(&text, &size);
    if (!out)
        return *backend->child.gone ? lb_fail(err, LB_ERR_UNSUPPORTED, "%s", backend->child.gone)
                                    : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    fputs("{\"op\": ", out);
    put_text(out, op);
    fputs(", \"args\": [", out);
    for (uint32_t i = 0; i < n_args; i++) {
        if (i) fputs(", ", out);
        put_operand(out, &args[i]);
    }
    fputs("]}", out);
    if (fclose(out) != 0) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    const uint32_t length = (uint32_t)size;
    lb_status status = lb_python_child_put(&backend->child, &length, sizeof length, err);
    if (status == LB_OK) status = lb_python_child_put(&backend->child, text, size, err);
    free(text);
    for (uint32_t i = 0; status == LB_OK && i < n_args; i++) {
        if (args[i].tag == LB_OPERAND_TENSOR) status = send_tensor(backend, &args[i].tensor, err);
        for (uint32_t k = 0; args[i].tag == LB_OPERAND_TENSORS && status == LB_OK && k < args[i].count; k++)
            status = send_tensor(backend, &args[i].tensors[k], err);
    }
    LB_TRY(status);
    uint32_t count;
    bool all = true;
    LB_TRY(get_count(backend, &count, err));
    for (uint32_t i = 0; i < count; i++) {
        bool fits = true;
        LB_TRY(receive_tensor(backend, count == n_results ? &results[i] : NULL, &fits, err));
        all &= fits;
    }
    if (count != n_results || !all)
        return lb_fail(err, LB_ERR_UNSUPPORTED,
                       "PyTorch: %s gives results of other number, type or size than were recorded", op);
    return LB_OK;
}

/* ---- life-cycle -------------------------------------------------------------------------------------------------- */

lb_status lb_backend_open(const char *interpreter, const char *folder, const char *const *modules, uint32_t n_modules,
                          lb_backend **backend, lb_err *err)
{
    const char *arguments[MOST_MODULES + 1] = {NULL};
    *backend = NULL;
    if (n_modules > MOST_MODULES) return lb_fail(err, LB_ERR_INVALID, "more than %d modules to import", MOST_MODULES);
    for (uint32_t i = 0; i < n_modules; i++) arguments[i] = modules[i];
    lb_backend *b = calloc(1, sizeof *b);
    if (!b) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    b->child = (lb_python_child){.name = "PyTorch", .hint = ""};
    uint32_t count;
    const lb_python_child_program program = {
        .interpreter = interpreter, .module = "lastbit.backend_server", .arguments = arguments, .folder = folder};
    lb_status status = lb_python_child_start(&b->child, &program, err);
    if (status == LB_OK) status = get_count(b, &count, err);
    if (status != LB_OK)
        lb_backend_close(b);
    else
        *backend = b;
    return status;
}

void lb_backend_close(lb_backend *backend)
{
    if (!backend) return;
    lb_python_child_end(&backend->child);
    free(backend);
}
