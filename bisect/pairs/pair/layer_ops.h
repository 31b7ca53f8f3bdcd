/* Lists the computing ops of a side, sorted by layer, then by call of the layer, then in order of execution. The ops of
 * a layer, and those of one call of it, are then a contiguous range, which is matched with a range of the other side:
 *
 *      layer   phase, path, share      "forward", "layers.3.mlp", the parts of this side that stand for part 0 of the
 *              other
 *        call  part, number            call 0 of rank 0, call 1 of rank 0, call 0 of rank 1 ...
 *          op  as it ran
 *
 * Nothing is copied to make a group of ops: it is a place in the list and a length. */
#ifndef LB_BISECT_LAYER_OPS_H
#define LB_BISECT_LAYER_OPS_H

#include "pair/layer_names.h"
#include "pair/program_view.h"

typedef struct lb_layer_op {
    const char *path; /* mapped; of an op that serves one parameter, where these are asked for, that parameter's name */
    uint64_t kind, name; /* lb_op_kind, lb_op_name_kind */
    uint32_t phase, share, part, call, op;
} lb_layer_op;

typedef struct lb_layer_ops {
    lb_layer_op *list;
    uint32_t n;
    const lb_program *program;
    char **paths;  /* per scope */
    char **served; /* per op: the one parameter that it serves, mapped; NULL: none */
} lb_layer_ops;

/* A run of neighbours: a layer, or one call of it. */
typedef struct lb_layer_run {
    const lb_layer_op *first;
    uint32_t n;
} lb_layer_run;

/* Lists the ops of both sides together, as names that only one side has are respelled to meet the other's. `calls`: per
 * op of each side the number of the call that it lies in; NULL: as recorded. `by_parameter`: ops of the optimizer and
 * of communication stand under the parameter that they serve. LB_ERR_NOMEM is the only failure; release in any case. */
lb_status lb_layer_ops_list(const lb_program_view *const sides[2], const lb_layer_names_map *const rules[2],
                            const uint32_t *const calls[2], bool by_parameter, lb_layer_ops out[2], lb_err *err);
void lb_layer_ops_release(lb_layer_ops *ops);

/* The order of layers, and that of the calls of one layer. */
int lb_layer_compare(const lb_layer_op *a, const lb_layer_op *b);
int lb_layer_call_compare(const lb_layer_op *a, const lb_layer_op *b);
/* The layer that the rest of a list begins with. */
lb_layer_run lb_layer_run_first(const lb_layer_op *rest, uint32_t n);
/* The calls of a layer, in order; malloc'ed, NULL when out of memory. */
lb_layer_run *lb_layer_calls(lb_layer_run layer, uint32_t *n_calls);
/* How often the forward pass calls the layer of that op. */
uint32_t lb_layer_forward_calls(const lb_layer_ops *ops, const lb_layer_op *of);

#endif
