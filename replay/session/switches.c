/* Running a window with one swap after the other: see lastbit/switches.h. */
#define _GNU_SOURCE /* strdup */
#include "base/array.h"
#include <lastbit/switches.h>

#include "session/output_distance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct maker {
    lb_replay *replay;
    const lb_plan *plan;
    lb_switch_table *table;
    lb_output_distance gaps; /* capture NULL: what is compared with is the run without swaps */
    lb_err *err;
} maker;

static lb_status no_memory(lb_err *err)
{
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for a table of swaps");
}

static lb_switch_move *moves(uint32_t n)
{
    lb_switch_move *rows = malloc((n + 1) * sizeof *rows);
    for (uint32_t i = 0; rows && i < n; i++) rows[i] = (lb_switch_move){NAN, NAN};
    return rows;
}

static lb_status add_program(void *context, const lb_program *program, lb_err *err)
{
    maker *maker = context;
    lb_switch_table *table = maker->table;
    const uint32_t n = table->n_endings + 1;
    lb_switch_step_end *endings = lb_array_grow(table->endings, table->n_endings, sizeof *endings);
    if (!endings) return no_memory(err);
    table->endings = endings;
    LB_TRY(lb_output_distance_add_end(&maker->gaps, program, err));
    lb_switch_step_end *step_end = &endings[n - 1];
    *step_end = (lb_switch_step_end){.step = program->step,
                                     .rank = program->rank,
                                     .output = strdup(maker->gaps.ends[n - 1].layer),
                                     .all = {NAN, NAN},
                                     .alone = moves(table->n_swaps),
                                     .without = moves(table->n_swaps)};
    table->n_endings = n;
    return step_end->output && step_end->alone && step_end->without ? LB_OK : no_memory(err);
}

typedef enum side { ALONE, WITHOUT, ALL } side;

static lb_switch_move *place(lb_switch_step_end *step_end, side which, uint32_t swap)
{
    return which == ALL ? &step_end->all : which == ALONE ? &step_end->alone[swap] : &step_end->without[swap];
}

/* The swaps of a run; `touched` per swap of the plan. */
static lb_status run(maker *maker, const lb_swap *swaps, uint32_t n, uint64_t *touched, lb_snapshots *snapshots,
                     bool *undecided)
{
    lb_plan plan = *maker->plan;
    lb_observer observer = {.context = snapshots, .op = lb_snapshots_watch};
    lb_replay_summary summary = {0};
    plan.mode = LB_REPLAY_CHAINED, plan.swaps = swaps, plan.n_swaps = n, plan.touched = touched, plan.select = NULL;
    LB_TRY(lb_replay_run(maker->replay, &plan, &observer, &summary, maker->err));
    if (undecided) *undecided = summary.undecided;
    return snapshots->failed ? no_memory(maker->err) : LB_OK;
}

static lb_status run_and_measure(maker *maker, side which, uint32_t swap)
{
    const uint32_t n = maker->plan->n_swaps;
    lb_swap *swaps = malloc((n + 1) * sizeof *swaps);
    uint64_t *touched = calloc(n + 1, sizeof *touched);
    uint32_t count = 0;
    for (uint32_t i = 0; swaps && i < n; i++)
        if (which == ALL || (which == ALONE) == (i == swap)) swaps[count++] = maker->plan->swaps[i];
    lb_status status = swaps && touched ? run(maker, swaps, count, touched, &maker->gaps.current,
                                              which == ALONE ? &maker->table->undecided[swap] : NULL)
                                        : no_memory(maker->err);
    for (uint32_t i = 0; status == LB_OK && i < maker->table->n_endings; i++) {
        lb_switch_move *move = place(&maker->table->endings[i], which, swap);
        lb_output_distance_measure(&maker->gaps, i, &move->output, &move->loss);
    }
    if (status == LB_OK && which == ALONE && maker->plan->touched) maker->plan->touched[swap] = touched[0];
    lb_snapshots_clear(&maker->gaps.current);
    free(swaps);
    free(touched);
    return status;
}

lb_status lb_switch_table_make(lb_capture *capture, lb_replay *replay, const lb_plan *plan, lb_switch_table *table,
                               lb_err *err)
{
    maker maker = {.replay = replay, .plan = plan, .table = table, .err = err};
    *table =
        (lb_switch_table){.n_swaps = plan->n_swaps, .undecided = calloc(plan->n_swaps + 1, sizeof *table->undecided)};
    lb_status status =
        table->undecided ? lb_output_distance_each_window(capture, plan, add_program, &maker, err) : no_memory(err);
    if (status == LB_OK) status = run(&maker, NULL, 0, NULL, &maker.gaps.reference, NULL);
    if (status == LB_OK) status = run_and_measure(&maker, ALL, 0);
    for (uint32_t i = 0; i < plan->n_swaps && status == LB_OK; i++) {
        status = run_and_measure(&maker, ALONE, i);
        if (status == LB_OK && plan->n_swaps > 1) status = run_and_measure(&maker, WITHOUT, i);
    }
    lb_output_distance_release(&maker.gaps);
    return status;
}

void lb_switch_table_release(lb_switch_table *table)
{
    for (uint32_t i = 0; i < table->n_endings; i++) {
        lb_switch_step_end *step_end = &table->endings[i];
        free(step_end->output), free(step_end->alone), free(step_end->without);
    }
    free(table->endings), free(table->undecided);
    *table = (lb_switch_table){0};
}
