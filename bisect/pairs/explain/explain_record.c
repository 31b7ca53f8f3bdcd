/* Findings as records: see explain_session.h. A field that is added to the report is added here. */
#include "explain/explain_session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct both {
    lb_part_record *r;
    lb_explain_report *keeper;
} both;

/* Texts of a report are never NULL. */
static void text_both(const both *both, const char **text)
{
    lb_part_record_text(both->r, text);
    if (both->r->reading) *text = *text ? lb_explain_findings_keep(both->keeper, *text) : "";
}

/* A text that its row owns. */
static void own_text_both(const both *both, char **text)
{
    const char *there = *text;
    lb_part_record_text(both->r, &there);
    if (!both->r->reading) return;
    *text = strdup(there ? there : "");
    if (!*text && both->r->status == LB_OK)
        both->r->status = lb_fail(both->r->cursor.err, LB_ERR_NOMEM, "out of memory");
}

static void phase_both(const both *both, lb_phase *phase)
{
    uint32_t word = *phase;
    lb_part_record_word(both->r, &word, LB_PHASE_OTHER);
    *phase = (lb_phase)word;
}

static void cause_both(const both *both, lb_cause *cause)
{
    uint32_t word = *cause;
    lb_part_record_word(both->r, &word, LB_CAUSE_UNEXPLAINED);
    *cause = (lb_cause)word;
}

/* Room for the rows where they are read, then each of them. */
#define ROWS(x, rows, n, each)                                                                                         \
    do {                                                                                                               \
        (rows) = lb_part_record_rows((x)->r, (rows), &(n), sizeof *(rows));                                            \
        for (uint32_t i_ = 0; i_ < (n); i_++) each((x), &(rows)[i_]);                                                  \
    } while (0)

/* ---- findings ---------------------------------------------------------------------------------------------------- */

static void line_both(const both *both, lb_code_line *line)
{
    lb_part_record_u32(both->r, &line->number);
    text_both(both, &line->file), text_both(both, &line->function), text_both(both, &line->text);
}

static void swaps_both(const both *both, lb_swap *swaps, uint32_t *n, uint32_t most)
{
    lb_part_record_word(both->r, n, most);
    for (uint32_t i = 0; i < *n; i++) {
        uint32_t kind = swaps[i].kind;
        lb_part_record_word(both->r, &kind, LB_SWAP_FUSE);
        swaps[i].kind = (lb_swap_kind)kind;
        text_both(both, &swaps[i].selector), text_both(both, &swaps[i].argument);
    }
}

static void finding_both(const both *both, lb_explain_finding *finding)
{
    uint32_t proof = finding->proof;
    lb_part_record_i64(both->r, &finding->step), lb_part_record_i32(both->r, &finding->rank),
        phase_both(both, &finding->phase);
    text_both(both, &finding->layer), text_both(both, &finding->op), text_both(both, &finding->other_op);
    lb_part_record_u32(both->r, &finding->index), lb_part_record_u32(both->r, &finding->other),
        cause_both(both, &finding->cause);
    text_both(both, &finding->schedule), text_both(both, &finding->first),
        lb_part_record_bool(both->r, &finding->reversed);
    lb_part_record_i64(both->r, &finding->matched), lb_part_record_i64(both->r, &finding->elements);
    lb_part_record_u32(both->r, &finding->tried), lb_part_record_u32(both->r, &finding->excluded),
        text_both(both, &finding->also);
    lb_part_record_word(both->r, &proof, LB_PROOF_EXACT);
    finding->proof = (lb_proof)proof;
    text_both(both, &finding->why), lb_part_record_f64(both->r, &finding->local),
        lb_part_record_f64(both->r, &finding->total);
    swaps_both(both, finding->swaps, &finding->n_swaps, sizeof finding->swaps / sizeof *finding->swaps);
    swaps_both(both, finding->own, &finding->n_own, sizeof finding->own / sizeof *finding->own);
    line_both(both, &finding->lines[0]), line_both(both, &finding->lines[1]);
}

static void layer_both(const both *both, lb_explain_layer *layer)
{
    lb_part_record_i64(both->r, &layer->step), lb_part_record_i32(both->r, &layer->rank),
        phase_both(both, &layer->phase);
    text_both(both, &layer->layer), lb_part_record_u32(both->r, &layer->own),
        lb_part_record_u32(both->r, &layer->inherited);
    lb_part_record_f64(both->r, &layer->local), lb_part_record_f64(both->r, &layer->total);
}

