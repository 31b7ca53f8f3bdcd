/* Numbers of one side that are none (see token_nan.h). */
#include "parity/token_nan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* What a side tells numbers of. */
typedef struct teller {
    const lb_token_set *set;
    bool *kinds; /* which it tells any of; the last: tokens without a kind */
    uint32_t broken, sequence, token;
} teller;

static bool *kind_at(const teller *teller, const lb_token *token)
{
    return &teller->kinds[token->kind < 0 ? teller->set->n_kinds : (uint32_t)token->kind];
}

static bool look(teller *t, const lb_token_set *set)
{
    bool any = false;
    *t = (teller){.set = set, .kinds = calloc((size_t)set->n_kinds + 1, sizeof *t->kinds)};
    if (!t->kinds) return false;
    for (uint32_t s = 0; s < set->n; s++)
        for (uint32_t i = 0; i < set->sequences[s].n; i++)
            if (!isnan(set->sequences[s].tokens[i].logp)) *kind_at(t, &set->sequences[s].tokens[i]) = any = true;
    for (uint32_t k = 0; !any && k <= set->n_kinds; k++) t->kinds[k] = true;
    return true;
}

/* From where on a sequence is told of: behind its first number, or behind its first token where none has one. */
static uint32_t begin_of(const lb_token_sequence *sequence)
{
    for (uint32_t i = 0; i < sequence->n; i++)
        if (!isnan(sequence->tokens[i].logp)) return i;
    return 1;
}

static void count(teller *teller, uint32_t sequence, uint32_t at, uint32_t begin, const lb_token *there)
{
    const lb_token *token = &teller->set->sequences[sequence].tokens[at];
    if (!token->nan || at < begin || isnan(there->logp) || !*kind_at(teller, token)) return;
    if (teller->broken++ == 0) teller->sequence = sequence, teller->token = at;
}

static void compare(teller sides[2], const lb_sequence_match *pair, int shift)
{
    const lb_token_sequence *x = &sides[0].set->sequences[pair->a], *y = &sides[1].set->sequences[pair->b];
    const uint32_t begin[2] = {begin_of(x), begin_of(y)};
    for (uint32_t k = 0; k < pair->n; k++) {
        const lb_token_span *span = &pair->spans[k];
        const int64_t j = (int64_t)span->b + shift;
        if (span->a_count != 1 || span->b_count != 1 || j < 0 || j >= (int64_t)y->n) continue;
        count(&sides[0], pair->a, span->a, begin[0], &y->tokens[j]);
        count(&sides[1], pair->b, (uint32_t)j, begin[1], &x->tokens[span->a]);
    }
}

static bool note(const teller *teller, bool second, lb_parity_finding **findings, uint32_t *n)
{
    char name[80] = "";
    if (!teller->broken) return true;
    if (teller->set->sequences[teller->sequence].name)
        snprintf(name, sizeof name, " (%.70s)", teller->set->sequences[teller->sequence].name);
    return lb_token_match_note(
        findings, n, LB_PARITY_NAN, false,
        "NaN is the %s side's log-probability of %u token%s that the other side has a number for, "
        "first in sequence %u%s, token %u; null says that there is none",
        second ? "second" : "first", teller->broken, teller->broken > 1 ? "s" : "", teller->sequence, name,
        teller->token);
}

bool lb_token_find_nan(const lb_token_set *a, const lb_token_set *b, const lb_token_match *match, int shift,
                       lb_parity_finding **findings, uint32_t *n)
{
    teller sides[2] = {0};
    bool ok = look(&sides[0], a) && look(&sides[1], b);
    for (uint32_t i = 0; ok && i < match->n; i++) compare(sides, &match->pairs[i], shift);
    for (int side = 0; ok && side < 2; side++) ok = note(&sides[side], side, findings, n);
    free(sides[0].kinds), free(sides[1].kinds);
    return ok;
}
