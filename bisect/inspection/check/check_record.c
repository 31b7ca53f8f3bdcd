/* What a unit of work has found, as a record: see proof_list.h and update_log.h. A field that is added to the report is
 * added here. */
#include "check/proof_list.h"
#include "check/update_log.h"

#include <stdio.h>
#include <string.h>

/* A text in an array of the row's own. */
static void array_both(lb_part_record *r, char *text, size_t room)
{
    const char *there = text;
    lb_part_record_text(r, &there);
    if (r->reading) snprintf(text, room, "%s", there ? there : "");
}

#define ARRAY(r, array) array_both((r), (array), sizeof(array))

/* Numbers that are counted never come near this; sums of two of them are numbers, whoever wrote them. */
static void count_both(lb_part_record *r, int64_t *count)
{
    static const int64_t MOST = INT64_C(1) << 56;
    lb_part_record_i64(r, count);
    if (!r->reading || (*count >= 0 && *count <= MOST)) return;
    if (r->status == LB_OK) r->status = lb_cursor_fail(&r->cursor, "count", "%lld", (long long)*count);
    *count = 0;
}

/* The name of a phase, or "". */
static void phase_both(lb_part_record *r, const char **phase)
{
    enum { NONE = LB_PHASE_OTHER + 1 };
    uint32_t word = NONE;
    for (uint32_t i = 0; i < NONE && !r->reading; i++)
        if (strcmp(*phase, lb_phase_name((lb_phase)i)) == 0) word = i;
    lb_part_record_word(r, &word, NONE);
    if (r->reading) *phase = word < NONE ? lb_phase_name((lb_phase)word) : "";
}

static void dtype_both(lb_part_record *r, lb_dtype *dtype)
{
    uint32_t word = *dtype;
    lb_part_record_word(r, &word, LB_DTYPE_COUNT - 1);
    *dtype = (lb_dtype)word;
}

/* What is read is the report's, as a copy is. */
static void line_both(lb_part_record *r, lb_code_line *line)
{
    lb_code_line there = *line;
    lb_part_record_u32(r, &there.number);
    lb_part_record_text(r, &there.file), lb_part_record_text(r, &there.function), lb_part_record_text(r, &there.text);
    if (!r->reading) return;
    const bool whole = r->status == LB_OK && there.file && there.function && there.text;
    *line = whole ? lb_code_line_copy(&there) : (lb_code_line){0, "", "", ""};
}

static void finding_both(lb_part_record *r, lb_check_finding *f)
{
    uint32_t kind = f->kind;
    lb_part_record_word(r, &kind, LB_CHECK_UNDERFLOW);
    f->kind = (lb_check_kind)kind;
    lb_part_record_i64(r, &f->step), lb_part_record_i32(r, &f->rank), phase_both(r, &f->phase);
    ARRAY(r, f->layer), ARRAY(r, f->op), ARRAY(r, f->forward);
    lb_part_record_u32(r, &f->index), line_both(r, &f->line), line_both(r, &f->of_forward);
    lb_part_record_f64(r, &f->factor), lb_part_record_f64(r, &f->effect);
    ARRAY(r, f->message), ARRAY(r, f->command);
}

static void effect_both(lb_part_record *r, lb_check_effect *e)
{
    double *const numbers[] = {&e->loss, &e->logits, &e->largest_logit, &e->gradients, &e->reached};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) lb_part_record_f64(r, numbers[i]);
}

static void digit_both(lb_part_record *r, lb_check_digit *d)
{
    uint32_t kind = d->kind;
    lb_part_record_word(r, &kind, LB_CHECK_DIGIT_ROUTER);
    d->kind = (lb_check_digit_kind)kind;
    lb_part_record_i64(r, &d->step), lb_part_record_i32(r, &d->rank), phase_both(r, &d->phase);
    ARRAY(r, d->layer), ARRAY(r, d->op);
    lb_part_record_u32(r, &d->index), lb_part_record_u32(r, &d->ops), dtype_both(r, &d->dtype);
    line_both(r, &d->line), effect_both(r, &d->effect), effect_both(r, &d->cured);
    double *const numbers[] = {&d->digits, &d->share, &d->recent, &d->bits};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) lb_part_record_f64(r, numbers[i]);
    lb_part_record_i64(r, &d->numbers), ARRAY(r, d->cure), ARRAY(r, d->message);
}

void lb_proof_list_record(lb_part_record *record, lb_check_report *report)
{
    report->findings = lb_part_record_rows(record, report->findings, &report->n_findings, sizeof *report->findings);
    for (uint32_t i = 0; i < report->n_findings; i++) finding_both(record, &report->findings[i]);
    report->proven = lb_part_record_rows(record, report->proven, &report->n_proven, sizeof *report->proven);
    for (uint32_t i = 0; i < report->n_proven; i++) ARRAY(record, report->proven[i]);
    report->unjudged = lb_part_record_rows(record, report->unjudged, &report->n_unjudged, sizeof *report->unjudged);
    for (uint32_t i = 0; i < report->n_unjudged; i++) {
        lb_check_unjudged *u = &report->unjudged[i];
        ARRAY(record, u->what), ARRAY(record, u->why), lb_part_record_bool(record, &u->passed);
    }
    report->digits = lb_part_record_rows(record, report->digits, &report->n_digits, sizeof *report->digits);
    for (uint32_t i = 0; i < report->n_digits; i++) digit_both(record, &report->digits[i]);
    lb_part_record_bool(record, &report->left), lb_part_record_u32(record, &report->replays);
}

void lb_update_window_record(lb_part_record *record, lb_update_window *window)
{
    window->rows = lb_part_record_rows(record, window->rows, &window->n, sizeof *window->rows);
    for (uint32_t i = 0; i < window->n; i++) {
        lb_update_row *row = &window->rows[i];
        int64_t *const counts[] = {&row->updates,       &row->absorbed, &row->last_updates,
                                   &row->last_absorbed, &row->decays,   &row->absorbed_decays};
        ARRAY(record, row->name), ARRAY(record, row->group), dtype_both(record, &row->dtype);
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) count_both(record, counts[k]);
        lb_part_record_i64(record, &row->step), lb_part_record_u32(record, &row->op);
    }
    lb_part_record_u32(record, &window->lost), lb_part_record_u32(record, &window->carried),
        lb_part_record_bool(record, &window->failed);
}
