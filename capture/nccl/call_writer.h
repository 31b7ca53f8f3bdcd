/* From a call to an op of the capture: the writer thread's part. Each place has an archive, opened at its first call.
 *
 * An op is named after NCCL's call, `nccl::all_reduce` and so on, with the arguments
 *
 *     send, recv, root or peer, count, dtype, scalar (of a PreMulSum), algorithm, stream, group, graph (of a run of
 *     one)
 *
 * The first two are tensors, or none where this rank's buffer means nothing; streams, groups and graphs are numbers of
 * this rank. What the program computes between its calls is not seen: what is sent is a source each time. */
#ifndef LB_CAPTURE_CALL_WRITER_H
#define LB_CAPTURE_CALL_WRITER_H

#include "nccl_call.h"

/* Writes it and frees nothing. One thread. */
void lb_nccl_call_write(lb_nccl_call *call);
/* Steps end, archives are closed. */
void lb_nccl_call_writer_close(void);

#endif
