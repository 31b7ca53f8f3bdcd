/* A side replayed: see side_replay.h. */
#include "pair/side_replay.h"

#include <stdlib.h>

lb_status lb_side_replay(const lb_program_view *side, lb_plan plan, const lb_observer *observer,
                         lb_replay_summary *summary, lb_err *err)
{
    lb_replay *replay = NULL;
    int32_t *ranks = malloc(side->n_parts * sizeof *ranks);
    if (!ranks) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    plan.first_step = INT64_MAX, plan.last_step = INT64_MIN, plan.ranks = ranks;
    for (uint32_t p = 0; p < side->n_parts; p++) {
        const lb_program *program = side->parts[p].program;
        if (program->step < plan.first_step) plan.first_step = program->step;
        if (program->step > plan.last_step) plan.last_step = program->step;
        uint32_t k = 0; /* several steps of a rank are parts, too */
        while (k < plan.n_ranks && ranks[k] != program->rank) k++;
        if (k == plan.n_ranks) ranks[plan.n_ranks++] = program->rank;
    }
    lb_status status = lb_replay_open(side->capture, &replay, err);
    if (status == LB_OK) status = lb_replay_run(replay, &plan, observer, summary, err);
    lb_replay_close(replay);
    free(ranks);
    return status;
}
