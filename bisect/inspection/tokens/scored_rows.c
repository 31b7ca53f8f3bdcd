/* Losses that score tokens: see scored_rows.h. */
#include "tokens/scored_rows.h"

#include "tokens/changed_run.h"
#include "shadow/shadow_numbers.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_SHIFT = 6, LEAST_MATCHES = 3, MOST_LISTED = 64 };

/* ---- what follows from what ---- */

bool lb_scored_rows_ancestors(const lb_moved_run *run, uint32_t value, uint8_t *ancestors)
{
    const lb_value_graph *graph = &run->graph;
    uint32_t *stack = malloc(((size_t)run->program->n_values + 1) * sizeof *stack), n = 0;
    if (!stack) return false;
    if (!ancestors[value]) ancestors[value] = 1, stack[n++] = value;
    while (n) {
        const uint32_t v = stack[--n];
        for (uint32_t e = graph->first_pred[v]; e < graph->first_pred[v + 1]; e++) {
            const uint32_t w = graph->preds[e];
            if (!ancestors[w]) ancestors[w] = 1, stack[n++] = w;
        }
    }
    free(stack);
    return true;
}

bool lb_scored_rows_follows(const lb_moved_run *run, const uint8_t *marked, uint32_t value)
{
    const lb_value_graph *graph = &run->graph;
    bool any = marked[value];
    for (uint32_t e = graph->first_pred[value]; !graph->given[value] && e < graph->first_pred[value + 1]; e++)
        any |= marked[graph->preds[e]];
    return any;
}

void lb_scored_rows_descend(const lb_moved_run *run, uint8_t *marked)
{
    const lb_program *program = run->program;
    const lb_value_graph *graph = &run->graph;
    for (uint32_t i = 0; i < program->n_ops; i++)
        for (uint32_t k = 0; k < lb_op_outcomes(&program->ops[i]); k++) {
            const uint32_t v = lb_op_outcome(program, &program->ops[i], k);
            if (v == LB_NONE || !graph->given[v] || graph->giver[v] != i) continue;
            for (uint32_t e = graph->first_pred[v]; e < graph->first_pred[v + 1]; e++)
                marked[v] |= lb_scored_rows_follows(run, marked, graph->preds[e]);
        }
}

/* Whole numbers that no float number had a part in: what a program was given, and no choice that it made. */
static bool is_given_integer(const lb_moved_run *run, uint32_t value, uint8_t *seen)
{
    const lb_program *program = run->program;
    memset(seen, 0, (size_t)program->n_values + 1);
    if (!lb_scored_rows_ancestors(run, value, seen)) return false;
    for (uint32_t v = 0; v < program->n_values; v++)
        if (seen[v] && lb_dtype_is_float(program->values[v].dtype)) return false;
    return true;
}

/* ---- candidates ---- */

/* A parameter, or what was made of parameters alone: gathered from its parts, unpacked from fewer bits. */
static bool is_table(const lb_moved_run *run, uint32_t value, uint8_t *seen)
{
    const lb_program *program = run->program;
    const uint32_t table = lb_value_graph_source(&run->graph, value);
    if (table != LB_NONE && program->values[table].flags & LB_VALUE_PARAMETER) return true;
    memset(seen, 0, (size_t)program->n_values + 1);
    if (!lb_scored_rows_ancestors(run, value, seen)) return false;
    bool any = false, other = false;
    for (uint32_t v = 0; v < program->n_values && !other; v++) {
        const uint32_t giver = seen[v] ? run->graph.giver[v] : LB_NONE;
        if (giver == LB_NONE) continue;
        const bool source = lb_op_is_source(program, &program->ops[giver]),
                   parameter = program->values[v].flags & LB_VALUE_PARAMETER;
        any |= source && parameter;
        other = (source && !parameter) || program->ops[giver].flags & LB_OP_RANDOM;
    }
    return any && !other;
}

