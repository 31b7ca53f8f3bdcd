/* Relations that a language model must keep, whatever its weights: see relation_run.h. */
#include "check/check_step.h"
#include "check/first_positions.h"
#include "tokens/relation_run.h"
#include "check/scored_labels.h"
#include "tokens/token_marks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum relation { CARRIED, FUTURE, FUTURE_LATE, ROWS, DOCUMENTS, PADDING, N_RELATIONS } relation;

typedef struct judge {
    lb_check_step *check;
    lb_scored_step scored;
    lb_token_marks *marks; /* per loss */
    bool holds;            /* decisions are those that were recorded */
    bool unseen;           /* scores had no exact numbers under different tokens */
    bool chose;            /* decisions that follow from numbers were made anew */
    bool carried;          /* a micro-batch depends on the first: only tokens of the last one are changed */
} judge;

/* ---- which tokens are changed, and which must stay ---- */

/* An odd place near the middle, and the last: attention in blocks of a power of two is met within a block. */
static int64_t first_changed(relation kind, int64_t columns)
{
    return kind == FUTURE_LATE ? columns - 1 : columns / 2 | 1;
}

static void mark_token(relation kind, const lb_scored_rows *loss, const lb_token_marks *marks, int64_t i,
                       int64_t columns, uint8_t *changed, uint8_t *stays)
{
    const int64_t row = i / columns, column = i % columns;
    const bool hidden = marks->hidden && marks->hidden[i];
    switch (kind) {
    case FUTURE:
    case FUTURE_LATE:
        if (loss->shift < 1) return;
        *changed = column >= first_changed(kind, columns), *stays = !*changed && !hidden;
        return;
    case ROWS: *changed = row == 0, *stays = row > 0 && !hidden; return;
    case DOCUMENTS:
        if (!marks->document) return;
        *changed = marks->document[i] == 0, *stays = marks->document[i] > 0;
        return;
    case CARRIED:
    case PADDING:
    case N_RELATIONS: return;
    }
}

/* Is that loss of a later micro-batch than the first: of tokens that one line scores, that do not follow from those of
 * the first, and that share no memory with them? */
static bool is_later(const judge *judge, uint32_t number, uint8_t *first)
{
    const lb_moved_run *run = lb_scored_rows_home(&judge->check->run, &judge->scored);
    const lb_program *program = run->program, *own = judge->check->run.program;
    const lb_scored_rows *a = &judge->scored.losses[0], *b = &judge->scored.losses[number];
    const uint32_t from = judge->scored.ids[a->ids].value, to = judge->scored.ids[b->ids].value;
    int64_t begin[2], end[2];
    if (a->ids == b->ids || !own->ops[a->op].line || own->ops[a->op].line != own->ops[b->op].line) return false;
    if (lb_scored_rows_follows(run, first, to)) return false;
    if (program->values[from].storage != program->values[to].storage || run->graph.giver[from] != run->graph.giver[to])
        return true;
    return lb_layout_dense_range(&program->values[from].layout, &begin[0], &end[0], NULL) == LB_OK &&
           lb_layout_dense_range(&program->values[to].layout, &begin[1], &end[1], NULL) == LB_OK &&
           (end[0] <= begin[1] || end[1] <= begin[0]);
}

/* The tokens of the first micro-batch are changed, all later ones stay. */
static bool mark_carried(const judge *judge, const lb_relation_tokens *tokens)
{
    const lb_moved_run *run = lb_scored_rows_home(&judge->check->run, &judge->scored);
    const uint32_t first = judge->scored.losses[0].ids;
    const lb_token_ids *ids = &judge->scored.ids[first];
    uint8_t *behind = calloc((size_t)run->program->n_values + 1, 1);
    bool changes = false, stays = false;
    if (behind) behind[ids->value] = 1, lb_scored_rows_descend(run, behind);
    for (uint32_t k = 1; behind && k < judge->scored.n_losses; k++) {
        const lb_token_ids *later = &judge->scored.ids[judge->scored.losses[k].ids];
        if (!is_later(judge, k, behind)) continue;
        memset(tokens->stays[judge->scored.losses[k].ids], 1, (size_t)(later->rows * later->columns));
        stays = true;
    }
    for (int64_t i = 0; stays && i < ids->rows * ids->columns; i++) {
        tokens->changed[first][i] = ids->ordinary[i];
        changes |= ids->ordinary[i] && ids->spare[i] != ids->tokens[i];
    }
    free(behind);
    return changes && stays;
}

