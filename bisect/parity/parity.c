/* Rows, findings and the verdict of two token sets: see lastbit/parity.h. */
#include "token_row.h"
#include "token_scores.h"

#include <lastbit/array.h>
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

enum {
    RANGES = 12,
    FEWEST_IN_RANGE = 16
}; /* positions 0-15, 16-63, 64-255, …: each four times as long as the one before */
static const char *const RANGE_NAMES[RANGES] = {"0-15",      "16-63",      "64-255",      "256-1023",
                                                "1024-4095", "4096-16383", "16384-65535", "65536-262143",
                                                "262144-1M", "1M-4M",      "4M-16M",      "16M-"};

static uint32_t range_of(uint32_t position)
{
    uint32_t range = 0;
    for (uint32_t end = 16; range + 1 < RANGES && position >= end; end *= 4) range++;
    return range;
}

static const lb_token *first_token(const lb_token_score *score, const lb_token_scores *s)
{
    const lb_sequence_match *pair = &s->match->pairs[score->pair];
    return &s->a->sequences[pair->a].tokens[pair->spans[score->span].a];
}

/* What one token adds to its rows. */
typedef struct contribution {
    double d, k3, p, q, kl;
    bool held, full, chosen, agrees;
} contribution;

static contribution contribution_of(const lb_token_scores *s, const lb_token_score *score, tables *t)
{
    const lb_sequence_match *pair = &s->match->pairs[score->pair];
    const lb_token_span *span = &pair->spans[score->span];
    const lb_token_sequence *x = &s->a->sequences[pair->a], *y = &s->b->sequences[pair->b];
    contribution c = {.p = score->p, .q = score->q, .d = score->p == score->q ? 0 : score->p - score->q};
    c.k3 = lb_token_k3(score->p, score->q, &c.held);
    const int64_t j = (int64_t)span->b + s->shift;
    if (span->a_count != 1 || span->b_count != 1 || j < 0 || j >= (int64_t)y->n) return c;
    if (t->rows && span->a && j && lb_token_has_row(x, span->a - 1) && lb_token_has_row(y, (uint32_t)j - 1) &&
        x->logits.layout.shape[1] == y->logits.layout.shape[1]) {
        const int64_t words = x->logits.layout.shape[1];
        lb_token_row(x, x->logit_of[span->a - 1], t->rows), lb_token_row(y, y->logit_of[j - 1], t->rows + words);
        c.full = c.chosen = true;
        c.kl = lb_token_divergence(t->rows, t->rows + words, words);
        c.agrees = lb_token_most_probable(t->rows, words) == lb_token_most_probable(t->rows + words, words);
        return c;
    }
    const int64_t mine = x->tokens[span->a].top1, theirs = y->tokens[j].top1;
    c.chosen = mine >= 0 && theirs >= 0, c.agrees = mine == theirs;
    return c;
}

static void add(lb_parity_row *row, const contribution *c)
{
    row->count++;
    if (!isfinite(c->d)) {
        row->nonfinite++;
        return;
    }
    row->held += c->held, row->full += c->full, row->chosen += c->chosen, row->top1 += c->chosen && c->agrees;
    row->k3 += c->k3, row->mean += c->d, row->mean_abs += fabs(c->d);
    row->perplexity_a += c->p, row->perplexity_b += c->q;
    if (c->full) row->kl += c->kl;
    if (fabs(c->d) > row->max_abs) row->max_abs = fabs(c->d);
}

static void finish(lb_parity_row *row)
{
    const double n = (double)(row->count - row->nonfinite);
    row->k3 /= n, row->mean /= n, row->mean_abs /= n;
    row->perplexity_a = exp(-row->perplexity_a / n), row->perplexity_b = exp(-row->perplexity_b / n);
    row->kl /= (double)row->full, row->top1 /= (double)row->chosen; /* of none: NaN */
    if (n == 0) row->max_abs = NAN;
}

