/* Log-probabilities of two runs: see parity.h. */
#include "parity.h"

#include "diff_report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows of logits or log-probabilities, and what they are to predict. */
typedef struct head {
    uint32_t scores, targets; /* values; targets LB_NONE: none */
    bool normalised;          /* scores are log-probabilities */
    int64_t ignored;          /* the target that counts for nothing */
} head;

/* Those of some parts of a side. */
typedef struct heads {
    lb_regenerated *regenerated;
    uint32_t first_part, parts;
    head *list;
    uint32_t count;
    int64_t rows, columns;
} heads;

/* ---- finding them ---- */

static const lb_arg *arg_of(const lb_program *p, const lb_op *op, uint32_t i, lb_arg_tag tag)
{
    return i < op->args && lb_op_args(p, op)[i].tag == tag ? &lb_op_args(p, op)[i] : NULL;
}

static bool same_contents(const lb_program *p, uint32_t x, uint32_t y)
{
    const lb_value *a = &p->values[x], *b = &p->values[y];
    return a->storage == b->storage && a->version == b->version && a->layout.offset == b->layout.offset;
}

static bool is_named(const lb_program *p, const lb_op *op, const char *name)
{
    const char *text = lb_op_name(p, op);
    size_t n = strlen(name);
    return strncmp(text, name, n) == 0 && (text[n] == '\0' || text[n] == '.');
}

static void add_head(heads *h, const lb_program *p, head found)
{
    const lb_layout *l = &p->values[found.scores].layout;
    if (l->ndim < 1) return;
    int64_t columns = l->shape[l->ndim - 1];
    if (columns < 2 || (h->count && columns != h->columns)) return;
    h->columns = columns;
    h->rows += lb_layout_numel(l) / columns;
    APPEND(h->list, h->count, found);
}

static bool is_of(const heads *h, uint32_t part)
{
    return part >= h->first_part && part - h->first_part < h->parts;
}

/* nll_loss(self, target, weight, reduction, ignore_index) of a _log_softmax's result. */
static void find_losses(heads *h, const lb_program *p)
{
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        if (!is_of(h, lb_program_view_part_of(h->regenerated->side, i))) continue;
        if (op->phase != LB_PHASE_FORWARD || !is_named(p, op, "aten::nll_loss_forward")) continue;
        const lb_arg *self = arg_of(p, op, 0, LB_ARG_VALUE), *target = arg_of(p, op, 1, LB_ARG_VALUE);
        const lb_arg *ignored = arg_of(p, op, 4, LB_ARG_INT);
        if (!self || !target) continue;
        for (uint32_t k = i; k-- > 0;) {
            const lb_op *soft = &p->ops[k];
            if (!is_named(p, soft, "aten::_log_softmax") || lb_op_results(p, soft)[0] == LB_NONE) continue;
            if (!same_contents(p, lb_op_results(p, soft)[0], self->u.value)) continue;
            add_head(h, p, (head){lb_op_results(p, soft)[0], target->u.value, true, ignored ? ignored->u.i : -100});
            break;
        }
    }
}

static bool names_a_head(const char *path)
{
    static const char *const names[] = {"lm_head", "head", "embed_out", "output_layer", "output"};
    const char *last = strrchr(path, '.');
    last = last ? last + 1 : path;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(last, names[i]) == 0) return true;
    return false;
}

/* The result of a module around the head that has its shape, left last: what is done to the logits behind the head (a soft cap, a scale)
 * is done to them. The head's own where there is none. */
static uint32_t final_logits(const lb_program *p, uint32_t row)
{
    const lb_boundary *head = &p->boundaries[row];
    uint32_t value = head->value;
    for (uint32_t i = row + 1; i < p->n_boundaries; i++) {
        const lb_boundary *b = &p->boundaries[i];
        if (b->value == LB_NONE || b->recompute) continue;
        if (b->scope == head->scope) break; /* the next call */
        if (b->output && lb_dtype_is_float(p->values[b->value].dtype) &&
            lb_layout_same_shape(&p->values[b->value].layout, &p->values[head->value].layout))
            value = b->value;
    }
    return value;
}

