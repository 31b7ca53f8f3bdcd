/* Token sets in files of tensors (safetensors, .npz): see lastbit/parity.h. */
#include "parity/token_set.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a file may hold of each token, [N, T]; rows of the table below. */
enum { IDS, LOGPROBS, KINDS, MASK, LOSS_MASK, TOP1, FIELDS };
static const char *const FIELD_NAMES[FIELDS][12] = {
    {"token_ids", "input_ids", "tokens", "ids", "completion_ids", "responses"},
    {"logprobs", "log_probs", "token_logprobs", "logps", "rollout_log_probs", "rollout_logprobs", "old_log_probs",
     "old_logprobs", "sampling_per_token_logps", "old_per_token_logps", "per_token_logps"},
    {"kinds", "token_kinds", "token_type_ids"},
    {"mask", "attention_mask"},
    {"loss_mask", "response_mask", "completion_mask"},
    {"top1", "argmax"},
};

/* A tensor of numbers as f64, row-major; f64 holds token ids exactly. */
typedef struct column {
    double *numbers;
    int64_t rows, width; /* N, T; 0: the file has none */
} column;

static lb_status find_tensor(lb_token_set *set, const char *const *names, lb_tensor *tensor, const char **found,
                             lb_err *err)
{
    const lb_program *program;
    LB_TRY(lb_capture_program(set->file, 0, 0, &program, err));
    *found = NULL;
    for (uint32_t n = 0; names[n]; n++)
        for (uint32_t v = 0; v < program->n_values; v++) {
            if (strcmp(lb_program_text(program, program->values[v].name), names[n]) != 0) continue;
            *found = names[n];
            return lb_capture_value(set->file, program, v, tensor, err);
        }
    return LB_OK;
}

static lb_status load_column(lb_token_set *set, const char *const *names, column *column, lb_err *err)
{
    lb_tensor tensor;
    const char *found;
    LB_TRY(find_tensor(set, names, &tensor, &found, err));
    if (!found) return LB_OK;
    if (tensor.layout.ndim < 1 || tensor.layout.ndim > 2)
        return lb_fail(err, LB_ERR_INVALID, "%s: %s has %d dimensions, expected [sequences, tokens]", set->path, found,
                       tensor.layout.ndim);
    if (lb_dtype_is_complex(tensor.dtype) || lb_dtype_bits(tensor.dtype) % 8)
        return lb_fail(err, LB_ERR_INVALID, "%s: %s is of %s, expected numbers", set->path, found,
                       lb_dtype_name(tensor.dtype));
    const int64_t n = lb_layout_numel(&tensor.layout);
    column->numbers = malloc((size_t)n * sizeof *column->numbers + 1);
    if (!column->numbers) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", set->path);
    column->rows = tensor.layout.ndim == 2 ? tensor.layout.shape[0] : 1;
    column->width = tensor.layout.shape[tensor.layout.ndim - 1];
    int64_t done = 0;
    for (lb_rows r = lb_rows_of(&tensor.layout); lb_rows_next(&r); done += r.count)
        lb_load_f64_strided(column->numbers + done, tensor.dtype,
                            (char *)tensor.data + r.offset * (int64_t)(lb_dtype_bits(tensor.dtype) / 8), r.stride,
                            (size_t)r.count);
    return LB_OK;
}

static double cell(const column *column, int64_t row, int64_t at, double otherwise)
{
    return column->numbers && row < column->rows && at >= 0 && at < column->width
               ? column->numbers[row * column->width + at]
               : otherwise;
}

/* The same of a token or a kind; what no such number is, is -1. */
static int64_t number_in(const column *column, int64_t row, int64_t at, int64_t otherwise)
{
    const double x = cell(column, row, at, (double)otherwise);
    return x >= 0 && x < 0x1p53 ? (int64_t)x : -1;
}

/* Fields of one file agree in shape; log-probabilities may lack the first token's. */
static lb_status check_shapes(const lb_token_set *set, const column *column, int64_t *rows, int64_t *width, lb_err *err)
{
    *rows = 0, *width = 0;
    for (int f = 0; f < FIELDS; f++) {
        if (!column[f].numbers) continue;
        if (!*rows) *rows = column[f].rows;
        if (f != LOGPROBS && !*width) *width = column[f].width;
        bool fits = column[f].rows == *rows && (f == LOGPROBS || column[f].width == *width);
        if (!fits)
            return lb_fail(err, LB_ERR_INVALID,
                           "%s: %s is [%" PRId64 ", %" PRId64 "], other fields are [%" PRId64 ", %" PRId64 "]",
                           set->path, FIELD_NAMES[f][0], column[f].rows, column[f].width, *rows, *width);
    }
    if (!*width) *width = column[LOGPROBS].width;
    if (column[LOGPROBS].numbers && column[LOGPROBS].width != *width && column[LOGPROBS].width != *width - 1)
        return lb_fail(err, LB_ERR_INVALID,
                       "%s: logprobs have %" PRId64 " columns, tokens %" PRId64
                       ": expected as many, or one less (none for the first token)",
                       set->path, column[LOGPROBS].width, *width);
    return LB_OK;
}

