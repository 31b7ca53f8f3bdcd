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

static double update_of(const lb_optimizer_tensor *tensor)
{
    return fmax(apart(tensor->after, tensor->before, 1, tensor->n), 1e-300);
}

/* ---- as the step begins ---- */

/* Is the parameter given its numbers before forward reads it? */
static bool is_renewed(const lb_check_step *step, uint32_t copy)
{
    const lb_program *program = step->run.program;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (lb_op_is_source(program, op)) continue;
        if (lb_masters_copies(program, op) && lb_op_writes(program, op, program->values[copy].storage) != LB_NONE)
            return true;
        if (op->phase == LB_PHASE_FORWARD && lb_op_reads(program, op, program->values[copy].storage) != LB_NONE)
            return false;
    }
    return false;
}

/* How far recorded numbers are from their master's, beyond a unit in their last digit; 0: no further, or not known. */
static double beyond_rounding(const lb_check_step *step, uint32_t master, uint32_t copy)
{
    lb_tensor a, b;
    double *x = lb_moved_run_recorded(&step->run, master, &a), *y = lb_moved_run_recorded(&step->run, copy, &b),
           gap = 0;
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
static bool is_changed_again(const lb_program *program, const lb_optimizer_tensor *tensor, const lb_moved_run *run)
{
    if (tensor->back != LB_NONE && !lb_masters_copies(program, &program->ops[run->graph.giver[tensor->back]]))
        return true;
    for (uint32_t v = 0; v < program->n_values; v++)
        if (program->values[v].storage == program->values[tensor->last].storage &&
            program->values[v].version > program->values[tensor->last].version)
            return true;
    return false;
}

static copied compare(const lb_optimizer_step *step, const lb_optimizer_tensor *compared)
{
    copied copied = {.fate = RIGHT};
    const double gap = apart(compared->behind, compared->after, 1, compared->n);
    double products = 0, squares = 0;
    copied.effect = gap / update_of(compared);
    if (gap == 0) return copied;
    copied.fate = OTHERWISE;
    for (uint32_t i = 0; i < compared->n; i++)
        products += compared->behind[i] * compared->after[i], squares += compared->after[i] * compared->after[i];
    copied.factor = products / squares;
    if (lb_fault_place_is_count(copied.factor) &&
        apart(compared->behind, compared->after, copied.factor, compared->n) == 0)
        copied.fate = TIMES;
    if (apart(compared->behind, compared->before, 1, compared->n) == 0) copied.fate = BEFORE;
    for (uint32_t i = 0; i < step->n && copied.fate == OTHERWISE; i++) {
        const lb_optimizer_tensor *tensor = &step->tensors[i];
        if (tensor == compared || tensor->n != compared->n || tensor->numel != compared->numel || !tensor->after ||
            apart(compared->behind, tensor->after, 1, compared->n) != 0)
            continue;
        copied.fate = OF_OTHER, copied.other = tensor;
    }
    return copied;
}

static copied behind_update(const lb_check_step *step, const lb_optimizer_tensor *tensor)
{
    if (is_renewed(step, tensor->copy) || is_changed_again(step->run.program, tensor, &step->run))
        return (copied){.fate = UNKNOWN};
    if (tensor->back == LB_NONE) return (copied){.fate = tensor->cast ? RIGHT : LOST, .effect = 1};
    if (!tensor->behind) return (copied){.fate = UNKNOWN};
    const copied k = compare(&step->updates, tensor);
    const double beyond = k.fate == RIGHT ? beyond_rounding(step, tensor->last, tensor->back) : 0;
    /* exact runs do not see another dtype on the way */
    return beyond > 0 ? (copied){.fate = OTHERWISE, .effect = beyond / update_of(tensor)} : k;
}

static copied judge(const lb_check_step *step, const lb_optimizer_tensor *tensor)
{
    const lb_program *program = step->run.program;
    const bool given = lb_op_is_source(program, &program->ops[step->run.graph.giver[tensor->source]]);
    if (lb_dtype_bits(program->values[tensor->copy].dtype) < 16 || !lb_optimizer_step_saw(tensor)) /* scaled, perhaps */
        return (copied){.fate = UNKNOWN};
    copied k = behind_update(step, tensor);
    const double old =
        given && !is_renewed(step, tensor->copy) ? beyond_rounding(step, tensor->source, tensor->copy) : 0;
    k.old = old > 0;
    if (k.old && k.fate <= UNKNOWN) k.fate = OLD, k.effect = old / update_of(tensor);
    return k;
}

/* ---- what is said ---- */

typedef struct judged {
    lb_check_step *step;
    copied *all; /* per tensor of the step */
    uint32_t counts[N_FATES], masters;
} judged;

static const char *name_of(const lb_program *program, const lb_optimizer_tensor *tensor)
{
    return program->values[tensor->copy].name != LB_NONE ? lb_program_text(program, program->values[tensor->copy].name)
                                                         : tensor->name;
}

static void say(const judged *judged, const copied *copied, char *text, size_t size)
{
    static const char *const texts[N_FATES] = {
        [OLD] = "is not the rounding of its master as the step begins: an earlier copy was lost, or wrong",
        [LOST] = "does not get the numbers of its master behind the update",
        [BEFORE] = "gets the numbers that its master had before the update",
        [OTHERWISE] = "gets other numbers than those of its master, rounded",
    };
    if (copied->fate == OF_OTHER)
        snprintf(text, size, "gets the numbers of the master of %s", name_of(judged->step->run.program, copied->other));
    else if (copied->fate == TIMES)
        snprintf(text, size, "gets %.6g times the numbers of its master", copied->factor);
    else
        snprintf(text, size, "%s", texts[copied->fate]);
}

static bool add_finding(const judged *judged, const lb_optimizer_tensor *tensor, const copied *copied)
{
    lb_check_step *step = judged->step;
    const lb_program *program = step->run.program;
    lb_check_finding *finding = lb_proof_list_add(step->report, LB_CHECK_UPDATE, program);
    const bool copies = copied->fate > LOST && tensor->back != LB_NONE;
    char what[160];
    if (!finding) return false;
    lb_proof_list_place(finding, program, copies ? step->run.graph.giver[tensor->back] : tensor->op, LB_NONE,
                        step->path);
    finding->effect = copied->effect, finding->factor = copied->fate == TIMES ? copied->factor : NAN;
    snprintf(finding->layer, sizeof finding->layer, "%s", name_of(program, tensor));
    say(judged, copied, what, sizeof what);
    snprintf(finding->message, sizeof finding->message,
             "%s %s%s (%u of %u parameters with masters; off by up to %.2g of the largest update)",
             name_of(program, tensor), what,
             copied->old && copied->fate != OLD ? ", nor was it its master, rounded, as the step began" : "",
             judged->counts[copied->fate], judged->masters, copied->effect);
    return true;
}

/* What has no sibling that is right is what the program means, as far as this step shows. */
static bool is_meant(const judged *judged, const copied *copied)
{
    return (copied->fate == LOST || copied->fate == OTHERWISE) && !copied->old && !judged->counts[RIGHT];
}

static bool tell(const judged *judged)
{
    static const char *const whys[] = {"nothing writes the numbers of %u masters back in this step",
                                       "the parameters of %u masters get other numbers than theirs"};
    const lb_program *program = judged->step->run.program;
    bool told[N_FATES] = {[RIGHT] = true, [UNKNOWN] = true}, found = false;
    char what[160];
    for (uint32_t i = 0; i < judged->step->updates.n; i++) {
        const lb_optimizer_tensor *tensor = &judged->step->updates.tensors[i];
        const copied *copied = &judged->all[i];
        if (tensor->copy == LB_NONE || told[copied->fate]) continue;
        told[copied->fate] = true, found |= !is_meant(judged, copied);
        snprintf(what, sizeof what, "the copies of masters in step %lld", (long long)program->step);
        if (!is_meant(judged, copied)
                ? !add_finding(judged, tensor, copied)
                : !lb_proof_list_leave(judged->step->report, what, whys[copied->fate == OTHERWISE],
                                       judged->counts[copied->fate]))
            return false;
    }
    if (found || !judged->counts[RIGHT]) return true;
    return lb_proof_list_prove(judged->step->report,
                               "step %lld: %u parameters are the rounding of their updated masters",
                               (long long)program->step, judged->counts[RIGHT]);
}

bool lb_master_copies_judge(lb_check_step *step)
{
    judged judged = {.step = step, .all = calloc((size_t)step->updates.n + 1, sizeof *judged.all)};
    for (uint32_t i = 0; judged.all && i < step->updates.n; i++) {
        if (step->updates.tensors[i].copy == LB_NONE) continue;
        judged.all[i] = judge(step, &step->updates.tensors[i]);
        judged.masters++, judged.counts[judged.all[i].fate]++;
    }
    const bool said = judged.all && tell(&judged);
    free(judged.all);
    return said;
}
