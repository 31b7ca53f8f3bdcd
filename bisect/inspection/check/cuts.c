/* Where the derivative is a matter of intent: see cuts.h. */
#include "check/cuts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- why a quotient cannot speak ---- */

/* A choice (top-k, a maximum along a dimension) gives indices, which are held, and the numbers that they choose, which
 * are continuous. */
static bool is_choice(const lb_program *program, const lb_op *op)
{
    for (uint32_t i = 0; i < op->results; i++) {
        const uint32_t v = lb_op_results(program, op)[i];
        if (v != LB_NONE && !lb_dtype_is_float(program->values[v].dtype)) return true;
    }
    return false;
}

/* An op whose float result has no derivative, or none that autograd was to see, between parameters and the loss. */
static const char *cut_by(const lb_check_step *step, uint32_t op)
{
    const lb_program *program = step->run.program;
    const lb_op *o = &program->ops[op];
    const lb_op_row *row = step->run.prepared->ops[op].row;
    if (lb_cotangents_detaches(program, op)) return "detaches a value that follows from parameters";
    const uint32_t v = lb_op_outcomes(o) ? lb_op_outcome(program, o, 0) : LB_NONE;
    if (v == LB_NONE || !lb_dtype_is_float(program->values[v].dtype)) return NULL;
    if (o->flags & LB_OP_VIEW) return NULL;
    if (row && row->flags & LB_ROW_DISCONTINUOUS && !is_choice(program, o)) return "is not continuous";
    if (lb_op_is_source(program, o) || o->flags & LB_OP_UNDEFINED) return NULL;
    if (!row) return "is not known to replay";
    if (lb_cotangents_seen(program, op) == LB_SEEN_CONSTANT)
        return "was run without a gradient on what follows from parameters";
    return NULL;
}

typedef struct inputs {
    const lb_check_step *step;
    bool moves;
} inputs;

static void note_input(void *context, uint32_t value)
{
    inputs *inputs = context;
    const lb_program *program = inputs->step->run.program;
    inputs->moves |= lb_trained_moves(&inputs->step->run, &inputs->step->trained, value);
    /* What no computing op reads as it lies there (a window that is detached at once) is known by its storage alone. */
    for (uint32_t w = 0; w < program->n_values && !inputs->moves && inputs->step->run.graph.giver[value] == LB_NONE;
         w++)
        inputs->moves = program->values[w].storage == program->values[value].storage && inputs->step->trained.moved[w];
}

uint32_t lb_cuts_next(const lb_check_step *step, uint32_t from, const char **why)
{
    const lb_program *program = step->run.program;
    const uint32_t end = step->run.n_roots ? step->run.roots[step->run.n_roots - 1].op : program->n_ops;
    for (uint32_t i = from; i < end; i++) {
        inputs in = {step, false};
        if (program->ops[i].phase != LB_PHASE_FORWARD) continue;
        *why = cut_by(step, i);
        if (!*why) continue;
        if (program->ops[i].flags & LB_OP_VIEW)
            lb_op_each_input(program, &program->ops[i], note_input, &in);
        else
            in.moves = lb_trained_moves(&step->run, &step->trained, lb_op_outcome(program, &program->ops[i], 0));
        if (in.moves) return i;
    }
    return LB_NONE;
}

bool lb_cuts_leave(lb_check_step *step, const char *what, uint32_t op, const char *why)
{
    const lb_program *program = step->run.program;
    const lb_code_line line = lb_op_line(program, &program->ops[op]);
    char at[200];
    lb_code_line_text(&line, at, sizeof at);
    return lb_proof_list_leave(step->report, what, "%s %s, so that its derivative is a matter of intent%s%s",
                               lb_op_name(program, &program->ops[op]), why, *at ? ": " : "", at);
}

/* ---- whether it matters ---- */

typedef struct exchange {
    const lb_program *program;
    uint32_t from, end; /* ops among which a collective is looked for */
    bool found;
} exchange;

static void look_for_exchange(void *context, uint32_t v)
{
    exchange *exchange = context;
    for (uint32_t i = exchange->from; v != LB_NONE && i < exchange->end && !exchange->found; i++) {
        const lb_op *op = &exchange->program->ops[i];
        const int64_t storage = exchange->program->values[v].storage;
        exchange->found = op->flags & LB_OP_COLLECTIVE && (lb_op_writes(exchange->program, op, storage) != LB_NONE ||
                                                           lb_op_reads(exchange->program, op, storage) != LB_NONE);
    }
}

