/* The table of what lines of code cost: each group of ops alone, and all without it. See digits.h.
 *
 * Which groups are tried is chosen by what the first exact run has: the gradient of a result times what it rounded is
 * what the loss changes by, to first order. Groups without a gradient (a table of phases) are tried if all of them
 * together matter; groups of backward by how much they round. */
#include "check/digits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Such a share of the whole rounding makes results without a gradient worth a run each. */
static const double MATTERS = 0.05;
/* A line is a finding that costs a digit more than all others together, and moves what leaves the step by a twentieth.
 * Of the healthy steps of test_digits.py and test_check.py none comes near both: see tests/BENCHMARKS.md. */
static const double TIMES = 10, LARGE = 0.05;
/* And by more than so many roundings of its dtype, so that a cast to 8 bits that does its best is none. */
static const double ROUNDINGS = 16;
/* Groups are tried until nearly the whole is explained, and two of one reach, one behind the other, are small. */
static const double SMALL = 1e-4, EXPLAINED = 0.9;
/* Lines are cured by a run that cost such a share, as many as a third of the runs allow, and four at most. */
static const double WORTH = 0.01;
enum { CURES = 4 };

typedef struct table {
    lb_digits_step *step;
    lb_digits *d; /* of the first rank */
    lb_rounding_ranks ranks;
    lb_rounding_groups groups;
    uint8_t **added; /* per rank and op */
    lb_check_effect all;
    double constants;         /* what all groups without a gradient cost together; NaN: not tried */
    bool backward;            /* most of what gradients lose is rounded in backward */
    uint32_t first;           /* row of the report */
    uint32_t *tried, n_tried; /* the group of each row from there on */
} table;

static bool have(const table *table, uint32_t runs)
{
    return table->d->run.runs + runs <= table->step->limit;
}

static const lb_program *program_of(const table *table, uint32_t rank)
{
    return table->step->ranks[rank].run.program;
}

static void mark_none(table *table)
{
    for (uint32_t k = 0; k < table->step->n; k++) memset(table->added[k], 0, program_of(table, k)->n_ops);
}

static lb_status try_group(table *table, uint32_t group, bool without, lb_check_effect *effect, lb_err *err)
{
    mark_none(table);
    lb_rounding_groups_mark(&table->groups, group, without, table->added);
    return lb_rounding_ranks_add(&table->ranks, table->added, effect, err);
}

/* ---- one row ---- */

static bool is_cast(const char *op)
{
    return strcmp(op, "aten::_to_copy") == 0 || strncmp(op, "aten::copy_", 11) == 0;
}

static void say_cure(lb_check_digit *row)
{
    const bool narrow = lb_dtype_precision(row->dtype) < lb_dtype_precision(LB_F32);
    const char *wide = narrow ? "f32" : "f64";
    if (is_cast(row->op))
        snprintf(row->cure, sizeof row->cure, "what reads this cast to %s reads the %s number",
                 lb_dtype_name(row->dtype), wide);
    else
        snprintf(row->cure, sizeof row->cure, "the op runs in %s, and its result stays %s: --precision '%s%s%s=%s'",
                 wide, wide, *row->layer ? row->layer : "op=", *row->layer ? "/" : "", row->op, wide);
}

static bool is_cured(const lb_check_digit *row)
{
    return !isnan(row->cured.loss) || !isnan(row->cured.logits) || !isnan(row->cured.gradients);
}

/* "the loss by 1e-3 (of 4e-3 all others leave 3e-3)", if the effect is known. */
static void say_effect(lb_check_digit *row, const char *what, double alone, double left, double all)
{
    const size_t n = strlen(row->message);
    if (isnan(alone) || n + 1 >= sizeof row->message) return;
    const int more = snprintf(row->message + n, sizeof row->message - n, "%s %s by %.2g",
                              n > strlen("alone it moves") ? "," : "", what, alone);
    if (!isnan(left) && more > 0 && n + (size_t)more + 1 < sizeof row->message)
        snprintf(row->message + n + more, sizeof row->message - n - (size_t)more, " (cured, %.2g of %.2g are left)",
                 left, all);
}

static void say_row(const table *table, lb_check_digit *row)
{
    const double alone = lb_digit_list_cost(&row->effect), all = lb_digit_list_cost(&table->all);
    row->digits = alone > 0 ? -log10(alone) : NAN;
    row->share = all > 0 ? fmin(1, alone * alone / (all * all)) : NAN;
    snprintf(row->message, sizeof row->message, "alone it moves");
    say_effect(row, "the loss", row->effect.loss, row->cured.loss, table->all.loss);
    say_effect(row, "the logits", row->effect.logits, row->cured.logits, table->all.logits);
    say_effect(row, "the gradients", row->effect.gradients, row->cured.gradients, table->all.gradients);
}

