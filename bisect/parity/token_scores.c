/* See token_scores.h. Each hypothesis is one number that would explain the whole difference; it is taken where what it leaves of the
 * difference is a small part. */
#include "token_nan.h"
#include "token_scores.h"

#include <lastbit/array.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FEWEST = 8 };                     /* tokens, below which nothing is said about all of them */
static const double LEFT_OVER = 0.25;    /* of the mean difference, at most, where a hypothesis holds */
static const double WORTH_A_WORD = 0.02; /* a mean difference in nats below which none is looked for */
static const double FARTHEST_SHIFT = 2;

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
    return n < FEWEST ? INFINITY : sum / n;
}

/* ---- other numbers ---- */

/* Whether a side wrote something else than natural logarithms: taken when it explains nearly everything. */
static bool find_form(lb_token_scores *s, lb_parity_finding **findings, uint32_t *n)
{
    static const struct {
        lb_token_form form;
        const char *text;
    } forms[] = {
        {{-1, false}, "negative log-probabilities (losses)"},
        {{1, true}, "probabilities"},
        {{0.6931471805599453, false}, "logarithms to base 2"},
        {{2.302585092994046, false}, "logarithms to base 10"},
    };
    const double plain = distance(s);
    double least = plain * LEFT_OVER;
    size_t best = SIZE_MAX;
    int side = 0;
    if (!(plain > WORTH_A_WORD) || isinf(plain)) return true;
    for (size_t i = 0; i < 2 * sizeof forms / sizeof *forms; i++) {
        lb_token_form *form = &s->form[i % 2], was = *form;
        *form = forms[i / 2].form;
        if (!collect(s)) return false;
        const double left = distance(s);
        if (left < least) least = left, best = i / 2, side = i % 2;
        *form = was;
    }
    if (best != SIZE_MAX) s->form[side] = forms[best].form;
    if (!collect(s)) return false;
    return best == SIZE_MAX ||
           lb_parity_note(findings, n, LB_PARITY_SCALE, true,
                          "the %s side's numbers are %s: taken as such, the mean difference is %.3g in place of %.3g",
                          side ? "second" : "first", forms[best].text, least, plain);
}

/* ---- numbers at other tokens ---- */

static bool find_shift(lb_token_scores *s, lb_parity_finding **findings, uint32_t *n)
{
    const double plain = distance(s);
    double least = plain * LEFT_OVER;
    int best = 0;
    if (!(plain > WORTH_A_WORD) || isinf(plain)) return true;
    for (int shift = -(int)FARTHEST_SHIFT; shift <= (int)FARTHEST_SHIFT; shift++) {
        s->shift = shift;
        if (!collect(s)) return false;
        const double left = distance(s);
        if (shift && left < least) least = left, best = shift;
    }
    s->shift = best;
    if (!collect(s)) return false;
    return !best ||
           lb_parity_note(
               findings, n, LB_PARITY_SHIFT, true,
               "the second side's log-probabilities stand %d token%s too far %s: shifted labels. Moved back, the mean "
               "difference is %.3g in place of %.3g",
               abs(best), abs(best) > 1 ? "s" : "", best > 0 ? "right" : "left", least, plain);
}

/* ---- logits that one side divided ---- */

static const lb_token_choice *same_choice(const lb_token_sequence *q, const lb_token *token,
                                          const lb_token_choice *wanted)
{
    for (uint32_t i = 0; i < token->choices; i++) {
        const lb_token_choice *c = &q->choices[token->first_choice + i];
        if (wanted->id >= 0 && c->id >= 0 ? c->id == wanted->id
                                          : wanted->text && c->text && strcmp(c->text, wanted->text) == 0)
            return c;
    }
    return NULL;
}

/* How far apart two alternatives are on either side: log p(u) - log p(v) is a difference of logits, from which no normalisation is left.
 * False: there are no two. */
static bool choices_apart(const lb_token_sequence *x, const lb_token_sequence *y, uint32_t i, uint32_t j, double *a,
                          double *b)
{
    const lb_token *t = &x->tokens[i], *u = &y->tokens[j];
    const lb_token_choice *first = NULL, *first_there = NULL;
    *a = *b = 0;
    for (uint32_t c = 0; c < t->choices; c++) {
        const lb_token_choice *mine = &x->choices[t->first_choice + c], *there = same_choice(y, u, mine);
        if (!there || !isfinite(mine->logp) || !isfinite(there->logp)) continue;
        if (first && fabs(first->logp - mine->logp) > fabs(*a))
            *a = first->logp - mine->logp, *b = first_there->logp - there->logp;
        if (!first) first = mine, first_there = there;
    }
    return fabs(*a) > 0.1;
}

