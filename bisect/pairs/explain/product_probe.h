/* A product inside of a place of several ops, run by itself on what its side recorded of it.
 *
 * A place may hold dozens of products (experts in a loop), and two hundred candidates. A kernel that does not give what
 * one of these products gave does not give what follows from all of them either, and the one is found out in a fraction
 * of the time. Since a rounding that follows hides a difference in the last place now and then, a candidate is excluded
 * by many elements and not by one.
 */
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

/* The product with the longest sums of the side whose bits are asked for. Not taken where the runner has no such
 * product, of as many terms, or bytes lack. LB_ERR_NOMEM. `probe` is not moved while it is used. */
lb_status lb_product_probe_take(const lb_match_site *site, int runner, int bits, lb_product_probe *probe, lb_err *err);
/* Does it show that the candidate, run by the place's ops, misses? False where the candidate has nothing to do with
 * products. */
lb_status lb_product_probe_excludes(const lb_product_probe *probe, const lb_candidate *candidate, bool *excludes,
                                    lb_err *err);
void lb_product_probe_release(lb_product_probe *probe);

#endif
