/* All ranks of a step together: see explain_session.h. What a rank's collective gave follows from what all of them
 * brought, so that their programs are taken as one, in which collectives meet. */
#include "explain/explain_session.h"

#include "ranks/collective_names.h"
#include "ranks/message_key.h"

#include <stdlib.h>
#include <string.h>

static bool has_program(lb_capture *capture, int32_t rank, int64_t step, const lb_program **program)
{
    return lb_capture_program(capture, rank, step, program, NULL) == LB_OK;
}

static lb_capture *capture_of(const lb_explain_session *session, int side)
{
    return side && session->b ? session->b : session->a;
}

/* Have both sides the program of the rank that sent what this op receives? */
static bool has_sender(const lb_explain_session *session, const lb_program *program, const lb_collective *row)
{
    lb_message_key key;
    if (lb_message_key_of(program, row, &key) != LB_MESSAGE_RECEIVED) return false;
    return lb_capture_has_program(capture_of(session, 0), key.sender, program->step) &&
           lb_capture_has_program(capture_of(session, 1), key.sender, program->step);
}

bool lb_explain_meets(const lb_explain_session *session, const lb_step_pair *scene, int side, uint32_t value)
{
    uint32_t row;
    const lb_program *program = lb_program_view_recorded(&scene->sides[side], value, &row);
    for (uint32_t c = 0; c < program->n_collectives; c++) {
        const lb_collective *collective = &program->collectives[c];
        const lb_op *op = &program->ops[collective->op];
        bool gives = false, all = collective->ranks > 1 && lb_collective_run_knows(lb_op_name(program, op));
        for (uint32_t k = 0; k < op->results + op->written; k++) gives |= (lb_op_outcome(program, op, k)) == row;
        for (uint32_t r = 0; gives && all && r < collective->ranks; r++)
            for (int k = 0; k < 2; k++)
                all &= lb_capture_has_program(capture_of(session, k),
                                              (int32_t)program->refs[collective->first_rank + r], program->step);
        if (gives) return all || has_sender(session, program, collective);
    }
    return false;
}

/* The programs of that step of all ranks that both sides have. */
static lb_status gather_programs(const lb_explain_session *session, int64_t step, lb_program_pair *pair, lb_err *err)
{
    const int32_t *ranks;
    const uint32_t n = lb_capture_ranks(session->a, &ranks);
    for (int k = 0; k < 2; k++) pair->programs[k] = calloc(n + 1, sizeof *pair->programs[k]), pair->n[k] = 0;
    if (!pair->programs[0] || !pair->programs[1]) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", n);
    for (uint32_t i = 0; i < n; i++) {
        const lb_program *program[2];
        if (!has_program(capture_of(session, 0), ranks[i], step, &program[0]) ||
            !has_program(capture_of(session, 1), ranks[i], step, &program[1]))
            continue;
        for (int k = 0; k < 2; k++) pair->programs[k][pair->n[k]++] = program[k];
    }
    return LB_OK;
}

static bool has_collectives(const lb_program_pair *pair)
{
    bool any = false;
    for (int k = 0; k < 2; k++)
        for (uint32_t r = 0; r < pair->n[k]; r++) any |= pair->programs[k][r]->n_collectives > 0;
    return any && pair->n[0] > 1;
}

lb_status lb_explain_ranks(lb_explain_session *session, int64_t step, lb_err *err)
{
    lb_program_pair pair = {{NULL, NULL}, {0, 0}};
    lb_step_pair s = {0};
    lb_status status = gather_programs(session, step, &pair, err);
    if (status == LB_OK && has_collectives(&pair)) {
        const uint32_t first = session->report->n_findings;
        session->turned = session->b && lb_alignment_finer(pair.programs[0][0], pair.programs[1][0]);
        lb_explain_grant_work(session, &pair);
        status = lb_step_pair_align_ranks(session, &pair, &s, err);
        if (status == LB_OK) status = lb_step_pair_read(session, &s, err);
        if (status == LB_OK) status = lb_explain_places(session, &s, err);
        if (status == LB_OK) status = lb_explain_findings_add_layers(session->report, first, err);
        lb_step_pair_close(&s);
    }
    free(pair.programs[0]), free(pair.programs[1]);
    return status;
}
