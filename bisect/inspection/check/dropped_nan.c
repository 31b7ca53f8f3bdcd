/* NaN that an op drops: what it gives is finite, and would be another number if that NaN was one. A maximum by
 * comparisons loses it so (fmax, kernels that begin with a number and keep what is larger), and a sign.
 *
 * Each op that reads NaN and gives finite numbers runs twice by itself in f64, from its recorded inputs with a large
 * number in the place of every NaN, and with a smaller one of the other sign. Finite results that differ then follow
 * from what was NaN. What a mask hides does not: the masks, conditions and indices that the program computed are held,
 * so that a where, a masked_fill or a choice of different rows gives the same twice. */
#include "check/check_step.h"

#include "ranks/rank_run.h"
#include "shadow/shadow_numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FINDINGS = 4 };

typedef struct search {
    lb_check_step *check;
    const lb_program *program;
    double part;       /* of a large number: what stands for NaN in the run at hand */
    uint8_t *asked;    /* per op: it is run */
    uint8_t *judged;   /* per op: both runs gave what was recorded as numbers */
    double **first;    /* per value: what the first run gave; NULL */
    uint32_t *dropped; /* per value: numbers that are finite and follow from NaN */
    int64_t *at;       /* per value: the first of them */
    uint8_t *trained;  /* per storage: it holds a parameter */
    void **bytes;      /* per value: what the run at hand reads in its place; NULL */
    bool failed;       /* out of memory */
} search;

static bool has_nan(const lb_program *program, uint32_t v)
{
    return program->values[v].statistics != LB_NONE && program->statistics[program->values[v].statistics].nan > 0;
}

/* A window was not counted by itself: what it lies in may hold some elsewhere. */
static bool may_have_nan(const lb_moved_run *run, uint32_t v)
{
    const lb_value_graph *graph = &run->graph;
    bool any = has_nan(run->program, v);
    if (run->program->values[v].statistics != LB_NONE) return any;
    for (uint32_t k = graph->first_pred[v]; !graph->given[v] && k < graph->first_pred[v + 1]; k++)
        any |= has_nan(run->program, graph->preds[k]);
    return any;
}

/* ---- which ops are asked ---- */