/* The indices of a look-up; LB_NONE. */
static uint32_t looked_up(const lb_moved_run *run, const lb_op *op)
{
    const lb_program *program = run->program;
    const lb_arg *args = lb_op_args(program, op);
    uint32_t indices = LB_NONE;
    if (op->phase != LB_PHASE_FORWARD || op->args < 2 || args[0].tag != LB_ARG_VALUE) return LB_NONE;
    if (lb_program_name_extends(lb_op_name(program, op), "aten::embedding") && args[1].tag == LB_ARG_VALUE)
        indices = args[1].u.value;
    else if (lb_program_name_extends(lb_op_name(program, op), "aten::index") && args[1].tag == LB_ARG_LIST &&
             args[1].count == 1 && program->args[args[1].u.first].tag == LB_ARG_VALUE)
        indices = program->args[args[1].u.first].u.value;
    if (indices == LB_NONE) return LB_NONE;
    const lb_value *value = &program->values[indices];
    const bool whole = lb_dtype_is_integer(value->dtype) && value->dtype != LB_BOOL;
    return whole && value->layout.ndim >= 1 && value->layout.ndim <= 2 ? indices : LB_NONE;
}

/* A loss that takes one of each row's numbers by a given whole number. */
static bool is_loss(const lb_moved_run *run, uint32_t i, lb_scored_rows *loss, uint8_t *seen)
{
    const lb_program *program = run->program;
    const lb_op *op = &program->ops[i];
    const lb_arg *args = lb_op_args(program, op);
    const char *name = lb_op_name(program, op);
    const bool gathers = lb_program_name_extends(name, "aten::gather");
    const bool picks = gathers || lb_program_name_extends(name, "aten::nll_loss_forward") ||
                       lb_program_name_extends(name, "aten::nll_loss2d_forward");
    if (!picks || op->phase != LB_PHASE_FORWARD || op->args < 2 || args[0].tag != LB_ARG_VALUE) return false;
    const lb_arg *label = &args[gathers && op->args > 2 ? 2 : 1];
    if (label->tag != LB_ARG_VALUE) return false;
    const lb_layout *scores = &program->values[args[0].u.value].layout,
                    *labels = &program->values[label->u.value].layout;
    const int at = gathers ? scores->ndim - 1 : 1;
    if (scores->ndim < 2 || scores->shape[at] < 2) return false;
    *loss =
        (lb_scored_rows){.op = i, .scores = args[0].u.value, .labels = label->u.value, .classes = scores->shape[at]};
    loss->inner = 1, loss->gradient = LB_NONE;
    for (int d = at + 1; d < scores->ndim; d++) loss->inner *= scores->shape[d];
    return lb_layout_numel(labels) == lb_layout_numel(scores) / loss->classes &&
           is_given_integer(run, loss->labels, seen);
}

/* What backward gave for the scores: of the first op there that reads the labels and gives as many numbers. */
static uint32_t find_gradient(const lb_moved_run *run, const lb_scored_rows *loss)
{
    const lb_program *program = run->program;
    const int64_t n = lb_layout_numel(&program->values[loss->scores].layout);
    for (uint32_t i = loss->op + 1; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (op->phase != LB_PHASE_BACKWARD ||
            lb_op_reads(program, op, program->values[loss->labels].storage) == LB_NONE)
            continue;
        for (uint32_t k = 0; k < lb_op_outcomes(op); k++) {
            const uint32_t v = lb_op_outcome(program, op, k);
            if (v == LB_NONE || !lb_dtype_is_float(program->values[v].dtype)) continue;
            if (lb_layout_same_shape(&program->values[v].layout, &program->values[loss->scores].layout) && n > 0)
                return v;
        }
    }
    return LB_NONE;
}

static bool add_ids(const lb_moved_run *run, lb_scored_step *scored, uint32_t value, uint32_t op)
{
    const lb_layout *layout = &run->program->values[value].layout;
    for (uint32_t i = 0; i < scored->n_ids; i++)
        if (scored->ids[i].value == value) return true;
    for (int first = layout->ndim == 2 && layout->shape[0] > 1 && layout->shape[1] > 1; first >= 0; first--) {
        lb_token_ids *ids = scored->n_ids < MOST_LISTED ? lb_array_grow(scored->ids, scored->n_ids, sizeof *ids) : NULL;
        if (!ids) return scored->n_ids == MOST_LISTED;
        scored->ids = ids;
        scored->ids[scored->n_ids++] = (lb_token_ids){.value = value,
                                                      .op = op,
                                                      .rows = layout->ndim == 2 ? layout->shape[first] : 1,
                                                      .columns = layout->shape[layout->ndim - 1 - first],
                                                      .tokens_first = first};
    }
    return true;
}

static bool list_ids(const lb_moved_run *run, lb_scored_step *scored)
{
    uint8_t *seen = malloc((size_t)run->program->n_values + 1);
    bool done = seen != NULL;
    for (uint32_t i = 0; i < run->program->n_ops && done; i++) {
        const lb_op *op = &run->program->ops[i];
        const uint32_t ids = looked_up(run, op);
        if (ids != LB_NONE && is_table(run, lb_op_args(run->program, op)[0].u.value, seen))
            done = add_ids(run, scored, ids, i);
    }
    free(seen);
    return done;
}

