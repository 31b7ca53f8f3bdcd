/* Matched regions: the smallest parts of two programs whose inputs and outputs correspond.
 *
 *        A:  leaf ─▶ sum ─────────────────▶ output       a leaf of A has a partner among B's values, so that A's ops can be
 *            │partner                         │          run on B's bits and their result compared with B's output
 *        B:  leaf ─▶ slice, add, add, … ────▶ output
 *
 * Two ops that align are a matched region of one op on each side; its leaves are their arguments, one by one. Where ops
 * do not align, what an aligned op reads (or a module gives) is followed back on each side to values that both sides
 * have: results of aligned ops, and sources. Where a group of ops also holds ops without a partner, an aligned op in it
 * is believed only if both sides' recorded numbers are near each other.
 *
 * Where several ops of B stand for one of A (a prefill and decode steps), B's ops are not run: A's ops are run on what
 * B's parts hold, put together. Where B's batch is larger, B's values are cut to the rows that A has, and A's ops run
 * on those. A result over all rows (a mean, a weight's gradient) is over different rows; it is passed on to the ops
 * that read it and not compared.
 *
 * Where a matched region ends in the output of a composite (lastbit/composite.h) and holds only a part of it, as other
 * ops of the composite align, it is also made as a whole: then it begins nowhere inside the composite, so that the
 * composite's kernels can be tried. In the same way a region inside a sum of what an all_gather brought is also made as
 * the whole sum.
 *
 * Where the parts of a side are ranks, contents are followed back through a collective without a partner to what all
 * its members brought. A collective with a partner is a matched region of its own, with the ops of all its members. */
#ifndef LB_BISECT_MATCHED_REGION_H
#define LB_BISECT_MATCHED_REGION_H

#include "pair/align.h"
#include "pair/assembly.h"
#include "pair/collective_match.h"
#include "pair/regenerated.h"

typedef struct lb_matched_region_side {
    uint32_t *ops, n_ops;       /* rows of the program, ascending; views included */
    uint32_t *leaves, n_leaves; /* values */
    uint32_t *partners;         /* per leaf: the other side's value, LB_NONE: it has none */
    uint32_t *outputs;          /* as many on both sides; NULL: the region is of the other side alone */
    uint32_t op;                /* what gives the first output; named in reports */
} lb_matched_region_side;

typedef struct lb_matched_region {
    lb_matched_region_side sides[2];
    uint32_t n_outputs;
    bool pair; /* one op each, or one collective each */
    /* So many ops of B stand for one of A, or for what A's ops give; B has no ops here. 1: one op of B with a larger
     * batch, from which rows are taken: then B's op runs on those rows too, and its leaves are assemblies. 0: one
     * against one. */
    uint32_t parts;
    /* of a whole: the lb_composite_kind that it was grown to; the number of these kinds: a sum of what was gathered */
    int composite;
    /* the same output, followed back to the inputs of the whole composite; NULL: none */
    struct lb_matched_region *whole;
} lb_matched_region;

typedef struct lb_matched_regions {
    lb_matched_region *list;
    uint32_t n;
    /* ops that read rows of a larger batch and give a result over all of them, which has no partner */
    uint32_t over_others;
} lb_matched_regions;

typedef struct lb_matched_region_source {
    const lb_program_view *a, *b;
    const lb_alignment *alignment;
    const lb_regenerated *bytes[2];
    char *const *paths[2];     /* per scope, after the maps: what modules are called on both sides */
    lb_assemblies *assemblies; /* of B, grown as matched regions are found */
    bool all;                  /* also regions whose outputs are equal */
    /* per value: a source whose numbers the other side holds in another layout, so that they serve for both; NULL:
     * none */
    const uint8_t *held[2];
    /* the sides' parts are ranks; NULL: one rank, whose collectives are leaves */
    const lb_collective_matches *collective_matches[2];
} lb_matched_region_source;

/* Finds the regions of which some output differs in bits (or all regions), in the order of A's program. */
lb_status lb_matched_regions_find(const lb_matched_region_source *source, lb_matched_regions *out, lb_err *err);
void lb_matched_regions_release(lb_matched_regions *regions);
/* The ops that take part in what an op of a side does: all members of a collective, else the op itself. `*n`: how
 * many. */
const uint32_t *lb_matched_region_members(const lb_matched_region_source *source, int side, const uint32_t *op,
                                          uint32_t *n);
/* Is it a collective of which all members are there? */
bool lb_matched_region_is_met(const lb_matched_region_source *source, int side, uint32_t op);
/* Has a side of the matched region a collective of several ranks among its ops? */
bool lb_matched_region_meets(const lb_matched_region_source *source, const lb_matched_region *region, int side);

const lb_program *lb_matched_region_program(const lb_matched_region_source *source, int side);
/* A value of a side, assemblies of B among them: what it is, and its very bytes (false: not kept, nor regenerated). */
const lb_value *lb_matched_region_value(const lb_matched_region_source *source, int side, uint32_t value);
/* The value of the side's program that an assembly is rows of; itself when it is none. */
uint32_t lb_matched_region_recorded(const lb_matched_region_source *source, int side, uint32_t value);
bool lb_matched_region_bytes(const lb_matched_region_source *source, int side, uint32_t value, lb_tensor *tensor);
/* Is `b` (of B) the same input or output of the same call of the same module as `a`, and has a value? Calls of
 * forward passes that meet by their data (bisect/pairs/pair/forwards.h) are the same whenever they ran. */
bool lb_matched_region_same_place(const lb_matched_region_source *source, const lb_boundary *a, const lb_boundary *b);
/* Is `b` (of B) a choice of experts by the same call of the same module as `a`? */
bool lb_matched_region_same_choice(const lb_matched_region_source *source, const lb_routing *a, const lb_routing *b);
/* Do two values of the sides differ? By digests where dtypes agree, else by their bytes. True where that is unknown. */
bool lb_matched_region_differs(const lb_matched_region_source *source, uint32_t value_a, uint32_t value_b);

#endif
