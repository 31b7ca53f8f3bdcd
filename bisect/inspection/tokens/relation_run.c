/* Relations tried: see relation_run.h. */
#include "tokens/relation_run.h"

#include "shadow/shadow_numbers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct trial {
    lb_relation_run *relation;
    const lb_relation_tokens *tokens; /* NULL: the step as it is */
    lb_relation_answer *answer;
    uint8_t *kept; /* per value: its tokens that had to stay did (1), or did not (2); 0: its shape does not tell */
    bool failed;
} trial;

static int64_t rows_of(const lb_relation_run *run, uint32_t loss)
{
    return lb_layout_numel(&run->run->program->values[run->scored->losses[loss].labels].layout);
}

/* ---- scores ---- */

static lb_token_sum *sum_scores(const lb_relation_run *run, uint32_t number, const lb_event *event)
{
    const lb_scored_rows *loss = &run->scored->losses[number];
    lb_tensor tensor;
    double *x = lb_event_exact(event, loss->scores, &tensor) ? lb_shadow_numbers_copy(&tensor) : NULL;
    const int64_t n = rows_of(run, number);
    lb_token_sum *sums = x ? malloc(((size_t)n + 1) * sizeof *sums) : NULL;
    for (int64_t i = 0; sums && i < n; i++) {
        int64_t stride;
        const int64_t at = lb_scored_rows_begin(loss, i, &stride);
        sums[i] = lb_token_rows_sum(x + at, loss->classes, stride);
    }
    free(x);
    return sums;
}

static void compare_scores(trial *trial, uint32_t number, const lb_token_sum *now)
{
    const lb_relation_run *run = trial->relation;
    const lb_scored_rows *loss = &run->scored->losses[number];
    const int64_t n = rows_of(run, number), columns = run->scored->ids[loss->ids].columns;
    for (int64_t i = 0; i < n; i++) {
        int64_t sequence, column;
        lb_scored_rows_token(loss, i, &sequence, &column);
        const double gap = lb_token_rows_gap(&run->scores[number][i], &now[i]);
        const bool moves = !(gap <= LB_TOKEN_ROWS_ROUNDING);
        trial->answer->moved += moves;
        if (loss->targets[i] < 0 || loss->targets[i] >= loss->classes) continue;
        if (!trial->tokens->stays[loss->ids][sequence * columns + column]) continue;
        trial->answer->compared++, trial->answer->broken += moves;
        if (moves && !(gap <= trial->answer->largest))
            trial->answer->largest = gap, trial->answer->loss = number, trial->answer->row = i;
    }
}

static void look_at_loss(trial *trial, uint32_t number, const lb_event *event)
{
    lb_relation_run *run = trial->relation;
    lb_token_sum *sums = sum_scores(run, number, event);
    if (!trial->tokens) {
        run->scores[number] = sums;
        return;
    }
    if (sums && run->scores[number])
        compare_scores(trial, number, sums);
    else
        trial->answer->unseen = true;
    free(sums);
}

/* ---- what lies before them ---- */

static bool is_softmax(const lb_program *program, uint32_t op)
{
    return strstr(lb_op_name(program, &program->ops[op]), "softmax") != NULL;
}

static void compare_value(trial *trial, uint32_t v, const lb_token_sum *now, int64_t n)
{
    const lb_relation_run *run = trial->relation;
    const uint8_t *stays = trial->tokens->stays[run->scored->losses[run->loss_of[v]].ids];
    trial->kept[v] = 1;
    for (int64_t i = 0; i < n && trial->kept[v] == 1; i++)
        if (stays[i] && !(lb_token_rows_gap(&run->values[v][i], &now[i]) <= LB_TOKEN_ROWS_ROUNDING)) trial->kept[v] = 2;
}

static void look_at_value(trial *trial, uint32_t op, uint32_t value, const lb_tensor *tensor)
{
    lb_relation_run *run = trial->relation;
    if (run->loss_of[value] == LB_NONE || (trial->tokens && !run->values[value])) return;
    const lb_token_ids *ids = &run->scored->ids[run->scored->losses[run->loss_of[value]].ids];
    lb_token_rows shape;
    if (!lb_token_rows_of(&tensor->layout, ids->rows, ids->columns, is_softmax(run->run->program, op), &shape)) return;
    double *x = lb_shadow_numbers_copy(tensor);
    const int64_t n = ids->rows * ids->columns;
    lb_token_sum *sums = x ? malloc(((size_t)n + 1) * sizeof *sums) : NULL;
    if (sums) lb_token_rows_add_up(&shape, x, sums);
    trial->failed |= !sums;
    if (!trial->tokens)
        free(run->values[value]), run->values[value] = sums;
    else if (sums)
        compare_value(trial, value, sums, n), free(sums);
    free(x);
}

