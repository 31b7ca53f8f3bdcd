/* Arguments and meanings in words: see diff_arguments.h. */
#include "diff/diff_arguments.h"

#include "pair/op_kind.h"
#include "kernel/ops.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- parameter groups -------------------------------------------------------------------------------------------- */

static bool group_has(const lb_program *program, const lb_group *group, const char *parameter, const lb_op *op)
{
    for (uint32_t i = group->first_param; i < group->first_param + group->params; i++) {
        if (parameter && !strcmp(lb_program_text(program, program->group_params[i].name), parameter)) return true;
        if (!parameter && lb_op_writes(program, op, program->group_params[i].storage) != LB_NONE) return true;
    }
    return false;
}

/* The group in whose step the op runs: the one that holds the parameter, or the only one. NULL: not known. */
static const lb_group *group_of(const lb_program *program, uint32_t op, const char *parameter)
{
    const lb_group *only = NULL;
    uint32_t n = 0;
    for (uint32_t g = 0; g < program->n_groups; g++) {
        const lb_group *row = &program->groups[g];
        if (op < row->first_op || op - row->first_op >= row->ops) continue;
        if (group_has(program, row, parameter, &program->ops[op])) return row;
        only = row, n++;
    }
    return n == 1 ? only : NULL;
}

/* The group with the same first parameter. */
static const lb_group *like_group(const lb_program *program, const lb_program *of, const lb_group *group)
{
    const char *name = group->params ? lb_program_text(of, of->group_params[group->first_param].name) : "";
    for (uint32_t g = 0; g < program->n_groups && *name; g++)
        if (program->groups[g].optimizer != LB_NONE && group_has(program, &program->groups[g], name, NULL))
            return &program->groups[g];
    return NULL;
}

static const lb_scalar *option(const lb_program *program, const lb_group *group, const char *name)
{
    for (uint32_t i = group->first_option; i < group->first_option + group->options; i++)
        if (!strcmp(lb_program_text(program, program->scalars[i].name), name)) return &program->scalars[i];
    return NULL;
}

/* NaN where the group has no such option, and so no formula with it holds. */
static double option_value(const lb_program *program, const lb_group *group, const char *name)
{
    const lb_scalar *found = option(program, group, name);
    return found ? found->number : NAN;
}

static bool has_several_groups(const lb_program *program)
{
    for (uint32_t g = 1; g < program->n_groups; g++) /* one that steps twice is one */
        if (program->groups[g].index != program->groups[0].index ||
            program->groups[g].optimizer != program->groups[0].optimizer)
            return true;
    return false;
}

/* Where the program has several groups: what the names of this one's parameters begin with ("fc"), or its number. */
static const char *group_label(lb_diff_report *report, const lb_program *program, const lb_group *group)
{
    char text[200];
    if (!has_several_groups(program) || !group->params) return "";
    snprintf(text, sizeof text, "%s", lb_program_text(program, program->group_params[group->first_param].name));
    for (uint32_t i = group->first_param; i < group->first_param + group->params; i++) {
        const char *name = lb_program_text(program, program->group_params[i].name);
        while (*text && (strncmp(name, text, strlen(text)) || (name[strlen(text)] && name[strlen(text)] != '.'))) {
            char *dot = strrchr(text, '.');
            *(dot ? dot : text) = '\0';
        }
    }
    char *leaf = group->params == 1 ? strrchr(text, '.') : NULL; /* "fc" of "fc.weight" */
    if (leaf) *leaf = '\0';
    if (!*text) snprintf(text, sizeof text, "%" PRIu32, group->index);
    return lb_report_keep(report, text);
}

/* ---- formulas ---------------------------------------------------------------------------------------------------- */

/* What torch's optimizers, and most that are written by hand, make of options: as Python computes it, in f64. `t`: the
 * step that the optimizer counts, which is none of the options. */
typedef struct formula {
    const char *options[3];
    double (*value)(const double *x, double t);
    bool counts; /* it has t */
} formula;

