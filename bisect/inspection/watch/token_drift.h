/* Drift of token frequencies: counts of the last ten records against those of the first ten.
 *
 * The distance is the Kullback-Leibler divergence in nats, KL(now || begin), half a count added to every bin
 * (Krichevsky and Trofimov 1981), so that a token that is new does not make it infinite. Batches are no independent
 * draws, and how far they scatter is the data's own affair: the next ten distances say what is usual. Above five times
 * the largest of those, and 0.05 nats, it drifts; mostly the tokenizer is another one. Of fewer than thirty records
 * short_drift.h says what there is to say. */
#ifndef LB_TOKEN_DRIFT_H
#define LB_TOKEN_DRIFT_H

#include "watch/short_drift.h"

#include <lastbit/watch.h>

#define LB_DRIFT_LEAST 0.05
#define LB_DRIFT_TIMES 5.0
enum { LB_DRIFT_RECORDS = 10, LB_DRIFT_KEPT = 3 * LB_DRIFT_RECORDS, LB_DRIFT_BINS = 1 << 16 };

typedef struct lb_token_drift {
    uint32_t bins;
    double *begin, *sum, *ring;   /* `ring`: the last thirty records, one after the other */
    int64_t steps[LB_DRIFT_KEPT]; /* theirs */
    uint64_t n;
    lb_short_drift early; /* of the first `early_n` records */
    uint64_t early_n;
    double usual, distance;
    bool out;
} lb_token_drift;
void lb_token_drift_release(lb_token_drift *drift);

typedef enum lb_drift_answer {
    LB_DRIFT_QUIET,
    LB_DRIFT_OUT,
    LB_DRIFT_UNREADABLE /* no list of counts, or one of another length */
} lb_drift_answer;
/* `counts`: numbers with anything between them. Sets distance, and usual: what it is compared with. */
lb_drift_answer lb_token_drift_take(lb_token_drift *drift, int64_t step, lb_watch_word counts);
/* While there are fewer records than an alarm takes; NULL: there are as many, or none. */
const lb_short_drift *lb_token_drift_early(lb_token_drift *drift);

#endif
