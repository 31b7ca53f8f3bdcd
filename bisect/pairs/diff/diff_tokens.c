/* Log-probabilities of two runs: see diff_tokens.h. */
#include "diff/diff_tokens.h"

#include "diff/diff_report.h"
#include "pair/forwards.h"
#include "pair/token_heads.h"
#include "compare/token_row.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Those of some parts of a side. */
typedef struct heads {
    lb_regenerated *regenerated;
    uint32_t first_part, parts;
    const lb_forwards *passes;
    int which; /* side of these */
    lb_token_heads found;
} heads;

static bool is_of(void *context, uint32_t op, uint32_t value)
{
    const heads *h = context;
    const lb_program_view *side = h->regenerated->side;
    const uint32_t part =
        value == LB_NONE ? lb_program_view_part_of(side, op) : lb_program_view_part_of_value(side, value);
    if (lb_forwards_has_no_like(h->passes, h->which, op)) return false;
    return part >= h->first_part && part - h->first_part < h->parts;
}

/* In the order of the first side's forward passes, where these are known to meet in another one. */
static void sort_heads(heads *h)
{
    lb_token_head *list = h->found.list;
    for (uint32_t i = 1; i < h->found.n && h->passes->used; i++)
        for (uint32_t k = i; k && lb_forwards_number(h->passes, h->which, list[k].op) <
                                      lb_forwards_number(h->passes, h->which, list[k - 1].op);
             k--) {
            const lb_token_head swap = list[k];
            list[k] = list[k - 1], list[k - 1] = swap;
        }
}

static lb_status open_heads(const lb_forwards *passes, int which, lb_regenerated *regenerated, uint32_t first_part,
                            uint32_t parts, heads *h, lb_err *err)
{
    *h =
        (heads){.regenerated = regenerated, .first_part = first_part, .parts = parts, .passes = passes, .which = which};
    LB_TRY(lb_token_heads_find(regenerated->program, is_of, h, &h->found, err));
    sort_heads(h);
    return LB_OK;
}

static void want_heads(const heads *h)
{
    for (uint32_t i = 0; i < h->found.n; i++) {
        lb_regenerated_want(h->regenerated, h->found.list[i].scores);
        lb_regenerated_want(h->regenerated, h->found.list[i].targets);
    }
}

/* Ranks that share a model's weights out (tensor parallelism) score the same tokens, each all of them: the first speaks
 * for all. Ranks that share the batch out score its tokens one behind the other. */
static lb_status keep_first_reading(heads *h, const heads *other, lb_err *err)
{
    if (h->parts == 1 || h->found.rows != (int64_t)h->parts * other->found.rows) return LB_OK;
    lb_token_heads_release(&h->found);
    return open_heads(h->passes, h->which, h->regenerated, h->first_part, 1, h, err);
}

/* ---- rows ---- */

/* Walks the rows of all heads of a side, one row in f64 at a time: vocabularies are large. */
typedef struct cursor {
    const heads *h;
    uint32_t head; /* the one that is open */
    int64_t at, rows;
    lb_tensor scores;
    double *row;
    int64_t *targets; /* of the open head, NULL: none */
    bool open, exact;
} cursor;

static bool open_targets(cursor *c, const lb_token_head *head)
{
    lb_tensor t;
    bool exact;
    free(c->targets);
    c->targets = NULL;
    if (head->targets == LB_NONE) return true;
    if (!lb_regenerated_value(c->h->regenerated, head->targets, &t, &exact) || t.dtype != LB_I64) return false;
    if (lb_layout_numel(&t.layout) != c->rows) return false;
    c->targets = malloc((size_t)c->rows * sizeof *c->targets + 1);
    return c->targets && lb_tensor_gather(&t, c->targets, NULL) == LB_OK;
}

static bool open_head(cursor *c)
{
    const lb_token_head *head = &c->h->found.list[c->head];
    bool exact = false;
    c->at = 0, c->open = true;
    c->rows = lb_layout_numel(&c->h->regenerated->program->values[head->scores].layout) / c->h->found.columns;
    if (!c->row) c->row = malloc((size_t)c->h->found.columns * sizeof *c->row);
    if (!c->row || !open_targets(c, head)) return false;
    if (!lb_regenerated_value(c->h->regenerated, head->scores, &c->scores, &exact)) c->scores.data = NULL;
    c->exact &= exact;
    return true;
}

