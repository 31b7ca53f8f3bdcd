/* See token_k3.h. */
#include "parity/token_k3.h"

#include "parity/token_nan.h"
#include "parity/token_scale_shift.h"

#include <math.h>
#include <stdlib.h>

static double scored(const lb_token *token, lb_token_form form)
{
    if (isnan(token->logp)) return NAN;
    return form.odds ? log(token->logp) : token->logp * form.scale;
}

/* The number of a span: the sum of its tokens', `shift` further on. NaN: none. */
static double span_of(const lb_token_sequence *sequence, uint32_t first, uint32_t n, int shift, lb_token_form form)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        const int64_t at = (int64_t)first + i + shift;
        if (at < 0 || at >= (int64_t)sequence->n) return NAN;
        sum += scored(&sequence->tokens[at], form);
    }
    return sum;
}

bool lb_token_scores_collect(lb_token_scores *scores)
{
    uint64_t room = 0;
    for (uint32_t i = 0; i < scores->match->n; i++) room += scores->match->pairs[i].n;
    if (!scores->list) scores->list = malloc((room + 1) * sizeof *scores->list);
    if (!scores->list || room > UINT32_MAX) return false;
    scores->n = 0;
    for (uint32_t i = 0; i < scores->match->n; i++) {
        const lb_sequence_match *pair = &scores->match->pairs[i];
        const lb_token_sequence *x = &scores->a->sequences[pair->a], *y = &scores->b->sequences[pair->b];
        for (uint32_t k = 0; k < pair->n; k++) {
            const lb_token_span *span = &pair->spans[k];
            const double p = span_of(x, span->a, span->a_count, 0, scores->form[0]);
            const double q = span_of(y, span->b, span->b_count, scores->shift, scores->form[1]);
            if (!isnan(p) && !isnan(q)) scores->list[scores->n++] = (lb_token_score){i, k, p, q};
        }
    }
    return true;
}

double lb_token_k3(double p, double q, bool *held)
{
    double d = p == q ? 0 : p - q;
    *held = fabs(d) > 20;
    if (*held) d = d > 0 ? 20 : -20;
    const double k3 = expm1(d) - d;
    *held |= k3 > 10;
    return k3 > 10 ? 10 : k3;
}

double lb_token_written(const lb_token_scores *scores, bool second, double number)
{
    const lb_token_form form = scores->form[second];
    return form.odds ? log(number) : number * form.scale;
}

lb_status lb_token_scores_make(const lb_token_set *a, const lb_token_set *b, const lb_token_match *match,
                               lb_token_scores *scores, lb_parity_finding **findings, uint32_t *n, lb_err *err)
{
    *scores = (lb_token_scores){.a = a, .b = b, .match = match, .form = {{1, false}, {1, false}}};
    bool ok = lb_token_scores_collect(scores) && lb_token_scale_shift_undo(scores, findings, n) &&
              lb_token_find_nan(a, b, match, scores->shift, findings, n);
    return ok ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

void lb_token_scores_release(lb_token_scores *scores)
{
    free(scores->list);
}
