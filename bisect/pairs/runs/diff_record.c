/* A report as a record, both ways: see diff_record.h. A field that is added to the report is added here. */
#include "runs/diff_record.h"

typedef struct both {
    lb_part_record *r;
    lb_diff_report *keeper;
} both;

static void text_both(const both *x, const char **text)
{
    lb_part_record_text(x->r, text);
    if (x->r->reading && *text) *text = lb_report_keep(x->keeper, *text);
}

static void name_both(const both *x, const char **text)
{
    lb_part_record_name(x->r, text);
    if (x->r->reading) *text = lb_report_keep(x->keeper, *text);
}

static void verdict_both(const both *x, lb_verdict *verdict)
{
    uint32_t word = *verdict;
    lb_part_record_word(x->r, &word, LB_VERDICT_COUNT - 1);
    *verdict = (lb_verdict)word;
}

static void phase_both(const both *x, lb_phase *phase)
{
    uint32_t word = *phase;
    lb_part_record_word(x->r, &word, LB_PHASE_OTHER);
    *phase = (lb_phase)word;
}

static void count_both(const both *x, int64_t *count)
{
    lb_part_record_tally(x->r, count, 0);
}

static void difference_both(const both *x, lb_difference *difference)
{
    uint32_t pattern = difference->pattern;
    const char *detail = difference->detail;
    count_both(x, &difference->elements), count_both(x, &difference->differing), count_both(x, &difference->nonfinite);
    lb_part_record_tally(x->r, &difference->first, -1);
    double *const numbers[] = {&difference->max_abs, &difference->max_rel, &difference->rel_l2,
                               &difference->cosine,  &difference->max_ulp, &difference->p99_ulp};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) lb_part_record_f64(x->r, numbers[i]);
    lb_part_record_word(x->r, &pattern, LB_PATTERN_SCATTERED);
    lb_part_record_text(x->r, &detail);
    difference->pattern = (lb_pattern)pattern;
    if (x->r->reading) snprintf(difference->detail, sizeof difference->detail, "%s", detail ? detail : "");
}

static void line_both(const both *x, lb_code_line *line)
{
    lb_part_record_u32(x->r, &line->number);
    /* number 0: not known, and neither are they */
    void (*const each)(const both *, const char **) = line->number ? name_both : text_both;
    each(x, &line->file), each(x, &line->function), each(x, &line->text);
}

static void row_both(const both *x, lb_diff_row *row)
{
    lb_part_record_i64(x->r, &row->step), lb_part_record_i32(x->r, &row->rank), phase_both(x, &row->phase);
    name_both(x, &row->layer), lb_part_record_bool(x->r, &row->value), text_both(x, &row->parameter);
    text_both(x, &row->before), text_both(x, &row->after), text_both(x, &row->op);
    uint32_t *const places[] = {&row->index, &row->other, &row->order, &row->lone, &row->met};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) lb_part_record_u32(x->r, places[i]);
    lb_part_record_i64(x->r, &row->other_step), lb_part_record_i32(x->r, &row->other_rank);
    verdict_both(x, &row->verdict), verdict_both(x, &row->local), verdict_both(x, &row->inherited);
    lb_part_record_bool(x->r, &row->lossy), name_both(x, &row->why);
    lb_part_record_i32(x->r, &row->hop_from), lb_part_record_i32(x->r, &row->hop_to);
    lb_part_record_bool(x->r, &row->measured);
    if (row->measured) difference_both(x, &row->difference);
    if (x->r->reading && !row->measured) row->difference = (lb_difference){.cosine = 1, .first = -1};
    lb_part_record_f64(x->r, &row->bound_ratio);
    lb_part_record_word(x->r, &row->n_arguments, LB_DIFF_ARGUMENTS);
    for (uint32_t i = 0; i < row->n_arguments; i++) {
        lb_diff_argument *a = &row->arguments[i];
        name_both(x, &a->name), name_both(x, &a->first), name_both(x, &a->second), name_both(x, &a->group);
    }
    text_both(x, &row->means);
    line_both(x, &row->lines[0]), line_both(x, &row->lines[1]);
}

static void structure_both(const both *x, lb_diff_structure *s)
{
    lb_part_record_i64(x->r, &s->step), lb_part_record_i32(x->r, &s->rank), phase_both(x, &s->phase);
    name_both(x, &s->layer), name_both(x, &s->ops_a), name_both(x, &s->ops_b);
}

static void tokens_both(const both *x, lb_diff_tokens *t)
{
    name_both(x, &t->kind), count_both(x, &t->count), lb_part_record_bool(x->r, &t->has_targets);
    double *const numbers[] = {&t->k3, &t->kl, &t->top1, &t->max_abs, &t->mean_abs};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) lb_part_record_f64(x->r, numbers[i]);
}

static void routing_both(const both *x, lb_diff_routing *t)
{
    lb_part_record_i64(x->r, &t->step), lb_part_record_i32(x->r, &t->rank), name_both(x, &t->layer);
    count_both(x, &t->tokens), count_both(x, &t->choices), count_both(x, &t->flips);
    lb_part_record_f64(x->r, &t->largest_margin);
    count_both(x, &t->near_ties), count_both(x, &t->explained);
}

