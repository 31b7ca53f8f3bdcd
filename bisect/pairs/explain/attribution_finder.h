/* The state of one search for a cause (attribution.h). attribution.c decides, attribution_scan.c finds the candidates
 * that reproduce a place's recorded bits or parts of them, and attribution_told.c puts the result into words. No other
 * file includes this header.
 *
 * `runner` is the side whose ops run. `bits` is the side whose recorded inputs they run on and whose recorded outputs
 * they should give. */
#ifndef LB_BISECT_ATTRIBUTION_FINDER_H
#define LB_BISECT_ATTRIBUTION_FINDER_H

#include "explain/attribution.h"
#include "explain/product_probe.h"

/* Once something matched, at least 16 candidates are tried before time may end the search, so that a match is never
 * reported before others had their chance. */
enum { LB_MOST_MATCHES = 64, LB_LEAST_TRIED = 16 };

typedef struct lb_attribution_scan {
    uint32_t matches[LB_MOST_MATCHES], n; /* rows of the list */
    uint32_t best, tried, excluded;
    lb_score best_score;
    lb_sample sample;
    lb_product_probe probe;
    uint32_t likely; /* of those that the sample excluded, the one that came nearest */
    int64_t likely_matched;
    double work;    /* of one run of the place */
    double seconds; /* that it took, by what it ran (attribution_scan.c) */
    bool cut_short; /* some candidates cost more than may be spent */
} lb_attribution_scan;

typedef struct lb_attribution_finder {
    const lb_match_site *site;
    lb_attribution_memory *memory;
    lb_attribution_found *found;
    lb_candidate *list[2]; /* of each runner; row 0 is its ops as they are */
    uint32_t n[2];
    lb_score own[2][2]; /* [runner][bits] of row 0 */
    double *spent;      /* on places of this kind */
    lb_err *err;
} lb_attribution_finder;

/* ---- trying (attribution_scan.c) ---- */

/* One candidate on the whole place. */
lb_status lb_attribution_try(lb_attribution_finder *finder, int runner, int bits, uint32_t row, lb_score *score);
/* Tries all candidates of the runner, and ranks those that match. */
lb_status lb_attribution_scan_all(lb_attribution_finder *finder, int runner, int bits, lb_attribution_scan *scan);

/* ---- where B is parts (attribution_scan.c) ---- */

lb_status lb_attribution_by_parts(lb_attribution_finder *finder, bool *done);

/* ---- saying it (attribution_told.c) ---- */

const lb_value *lb_attribution_output(const lb_attribution_finder *finder, int side);
/* What the runner's ops do by themselves; the name of row `row`, which for row 0 is the same and else the candidate's.
 */
const char *lb_attribution_own_name(const lb_attribution_finder *finder, int runner);
const char *lb_attribution_name(const lb_attribution_finder *finder, int runner, uint32_t row);
bool lb_attribution_rounds_at_end(const lb_attribution_finder *finder, int runner, int bits);
void lb_attribution_tell_match(lb_attribution_finder *finder, int runner, int bits, const lb_attribution_scan *scan);
void lb_attribution_tell_input(lb_attribution_finder *finder, lb_proof proof, const lb_score *score, const char *why);
void lb_attribution_tell_unexplained(lb_attribution_finder *finder);
/* What A's program needs to give A's own bits. */
void lb_attribution_keep_own(lb_attribution_finder *finder, const lb_candidate *candidate);

static inline bool lb_candidate_is_fused(const lb_candidate *c)
{
    return c->n_swaps && c->swaps[0].kind == LB_SWAP_FUSE;
}

#endif
