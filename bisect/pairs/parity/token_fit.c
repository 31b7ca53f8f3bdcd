/* See token_fit.h. */
#include "parity/token_fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRINGS = 12, MOST_KEPT = 512, HEATS = 25, HALVINGS = 24 };
static const double WORTH_A_WORD = 0.02, LEAVES = 0.05, RIVAL_LEAVES = 4;
static const double MASSES[] = {0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999};
static const double FLOORS[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3};
enum { N_MASSES = sizeof MASSES / sizeof *MASSES, N_FLOORS = sizeof FLOORS / sizeof *FLOORS };

/* Squared differences that each law leaves, summed over tokens; a token that a law says nothing of, or has none left
 * of, costs what the plain law leaves there. */
typedef struct sums {
    double plain, plain_abs, best, constant;
    double pairing[PAIRINGS], heat[HEATS], top_k[MOST_KEPT], top_p[N_MASSES], min_p[N_FLOORS];
} sums;

/* One token: its row, most probable word first, and the number that is to be explained. */
typedef struct item {
    double *sorted;
    uint32_t width, place; /* place: in the sample */
    double number, own;    /* own: the row's log-probability of the token */
} item;

typedef struct items {
    item *list;
    uint32_t n;
} items;

static double heat_at(int i)
{
    return exp(log(0.2) + (log(5.0) - log(0.2)) * i / (HEATS - 1));
}

static double square(double x)
{
    return x * x;
}

/* log p of a word after dividing all logits by T: own / T - log sum exp(row / T). */
static double heated(const item *item, double temperature)
{
    double sum = 0;
    const double most = item->sorted[0] / temperature;
    for (uint32_t v = 0; v < item->width && isfinite(item->sorted[v]); v++)
        sum += exp(item->sorted[v] / temperature - most);
    return item->own / temperature - most - log(sum);
}

static void add_heats(sums *sums, const item *item)
{
    for (int i = 0; i < HEATS; i++) sums->heat[i] += square(item->number - heated(item, heat_at(i)));
}

static int descending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* What is left of the row's mass once the words behind the first k are cut off goes to those. */
static void add_filters(sums *sums, const item *item)
{
    const double plain = square(item->number - item->own);
    double mass = 0;
    uint32_t p = 0, r = 0;
    for (uint32_t k = 0; k < item->width; k++) {
        mass += exp(item->sorted[k]);
        const double cost = item->own >= item->sorted[k] ? square(item->number - (item->own - log(mass))) : plain;
        if (k < MOST_KEPT) sums->top_k[k] += cost;
        for (; p < N_MASSES && mass >= MASSES[p]; p++) sums->top_p[p] += cost;
        const double next = k + 1 < item->width ? exp(item->sorted[k + 1] - item->sorted[0]) : 0;
        for (uint32_t f = N_FLOORS - r; f-- > 0 && FLOORS[f] > next; r++) sums->min_p[f] += cost;
    }
    for (uint32_t k = item->width; k < MOST_KEPT; k++) sums->top_k[k] += plain;
    for (; p < N_MASSES; p++) sums->top_p[p] += plain;
}

/* Row `ahead` further on and the token `token` further on; pairing (0, 0) is the plain law, and equal ones are a shift
 * of the numbers. */
static bool pairing_at(int i, int *row, int *token)
{
    *row = i / 4 - 1, *token = i % 4 - 1;
    return *row != *token;
}

static void add_pairings(sums *sums, lb_token_sample *sample, bool second, const item *item)
{
    for (int k = 0; k < PAIRINGS; k++) {
        int ahead, token;
        uint32_t width = 0;
        double cost = square(item->number - item->own);
        if (pairing_at(k, &ahead, &token)) {
            double *row = lb_token_sample_row(sample, item->place, second, ahead, &width);
            const int64_t id = lb_token_sample_id(sample, item->place, token);
            if (row && id >= 0 && id < (int64_t)width && isfinite(row[id])) cost = square(item->number - row[id]);
            free(row);
        }
        sums->pairing[k] += cost;
    }
}

/* ---- which law ---- */

typedef struct contest {
    lb_token_fit fit;
    double least, rival; /* what the best law leaves, and the best one of another kind */
} contest;

