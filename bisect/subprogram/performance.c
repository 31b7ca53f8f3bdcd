/* Rehearsals run: see rehearsal.h. The machine of replay runs each voice; the recording that it asks for bytes is the list of leaves.
 * At a collective a voice waits for the others, as ranks do. */
#include "voice.h"

#include "choices.h"
#include "exchange.h"
#include "fuse.h"
#include "machine.h"
#include "operand_rounding.h"

#include <stdlib.h>
#include <string.h>

typedef struct run {
    const lb_rehearsal *rehearsal;
    const lb_tensor *inputs, *targets;
    lb_tensor *results;
    uint64_t touched[4]; /* ops that each swap concerns */
    bool lost;           /* something was not computed */
    bool out_of_reach, no_memory;
} run;

/* A fusion rewrites the program of the only voice, not its values. */
static bool is_spot(const lb_rehearsal *r, lb_spot at, const lb_program *program, uint32_t value)
{
    return at.row == value && (r->n_voices == 1 || r->voices[at.voice].program == program);
}

static lb_status given_value(void *context, const lb_program *program, uint32_t value, lb_tensor *tensor,
                             lb_err *err)
{
    const run *r = context;
    const lb_rehearsal *rehearsal = r->rehearsal;
    for (uint32_t i = 0; i < rehearsal->n_leaves; i++)
        if (rehearsal->leaves[i].row != LB_NONE && is_spot(rehearsal, rehearsal->leaves[i], program, value)) {
            *tensor = r->inputs[i];
            return LB_OK;
        }
    for (uint32_t i = 0; r->targets && i < rehearsal->n_outputs; i++)
        if (is_spot(rehearsal, rehearsal->outputs[i], program, value) && r->targets[i].data) {
            *tensor = r->targets[i];
            return LB_OK;
        }
    return lb_fail(err, LB_ERR_NOT_CAPTURED, "not given");
}

static void keep_result(run *r, uint32_t row, const lb_tensor *computed)
{
    lb_tensor *kept = &r->results[row];
    if (kept->data) return;
    size_t bytes = lb_dtype_bytes(computed->dtype, (size_t)lb_layout_numel(&computed->layout));
    *kept = (lb_tensor){malloc(bytes + 1), computed->dtype,
                        lb_layout_contiguous(computed->layout.ndim, computed->layout.shape)};
    r->no_memory |= !kept->data;
    if (kept->data && lb_tensor_gather(computed, kept->data, NULL) != LB_OK)
        free(kept->data), kept->data = NULL;
}

static bool note_event(void *context, const lb_event *event)
{
    run *r = context;
    /* What a reduction leaves at those who are not its root is nobody's result; who reads it is told that it is missing. */
    const bool met = event->program->ops[event->op].flags & LB_OP_COLLECTIVE;
    r->lost |=
        event->verdict == LB_VERDICT_OPAQUE || (event->verdict == LB_VERDICT_MISSING && !r->targets && !met);
    r->out_of_reach |= event->verdict == LB_VERDICT_DIVERGED || event->verdict == LB_VERDICT_MISSING;
    for (uint32_t i = 0; r->results && i < event->n_results; i++)
        for (uint32_t k = 0; k < r->rehearsal->n_outputs; k++)
            if (is_spot(r->rehearsal, r->rehearsal->outputs[k], event->program, event->values[i]) &&
                event->computed[i].data)
                keep_result(r, k, &event->computed[i]);
    return !r->lost && !r->no_memory;
}

/* The program with a kernel in the place of some of its ops, where a swap asks for that. */
typedef struct fusion {
    lb_program *program;
    uint32_t *origin;
    lb_prepared *prepared; /* NULL: the program as it is */
} fusion;

static void release_fusion(fusion *f)
{
    lb_prepared_free(f->prepared);
    lb_program_free(f->program);
    free(f->origin);
}

