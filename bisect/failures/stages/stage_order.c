/* The order stage, after all others: sums and products accumulated exactly, collectives in f64. See stages.h. */
#include "stages/region.h"

#include <stdlib.h>
#include <string.h>

/* Nothing else takes an order; what does not sum is left alone by the swap and narrowed away. */
static bool may_sum(const lb_program *program, const lb_op *op)
{
    return !(op->flags & (LB_OP_VIEW | LB_OP_COLLECTIVE)) && strncmp(lb_op_name(program, op), "lb::", 4) && op->results;
}

static bool is_collective(const lb_program *program, const lb_op *op)
{
    (void)program;
    return op->flags & LB_OP_COLLECTIVE;
}

static lb_status try_order(lb_bisect_session *session, const lb_stage_region *region, const char *noun, bool *found,
                           lb_err *err)
{
    lb_sites whole = {0};
    lb_search_outcome outcome = LB_OUTCOME_SAME;
    int64_t step;
    uint32_t *ops = NULL, n;
    if (!lb_region_exists(session, region)) return LB_OK;
    lb_status status = lb_sites_add_all(&whole, LB_SWAP_ORDER, region->argument, err);
    lb_sites_name(&whole, "%s", noun);
    if (status == LB_OK) status = lb_trial_run(session, &whole, NULL, "whole", &outcome, err);
    if (status == LB_OK && outcome == LB_OUTCOME_CURED) {
        *found = true;
        status = lb_stage_cure_set(session, &whole, NULL, 0, err);
        if (status == LB_OK) status = lb_region_narrow(session, region, &step, &ops, &n, err);
    }
    lb_sites_release(&whole);
    free(ops);
    return status;
}

/* Exact sums of large products take minutes. f64 inside them rounds a billion times less than f32: what that does not
 * cure exact sums do not, either. */
static lb_status wide_sums_cure(lb_bisect_session *session, bool *cure, lb_err *err)
{
    lb_sites wide = {0};
    lb_search_outcome outcome = LB_OUTCOME_SAME;
    lb_status status = lb_sites_add_all(&wide, LB_SWAP_PRECISION, "accumulate:f64", err);
    lb_sites_name(&wide, "every sum and product accumulated in f64");
    if (status == LB_OK) status = lb_trial_run(session, &wide, NULL, "screen", &outcome, err);
    lb_sites_release(&wide);
    *cure = outcome != LB_OUTCOME_SAME && outcome != LB_OUTCOME_OTHER;
    return status;
}

lb_status lb_stage_order(lb_bisect_session *session, bool *found, lb_err *err)
{
    static const lb_stage_region sums = {LB_SWAP_ORDER, "exact", "summed exactly", LB_AXIS_ORDER, may_sum, may_sum};
    static const lb_stage_region collectives = {LB_SWAP_ORDER, "wide",        "summed in f64",
                                                LB_AXIS_ORDER, is_collective, is_collective};
    LB_TRY(lb_trial_stage_begin(session, "order", err));
    LB_TRY(try_order(session, &collectives, "collectives summed in f64", found, err));
    bool cure = false;
    if (!*found) LB_TRY(wide_sums_cure(session, &cure, err));
    if (!*found && cure) LB_TRY(try_order(session, &sums, "every sum and product exact", found, err));
    lb_trial_stage_end(session, *found ? "cured" : "cleared", "%s",
                       *found ? "by another order of its sums" : "fails whatever the order of its sums");
    return LB_OK;
}