static double itself(const double *x, double t)
{
    return (void)t, x[0];
}
static double negative(const double *x, double t)
{
    return (void)t, -x[0];
}
static double rest(const double *x, double t)
{
    return (void)t, 1 - x[0];
}
static double decay(const double *x, double t)
{
    return (void)t, 1 - x[0] * x[1];
}
static double product(const double *x, double t)
{
    return (void)t, x[0] * x[1];
}
static double negative_product(const double *x, double t)
{
    return (void)t, -x[0] * x[1];
}
static double corrected(const double *x, double t)
{
    return x[0] / (1 - pow(x[1], t));
}
static double negative_corrected(const double *x, double t)
{
    return -(x[0] / (1 - pow(x[1], t)));
}

static const formula formulas[] = {
    {{"lr"}, itself, false},
    {{"lr"}, negative, false},
    {{"weight_decay"}, itself, false},
    {{"lr", "weight_decay"}, decay, false},
    {{"lr", "weight_decay"}, product, false},
    {{"lr", "weight_decay"}, negative_product, false},
    {{"eps"}, itself, false},
    {{"momentum"}, itself, false},
    {{"dampening"}, rest, false},
    {{"alpha"}, itself, false},
    {{"alpha"}, rest, false},
    {{"betas.0"}, itself, false},
    {{"betas.0"}, rest, false},
    {{"betas.1"}, itself, false},
    {{"betas.1"}, rest, false},
    {{"lr", "betas.0"}, corrected, true},
    {{"lr", "betas.0"}, negative_corrected, true},
};

static bool gives(const formula *formula, const lb_program *program, const lb_group *group, double number, double t)
{
    double x[3] = {0, 0, 0};
    for (int i = 0; i < 3 && formula->options[i]; i++) x[i] = option_value(program, group, formula->options[i]);
    return formula->value(x, t) == number;
}

static bool gives_both(const formula *formula, const lb_program *const program[2], const lb_group *const group[2],
                       const double numbers[2])
{
    enum { MOST_STEPS = 4096 };
    for (double t = 1; t <= (formula->counts ? MOST_STEPS : 1); t++)
        if (gives(formula, program[0], group[0], numbers[0], t) && gives(formula, program[1], group[1], numbers[1], t))
            return true;
    return false;
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

typedef struct pair {
    lb_diff_report *report;
    const lb_program *const *programs;
    const lb_group *groups[2]; /* NULL: not of an optimizer */
    lb_diff_row *row;
} pair;

static void add(const pair *pair, const char *name, const char *first, const char *second, const char *group)
{
    lb_diff_row *row = pair->row;
    for (uint32_t i = 0; i < row->n_arguments; i++)
        if (!strcmp(row->arguments[i].name, name)) return;
    if (row->n_arguments == LB_DIFF_ARGUMENTS) return;
    row->arguments[row->n_arguments++] =
        (lb_diff_argument){lb_report_keep(pair->report, name), lb_report_keep(pair->report, first),
                           lb_report_keep(pair->report, second), group};
}

/* As short as tells the two apart, and as people write it. */
static void add_numbers(const pair *pair, const char *name, double first, double second, const char *group)
{
    char texts[2][40];
    for (int digits = 6; digits <= 17; digits += 11) {
        snprintf(texts[0], sizeof texts[0], "%.*g", digits, first);
        snprintf(texts[1], sizeof texts[1], "%.*g", digits, second);
        if (strcmp(texts[0], texts[1])) break;
    }
    add(pair, name, texts[0], texts[1], group);
}

static bool add_option(const pair *pair, const char *name)
{
    const double first = option_value(pair->programs[0], pair->groups[0], name),
                 second = option_value(pair->programs[1], pair->groups[1], name);
    if (first == second || isnan(first) || isnan(second)) return false;
    add_numbers(pair, name, first, second, group_label(pair->report, pair->programs[0], pair->groups[0]));
    return true;
}

/* The options whose formula gives both numbers. */
static bool add_by_formula(const pair *pair, double first, double second)
{
    bool added = false;
    if (!pair->groups[0] || !pair->groups[1]) return false;
    for (size_t f = 0; f < sizeof formulas / sizeof *formulas && !added; f++) {
        if (!gives_both(&formulas[f], pair->programs, pair->groups, (double[]){first, second})) continue;
        for (int i = 0; i < 3 && formulas[f].options[i]; i++) added |= add_option(pair, formulas[f].options[i]);
    }
    return added;
}

static bool is_number(const lb_arg *arg, double *number)
{
    if (arg->tag == LB_ARG_FLOAT) *number = arg->u.f;
    if (arg->tag == LB_ARG_INT) *number = (double)arg->u.i;
    return arg->tag == LB_ARG_FLOAT || arg->tag == LB_ARG_INT;
}

static void arg_text(const lb_program *program, const lb_arg *arg, char *text, size_t size)
{
    size_t used = 0;
    switch (arg->tag) {
    case LB_ARG_NONE: snprintf(text, size, "none"); return;
    case LB_ARG_VALUE: snprintf(text, size, "a tensor"); return;
    case LB_ARG_INT: snprintf(text, size, "%" PRId64, arg->u.i); return;
    case LB_ARG_FLOAT: snprintf(text, size, "%.9g", arg->u.f); return;
    case LB_ARG_BOOL: snprintf(text, size, "%s", arg->u.i ? "true" : "false"); return;
    case LB_ARG_DTYPE: snprintf(text, size, "%s", lb_dtype_name((lb_dtype)arg->u.i)); return;
    case LB_ARG_STRING: snprintf(text, size, "%s", lb_program_text(program, arg->u.string)); return;
    default: break;
    }
    used += (size_t)snprintf(text, size, "[");
    for (uint32_t i = 0; i < arg->count && used + 1 < size; i++) {
        char item[60];
        arg_text(program, &program->args[arg->u.first + i], item, sizeof item);
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "", item);
    }
    if (used + 1 < size) snprintf(text + used, size - used, "]");
}