static void sentence_both(const both *both, char **text)
{
    const char *there = *text;
    text_both(both, &there);
    *text = (char *)(uintptr_t)there;
}

/* ---- batches of different sizes ---------------------------------------------------------------------------------- */

static void rows_both(const both *both, lb_explain_rows *rows)
{
    uint32_t n = rows->n;
    lb_part_record_i64(both->r, &rows->step), lb_part_record_i32(both->r, &rows->rank);
    lb_part_record_i64(both->r, &rows->first), lb_part_record_i64(both->r, &rows->second), text_both(both, &rows->by);
    rows->of_first = lb_part_record_rows(both->r, rows->of_first, &rows->n, sizeof *rows->of_first);
    for (uint32_t i = 0; i < rows->n; i++) lb_part_record_i64(both->r, &rows->of_first[i]);
    rows->of_second = lb_part_record_rows(both->r, rows->of_second, &n, sizeof *rows->of_second);
    for (uint32_t i = 0; i < n; i++) lb_part_record_i64(both->r, &rows->of_second[i]);
    if (both->r->reading && n != rows->n) {
        if (both->r->status == LB_OK)
            both->r->status =
                lb_cursor_fail(&both->r->cursor, "rows", "%u rows of one side and %u of the other", rows->n, n);
        rows->n = 0;
    }
    lb_part_record_u32(both->r, &rows->over_others);
}

/* ---- routing ----------------------------------------------------------------------------------------------------- */

static void routing_end_both(const both *both, lb_routing_step_end *end)
{
    lb_part_record_i64(both->r, &end->step), lb_part_record_i32(both->r, &end->rank), own_text_both(both, &end->output);
    for (int m = 0; m < LB_ROUTING_MODES; m++)
        lb_part_record_f64(both->r, &end->gaps[m].output), lb_part_record_f64(both->r, &end->gaps[m].loss);
}

static void routing_layer_both(const both *both, lb_routing_layer *layer)
{
    lb_part_record_i64(both->r, &layer->step), lb_part_record_i32(both->r, &layer->rank),
        lb_part_record_u32(both->r, &layer->call);
    own_text_both(both, &layer->layer);
    int64_t *const counts[] = {
        &layer->tokens,   &layer->choices,   &layer->flips, &layer->near_ties, &layer->router_differences,
        &layer->unjudged, &layer->recomputed};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) lb_part_record_i64(both->r, counts[i]);
    lb_part_record_f64(both->r, &layer->largest_margin), lb_part_record_f64(both->r, &layer->largest_upstream);
}

static void routing_flip_both(const both *both, lb_routing_flip *flip)
{
    uint32_t kind = flip->kind;
    lb_part_record_u32(both->r, &flip->layer), lb_part_record_word(both->r, &kind, LB_FLIP_UNJUDGED);
    flip->kind = (lb_flip_kind)kind;
    lb_part_record_i64(both->r, &flip->token), lb_part_record_i64(both->r, &flip->lost),
        lb_part_record_i64(both->r, &flip->won);
    lb_part_record_f64(both->r, &flip->margin), lb_part_record_f64(both->r, &flip->upstream);
    lb_part_record_f64(both->r, &flip->rounding);
}

static void routing_both(const both *both, lb_routing_report *report)
{
    const char *at = report->undecided_at;
    ROWS(both, report->endings, report->n_endings, routing_end_both);
    ROWS(both, report->layers, report->n_layers, routing_layer_both);
    ROWS(both, report->flips, report->n_flips, routing_flip_both);
    for (int m = 0; m < LB_ROUTING_MODES; m++) lb_part_record_bool(both->r, &report->undecided[m]);
    lb_part_record_text(both->r, &at), lb_part_record_bool(both->r, &report->against);
    if (!both->r->reading) return;
    snprintf(report->undecided_at, sizeof report->undecided_at, "%s", at ? at : "");
    for (uint32_t i = 0; i < report->n_flips && both->r->status == LB_OK; i++)
        if (report->flips[i].layer >= report->n_layers)
            both->r->status =
                lb_cursor_fail(&both->r->cursor, "routing", "layer %u of %u", report->flips[i].layer, report->n_layers);
}