static lb_parity_row new_row(const char *name)
{
    return (lb_parity_row){.name = name, .noise = NAN};
}

/* Rows by kind, where A or else B tells kinds, and by position. */
static bool make_tables(const lb_token_scores *s, tables *t)
{
    const lb_token_set *set = s->a->n_kinds ? s->a : s->b;
    *t = (tables){.n_kinds = set->n_kinds + 1, .n_positions = RANGES, .all = new_row("all")};
    for (uint32_t i = 0; i < s->a->n; i++)
        if (s->a->sequences[i].logits.data && s->a->sequences[i].logits.layout.shape[1] > t->words)
            t->words = s->a->sequences[i].logits.layout.shape[1];
    t->kinds = calloc(t->n_kinds, sizeof *t->kinds), t->positions = calloc(RANGES, sizeof *t->positions);
    if (t->words) t->rows = malloc((size_t)(2 * t->words) * sizeof *t->rows);
    if (!t->kinds || !t->positions || (t->words && !t->rows)) return false;
    for (uint32_t i = 0; i < set->n_kinds; i++) t->kinds[i] = new_row(set->kinds[i]);
    t->kinds[set->n_kinds] = new_row(set->n_kinds ? "other" : "text");
    for (uint32_t i = 0; i < RANGES; i++) t->positions[i] = new_row(RANGE_NAMES[i]);
    for (uint32_t i = 0; i < s->n; i++) {
        const contribution c = contribution_of(s, &s->list[i], t);
        const lb_sequence_match *pair = &s->match->pairs[s->list[i].pair];
        const lb_token_span *span = &pair->spans[s->list[i].span];
        const int32_t kind =
            s->a->n_kinds ? first_token(&s->list[i], s)->kind : s->b->sequences[pair->b].tokens[span->b].kind;
        add(&t->all, &c), add(&t->kinds[kind < 0 ? set->n_kinds : (uint32_t)kind], &c),
            add(&t->positions[range_of(span->a)], &c);
    }
    finish(&t->all);
    for (uint32_t i = 0; i < t->n_kinds; i++) finish(&t->kinds[i]);
    for (uint32_t i = 0; i < t->n_positions; i++) finish(&t->positions[i]);
    return true;
}

static uint32_t without_empty(lb_parity_row *rows, uint32_t n)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (rows[i].count) rows[kept++] = rows[i];
    return kept;
}

/* ---- where the difference sits ---- */

static bool note_kinds(lb_parity_report *r, double threshold)
{
    const lb_parity_row *worst = NULL, *next = NULL;
    for (uint32_t i = 0; i < r->n_kinds; i++) {
        const lb_parity_row *row = &r->kinds[i];
        if (!worst || row->k3 > worst->k3)
            next = worst, worst = row;
        else if (!next || row->k3 > next->k3)
            next = row;
    }
    if (!next || worst->k3 < threshold || next->k3 >= threshold || worst->k3 < 10 * next->k3) return true;
    return lb_parity_note(
        &r->findings, &r->n_findings, LB_PARITY_KIND, false,
        "tokens of kind %s alone are apart: k3 %.3g over %llu, against %.3g at most of any other kind", worst->name,
        worst->k3, (unsigned long long)worst->count, next->k3);
}

/* The median of |d| over the tokens in a range of positions, which single tokens that are far off do not move. */
static double median_in(const lb_token_scores *s, const char *name, double *room)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        const lb_token_span *span = &s->match->pairs[s->list[i].pair].spans[s->list[i].span];
        if (strcmp(RANGE_NAMES[range_of(span->a)], name) == 0) room[n++] = fabs(s->list[i].p - s->list[i].q);
    }
    if (n) qsort(room, n, sizeof *room, lb_by_f64);
    return n < FEWEST_IN_RANGE ? NAN : room[n / 2];
}