static void add_pair(const pair *pair, const char *name, const lb_arg *a, const lb_arg *b)
{
    char texts[2][120];
    double first, second;
    if (a->tag == LB_ARG_VALUE && b->tag == LB_ARG_VALUE) return;
    if (a->tag == LB_ARG_LIST && b->tag == LB_ARG_LIST &&
        a->count == b->count) { /* the first that differs, of a list of scalars */
        const lb_arg *of_a = pair->programs[0]->args + a->u.first, *of_b = pair->programs[1]->args + b->u.first;
        for (uint32_t i = 0; i < a->count; i++)
            if (is_number(&of_a[i], &first) && is_number(&of_b[i], &second) && first != second &&
                add_by_formula(pair, first, second))
                return;
    }
    if (lb_op_kind_same_arg(pair->programs[0], a, pair->programs[1], b)) return;
    if (is_number(a, &first) && is_number(b, &second)) {
        if (!add_by_formula(pair, first, second)) add_numbers(pair, name, first, second, "");
        return;
    }
    arg_text(pair->programs[0], a, texts[0], sizeof texts[0]);
    arg_text(pair->programs[1], b, texts[1], sizeof texts[1]);
    if (strcmp(texts[0], texts[1])) add(pair, name, texts[0], texts[1], "");
}

/* The schema's name of argument `a`: the a-th word of the row's, without its marks. */
static void schema_name(const char *op, uint32_t a, char *name, size_t size)
{
    lb_op_form form;
    const lb_op_row *row = lb_op_find(op, &form);
    const char *word = row && row->args ? row->args : "";
    for (uint32_t i = 0; i < a && *word; i++) word += strcspn(word, " "), word += *word == ' ';
    const size_t n = strcspn(word, " " LB_ARG_MARKS);
    if (n)
        snprintf(name, size, "%.*s", (int)n, word);
    else
        snprintf(name, size, "argument %" PRIu32, a + 1);
}

