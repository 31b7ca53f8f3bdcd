/* See token_causes.h. */
#include "parity/token_causes.h"

#include "parity/token_fit.h"

#include "base/array.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double WORTH_A_WORD = 0.02; /* nats */
static const double LEAVES = 0.1, FEW_LEAVES = 0.05;
static const double LIKELY = 40; /* nats below the most probable word: what is cut of these counts as cut */

typedef struct finder {
    lb_token_sample sample;
    lb_parity_cause_state *states;
    lb_parity_finding **findings;
    uint32_t *n;
} finder;

static const char *side_word(bool second)
{
    return second ? "second" : "first";
}

/* A cause that one way of looking finds stays found, whatever another way excludes. */
static void set_state(finder *f, lb_parity_cause cause, lb_parity_cause_state state)
{
    if (f->states[cause] != LB_PARITY_CAUSE_FOUND) f->states[cause] = state;
}

static bool found_any(const finder *f)
{
    for (int c = 0; c < LB_PARITY_CAUSES_N; c++)
        if (f->states[c] == LB_PARITY_CAUSE_FOUND) return true;
    return false;
}

/* ---- all words of both sides ---- */

/* Differences of logits at one token: sums over words that both sides give a probability, about their means. */
typedef struct token_line {
    double xx, xy, yy, mean_x, mean_y, offset;
    uint32_t n, cut[2]; /* words; likely ones that a side alone cuts off */
} token_line;

static token_line line_of(const lb_token_words *w)
{
    token_line l = {0};
    double best[2] = {-INFINITY, -INFINITY};
    for (uint32_t v = 0; v < w->n; v++) {
        best[0] = fmax(best[0], w->x[v]), best[1] = fmax(best[1], w->y[v]);
        if (isfinite(w->x[v]) && isfinite(w->y[v])) l.mean_x += w->x[v], l.mean_y += w->y[v], l.n++;
    }
    l.mean_x /= l.n, l.mean_y /= l.n;
    for (uint32_t v = 0; v < w->n; v++) {
        const double x = w->x[v] - l.mean_x, y = w->y[v] - l.mean_y;
        if (isfinite(x) && isfinite(y))
            l.xx += x * x, l.xy += x * y, l.yy += y * y;
        else
            l.cut[0] += isfinite(w->y[v]) && w->y[v] > best[1] - LIKELY,
                l.cut[1] += isfinite(w->x[v]) && w->x[v] > best[0] - LIKELY;
    }
    return l;
}

/* Over all tokens: one slope, and what it leaves of the squared differences. */
typedef struct slopes {
    token_line *lines;
    double *ratios, *leaves; /* per token: its own slope; what slope 1 leaves */
    uint32_t n;              /* tokens of two words and more */
    double slope, plain, left, yy, words;
    double error, intercept; /* of the slope; root mean square of log q - slope log p */
    bool whole;              /* of the whole vocabulary at all of them */
} slopes;

static void release_slopes(slopes *s)
{
    free(s->lines), free(s->ratios), free(s->leaves);
}

static bool find_slope(finder *f, slopes *s)
{
    double xx = 0, xy = 0, yy = 0;
    const size_t room = f->sample.n + 1u;
    *s = (slopes){.whole = true};
    s->lines = malloc(room * sizeof *s->lines), s->ratios = malloc(room * sizeof *s->ratios);
    s->leaves = malloc(room * sizeof *s->leaves);
    if (!s->lines || !s->ratios || !s->leaves) return false;
    for (uint32_t i = 0; i < f->sample.n; i++) {
        if (!lb_token_sample_words(&f->sample, i)) continue;
        token_line l = line_of(&f->sample.words);
        if (l.n < 2 || !(l.xx > 0.01)) continue;
        s->whole &= f->sample.words.whole;
        xx += l.xx, xy += l.xy, yy += l.yy, s->words += l.n - 1;
        s->ratios[s->n] = l.xy / l.xx, s->leaves[s->n] = l.yy - 2 * l.xy + l.xx;
        s->lines[s->n++] = l;
    }
    s->slope = xy / xx, s->plain = yy - 2 * xy + xx, s->left = fmax(0, yy - xy * xy / xx), s->yy = yy;
    s->error = sqrt(s->left / s->words / xx);
    for (uint32_t i = 0; i < s->n; i++)
        s->intercept += pow(s->lines[i].mean_y - s->slope * s->lines[i].mean_x, 2) / s->n;
    s->intercept = sqrt(s->intercept);
    return !f->sample.failed;
}

