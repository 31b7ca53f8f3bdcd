/* Masks and documents: see token_marks.h. */
#include "tokens/token_marks.h"
#include "tokens/token_squares.h"

#include "shadow/shadow_numbers.h"

#include <stdlib.h>
#include <string.h>

/* ---- use ---- */

typedef struct marking {
    const lb_moved_run *run;
    uint8_t *weights, *mask; /* per value: it follows from a parameter, from the mask */
    bool found;
} marking;

static bool is_mask_alone(const marking *marking, uint32_t v)
{
    return lb_scored_rows_follows(marking->run, marking->mask, v) &&
           !lb_scored_rows_follows(marking->run, marking->weights, v);
}

static bool is_among(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (lb_program_name_extends(name, names[i])) return true;
    return false;
}

static void look_back(marking *m, uint32_t v, int depth);

typedef struct step_back {
    marking *marking;
    int depth;
} step_back;

static void look_at_input(void *context, uint32_t v)
{
    step_back *back = context;
    if (v == LB_NONE || back->marking->found) return;
    back->marking->found |= is_mask_alone(back->marking, v);
    if (lb_scored_rows_follows(back->marking->run, back->marking->weights, v))
        look_back(back->marking, v, back->depth + 1);
}

/* Back from what a softmax reads, by the ops that put a mask there. */
static void look_back(marking *marking, uint32_t value, int depth)
{
    static const char *const puts[] = {"aten::add",   "aten::add_",  "aten::masked_fill", "aten::masked_fill_",
                                       "aten::where", "aten::mul",   "aten::div",         "aten::_to_copy",
                                       "aten::sub",   "aten::clone", "aten::maximum",     "aten::max",
                                       "aten::cat",   "aten::clamp", "aten::clamp_min"};
    const lb_program *program = marking->run->program;
    const uint32_t giver = marking->run->graph.giver[value];
    if (depth > 6 || marking->found || giver == LB_NONE) return;
    step_back back = {marking, depth};
    if (is_among(lb_op_name(program, &program->ops[giver]), puts, sizeof puts / sizeof *puts))
        lb_op_each_input(program, &program->ops[giver], look_at_input, &back);
}

/* Does attention read it: under a softmax, or as the mask of a kernel for attention? */
static bool hides_from_attention(marking *marking)
{
    const lb_program *program = marking->run->program;
    for (uint32_t i = 0; i < program->n_ops && !marking->found; i++) {
        const lb_op *op = &program->ops[i];
        const char *name = lb_op_name(program, op);
        const bool kernel = strstr(name, "scaled_dot_product") != NULL;
        const bool softmax = strstr(name, "softmax") != NULL;
        if (op->phase != LB_PHASE_FORWARD || !(kernel || softmax) || !op->args) continue;
        if (softmax && lb_op_args(program, op)[0].tag == LB_ARG_VALUE)
            look_back(marking, lb_op_args(program, op)[0].u.value, 0);
        for (uint32_t k = 3; kernel && k < op->args; k++)
            if (lb_op_args(program, op)[k].tag == LB_ARG_VALUE)
                marking->found |= is_mask_alone(marking, lb_op_args(program, op)[k].u.value);
    }
    return marking->found;
}

/* ---- sources by their numbers ---- */

static double *numbers_of(const lb_moved_run *run, uint32_t value)
{
    lb_tensor tensor;
    if (lb_program_view_value(run->view, value, &tensor, NULL) != LB_OK || !tensor.data) return NULL;
    return lb_shadow_numbers_copy(&tensor);
}

/* Two numbers: 0 where it hides and 1, or 0 and what a softmax makes nothing of. `*hides`: the one that hides. */
static bool is_mask(const double *x, int64_t n, double *hides)
{
    int64_t zeros = 0, others = 0;
    double other = 0;
    for (int64_t i = 0; i < n; i++) {
        if (x[i] == 0) zeros++;
        if (x[i] != 0 && !others++) other = x[i];
        if (x[i] != 0 && x[i] != other) return false;
    }
    *hides = other == 1 ? 0 : other;
    return zeros && others && (other == 1 || other <= -1e3);
}

/* Is it of one number for each token, whatever dimensions of one it has? */
static bool is_by_token(const lb_layout *layout, const lb_token_ids *ids)
{
    int64_t shape[2] = {1, 1};
    int n = 0;
    for (int d = 0; d < layout->ndim; d++) {
        if (layout->shape[d] == 1) continue;
        if (n == 2) return false;
        shape[n++] = layout->shape[d];
    }
    return n == 2 ? shape[0] == ids->rows && shape[1] == ids->columns : n == 1 && shape[0] == ids->columns;
}

/* Sequences that count up by one, and begin again where a document does. Returns how many documents there are; 0: they
 * are no positions. What repeats a position is padding, whose document is that before it. */
static int64_t count_documents(const double *x, int64_t rows, int64_t columns, int32_t *document)
{
    int64_t documents = 0, counted = 0;
    for (int64_t row = 0; row < rows; row++) {
        int32_t now = 0;
        for (int64_t i = 0; i < columns; i++) {
            const double *at = x + row * columns + i, step = i ? at[0] - at[-1] : 1;
            if (i && step != 1 && step != 0 && at[0] != 0) return 0;
            const bool begins = i && at[0] == 0 && step != 0 && i + 1 < columns && at[1] == 1;
            counted += step == 1, now += begins, documents += begins;
            document[row * columns + i] = now;
        }
    }
    return 2 * counted > rows * columns ? documents + 1 : 0;
}

