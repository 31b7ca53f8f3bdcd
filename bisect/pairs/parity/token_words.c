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

static place place_of(const lb_token_scores *s, uint32_t score, bool second)
{
    const lb_sequence_match *pair = &s->match->pairs[s->list[score].pair];
    const lb_token_span *span = &pair->spans[s->list[score].span];
    if (second) return (place){&s->b->sequences[pair->b], (int64_t)span->b + s->shift, true};
    return (place){&s->a->sequences[pair->a], span->a, false};
}

static bool has_token(const place *p)
{
    return p->at >= 0 && p->at < (int64_t)p->sequence->n;
}

static bool has_row(const place *p)
{
    return p->at > 0 && p->at <= (int64_t)p->sequence->n && lb_token_has_row(p->sequence, (uint32_t)p->at - 1);
}

static uint32_t width_of(const place *p)
{
    return has_row(p) ? (uint32_t)p->sequence->logits.layout.shape[1] : 0;
}

static uint32_t widest(const lb_token_set *set)
{
    int64_t most = 0;
    for (uint32_t i = 0; i < set->n; i++)
        if (set->sequences[i].logits.data && set->sequences[i].logits.layout.shape[1] > most)
            most = set->sequences[i].logits.layout.shape[1];
    return (uint32_t)most;
}

static bool is_single(const lb_token_scores *s, uint32_t i)
{
    const lb_token_span *span = &s->match->pairs[s->list[i].pair].spans[s->list[i].span];
    return span->a_count == 1 && span->b_count == 1 && isfinite(s->list[i].p) && isfinite(s->list[i].q);
}

void lb_token_sample_release(lb_token_sample *sample)
{
    free(sample->list), free(sample->words.x), free(sample->words.y);
}

