/* What one pass over a tensor says: its statistics, its digest, and the place of its first element that is not
 * finite. */
#ifndef LB_BISECT_AUDIT_PIECE_MEASURE_H
#define LB_BISECT_AUDIT_PIECE_MEASURE_H

#include <lastbit/digest.h>
#include <lastbit/statistics.h>

typedef struct lb_piece_measured {
    lb_statistics statistics;
    lb_digest digest;
    int64_t first_bad; /* row-major; -1: all finite */
} lb_piece_measured;

/* Whether it is worth the while of several threads. */
bool lb_piece_is_large(const lb_tensor *tensor);
/* The bits of lb_statistics_of and lb_digest_tensor, with any number of threads. */
lb_piece_measured lb_piece_measure(const lb_tensor *tensor);

#endif
