/* Where a wrong gradient was made: all results of forward from some op on are moved at once, and by bisection the last
 * one is found whose gradient is not the derivative. What comes behind it is right, so that the fault lies between. */
#include "check/fault_place.h"

#include "base/array.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Late results change the loss by more than early ones: a fault there shows as a small share. */
static const double FINE = 1e-6;

typedef struct place {
    uint32_t at, behind, site;
} place;

static int by_place(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    if (x->behind != y->behind) return x->behind < y->behind ? -1 : 1;
    return (x->site > y->site) - (x->site < y->site);
}

static place *list_places(const lb_check_step *c, uint64_t roots, uint32_t *n)
{
    const lb_moved_run *run = &c->run;
    place *list = malloc(((size_t)run->n_sites + 1) * sizeof *list);
    *n = 0;
    for (uint32_t i = 0; list && i < run->n_sites; i++) {
        const lb_moved_site *s = &run->sites[i];
        if (!s->moved || !s->measured) continue;
        if (s->row != LB_NONE && (run->together || c->trained.rows[s->row].roots != roots)) continue;
        list[(*n)++] = (place){s->at, s->row == LB_NONE, i};
    }
    if (list) qsort(list, *n, sizeof *list, by_place);
    return list;
}

static lb_status ask(lb_check_step *c, uint64_t roots, const place *list, uint32_t first, uint32_t end, uint32_t seed,
                     lb_quotient *q, bool *differs, lb_err *err)
{
    lb_check_answer answer;
    memset(c->run.active, 0, c->run.n_sites);
    for (uint32_t i = first; i < end; i++) c->run.active[list[i].site] = 1;
    LB_TRY(lb_check_step_ask(c, seed, roots, FINE, q, &answer, err));
    *differs = answer == LB_ANSWER_DIFFERS;
    return LB_OK;
}

/* The last place with which the end of the list differs; n: none does. */
static lb_status last_wrong(lb_check_step *c, uint64_t roots, const place *list, uint32_t n, uint32_t *found,
                            lb_err *err)
{
    uint32_t low = 0, high = n;
    lb_quotient q;
    bool differs;
    LB_TRY(ask(c, roots, list, 0, n, 0, &q, &differs, err));
    *found = n;
    if (!differs) return LB_OK;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        LB_TRY(ask(c, roots, list, middle, n, 0, &q, &differs, err));
        if (differs)
            low = middle;
        else
            high = middle;
    }
    *found = low;
    return LB_OK;
}

static uint32_t culprit(const lb_check_step *c, uint32_t gradient)
{
    uint32_t ops[256];
    const lb_program *p = c->run.program;
    const uint32_t n = lb_cotangents_between(&c->run, gradient, ops, 256);
    for (uint32_t i = 0; i < n; i++)
        if (lb_cotangents_is_custom(p, ops[i]) && !(p->ops[ops[i]].flags & LB_OP_VIEW)) return ops[i];
    for (uint32_t i = 0; i < n; i++)
        if (lb_cotangents_is_foreign(&c->run, ops[i]) && !(p->ops[ops[i]].flags & LB_OP_VIEW)) return ops[i];
    return c->run.graph.giver[gradient];
}

void lb_fault_place_factor_text(uint32_t n, double factor, char *text, size_t room)
{
    *text = 0;
    if (n > 1 && fabs(factor * n - 1) < 1e-4)
        snprintf(text, room, ", which is 1 / %u, the number of micro-batches", n);
    else if (n > 1 && fabs(factor / n - 1) < 1e-4)
        snprintf(text, room, ", which is the number of micro-batches");
    else if (factor < 0.75 && fabs(1 / factor - nearbyint(1 / factor)) < 1e-4)
        snprintf(text, room, ", which is 1 / %.0f", 1 / factor);
}

bool lb_fault_place_is_count(double x)
{
    const double n = fabs(x) < 1 ? 1 / fabs(x) : fabs(x);
    return n > 1.5 && n < 1e6 && fabs(n - nearbyint(n)) <= 1e-5 * n;
}

