/* See order_consensus.h. Tried first is the name that most places gave because the op's own order did not do there.
 * The argument is one of parsimony: a library chooses its kernel by op, shape and dtype, so that
 * one order at 30 products of a model needs one cause, and 30 names that each fit by chance need
 * 30. It is still proven and not voted: an order is named where it gives every bit of every place,
 * and votes only say which to try first. */
#include "explain/order_consensus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Each name costs a run at every place of the op. What ran is nearly always among the most
 * frequent, because chance spreads its matches and a cause does not. */
enum { MOST_NAMES = 4 };

typedef struct group {
    const lb_matched_region_source *source;
    lb_answer **members;
    uint32_t n;
    lb_candidate_digests *digests;
    lb_err *err;
} group;

static bool is_one_op(const lb_answer *answer)
{
    /* Composites and matched regions of several ops have no order of their own that two places could
     * share, and weaker proofs name no order at all. */
    return answer->region && answer->found.proof == LB_PROOF_BITS && !answer->found.fused &&
           answer->region->sides[0].n_ops == 1 && answer->region->sides[1].n_ops == 1;
}

/* Whose ops were run: under the schedule they give the other side's bits. */
/* A schedule holds for the program that it was tried in; at another place the same program has to
 * run under it. */
static int runner_of(const lb_answer *answer)
{
    return answer->found.reversed ? 1 : 0;
}

/* The dtype that the other side's results were rounded to, as the schedule begins ("bf16, splitk:4"); NULL: the cause
 * is an order alone. */
static const char *narrow_of(const lb_matched_region_source *source, const lb_answer *answer)
{
    const int other = !runner_of(answer);
    const char *dtype =
        lb_dtype_name(lb_matched_region_value(source, other, answer->region->sides[other].outputs[0])->dtype);
    const size_t n = strlen(dtype);
    const bool begins = answer->found.cause == LB_CAUSE_PRECISION && !strncmp(answer->found.schedule, dtype, n);
    return begins && (!answer->found.schedule[n] || !strncmp(answer->found.schedule + n, ", ", 2)) ? dtype : NULL;
}

static bool is_order_of_one_op(const lb_matched_region_source *source, const lb_answer *answer)
{
    return is_one_op(answer) && (answer->found.cause == LB_CAUSE_ORDER || narrow_of(source, answer));
}

static const char *op_of(const lb_matched_region_source *source, const lb_matched_region *region, int side)
{
    const lb_program *program = lb_matched_region_program(source, side);
    return lb_op_name(program, &program->ops[region->sides[side].ops[0]]);
}

/* The same op on both sides, with results of the same dtypes. */
static bool is_same_kind(const lb_matched_region_source *source, const lb_answer *one, const lb_answer *other)
{
    const lb_matched_region *x = one->region, *y = other->region;
    /* Shapes may differ: q and o projections run one kernel in different sizes, and the group only
     * proposes. What does not fit at one place is refused by the run there. */
    if (one->found.cause != other->found.cause || one->found.reversed != other->found.reversed) return false;
    for (int side = 0; side < 2; side++) {
        if (strcmp(op_of(source, x, side), op_of(source, y, side))) return false;
        if (lb_matched_region_value(source, side, x->sides[side].outputs[0])->dtype !=
            lb_matched_region_value(source, side, y->sides[side].outputs[0])->dtype)
            return false;
    }
    return true;
}

/* Behind a dtype that the results were rounded to stands the order, if it is not the op's own.
 * "bf16, splitk:4" and "bf16" are two orders behind one dtype: the dtype is certain, and only the
 * order is put to the vote. */
static const char *name_at(const group *group, const lb_answer *answer, int side)
{
    const char *narrow = narrow_of(group->source, answer);
    if (!narrow) return side ? answer->found.schedule : answer->found.first;
    const char *order = side ? answer->found.schedule + strlen(narrow) : "";
    return *order ? order + 2 : "own";
}

static bool is_own(const char *name)
{
    return !strcmp(name, "own") || !strcmp(name, "sequential") || !strcmp(name, "torch:1");
}

static uint32_t places_with(const group *group, int side, const char *name)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < group->n; i++) count += !strcmp(name, name_at(group, group->members[i], side));
    return count;
}

