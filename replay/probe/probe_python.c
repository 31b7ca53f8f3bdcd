/* Python callables to be probed: a child process, and batches of .npy arrays through a socket. See lastbit/order.h and
 * capture/lastbit/order_server.py, the other side. */
#include "machine/python_child.h"

#include <lastbit/order.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct python {
    lb_probe_shape shape;
    lb_python_child child;
    char *factors; /* (n, columns), as sent */
} python;

/* ---- .npy -------------------------------------------------------------------------------------------------------- */

static const char *descriptor(lb_dtype dtype)
{
    return dtype == LB_F64 ? "<f8" : dtype == LB_F32 ? "<f4" : dtype == LB_F16 ? "<f2" : "<u2";
}

/* Version 1.0: magic, length of the header, the header padded so that the data start at a multiple of 64. */
static lb_status put_array(python *python, const void *data, const uint32_t *shape, int ndim, size_t bytes, lb_err *err)
{
    char header[256];
    int n = 10 + snprintf(header + 10, sizeof header - 10, "{'descr': '%s', 'fortran_order': False, 'shape': (",
                          descriptor(python->shape.dtype));
    for (int d = 0; d < ndim; d++) n += snprintf(header + n, sizeof header - (size_t)n, "%u,", shape[d]);
    n += snprintf(header + n, sizeof header - (size_t)n, "), }");
    const int end = (n + 1 + 63) / 64 * 64;
    memset(header + n, ' ', (size_t)(end - n));
    header[end - 1] = '\n';
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = (char)((end - 10) & 255);
    header[9] = (char)((end - 10) >> 8);
    LB_TRY(lb_python_child_put(&python->child, header, (size_t)end, err));
    return lb_python_child_put(&python->child, data, bytes, err);
}

typedef struct npy_header {
    bool text; /* of bytes: an error */
    uint64_t elements;
} npy_header;

static lb_status get_header(python *python, npy_header *npy_header, lb_err *err)
{
    unsigned char start[10];
    char text[1024];
    LB_TRY(lb_python_child_get(&python->child, start, sizeof start, err));
    const size_t length = start[8] | (size_t)start[9] << 8;
    if (memcmp(start, "\x93NUMPY\x01", 7) || length >= sizeof text)
        return lb_fail(err, LB_ERR_CORRUPT, "the Python process sent something else than a .npy array");
    LB_TRY(lb_python_child_get(&python->child, text, length, err));
    text[length] = 0;
    const char *at = strstr(text, "'shape': (");
    npy_header->text = strstr(text, "'|u1'") != NULL;
    if (!at || (!npy_header->text && !strstr(text, "'<f8'")))
        return lb_fail(err, LB_ERR_CORRUPT, "the Python process sent an array of another type: %.100s", text);
    npy_header->elements = 1;
    for (at += 10; *at && *at != ')';) {
        char *end;
        const unsigned long long size = strtoull(at, &end, 10);
        if (end == at || size > UINT32_MAX || npy_header->elements > UINT32_MAX)
            return lb_fail(err, LB_ERR_CORRUPT, "the Python process sent an array of no known shape: %.100s", text);
        npy_header->elements *= size;
        at = end + strspn(end, ", ");
    }
    return LB_OK;
}

/* `count` doubles; an error text becomes the error. */
static lb_status get_answer(python *python, double *numbers, uint64_t count, lb_err *err)
{
    npy_header npy_header = {0};
    LB_TRY(get_header(python, &npy_header, err));
    if (npy_header.text) {
        char text[400];
        const size_t n = npy_header.elements < sizeof text ? (size_t)npy_header.elements : sizeof text - 1;
        LB_TRY(lb_python_child_get(&python->child, text, n, err));
        text[n] = 0;
        return lb_fail(err, LB_ERR_INVALID, "Python: %s", text);
    }
    if (npy_header.elements != count)
        return lb_fail(err, LB_ERR_CORRUPT, "the Python process sent %llu numbers, not %llu",
                       (unsigned long long)npy_header.elements, (unsigned long long)count);
    return lb_python_child_get(&python->child, numbers, (size_t)count * 8, err);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

static lb_status run(void *context, uint32_t calls, const void *terms, const void *factors, double *sums, lb_err *err)
{
    python *python = context;
    const lb_probe_shape *shape = &python->shape;
    const size_t size = lb_dtype_bits(shape->dtype) / 8;
    uint64_t one = 0;
    lb_from_f64(shape->dtype, &one, 1, NULL);
    for (size_t i = 0; i < shape->n; i++)
        for (size_t j = 0; j < shape->columns; j++)
            memcpy(python->factors + (i * shape->columns + j) * size,
                   factors ? (const char *)factors + i * size : (const char *)&one, size);
    LB_TRY(put_array(python, terms, (uint32_t[]){calls, shape->rows, shape->n}, 3,
                     (size_t)calls * shape->rows * shape->n * size, err));
    LB_TRY(put_array(python, python->factors, (uint32_t[]){shape->n, shape->columns}, 2,
                     (size_t)shape->n * shape->columns * size, err));
    return get_answer(python, sums, (uint64_t)calls * shape->rows * shape->columns, err);
}

static void release(void *context)
{
    python *python = context;
    lb_python_child_end(&python->child);
    free(python->factors);
    free(python);
}

lb_status lb_probe_python(const lb_probe_shape *shape, const lb_probe_callable *callable, lb_probe_kernel *kernel,
                          lb_err *err)
{
    *kernel = (lb_probe_kernel){0};
    const lb_dtype d = shape->dtype;
    if (d != LB_F64 && d != LB_F32 && d != LB_BF16 && d != LB_F16)
        return lb_fail(err, LB_ERR_INVALID, "a probe is of terms in f64, f32, bf16 or f16");
    char count[16];
    snprintf(count, sizeof count, "%d", callable->threads);
    const char *arguments[16] = {
        "--form", lb_probe_form_name(shape->form), "--dtype", lb_dtype_name(d), "--threads", count, callable->function};
    if (callable->arrays) arguments[7] = "--arrays", arguments[8] = callable->arrays;
    python *asked = calloc(1, sizeof *asked);
    if (asked)
        *asked = (python){*shape,
                          {.name = "Python", .hint = "; what it said stands above"},
                          malloc((size_t)shape->n * shape->columns * 8 + 1)};
    const lb_python_child_program program = {.interpreter = callable->interpreter,
                                             .module = "lastbit.order_server",
                                             .arguments = arguments,
                                             .folder = callable->folder,
                                             .threads = callable->threads};
    lb_status status = asked && asked->factors ? lb_python_child_start(&asked->child, &program, err)
                                               : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) status = get_answer(asked, NULL, 0, err);
    if (status != LB_OK) {
        if (asked) release(asked);
        return status;
    }
    *kernel = (lb_probe_kernel){*shape, asked, run, release};
    return LB_OK;
}
