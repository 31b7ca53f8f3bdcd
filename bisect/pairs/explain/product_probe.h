/* Runs one matrix product of a place by itself, on the inputs that were recorded for it, to exclude candidates cheaply.
 *
 * A place may hold dozens of products (experts in a loop), and there are two hundred candidates. A kernel that misses
 * the recorded result of one product cannot give what follows from all of them, and one product is tried in a fraction
 * of the time. As a later rounding may hide a difference in the last place, a candidate is excluded by many elements
 * and not by one. */
#ifndef LB_BISECT_PRODUCT_PROBE_H
#define LB_BISECT_PRODUCT_PROBE_H

#include "explain/sample.h"

typedef struct lb_product_probe {
    bool taken;
    int side;
    uint32_t op, leaves[8], partners[8], output;
    lb_matched_region region;
    lb_match_site site;
    lb_sample sample;
    lb_score own; /* of the product as it is */
} lb_product_probe;

/* Takes the product with the longest sums of the side whose bits are asked for. It is not taken where the runner has no
 * such product with as many terms, or where bytes lack. LB_ERR_NOMEM. `probe` may not be moved while it is used. */
lb_status lb_product_probe_take(const lb_match_site *site, int runner, int bits, lb_product_probe *probe, lb_err *err);
/* Does the probe show that the place's ops miss under this candidate? False for a candidate that does not concern
 * products. */
lb_status lb_product_probe_excludes(const lb_product_probe *probe, const lb_candidate *candidate, bool *excludes,
                                    lb_err *err);
void lb_product_probe_release(lb_product_probe *probe);

#endif
