/* Ranks that run by themselves: see rank_run.h. */
#include "ranks/rank_run.h"

#include "ranks/choices.h"
#include "fused/fuse.h"
#include "machine/machine.h"
#include "machine/operand_rounding.h"
#include "ranks/rendezvous.h"

#include <stdlib.h>

/* The program with a kernel in the place of some of its ops, where a swap asks for that. */
typedef struct fusion {
    lb_program *program;
    uint32_t *origin;
    lb_prepared *prepared; /* NULL: the program as it is */
} fusion;

static void release_fusion(fusion *fusion)
{
    lb_prepared_free(fusion->prepared);
    lb_program_free(fusion->program);
    free(fusion->origin);
}

static lb_status fuse_program(lb_rank_run *run, fusion *fusion, lb_err *err)
{
    const lb_plan *plan = run->plan;
    const lb_program *program = run->programs[0]->program;
    for (uint32_t i = 0; i < plan->n_swaps && i < LB_RANK_RUN_SWAPS; i++) {
        lb_passed fused;
        if (plan->swaps[i].kind != LB_SWAP_FUSE) continue;
        if (fusion->program || run->n_programs > 1)
            return lb_fail(err, LB_ERR_UNSUPPORTED, "one fusion at a time, on one rank");
        LB_TRY(lb_fuse_pass(program, NULL, plan, i, &fused, err));
        fusion->program = fused.program, fusion->origin = fused.origin, run->touched[i] = fused.touched;
    }
    if (!fusion->program) return LB_OK;
    return lb_prepared_make(fusion->program, program, fusion->origin, &fusion->prepared, err);
}

static void note_touched(lb_rank_run *run, const lb_choices *choices)
{
    uint64_t touched[LB_RANK_RUN_SWAPS] = {0};
    lb_choices_touched(choices, touched);
    for (uint32_t i = 0; i < run->plan->n_swaps && i < LB_RANK_RUN_SWAPS; i++)
        if (!lb_swap_is_structural(run->plan->swaps[i].kind)) run->touched[i] = touched[i];
}

/* A rank at work. */
typedef struct runner {
    lb_machine *machine;
    uint8_t *choice_of;
    lb_machine_state state;
} runner;

static lb_status start(lb_choices *choices, const lb_prepared *prepared, lb_run *shared, runner *runner, lb_err *err)
{
    LB_TRY(lb_choices_make(choices, prepared, NULL, &runner->choice_of, err));
    LB_TRY(lb_machine_new(shared, prepared->program->rank, &runner->machine, err));
    if (lb_choices_round_operands(choices, false)) {
        runner->machine->rounding = lb_operand_rounding_new();
        if (!runner->machine->rounding) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
        LB_TRY(lb_operand_rounding_step(runner->machine->rounding, prepared, err));
    }
    return lb_machine_declare(runner->machine, prepared, err);
}

static void stop(runner *runner)
{
    if (runner->machine) lb_operand_rounding_free(runner->machine->rounding);
    lb_machine_free(runner->machine);
    free(runner->choice_of);
}

static void take_seats(const runner *runners, uint32_t n, lb_rank_seat *seats)
{
    for (uint32_t i = 0; i < n; i++)
        seats[i] =
            (lb_rank_seat){runners[i].machine, runners[i].machine->prepared->program->rank,
                           runners[i].state == LB_MACHINE_AT_COLLECTIVE, runners[i].state != LB_MACHINE_AT_COLLECTIVE};
}

/* Where nothing can happen, one that waits for a message goes on without it; `*any`: one did. */
static lb_status postpone_one(runner *runners, const lb_rank_seat *seats, uint32_t n, bool *any, lb_err *err)
{
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < n && !*any; i++) {
        *any = seats[i].waits && lb_rendezvous_postpone(&seats[i], &status, err);
        if (*any && status == LB_OK) status = lb_machine_run(runners[i].machine, &runners[i].state, err);
    }
    return status;
}

/* One collective that can happen happens; `*any`: one did. */
static lb_status meet(runner *runners, uint32_t n, lb_messages *messages, bool *any, lb_err *err)
{
    lb_rank_seat *seats = calloc(n + 1, sizeof *seats);
    uint32_t *members = calloc(n + 1, sizeof *members), n_members = 0;
    lb_status status = seats && members ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    *any = false;
    if (status == LB_OK) take_seats(runners, n, seats);
    for (uint32_t i = 0; i < n && status == LB_OK && !*any; i++) {
        if (!seats[i].waits ||
            lb_rendezvous_gather(seats, n, i, messages, members, &n_members) != LB_RENDEZVOUS_COMPLETE)
            continue;
        *any = true;
        status = lb_rendezvous_run(seats, members, n_members, messages, err);
        for (uint32_t r = 0; r < n_members && status == LB_OK; r++)
            status = lb_machine_run(runners[members[r]].machine, &runners[members[r]].state, err);
    }
    if (status == LB_OK && !*any) status = postpone_one(runners, seats, n, any, err);
    free(seats), free(members);
    return status;
}

static lb_status run_to_the_end(runner *runners, uint32_t n, const lb_run *shared, lb_err *err)
{
    bool waits = true;
    lb_messages *messages = lb_messages_new();
    lb_status status = messages ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n && status == LB_OK; i++)
        status = lb_machine_run(runners[i].machine, &runners[i].state, err);
    while (waits && !shared->stop && status == LB_OK) {
        bool any;
        status = meet(runners, n, messages, &any, err);
        waits = false;
        for (uint32_t i = 0; i < n; i++) waits |= runners[i].state == LB_MACHINE_AT_COLLECTIVE;
        if (waits && !any && status == LB_OK)
            status = lb_fail(err, LB_ERR_UNSUPPORTED, "a collective lacks some of its ranks");
    }
    lb_messages_free(messages);
    return status;
}

lb_status lb_rank_run_all(lb_rank_run *run, lb_err *err)
{
    lb_choices *choices = NULL;
    fusion fused = {0};
    lb_replay_summary summary = {0};
    lb_run shared = {run->plan, run->observer, {run->context, run->value, NULL}, &summary, NULL, false, run->spare};
    runner *runners = calloc(run->n_programs + 1, sizeof *runners);
    lb_status status = runners ? fuse_program(run, &fused, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) status = lb_choices_new(run->plan->swaps, run->plan->n_swaps, &choices, err);
    for (uint32_t i = 0; i < run->n_programs && status == LB_OK; i++) {
        const lb_prepared *prepared = fused.prepared ? fused.prepared : run->programs[i];
        status = start(choices, prepared, &shared, &runners[i], err);
        if (status != LB_OK) break;
        status = lb_machine_begin(runners[i].machine, prepared, lb_choices_rows(choices), runners[i].choice_of, err);
    }
    if (status == LB_OK && run->plan->n_swaps) note_touched(run, choices);
    if (status == LB_OK) status = run_to_the_end(runners, run->n_programs, &shared, err);
    for (uint32_t i = 0; runners && i < run->n_programs; i++) stop(&runners[i]);
    free(runners);
    lb_choices_free(choices);
    release_fusion(&fused);
    return status;
}
