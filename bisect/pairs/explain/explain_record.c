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
static void text_both(const both *x, const char **text)
{
    lb_part_record_text(x->r, text);
    if (x->r->reading) *text = *text ? lb_explain_findings_keep(x->keeper, *text) : "";
}

/* A text that its row owns. */
static void own_text_both(const both *x, char **text)
{
    const char *there = *text;
    lb_part_record_text(x->r, &there);
    if (!x->r->reading) return;
    *text = strdup(there ? there : "");
    if (!*text && x->r->status == LB_OK) x->r->status = lb_fail(x->r->cursor.err, LB_ERR_NOMEM, "out of memory");
}

static void phase_both(const both *x, lb_phase *phase)
{
    uint32_t word = *phase;
    lb_part_record_word(x->r, &word, LB_PHASE_OTHER);
    *phase = (lb_phase)word;
}

static void cause_both(const both *x, lb_cause *cause)
{
    uint32_t word = *cause;
    lb_part_record_word(x->r, &word, LB_CAUSE_UNEXPLAINED);
    *cause = (lb_cause)word;
}

/* Room for the rows where they are read, then each of them. */
#define ROWS(x, rows, n, each)                                                                                         \
    do {                                                                                                               \
        (rows) = lb_part_record_rows((x)->r, (rows), &(n), sizeof *(rows));                                            \
        for (uint32_t i_ = 0; i_ < (n); i_++) each((x), &(rows)[i_]);                                                  \
    } while (0)

/* ---- findings ---------------------------------------------------------------------------------------------------- */

static void line_both(const both *x, lb_code_line *line)
{
    lb_part_record_u32(x->r, &line->number);
    text_both(x, &line->file), text_both(x, &line->function), text_both(x, &line->text);
}

static void swaps_both(const both *x, lb_swap *swaps, uint32_t *n, uint32_t most)
{
    lb_part_record_word(x->r, n, most);
    for (uint32_t i = 0; i < *n; i++) {
        uint32_t kind = swaps[i].kind;
        lb_part_record_word(x->r, &kind, LB_SWAP_FUSE);
        swaps[i].kind = (lb_swap_kind)kind;
        text_both(x, &swaps[i].selector), text_both(x, &swaps[i].argument);
    }
}

static void finding_both(const both *x, lb_explain_finding *f)
{
    uint32_t proof = f->proof;
    lb_part_record_i64(x->r, &f->step), lb_part_record_i32(x->r, &f->rank), phase_both(x, &f->phase);
    text_both(x, &f->layer), text_both(x, &f->op), text_both(x, &f->other_op);
    lb_part_record_u32(x->r, &f->index), lb_part_record_u32(x->r, &f->other), cause_both(x, &f->cause);
    text_both(x, &f->schedule), text_both(x, &f->first), lb_part_record_bool(x->r, &f->reversed);
    lb_part_record_i64(x->r, &f->matched), lb_part_record_i64(x->r, &f->elements);
    lb_part_record_u32(x->r, &f->tried), lb_part_record_u32(x->r, &f->excluded), text_both(x, &f->also);
    lb_part_record_word(x->r, &proof, LB_PROOF_EXACT);
    f->proof = (lb_proof)proof;
    text_both(x, &f->why), lb_part_record_f64(x->r, &f->local), lb_part_record_f64(x->r, &f->total);
    swaps_both(x, f->swaps, &f->n_swaps, sizeof f->swaps / sizeof *f->swaps);
    swaps_both(x, f->own, &f->n_own, sizeof f->own / sizeof *f->own);
    line_both(x, &f->lines[0]), line_both(x, &f->lines[1]);
}

static void layer_both(const both *x, lb_explain_layer *l)
{
    lb_part_record_i64(x->r, &l->step), lb_part_record_i32(x->r, &l->rank), phase_both(x, &l->phase);
    text_both(x, &l->layer), lb_part_record_u32(x->r, &l->own), lb_part_record_u32(x->r, &l->inherited);
    lb_part_record_f64(x->r, &l->local), lb_part_record_f64(x->r, &l->total);
}