/* ---- what other ranks made of the tokens ---- */

static lb_beside *beside_of(const lb_relation_run *r, const lb_moved_run *run)
{
    for (uint32_t i = 0; r->beside && i < r->run->n_together; i++)
        if (r->beside[i].run == run) return &r->beside[i];
    return NULL;
}

/* Must the token stay in every micro-batch? Which one a value of another rank is of is not known. */
static bool stays_everywhere(const trial *trial, const lb_token_ids *like, int64_t i)
{
    const lb_scored_step *scored = trial->relation->scored;
    bool stays = true;
    for (uint32_t k = 0; k < scored->n_losses; k++) {
        const lb_token_ids *ids = &scored->ids[scored->losses[k].ids];
        if (ids->rows == like->rows && ids->columns == like->columns)
            stays &= trial->tokens->stays[scored->losses[k].ids][i];
    }
    return stays;
}

static void look_at_beside(trial *trial, lb_beside *beside, uint32_t op, uint32_t value, const lb_tensor *tensor)
{
    const lb_scored_step *scored = trial->relation->scored;
    const lb_token_ids *ids = &scored->ids[scored->losses[0].ids];
    const int64_t n = ids->rows * ids->columns;
    lb_token_rows shape;
    if (trial->tokens && !beside->values[value]) return;
    if (!lb_token_rows_of(&tensor->layout, ids->rows, ids->columns, is_softmax(beside->run->program, op), &shape))
        return;
    double *x = lb_shadow_numbers_copy(tensor);
    lb_token_sum *sums = x ? malloc(((size_t)n + 1) * sizeof *sums) : NULL;
    if (sums) lb_token_rows_add_up(&shape, x, sums);
    trial->failed |= !sums;
    free(x);
    if (!trial->tokens) {
        free(beside->values[value]), beside->values[value] = sums;
        return;
    }
    beside->kept[value] = 1;
    for (int64_t i = 0; sums && i < n && beside->kept[value] == 1; i++)
        if (stays_everywhere(trial, ids, i) &&
            !(lb_token_rows_gap(&beside->values[value][i], &sums[i]) <= LB_TOKEN_ROWS_ROUNDING))
            beside->kept[value] = 2;
    free(sums);
}

static bool is_looked_at(const lb_event *event, uint32_t i)
{
    const lb_tensor *tensor = &event->shadow[i];
    return event->values[i] != LB_NONE && tensor->data && lb_dtype_is_float(tensor->dtype) &&
           !lb_dtype_is_complex(tensor->dtype);
}

static bool look_beside(void *context, const lb_moved_run *run, const lb_event *event)
{
    trial *trial = context;
    lb_beside *beside = beside_of(trial->relation, run);
    if (!beside || run->program->ops[event->op].phase != LB_PHASE_FORWARD || !event->shadow) return true;
    for (uint32_t i = 0; i < event->n_results; i++)
        if (is_looked_at(event, i)) look_at_beside(trial, beside, event->op, event->values[i], &event->shadow[i]);
    return !trial->failed;
}

static bool look(void *context, const lb_event *event)
{
    trial *trial = context;
    const lb_program *program = trial->relation->run->program;
    if (program->ops[event->op].phase == LB_PHASE_FORWARD && event->shadow)
        for (uint32_t i = 0; i < event->n_results; i++) {
            if (is_looked_at(event, i)) look_at_value(trial, event->op, event->values[i], &event->shadow[i]);
        }
    for (uint32_t i = 0; i < trial->relation->scored->n_losses; i++)
        if (trial->relation->scored->losses[i].op == event->op) look_at_loss(trial, i, event);
    return !trial->failed;
}

/* ---- runs ---- */