/* Squares that rest on enough tokens. */
static bool is_spread(const double *squares, uint32_t n)
{
    double sum = 0, roots = 0;
    for (uint32_t i = 0; i < n; i++) sum += squares[i], roots += sqrt(fmax(0, squares[i]));
    return roots * roots >= LB_TOKEN_CARRIERS * sum;
}

/* The slope is that of nearly every token by itself. */
static bool holds_everywhere(slopes *s)
{
    qsort(s->ratios, s->n, sizeof *s->ratios, lb_by_f64);
    const double spread = s->ratios[s->n - 1 - s->n / 10] - s->ratios[s->n / 10];
    return spread < 0.25 * fabs(s->slope - 1);
}

/* log q = c log p without a rest, with the c of another logarithm: that is how numbers are written, and lists cannot
 * tell it from a temperature of that c where the most probable word has nearly all of the probability. */
static bool may_be_a_logarithm(const slopes *s)
{
    static const double scales[] = {0.6931471805599453, 2.302585092994046};
    for (int i = 0; i < 4; i++) {
        const double c = i % 2 ? scales[i / 2] : 1 / scales[i / 2];
        if (fabs(s->slope - c) <= fmax(3 * s->error, 1e-3 * c))
            return !s->whole && s->intercept <= 5 * sqrt(s->left / s->words) + 1e-6;
    }
    return false;
}

static bool find_temperature(finder *f, slopes *s, bool *heated)
{
    const bool one_slope = s->slope > 0.2 && s->slope < 5 && fabs(s->slope - 1) > 0.01 &&
                           s->left <= LEAVES * fmin(s->plain, s->yy) && is_spread(s->leaves, s->n) &&
                           holds_everywhere(s);
    *heated = one_slope && !may_be_a_logarithm(s);
    if (one_slope && !*heated) return true;
    set_state(f, LB_PARITY_CAUSE_TEMPERATURE, *heated ? LB_PARITY_CAUSE_FOUND : LB_PARITY_CAUSE_EXCLUDED);
    return !*heated ||
           lb_token_match_note(
               f->findings, f->n, LB_PARITY_TEMPERATURE, false,
               "the second side's logits are the first's divided by %.4g at each of %u tokens (that leaves "
               "%.2g of the squared difference): a temperature, or another scale of the logits, on one side "
               "only",
               1 / s->slope, s->n, s->left / s->plain);
}

/* ---- another normalisation ---- */

/* log q - slope log p of the kept words, less what the slope's own normalisation is: 0 where nothing was cut. */
static double offset_of(const lb_token_words *w, const token_line *l, double slope)
{
    double sum = 0, most = -INFINITY;
    if (slope == 1) return l->mean_y - l->mean_x;
    for (uint32_t v = 0; v < w->n; v++) most = fmax(most, slope * w->x[v]);
    for (uint32_t v = 0; v < w->n; v++) sum += isfinite(w->x[v]) ? exp(slope * w->x[v] - most) : 0;
    return l->mean_y - slope * l->mean_x + most + log(sum);
}

/* What all tokens agree in of the words that a side kept. */
typedef struct kept {
    bool second;    /* the side that cut words off */
    bool ordered;   /* what it kept is the most probable */
    bool same;      /* the same words at all tokens */
    uint8_t *words; /* of the first token */
    uint32_t n, least, most;
    double mass_low, mass_high, floor_low, floor_high; /* P and r lie between these */
} kept;

static void look_at_kept(const lb_token_words *w, kept *k)
{
    const double *whole = k->second ? w->x : w->y, *cut = k->second ? w->y : w->x;
    double mass = 0, least = INFINITY, best = -INFINITY, best_cut = -INFINITY;
    uint32_t count = 0;
    for (uint32_t v = 0; v < w->n; v++) {
        best = fmax(best, whole[v]);
        if (isfinite(cut[v]) && isfinite(whole[v]))
            mass += exp(whole[v]), least = fmin(least, whole[v]), count++;
        else if (isfinite(whole[v]))
            best_cut = fmax(best_cut, whole[v]);
        if (!k->n) continue;
        k->same &= v >= k->n || k->words[v] == isfinite(cut[v]);
    }
    if (!k->n)
        for (uint32_t v = 0; v < w->n; v++) k->words[v] = isfinite(cut[v]);
    k->same &= w->whole && (!k->n || k->n == w->n);
    k->n = w->n, k->ordered &= best_cut <= least;
    if (count < k->least) k->least = count;
    if (count > k->most) k->most = count;
    k->mass_low = fmax(k->mass_low, mass - exp(least)), k->mass_high = fmin(k->mass_high, mass);
    k->floor_low = fmax(k->floor_low, exp(best_cut - best)), k->floor_high = fmin(k->floor_high, exp(least - best));
}

