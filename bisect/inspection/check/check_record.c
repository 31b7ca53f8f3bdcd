/* What a unit of work has found, as a record: see proof_list.h and update_log.h. A field that is added to the report is
 * added here. */
#include "check/proof_list.h"
#include "check/update_log.h"

#include <stdio.h>
#include <string.h>

/* A text in an array of the row's own. */
static void array_both(lb_part_record *record, char *text, size_t room)
{
    const char *there = text;
    lb_part_record_text(record, &there);
    if (record->reading) snprintf(text, room, "%s", there ? there : "");
}

#define ARRAY(r, array) array_both((r), (array), sizeof(array))

/* Counts never come near this number. A record may come from any file: the sum of two such counts still fits. */
static void count_both(lb_part_record *record, int64_t *count)
{
    static const int64_t MOST = INT64_C(1) << 56;
    lb_part_record_i64(record, count);
    if (!record->reading || (*count >= 0 && *count <= MOST)) return;
    if (record->status == LB_OK) record->status = lb_cursor_fail(&record->cursor, "count", "%lld", (long long)*count);
    *count = 0;
}

/* The name of a phase, or "". */
static void phase_both(lb_part_record *record, const char **phase)
{
    enum { NONE = LB_PHASE_OTHER + 1 };
    uint32_t word = NONE;
    for (uint32_t i = 0; i < NONE && !record->reading; i++)
        if (strcmp(*phase, lb_phase_name((lb_phase)i)) == 0) word = i;
    lb_part_record_word(record, &word, NONE);
    if (record->reading) *phase = word < NONE ? lb_phase_name((lb_phase)word) : "";
}

static void dtype_both(lb_part_record *record, lb_dtype *dtype)
{
    uint32_t word = *dtype;
    lb_part_record_word(record, &word, LB_DTYPE_COUNT - 1);
    *dtype = (lb_dtype)word;
}

/* What is read is the report's, as a copy is. */
static void line_both(lb_part_record *record, lb_code_line *line)
{
    lb_code_line there = *line;
    lb_part_record_u32(record, &there.number);
    lb_part_record_text(record, &there.file), lb_part_record_text(record, &there.function),
        lb_part_record_text(record, &there.text);
    if (!record->reading) return;
    const bool whole = record->status == LB_OK && there.file && there.function && there.text;
    *line = whole ? lb_code_line_copy(&there) : (lb_code_line){0, "", "", ""};
}

static void finding_both(lb_part_record *record, lb_check_finding *finding)
{
    uint32_t kind = finding->kind;
    lb_part_record_word(record, &kind, LB_CHECK_UNDERFLOW);
    finding->kind = (lb_check_kind)kind;
    lb_part_record_i64(record, &finding->step), lb_part_record_i32(record, &finding->rank),
        phase_both(record, &finding->phase);
    ARRAY(record, finding->layer), ARRAY(record, finding->op), ARRAY(record, finding->forward);
    lb_part_record_u32(record, &finding->index), line_both(record, &finding->line),
        line_both(record, &finding->of_forward);
    lb_part_record_f64(record, &finding->factor), lb_part_record_f64(record, &finding->effect);
    ARRAY(record, finding->message), ARRAY(record, finding->command);
}

static void effect_both(lb_part_record *record, lb_check_effect *effect)
{
    double *const numbers[] = {&effect->loss, &effect->logits, &effect->largest_logit, &effect->gradients,
                               &effect->reached};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) lb_part_record_f64(record, numbers[i]);
}

static void digit_both(lb_part_record *record, lb_check_digit *digit)
{
    uint32_t kind = digit->kind;
    lb_part_record_word(record, &kind, LB_CHECK_DIGIT_ROUTER);
    digit->kind = (lb_check_digit_kind)kind;
    lb_part_record_i64(record, &digit->step), lb_part_record_i32(record, &digit->rank),
        phase_both(record, &digit->phase);
    ARRAY(record, digit->layer), ARRAY(record, digit->op);
    lb_part_record_u32(record, &digit->index), lb_part_record_u32(record, &digit->ops),
        dtype_both(record, &digit->dtype);
    line_both(record, &digit->line), effect_both(record, &digit->effect), effect_both(record, &digit->cured);
    double *const numbers[] = {&digit->digits, &digit->share, &digit->recent, &digit->bits};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) lb_part_record_f64(record, numbers[i]);
    lb_part_record_i64(record, &digit->numbers), ARRAY(record, digit->cure), ARRAY(record, digit->message);
}

void lb_proof_list_record(lb_part_record *record, lb_check_report *report)
{
    report->findings = lb_part_record_rows(record, report->findings, &report->n_findings, sizeof *report->findings);
    for (uint32_t i = 0; i < report->n_findings; i++) finding_both(record, &report->findings[i]);
    report->proven = lb_part_record_rows(record, report->proven, &report->n_proven, sizeof *report->proven);
    for (uint32_t i = 0; i < report->n_proven; i++) ARRAY(record, report->proven[i]);
    report->unjudged = lb_part_record_rows(record, report->unjudged, &report->n_unjudged, sizeof *report->unjudged);
    for (uint32_t i = 0; i < report->n_unjudged; i++) {
        lb_check_unjudged *unjudged = &report->unjudged[i];
        ARRAY(record, unjudged->what), ARRAY(record, unjudged->why), lb_part_record_bool(record, &unjudged->passed);
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