/* What left the model as the language-model head's result, where nothing normalised it. */
static void find_logits(heads *h, const lb_program *p)
{
    for (uint32_t i = 0; i < p->n_boundaries; i++) {
        const lb_boundary *b = &p->boundaries[i];
        if (!b->output || b->recompute || b->position || b->value == LB_NONE) continue;
        if (!is_of(h, lb_program_view_part_of_value(h->regenerated->side, b->value))) continue;
        if (!names_a_head(lb_program_text(p, p->scopes[b->scope].path))) continue;
        if (lb_dtype_is_float(p->values[b->value].dtype)) add_head(h, p, (head){final_logits(p, i), LB_NONE, false, 0});
    }
}

static heads open_heads(lb_regenerated *regenerated, uint32_t first_part, uint32_t parts)
{
    heads h = {.regenerated = regenerated, .first_part = first_part, .parts = parts};
    find_losses(&h, regenerated->program);
    if (!h.count) find_logits(&h, regenerated->program);
    return h;
}

static void want_heads(const heads *h)
{
    for (uint32_t i = 0; i < h->count; i++) {
        lb_regenerated_want(h->regenerated, h->list[i].scores);
        lb_regenerated_want(h->regenerated, h->list[i].targets);
    }
}

/* Ranks that share a model's weights out (tensor parallelism) score the same tokens, each all of them: the first speaks for all. Ranks that
 * share the batch out score its tokens one behind the other. */
static void keep_first_reading(heads *h, const heads *other)
{
    if (h->parts == 1 || h->rows != (int64_t)h->parts * other->rows) return;
    free(h->list);
    *h = open_heads(h->regenerated, h->first_part, 1);
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

static bool open_targets(cursor *c, const head *head)
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
    const head *head = &c->h->list[c->head];
    bool exact = false;
    c->at = 0, c->open = true;
    c->rows = lb_layout_numel(&c->h->regenerated->program->values[head->scores].layout) / c->h->columns;
    if (!c->row) c->row = malloc((size_t)c->h->columns * sizeof *c->row);
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
        if (c->head >= c->h->count || !open_head(c)) return false;
    }
    *target = c->targets ? c->targets[c->at] : -1;
    *ignored = c->targets && *target == c->h->list[c->head].ignored;
    c->at++;
    return true;
}

static void normalise(double *row, int64_t n)
{
    double most = -INFINITY, sum = 0;
    for (int64_t v = 0; v < n; v++) most = row[v] > most ? row[v] : most;
    for (int64_t v = 0; v < n; v++) sum += exp(row[v] - most);
    for (int64_t v = 0; v < n; v++) row[v] -= most + log(sum);
}

/* The row that next_row went to, as log-probabilities in c->row; false when its bytes lack. */
static bool load_row(cursor *c)
{
    const lb_layout *l = &c->scores.layout;
    if (!c->scores.data) return false;
    int64_t rest = c->at - 1, offset = 0;
    for (int32_t d = l->ndim - 1; d-- > 0; rest /= l->shape[d]) offset += rest % l->shape[d] * l->stride[d];
    const char *from = (const char *)c->scores.data + offset * (int64_t)(lb_dtype_bits(c->scores.dtype) / 8);
    lb_load_f64_strided(c->row, c->scores.dtype, from, l->stride[l->ndim - 1], (size_t)c->h->columns);
    if (!c->h->list[c->head].normalised) normalise(c->row, c->h->columns);
    return true;
}

/* ---- tokens ---- */

static lb_diff_tokens *tokens_of(lb_diff_report *r, const char *kind)
{
    for (uint32_t i = 0; i < r->n_tokens; i++)
        if (strcmp(r->tokens[i].kind, kind) == 0) return &r->tokens[i];
    lb_diff_tokens row = {.kind = lb_report_keep(r, kind)};
    uint32_t before = r->n_tokens;
    APPEND(r->tokens, r->n_tokens, row);
    return r->n_tokens > before ? &r->tokens[before] : NULL;
}

static int64_t most_probable(const double *row, int64_t n)
{
    int64_t best = 0;
    for (int64_t v = 1; v < n; v++)
        if (row[v] > row[best]) best = v;
    return best;
}

