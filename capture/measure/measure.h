/* Digests and statistics of a value in one pass over its bytes, leaf by leaf while they are in the cache.
 * The definitions are those of lastbit/digest.h and lastbit/statistics.h; a test holds them together. */
#ifndef LB_MEASURE_H
#define LB_MEASURE_H

#include <lastbit/digest.h>
#include <lastbit/statistics.h>

typedef struct lb_measured {
    lb_digest logical, blob; /* blob: of the dense range */
    lb_statistics statistics;
    /* malloc'ed, of a contiguous value only: other contiguous views of the same bytes need no new pass */
    uint64_t *leaves;
    uint32_t n_leaves;
} lb_measured;

enum lb_measure_what {
    LB_MEASURE_STATISTICS = 1,
    LB_MEASURE_BLOB = 2 /* also when the layout is not contiguous */
};

typedef struct lb_measuring {
    lb_tensor tensor;
    const void *dense; /* first byte of the dense range */
    size_t dense_bytes;
    unsigned what;
    lb_measured out;
} lb_measuring;

/* Measures them all, with as many threads as lb_pool_threads says; the same bits with any number. False when out of
 * memory: then nothing is to be freed. */
bool lb_measure(lb_measuring *items, size_t n);

/* The same in parts that may run in any order and in several threads: cut, each part once, join when all have run. */
typedef struct lb_measure_part lb_measure_part;
lb_measure_part *lb_measure_cut(lb_measuring *item, size_t *n); /* NULL when out of memory */
void lb_measure_run(lb_measure_part *parts, size_t i);
void lb_measure_join(lb_measuring *item, lb_measure_part *parts, size_t n); /* frees the parts */

/* The logical digest of a contiguous tensor from the leaves of its bytes. */
lb_digest lb_measure_logical(const uint64_t *leaves, uint32_t n_leaves, uint64_t bytes, lb_dtype dtype,
                             const lb_layout *layout);

#endif
