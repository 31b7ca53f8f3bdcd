/* Explain, cut into units of work: see lastbit/explain.h. A unit is a step of a rank, all steps of a rank that are
 * looked at together, or what collectives made in a step of all ranks. What a unit learns of candidates
 * (attribution_memory.h) goes with it, so that what it finds does not depend on which units came before. */
#include "contents/content_map.h"
#include "explain/explain_session.h"

#include "parts/parts_each.h"

#include "base/array.h"
#include <lastbit/clock.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Units: steps of the first rank, of the second, …, then steps of all ranks. */
typedef struct unit_list {
    lb_explain_session *session;
    const int32_t *ranks;
    const int64_t *steps; /* those that were asked for */
    uint32_t n_ranks, n_steps;
    uint32_t known; /* the rank whose cut is known; LB_NONE */
    lb_explain_cut cut;
} unit_list;

static unit_list list_units(lb_explain_session *session)
{
    const int64_t first = session->options->first_step, last = session->options->last_step;
    unit_list list = {.session = session, .known = LB_NONE};
    uint32_t n = lb_capture_steps(session->a, &list.steps);
    list.n_ranks = lb_capture_ranks(session->a, &list.ranks);
    while (n && list.steps[0] < first) list.steps++, n--;
    while (list.n_steps < n && list.steps[list.n_steps] <= last) list.n_steps++;
    return list;
}

/* ---- one unit ---------------------------------------------------------------------------------------------------- */

/* Nothing that an earlier unit has found or learned. */
static lb_status begin_unit(const lb_explain_session *whole, lb_explain_session *unit, lb_err *err)
{
    *unit = (lb_explain_session){.a = whole->a,
                                 .b = whole->b,
                                 .options = whole->options,
                                 .rules = whole->rules,
                                 .selector = whole->selector,
                                 .implementations = whole->implementations,
                                 .begun = whole->begun,
                                 .sources = {.map = whole->sources.map},
                                 .memory = {.seconds = whole->options->seconds > 0 ? whole->options->seconds : 2,
                                            .only_orders = whole->options->only_orders,
                                            .trees = whole->memory.trees},
                                 .report = lb_explain_findings_new()};
    return unit->report ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
}

static void release_endings(lb_explain_session *session)
{
    for (uint32_t i = 0; i < session->n_endings; i++) lb_gap_step_end_release(&session->endings[i]);
    free(session->endings);
    session->endings = NULL, session->n_endings = 0;
}

static void end_unit(lb_explain_session *unit)
{
    release_endings(unit);
    lb_source_memory_release(&unit->sources);
    lb_batch_rows_release(&unit->rows);
    lb_attribution_memory_release(&unit->memory);
    lb_explain_report_free(unit->report);
}

/* Steps of a rank that are looked at together are those of its first unit, and its other units have nothing. */
static lb_status explain_rank(unit_list *list, lb_explain_session *unit, uint32_t rank, uint32_t step, lb_err *err)
{
    if (list->known != rank) list->known = rank, list->cut = lb_explain_cut_of(unit, list->ranks[rank]);
    if (list->cut == LB_EXPLAIN_CUT_STEPS) return lb_explain_rank_step(unit, list->ranks[rank], list->steps[step], err);
    if (step) return LB_OK;
    if (list->cut == LB_EXPLAIN_CUT_DECODING) return lb_explain_rank_decoding(unit, list->ranks[rank], err);
    for (uint32_t k = 0; k < list->n_steps && !unit->settled; k++)
        LB_TRY(lb_explain_rank_step(unit, list->ranks[rank], list->steps[k], err));
    return LB_OK;
}

static void drop_rank(lb_capture *capture, int32_t rank, const int64_t *steps, uint32_t n)
{
    if (!capture) return;
    for (uint32_t k = 0; k < n; k++) lb_capture_drop_program(capture, rank, steps[k]);
}

/* What the unit has read goes with it, for a caller who uses the captures for nothing else. Bytes that a rank
 * shares may have been read from another's files, so that all go. */
static void drop_unit(const unit_list *list, uint64_t unit)
{
    const lb_explain_session *session = list->session;
    const bool of_all = unit / list->n_steps >= list->n_ranks;
    const uint32_t first = of_all ? 0 : (uint32_t)(unit / list->n_steps), end = of_all ? list->n_ranks : first + 1;
    if (!session->options->alone) return;
    for (uint32_t r = first; r < end; r++) {
        drop_rank(session->a, list->ranks[r], list->steps, list->n_steps);
        drop_rank(session->b, list->ranks[r], list->steps, list->n_steps);
    }
    lb_capture_unload(session->a);
    if (session->b) lb_capture_unload(session->b);
}

