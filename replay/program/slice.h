/* Who computed what an op reads: def-use over storages and versions, and slices along it.
 *
 *      op 3  add_.Tensor   writes storage 7, elements [0, 64)
 *      op 5  view          no def: a view changes the layout, not the contents
 *      op 9  mm            reads storage 7, elements [0, 32): defined by op 3, and by what 3 did not cover
 *
 * Contents are followed through the storage, so views, slices and in-place writes need no rule of their own. A write
 * that covers a window hides the writes before it; one that overlaps it (or lies scattered in it) hides nothing.
 * The program must outlive its flow; a flow is read-only and may be shared by threads.
 */
#ifndef LB_REPLAY_SLICE_H
#define LB_REPLAY_SLICE_H

#include <lastbit/program.h>

typedef struct lb_slice_flow {
    const lb_program *program;
    uint32_t *first_def, *defs; /* defs[first_def[i], first_def[i + 1]): ops that op i reads from, ascending */
    uint32_t *first_use, *uses; /* ops that read what op i defined, ascending */
    uint32_t *storage_of;       /* per value: dense number of its storage */
    int64_t *storages;          /* ids by dense number, ascending */
    uint32_t n_storages;
} lb_slice_flow;

lb_status lb_slice_flow_new(const lb_program *program, lb_slice_flow **flow, lb_err *err);
void lb_slice_flow_free(lb_slice_flow *flow);

/* True when op i defines contents: everything but views and host marks without results. */
bool lb_slice_op_defines(const lb_program *program, const lb_op *op);

/* Dense number of a storage id, LB_NONE when the program has no value in it. */
uint32_t lb_slice_flow_storage(const lb_slice_flow *flow, int64_t id);

/* The ops whose writes `op` sees in `value`, which is one of its args; latest first. At most `max` are stored, the
 * count is returned. */
uint32_t lb_slice_flow_defs_of(const lb_slice_flow *flow, uint32_t op, uint32_t value, uint32_t *defs, uint32_t max);

/* Marks (marks[i] = 1, n_ops bytes, not cleared) every op that the ops already marked depend on (`backward`) or that
 * depends on them. Entered are only ops whose phase is in `phases` (bit per lb_phase; 0: all) and that `stop` (NULL:
 * none) does not hold back: an op with stop[i] is neither marked nor passed. */
void lb_slice_grow(const lb_slice_flow *flow, bool backward, uint32_t phases, const uint8_t *stop, uint8_t *marks);

#endif
