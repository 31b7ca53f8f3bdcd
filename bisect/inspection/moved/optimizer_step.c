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

static bool is_update(const lb_program *program, const lb_group *group, uint32_t op)
{
    return op >= group->first_op && op - group->first_op < group->ops && program->ops[op].phase == LB_PHASE_OPTIMIZER;
}

/* A fused update takes the scale of a GradScaler as its last argument but one. */
static bool takes_scale(const lb_program *program, const lb_op *op)
{
    if (strncmp(lb_op_name(program, op), "aten::_fused_", 13) != 0 || op->args < 2) return false;
    return lb_op_args(program, op)[op->args - 2].tag == LB_ARG_VALUE;
}

static void find_last(const lb_program *program, const lb_moved_run *run, lb_optimizer_tensor *tensor)
{
    const lb_value *like = &program->values[tensor->source];
    for (uint32_t v = 0; v < program->n_values; v++) {
        const lb_value *value = &program->values[v];
        const uint32_t giver = run->graph.giver[v];
        if (value->storage != like->storage || giver == LB_NONE || !is_update(program, tensor->group, giver)) continue;
        if (lb_layout_numel(&value->layout) != tensor->numel ||
            lb_op_writes(program, &program->ops[giver], like->storage) == LB_NONE)
            continue;
        tensor->copied |= lb_masters_copies(program, &program->ops[giver]);
        tensor->scaled |= takes_scale(program, &program->ops[giver]);
        if (tensor->last == LB_NONE || value->version > program->values[tensor->last].version)
            tensor->last = v, tensor->op = giver;
    }
}

/* What the update leaves in the parameter that the tensor is a master of. */
static void find_back(const lb_program *program, const lb_moved_run *run, lb_optimizer_tensor *tensor)
{
    for (uint32_t v = 0; v < program->n_values && tensor->copy != LB_NONE; v++) {
        const lb_value *value = &program->values[v], *copy = &program->values[tensor->copy];
        const uint32_t giver = run->graph.giver[v];
        if (giver == LB_NONE || giver < tensor->group->first_op || lb_op_is_source(program, &program->ops[giver]))
            continue;
        if (giver > tensor->op && value->dtype == copy->dtype &&
            lb_op_reads(program, &program->ops[giver], program->values[tensor->last].storage) != LB_NONE)
            tensor->cast |= lb_layout_numel(&value->layout) == tensor->numel;
        if (value->storage != copy->storage || lb_layout_numel(&value->layout) != tensor->numel) continue;
        if (tensor->back == LB_NONE || value->version > program->values[tensor->back].version) tensor->back = v;
    }
}