static pair pair_of(lb_diff_report *report, const lb_program *const program[2], const uint32_t ops[2], lb_diff_row *row)
{
    pair x = {report, program, {NULL, NULL}, row};
    int of = program[0]->ops[ops[0]].phase == LB_PHASE_OPTIMIZER ? 0 : 1;
    if (program[of]->ops[ops[of]].phase != LB_PHASE_OPTIMIZER) return x;
    x.groups[of] = group_of(program[of], ops[of], row->parameter);
    if (!x.groups[of]) of = !of, x.groups[of] = group_of(program[of], ops[of], row->parameter);
    if (x.groups[of]) x.groups[!of] = like_group(program[!of], program[of], x.groups[of]);
    return x;
}

/* One op, in place or not, whatever its second operand is: "add.Tensor" and "add_.Scalar" take the same arguments in
 * one order. */
static bool is_one_spelling(const char *x, const char *y)
{
    size_t n = strcspn(x, "."), m = strcspn(y, ".");
    if (!strcmp(x, y)) return true;
    while (n && x[n - 1] == '_') n--;
    while (m && y[m - 1] == '_') m--;
    const bool plain[] = {!strncmp(x + strcspn(x, "."), ".Tensor", 7) || !strncmp(x + strcspn(x, "."), ".Scalar", 7),
                          !strncmp(y + strcspn(y, "."), ".Tensor", 7) || !strncmp(y + strcspn(y, "."), ".Scalar", 7)};
    return n == m && !strncmp(x, y, n) && plain[0] && plain[1];
}

/* The first of its arguments that is a number. */
static bool scalar_of(const lb_program *program, const lb_op *op, double *number)
{
    for (uint32_t i = 0; i < op->args; i++)
        if (is_number(&lb_op_args(program, op)[i], number)) return true;
    return false;
}

/* The p of a dropout that the op belongs to: torch draws what is kept, with probability 1 - p, and divides that by
 * it. NaN: it is none. */
static double dropped_by(const lb_program *program, uint32_t at)
{
    const lb_op *op = &program->ops[at];
    double kept, by;
    if ((lb_op_is_in_any_form(program, op, "native_dropout") || lb_op_is_in_any_form(program, op, "dropout")) &&
        scalar_of(program, op, &by))
        return by;
    const bool draws = lb_op_is_in_any_form(program, op, "bernoulli");
    if ((!draws && !lb_op_is_in_any_form(program, op, "div")) || !scalar_of(program, op, &kept)) return NAN;
    for (uint32_t i = 1; i < 4 && (draws ? at + i < program->n_ops : at >= i); i++) {
        const lb_op *beside = &program->ops[draws ? at + i : at - i];
        if (lb_op_is_in_any_form(program, beside, draws ? "div" : "bernoulli") && scalar_of(program, beside, &by) &&
            by == kept)
            return 1 - kept;
    }
    return NAN;
}

static void add_options(const pair *pair)
{
    if (!pair->groups[0] || !pair->groups[1]) return;
    const uint32_t first = pair->groups[0]->first_option, n = pair->groups[0]->options;
    for (uint32_t i = first; i < first + n; i++)
        add_option(pair, lb_program_text(pair->programs[0], pair->programs[0]->scalars[i].name));
}

void lb_arguments_describe(lb_diff_report *report, const lb_program *const programs[2], const uint32_t ops[2],
                           lb_diff_row *row)
{
    char name[80];
    const lb_op *a = &programs[0]->ops[ops[0]], *b = &programs[1]->ops[ops[1]];
    if (!is_one_spelling(lb_op_name(programs[0], a), lb_op_name(programs[1], b)) || a->args != b->args) return;
    const pair pair = pair_of(report, programs, ops, row);
    const double rates[] = {dropped_by(programs[0], ops[0]), dropped_by(programs[1], ops[1])};
    if (!isnan(rates[0]) && !isnan(rates[1])) {
        if (rates[0] != rates[1]) add_numbers(&pair, "dropout p", rates[0], rates[1], "");
        return;
    }
    for (uint32_t i = 0; i < a->args; i++) {
        schema_name(lb_op_name(programs[0], a), i, name, sizeof name);
        add_pair(&pair, name, &lb_op_args(programs[0], a)[i], &lb_op_args(programs[1], b)[i]);
    }
    /* A scalar by a formula that is none of ours: the options stand beside it. */
    bool named = false;
    for (uint32_t i = 0; i < row->n_arguments && pair.groups[0]; i++)
        named |= option(programs[0], pair.groups[0], row->arguments[i].name) != NULL;
    if (row->n_arguments && !named) add_options(&pair);
}

