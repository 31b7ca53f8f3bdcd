/* Copies of masters: see master_copies.h. In an exact run a copy is its master, number by number, so that what lies in
 * its place tells what went wrong: the numbers of before, of another master, a multiple. */
#include "check/master_copies.h"

#include "check/fault_place.h"
#include "moved/masters.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef enum fate {
    RIGHT,   /* it is its master, or a cast of that goes elsewhere */
    UNKNOWN, /* numbers were not seen, or something else was done to one of them */
    OLD,     /* as the step begins it is not, and nothing is seen to be wrong behind the update */
    LOST,    /* nothing writes to it behind the update */
    BEFORE,  /* it is its master before the update */
    OF_OTHER,
    TIMES,
    OTHERWISE,
    N_FATES
} fate;

typedef struct copied {
    fate fate;
    bool old;              /* nor is it its master, rounded, as the step begins */
    double effect, factor; /* distance beside the largest update; of TIMES */
    const lb_optimizer_tensor *other;
} copied;

/* The largest distance; 0 below what f64 leaves of the numbers. */
static double apart(const double *a, const double *b, double times, uint32_t n)
{
    double gap = 0, size = 0;
    for (uint32_t i = 0; i < n; i++) gap = fmax(gap, fabs(a[i] - times * b[i])), size = fmax(size, fabs(a[i]));
    return gap <= 0x1p-44 * size ? 0 : gap;
}

static double update_of(const lb_optimizer_tensor *t)
{
    return fmax(apart(t->after, t->before, 1, t->n), 1e-300);
}

/* ---- as the step begins ---- */

/* Is the parameter given its numbers before forward reads it? */
static bool is_renewed(const lb_check_step *c, uint32_t copy)
{
    const lb_program *p = c->run.program;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        if (lb_op_is_source(p, op)) continue;
        if (lb_masters_copies(p, op) && lb_op_writes(p, op, p->values[copy].storage) != LB_NONE) return true;
        if (op->phase == LB_PHASE_FORWARD && lb_op_reads(p, op, p->values[copy].storage) != LB_NONE) return false;
    }
    return false;
}

/* How far recorded numbers are from their master's, beyond a unit in their last digit; 0: no further, or not known. */
static double beyond_rounding(const lb_check_step *c, uint32_t master, uint32_t copy)
{
    lb_tensor a, b;
    double *x = lb_moved_run_recorded(&c->run, master, &a), *y = lb_moved_run_recorded(&c->run, copy, &b), gap = 0;
    const double unit = x && y ? 2 * lb_dtype_unit_roundoff(b.dtype) : 0,
                 least = x && y && b.dtype == LB_F16 ? 0x1p-24 : 0x1p-126;
    for (int64_t i = 0; x && y && i < lb_layout_numel(&a.layout); i++) {
        const double distance = fabs(x[i] - y[i]);
        if (isfinite(distance) && distance > unit * fabs(x[i]) + least) gap = fmax(gap, distance);
    }
    free(x), free(y);
    return gap;
}

/* ---- behind the update ---- */

/* Was the master written once more, or the parameter by anything but a copy? */
static bool is_changed_again(const lb_program *p, const lb_optimizer_tensor *t, const lb_moved_run *run)
{
    if (t->back != LB_NONE && !lb_masters_copies(p, &p->ops[run->graph.giver[t->back]])) return true;
    for (uint32_t v = 0; v < p->n_values; v++)
        if (p->values[v].storage == p->values[t->last].storage && p->values[v].version > p->values[t->last].version)
            return true;
    return false;
}

static copied compare(const lb_optimizer_step *s, const lb_optimizer_tensor *t)
{
    copied k = {.fate = RIGHT};
    const double gap = apart(t->behind, t->after, 1, t->n);
    double products = 0, squares = 0;
    k.effect = gap / update_of(t);
    if (gap == 0) return k;
    k.fate = OTHERWISE;
    for (uint32_t i = 0; i < t->n; i++) products += t->behind[i] * t->after[i], squares += t->after[i] * t->after[i];
    k.factor = products / squares;
    if (lb_fault_place_is_count(k.factor) && apart(t->behind, t->after, k.factor, t->n) == 0) k.fate = TIMES;
    if (apart(t->behind, t->before, 1, t->n) == 0) k.fate = BEFORE;
    for (uint32_t i = 0; i < s->n && k.fate == OTHERWISE; i++) {
        const lb_optimizer_tensor *o = &s->tensors[i];
        if (o == t || o->n != t->n || o->numel != t->numel || !o->after || apart(t->behind, o->after, 1, t->n) != 0)
            continue;
        k.fate = OF_OTHER, k.other = o;
    }
    return k;
}

static copied behind_update(const lb_check_step *c, const lb_optimizer_tensor *t)
{
    if (is_renewed(c, t->copy) || is_changed_again(c->run.program, t, &c->run)) return (copied){.fate = UNKNOWN};
    if (t->back == LB_NONE) return (copied){.fate = t->cast ? RIGHT : LOST, .effect = 1};
    if (!t->behind) return (copied){.fate = UNKNOWN};
    const copied k = compare(&c->updates, t);
    const double beyond = k.fate == RIGHT ? beyond_rounding(c, t->last, t->back) : 0;
    /* exact runs do not see another dtype on the way */
    return beyond > 0 ? (copied){.fate = OTHERWISE, .effect = beyond / update_of(t)} : k;
}