static bool list_ancestors(lb_relation_run *run)
{
    const size_t n = (size_t)run->run->program->n_values + 1;
    uint8_t *ancestors = malloc(n);
    bool done = ancestors != NULL;
    for (uint32_t i = 0; i < run->scored->n_losses && done; i++) {
        memset(ancestors, 0, n);
        done = lb_scored_rows_ancestors(run->run, run->scored->losses[i].scores, ancestors);
        for (uint32_t v = 0; v + 1 < n; v++)
            if (ancestors[v] && run->loss_of[v] == LB_NONE) run->loss_of[v] = i;
    }
    free(ancestors);
    return done;
}

static uint32_t last_loss(const lb_scored_step *scored)
{
    uint32_t last = 0;
    for (uint32_t i = 0; i < scored->n_losses; i++) last = scored->losses[i].op > last ? scored->losses[i].op : last;
    return last;
}

static bool open_beside(lb_relation_run *r)
{
    bool done = (r->beside = calloc((size_t)r->run->n_together + 1, sizeof *r->beside)) != NULL;
    for (uint32_t i = 0; i < r->run->n_together && done; i++) {
        lb_beside *beside = &r->beside[i];
        const lb_moved_run *run = r->run->together[i];
        if (run == r->run) continue;
        beside->run = run, beside->values = calloc((size_t)run->program->n_values + 1, sizeof *beside->values);
        beside->kept = calloc((size_t)run->program->n_values + 1, 1);
        done = beside->values && beside->kept;
    }
    return done;
}

static void close_beside(lb_relation_run *run)
{
    for (uint32_t i = 0; run->beside && i < run->run->n_together; i++) {
        const lb_beside *beside = &run->beside[i];
        for (uint32_t v = 0; beside->values && v < beside->run->program->n_values; v++) free(beside->values[v]);
        free(beside->values), free(beside->kept);
    }
    free(run->beside);
}