/* Ops that are there to drop it, or to look for it. */
static bool is_meant(const char *name)
{
    static const char *const names[] = {"aten::nan_to_num",        "aten::nansum",
                                        "aten::nanmean",           "aten::nanmedian",
                                        "aten::nanquantile",       "aten::_amp_foreach_non_finite_check_and_unscale_",
                                        "aten::_amp_update_scale_"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (lb_program_name_extends(name, names[i])) return true;
    return false;
}

/* The derivatives that autograd has for ops are no code of the program. */
static bool is_of_program(const lb_check_step *step, uint32_t op)
{
    return step->run.program->ops[op].phase != LB_PHASE_BACKWARD || lb_cotangents_is_custom(step->run.program, op) ||
           lb_cotangents_is_foreign(&step->run, op);
}

/* Finite numbers among its results, and no indices: of a choice other elements are not meant. */
static bool gives_numbers(const lb_program *program, const lb_op *op)
{
    bool any = false;
    for (uint32_t k = 0; k < lb_op_outcomes(op); k++) {
        const uint32_t v = lb_op_outcome(program, op, k);
        if (v == LB_NONE) continue;
        const lb_value *value = &program->values[v];
        if (value->dtype == LB_I64) return false;
        any |= lb_dtype_is_float(value->dtype) && value->statistics != LB_NONE &&
               !(value->flags & LB_VALUE_UNDEFINED) &&
               program->statistics[value->statistics].nan < lb_layout_numel(&value->layout);
    }
    return any;
}

typedef struct inputs {
    const lb_moved_run *run;
    bool nan, lacks; /* one may hold NaN; of one the bytes were not kept */
} inputs;

static void note_input(void *context, uint32_t v)
{
    inputs *in = context;
    lb_tensor tensor;
    if (v == LB_NONE) return;
    in->lacks |= lb_program_view_value(in->run->view, v, &tensor, NULL) != LB_OK;
    in->nan |= lb_dtype_is_float(in->run->program->values[v].dtype) && may_have_nan(in->run, v);
}

/* `*lacking` counts ops that would be asked, and cannot run by themselves. */
static bool is_asked(const lb_check_step *step, uint32_t i, uint32_t *lacking)
{
    const lb_program *program = step->run.program;
    const lb_op *op = &program->ops[i];
    const lb_op_row *row = step->run.prepared->ops[i].row;
    inputs in = {&step->run, false, false};
    if (!row || !row->kernel || !lb_op_computes(program, op) || lb_op_is_source(program, op)) return false;
    if (op->flags & (LB_OP_UNDEFINED | LB_OP_COLLECTIVE) || row->flags & (LB_ROW_RANDOM | LB_ROW_HOST | LB_ROW_VIEW))
        return false;
    if (is_meant(lb_op_name(program, op)) || !is_of_program(step, i) || !gives_numbers(program, op)) return false;
    lb_op_each_input(program, op, note_input, &in);
    *lacking += in.nan && in.lacks;
    return in.nan && !in.lacks;
}

/* ---- the two runs ---- */

/* Larger than all that is there, and than most of what is elsewhere. */
static double instead(lb_dtype dtype, const double *x, int64_t n)
{
    const double most = lb_dtype_max_finite(dtype);
    double size = fmin(0x1p60, most / 4);
    for (int64_t i = 0; i < n; i++)
        if (isfinite(x[i])) size = fmax(size, 2 * fabs(x[i]));
    return fmin(size, most);
}

/* The numbers of a value without NaN, in its dtype. */
static void *without_nan(const search *search, const lb_tensor *tensor)
{
    const int64_t n = lb_layout_numel(&tensor->layout);
    double *x = lb_shadow_numbers_copy(tensor);
    void *bytes = x ? malloc(lb_dtype_bytes(tensor->dtype, (size_t)n) + 16) : NULL;
    const lb_tensor to = {bytes, tensor->dtype, lb_layout_contiguous(tensor->layout.ndim, tensor->layout.shape)};
    const double big = x ? search->part * instead(tensor->dtype, x, n) : 0;
    for (int64_t i = 0; x && i < n; i++)
        if (isnan(x[i])) x[i] = big;
    if (bytes) lb_shadow_put(&to, x);
    free(x);
    return bytes;
}

static lb_status value_of(void *context, const lb_program *program, uint32_t value, lb_tensor *tensor, lb_err *err)
{
    search *search = context;
    (void)program;
    LB_TRY(lb_program_view_value(search->check->run.view, value, tensor, err));
    if (!lb_dtype_is_float(search->program->values[value].dtype) || !may_have_nan(&search->check->run, value))
        return LB_OK;
    if (!search->bytes[value]) search->bytes[value] = without_nan(search, tensor);
    if (!search->bytes[value]) return lb_fail(err, LB_ERR_NOMEM, "out of memory for inputs without NaN");
    *tensor = (lb_tensor){search->bytes[value], tensor->dtype,
                          lb_layout_contiguous(tensor->layout.ndim, tensor->layout.shape)};
    return LB_OK;
}

static void compare(search *search, uint32_t op, uint32_t value, const double *second, int64_t n)
{
    lb_tensor tensor;
    double *recorded = lb_moved_run_recorded(&search->check->run, value, &tensor);
    const double *first = search->first[value];
    for (int64_t i = 0; recorded && i < n; i++) {
        if (!isfinite(recorded[i]) || (isnan(first[i]) && isnan(second[i])) || first[i] == second[i]) continue;
        if (!search->dropped[value]++) search->at[value] = i;
    }
    search->judged[op] = recorded != NULL;
    free(recorded);
}

static void take(search *search, uint32_t op, uint32_t value, const lb_tensor *exact)
{
    double *x = lb_shadow_numbers_copy(exact);
    search->failed |= !x;
    if (search->part < 0) {
        if (x && search->first[value]) compare(search, op, value, x, lb_layout_numel(&exact->layout));
        free(x);
    } else {
        free(search->first[value]);
        search->first[value] = x;
    }
}

/* Where the f64 evaluation of a result is not its own (signs, steps) what was computed in its dtype speaks. */
static bool note_op(void *context, const lb_event *event)
{
    search *search = context;
    if (event->verdict == LB_VERDICT_OPAQUE || event->verdict == LB_VERDICT_MISSING) return true;
    for (uint32_t k = 0; k < event->n_results && !search->failed; k++) {
        const uint32_t v = event->values[k];
        if (v == LB_NONE || v >= search->program->n_values || !lb_dtype_is_float(search->program->values[v].dtype))
            continue;
        const bool own = event->shadow[k].data && event->shadow[k].data != event->recorded[k].data;
        const lb_tensor *tensor = own ? &event->shadow[k] : &event->computed[k];
        if (tensor->data && lb_dtype_is_float(tensor->dtype)) take(search, event->op, v, tensor);
    }
    return !search->failed;
}

static lb_status run_with(search *search, double part, lb_err *err)
{
    lb_moved_run *moved = &search->check->run;
    lb_plan plan = LB_PLAN_INIT;
    plan.mode = LB_REPLAY_ISOLATED, plan.compare = false, plan.shadow = true, plan.only = search->asked;
    const lb_observer observer = {.context = search, .op = note_op};
    lb_rank_run ranks = {.programs = (const lb_prepared *const *)&moved->prepared,
                         .n_programs = 1,
                         .plan = &plan,
                         .observer = &observer,
                         .context = search,
                         .value = value_of};
    search->part = part;
    lb_status status = lb_rank_run_all(&ranks, err);
    if (status == LB_OK && search->failed) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for results");
    for (uint32_t v = 0; v < search->program->n_values; v++) free(search->bytes[v]), search->bytes[v] = NULL;
    return status;
}

/* ---- what follows from it ---- */

static bool follows(const lb_value_graph *graph, const uint8_t *reached, uint32_t v)
{
    bool any = reached[v];
    for (uint32_t k = graph->first_pred[v]; !graph->given[v] && k < graph->first_pred[v + 1]; k++)
        any |= reached[graph->preds[k]];
    return any;
}

static void follow(const search *search, uint32_t from, uint8_t *reached)
{
    const lb_program *program = search->program;
    const lb_value_graph *graph = &search->check->run.graph;
    for (uint32_t i = from + 1; i < program->n_ops; i++)
        for (uint32_t k = 0; k < lb_op_outcomes(&program->ops[i]); k++) {
            const uint32_t v = lb_op_outcome(program, &program->ops[i], k);
            if (v == LB_NONE || !graph->given[v] || graph->giver[v] != i ||
                !lb_dtype_is_float(program->values[v].dtype))
                continue;
            for (uint32_t e = graph->first_pred[v]; e < graph->first_pred[v + 1]; e++)
                reached[v] |= follows(graph, reached, graph->preds[e]);
        }
}

static bool reaches_parameter(const search *search, const uint8_t *reached)
{
    const uint32_t *storage_of = search->check->run.prepared->storage_of;
    bool any = false;
    for (uint32_t v = 0; v < search->program->n_values; v++) any |= reached[v] && search->trained[storage_of[v]];
    return any;
}

/* Where it leaves the step; NULL: nowhere. */
static const char *leaves_by(const search *search, const uint8_t *reached)
{
    const lb_check_step *step = search->check;
    const lb_value_graph *graph = &step->run.graph;
    for (uint32_t i = 0; i < step->run.n_roots; i++)
        if (follows(graph, reached, step->run.roots[i].value)) return "the loss";
    for (uint32_t i = 0; i < step->trained.n; i++)
        if (step->trained.rows[i].read != LB_NONE && follows(graph, reached, step->trained.rows[i].read))
            return "a gradient that the optimizer reads";
    return reaches_parameter(search, reached) ? "a parameter" : NULL;
}

/* ---- findings ---- */

static bool is_told(const search *search, uint32_t before, uint32_t op)
{
    const lb_check_report *report = search->check->report;
    const lb_code_line line = lb_op_line(search->program, &search->program->ops[op]);
    for (uint32_t i = before; i < report->n_findings; i++)
        if (report->findings[i].line.number == line.number && line.number &&
            !strcmp(report->findings[i].op, lb_op_name(search->program, &search->program->ops[op])))
            return true;
    return false;
}

static bool find(search *search, uint32_t op, uint32_t value, const char *leaves)
{
    const lb_program *program = search->program;
    lb_check_finding *finding = lb_proof_list_add(search->check->report, LB_CHECK_DROPPED, program);
    if (!finding) return false;
    lb_proof_list_place(finding, program, op, LB_NONE, search->check->path);
    const int64_t n = lb_layout_numel(&program->values[value].layout);
    finding->effect = (double)search->dropped[value] / (double)n;
    snprintf(finding->message, sizeof finding->message,
             "%u of the %lld numbers that it gives are finite and follow from NaN, number %lld first: "
             "they are others where a number stands in its place (the op by itself, "
             "with a large one of either sign); %s follows from them",
             search->dropped[value], (long long)n, (long long)search->at[value], leaves);
    return true;
}

/* The first value of an op from which a NaN was dropped; LB_NONE. */
static uint32_t dropped_in(const search *search, uint32_t op)
{
    const lb_op *o = &search->program->ops[op];
    for (uint32_t k = 0; search->asked[op] && k < lb_op_outcomes(o); k++) {
        const uint32_t v = lb_op_outcome(search->program, o, k);
        if (v != LB_NONE && search->dropped[v]) return v;
    }
    return LB_NONE;
}

static bool tell(search *search)
{
    const uint32_t before = search->check->report->n_findings;
    uint8_t *reached = malloc((size_t)search->program->n_values + 1);
    bool fine = reached != NULL;
    for (uint32_t i = 0; i < search->program->n_ops && fine && search->check->report->n_findings < before + FINDINGS;
         i++) {
        const uint32_t v = dropped_in(search, i);
        if (v == LB_NONE || is_told(search, before, i)) continue;
        memset(reached, 0, (size_t)search->program->n_values + 1);
        reached[v] = 1;
        follow(search, i, reached);
        const char *leaves = leaves_by(search, reached);
        fine = !leaves || find(search, i, v, leaves);
    }
    free(reached);
    return fine;
}

/* Nothing is claimed where one of the ops was not judged. */
static bool say_handed_on(const search *search, uint32_t asked)
{
    uint32_t judged = 0, dropped = 0;
    for (uint32_t i = 0; i < search->program->n_ops; i++)
        judged += search->judged[i], dropped += dropped_in(search, i) != LB_NONE;
    if (judged < asked || dropped) return true;
    return lb_proof_list_prove(
        search->check->report,
        "step %lld: no finite number that follows from NaN was given by the %u op%s that read it",
        (long long)search->program->step, asked, asked == 1 ? "" : "s");
}

/* A loss that is NaN is not clean, wherever that comes from. */
static bool say_loss(const search *search)
{
    const lb_moved_run *run = &search->check->run;
    char what[80];
    snprintf(what, sizeof what, "step %lld of rank %d", (long long)search->program->step, (int)search->program->rank);
    for (uint32_t i = 0; i < run->n_roots; i++)
        if (has_nan(search->program, run->roots[i].value))
            return lb_proof_list_leave(search->check->report, what,
                                       "its loss is NaN: `lastbit bisect` says where that begins");
    return true;
}

static lb_status judge(search *search, lb_err *err)
{
    uint32_t asked = 0, lacking = 0;
    for (uint32_t v = 0; v < search->program->n_values; v++)
        if (search->program->values[v].flags & LB_VALUE_PARAMETER)
            search->trained[search->check->run.prepared->storage_of[v]] = 1;
    for (uint32_t i = 0; i < search->program->n_ops; i++)
        asked += search->asked[i] = is_asked(search->check, i, &lacking);
    if (!asked) return LB_OK;
    search->check->run.runs += 2;
    LB_TRY(run_with(search, 1, err));
    LB_TRY(run_with(search, -1.0 / 3, err)); /* another size, too, for squares and magnitudes */
    return tell(search) && (lacking || say_handed_on(search, asked)) && say_loss(search) ? LB_OK : LB_ERR_NOMEM;
}

lb_status lb_check_step_dropped(lb_check_step *step, lb_err *err)
{
    const lb_program *program = step->run.program;
    const size_t n = (size_t)program->n_values + 1, n_ops = (size_t)program->n_ops + 1;
    search search = {.check = step, .program = program, .asked = calloc(n_ops, 1), .judged = calloc(n_ops, 1)};
    search.first = calloc(n, sizeof *search.first), search.dropped = calloc(n, sizeof *search.dropped);
    search.at = calloc(n, sizeof *search.at), search.bytes = calloc(n, sizeof *search.bytes),
    search.trained = calloc(n, 1);
    const bool fine =
        search.asked && search.judged && search.first && search.dropped && search.at && search.bytes && search.trained;
    const lb_status status = fine ? judge(&search, err) : LB_ERR_NOMEM;
    for (uint32_t v = 0; search.first && v < program->n_values; v++) free(search.first[v]);
    free(search.asked), free(search.judged), free(search.first), free(search.dropped), free(search.at),
        free(search.bytes), free(search.trained);
    return status == LB_ERR_NOMEM ? lb_fail(err, status, "out of memory for what follows from NaN") : status;
}