static bool list_losses(const lb_moved_run *run, lb_scored_step *scored)
{
    uint8_t *seen = malloc((size_t)run->program->n_values + 1);
    bool done = seen != NULL;
    for (uint32_t i = 0; i < run->program->n_ops && done; i++) {
        lb_scored_rows loss;
        if (!is_loss(run, i, &loss, seen) || scored->n_losses == MOST_LISTED) continue;
        lb_scored_rows *losses = lb_array_grow(scored->losses, scored->n_losses, sizeof *losses);
        done &= losses != NULL;
        loss.gradient = find_gradient(run, &loss);
        if (losses) scored->losses = losses, scored->losses[scored->n_losses++] = loss;
    }
    free(seen);
    return done;
}

/* ---- their numbers ---- */

typedef struct reading {
    lb_moved_run *run;
    lb_scored_step *scored;
    const lb_moved_run *beside; /* the rank whose tokens they are, where it is another; NULL */
    bool failed;
} reading;

static int64_t *whole_numbers(const lb_event *event, uint32_t value)
{
    lb_tensor tensor;
    if (!lb_event_exact(event, value, &tensor)) return NULL;
    const int64_t n = lb_layout_numel(&tensor.layout);
    double *x = lb_shadow_numbers_copy(&tensor);
    int64_t *whole = x ? malloc(((size_t)n + 1) * sizeof *whole) : NULL;
    for (int64_t i = 0; whole && i < n; i++) whole[i] = (int64_t)x[i];
    free(x);
    return whole;
}

bool lb_scored_rows_turn(const lb_token_ids *ids, int64_t *numbers, bool back)
{
    const int64_t n = ids->rows * ids->columns;
    int64_t *turned = malloc(((size_t)n + 1) * sizeof *turned);
    if (!turned) return false;
    for (int64_t row = 0; row < ids->rows; row++)
        for (int64_t column = 0; column < ids->columns; column++) {
            const int64_t by_row = row * ids->columns + column, by_token = column * ids->rows + row;
            turned[back ? by_token : by_row] = numbers[back ? by_row : by_token];
        }
    memcpy(numbers, turned, (size_t)n * sizeof *numbers);
    free(turned);
    return true;
}

static bool reads(const lb_moved_run *run, uint32_t op, uint32_t ids)
{
    return looked_up(run, &run->program->ops[op]) == ids;
}

/* What each row weighs in the loss that backward began from: the loss has - the score at the label in it. */
static void read_weights(lb_scored_rows *loss, const lb_event *event, int64_t n)
{
    lb_tensor tensor;
    double *x =
        loss->targets && lb_event_exact(event, loss->gradient, &tensor) ? lb_shadow_numbers_copy(&tensor) : NULL;
    loss->weights = x ? malloc(((size_t)n + 1) * sizeof *loss->weights) : NULL;
    for (int64_t i = 0; loss->weights && i < n; i++) {
        int64_t stride;
        const int64_t at = lb_scored_rows_begin(loss, i, &stride), label = loss->targets[i];
        loss->weights[i] = label >= 0 && label < loss->classes ? 0 - x[at + label * stride] : 0;
    }
    free(x);
}

static bool read_tokens(reading *reading, const lb_moved_run *run, const lb_event *event)
{
    for (uint32_t i = 0; i < reading->scored->n_ids; i++) {
        lb_token_ids *ids = &reading->scored->ids[i];
        if (ids->tokens || !reads(run, event->op, ids->value)) continue;
        ids->tokens = whole_numbers(event, ids->value);
        if (ids->tokens && ids->tokens_first) reading->failed |= !lb_scored_rows_turn(ids, ids->tokens, false);
    }
    return !reading->failed;
}

static bool read_numbers(void *context, const lb_event *event)
{
    reading *reading = context;
    read_tokens(reading, reading->run, event);
    for (uint32_t i = 0; i < reading->scored->n_losses; i++) {
        lb_scored_rows *loss = &reading->scored->losses[i];
        if (loss->op == event->op) loss->targets = whole_numbers(event, loss->labels);
        if (loss->gradient != LB_NONE && reading->run->graph.giver[loss->gradient] == event->op && !loss->weights)
            read_weights(loss, event, lb_layout_numel(&reading->run->program->values[loss->labels].layout));
    }
    return !reading->failed;
}

