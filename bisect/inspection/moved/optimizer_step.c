/* Numbers before and behind an update: see optimizer_step.h. */
#include "moved/optimizer_step.h"

#include "moved/masters.h"

#include "shadow/shadow_numbers.h"

#include "base/array.h"
#include "program/state_name.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- which values ---- */

static bool is_update(const lb_program *p, const lb_group *g, uint32_t op)
{
    return op >= g->first_op && op - g->first_op < g->ops && p->ops[op].phase == LB_PHASE_OPTIMIZER;
}

/* A fused update takes the scale of a GradScaler as its last argument but one. */
static bool takes_scale(const lb_program *p, const lb_op *op)
{
    if (strncmp(lb_op_name(p, op), "aten::_fused_", 13) != 0 || op->args < 2) return false;
    return lb_op_args(p, op)[op->args - 2].tag == LB_ARG_VALUE;
}

static void find_last(const lb_program *p, const lb_moved_run *run, lb_optimizer_tensor *t)
{
    const lb_value *like = &p->values[t->source];
    for (uint32_t v = 0; v < p->n_values; v++) {
        const lb_value *x = &p->values[v];
        const uint32_t giver = run->graph.giver[v];
        if (x->storage != like->storage || giver == LB_NONE || !is_update(p, t->group, giver)) continue;
        if (lb_layout_numel(&x->layout) != t->numel || lb_op_writes(p, &p->ops[giver], like->storage) == LB_NONE)
            continue;
        t->copied |= lb_masters_copies(p, &p->ops[giver]);
        t->scaled |= takes_scale(p, &p->ops[giver]);
        if (t->last == LB_NONE || x->version > p->values[t->last].version) t->last = v, t->op = giver;
    }
}

/* What the update leaves in the parameter that the tensor is a master of. */
static void find_back(const lb_program *p, const lb_moved_run *run, lb_optimizer_tensor *t)
{
    for (uint32_t v = 0; v < p->n_values && t->copy != LB_NONE; v++) {
        const lb_value *x = &p->values[v], *copy = &p->values[t->copy];
        const uint32_t giver = run->graph.giver[v];
        if (giver == LB_NONE || giver < t->group->first_op || lb_op_is_source(p, &p->ops[giver])) continue;
        if (giver > t->op && x->dtype == copy->dtype &&
            lb_op_reads(p, &p->ops[giver], p->values[t->last].storage) != LB_NONE)
            t->cast |= lb_layout_numel(&x->layout) == t->numel;
        if (x->storage != copy->storage || lb_layout_numel(&x->layout) != t->numel) continue;
        if (t->back == LB_NONE || x->version > p->values[t->back].version) t->back = v;
    }
}

/* "exp_avg" of "optimizer.exp_avg:NAME" where that is the tensor's name. */
static bool is_state_of(const lb_program *p, const lb_value *x, const char *name, char state[64])
{
    if (!(x->flags & LB_VALUE_STATE) || x->name == LB_NONE) return false;
    const char *text = lb_program_text(p, x->name);
    const size_t prefix = sizeof LB_STATE_NAME_PREFIX - 1, before = lb_state_name_before(text);
    if (!before || strcmp(text + before, name) != 0 || before - prefix > 64) return false;
    memcpy(state, text + prefix, before - prefix - 1), state[before - prefix - 1] = '\0';
    return true;
}

/* Either kind of rule. */
typedef struct rules {
    const lb_optimizer_rule *numbers;
    const lb_tensor_rule *tensors;
} rules;

static bool has_state(const rules *r, uint32_t k, const char *name, const lb_layout *state, const lb_layout *of)
{
    if (r->numbers) return lb_optimizer_rule_has_state(r->numbers, k, name);
    return lb_tensor_rule_has_state(r->tensors, k, name) &&
           lb_tensor_rule_state_numel(r->tensors, k, of) == lb_layout_numel(state);
}

static void find_states(const lb_program *p, const rules *r, lb_optimizer_tensor *t)
{
    const lb_layout *like = &p->values[t->source].layout;
    char state[64];
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (!lb_op_is_source(p, &p->ops[i])) continue;
        const uint32_t v = lb_op_results(p, &p->ops[i])[0];
        const lb_value *x = &p->values[v];
        if (!is_state_of(p, x, t->name, state)) continue;
        bool known = strcmp(state, "step") == 0 && lb_layout_numel(&x->layout) == 1;
        if (known) t->count = v;
        t->narrow |= lb_dtype_bits(x->dtype) <= 8 && lb_layout_numel(&x->layout) * 2 >= t->numel && !known;
        for (uint32_t k = 0; k < LB_RULE_STATES && (r->numbers || r->tensors); k++)
            if (has_state(r, k, state, &x->layout, like)) t->states[k] = v, known = true;
        if (!known && lb_layout_numel(&x->layout) == t->numel && t->n_others++ < 3) t->others[t->n_others - 1] = v;
    }
}