static void close_cursor(cursor *c)
{
    free(c->row), free(c->targets);
}

/* Goes to the next row. False at the end, or when targets lack. `*target` -1: there is none; `*ignored`: it counts for
 * nothing. */
static bool next_row(cursor *c, int64_t *target, bool *ignored)
{
    while (!c->open || c->at == c->rows) {
        c->head += c->open;
        if (c->head >= c->h->found.n || !open_head(c)) return false;
    }
    *target = c->targets ? c->targets[c->at] : -1;
    *ignored = c->targets && *target == c->h->found.list[c->head].ignored;
    c->at++;
    return true;
}

/* The row that next_row went to, as log-probabilities in c->row; false when its bytes lack. */
static bool load_row(cursor *c)
{
    const lb_layout *l = &c->scores.layout;
    if (!c->scores.data) return false;
    int64_t rest = c->at - 1, offset = 0;
    for (int32_t d = l->ndim - 1; d-- > 0; rest /= l->shape[d]) offset += rest % l->shape[d] * l->stride[d];
    const char *from = (const char *)c->scores.data + offset * (int64_t)(lb_dtype_bits(c->scores.dtype) / 8);
    lb_load_f64_strided(c->row, c->scores.dtype, from, l->stride[l->ndim - 1], (size_t)c->h->found.columns);
    if (!c->h->found.list[c->head].normalised) lb_token_log_softmax(c->row, c->h->found.columns);
    return true;
}

/* ---- tokens ---- */

static lb_diff_tokens *tokens_of(lb_diff_report *r, const char *kind)
{
    for (uint32_t i = 0; i < r->n_tokens; i++)
        if (strcmp(r->tokens[i].kind, kind) == 0) return &r->tokens[i];
    lb_diff_tokens row = {.kind = lb_report_keep(r, kind)};
    uint32_t before = r->n_tokens;
    LB_DIFF_APPEND(r, tokens, n_tokens, row);
    return r->n_tokens > before ? &r->tokens[before] : NULL;
}

static void add_token(lb_diff_tokens *tokens, const double *first, const double *second, int64_t n, int64_t target)
{
    int64_t best = lb_token_most_probable(first, n);
    tokens->count++;
    tokens->kl += lb_token_divergence(first, second, n);
    tokens->top1 += best == lb_token_most_probable(second, n);
    if (target < 0 || target >= n) return;
    double d = first[target] == second[target] ? 0 : first[target] - second[target];
    tokens->has_targets = true;
    tokens->k3 += expm1(d) - d;
    tokens->mean_abs += fabs(d);
    if (!(fabs(d) <= tokens->max_abs)) tokens->max_abs = fabs(d);
}

static const char *kind_of(const lb_diff_options *o, int64_t index, int64_t rows, char *text, size_t size)
{
    if (!o->kinds || rows != o->n_kinds) return NULL;
    int64_t kind = o->kinds[index];
    if (kind >= 0 && kind < (int64_t)o->n_kind_names) return o->kind_names[kind];
    snprintf(text, size, "kind %" PRId64, kind);
    return text;
}

static void compare_rows(cursor *a, cursor *b, const lb_diff_options *options, lb_diff_report *report)
{
    const int64_t rows = a->h->found.rows, columns = a->h->found.columns;
    for (int64_t i = 0; i < rows; i++) {
        int64_t ya, yb;
        bool ignored_a, ignored_b;
        char text[40];
        if (!next_row(a, &ya, &ignored_a) || !next_row(b, &yb, &ignored_b) || !load_row(a) || !load_row(b)) {
            lb_report_missing(report,
                              "log-probabilities were not kept and could not be replayed; record with --level ops");
            return;
        }
        bool targets = ya >= 0 || ignored_a;
        const char *given = ignored_a ? NULL : kind_of(options, i, rows, text, sizeof text);
        const char *kind = ignored_a ? "ignored" : given ? given : targets ? "text" : "greedy";
        lb_diff_tokens *tokens = tokens_of(report, kind);
        if (!tokens) return;
        add_token(tokens, a->row, b->row, columns,
                  ignored_a ? -1
                  : targets ? ya
                            : lb_token_most_probable(a->row, columns));
    }
    report->tokens_approximate |= !a->exact || !b->exact;
}

/* ---- all of it ---- */