static lb_status find_logits(lb_token_set *set, int64_t rows, int64_t width, lb_tensor *logits, lb_err *err)
{
    static const char *const names[] = {"logits", NULL};
    const char *found;
    *logits = (lb_tensor){0};
    LB_TRY(find_tensor(set, names, logits, &found, err));
    if (!found) return LB_OK;
    lb_layout *layout = &logits->layout;
    if (layout->ndim == 2) {
        for (int d = 2; d > 0; d--) layout->shape[d] = layout->shape[d - 1], layout->stride[d] = layout->stride[d - 1];
        layout->shape[0] = 1, layout->stride[0] = 0, layout->ndim = 3;
    }
    if (layout->ndim == 3 && (!rows || layout->shape[0] == rows) && (!width || layout->shape[1] == width) &&
        layout->shape[2] > 1 && lb_dtype_is_float(logits->dtype))
        return LB_OK;
    return lb_fail(err, LB_ERR_INVALID,
                   "%s: logits: expected floats [%" PRId64 " sequences, %" PRId64 " tokens, vocabulary]", set->path,
                   rows, width);
}

/* One row of the file as a sequence. */
static void add_row(lb_token_set *set, const column *column, int64_t row, int64_t width, const lb_tensor *logits)
{
    lb_token_sequence *sequence = lb_token_set_add(set, NULL);
    if (!sequence) return;
    const int64_t lag = column[LOGPROBS].width == width - 1 ? 1 : 0;
    sequence->logit_of = malloc((size_t)width * sizeof *sequence->logit_of + 1);
    if (!sequence->logit_of) {
        set->failed = true;
        return;
    }
    for (int64_t position = 0; position < width; position++) {
        if (cell(&column[MASK], row, position, 1) == 0) continue;
        lb_token *token = lb_token_sequence_add(set, sequence);
        if (!token) return;
        sequence->logit_of[sequence->n - 1] = (uint32_t)position;
        token->id = number_in(&column[IDS], row, position, -1);
        token->logp = cell(&column[LOGPROBS], row, position - lag, NAN);
        token->nan = column[LOGPROBS].numbers && position >= lag && isnan(token->logp);
        token->top1 = number_in(&column[TOP1], row, position, -1);
        char text[40];
        snprintf(text, sizeof text, "kind %" PRId64, number_in(&column[KINDS], row, position, 0));
        if (column[KINDS].numbers)
            token->kind = lb_token_set_kind(set, text);
        else if (column[LOSS_MASK].numbers)
            token->kind =
                lb_token_set_kind(set, cell(&column[LOSS_MASK], row, position, 0) != 0 ? "generated" : "prompt");
    }
    if (!logits->data) return;
    sequence->logits = *logits;
    sequence->logits.data =
        (char *)logits->data + row * logits->layout.stride[0] * (int64_t)(lb_dtype_bits(logits->dtype) / 8);
    lb_layout *layout = &sequence->logits.layout;
    for (int d = 0; d < 2; d++) layout->shape[d] = layout->shape[d + 1], layout->stride[d] = layout->stride[d + 1];
    layout->ndim = 2;
}

/* Log-probabilities that a file with logits leaves to be worked out. */
static lb_status score(lb_token_set *set, lb_err *err)
{
    for (uint32_t s = 0; s < set->n; s++) {
        lb_token_sequence *sequence = &set->sequences[s];
        if (!sequence->logits.data) continue;
        const int64_t words = sequence->logits.layout.shape[1];
        double *row = malloc((size_t)words * sizeof *row);
        if (!row) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
        for (uint32_t t = 1; t < sequence->n; t++) {
            if (sequence->tokens[t].id < 0 || sequence->tokens[t].id >= words || !isnan(sequence->tokens[t].logp))
                continue;
            lb_token_row(sequence, sequence->logit_of[t - 1], row);
            sequence->tokens[t].logp = row[sequence->tokens[t].id];
            sequence->tokens[t].nan = isnan(sequence->tokens[t].logp);
        }
        free(row);
    }
    return LB_OK;
}

lb_status lb_token_set_read_tensors(lb_token_set *set, lb_err *err)
{
    column columns[FIELDS] = {0};
    int64_t rows = 0, width = 0;
    lb_tensor logits = {0};
    lb_status status = LB_OK;
    for (int f = 0; status == LB_OK && f < FIELDS; f++) status = load_column(set, FIELD_NAMES[f], &columns[f], err);
    if (status == LB_OK) status = check_shapes(set, columns, &rows, &width, err);
    if (status == LB_OK && !columns[LOGPROBS].numbers && !columns[IDS].numbers)
        status =
            lb_fail(err, LB_ERR_INVALID, "%s: holds neither \"logprobs\" nor \"token_ids\" with \"logits\"", set->path);
    if (status == LB_OK) status = find_logits(set, rows, width, &logits, err);
    for (int64_t row = 0; status == LB_OK && row < rows; row++) add_row(set, columns, row, width, &logits);
    if (status == LB_OK && !columns[LOGPROBS].numbers) status = score(set, err);
    for (int f = 0; f < FIELDS; f++) free(columns[f].numbers);
    return status;
}