/* Names that places gave, that of most places first; the op's own is none. */
static uint32_t names_of(const group *group, int side, const char *names[MOST_NAMES])
{
    uint32_t n = 0, votes[MOST_NAMES];
    for (uint32_t i = 0; i < group->n; i++) {
        const char *name = name_at(group, group->members[i], side);
        /* A place where the op's own order does fits many orders; it gives no hint which of them
         * ran elsewhere, and has no vote. */
        const uint32_t count = is_own(name) ? 0 : places_with(group, side, name);
        bool known = !count;
        for (uint32_t k = 0; k < n && !known; k++) known = !strcmp(names[k], name);
        uint32_t at = n < MOST_NAMES ? n : MOST_NAMES;
        if (known) continue;
        for (; at && votes[at - 1] < count; at--)
            if (at < MOST_NAMES) names[at] = names[at - 1], votes[at] = votes[at - 1];
        /* The list stays sorted by insertion, and what falls off its end has fewer votes than all
         * that stay. */
        if (at < MOST_NAMES) names[at] = name, votes[at] = count, n += n < MOST_NAMES;
    }
    return n;
}

/* Does it give the bits of the runner (side 0) or of the other side (1) there? Then `candidate` is it. */
static lb_status try_at(const group *group, const lb_answer *answer, int side, const char *name,
                        lb_candidate *candidate, bool *gives)
{
    const int runner = runner_of(answer), bits = side ? !runner : runner;
    const lb_matched_region_side *ops = &answer->region->sides[runner];
    lb_candidate *list = NULL;
    lb_match_site site;
    uint32_t n = 0;
    *gives = false;
    /* Places are opened again rather than kept: their bytes together would be those of the whole
     * step. */
    LB_TRY(lb_match_site_open(answer->region, group->source, &site, group->err));
    const lb_candidate_ops place = {
        lb_matched_region_program(group->source, runner), ops->ops, ops->n_ops, NULL, false, group->digests};
    lb_status status = lb_candidates_list(&place, NULL, &list, &n, group->err);
    for (uint32_t i = 0; i < n && status == LB_OK; i++) {
        lb_score score = {0};
        /* The candidate is looked up by name in this place's own list: for other shapes the same
         * order may stand there under another name, and then the group has no common one. */
        if (strcmp(list[i].name, name) || !lb_match_site_can(&site, runner, bits)) continue;
        status = lb_match_site_try(&site, runner, bits, &list[i], &score, group->err);
        *gives = lb_score_all(&score);
        *candidate = list[i];
        break;
    }
    free(list);
    lb_match_site_release(&site);
    return status;
}

/* What it was called so far stays among those that do as well. `narrow`: as narrow_of.
 * Nothing that was found is dropped: the old name fitted too, and a reader who knows better can see
 * it. Swaps are replaced with the name, for a budget has to replay what the report says. */
static void rename_second(lb_attribution_found *found, const lb_candidate *candidate, const char *narrow)
{
    char also[sizeof found->also];
    size_t used = (size_t)snprintf(also, sizeof also, "%s", found->schedule);
    for (const char *at = found->also; *at;) {
        const size_t length = strcspn(at, ";");
        const bool is_it = strlen(candidate->name) == length && !strncmp(at, candidate->name, length);
        if (!is_it && used + length + 3 < sizeof also)
            used += (size_t)snprintf(also + used, sizeof also - used, "; %.*s", (int)length, at);
        at += length + strspn(at + length, "; ");
    }
    memcpy(found->also, also, sizeof also);
    snprintf(found->schedule, sizeof found->schedule, "%s%s%s", narrow ? narrow : "", narrow ? ", " : "",
             candidate->name);
    /* What was said of the old name (equal trees for so many terms) is not true of the new one. */
    found->why[0] = '\0';
    found->n_swaps = 0;
    if (found->reversed) return;
    lb_attribution_add_swaps(found, candidate, narrow);
}

/* At all places where it is not the name already.
 * First all places are tried, then all are renamed: a name that fails at the last place must not
 * stay at the first ones. */
static lb_status rename_all(const group *group, int side, const char *winner, bool *gives)
{
    char name[sizeof group->members[0]->found.schedule];
    lb_candidate candidate = {0};
    *gives = true;
    snprintf(name, sizeof name, "%s", winner);
    for (uint32_t i = 0; i < group->n && *gives; i++)
        if (strcmp(name, name_at(group, group->members[i], side)))
            LB_TRY(try_at(group, group->members[i], side, name, &candidate, gives));
    for (uint32_t i = 0; i < group->n && *gives; i++) {
        lb_attribution_found *found = &group->members[i]->found;
        if (!strcmp(name, name_at(group, group->members[i], side))) continue;
        if (side)
            rename_second(found, &candidate, narrow_of(group->source, group->members[i]));
        else
            snprintf(found->first, sizeof found->first, "%s", name);
    }
    return LB_OK;
}