static bool note_positions(const lb_token_scores *s, lb_parity_report *r, double threshold)
{
    if (r->n_positions < 2) return true;
    const lb_parity_row *first = &r->positions[0], *last = &r->positions[r->n_positions - 1];
    if (!(last->k3 >= threshold)) return true;
    double *room = malloc(((size_t)s->n + 1) * sizeof *room);
    if (!room) return false;
    const double begin = median_in(s, first->name, room), end = median_in(s, last->name, room);
    free(room);
    if (!(end > 3 * begin)) return true;
    return lb_parity_note(
        &r->findings, &r->n_findings, LB_PARITY_POSITION, false,
        "the difference grows along the sequence: |d| is %.3g at the median of positions %s, %.3g of %s (positions, a "
        "cache, or decoding that compounds)",
        begin, first->name, end, last->name);
}

static bool note_kinds_differ(const lb_token_scores *s, lb_parity_report *r)
{
    uint32_t other = 0;
    for (uint32_t i = 0; s->a->n_kinds && s->b->n_kinds && i < s->n; i++) {
        const lb_sequence_match *pair = &s->match->pairs[s->list[i].pair];
        const lb_token_span *span = &pair->spans[s->list[i].span];
        const int32_t x = s->a->sequences[pair->a].tokens[span->a].kind,
                      y = s->b->sequences[pair->b].tokens[span->b].kind;
        other += x >= 0 && y >= 0 && strcmp(s->a->kinds[x], s->b->kinds[y]) != 0;
    }
    return !other || lb_parity_note(&r->findings, &r->n_findings, LB_PARITY_KINDS, false,
                                    "%u of %u tokens are of other kinds on the two sides; the first side's are used",
                                    other, s->n);
}

/* ---- tokens ---- */

static lb_parity_token token_of(const lb_token_scores *s, const lb_token_score *score)
{
    const lb_sequence_match *pair = &s->match->pairs[score->pair];
    bool held;
    return (lb_parity_token){pair->a,
                             pair->spans[score->span].a,
                             pair->spans[score->span].b,
                             score->p,
                             score->q,
                             lb_token_k3(score->p, score->q, &held)};
}

static bool keep_pairs(const lb_token_scores *s, lb_parity_report *r)
{
    r->pairs = calloc(s->match->n + 1u, sizeof *r->pairs);
    if (!r->pairs) return false;
    r->n_pairs = s->match->n;
    for (uint32_t i = 0; i < s->match->n; i++)
        r->pairs[i] = (lb_parity_pair){.a = s->match->pairs[i].a, .b = s->match->pairs[i].b};
    for (uint32_t first = 0, end; first < s->n; first = end) {
        lb_parity_pair *pair = &r->pairs[s->list[first].pair];
        for (end = first; end < s->n && s->list[end].pair == s->list[first].pair;) end++;
        pair->tokens = malloc((end - first) * sizeof *pair->tokens);
        if (!pair->tokens) return false;
        for (; pair->n < end - first; pair->n++) pair->tokens[pair->n] = token_of(s, &s->list[first + pair->n]);
    }
    return true;
}

/* The largest k3 first; of equal ones the earlier token. */
static void keep_worst(const lb_token_scores *s, lb_parity_report *r, uint32_t most)
{
    for (uint32_t i = 0; i < s->n; i++) {
        const lb_parity_token token = token_of(s, &s->list[i]);
        if (!(token.k3 > 0) || (r->n_worst == most && token.k3 <= r->worst[most - 1].k3)) continue;
        uint32_t at = r->n_worst < most ? r->n_worst++ : most - 1;
        for (; at > 0 && r->worst[at - 1].k3 < token.k3; at--) r->worst[at] = r->worst[at - 1];
        r->worst[at] = token;
    }
}

/* ---- all of it ---- */

static bool fails(const lb_parity_finding *f)
{
    switch (f->kind) {
    case LB_PARITY_SEQUENCE:
    case LB_PARITY_TEMPLATE:
    case LB_PARITY_DROPPED:
    case LB_PARITY_REPEATED:
    case LB_PARITY_TEXT:
    case LB_PARITY_NAN:
    case LB_PARITY_TEMPERATURE:
        return true; /* the sides did not say the same thing, whatever the numbers of the rest */
    default: return false;
    }
}