/* `*hides`: attention reads it. False when out of memory. */
static bool is_for_attention(const lb_moved_run *run, uint32_t value, bool *hides)
{
    const size_t size = (size_t)run->program->n_values + 1;
    marking marking = {run, calloc(size, 1), calloc(size, 1), false};
    const bool done = marking.weights && marking.mask;
    for (uint32_t v = 0; done && v < run->program->n_values; v++)
        marking.weights[v] = (run->program->values[v].flags & LB_VALUE_PARAMETER) != 0;
    if (done)
        marking.mask[value] = 1, lb_scored_rows_descend(run, marking.weights),
        lb_scored_rows_descend(run, marking.mask);
    *hides = done && hides_from_attention(&marking);
    free(marking.weights), free(marking.mask);
    return done;
}

static bool try_mask(lb_moved_run *run, uint32_t value, const double *x, int64_t n, double hides, lb_token_marks *marks)
{
    bool used;
    if (!is_for_attention(run, value, &used)) return false;
    if (!used) return true;
    marks->hidden = malloc((size_t)n + 1), marks->mask = value;
    for (int64_t i = 0; marks->hidden && i < n; i++) marks->hidden[i] = x[i] == hides;
    return marks->hidden != NULL;
}

static bool try_square(lb_moved_run *run, uint32_t value, const double *x, const lb_token_ids *ids,
                       lb_token_marks *marks)
{
    const int64_t given = lb_layout_numel(&run->program->values[value].layout), n = ids->rows * ids->columns;
    const lb_token_squares squares = {x, given / (ids->columns * ids->columns), ids->columns};
    int32_t *document = calloc((size_t)n + 1, sizeof *document);
    uint8_t *hidden = calloc((size_t)n + 1, 1);
    bool used = false, done = document && hidden;
    const lb_square_kind kind =
        done ? lb_token_squares_read(&squares, ids->rows, ids->tokens, hidden, document) : LB_SQUARE_NONE;
    if (kind != LB_SQUARE_NONE) done = is_for_attention(run, value, &used);
    if (used && kind == LB_SQUARE_PADDING && !marks->hidden) {
        marks->hidden = hidden, marks->mask = value, hidden = NULL;
    } else if (used && kind == LB_SQUARE_DOCUMENTS && !marks->document) {
        marks->document = document, marks->positions = value, document = NULL;
    }
    free(document), free(hidden);
    return done;
}

static bool try_positions(uint32_t value, const double *x, int64_t given, const lb_token_ids *ids,
                          lb_token_marks *marks)
{
    const int64_t n = ids->rows * ids->columns;
    int32_t *document = calloc((size_t)n + 1, sizeof *document);
    if (!document) return false;
    if (count_documents(x, given / ids->columns, ids->columns, document) > 1) {
        for (int64_t i = given; i < n; i++) document[i] = document[i - given]; /* one row of positions for all */
        marks->document = document, marks->positions = value;
        return true;
    }
    free(document);
    return true;
}

lb_status lb_token_marks_find(lb_moved_run *run, const lb_scored_step *scored, uint32_t loss, lb_token_marks *marks,
                              lb_err *err)
{
    const lb_program *program = run->program;
    const lb_token_ids *ids = &scored->ids[scored->losses[loss].ids];
    const int64_t n = ids->rows * ids->columns;
    uint8_t *ancestors = calloc((size_t)program->n_values + 1, 1);
    const bool looks_up = run == scored->home; /* whatever that rank reads leads to the scores of another */
    bool done = ancestors && (looks_up || lb_scored_rows_ancestors(run, scored->losses[loss].scores, ancestors));
    if (done && looks_up) memset(ancestors, 1, (size_t)program->n_values + 1);
    *marks = (lb_token_marks){.mask = LB_NONE, .positions = LB_NONE};
    for (uint32_t i = 0; i < program->n_ops && done; i++) {
        if (!lb_op_is_source(program, &program->ops[i])) continue;
        const uint32_t value = lb_op_results(program, &program->ops[i])[0];
        const lb_layout *layout = &program->values[value].layout;
        const int64_t given = lb_layout_numel(layout);
        const bool by_token = is_by_token(layout, ids);
        if (!ancestors[value] || !(by_token || lb_token_squares_shape(layout, ids->rows, ids->columns))) continue;
        if (((!scored->home || looks_up) && run->graph.giver[ids->value] == i) ||
            program->values[value].flags & LB_VALUE_PARAMETER)
            continue;
        double *x = numbers_of(run, value);
        double hides;
        if (x && !by_token)
            done = try_square(run, value, x, ids, marks);
        else if (x && !marks->hidden && given == n && is_mask(x, n, &hides))
            done = try_mask(run, value, x, n, hides, marks);
        else if (x && !marks->document && lb_dtype_is_integer(program->values[value].dtype) && !(n % given))
            done = try_positions(value, x, given, ids, marks);
        free(x);
    }
    free(ancestors);
    return done ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for the masks of tokens");
}

void lb_token_marks_release(lb_token_marks *marks)
{
    free(marks->hidden), free(marks->document);
    *marks = (lb_token_marks){.mask = LB_NONE, .positions = LB_NONE};
}
