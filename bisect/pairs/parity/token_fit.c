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
static double heated(const item *x, double temperature)
{
    double sum = 0;
    const double most = x->sorted[0] / temperature;
    for (uint32_t v = 0; v < x->width && isfinite(x->sorted[v]); v++) sum += exp(x->sorted[v] / temperature - most);
    return x->own / temperature - most - log(sum);
}

static void add_heats(sums *s, const item *x)
{
    for (int i = 0; i < HEATS; i++) s->heat[i] += square(x->number - heated(x, heat_at(i)));
}

static int descending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* What is left of the row's mass once the words behind the first k are cut off goes to those. */
static void add_filters(sums *s, const item *x)
{
    const double plain = square(x->number - x->own);
    double mass = 0;
    uint32_t p = 0, r = 0;
    for (uint32_t k = 0; k < x->width; k++) {
        mass += exp(x->sorted[k]);
        const double cost = x->own >= x->sorted[k] ? square(x->number - (x->own - log(mass))) : plain;
        if (k < MOST_KEPT) s->top_k[k] += cost;
        for (; p < N_MASSES && mass >= MASSES[p]; p++) s->top_p[p] += cost;
        const double next = k + 1 < x->width ? exp(x->sorted[k + 1] - x->sorted[0]) : 0;
        for (uint32_t f = N_FLOORS - r; f-- > 0 && FLOORS[f] > next; r++) s->min_p[f] += cost;
    }
    for (uint32_t k = x->width; k < MOST_KEPT; k++) s->top_k[k] += plain;
    for (; p < N_MASSES; p++) s->top_p[p] += plain;
}

/* Row `ahead` further on and the token `token` further on; pairing (0, 0) is the plain law, and equal ones are a shift
 * of the numbers. */
static bool pairing_at(int i, int *row, int *token)
{
    *row = i / 4 - 1, *token = i % 4 - 1;
    return *row != *token;
}

static void add_pairings(sums *s, lb_token_sample *sample, bool second, const item *x)
{
    for (int k = 0; k < PAIRINGS; k++) {
        int ahead, token;
        uint32_t width = 0;
        double cost = square(x->number - x->own);
        if (pairing_at(k, &ahead, &token)) {
            double *row = lb_token_sample_row(sample, x->place, second, ahead, &width);
            const int64_t id = lb_token_sample_id(sample, x->place, token);
            if (row && id >= 0 && id < (int64_t)width && isfinite(row[id])) cost = square(x->number - row[id]);
            free(row);
        }
        s->pairing[k] += cost;
    }
}

/* ---- which law ---- */

typedef struct contest {
    lb_token_fit fit;
    double least, rival; /* what the best law leaves, and the best one of another kind */
} contest;

static void enter(contest *c, lb_token_fit fit, double left)
{
    const bool kin = fit.law == c->fit.law && isfinite(c->least);
    if (left < c->least) {
        if (!kin) c->rival = c->least;
        c->least = left, c->fit = fit;
    } else if (!kin && left < c->rival) {
        c->rival = left;
    }
}

static void enter_all(contest *c, const sums *s)
{
    enter(c, (lb_token_fit){.law = LB_TOKEN_LAW_NONE, .parameter = 1}, s->constant);
    enter(c, (lb_token_fit){.law = LB_TOKEN_LAW_ARGMAX}, s->best);
    for (int k = 0; k < PAIRINGS; k++) {
        int row, token;
        if (pairing_at(k, &row, &token))
            enter(c, (lb_token_fit){.law = LB_TOKEN_LAW_LABELS, .row = row, .token = token}, s->pairing[k]);
    }
    for (int k = 0; k < MOST_KEPT; k++)
        enter(c, (lb_token_fit){.law = LB_TOKEN_LAW_TOP_K, .parameter = k + 1}, s->top_k[k]);
    for (int i = 0; i < N_MASSES; i++)
        enter(c, (lb_token_fit){.law = LB_TOKEN_LAW_TOP_P, .parameter = MASSES[i]}, s->top_p[i]);
    for (int i = 0; i < N_FLOORS; i++)
        enter(c, (lb_token_fit){.law = LB_TOKEN_LAW_MIN_P, .parameter = FLOORS[i]}, s->min_p[i]);
}

/* ---- the tokens ---- */

static void release(items *all)
{
    for (uint32_t i = 0; i < all->n; i++) free(all->list[i].sorted);
    free(all->list);
}

