/* A step as a graph of values: which values each one follows from, views and casts looked through.
 *
 *      source W ─▶ t(W) ─▶ mm ─▶ y ─▶ y[:, :64] ─▶ mul ─▶ …         a vertex is a value; an edge leads back to what it is made of
 *
 * A result of a computing op follows from all whose numbers the op reads (`ones_like` reads a shape alone); a view from
 * the results that lie in its window. Other rooms ask which op reads what; two implementations share no ops, but some
 * values, and windows of results (the queries in one product of queries, keys and values) are values too. */
#ifndef LB_BISECT_VALUE_GRAPH_H
#define LB_BISECT_VALUE_GRAPH_H

#include "pair/op_kind.h"
#include "program/slice.h"

typedef struct lb_value_graph {
    const lb_program *program;
    lb_slice_flow *flow;
    /* Per value: the op (a source, or one that computes) whose result it is, or in whose result it lies; LB_NONE. */
    uint32_t *giver;
    uint8_t *given;               /* per value: it is a result of that op itself, no window on one */
    uint8_t *read;                /* per value: a computing op reads it */
    uint32_t *first_pred, *preds; /* preds[first_pred[v], first_pred[v + 1]): values */
    uint32_t *first_use, *uses;   /* computing ops that read value v, ascending */
    /* Per op: of backward the op of forward whose derivative it computes, the one that made the running autograd node;
     * LB_NONE. */
    uint32_t *forward;
} lb_value_graph;

/* LB_ERR_NOMEM is the only failure. The program must outlive the graph. */
lb_status lb_value_graph_make(const lb_program *program, lb_value_graph *graph, lb_err *err);
void lb_value_graph_release(lb_value_graph *graph);

/* The value of a source that a value is a view, a copy or a cast of; LB_NONE: it is computed. */
uint32_t lb_value_graph_source(const lb_value_graph *graph, uint32_t value);
/* The result that a value is a window on all of, in its order; the value itself where it is none. */
uint32_t lb_value_graph_whole(const lb_value_graph *graph, uint32_t value);
/* Is it a plain sum of two, and no `addmm`? */
bool lb_value_graph_adds(const lb_program *program, uint32_t op);
/* Does the op compute something of its own: no copy, cast, or fresh memory? Is the value a result of such an op? */
bool lb_value_graph_computes(const lb_program *program, const lb_op *op);
bool lb_value_graph_is_computed(const lb_value_graph *graph, uint32_t value);

#endif