static lb_status fuse_program(run *r, const lb_plan *plan, fusion *f, lb_err *err)
{
    for (uint32_t i = 0; i < plan->n_swaps && i < 4; i++) {
        lb_program *next = NULL;
        uint32_t *origin = NULL, touched = 0;
        if (plan->swaps[i].kind != LB_SWAP_FUSE) continue;
        if (f->program || r->rehearsal->n_voices > 1)
            return lb_fail(err, LB_ERR_UNSUPPORTED, "one fusion at a time, on one rank");
        LB_TRY(lb_pass_fuse(lb_rehearsal_program(r->rehearsal), NULL, plan->swaps, plan->n_swaps, i, &next,
                            &origin, &touched, err));
        f->program = next, f->origin = origin, r->touched[i] = touched;
    }
    if (!f->program) return LB_OK;
    return lb_prepare(f->program, lb_rehearsal_program(r->rehearsal), f->origin, &f->prepared, err);
}

static void note_touched(run *r, const lb_choices *choices, const lb_plan *plan)
{
    uint64_t touched[4] = {0};
    lb_choices_touched(choices, touched);
    for (uint32_t i = 0; i < plan->n_swaps && i < 4; i++)
        if (!lb_swap_is_structural(plan->swaps[i].kind)) r->touched[i] = touched[i];
}

/* A voice at work. */
typedef struct singer {
    lb_machine *machine;
    uint8_t *choice_of;
    lb_machine_state state;
} singer;

static lb_status start(lb_choices *choices, const lb_prepared *prepared, lb_run *shared, singer *s, lb_err *err)
{
    LB_TRY(lb_choices_make(choices, prepared, NULL, &s->choice_of, err));
    LB_TRY(lb_machine_new(shared, prepared->program->rank, &s->machine, err));
    if (lb_choices_round_operands(choices, false)) {
        s->machine->rounding = lb_operand_rounding_new();
        if (!s->machine->rounding) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
        LB_TRY(lb_operand_rounding_step(s->machine->rounding, prepared, err));
    }
    return lb_machine_declare(s->machine, prepared, err);
}

static void stop(singer *s)
{
    if (s->machine) lb_operand_rounding_free(s->machine->rounding);
    lb_machine_free(s->machine);
    free(s->choice_of);
}

static const lb_collective *stands_at(const singer *s)
{
    const lb_prepared *p = s->machine->prepared;
    const uint32_t row = s->state == LB_MACHINE_AT_COLLECTIVE ? p->ops[s->machine->next].collective : LB_NONE;
    return row == LB_NONE ? NULL : &p->program->collectives[row];
}

/* Those who stand at the same collective as `first`, in group order; false when some do not yet. */
static bool gather_machines(singer *singers, uint32_t n, const singer *first, lb_machine **members,
                            uint32_t *rows)
{
    const lb_collective *row = stands_at(first);
    const lb_program *p = first->machine->prepared->program;
    for (uint32_t r = 0; row && r < row->ranks; r++) {
        members[r] = NULL;
        for (uint32_t i = 0; i < n; i++) {
            const lb_collective *other = stands_at(&singers[i]);
            const lb_program *q = singers[i].machine->prepared->program;
            if (!other || q->rank != (int32_t)p->refs[row->first_rank + r] ||
                other->sequence != row->sequence ||
                strcmp(lb_program_text(p, row->group), lb_program_text(q, other->group)))
                continue;
            members[r] = singers[i].machine, rows[r] = i;
        }
        if (!members[r]) return false;
    }
    return row != NULL;
}

/* One collective that can happen happens; `*any`: one did. */
static lb_status meet(singer *singers, uint32_t n, bool *any, lb_err *err)
{
    lb_machine **members = malloc((n + 1) * sizeof *members);
    uint32_t *rows = malloc((n + 1) * sizeof *rows);
    lb_status status = members && rows ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    *any = false;
    for (uint32_t i = 0; i < n && status == LB_OK && !*any; i++) {
        const lb_collective *row = stands_at(&singers[i]);
        if (!row || row->ranks > n || !gather_machines(singers, n, &singers[i], members, rows)) continue;
        *any = true;
        status = lb_exchange_run(members, row->ranks, err);
        for (uint32_t r = 0; r < row->ranks && status == LB_OK; r++)
            status = lb_machine_run(singers[rows[r]].machine, &singers[rows[r]].state, err);
    }
    free(members), free(rows);
    return status;
}

