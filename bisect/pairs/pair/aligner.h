/* The state of one alignment while it is built. align.c opens and closes it. It passes the state to align_calls.c,
 * which matches ops, and then to align_sources.c and align_parts.c, which match sources; these come second because
 * sources are also matched by the ops that read them. Only these files and source_list.c include this header. */
#ifndef LB_BISECT_ALIGNER_H
#define LB_BISECT_ALIGNER_H

#include "pair/align.h"
#include "pair/layer_ops.h"

typedef struct lb_aligner {
    const lb_program_view *side_a, *side_b;
    const lb_program *a, *b; /* theirs */
    lb_layer_ops ops[2];
    lb_alignment *out;
    bool stages; /* B's ranks hold other layers each: what one of them has is the whole */
    bool failed; /* out of memory */
} lb_aligner;

/* Joins op (or source) `whole` of A to `n` of B, if what they give can be put together. `values`: room for n. */
bool lb_aligner_join(lb_aligner *al, uint32_t whole, const uint32_t *ops, uint32_t n, uint32_t *values);

/* The group of the part that an op of A or of B lies in. */
uint32_t lb_aligner_group(const lb_aligner *al, int side, uint32_t op);

/* ---- ops (align_calls.c) ---- */

/* All layers that both sides have. */
void lb_aligner_match_layers(lb_aligner *al);

/* ---- the sources of a side (source_list.c) ---- */

/* The first op that reads a source, and as which of its inputs, lists entered; op LB_NONE: none does. */
typedef struct lb_source_reader {
    uint32_t op, input;
} lb_source_reader;

/* Where in what is read of its storage a source begins, in elements, and whether that is read in several pieces. */
typedef struct lb_source_place {
    int64_t offset;
    bool in_pieces;
} lb_source_place;

/* One side's sources. */
typedef struct lb_source_list {
    const lb_program_view *side;
    uint32_t *ops, n;
    char **names; /* mapped; "" where a source has none */
    lb_source_reader *readers;
    lb_source_place *places;
    uint8_t *taken; /* it has its partner, or is a part of one */
} lb_source_list;

/* What a source holds; NULL where the op is none. */
const lb_value *lb_source_value(const lb_program *program, uint32_t op);

/* A source is called what it shows: a window of it may have the name that the other side's source has. `which`: 0 for
 * A, 1 for B. False when out of memory; the list is to be released then, too. */
bool lb_source_list_init(lb_source_list *list, const lb_aligner *al, int which, const lb_layer_names_map *rules);
void lb_source_list_release(lb_source_list *list);

/* Whether the ranks of a side hold a layer each, as the stages of a pipeline do: every one has parameters that no other
 * has, and hardly any is held twice. Ranks that share out experts or heads hold norms and embeddings alike; flat
 * parameters that are shared out say so. False when out of memory. */
bool lb_source_list_find_stages(const lb_source_list *list, bool *are_stages);

/* ---- which source of B is which of A (align_sources.c) ---- */

/* After the ops. `rules`: of each side. LB_ERR_NOMEM is the only failure. */
lb_status lb_aligner_match_sources(lb_aligner *al, const lb_layer_names_map *const rules[2], lb_err *err);

/* ---- one source of A against several of B (align_parts.c); false when out of memory ---- */

/* Sources of which the recording says which part of a larger tensor they are. */
bool lb_aligner_join_shards(lb_aligner *al, lb_source_list *a, lb_source_list *b);
/* B is more programs: one source of each of those that stand for A's. */
bool lb_aligner_join_programs(lb_aligner *al, lb_source_list *a, lb_source_list *b);
/* What one op of A reads, and each of its parts of B by a source of its own: slices of a batch. */
bool lb_aligner_join_slices(lb_aligner *al, lb_source_list *a, lb_source_list *b);

#endif
