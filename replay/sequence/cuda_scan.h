/* Running sums, products and logarithms of sums of exponentials as torch's CUDA kernels make them.
 *
 * A kernel there keeps every partial result in the tensor's own dtype, where a CPU adds up in f64. Which partial
 * results there are depends on the shape alone (torch's ScanUtils.cuh, scan_dim; the same since 1.13):
 *
 *      one row                the tensor has no other elements: cub's inclusive scan, whose tiles are the library's own
 *      the last dimension     tiles of 32 to 1024 elements, each by Sklansky's network after the total of the tiles
 *                             before it was added to its first element
 *      any other              one element after the other
 *
 * The second and third are computed as they are, bit by bit (LogcumsumexpKernel.cu's exponentials within the bound).
 * The bound carries an error through the same networks, each step rounding to the dtype; of cub's it allows for any
 * network of the depth that its tiles can have. */
#ifndef LB_REPLAY_CUDA_SCAN_H
#define LB_REPLAY_CUDA_SCAN_H

#include "kernel/frame.h"

typedef enum lb_cuda_scan_kind { LB_CUDA_SCAN_SUM, LB_CUDA_SCAN_PRODUCT, LB_CUDA_SCAN_LOG_SUM } lb_cuda_scan_kind;

typedef struct lb_cuda_scan {
    lb_cuda_scan_kind kind;
    lb_dtype dtype; /* of partial results: LB_F32, LB_BF16, LB_F16; LB_F64 rounds nothing here */
    bool innermost; /* the last dimension */
    int64_t rows, n;
} lb_cuda_scan;

/* y = the n results of one row x. */
void lb_cuda_scan_row(const lb_cuda_scan *scan, const double *x, double *y);
/* How far each result may be from its exact value; infinity where a partial result may leave the dtype's range. `work`:
 * 2 n numbers. */
void lb_cuda_scan_errors(const lb_cuda_scan *scan, const double *x, double *errors, double *work);

#endif
