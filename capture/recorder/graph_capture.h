/* While a graph is being captured (graphs->captured is set), what the host tells the recorder goes to the graph's tape.
 */
#ifndef LB_GRAPH_CAPTURE_H
#define LB_GRAPH_CAPTURE_H

#include "recorder/graph_tape.h"

typedef struct lb_graphs {
    lb_tape *captured;        /* of the graph that is being captured; NULL: none is */
    lb_tape *tapes;           /* of those that were */
    uint64_t n_tapes, n_gone; /* n_gone: storages that were freed */
} lb_graphs;

/* Is a graph being captured, by a thread that is not recording the run of another? */
bool lb_graph_is_captured(const lb_recorder *recorder);
/* Does the op (do the tensors) belong to the graph that is being captured, and not to the open step? */
bool lb_graph_takes_op(lb_recorder *recorder, const lb_recorded_call *call);
bool lb_graph_takes(lb_recorder *recorder, const lb_host_tensor *tensors, uint32_t n);
/* The entry of the tape; LB_NONE: out of memory. */
uint32_t lb_graph_op_begin(lb_recorder *recorder, const lb_recorded_call *call);
void lb_graph_op_end(lb_recorder *recorder, uint32_t begun, const lb_recorded_operand *results, uint32_t n,
                     bool deferred, uint32_t *op);
void lb_graph_op_failed(lb_recorder *recorder, uint32_t begun);
void lb_graph_enter(lb_recorder *recorder, uint32_t scope, const lb_host_tensor *inputs, uint32_t n, bool recompute,
                    lb_place *place);
void lb_graph_leave(lb_recorder *recorder, lb_place place, const lb_host_tensor *outputs, uint32_t n, bool recompute);
void lb_graph_routing(lb_recorder *recorder, lb_place place, const lb_host_tensor *const tensors[5]);
void lb_graph_collective(lb_recorder *recorder, uint32_t op, const lb_taped_collective *told);
void lb_graph_group(lb_recorder *recorder, uint32_t first_op, const lb_taped_group *told);
/* A storage was freed: the capture and every tape that knows it are told. */
void lb_graph_forget(lb_recorder *recorder, int64_t key);
void lb_graphs_release(lb_graphs *graphs);
/* Where the tape of that graph stands in graphs->tapes; *NULL: there is none. */
lb_tape **lb_graph_find(lb_graphs *graphs, int64_t graph);

#endif
