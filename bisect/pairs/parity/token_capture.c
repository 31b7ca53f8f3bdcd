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

static bool is_integers(const lb_program *program, uint32_t value)
{
    return lb_dtype_is_integer(program->values[value].dtype);
}

/* The first embedding since the head before with a row per word (vocabularies are padded up), whose numbers fit the
 * `rows` of the head: all of them, or one of each sequence. LB_NONE: there is none. */
static uint32_t ids_of(const lb_program *program, uint32_t begin, const lb_token_head *head, int64_t columns,
                       int64_t rows)
{
    uint32_t found = LB_NONE;
    for (uint32_t i = begin; i < head->op && i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (op->phase != LB_PHASE_FORWARD || !lb_program_name_extends(lb_op_name(program, op), "aten::embedding") ||
            op->args < 2)
            continue;
        const lb_arg *args = lb_op_args(program, op);
        if (args[0].tag != LB_ARG_VALUE || args[1].tag != LB_ARG_VALUE || !is_integers(program, args[1].u.value))
            continue;
        const lb_layout *ids = &program->values[args[1].u.value].layout;
        const int64_t words = program->values[args[0].u.value].layout.shape[0],
                      tokens = ids->ndim ? ids->shape[ids->ndim - 1] : 1;
        const int64_t numbers = lb_layout_numel(ids), batch = tokens ? numbers / tokens : 0;
        if (!batch || rows > numbers || rows % batch) continue;
        if (words >= columns && words < columns + 1024) return args[1].u.value;
        if (found == LB_NONE) found = args[1].u.value;
    }
    return found;
}

static uint32_t input_of(const lb_program *program, const char *const *names, const lb_layout *like)
{
    for (uint32_t v = 0; v < program->n_values; v++)
        for (uint32_t n = 0; names[n]; n++)
            if (program->values[v].name != LB_NONE &&
                strcmp(lb_program_text(program, program->values[v].name), names[n]) == 0 &&
                lb_layout_same_shape(&program->values[v].layout, like))
                return v;
    return LB_NONE;
}

static bool has_op(const lb_program *program, const char *name)
{
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (lb_program_name_extends(lb_op_name(program, &program->ops[i]), name)) return true;
    return false;
}