/* Is the number what a formula gives of the option's value? 0 and 1 are no evidence. */
static bool is_made_of(const lb_program *program, const lb_group *group, const char *name, double number)
{
    enum { MOST_STEPS = 256 };
    if (number == 0 || fabs(number) == 1) return false;
    for (size_t f = 0; f < sizeof formulas / sizeof *formulas; f++) {
        bool has = false;
        for (int i = 0; i < 3 && formulas[f].options[i]; i++) has |= !strcmp(formulas[f].options[i], name);
        for (double t = 1; has && t <= (formulas[f].counts ? MOST_STEPS : 1); t++)
            if (gives(&formulas[f], program, group, number, t)) return true;
    }
    return option_value(program, group, name) == number;
}

/* Has an op among its arguments, or in a list of them, a number that is made of the option? */
static bool reads_option(const lb_program *program, const lb_op *op, const lb_group *group, const char *name)
{
    double number;
    for (uint32_t i = 0; i < op->args; i++) {
        const lb_arg *arg = &lb_op_args(program, op)[i],
                     *items = arg->tag == LB_ARG_LIST ? program->args + arg->u.first : arg;
        for (uint32_t k = 0; k < (arg->tag == LB_ARG_LIST ? arg->count : 1); k++)
            if (is_number(&items[k], &number) && is_made_of(program, group, name, number)) return true;
    }
    return false;
}

static bool is_read(const pair *pair, const lb_arguments_span *span, const char *name)
{
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < span->n[k]; i++)
            if (reads_option(pair->programs[k], &pair->programs[k]->ops[span->ops[k][i]], pair->groups[k], name))
                return true;
    return false;
}

void lb_arguments_options(lb_diff_report *report, const lb_program *const programs[2], const uint32_t ops[2],
                          const lb_arguments_span *span, lb_diff_row *row)
{
    const pair pair = pair_of(report, programs, ops, row);
    bool added = false;
    if (!pair.groups[0] || !pair.groups[1]) return;
    const uint32_t first = pair.groups[0]->first_option, n = pair.groups[0]->options;
    for (uint32_t i = first; i < first + n && span; i++) {
        const char *name = lb_program_text(programs[0], programs[0]->scalars[i].name);
        if (is_read(&pair, span, name)) added |= add_option(&pair, name);
    }
    if (!added) add_options(&pair);
}

/* ---- what an op is for ------------------------------------------------------------------------------------------- */

static bool is_single(const lb_program *program, const lb_op *op)
{
    const uint32_t v = lb_op_outcomes(op) ? lb_op_outcome(program, op, 0) : LB_NONE;
    return v != LB_NONE && lb_layout_numel(&program->values[v].layout) == 1;
}

static bool optimizer_meaning(const lb_program *program, uint32_t at, char *text, size_t size)
{
    const lb_op *op = &program->ops[at];
    const lb_group *group = op->phase == LB_PHASE_OPTIMIZER ? group_of(program, at, NULL) : NULL;
    double number;
    if (!group || !scalar_of(program, op, &number)) return false;
    if (lb_op_is_in_any_form(program, op, "mul") &&
        gives(&(formula){{"lr", "weight_decay"}, decay, false}, program, group, number, 1))
        snprintf(text, size, "weight decay: parameters times 1 - lr * weight_decay");
    else if (lb_op_is_in_any_form(program, op, "add") && gives(&(formula){{"weight_decay"}, itself, false}, program,
                                                               group, lb_op_args(program, op)[op->args - 1].u.f, 1))
        snprintf(text, size, "weight decay: weight_decay times parameters, added to the gradient");
    else
        return false;
    return true;
}

