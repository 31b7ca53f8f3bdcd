/* What a subprogram consists of, found by its key: the ops, leaves and outputs of a rank, the leaf that a value is, the
 * leaves of a storage. Subprograms of a thousand ranks have as many leaves and outputs, and are looked through for each
 * op that is put or has run: a search through all of them would be one of all ranks for each rank. */
#ifndef LB_BISECT_RANK_ROWS_H
#define LB_BISECT_RANK_ROWS_H

#include "subprogram/subprogram.h"

typedef struct lb_keyed_row {
    int64_t key;
    uint32_t row; /* of the list that was sorted */
} lb_keyed_row;

/* Ascending by key, and rows of one key as they stood. */
typedef struct lb_keyed_rows {
    lb_keyed_row *list;
    uint32_t n;
} lb_keyed_rows;

typedef struct lb_rank_rows {
    lb_keyed_rows ops, leaves, outputs;           /* by the part of `ranks`; 0 where there are no ranks */
    lb_keyed_rows leaf_of_value, output_of_value; /* by the value */
    lb_keyed_rows leaves_of_storage;              /* by the storage */
    lb_keyed_rows computed;                       /* by the value that an op gives; views give none */
} lb_rank_rows;

/* False when out of memory; release it in any case. */
bool lb_rank_rows_sort(const lb_subprogram_parts *parts, lb_rank_rows *rows);
void lb_rank_rows_release(lb_rank_rows *rows);

/* The rows that have this key, `*n` of them one after the other. */
const lb_keyed_row *lb_keyed_rows_of(const lb_keyed_rows *rows, int64_t key, uint32_t *n);
/* Adds a row; false when out of memory. To be found it has to be sorted in. */
bool lb_keyed_rows_add(lb_keyed_rows *rows, int64_t key, uint32_t row);
void lb_keyed_rows_sort(lb_keyed_rows *rows);

#endif
