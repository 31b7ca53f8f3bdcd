/* Token sets of captures: what a recorded model said of the tokens that it read.
 *
 * A forward pass reads numbers of tokens [N, T], by an embedding, and gives rows of logits [N, T, V] (or of the last
 * token alone). Row t is of token t + 1 of the same pass, or of the first token of the next: passes of one token go on
 * where the pass before them ended, as decoding from a cache does; a pass of several tokens begins new sequences.
 *
 * Where a loss read the rows, its targets say which token each row is of. A program that reads x = text[:-1] and y =
 * text[1:] scores a last token that no pass read: it ends its sequence. Tokens that the loss ignores are of kind
 * "prompt", the others "generated", as a loss_mask says it.
 */
#include "pair/regenerated.h"
#include "pair/token_heads.h"
#include "compare/token_row.h"
#include "parity/token_set.h"

#include "base/array.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One forward pass. */
typedef struct pass {
    const lb_token_head *head;
    uint32_t ids, types, mask; /* values; LB_NONE: none */
    uint32_t logits;           /* of all tokens, of which the rows may be a part; LB_NONE: none */
    int64_t batch, tokens;
    int64_t *numbers, *type, *masked; /* [batch, tokens] */
    int64_t *target, width;           /* [batch, width]: of each row of scores */
    int64_t lag;                      /* row i is said after token i + lag */
    bool labelled, partly;            /* targets are the tokens behind the rows; some, not all, are ignored */
} pass;

typedef struct reader {
    lb_token_set *set;
    lb_capture *capture;
    const lb_tensor *given; /* in the place of the recorded scores; NULL: those */
    lb_regenerated *regenerated;
    const lb_program *program;
    uint32_t first, sequences; /* of the set: those that are open */
    double *last;              /* the row behind the last token of each of them */
    bool *ended;               /* which have one */
    int64_t columns;
    bool approximate;
    lb_err *err;
} reader;

/* ---- what a pass reads ---- */

static bool is_integers(const lb_program *p, uint32_t value)
{
    return lb_dtype_is_integer(p->values[value].dtype);
}

/* The first embedding since the head before with a row per word (vocabularies are padded up), whose numbers fit the
 * `rows` of the head: all of them, or one of each sequence. LB_NONE: there is none. */
static uint32_t ids_of(const lb_program *p, uint32_t begin, const lb_token_head *head, int64_t columns, int64_t rows)
{
    uint32_t found = LB_NONE;
    for (uint32_t i = begin; i < head->op && i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        if (op->phase != LB_PHASE_FORWARD || !lb_program_name_extends(lb_op_name(p, op), "aten::embedding") ||
            op->args < 2)
            continue;
        const lb_arg *args = lb_op_args(p, op);
        if (args[0].tag != LB_ARG_VALUE || args[1].tag != LB_ARG_VALUE || !is_integers(p, args[1].u.value)) continue;
        const lb_layout *ids = &p->values[args[1].u.value].layout;
        const int64_t words = p->values[args[0].u.value].layout.shape[0],
                      tokens = ids->ndim ? ids->shape[ids->ndim - 1] : 1;
        const int64_t numbers = lb_layout_numel(ids), batch = tokens ? numbers / tokens : 0;
        if (!batch || rows > numbers || rows % batch) continue;
        if (words >= columns && words < columns + 1024) return args[1].u.value;
        if (found == LB_NONE) found = args[1].u.value;
    }
    return found;
}

static uint32_t input_of(const lb_program *p, const char *const *names, const lb_layout *like)
{
    for (uint32_t v = 0; v < p->n_values; v++)
        for (uint32_t n = 0; names[n]; n++)
            if (p->values[v].name != LB_NONE && strcmp(lb_program_text(p, p->values[v].name), names[n]) == 0 &&
                lb_layout_same_shape(&p->values[v].layout, like))
                return v;
    return LB_NONE;
}

static bool has_op(const lb_program *p, const char *name)
{
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (lb_program_name_extends(lb_op_name(p, &p->ops[i]), name)) return true;
    return false;
}