static bool make_room(lb_token_sample *sample, uint32_t n)
{
    lb_token_words *w = &sample->words;
    w->n = 0;
    if (n <= sample->room) return true;
    free(w->x), free(w->y);
    w->x = malloc(n * sizeof *w->x), w->y = malloc(n * sizeof *w->y);
    sample->room = w->x && w->y ? n : 0;
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

static void load_row(const place *p, double *row)
{
    lb_token_row(p->sequence, p->sequence->logit_of[p->at - 1], row);
    cut_masked(row, width_of(p));
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
    lb_token_words *w = &sample->words;
    const uint32_t n = w->width[0] > w->width[1] ? w->width[0] : w->width[1];
    if (!make_room(sample, n)) return false;
    load_row(&sides[0], w->x), load_row(&sides[1], w->y);
    for (uint32_t v = w->width[0]; v < n; v++) w->x[v] = -INFINITY;
    for (uint32_t v = w->width[1]; v < n; v++) w->y[v] = -INFINITY;
    w->n = n, w->whole = true;
    w->best[0] = most_of(w->x, n), w->best[1] = most_of(w->y, n);
    for (int side = 0; side < 2; side++) {
        const int64_t id = sides[side].sequence->tokens[sides[side].at].id;
        w->own[side] = id >= 0 && id < (int64_t)n ? (side ? w->y : w->x)[id] : NAN;
    }
    return true;
}

/* ---- alternatives ---- */

static const lb_token_choice *choices_of(const place *p, uint32_t *n)
{
    const lb_token *token = &p->sequence->tokens[p->at];
    *n = token->choices;
    return token->choices ? p->sequence->choices + token->first_choice : NULL;
}

static bool same_word(const lb_token_choice *x, int64_t id, const char *text)
{
    if (x->id >= 0 && id >= 0) return x->id == id;
    return x->text && text && strcmp(x->text, text) == 0;
}

/* Servers write -9999 and the like for words that were cut off. */
static double listed(const lb_token_sample *sample, bool second, double number)
{
    const double x = sample->natural[second] ? number : lb_token_written(sample->scores, second, number);
    return x < -1000 ? -INFINITY : x;
}

/* What a side says of a word: by its row, its list, or of the token itself its own number. NaN: nothing. */
static double said(const lb_token_sample *sample, const place *p, const double *row, int64_t id, const char *text)
{
    uint32_t n;
    if (row) return id >= 0 && id < (int64_t)width_of(p) ? row[id] : NAN;
    const lb_token_choice *list = choices_of(p, &n);
    for (uint32_t i = 0; i < n; i++)
        if (same_word(&list[i], id, text)) return listed(sample, p->second, list[i].logp);
    return NAN;
}

static void take_own(lb_token_sample *sample, const place *p, const double *row)
{
    uint32_t n;
    const lb_token *token = &p->sequence->tokens[p->at];
    const lb_token_choice *list = choices_of(p, &n);
    lb_token_words *w = &sample->words;
    w->own[p->second] = said(sample, p, row, token->id, token->text);
    w->best[p->second] = row ? most_of(row, width_of(p)) : NAN;
    for (uint32_t i = 0; !row && i < n; i++) {
        const double x = listed(sample, p->second, list[i].logp);
        if (isnan(w->best[p->second]) || x > w->best[p->second]) w->best[p->second] = x;
    }
}

/* What a list leaves of the whole probability: next to nothing where a softmax ran over the listed words alone. */
static double rest_of(const lb_token_sample *sample, const place *p)
{
    uint32_t n;
    const lb_token_choice *list = choices_of(p, &n);
    double rest = n ? 1 : INFINITY;
    for (uint32_t i = 0; i < n; i++) rest -= exp(listed(sample, p->second, list[i].logp));
    return fmax(rest, 1e-6);
}

/* Words that one side lists and the other knows, too; or lacks although its list leaves no room for them: those it cut
 * off. */
static bool listed_words(lb_token_sample *sample, const place sides[2])
{
    lb_token_words *w = &sample->words;
    uint32_t counts[2];
    const lb_token_choice *lists[2];
    double *rows[2] = {0};
    for (int side = 0; side < 2; side++) {
        lists[side] = choices_of(&sides[side], &counts[side]);
        if (!w->width[side]) continue;
        rows[side] = malloc(w->width[side] * sizeof *rows[side]);
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
            w->x[w->n] = from ? there : mine, w->y[w->n++] = from ? mine : there;
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
        const place p = place_of(sample->scores, sample->list[i], second);
        const lb_token *token = &p.sequence->tokens[p.at];
        for (uint32_t c = 0; c < token->choices; c++) {
            const lb_token_choice *x = &p.sequence->choices[token->first_choice + c];
            if (!same_word(x, token->id, token->text)) continue;
            const double number = second ? score->q : score->p;
            as_written += fabs(lb_token_written(sample->scores, second, x->logp) - number);
            as_natural += fabs(x->logp - number);
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
    lb_token_words *w = &sample->words;
    if (!has_token(&sides[0]) || !has_token(&sides[1])) return false;
    w->whole = false, w->n = 0;
    for (int side = 0; side < 2; side++) w->width[side] = width_of(&sides[side]), w->best[side] = w->own[side] = NAN;
    return w->width[0] && w->width[1] ? both_rows(sample, sides) : listed_words(sample, sides);
}

double *lb_token_sample_row(lb_token_sample *sample, uint32_t i, bool second, int ahead, uint32_t *width)
{
    place p = place_of(sample->scores, sample->list[i], second);
    p.at += ahead;
    *width = width_of(&p);
    double *row = *width ? malloc(*width * sizeof *row) : NULL;
    sample->failed |= *width && !row;
    if (row) load_row(&p, row);
    return row;
}

int64_t lb_token_sample_id(const lb_token_sample *sample, uint32_t i, int ahead)
{
    place p = place_of(sample->scores, sample->list[i], false);
    p.at += ahead;
    return has_token(&p) ? p.sequence->tokens[p.at].id : -1;
}