static void enter(contest *contest, lb_token_fit fit, double left)
{
    const bool kin = fit.law == contest->fit.law && isfinite(contest->least);
    if (left < contest->least) {
        if (!kin) contest->rival = contest->least;
        contest->least = left, contest->fit = fit;
    } else if (!kin && left < contest->rival) {
        contest->rival = left;
    }
}

static void enter_all(contest *contest, const sums *sums)
{
    enter(contest, (lb_token_fit){.law = LB_TOKEN_LAW_NONE, .parameter = 1}, sums->constant);
    enter(contest, (lb_token_fit){.law = LB_TOKEN_LAW_ARGMAX}, sums->best);
    for (int k = 0; k < PAIRINGS; k++) {
        int row, token;
        if (pairing_at(k, &row, &token))
            enter(contest, (lb_token_fit){.law = LB_TOKEN_LAW_LABELS, .row = row, .token = token}, sums->pairing[k]);
    }
    for (int k = 0; k < MOST_KEPT; k++)
        enter(contest, (lb_token_fit){.law = LB_TOKEN_LAW_TOP_K, .parameter = k + 1}, sums->top_k[k]);
    for (int i = 0; i < N_MASSES; i++)
        enter(contest, (lb_token_fit){.law = LB_TOKEN_LAW_TOP_P, .parameter = MASSES[i]}, sums->top_p[i]);
    for (int i = 0; i < N_FLOORS; i++)
        enter(contest, (lb_token_fit){.law = LB_TOKEN_LAW_MIN_P, .parameter = FLOORS[i]}, sums->min_p[i]);
}

/* ---- the tokens ---- */

static void release(items *all)
{
    for (uint32_t i = 0; i < all->n; i++) free(all->list[i].sorted);
    free(all->list);
}

static void load_items(lb_token_sample *sample, bool rows, bool numbers, items *all)
{
    const lb_token_scores *scores = sample->scores;
    all->list = malloc((sample->n + 1u) * sizeof *all->list);
    sample->failed |= !all->list;
    for (uint32_t i = 0; all->list && i < sample->n && !sample->failed; i++) {
        item item = {.place = i};
        const int64_t id = lb_token_sample_id(sample, i, 0);
        item.sorted = lb_token_sample_row(sample, i, rows, 0, &item.width);
        item.number = numbers ? scores->list[sample->list[i]].q : scores->list[sample->list[i]].p;
        if (item.sorted && id >= 0 && id < (int64_t)item.width && isfinite(item.sorted[id])) {
            item.own = item.sorted[id];
            all->list[all->n++] = item;
        } else {
            free(item.sorted);
        }
    }
}

/* What one number at all tokens would leave: a row that is flattened enough comes near to it. */
static double left_by_constant(const items *all)
{
    double sum = 0, left = 0;
    for (uint32_t i = 0; i < all->n; i++) sum += all->list[i].number / all->n;
    for (uint32_t i = 0; i < all->n; i++) left += square(all->list[i].number - sum);
    return left;
}

/* There is something to explain, and it does not rest on a few tokens. */
static bool worth_it(const items *all, sums *sums)
{
    for (uint32_t i = 0; i < all->n; i++) {
        const double d = fabs(all->list[i].number - all->list[i].own);
        sums->plain += d * d, sums->plain_abs += d;
    }
    return sums->plain_abs / all->n > WORTH_A_WORD && square(sums->plain_abs) >= LB_TOKEN_CARRIERS * sums->plain;
}

static double left_by_heat(const items *all, double temperature)
{
    double left = 0;
    for (uint32_t i = 0; i < all->n; i++) left += square(all->list[i].number - heated(&all->list[i], temperature));
    return left;
}