/* tanh between two scalings, by about the same number. */
static bool is_soft_cap(const lb_program *program, const uint32_t *ops, uint32_t n, double *cap)
{
    bool tanh = false, before = false, after = false;
    double number = NAN;
    for (uint32_t i = 0; i < n; i++) {
        const lb_op *op = &program->ops[ops[i]];
        const bool scales = (lb_op_is_in_any_form(program, op, "div") || lb_op_is_in_any_form(program, op, "mul")) &&
                            scalar_of(program, op, &number);
        if (lb_op_is_in_any_form(program, op, "tanh")) tanh = true;
        before |= scales && !tanh, after |= scales && tanh;
        if (scales && tanh) *cap = number;
    }
    return tanh && before && after;
}

static bool is_dropout(const lb_program *program, const uint32_t *ops, uint32_t n, double *rate)
{
    *rate = NAN;
    for (uint32_t i = 0; i < n && isnan(*rate); i++) *rate = dropped_by(program, ops[i]);
    return !isnan(*rate);
}

/* Values that ops of one side alone make of what `ops` give, in forward. */
typedef struct reach {
    const lb_program *p;
    bool *made;
    uint32_t from_here, from_elsewhere; /* of the op at hand: inputs */
} reach;

static void count_input(void *context, uint32_t value)
{
    reach *reach = context;
    if (reach->made[value])
        reach->from_here++;
    else
        reach->from_elsewhere++;
}

/* Do they end in a number that is added to another one, which the other side has? Nothing need read a loss: only what
 * backward makes of it leaves the step, so that the addition is among no ops that lead there. */
static bool adds_to_loss(const lb_program *program, const uint32_t *ops, uint32_t n, const uint32_t *partner)
{
    reach reach = {program, calloc(program->n_values + 1u, 1), 0, 0};
    bool found = false;
    for (uint32_t i = ops[0]; i < program->n_ops && reach.made && !found; i++) {
        const lb_op *op = &program->ops[i];
        bool given = false;
        for (uint32_t k = 0; k < n && !given; k++) given = ops[k] == i;
        if (op->phase != LB_PHASE_FORWARD || (!given && partner[i] != LB_NONE)) continue;
        reach.from_here = reach.from_elsewhere = 0;
        lb_op_each_input(program, op, count_input, &reach);
        if (!given && !reach.from_here) continue;
        found = lb_op_is_in_any_form(program, op, "add") && is_single(program, op) && reach.from_here == 1 &&
                reach.from_elsewhere == 1;
        for (uint32_t k = 0; k < lb_op_outcomes(op); k++)
            if (lb_op_outcome(program, op, k) != LB_NONE) reach.made[lb_op_outcome(program, op, k)] = true;
    }
    free(reach.made);
    return found;
}

void lb_arguments_meaning(const lb_program *program, const uint32_t *ops, uint32_t n, const uint32_t *partner,
                          char *text, size_t size)
{
    *text = '\0';
    double number = 0;
    if (!n || optimizer_meaning(program, ops[0], text, size)) return;
    const lb_op *op = &program->ops[ops[0]];
    if (op->phase != LB_PHASE_FORWARD) return;
    if (is_soft_cap(program, ops, n, &number))
        snprintf(text, size, "a soft cap: tanh between two scalings, by %.6g", number);
    else if (is_dropout(program, ops, n, &number))
        snprintf(text, size, "dropout with p %.6g", number);
    else if (adds_to_loss(program, ops, n, partner))
        snprintf(text, size, "a term of a loss: a number that is added to another");
    else if (n == 1 && lb_op_is_in_any_form(program, op, "mul") && scalar_of(program, op, &number))
        snprintf(text, size, "a factor of %.9g", number);
    else if (n == 1 && lb_op_is_in_any_form(program, op, "div") && scalar_of(program, op, &number))
        snprintf(text, size, "a division by %.9g", number);
}