static bool add_tensor(lb_optimizer_step *s, const lb_group *g, const lb_trained_row *row)
{
    const lb_program *p = s->run->program;
    lb_optimizer_rule rule;
    lb_tensor_rule of_tensors;
    lb_optimizer_tensor t = {.name = row->name, .group = g, .source = row->held, .read = row->read};
    t.copy = row->copy, t.last = t.op = t.count = t.back = LB_NONE, t.steps = lb_optimizer_rule_count(p, g);
    for (uint32_t k = 0; k < LB_RULE_STATES; k++) t.states[k] = LB_NONE;
    t.numel = lb_layout_numel(&p->values[row->held].layout);
    t.n = (uint32_t)(t.numel < LB_OPTIMIZER_NUMBERS ? t.numel : LB_OPTIMIZER_NUMBERS);
    find_last(p, s->run, &t);
    if (t.last == LB_NONE || !t.n) return true;
    find_back(p, s->run, &t);
    rules r = {lb_optimizer_rule_of(p, g, &rule) ? NULL : &rule, NULL};
    if (!r.numbers && !lb_tensor_rule_of(p, g, &of_tensors)) r.tensors = &of_tensors;
    find_states(p, &r, &t);
    t.clipped = r.tensors && lb_tensor_rule_clips(r.tensors), t.squares = NAN;
    t.whole = r.tensors && t.numel <= LB_OPTIMIZER_WHOLE && s->whole + t.numel <= LB_OPTIMIZER_WHOLES;
    if (t.whole) s->whole += t.numel, t.n = (uint32_t)t.numel;
    lb_optimizer_tensor *grown = lb_array_grow(s->tensors, s->n, sizeof *grown);
    if (!grown) return false;
    s->tensors = grown, s->tensors[s->n++] = t;
    return true;
}

bool lb_optimizer_step_open(const lb_moved_run *run, const lb_trained *trained, lb_optimizer_step *s)
{
    const lb_program *p = run->program;
    *s = (lb_optimizer_step){.run = run};
    for (uint32_t i = 0; i < trained->n; i++) {
        const lb_group *g = lb_program_group_of(p, p->values[trained->rows[i].held].storage);
        if (g && g->ops && !add_tensor(s, g, &trained->rows[i])) return false;
    }
    return true;
}

/* ---- their numbers ---- */

/* Of a whole tensor's state all numbers, however many. */
static void take_state(lb_optimizer_step *s, const lb_tensor *tensor, double **to)
{
    *to = lb_shadow_numbers_copy(tensor);
    s->failed |= !*to;
}

/* Of `numel` elements the k-th of n, spread evenly. */
static int64_t position(const lb_optimizer_tensor *t, uint32_t k)
{
    return (int64_t)((double)t->numel * k / t->n);
}

static void take(lb_optimizer_step *s, const lb_optimizer_tensor *t, const lb_tensor *tensor, double **to)
{
    const bool one = lb_layout_numel(&tensor->layout) == 1 && t->numel != 1;
    if (*to || (!one && lb_layout_numel(&tensor->layout) != t->numel)) return;
    double *all = lb_shadow_numbers_copy(tensor), *some = malloc(t->n * sizeof *some);
    s->failed |= !all || !some;
    for (uint32_t k = 0; all && some && k < t->n; k++) some[k] = all[one ? 0 : position(t, k)];
    free(all);
    *to = some;
}

static bool recorded(const lb_optimizer_step *s, uint32_t v, lb_tensor *tensor)
{
    return v != LB_NONE && lb_program_view_value(s->run->view, v, tensor, NULL) == LB_OK && tensor->data;
}

/* A state that a program named itself: a mean of squares where no number is below zero, or else one of gradients. */
static void take_other(lb_optimizer_step *s, lb_optimizer_tensor *t, const lb_tensor *tensor)
{
    double *x = NULL;
    take(s, t, tensor, &x);
    bool square = x != NULL;
    for (uint32_t k = 0; square && k < t->n; k++) square = x[k] >= 0;
    double **to = &t->state[square ? 1 : 0];
    if (*to)
        free(x);
    else
        *to = x;
}

/* Is what was copied to the parameter a cast of it that its optimizer made in this step? */
static bool is_made_here(const lb_optimizer_step *s, const lb_optimizer_tensor *t)
{
    const lb_program *p = s->run->program;
    const lb_op *op = &p->ops[t->op];
    if (op->args < 2 || lb_op_args(p, op)[1].tag != LB_ARG_VALUE) return false;
    const int64_t storage = p->values[lb_op_args(p, op)[1].u.value].storage;
    return lb_masters_made_of(s->run, lb_masters_first(s->run, storage)) == t->source;
}