/* ---- which token a row is scored against ---- */

/* Do the labels stand so many places behind the tokens? Returns how many were compared; 0: not all fit. */
static int64_t count_fits(const lb_scored_rows *loss, const lb_token_ids *ids, int64_t rows, int64_t per_row,
                          int64_t by)
{
    int64_t n = 0;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t column = i % per_row + by, label = loss->targets[i];
        if (label < 0 || label >= loss->classes || column >= ids->columns) continue;
        if (label != ids->tokens[i / per_row * ids->columns + column]) return 0;
        n++;
    }
    return n;
}

/* Elements between the rows of a value that has so many for each sequence; 0: it is no such value. */
static int64_t row_stride(const lb_layout *layout, int64_t sequences, int64_t per_row)
{
    if (layout->ndim == 3 && layout->shape[0] == sequences && layout->shape[1] == per_row) return layout->stride[1];
    return layout->ndim == 2 && sequences == 1 && layout->shape[0] == per_row ? layout->stride[0] : 0;
}

/* Where the rows of the scores begin: the first of a window on scores of every token. -1: not known. */
static int64_t first_token(const lb_moved_run *run, const lb_scored_rows *loss, const lb_token_ids *ids,
                           const uint8_t *ancestors)
{
    const lb_program *program = run->program;
    if (loss->per_row == ids->columns) return 0;
    for (uint32_t v = 0; v < program->n_values; v++) {
        const int64_t stride = row_stride(&program->values[v].layout, ids->rows, loss->per_row);
        if (!ancestors[v] || stride <= 0) continue;
        for (uint32_t w = 0; w < program->n_values; w++)
            if (program->values[w].storage == program->values[v].storage &&
                row_stride(&program->values[w].layout, ids->rows, ids->columns) == stride)
                return (program->values[v].layout.offset - program->values[w].layout.offset) / stride;
    }
    return -1;
}

/* `ancestors`: of the scores. `elsewhere`: the ids are another rank's, and their tokens alone tell. */
static bool align(const lb_moved_run *run, lb_scored_rows *loss, const lb_token_ids *ids, uint32_t number,
                  const uint8_t *ancestors, bool elsewhere)
{
    const int64_t rows = lb_layout_numel(&run->program->values[loss->labels].layout);
    int64_t labelled = 0, found = -1, fits = 0;
    if (!ids->tokens || !loss->targets || ids->columns < 2 || rows % ids->rows) return false;
    if (!elsewhere && !ancestors[ids->value]) return false;
    for (int64_t i = 0; i < rows; i++) labelled += loss->targets[i] >= 0 && loss->targets[i] < loss->classes;
    const int64_t per_row = rows / ids->rows;
    for (int64_t by = 0; by <= MOST_SHIFT; by++) {
        const int64_t n = count_fits(loss, ids, rows, per_row, by);
        if (n < LEAST_MATCHES || 2 * n < labelled) continue;
        fits++;
        if (found < 0 || by == 1) found = by;
    }
    if (found < 0 || per_row > ids->columns) return false;
    loss->per_row = per_row, loss->ids = number;
    loss->first = first_token(run, loss, ids, ancestors);
    loss->shift = found - loss->first, loss->certain = fits == 1;
    return loss->first >= 0;
}

/* The same tokens as the program was given them: some of them may be looked up by a copy (those of another table where
 * its rows end), and are changed where they come from. */
static uint32_t given_as(const lb_moved_run *run, const lb_scored_step *scored, uint32_t number, uint8_t *ancestors)
{
    const lb_token_ids *ids = &scored->ids[number];
    const size_t n = (size_t)(ids->rows * ids->columns);
    memset(ancestors, 0, (size_t)run->program->n_values + 1);
    if (!lb_scored_rows_ancestors(run, ids->value, ancestors)) return number;
    for (uint32_t i = 0; i < scored->n_ids; i++)
        if (ancestors[scored->ids[i].value] && scored->ids[i].tokens && scored->ids[i].rows == ids->rows &&
            scored->ids[i].columns == ids->columns &&
            !memcmp(scored->ids[i].tokens, ids->tokens, n * sizeof *ids->tokens))
            return i;
    return number;
}

