/* What the window lacks: see window.h. */
#include "trials/window.h"

#include <inttypes.h>
#include <lastbit/bisect.h>
#include <lastbit/text_stream.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void note_first(lb_window_lacking *lack, const lb_program *p, const lb_op *op, const lb_value *v)
{
    if (*lack->first) return;
    const char *name = lb_program_text(p, v->name), *layer = lb_op_layer(p, op);
    snprintf(lack->first, sizeof lack->first, "%s%s%s of step %" PRId64 ", rank %d", *name ? name : lb_op_name(p, op),
             *name || !*layer ? "" : " in ", *name ? "" : layer, p->step, (int)p->rank);
}

/* The chain brings what an earlier step of the window left. */
static bool carried(const lb_bisect_session *q, const lb_program *p, const lb_value *v)
{
    return v->source == LB_SOURCE_CARRIED && p->step > q->steps[0];
}

static void look_at(const lb_bisect_session *q, lb_window_lacking *lack, const lb_program *p, const lb_op *op)
{
    bool source = lb_op_is_source(p, op), opaque = !lb_replay_knows(lb_op_name(p, op));
    if (!source && !opaque) return;
    for (uint32_t r = 0; r < op->results; r++) {
        uint32_t v = lb_op_results(p, op)[r];
        if (v == LB_NONE || !lb_layout_numel(&p->values[v].layout) || p->values[v].flags & LB_VALUE_UNDEFINED) continue;
        if (carried(q, p, &p->values[v]) || lb_capture_has_value(q->capture, p, v)) continue;
        if (source)
            lack->sources++;
        else
            lack->opaque++;
        note_first(lack, p, op, &p->values[v]);
    }
}

lb_window_lacking lb_window_lack(const lb_bisect_session *q)
{
    lb_window_lacking lack = {0};
    for (uint32_t s = 0; s < q->n_steps; s++)
        for (uint32_t r = 0; r < q->n_ranks; r++) {
            const lb_program *p = lb_trial_program(q, q->ranks[r], q->steps[s]);
            for (uint32_t i = 0; p && i < p->n_ops; i++) look_at(q, &lack, p, &p->ops[i]);
        }
    return lack;
}

char *lb_window_record_again(const lb_bisect_session *q, int64_t failing)
{
    const lb_program *p = lb_trial_program(q, q->ranks[0], q->steps[0]);
    char *program = lb_recorded_program(q->capture, q->ranks[0], p ? (uint32_t)p->world : 1);
    /* A culprit may act steps before the failure: an optimizer step shows in the next forward, momentum one later. */
    int64_t first = failing - 2 > q->steps[0] ? failing - 2 : q->steps[0];
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    if (out) {
        fprintf(out, "lastbit record -o again.lb --level sources --steps %" PRId64 "-%" PRId64 " -- %s", first, failing,
                program ? program : "YOUR PROGRAM");
        fclose(out);
    }
    free(program);
    return text;
}