static bool find_large(const table *table, uint32_t group, const lb_check_digit *row)
{
    const lb_program *program = program_of(table, table->groups.list[group].rank);
    const double alone = lb_digit_list_cost(&row->effect), left = lb_digit_list_cost(&row->cured);
    if (!is_cured(row) || !(alone > TIMES * left)) return true;
    if (!(alone > fmax(LARGE, ROUNDINGS * lb_dtype_unit_roundoff(row->dtype)))) return true;
    lb_check_finding *finding = lb_proof_list_add(table->d->report, LB_CHECK_ROUNDED, program);
    if (!finding) return false;
    lb_proof_list_place(finding, program, row->index, LB_NONE, table->d->path);
    finding->effect = alone;
    snprintf(finding->message, sizeof finding->message,
             "what this line rounds to %s costs %.0f times what all others cost together: %s",
             lb_dtype_name(row->dtype), alone / left, row->message);
    return true;
}

/* The layers of all its ops, on all ranks. */
static void name_layers(table *table, uint32_t group, lb_check_digit *row)
{
    mark_none(table);
    lb_rounding_groups_mark(&table->groups, group, false, table->added);
    for (uint32_t k = 0; k < table->step->n; k++)
        for (uint32_t i = 0; i < program_of(table, k)->n_ops; i++)
            if (table->added[k][i])
                lb_digit_list_widen(row, lb_op_layer(program_of(table, k), &program_of(table, k)->ops[i]));
}

/* A group by itself. */
static lb_status add_row(table *table, uint32_t group, double *share, lb_err *err)
{
    const lb_rounding_group *one = &table->groups.list[group];
    const lb_program *program = program_of(table, one->rank);
    lb_check_digit *row = lb_digit_list_add(table->d->report, LB_CHECK_DIGIT_ROUNDING, program);
    if (!row) return lb_fail(err, LB_ERR_NOMEM, "out of memory for rows");
    lb_digit_list_place(row, program, one->first);
    name_layers(table, group, row);
    row->ops = one->ops, row->dtype = one->dtype;
    if (lb_rounding_groups_adds(&table->groups, group))
        row->layer[0] = 0,
        snprintf(row->cure, sizeof row->cure, "micro-batches add their gradients up in a wider dtype");
    else
        say_cure(row);
    LB_TRY(try_group(table, group, false, &row->effect, err));
    say_row(table, row);
    *share = row->share, table->tried[table->n_tried++] = group;
    return LB_OK;
}

/* The row that costs most of those that were not cured yet and cost enough; n_tried: there is none. */
static uint32_t next_cure(const table *table)
{
    uint32_t best = table->n_tried;
    for (uint32_t i = 0; i < table->n_tried; i++) {
        const lb_check_digit *row = &table->d->report->digits[table->first + i];
        if (is_cured(row) || !(row->share >= WORTH)) continue;
        if (best == table->n_tried || row->share > table->d->report->digits[table->first + best].share) best = i;
    }
    return best;
}