/* Where a copied parameter's own numbers are: a state; `which` of the others, UINT32_MAX: none is. */
static uint32_t take_master(lb_optimizer_step *s, lb_optimizer_tensor *t)
{
    lb_tensor x, parameter;
    if (!t->copied || !recorded(s, t->source, &parameter)) return UINT32_MAX;
    if (is_made_here(s, t)) t->copied = false, t->mastered = true; /* it began as the parameter itself */
    for (uint32_t i = 0; i < t->n_others && i < 3; i++) {
        if (!recorded(s, t->others[i], &x) || !lb_masters_rounds_to(&x, &parameter)) continue;
        take(s, t, &x, &t->before);
        t->copied = false, t->mastered = true;
        return i;
    }
    return UINT32_MAX;
}

/* States and the number itself as the step found them: sources, whose recorded numbers are exact. */
static void take_sources(lb_optimizer_step *s, lb_optimizer_tensor *t)
{
    lb_tensor x;
    if (t->begun) return;
    t->begun = true;
    const uint32_t master = take_master(s, t);
    if (recorded(s, t->source, &x)) take(s, t, &x, &t->before);
    for (uint32_t k = 0; k < LB_RULE_STATES; k++)
        if (recorded(s, t->states[k], &x)) {
            if (t->whole)
                take_state(s, &x, &t->state[k]);
            else
                take(s, t, &x, &t->state[k]);
        }
    for (uint32_t i = 0; i < t->n_others && i < 3; i++)
        if (i != master && recorded(s, t->others[i], &x)) take_other(s, t, &x);
    if (recorded(s, t->count, &x)) lb_shadow_numbers(&x, &t->steps), t->steps += 1;
}

/* How large it is as a whole, if only some of its numbers are kept. */
static void take_squares(lb_optimizer_step *s, lb_optimizer_tensor *t, const lb_tensor *gradient)
{
    double *all = lb_shadow_numbers_copy(gradient);
    s->failed |= !all;
    t->squares = 0;
    for (int64_t k = 0; all && k < lb_layout_numel(&gradient->layout); k++) t->squares += all[k] * all[k];
    free(all);
}

void lb_optimizer_step_note(lb_optimizer_step *s, const lb_event *event)
{
    const uint32_t *giver = s->run->graph.giver;
    lb_tensor x;
    for (uint32_t i = 0; i < s->n && !s->failed; i++) {
        lb_optimizer_tensor *t = &s->tensors[i];
        const bool made = !lb_op_is_source(s->run->program, &s->run->program->ops[giver[t->source]]);
        if (made && giver[t->source] == event->op && lb_event_exact(event, t->source, &x)) take(s, t, &x, &t->before);
        if (t->back != LB_NONE && giver[t->back] == event->op && lb_event_exact(event, t->back, &x))
            take(s, t, &x, &t->behind);
        if (t->read != LB_NONE && giver[t->read] == event->op && lb_event_exact(event, t->read, &x)) {
            take(s, t, &x, &t->gradient);
            if (t->clipped) take_squares(s, t, &x);
        }
        if (t->op != event->op || !lb_event_exact(event, t->last, &x)) continue;
        take(s, t, &x, &t->after);
        take_sources(s, t);
    }
}

bool lb_optimizer_step_saw(const lb_optimizer_tensor *t)
{
    bool seen = t->before && t->gradient && t->after && !t->scaled;
    for (uint32_t k = 0; seen && k < t->n; k++) seen = isfinite(t->gradient[k]) && isfinite(t->after[k]);
    return seen;
}

/* Groups that one step of an optimizer updates. */
static bool is_of_one(const lb_group *a, const lb_group *b)
{
    return a->optimizer == b->optimizer && a->first_op == b->first_op && a->ops == b->ops;
}

double lb_optimizer_step_norm(const lb_optimizer_step *s, const lb_group *group, bool whole, int64_t *numel)
{
    const lb_program *p = s->run->program;
    uint32_t gradients = 0;
    double squares = 0;
    *numel = 0;
    for (uint32_t i = 0; i < p->n_groups; i++) {
        const lb_group *g = &p->groups[i];
        for (uint32_t k = 0; k < g->params && (g == group || (whole && is_of_one(g, group))); k++)
            gradients += p->group_params[g->first_param + k].gradient >= 0;
    }
    for (uint32_t i = 0; i < s->n; i++) {
        const lb_optimizer_tensor *t = &s->tensors[i];
        if (t->group != group && !(whole && is_of_one(t->group, group))) continue;
        if (t->read == LB_NONE) continue;
        squares += t->squares, *numel += t->numel, gradients--;
    }
    return gradients ? NAN : sqrt(squares);
}

bool lb_optimizer_step_had_begun(const lb_optimizer_tensor *t)
{
    bool begun = false;
    for (uint32_t k = 0; k < LB_RULE_STATES; k++) begun |= t->state[k] != NULL;
    return begun;
}

void lb_optimizer_step_release(lb_optimizer_step *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        lb_optimizer_tensor *t = &s->tensors[i];
        free(t->before), free(t->gradient), free(t->after), free(t->behind);
        for (uint32_t k = 0; k < LB_RULE_STATES; k++) free(t->state[k]);
    }
    free(s->tensors);
    *s = (lb_optimizer_step){0};
}
