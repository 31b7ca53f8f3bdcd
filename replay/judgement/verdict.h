/* Local verdicts: what a difference between a replayed result and its recording means, given equal inputs. */
#ifndef LB_REPLAY_VERDICT_H
#define LB_REPLAY_VERDICT_H

#include "judgement/bound.h"
#include "kernel/value_memory.h"
#include "kernel/ops.h"

#include <lastbit/verdict.h>

typedef struct lb_judgement {
    lb_verdict verdict;
    double bound_ratio; /* worst |recorded - exact| / bound over the results; NaN when no bound was needed */
} lb_judgement;

/* Judges one kernel call: `call` as it ran (inputs untouched since, results computed), `recorded` per result (data
 * NULL: not kept). Equal bits are `identical` without a bound; otherwise the op is evaluated in f64 from the same
 * inputs, and a recorded result inside the bound is `rounding`, outside `diverged`. Rows that are exact or
 * discontinuous have no bound: any difference is `diverged`. A recorded factorisation is `rounding` where it keeps what
 * it promises (factorisation.h), and `opaque` where that cannot be said. `force`: evaluate even where bits agree.
 * `*bound` is to be released in any case; what was evaluated stays in it. */
lb_status lb_verdict_judge(lb_memory *memory, const lb_call *call, const lb_tensor *recorded, bool force,
                           lb_bound *bound, lb_judgement *judgement, lb_err *err);

#endif