static bool rows_apart(const lb_token_sequence *x, const lb_token_sequence *y, uint32_t i, uint32_t j, double *rows,
                       double *a, double *b)
{
    const int64_t words = x->logits.layout.shape[1];
    if (!i || !j || !lb_token_has_row(x, i - 1) || !lb_token_has_row(y, j - 1)) return false;
    lb_token_row(x, x->logit_of[i - 1], rows), lb_token_row(y, y->logit_of[j - 1], rows + words);
    int64_t most = 0, least = 0;
    for (int64_t v = 1; v < words; v++) {
        if (rows[v] > rows[most]) most = v;
        if (rows[v] < rows[least] && isfinite(rows[v])) least = v;
    }
    *a = rows[most] - rows[least], *b = rows[words + most] - rows[words + least];
    return fabs(*a) > 0.1 && isfinite(*b);
}

static bool both_full(const lb_token_sequence *x, const lb_token_sequence *y)
{
    return x->logits.data && y->logits.data && x->logits.layout.shape[1] == y->logits.layout.shape[1];
}

/* Ratios of B's differences of logits to A's, over tokens. */
static double *ratios_of(const lb_token_scores *s, uint32_t *n)
{
    int64_t words = 1;
    for (uint32_t i = 0; i < s->a->n; i++)
        if (s->a->sequences[i].logits.data && s->a->sequences[i].logits.layout.shape[1] > words)
            words = s->a->sequences[i].logits.layout.shape[1];
    double *list = malloc(((size_t)s->n + 1) * sizeof *list), *rows = malloc((size_t)(2 * words) * sizeof *rows);
    *n = 0;
    for (uint32_t i = 0; list && rows && i < s->n; i++) {
        const lb_sequence_match *pair = &s->match->pairs[s->list[i].pair];
        const lb_token_span *span = &pair->spans[s->list[i].span];
        const lb_token_sequence *x = &s->a->sequences[pair->a], *y = &s->b->sequences[pair->b];
        const int64_t j = (int64_t)span->b + s->shift;
        double a, b;
        if (span->a_count != 1 || span->b_count != 1 || j < 0) continue;
        if (both_full(x, y) ? rows_apart(x, y, span->a, (uint32_t)j, rows, &a, &b)
                            : choices_apart(x, y, span->a, (uint32_t)j, &a, &b))
            list[(*n)++] = b / a;
    }
    free(rows);
    if (!rows) free(list), list = NULL;
    return list;
}

/* A temperature T on one side makes every difference of its logits T times smaller: the ratio is the same at all tokens. */
static bool find_temperature(lb_token_scores *s, lb_parity_finding **findings, uint32_t *n)
{
    uint32_t count;
    double *ratios = ratios_of(s, &count);
    if (!ratios) return false;
    bool ok = true;
    if (count >= FEWEST) {
        qsort(ratios, count, sizeof *ratios, lb_by_f64);
        const double middle = ratios[count / 2], spread = ratios[count - 1 - count / 10] - ratios[count / 10];
        if (middle > 0 && fabs(middle - 1) > 0.01 && spread < 0.25 * fabs(middle - 1)) {
            s->heat = 1 / middle;
            ok = lb_parity_note(findings, n, LB_PARITY_TEMPERATURE, false,
                                "the second side's logits are the first's divided by %.4g at every token (spread "
                                "%.2g): a temperature is "
                                "applied on one side only",
                                s->heat, spread * s->heat * s->heat);
        }
    }
    free(ratios);
    return ok;
}

/* What is cut off goes to what remains, so that every token that was drawn is the more probable. */
static bool find_filter(const lb_token_scores *s, lb_parity_finding **findings, uint32_t *n)
{
    uint32_t above = 0, below = 0, equal = 0;
    double gain = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        const double d = s->list[i].q - s->list[i].p;
        if (!isfinite(d)) continue;
        above += d > 1e-4, below += d < -1e-4, equal += fabs(d) <= 1e-4, gain += d;
    }
    const uint32_t most = above > below ? above : below, least = above > below ? below : above;
    if (s->heat != 1 || most < FEWEST || least > most / 50 || fabs(gain) / s->n < 0.01) return true;
    return lb_parity_note(
        findings, n, LB_PARITY_FILTER, false,
        "%u of %u tokens are more probable on the %s side and %u less (mean %.3g nats): its distribution looks cut "
        "(top-k, top-p) and renormalised, or sharpened",
        most, s->n, above > below ? "second" : "first", least, fabs(gain) / s->n);
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

lb_status lb_token_scores_make(const lb_token_set *a, const lb_token_set *b, const lb_token_match *match,
                               lb_token_scores *scores, lb_parity_finding **findings, uint32_t *n, lb_err *err)
{
    *scores = (lb_token_scores){.a = a, .b = b, .match = match, .heat = 1, .form = {{1, false}, {1, false}}};
    bool ok = collect(scores) && find_form(scores, findings, n) && find_shift(scores, findings, n) &&
              find_temperature(scores, findings, n) && find_filter(scores, findings, n) &&
              lb_token_find_nan(a, b, match, scores->shift, findings, n);
    return ok ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

void lb_token_scores_release(lb_token_scores *scores)
{
    free(scores->list);
}
