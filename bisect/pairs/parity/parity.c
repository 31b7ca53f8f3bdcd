/* Rows, findings and the verdict of two token sets: see lastbit/parity.h. */
#include "parity/parity_places.h"
#include "parity/parity_verdict.h"
#include "parity/token_causes.h"
#include "compare/token_row.h"
#include "parity/token_k3.h"

#include "base/array.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_TEXT(name, text) text,
const char *lb_parity_finding_name(lb_parity_finding_kind kind)
{
    static const char *const names[] = {LB_PARITY_FINDINGS(NAME_TEXT)};
    return (size_t)kind < sizeof names / sizeof *names ? names[kind] : "";
}

const char *lb_parity_cause_name(lb_parity_cause cause)
{
    static const char *const names[] = {LB_PARITY_CAUSES(NAME_TEXT)};
    return (size_t)cause < LB_PARITY_CAUSES_N ? names[cause] : "";
}

const char *lb_parity_cause_state_name(lb_parity_cause_state state)
{
    static const char *const names[] = {"unknown", "excluded", "found"};
    return names[state];
}

const char *lb_parity_reason_name(lb_parity_reason reason)
{
    static const char *const names[] = {LB_PARITY_REASONS(NAME_TEXT)};
    return (size_t)reason < sizeof names / sizeof *names ? names[reason] : "";
}

const char *lb_parity_verdict_name(lb_parity_verdict verdict)
{
    static const char *const names[] = {"pass", "fail", "undecided"};
    return names[verdict];
}

/* ---- rows ---- */

typedef struct tables {
    lb_parity_row *kinds, *positions;
    uint32_t n_kinds, n_positions;
    lb_parity_row all;
    double *rows; /* two rows of a vocabulary */
    int64_t words;
} tables;

static const lb_token *first_token(const lb_token_score *score, const lb_token_scores *scores)
{
    const lb_sequence_match *pair = &scores->match->pairs[score->pair];
    return &scores->a->sequences[pair->a].tokens[pair->spans[score->span].a];
}

/* What one token adds to its rows. */
typedef struct contribution {
    double d, k3, p, q, kl;
    bool held, full, chosen, agrees;
} contribution;

static contribution contribution_of(const lb_token_scores *scores, const lb_token_score *score, tables *tables)
{
    const lb_sequence_match *pair = &scores->match->pairs[score->pair];
    const lb_token_span *span = &pair->spans[score->span];
    const lb_token_sequence *x = &scores->a->sequences[pair->a], *y = &scores->b->sequences[pair->b];
    contribution made = {.p = score->p, .q = score->q, .d = score->p == score->q ? 0 : score->p - score->q};
    made.k3 = lb_token_k3(score->p, score->q, &made.held);
    const int64_t j = (int64_t)span->b + scores->shift;
    if (span->a_count != 1 || span->b_count != 1 || j < 0 || j >= (int64_t)y->n) return made;
    if (tables->rows && span->a && j && lb_token_has_row(x, span->a - 1) && lb_token_has_row(y, (uint32_t)j - 1) &&
        x->logits.layout.shape[1] == y->logits.layout.shape[1]) {
        const int64_t words = x->logits.layout.shape[1];
        lb_token_row(x, x->logit_of[span->a - 1], tables->rows),
            lb_token_row(y, y->logit_of[j - 1], tables->rows + words);
        made.full = made.chosen = true;
        made.kl = lb_token_divergence(tables->rows, tables->rows + words, words);
        made.agrees =
            lb_token_most_probable(tables->rows, words) == lb_token_most_probable(tables->rows + words, words);
        return made;
    }
    const int64_t mine = x->tokens[span->a].top1, theirs = y->tokens[j].top1;
    made.chosen = mine >= 0 && theirs >= 0, made.agrees = mine == theirs;
    return made;
}

static void add(lb_parity_row *row, const contribution *contribution)
{
    row->count++;
    if (!isfinite(contribution->d)) {
        row->nonfinite++;
        return;
    }
    row->held += contribution->held, row->full += contribution->full, row->chosen += contribution->chosen,
        row->top1 += contribution->chosen && contribution->agrees;
    row->k3 += contribution->k3, row->mean += contribution->d, row->mean_abs += fabs(contribution->d);
    row->loss_a -= contribution->p, row->loss_b -= contribution->q;
    if (contribution->full) row->kl += contribution->kl;
    if (fabs(contribution->d) > row->max_abs) row->max_abs = fabs(contribution->d);
}

static void finish(lb_parity_row *row)
{
    const double n = (double)(row->count - row->nonfinite);
    row->k3 /= n, row->mean /= n, row->mean_abs /= n;
    row->loss_a /= n, row->loss_b /= n;
    row->perplexity_a = exp(row->loss_a), row->perplexity_b = exp(row->loss_b);
    row->kl /= (double)row->full, row->top1 /= (double)row->chosen; /* of none: NaN */
    if (n == 0) row->max_abs = NAN;
}

