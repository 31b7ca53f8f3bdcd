/* Every way in which a side may have written its numbers, tried: see token_scale_shift.h. */
#include "parity/token_scale_shift.h"

#include <math.h>
#include <stdlib.h>

static const double WORTH_A_WORD = 0.02; /* a mean difference in nats below which no cause is looked for */
enum { FARTHEST_SHIFT = 2 };

/* The mean of |log p - log q| over tokens that are possible on both sides; infinity where there are too few to say. */
static double distance(const lb_token_scores *scores)
{
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < scores->n; i++)
        if (isfinite(scores->list[i].p) && isfinite(scores->list[i].q))
            sum += fabs(scores->list[i].p - scores->list[i].q), n++;
    return n < LB_TOKEN_FEWEST ? INFINITY : sum / n;
}

/* How many tokens the difference rests on: n where all differ alike, 1 where one token is all of it. */
static double carriers(const lb_token_scores *scores)
{
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < scores->n; i++) {
        const double d = fabs(scores->list[i].p - scores->list[i].q);
        if (isfinite(d)) sum += d, squares += d * d;
    }
    return squares > 0 ? sum * sum / squares : 0;
}

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

/* Numbers that can be what the form says: losses and probabilities are not negative. */
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
static bool slope_is_one(const lb_token_scores *scores)
{
    double pp = 0, pq = 0, qq = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < scores->n; i++) {
        const double p = scores->list[i].p, q = scores->list[i].q;
        if (isfinite(p) && isfinite(q)) pp += p * p, pq += p * q, qq += q * q, n++;
    }
    if (!(pp > 0) || n < LB_TOKEN_FEWEST) return false;
    const double slope = pq / pp, left = fmax(0, qq - slope * pq), error = sqrt(left / (n - 1) / pp);
    return error < 0.0012 && fabs(slope - 1) <= 3 * error + 1e-4;
}

static bool set_writing(lb_token_scores *scores, const writing *writing)
{
    scores->form[0] = scores->form[1] = FORMS[PLAIN].form;
    scores->form[writing->side] = FORMS[writing->form].form, scores->shift = writing->shift;
    return lb_token_scores_collect(scores);
}

/* The two that leave least, in order. False: out of memory. */
static bool try_writings(lb_token_scores *scores, writing best[2])
{
    best[0] = best[1] = (writing){.left = INFINITY};
    for (int k = 0; k < 2 * FORMS_N * (2 * FARTHEST_SHIFT + 1); k++) {
        writing w = {.form = k / 2 % FORMS_N, .side = k % 2, .shift = k / 2 / FORMS_N - FARTHEST_SHIFT};
        if (w.form == PLAIN && (w.side || !w.shift)) continue;
        if (!possible(w.side ? scores->b : scores->a, w.form)) continue;
        if (!set_writing(scores, &w)) return false;
        w.left = distance(scores);
        if (w.left < best[0].left)
            best[1] = best[0], best[0] = w;
        else if (w.left < best[1].left)
            best[1] = w;
    }
    return true;
}

static bool note_writing(const writing *writing, double plain, lb_parity_finding **findings, uint32_t *n)
{
    const char *side = writing->side ? "second" : "first";
    const int by = abs(writing->shift);
    if (writing->form != PLAIN &&
        !lb_token_match_note(
            findings, n, LB_PARITY_SCALE, true,
            "the %s side's numbers are %s: taken as such, the mean difference is %.3g in place of %.3g", side,
            FORMS[writing->form].text, writing->left, plain))
        return false;
    return !writing->shift ||
           lb_token_match_note(findings, n, LB_PARITY_SHIFT, true,
                               "the second side's log-probabilities stand %d token%s too far %s: shifted labels. "
                               "Moved back, the mean difference is %.3g in place of %.3g",
                               by, by > 1 ? "s" : "", writing->shift > 0 ? "right" : "left", writing->left, plain);
}

bool lb_token_scale_shift_undo(lb_token_scores *scores, lb_parity_finding **findings, uint32_t *n)
{
    const double plain = distance(scores);
    const writing none = {0};
    writing best[2];
    if (!(plain > WORTH_A_WORD) || isinf(plain)) return true;
    const bool spread = carriers(scores) >= LB_TOKEN_CARRIERS;
    scores->judged |= spread;
    if (!spread) return true;
    if (!try_writings(scores, best) || !set_writing(scores, &best[0])) return false;
    bool holds = best[0].left <= 0.1 * plain && best[1].left >= 2 * best[0].left;
    if (holds && best[0].form > ODDS) holds = slope_is_one(scores);
    if (!holds) return set_writing(scores, &none);
    return note_writing(&best[0], plain, findings, n);
}
