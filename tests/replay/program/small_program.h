/* Programs written by hand, op by op, for tests of passes. Values are f32 matrices unless said otherwise. */
#ifndef LB_TESTS_SMALL_PROGRAM_H
#define LB_TESTS_SMALL_PROGRAM_H

#include <lastbit/program.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define NO LB_NONE

typedef struct small {
    lb_program *p;
    lb_phase phase;
    uint32_t scope;
    int64_t node;
    uint32_t flags;
} small;

static inline uint32_t small_value(small *small, int64_t storage, uint32_t version, lb_dtype dtype, int64_t rows,
                                   int64_t columns)
{
    lb_value value = {.storage = storage, .version = version, .dtype = dtype, .name = LB_NONE, .statistics = LB_NONE};
    value.layout = lb_layout_contiguous(2, (int64_t[]){rows, columns});
    return lb_program_add_value(small->p, &value);
}

/* The same contents, rows and columns exchanged. */
static inline uint32_t small_transposed(small *small, uint32_t value)
{
    lb_value v = small->p->values[value];
    lb_layout layout = v.layout;
    v.layout.shape[0] = layout.shape[1], v.layout.shape[1] = layout.shape[0];
    v.layout.stride[0] = layout.stride[1], v.layout.stride[1] = layout.stride[0];
    return lb_program_add_value(small->p, &v);
}

static inline uint32_t small_op_args(small *small, const char *name, uint32_t result, uint32_t written,
                                     const lb_arg *args, uint32_t n)
{
    lb_op op = {.name = lb_program_string(small->p, name),
                .scope = small->scope,
                .phase = (uint8_t)small->phase,
                .node = small->node,
                .node_name = LB_NONE,
                .flags = small->flags,
                .args = n};
    op.first_arg = lb_program_add_args(small->p, args, n);
    op.results = result != NO, op.first_result = lb_program_add_refs(small->p, &result, op.results);
    op.written = written != NO, op.first_written = lb_program_add_refs(small->p, &written, op.written);
    if (op.written) op.flags |= LB_OP_MUTABLE;
    return lb_program_add_op(small->p, &op);
}

/* An op of one or two values; b NO: one. In-place ops give `written` too. */
static inline uint32_t small_op(small *small, const char *name, uint32_t result, uint32_t written, uint32_t a,
                                uint32_t b)
{
    lb_arg args[3] = {
        {.tag = LB_ARG_VALUE, .u.value = a}, {.tag = LB_ARG_VALUE, .u.value = b}, {.tag = LB_ARG_INT, .u.i = 1}};
    uint32_t n = a == NO ? 0 : b == NO ? 1 : strstr(name, "::add") ? 3 : 2;
    return small_op_args(small, name, result, written, args, n);
}

static inline uint32_t small_source(small *small, uint32_t value)
{
    uint32_t flags = small->flags;
    small->flags = 0;
    uint32_t op = small_op(small, "lb::source", value, NO, NO, NO);
    small->flags = flags;
    return op;
}

static inline uint32_t small_view(small *small, const char *name, uint32_t result, uint32_t of)
{
    uint32_t flags = small->flags;
    small->flags |= LB_OP_VIEW;
    uint32_t op = small_op(small, name, result, NO, of, NO);
    small->flags = flags;
    return op;
}

static inline void small_boundary(small *small, uint32_t scope, bool output, uint32_t value)
{
    lb_boundary row = {.scope = scope, .op = small->p->n_ops, .value = value, .output = output};
    lb_program_add_boundary(small->p, &row);
}

/* The first op of that name from row `from` on, LB_NONE when there is none. */
static inline uint32_t small_find(const lb_program *program, const char *name, uint32_t from)
{
    for (uint32_t i = from; i < program->n_ops; i++)
        if (!strcmp(lb_op_name(program, &program->ops[i]), name)) return i;
    return LB_NONE;
}

/* The op that gives `value` as its first result or written value, LB_NONE when none does. */
static inline uint32_t small_maker(const lb_program *program, uint32_t value)
{
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (op->flags & LB_OP_VIEW) continue;
        for (uint32_t r = 0; r < op->results; r++)
            if (lb_op_results(program, op)[r] == value) return i;
        for (uint32_t r = 0; r < op->written; r++)
            if (lb_op_written(program, op)[r] == value) return i;
    }
    return LB_NONE;
}

#endif
