/* Products of workers' gradients: g_i . g_j for all pairs, of each parameter, summed up by callers that want layers or
 * the whole model.
 *
 * One parameter's gradients of all workers are read at a time, widened to f64. A product is summed in pieces of 8192
 * elements: element k of a piece goes to lane k mod 8, lanes and then pieces are added in order, so that threads change
 * no bit. Products of all pairs would take the square of the ranks: callers ask for those of some workers with all
 * that stand behind them, in bands, each of which reads the gradients again, and have the same bits of any bands.
 *
 *       worker  0 1 2 3 4 5
 *            0  x x x x x x  \ first band
 *            1    x x x x x  /
 *            2      x x x x  \ second band
 *            3        x x x  /
 */
#ifndef LB_BISECT_WORKER_PRODUCTS_H
#define LB_BISECT_WORKER_PRODUCTS_H

#include "workers/worker_steps.h"

typedef struct lb_worker_products {
    char **keys; /* of gradients that are reduced, in order of backward on the first worker that has them; the steps' */
    uint32_t *places;  /* per key: its row among the gradients of that worker */
    int64_t *elements; /* per key: of a gradient, from the first that was read; another size cannot be compared */
    uint32_t n_keys;
    uint32_t n;          /* workers: ranks of the capture */
    const char **layers; /* per key: path of the module, the programs' */
    size_t *layer_chars; /* and how much of it: names are cut before their last dot */
    uint32_t lacking; /* gradients of single workers whose bytes were neither kept nor computed again; counted as 0 */
    bool *whole;      /* per worker: nothing of its gradient lacks, as far as was read */
    bool approximate;
    struct lb_worker_store *store; /* bytes that were computed again */
} lb_worker_products;

/* Lists keys, and computes again what was not kept. */
lb_status lb_worker_products_init(const lb_worker_steps *steps, const lb_worker_step *step, lb_worker_products *out,
                                  lb_err *err);
/* Workers whose rows of products are asked for. */
typedef struct lb_worker_band {
    uint32_t first, n;
} lb_worker_band;

/* Of each key in turn. `numbers` are gone when it is back. */
typedef lb_status lb_worker_products_take(void *context, uint32_t key, const double *numbers);

/* Gives each worker's product with itself, of each key n numbers (of a worker without that gradient 0). */
lb_status lb_worker_products_squares(const lb_worker_steps *steps, const lb_worker_step *step,
                                     lb_worker_products *products, lb_worker_products_take *take, void *context,
                                     lb_err *err);
/* Gives band.n x n products: row i, column k of workers band.first + i and k, where k is not before that worker; other
 * cells hold no meaning. The first band counts what lacks and marks those that are not whole, and so do squares. */
lb_status lb_worker_products_each(const lb_worker_steps *steps, const lb_worker_step *step, lb_worker_band band,
                                  lb_worker_products *products, lb_worker_products_take *take, void *context,
                                  lb_err *err);
void lb_worker_products_release(lb_worker_products *products);

#endif