static lb_status sing(singer *singers, uint32_t n, const lb_run *shared, lb_err *err)
{
    bool waits = true;
    for (uint32_t i = 0; i < n; i++) LB_TRY(lb_machine_run(singers[i].machine, &singers[i].state, err));
    while (waits && !shared->stop) {
        bool any;
        LB_TRY(meet(singers, n, &any, err));
        waits = false;
        for (uint32_t i = 0; i < n; i++) waits |= singers[i].state == LB_MACHINE_AT_COLLECTIVE;
        if (waits && !any) return lb_fail(err, LB_ERR_UNSUPPORTED, "a collective lacks some of its ranks");
    }
    return LB_OK;
}

static lb_status perform(run *r, const lb_plan *plan, lb_err *err)
{
    const lb_rehearsal *rehearsal = r->rehearsal;
    lb_choices *choices = NULL;
    fusion fused = {0};
    lb_replay_summary summary = {0};
    lb_observer observer = {.context = r, .op = note_event};
    lb_run shared = {plan, &observer, {r, given_value, NULL}, &summary, false};
    singer *singers = calloc(rehearsal->n_voices + 1, sizeof *singers);
    lb_status status =
        singers ? fuse_program(r, plan, &fused, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) status = lb_choices_new(plan->swaps, plan->n_swaps, &choices, err);
    for (uint32_t i = 0; i < rehearsal->n_voices && status == LB_OK; i++) {
        const lb_prepared *prepared = fused.prepared ? fused.prepared : rehearsal->voices[i].prepared;
        status = start(choices, prepared, &shared, &singers[i], err);
        if (status != LB_OK) break;
        status =
            lb_machine_begin(singers[i].machine, prepared, lb_choices_rows(choices), singers[i].choice_of, err);
    }
    if (status == LB_OK && plan->n_swaps) note_touched(r, choices, plan);
    if (status == LB_OK) status = sing(singers, rehearsal->n_voices, &shared, err);
    for (uint32_t i = 0; singers && i < rehearsal->n_voices; i++) stop(&singers[i]);
    free(singers);
    lb_choices_free(choices);
    release_fusion(&fused);
    return status;
}

lb_status lb_rehearsal_run(const lb_rehearsal *rehearsal, const lb_tensor *inputs, const lb_swap *swaps,
                           uint32_t n_swaps, lb_tensor *results, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    run r = {.rehearsal = rehearsal, .inputs = inputs, .results = results};
    memset(results, 0, rehearsal->n_outputs * sizeof *results);
    plan.mode = LB_REPLAY_CHAINED, plan.compare = false;
    plan.swaps = swaps, plan.n_swaps = n_swaps;
    lb_status status = perform(&r, &plan, err);
    if (status == LB_OK && r.no_memory)
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for results");
    for (uint32_t i = 0; status == LB_OK && i < n_swaps && i < 4; i++)
        if (!r.touched[i])
            status = lb_fail(err, LB_ERR_UNSUPPORTED, "%s means nothing to these ops", swaps[i].argument);
    if (status == LB_OK && r.lost) status = lb_fail(err, LB_ERR_UNSUPPORTED, "an op has no kernel here");
    for (uint32_t i = 0; status != LB_OK && i < rehearsal->n_outputs; i++)
        free(results[i].data), results[i].data = NULL;
    return status;
}

lb_status lb_rehearsal_reaches(const lb_rehearsal *rehearsal, const lb_tensor *inputs, const lb_tensor *targets,
                               bool *reaches, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    run r = {.rehearsal = rehearsal, .inputs = inputs, .targets = targets};
    plan.mode = LB_REPLAY_ISOLATED, plan.compare = true;
    *reaches = false;
    LB_TRY(perform(&r, &plan, err));
    *reaches = !r.lost && !r.out_of_reach;
    return LB_OK;
}