/* False: the relation says nothing about this step. */
static bool mark_tokens(const judge *judge, relation kind, const lb_relation_tokens *tokens)
{
    bool changes = false, stays = false;
    for (uint32_t k = 0; k < judge->scored.n_losses; k++) {
        const lb_scored_rows *loss = &judge->scored.losses[k];
        const lb_token_ids *ids = &judge->scored.ids[loss->ids];
        if (kind == ROWS && ids->rows < 2) continue;
        if (judge->carried && loss->ids != judge->scored.losses[judge->scored.n_losses - 1].ids) continue;
        for (int64_t i = 0; i < ids->rows * ids->columns; i++) {
            uint8_t *changed = &tokens->changed[loss->ids][i], *stay = &tokens->stays[loss->ids][i];
            mark_token(kind, loss, &judge->marks[k], i, ids->columns, changed, stay);
            *changed &= ids->ordinary[i], *stay &= ids->ordinary[i];
            changes |= *changed && ids->spare[i] != ids->tokens[i], stays |= *stay;
        }
    }
    return changes && stays;
}

/* Numbers that count up are positions. */
static bool is_counting(const lb_token_ids *ids)
{
    int64_t steps = 0;
    for (int64_t i = 1; i < ids->rows * ids->columns; i++) steps += ids->tokens[i] == ids->tokens[i - 1] + 1;
    return 2 * steps > ids->rows * ids->columns;
}

/* What a mask hides of one of the step's ids: an encoder's tokens, or those that are scored. */
static bool mark_hidden(const judge *judge, uint32_t number, const lb_relation_tokens *tokens)
{
    const lb_token_ids *ids = &judge->scored.ids[number];
    bool changes = false, stays = false;
    if (!ids->spare || is_counting(ids)) return false;
    for (uint32_t k = 0; k < judge->scored.n_losses; k++) {
        const lb_scored_rows *loss = &judge->scored.losses[k];
        const uint8_t *hidden = judge->marks[k].hidden;
        const lb_token_ids *own = &judge->scored.ids[loss->ids];
        if (!hidden || own->rows != ids->rows || own->columns != ids->columns) continue;
        if (ids->tokens_first != own->tokens_first) continue;
        for (int64_t i = 0; i < ids->rows * ids->columns; i++) {
            tokens->changed[number][i] = hidden[i];
            tokens->stays[loss->ids][i] = loss->ids != number || !hidden[i];
            changes |= hidden[i] && ids->spare[i] != ids->tokens[i], stays |= tokens->stays[loss->ids][i];
        }
    }
    return changes && stays;
}

/* ---- what is said ---- */

static const lb_program *program_of(const judge *judge, const lb_relation_answer *answer)
{
    return answer->place ? answer->place->program : judge->check->run.program;
}

static const char *op_name(const lb_program *program, uint32_t op)
{
    return op == LB_NONE ? "" : lb_op_name(program, &program->ops[op]);
}

/* Does a micro-batch begin with the tokens that the last rows of the first are scored against? Both are then chunks of
 * one stream, whose state is carried on purpose. */
static bool goes_on(const judge *judge, uint32_t number)
{
    const lb_scored_rows *a = &judge->scored.losses[0], *b = &judge->scored.losses[number];
    const lb_token_ids *x = &judge->scored.ids[a->ids], *y = &judge->scored.ids[b->ids];
    if (x->rows != y->rows) return false;
    for (int64_t row = 0; row < x->rows; row++)
        if (a->targets[(row + 1) * a->per_row - 1] != y->tokens[row * y->columns]) return false;
    return true;
}