/* "exp_avg" of "optimizer.exp_avg:NAME" where that is the tensor's name. */
static bool is_state_of(const lb_program *program, const lb_value *value, const char *name, char state[64])
{
    if (!(value->flags & LB_VALUE_STATE) || value->name == LB_NONE) return false;
    const char *text = lb_program_text(program, value->name);
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

static bool has_state(const rules *rules, uint32_t k, const char *name, const lb_layout *state, const lb_layout *of)
{
    if (rules->numbers) return lb_optimizer_rule_has_state(rules->numbers, k, name);
    return lb_tensor_rule_has_state(rules->tensors, k, name) &&
           lb_tensor_rule_state_numel(rules->tensors, k, of) == lb_layout_numel(state);
}

static void find_states(const lb_program *program, const rules *rules, lb_optimizer_tensor *tensor)
{
    const lb_layout *like = &program->values[tensor->source].layout;
    char state[64];
    for (uint32_t i = 0; i < program->n_ops; i++) {
        if (!lb_op_is_source(program, &program->ops[i])) continue;
        const uint32_t v = lb_op_results(program, &program->ops[i])[0];
        const lb_value *value = &program->values[v];
        if (!is_state_of(program, value, tensor->name, state)) continue;
        bool known = strcmp(state, "step") == 0 && lb_layout_numel(&value->layout) == 1;
        if (known) tensor->count = v;
        tensor->narrow |=
            lb_dtype_bits(value->dtype) <= 8 && lb_layout_numel(&value->layout) * 2 >= tensor->numel && !known;
        for (uint32_t k = 0; k < LB_RULE_STATES && (rules->numbers || rules->tensors); k++)
            if (has_state(rules, k, state, &value->layout, like)) tensor->states[k] = v, known = true;
        if (!known && lb_layout_numel(&value->layout) == tensor->numel && tensor->n_others++ < 3)
            tensor->others[tensor->n_others - 1] = v;
    }
}

static bool add_tensor(lb_optimizer_step *step, const lb_group *group, const lb_trained_row *row)
{
    const lb_program *program = step->run->program;
    lb_optimizer_rule rule;
    lb_tensor_rule of_tensors;
    lb_optimizer_tensor tensor = {.name = row->name, .group = group, .source = row->held, .read = row->read};
    tensor.copy = row->copy, tensor.last = tensor.op = tensor.count = tensor.back = LB_NONE,
    tensor.steps = lb_optimizer_rule_count(program, group);
    for (uint32_t k = 0; k < LB_RULE_STATES; k++) tensor.states[k] = LB_NONE;
    tensor.numel = lb_layout_numel(&program->values[row->held].layout);
    tensor.n = (uint32_t)(tensor.numel < LB_OPTIMIZER_NUMBERS ? tensor.numel : LB_OPTIMIZER_NUMBERS);
    find_last(program, step->run, &tensor);
    if (tensor.last == LB_NONE || !tensor.n) return true;
    find_back(program, step->run, &tensor);
    rules rules = {lb_optimizer_rule_of(program, group, &rule) ? NULL : &rule, NULL};
    if (!rules.numbers && !lb_tensor_rule_of(program, group, &of_tensors)) rules.tensors = &of_tensors;
    find_states(program, &rules, &tensor);
    tensor.clipped = rules.tensors && lb_tensor_rule_clips(rules.tensors), tensor.squares = NAN;
    tensor.whole =
        rules.tensors && tensor.numel <= LB_OPTIMIZER_WHOLE && step->whole + tensor.numel <= LB_OPTIMIZER_WHOLES;
    if (tensor.whole) step->whole += tensor.numel, tensor.n = (uint32_t)tensor.numel;
    lb_optimizer_tensor *grown = lb_array_grow(step->tensors, step->n, sizeof *grown);
    if (!grown) return false;
    step->tensors = grown, step->tensors[step->n++] = tensor;
    return true;
}

bool lb_optimizer_step_open(const lb_moved_run *run, const lb_trained *trained, lb_optimizer_step *step)
{
    const lb_program *program = run->program;
    *step = (lb_optimizer_step){.run = run};
    for (uint32_t i = 0; i < trained->n; i++) {
        const lb_group *group = lb_program_group_of(program, program->values[trained->rows[i].held].storage);
        if (group && group->ops && !add_tensor(step, group, &trained->rows[i])) return false;
    }
    return true;
}

/* ---- their numbers ---- */

/* Of a whole tensor's state all numbers, however many. */
static void take_state(lb_optimizer_step *step, const lb_tensor *tensor, double **to)
{
    *to = lb_shadow_numbers_copy(tensor);
    step->failed |= !*to;
}

/* Of `numel` elements the k-th of n, spread evenly. */
static int64_t position(const lb_optimizer_tensor *tensor, uint32_t k)
{
    return (int64_t)((double)tensor->numel * k / tensor->n);
}

static void take(lb_optimizer_step *step, const lb_optimizer_tensor *t, const lb_tensor *tensor, double **to)
{
    const bool one = lb_layout_numel(&tensor->layout) == 1 && t->numel != 1;
    if (*to || (!one && lb_layout_numel(&tensor->layout) != t->numel)) return;
    double *all = lb_shadow_numbers_copy(tensor), *some = malloc(t->n * sizeof *some);
    step->failed |= !all || !some;
    for (uint32_t k = 0; all && some && k < t->n; k++) some[k] = all[one ? 0 : position(t, k)];
    free(all);
    *to = some;
}

static bool recorded(const lb_optimizer_step *step, uint32_t v, lb_tensor *tensor)
{
    return v != LB_NONE && lb_program_view_value(step->run->view, v, tensor, NULL) == LB_OK && tensor->data;
}

/* A state that a program named itself: a mean of squares where no number is below zero, or else one of gradients. */
static void take_other(lb_optimizer_step *step, lb_optimizer_tensor *t, const lb_tensor *tensor)
{
    double *x = NULL;
    take(step, t, tensor, &x);
    bool square = x != NULL;
    for (uint32_t k = 0; square && k < t->n; k++) square = x[k] >= 0;
    double **to = &t->state[square ? 1 : 0];
    if (*to)
        free(x);
    else
        *to = x;
}

/* Is what was copied to the parameter a cast of it that its optimizer made in this step? */
static bool is_made_here(const lb_optimizer_step *step, const lb_optimizer_tensor *tensor)
{
    const lb_program *program = step->run->program;
    const lb_op *op = &program->ops[tensor->op];
    if (op->args < 2 || lb_op_args(program, op)[1].tag != LB_ARG_VALUE) return false;
    const int64_t storage = program->values[lb_op_args(program, op)[1].u.value].storage;
    return lb_masters_made_of(step->run, lb_masters_first(step->run, storage)) == tensor->source;
}

/* Where a copied parameter's own numbers are: a state; `which` of the others, UINT32_MAX: none is. */
static uint32_t take_master(lb_optimizer_step *step, lb_optimizer_tensor *tensor)
{
    lb_tensor x, parameter;
    if (!tensor->copied || !recorded(step, tensor->source, &parameter)) return UINT32_MAX;
    if (is_made_here(step, tensor))
        tensor->copied = false, tensor->mastered = true; /* it began as the parameter itself */
    for (uint32_t i = 0; i < tensor->n_others && i < 3; i++) {
        if (!recorded(step, tensor->others[i], &x) || !lb_masters_rounds_to(&x, &parameter)) continue;
        take(step, tensor, &x, &tensor->before);
        tensor->copied = false, tensor->mastered = true;
        return i;
    }
    return UINT32_MAX;
}

/* States and the number itself as the step found them: sources, whose recorded numbers are exact. */
static void take_sources(lb_optimizer_step *step, lb_optimizer_tensor *tensor)
{
    lb_tensor x;
    if (tensor->begun) return;
    tensor->begun = true;
    const uint32_t master = take_master(step, tensor);
    if (recorded(step, tensor->source, &x)) take(step, tensor, &x, &tensor->before);
    for (uint32_t k = 0; k < LB_RULE_STATES; k++)
        if (recorded(step, tensor->states[k], &x)) {
            if (tensor->whole)
                take_state(step, &x, &tensor->state[k]);
            else
                take(step, tensor, &x, &tensor->state[k]);
        }
    for (uint32_t i = 0; i < tensor->n_others && i < 3; i++)
        if (i != master && recorded(step, tensor->others[i], &x)) take_other(step, tensor, &x);
    if (recorded(step, tensor->count, &x)) lb_shadow_numbers(&x, &tensor->steps), tensor->steps += 1;
}

/* How large it is as a whole, if only some of its numbers are kept. */
static void take_squares(lb_optimizer_step *step, lb_optimizer_tensor *tensor, const lb_tensor *gradient)
{
    double *all = lb_shadow_numbers_copy(gradient);
    step->failed |= !all;
    tensor->squares = 0;
    for (int64_t k = 0; all && k < lb_layout_numel(&gradient->layout); k++) tensor->squares += all[k] * all[k];
    free(all);
}

void lb_optimizer_step_note(lb_optimizer_step *step, const lb_event *event)
{
    const uint32_t *giver = step->run->graph.giver;
    lb_tensor x;
    for (uint32_t i = 0; i < step->n && !step->failed; i++) {
        lb_optimizer_tensor *tensor = &step->tensors[i];
        const bool made = !lb_op_is_source(step->run->program, &step->run->program->ops[giver[tensor->source]]);
        if (made && giver[tensor->source] == event->op && lb_event_exact(event, tensor->source, &x))
            take(step, tensor, &x, &tensor->before);
        if (tensor->back != LB_NONE && giver[tensor->back] == event->op && lb_event_exact(event, tensor->back, &x))
            take(step, tensor, &x, &tensor->behind);
        if (tensor->read != LB_NONE && giver[tensor->read] == event->op && lb_event_exact(event, tensor->read, &x)) {
            take(step, tensor, &x, &tensor->gradient);
            if (tensor->clipped) take_squares(step, tensor, &x);
        }
        if (tensor->op != event->op || !lb_event_exact(event, tensor->last, &x)) continue;
        take(step, tensor, &x, &tensor->after);
        take_sources(step, tensor);
    }
}

bool lb_optimizer_step_saw(const lb_optimizer_tensor *tensor)
{
    bool seen = tensor->before && tensor->gradient && tensor->after && !tensor->scaled;
    for (uint32_t k = 0; seen && k < tensor->n; k++) seen = isfinite(tensor->gradient[k]) && isfinite(tensor->after[k]);
    return seen;
}

/* Groups that one step of an optimizer updates. */
static bool is_of_one(const lb_group *a, const lb_group *b)
{
    return a->optimizer == b->optimizer && a->first_op == b->first_op && a->ops == b->ops;
}

double lb_optimizer_step_norm(const lb_optimizer_step *step, const lb_group *group, bool whole, int64_t *numel)
{
    const lb_program *program = step->run->program;
    uint32_t gradients = 0;
    double squares = 0;
    *numel = 0;
    for (uint32_t i = 0; i < program->n_groups; i++) {
        const lb_group *g = &program->groups[i];
        for (uint32_t k = 0; k < g->params && (g == group || (whole && is_of_one(g, group))); k++)
            gradients += program->group_params[g->first_param + k].gradient >= 0;
    }
    for (uint32_t i = 0; i < step->n; i++) {
        const lb_optimizer_tensor *tensor = &step->tensors[i];
        if (tensor->group != group && !(whole && is_of_one(tensor->group, group))) continue;
        if (tensor->read == LB_NONE) continue;
        squares += tensor->squares, *numel += tensor->numel, gradients--;
    }
    return gradients ? NAN : sqrt(squares);
}

bool lb_optimizer_step_had_begun(const lb_optimizer_tensor *tensor)
{
    bool begun = false;
    for (uint32_t k = 0; k < LB_RULE_STATES; k++) begun |= tensor->state[k] != NULL;
    return begun;
}

void lb_optimizer_step_release(lb_optimizer_step *step)
{
    for (uint32_t i = 0; i < step->n; i++) {
        lb_optimizer_tensor *tensor = &step->tensors[i];
        free(tensor->before), free(tensor->gradient), free(tensor->after), free(tensor->behind);
        for (uint32_t k = 0; k < LB_RULE_STATES; k++) free(tensor->state[k]);
    }
    free(step->tensors);
    *step = (lb_optimizer_step){0};
}
