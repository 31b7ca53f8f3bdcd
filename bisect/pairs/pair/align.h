/* Aligning two sides: which op of B is op i of A.
 *
 * Ops meet by where they stand and what they are: (phase, layer path after the maps, call of the layer, counted in the
 * forward passes that meet where these do not follow each other alike, forwards.h), and inside such a group by the
 * longest common subsequence of op names and shapes, so that a run which computes something in other ops (eager against
 * fused attention, foreach against single-tensor AdamW) still lines up before and after that place. Where B calls a
 * layer several times for one call of A (micro-batches, decode steps, ranks), ops meet by name, one against several, if
 * what they give can be put together (reassembly.h). Where B's batch has more rows than A's (batch_rows.h), an op that
 * reads or gives rows meets the one that does so with A's, and is joined to it as a part of which some rows are taken.
 * Views, sources and host marks are not ops here: what they hold is found through the values.
 */
#ifndef LB_BISECT_ALIGN_H
#define LB_BISECT_ALIGN_H

#include "pair/batch_rows.h"
#include "pair/op_kind.h"
#include "pair/forwards.h"

struct lb_cut_tensors;

typedef struct lb_alignment {
    uint32_t *b_of_a;        /* per op of A: op of B, or LB_NONE */
    uint32_t *a_of_b;        /* the reverse */
    uint32_t pairs;          /* aligned computing ops */
    uint32_t only_a, only_b; /* computing ops without a partner */
    /* Per op of A: its group holds ops without a partner, so that a pair in it may be none. */
    uint8_t *irregular;
    /* Per op of A that is a source: the source of B with the same name; where one of them has none, that with the same
     * bits, or that which the partner of its first reader reads in its place; LB_NONE. */
    uint32_t *source_b_of_a;
    /* Per op of A without a partner: the op of B without one that stands in its place, has its name, and takes or gives
     * other shapes (an expert over other tokens); LB_NONE. These are no pairs. */
    uint32_t *reshaped_b_of_a;
    /* per op of A (of B): see shown_sources.h; where ops do not meet by parameter each source shows its result */
    uint32_t *shown[2];
    lb_reassemblies joins;
    uint32_t *join_of_a; /* per op of A: row of joins.list, or LB_NONE */
    /* per op of B; also of a source that is the same part as one of the join's (ranks that hold copies) */
    uint32_t *join_of_b;
    uint32_t *place_of_b; /* which part of that join it is */
    /* per op of A (of B) of an update, or of what ranks do with gradients: the name of the one parameter that it
     * serves, mapped; NULL for others, and where ops do not meet by parameter */
    char **served[2];
    uint32_t n_served[2];
    lb_forwards forwards;              /* forward passes that do not simply meet one after the other */
    const struct lb_cut_tensors *cuts; /* tensors that the sides cut otherwise (cut_tensors.h); NULL: not looked for */
} lb_alignment;

/* `rows`: of batches of other sizes, A's being the smaller; they live as long as the alignment. NULL: the batches are
 * alike. A has at most as many calls of a layer as B: who calls more is B (lb_alignment_finer). B has as many parts as
 * A, or a multiple: part i of A stands against that many of B from i times as many on. */
lb_status lb_alignment_make(const lb_program_view *a, const lb_program_view *b, const lb_layer_names_map *rules_a,
                            const lb_layer_names_map *rules_b, const lb_batch_rows *rows, lb_alignment *out,
                            lb_err *err);
/* The same, but ops of the optimizer and of communication outside modules meet by the parameter that they serve
 * (replay/program/owner.h): both go through the parameters in an order that says nothing. */
lb_status lb_alignment_make_by_parameter(const lb_program_view *a, const lb_program_view *b,
                                         const lb_layer_names_map *rules_a, const lb_layer_names_map *rules_b,
                                         lb_alignment *out, lb_err *err);
/* How the larger batch's values stand to the smaller's for that op: does some value that it reads carry rows, so that
 * what it gives in one shape is over other rows? */
bool lb_alignment_reads_rows(const lb_alignment *alignment, const lb_program *a, uint32_t op_a, const lb_program *b,
                             uint32_t op_b);
/* Joins a source of A (an op) to `n` of B that are its parts; false when these do not make it whole. */
bool lb_alignment_reassembly(lb_alignment *alignment, const lb_program *a, const lb_program *b, uint32_t whole,
                             const uint32_t *parts, uint32_t n);
/* The op of A stands for none of B any more. */
void lb_alignment_part(lb_alignment *alignment, uint32_t op_a);
void lb_alignment_release(lb_alignment *alignment);
/* Does the program call its layers more often in a forward pass than the other? */
bool lb_alignment_finer(const lb_program *program, const lb_program *other);

#endif
