/* Opaque ops behind a change: see stand_ins.h. */
#include "stages/stand_ins.h"

#include "pair/op_kind.h"
#include "program/selector.h"
#include "merged/taint.h"

#include <stdio.h>
#include <stdlib.h>

/* What is known while programs are followed in order: storages that a change reached, per rank. */
typedef struct reach {
    lb_taints *storages; /* per rank */
    bool met;            /* a collective had an input that a change reached: so do all outcomes of later ones */
} reach;

typedef struct asking {
    const lb_program *program;
    lb_taints *storages;
    bool reads;
} asking;

static void note_input(void *context, uint32_t value)
{
    asking *x = context;
    if (value != LB_NONE) x->reads |= lb_taint_of(x->storages, x->program->values[value].storage)->differs;
}

/* The ops that the changes select; NULL: out of memory. */
static uint8_t *mark_changed(const lb_bisect_session *session, const lb_program *program)
{
    uint8_t *marks = calloc(program->n_ops + 1, 1);
    for (uint32_t i = 0; marks && i < session->options->n_changes; i++) {
        lb_selector *selector;
        if (lb_selector_new(session->options->changes[i].selector, &selector, NULL) != LB_OK) continue;
        /* Where they cannot be told each op may be one. */
        if (lb_selector_wants_blocks(selector) ||
            lb_selector_mark(selector, program, NULL, NULL, marks, 1, NULL, NULL) != LB_OK)
            for (uint32_t k = 0; k < program->n_ops; k++) marks[k] = 1;
        lb_selector_free(selector);
    }
    return marks;
}

static bool is_opaque(const lb_program *program, const lb_op *op)
{
    return lb_op_computes(program, op) && !lb_replay_knows(lb_op_name(program, op));
}

static bool is_collective(const lb_program *program, uint32_t op)
{
    for (uint32_t i = 0; i < program->n_collectives; i++)
        if (program->collectives[i].op == op) return true;
    return false;
}

/* The first such op of a program; LB_NONE. */
static uint32_t follow(const lb_bisect_session *session, const lb_program *program, reach *reach, lb_taints *storages)
{
    uint8_t *changed = mark_changed(session, program);
    uint32_t found = LB_NONE;
    for (uint32_t i = 0; changed && i < program->n_ops && found == LB_NONE; i++) {
        const lb_op *op = &program->ops[i];
        asking x = {program, storages, false};
        lb_op_each_input(program, op, note_input, &x);
        if (x.reads && is_opaque(program, op)) found = i;
        if (is_collective(program, i)) reach->met = x.reads |= reach->met || changed[i];
        if (!x.reads && !changed[i]) continue;
        for (uint32_t k = 0; k < lb_op_outcomes(op); k++)
            if (lb_op_outcome(program, op, k) != LB_NONE)
                lb_taint_of(storages, program->values[lb_op_outcome(program, op, k)].storage)->differs = true;
    }
    free(changed);
    return found;
}

bool lb_stand_in_behind_changes(const lb_bisect_session *session, char *text, size_t size)
{
    reach reach = {calloc(session->n_ranks + 1, sizeof *reach.storages), false};
    bool found = false;
    for (uint32_t s = 0; reach.storages && session->options->n_changes && s < session->n_steps && !found; s++)
        for (uint32_t turn = 0; turn < (session->n_ranks > 1 ? 2 : 1) * session->n_ranks && !found; turn++) {
            /* Ranks after the first may hand the first what a change made: each is followed twice. */
            const uint32_t k = turn % session->n_ranks;
            const lb_program *program = lb_trial_program(session, session->ranks[k], session->steps[s]);
            const uint32_t op = program ? follow(session, program, &reach, &reach.storages[k]) : LB_NONE;
            found = op != LB_NONE;
            if (!found) continue;
            const char *layer = lb_op_layer(program, &program->ops[op]);
            snprintf(text, size,
                     "%.80s in %.80s of step %lld is opaque and reads what the change makes different: "
                     "its recorded result stands in, which hides what the change does behind it",
                     lb_op_name(program, &program->ops[op]), *layer ? layer : "the program itself",
                     (long long)program->step);
        }
    for (uint32_t k = 0; reach.storages && k < session->n_ranks; k++) lb_taints_release(&reach.storages[k]);
    free(reach.storages);
    return found;
}
