/* See lost_rank.h. */
#include "failure/lost_rank.h"

#include <inttypes.h>
#include <lastbit/json_text.h>
#include <lastbit/text_stream.h>
#include <stdio.h>
#include <stdlib.h>

/* How far a rank got. */
typedef struct reach {
    bool closed;
    uint32_t steps; /* number of the capture's steps up to its last */
} reach;

bool lb_lost_rank_was_closed(lb_capture *capture, int32_t rank)
{
    const char *text = lb_capture_table(capture, rank, "coverage");
    json_t *coverage = text ? json_loads(text, 0, NULL) : NULL;
    const bool closed = !json_is_false(json_object_get(coverage, "closed"));
    json_decref(coverage);
    return closed;
}

static reach reach_of(lb_capture *capture, int32_t rank, const int64_t *steps, uint32_t n)
{
    reach r = {.closed = lb_lost_rank_was_closed(capture, rank)};
    const lb_program *program;
    for (r.steps = n; r.steps > 0; r.steps--)
        if (lb_capture_program(capture, rank, steps[r.steps - 1], &program, NULL) == LB_OK) break;
    return r;
}

static char *message_of(const lb_lost_ranks *lost, int64_t last)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    fputs(lost->n > 1 ? "ranks " : "rank ", out);
    for (uint32_t i = 0; i < lost->n; i++) fprintf(out, "%s%" PRId32, i ? "," : "", lost->ranks[i]);
    fprintf(out,
            " never came to step %" PRId64 ": %s recording was cut off before it, and others went on to step %" PRId64,
            lost->step, lost->n > 1 ? "their" : "its", last);
    fclose(out);
    return text;
}

lb_status lb_lost_ranks_find(lb_capture *capture, lb_lost_ranks *lost, lb_err *err)
{
    const int64_t *steps;
    const int32_t *ranks;
    const uint32_t n_steps = lb_capture_steps(capture, &steps), n = lb_capture_ranks(capture, &ranks);
    uint32_t most = 0, least = n_steps;
    *lost = (lb_lost_ranks){0};
    if (n < 2 || !n_steps) return LB_OK;
    reach *reaches = calloc(n, sizeof *reaches);
    lost->ranks = calloc(n, sizeof *lost->ranks);
    if (!reaches || !lost->ranks) {
        free(reaches);
        lb_lost_ranks_release(lost);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", n);
    }
    for (uint32_t r = 0; r < n; r++) {
        reaches[r] = reach_of(capture, ranks[r], steps, n_steps);
        if (reaches[r].closed && reaches[r].steps > most) most = reaches[r].steps;
    }
    for (uint32_t r = 0; r < n; r++) {
        if (reaches[r].closed || reaches[r].steps >= most) continue;
        lost->ranks[lost->n++] = ranks[r];
        if (reaches[r].steps < least) least = reaches[r].steps;
    }
    free(reaches);
    if (!lost->n) {
        lb_lost_ranks_release(lost);
        return LB_OK;
    }
    lost->step = steps[least];
    lost->message = message_of(lost, steps[most - 1]);
    if (lost->message) return LB_OK;
    lb_lost_ranks_release(lost);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for a message");
}

void lb_lost_ranks_release(lb_lost_ranks *lost)
{
    free(lost->ranks), free(lost->message);
    *lost = (lb_lost_ranks){0};
}
