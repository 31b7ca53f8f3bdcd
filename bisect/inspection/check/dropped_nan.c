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

static bool has_nan(const lb_program *p, uint32_t v)
{
    return p->values[v].statistics != LB_NONE && p->statistics[p->values[v].statistics].nan > 0;
}

/* A window was not counted by itself: what it lies in may hold some elsewhere. */
static bool may_have_nan(const lb_moved_run *run, uint32_t v)
{
    const lb_value_graph *g = &run->graph;
    bool any = has_nan(run->program, v);
    if (run->program->values[v].statistics != LB_NONE) return any;
    for (uint32_t k = g->first_pred[v]; !g->given[v] && k < g->first_pred[v + 1]; k++)
        any |= has_nan(run->program, g->preds[k]);
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
static bool is_of_program(const lb_check_step *c, uint32_t op)
{
    return c->run.program->ops[op].phase != LB_PHASE_BACKWARD || lb_cotangents_is_custom(c->run.program, op) ||
           lb_cotangents_is_foreign(&c->run, op);
}

/* Finite numbers among its results, and no indices: of a choice other elements are not meant. */
static bool gives_numbers(const lb_program *p, const lb_op *op)
{
    bool any = false;
    for (uint32_t k = 0; k < lb_op_outcomes(op); k++) {
        const uint32_t v = lb_op_outcome(p, op, k);
        if (v == LB_NONE) continue;
        const lb_value *x = &p->values[v];
        if (x->dtype == LB_I64) return false;
        any |= lb_dtype_is_float(x->dtype) && x->statistics != LB_NONE && !(x->flags & LB_VALUE_UNDEFINED) &&
               p->statistics[x->statistics].nan < lb_layout_numel(&x->layout);
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
    lb_tensor t;
    if (v == LB_NONE) return;
    in->lacks |= lb_program_view_value(in->run->view, v, &t, NULL) != LB_OK;
    in->nan |= lb_dtype_is_float(in->run->program->values[v].dtype) && may_have_nan(in->run, v);
}

/* `*lacking` counts ops that would be asked, and cannot run by themselves. */
static bool is_asked(const lb_check_step *c, uint32_t i, uint32_t *lacking)
{
    const lb_program *p = c->run.program;
    const lb_op *op = &p->ops[i];
    const lb_op_row *row = c->run.prepared->ops[i].row;
    inputs in = {&c->run, false, false};
    if (!row || !row->kernel || !lb_op_computes(p, op) || lb_op_is_source(p, op)) return false;
    if (op->flags & (LB_OP_UNDEFINED | LB_OP_COLLECTIVE) || row->flags & (LB_ROW_RANDOM | LB_ROW_HOST | LB_ROW_VIEW))
        return false;
    if (is_meant(lb_op_name(p, op)) || !is_of_program(c, i) || !gives_numbers(p, op)) return false;
    lb_op_each_input(p, op, note_input, &in);
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
static void *without_nan(const search *s, const lb_tensor *t)
{
    const int64_t n = lb_layout_numel(&t->layout);
    double *x = lb_shadow_numbers_copy(t);
    void *bytes = x ? malloc(lb_dtype_bytes(t->dtype, (size_t)n) + 16) : NULL;
    const lb_tensor to = {bytes, t->dtype, lb_layout_contiguous(t->layout.ndim, t->layout.shape)};
    const double big = x ? s->part * instead(t->dtype, x, n) : 0;
    for (int64_t i = 0; x && i < n; i++)
        if (isnan(x[i])) x[i] = big;
    if (bytes) lb_shadow_put(&to, x);
    free(x);
    return bytes;
}

static lb_status value_of(void *context, const lb_program *program, uint32_t v, lb_tensor *t, lb_err *err)
{
    search *s = context;
    (void)program;
    LB_TRY(lb_program_view_value(s->check->run.view, v, t, err));
    if (!lb_dtype_is_float(s->program->values[v].dtype) || !may_have_nan(&s->check->run, v)) return LB_OK;
    if (!s->bytes[v]) s->bytes[v] = without_nan(s, t);
    if (!s->bytes[v]) return lb_fail(err, LB_ERR_NOMEM, "out of memory for inputs without NaN");
    *t = (lb_tensor){s->bytes[v], t->dtype, lb_layout_contiguous(t->layout.ndim, t->layout.shape)};
    return LB_OK;
}

static void compare(search *s, uint32_t op, uint32_t v, const double *second, int64_t n)
{
    lb_tensor t;
    double *recorded = lb_moved_run_recorded(&s->check->run, v, &t);
    const double *first = s->first[v];
    for (int64_t i = 0; recorded && i < n; i++) {
        if (!isfinite(recorded[i]) || (isnan(first[i]) && isnan(second[i])) || first[i] == second[i]) continue;
        if (!s->dropped[v]++) s->at[v] = i;
    }
    s->judged[op] = recorded != NULL;
    free(recorded);
}

static void take(search *s, uint32_t op, uint32_t v, const lb_tensor *exact)
{
    double *x = lb_shadow_numbers_copy(exact);
    s->failed |= !x;
    if (s->part < 0) {
        if (x && s->first[v]) compare(s, op, v, x, lb_layout_numel(&exact->layout));
        free(x);
    } else {
        free(s->first[v]);
        s->first[v] = x;
    }
}

/* Where the f64 evaluation of a result is not its own (signs, steps) what was computed in its dtype speaks. */
static bool note_op(void *context, const lb_event *event)
{
    search *s = context;
    if (event->verdict == LB_VERDICT_OPAQUE || event->verdict == LB_VERDICT_MISSING) return true;
    for (uint32_t k = 0; k < event->n_results && !s->failed; k++) {
        const uint32_t v = event->values[k];
        if (v == LB_NONE || v >= s->program->n_values || !lb_dtype_is_float(s->program->values[v].dtype)) continue;
        const bool own = event->shadow[k].data && event->shadow[k].data != event->recorded[k].data;
        const lb_tensor *t = own ? &event->shadow[k] : &event->computed[k];
        if (t->data && lb_dtype_is_float(t->dtype)) take(s, event->op, v, t);
    }
    return !s->failed;
}

static lb_status run_with(search *s, double part, lb_err *err)
{
    lb_moved_run *moved = &s->check->run;
    lb_plan plan = LB_PLAN_INIT;
    plan.mode = LB_REPLAY_ISOLATED, plan.compare = false, plan.shadow = true, plan.only = s->asked;
    const lb_observer observer = {.context = s, .op = note_op};
    lb_rank_run ranks = {.programs = (const lb_prepared *const *)&moved->prepared,
                         .n_programs = 1,
                         .plan = &plan,
                         .observer = &observer,
                         .context = s,
                         .value = value_of};
    s->part = part;
    lb_status status = lb_rank_run_all(&ranks, err);
    if (status == LB_OK && s->failed) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for results");
    for (uint32_t v = 0; v < s->program->n_values; v++) free(s->bytes[v]), s->bytes[v] = NULL;
    return status;
}

/* ---- what follows from it ---- */

static bool follows(const lb_value_graph *g, const uint8_t *reached, uint32_t v)
{
    bool any = reached[v];
    for (uint32_t k = g->first_pred[v]; !g->given[v] && k < g->first_pred[v + 1]; k++) any |= reached[g->preds[k]];
    return any;
}

static void follow(const search *s, uint32_t from, uint8_t *reached)
{
    const lb_program *p = s->program;
    const lb_value_graph *g = &s->check->run.graph;
    for (uint32_t i = from + 1; i < p->n_ops; i++)
        for (uint32_t k = 0; k < lb_op_outcomes(&p->ops[i]); k++) {
            const uint32_t v = lb_op_outcome(p, &p->ops[i], k);
            if (v == LB_NONE || !g->given[v] || g->giver[v] != i || !lb_dtype_is_float(p->values[v].dtype)) continue;
            for (uint32_t e = g->first_pred[v]; e < g->first_pred[v + 1]; e++)
                reached[v] |= follows(g, reached, g->preds[e]);
        }
}

static bool reaches_parameter(const search *s, const uint8_t *reached)
{
    const uint32_t *storage_of = s->check->run.prepared->storage_of;
    bool any = false;
    for (uint32_t v = 0; v < s->program->n_values; v++) any |= reached[v] && s->trained[storage_of[v]];
    return any;
}

/* Where it leaves the step; NULL: nowhere. */
static const char *leaves_by(const search *s, const uint8_t *reached)
{
    const lb_check_step *c = s->check;
    const lb_value_graph *g = &c->run.graph;
    for (uint32_t i = 0; i < c->run.n_roots; i++)
        if (follows(g, reached, c->run.roots[i].value)) return "the loss";
    for (uint32_t i = 0; i < c->trained.n; i++)
        if (c->trained.rows[i].read != LB_NONE && follows(g, reached, c->trained.rows[i].read))
            return "a gradient that the optimizer reads";
    return reaches_parameter(s, reached) ? "a parameter" : NULL;
}

/* ---- findings ---- */

static bool is_told(const search *s, uint32_t before, uint32_t op)
{
    const lb_check_report *r = s->check->report;
    const lb_code_line line = lb_op_line(s->program, &s->program->ops[op]);
    for (uint32_t i = before; i < r->n_findings; i++)
        if (r->findings[i].line.number == line.number && line.number &&
            !strcmp(r->findings[i].op, lb_op_name(s->program, &s->program->ops[op])))
            return true;
    return false;
}

static bool find(search *s, uint32_t op, uint32_t v, const char *leaves)
{
    const lb_program *p = s->program;
    lb_check_finding *f = lb_proof_list_add(s->check->report, LB_CHECK_DROPPED, p);
    if (!f) return false;
    lb_proof_list_place(f, p, op, LB_NONE, s->check->path);
    const int64_t n = lb_layout_numel(&p->values[v].layout);
    f->effect = (double)s->dropped[v] / (double)n;
    snprintf(f->message, sizeof f->message,
             "%u of the %lld numbers that it gives are finite and follow from NaN, number %lld first: they are others "
             "where a number stands in its place (the op by itself, with a large one of either sign); %s follows "
             "from them",
             s->dropped[v], (long long)n, (long long)s->at[v], leaves);
    return true;
}

/* The first value of an op from which a NaN was dropped; LB_NONE. */
static uint32_t dropped_in(const search *s, uint32_t op)
{
    const lb_op *o = &s->program->ops[op];
    for (uint32_t k = 0; s->asked[op] && k < lb_op_outcomes(o); k++) {
        const uint32_t v = lb_op_outcome(s->program, o, k);
        if (v != LB_NONE && s->dropped[v]) return v;
    }
    return LB_NONE;
}

static bool tell(search *s)
{
    const uint32_t before = s->check->report->n_findings;
    uint8_t *reached = malloc((size_t)s->program->n_values + 1);
    bool fine = reached != NULL;
    for (uint32_t i = 0; i < s->program->n_ops && fine && s->check->report->n_findings < before + FINDINGS; i++) {
        const uint32_t v = dropped_in(s, i);
        if (v == LB_NONE || is_told(s, before, i)) continue;
        memset(reached, 0, (size_t)s->program->n_values + 1);
        reached[v] = 1;
        follow(s, i, reached);
        const char *leaves = leaves_by(s, reached);
        fine = !leaves || find(s, i, v, leaves);
    }
    free(reached);
    return fine;
}

/* Nothing is claimed where one of the ops was not judged. */
static bool say_handed_on(const search *s, uint32_t asked)
{
    uint32_t judged = 0, dropped = 0;
    for (uint32_t i = 0; i < s->program->n_ops; i++) judged += s->judged[i], dropped += dropped_in(s, i) != LB_NONE;
    if (judged < asked || dropped) return true;
    return lb_proof_list_prove(
        s->check->report, "step %lld: no finite number that follows from NaN was given by the %u op%s that read it",
        (long long)s->program->step, asked, asked == 1 ? "" : "s");
}

/* A loss that is NaN is not clean, wherever that comes from. */
static bool say_loss(const search *s)
{
    const lb_moved_run *run = &s->check->run;
    char what[80];
    snprintf(what, sizeof what, "step %lld of rank %d", (long long)s->program->step, (int)s->program->rank);
    for (uint32_t i = 0; i < run->n_roots; i++)
        if (has_nan(s->program, run->roots[i].value))
            return lb_proof_list_leave(s->check->report, what,
                                       "its loss is NaN: `lastbit bisect` says where that begins");
    return true;
}

static lb_status judge(search *s, lb_err *err)
{
    uint32_t asked = 0, lacking = 0;
    for (uint32_t v = 0; v < s->program->n_values; v++)
        if (s->program->values[v].flags & LB_VALUE_PARAMETER) s->trained[s->check->run.prepared->storage_of[v]] = 1;
    for (uint32_t i = 0; i < s->program->n_ops; i++) asked += s->asked[i] = is_asked(s->check, i, &lacking);
    if (!asked) return LB_OK;
    s->check->run.runs += 2;
    LB_TRY(run_with(s, 1, err));
    LB_TRY(run_with(s, -1.0 / 3, err)); /* another size, too, for squares and magnitudes */
    return tell(s) && (lacking || say_handed_on(s, asked)) && say_loss(s) ? LB_OK : LB_ERR_NOMEM;
}

lb_status lb_check_step_dropped(lb_check_step *c, lb_err *err)
{
    const lb_program *p = c->run.program;
    const size_t n = (size_t)p->n_values + 1, n_ops = (size_t)p->n_ops + 1;
    search s = {.check = c, .program = p, .asked = calloc(n_ops, 1), .judged = calloc(n_ops, 1)};
    s.first = calloc(n, sizeof *s.first), s.dropped = calloc(n, sizeof *s.dropped);
    s.at = calloc(n, sizeof *s.at), s.bytes = calloc(n, sizeof *s.bytes), s.trained = calloc(n, 1);
    const bool fine = s.asked && s.judged && s.first && s.dropped && s.at && s.bytes && s.trained;
    const lb_status status = fine ? judge(&s, err) : LB_ERR_NOMEM;
    for (uint32_t v = 0; s.first && v < p->n_values; v++) free(s.first[v]);
    free(s.asked), free(s.judged), free(s.first), free(s.dropped), free(s.at), free(s.bytes), free(s.trained);
    return status == LB_ERR_NOMEM ? lb_fail(err, status, "out of memory for what follows from NaN") : status;
}
