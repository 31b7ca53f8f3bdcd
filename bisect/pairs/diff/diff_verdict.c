/* Rounding or bug, for one pair: see diff_verdict.h. The order of the questions is the order of what is known best. */
#include "diff/diff_verdict.h"

/* Whatever lies upstream: is something wrong with the op itself? */
static bool judge_own(const lb_evidence *e, lb_verdict *local, const char **why)
{
    static const char *const outside[] = {
        "the first side's recorded bits lie outside this op's error bound from its own inputs",
        "the second side's recorded bits lie outside this op's error bound from its own inputs"};
    for (int side = 0; side < 2; side++) {
        if (e->own[side] != LB_VERDICT_DIVERGED) continue;
        *local = LB_VERDICT_DIVERGED, *why = outside[e->swapped ? 1 - side : side];
        return true;
    }
    return false;
}

/* Integers and bools: each side decided rightly from its own inputs, or it would have been caught above. */
static lb_verdict judge_decision(const lb_evidence *e, const char **why)
{
    if (!e->same_args && !e->args_follow && e->leads && !e->inputs_apart) {
        *why = "called with other arguments, which decide otherwise";
        return LB_VERDICT_DIVERGED;
    }
    if (e->agreement == LB_SHADOW_DISAGREES && e->leads && !e->inputs_apart) {
        *why = "the same inputs give other integers";
        return LB_VERDICT_DIVERGED;
    }
    if (e->agreement == LB_SHADOW_DISAGREES && !e->leads) {
        *why = "inside a layer that the two sides compute in other ops; nothing that leaves the step follows from it";
        return LB_VERDICT_ROUNDING;
    }
    if (!lb_verdict_is_accounted_for(e->own[0]) || !lb_verdict_is_accounted_for(e->own[1])) {
        *why = "a decision differs, and could not be replayed";
        return e->inputs_differ ? LB_VERDICT_MISSING : LB_VERDICT_DIVERGED;
    }
    if (!e->inputs_differ) {
        *why = "a tie, decided either way";
        return LB_VERDICT_ROUNDING;
    }
    *why = "each side decides rightly from its own inputs, which differ";
    return LB_VERDICT_IDENTICAL;
}

static lb_verdict judge_disagreement(const lb_evidence *e, bool exact, const char **why)
{
    if (e->inputs_apart) {
        *why = "its inputs already differ in exact arithmetic";
        return exact ? LB_VERDICT_IDENTICAL : LB_VERDICT_ROUNDING;
    }
    if (!e->leads) {
        *why = "inside a layer that the two sides compute in other ops; nothing that leaves the step follows from it";
        return LB_VERDICT_ROUNDING;
    }
    *why = e->same_args ? "the same inputs give other exact values"
                        : "called with other arguments, which give other exact values";
    return LB_VERDICT_DIVERGED;
}

lb_verdict lb_diff_verdict_of_pair(const lb_evidence *e, const char **why)
{
    lb_verdict local;
    if (e->random && !e->inputs_differ) {
        *why = "the random draws differ";
        return LB_VERDICT_DIVERGED;
    }
    if (!e->replayed) {
        *why = e->same_args ? "not replayed: whether this is rounding cannot be told from digests"
                            : "called with other arguments";
        return e->same_args ? LB_VERDICT_MISSING : LB_VERDICT_DIVERGED;
    }
    if (judge_own(e, &local, why)) return local;
    if (e->decides) return judge_decision(e, why);
    bool exact = e->own[0] == LB_VERDICT_IDENTICAL && e->own[1] == LB_VERDICT_IDENTICAL && e->inputs_differ;
    if (e->agreement == LB_SHADOW_DISAGREES) return judge_disagreement(e, exact, why);
    if (e->agreement == LB_SHADOW_AGREES) {
        *why = "in exact arithmetic both sides give the same";
        return exact ? LB_VERDICT_IDENTICAL : LB_VERDICT_ROUNDING;
    }
    if (!e->same_args && !e->args_follow && !e->irregular) {
        *why = "called with other arguments";
        return LB_VERDICT_DIVERGED;
    }
    if (exact && e->same_args) {
        *why = "the same op, exactly replayed on both sides, on inputs that differ";
        return LB_VERDICT_IDENTICAL;
    }
    bool replayed = lb_verdict_is_accounted_for(e->own[0]) && lb_verdict_is_accounted_for(e->own[1]);
    *why = replayed ? "each side's bits lie inside this op's error bound" : "this op could not be replayed";
    return replayed ? LB_VERDICT_ROUNDING : LB_VERDICT_MISSING;
}
