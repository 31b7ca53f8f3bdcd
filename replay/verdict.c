/* Local verdicts: see verdict.h. */
#include "verdict.h"

#include <math.h>

const char *lb_verdict_name(lb_verdict verdict)
{
    static const char *const names[] = {[LB_VERDICT_IDENTICAL] = "identical", [LB_VERDICT_REORDERED] = "reordered",
                                        [LB_VERDICT_ROUNDING] = "rounding",   [LB_VERDICT_NOISE] = "noise",
                                        [LB_VERDICT_DIVERGED] = "diverged",   [LB_VERDICT_MISSING] = "missing",
                                        [LB_VERDICT_OPAQUE] = "opaque"};
    return (unsigned)verdict < sizeof names / sizeof *names ? names[verdict] : "unknown";
}

int lb_verdict_severity(lb_verdict verdict)
{
    static const int severity[] = {[LB_VERDICT_IDENTICAL] = 0, [LB_VERDICT_REORDERED] = 1, [LB_VERDICT_OPAQUE] = 2,
                                   [LB_VERDICT_NOISE] = 3,     [LB_VERDICT_ROUNDING] = 4,  [LB_VERDICT_MISSING] = 5,
                                   [LB_VERDICT_DIVERGED] = 6};
    return severity[verdict];
}

lb_status lb_verdict_judge(lb_memory *memory, const lb_call *call, const lb_tensor *recorded, bool force, lb_bound *bound,
                           lb_judgement *judgement, lb_err *err)
{
    *judgement = (lb_judgement){LB_VERDICT_IDENTICAL, NAN};
    *bound = (lb_bound){0};
    bool differs = false, hard = (call->row->flags & (LB_ROW_EXACT | LB_ROW_DISCONTINUOUS)) != 0;
    for (uint32_t i = 0; i < call->n_results; i++) {
        if (!call->results[i].data || !recorded[i].data || lb_tensor_same(&call->results[i], &recorded[i])) continue;
        differs = true;
        hard |= !lb_dtype_is_float(recorded[i].dtype);
    }
    if (differs && hard) *judgement = (lb_judgement){LB_VERDICT_DIVERGED, INFINITY};
    if (!force && (!differs || hard)) return LB_OK;
    if (call->row->flags & LB_ROW_DISCONTINUOUS) return LB_OK;
    lb_err local = LB_ERR_INIT;
    lb_status status = lb_bound_init(bound, memory, call, &local);
    if (hard) return status == LB_ERR_UNSUPPORTED ? LB_OK : status;
    if (status == LB_ERR_UNSUPPORTED) {
        judgement->bound_ratio = INFINITY; /* no bound: a difference cannot be excused */
    } else if (status != LB_OK) {
        return lb_fail(err, status, "%s", local.message);
    } else {
        double worst = 0;
        for (uint32_t i = 0; i < call->n_results; i++) {
            double ratio = recorded[i].data ? lb_bound_ratio(bound, i, &recorded[i]) : 0;
            if (ratio > worst) worst = ratio;
        }
        judgement->bound_ratio = worst;
    }
    if (differs) judgement->verdict = judgement->bound_ratio <= 1 ? LB_VERDICT_ROUNDING : LB_VERDICT_DIVERGED;
    return LB_OK;
}