static bool note_kept(finder *f, const kept *k, const slopes *s, double mean)
{
    char how[160];
    lb_parity_finding_kind kind = LB_PARITY_FILTER;
    const bool padded = f->sample.words.width[0] != f->sample.words.width[1];
    const bool by_count = k->least == k->most, by_mass = s->whole && k->mass_low < k->mass_high,
               by_floor = s->whole && k->floor_low < k->floor_high;
    if (padded || (k->same && !(by_count && k->least <= 1)))
        kind = LB_PARITY_VOCABULARY,
        snprintf(how, sizeof how, "the same %u words are left at all %u tokens: another vocabulary, or a mask over it",
                 k->least, s->n);
    else if (k->ordered && by_count)
        snprintf(how, sizeof how, "the %u most probable words are left at each of %u tokens: top-k %u", k->least, s->n,
                 k->least);
    else if (k->ordered && by_mass && !by_floor)
        snprintf(how, sizeof how,
                 "the fewest words of a mass of %.4g are left at each of %u tokens: top-p between %.4g and %.4g",
                 k->mass_high, s->n, k->mass_low, k->mass_high);
    else if (k->ordered && by_floor && !by_mass)
        snprintf(how, sizeof how,
                 "words above %.3g of the most probable are left at each of %u tokens: min-p between %.3g and %.3g",
                 k->floor_high, s->n, k->floor_low, k->floor_high);
    else if (k->ordered)
        snprintf(how, sizeof how, "the most probable words are left, %u to %u of them: a filter (top-k, top-p, min-p)",
                 k->least, k->most);
    else
        kind = LB_PARITY_RENORMALISED, snprintf(how, sizeof how, "words are cut off by no order that the logits show");
    return lb_token_match_note(
        f->findings, f->n, kind, false,
        "the %s side's softmax is over fewer words, which makes what is left more probable (mean "
        "%.3g nats): %s",
        side_word(k->second), fabs(mean), how);
}

static bool note_renormalised(finder *f, const slopes *s, double mean, bool cut, bool second)
{
    kept k = {.second = second,
              .ordered = true,
              .same = true,
              .least = UINT32_MAX,
              .mass_high = INFINITY,
              .floor_high = INFINITY};
    if (!cut)
        return lb_token_match_note(
            f->findings, f->n, LB_PARITY_RENORMALISED, false,
            "at each of %u tokens all words that both sides tell are more probable on the %s side by "
            "one factor (mean %.3g nats): the same logits, normalised over fewer words (a filter or "
            "another vocabulary; full rows of logits tell which)",
            s->n, side_word(second), fabs(mean));
    k.words = calloc(f->sample.room + 1u, 1);
    if (!k.words) return false;
    for (uint32_t i = 0; i < f->sample.n; i++)
        if (lb_token_sample_words(&f->sample, i)) look_at_kept(&f->sample.words, &k);
    const bool ok = note_kept(f, &k, s, mean);
    free(k.words);
    return ok;
}