static void lines_both(const both *x, lb_diff_lines *lines)
{
    lb_part_record_word(x->r, &lines->n, LB_DIFF_LINES);
    for (uint32_t i = 0; i < lines->n; i++) lb_part_record_u32(x->r, &lines->list[i]);
}

static void place_both(const both *x, lb_diff_difference *d)
{
    row_both(x, &d->row);
    lines_both(x, &d->lines[0]), lines_both(x, &d->lines[1]);
    text_both(x, &d->layer_b), text_both(x, &d->op_b), lb_part_record_f64(x->r, &d->effect);
    lb_part_record_u32(x->r, &d->times), lb_part_record_u32(x->r, &d->steps);
    lb_part_record_i64(x->r, &d->last_step);
    lb_part_record_u64(x->r, &d->ranks[0]), lb_part_record_u64(x->r, &d->ranks[1]);
}

/* A place whose texts are empty and whose numbers are small is written in more than 50 bytes. */
_Static_assert(sizeof(lb_diff_difference) <= 50 * LB_PART_RECORD_RATIO, "more than lb_part_record_rows makes room for");

static void map_both(const both *x, lb_diff_map *m)
{
    name_both(x, &m->first), name_both(x, &m->second), name_both(x, &m->relation);
}

static void exchange_both(const both *x, lb_diff_exchange *m)
{
    row_both(x, &m->row);
    lb_part_record_bool(x->r, &m->given), lb_part_record_bool(x->r, &m->differs);
    verdict_both(x, &m->brought), lb_part_record_u32(x->r, &m->met);
}

/* Room for the rows where they are read, then each of them. */
#define ROWS(x, rows, n, each)                                                                                         \
    do {                                                                                                               \
        (rows) = lb_part_record_rows((x)->r, (rows), &(n), sizeof *(rows));                                            \
        for (uint32_t i_ = 0; i_ < (n); i_++) each((x), &(rows)[i_]);                                                  \
    } while (0)

static void sentences_both(const both *x, char ***list, uint32_t *n)
{
    *list = lb_part_record_rows(x->r, *list, n, sizeof **list);
    for (uint32_t i = 0; i < *n; i++) {
        const char *text = (*list)[i];
        name_both(x, &text);
        (*list)[i] = (char *)(uintptr_t)text;
    }
}

static void numbers_both(const both *x, lb_diff_report *report)
{
    uint64_t *const numbers[] = {
        &report->ops,      &report->identical,  &report->unseen,       &report->rewritten, &report->cost.runs,
        &report->cost.ops, &report->exact_runs, &report->recorded_ops, &report->sources,   &report->sources_identical};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) lb_part_record_total(x->r, numbers[i]);
    for (int i = 0; i < LB_ULP_BUCKETS; i++) count_both(x, &report->ulp_counts[i]);
    bool *const truths[] = {
        &report->tokens_looked_up, &report->tokens_approximate, &report->lone_writes[0], &report->lone_writes[1],
        &report->untold,           &report->implementations,    &report->logged_apart};
    for (size_t i = 0; i < sizeof truths / sizeof *truths; i++) lb_part_record_bool(x->r, truths[i]);
    lb_part_record_u32(x->r, &report->n_cuts);
}

void lb_diff_record(lb_part_record *record, lb_diff_report *report, lb_diff_exchanges *exchanges,
                    lb_diff_report *keeper)
{
    const both here = {record, keeper}, *x = &here;
    verdict_both(x, &report->verdict);
    lb_part_record_bool(record, &report->has_first), lb_part_record_bool(record, &report->has_earliest);
    if (report->has_first && !report->has_earliest)
        lb_part_record_refuse(record, "first", "a difference before the earliest");
    if (report->has_first) row_both(x, &report->first);
    if (report->has_earliest) row_both(x, &report->earliest);
    lb_part_record_bool(record, &report->has_undecided), lb_part_record_i64(record, &report->undecided_step);
    numbers_both(x, report);
    ROWS(x, report->layers, report->n_layers, row_both);
    ROWS(x, report->structures, report->n_structures, structure_both);
    sentences_both(x, &report->missing, &report->n_missing), sentences_both(x, &report->findings, &report->n_findings);
    ROWS(x, report->tokens, report->n_tokens, tokens_both);
    ROWS(x, report->routings, report->n_routings, routing_both);
    ROWS(x, report->differences, report->n_differences, place_both);
    ROWS(x, report->places, report->n_places, place_both);
    ROWS(x, report->map, report->n_map, map_both);
    ROWS(x, exchanges->list, exchanges->n, exchange_both);
    for (uint32_t i = 0; i < exchanges->n; i++)
        if (exchanges->list[i].met > exchanges->n)
            lb_part_record_refuse(record, "collectives", "%u came before the %u that there are", exchanges->list[i].met,
                                  exchanges->n);
}
