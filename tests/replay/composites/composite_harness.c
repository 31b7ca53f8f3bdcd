/* Composites for Python (tests/replay/composites/composites.py): found in a recorded step, run on given memory, by kind
 * alone where no program is needed, and twins. */
#include "fused/fused.h"

#include <lastbit/archive.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct opened {
    lb_capture *capture;
    const lb_program *program;
    lb_composites found;
} opened;

typedef struct row {
    int32_t kind;
    uint32_t n_ops, flags, inputs[LB_COMPOSITE_INPUTS], outputs[LB_COMPOSITE_OUTPUTS];
    double numbers[LB_COMPOSITE_NUMBERS];
    const uint32_t *ops, *list;
    uint32_t n_list;
    const char *name, *layer, *class_name;
} row;

static int told(lb_status status, const lb_err *err, char message[512])
{
    snprintf(message, 512, "%s: %s", lb_status_name(status), err->message);
    return (int)status;
}

LB_API void composites_close(opened *opened)
{
    lb_composites_release(&opened->found);
    lb_capture_close(opened->capture);
    free(opened);
}

LB_API opened *composites_open(const char *path, int64_t step, char message[512])
{
    lb_err err = LB_ERR_INIT;
    opened *opened = calloc(1, sizeof *opened);
    const int32_t *ranks;
    lb_status status = lb_capture_open(path, &opened->capture, &err);
    if (status == LB_OK) lb_capture_ranks(opened->capture, &ranks);
    if (status == LB_OK) status = lb_capture_program(opened->capture, ranks[0], step, &opened->program, &err);
    if (status == LB_OK) status = lb_composites_find(opened->program, &opened->found, &err);
    if (!told(status, &err, message)) return opened;
    composites_close(opened);
    return NULL;
}

LB_API uint32_t composites_n(const opened *opened)
{
    return opened->found.n;
}

LB_API void composites_row(const opened *opened, uint32_t i, row *out)
{
    const lb_composite *composite = &opened->found.rows[i];
    *out = (row){.kind = composite->kind,
                 .n_ops = composite->n_ops,
                 .flags = composite->flags,
                 .ops = composite->ops,
                 .list = composite->list,
                 .n_list = composite->n_list,
                 .name = lb_composite_kind_name(composite->kind)};
    memcpy(out->inputs, composite->inputs, sizeof out->inputs);
    memcpy(out->outputs, composite->outputs, sizeof out->outputs);
    memcpy(out->numbers, composite->numbers, sizeof out->numbers);
    out->layer = lb_program_text(opened->program, opened->program->scopes[composite->scope].path);
    out->class_name = lb_program_text(opened->program, opened->program->scopes[composite->scope].class_name);
}

LB_API const char *composites_op(const opened *opened, uint32_t op)
{
    return lb_op_name(opened->program, &opened->program->ops[op]);
}

/* The recorded bytes, which the capture keeps. */
LB_API int composites_value(const opened *opened, uint32_t value, lb_tensor *tensor, char message[512])
{
    lb_err err = LB_ERR_INIT;
    return told(lb_capture_value(opened->capture, opened->program, value, tensor, &err), &err, message);
}

LB_API int composites_run(const opened *opened, uint32_t i, const char *kernel, const lb_tensor *inputs,
                          lb_tensor *outputs, char message[512])
{
    lb_err err = LB_ERR_INIT;
    return told(lb_composite_run(&opened->found.rows[i], kernel, inputs, outputs, &err), &err, message);
}

LB_API uint32_t composites_candidates(const opened *opened, uint32_t i, char (*texts)[LB_COMPOSITE_TEXT], uint32_t room)
{
    return lb_composite_candidates(&opened->found.rows[i], texts, room);
}

/* By kind alone. */
LB_API int composites_compute(const char *name, const char *kernel, int twin, const double *numbers, uint32_t flags,
                              const lb_tensor *inputs, uint32_t n_list, lb_tensor *outputs, char message[512])
{
    lb_err err = LB_ERR_INIT;
    lb_composite composite = {.flags = flags, .n_list = n_list};
    if (!lb_composite_kind_parse(name, &composite.kind)) return told(LB_ERR_NOT_FOUND, &err, message);
    memcpy(composite.numbers, numbers, sizeof composite.numbers);
    if (!twin) return told(lb_composite_run(&composite, kernel, inputs, outputs, &err), &err, message);
    lb_operand args[LB_FUSED_ARGS] = {0};
    args[LB_FUSED_KERNEL] = (lb_operand){.tag = LB_OPERAND_STRING, .string = kernel};
    args[LB_FUSED_NUMBERS] =
        (lb_operand){.tag = LB_OPERAND_NUMBERS, .count = LB_COMPOSITE_NUMBERS, .floats = composite.numbers};
    args[LB_FUSED_FLAGS] = (lb_operand){.tag = LB_OPERAND_INT, .i = flags};
    for (int i = 0; i < LB_COMPOSITE_INPUTS; i++)
        if (inputs[i].data) args[LB_FUSED_INPUTS + i] = (lb_operand){.tag = LB_OPERAND_TENSOR, .tensor = inputs[i]};
    if (n_list)
        args[LB_FUSED_LIST] =
            (lb_operand){.tag = LB_OPERAND_TENSORS, .count = n_list, .tensors = inputs + LB_COMPOSITE_INPUTS};
    lb_call call = {.row = lb_op_find(lb_fused_kind_of(composite.kind)->row, NULL),
                    .args = args,
                    .n_args = LB_FUSED_ARGS,
                    .results = outputs,
                    .n_results = LB_COMPOSITE_OUTPUTS,
                    .err = &err};
    return told(call.row->twin(&call), &err, message);
}
