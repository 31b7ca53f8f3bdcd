/* The numbers of a tensor in row-major order as f64, a block at a time, so that a large one needs no copy. */
#ifndef LB_BISECT_NUMBER_BLOCKS_H
#define LB_BISECT_NUMBER_BLOCKS_H

#include <lastbit/tensor.h>

enum { LB_NUMBER_BLOCK = 2048 };

typedef struct lb_number_blocks {
    int64_t n;             /* numbers in all */
    const double *numbers; /* where f64 numbers lie in order, or were copied to; NULL: see `dtype` and `bytes` */
    lb_dtype dtype;        /* of `bytes`, where the numbers lie one behind the other */
    const char *bytes;
    double *copy;
} lb_number_blocks;

/* The tensor has to stay until it is closed. False when out of memory. */
bool lb_number_blocks_open(const lb_tensor *tensor, lb_number_blocks *blocks);
void lb_number_blocks_close(lb_number_blocks *blocks);
/* `n` numbers from `from` on, LB_NUMBER_BLOCK of them at most; `room` has place for that many. */
const double *lb_number_blocks_at(const lb_number_blocks *blocks, int64_t from, int64_t n, double *room);
/* How many there are from `from` on, one block at most. */
int64_t lb_number_blocks_count(const lb_number_blocks *blocks, int64_t from);
/* The numbers of an f64 tensor, where it is contiguous; NULL where it is not. */
double *lb_number_blocks_in_place(const lb_tensor *tensor);

#endif