/* The statistics of a batch are of all its sequences, which the layer's name says. */
static const char *what_is_meant(const judge *judge, relation kind, const lb_relation_answer *answer, uint32_t op)
{
    if (kind == ROWS && strstr(op_name(program_of(judge, answer), op), "batch_norm"))
        return "sequences of the batch meet";
    for (uint32_t k = 1; kind == CARRIED && k <= answer->loss; k++)
        if (judge->scored.losses[k].ids != judge->scored.losses[0].ids)
            return goes_on(judge, k) ? "a micro-batch goes on where the one before it ended, and its state is carried"
                                     : NULL;
    return NULL;
}

static void say(const judge *judge, relation kind, const lb_relation_answer *answer, char *text, size_t size)
{
    const lb_scored_rows *loss = &judge->scored.losses[answer->loss];
    const lb_token_ids *ids = &judge->scored.ids[loss->ids];
    int64_t sequence, column;
    lb_scored_rows_token(loss, answer->row, &sequence, &column);
    char what[160];
    if (kind == FUTURE || kind == FUTURE_LATE)
        snprintf(what, sizeof what, "tokens %lld to %lld were replaced, and it is scored against token %lld",
                 (long long)first_changed(kind, ids->columns), (long long)ids->columns - 1,
                 (long long)(column + loss->shift));
    else
        snprintf(what, sizeof what, "%s",
                 kind == CARRIED     ? "the tokens of the first micro-batch were replaced"
                 : kind == ROWS      ? "the tokens of sequence 0 were replaced"
                 : kind == DOCUMENTS ? "the tokens of the first document were replaced"
                                     : "tokens that the mask hides were replaced");
    snprintf(text, size,
             "the scores of token %lld in sequence %lld%s change by %.2g of their size when %s; so do %u of %u rows",
             (long long)column, (long long)sequence, kind == CARRIED ? " of a later one" : "", answer->largest, what,
             answer->broken, answer->compared);
}

static lb_check_finding *found_at(const lb_check_report *report, const lb_program *program, uint32_t op)
{
    for (uint32_t i = 0; i < report->n_findings; i++)
        if (report->findings[i].index == op && report->findings[i].rank == program->rank) return &report->findings[i];
    return NULL;
}

static bool find(const judge *judge, relation kind, const lb_relation_answer *answer)
{
    static const lb_check_kind kinds[] = {LB_CHECK_CARRIED, LB_CHECK_FUTURE,    LB_CHECK_FUTURE,
                                          LB_CHECK_ROWS,    LB_CHECK_DOCUMENTS, LB_CHECK_PADDING};
    lb_check_step *step = judge->check;
    const lb_program *program = program_of(judge, answer);
    char text[400];
    say(judge, kind, answer, text, sizeof text);
    const uint32_t op = answer->op == LB_NONE ? judge->scored.losses[answer->loss].op : answer->op;
    const char *meant = what_is_meant(judge, kind, answer, op);
    if (meant)
        return lb_proof_list_prove(step->report, "step %lld: %s in %s (%s), as it is meant to",
                                   (long long)program->step, meant, op_name(program, op),
                                   lb_op_layer(program, &program->ops[op]));
    lb_check_finding *finding = found_at(step->report, program, op);
    if (finding) { /* one cause */
        const size_t used = strlen(finding->message);
        snprintf(finding->message + used, sizeof finding->message - used, "; %s: %s", lb_check_kind_name(kinds[kind]),
                 text);
        return true;
    }
    finding = lb_proof_list_add(step->report, kinds[kind], program);
    if (!finding) return false;
    lb_proof_list_place(finding, program, op, LB_NONE, step->path);
    finding->effect = answer->largest;
    snprintf(finding->message, sizeof finding->message, "%s", text);
    return true;
}

