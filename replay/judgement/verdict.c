/* Local verdicts: see verdict.h. */
#include "judgement/verdict.h"

#include "kernel/complex_rows.h"
#include "judgement/factorisation.h"

#include <math.h>

#define WORD(name, word, severity) word,
#define SEVERITY(name, word, severity) severity,

const char *lb_verdict_name(lb_verdict verdict)
{
    static const char *const words[] = {LB_VERDICTS(WORD)};
    return (unsigned)verdict < LB_VERDICT_COUNT ? words[verdict] : "unknown";
}

int lb_verdict_severity(lb_verdict verdict)
{
    static const int severities[] = {LB_VERDICTS(SEVERITY)};
    return severities[verdict];
}

lb_verdict lb_verdict_worse(lb_verdict first, lb_verdict second)
{
    return lb_verdict_severity(first) >= lb_verdict_severity(second) ? first : second;
}

bool lb_verdict_is_accounted_for(lb_verdict verdict)
{
    switch (verdict) {
    case LB_VERDICT_IDENTICAL:
    case LB_VERDICT_REORDERED:
    case LB_VERDICT_NOISE:
    case LB_VERDICT_ROUNDING: return true;
    default: return false;
    }
}

/* Of equal zeros a maximum may keep either; instruction sets and lanes differ in it. As numbers the two tensors are the
 * same. */
static bool differ_in_signs_of_zero(const lb_tensor *first, const lb_tensor *second)
{
    lb_tensor parts[2];
    if (!lb_complex_tensor_parts(first, &parts[0]) || !lb_complex_tensor_parts(second, &parts[1])) return false;
    const lb_tensor *a = &parts[0], *b = &parts[1];
    size_t size = lb_dtype_bits(a->dtype) / 8;
    if (!lb_dtype_is_float(a->dtype) || !size || a->dtype != b->dtype) return false;
    int64_t index[LB_MAX_DIMS] = {0}, at_a = 0, at_b = 0, n = lb_layout_numel(&a->layout);
    for (int64_t i = 0; i < n; i++) {
        double x = lb_to_f64(a->dtype, (const char *)a->data + at_a * (int64_t)size);
        double y = lb_to_f64(b->dtype, (const char *)b->data + at_b * (int64_t)size);
        if (x != y && !(isnan(x) && isnan(y))) return false;
        for (int d = a->layout.ndim - 1; d >= 0; d--) {
            at_a += a->layout.stride[d], at_b += b->layout.stride[d];
            if (++index[d] < a->layout.shape[d]) break;
            at_a -= a->layout.stride[d] * a->layout.shape[d], at_b -= b->layout.stride[d] * a->layout.shape[d];
            index[d] = 0;
        }
    }
    return true;
}

/* By residuals. The exact results are evaluated where they are asked for. */
static lb_status judge_factors(lb_memory *memory, const lb_call *call, const lb_tensor *recorded, bool force,
                               lb_bound *bound, lb_judgement *judgement, lb_err *err)
{
    bool differs = false;
    for (uint32_t i = 0; i < call->n_results; i++)
        differs |= call->results[i].data && recorded[i].data && !lb_memory_tensor_same(&call->results[i], &recorded[i]);
    if (differs) {
        const double ratio =
            lb_factorisation_ratio(call->row->name, call->args, call->n_args, recorded, call->n_results);
        *judgement = (lb_judgement){isnan(ratio) ? LB_VERDICT_OPAQUE
                                    : ratio <= 1 ? LB_VERDICT_ROUNDING
                                                 : LB_VERDICT_DIVERGED,
                                    ratio};
    }
    const lb_status status = force ? lb_bound_init(bound, memory, call, err) : LB_OK;
    return status == LB_ERR_UNSUPPORTED ? LB_OK : status;
}

lb_status lb_verdict_judge(lb_memory *memory, const lb_call *call, const lb_tensor *recorded, bool force,
                           lb_bound *bound, lb_judgement *judgement, lb_err *err)
{
    *judgement = (lb_judgement){LB_VERDICT_IDENTICAL, NAN};
    *bound = (lb_bound){0};
    if (call->row->flags & LB_ROW_FACTORS) return judge_factors(memory, call, recorded, force, bound, judgement, err);
    const bool strict = lb_row_is_exact(call);
    bool differs = false, hard = strict, zeros = true; /* zeros: signs of zeros are all that differs */
    for (uint32_t i = 0; i < call->n_results; i++) {
        if (!call->results[i].data || !recorded[i].data || lb_memory_tensor_same(&call->results[i], &recorded[i]))
            continue;
        differs = true;
        hard |= !lb_dtype_is_float(lb_dtype_part(recorded[i].dtype));
        zeros = zeros && strict && differ_in_signs_of_zero(&call->results[i], &recorded[i]);
    }
    if (differs && hard)
        *judgement = zeros ? (lb_judgement){LB_VERDICT_ROUNDING, 0} : (lb_judgement){LB_VERDICT_DIVERGED, INFINITY};
    if (!force && (!differs || hard)) return LB_OK;
    if (call->row->flags & LB_ROW_DISCONTINUOUS && strict) return LB_OK;
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