static int64_t *load_numbers(const reader *r, uint32_t value, int64_t n)
{
    lb_tensor t;
    bool exact;
    if (value == LB_NONE || !lb_regenerated_value(r->regenerated, value, &t, &exact) || lb_layout_numel(&t.layout) != n)
        return NULL;
    int64_t *list = malloc((size_t)n * sizeof *list + 1);
    double *wide = calloc((size_t)n + 1, sizeof *wide);
    int64_t done = 0;
    for (lb_rows rows = lb_rows_of(&t.layout); list && wide && lb_rows_next(&rows); done += rows.count)
        lb_load_f64_strided(wide + done, t.dtype, (char *)t.data + rows.offset * (int64_t)(lb_dtype_bits(t.dtype) / 8),
                            rows.stride, (size_t)rows.count);
    for (int64_t i = 0; list && wide && i < n; i++) list[i] = (int64_t)wide[i];
    free(wide);
    return list;
}

/* What an op before the head gave with a row per token of the pass. */
static uint32_t all_logits(const reader *r, uint32_t begin, const pass *x)
{
    const lb_program *p = r->program;
    for (uint32_t i = x->head->op; i-- > begin;) {
        const uint32_t v = p->ops[i].results ? lb_op_results(p, &p->ops[i])[0] : LB_NONE;
        if (v == LB_NONE || !lb_dtype_is_float(p->values[v].dtype)) continue;
        const lb_layout *l = &p->values[v].layout;
        if (l->ndim && l->shape[l->ndim - 1] == r->columns && lb_layout_numel(l) == x->batch * x->tokens * r->columns)
            return v;
    }
    return LB_NONE;
}

static pass pass_of(const reader *r, uint32_t begin, const lb_token_head *head)
{
    static const char *const types[] = {"input:mm_token_type_ids", "input:token_type_ids", NULL},
                             *const mask[] = {"input:attention_mask", NULL};
    pass x = {.head = head, .types = LB_NONE, .mask = LB_NONE, .logits = LB_NONE};
    const int64_t rows = lb_layout_numel(&r->program->values[head->scores].layout) / r->columns;
    x.ids = ids_of(r->program, begin, head, r->columns, rows);
    if (x.ids == LB_NONE) return x;
    const lb_layout *l = &r->program->values[x.ids].layout;
    x.tokens = l->ndim ? l->shape[l->ndim - 1] : 1;
    x.batch = x.tokens ? lb_layout_numel(l) / x.tokens : 0;
    x.types = input_of(r->program, types, l), x.mask = input_of(r->program, mask, l);
    if (rows < x.batch * x.tokens) x.logits = all_logits(r, begin, &x);
    return x;
}

/* ---- kinds ---- */

/* Numbers that the model itself looks for among the tokens, to put features of images in their place. */
static bool is_placeholder(const lb_program *p, const pass *x, int64_t number)
{
    for (uint32_t i = 0; i < x->head->op && i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        const lb_arg *args = lb_op_args(p, op);
        if (!lb_program_name_extends(lb_op_name(p, op), "aten::eq") || op->args < 2 || args[0].tag != LB_ARG_VALUE ||
            args[1].tag != LB_ARG_INT)
            continue;
        if (p->values[args[0].u.value].storage == p->values[x->ids].storage && args[1].u.i == number) return true;
    }
    return false;
}

/* The target of the row that speaks of token t of a sequence, where the loss read one. */
static const int64_t *target_of(const pass *x, int64_t sequence, int64_t t)
{
    const int64_t row = t - 1 - x->lag;
    return x->labelled && row >= 0 && row < x->width ? &x->target[sequence * x->width + row] : NULL;
}

static int32_t kind_of(const reader *r, const pass *x, int64_t at, bool placeholders)
{
    const int64_t *target = target_of(x, at / x->tokens, at % x->tokens);
    static const char *const types[] = {"text", "image", "video", "audio"};
    if (x->type && x->type[at] >= 0 && x->type[at] < 4) return lb_token_set_kind(r->set, types[x->type[at]]);
    if (placeholders)
        return lb_token_set_kind(r->set, is_placeholder(r->program, x, x->numbers[at]) ? "image" : "text");
    if (x->partly) return lb_token_set_kind(r->set, target && *target != x->head->ignored ? "generated" : "prompt");
    return -1;
}

/* ---- rows ---- */

typedef struct rows {
    lb_tensor scores;
    int64_t count, width; /* rows; of each sequence */
    bool normalised;
} rows;

static void load_row(const rows *x, int64_t at, double *row)
{
    const lb_layout *l = &x->scores.layout;
    int64_t offset = 0;
    for (int32_t d = l->ndim - 1; d-- > 0; at /= l->shape[d]) offset += at % l->shape[d] * l->stride[d];
    const char *from = (const char *)x->scores.data + offset * (int64_t)(lb_dtype_bits(x->scores.dtype) / 8);
    const int64_t columns = l->shape[l->ndim - 1];
    lb_load_f64_strided(row, x->scores.dtype, from, l->stride[l->ndim - 1], (size_t)columns);
    if (!x->normalised) lb_token_log_softmax(row, columns);
}