static void say(const lb_check_step *c, lb_check_finding *f, const lb_moved_site *s, const lb_quotient *q)
{
    const lb_program *p = c->run.program;
    char what[200], counted[120] = "";
    if (s->row != LB_NONE)
        snprintf(what, sizeof what, "%s", c->trained.rows[s->row].name);
    else
        snprintf(what, sizeof what, "the result of %s in %s", lb_op_name(p, &p->ops[s->at]),
                 *lb_op_layer(p, &p->ops[s->at]) ? lb_op_layer(p, &p->ops[s->at]) : "(outside)");
    if (!isnan(f->factor)) lb_fault_place_factor_text(c->run.n_roots, f->factor, counted, sizeof counted);
    if (f->kind == LB_CHECK_SCALE)
        snprintf(
            f->message, sizeof f->message,
            "the gradient of %s is %.6g times the derivative of the loss%s: %.6g along a random direction, where a "
            "difference quotient gives %.6g +- %.1g; those of all later results are right",
            what, f->factor, counted, q->said, q->derivative, q->error);
    else
        snprintf(f->message, sizeof f->message,
                 "the gradient of %s is not the derivative of the loss: %.6g along a random direction, where a "
                 "difference quotient gives %.6g +- %.1g; those of all later results are right",
                 what, q->said, q->derivative, q->error);
}

/* ---- other draws ---- */

/* The op of forward that an op repeats, by the order of such ops in its module. */
static uint32_t repeated(const lb_program *p, uint32_t op)
{
    uint32_t k = 0;
    for (uint32_t i = 0; i < op; i++)
        k += p->ops[i].flags & LB_OP_RECOMPUTE && p->ops[i].scope == p->ops[op].scope &&
             p->ops[i].name == p->ops[op].name;
    for (uint32_t i = 0; i < op; i++) {
        const lb_op *o = &p->ops[i];
        if (o->phase != LB_PHASE_FORWARD || o->scope != p->ops[op].scope || o->name != p->ops[op].name) continue;
        if (!k--) return i;
    }
    return LB_NONE;
}

/* The first op of a recomputation that drew different numbers than the forward that it repeats; LB_NONE. */
static uint32_t redrawn(const lb_program *p, uint32_t *first)
{
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *o = &p->ops[i];
        if (!(o->flags & LB_OP_RECOMPUTE) || !(o->flags & LB_OP_RANDOM) || !lb_op_outcomes(o)) continue;
        *first = repeated(p, i);
        if (*first == LB_NONE || !lb_op_outcomes(&p->ops[*first])) continue;
        const uint32_t a = lb_op_outcome(p, o, 0), b = lb_op_outcome(p, &p->ops[*first], 0);
        if (a != LB_NONE && b != LB_NONE && !lb_digest_equal(p->values[a].logical, p->values[b].logical)) return i;
    }
    return LB_NONE;
}

static lb_status add_redrawn(lb_check_step *c, uint32_t op, uint32_t first, const lb_quotient *q, lb_err *err)
{
    lb_check_finding *f = lb_proof_list_add(c->report, LB_CHECK_REDRAWN, c->run.program);
    if (!f) return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    lb_proof_list_place(f, c->run.program, op, first, c->path);
    f->effect = fabs(q->said - q->derivative) / fabs(q->derivative);
    snprintf(
        f->message, sizeof f->message,
        "the gradients are not the derivative of the loss (%.6g along a random direction, where a difference "
        "quotient gives %.6g +- %.1g): the recomputation drew other numbers than op %u of forward, which it repeats",
        q->said, q->derivative, q->error, first);
    return LB_OK;
}

/* ---- memory that no op wrote ---- */

/* What lies there is another thing in every run: the exact one reads zeros. */
static lb_status add_unwritten(lb_check_step *c, uint32_t op, uint32_t maker, const lb_quotient *q, lb_err *err)
{
    const lb_program *p = c->run.program;
    const lb_code_line line = lb_op_line(p, &p->ops[maker]);
    char made[240];
    lb_code_line_text(&line, made, sizeof made);
    lb_check_finding *f = lb_proof_list_add(c->report, LB_CHECK_UNWRITTEN, p);
    if (!f) return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    lb_proof_list_place(f, p, op, c->run.graph.forward[op], c->path);
    f->effect = fabs(q->said - q->derivative) / fabs(q->derivative);
    snprintf(f->message, sizeof f->message,
             "it reads numbers that no op wrote: %s made their memory%s%s; with zeros there the gradients are not the "
             "derivative of the loss (%.6g along a random direction, where a difference quotient gives %.6g +- %.1g)",
             lb_op_name(p, &p->ops[maker]), *made ? " at " : "", made, q->said, q->derivative, q->error);
    return LB_OK;
}