static bool prove(const judge *judge, relation kind, const lb_relation_answer *answer)
{
    static const char *const texts[] = {"micro-batches do not depend on the first, and may come in any order",
                                        "no row of scores depends on a later token",
                                        NULL,
                                        "sequences of the batch do not meet",
                                        "packed documents do not meet",
                                        "tokens that the attention mask hides change nothing"};
    if (!texts[kind]) return true;
    return lb_proof_list_prove(judge->check->report, "step %lld: %s (%u rows compared%s)",
                               (long long)judge->check->run.program->step, texts[kind], answer->compared,
                               judge->holds ? ", decisions as recorded" : "");
}

static bool leave(const judge *judge, const char *what, const char *why)
{
    return lb_proof_list_leave(judge->check->report, what, "%s", why);
}

/* ---- one relation ---- */

static lb_status say_answer(judge *judge, relation kind, const lb_relation_answer *answer, bool *broken, lb_err *err)
{
    static const char *const names[] = {"whether micro-batches meet",    "whether later tokens are seen",
                                        "whether later tokens are seen", "whether sequences meet",
                                        "whether documents meet",        "whether padding is seen"};
    bool said = true;
    if (answer->unseen)
        judge->unseen = true;
    else if (answer->broken)
        *broken = true, said = find(judge, kind, answer);
    else if (answer->compared && (answer->moved || kind == PADDING))
        said = prove(judge, kind, answer);
    else if (kind != FUTURE_LATE)
        said = leave(judge, names[kind], "other tokens changed no scores at all");
    return said ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
}

/* Of several ids of one shape (an encoder's and a decoder's) a mask hides one: that whose hidden tokens change
 * nothing. */
static lb_status try_padding(judge *judge, lb_relation_run *run, lb_relation_answer *answer, bool *tried, lb_err *err)
{
    lb_status status = LB_OK;
    run->holds_whole = true;
    for (uint32_t i = 0; i < judge->scored.n_ids && status == LB_OK; i++) {
        lb_relation_tokens tokens = {0};
        lb_relation_answer a = {0};
        if (!lb_relation_run_tokens(&judge->scored, &tokens))
            status = lb_fail(err, LB_ERR_NOMEM, "out of memory for tokens");
        const bool says = status == LB_OK && mark_hidden(judge, i, &tokens);
        if (says) status = lb_relation_run_try(run, &tokens, &a, err);
        if (says && (!*tried || !a.broken)) *answer = a, *tried = true;
        lb_relation_run_release_tokens(&judge->scored, &tokens);
        if (says && !a.broken) break;
    }
    run->holds_whole = false;
    return status;
}

static lb_status try_relation(judge *judge, lb_relation_run *run, relation kind, bool *broken, lb_err *err)
{
    lb_relation_tokens tokens = {0};
    lb_relation_answer answer = {0};
    bool tried = false;
    lb_status status = LB_OK;
    *broken = false;
    if (!lb_relation_run_tokens(&judge->scored, &tokens))
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for tokens");
    if (status == LB_OK && kind == PADDING)
        status = try_padding(judge, run, &answer, &tried, err);
    else if (status == LB_OK &&
             (tried = kind == CARRIED ? mark_carried(judge, &tokens) : mark_tokens(judge, kind, &tokens)))
        status = lb_relation_run_try(run, &tokens, &answer, err);
    lb_relation_run_release_tokens(&judge->scored, &tokens);
    /* Where choices made anew are of another number replay goes on from what was recorded, which no token changes. */
    answer.unseen |= tried && run->chose && !run->holds && !answer.moved && kind != PADDING;
    return status == LB_OK && tried ? say_answer(judge, kind, &answer, broken, err) : status;
}

/* ---- all of it ---- */

static lb_status try_all(judge *judge, lb_err *err)
{
    lb_relation_run run;
    bool broken = false;
    judge->unseen = judge->carried = false;
    lb_status status = lb_relation_run_open(&judge->check->run, &judge->scored, judge->holds, &run, err);
    for (uint32_t i = 0; i < judge->scored.n_losses && status == LB_OK; i++) judge->unseen |= !run.scores[i];
    for (int kind = 0; kind < N_RELATIONS && status == LB_OK && !judge->unseen; kind++) {
        if (kind == FUTURE_LATE && broken) continue; /* it was said */
        if (kind == PADDING && judge->carried) continue;
        status = try_relation(judge, &run, (relation)kind, &broken, err);
        judge->carried |= kind == CARRIED && broken;
    }
    judge->chose = run.chose;
    lb_relation_run_close(&run);
    return status;
}

