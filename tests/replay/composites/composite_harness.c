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

LB_API void composites_close(opened *o)
{
    lb_composites_release(&o->found);
    lb_capture_close(o->capture);
    free(o);
}

LB_API opened *composites_open(const char *path, int64_t step, char message[512])
{
    lb_err err = LB_ERR_INIT;
    opened *o = calloc(1, sizeof *o);
    const int32_t *ranks;
    lb_status status = lb_capture_open(path, &o->capture, &err);
    if (status == LB_OK) lb_capture_ranks(o->capture, &ranks);
    if (status == LB_OK) status = lb_capture_program(o->capture, ranks[0], step, &o->program, &err);
    if (status == LB_OK) status = lb_composites_find(o->program, &o->found, &err);
    if (!told(status, &err, message)) return o;
    composites_close(o);
    return NULL;
}

LB_API uint32_t composites_n(const opened *o)
{
    return o->found.n;
}

LB_API void composites_row(const opened *o, uint32_t i, row *out)
{
    const lb_composite *c = &o->found.rows[i];
    *out = (row){.kind = c->kind,
                 .n_ops = c->n_ops,
                 .flags = c->flags,
                 .ops = c->ops,
                 .list = c->list,
                 .n_list = c->n_list,
                 .name = lb_composite_kind_name(c->kind)};
    memcpy(out->inputs, c->inputs, sizeof out->inputs);
    memcpy(out->outputs, c->outputs, sizeof out->outputs);
    memcpy(out->numbers, c->numbers, sizeof out->numbers);
    out->layer = lb_program_text(o->program, o->program->scopes[c->scope].path);
    out->class_name = lb_program_text(o->program, o->program->scopes[c->scope].class_name);
}

LB_API const char *composites_op(const opened *o, uint32_t op)
{
    return lb_op_name(o->program, &o->program->ops[op]);
}

/* The recorded bytes, which the capture keeps. */
LB_API int composites_value(const opened *o, uint32_t value, lb_tensor *tensor, char message[512])
{
    lb_err err = LB_ERR_INIT;
    return told(lb_capture_value(o->capture, o->program, value, tensor, &err), &err, message);
}

LB_API int composites_run(const opened *o, uint32_t i, const char *kernel, const lb_tensor *inputs, lb_tensor *outputs,
                          char message[512])
{
    lb_err err = LB_ERR_INIT;
    return told(lb_composite_run(&o->found.rows[i], kernel, inputs, outputs, &err), &err, message);
}

LB_API uint32_t composites_candidates(const opened *o, uint32_t i, char (*texts)[LB_COMPOSITE_TEXT], uint32_t room)
{
    return lb_composite_candidates(&o->found.rows[i], texts, room);
}

/* By kind alone. */
LB_API int composites_compute(const char *name, const char *kernel, int twin, const double *numbers, uint32_t flags,
                              const lb_tensor *inputs, uint32_t n_list, lb_tensor *outputs, char message[512])
{
    lb_err err = LB_ERR_INIT;
    lb_composite c = {.flags = flags, .n_list = n_list};
    if (!lb_composite_kind_parse(name, &c.kind)) return told(LB_ERR_NOT_FOUND, &err, message);
    memcpy(c.numbers, numbers, sizeof c.numbers);
    if (!twin) return told(lb_composite_run(&c, kernel, inputs, outputs, &err), &err, message);
    lb_operand args[LB_FUSED_ARGS] = {0};
    args[LB_FUSED_KERNEL] = (lb_operand){.tag = LB_OPERAND_STRING, .string = kernel};
    args[LB_FUSED_NUMBERS] =
        (lb_operand){.tag = LB_OPERAND_NUMBERS, .count = LB_COMPOSITE_NUMBERS, .floats = c.numbers};
    args[LB_FUSED_FLAGS] = (lb_operand){.tag = LB_OPERAND_INT, .i = flags};
    for (int i = 0; i < LB_COMPOSITE_INPUTS; i++)
        if (inputs[i].data) args[LB_FUSED_INPUTS + i] = (lb_operand){.tag = LB_OPERAND_TENSOR, .tensor = inputs[i]};
    if (n_list)
        args[LB_FUSED_LIST] =
            (lb_operand){.tag = LB_OPERAND_TENSORS, .count = n_list, .tensors = inputs + LB_COMPOSITE_INPUTS};
    lb_call call = {.row = lb_op_find(lb_fused_kind_of(c.kind)->row, NULL),
                    .args = args,
                    .n_args = LB_FUSED_ARGS,
                    .results = outputs,
                    .n_results = LB_COMPOSITE_OUTPUTS,
                    .err = &err};
    return told(call.row->twin(&call), &err, message);
}
