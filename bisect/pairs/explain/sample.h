/* A sample of a place: the same op on a few rows and columns of its operands, for products whose candidates take long.
 *
 * Which bits an element of a product has depends on its row, its column and the candidate alone, unless the candidate
 * looks at whole tensors (a recipe's scale) or at shapes (a BLAS): lb_candidate.local. One element of the sample that
 * misses excludes a candidate as surely as one of the whole; what passes is tried on all.
 */
#ifndef LB_BISECT_SAMPLE_H
#define LB_BISECT_SAMPLE_H

#include "explain/match_site.h"

typedef struct lb_sample {
    bool taken;
    lb_match_site site; /* runs as `runner` on `bits` alone */
    int bits;
} lb_sample;

/* Not taken where the runner is no single product, or one so small that a sample saves nothing. LB_ERR_NOMEM. */
lb_status lb_sample_take(const lb_match_site *site, int runner, int bits, lb_sample *sample, lb_err *err);
/* How much of the place it is. */
double lb_sample_share(const lb_sample *sample, const lb_match_site *whole);
void lb_sample_release(lb_sample *sample);

#endif
