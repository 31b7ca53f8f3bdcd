/* See parity_places.h. */
#include "parity/parity_places.h"

#include "base/array.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEWEST_IN_RANGE = 16 };
const char *const LB_PARITY_PLACES_RANGES[LB_PARITY_PLACES_N] = {
    "0-15",        "16-63",        "64-255",    "256-1023", "1024-4095", "4096-16383",
    "16384-65535", "65536-262143", "262144-1M", "1M-4M",    "4M-16M",    "16M-"};

uint32_t lb_parity_places_range(uint32_t position)
{
    uint32_t range = 0;
    for (uint32_t end = 16; range + 1 < LB_PARITY_PLACES_N && position >= end; end *= 4) range++;
    return range;
}

/* ---- where the difference sits ---- */

static bool note_kinds(lb_parity_report *report, double threshold)
{
    const lb_parity_row *worst = NULL, *next = NULL;
    for (uint32_t i = 0; i < report->n_kinds; i++) {
        const lb_parity_row *row = &report->kinds[i];
        if (!worst || row->k3 > worst->k3)
            next = worst, worst = row;
        else if (!next || row->k3 > next->k3)
            next = row;
    }
    if (!next || worst->k3 < threshold || next->k3 >= threshold || worst->k3 < 10 * next->k3) return true;
    return lb_token_match_note(
        &report->findings, &report->n_findings, LB_PARITY_KIND, false,
        "tokens of kind %s alone are apart: k3 %.3g over %llu, against %.3g at most of any other kind", worst->name,
        worst->k3, (unsigned long long)worst->count, next->k3);
}

/* The median of |d| over the tokens in a range of positions, which single tokens that are far off do not move. */
static double median_in(const lb_token_scores *scores, const char *name, double *room)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < scores->n; i++) {
        const lb_token_span *span = &scores->match->pairs[scores->list[i].pair].spans[scores->list[i].span];
        if (strcmp(LB_PARITY_PLACES_RANGES[lb_parity_places_range(span->a)], name) == 0)
            room[n++] = fabs(scores->list[i].p - scores->list[i].q);
    }
    if (n) qsort(room, n, sizeof *room, lb_by_f64);
    return n < FEWEST_IN_RANGE ? NAN : room[n / 2];
}

static bool note_positions(const lb_token_scores *scores, lb_parity_report *report, double threshold)
{
    if (report->n_positions < 2) return true;
    const lb_parity_row *first = &report->positions[0], *last = &report->positions[report->n_positions - 1];
    if (!(last->k3 >= threshold)) return true;
    double *room = malloc(((size_t)scores->n + 1) * sizeof *room);
    if (!room) return false;
    const double begin = median_in(scores, first->name, room), end = median_in(scores, last->name, room);
    free(room);
    if (!(end > 3 * begin)) return true;
    return lb_token_match_note(
        &report->findings, &report->n_findings, LB_PARITY_POSITION, false,
        "the difference grows along the sequence: |d| is %.3g at the median of positions %s, %.3g of %s (positions, "
        "a cache, or decoding that compounds)",
        begin, first->name, end, last->name);
}

static bool note_kinds_differ(const lb_token_scores *scores, lb_parity_report *report)
{
    uint32_t other = 0;
    for (uint32_t i = 0; scores->a->n_kinds && scores->b->n_kinds && i < scores->n; i++) {
        const lb_sequence_match *pair = &scores->match->pairs[scores->list[i].pair];
        const lb_token_span *span = &pair->spans[scores->list[i].span];
        const int32_t x = scores->a->sequences[pair->a].tokens[span->a].kind,
                      y = scores->b->sequences[pair->b].tokens[span->b].kind;
        other += x >= 0 && y >= 0 && strcmp(scores->a->kinds[x], scores->b->kinds[y]) != 0;
    }
    return !other ||
           lb_token_match_note(&report->findings, &report->n_findings, LB_PARITY_KINDS, false,
                               "%u of %u tokens are of other kinds on the two sides; the first side's are used", other,
                               scores->n);
}

/* ---- sequences ---- */

typedef struct sequence_row {
    double mean; /* of |d| */
    uint32_t pair, n;
} sequence_row;