/* Where one place settles all, no unit behind it is looked at: none is folded. */
static lb_status work_unit(void *context, uint64_t number, lb_part_record *record, lb_err *err)
{
    unit_list *list = context;
    const uint32_t rank = (uint32_t)(number / list->n_steps), step = (uint32_t)(number % list->n_steps);
    lb_explain_session unit;
    lb_status status = begin_unit(list->session, &unit, err);
    if (status == LB_OK && !list->session->settled)
        status = rank < list->n_ranks ? explain_rank(list, &unit, rank, step, err)
                                      : lb_explain_ranks(&unit, list->steps[step], err);
    if (status == LB_OK) status = lb_capture_refusal(unit.a, err);
    if (status == LB_OK) status = lb_capture_refusal(unit.b, err);
    if (status == LB_OK) {
        unit.report->cost.runs += unit.memory.cost.runs, unit.report->cost.ops += unit.memory.cost.ops;
        lb_explain_record_session(record, &unit, unit.report);
    }
    end_unit(&unit);
    drop_unit(list, number);
    return status;
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

static lb_status take_endings(lb_explain_session *whole, lb_explain_session *unit, lb_err *err)
{
    lb_gap_step_end *grown = lb_array_reserve(whole->endings, whole->n_endings, unit->n_endings, sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory for the budget");
    whole->endings = grown;
    for (uint32_t i = 0; i < unit->n_endings; i++) grown[whole->n_endings++] = unit->endings[i];
    unit->n_endings = 0;
    return LB_OK;
}

static lb_status fold_unit(void *context, uint64_t number, lb_part_record *record, lb_err *err)
{
    (void)number;
    const unit_list *list = context;
    lb_explain_session *whole = list->session, unit = {.report = lb_explain_findings_new()};
    if (!unit.report) return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    lb_explain_record_session(record, &unit, whole->report);
    lb_status status = record->status;
    if (status == LB_OK && !whole->settled) {
        whole->shared += unit.shared, whole->absent += unit.absent, whole->chosen += unit.chosen;
        whole->settled = unit.settled;
        status = lb_explain_findings_join(whole->report, unit.report, err);
        if (status == LB_OK) status = take_endings(whole, &unit, err);
    }
    end_unit(&unit);
    return status;
}

/* ---- budgets: steps of all ranks, for which all findings are known ----------------------------------------------- */

lb_status lb_explain_note_step_end(lb_explain_session *session, const lb_step_pair *scene, lb_err *err)
{
    bool found;
    if (!session->options->budget || !session->b || session->turned || scene->sides[1].n_parts > 1) return LB_OK;
    lb_gap_step_end *grown = lb_array_grow(session->endings, session->n_endings, sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory for the budget");
    session->endings = grown;
    lb_gap_step_end *end = &grown[session->n_endings];
    const lb_status status = lb_gap_step_end_open(&scene->source, end, &found, err);
    if (status == LB_OK && found) {
        end->layer = lb_explain_findings_keep(session->report, end->layer);
        session->n_endings++;
    } else
        lb_gap_step_end_release(end);
    return status;
}

/* The report's own texts; what nothing was seen of is let go. */
static void take_budget(lb_explain_report *report, lb_explain_budget *budget)
{
    if (isnan(budget->gap)) {
        lb_gap_attribution_release(budget);
        return;
    }
    for (uint32_t i = 0; i < budget->n_rows; i++) {
        char *layer = (char *)budget->rows[i].layer;
        budget->rows[i].layer = lb_explain_findings_keep(report, layer);
        free(layer);
    }
    char *left = (char *)budget->left;
    budget->left = lb_explain_findings_keep(report, left);
    free(left);
    report->budgets[report->n_budgets++] = *budget;
}

static lb_status add_budgets(const lb_explain_session *session, lb_gap_step_end *endings, uint32_t n_endings,
                             lb_explain_report *out, lb_err *err)
{
    const lb_explain_report *report = session->report;
    bool made = false;
    lb_explain_finding *findings = malloc((report->n_findings + 1) * sizeof *findings);
    lb_explain_budget *budgets = calloc(n_endings + 1, sizeof *budgets),
                      *grown = lb_array_reserve(out->budgets, out->n_budgets, n_endings, sizeof *grown);
    if (grown) out->budgets = grown;
    lb_status status =
        findings && budgets && grown ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for the budget");
    uint32_t n = 0;
    for (uint32_t i = 0; status == LB_OK && i < report->n_findings; i++)
        if (report->findings[i].step == endings[0].step) findings[n++] = report->findings[i];
    if (status == LB_OK)
        status = lb_gap_attribution_make(&(lb_gap_question){.a = session->a,
                                                            .endings = endings,
                                                            .n_endings = n_endings,
                                                            .findings = findings,
                                                            .n_findings = n,
                                                            .memory_bytes = session->options->memory_bytes,
                                                            .progress = session->options->progress},
                                         budgets, &made, err);
    for (uint32_t e = 0; status == LB_OK && made && e < n_endings; e++) take_budget(out, &budgets[e]);
    free(findings), free(budgets);
    return status;
}

typedef struct budget_list {
    lb_explain_session *session;
    uint32_t *firsts; /* of endings, by step; behind the last of them all */
} budget_list;

static lb_status work_budget(void *context, uint64_t number, lb_part_record *record, lb_err *err)
{
    const budget_list *list = context;
    const lb_explain_session *session = list->session;
    const uint32_t first = list->firsts[number], n = list->firsts[number + 1] - first;
    lb_explain_report *made = lb_explain_findings_new();
    lb_status status = made ? add_budgets(session, session->endings + first, n, made, err)
                            : lb_fail(err, LB_ERR_NOMEM, "out of memory for the budget");
    if (status == LB_OK) lb_explain_record_budgets(record, made, made);
    lb_explain_report_free(made);
    return status;
}

static lb_status fold_budget(void *context, uint64_t number, lb_part_record *record, lb_err *err)
{
    (void)number;
    const budget_list *list = context;
    lb_explain_report *made = lb_explain_findings_new();
    if (!made) return lb_fail(err, LB_ERR_NOMEM, "out of memory for the budget");
    lb_explain_record_budgets(record, made, list->session->report);
    lb_status status = record->status;
    if (status == LB_OK) status = lb_explain_findings_join(list->session->report, made, err);
    lb_explain_report_free(made);
    return status;
}

static int by_step(const void *x, const void *y)
{
    const lb_gap_step_end *a = x, *b = y;
    return a->step != b->step ? (a->step < b->step ? -1 : 1) : (a->rank > b->rank) - (a->rank < b->rank);
}

static lb_status make_budgets(lb_explain_session *session, lb_err *err)
{
    budget_list list = {session, malloc((session->n_endings + 1u) * sizeof *list.firsts)};
    uint32_t n = 0;
    if (!list.firsts) return lb_fail(err, LB_ERR_NOMEM, "out of memory for the budget");
    if (session->n_endings) qsort(session->endings, session->n_endings, sizeof *session->endings, by_step);
    for (uint32_t i = 0; i < session->n_endings; i++)
        if (!i || session->endings[i].step != session->endings[i - 1].step) list.firsts[n++] = i;
    list.firsts[n] = session->n_endings;
    const lb_parts_loop loop = {"budget", n, work_budget, fold_budget, &list};
    const lb_status status = lb_parts_each(session->options->parts, &loop, err);
    free(list.firsts);
    return status;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static lb_status check_some(const lb_explain_session *session, lb_err *err)
{
    if (!session->shared)
        return lb_fail(err, LB_ERR_NOT_FOUND,
                       "the captures share no step of one rank; see `lastbit ls` for what each holds");
    const bool silent = session->report->n_missing == session->absent,
               strangers = session->implementations && !session->report->n_findings;
    if (!session->report->ops && (silent || strangers))
        return lb_fail(err, LB_ERR_NOT_FOUND,
                       "no op of the first capture lines up with one of the second: they are other programs, "
                       "or their layers have other names (--map 's/PATTERN/REPLACEMENT/')");
    if (session->selector && !session->chosen)
        return lb_fail(err, LB_ERR_NOT_FOUND,
                       "\"%s\" selects no op of the first capture; see `lastbit show` for its layers and ops",
                       session->options->select);
    return LB_OK;
}

static lb_status explain_all(lb_explain_session *session, lb_err *err)
{
    unit_list list = list_units(session);
    const uint64_t rows = list.n_ranks > 1 ? list.n_ranks + 1ull : list.n_ranks;
    const lb_parts_loop loop = {"step", rows * list.n_steps, work_unit, fold_unit, &list};
    LB_TRY(lb_parts_each(session->options->parts, &loop, err));
    LB_TRY(check_some(session, err));
    return make_budgets(session, err);
}

lb_status lb_explain_run(lb_capture *a, lb_capture *b, const lb_explain_options *options, lb_explain_report **out,
                         lb_err *err)
{
    lb_layer_names_map *rules = NULL;
    lb_content_map map = {0};
    lb_explain_session session = {.a = a, .b = b, .options = options};
    if (options->table) LB_TRY(lb_content_map_read(options->table, &map, err));
    if (options->table) session.sources.map = &map;
    LB_TRY(lb_layer_names_map_new(options->maps, options->n_maps, &rules, err));
    session.rules = rules, session.report = lb_explain_findings_new();
    lb_status status = session.report ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) status = lb_candidate_trees_read(options->trees, options->n_trees, &session.memory.trees, err);
    if (status == LB_OK && options->select) status = lb_selector_new(options->select, &session.selector, err);
    if (status == LB_OK) status = lb_explain_are_implementations(&session, &session.implementations, err);
    session.begun = lb_clock_seconds();
    if (status == LB_OK) status = explain_all(&session, err);
    if (status == LB_OK) status = lb_capture_refusal(a, err);
    if (status == LB_OK) status = lb_capture_refusal(b, err);
    release_endings(&session);
    lb_content_map_release(&map);
    lb_selector_free(session.selector);
    lb_layer_names_map_free(rules);
    if (status == LB_OK)
        *out = session.report;
    else
        lb_explain_report_free(session.report);
    return status;
}
