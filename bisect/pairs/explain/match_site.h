/* A match site is a matched region prepared for trials: it holds each side's runnable ops, inputs and recorded outputs.
 * Either side's ops (the runner) run on either side's recorded inputs (the bits), and the result is compared with the
 * outputs that were recorded with those inputs.
 *
 *      runner  bits
 *        A      A     does replay give what A recorded?
 *        A      B     does A's program give what B recorded, on B's inputs?
 *        B      A     the other direction
 *        B      B */
#ifndef LB_BISECT_MATCH_SITE_H
#define LB_BISECT_MATCH_SITE_H

#include "explain/candidate.h"
#include "subprogram/subprogram.h"
#include "explain/matched_region.h"

typedef struct lb_score {
    bool ran;
    int64_t matched, elements;
    int64_t unrounded; /* of those matched: no rounding to the recorded dtype was needed */
    double distance;   /* worst relative L2 of the outputs, before any rounding to the recorded dtype */
} lb_score;
static inline bool lb_score_all(const lb_score *s)
{
    return s->ran && s->matched == s->elements;
}

/* May the kernel that gave all elements of `with` have run for `without`, too, although replay misses some elements
 * there? A library's own function (its exponential, its square root) is off by one unit in one element of some
 * thousand, so that replay gives all elements of some tensors and misses a few of others. The misses of the other
 * tensor are counted; this one had the same chance of a miss in each of its elements. */
bool lb_match_score_by_chance(const lb_score *with, const lb_score *without);

typedef struct lb_match_site {
    const lb_matched_region *region;
    const lb_matched_region_source *source;
    lb_subprogram *subprograms[2]; /* NULL: that side's ops cannot be run */
    lb_tensor *inputs[2][2];       /* [runner][bits], per leaf of the runner; NULL: they cannot be had */
    void **owned[2][2];            /* of them: converted copies */
    lb_tensor *targets[2];         /* per output; NULL: bytes lack */
    char why[160];                 /* the last thing that could not be had */
} lb_match_site;

lb_status lb_match_site_open(const lb_matched_region *region, const lb_matched_region_source *source,
                             lb_match_site *site, lb_err *err);
void lb_match_site_release(lb_match_site *site);
static inline bool lb_match_site_can(const lb_match_site *p, int runner, int bits)
{
    return p->subprograms[runner] && p->inputs[runner][bits] && p->targets[bits];
}
/* `score->ran` is false where it cannot be run; LB_ERR_NOMEM is the only failure. */
lb_status lb_match_site_try(const lb_match_site *site, int runner, int bits, const lb_candidate *candidate,
                            lb_score *score, lb_err *err);
/* Do the recorded bits of a side lie inside the bounds of the runner's op on that side's inputs? False where that is
 * not known, or the runner is not one op. */
lb_status lb_match_site_reaches(const lb_match_site *site, int runner, int bits, bool *reaches, lb_err *err);
/* Do both programs compute the same real function of B's (A's) inputs, as far as f64 tells? Where B has no ops to run:
 * is it as near to the exact result as A's own ops come? False where not known. */
lb_status lb_match_site_same_function(const lb_match_site *site, bool *same, lb_err *err);
/* Are a side's recorded bits as near to the exact result of its own ops as replay's kernels come? False where not
 * known. */
lb_status lb_match_site_is_near(const lb_match_site *site, int side, bool *near, lb_err *err);
/* Of a matched region where B is parts: which parts (of a larger batch: which rows) have the bits that A's ops give
 * under a candidate? `matched` has a place for each, all 0. */
lb_status lb_match_site_parts(const lb_match_site *site, const lb_candidate *candidate, uint8_t *matched, lb_err *err);
/* Do both sides have the same bits in every leaf that both read? */
bool lb_match_site_same_inputs(const lb_match_site *site);

#endif
