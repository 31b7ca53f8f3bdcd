/* Ops of one program copied into another: see copier.h. */
#include "program/copier.h"

#include "base/array.h"
#include <stdlib.h>

void lb_copier_release(lb_copier *c)
{
    free(c->rows), lb_hash_release(&c->by_value);
    c->rows = NULL;
}

uint32_t lb_copier_check(lb_copier *c, uint32_t row)
{
    c->failed |= row == LB_NONE;
    return row;
}

uint32_t lb_copier_string(lb_copier *c, uint32_t string)
{
    return string == LB_NONE ? LB_NONE : lb_copier_check(c, lb_program_string(c->to, lb_program_text(c->from, string)));
}

static uint32_t row_of(const lb_copier *c, uint32_t value)
{
    LB_HASH_EACH(i, &c->by_value, value)
    if (c->rows[i][0] == value) return c->rows[i][1];
    return LB_NONE;
}

bool lb_copier_has_value(const lb_copier *c, uint32_t value)
{
    return row_of(c, value) != LB_NONE;
}

uint32_t lb_copier_value(lb_copier *c, uint32_t value)
{
    if (value == LB_NONE) return LB_NONE;
    const uint32_t there = row_of(c, value);
    if (there != LB_NONE) return there;
    lb_value row = c->from->values[value];
    c->change(c->context, value, &row);
    const uint32_t n = c->by_value.n, copy = lb_copier_check(c, lb_program_add_value(c->to, &row));
    uint32_t(*rows)[2] = lb_array_grow(c->rows, n, sizeof *rows);
    if (rows) c->rows = rows, rows[n][0] = value, rows[n][1] = copy;
    c->failed |= !rows || !lb_hash_add(&c->by_value, value, n);
    return copy;
}

uint32_t lb_copier_refs(lb_copier *c, const uint32_t *refs, uint32_t count)
{
    uint32_t first = c->to->n_refs;
    uint32_t *copy = malloc((count + 1u) * sizeof *copy);
    for (uint32_t i = 0; copy && i < count; i++) copy[i] = lb_copier_value(c, refs[i]);
    if (copy && count) first = lb_copier_check(c, lb_program_add_refs(c->to, copy, count));
    c->failed |= !copy;
    free(copy);
    return first;
}

static uint32_t value_of(void *copier, uint32_t value)
{
    return lb_copier_value(copier, value);
}

static uint32_t string_of(void *copier, uint32_t string)
{
    return lb_copier_string(copier, string);
}

lb_op lb_copier_op(lb_copier *c, const lb_op *op)
{
    const lb_arg_rename rename = {value_of, string_of, c};
    lb_op copy = *op;
    copy.name = lb_copier_string(c, op->name);
    copy.scope = copy.call = 0, copy.line = 0;
    copy.node_name = LB_NONE, copy.node = -1;
    copy.first_arg =
        op->args ? lb_copier_check(c, lb_program_copy_args(c->to, c->from, lb_op_args(c->from, op), op->args, &rename))
                 : c->to->n_args;
    copy.first_result = lb_copier_refs(c, lb_op_results(c->from, op), op->results);
    copy.first_written = lb_copier_refs(c, lb_op_written(c->from, op), op->written);
    return copy;
}
