/* How far the gradients of one step's workers pull apart: norms and cosines, of the whole, by layer and by block. */
#ifndef LB_BISECT_WORKER_DISPERSION_H
#define LB_BISECT_WORKER_DISPERSION_H

#include "workers/worker_steps.h"

/* Fills `out`, whose rows and workers are malloc'ed, also where this fails. `at_once`: workers whose products are in
 * memory at a time; 0: as many as take 8 MB a table. The numbers have the same bits of any. */
lb_status lb_worker_dispersion_of(const lb_worker_steps *steps, const lb_worker_step *step, uint32_t at_once,
                                  lb_ranks_step *out, lb_err *err);
/* Rows and their names. */
void lb_worker_dispersion_free(lb_ranks_row *rows, uint32_t n);

#endif
