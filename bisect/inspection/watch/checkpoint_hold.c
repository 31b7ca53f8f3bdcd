/* Checkpoints and holds: see checkpoint_hold.h. */
#include "watch/checkpoint_hold.h"

#include <stdio.h>

lb_hold_answer lb_hold_take(lb_hold_state *state, int64_t step, bool out)
{
    if (!state->on && !out) return LB_HOLD_NONE;
    if (!state->on) {
        *state = (lb_hold_state){true, step, step, 0};
        return LB_HOLD_BEGINS;
    }
    state->quiet = out ? 0 : state->quiet + 1;
    if (out) state->last_out = step;
    if (state->quiet < LB_HOLD_QUIET) return LB_HOLD_LASTS;
    state->on = false;
    return LB_HOLD_ENDS;
}

void lb_checkpoint_add(lb_known_checkpoints *known, int64_t step, const char *text)
{
    for (uint64_t i = known->n; i-- > 0 && i + 8 > known->n;)
        if (known->row[i % LB_KNOWN_CHECKPOINTS].step == step) return; /* each rank, or file, of it */
    lb_watch_checkpoint *checkpoint = &known->row[known->n++ % LB_KNOWN_CHECKPOINTS];
    *checkpoint = (lb_watch_checkpoint){.step = step};
    snprintf(checkpoint->text, sizeof checkpoint->text, "%s", text ? text : "");
}

static uint64_t oldest(const lb_known_checkpoints *known)
{
    return known->n > LB_KNOWN_CHECKPOINTS ? known->n - LB_KNOWN_CHECKPOINTS : 0;
}

uint32_t lb_checkpoints_inside(const lb_known_checkpoints *known, const lb_watch_hold *holds, uint32_t n_holds,
                               lb_watch_checkpoint *inside, uint32_t room)
{
    uint32_t n = 0;
    for (uint64_t i = oldest(known); i < known->n && n < room; i++) {
        const lb_watch_checkpoint *checkpoint = &known->row[i % LB_KNOWN_CHECKPOINTS];
        for (uint32_t h = 0; h < n_holds; h++) {
            if (checkpoint->step < holds[h].from || checkpoint->step > holds[h].to) continue;
            inside[n] = *checkpoint;
            inside[n].from = holds[h].from, inside[n].to = holds[h].to;
            n++;
            break;
        }
    }
    return n;
}

int64_t lb_checkpoint_before(const lb_known_checkpoints *known, int64_t step)
{
    int64_t best = -1;
    for (uint64_t i = oldest(known); i < known->n; i++) {
        const int64_t s = known->row[i % LB_KNOWN_CHECKPOINTS].step;
        if (s < step && s > best) best = s;
    }
    return best;
}