static double divergence(const double *p, const double *q, int64_t n)
{
    double kl = 0;
    for (int64_t v = 0; v < n; v++)
        if (p[v] != q[v] && p[v] > -INFINITY) kl += exp(p[v]) * (p[v] - q[v]);
    return kl;
}

static void add_token(lb_diff_tokens *t, const double *p, const double *q, int64_t n, int64_t target)
{
    int64_t best = most_probable(p, n);
    t->count++;
    t->kl += divergence(p, q, n);
    t->top1 += best == most_probable(q, n);
    if (target < 0 || target >= n) return;
    double d = p[target] == q[target] ? 0 : p[target] - q[target];
    t->has_targets = true;
    t->k3 += expm1(d) - d;
    t->mean_abs += fabs(d);
    if (!(fabs(d) <= t->max_abs)) t->max_abs = fabs(d);
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
    const int64_t rows = a->h->rows, columns = a->h->columns;
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
        lb_diff_tokens *t = tokens_of(report, kind);
        if (!t) return;
        add_token(t, a->row, b->row, columns, ignored_a ? -1 : targets ? ya : most_probable(a->row, columns));
    }
    report->tokens_approximate |= !a->exact || !b->exact;
}

/* ---- all of it ---- */

static bool same_targets(const heads *a, const heads *b)
{
    cursor x = {.h = a}, y = {.h = b};
    bool same = true;
    for (int64_t i = 0; same && i < a->rows; i++) {
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
    if (a->rows != b->rows || a->columns != b->columns || a->list[0].normalised != b->list[0].normalised) {
        snprintf(text, sizeof text,
                 "the sides score %" PRId64 " and %" PRId64 " tokens over %" PRId64 " and %" PRId64 " words", a->rows,
                 b->rows, a->columns, b->columns);
        lb_report_finding(report, text);
        return;
    }
    if (options->kinds && a->rows != options->n_kinds) {
        snprintf(text, sizeof text, "kinds of %" PRId64 " tokens were given, the step has %" PRId64, options->n_kinds,
                 a->rows);
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
    const uint32_t na = wa->side->n_parts, nb = wb->side->n_parts, groups = na < nb ? na : nb;
    heads *x = calloc(groups, sizeof *x), *y = calloc(groups, sizeof *y);
    lb_status status = x && y ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t g = 0; status == LB_OK && g < groups; g++) {
        x[g] = open_heads(wa, g * (na / groups), na / groups);
        y[g] = open_heads(wb, g * (nb / groups), nb / groups);
        if (!x[g].count || !y[g].count) continue;
        keep_first_reading(&x[g], &y[g]), keep_first_reading(&y[g], &x[g]);
        want_heads(&x[g]), want_heads(&y[g]);
    }
    if (status == LB_OK) status = lb_regenerated_run(wa, err);
    if (status == LB_OK) status = lb_regenerated_run(wb, err);
    for (uint32_t g = 0; x && y && g < groups; g++) {
        if (status == LB_OK && x[g].count && y[g].count) compare_heads(&x[g], &y[g], options, report);
        free(x[g].list), free(y[g].list);
    }
    free(x), free(y);
    return status;
}

lb_status lb_parity_add(const lb_program_view *a, const lb_program_view *b, const lb_diff_options *options,
                        lb_diff_report *report, lb_err *err)
{
    lb_regenerated wa, wb;
    LB_TRY(lb_regenerated_init(a, &wa, err));
    lb_status status = lb_regenerated_init(b, &wb, err);
    if (status == LB_OK) {
        status = compare_parts(&wa, &wb, options, report, err);
        lb_regenerated_release(&wb);
    }
    lb_regenerated_release(&wa);
    return status;
}

void lb_parity_finish(lb_diff_report *report)
{
    for (uint32_t i = 0; i < report->n_tokens; i++) {
        lb_diff_tokens *t = &report->tokens[i];
        double n = (double)t->count;
        t->k3 /= n, t->kl /= n, t->top1 /= n, t->mean_abs /= n;
    }
}
