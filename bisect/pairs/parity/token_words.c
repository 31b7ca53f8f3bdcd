/* See token_words.h. */
#include "parity/token_words.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 256, MOST_NUMBERS = 1 << 22 }; /* looked at; of them times the width of their rows */
static const double CUT_BELOW =
    60; /* nats below the most probable word: masks of finite numbers, as -1e4 or the least f32 */

/* One side at one token. */
typedef struct place {
    const lb_token_sequence *sequence;
    int64_t at;
    bool second;
} place;

static place place_of(const lb_token_scores *scores, uint32_t score, bool second)
{
    const lb_sequence_match *pair = &scores->match->pairs[scores->list[score].pair];
    const lb_token_span *span = &pair->spans[scores->list[score].span];
    if (second) return (place){&scores->b->sequences[pair->b], (int64_t)span->b + scores->shift, true};
    return (place){&scores->a->sequences[pair->a], span->a, false};
}

static bool has_token(const place *place)
{
    return place->at >= 0 && place->at < (int64_t)place->sequence->n;
}

static bool has_row(const place *place)
{
    return place->at > 0 && place->at <= (int64_t)place->sequence->n &&
           lb_token_has_row(place->sequence, (uint32_t)place->at - 1);
}

static uint32_t width_of(const place *place)
{
    return has_row(place) ? (uint32_t)place->sequence->logits.layout.shape[1] : 0;
}

static uint32_t widest(const lb_token_set *set)
{
    int64_t most = 0;
    for (uint32_t i = 0; i < set->n; i++)
        if (set->sequences[i].logits.data && set->sequences[i].logits.layout.shape[1] > most)
            most = set->sequences[i].logits.layout.shape[1];
    return (uint32_t)most;
}

static bool is_single(const lb_token_scores *scores, uint32_t i)
{
    const lb_token_span *span = &scores->match->pairs[scores->list[i].pair].spans[scores->list[i].span];
    return span->a_count == 1 && span->b_count == 1 && isfinite(scores->list[i].p) && isfinite(scores->list[i].q);
}

void lb_token_sample_release(lb_token_sample *sample)
{
    free(sample->list), free(sample->words.x), free(sample->words.y);
}

static bool make_room(lb_token_sample *sample, uint32_t n)
{
    lb_token_words *words = &sample->words;
    words->n = 0;
    if (n <= sample->room) return true;
    free(words->x), free(words->y);
    words->x = malloc(n * sizeof *words->x), words->y = malloc(n * sizeof *words->y);
    sample->room = words->x && words->y ? n : 0;
    sample->failed |= !sample->room;
    return sample->room > 0;
}

/* ---- rows ---- */

static void cut_masked(double *row, uint32_t n)
{
    double most = -INFINITY;
    for (uint32_t v = 0; v < n; v++)
        if (row[v] > most) most = row[v];
    for (uint32_t v = 0; v < n; v++)
        if (row[v] < most - CUT_BELOW) row[v] = -INFINITY;
}

static void load_row(const place *place, double *row)
{
    lb_token_row(place->sequence, place->sequence->logit_of[place->at - 1], row);
    cut_masked(row, width_of(place));
}

static double most_of(const double *row, uint32_t n)
{
    double most = NAN;
    for (uint32_t v = 0; v < n; v++)
        if (isnan(most) || row[v] > most) most = row[v];
    return most;
}

static bool both_rows(lb_token_sample *sample, const place sides[2])
{
    lb_token_words *words = &sample->words;
    const uint32_t n = words->width[0] > words->width[1] ? words->width[0] : words->width[1];
    if (!make_room(sample, n)) return false;
    load_row(&sides[0], words->x), load_row(&sides[1], words->y);
    for (uint32_t v = words->width[0]; v < n; v++) words->x[v] = -INFINITY;
    for (uint32_t v = words->width[1]; v < n; v++) words->y[v] = -INFINITY;
    words->n = n, words->whole = true;
    words->best[0] = most_of(words->x, n), words->best[1] = most_of(words->y, n);
    for (int side = 0; side < 2; side++) {
        const int64_t id = sides[side].sequence->tokens[sides[side].at].id;
        words->own[side] = id >= 0 && id < (int64_t)n ? (side ? words->y : words->x)[id] : NAN;
    }
    return true;
}

/* ---- alternatives ---- */

static const lb_token_choice *choices_of(const place *place, uint32_t *n)
{
    const lb_token *token = &place->sequence->tokens[place->at];
    *n = token->choices;
    return token->choices ? place->sequence->choices + token->first_choice : NULL;
}

static bool same_word(const lb_token_choice *choice, int64_t id, const char *text)
{
    if (choice->id >= 0 && id >= 0) return choice->id == id;
    return choice->text && text && strcmp(choice->text, text) == 0;
}

/* Servers write -9999 and the like for words that were cut off. */
static double listed(const lb_token_sample *sample, bool second, double number)
{
    const double x = sample->natural[second] ? number : lb_token_written(sample->scores, second, number);
    return x < -1000 ? -INFINITY : x;
}

/* What a side says of a word: by its row, its list, or of the token itself its own number. NaN: nothing. */
static double said(const lb_token_sample *sample, const place *place, const double *row, int64_t id, const char *text)
{
    uint32_t n;
    if (row) return id >= 0 && id < (int64_t)width_of(place) ? row[id] : NAN;
    const lb_token_choice *list = choices_of(place, &n);
    for (uint32_t i = 0; i < n; i++)
        if (same_word(&list[i], id, text)) return listed(sample, place->second, list[i].logp);
    return NAN;
}