/* The rows of all sequences together take no more; of longer runs `lastbit diff` compares them. */
#define MOST_ROW_BYTES (1u << 30)

static void drop_rows(lb_token_set *set)
{
    for (uint32_t s = 0; s < set->n; s++) {
        free(set->sequences[s].logits.data), free(set->sequences[s].logit_of);
        set->sequences[s].logits = (lb_tensor){0}, set->sequences[s].logit_of = NULL;
    }
    set->row_bytes = SIZE_MAX;
}

/* What was said after the token added last, as it was recorded; `at` -1: nothing. */
static void keep_row(reader *r, lb_token_sequence *q, const rows *x, int64_t at)
{
    if (r->set->row_bytes == SIZE_MAX) return;
    uint32_t *places = lb_array_grow(q->logit_of, q->n - 1, sizeof *places);
    if (places) q->logit_of = places, places[q->n - 1] = LB_TOKEN_NO_ROW;
    if (places && (at < 0 || (q->logits.data && q->logits.dtype != x->scores.dtype))) return;
    const lb_layout *l = &x->scores.layout;
    const size_t width = lb_dtype_bits(x->scores.dtype) / 8, bytes = (size_t)r->columns * width;
    lb_layout *kept = &q->logits.layout;
    r->set->row_bytes += bytes;
    const size_t n = q->logits.data ? (size_t)kept->shape[0] : 0;
    char *more = places && r->set->row_bytes <= MOST_ROW_BYTES ? lb_array_grow(q->logits.data, n, bytes) : NULL;
    if (!more) {
        drop_rows(r->set);
        return;
    }
    int64_t offset = 0;
    for (int32_t d = l->ndim - 1; d-- > 0; at /= l->shape[d]) offset += at % l->shape[d] * l->stride[d];
    const int64_t shape[] = {(int64_t)n + 1, r->columns}, stride = l->stride[l->ndim - 1];
    q->logits = (lb_tensor){more, x->scores.dtype, lb_layout_contiguous(2, shape)};
    for (int64_t i = 0; i < r->columns; i++)
        memcpy(more + n * bytes + (size_t)i * width,
               (const char *)x->scores.data + (offset + i * stride) * (int64_t)width, width);
    places[q->n - 1] = (uint32_t)n;
}

/* The sequences that the rows of a pass belong to: open ones for a single token, new ones otherwise. */
static lb_status open_sequences(reader *r, const pass *x, bool goes_on)
{
    if (goes_on) return LB_OK;
    r->first = r->set->n, r->sequences = (uint32_t)x->batch;
    for (int64_t i = 0; i < x->batch; i++)
        if (!lb_token_set_add(r->set, NULL)) return lb_fail(r->err, LB_ERR_NOMEM, "out of memory");
    free(r->last), free(r->ended);
    r->last = malloc((size_t)(x->batch * r->columns) * sizeof *r->last + 1),
    r->ended = calloc((size_t)x->batch + 1, sizeof *r->ended);
    return r->last && r->ended ? LB_OK : lb_fail(r->err, LB_ERR_NOMEM, "out of memory");
}

/* The token that the last row is of, where a loss names it and no pass read it. */
static void add_last_label(reader *r, const pass *x, lb_token_sequence *q, int64_t s)
{
    const int64_t *target = target_of(x, s, x->tokens);
    if (!target || !r->ended[s] || *target == x->head->ignored || *target < 0 || *target >= r->columns) return;
    const double *row = r->last + s * r->columns;
    lb_token *token = lb_token_sequence_add(r->set, q);
    if (!token) return;
    token->id = *target, token->logp = row[*target], token->nan = isnan(token->logp);
    token->top1 = lb_token_most_probable(row, r->columns);
    if (x->partly) token->kind = lb_token_set_kind(r->set, "generated");
    keep_row(r, q, NULL, -1);
    r->ended[s] = false;
}