static void sentence_both(const both *x, char **text)
{
    const char *there = *text;
    text_both(x, &there);
    *text = (char *)(uintptr_t)there;
}

/* ---- batches of different sizes ---------------------------------------------------------------------------------- */

static void rows_both(const both *x, lb_explain_rows *b)
{
    uint32_t n = b->n;
    lb_part_record_i64(x->r, &b->step), lb_part_record_i32(x->r, &b->rank);
    lb_part_record_i64(x->r, &b->first), lb_part_record_i64(x->r, &b->second), text_both(x, &b->by);
    b->of_first = lb_part_record_rows(x->r, b->of_first, &b->n, sizeof *b->of_first);
    for (uint32_t i = 0; i < b->n; i++) lb_part_record_i64(x->r, &b->of_first[i]);
    b->of_second = lb_part_record_rows(x->r, b->of_second, &n, sizeof *b->of_second);
    for (uint32_t i = 0; i < n; i++) lb_part_record_i64(x->r, &b->of_second[i]);
    if (x->r->reading && n != b->n) {
        if (x->r->status == LB_OK)
            x->r->status = lb_cursor_fail(&x->r->cursor, "rows", "%u rows of one side and %u of the other", b->n, n);
        b->n = 0;
    }
    lb_part_record_u32(x->r, &b->over_others);
}

/* ---- routing ----------------------------------------------------------------------------------------------------- */

static void routing_end_both(const both *x, lb_routing_step_end *e)
{
    lb_part_record_i64(x->r, &e->step), lb_part_record_i32(x->r, &e->rank), own_text_both(x, &e->output);
    for (int m = 0; m < LB_ROUTING_MODES; m++)
        lb_part_record_f64(x->r, &e->gaps[m].output), lb_part_record_f64(x->r, &e->gaps[m].loss);
}

static void routing_layer_both(const both *x, lb_routing_layer *l)
{
    lb_part_record_i64(x->r, &l->step), lb_part_record_i32(x->r, &l->rank), lb_part_record_u32(x->r, &l->call);
    own_text_both(x, &l->layer);
    int64_t *const counts[] = {&l->tokens,   &l->choices,   &l->flips, &l->near_ties, &l->router_differences,
                               &l->unjudged, &l->recomputed};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) lb_part_record_i64(x->r, counts[i]);
    lb_part_record_f64(x->r, &l->largest_margin), lb_part_record_f64(x->r, &l->largest_upstream);
}

static void routing_flip_both(const both *x, lb_routing_flip *f)
{
    uint32_t kind = f->kind;
    lb_part_record_u32(x->r, &f->layer), lb_part_record_word(x->r, &kind, LB_FLIP_UNJUDGED);
    f->kind = (lb_flip_kind)kind;
    lb_part_record_i64(x->r, &f->token), lb_part_record_i64(x->r, &f->lost), lb_part_record_i64(x->r, &f->won);
    lb_part_record_f64(x->r, &f->margin), lb_part_record_f64(x->r, &f->upstream);
    lb_part_record_f64(x->r, &f->rounding);
}

static void routing_both(const both *x, lb_routing_report *t)
{
    const char *at = t->undecided_at;
    ROWS(x, t->endings, t->n_endings, routing_end_both);
    ROWS(x, t->layers, t->n_layers, routing_layer_both);
    ROWS(x, t->flips, t->n_flips, routing_flip_both);
    for (int m = 0; m < LB_ROUTING_MODES; m++) lb_part_record_bool(x->r, &t->undecided[m]);
    lb_part_record_text(x->r, &at), lb_part_record_bool(x->r, &t->against);
    if (!x->r->reading) return;
    snprintf(t->undecided_at, sizeof t->undecided_at, "%s", at ? at : "");
    for (uint32_t i = 0; i < t->n_flips && x->r->status == LB_OK; i++)
        if (t->flips[i].layer >= t->n_layers)
            x->r->status = lb_cursor_fail(&x->r->cursor, "routing", "layer %u of %u", t->flips[i].layer, t->n_layers);
}

/* ---- budgets ----------------------------------------------------------------------------------------------------- */