static bool same_targets(const heads *a, const heads *b)
{
    cursor x = {.h = a}, y = {.h = b};
    bool same = true;
    for (int64_t i = 0; same && i < a->found.rows; i++) {
        int64_t ya, yb;
        bool ia, ib;
        same = next_row(&x, &ya, &ia) && next_row(&y, &yb, &ib) && ia == ib && (ia || ya == yb);
    }
    close_cursor(&x), close_cursor(&y);
    return same;
}

static void compare_heads(const heads *a, const heads *b, const lb_diff_options *options, lb_diff_report *report)
{
    char text[200];
    if (a->found.rows != b->found.rows || a->found.columns != b->found.columns ||
        a->found.list[0].normalised != b->found.list[0].normalised) {
        snprintf(text, sizeof text,
                 "the sides score %" PRId64 " and %" PRId64 " tokens over %" PRId64 " and %" PRId64 " words",
                 a->found.rows, b->found.rows, a->found.columns, b->found.columns);
        lb_report_finding(report, text);
        return;
    }
    if (options->kinds && a->found.rows != options->n_kinds) {
        snprintf(text, sizeof text, "kinds of %" PRId64 " tokens were given, the step has %" PRId64, options->n_kinds,
                 a->found.rows);
        lb_report_finding(report, text);
    }
    if (!same_targets(a, b)) {
        lb_report_finding(report, "the sides are to predict other tokens: their log-probabilities are not compared");
        return;
    }
    cursor x = {.h = a, .exact = true}, y = {.h = b, .exact = true};
    compare_rows(&x, &y, options, report);
    close_cursor(&x), close_cursor(&y);
}

static lb_status compare_parts(lb_regenerated *wa, lb_regenerated *wb, const lb_diff_options *options,
                               lb_diff_report *report, lb_err *err)
{
    const lb_program_view *a = wa->side, *b = wb->side;
    const uint32_t groups = lb_program_view_groups(a, b);
    uint32_t na, nb;
    heads *x = calloc(groups, sizeof *x), *y = calloc(groups, sizeof *y);
    lb_forwards passes = {.used = false};
    lb_status status = x && y ? lb_forwards_find(a, b, &passes, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t g = 0; status == LB_OK && g < groups; g++) {
        const uint32_t first_a = lb_program_view_first_of(a, b, g, &na),
                       first_b = lb_program_view_first_of(b, a, g, &nb);
        status = open_heads(&passes, 0, wa, first_a, na, &x[g], err);
        if (status == LB_OK) status = open_heads(&passes, 1, wb, first_b, nb, &y[g], err);
        if (status != LB_OK || !x[g].found.n || !y[g].found.n) continue;
        status = keep_first_reading(&x[g], &y[g], err);
        if (status == LB_OK) status = keep_first_reading(&y[g], &x[g], err);
        want_heads(&x[g]), want_heads(&y[g]);
    }
    if (status == LB_OK) status = lb_regenerated_run(wa, err);
    if (status == LB_OK) status = lb_regenerated_run(wb, err);
    for (uint32_t g = 0; x && y && g < groups; g++) {
        if (status == LB_OK && x[g].found.n && y[g].found.n) compare_heads(&x[g], &y[g], options, report);
        lb_token_heads_release(&x[g].found), lb_token_heads_release(&y[g].found);
    }
    free(x), free(y);
    lb_forwards_release(&passes);
    return status;
}

static bool looks_up(const lb_program *p)
{
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (lb_program_name_extends(lb_op_name(p, &p->ops[i]), "aten::embedding")) return true;
    return false;
}

lb_status lb_diff_tokens_add(const lb_program_view *a, const lb_program_view *b, const lb_diff_options *options,
                             lb_diff_report *report, lb_err *err)
{
    lb_regenerated wa, wb;
    report->tokens_looked_up |= looks_up(a->program) || looks_up(b->program);
    LB_TRY(lb_regenerated_init(a, &wa, err));
    lb_status status = lb_regenerated_init(b, &wb, err);
    if (status == LB_OK) {
        status = compare_parts(&wa, &wb, options, report, err);
        lb_regenerated_release(&wb);
    }
    lb_regenerated_release(&wa);
    return status;
}

void lb_diff_tokens_finish(lb_diff_report *report)
{
    for (uint32_t i = 0; i < report->n_tokens; i++) {
        lb_diff_tokens *tokens = &report->tokens[i];
        double n = (double)tokens->count;
        tokens->k3 /= n, tokens->kl /= n, tokens->top1 /= n, tokens->mean_abs /= n;
    }
}