static void add_sequence(reader *r, const pass *x, const rows *scores, int64_t s, bool placeholders)
{
    lb_token_sequence *q = &r->set->sequences[r->first + s];
    double *row = r->last + s * r->columns;
    for (int64_t t = 0; t < x->tokens; t++) {
        const int64_t at = s * x->tokens + t;
        if (x->masked && x->masked[at] == 0) continue;
        lb_token *token = lb_token_sequence_add(r->set, q);
        if (!token) return;
        token->id = x->numbers[at], token->kind = kind_of(r, x, at, placeholders);
        if (r->ended[s]) {
            token->top1 = lb_token_most_probable(row, r->columns);
            if (token->id >= 0 && token->id < r->columns) token->logp = row[token->id], token->nan = isnan(token->logp);
        }
        r->ended[s] = t >= x->lag && t - x->lag < x->width;
        const int64_t at_row = s * x->width + t - x->lag;
        if (r->ended[s]) load_row(scores, at_row, row);
        keep_row(r, q, scores, r->ended[s] ? at_row : -1);
    }
    add_last_label(r, x, q, s);
}

/* Targets that are the tokens `ahead` behind those that their rows are said after; `lag` as above. */
static bool targets_are(const pass *x, int64_t lag, int64_t ahead)
{
    int64_t told = 0;
    for (int64_t s = 0; s < x->batch; s++)
        for (int64_t i = 0; i < x->width; i++) {
            const int64_t at = i + lag + ahead, target = x->target[s * x->width + i];
            if (at >= x->tokens || target == x->head->ignored) continue;
            if (target != x->numbers[s * x->tokens + at]) return false;
            told++;
        }
    return told >= 2;
}

/* The lag at which the first row is the row of all logits. -1: not known. */
static int64_t lag_by_logits(const reader *r, const pass *x, const rows *scores)
{
    rows all = {.count = x->batch * x->tokens, .width = x->tokens};
    bool exact;
    int64_t best = -1;
    double least = 1e-2;
    if (x->logits == LB_NONE || !lb_regenerated_value(r->regenerated, x->logits, &all.scores, &exact)) return -1;
    double *row = malloc((size_t)(2 * r->columns) * sizeof *row);
    if (row) load_row(scores, 0, row);
    for (int64_t lag = 0; row && lag <= x->tokens - x->width; lag++) {
        double far = 0;
        load_row(&all, lag, row + r->columns);
        for (int64_t v = 0; v < r->columns; v++) far = fmax(far, fabs(row[v] - row[r->columns + v]));
        if (far < least) least = far, best = lag;
    }
    free(row);
    return best;
}

/* Which token each row is of. Without targets, rows that lack are those of the first tokens. */
static void place_rows(reader *r, pass *x, const rows *scores)
{
    const int64_t known = lag_by_logits(r, x, scores), lacking = known >= 0 ? known : x->tokens - x->width;
    const int64_t from = known >= 0 ? known : 0;
    x->lag = lacking;
    if (!x->target) return;
    for (int64_t lag = from; lag <= lacking && !x->labelled; lag++)
        if (targets_are(x, lag, 1)) x->lag = lag, x->labelled = true;
    for (int64_t lag = from; lag <= lacking && !x->labelled && !r->set->label_ahead; lag++)
        if (targets_are(x, lag, 2)) x->lag = lag, r->set->label_ahead = 2;
    for (int64_t lag = from; lag <= lacking && !x->labelled && !r->set->label_ahead; lag++)
        if (targets_are(x, lag, 0)) x->lag = lag, r->set->label_ahead = -1;
    int64_t ignored = 0, counted = 0;
    for (int64_t k = 0; x->labelled && k < x->batch * x->width; k++) {
        if (k % x->width + x->lag + 1 >= x->tokens) continue;
        ignored += x->target[k] == x->head->ignored, counted += x->target[k] != x->head->ignored;
    }
    x->partly = ignored && counted;
}