/* ---- budgets ----------------------------------------------------------------------------------------------------- */

static void share_both(const both *both, lb_explain_share *share)
{
    cause_both(both, &share->cause), text_both(both, &share->schedule), text_both(both, &share->layer);
    lb_part_record_u32(both->r, &share->places), lb_part_record_f64(both->r, &share->share),
        lb_part_record_f64(both->r, &share->size);
}

static void budget_both(const both *both, lb_explain_budget *budget)
{
    lb_part_record_i64(both->r, &budget->step), lb_part_record_i32(both->r, &budget->rank),
        text_both(both, &budget->output);
    lb_part_record_i64(both->r, &budget->elements), lb_part_record_i64(both->r, &budget->differing);
    lb_part_record_f64(both->r, &budget->gap);
    ROWS(both, budget->rows, budget->n_rows, share_both);
    lb_part_record_f64(both->r, &budget->together), lb_part_record_u32(both->r, &budget->left_out),
        text_both(both, &budget->left);
}

void lb_explain_record_budgets(lb_part_record *record, lb_explain_report *report, lb_explain_report *keeper)
{
    const both here = {record, keeper}, *x = &here;
    ROWS(x, report->budgets, report->n_budgets, budget_both);
}

static void numbers_both(const both *both, double **numbers, int64_t n)
{
    const void *bytes = *numbers;
    size_t size = (size_t)n * sizeof **numbers;
    lb_part_record_bytes(both->r, &bytes, &size);
    if (!both->r->reading) return;
    *numbers = NULL;
    if (both->r->status == LB_OK && (n < 0 || (uint64_t)n > SIZE_MAX / 16 || size != (size_t)n * sizeof **numbers))
        both->r->status = lb_cursor_fail(&both->r->cursor, "budget", "%zu bytes of %lld numbers", size, (long long)n);
    if (both->r->status != LB_OK) return;
    if ((*numbers = malloc(size + 1)))
        memcpy(*numbers, bytes, size);
    else
        both->r->status = lb_fail(both->r->cursor.err, LB_ERR_NOMEM, "out of memory for the budget");
}

/* What its replays give is written over. */
static void step_end_both(const both *both, lb_gap_step_end *end)
{
    lb_part_record_i64(both->r, &end->step), lb_part_record_i32(both->r, &end->rank),
        lb_part_record_i64(both->r, &end->n);
    lb_part_record_u32(both->r, &end->value), lb_part_record_u32(both->r, &end->maker), text_both(both, &end->layer);
    numbers_both(both, &end->a, end->n), numbers_both(both, &end->b, end->n);
    if (!both->r->reading || both->r->status != LB_OK) return;
    end->base = malloc((size_t)end->n * sizeof *end->base + 1),
    end->moved = malloc((size_t)end->n * sizeof *end->moved + 1);
    if (!end->base || !end->moved)
        both->r->status = lb_fail(both->r->cursor.err, LB_ERR_NOMEM, "out of memory for the budget");
}

/* ---- all of a unit ----------------------------------------------------------------------------------------------- */

void lb_explain_record_session(lb_part_record *record, lb_explain_session *session, lb_explain_report *keeper)
{
    const both here = {record, keeper}, *x = &here;
    lb_explain_report *report = session->report;
    lb_part_record_u64(record, &session->shared), lb_part_record_u32(record, &session->absent);
    lb_part_record_u64(record, &session->chosen), lb_part_record_bool(record, &session->settled);
    ROWS(x, report->findings, report->n_findings, finding_both);
    ROWS(x, report->layers, report->n_layers, layer_both);
    ROWS(x, report->routings, report->n_routings, routing_both);
    ROWS(x, report->rows, report->n_rows, rows_both);
    ROWS(x, report->missing, report->n_missing, sentence_both);
    ROWS(x, report->notes, report->n_notes, sentence_both);
    lb_part_record_bool(record, &report->turned);
    lb_part_record_u64(record, &report->cost.runs), lb_part_record_u64(record, &report->cost.ops);
    lb_part_record_u64(record, &report->ops), lb_part_record_u64(record, &report->differing);
    ROWS(x, session->endings, session->n_endings, step_end_both);
}
