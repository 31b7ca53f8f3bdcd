/* Rounding or bug, for one pair: see diff_verdict.h. The order of the questions is the order of what is known best. */
#include "diff/diff_verdict.h"

/* Whatever lies upstream: is something wrong with the op itself? */
static bool judge_own(const lb_evidence *evidence, lb_verdict *local, const char **why)
{
    static const char *const outside[] = {
        "the first side's recorded bits lie outside this op's error bound from its own inputs",
        "the second side's recorded bits lie outside this op's error bound from its own inputs"};
    for (int side = 0; side < 2; side++) {
        if (evidence->own[side] != LB_VERDICT_DIVERGED) continue;
        *local = LB_VERDICT_DIVERGED, *why = outside[evidence->swapped ? 1 - side : side];
        return true;
    }
    return false;
}

/* Integers and bools: each side decided rightly from its own inputs, or it would have been caught above. */
static lb_verdict judge_decision(const lb_evidence *evidence, const char **why)
{
    if (!evidence->same_args && !evidence->args_follow && evidence->leads && !evidence->inputs_apart) {
        *why = "called with other arguments, which decide otherwise";
        return LB_VERDICT_DIVERGED;
    }
    if (evidence->agreement == LB_SHADOW_DISAGREES && evidence->leads && !evidence->inputs_apart) {
        *why = "the same inputs give other integers";
        return LB_VERDICT_DIVERGED;
    }
    if (evidence->agreement == LB_SHADOW_DISAGREES && !evidence->leads) {
        *why = "inside a layer that the two sides compute in other ops; nothing that leaves the step follows from it";
        return LB_VERDICT_ROUNDING;
    }
    if (!lb_verdict_is_accounted_for(evidence->own[0]) || !lb_verdict_is_accounted_for(evidence->own[1])) {
        *why = "a decision differs, and could not be replayed";
        return evidence->inputs_differ ? LB_VERDICT_MISSING : LB_VERDICT_DIVERGED;
    }
    if (!evidence->inputs_differ) {
        *why = "a tie, decided either way";
        return LB_VERDICT_ROUNDING;
    }
    *why = "each side decides rightly from its own inputs, which differ";
    return LB_VERDICT_IDENTICAL;
}

static lb_verdict judge_disagreement(const lb_evidence *evidence, bool exact, const char **why)
{
    if (evidence->inputs_apart) {
        *why = "its inputs already differ in exact arithmetic";
        return exact ? LB_VERDICT_IDENTICAL : LB_VERDICT_ROUNDING;
    }
    if (!evidence->leads) {
        *why = "inside a layer that the two sides compute in other ops; nothing that leaves the step follows from it";
        return LB_VERDICT_ROUNDING;
    }
    *why = evidence->same_args ? "the same inputs give other exact values"
                               : "called with other arguments, which give other exact values";
    return LB_VERDICT_DIVERGED;
}

lb_verdict lb_diff_verdict_of_pair(const lb_evidence *evidence, const char **why)
{
    lb_verdict local;
    if (evidence->random && !evidence->inputs_differ) {
        *why = "the random draws differ";
        return LB_VERDICT_DIVERGED;
    }
    if (!evidence->replayed) {
        *why = evidence->same_args ? "not replayed: whether this is rounding cannot be told from digests"
                                   : "called with other arguments";
        return evidence->same_args ? LB_VERDICT_MISSING : LB_VERDICT_DIVERGED;
    }
    if (judge_own(evidence, &local, why)) return local;
    if (evidence->decides) return judge_decision(evidence, why);
    bool exact =
        evidence->own[0] == LB_VERDICT_IDENTICAL && evidence->own[1] == LB_VERDICT_IDENTICAL && evidence->inputs_differ;
    if (evidence->agreement == LB_SHADOW_DISAGREES) return judge_disagreement(evidence, exact, why);
    if (evidence->agreement == LB_SHADOW_AGREES) {
        *why = "in exact arithmetic both sides give the same";
        return exact ? LB_VERDICT_IDENTICAL : LB_VERDICT_ROUNDING;
    }
    if (!evidence->same_args && !evidence->args_follow && !evidence->irregular) {
        *why = "called with other arguments";
        return LB_VERDICT_DIVERGED;
    }
    if (exact && evidence->same_args) {
        *why = "the same op, exactly replayed on both sides, on inputs that differ";
        return LB_VERDICT_IDENTICAL;
    }
    bool replayed = lb_verdict_is_accounted_for(evidence->own[0]) && lb_verdict_is_accounted_for(evidence->own[1]);
    *why = replayed ? "each side's bits lie inside this op's error bound" : "this op could not be replayed";
    return replayed ? LB_VERDICT_ROUNDING : LB_VERDICT_MISSING;
}