static int by_mean(const void *a, const void *b)
{
    const sequence_row *x = a, *y = b;
    return (x->mean > y->mean) - (x->mean < y->mean);
}

/* Sequences of LB_TOKEN_FEWEST tokens and more, the nearest first. NULL: out of memory. */
static sequence_row *sequences_of(const lb_token_scores *scores, uint32_t *n)
{
    sequence_row *rows = malloc((scores->match->n + 1u) * sizeof *rows);
    *n = 0;
    for (uint32_t first = 0, end; rows && first < scores->n; first = end) {
        sequence_row row = {.pair = scores->list[first].pair};
        for (end = first; end < scores->n && scores->list[end].pair == row.pair; end++) {
            const double d = fabs(scores->list[end].p - scores->list[end].q);
            if (isfinite(d)) row.mean += d, row.n++;
        }
        row.mean /= row.n;
        if (row.n >= LB_TOKEN_FEWEST) rows[(*n)++] = row;
    }
    if (rows) qsort(rows, *n, sizeof *rows, by_mean);
    return rows;
}

static const char *version_of(const lb_token_scores *scores, const sequence_row *row, bool second)
{
    const lb_sequence_match *pair = &scores->match->pairs[row->pair];
    return second ? scores->b->sequences[pair->b].version : scores->a->sequences[pair->a].version;
}

/* The one version of the rows [first, end); NULL: several, or not told. */
static const char *common_version(const lb_token_scores *scores, const sequence_row *rows, uint32_t first, uint32_t end,
                                  bool second)
{
    const char *version = version_of(scores, &rows[first], second);
    for (uint32_t i = first; version && i < end; i++) {
        const char *other = version_of(scores, &rows[i], second);
        if (!other || strcmp(other, version) != 0) version = NULL;
    }
    return version;
}

/* Each version of one side is either near or apart. */
static bool versions_split(const lb_token_scores *scores, const sequence_row *rows, uint32_t near, uint32_t n,
                           bool second)
{
    for (uint32_t i = 0; i < near; i++)
        for (uint32_t k = near; k < n; k++) {
            const char *x = version_of(scores, &rows[i], second), *y = version_of(scores, &rows[k], second);
            if (!x || !y || strcmp(x, y) == 0) return false;
        }
    return true;
}

static bool note_sequences(const lb_token_scores *scores, lb_parity_report *report)
{
    uint32_t n, near = 0;
    sequence_row *rows = sequences_of(scores, &n);
    if (!rows) return false;
    for (uint32_t i = 1; i < n; i++) /* the widest gap between neighbours */
        if (rows[i].mean >= 10 * rows[i - 1].mean && rows[i].mean > 0.02 &&
            (!near || rows[i].mean * rows[near - 1].mean > rows[near].mean * rows[i - 1].mean))
            near = i;
    bool ok = true;
    for (int side = 0; near >= 2 && n - near >= 2 && ok && side < 2; side++) {
        if (!versions_split(scores, rows, near, n, side)) continue;
        const char *good = common_version(scores, rows, 0, near, side),
                   *bad = common_version(scores, rows, near, n, side);
        ok = lb_token_match_note(
            &report->findings, &report->n_findings, LB_PARITY_VERSION, false,
            "sequences of version %.40s of the weights agree (%u of them, mean |d| at most %.3g), "
            "those of version %.40s are apart (%u, at least %.3g): the %s side scored them with other weights",
            good ? good : "(several)", near, rows[near - 1].mean, bad ? bad : "(several)", n - near, rows[near].mean,
            side ? "second" : "first");
        free(rows);
        return ok;
    }
    if (near >= 2 && n - near >= 2)
        ok = lb_token_match_note(&report->findings, &report->n_findings, LB_PARITY_SEQUENCES, false,
                                 "%u of %u sequences agree (mean |d| at most %.3g), %u are apart (at least %.3g): "
                                 "what these were scored with, or after, differs, not how all tokens are scored",
                                 near, n, rows[near - 1].mean, n - near, rows[near].mean);
    free(rows);
    return ok;
}