static lb_parity_row new_row(const char *name)
{
    return (lb_parity_row){.name = name, .noise = NAN, .noise_loss = NAN, .k3_limit = NAN, .loss_limit = NAN};
}

/* Rows by kind, where A or else B tells kinds, and by position. */
static bool make_tables(const lb_token_scores *scores, tables *made)
{
    const lb_token_set *set = scores->a->n_kinds ? scores->a : scores->b;
    *made = (tables){.n_kinds = set->n_kinds + 1, .n_positions = LB_PARITY_PLACES_N, .all = new_row("all")};
    for (uint32_t i = 0; i < scores->a->n; i++)
        if (scores->a->sequences[i].logits.data && scores->a->sequences[i].logits.layout.shape[1] > made->words)
            made->words = scores->a->sequences[i].logits.layout.shape[1];
    made->kinds = calloc(made->n_kinds, sizeof *made->kinds),
    made->positions = calloc(LB_PARITY_PLACES_N, sizeof *made->positions);
    if (made->words) made->rows = malloc((size_t)(2 * made->words) * sizeof *made->rows);
    if (!made->kinds || !made->positions || (made->words && !made->rows)) return false;
    for (uint32_t i = 0; i < set->n_kinds; i++) made->kinds[i] = new_row(set->kinds[i]);
    made->kinds[set->n_kinds] = new_row(set->n_kinds ? "other" : "text");
    for (uint32_t i = 0; i < LB_PARITY_PLACES_N; i++) made->positions[i] = new_row(LB_PARITY_PLACES_RANGES[i]);
    for (uint32_t i = 0; i < scores->n; i++) {
        const contribution contribution = contribution_of(scores, &scores->list[i], made);
        const lb_sequence_match *pair = &scores->match->pairs[scores->list[i].pair];
        const lb_token_span *span = &pair->spans[scores->list[i].span];
        const int32_t kind = scores->a->n_kinds ? first_token(&scores->list[i], scores)->kind
                                                : scores->b->sequences[pair->b].tokens[span->b].kind;
        add(&made->all, &contribution), add(&made->kinds[kind < 0 ? set->n_kinds : (uint32_t)kind], &contribution),
            add(&made->positions[lb_parity_places_range(span->a)], &contribution);
    }
    finish(&made->all);
    for (uint32_t i = 0; i < made->n_kinds; i++) finish(&made->kinds[i]);
    for (uint32_t i = 0; i < made->n_positions; i++) finish(&made->positions[i]);
    return true;
}

static uint32_t without_empty(lb_parity_row *rows, uint32_t n)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (rows[i].count) rows[kept++] = rows[i];
    return kept;
}

/* ---- tokens ---- */

static lb_parity_token token_of(const lb_token_scores *scores, const lb_token_score *score)
{
    const lb_sequence_match *pair = &scores->match->pairs[score->pair];
    bool held;
    return (lb_parity_token){pair->a,
                             pair->spans[score->span].a,
                             pair->spans[score->span].b,
                             score->p,
                             score->q,
                             lb_token_k3(score->p, score->q, &held)};
}

static bool keep_pairs(const lb_token_scores *scores, lb_parity_report *report)
{
    report->pairs = calloc(scores->match->n + 1u, sizeof *report->pairs);
    if (!report->pairs) return false;
    report->n_pairs = scores->match->n;
    for (uint32_t i = 0; i < scores->match->n; i++)
        report->pairs[i] = (lb_parity_pair){.a = scores->match->pairs[i].a, .b = scores->match->pairs[i].b};
    for (uint32_t first = 0, end; first < scores->n; first = end) {
        lb_parity_pair *pair = &report->pairs[scores->list[first].pair];
        for (end = first; end < scores->n && scores->list[end].pair == scores->list[first].pair;) end++;
        pair->tokens = malloc((end - first) * sizeof *pair->tokens);
        if (!pair->tokens) return false;
        for (; pair->n < end - first; pair->n++)
            pair->tokens[pair->n] = token_of(scores, &scores->list[first + pair->n]);
    }
    return true;
}

/* The largest k3 first; of equal ones the earlier token. */
static void keep_worst(const lb_token_scores *scores, lb_parity_report *report, uint32_t most)
{
    for (uint32_t i = 0; i < scores->n; i++) {
        const lb_parity_token token = token_of(scores, &scores->list[i]);
        if (!(token.k3 > 0) || (report->n_worst == most && token.k3 <= report->worst[most - 1].k3)) continue;
        uint32_t at = report->n_worst < most ? report->n_worst++ : most - 1;
        for (; at > 0 && report->worst[at - 1].k3 < token.k3; at--) report->worst[at] = report->worst[at - 1];
        report->worst[at] = token;
    }
}

