/* What the window lacks: see window.h. */
#include "trials/window.h"

#include <inttypes.h>
#include <lastbit/bisect.h>
#include <lastbit/text_stream.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void note_first(lb_window_lacking *lack, const lb_program *program, const lb_op *op, const lb_value *value)
{
    if (*lack->first) return;
    const char *name = lb_program_text(program, value->name), *layer = lb_op_layer(program, op);
    snprintf(lack->first, sizeof lack->first, "%s%s%s of step %" PRId64 ", rank %d",
             *name ? name : lb_op_name(program, op), *name || !*layer ? "" : " in ", *name ? "" : layer, program->step,
             (int)program->rank);
}

/* The chain brings what an earlier step of the window left. */
static bool carried(const lb_bisect_session *session, const lb_program *program, const lb_value *value)
{
    return value->source == LB_SOURCE_CARRIED && program->step > session->steps[0];
}

static void look_at(const lb_bisect_session *session, lb_window_lacking *lack, const lb_program *program,
                    const lb_op *op)
{
    bool source = lb_op_is_source(program, op), opaque = !lb_replay_knows(lb_op_name(program, op));
    if (!source && !opaque) return;
    for (uint32_t r = 0; r < op->results; r++) {
        uint32_t value = lb_op_results(program, op)[r];
        if (value == LB_NONE || !lb_layout_numel(&program->values[value].layout) ||
            program->values[value].flags & LB_VALUE_UNDEFINED)
            continue;
        if (carried(session, program, &program->values[value]) ||
            lb_capture_has_value(session->capture, program, value))
            continue;
        if (source)
            lack->sources++;
        else
            lack->opaque++;
        note_first(lack, program, op, &program->values[value]);
    }
}

lb_window_lacking lb_window_lack(const lb_bisect_session *session)
{
    lb_window_lacking lack = {0};
    for (uint32_t s = 0; s < session->n_steps; s++)
        for (uint32_t r = 0; r < session->n_ranks; r++) {
            const lb_program *program = lb_trial_program(session, session->ranks[r], session->steps[s]);
            for (uint32_t i = 0; program && i < program->n_ops; i++) look_at(session, &lack, program, &program->ops[i]);
        }
    return lack;
}

char *lb_window_record_again(const lb_bisect_session *session, int64_t failing_step)
{
    const lb_program *p = lb_trial_program(session, session->ranks[0], session->steps[0]);
    char *program = lb_recorded_program(session->capture, session->ranks[0], p ? (uint32_t)p->world : 1);
    /* A culprit may act steps before the failure: an optimizer step shows in the next forward, momentum one later. */
    int64_t first = failing_step - 2 > session->steps[0] ? failing_step - 2 : session->steps[0];
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    if (out) {
        fprintf(out, "lastbit record -o again.lb --level sources --steps %" PRId64 "-%" PRId64 " -- %s", first,
                failing_step, program ? program : "YOUR PROGRAM");
        fclose(out);
    }
    free(program);
    return text;
}