/* `*reached`: one name stands at all places, or none but the op's own. */
static lb_status agree(const group *group, int side, bool *reached)
{
    const char *names[MOST_NAMES];
    const uint32_t n = names_of(group, side, names);
    /* Nothing to settle in the common case, and nothing runs then. */
    *reached = !n || (n == 1 && places_with(group, side, names[0]) == group->n);
    for (uint32_t i = 0; i < n && !*reached; i++) LB_TRY(rename_all(group, side, names[i], reached));
    return LB_OK;
}

/* The dtype is the same at all places, the order of the sums none that is known: names that fitted by chance are no
 * finding. */
static void leave_open(const group *group)
{
    for (uint32_t i = 0; i < group->n; i++) {
        lb_attribution_found *found = &group->members[i]->found;
        const char *narrow = narrow_of(group->source, group->members[i]), *name = name_at(group, group->members[i], 1);
        char also[sizeof found->also];
        if (is_own(name)) continue;
        snprintf(found->why, sizeof found->why,
                 "under %.80s its bits match, but no order of sums that is known gives those of all places of this op: "
                 "which one ran is left open",
                 name);
        snprintf(also, sizeof also, "%.100s%s%.280s", name, *found->also ? "; " : "", found->also);
        snprintf(found->schedule, sizeof found->schedule, "%.40s, another order", narrow);
        memcpy(found->also, also, sizeof also);
    }
}

static uint8_t phase_of(const lb_matched_region_source *source, const lb_answer *answer)
{
    return lb_matched_region_program(source, 0)->ops[answer->region->sides[0].ops[0]].phase;
}

/* Backward products read other layouts, for which a library may have another kernel: each phase by itself. */
static lb_status agree_by_phase(const group *kind)
{
    lb_answer **members = malloc((kind->n + 1) * sizeof(lb_answer *));
    lb_status status = members ? LB_OK : lb_fail(kind->err, LB_ERR_NOMEM, "out of memory for %u places", kind->n);
    for (uint8_t phase = LB_PHASE_FORWARD; phase <= LB_PHASE_OTHER && status == LB_OK; phase++) {
        group part = {.source = kind->source, .members = members, .digests = kind->digests, .err = kind->err};
        bool reached;
        for (uint32_t i = 0; i < kind->n; i++)
            if (phase_of(kind->source, kind->members[i]) == phase) members[part.n++] = kind->members[i];
        if (!part.n) continue;
        status = agree(&part, 1, &reached);
        if (status == LB_OK && !reached) leave_open(&part);
    }
    free(members);
    return status;
}

/* Of an order, both sides' names; of a dtype, what stands behind it. */
static lb_status settle(const group *group)
{
    bool reached;
    /* Of orders alone, names that do not agree stay as they are: each was proven at its place.
     * Behind a dtype they are left open instead, since rounding to 16 bits lets many fit. */
    if (!narrow_of(group->source, group->members[0])) {
        LB_TRY(agree(group, 0, &reached));
        return agree(group, 1, &reached);
    }
    LB_TRY(agree(group, 1, &reached));
    return reached ? LB_OK : agree_by_phase(group);
}

lb_status lb_order_consensus_reach(const lb_matched_region_source *source, lb_answer *answers, uint32_t n,
                                   lb_candidate_digests *digests, lb_err *err)
{
    lb_answer **members = malloc((n + 1) * sizeof(lb_answer *));
    uint8_t *done = calloc(n + 1, 1);
    lb_status status = members && done ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u places", n);
    for (uint32_t i = 0; i < n && status == LB_OK; i++) {
        group group = {.source = source, .members = members, .digests = digests, .err = err};
        if (done[i] || !is_order_of_one_op(source, &answers[i])) continue;
        /* Groups are gathered by comparing every pair of places: an op of a model differs at
         * hundreds of them at most, and each has cost many runs before this. */
        for (uint32_t k = i; k < n; k++)
            if (!done[k] && is_order_of_one_op(source, &answers[k]) && is_same_kind(source, &answers[i], &answers[k]))
                done[k] = 1, members[group.n++] = &answers[k];
        status = settle(&group);
    }
    free(members), free(done);
    return status;
}
