/* Aligns two sides: which op of B is op i of A.
 *
 * Ops are grouped by phase, layer path (after the maps) and call of the layer; calls are counted inside forward passes
 * that meet, where these do not follow each other alike (forwards.h). Inside a group the longest common subsequence of
 * op names and shapes decides. So a run that computes something by different ops (eager against fused attention,
 * foreach against single-tensor AdamW) still lines up before and after that place.
 *
 * Where B calls a layer several times for one call of A (micro-batches, decode steps, ranks), ops are matched by name,
 * one against several, if their results can be put together (reassembly.h). Where B's batch has more rows than A's
 * (batch_rows.h), an op that reads or gives rows is matched with the one that does so with A's rows, and is joined to
 * it as a part from which some rows are taken.
 *
 * Views, sources and host marks are not aligned here as ops: what they hold is found through the values. */
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
    /* per op of A: its group also holds ops without a partner, so that its pair may be wrong */
    uint8_t *irregular;
    /* Per op of A that is a source: the source of B with the same name. Where one of them has no name, the source with
     * the same bits, or the source that the partner of its first reader reads in its place. LB_NONE: none. */
    uint32_t *source_b_of_a;
    /* Per op of A without a partner: the op of B without a partner that has its place and name, and reads or gives
     * different shapes (an expert over different tokens); LB_NONE. These do not count as pairs. */
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
    lb_forwards forwards; /* forward passes that do not simply meet one after the other */
    /* tensors that the sides split differently (cut_tensors.h); NULL: not looked for */
    const struct lb_cut_tensors *cuts;
} lb_alignment;

/* `rows`: for batches of different sizes, A's being the smaller; they have to live as long as the alignment. NULL: the
 * batches have one size. A is the side that calls layers less often (lb_alignment_finer). B has as many parts as A, or
 * a multiple m of them: part i of A is compared with parts m·i to m·i + m - 1 of B. */
lb_status lb_alignment_make(const lb_program_view *a, const lb_program_view *b, const lb_layer_names_map *rules_a,
                            const lb_layer_names_map *rules_b, const lb_batch_rows *rows, lb_alignment *out,
                            lb_err *err);
/* The same, but ops of the optimizer and of communication outside modules meet by the parameter that they serve
 * (replay/program/owner.h): both go through the parameters in an order that says nothing. */
lb_status lb_alignment_make_by_parameter(const lb_program_view *a, const lb_program_view *b,
                                         const lb_layer_names_map *rules_a, const lb_layer_names_map *rules_b,
                                         lb_alignment *out, lb_err *err);
/* Does the op read some value that carries rows of batches of different sizes? Then its result is over different rows
 * on the two sides, even where it has one shape. */
bool lb_alignment_reads_rows(const lb_alignment *alignment, const lb_program *a, uint32_t op_a, const lb_program *b,
                             uint32_t op_b);
/* Joins a source of A (an op) to `n` of B that are its parts; false when these do not make it whole. */
bool lb_alignment_reassembly(lb_alignment *alignment, const lb_program *a, const lb_program *b, uint32_t whole,
                             const uint32_t *parts, uint32_t n);
/* Parts the op of A from its partner. */
void lb_alignment_part(lb_alignment *alignment, uint32_t op_a);
void lb_alignment_release(lb_alignment *alignment);
/* Does the program call its layers more often in a forward pass than the other? */
bool lb_alignment_finer(const lb_program *program, const lb_program *other);

#endif
