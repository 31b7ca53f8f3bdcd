/* See token_k3.h. */
#include "parity/token_k3.h"

#include "parity/token_nan.h"

#include <math.h>
#include <stdlib.h>

static const double WORTH_A_WORD = 0.02; /* a mean difference in nats below which no cause is looked for */
enum { FARTHEST_SHIFT = 2 };

static double scored(const lb_token *token, lb_token_form form)
{
    if (isnan(token->logp)) return NAN;
    return form.odds ? log(token->logp) : token->logp * form.scale;
}

/* The number of a span: the sum of its tokens', `shift` further on. NaN: none. */
static double span_of(const lb_token_sequence *q, uint32_t first, uint32_t n, int shift, lb_token_form form)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        const int64_t at = (int64_t)first + i + shift;
        if (at < 0 || at >= (int64_t)q->n) return NAN;
        sum += scored(&q->tokens[at], form);
    }
    return sum;
}

/* Both sides' numbers of all spans; a span without them is left out. */
static bool collect(lb_token_scores *s)
{
    uint64_t room = 0;
    for (uint32_t i = 0; i < s->match->n; i++) room += s->match->pairs[i].n;
    if (!s->list) s->list = malloc((room + 1) * sizeof *s->list);
    if (!s->list || room > UINT32_MAX) return false;
    s->n = 0;
    for (uint32_t i = 0; i < s->match->n; i++) {
        const lb_sequence_match *pair = &s->match->pairs[i];
        const lb_token_sequence *x = &s->a->sequences[pair->a], *y = &s->b->sequences[pair->b];
        for (uint32_t k = 0; k < pair->n; k++) {
            const lb_token_span *span = &pair->spans[k];
            const double p = span_of(x, span->a, span->a_count, 0, s->form[0]);
            const double q = span_of(y, span->b, span->b_count, s->shift, s->form[1]);
            if (!isnan(p) && !isnan(q)) s->list[s->n++] = (lb_token_score){i, k, p, q};
        }
    }
    return true;
}

/* The mean of |log p - log q| over tokens that are possible on both sides; infinity where there are too few to say. */
static double distance(const lb_token_scores *s)
{
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++)
        if (isfinite(s->list[i].p) && isfinite(s->list[i].q)) sum += fabs(s->list[i].p - s->list[i].q), n++;
    return n < LB_TOKEN_FEWEST ? INFINITY : sum / n;
}

/* How many tokens the difference rests on: n where all differ alike, 1 where one token is all of it. */
static double carriers(const lb_token_scores *s)
{
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        const double d = fabs(s->list[i].p - s->list[i].q);
        if (isfinite(d)) sum += d, squares += d * d;
    }
    return squares > 0 ? sum * sum / squares : 0;
}

/* ---- other numbers, or at other tokens ---- */

static const struct {
    lb_token_form form;
    const char *text;
} FORMS[] = {
    {{1, false}, ""},
    {{-1, false}, "negative log-probabilities (losses)"},
    {{1, true}, "probabilities"},
    {{0.6931471805599453, false}, "logarithms to base 2"},
    {{2.302585092994046, false}, "logarithms to base 10"},
};
enum { PLAIN, NEGATED, ODDS, FORMS_N = sizeof FORMS / sizeof *FORMS };

/* One way in which a side may have written its numbers. */
typedef struct writing {
    int form, side, shift;
    double left; /* of the mean difference, once it is undone */
} writing;

/* Numbers that can be what the form says: losses and probabilities are no negative numbers. */
static bool possible(const lb_token_set *set, int form)
{
    if (form != NEGATED && form != ODDS) return true;
    for (uint32_t i = 0; i < set->n; i++)
        for (uint32_t t = 0; t < set->sequences[i].n; t++) {
            const double x = set->sequences[i].tokens[t].logp;
            if (x < 0 || (form == ODDS && x > 1)) return false;
        }
    return true;
}

/* The slope of B's numbers over A's is 1 to within a thousandth: in peaked distributions a temperature of 0.7 looks
 * like base 2 (0.693). */
static bool slope_is_one(const lb_token_scores *s)
{
    double pp = 0, pq = 0, qq = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        const double p = s->list[i].p, q = s->list[i].q;
        if (isfinite(p) && isfinite(q)) pp += p * p, pq += p * q, qq += q * q, n++;
    }
    if (!(pp > 0) || n < LB_TOKEN_FEWEST) return false;
    const double slope = pq / pp, left = fmax(0, qq - slope * pq), error = sqrt(left / (n - 1) / pp);
    return error < 0.0012 && fabs(slope - 1) <= 3 * error + 1e-4;
}

static bool set_writing(lb_token_scores *s, const writing *w)
{
    s->form[0] = s->form[1] = FORMS[PLAIN].form;
    s->form[w->side] = FORMS[w->form].form, s->shift = w->shift;
    return collect(s);
}

/* The two that leave least, in order. False: out of memory. */
static bool try_writings(lb_token_scores *s, writing best[2])
{
    best[0] = best[1] = (writing){.left = INFINITY};
    for (int k = 0; k < 2 * FORMS_N * (2 * FARTHEST_SHIFT + 1); k++) {
        writing w = {.form = k / 2 % FORMS_N, .side = k % 2, .shift = k / 2 / FORMS_N - FARTHEST_SHIFT};
        if (w.form == PLAIN && (w.side || !w.shift)) continue;
        if (!possible(w.side ? s->b : s->a, w.form)) continue;
        if (!set_writing(s, &w)) return false;
        w.left = distance(s);
        if (w.left < best[0].left)
            best[1] = best[0], best[0] = w;
        else if (w.left < best[1].left)
            best[1] = w;
    }
    return true;
}

static bool note_writing(const writing *w, double plain, lb_parity_finding **findings, uint32_t *n)
{
    const char *side = w->side ? "second" : "first";
    const int by = abs(w->shift);
    if (w->form != PLAIN &&
        !lb_token_match_note(
            findings, n, LB_PARITY_SCALE, true,
            "the %s side's numbers are %s: taken as such, the mean difference is %.3g in place of %.3g", side,
            FORMS[w->form].text, w->left, plain))
        return false;
    return !w->shift ||
           lb_token_match_note(findings, n, LB_PARITY_SHIFT, true,
                               "the second side's log-probabilities stand %d token%s too far %s: shifted labels. Moved "
                               "back, the mean difference is %.3g in place of %.3g",
                               by, by > 1 ? "s" : "", w->shift > 0 ? "right" : "left", w->left, plain);
}

/* Taken where it leaves a tenth of the difference, where every other way leaves twice as much, and where the difference
 * does not rest on a few tokens that happen to meet. */
static bool find_writing(lb_token_scores *s, lb_parity_finding **findings, uint32_t *n)
{
    const double plain = distance(s);
    const writing none = {0};
    writing best[2];
    if (!(plain > WORTH_A_WORD) || isinf(plain)) return true;
    const bool spread = carriers(s) >= LB_TOKEN_CARRIERS;
    s->judged |= spread;
    if (!spread) return true;
    if (!try_writings(s, best) || !set_writing(s, &best[0])) return false;
    bool holds = best[0].left <= 0.1 * plain && best[1].left >= 2 * best[0].left;
    if (holds && best[0].form > ODDS) holds = slope_is_one(s);
    if (!holds) return set_writing(s, &none);
    return note_writing(&best[0], plain, findings, n);
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
    bool ok = collect(scores) && find_writing(scores, findings, n) &&
              lb_token_find_nan(a, b, match, scores->shift, findings, n);
    return ok ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

void lb_token_scores_release(lb_token_scores *scores)
{
    free(scores->list);
}
