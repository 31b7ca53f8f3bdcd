/* Rows by their keys: see rank_rows.h. */
#include "subprogram/rank_rows.h"

#include "base/array.h"

#include <stdlib.h>

bool lb_keyed_rows_add(lb_keyed_rows *rows, int64_t key, uint32_t row)
{
    lb_keyed_row *grown = lb_array_grow(rows->list, rows->n, sizeof *grown);
    if (!grown) return false;
    rows->list = grown;
    rows->list[rows->n++] = (lb_keyed_row){key, row};
    return true;
}

static int by_key(const void *x, const void *y)
{
    const lb_keyed_row *a = x, *b = y;
    return a->key != b->key ? (a->key < b->key ? -1 : 1) : (a->row > b->row) - (a->row < b->row);
}

void lb_keyed_rows_sort(lb_keyed_rows *rows)
{
    if (rows->n) qsort(rows->list, rows->n, sizeof *rows->list, by_key);
}

const lb_keyed_row *lb_keyed_rows_of(const lb_keyed_rows *rows, int64_t key, uint32_t *n)
{
    const size_t first = lb_array_first(rows->list, rows->n, sizeof *rows->list, &key, lb_by_i64);
    for (*n = 0; first + *n < rows->n && rows->list[first + *n].key == key;) ++*n;
    return rows->list + first;
}

static bool add_op(const lb_subprogram_parts *parts, uint32_t row, lb_rank_rows *rows)
{
    const lb_op *op = &parts->program->ops[parts->ops[row]];
    const bool view = op->flags & LB_OP_VIEW;
    bool added =
        lb_keyed_rows_add(&rows->ops, parts->ranks ? lb_program_view_part_of(parts->ranks, parts->ops[row]) : 0, row);
    for (uint32_t k = 0; k < op->results + op->written && added && !view; k++)
        added = lb_keyed_rows_add(&rows->computed, lb_op_outcome(parts->program, op, k), row);
    return added;
}

static uint32_t part_of(const lb_subprogram_parts *parts, uint32_t value)
{
    return parts->ranks ? lb_program_view_part_of_value(parts->ranks, value) : 0;
}

bool lb_rank_rows_sort(const lb_subprogram_parts *parts, lb_rank_rows *rows)
{
    bool added = true;
    for (uint32_t i = 0; i < parts->n_ops && added; i++) added = add_op(parts, i, rows);
    for (uint32_t i = 0; i < parts->n_leaves && added; i++) {
        const uint32_t leaf = parts->leaves[i];
        added = lb_keyed_rows_add(&rows->leaves, part_of(parts, leaf), i) &&
                lb_keyed_rows_add(&rows->leaf_of_value, leaf, i) &&
                lb_keyed_rows_add(&rows->leaves_of_storage, parts->program->values[leaf].storage, i);
    }
    for (uint32_t i = 0; i < parts->n_outputs && added; i++)
        added = lb_keyed_rows_add(&rows->outputs, part_of(parts, parts->outputs[i]), i) &&
                lb_keyed_rows_add(&rows->output_of_value, parts->outputs[i], i);
    lb_keyed_rows *all[] = {&rows->ops,           &rows->leaves,          &rows->outputs,          &rows->computed,
                            &rows->leaf_of_value, &rows->output_of_value, &rows->leaves_of_storage};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) lb_keyed_rows_sort(all[i]);
    return added;
}

void lb_rank_rows_release(lb_rank_rows *rows)
{
    free(rows->ops.list), free(rows->leaves.list), free(rows->outputs.list);
    free(rows->leaf_of_value.list), free(rows->output_of_value.list);
    free(rows->leaves_of_storage.list), free(rows->computed.list);
    *rows = (lb_rank_rows){0};
}