/* `heated`: logits of one side are divided; then only full rows say what the normalisation should be. */
static bool find_normalisation(finder *f, const slopes *s, bool heated)
{
    double squares = 0, sum = 0;
    uint32_t at = 0, above = 0, cut[2] = {0};
    double *offsets = malloc((s->n + 1u) * sizeof *offsets);
    if (!offsets) return false;
    for (uint32_t i = 0; i < f->sample.n && at < s->n; i++) {
        if (!lb_token_sample_words(&f->sample, i)) continue;
        const token_line l = line_of(&f->sample.words);
        if (l.n < 2 || !(l.xx > 0.01)) continue;
        const double offset = offset_of(&f->sample.words, &l, heated ? s->slope : 1);
        sum += offset, squares += offset * offset, above += offset > 0;
        cut[0] += l.cut[0] > 0, cut[1] += l.cut[1] > 0;
        offsets[at++] = offset * offset;
    }
    const double within = heated ? s->left : s->plain;
    const bool one_way = above <= s->n / 50 || above >= s->n - s->n / 50, judged = !heated || s->whole;
    bool holds = judged && squares / s->n > WORTH_A_WORD * WORTH_A_WORD && one_way && is_spread(offsets, at) &&
                 within / s->words <= FEW_LEAVES * squares / s->n;
    free(offsets);
    const bool second = sum > 0;
    if (s->whole) holds &= cut[second] == s->n; /* rows over the same words have one normalisation */
    if (judged) set_state(f, LB_PARITY_CAUSE_RENORMALISED, holds ? LB_PARITY_CAUSE_FOUND : LB_PARITY_CAUSE_EXCLUDED);
    return !holds || note_renormalised(f, s, sum / s->n, cut[second] == s->n && !cut[!second], second);
}

static bool find_by_words(finder *f)
{
    slopes s;
    bool heated = false, ok = find_slope(f, &s);
    if (ok && s.n >= LB_TOKEN_FEWEST) ok = find_temperature(f, &s, &heated) && find_normalisation(f, &s, heated);
    release_slopes(&s);
    return ok && !f->sample.failed;
}

/* ---- the most probable word's number ---- */

/* What the numbers of a side leave of the difference if they are those of a most probable word. */
typedef struct rivals {
    double plain, best, plain_abs, held, *squares; /* held: of plain_abs, at tokens where a fifth or less is left */
    double sum, sum_squares;                       /* of the numbers: one number at all tokens is a rival, too */
    uint32_t n;
    bool honest; /* the list of the numbers' own side has them, of the very token */
} rivals;

static void add_rival(rivals *r, double number, double own, double best)
{
    const double d = number - own, b = number - best;
    r->plain += d * d, r->best += b * b, r->squares[r->n++] = d * d;
    r->plain_abs += fabs(d), r->held += fabs(b) <= 0.2 * fabs(d) ? fabs(d) : 0;
    r->sum += number, r->sum_squares += number * number;
}

static bool are_best_words(const rivals *r)
{
    const double constant = r->sum_squares - r->sum * r->sum / r->n;
    return r->plain / r->n > WORTH_A_WORD * WORTH_A_WORD && is_spread(r->squares, r->n) &&
           r->best <= FEW_LEAVES * r->plain && r->held >= 0.9 * r->plain_abs && constant >= 4 * r->best && !r->honest;
}

/* `of`: whose list; `numbers`: whose numbers. Rows are the matter of token_fit.h. */
static bool find_best_words(finder *f, bool of, bool numbers)
{
    rivals r = {.squares = malloc((f->sample.n + 1u) * sizeof *r.squares)};
    const lb_token_words *w = &f->sample.words;
    double dishonest = 0;
    if (!r.squares) return false;
    for (uint32_t i = 0; i < f->sample.n; i++) {
        const lb_token_score *score = &f->sample.scores->list[f->sample.list[i]];
        if (!lb_token_sample_words(&f->sample, i) || !isfinite(w->best[of]) || w->width[of]) continue;
        const double number = numbers ? score->q : score->p, there = numbers ? score->p : score->q;
        const double own = isfinite(w->own[of]) ? w->own[of] : there;
        if (!isfinite(w->own[numbers]) || fabs(number - w->own[numbers]) > WORTH_A_WORD) dishonest++;
        add_rival(&r, number, own, w->best[of]);
    }
    r.honest = dishonest < 1;
    const bool judged = r.n >= LB_TOKEN_FEWEST, holds = judged && are_best_words(&r);
    free(r.squares);
    const bool known = f->states[LB_PARITY_CAUSE_ARGMAX] == LB_PARITY_CAUSE_FOUND;
    if (judged) set_state(f, LB_PARITY_CAUSE_ARGMAX, holds ? LB_PARITY_CAUSE_FOUND : LB_PARITY_CAUSE_EXCLUDED);
    return !holds || known ||
           lb_token_match_note(
               f->findings, f->n, LB_PARITY_ARGMAX, false,
               "the %s side's numbers are those of the most probable word, not of the token that stands "
               "there: by the %s side's list of words, over %u tokens (that leaves %.2g of the squared "
               "difference)",
               side_word(numbers), side_word(of), r.n, r.best / r.plain);
}