static bool align_all(const lb_moved_run *run, lb_scored_step *scored)
{
    const size_t n = (size_t)run->program->n_values + 1;
    uint8_t *ancestors = malloc(n);
    uint32_t kept = 0;
    bool done = ancestors != NULL;
    for (uint32_t i = 0; i < scored->n_losses && done; i++) {
        lb_scored_rows loss = scored->losses[i];
        bool found = false;
        memset(ancestors, 0, n);
        done = lb_scored_rows_ancestors(run, loss.scores, ancestors);
        for (uint32_t k = scored->n_ids; k-- > 0 && done && !found;)
            found = align(run, &loss, &scored->ids[k], k, ancestors, scored->home != NULL);
        if (found && !scored->home) loss.ids = given_as(run, scored, loss.ids, ancestors);
        if (found)
            scored->losses[kept++] = loss;
        else
            free(loss.targets), free(loss.weights);
    }
    if (done) scored->n_losses = kept;
    free(ancestors);
    return done;
}

/* ---- other tokens ---- */

static int by_number(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* One of three alike beside each other is padding, or stands in the place of an image: what such tokens do is not what
 * a word does. */
static bool is_ordinary(const lb_token_ids *ids, int64_t i)
{
    const int64_t row = i / ids->columns * ids->columns, t = ids->tokens[i];
    for (int64_t from = i - 2; from <= i; from++) {
        if (from < row || from + 3 > row + ids->columns) continue;
        if (ids->tokens[from] == t && ids->tokens[from + 1] == t && ids->tokens[from + 2] == t) return false;
    }
    return true;
}

/* The next larger ordinary token of the batch, or its smallest. */
static int64_t next_token(const int64_t *sorted, int64_t n, int64_t token)
{
    for (int64_t i = 0; i < n; i++)
        if (sorted[i] > token) return sorted[i];
    return n ? sorted[0] : token;
}

static bool list_spares(lb_token_ids *ids)
{
    const int64_t n = ids->rows * ids->columns;
    int64_t *sorted = malloc(((size_t)n + 1) * sizeof *sorted), kept = 0;
    bool done = (ids->spare = malloc(((size_t)n + 1) * sizeof *ids->spare)) != NULL;
    done &= (ids->ordinary = calloc((size_t)n + 1, 1)) != NULL && sorted;
    for (int64_t i = 0; done && i < n; i++) {
        ids->ordinary[i] = is_ordinary(ids, i);
        if (ids->ordinary[i]) sorted[kept++] = ids->tokens[i];
    }
    if (done && kept) qsort(sorted, (size_t)kept, sizeof *sorted, by_number);
    for (int64_t i = 0; done && i < n; i++) ids->spare[i] = next_token(sorted, kept, ids->tokens[i]);
    free(sorted);
    return done;
}

/* ---- all of it ---- */

int64_t lb_scored_rows_begin(const lb_scored_rows *loss, int64_t row, int64_t *stride)
{
    *stride = loss->inner;
    return row / loss->inner * loss->inner * loss->classes + row % loss->inner;
}

void lb_scored_rows_token(const lb_scored_rows *loss, int64_t row, int64_t *sequence, int64_t *column)
{
    *sequence = row / loss->per_row, *column = row % loss->per_row + loss->first;
}

static uint32_t last_read(const lb_moved_run *run, const lb_scored_step *scored)
{
    uint32_t last = 0;
    for (uint32_t i = 0; i < scored->n_losses; i++) {
        const uint32_t v = scored->losses[i].gradient, op = v == LB_NONE ? scored->losses[i].op : run->graph.giver[v];
        if (op != LB_NONE && op > last) last = op;
    }
    return last;
}

static bool has_collective(const lb_program *program, uint32_t last)
{
    for (uint32_t i = 0; i < program->n_ops && i <= last; i++)
        if (program->ops[i].flags & LB_OP_COLLECTIVE) return true;
    return false;
}

lb_moved_run *lb_scored_rows_home(lb_moved_run *run, const lb_scored_step *scored)
{
    return scored->home ? scored->home : run;
}

static void release_ids(lb_scored_step *scored)
{
    for (uint32_t i = 0; i < scored->n_ids; i++)
        free(scored->ids[i].tokens), free(scored->ids[i].spare), free(scored->ids[i].ordinary);
    free(scored->ids);
    scored->ids = NULL, scored->n_ids = 0;
}

/* The tokens of another rank, as its embeddings read them. */
static bool read_beside(void *context, const lb_moved_run *run, const lb_event *event)
{
    reading *reading = context;
    return run != reading->beside || read_tokens(reading, run, event);
}

static lb_status read_other(lb_moved_run *run, lb_moved_run *other, lb_scored_step *scored, lb_err *err)
{
    reading reading = {.run = run, .scored = scored, .beside = other};
    const lb_changed_run plain = {
        .holds = true, .last = last_read(run, scored), .look_beside = read_beside, .context = &reading};
    LB_TRY(lb_changed_run_run(run, &plain, err));
    return reading.failed ? lb_fail(err, LB_ERR_NOMEM, "out of memory for tokens") : LB_OK;
}

/* Does a loss score tokens that the other rank looked up? */
static bool is_home(const lb_moved_run *run, const lb_scored_step *scored)
{
    uint8_t *ancestors = malloc((size_t)run->program->n_values + 1);
    bool found = false;
    for (uint32_t i = 0; ancestors && i < scored->n_losses && !found; i++) {
        lb_scored_rows loss = scored->losses[i];
        memset(ancestors, 0, (size_t)run->program->n_values + 1);
        if (!lb_scored_rows_ancestors(run, loss.scores, ancestors)) break;
        for (uint32_t k = scored->n_ids; k-- > 0 && !found;)
            found = align(run, &loss, &scored->ids[k], k, ancestors, true);
    }
    free(ancestors);
    return found;
}

/* The losses of a pipeline's last stage: the rank that looked their tokens up. */
static lb_status find_home(lb_moved_run *run, lb_scored_step *scored, lb_err *err)
{
    for (uint32_t i = 0; i < run->n_together && !scored->home; i++) {
        lb_moved_run *other = run->together[i];
        if (other == run) continue;
        if (!list_ids(other, scored)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for tokens");
        if (scored->n_ids) LB_TRY(read_other(run, other, scored, err));
        if (is_home(run, scored)) scored->home = other;
        if (!scored->home) release_ids(scored);
    }
    return LB_OK;
}

/* Does a loss follow from what another rank sent? */
static bool follows_message(const lb_moved_run *run, const lb_scored_step *scored)
{
    const lb_program *program = run->program;
    uint8_t *ancestors = calloc((size_t)program->n_values + 1, 1);
    bool follows = false;
    for (uint32_t i = 0; ancestors && i < scored->n_losses; i++)
        follows |= !lb_scored_rows_ancestors(run, scored->losses[i].scores, ancestors);
    for (uint32_t v = 0; ancestors && v < program->n_values && !follows; v++) {
        const uint32_t giver = ancestors[v] ? run->graph.giver[v] : LB_NONE;
        follows = giver != LB_NONE && strstr(lb_op_name(program, &program->ops[giver]), "recv");
    }
    free(ancestors);
    return follows;
}

lb_status lb_scored_rows_find(lb_moved_run *run, lb_scored_step *scored, lb_err *err)
{
    *scored = (lb_scored_step){0};
    if (!list_ids(run, scored) || !list_losses(run, scored))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for losses");
    const bool elsewhere = !scored->n_ids && scored->n_losses && follows_message(run, scored);
    if (!scored->n_losses || (!scored->n_ids && !(elsewhere && run->together))) {
        scored->apart = elsewhere, scored->n_losses = 0;
        return LB_OK;
    }
    scored->waits = !run->together && has_collective(run->program, last_read(run, scored));
    if (scored->waits) {
        for (uint32_t i = 0; i < scored->n_losses; i++)
            free(scored->losses[i].targets), free(scored->losses[i].weights);
        scored->n_losses = 0;
        return LB_OK;
    }
    reading reading = {.run = run, .scored = scored};
    const lb_changed_run plain = {
        .holds = true, .last = last_read(run, scored), .look = read_numbers, .context = &reading};
    LB_TRY(lb_changed_run_run(run, &plain, err));
    if (elsewhere && !reading.failed) LB_TRY(find_home(run, scored, err));
    bool done = !reading.failed && align_all(run, scored);
    scored->apart = elsewhere && !scored->home;
    for (uint32_t i = 0; i < scored->n_ids && done; i++)
        if (scored->ids[i].tokens) done = list_spares(&scored->ids[i]);
    return done ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for tokens");
}

void lb_scored_rows_release(lb_scored_step *scored)
{
    for (uint32_t i = 0; i < scored->n_losses; i++) free(scored->losses[i].targets), free(scored->losses[i].weights);
    release_ids(scored);
    free(scored->losses);
    *scored = (lb_scored_step){0};
}
