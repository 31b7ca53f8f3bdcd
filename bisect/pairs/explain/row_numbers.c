/* Which values count rows: see explain_session.h. */
#include "explain/explain_session.h"

#include "kernel/value_memory.h"

#include <stdlib.h>
#include <string.h>

/* What an op of B reads of values that carry rows. */
typedef struct reading {
    const lb_program *p;
    const uint32_t *first;            /* per value of B: of its storage */
    const uint8_t *numbers, *carries; /* per value of B, told of the first of a storage: views hold what it holds */
    bool counted, rows;               /* it reads row numbers; other contents of rows */
} reading;

static void note_input(void *context, uint32_t value)
{
    reading *reading = context;
    if (value == LB_NONE) return;
    reading->counted |= reading->numbers[reading->first[value]];
    reading->rows |= reading->carries[reading->first[value]] && !reading->numbers[reading->first[value]];
}

typedef struct stored {
    int64_t storage;
    uint32_t value;
} stored;

static int by_storage(const void *x, const void *y)
{
    const stored *a = x, *b = y;
    if (a->storage != b->storage) return a->storage < b->storage ? -1 : 1;
    return a->value < b->value ? -1 : a->value > b->value;
}

/* Per value: the first of its storage; malloc'ed. */
static uint32_t *first_of_storages(const lb_program *program)
{
    stored *all = malloc(program->n_values * sizeof *all + 1);
    uint32_t *first = malloc(program->n_values * sizeof *first + 1);
    for (uint32_t v = 0; all && v < program->n_values; v++) all[v] = (stored){program->values[v].storage, v};
    if (all) qsort(all, program->n_values, sizeof *all, by_storage);
    for (uint32_t i = 0; all && first && i < program->n_values; i++)
        first[all[i].value] = i && all[i].storage == all[i - 1].storage ? first[all[i - 1].value] : all[i].value;
    if (!all) free(first), first = NULL;
    free(all);
    return first;
}

/* Made of no rows: the rows of a constant are alike wherever they stand, those of a count are not. */
static bool rows_differ(const lb_alignment *al, const lb_regenerated *a, const lb_regenerated *b, uint32_t va,
                        uint32_t vb, int dim)
{
    lb_tensor x, y;
    bool exact;
    const lb_reassembling how = {b->side, al->joins.rows, b};
    if (!lb_regenerated_value(a, va, &x, &exact) || !lb_reassembly_assemble(&how, &x.layout, dim, &vb, 1, &y))
        return true;
    const bool same = lb_memory_tensor_same(&x, &y);
    free(y.data);
    return !same;
}

uint8_t *lb_row_numbers_find(const lb_alignment *alignment, const lb_regenerated *a, const lb_regenerated *b)
{
    const lb_program *pa = a->program, *pb = b->program;
    uint8_t *numbers = calloc(pb->n_values + 1, 1), *carries = calloc(pb->n_values + 1, 1);
    uint32_t *first = first_of_storages(pb);
    const bool room = numbers && carries && first;
    for (uint32_t j = 0; j < pb->n_ops && room; j++) {
        if (alignment->join_of_b[j] == LB_NONE) continue;
        const lb_reassembly *join = &alignment->joins.list[alignment->join_of_b[j]];
        const lb_op *op = &pb->ops[j], *few = &pa->ops[join->whole];
        const bool source = lb_op_is_source(pb, op);
        reading reading = {pb, first, numbers, carries, false, false};
        lb_op_each_input(pb, op, note_input, &reading);
        for (uint32_t k = 0; k < op->results && k < few->results; k++) {
            const uint32_t va = lb_op_results(pa, few)[k], vb = lb_op_results(pb, op)[k];
            if (va == LB_NONE || vb == LB_NONE) continue;
            const int dim = lb_reassembly_dim(alignment->joins.rows, pa, va, pb, &vb, 1);
            if (dim < 0) continue;
            carries[first[vb]] = 1;
            if (lb_dtype_is_float(pb->values[vb].dtype) || source || reading.rows) continue;
            if (reading.counted || rows_differ(alignment, a, b, va, vb, dim)) numbers[first[vb]] = 1;
        }
    }
    for (uint32_t v = 0; v < pb->n_values && room; v++) numbers[v] = numbers[first[v]];
    if (!room) free(numbers), numbers = NULL;
    free(carries), free(first);
    return numbers;
}