/* ---- rows against numbers ---- */

static bool note_law(finder *f, const lb_token_fit *fit, bool rows, bool numbers)
{
    const char *of = side_word(numbers), *by = side_word(rows);
    switch (fit->law) {
    case LB_TOKEN_LAW_ARGMAX:
        return lb_token_match_note(
            f->findings, f->n, LB_PARITY_ARGMAX, false,
            "the %s side's numbers are those of the most probable word in the %s side's logits, not "
            "of the token that stands there",
            of, by);
    case LB_TOKEN_LAW_LABELS:
        return lb_token_match_note(
            f->findings, f->n, LB_PARITY_LABELS, false,
            "the %s side's number at token t is what the %s side's logits behind token t%+d say of "
            "token t%+d: rows and labels are shifted against each other",
            of, by, fit->row - 1, fit->token);
    case LB_TOKEN_LAW_TEMPERATURE:
        return lb_token_match_note(f->findings, f->n, LB_PARITY_TEMPERATURE, false,
                                   "the %s side's numbers are what the %s side's logits give when divided by %.4g: a "
                                   "temperature, or another scale of the logits",
                                   of, by, fit->parameter);
    default:
        return lb_token_match_note(
            f->findings, f->n, LB_PARITY_FILTER, false,
            "the %s side's numbers are what the %s side's logits give after %s %.4g, renormalised", of, by,
            fit->law == LB_TOKEN_LAW_TOP_K   ? "top-k"
            : fit->law == LB_TOKEN_LAW_TOP_P ? "top-p"
                                             : "min-p",
            fit->parameter);
    }
}

static bool find_by_rows(finder *f, bool rows, bool numbers)
{
    static const lb_parity_cause causes[] = {
        [LB_TOKEN_LAW_ARGMAX] = LB_PARITY_CAUSE_ARGMAX,           [LB_TOKEN_LAW_LABELS] = LB_PARITY_CAUSE_LABELS,
        [LB_TOKEN_LAW_TEMPERATURE] = LB_PARITY_CAUSE_TEMPERATURE, [LB_TOKEN_LAW_TOP_K] = LB_PARITY_CAUSE_RENORMALISED,
        [LB_TOKEN_LAW_TOP_P] = LB_PARITY_CAUSE_RENORMALISED,      [LB_TOKEN_LAW_MIN_P] = LB_PARITY_CAUSE_RENORMALISED,
    };
    const lb_token_fit fit = lb_token_fit_rows(&f->sample, rows, numbers);
    if (!fit.judged || f->sample.failed) return !f->sample.failed;
    for (size_t law = LB_TOKEN_LAW_ARGMAX; law < sizeof causes / sizeof *causes; law++)
        set_state(f, causes[law], LB_PARITY_CAUSE_EXCLUDED);
    if (fit.law == LB_TOKEN_LAW_NONE) return true;
    const bool known = f->states[causes[fit.law]] == LB_PARITY_CAUSE_FOUND;
    set_state(f, causes[fit.law], LB_PARITY_CAUSE_FOUND);
    return known || note_law(f, &fit, rows, numbers);
}

/* ---- one number ---- */

/* A vocabulary has a whole number of words, and holds all tokens that were read. */
static bool may_be_a_vocabulary(const lb_token_scores *s, double words)
{
    int64_t most = 0;
    for (uint32_t i = 0; i < s->a->n; i++)
        for (uint32_t t = 0; t < s->a->sequences[i].n; t++)
            if (s->a->sequences[i].tokens[t].id > most) most = s->a->sequences[i].tokens[t].id;
    return words > (double)most + 0.5 && fabs(words - nearbyint(words)) <= fmax(1e-3, 1e-5 * words);
}

static bool find_constant(finder *f, bool second)
{
    const lb_token_scores *s = f->sample.scores;
    double least = INFINITY, most = -INFINITY;
    for (uint32_t i = 0; i < s->n; i++) {
        const double x = second ? s->list[i].q : s->list[i].p;
        least = fmin(least, x), most = fmax(most, x);
    }
    const double words = exp(-(most + least) / 2);
    const bool holds =
        s->n >= LB_TOKEN_FEWEST && most < -0.5 && most - least <= 1e-4 * -most && may_be_a_vocabulary(s, words);
    if (s->n >= LB_TOKEN_FEWEST)
        set_state(f, LB_PARITY_CAUSE_CONSTANT, holds ? LB_PARITY_CAUSE_FOUND : LB_PARITY_CAUSE_EXCLUDED);
    return !holds ||
           lb_token_match_note(f->findings, f->n, LB_PARITY_CONSTANT, false,
                               "the %s side gives every token the same probability, 1 of %.6g: its logits do not "
                               "depend on the text (weights that are zero or were never loaded)",
                               side_word(second), words);
}

