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
static void set_state(finder *finder, lb_parity_cause cause, lb_parity_cause_state state)
{
    if (finder->states[cause] != LB_PARITY_CAUSE_FOUND) finder->states[cause] = state;
}

static bool found_any(const finder *finder)
{
    for (int c = 0; c < LB_PARITY_CAUSES_N; c++)
        if (finder->states[c] == LB_PARITY_CAUSE_FOUND) return true;
    return false;
}

/* ---- all words of both sides ---- */

/* Differences of logits at one token: sums over words that both sides give a probability, about their means. */
typedef struct token_line {
    double xx, xy, yy, mean_x, mean_y, offset;
    uint32_t n, cut[2]; /* words; likely ones that a side alone cuts off */
} token_line;

static token_line line_of(const lb_token_words *words)
{
    token_line line = {0};
    double best[2] = {-INFINITY, -INFINITY};
    for (uint32_t v = 0; v < words->n; v++) {
        best[0] = fmax(best[0], words->x[v]), best[1] = fmax(best[1], words->y[v]);
        if (isfinite(words->x[v]) && isfinite(words->y[v]))
            line.mean_x += words->x[v], line.mean_y += words->y[v], line.n++;
    }
    line.mean_x /= line.n, line.mean_y /= line.n;
    for (uint32_t v = 0; v < words->n; v++) {
        const double x = words->x[v] - line.mean_x, y = words->y[v] - line.mean_y;
        if (isfinite(x) && isfinite(y))
            line.xx += x * x, line.xy += x * y, line.yy += y * y;
        else
            line.cut[0] += isfinite(words->y[v]) && words->y[v] > best[1] - LIKELY,
                line.cut[1] += isfinite(words->x[v]) && words->x[v] > best[0] - LIKELY;
    }
    return line;
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

static void release_slopes(slopes *slopes)
{
    free(slopes->lines), free(slopes->ratios), free(slopes->leaves);
}

static bool find_slope(finder *finder, slopes *found)
{
    double xx = 0, xy = 0, yy = 0;
    const size_t room = finder->sample.n + 1u;
    *found = (slopes){.whole = true};
    found->lines = malloc(room * sizeof *found->lines), found->ratios = malloc(room * sizeof *found->ratios);
    found->leaves = malloc(room * sizeof *found->leaves);
    if (!found->lines || !found->ratios || !found->leaves) return false;
    for (uint32_t i = 0; i < finder->sample.n; i++) {
        if (!lb_token_sample_words(&finder->sample, i)) continue;
        token_line line = line_of(&finder->sample.words);
        if (line.n < 2 || !(line.xx > 0.01)) continue;
        found->whole &= finder->sample.words.whole;
        xx += line.xx, xy += line.xy, yy += line.yy, found->words += line.n - 1;
        found->ratios[found->n] = line.xy / line.xx, found->leaves[found->n] = line.yy - 2 * line.xy + line.xx;
        found->lines[found->n++] = line;
    }
    found->slope = xy / xx, found->plain = yy - 2 * xy + xx, found->left = fmax(0, yy - xy * xy / xx), found->yy = yy;
    found->error = sqrt(found->left / found->words / xx);
    for (uint32_t i = 0; i < found->n; i++)
        found->intercept += pow(found->lines[i].mean_y - found->slope * found->lines[i].mean_x, 2) / found->n;
    found->intercept = sqrt(found->intercept);
    return !finder->sample.failed;
}

/* Squares that rest on enough tokens. */
static bool is_spread(const double *squares, uint32_t n)
{
    double sum = 0, roots = 0;
    for (uint32_t i = 0; i < n; i++) sum += squares[i], roots += sqrt(fmax(0, squares[i]));
    return roots * roots >= LB_TOKEN_CARRIERS * sum;
}

/* The slope is that of nearly every token by itself. */
static bool holds_everywhere(slopes *slopes)
{
    qsort(slopes->ratios, slopes->n, sizeof *slopes->ratios, lb_by_f64);
    const double spread = slopes->ratios[slopes->n - 1 - slopes->n / 10] - slopes->ratios[slopes->n / 10];
    return spread < 0.25 * fabs(slopes->slope - 1);
}

/* log q = c log p without a rest, with the c of another logarithm: that is how numbers are written, and lists cannot
 * tell it from a temperature of that c where the most probable word has nearly all of the probability. */
static bool may_be_a_logarithm(const slopes *slopes)
{
    static const double scales[] = {0.6931471805599453, 2.302585092994046};
    for (int i = 0; i < 4; i++) {
        const double c = i % 2 ? scales[i / 2] : 1 / scales[i / 2];
        if (fabs(slopes->slope - c) <= fmax(3 * slopes->error, 1e-3 * c))
            return !slopes->whole && slopes->intercept <= 5 * sqrt(slopes->left / slopes->words) + 1e-6;
    }
    return false;
}

static bool find_temperature(finder *finder, slopes *slopes, bool *heated)
{
    const bool one_slope = slopes->slope > 0.2 && slopes->slope < 5 && fabs(slopes->slope - 1) > 0.01 &&
                           slopes->left <= LEAVES * fmin(slopes->plain, slopes->yy) &&
                           is_spread(slopes->leaves, slopes->n) && holds_everywhere(slopes);
    *heated = one_slope && !may_be_a_logarithm(slopes);
    if (one_slope && !*heated) return true;
    set_state(finder, LB_PARITY_CAUSE_TEMPERATURE, *heated ? LB_PARITY_CAUSE_FOUND : LB_PARITY_CAUSE_EXCLUDED);
    return !*heated ||
           lb_token_match_note(finder->findings, finder->n, LB_PARITY_TEMPERATURE, false,
                               "the second side's logits are the first's divided by %.4g at each of %u tokens "
                               "(that leaves %.2g of the squared difference): "
                               "a temperature, or another scale of the logits, on one side only",
                               1 / slopes->slope, slopes->n, slopes->left / slopes->plain);
}

/* ---- another normalisation ---- */

/* log q - slope log p of the kept words, less what the slope's own normalisation is: 0 where nothing was cut. */
static double offset_of(const lb_token_words *words, const token_line *line, double slope)
{
    double sum = 0, most = -INFINITY;
    if (slope == 1) return line->mean_y - line->mean_x;
    for (uint32_t v = 0; v < words->n; v++) most = fmax(most, slope * words->x[v]);
    for (uint32_t v = 0; v < words->n; v++) sum += isfinite(words->x[v]) ? exp(slope * words->x[v] - most) : 0;
    return line->mean_y - slope * line->mean_x + most + log(sum);
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

static void look_at_kept(const lb_token_words *words, kept *kept)
{
    const double *whole = kept->second ? words->x : words->y, *cut = kept->second ? words->y : words->x;
    double mass = 0, least = INFINITY, best = -INFINITY, best_cut = -INFINITY;
    uint32_t count = 0;
    for (uint32_t v = 0; v < words->n; v++) {
        best = fmax(best, whole[v]);
        if (isfinite(cut[v]) && isfinite(whole[v]))
            mass += exp(whole[v]), least = fmin(least, whole[v]), count++;
        else if (isfinite(whole[v]))
            best_cut = fmax(best_cut, whole[v]);
        if (!kept->n) continue;
        kept->same &= v >= kept->n || kept->words[v] == isfinite(cut[v]);
    }
    if (!kept->n)
        for (uint32_t v = 0; v < words->n; v++) kept->words[v] = isfinite(cut[v]);
    kept->same &= words->whole && (!kept->n || kept->n == words->n);
    kept->n = words->n, kept->ordered &= best_cut <= least;
    if (count < kept->least) kept->least = count;
    if (count > kept->most) kept->most = count;
    kept->mass_low = fmax(kept->mass_low, mass - exp(least)), kept->mass_high = fmin(kept->mass_high, mass);
    kept->floor_low = fmax(kept->floor_low, exp(best_cut - best)),
    kept->floor_high = fmin(kept->floor_high, exp(least - best));
}

static bool note_kept(finder *finder, const kept *kept, const slopes *slopes, double mean)
{
    char how[160];
    lb_parity_finding_kind kind = LB_PARITY_FILTER;
    const bool padded = finder->sample.words.width[0] != finder->sample.words.width[1];
    const bool by_count = kept->least == kept->most, by_mass = slopes->whole && kept->mass_low < kept->mass_high,
               by_floor = slopes->whole && kept->floor_low < kept->floor_high;
    if (padded || (kept->same && !(by_count && kept->least <= 1)))
        kind = LB_PARITY_VOCABULARY,
        snprintf(how, sizeof how, "the same %u words are left at all %u tokens: another vocabulary, or a mask over it",
                 kept->least, slopes->n);
    else if (kept->ordered && by_count)
        snprintf(how, sizeof how, "the %u most probable words are left at each of %u tokens: top-k %u", kept->least,
                 slopes->n, kept->least);
    else if (kept->ordered && by_mass && !by_floor)
        snprintf(how, sizeof how,
                 "the fewest words of a mass of %.4g are left at each of %u tokens: top-p between %.4g and %.4g",
                 kept->mass_high, slopes->n, kept->mass_low, kept->mass_high);
    else if (kept->ordered && by_floor && !by_mass)
        snprintf(how, sizeof how,
                 "words above %.3g of the most probable are left at each of %u tokens: min-p between %.3g and %.3g",
                 kept->floor_high, slopes->n, kept->floor_low, kept->floor_high);
    else if (kept->ordered)
        snprintf(how, sizeof how, "the most probable words are left, %u to %u of them: a filter (top-k, top-p, min-p)",
                 kept->least, kept->most);
    else
        kind = LB_PARITY_RENORMALISED, snprintf(how, sizeof how, "words are cut off by no order that the logits show");
    return lb_token_match_note(
        finder->findings, finder->n, kind, false,
        "the %s side's softmax is over fewer words, which makes what is left more probable (mean %.3g nats): %s",
        side_word(kept->second), fabs(mean), how);
}

static bool note_renormalised(finder *finder, const slopes *slopes, double mean, bool cut, bool second)
{
    kept kept = {.second = second,
                 .ordered = true,
                 .same = true,
                 .least = UINT32_MAX,
                 .mass_high = INFINITY,
                 .floor_high = INFINITY};
    if (!cut)
        return lb_token_match_note(
            finder->findings, finder->n, LB_PARITY_RENORMALISED, false,
            "at each of %u tokens all words that both sides tell are more probable on the %s side by one factor "
            "(mean %.3g nats): "
            "the same logits, normalised over fewer words (a filter or another vocabulary; "
            "full rows of logits tell which)",
            slopes->n, side_word(second), fabs(mean));
    kept.words = calloc(finder->sample.room + 1u, 1);
    if (!kept.words) return false;
    for (uint32_t i = 0; i < finder->sample.n; i++)
        if (lb_token_sample_words(&finder->sample, i)) look_at_kept(&finder->sample.words, &kept);
    const bool ok = note_kept(finder, &kept, slopes, mean);
    free(kept.words);
    return ok;
}

/* `heated`: logits of one side are divided; then only full rows say what the normalisation should be. */
static bool find_normalisation(finder *finder, const slopes *slopes, bool heated)
{
    double squares = 0, sum = 0;
    uint32_t at = 0, above = 0, cut[2] = {0};
    double *offsets = malloc((slopes->n + 1u) * sizeof *offsets);
    if (!offsets) return false;
    for (uint32_t i = 0; i < finder->sample.n && at < slopes->n; i++) {
        if (!lb_token_sample_words(&finder->sample, i)) continue;
        const token_line line = line_of(&finder->sample.words);
        if (line.n < 2 || !(line.xx > 0.01)) continue;
        const double offset = offset_of(&finder->sample.words, &line, heated ? slopes->slope : 1);
        sum += offset, squares += offset * offset, above += offset > 0;
        cut[0] += line.cut[0] > 0, cut[1] += line.cut[1] > 0;
        offsets[at++] = offset * offset;
    }
    const double within = heated ? slopes->left : slopes->plain;
    const bool one_way = above <= slopes->n / 50 || above >= slopes->n - slopes->n / 50,
               judged = !heated || slopes->whole;
    bool holds = judged && squares / slopes->n > WORTH_A_WORD * WORTH_A_WORD && one_way && is_spread(offsets, at) &&
                 within / slopes->words <= FEW_LEAVES * squares / slopes->n;
    free(offsets);
    const bool second = sum > 0;
    if (slopes->whole) holds &= cut[second] == slopes->n; /* rows over the same words have one normalisation */
    if (judged)
        set_state(finder, LB_PARITY_CAUSE_RENORMALISED, holds ? LB_PARITY_CAUSE_FOUND : LB_PARITY_CAUSE_EXCLUDED);
    return !holds ||
           note_renormalised(finder, slopes, sum / slopes->n, cut[second] == slopes->n && !cut[!second], second);
}

static bool find_by_words(finder *finder)
{
    slopes slopes;
    bool heated = false, ok = find_slope(finder, &slopes);
    if (ok && slopes.n >= LB_TOKEN_FEWEST)
        ok = find_temperature(finder, &slopes, &heated) && find_normalisation(finder, &slopes, heated);
    release_slopes(&slopes);
    return ok && !finder->sample.failed;
}

/* ---- the most probable word's number ---- */

/* What the numbers of a side leave of the difference if they are those of a most probable word. */
typedef struct rivals {
    double plain, best, plain_abs, held, *squares; /* held: of plain_abs, at tokens where a fifth or less is left */
    double sum, sum_squares;                       /* of the numbers: one number at all tokens is a rival, too */
    uint32_t n;
    bool honest; /* the list of the numbers' own side has them, of the very token */
} rivals;

static void add_rival(rivals *rivals, double number, double own, double best)
{
    const double d = number - own, b = number - best;
    rivals->plain += d * d, rivals->best += b * b, rivals->squares[rivals->n++] = d * d;
    rivals->plain_abs += fabs(d), rivals->held += fabs(b) <= 0.2 * fabs(d) ? fabs(d) : 0;
    rivals->sum += number, rivals->sum_squares += number * number;
}

static bool are_best_words(const rivals *rivals)
{
    const double constant = rivals->sum_squares - rivals->sum * rivals->sum / rivals->n;
    return rivals->plain / rivals->n > WORTH_A_WORD * WORTH_A_WORD && is_spread(rivals->squares, rivals->n) &&
           rivals->best <= FEW_LEAVES * rivals->plain && rivals->held >= 0.9 * rivals->plain_abs &&
           constant >= 4 * rivals->best && !rivals->honest;
}

/* `of`: whose list; `numbers`: whose numbers. Rows are the matter of token_fit.h. */
static bool find_best_words(finder *finder, bool of, bool numbers)
{
    rivals rivals = {.squares = malloc((finder->sample.n + 1u) * sizeof *rivals.squares)};
    const lb_token_words *words = &finder->sample.words;
    double dishonest = 0;
    if (!rivals.squares) return false;
    for (uint32_t i = 0; i < finder->sample.n; i++) {
        const lb_token_score *score = &finder->sample.scores->list[finder->sample.list[i]];
        if (!lb_token_sample_words(&finder->sample, i) || !isfinite(words->best[of]) || words->width[of]) continue;
        const double number = numbers ? score->q : score->p, there = numbers ? score->p : score->q;
        const double own = isfinite(words->own[of]) ? words->own[of] : there;
        if (!isfinite(words->own[numbers]) || fabs(number - words->own[numbers]) > WORTH_A_WORD) dishonest++;
        add_rival(&rivals, number, own, words->best[of]);
    }
    rivals.honest = dishonest < 1;
    const bool judged = rivals.n >= LB_TOKEN_FEWEST, holds = judged && are_best_words(&rivals);
    free(rivals.squares);
    const bool known = finder->states[LB_PARITY_CAUSE_ARGMAX] == LB_PARITY_CAUSE_FOUND;
    if (judged) set_state(finder, LB_PARITY_CAUSE_ARGMAX, holds ? LB_PARITY_CAUSE_FOUND : LB_PARITY_CAUSE_EXCLUDED);
    return !holds || known ||
           lb_token_match_note(
               finder->findings, finder->n, LB_PARITY_ARGMAX, false,
               "the %s side's numbers are those of the most probable word, not of the token that stands there: "
               "by the %s side's list of words, over %u tokens (that leaves %.2g of the squared difference)",
               side_word(numbers), side_word(of), rivals.n, rivals.best / rivals.plain);
}

/* ---- rows against numbers ---- */

static bool note_law(finder *finder, const lb_token_fit *fit, bool rows, bool numbers)
{
    const char *of = side_word(numbers), *by = side_word(rows);
    switch (fit->law) {
    case LB_TOKEN_LAW_ARGMAX:
        return lb_token_match_note(finder->findings, finder->n, LB_PARITY_ARGMAX, false,
                                   "the %s side's numbers are those of the most probable word in the %s side's logits, "
                                   "not of the token that stands there",
                                   of, by);
    case LB_TOKEN_LAW_LABELS:
        return lb_token_match_note(
            finder->findings, finder->n, LB_PARITY_LABELS, false,
            "the %s side's number at token t is what the %s side's logits behind token t%+d say of token t%+d: "
            "rows and labels are shifted against each other",
            of, by, fit->row - 1, fit->token);
    case LB_TOKEN_LAW_TEMPERATURE:
        return lb_token_match_note(finder->findings, finder->n, LB_PARITY_TEMPERATURE, false,
                                   "the %s side's numbers are what the %s side's logits give when divided by %.4g: "
                                   "a temperature, or another scale of the logits",
                                   of, by, fit->parameter);
    default:
        return lb_token_match_note(
            finder->findings, finder->n, LB_PARITY_FILTER, false,
            "the %s side's numbers are what the %s side's logits give after %s %.4g, renormalised", of, by,
            fit->law == LB_TOKEN_LAW_TOP_K   ? "top-k"
            : fit->law == LB_TOKEN_LAW_TOP_P ? "top-p"
                                             : "min-p",
            fit->parameter);
    }
}

static bool find_by_rows(finder *finder, bool rows, bool numbers)
{
    static const lb_parity_cause causes[] = {
        [LB_TOKEN_LAW_ARGMAX] = LB_PARITY_CAUSE_ARGMAX,           [LB_TOKEN_LAW_LABELS] = LB_PARITY_CAUSE_LABELS,
        [LB_TOKEN_LAW_TEMPERATURE] = LB_PARITY_CAUSE_TEMPERATURE, [LB_TOKEN_LAW_TOP_K] = LB_PARITY_CAUSE_RENORMALISED,
        [LB_TOKEN_LAW_TOP_P] = LB_PARITY_CAUSE_RENORMALISED,      [LB_TOKEN_LAW_MIN_P] = LB_PARITY_CAUSE_RENORMALISED,
    };
    const lb_token_fit fit = lb_token_fit_rows(&finder->sample, rows, numbers);
    if (!fit.judged || finder->sample.failed) return !finder->sample.failed;
    for (size_t law = LB_TOKEN_LAW_ARGMAX; law < sizeof causes / sizeof *causes; law++)
        set_state(finder, causes[law], LB_PARITY_CAUSE_EXCLUDED);
    if (fit.law == LB_TOKEN_LAW_NONE) return true;
    const bool known = finder->states[causes[fit.law]] == LB_PARITY_CAUSE_FOUND;
    set_state(finder, causes[fit.law], LB_PARITY_CAUSE_FOUND);
    return known || note_law(finder, &fit, rows, numbers);
}

/* ---- one number ---- */

/* A vocabulary has a whole number of words, and holds all tokens that were read. */
static bool may_be_a_vocabulary(const lb_token_scores *scores, double words)
{
    int64_t most = 0;
    for (uint32_t i = 0; i < scores->a->n; i++)
        for (uint32_t t = 0; t < scores->a->sequences[i].n; t++)
            if (scores->a->sequences[i].tokens[t].id > most) most = scores->a->sequences[i].tokens[t].id;
    return words > (double)most + 0.5 && fabs(words - nearbyint(words)) <= fmax(1e-3, 1e-5 * words);
}

static bool find_constant(finder *finder, bool second)
{
    const lb_token_scores *scores = finder->sample.scores;
    double least = INFINITY, most = -INFINITY;
    for (uint32_t i = 0; i < scores->n; i++) {
        const double x = second ? scores->list[i].q : scores->list[i].p;
        least = fmin(least, x), most = fmax(most, x);
    }
    const double words = exp(-(most + least) / 2);
    const bool holds = scores->n >= LB_TOKEN_FEWEST && most < -0.5 && most - least <= 1e-4 * -most &&
                       may_be_a_vocabulary(scores, words);
    if (scores->n >= LB_TOKEN_FEWEST)
        set_state(finder, LB_PARITY_CAUSE_CONSTANT, holds ? LB_PARITY_CAUSE_FOUND : LB_PARITY_CAUSE_EXCLUDED);
    return !holds ||
           lb_token_match_note(finder->findings, finder->n, LB_PARITY_CONSTANT, false,
                               "the %s side gives every token the same probability, 1 of %.6g: "
                               "its logits do not depend on the text (weights that are zero or were never loaded)",
                               side_word(second), words);
}

/* What a recorded loss read as labels; the numbers themselves are of the next tokens. */
static bool note_labels(finder *finder, bool second)
{
    const lb_token_set *set = second ? finder->sample.scores->b : finder->sample.scores->a;
    if (!set->label_ahead) return true;
    finder->states[LB_PARITY_CAUSE_LABELS] = LB_PARITY_CAUSE_FOUND;
    return lb_token_match_note(
        finder->findings, finder->n, LB_PARITY_LABELS, false,
        set->label_ahead > 0 ? "the %s side's loss scores the token after the next one: its labels are shifted twice"
                             : "the %s side's loss scores the token that the row was said after: "
                               "its labels are not shifted",
        side_word(second));
}

/* ---- what one number per token excludes ---- */

/* A filter and the most probable word make tokens more probable on one side; filters and temperatures leave the most
 * probable word what it is. */
static void exclude_by_signs(finder *finder, double top1, uint64_t chosen)
{
    const lb_token_scores *scores = finder->sample.scores;
    uint32_t above = 0, below = 0;
    for (uint32_t i = 0; i < scores->n; i++)
        above += scores->list[i].q - scores->list[i].p > WORTH_A_WORD,
            below += scores->list[i].p - scores->list[i].q > WORTH_A_WORD;
    const bool both_ways = above >= 4 && below >= 4 && above * 10 >= scores->n && below * 10 >= scores->n;
    const bool other_best = chosen >= 20 && top1 < 0.9;
    if (both_ways && finder->states[LB_PARITY_CAUSE_ARGMAX] == LB_PARITY_CAUSE_UNKNOWN)
        set_state(finder, LB_PARITY_CAUSE_ARGMAX, LB_PARITY_CAUSE_EXCLUDED);
    if ((both_ways || other_best) && finder->states[LB_PARITY_CAUSE_RENORMALISED] == LB_PARITY_CAUSE_UNKNOWN)
        set_state(finder, LB_PARITY_CAUSE_RENORMALISED, LB_PARITY_CAUSE_EXCLUDED);
    if (other_best && finder->states[LB_PARITY_CAUSE_TEMPERATURE] == LB_PARITY_CAUSE_UNKNOWN)
        set_state(finder, LB_PARITY_CAUSE_TEMPERATURE, LB_PARITY_CAUSE_EXCLUDED);
}

lb_status lb_token_causes_find(const lb_token_scores *scores, double top1, uint64_t chosen,
                               lb_parity_cause_state *states, lb_parity_finding **findings, uint32_t *n, lb_err *err)
{
    finder finder = {.states = states, .findings = findings, .n = n};
    bool ok = lb_token_sample_init(&finder.sample, scores);
    for (uint32_t i = 0; i < *n; i++) {
        if ((*findings)[i].kind == LB_PARITY_SCALE) states[LB_PARITY_CAUSE_SCALE] = LB_PARITY_CAUSE_FOUND;
        if ((*findings)[i].kind == LB_PARITY_SHIFT) states[LB_PARITY_CAUSE_SHIFT] = LB_PARITY_CAUSE_FOUND;
    }
    if (scores->judged) {
        set_state(&finder, LB_PARITY_CAUSE_SCALE, LB_PARITY_CAUSE_EXCLUDED);
        set_state(&finder, LB_PARITY_CAUSE_SHIFT, LB_PARITY_CAUSE_EXCLUDED);
    }
    ok = ok && find_by_words(&finder);
    for (int k = 0; ok && !scores->shift && k < 4; k++) ok = find_by_rows(&finder, k / 2, k % 2 != k / 2);
    for (int k = 0; ok && k < 4; k++) ok = find_best_words(&finder, k / 2, k % 2);
    for (int side = 0; ok && side < 2; side++) ok = find_constant(&finder, side) && note_labels(&finder, side);
    if (ok && !found_any(&finder)) exclude_by_signs(&finder, top1, chosen);
    lb_token_sample_release(&finder.sample);
    return ok ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}