static copied judge(const lb_check_step *c, const lb_optimizer_tensor *t)
{
    const lb_program *p = c->run.program;
    const bool given = lb_op_is_source(p, &p->ops[c->run.graph.giver[t->source]]);
    if (lb_dtype_bits(p->values[t->copy].dtype) < 16 || !lb_optimizer_step_saw(t)) /* scaled, perhaps */
        return (copied){.fate = UNKNOWN};
    copied k = behind_update(c, t);
    const double old = given && !is_renewed(c, t->copy) ? beyond_rounding(c, t->source, t->copy) : 0;
    k.old = old > 0;
    if (k.old && k.fate <= UNKNOWN) k.fate = OLD, k.effect = old / update_of(t);
    return k;
}

/* ---- what is said ---- */

typedef struct judged {
    lb_check_step *step;
    copied *all; /* per tensor of the step */
    uint32_t counts[N_FATES], masters;
} judged;

static const char *name_of(const lb_program *p, const lb_optimizer_tensor *t)
{
    return p->values[t->copy].name != LB_NONE ? lb_program_text(p, p->values[t->copy].name) : t->name;
}

static void say(const judged *g, const copied *k, char *text, size_t size)
{
    static const char *const texts[N_FATES] = {
        [OLD] = "is not the rounding of its master as the step begins: an earlier copy was lost, or wrong",
        [LOST] = "does not get the numbers of its master behind the update",
        [BEFORE] = "gets the numbers that its master had before the update",
        [OTHERWISE] = "gets other numbers than those of its master, rounded",
    };
    if (k->fate == OF_OTHER)
        snprintf(text, size, "gets the numbers of the master of %s", name_of(g->step->run.program, k->other));
    else if (k->fate == TIMES)
        snprintf(text, size, "gets %.6g times the numbers of its master", k->factor);
    else
        snprintf(text, size, "%s", texts[k->fate]);
}

static bool add_finding(const judged *g, const lb_optimizer_tensor *t, const copied *k)
{
    lb_check_step *c = g->step;
    const lb_program *p = c->run.program;
    lb_check_finding *f = lb_proof_list_add(c->report, LB_CHECK_UPDATE, p);
    const bool copies = k->fate > LOST && t->back != LB_NONE;
    char what[160];
    if (!f) return false;
    lb_proof_list_place(f, p, copies ? c->run.graph.giver[t->back] : t->op, LB_NONE, c->path);
    f->effect = k->effect, f->factor = k->fate == TIMES ? k->factor : NAN;
    snprintf(f->layer, sizeof f->layer, "%s", name_of(p, t));
    say(g, k, what, sizeof what);
    snprintf(f->message, sizeof f->message,
             "%s %s%s (%u of %u parameters with masters; off by up to %.2g of the largest update)", name_of(p, t), what,
             k->old && k->fate != OLD ? ", nor was it its master, rounded, as the step began" : "", g->counts[k->fate],
             g->masters, k->effect);
    return true;
}

/* What has no sibling that is right is what the program means, as far as this step shows. */
static bool is_meant(const judged *g, const copied *k)
{
    return (k->fate == LOST || k->fate == OTHERWISE) && !k->old && !g->counts[RIGHT];
}

static bool tell(const judged *g)
{
    static const char *const whys[] = {"nothing writes the numbers of %u masters back in this step",
                                       "the parameters of %u masters get other numbers than theirs"};
    const lb_program *p = g->step->run.program;
    bool told[N_FATES] = {[RIGHT] = true, [UNKNOWN] = true}, found = false;
    char what[160];
    for (uint32_t i = 0; i < g->step->updates.n; i++) {
        const lb_optimizer_tensor *t = &g->step->updates.tensors[i];
        const copied *k = &g->all[i];
        if (t->copy == LB_NONE || told[k->fate]) continue;
        told[k->fate] = true, found |= !is_meant(g, k);
        snprintf(what, sizeof what, "the copies of masters in step %lld", (long long)p->step);
        if (!is_meant(g, k)
                ? !add_finding(g, t, k)
                : !lb_proof_list_leave(g->step->report, what, whys[k->fate == OTHERWISE], g->counts[k->fate]))
            return false;
    }
    if (found || !g->counts[RIGHT]) return true;
    return lb_proof_list_prove(g->step->report, "step %lld: %u parameters are the rounding of their updated masters",
                               (long long)p->step, g->counts[RIGHT]);
}

bool lb_master_copies_judge(lb_check_step *c)
{
    judged g = {.step = c, .all = calloc((size_t)c->updates.n + 1, sizeof *g.all)};
    for (uint32_t i = 0; g.all && i < c->updates.n; i++) {
        if (c->updates.tensors[i].copy == LB_NONE) continue;
        g.all[i] = judge(c, &c->updates.tensors[i]);
        g.masters++, g.counts[g.all[i].fate]++;
    }
    const bool said = g.all && tell(&g);
    free(g.all);
    return said;
}