/* The best T between the neighbours of the best one on the grid, by golden sections. */
static lb_token_fit refined(const items *all, const sums *sums, double *left)
{
    int best = 0;
    for (int i = 1; i < HEATS; i++)
        if (sums->heat[i] < sums->heat[best]) best = i;
    double low = heat_at(best - 1), high = heat_at(best + 1);
    for (int step = 0; step < HALVINGS; step++) {
        const double at[2] = {low + (high - low) * 0.381966, low + (high - low) * 0.618034};
        if (left_by_heat(all, at[0]) < left_by_heat(all, at[1]))
            high = at[1];
        else
            low = at[0];
    }
    const double temperature = (low + high) / 2;
    *left = left_by_heat(all, temperature);
    return (lb_token_fit){.law = LB_TOKEN_LAW_TEMPERATURE, .parameter = temperature};
}

static void add_laws(sums *sums, lb_token_sample *sample, bool rows, const items *all)
{
    for (uint32_t i = 0; i < all->n; i++) {
        item *item = &all->list[i];
        qsort(item->sorted, item->width, sizeof *item->sorted, descending);
        sums->best += square(item->number - item->sorted[0]);
        add_pairings(sums, sample, rows, item), add_heats(sums, item), add_filters(sums, item);
    }
}

static double number_by(lb_token_sample *sample, const lb_token_fit *fit, bool second, const item *item)
{
    double mass = 0, number = NAN;
    uint32_t width = 0;
    switch (fit->law) {
    case LB_TOKEN_LAW_ARGMAX: return item->sorted[0];
    case LB_TOKEN_LAW_TEMPERATURE: return heated(item, fit->parameter);
    case LB_TOKEN_LAW_LABELS: {
        double *row = lb_token_sample_row(sample, item->place, second, fit->row, &width);
        const int64_t id = lb_token_sample_id(sample, item->place, fit->token);
        if (row && id >= 0 && id < (int64_t)width) number = row[id];
        free(row);
        return number;
    }
    default:
        for (uint32_t k = 0; k < item->width; k++) {
            if (fit->law == LB_TOKEN_LAW_TOP_K   ? k >= (uint32_t)fit->parameter
                : fit->law == LB_TOKEN_LAW_TOP_P ? mass >= fit->parameter
                                                 : item->sorted[k] < item->sorted[0] + log(fit->parameter))
                break;
            mass += exp(item->sorted[k]);
        }
        return item->own - log(mass);
    }
}

/* Nine tenths of the difference sit at tokens where the law leaves a fifth of it: no average of tokens that it hits and
 * tokens that it misses. */
static bool holds_by_token(lb_token_sample *sample, const lb_token_fit *fit, bool rows, const items *all)
{
    double held = 0, sum = 0;
    for (uint32_t i = 0; i < all->n; i++) {
        const item *item = &all->list[i];
        const double d = fabs(item->number - item->own), left = fabs(item->number - number_by(sample, fit, rows, item));
        if (isfinite(left)) sum += d, held += left <= 0.2 * d ? d : 0;
    }
    return held >= 0.9 * sum;
}

static bool holds(lb_token_sample *sample, const contest *contest, const sums *sums, bool rows, const items *all)
{
    if (contest->least > LEAVES * sums->plain || contest->rival < RIVAL_LEAVES * contest->least) return false;
    if (contest->fit.law == LB_TOKEN_LAW_TEMPERATURE &&
        !(contest->fit.parameter > 0.22 && contest->fit.parameter < 4.5))
        return false;
    return contest->fit.law != LB_TOKEN_LAW_NONE && holds_by_token(sample, &contest->fit, rows, all);
}

lb_token_fit lb_token_fit_rows(lb_token_sample *sample, bool rows, bool numbers)
{
    items all = {0};
    contest contest = {.least = INFINITY, .rival = INFINITY};
    sums *sums = calloc(1, sizeof *sums);
    sample->failed |= !sums;
    load_items(sample, rows, numbers, &all);
    const bool judged = !sample->failed && all.n >= LB_TOKEN_FEWEST;
    if (judged && worth_it(&all, sums)) {
        double left;
        add_laws(sums, sample, rows, &all);
        const lb_token_fit heat = refined(&all, sums, &left);
        sums->constant = left_by_constant(&all);
        enter_all(&contest, sums), enter(&contest, heat, left);
        if (!holds(sample, &contest, sums, rows, &all)) contest.fit = (lb_token_fit){0};
    }
    release(&all), free(sums);
    contest.fit.judged = judged;
    return contest.fit;
}