/* ---- rows that see nothing ---- */

/* Below that a score is lost where it was added to what hides it, in f64, too. */
static const double HIDDEN = -1e30;

/* A row all of whose numbers are hidden: a token of padding that is to see none but padding. */
static bool has_hidden_row(const double *x, const lb_layout *l)
{
    const int64_t n = lb_layout_numel(l), width = l->ndim ? l->shape[l->ndim - 1] : 1;
    for (int64_t row = 0; width > 1 && row < n; row += width) {
        int64_t hidden = 0;
        while (hidden < width && x[row + hidden] <= HIDDEN && isfinite(x[row + hidden])) hidden++;
        if (hidden == width) return true;
    }
    return false;
}

/* The softmax of such a row is the same whatever the scores are, and its backward, which does not know that they were
 * lost, gives them a gradient. */
static bool softmax_sees_nothing(const lb_check_step *c, uint32_t forward)
{
    const lb_program *p = c->run.program;
    const lb_op *op = forward == LB_NONE ? NULL : &p->ops[forward];
    const bool kernel = op && strstr(lb_op_name(p, op), "scaled_dot_product");
    bool any = false;
    if (!op || !(kernel || strstr(lb_op_name(p, op), "softmax"))) return false;
    for (uint32_t i = kernel ? 3 : 0; i < op->args && (kernel || i == 0) && !any; i++) {
        lb_tensor t;
        if (lb_op_args(p, op)[i].tag != LB_ARG_VALUE) continue;
        double *x = lb_moved_run_recorded(&c->run, lb_op_args(p, op)[i].u.value, &t);
        any = x && has_hidden_row(x, &t.layout);
        free(x);
    }
    return any;
}

/* Such a softmax whose backward lies between a site and those behind it, which are right; LB_NONE. */
static uint32_t blind_softmax(const lb_check_step *c, const lb_moved_site *s)
{
    uint32_t ops[256];
    const uint32_t n = s->gradient == LB_NONE ? 0 : lb_cotangents_between(&c->run, s->gradient, ops, 256);
    for (uint32_t i = 0; i < n; i++)
        if (softmax_sees_nothing(c, c->run.graph.forward[ops[i]])) return c->run.graph.forward[ops[i]];
    return LB_NONE;
}

static bool leave_hidden(lb_check_step *c, uint32_t forward)
{
    const lb_program *p = c->run.program;
    const lb_code_line line = lb_op_line(p, &p->ops[forward]);
    char what[160], at[120];
    lb_code_line_text(&line, at, sizeof at);
    snprintf(what, sizeof what, "the gradients before %s in step %lld", lb_op_layer(p, &p->ops[forward]),
             (long long)p->step);
    return lb_proof_list_leave(c->report, what,
                               "rows of its softmax hide all that they could see: their scores are lost in the mask, "
                               "and backward gives them a gradient all the same: %s",
                               at);
}

/* ---- the finding ---- */

/* A gradient that is the derivative of the last loss alone lacks all others: it was overwritten, and not added to. */
static lb_status judge_overwritten(lb_check_step *c, uint64_t roots, const place *list, uint32_t k, lb_check_finding *f,
                                   lb_err *err)
{
    const uint32_t n = (uint32_t)__builtin_popcountll(roots), row = c->run.sites[list[k].site].row;
    lb_quotient q;
    lb_check_answer answer;
    if (n < 2 || row == LB_NONE || f->kind == LB_CHECK_DETACHED) return LB_OK;
    memset(c->run.active, 0, c->run.n_sites);
    c->run.active[list[k].site] = 1;
    LB_TRY(lb_check_step_ask(c, 0, (uint64_t)1 << (63 - __builtin_clzll(roots)), FINE, &q, &answer, err));
    if (answer != LB_ANSWER_AGREES) return LB_OK;
    f->kind = LB_CHECK_LOST, f->factor = NAN;
    snprintf(f->message, sizeof f->message,
             "the gradient of %s is the derivative of the last of %u losses alone: %.6g along a random direction, "
             "where a difference quotient of that loss gives %.6g +- %.1g; the other %u are lost",
             c->trained.rows[row].name, n, q.said, q.derivative, q.error, n - 1);
    return LB_OK;
}

