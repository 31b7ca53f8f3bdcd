/* Which values count rows: see row_numbers.h. */
#include "row_numbers.h"

#include "memory.h"

#include <stdlib.h>
#include <string.h>

/* What an op of B reads of values that carry rows. */
typedef struct reading {
    const lb_program *p;
    const uint8_t *numbers, *carries; /* per value of B */
    bool counted, rows;               /* it reads row numbers; other contents of rows */
} reading;

static void note_input(void *context, uint32_t value)
{
    reading *r = context;
    if (value == LB_NONE) return;
    r->counted |= r->numbers[value];
    r->rows |= r->carries[value] && !r->numbers[value];
}

/* Views of a storage hold what it holds. */
static void mark(const lb_program *p, uint32_t value, uint8_t *marks)
{
    for (uint32_t v = 0; v < p->n_values; v++) marks[v] |= p->values[v].storage == p->values[value].storage;
}

/* Made of no rows: the rows of a constant are alike wherever they stand, those of a count are not. */
static bool rows_differ(const lb_alignment *al, const lb_witness *a, const lb_witness *b, uint32_t va,
                        uint32_t vb, int dim)
{
    lb_tensor x, y;
    bool exact;
    const lb_joining how = {b->side, al->joins.rows, b};
    if (!lb_witness_value(a, va, &x, &exact) || !lb_join_assemble(&how, &x.layout, dim, &vb, 1, &y))
        return true;
    const bool same = lb_tensor_same(&x, &y);
    free(y.data);
    return !same;
}

uint8_t *lb_row_numbers_find(const lb_alignment *al, const lb_witness *a, const lb_witness *b)
{
    const lb_program *pa = a->program, *pb = b->program;
    uint8_t *numbers = calloc(pb->n_values + 1, 1), *carries = calloc(pb->n_values + 1, 1);
    for (uint32_t j = 0; j < pb->n_ops && numbers && carries; j++) {
        if (al->join_of_b[j] == LB_NONE) continue;
        const lb_join *join = &al->joins.list[al->join_of_b[j]];
        const lb_op *op = &pb->ops[j], *few = &pa->ops[join->whole];
        const bool source = !strcmp(lb_op_name(pb, op), "lb::source");
        reading r = {pb, numbers, carries, false, false};
        lb_op_each_input(pb, op, note_input, &r);
        for (uint32_t k = 0; k < op->results && k < few->results; k++) {
            const uint32_t va = lb_op_results(pa, few)[k], vb = lb_op_results(pb, op)[k];
            if (va == LB_NONE || vb == LB_NONE) continue;
            const int dim = lb_join_dim(al->joins.rows, pa, va, pb, &vb, 1);
            if (dim < 0) continue;
            mark(pb, vb, carries);
            if (lb_dtype_is_float(pb->values[vb].dtype) || source || r.rows) continue;
            if (r.counted || rows_differ(al, a, b, va, vb, dim)) mark(pb, vb, numbers);
        }
    }
    if (!carries) free(numbers), numbers = NULL;
    free(carries);
    return numbers;
}