static void take_own(lb_token_sample *sample, const place *place, const double *row)
{
    uint32_t n;
    const lb_token *token = &place->sequence->tokens[place->at];
    const lb_token_choice *list = choices_of(place, &n);
    lb_token_words *words = &sample->words;
    words->own[place->second] = said(sample, place, row, token->id, token->text);
    words->best[place->second] = row ? most_of(row, width_of(place)) : NAN;
    for (uint32_t i = 0; !row && i < n; i++) {
        const double x = listed(sample, place->second, list[i].logp);
        if (isnan(words->best[place->second]) || x > words->best[place->second]) words->best[place->second] = x;
    }
}

/* What a list leaves of the whole probability: next to nothing where a softmax ran over the listed words alone. */
static double rest_of(const lb_token_sample *sample, const place *place)
{
    uint32_t n;
    const lb_token_choice *list = choices_of(place, &n);
    double rest = n ? 1 : INFINITY;
    for (uint32_t i = 0; i < n; i++) rest -= exp(listed(sample, place->second, list[i].logp));
    return fmax(rest, 1e-6);
}

/* Words that one side lists and the other knows, too; or lacks although its list leaves no room for them: those it cut
 * off. */
static bool listed_words(lb_token_sample *sample, const place sides[2])
{
    lb_token_words *words = &sample->words;
    uint32_t counts[2];
    const lb_token_choice *lists[2];
    double *rows[2] = {0};
    for (int side = 0; side < 2; side++) {
        lists[side] = choices_of(&sides[side], &counts[side]);
        if (!words->width[side]) continue;
        rows[side] = malloc(words->width[side] * sizeof *rows[side]);
        if (rows[side])
            load_row(&sides[side], rows[side]);
        else
            sample->failed = true;
    }
    const bool from = rows[0] != NULL; /* which side's list is gone through */
    const double rest = rows[!from] ? INFINITY : rest_of(sample, &sides[!from]);
    if (!sample->failed && make_room(sample, counts[from] + 1)) {
        for (uint32_t i = 0; i < counts[from]; i++) {
            const lb_token_choice *word = &lists[from][i];
            const double mine = listed(sample, from, word->logp);
            double there = said(sample, &sides[!from], rows[!from], word->id, word->text);
            if (isnan(there) && exp(mine) > 20 * rest) there = -INFINITY;
            if (isnan(mine) || isnan(there)) continue;
            words->x[words->n] = from ? there : mine, words->y[words->n++] = from ? mine : there;
        }
        take_own(sample, &sides[0], rows[0]), take_own(sample, &sides[1], rows[1]);
    }
    free(rows[0]), free(rows[1]);
    return !sample->failed;
}

/* Where a side's numbers are no natural logarithms: whether its lists are, by what they say of the tokens
 * themselves. */
static bool lists_naturally(const lb_token_sample *sample, bool second)
{
    double as_written = 0, as_natural = 0;
    const lb_token_form form = sample->scores->form[second];
    if (!form.odds && form.scale == 1) return false;
    for (uint32_t i = 0; i < sample->n; i++) {
        const lb_token_score *score = &sample->scores->list[sample->list[i]];
        const place place = place_of(sample->scores, sample->list[i], second);
        const lb_token *token = &place.sequence->tokens[place.at];
        for (uint32_t c = 0; c < token->choices; c++) {
            const lb_token_choice *choice = &place.sequence->choices[token->first_choice + c];
            if (!same_word(choice, token->id, token->text)) continue;
            const double number = second ? score->q : score->p;
            as_written += fabs(lb_token_written(sample->scores, second, choice->logp) - number);
            as_natural += fabs(choice->logp - number);
        }
    }
    return as_natural < as_written;
}

bool lb_token_sample_init(lb_token_sample *sample, const lb_token_scores *scores)
{
    *sample = (lb_token_sample){.scores = scores};
    const uint32_t a = widest(scores->a), b = widest(scores->b), width = a > b ? a : b;
    uint32_t most = MOST_TOKENS;
    if (width && MOST_NUMBERS / width < most) most = MOST_NUMBERS / width + LB_TOKEN_FEWEST;
    const uint32_t step = (scores->n + most - 1) / (most ? most : 1);
    sample->list = malloc((scores->n + 1u) * sizeof *sample->list);
    for (uint32_t i = 0; sample->list && i < scores->n; i += step ? step : 1)
        if (is_single(scores, i)) sample->list[sample->n++] = i;
    for (int side = 0; sample->list && side < 2; side++) sample->natural[side] = lists_naturally(sample, side);
    return sample->list != NULL;
}

bool lb_token_sample_words(lb_token_sample *sample, uint32_t i)
{
    const place sides[2] = {place_of(sample->scores, sample->list[i], false),
                            place_of(sample->scores, sample->list[i], true)};
    lb_token_words *words = &sample->words;
    if (!has_token(&sides[0]) || !has_token(&sides[1])) return false;
    words->whole = false, words->n = 0;
    for (int side = 0; side < 2; side++)
        words->width[side] = width_of(&sides[side]), words->best[side] = words->own[side] = NAN;
    return words->width[0] && words->width[1] ? both_rows(sample, sides) : listed_words(sample, sides);
}

double *lb_token_sample_row(lb_token_sample *sample, uint32_t i, bool second, int ahead, uint32_t *width)
{
    place place = place_of(sample->scores, sample->list[i], second);
    place.at += ahead;
    *width = width_of(&place);
    double *row = *width ? malloc(*width * sizeof *row) : NULL;
    sample->failed |= *width && !row;
    if (row) load_row(&place, row);
    return row;
}

int64_t lb_token_sample_id(const lb_token_sample *sample, uint32_t i, int ahead)
{
    place place = place_of(sample->scores, sample->list[i], false);
    place.at += ahead;
    return has_token(&place) ? place.sequence->tokens[place.at].id : -1;
}