static lb_parity_verdict verdict_of(const lb_parity_report *r, double threshold)
{
    for (uint32_t i = 0; i < r->n_findings; i++)
        if (r->all.count ? fails(&r->findings[i]) : r->findings[i].kind == LB_PARITY_NAN) return LB_PARITY_FAIL;
    if (!r->all.count) return LB_PARITY_UNDECIDED;
    for (uint32_t i = 0; i < r->n_kinds; i++)
        if (r->kinds[i].nonfinite || !(r->kinds[i].k3 < threshold)) return LB_PARITY_FAIL;
    return LB_PARITY_PASS;
}

static lb_status compare(const lb_token_set *a, const lb_token_set *b, const lb_parity_options *o, lb_parity_report *r,
                         lb_err *err)
{
    lb_token_match match;
    lb_token_scores scores = {0};
    tables t = {0};
    lb_status status = lb_token_match_make(a, b, &match, err);
    r->findings = match.findings, r->n_findings = match.n_findings;
    match.findings = NULL;
    if (status == LB_OK) status = lb_token_scores_make(a, b, &match, &scores, &r->findings, &r->n_findings, err);
    r->worst = calloc(o->worst + 1u, sizeof *r->worst);
    bool ok = status == LB_OK && r->worst && make_tables(&scores, &t) && keep_pairs(&scores, r);
    r->all = t.all, r->kinds = t.kinds, r->positions = t.positions;
    if (ok) {
        r->n_kinds = without_empty(t.kinds, t.n_kinds), r->n_positions = without_empty(t.positions, t.n_positions);
        if (o->worst) keep_worst(&scores, r, o->worst);
        ok = note_kinds(r, o->threshold) && note_positions(&scores, r, o->threshold) && note_kinds_differ(&scores, r);
        r->verdict = verdict_of(r, o->threshold);
    }
    free(t.rows);
    lb_token_scores_release(&scores);
    lb_token_match_release(&match);
    return ok ? LB_OK : status != LB_OK ? status : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

static void take_noise(lb_parity_row *rows, uint32_t n, const lb_parity_row *from, uint32_t m)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < m; k++)
            if (strcmp(rows[i].name, from[k].name) == 0) rows[i].noise = from[k].k3;
}

lb_status lb_parity_run(const lb_token_set *a, const lb_token_set *b, const lb_parity_options *options,
                        lb_parity_report **report, lb_err *err)
{
    lb_parity_options o = LB_PARITY_OPTIONS_INIT;
    if (options) o = *options;
    lb_parity_report *r = calloc(1, sizeof *r), *floor = NULL;
    *report = NULL;
    if (!r) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    r->noise_floor = NAN;
    lb_status status = compare(a, b, &o, r, err);
    if (status == LB_OK && o.noise) {
        lb_parity_options plain = o;
        plain.noise = NULL, plain.worst = 0;
        status = lb_parity_run(a, o.noise, &plain, &floor, err);
    }
    if (status == LB_OK && floor) {
        r->noise_floor = r->all.noise = floor->all.k3;
        take_noise(r->kinds, r->n_kinds, floor->kinds, floor->n_kinds);
        take_noise(r->positions, r->n_positions, floor->positions, floor->n_positions);
    }
    lb_parity_report_free(floor);
    if (status != LB_OK) lb_parity_report_free(r), r = NULL;
    *report = r;
    return status;
}

void lb_parity_report_free(lb_parity_report *report)
{
    if (!report) return;
    for (uint32_t i = 0; report->pairs && i < report->n_pairs; i++) free(report->pairs[i].tokens);
    free(report->pairs), free(report->kinds), free(report->positions), free(report->findings), free(report->worst);
    free(report);
}