/* All others without it: what is left where the cure is applied. */
static lb_status cure_rows(table *table, lb_err *err)
{
    for (uint32_t i = next_cure(table); i < table->n_tried && have(table, 1); i = next_cure(table)) {
        lb_check_digit *row = &table->d->report->digits[table->first + i];
        LB_TRY(try_group(table, table->tried[i], true, &row->cured, err));
        if (!is_cured(row)) break;
        say_row(table, row);
        if (!find_large(table, table->tried[i], row)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    }
    return LB_OK;
}

/* ---- which groups ---- */

static lb_status try_constants(table *table, lb_err *err)
{
    lb_check_effect effect;
    bool any = false;
    table->constants = NAN;
    mark_none(table);
    for (uint32_t i = 0; i < table->groups.n; i++) {
        if (lb_rounding_group_reach(&table->groups.list[i]) != LB_ROUNDING_CONSTANT) continue;
        lb_rounding_groups_mark(&table->groups, i, false, table->added);
        any = true;
    }
    if (!any || !have(table, 3)) return LB_OK;
    LB_TRY(lb_rounding_ranks_add(&table->ranks, table->added, &effect, err));
    table->constants = lb_digit_list_cost(&effect);
    return LB_OK;
}

/* Where gradients are rounded: all groups of forward together. */
static lb_status try_forward(table *table, lb_err *err)
{
    lb_check_effect effect;
    if (isnan(table->all.gradients) || !have(table, 7)) return LB_OK;
    mark_none(table);
    for (uint32_t i = 0; i < table->groups.n; i++)
        if (!table->groups.list[i].backward) lb_rounding_groups_mark(&table->groups, i, false, table->added);
    LB_TRY(lb_rounding_ranks_add(&table->ranks, table->added, &effect, err));
    table->backward = effect.gradients < sqrt(0.5) * table->all.gradients;
    return LB_OK;
}

/* The next group of that reach from `*at` on; n: there is none. */
static uint32_t next_of(const table *table, lb_rounding_reach reach, uint32_t *at)
{
    while (*at < table->groups.n && lb_rounding_group_reach(&table->groups.list[*at]) != reach) ++*at;
    return *at < table->groups.n ? (*at)++ : table->groups.n;
}

static lb_status try_groups(table *table, lb_err *err)
{
    const double all = lb_digit_list_cost(&table->all);
    const bool constants = table->constants > MATTERS * all, first = table->constants > all / 2;
    const lb_rounding_reach order[] = {first ? LB_ROUNDING_CONSTANT : LB_ROUNDING_FOLLOWED,
                                       first ? LB_ROUNDING_CONSTANT : LB_ROUNDING_BACKWARD,
                                       first ? LB_ROUNDING_FOLLOWED : LB_ROUNDING_CONSTANT,
                                       table->backward ? LB_ROUNDING_BACKWARD : LB_ROUNDING_FOLLOWED};
    uint32_t at[3] = {0, 0, 0}, small[3] = {0, 0, 0}, cures = CURES;
    double explained = 0;
    while (cures > 1 && !have(table, 3 * cures)) cures--;
    for (uint32_t idle = 0, k = 0; idle < 4 && have(table, 1 + cures); k = (k + 1) % 4) {
        const lb_rounding_reach reach = order[k];
        const bool done = (reach == LB_ROUNDING_CONSTANT && !constants) || (small[reach] >= 2 && explained > EXPLAINED);
        const uint32_t group = done ? table->groups.n : next_of(table, reach, &at[reach]);
        double share = NAN;
        idle = group < table->groups.n ? 0 : idle + 1;
        if (group == table->groups.n) continue;
        LB_TRY(add_row(table, group, &share, err));
        if (!isnan(share)) explained += share;
        small[reach] = share < SMALL ? small[reach] + 1 : 0;
    }
    return cure_rows(table, err);
}

/* ---- the whole ---- */

static bool leave(const lb_digits *digits, const char *why)
{
    char what[160];
    snprintf(what, sizeof what, "where the digits of step %lld go", (long long)digits->run.program->step);
    return lb_proof_list_leave(digits->report, what, "%s", why);
}

/* What the rounding of some ops is not known of: how many, and the first one. */
static uint32_t unknown_ops(const table *table, const char **first)
{
    uint32_t n = 0;
    *first = "";
    for (uint32_t k = 0; k < table->step->n; k++) {
        const lb_rounding_log *log = &table->step->ranks[k].log;
        if (!n && log->unknown)
            *first = lb_op_name(program_of(table, k), &program_of(table, k)->ops[log->first_unknown]);
        n += log->unknown;
    }
    return n;
}

/* The exact run with all rounding has to reach what was recorded: by as much as it does not, the rounding of some op is
 * not known. */
static bool prove(const table *table)
{
    const lb_digits *digits = table->d;
    const lb_rounding_ranks *ranks = &table->ranks;
    const double moved = fabs(ranks->recorded - ranks->loss), gap = fabs(table->all.reached - ranks->recorded);
    char of[48] = "";
    if (isnan(ranks->loss)) return true;
    if (isnan(ranks->recorded))
        return leave(digits,
                     "the recorded loss is not finite, or was not kept: what ops round does not say how it came about");
    if (gap > 0.1 * moved + 1e-9 * fabs(ranks->loss)) {
        char why[240];
        const char *first;
        const uint32_t unknown = unknown_ops(table, &first);
        snprintf(why, sizeof why,
                 "with what each op rounds the exact loss %.10g becomes %.10g, where %.10g was recorded: "
                 "of %u ops what they round is not known%s%s",
                 ranks->loss, table->all.reached, ranks->recorded, unknown, unknown ? ", first " : "", first);
        return leave(digits, why);
    }
    if (ranks->losses > 1) snprintf(of, sizeof of, ", the mean over %u ranks,", ranks->losses);
    return lb_proof_list_prove(
        digits->report,
        "step %lld: the loss %.10g%s is %.10g in exact arithmetic; what %u lines of code round, each op by itself, "
        "leads from the one to the other (to %.1g)",
        (long long)digits->run.program->step, ranks->recorded, of, ranks->loss, table->groups.n, gap);
}

static bool say_tried(const table *table)
{
    double together = 0;
    for (uint32_t i = 0; i < table->n_tried; i++) {
        const double share = table->d->report->digits[table->first + i].share;
        if (!isnan(share)) together += share;
    }
    return !table->n_tried ||
           lb_proof_list_prove(table->d->report,
                               "step %lld: %u of the %u lines were tried by themselves, "
                               "those that promised to cost most; they make up %.0f %% of what is rounded%s",
                               (long long)table->d->run.program->step, table->n_tried, table->groups.n,
                               100 * fmin(1, together),
                               table->n_tried == table->groups.n ? "" : ", a larger --budget tries more");
}

/* Of each rank by itself: what all rounding together does to numbers that are watched. */
static bool tell_watched(const table *table)
{
    for (uint32_t k = 0; k < table->step->n; k++)
        if (!lb_digits_cancellations(&table->step->ranks[k]) || !lb_digits_phases(&table->step->ranks[k])) return false;
    return true;
}

static bool watch(const table *table)
{
    for (uint32_t k = 0; k < table->step->n; k++)
        if (!lb_digits_watch_cancellations(&table->step->ranks[k]) || !lb_digits_watch_phases(&table->step->ranks[k]))
            return false;
    return true;
}

/* The run without rounding, and the one with all; `*runs`: there are both. */
static lb_status begin(table *table, bool *runs, lb_err *err)
{
    *runs = false;
    LB_TRY(lb_rounding_groups_make(&table->ranks, &table->groups, err));
    if (!watch(table)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for sums");
    lb_err why = LB_ERR_INIT;
    const lb_status status = lb_rounding_ranks_first(&table->ranks, &why);
    if (status != LB_OK && status != LB_ERR_UNSUPPORTED) return lb_fail(err, status, "%s", why.message);
    *runs = status == LB_OK && (!isnan(table->ranks.loss) || table->ranks.sizes[0] != 0);
    if (status == LB_ERR_UNSUPPORTED)
        leave(table->d, why.message);
    else if (!*runs)
        leave(table->d,
              "no loss and no logits were seen, or they have no exact numbers: an op that replay does not know, "
              "or bytes that were not kept");
    if (!*runs) return LB_OK;
    LB_TRY(lb_rounding_groups_score(&table->groups, err));
    return lb_rounding_ranks_add(&table->ranks, NULL, &table->all, err);
}

static lb_status fill(table *table, lb_err *err)
{
    lb_digits *digits = table->d;
    bool runs;
    LB_TRY(begin(table, &runs, err));
    if (!runs) return LB_OK;
    if (!prove(table) || !tell_watched(table)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for rows");
    table->first = digits->report->n_digits;
    table->tried = calloc((size_t)table->groups.n + 1, sizeof *table->tried);
    if (!table->tried) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u groups", table->groups.n);
    LB_TRY(try_constants(table, err));
    LB_TRY(try_forward(table, err));
    LB_TRY(try_groups(table, err));
    return say_tried(table) ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for a sentence");
}

static bool open_table(lb_digits_step *step, table *opened)
{
    *opened = (table){.step = step, .d = &step->ranks[0]};
    opened->ranks.list = calloc((size_t)step->n + 1, sizeof *opened->ranks.list);
    opened->added = calloc((size_t)step->n + 1, sizeof *opened->added);
    if (!opened->ranks.list || !opened->added) return false;
    for (opened->ranks.n = 0; opened->ranks.n < step->n; opened->ranks.n++) {
        lb_digits *digits = &step->ranks[opened->ranks.n];
        opened->ranks.list[opened->ranks.n] = &digits->runs;
        opened->added[opened->ranks.n] = calloc((size_t)digits->run.program->n_ops + 1, 1);
        if (!opened->added[opened->ranks.n]) return false;
    }
    return true;
}

lb_status lb_digits_table(lb_digits_step *step, lb_err *err)
{
    table table;
    lb_status status = open_table(step, &table) ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for ops");
    if (status == LB_OK && !have(&table, 2))
        leave(table.d, "the replays of --budget are used up");
    else if (status == LB_OK)
        status = fill(&table, err);
    if (table.groups.ranks) lb_rounding_groups_release(&table.groups);
    for (uint32_t k = 0; table.added && k < step->n; k++) free(table.added[k]);
    free(table.added), free(table.tried), free(table.ranks.list);
    return status;
}