static lb_status read_pass(reader *r, pass *x)
{
    rows scores = {.normalised = x->head->normalised};
    bool exact = false;
    if (x->ids == LB_NONE || !x->batch) return LB_OK;
    if (r->given)
        scores.scores = *r->given;
    else if (!lb_regenerated_value(r->regenerated, x->head->scores, &scores.scores, &exact))
        return lb_fail(r->err, LB_ERR_NOT_CAPTURED,
                       "%s: log-probabilities were not kept and could not be replayed; record with --level ops",
                       r->set->path);
    r->approximate |= !exact;
    scores.count = lb_layout_numel(&scores.scores.layout) / r->columns;
    scores.width = scores.count / x->batch;
    if (scores.width < 1 || scores.width > x->tokens || scores.count != scores.width * x->batch)
        return LB_OK; /* of something else */
    x->numbers = load_numbers(r, x->ids, x->batch * x->tokens);
    x->type = load_numbers(r, x->types, x->batch * x->tokens),
    x->masked = load_numbers(r, x->mask, x->batch * x->tokens);
    x->width = scores.width, x->target = load_numbers(r, x->head->targets, scores.count);
    if (!x->numbers)
        return lb_fail(r->err, LB_ERR_NOT_CAPTURED,
                       "%s: the numbers of the tokens were not kept; record with --level sources", r->set->path);
    place_rows(r, x, &scores);
    const bool goes_on = x->tokens == 1 && r->sequences == (uint32_t)x->batch && r->last;
    LB_TRY(open_sequences(r, x, goes_on));
    const bool placeholders = has_op(r->program, "aten::masked_scatter");
    for (int64_t s = 0; s < x->batch && !r->set->failed; s++) add_sequence(r, x, &scores, s, placeholders);
    return LB_OK;
}

/* ---- a step ---- */

static lb_status read_heads(reader *r, const lb_token_heads *heads)
{
    if (r->columns && heads->columns != r->columns) return LB_OK;
    r->columns = heads->columns;
    pass *passes = calloc(heads->n, sizeof *passes);
    if (!passes) return lb_fail(r->err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t h = 0; h < heads->n; h++) {
        passes[h] = pass_of(r, h ? heads->list[h - 1].op : 0, &heads->list[h]);
        const uint32_t wanted[] = {heads->list[h].scores, passes[h].ids,          passes[h].types,
                                   passes[h].mask,        heads->list[h].targets, passes[h].logits};
        for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) lb_regenerated_want(r->regenerated, wanted[i]);
    }
    lb_status status = lb_regenerated_run(r->regenerated, r->err);
    for (uint32_t h = 0; h < heads->n; h++) {
        if (status == LB_OK) status = read_pass(r, &passes[h]);
        free(passes[h].numbers), free(passes[h].type), free(passes[h].masked), free(passes[h].target);
    }
    free(passes);
    return status;
}

static lb_status read_step(reader *r, const lb_program *program)
{
    lb_program_view view;
    lb_regenerated regenerated;
    lb_token_heads heads = {0};
    LB_TRY(lb_program_view_init(r->capture, &program, 1, &view, r->err));
    lb_status status = lb_regenerated_init(&view, &regenerated, r->err);
    if (status == LB_OK) {
        r->regenerated = &regenerated, r->program = view.program;
        status = lb_token_heads_find(view.program, NULL, NULL, &heads, r->err);
        if (status == LB_OK && heads.n) status = read_heads(r, &heads);
        lb_token_heads_release(&heads);
        lb_regenerated_release(&regenerated);
        r->regenerated = NULL;
    }
    lb_program_view_release(&view);
    return status;
}

lb_status lb_token_set_of_step(lb_capture *capture, const lb_program *program, const lb_tensor *scores,
                               lb_token_set **out, lb_err *err)
{
    lb_token_set *set = calloc(1, sizeof *set);
    if (set) set->path = strdup(lb_capture_path(capture)), set->recorded = set->owns_rows = true;
    reader r = {.set = set, .capture = capture, .given = scores, .err = err};
    lb_status status = set && set->path ? read_step(&r, program) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    free(r.last), free(r.ended);
    if (status != LB_OK) lb_token_set_free(set), set = NULL;
    *out = set;
    return status;
}

lb_status lb_token_set_read_capture(lb_token_set *set, lb_err *err)
{
    reader r = {.set = set, .capture = set->file, .err = err};
    set->owns_rows = true;
    const int64_t *steps;
    const int32_t *ranks;
    const uint32_t n = lb_capture_steps(set->file, &steps);
    if (lb_capture_ranks(set->file, &ranks) == 0) return lb_capture_lacks(set->file, INT64_MIN, INT64_MAX, err);
    lb_status status = LB_OK;
    for (uint32_t s = 0; status == LB_OK && s < n; s++) {
        const lb_program *program;
        status = lb_capture_program(set->file, ranks[0], steps[s], &program, err);
        if (status == LB_OK) status = read_step(&r, program);
    }
    free(r.last), free(r.ended);
    if (status == LB_OK && !set->n)
        return lb_fail(err, LB_ERR_INVALID,
                       "%s: no step scores tokens: an embedding of numbers, and logits of a head or a loss over a "
                       "vocabulary, were not found",
                       set->path);
    set->approximate = r.approximate;
    return status;
}