bool lb_parity_places_note(const lb_token_scores *scores, lb_parity_report *report, double threshold)
{
    return note_kinds(report, threshold) && note_positions(scores, report, threshold) &&
           note_kinds_differ(scores, report) && note_sequences(scores, report);
}

/* ---- no cause was told ---- */

/* "no shift, no temperature" of the causes in one state, `before` each. */
static void list_causes(const lb_parity_report *report, lb_parity_cause_state state, const char *before, char *text,
                        size_t size)
{
    static const char *const words[LB_PARITY_CAUSES_N] = {
        [LB_PARITY_CAUSE_SCALE] = "other logarithm",   [LB_PARITY_CAUSE_SHIFT] = "shift",
        [LB_PARITY_CAUSE_TEMPERATURE] = "temperature", [LB_PARITY_CAUSE_RENORMALISED] = "filter",
        [LB_PARITY_CAUSE_ARGMAX] = "argmax",           [LB_PARITY_CAUSE_LABELS] = "other labels",
        [LB_PARITY_CAUSE_CONSTANT] = "constant",
    };
    size_t used = 0;
    text[0] = '\0';
    for (int c = 0; c < LB_PARITY_CAUSES_N && used < size; c++)
        if (report->causes[c] == state && c != LB_PARITY_CAUSE_CONSTANT)
            used += (size_t)snprintf(text + used, size - used, "%s%s%s", used ? ", " : "", before, words[c]);
}

static void say_direction(const lb_parity_report *report, char *text, size_t size)
{
    uint64_t lower = 0, higher = 0, all = 0;
    for (uint32_t i = 0; i < report->n_pairs; i++)
        for (uint32_t k = 0; k < report->pairs[i].n; k++, all++) {
            const lb_parity_token *token = &report->pairs[i].tokens[k];
            lower += token->log_q<token->log_p, higher += token->log_q> token->log_p;
        }
    if (lower * 50 >= all * 49)
        snprintf(text, size,
                 lower == all ? "all %llu tokens are less probable on the second side"
                              : "nearly all of %llu tokens are less probable on the second side",
                 (unsigned long long)all);
    else if (higher * 50 >= all * 49)
        snprintf(text, size,
                 higher == all ? "all %llu tokens are more probable on the second side"
                               : "nearly all of %llu tokens are more probable on the second side",
                 (unsigned long long)all);
    else
        snprintf(text, size, "%llu of %llu tokens are less probable on the second side, %llu more",
                 (unsigned long long)lower, (unsigned long long)all, (unsigned long long)higher);
}

/* A cause, or a place that is narrower than all tokens. */
static bool explains(lb_parity_finding_kind kind)
{
    switch (kind) {
    case LB_PARITY_POSITION:
    case LB_PARITY_KINDS:
    case LB_PARITY_PADDING:
    case LB_PARITY_TOKENS:
    case LB_PARITY_SEQUENCE: return false;
    default: return true;
    }
}

bool lb_parity_places_untold(lb_parity_report *report)
{
    char direction[120], excluded[110], unknown[110];
    bool by_numbers = false;
    for (uint32_t i = 0; i < report->n_kinds; i++)
        by_numbers |= report->kinds[i].reason != LB_PARITY_BY_WITHIN && report->kinds[i].reason != LB_PARITY_BY_NOISE;
    if (!by_numbers) return true;
    for (uint32_t i = 0; i < report->n_findings; i++)
        if (explains(report->findings[i].kind) && !report->findings[i].corrected) return true;
    say_direction(report, direction, sizeof direction);
    list_causes(report, LB_PARITY_CAUSE_EXCLUDED, "no ", excluded, sizeof excluded);
    list_causes(report, LB_PARITY_CAUSE_UNKNOWN, "", unknown, sizeof unknown);
    return lb_token_match_note(&report->findings, &report->n_findings, LB_PARITY_UNTOLD, false, "%s%s%s%s%s%s%s",
                               direction, *excluded ? ": " : "", excluded,
                               *unknown ? "; one number per token does not tell " : "", unknown,
                               *unknown ? " (top_logprobs or logits would)" : "",
                               ". Weights (a lost shard, another version), prompts and kernels look alike here");
}