static lb_status add_finding(lb_check_step *c, uint64_t roots, const place *list, uint32_t k, lb_err *err)
{
    const lb_program *p = c->run.program;
    const lb_moved_site *s = &c->run.sites[list[k].site];
    lb_quotient q[2];
    bool differs[2];
    for (uint32_t i = 0; i < 2; i++) LB_TRY(ask(c, roots, list, k, k + 1, i, &q[i], &differs[i], err));
    const double ratios[2] = {q[0].said / q[0].derivative, q[1].said / q[1].derivative};
    const bool scaled = fabs(ratios[0] - ratios[1]) <= 1e-5 * fabs(ratios[0]) && s->norm > 0;
    lb_check_finding *f = lb_proof_list_add(c->report,
                                            s->norm == 0 ? LB_CHECK_DETACHED
                                            : scaled     ? LB_CHECK_SCALE
                                                         : LB_CHECK_GRADIENT,
                                            p);
    if (!f) return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    const uint32_t op = culprit(c, s->gradient);
    uint32_t forward = c->run.graph.forward[op];
    if (forward == LB_NONE && s->row == LB_NONE) forward = s->at;
    lb_proof_list_place(f, p, op, forward, c->path);
    f->factor = s->norm == 0 ? 0 : scaled ? ratios[0] : NAN;
    f->effect = fabs(q[0].said - q[0].derivative) / fabs(q[0].derivative);
    say(c, f, s, &q[0]);
    return judge_overwritten(c, roots, list, k, f, err);
}

/* Nothing that was moved inside the step explains it: what is known is said of the whole. */
static lb_status add_whole(lb_check_step *c, const lb_quotient *q, lb_err *err)
{
    lb_check_finding *f = lb_proof_list_add(c->report, LB_CHECK_GRADIENT, c->run.program);
    if (!f) return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    lb_proof_list_place(f, c->run.program, c->run.roots[c->run.n_roots - 1].op, LB_NONE, c->path);
    f->effect = fabs(q->said - q->derivative) / fabs(q->derivative);
    snprintf(f->message, sizeof f->message,
             "the gradients are not the derivative of the loss: %.6g along a random direction, where a difference "
             "quotient gives %.6g +- %.1g; no op was found at which that begins",
             q->said, q->derivative, q->error);
    return LB_OK;
}

lb_status lb_fault_place_find(lb_check_step *c, uint64_t roots, const lb_quotient *q, lb_err *err)
{
    uint32_t n, found = 0, first = LB_NONE;
    const uint32_t again = redrawn(c->run.program, &first);
    if (again != LB_NONE) return add_redrawn(c, again, first, q, err);
    const uint32_t reader = lb_check_step_reads_unwritten(c, roots, &first);
    if (reader != LB_NONE) return add_unwritten(c, reader, first, q, err);
    LB_TRY(lb_cotangents_add(&c->run, &c->trained, err));
    LB_TRY(lb_moved_run_measure(&c->run, err));
    place *list = list_places(c, roots, &n);
    if (!list) return lb_fail(err, LB_ERR_NOMEM, "out of memory for places");
    lb_status status = last_wrong(c, roots, list, n, &found, err);
    const uint32_t blind = status == LB_OK && found < n ? blind_softmax(c, &c->run.sites[list[found].site]) : LB_NONE;
    if (blind != LB_NONE)
        status = leave_hidden(c, blind) ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    else if (status == LB_OK)
        status = found < n ? add_finding(c, roots, list, found, err) : add_whole(c, q, err);
    free(list);
    return status;
}
