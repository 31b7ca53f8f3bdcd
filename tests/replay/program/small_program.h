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

static inline uint32_t small_value(small *s, int64_t storage, uint32_t version, lb_dtype dtype, int64_t rows,
                                   int64_t columns)
{
    lb_value v = {.storage = storage, .version = version, .dtype = dtype, .name = LB_NONE, .statistics = LB_NONE};
    v.layout = lb_layout_contiguous(2, (int64_t[]){rows, columns});
    return lb_program_add_value(s->p, &v);
}

/* The same contents, rows and columns exchanged. */
static inline uint32_t small_transposed(small *s, uint32_t value)
{
    lb_value v = s->p->values[value];
    lb_layout l = v.layout;
    v.layout.shape[0] = l.shape[1], v.layout.shape[1] = l.shape[0];
    v.layout.stride[0] = l.stride[1], v.layout.stride[1] = l.stride[0];
    return lb_program_add_value(s->p, &v);
}

static inline uint32_t small_op_args(small *s, const char *name, uint32_t result, uint32_t written, const lb_arg *args,
                                     uint32_t n)
{
    lb_op op = {.name = lb_program_string(s->p, name),
                .scope = s->scope,
                .phase = (uint8_t)s->phase,
                .node = s->node,
                .node_name = LB_NONE,
                .flags = s->flags,
                .args = n};
    op.first_arg = lb_program_add_args(s->p, args, n);
    op.results = result != NO, op.first_result = lb_program_add_refs(s->p, &result, op.results);
    op.written = written != NO, op.first_written = lb_program_add_refs(s->p, &written, op.written);
    if (op.written) op.flags |= LB_OP_MUTABLE;
    return lb_program_add_op(s->p, &op);
}

/* An op of one or two values; b NO: one. In-place ops give `written` too. */
static inline uint32_t small_op(small *s, const char *name, uint32_t result, uint32_t written, uint32_t a, uint32_t b)
{
    lb_arg args[3] = {
        {.tag = LB_ARG_VALUE, .u.value = a}, {.tag = LB_ARG_VALUE, .u.value = b}, {.tag = LB_ARG_INT, .u.i = 1}};
    uint32_t n = a == NO ? 0 : b == NO ? 1 : strstr(name, "::add") ? 3 : 2;
    return small_op_args(s, name, result, written, args, n);
}

static inline uint32_t small_source(small *s, uint32_t value)
{
    uint32_t flags = s->flags;
    s->flags = 0;
    uint32_t op = small_op(s, "lb::source", value, NO, NO, NO);
    s->flags = flags;
    return op;
}

static inline uint32_t small_view(small *s, const char *name, uint32_t result, uint32_t of)
{
    uint32_t flags = s->flags;
    s->flags |= LB_OP_VIEW;
    uint32_t op = small_op(s, name, result, NO, of, NO);
    s->flags = flags;
    return op;
}

static inline void small_boundary(small *s, uint32_t scope, bool output, uint32_t value)
{
    lb_boundary row = {.scope = scope, .op = s->p->n_ops, .value = value, .output = output};
    lb_program_add_boundary(s->p, &row);
}

/* The first op of that name from row `from` on, LB_NONE when there is none. */
static inline uint32_t small_find(const lb_program *p, const char *name, uint32_t from)
{
    for (uint32_t i = from; i < p->n_ops; i++)
        if (!strcmp(lb_op_name(p, &p->ops[i]), name)) return i;
    return LB_NONE;
}

/* The op that gives `value` as its first result or written value, LB_NONE when none does. */
static inline uint32_t small_maker(const lb_program *p, uint32_t value)
{
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        if (op->flags & LB_OP_VIEW) continue;
        for (uint32_t r = 0; r < op->results; r++)
            if (lb_op_results(p, op)[r] == value) return i;
        for (uint32_t r = 0; r < op->written; r++)
            if (lb_op_written(p, op)[r] == value) return i;
    }
    return LB_NONE;
}

#endif
