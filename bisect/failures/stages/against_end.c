/* Which side ended, and where: see against_end.h. */
#include "stages/against_end.h"

#include "failure/lost_rank.h"
#include "pair/op_kind.h"

#include <inttypes.h>
#include <lastbit/text_stream.h>
#include <stdlib.h>
#include <string.h>

typedef struct pair {
    lb_capture *captures[2]; /* the run, the reference */
    const lb_program *programs[2];
} pair;

static const char *const SIDES[] = {"the run", "the reference"};

static void put_op(FILE *out, const lb_program *p, uint32_t op)
{
    char line[LB_LINE_TEXT + 200];
    const char *layer = lb_op_layer(p, &p->ops[op]);
    const lb_code_line at = lb_op_line(p, &p->ops[op]);
    lb_code_line_text(&at, line, sizeof line);
    fprintf(out, "%s%s%s", lb_op_name(p, &p->ops[op]), *layer ? " of " : "", layer);
    if (*line) fprintf(out, " (%s)", line);
}

static bool is_computed(const lb_program *p, uint32_t op)
{
    return lb_op_computes(p, &p->ops[op]);
}

/* The last op that it ran; LB_NONE: none. */
static uint32_t last_op(const lb_program *p)
{
    uint32_t last = p->n_ops;
    while (last > 0 && !is_computed(p, last - 1)) last--;
    return last ? last - 1 : LB_NONE;
}

/* What the other side runs behind as many ops that compute, where these are of the same names; LB_NONE. */
static uint32_t next_op(const lb_program *ended, uint32_t last, const lb_program *other)
{
    uint32_t i = 0, j = 0;
    for (; i <= last; i++) {
        if (!is_computed(ended, i)) continue;
        while (j < other->n_ops && !is_computed(other, j)) j++;
        if (j == other->n_ops || strcmp(lb_op_name(ended, &ended->ops[i]), lb_op_name(other, &other->ops[j])))
            return LB_NONE;
        j++;
    }
    while (j < other->n_ops && !is_computed(other, j)) j++;
    return j < other->n_ops ? j : LB_NONE;
}

/* A step that one side did not end. */
static void tell_step(FILE *out, const pair *of, int side)
{
    const lb_program *p = of->programs[side], *other = of->programs[!side];
    const uint32_t last = last_op(p);
    fprintf(out, "%s ended in step %" PRId64 " on rank %d", SIDES[side], p->step, p->rank);
    if (last == LB_NONE) {
        fprintf(out, ", before its first op");
        return;
    }
    fprintf(out, ", in %s, behind ", lb_phase_name((lb_phase)p->ops[last].phase));
    put_op(out, p, last);
    const uint32_t next = next_op(p, last, other);
    if (next == LB_NONE) return;
    fprintf(out, "; %s goes on with ", SIDES[!side]);
    put_op(out, other, next);
}

static bool is_in_window(const lb_bisect_session *session, int64_t step)
{
    return step >= session->options->first_step && step <= session->options->last_step;
}

/* The first step of a rank that both have, and one did not end. */
static bool tell_open_step(FILE *out, const lb_bisect_session *session, pair *of, int32_t rank)
{
    const int64_t *steps;
    const uint32_t n = lb_capture_steps(of->captures[0], &steps);
    for (uint32_t i = 0; i < n; i++) {
        if (!is_in_window(session, steps[i])) continue;
        bool there = true;
        for (int k = 0; k < 2 && there; k++)
            there = lb_capture_program(of->captures[k], rank, steps[i], &of->programs[k], NULL) == LB_OK;
        if (!there || (of->programs[0]->complete != 0) == (of->programs[1]->complete != 0)) continue;
        tell_step(out, of, of->programs[0]->complete != 0);
        return true;
    }
    return false;
}

static int64_t last_step(lb_capture *capture)
{
    const int64_t *steps;
    const uint32_t n = lb_capture_steps(capture, &steps);
    return n ? steps[n - 1] : INT64_MIN;
}

/* A recording without an end, of steps that the other goes beyond: of the step in which it was killed nothing was
 * written. */
static bool tell_broken_off(FILE *out, const lb_bisect_session *session, const pair *of, int32_t rank)
{
    const int64_t last[] = {last_step(of->captures[0]), last_step(of->captures[1])};
    const int side = last[0] > last[1];
    if (last[0] == last[1] || !is_in_window(session, last[!side]) || lb_lost_rank_was_closed(of->captures[side], rank))
        return false;
    fprintf(out,
            "%s broke off behind step %" PRId64 " of rank %d: its recording has no end, as when a program is killed, "
            "and nothing of the next step was written; %s goes on to step %" PRId64,
            SIDES[side], last[side], rank, SIDES[!side], last[!side]);
    return true;
}

lb_status lb_against_end_tell(const lb_bisect_session *session, char **sentence, lb_err *err)
{
    pair of = {.captures = {session->capture, session->options->against}};
    size_t size = 0;
    bool told = false;
    *sentence = NULL;
    FILE *out = lb_text_stream_open(sentence, &size);
    for (uint32_t i = 0; out && i < session->n_ranks && !told; i++)
        told = tell_open_step(out, session, &of, session->ranks[i]) ||
               tell_broken_off(out, session, &of, session->ranks[i]);
    if (!out || fclose(out) != 0) {
        free(*sentence), *sentence = NULL;
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    if (!told) free(*sentence), *sentence = NULL;
    return LB_OK;
}