lb_status lb_relation_run_open(lb_moved_run *run, const lb_scored_step *scored, bool holds, lb_relation_run *relation,
                               lb_err *err)
{
    const size_t n = (size_t)run->program->n_values + 1;
    *relation = (lb_relation_run){.run = run, .scored = scored, .holds = holds};
    relation->loss_of = malloc(n * sizeof *relation->loss_of);
    relation->values = calloc(n, sizeof *relation->values);
    relation->scores = calloc((size_t)scored->n_losses + 1, sizeof *relation->scores);
    if (!relation->loss_of || !relation->values || !relation->scores)
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for %zu values", n);
    memset(relation->loss_of, 0xFF, n * sizeof *relation->loss_of);
    if (!list_ancestors(relation)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %zu values", n);
    if (scored->home && !open_beside(relation))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for values of other ranks");
    trial trial = {.relation = relation};
    const lb_changed_run plain = {
        .holds = holds, .last = last_loss(scored), .look = look, .look_beside = look_beside, .context = &trial};
    LB_TRY(lb_changed_run_run(run, &plain, err));
    return trial.failed ? lb_fail(err, LB_ERR_NOMEM, "out of memory for sums of tokens") : LB_OK;
}

void lb_relation_run_close(lb_relation_run *relation)
{
    for (uint32_t v = 0; relation->values && v < relation->run->program->n_values; v++) free(relation->values[v]);
    for (uint32_t i = 0; relation->scores && i < relation->scored->n_losses; i++) free(relation->scores[i]);
    free(relation->loss_of), free(relation->values), free(relation->scores);
    close_beside(relation);
    *relation = (lb_relation_run){0};
}

/* A shape may tell the wrong dimension (as many channels as tokens), and scores of tokens by tokens are hidden later: a
 * value from which one follows that stayed as it had to has not broken the relation. */
static bool first_broken(const lb_moved_run *run, const uint8_t *kept, uint32_t *op)
{
    uint8_t *innocent = calloc((size_t)run->program->n_values + 1, 1);
    bool done = innocent != NULL;
    for (uint32_t v = 0; v < run->program->n_values && done; v++)
        if (kept[v] == 1) done = lb_scored_rows_ancestors(run, v, innocent);
    for (uint32_t v = 0; v < run->program->n_values && done; v++)
        if (kept[v] == 2 && !innocent[v] && run->graph.giver[v] < *op) *op = run->graph.giver[v];
    free(innocent);
    return done;
}

/* On the rank that looked the tokens up, on one between, or on the one that scores them. */
static bool name_op(trial *trial)
{
    const lb_relation_run *run = trial->relation;
    const lb_moved_run *home = run->scored->home;
    bool done = first_broken(run->run, trial->kept, &trial->answer->op);
    for (int others = 0; others < 2 && done && run->beside; others++)
        for (uint32_t i = 0; i < run->run->n_together && done && !trial->answer->place; i++) {
            const lb_beside *beside = &run->beside[i];
            uint32_t op = LB_NONE;
            if (!beside->run || (beside->run == home) == others) continue;
            done = first_broken(beside->run, beside->kept, &op);
            if (op != LB_NONE) trial->answer->op = op, trial->answer->place = beside->run;
        }
    return done;
}

static int64_t *changed_numbers(const lb_token_ids *ids, const uint8_t *changed)
{
    const int64_t n = ids->rows * ids->columns;
    int64_t *numbers = malloc(((size_t)n + 1) * sizeof *numbers);
    for (int64_t i = 0; numbers && i < n; i++) numbers[i] = changed[i] ? ids->spare[i] : ids->tokens[i];
    if (!numbers || !ids->tokens_first || lb_scored_rows_turn(ids, numbers, true)) return numbers;
    free(numbers);
    return NULL;
}

lb_status lb_relation_run_try(lb_relation_run *relation, const lb_relation_tokens *tokens, lb_relation_answer *answer,
                              lb_err *err)
{
    const uint32_t n = relation->scored->n_ids;
    lb_changed_value *changes = calloc((size_t)n + 1, sizeof *changes);
    int64_t **numbers = calloc((size_t)n + 1, sizeof *numbers);
    uint32_t made = 0;
    bool done = changes && numbers;
    *answer = (lb_relation_answer){.op = LB_NONE};
    for (uint32_t i = 0; i < n && done; i++) {
        const lb_token_ids *ids = &relation->scored->ids[i];
        if (!ids->spare || !memchr(tokens->changed[i], 1, (size_t)(ids->rows * ids->columns))) continue;
        numbers[made] = changed_numbers(ids, tokens->changed[i]);
        done = numbers[made] != NULL;
        changes[made] = (lb_changed_value){ids->value, numbers[made]}, made++;
    }
    trial trial = {.relation = relation, .tokens = tokens, .answer = answer};
    trial.kept = calloc((size_t)relation->run->program->n_values + 1, 1);
    done &= trial.kept != NULL;
    const lb_changed_run changed = {.changes = changes,
                                    .n_changes = made,
                                    .holds = relation->holds,
                                    .holds_whole = relation->holds_whole,
                                    .chose = &relation->chose,
                                    .last = last_loss(relation->scored),
                                    .look = look,
                                    .look_beside = look_beside,
                                    .home = relation->scored->home,
                                    .context = &trial};
    lb_status status = done ? lb_changed_run_run(relation->run, &changed, err) : LB_ERR_NOMEM;
    if (status == LB_OK && answer->broken && !name_op(&trial)) status = LB_ERR_NOMEM;
    for (uint32_t i = 0; i < made; i++) free(numbers[i]);
    free(numbers), free(changes), free(trial.kept);
    if (status == LB_ERR_NOMEM || trial.failed) return lb_fail(err, LB_ERR_NOMEM, "out of memory for other tokens");
    return status;
}

bool lb_relation_run_tokens(const lb_scored_step *scored, lb_relation_tokens *tokens)
{
    const size_t n = (size_t)scored->n_ids + 1;
    bool done = (tokens->changed = calloc(n, sizeof *tokens->changed)) != NULL;
    done &= (tokens->stays = calloc(n, sizeof *tokens->stays)) != NULL;
    for (uint32_t i = 0; i < scored->n_ids && done; i++) {
        const size_t size = (size_t)(scored->ids[i].rows * scored->ids[i].columns) + 1;
        tokens->changed[i] = calloc(size, 1), tokens->stays[i] = calloc(size, 1);
        done = tokens->changed[i] && tokens->stays[i];
    }
    return done;
}

void lb_relation_run_release_tokens(const lb_scored_step *scored, lb_relation_tokens *tokens)
{
    for (uint32_t i = 0; i < scored->n_ids; i++) {
        if (tokens->changed) free(tokens->changed[i]);
        if (tokens->stays) free(tokens->stays[i]);
    }
    free(tokens->changed), free(tokens->stays);
    *tokens = (lb_relation_tokens){0};
}