/* What a recorded loss read as labels; the numbers themselves are of the next tokens. */
static bool note_labels(finder *f, bool second)
{
    const lb_token_set *set = second ? f->sample.scores->b : f->sample.scores->a;
    if (!set->label_ahead) return true;
    f->states[LB_PARITY_CAUSE_LABELS] = LB_PARITY_CAUSE_FOUND;
    return lb_token_match_note(
        f->findings, f->n, LB_PARITY_LABELS, false,
        set->label_ahead > 0 ? "the %s side's loss scores the token after the next one: its labels are shifted twice"
                             : "the %s side's loss scores the token that the row was said after: its labels are not "
                               "shifted",
        side_word(second));
}

/* ---- what one number per token excludes ---- */

/* A filter and the most probable word make tokens more probable on one side; filters and temperatures leave the most
 * probable word what it is. */
static void exclude_by_signs(finder *f, double top1, uint64_t chosen)
{
    const lb_token_scores *s = f->sample.scores;
    uint32_t above = 0, below = 0;
    for (uint32_t i = 0; i < s->n; i++)
        above += s->list[i].q - s->list[i].p > WORTH_A_WORD, below += s->list[i].p - s->list[i].q > WORTH_A_WORD;
    const bool both_ways = above >= 4 && below >= 4 && above * 10 >= s->n && below * 10 >= s->n;
    const bool other_best = chosen >= 20 && top1 < 0.9;
    if (both_ways && f->states[LB_PARITY_CAUSE_ARGMAX] == LB_PARITY_CAUSE_UNKNOWN)
        set_state(f, LB_PARITY_CAUSE_ARGMAX, LB_PARITY_CAUSE_EXCLUDED);
    if ((both_ways || other_best) && f->states[LB_PARITY_CAUSE_RENORMALISED] == LB_PARITY_CAUSE_UNKNOWN)
        set_state(f, LB_PARITY_CAUSE_RENORMALISED, LB_PARITY_CAUSE_EXCLUDED);
    if (other_best && f->states[LB_PARITY_CAUSE_TEMPERATURE] == LB_PARITY_CAUSE_UNKNOWN)
        set_state(f, LB_PARITY_CAUSE_TEMPERATURE, LB_PARITY_CAUSE_EXCLUDED);
}

lb_status lb_token_causes_find(const lb_token_scores *scores, double top1, uint64_t chosen,
                               lb_parity_cause_state *states, lb_parity_finding **findings, uint32_t *n, lb_err *err)
{
    finder f = {.states = states, .findings = findings, .n = n};
    bool ok = lb_token_sample_init(&f.sample, scores);
    for (uint32_t i = 0; i < *n; i++) {
        if ((*findings)[i].kind == LB_PARITY_SCALE) states[LB_PARITY_CAUSE_SCALE] = LB_PARITY_CAUSE_FOUND;
        if ((*findings)[i].kind == LB_PARITY_SHIFT) states[LB_PARITY_CAUSE_SHIFT] = LB_PARITY_CAUSE_FOUND;
    }
    if (scores->judged) {
        set_state(&f, LB_PARITY_CAUSE_SCALE, LB_PARITY_CAUSE_EXCLUDED);
        set_state(&f, LB_PARITY_CAUSE_SHIFT, LB_PARITY_CAUSE_EXCLUDED);
    }
    ok = ok && find_by_words(&f);
    for (int k = 0; ok && !scores->shift && k < 4; k++) ok = find_by_rows(&f, k / 2, k % 2 != k / 2);
    for (int k = 0; ok && k < 4; k++) ok = find_best_words(&f, k / 2, k % 2);
    for (int side = 0; ok && side < 2; side++) ok = find_constant(&f, side) && note_labels(&f, side);
    if (ok && !found_any(&f)) exclude_by_signs(&f, top1, chosen);
    lb_token_sample_release(&f.sample);
    return ok ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}