static void share_both(const both *x, lb_explain_share *s)
{
    cause_both(x, &s->cause), text_both(x, &s->schedule), text_both(x, &s->layer);
    lb_part_record_u32(x->r, &s->places), lb_part_record_f64(x->r, &s->share), lb_part_record_f64(x->r, &s->size);
}

static void budget_both(const both *x, lb_explain_budget *b)
{
    lb_part_record_i64(x->r, &b->step), lb_part_record_i32(x->r, &b->rank), text_both(x, &b->output);
    lb_part_record_i64(x->r, &b->elements), lb_part_record_i64(x->r, &b->differing);
    lb_part_record_f64(x->r, &b->gap);
    ROWS(x, b->rows, b->n_rows, share_both);
    lb_part_record_f64(x->r, &b->together), lb_part_record_u32(x->r, &b->left_out), text_both(x, &b->left);
}

void lb_explain_record_budgets(lb_part_record *record, lb_explain_report *report, lb_explain_report *keeper)
{
    const both here = {record, keeper}, *x = &here;
    ROWS(x, report->budgets, report->n_budgets, budget_both);
}

static void numbers_both(const both *x, double **numbers, int64_t n)
{
    const void *bytes = *numbers;
    size_t size = (size_t)n * sizeof **numbers;
    lb_part_record_bytes(x->r, &bytes, &size);
    if (!x->r->reading) return;
    *numbers = NULL;
    if (x->r->status == LB_OK && (n < 0 || (uint64_t)n > SIZE_MAX / 16 || size != (size_t)n * sizeof **numbers))
        x->r->status = lb_cursor_fail(&x->r->cursor, "budget", "%zu bytes of %lld numbers", size, (long long)n);
    if (x->r->status != LB_OK) return;
    if ((*numbers = malloc(size + 1)))
        memcpy(*numbers, bytes, size);
    else
        x->r->status = lb_fail(x->r->cursor.err, LB_ERR_NOMEM, "out of memory for the budget");
}

/* What its replays give is written over. */
static void step_end_both(const both *x, lb_gap_step_end *e)
{
    lb_part_record_i64(x->r, &e->step), lb_part_record_i32(x->r, &e->rank), lb_part_record_i64(x->r, &e->n);
    lb_part_record_u32(x->r, &e->value), lb_part_record_u32(x->r, &e->maker), text_both(x, &e->layer);
    numbers_both(x, &e->a, e->n), numbers_both(x, &e->b, e->n);
    if (!x->r->reading || x->r->status != LB_OK) return;
    e->base = malloc((size_t)e->n * sizeof *e->base + 1), e->moved = malloc((size_t)e->n * sizeof *e->moved + 1);
    if (!e->base || !e->moved) x->r->status = lb_fail(x->r->cursor.err, LB_ERR_NOMEM, "out of memory for the budget");
}

/* ---- all of a unit ----------------------------------------------------------------------------------------------- */

void lb_explain_record_session(lb_part_record *record, lb_explain_session *session, lb_explain_report *keeper)
{
    const both here = {record, keeper}, *x = &here;
    lb_explain_report *r = session->report;
    lb_part_record_u64(record, &session->shared), lb_part_record_u32(record, &session->absent);
    lb_part_record_u64(record, &session->chosen), lb_part_record_bool(record, &session->settled);
    ROWS(x, r->findings, r->n_findings, finding_both);
    ROWS(x, r->layers, r->n_layers, layer_both);
    ROWS(x, r->routings, r->n_routings, routing_both);
    ROWS(x, r->rows, r->n_rows, rows_both);
    ROWS(x, r->missing, r->n_missing, sentence_both);
    ROWS(x, r->notes, r->n_notes, sentence_both);
    lb_part_record_bool(record, &r->turned);
    lb_part_record_u64(record, &r->cost.runs), lb_part_record_u64(record, &r->cost.ops);
    lb_part_record_u64(record, &r->ops), lb_part_record_u64(record, &r->differing);
    ROWS(x, session->endings, session->n_endings, step_end_both);
}