/* Tokens met where decisions were made anew, and do not where they are those that were recorded. A choice of tokens by
 * experts, or their capacity, does that; so does a program that reads its decisions (sizes of experts, as a list of
 * Python's) and would have run other ops. Which of them it is no replay knows. */
static bool say_chosen(const judge *judge, const lb_check_finding *met)
{
    return lb_proof_list_prove(judge->check->report,
                               "step %lld: with decisions made anew tokens meet (%s at %s in %s), "
                               "and with those that were recorded they do not: choices see other tokens, "
                               "or the program would have gone another way",
                               (long long)judge->check->run.program->step, lb_check_kind_name(met->kind), met->op,
                               met->layer);
}

static lb_status judge_step(judge *judge, lb_err *err)
{
    lb_check_step *step = judge->check;
    bool said = true;
    for (uint32_t i = 0; i < judge->scored.n_losses; i++) {
        lb_token_marks *marks = &judge->marks[i];
        LB_TRY(lb_token_marks_find(&step->run, &judge->scored, i, marks, err));
        if (!judge->scored.home || marks->hidden || marks->document) continue;
        lb_token_marks_release(marks); /* the rank that looks the tokens up may have been told more of them */
        LB_TRY(lb_token_marks_find(judge->scored.home, &judge->scored, i, marks, err));
    }
    said &=
        lb_scored_labels_judge(step, &judge->scored) && lb_first_positions_judge(step, &judge->scored, judge->marks);
    const uint32_t proven = step->report->n_proven, found = step->report->n_findings, left = step->report->n_unjudged;
    judge->holds = false;
    LB_TRY(try_all(judge, err));
    const bool meets = !judge->unseen && judge->chose && step->report->n_findings > found;
    if (judge->unseen || meets) {
        const lb_check_finding met = meets ? step->report->findings[found] : (lb_check_finding){0};
        step->report->n_proven = proven, step->report->n_unjudged = left, lb_proof_list_cut(step->report, found);
        judge->holds = true;
        LB_TRY(try_all(judge, err));
        if (meets && !judge->unseen && step->report->n_findings == found) said &= say_chosen(judge, &met);
    }
    if (judge->unseen)
        said &= leave(judge, "relations between tokens",
                      "the scores have no exact numbers when tokens change: an op before them is not known to replay, "
                      "or the program would have gone another way");
    return said ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
}

lb_status lb_check_step_scores(lb_check_step *step, bool *scores, lb_err *err)
{
    lb_scored_step scored = {0};
    const lb_status status = lb_scored_rows_find(&step->run, &scored, err);
    *scores = status == LB_OK && scored.n_losses;
    lb_scored_rows_release(&scored);
    return status;
}

lb_status lb_check_step_relations(lb_check_step *step, bool *judged, lb_err *err)
{
    judge judge = {.check = step};
    lb_status status = lb_scored_rows_find(&step->run, &judge.scored, err);
    if (status == LB_OK && judge.scored.waits &&
        !leave(&judge, "relations between tokens", "its losses lie behind collectives"))
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    if (status == LB_OK && judge.scored.apart &&
        !lb_proof_list_pass(step->report, "relations between tokens",
                            "its losses score tokens that another rank looks up, "
                            "and no recorded rank that runs together with it has them"))
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    *judged = status == LB_OK && judge.scored.n_losses;
    if (*judged) {
        judge.marks = calloc(judge.scored.n_losses, sizeof *judge.marks);
        status = judge.marks ? judge_step(&judge, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory for marks");
    }
    for (uint32_t i = 0; judge.marks && i < judge.scored.n_losses; i++) lb_token_marks_release(&judge.marks[i]);
    free(judge.marks);
    lb_scored_rows_release(&judge.scored);
    return status;
}
