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
static uint8_t *mark_changed(const lb_bisect_session *q, const lb_program *p)
{
    uint8_t *marks = calloc(p->n_ops + 1, 1);
    for (uint32_t i = 0; marks && i < q->options->n_changes; i++) {
        lb_selector *selector;
        if (lb_selector_new(q->options->changes[i].selector, &selector, NULL) != LB_OK) continue;
        if (lb_selector_wants_blocks(selector))
            for (uint32_t k = 0; k < p->n_ops; k++) marks[k] = 1;
        else if (lb_selector_mark(selector, p, NULL, NULL, marks, 1) < 0)
            free(marks), marks = NULL;
        lb_selector_free(selector);
    }
    return marks;
}

static bool is_opaque(const lb_program *p, const lb_op *op)
{
    return lb_op_computes(p, op) && !lb_replay_knows(lb_op_name(p, op));
}

static bool is_collective(const lb_program *p, uint32_t op)
{
    for (uint32_t i = 0; i < p->n_collectives; i++)
        if (p->collectives[i].op == op) return true;
    return false;
}

/* The first such op of a program; LB_NONE. */
static uint32_t follow(const lb_bisect_session *q, const lb_program *p, reach *r, lb_taints *storages)
{
    uint8_t *changed = mark_changed(q, p);
    uint32_t found = LB_NONE;
    for (uint32_t i = 0; changed && i < p->n_ops && found == LB_NONE; i++) {
        const lb_op *op = &p->ops[i];
        asking x = {p, storages, false};
        lb_op_each_input(p, op, note_input, &x);
        if (x.reads && is_opaque(p, op)) found = i;
        if (is_collective(p, i)) r->met = x.reads |= r->met || changed[i];
        if (!x.reads && !changed[i]) continue;
        for (uint32_t k = 0; k < lb_op_outcomes(op); k++)
            if (lb_op_outcome(p, op, k) != LB_NONE)
                lb_taint_of(storages, p->values[lb_op_outcome(p, op, k)].storage)->differs = true;
    }
    free(changed);
    return found;
}

bool lb_stand_in_behind_changes(const lb_bisect_session *q, char *text, size_t size)
{
    reach r = {calloc(q->n_ranks + 1, sizeof *r.storages), false};
    bool found = false;
    for (uint32_t s = 0; r.storages && q->options->n_changes && s < q->n_steps && !found; s++)
        for (uint32_t turn = 0; turn < (q->n_ranks > 1 ? 2 : 1) * q->n_ranks && !found; turn++) {
            /* Ranks after the first may hand the first what a change made: each is followed twice. */
            const uint32_t k = turn % q->n_ranks;
            const lb_program *p = lb_trial_program(q, q->ranks[k], q->steps[s]);
            const uint32_t op = p ? follow(q, p, &r, &r.storages[k]) : LB_NONE;
            found = op != LB_NONE;
            if (!found) continue;
            const char *layer = lb_op_layer(p, &p->ops[op]);
            snprintf(text, size,
                     "%.80s in %.80s of step %lld is opaque and reads what the change makes different: its recorded "
                     "result stands in, which hides what the change does behind it",
                     lb_op_name(p, &p->ops[op]), *layer ? layer : "the program itself", (long long)p->step);
        }
    for (uint32_t k = 0; r.storages && k < q->n_ranks; k++) lb_taints_release(&r.storages[k]);
    free(r.storages);
    return found;
}
