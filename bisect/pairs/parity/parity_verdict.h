/* What decides whether two sides agree: each row's k3 and losses against their limits, and findings that no number can
 * outweigh. */
#ifndef LB_BISECT_PARITY_VERDICT_H
#define LB_BISECT_PARITY_VERDICT_H

#include <lastbit/parity.h>

/* Fills each row's reason, the verdict, and the sentence that says what decided it. Rows, findings, pairs and noise are
 * there. */
void lb_parity_verdict_decide(lb_parity_report *report, double threshold);
/* k3 at which a row of this noise fails; the factor between losses above which it does. */
double lb_parity_verdict_k3_limit(const lb_parity_row *row, double threshold);
double lb_parity_verdict_loss_limit(const lb_parity_row *row);

#endif