/* A collective takes its numbers, or gave them: autograd goes on through hooks, or was meant to. */
static bool is_exchanged(const lb_program *program, uint32_t op)
{
    exchange before = {program, 0, op, false}, behind = {program, op + 1, program->n_ops, false};
    lb_op_each_input(program, &program->ops[op], look_for_exchange, &before);
    for (uint32_t k = 0; k < lb_op_outcomes(&program->ops[op]); k++)
        look_for_exchange(&behind, lb_op_outcome(program, &program->ops[op], k));
    return before.found || behind.found;
}

/* The next op that reads what was detached runs without a gradient, too, and is a cut of its own. */
static bool goes_on(const lb_program *program, uint32_t op)
{
    const uint32_t v = lb_op_outcome(program, &program->ops[op], 0);
    for (uint32_t i = op + 1; v != LB_NONE && i < program->n_ops && program->ops[i].phase == LB_PHASE_FORWARD; i++)
        if (!(program->ops[i].flags & LB_OP_VIEW) &&
            lb_op_reads(program, &program->ops[i], program->values[v].storage) != LB_NONE)
            return lb_cotangents_seen(program, i) == LB_SEEN_CONSTANT;
    return false;
}

typedef enum effect { EFFECT_NONE, EFFECT_ASKED, EFFECT_SURE } effect;

static effect effect_of(const lb_check_step *step, uint32_t op)
{
    const lb_program *program = step->run.program;
    if (is_exchanged(program, op)) return EFFECT_NONE;
    if (program->ops[op].flags & LB_OP_VIEW) return goes_on(program, op) ? EFFECT_NONE : EFFECT_SURE;
    const bool constant = lb_cotangents_seen(program, op) == LB_SEEN_CONSTANT && step->run.prepared->ops[op].row &&
                          !(step->run.prepared->ops[op].row->flags & LB_ROW_DISCONTINUOUS);
    return constant ? EFFECT_ASKED : EFFECT_SURE;
}

static bool add_sites(lb_check_step *step, uint32_t op)
{
    const lb_program *program = step->run.program;
    for (uint32_t k = 0; k < lb_op_outcomes(&program->ops[op]); k++) {
        const uint32_t v = lb_op_outcome(program, &program->ops[op], k);
        if (v == LB_NONE || !lb_dtype_is_float(program->values[v].dtype) || step->run.site_of[v] != LB_NONE) continue;
        if (!lb_moved_run_add_site(&step->run, v, LB_NONE, op, LB_NONE)) return false;
    }
    return true;
}

/* Moves what was run without a gradient, all of it at once: does a loss change? */
static lb_status ask(lb_check_step *step, lb_moved_run *lead, uint64_t roots, uint32_t first, bool *matters,
                     lb_err *err)
{
    lb_quotient quotient;
    double largest = 0;
    LB_TRY(lb_moved_run_measure(lead, err));
    const uint32_t n = lead->together ? lead->n_together : 1;
    for (uint32_t k = 0; k < n; k++) {
        lb_moved_run *run = lead->together ? lead->together[k] : lead;
        memset(run->active, 0, run->n_sites);
        for (uint32_t i = 0; i < run->n_roots; i++) largest = fmax(largest, fabs(run->roots[i].loss));
    }
    for (uint32_t i = first; i < step->run.n_sites; i++) step->run.active[i] = step->run.sites[i].moved;
    LB_TRY(lb_moved_run_quotient(lead, 0, roots, 0x1p-10, &quotient, err));
    *matters = !(fabs(quotient.derivative) <= 1e-9 * largest);
    return LB_OK;
}

lb_status lb_cuts_find(lb_check_step *step, lb_moved_run *lead, uint64_t roots, uint32_t *op, const char **why,
                       lb_err *err)
{
    const uint32_t before = step->run.n_sites;
    uint32_t asked = LB_NONE;
    bool matters = false;
    const char *kept = NULL;
    for (*op = lb_cuts_next(step, 0, why); *op != LB_NONE; *op = lb_cuts_next(step, *op + 1, why)) {
        const effect effect = effect_of(step, *op);
        if (effect == EFFECT_SURE) return LB_OK;
        if (effect != EFFECT_ASKED) continue;
        if (!add_sites(step, *op)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for places");
        if (asked == LB_NONE) asked = *op, kept = *why;
    }
    if (step->run.n_sites > before) LB_TRY(ask(step, lead, roots, before, &matters, err));
    if (matters) *op = asked, *why = kept;
    return LB_OK;
}