static void load_items(lb_token_sample *sample, bool rows, bool numbers, items *all)
{
    const lb_token_scores *s = sample->scores;
    all->list = malloc((sample->n + 1u) * sizeof *all->list);
    sample->failed |= !all->list;
    for (uint32_t i = 0; all->list && i < sample->n && !sample->failed; i++) {
        item x = {.place = i};
        const int64_t id = lb_token_sample_id(sample, i, 0);
        x.sorted = lb_token_sample_row(sample, i, rows, 0, &x.width);
        x.number = numbers ? s->list[sample->list[i]].q : s->list[sample->list[i]].p;
        if (x.sorted && id >= 0 && id < (int64_t)x.width && isfinite(x.sorted[id])) {
            x.own = x.sorted[id];
            all->list[all->n++] = x;
        } else {
            free(x.sorted);
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
static bool worth_it(const items *all, sums *s)
{
    for (uint32_t i = 0; i < all->n; i++) {
        const double d = fabs(all->list[i].number - all->list[i].own);
        s->plain += d * d, s->plain_abs += d;
    }
    return s->plain_abs / all->n > WORTH_A_WORD && square(s->plain_abs) >= LB_TOKEN_CARRIERS * s->plain;
}

static double left_by_heat(const items *all, double temperature)
{
    double left = 0;
    for (uint32_t i = 0; i < all->n; i++) left += square(all->list[i].number - heated(&all->list[i], temperature));
    return left;
}

/* The best T between the neighbours of the best one on the grid, by golden sections. */
static lb_token_fit refined(const items *all, const sums *s, double *left)
{
    int best = 0;
    for (int i = 1; i < HEATS; i++)
        if (s->heat[i] < s->heat[best]) best = i;
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

static void add_laws(sums *s, lb_token_sample *sample, bool rows, const items *all)
{
    for (uint32_t i = 0; i < all->n; i++) {
        item *x = &all->list[i];
        qsort(x->sorted, x->width, sizeof *x->sorted, descending);
        s->best += square(x->number - x->sorted[0]);
        add_pairings(s, sample, rows, x), add_heats(s, x), add_filters(s, x);
    }
}

static double number_by(lb_token_sample *sample, const lb_token_fit *fit, bool second, const item *x)
{
    double mass = 0, number = NAN;
    uint32_t width = 0;
    switch (fit->law) {
    case LB_TOKEN_LAW_ARGMAX: return x->sorted[0];
    case LB_TOKEN_LAW_TEMPERATURE: return heated(x, fit->parameter);
    case LB_TOKEN_LAW_LABELS: {
        double *row = lb_token_sample_row(sample, x->place, second, fit->row, &width);
        const int64_t id = lb_token_sample_id(sample, x->place, fit->token);
        if (row && id >= 0 && id < (int64_t)width) number = row[id];
        free(row);
        return number;
    }
    default:
        for (uint32_t k = 0; k < x->width; k++) {
            if (fit->law == LB_TOKEN_LAW_TOP_K   ? k >= (uint32_t)fit->parameter
                : fit->law == LB_TOKEN_LAW_TOP_P ? mass >= fit->parameter
                                                 : x->sorted[k] < x->sorted[0] + log(fit->parameter))
                break;
            mass += exp(x->sorted[k]);
        }
        return x->own - log(mass);
    }
}

/* Nine tenths of the difference sit at tokens where the law leaves a fifth of it: no average of tokens that it hits and
 * tokens that it misses. */
static bool holds_by_token(lb_token_sample *sample, const lb_token_fit *fit, bool rows, const items *all)
{
    double held = 0, sum = 0;
    for (uint32_t i = 0; i < all->n; i++) {
        const item *x = &all->list[i];
        const double d = fabs(x->number - x->own), left = fabs(x->number - number_by(sample, fit, rows, x));
        if (isfinite(left)) sum += d, held += left <= 0.2 * d ? d : 0;
    }
    return held >= 0.9 * sum;
}

static bool holds(lb_token_sample *sample, const contest *c, const sums *s, bool rows, const items *all)
{
    if (c->least > LEAVES * s->plain || c->rival < RIVAL_LEAVES * c->least) return false;
    if (c->fit.law == LB_TOKEN_LAW_TEMPERATURE && !(c->fit.parameter > 0.22 && c->fit.parameter < 4.5)) return false;
    return c->fit.law != LB_TOKEN_LAW_NONE && holds_by_token(sample, &c->fit, rows, all);
}

lb_token_fit lb_token_fit_rows(lb_token_sample *sample, bool rows, bool numbers)
{
    items all = {0};
    contest c = {.least = INFINITY, .rival = INFINITY};
    sums *s = calloc(1, sizeof *s);
    sample->failed |= !s;
    load_items(sample, rows, numbers, &all);
    const bool judged = !sample->failed && all.n >= LB_TOKEN_FEWEST;
    if (judged && worth_it(&all, s)) {
        double left;
        add_laws(s, sample, rows, &all);
        const lb_token_fit heat = refined(&all, s, &left);
        s->constant = left_by_constant(&all);
        enter_all(&c, s), enter(&c, heat, left);
        if (!holds(sample, &c, s, rows, &all)) c.fit = (lb_token_fit){0};
    }
    release(&all), free(s);
    c.fit.judged = judged;
    return c.fit;
}
