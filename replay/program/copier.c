/* Ops of one program copied into another: see copier.h. */
#include "program/copier.h"

#include "base/array.h"
#include <stdlib.h>

void lb_copier_release(lb_copier *copier)
{
    free(copier->rows), lb_hash_release(&copier->by_value);
    copier->rows = NULL;
}

uint32_t lb_copier_check(lb_copier *copier, uint32_t row)
{
    copier->failed |= row == LB_NONE;
    return row;
}

uint32_t lb_copier_string(lb_copier *copier, uint32_t string)
{
    return string == LB_NONE
               ? LB_NONE
               : lb_copier_check(copier, lb_program_string(copier->to, lb_program_text(copier->from, string)));
}

static uint32_t row_of(const lb_copier *copier, uint32_t value)
{
    LB_HASH_EACH(i, &copier->by_value, value)
    if (copier->rows[i][0] == value) return copier->rows[i][1];
    return LB_NONE;
}

bool lb_copier_has_value(const lb_copier *copier, uint32_t value)
{
    return row_of(copier, value) != LB_NONE;
}

uint32_t lb_copier_value(lb_copier *copier, uint32_t value)
{
    if (value == LB_NONE) return LB_NONE;
    const uint32_t there = row_of(copier, value);
    if (there != LB_NONE) return there;
    lb_value row = copier->from->values[value];
    copier->change(copier->context, value, &row);
    const uint32_t n = copier->by_value.n, copy = lb_copier_check(copier, lb_program_add_value(copier->to, &row));
    uint32_t(*rows)[2] = lb_array_grow(copier->rows, n, sizeof *rows);
    if (rows) copier->rows = rows, rows[n][0] = value, rows[n][1] = copy;
    copier->failed |= !rows || !lb_hash_add(&copier->by_value, value, n);
    return copy;
}

uint32_t lb_copier_refs(lb_copier *copier, const uint32_t *refs, uint32_t count)
{
    uint32_t first = copier->to->n_refs;
    uint32_t *copy = malloc((count + 1u) * sizeof *copy);
    for (uint32_t i = 0; copy && i < count; i++) copy[i] = lb_copier_value(copier, refs[i]);
    if (copy && count) first = lb_copier_check(copier, lb_program_add_refs(copier->to, copy, count));
    copier->failed |= !copy;
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

lb_op lb_copier_op(lb_copier *copier, const lb_op *op)
{
    const lb_arg_rename rename = {value_of, string_of, copier};
    lb_op copy = *op;
    copy.name = lb_copier_string(copier, op->name);
    copy.scope = copy.call = 0, copy.line = 0;
    copy.node_name = LB_NONE, copy.node = -1;
    copy.first_arg =
        op->args ? lb_copier_check(copier, lb_program_copy_args(copier->to, copier->from, lb_op_args(copier->from, op),
                                                                op->args, &rename))
                 : copier->to->n_args;
    copy.first_result = lb_copier_refs(copier, lb_op_results(copier->from, op), op->results);
    copy.first_written = lb_copier_refs(copier, lb_op_written(copier->from, op), op->written);
    return copy;
}
