/* See agreement.h. A side's winner is the name that most places gave because the op's own order did not do there. */
#include "agreement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct group {
    const lb_stretch_source *source;
    lb_answer **members;
    uint32_t n;
    lb_err *err;
} group;

static bool is_order_of_one_op(const lb_answer *x)
{
    return x->stretch && x->found.cause == LB_CAUSE_ORDER && x->found.proof == LB_PROOF_BITS &&
           !x->found.reversed && !x->found.fused && x->stretch->sides[0].n_ops == 1 &&
           x->stretch->sides[1].n_ops == 1;
}

static const char *op_of(const lb_stretch_source *source, const lb_stretch *s, int side)
{
    const lb_program *p = lb_stretch_program(source, side);
    return lb_op_name(p, &p->ops[s->sides[side].ops[0]]);
}

/* The same op on both sides, with results of the same dtypes. */
static bool is_same_kind(const lb_stretch_source *source, const lb_stretch *x, const lb_stretch *y)
{
    for (int side = 0; side < 2; side++) {
        if (strcmp(op_of(source, x, side), op_of(source, y, side))) return false;
        if (lb_stretch_value(source, side, x->sides[side].outputs[0])->dtype !=
            lb_stretch_value(source, side, y->sides[side].outputs[0])->dtype)
            return false;
    }
    return true;
}

static const char *name_at(const lb_answer *x, int side)
{
    return side ? x->found.schedule : x->found.first;
}

static bool is_own(const char *name)
{
    return !strcmp(name, "own") || !strcmp(name, "sequential") || !strcmp(name, "torch:1");
}

static uint32_t places_with(const group *g, int side, const char *name)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < g->n; i++) count += !strcmp(name, name_at(g->members[i], side));
    return count;
}

/* NULL: no place gave a name but the op's own, or all gave the same. */
static const char *winner_of(const group *g, int side)
{
    const char *winner = NULL;
    uint32_t most = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        const char *name = name_at(g->members[i], side);
        const uint32_t count = is_own(name) ? 0 : places_with(g, side, name);
        if (count > most) winner = name, most = count;
    }
    return most < g->n ? winner : NULL;
}

/* Does it give that side's bits there? Then `candidate` is it. */
static lb_status try_at(const group *g, const lb_answer *x, int side, const char *name, lb_candidate *candidate,
                        bool *gives)
{
    const lb_stretch_side *ops = &x->stretch->sides[0];
    lb_candidate *list = NULL;
    lb_place place;
    uint32_t n = 0;
    *gives = false;
    LB_TRY(lb_place_open(x->stretch, g->source, &place, g->err));
    lb_status status =
        lb_candidates_list(lb_stretch_program(g->source, 0), ops->ops, ops->n_ops, NULL, &list, &n, g->err);
    for (uint32_t i = 0; i < n && status == LB_OK; i++) {
        lb_score score = {0};
        if (strcmp(list[i].name, name) || !lb_place_can(&place, 0, side)) continue;
        status = lb_place_try(&place, 0, side, &list[i], &score, g->err);
        *gives = lb_score_all(&score);
        *candidate = list[i];
        break;
    }
    free(list);
    lb_place_release(&place);
    return status;
}

/* What it was called so far stays among those that do as well. */
static void rename_second(lb_cause_found *found, const lb_candidate *c)
{
    char also[sizeof found->also];
    size_t used = (size_t)snprintf(also, sizeof also, "%s", found->schedule);
    for (const char *at = found->also; *at;) {
        const size_t length = strcspn(at, ";");
        const bool is_it = strlen(c->name) == length && !strncmp(at, c->name, length);
        if (!is_it && used + length + 3 < sizeof also)
            used += (size_t)snprintf(also + used, sizeof also - used, "; %.*s", (int)length, at);
        at += length + strspn(at + length, "; ");
    }
    memcpy(found->also, also, sizeof also);
    snprintf(found->schedule, sizeof found->schedule, "%s", c->name);
    found->why[0] = '\0';
    found->n_swaps = 0;
    for (uint32_t i = 0; i < c->n_swaps; i++) lb_cause_add_swap(found, c->swaps[i].kind, c->arguments[i]);
}

static lb_status agree(const group *g, int side)
{
    const char *winner = winner_of(g, side);
    char name[sizeof g->members[0]->found.schedule];
    lb_candidate candidate = {0};
    bool gives = true;
    if (!winner) return LB_OK;
    snprintf(name, sizeof name, "%s", winner);
    for (uint32_t i = 0; i < g->n && gives; i++)
        if (strcmp(name, name_at(g->members[i], side)))
            LB_TRY(try_at(g, g->members[i], side, name, &candidate, &gives));
    if (!gives) return LB_OK;
    for (uint32_t i = 0; i < g->n; i++) {
        lb_cause_found *found = &g->members[i]->found;
        if (!strcmp(name, name_at(g->members[i], side))) continue;
        if (side)
            rename_second(found, &candidate);
        else
            snprintf(found->first, sizeof found->first, "%s", name);
    }
    return LB_OK;
}

lb_status lb_agreement_reach(const lb_stretch_source *source, lb_answer *answers, uint32_t n, lb_err *err)
{
    lb_answer **members = malloc((n + 1) * sizeof(lb_answer *));
    uint8_t *done = calloc(n + 1, 1);
    lb_status status =
        members && done ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "explain: out of memory for %u places", n);
    for (uint32_t i = 0; i < n && status == LB_OK; i++) {
        group g = {.source = source, .members = members, .err = err};
        if (done[i] || !is_order_of_one_op(&answers[i])) continue;
        for (uint32_t k = i; k < n; k++)
            if (!done[k] && is_order_of_one_op(&answers[k]) &&
                is_same_kind(source, answers[i].stretch, answers[k].stretch))
                done[k] = 1, members[g.n++] = &answers[k];
        for (int side = 0; side < 2 && status == LB_OK; side++) status = agree(&g, side);
    }
    free(members), free(done);
    return status;
}