static int64_t *load_numbers(const reader *reader, uint32_t value, int64_t n)
{
    lb_tensor t;
    bool exact;
    if (value == LB_NONE || !lb_regenerated_value(reader->regenerated, value, &t, &exact) ||
        lb_layout_numel(&t.layout) != n)
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
static uint32_t all_logits(const reader *reader, uint32_t begin, const pass *pass)
{
    const lb_program *program = reader->program;
    for (uint32_t i = pass->head->op; i-- > begin;) {
        const uint32_t v = program->ops[i].results ? lb_op_results(program, &program->ops[i])[0] : LB_NONE;
        if (v == LB_NONE || !lb_dtype_is_float(program->values[v].dtype)) continue;
        const lb_layout *layout = &program->values[v].layout;
        if (layout->ndim && layout->shape[layout->ndim - 1] == reader->columns &&
            lb_layout_numel(layout) == pass->batch * pass->tokens * reader->columns)
            return v;
    }
    return LB_NONE;
}

static pass pass_of(const reader *reader, uint32_t begin, const lb_token_head *head)
{
    static const char *const types[] = {"input:mm_token_type_ids", "input:token_type_ids", NULL},
                             *const mask[] = {"input:attention_mask", NULL};
    pass x = {.head = head, .types = LB_NONE, .mask = LB_NONE, .logits = LB_NONE};
    const int64_t rows = lb_layout_numel(&reader->program->values[head->scores].layout) / reader->columns;
    x.ids = ids_of(reader->program, begin, head, reader->columns, rows);
    if (x.ids == LB_NONE) return x;
    const lb_layout *layout = &reader->program->values[x.ids].layout;
    x.tokens = layout->ndim ? layout->shape[layout->ndim - 1] : 1;
    x.batch = x.tokens ? lb_layout_numel(layout) / x.tokens : 0;
    x.types = input_of(reader->program, types, layout), x.mask = input_of(reader->program, mask, layout);
    if (rows < x.batch * x.tokens) x.logits = all_logits(reader, begin, &x);
    return x;
}

/* ---- kinds ---- */

/* Numbers that the model itself looks for among the tokens, to put features of images in their place. */
static bool is_placeholder(const lb_program *program, const pass *pass, int64_t number)
{
    for (uint32_t i = 0; i < pass->head->op && i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        const lb_arg *args = lb_op_args(program, op);
        if (!lb_program_name_extends(lb_op_name(program, op), "aten::eq") || op->args < 2 ||
            args[0].tag != LB_ARG_VALUE || args[1].tag != LB_ARG_INT)
            continue;
        if (program->values[args[0].u.value].storage == program->values[pass->ids].storage && args[1].u.i == number)
            return true;
    }
    return false;
}

/* The target of the row that speaks of token t of a sequence, where the loss read one. */
static const int64_t *target_of(const pass *pass, int64_t sequence, int64_t t)
{
    const int64_t row = t - 1 - pass->lag;
    return pass->labelled && row >= 0 && row < pass->width ? &pass->target[sequence * pass->width + row] : NULL;
}

static int32_t kind_of(const reader *reader, const pass *pass, int64_t at, bool placeholders)
{
    const int64_t *target = target_of(pass, at / pass->tokens, at % pass->tokens);
    static const char *const types[] = {"text", "image", "video", "audio"};
    if (pass->type && pass->type[at] >= 0 && pass->type[at] < 4)
        return lb_token_set_kind(reader->set, types[pass->type[at]]);
    if (placeholders)
        return lb_token_set_kind(reader->set,
                                 is_placeholder(reader->program, pass, pass->numbers[at]) ? "image" : "text");
    if (pass->partly)
        return lb_token_set_kind(reader->set, target && *target != pass->head->ignored ? "generated" : "prompt");
    return -1;
}

/* ---- rows ---- */

typedef struct rows {
    lb_tensor scores;
    int64_t count, width; /* rows; of each sequence */
    bool normalised;
} rows;

static void load_row(const rows *rows, int64_t at, double *row)
{
    const lb_layout *layout = &rows->scores.layout;
    int64_t offset = 0;
    for (int32_t d = layout->ndim - 1; d-- > 0; at /= layout->shape[d])
        offset += at % layout->shape[d] * layout->stride[d];
    const char *from = (const char *)rows->scores.data + offset * (int64_t)(lb_dtype_bits(rows->scores.dtype) / 8);
    const int64_t columns = layout->shape[layout->ndim - 1];
    lb_load_f64_strided(row, rows->scores.dtype, from, layout->stride[layout->ndim - 1], (size_t)columns);
    if (!rows->normalised) lb_token_log_softmax(row, columns);
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
static void keep_row(reader *reader, lb_token_sequence *sequence, const rows *rows, int64_t at)
{
    if (reader->set->row_bytes == SIZE_MAX) return;
    uint32_t *places = lb_array_grow(sequence->logit_of, sequence->n - 1, sizeof *places);
    if (places) sequence->logit_of = places, places[sequence->n - 1] = LB_TOKEN_NO_ROW;
    if (places && (at < 0 || (sequence->logits.data && sequence->logits.dtype != rows->scores.dtype))) return;
    const lb_layout *layout = &rows->scores.layout;
    const size_t width = lb_dtype_bits(rows->scores.dtype) / 8, bytes = (size_t)reader->columns * width;
    lb_layout *kept = &sequence->logits.layout;
    reader->set->row_bytes += bytes;
    const size_t n = sequence->logits.data ? (size_t)kept->shape[0] : 0;
    char *more =
        places && reader->set->row_bytes <= MOST_ROW_BYTES ? lb_array_grow(sequence->logits.data, n, bytes) : NULL;
    if (!more) {
        drop_rows(reader->set);
        return;
    }
    int64_t offset = 0;
    for (int32_t d = layout->ndim - 1; d-- > 0; at /= layout->shape[d])
        offset += at % layout->shape[d] * layout->stride[d];
    const int64_t shape[] = {(int64_t)n + 1, reader->columns}, stride = layout->stride[layout->ndim - 1];
    sequence->logits = (lb_tensor){more, rows->scores.dtype, lb_layout_contiguous(2, shape)};
    for (int64_t i = 0; i < reader->columns; i++)
        memcpy(more + n * bytes + (size_t)i * width,
               (const char *)rows->scores.data + (offset + i * stride) * (int64_t)width, width);
    places[sequence->n - 1] = (uint32_t)n;
}

/* The sequences that the rows of a pass belong to: open ones for a single token, new ones otherwise. */
static lb_status open_sequences(reader *reader, const pass *pass, bool goes_on)
{
    if (goes_on) return LB_OK;
    reader->first = reader->set->n, reader->sequences = (uint32_t)pass->batch;
    for (int64_t i = 0; i < pass->batch; i++)
        if (!lb_token_set_add(reader->set, NULL)) return lb_fail(reader->err, LB_ERR_NOMEM, "out of memory");
    free(reader->last), free(reader->ended);
    reader->last = malloc((size_t)(pass->batch * reader->columns) * sizeof *reader->last + 1),
    reader->ended = calloc((size_t)pass->batch + 1, sizeof *reader->ended);
    return reader->last && reader->ended ? LB_OK : lb_fail(reader->err, LB_ERR_NOMEM, "out of memory");
}

/* The token that the last row is of, where a loss names it and no pass read it. */
static void add_last_label(reader *reader, const pass *pass, lb_token_sequence *sequence, int64_t number)
{
    const int64_t *target = target_of(pass, number, pass->tokens);
    if (!target || !reader->ended[number] || *target == pass->head->ignored || *target < 0 ||
        *target >= reader->columns)
        return;
    const double *row = reader->last + number * reader->columns;
    lb_token *token = lb_token_sequence_add(reader->set, sequence);
    if (!token) return;
    token->id = *target, token->logp = row[*target], token->nan = isnan(token->logp);
    token->top1 = lb_token_most_probable(row, reader->columns);
    if (pass->partly) token->kind = lb_token_set_kind(reader->set, "generated");
    keep_row(reader, sequence, NULL, -1);
    reader->ended[number] = false;
}

static void add_sequence(reader *reader, const pass *pass, const rows *scores, int64_t number, bool placeholders)
{
    lb_token_sequence *sequence = &reader->set->sequences[reader->first + number];
    double *row = reader->last + number * reader->columns;
    for (int64_t position = 0; position < pass->tokens; position++) {
        const int64_t at = number * pass->tokens + position;
        if (pass->masked && pass->masked[at] == 0) continue;
        lb_token *token = lb_token_sequence_add(reader->set, sequence);
        if (!token) return;
        token->id = pass->numbers[at], token->kind = kind_of(reader, pass, at, placeholders);
        if (reader->ended[number]) {
            token->top1 = lb_token_most_probable(row, reader->columns);
            if (token->id >= 0 && token->id < reader->columns)
                token->logp = row[token->id], token->nan = isnan(token->logp);
        }
        reader->ended[number] = position >= pass->lag && position - pass->lag < pass->width;
        const int64_t at_row = number * pass->width + position - pass->lag;
        if (reader->ended[number]) load_row(scores, at_row, row);
        keep_row(reader, sequence, scores, reader->ended[number] ? at_row : -1);
    }
    add_last_label(reader, pass, sequence, number);
}

/* Targets that are the tokens `ahead` behind those that their rows are said after; `lag` as above. */
static bool targets_are(const pass *pass, int64_t lag, int64_t ahead)
{
    int64_t told = 0;
    for (int64_t s = 0; s < pass->batch; s++)
        for (int64_t i = 0; i < pass->width; i++) {
            const int64_t at = i + lag + ahead, target = pass->target[s * pass->width + i];
            if (at >= pass->tokens || target == pass->head->ignored) continue;
            if (target != pass->numbers[s * pass->tokens + at]) return false;
            told++;
        }
    return told >= 2;
}

/* The lag at which the first row is the row of all logits. -1: not known. */
static int64_t lag_by_logits(const reader *reader, const pass *pass, const rows *scores)
{
    rows all = {.count = pass->batch * pass->tokens, .width = pass->tokens};
    bool exact;
    int64_t best = -1;
    double least = 1e-2;
    if (pass->logits == LB_NONE || !lb_regenerated_value(reader->regenerated, pass->logits, &all.scores, &exact))
        return -1;
    double *row = malloc((size_t)(2 * reader->columns) * sizeof *row);
    if (row) load_row(scores, 0, row);
    for (int64_t lag = 0; row && lag <= pass->tokens - pass->width; lag++) {
        double far = 0;
        load_row(&all, lag, row + reader->columns);
        for (int64_t v = 0; v < reader->columns; v++) far = fmax(far, fabs(row[v] - row[reader->columns + v]));
        if (far < least) least = far, best = lag;
    }
    free(row);
    return best;
}

/* Which token each row is of. Without targets, rows that lack are those of the first tokens. */
static void place_rows(reader *reader, pass *pass, const rows *scores)
{
    const int64_t known = lag_by_logits(reader, pass, scores),
                  lacking = known >= 0 ? known : pass->tokens - pass->width;
    const int64_t from = known >= 0 ? known : 0;
    pass->lag = lacking;
    if (!pass->target) return;
    for (int64_t lag = from; lag <= lacking && !pass->labelled; lag++)
        if (targets_are(pass, lag, 1)) pass->lag = lag, pass->labelled = true;
    for (int64_t lag = from; lag <= lacking && !pass->labelled && !reader->set->label_ahead; lag++)
        if (targets_are(pass, lag, 2)) pass->lag = lag, reader->set->label_ahead = 2;
    for (int64_t lag = from; lag <= lacking && !pass->labelled && !reader->set->label_ahead; lag++)
        if (targets_are(pass, lag, 0)) pass->lag = lag, reader->set->label_ahead = -1;
    int64_t ignored = 0, counted = 0;
    for (int64_t k = 0; pass->labelled && k < pass->batch * pass->width; k++) {
        if (k % pass->width + pass->lag + 1 >= pass->tokens) continue;
        ignored += pass->target[k] == pass->head->ignored, counted += pass->target[k] != pass->head->ignored;
    }
    pass->partly = ignored && counted;
}

static lb_status read_pass(reader *reader, pass *pass)
{
    rows scores = {.normalised = pass->head->normalised};
    bool exact = false;
    if (pass->ids == LB_NONE || !pass->batch) return LB_OK;
    if (reader->given)
        scores.scores = *reader->given;
    else if (!lb_regenerated_value(reader->regenerated, pass->head->scores, &scores.scores, &exact))
        return lb_fail(reader->err, LB_ERR_NOT_CAPTURED,
                       "%s: log-probabilities were not kept and could not be replayed; record with --level ops",
                       reader->set->path);
    reader->approximate |= !exact;
    scores.count = lb_layout_numel(&scores.scores.layout) / reader->columns;
    scores.width = scores.count / pass->batch;
    if (scores.width < 1 || scores.width > pass->tokens || scores.count != scores.width * pass->batch)
        return LB_OK; /* of something else */
    pass->numbers = load_numbers(reader, pass->ids, pass->batch * pass->tokens);
    pass->type = load_numbers(reader, pass->types, pass->batch * pass->tokens),
    pass->masked = load_numbers(reader, pass->mask, pass->batch * pass->tokens);
    pass->width = scores.width, pass->target = load_numbers(reader, pass->head->targets, scores.count);
    if (!pass->numbers)
        return lb_fail(reader->err, LB_ERR_NOT_CAPTURED,
                       "%s: the numbers of the tokens were not kept; record with --level sources", reader->set->path);
    place_rows(reader, pass, &scores);
    const bool goes_on = pass->tokens == 1 && reader->sequences == (uint32_t)pass->batch && reader->last;
    LB_TRY(open_sequences(reader, pass, goes_on));
    const bool placeholders = has_op(reader->program, "aten::masked_scatter");
    for (int64_t s = 0; s < pass->batch && !reader->set->failed; s++)
        add_sequence(reader, pass, &scores, s, placeholders);
    return LB_OK;
}

/* ---- a step ---- */

static lb_status read_heads(reader *reader, const lb_token_heads *heads)
{
    if (reader->columns && heads->columns != reader->columns) return LB_OK;
    reader->columns = heads->columns;
    pass *passes = calloc(heads->n, sizeof *passes);
    if (!passes) return lb_fail(reader->err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t h = 0; h < heads->n; h++) {
        passes[h] = pass_of(reader, h ? heads->list[h - 1].op : 0, &heads->list[h]);
        const uint32_t wanted[] = {heads->list[h].scores, passes[h].ids,          passes[h].types,
                                   passes[h].mask,        heads->list[h].targets, passes[h].logits};
        for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) lb_regenerated_want(reader->regenerated, wanted[i]);
    }
    lb_status status = lb_regenerated_run(reader->regenerated, reader->err);
    for (uint32_t h = 0; h < heads->n; h++) {
        if (status == LB_OK) status = read_pass(reader, &passes[h]);
        free(passes[h].numbers), free(passes[h].type), free(passes[h].masked), free(passes[h].target);
    }
    free(passes);
    return status;
}

static lb_status read_step(reader *reader, const lb_program *program)
{
    lb_program_view view;
    lb_regenerated regenerated;
    lb_token_heads heads = {0};
    LB_TRY(lb_program_view_init(reader->capture, &program, 1, &view, reader->err));
    lb_status status = lb_regenerated_init(&view, &regenerated, reader->err);
    if (status == LB_OK) {
        reader->regenerated = &regenerated, reader->program = view.program;
        status = lb_token_heads_find(view.program, NULL, NULL, &heads, reader->err);
        if (status == LB_OK && heads.n) status = read_heads(reader, &heads);
        lb_token_heads_release(&heads);
        lb_regenerated_release(&regenerated);
        reader->regenerated = NULL;
    }
    lb_program_view_release(&view);
    return status;
}

lb_status lb_token_set_of_step(lb_capture *capture, const lb_program *program, const lb_tensor *scores,
                               lb_token_set **out, lb_err *err)
{
    lb_token_set *set = calloc(1, sizeof *set);
    if (set) set->path = strdup(lb_capture_path(capture)), set->recorded = set->owns_rows = true;
    reader reader = {.set = set, .capture = capture, .given = scores, .err = err};
    lb_status status = set && set->path ? read_step(&reader, program) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    free(reader.last), free(reader.ended);
    if (status != LB_OK) lb_token_set_free(set), set = NULL;
    *out = set;
    return status;
}

lb_status lb_token_set_read_capture(lb_token_set *set, lb_err *err)
{
    reader reader = {.set = set, .capture = set->file, .err = err};
    set->owns_rows = true;
    const int64_t *steps;
    const int32_t *ranks;
    const uint32_t n = lb_capture_steps(set->file, &steps);
    if (lb_capture_ranks(set->file, &ranks) == 0) return lb_capture_lacks(set->file, INT64_MIN, INT64_MAX, err);
    lb_status status = LB_OK;
    for (uint32_t s = 0; status == LB_OK && s < n; s++) {
        const lb_program *program;
        status = lb_capture_program(set->file, ranks[0], steps[s], &program, err);
        if (status == LB_OK) status = read_step(&reader, program);
    }
    free(reader.last), free(reader.ended);
    if (status == LB_OK && !set->n)
        return lb_fail(err, LB_ERR_INVALID,
                       "%s: no step scores tokens: an embedding of numbers, "
                       "and logits of a head or a loss over a vocabulary, were not found",
                       set->path);
    set->approximate = reader.approximate;
    return status;
}