/* ---- all of it ---- */

/* A side's tokens by what became of them. */
static void cover_side(const lb_token_set *set, lb_parity_coverage *coverage)
{
    for (uint32_t i = 0; i < set->n; i++)
        for (uint32_t t = 0; t < set->sequences[i].n; t++) {
            const bool none = isnan(set->sequences[i].tokens[t].logp);
            coverage->tokens++, coverage->first += none && t == 0, coverage->unscored += none && t > 0;
        }
    coverage->unmatched = coverage->tokens - coverage->first - coverage->unscored - coverage->compared;
}

static void cover(const lb_token_scores *scores, lb_parity_report *report)
{
    for (uint32_t i = 0; i < scores->n; i++) {
        const lb_token_span *span = &scores->match->pairs[scores->list[i].pair].spans[scores->list[i].span];
        report->coverage[0].compared += span->a_count, report->coverage[1].compared += span->b_count;
    }
    cover_side(scores->a, &report->coverage[0]), cover_side(scores->b, &report->coverage[1]);
}

static lb_status compare(const lb_token_set *a, const lb_token_set *b, const lb_parity_options *options,
                         lb_parity_report *report, lb_err *err)
{
    lb_token_match match;
    lb_token_scores scores = {0};
    tables tables = {0};
    lb_status status = lb_token_match_make(a, b, &match, err);
    report->findings = match.findings, report->n_findings = match.n_findings;
    match.findings = NULL;
    if (status == LB_OK)
        status = lb_token_scores_make(a, b, &match, &scores, &report->findings, &report->n_findings, err);
    report->worst = calloc(options->worst + 1u, sizeof *report->worst);
    bool ok = status == LB_OK && report->worst && make_tables(&scores, &tables) && keep_pairs(&scores, report);
    report->all = tables.all, report->kinds = tables.kinds, report->positions = tables.positions;
    if (ok) {
        report->n_kinds = without_empty(tables.kinds, tables.n_kinds),
        report->n_positions = without_empty(tables.positions, tables.n_positions);
        if (options->worst) keep_worst(&scores, report, options->worst);
        cover(&scores, report);
        status = lb_token_causes_find(&scores, report->all.top1, report->all.chosen, report->causes, &report->findings,
                                      &report->n_findings, err);
        ok = status == LB_OK && lb_parity_places_note(&scores, report, options->threshold);
    }
    free(tables.rows);
    lb_token_scores_release(&scores);
    lb_token_match_release(&match);
    return ok ? LB_OK : status != LB_OK ? status : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

static void take_noise(lb_parity_row *rows, uint32_t n, const lb_parity_row *from, uint32_t m)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < m; k++)
            if (strcmp(rows[i].name, from[k].name) == 0)
                rows[i].noise = from[k].k3, rows[i].noise_loss = lb_parity_loss_factor(from[k].loss_a, from[k].loss_b);
}

lb_status lb_parity_run(const lb_token_set *a, const lb_token_set *b, const lb_parity_options *options,
                        lb_parity_report **report, lb_err *err)
{
    lb_parity_options given = LB_PARITY_OPTIONS_INIT;
    if (options) given = *options;
    lb_parity_report *made = calloc(1, sizeof *made), *floor = NULL;
    *report = NULL;
    if (!made) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    made->noise_floor = NAN;
    lb_status status = compare(a, b, &given, made, err);
    if (status == LB_OK && given.noise) {
        lb_parity_options plain = given;
        plain.noise = NULL, plain.worst = 0;
        status = lb_parity_run(a, given.noise, &plain, &floor, err);
    }
    if (status == LB_OK && floor) {
        made->noise_floor = floor->all.k3;
        take_noise(&made->all, 1, &floor->all, 1);
        take_noise(made->kinds, made->n_kinds, floor->kinds, floor->n_kinds);
        take_noise(made->positions, made->n_positions, floor->positions, floor->n_positions);
    }
    lb_parity_report_free(floor);
    if (status == LB_OK) lb_parity_verdict_decide(made, given.threshold);
    if (status == LB_OK && !lb_parity_places_untold(made)) status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status != LB_OK) lb_parity_report_free(made), made = NULL;
    *report = made;
    return status;
}

void lb_parity_report_free(lb_parity_report *report)
{
    if (!report) return;
    for (uint32_t i = 0; report->pairs && i < report->n_pairs; i++) free(report->pairs[i].tokens);
    free(report->pairs), free(report->kinds), free(report->positions), free(report->findings), free(report->worst);
    free(report);
}
