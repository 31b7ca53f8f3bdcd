/* Replaying a capture: ranks, steps, swaps, and the meeting of ranks at collectives. See lastbit/replay.h.
 *
 * Every rank is a machine. They run in turn, each until its step ends or it stands at a collective; a collective runs
 * when all its members stand at it. Where a member is not part of the run, or the members never meet, recorded outputs
 * stand in. Nothing depends on which rank runs first, so neither do the bits.
 */
#include "session/allowed_tf32.h"
#include "session/e4m3_nan.h"
#include "program/block.h"
#include "machine/checkpoint.h"
#include "ranks/choices.h"
#include "fused/fuse.h"
#include "machine/machine.h"
#include "program/muon.h"
#include "machine/operand_rounding.h"
#include "program/passes.h"
#include "program/prepared.h"
#include "machine/regenerate.h"
#include "ranks/rendezvous.h"
#include "program/selector.h"

#include <lastbit/clock.h>
#include "base/array.h"
#include "kernel/thread_probe.h"
#include <lastbit/replay.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what is made once per capture ------------------------------------------------------------------------------ */

typedef struct entry {
    int32_t rank;
    int64_t step;
    lb_prepared *prepared;
} entry;

/* What a rank's receipt says of how it was computed. */
typedef struct receipt {
    bool read, e4m3_nan;
    lb_allowed_tf32 tf32;
} receipt;

struct lb_replay {
    lb_capture *capture;
    entry *entries;
    uint32_t n_entries;
    receipt *receipts; /* per rank of the capture; NULL: no run has asked yet */
};

lb_status lb_replay_open(lb_capture *capture, lb_replay **replay, lb_err *err)
{
    *replay = calloc(1, sizeof **replay);
    if (!*replay) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    (*replay)->capture = capture;
    return LB_OK;
}

void lb_replay_close(lb_replay *replay)
{
    if (!replay) return;
    for (uint32_t i = 0; i < replay->n_entries; i++) lb_prepared_free(replay->entries[i].prepared);
    free(replay->entries);
    free(replay->receipts);
    free(replay);
}

/* Read once for all runs, and of the ranks that run: a replay of one rank asks no other's archive. */
static receipt receipt_of(lb_replay *replay, uint32_t row, int32_t rank)
{
    receipt *receipt = &replay->receipts[row];
    if (!receipt->read)
        *receipt =
            (struct receipt){true, lb_e4m3_nan_of(replay->capture, rank), lb_allowed_tf32_of(replay->capture, rank)};
    return *receipt;
}

/* LB_ERR_NOT_FOUND when that rank has no such step. */
static lb_status recorded_program(lb_replay *replay, int32_t rank, int64_t step, const lb_prepared **prepared,
                                  lb_err *err)
{
    for (uint32_t i = 0; i < replay->n_entries; i++)
        if (replay->entries[i].rank == rank && replay->entries[i].step == step) {
            *prepared = replay->entries[i].prepared;
            return LB_OK;
        }
    const lb_program *program;
    LB_TRY(lb_capture_program(replay->capture, rank, step, &program, err));
    entry *grown = lb_array_grow(replay->entries, replay->n_entries, sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    replay->entries = grown;
    lb_prepared *made;
    LB_TRY(lb_prepared_make(program, NULL, NULL, &made, err));
    replay->entries[replay->n_entries++] = (entry){rank, step, made};
    *prepared = made;
    return LB_OK;
}

bool lb_replay_knows(const char *op_name)
{
    lb_op_form form;
    if (!strncmp(op_name, "lb::", 4) || lb_collective_run_knows(op_name)) return true;
    if (lb_message_end_of(op_name) != LB_MESSAGE_NONE) return true;
    const lb_op_row *row = lb_op_find(op_name, &form);
    return row && (row->kernel ||
                   row->flags & (LB_ROW_VIEW | LB_ROW_HOST | LB_ROW_UNDEFINED | LB_ROW_RANDOM | LB_ROW_DECISION));
}

bool lb_replay_kernels(const char *op_name, char *kernels, size_t kernels_room, char *orders, size_t orders_room)
{
    lb_op_form form;
    const lb_op_row *row = strncmp(op_name, "lb::", 4) ? lb_op_find(op_name, &form) : NULL;
    const bool product = row && row->flags & LB_ROW_MATMUL, sums = row && row->flags & LB_ROW_REDUCTION;
    const char *of_products =
                   "sequential blocked:K splitk:N streamk:C dpbf16:K tdpbf16:N torchdot halved:K folded:L eights "
                   "lanes:1 torch:N tensorcore:ARCH pairwise exact tree:TREE",
               *of_sums =
                   "sequential pairwise cascade blocked:K splitk:N lanes:L butterfly:TxV numpy torch:N exact tree:TREE";
    snprintf(kernels, kernels_room, "%s", row && row->kernels ? row->kernels : "");
    snprintf(orders, orders_room, "%s", product ? of_products : sums ? of_sums : "");
    return *kernels || *orders;
}

/* ---- what is made per run --------------------------------------------------------------------------------------- */

/* One step of one rank as it will run. */
typedef struct rank_step {
    const lb_prepared *prepared;
    lb_prepared *own; /* of a transformed program; NULL: the recorded one, which the replay owns */
    lb_program *program;
    uint32_t *origin;
    uint8_t *choice_of, *selected;
    bool changed; /* a swap beyond plan.n_common concerns something in it */
} rank_step;

/* PAUSED: between two steps, until everyone is, so that a checkpoint can be kept. */
typedef enum runner_state { RUNNER_READY, RUNNER_WAITS, RUNNER_PAUSED, RUNNER_DONE } runner_state;

typedef struct runner {
    int32_t rank;
    lb_machine *machine;
    rank_step *rank_steps;
    uint32_t n_rank_steps, at;
    runner_state state;
} runner;

typedef struct session {
    lb_replay *replay;
    lb_run run;
    lb_choices *choices;
    lb_selector *selector; /* of plan.select; NULL: none */
    runner *runners;
    uint32_t n_runners;
    lb_messages *messages; /* under way between ranks */
    bool rounds_operands, keeps;
} session;

static void note_rate(const session *session, const lb_program *program, const lb_swap *swap)
{
    uint32_t group;
    if (swap->kind != LB_SWAP_MUON || strcmp(swap->argument, "adamw")) return;
    double rate = lb_muon_sibling_rate(program, &group);
    char *note = session->run.summary->note;
    const size_t size = sizeof session->run.summary->note;
    if (group == LB_NONE)
        snprintf(note, size, "AdamW in Muon's place: no group of Adam was recorded, learning rate 3e-4");
    else
        snprintf(note, size, "AdamW in Muon's place: learning rate %g, as in group %u (%s)", rate,
                 program->groups[group].index, lb_program_text(program, program->groups[group].optimizer));
}

/* Applies every structural swap; `origin` ends up pointing from the last program to the recorded one. */
static lb_status transform(session *session, const lb_prepared *recorded, rank_step *out, lb_err *err)
{
    const lb_plan *plan = session->run.plan;
    for (uint32_t i = 0; i < plan->n_swaps; i++) {
        if (!lb_swap_is_structural(plan->swaps[i].kind)) continue;
        lb_passed next;
        const lb_program *in = out->program ? out->program : recorded->program;
        if (plan->swaps[i].kind == LB_SWAP_FUSE)
            LB_TRY(lb_fuse_pass(in, out->origin, plan, i, &next, err));
        else
            LB_TRY(lb_pass_apply(in, out->origin, &plan->swaps[i], &next, err));
        if (plan->touched) plan->touched[i] += next.touched;
        if (next.touched) note_rate(session, in, &plan->swaps[i]);
        out->changed |= next.touched && i >= plan->n_common;
        for (uint32_t o = 0; out->origin && o < next.program->n_ops; o++)
            if (next.origin[o] != LB_NONE) next.origin[o] = out->origin[next.origin[o]];
        lb_program_free(out->program);
        free(out->origin);
        out->program = next.program;
        out->origin = next.origin;
    }
    if (!out->program) return LB_OK;
    LB_TRY(lb_prepared_make(out->program, recorded->program, out->origin, &out->own, err));
    out->prepared = out->own;
    return LB_OK;
}

static lb_status find_blocks(const lb_program *program, lb_blocks *blocks, lb_err *err)
{
    lb_slice_flow *flow;
    LB_TRY(lb_slice_flow_new(program, &flow, err));
    lb_status status = lb_blocks_find(program, flow, blocks, err);
    lb_slice_flow_free(flow);
    return status;
}

static lb_status mark_selected(const session *session, rank_step *out, const char *blocks, lb_err *err)
{
    if (!session->selector) return LB_OK;
    const lb_prepared *prepared = out->prepared;
    out->selected = calloc(prepared->program->n_ops + 1, 1);
    if (!out->selected) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    return lb_selector_mark(session->selector, prepared->program, blocks, prepared->origin, out->selected, 1, NULL,
                            err);
}

/* Ops that swaps beyond the common ones have concerned so far; passes don't count here. */
static lb_status concerned(const session *session, uint64_t *sum, lb_err *err)
{
    const lb_plan *plan = session->run.plan;
    uint64_t *touched = calloc(plan->n_swaps + 1, sizeof *touched);
    *sum = 0;
    if (!touched) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    lb_choices_touched(session->choices, touched);
    for (uint32_t i = plan->n_common; i < plan->n_swaps; i++) *sum += touched[i];
    free(touched);
    return LB_OK;
}

static lb_status make_rank_step(session *session, const lb_prepared *recorded, rank_step *out, lb_err *err)
{
    uint64_t before, after;
    *out = (rank_step){.prepared = recorded};
    LB_TRY(transform(session, recorded, out, err));
    lb_blocks blocks = {0};
    bool wanted =
        lb_choices_want_blocks(session->choices) || (session->selector && lb_selector_wants_blocks(session->selector));
    LB_TRY(concerned(session, &before, err));
    if (wanted) LB_TRY(find_blocks(out->prepared->program, &blocks, err));
    lb_status status = lb_choices_make(session->choices, out->prepared, blocks.letters, &out->choice_of, err);
    if (status == LB_OK) status = mark_selected(session, out, blocks.letters, err);
    if (status == LB_OK) status = concerned(session, &after, err);
    if (status == LB_OK) out->changed |= after > before;
    lb_blocks_release(&blocks);
    return status;
}

static lb_status make_runner(session *session, int32_t rank, runner *runner, lb_err *err)
{
    const int64_t *steps;
    uint32_t n_steps = lb_capture_steps(session->replay->capture, &steps);
    runner->rank = rank;
    runner->rank_steps = calloc(n_steps + 1, sizeof *runner->rank_steps);
    if (!runner->rank_steps) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    LB_TRY(lb_machine_new(&session->run, rank, &runner->machine, err));
    if (session->rounds_operands) {
        runner->machine->rounding = lb_operand_rounding_new();
        if (!runner->machine->rounding) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    for (uint32_t i = 0; i < n_steps; i++) {
        if (steps[i] < session->run.plan->first_step || steps[i] > session->run.plan->last_step) continue;
        const lb_prepared *recorded = NULL;
        lb_err local = LB_ERR_INIT;
        lb_status status = recorded_program(session->replay, rank, steps[i], &recorded, &local);
        if (status == LB_ERR_NOT_FOUND) continue;
        if (status != LB_OK) return lb_fail(err, status, "%s", local.message);
        LB_TRY(make_rank_step(session, recorded, &runner->rank_steps[runner->n_rank_steps++], err));
        LB_TRY(lb_machine_declare(runner->machine, runner->rank_steps[runner->n_rank_steps - 1].prepared, err));
    }
    return LB_OK;
}

static bool wanted(const lb_plan *plan, int32_t rank)
{
    if (!plan->ranks) return true;
    for (uint32_t i = 0; i < plan->n_ranks; i++)
        if (plan->ranks[i] == rank) return true;
    return false;
}

static lb_status make_runners(session *session, lb_err *err)
{
    const int32_t *ranks;
    uint32_t n = lb_capture_ranks(session->replay->capture, &ranks), steps = 0;
    if (!session->replay->receipts) session->replay->receipts = calloc(n + 1, sizeof *session->replay->receipts);
    session->runners = calloc(n + 1, sizeof *session->runners);
    if (!session->replay->receipts || !session->runners) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n; i++) {
        if (!wanted(session->run.plan, ranks[i])) continue;
        runner *const runner = &session->runners[session->n_runners++];
        LB_TRY(make_runner(session, ranks[i], runner, err));
        const receipt receipt = receipt_of(session->replay, i, ranks[i]);
        runner->machine->tf32_products = receipt.tf32.products;
        runner->machine->tf32_convolutions = receipt.tf32.convolutions;
        runner->machine->e4m3_nan = receipt.e4m3_nan;
        steps += runner->n_rank_steps;
    }
    if (!steps)
        return lb_capture_lacks(session->replay->capture, session->run.plan->first_step, session->run.plan->last_step,
                                err);
    return LB_OK;
}

static void sum_up(const session *session, lb_replay_summary *summary)
{
    for (uint32_t i = 0; session->runners && i < session->n_runners; i++) {
        if (!session->runners[i].machine) continue;
        const lb_memory *memory = session->runners[i].machine->memory;
        const uint64_t peak = lb_memory_peak(memory), live = lb_memory_peak_live(memory);
        if (peak > summary->peak_bytes) summary->peak_bytes = peak;
        if (live > summary->live_bytes) summary->live_bytes = live;
    }
}

static void release_session(session *session)
{
    for (uint32_t i = 0; session->runners && i < session->n_runners; i++) {
        runner *runner = &session->runners[i];
        if (runner->machine) lb_operand_rounding_free(runner->machine->rounding);
        lb_machine_free(runner->machine);
        for (uint32_t k = 0; k < runner->n_rank_steps; k++) {
            lb_prepared_free(runner->rank_steps[k].own);
            lb_program_free(runner->rank_steps[k].program);
            free(runner->rank_steps[k].origin);
            free(runner->rank_steps[k].choice_of);
            free(runner->rank_steps[k].selected);
        }
        free(runner->rank_steps);
    }
    free(session->runners);
    lb_choices_free(session->choices);
    lb_selector_free(session->selector);
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

/* Starts the next step, or notes that there is none. */
static lb_status next_step(session *session, runner *runner, lb_err *err)
{
    if (runner->at == runner->n_rank_steps) {
        runner->state = RUNNER_DONE;
        return LB_OK;
    }
    rank_step *now = &runner->rank_steps[runner->at++];
    runner->state = RUNNER_READY;
    if (runner->machine->rounding) LB_TRY(lb_operand_rounding_step(runner->machine->rounding, now->prepared, err));
    LB_TRY(lb_machine_begin(runner->machine, now->prepared, lb_choices_rows(session->choices), now->choice_of, err));
    runner->machine->selected = now->selected;
    return LB_OK;
}

static lb_status advance(session *session, runner *runner, lb_err *err)
{
    while (runner->state == RUNNER_READY && !session->run.stop) {
        lb_machine_state state;
        LB_TRY(lb_machine_run(runner->machine, &state, err));
        if (state == LB_MACHINE_AT_COLLECTIVE) runner->state = RUNNER_WAITS;
        if (state != LB_MACHINE_STEP_DONE) break;
        const lb_observer *observer = session->run.observer;
        if (observer && observer->step_end)
            observer->step_end(observer->context, runner->rank, runner->machine->prepared->program->step);
        if (session->keeps && runner->at < runner->n_rank_steps)
            runner->state = RUNNER_PAUSED;
        else
            LB_TRY(next_step(session, runner, err));
    }
    return LB_OK;
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

/* The latest one before which nothing differs; history that operand rounding has of its own is not kept. */
static void resume(session *session)
{
    const lb_checkpoints *from = session->run.plan->from;
    if (!from || session->rounds_operands || !lb_checkpoints_serve(from, session->run.plan)) return;
    for (uint32_t c = from->n; c-- > 0;) {
        const lb_machine_checkpoint *row = &from->rows[c];
        bool fits = row->n_machines == session->n_runners;
        for (uint32_t i = 0; i < session->n_runners && fits; i++) {
            const runner *runner = &session->runners[i];
            fits = row->machines[i].rank == runner->rank && row->machines[i].done <= runner->n_rank_steps;
            for (uint32_t k = 0; fits && k < row->machines[i].done; k++)
                fits = !runner->rank_steps[k].changed &&
                       runner->rank_steps[k].prepared->program->step < session->run.plan->from_by;
            fits = fits && lb_checkpoint_fits(&row->machines[i], runner->machine);
        }
        if (!fits) continue;
        for (uint32_t i = 0; i < session->n_runners; i++) {
            runner *runner = &session->runners[i];
            runner->at = row->machines[i].done;
            lb_checkpoint_resume(&row->machines[i], runner->machine,
                                 runner->at ? runner->rank_steps[runner->at - 1].prepared : NULL);
        }
        char note[sizeof session->run.summary->note];
        memcpy(note, session->run.summary->note, sizeof note);
        *session->run.summary = row->summary;
        memcpy(session->run.summary->note, note, sizeof note);
        session->run.summary->resumed = true;
        if (session->run.observer && session->run.observer->resumed)
            session->run.observer->resumed(session->run.observer->context, row->id);
        return;
    }
}

static lb_status go_on(session *session, lb_err *err)
{
    for (uint32_t i = 0; i < session->n_runners; i++)
        if (session->runners[i].state == RUNNER_PAUSED) LB_TRY(next_step(session, &session->runners[i], err));
    return LB_OK;
}

/* A rank has paused, and those that have not are done. */
static bool all_paused(const session *session)
{
    bool any = false;
    for (uint32_t i = 0; i < session->n_runners; i++) {
        if (session->runners[i].state != RUNNER_PAUSED && session->runners[i].state != RUNNER_DONE) return false;
        any |= session->runners[i].state == RUNNER_PAUSED;
    }
    return any;
}

static lb_status keep_checkpoint(session *session, lb_err *err)
{
    lb_checkpoints *keep = session->run.plan->keep;
    const lb_observer *observer = session->run.observer;
    if (observer && observer->keep && !observer->keep(observer->context, keep->next_id)) return go_on(session, err);
    lb_machine **machines = malloc((session->n_runners + 1) * sizeof *machines);
    uint32_t *done = malloc((session->n_runners + 1) * sizeof *done);
    lb_status status = machines && done ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < session->n_runners && status == LB_OK; i++)
        machines[i] = session->runners[i].machine, done[i] = session->runners[i].at;
    if (status == LB_OK)
        status = lb_checkpoints_add(keep, machines, done, session->n_runners, session->run.summary, err);
    free(machines);
    free(done);
    return status == LB_OK ? go_on(session, err) : status;
}

static void take_seats(const session *session, lb_rank_seat *seats)
{
    for (uint32_t i = 0; i < session->n_runners; i++) {
        const runner *runner = &session->runners[i];
        seats[i] =
            (lb_rank_seat){runner->machine, runner->rank, runner->state == RUNNER_WAITS, runner->state == RUNNER_DONE};
    }
}

/* Lets every collective happen that can. When none can, one that waits for a message goes on without it, or else the
 * first that waits takes its recorded outputs. */
static lb_status hold_meetings(session *session, lb_rank_seat *seats, uint32_t *members, lb_err *err)
{
    runner *stuck = NULL;
    bool progress = false, paused = false;
    for (uint32_t i = 0; i < session->n_runners; i++) {
        runner *runner = &session->runners[i];
        uint32_t n;
        paused |= runner->state == RUNNER_PAUSED;
        if (runner->state != RUNNER_WAITS || session->run.stop) continue;
        take_seats(session, seats);
        const lb_rendezvous found = lb_rendezvous_gather(seats, session->n_runners, i, session->messages, members, &n);
        if (found == LB_RENDEZVOUS_COMPLETE) LB_TRY(lb_rendezvous_run(seats, members, n, session->messages, err));
        for (uint32_t m = 0; found == LB_RENDEZVOUS_COMPLETE && m < n; m++)
            session->runners[members[m]].state = RUNNER_READY;
        if (found == LB_RENDEZVOUS_IMPOSSIBLE) LB_TRY(lb_machine_stand_in(runner->machine, err));
        if (found != LB_RENDEZVOUS_WAITS) runner->state = RUNNER_READY;
        progress |= found != LB_RENDEZVOUS_WAITS;
        if (found == LB_RENDEZVOUS_WAITS && !stuck) stuck = runner;
    }
    if (progress || !stuck) return LB_OK;
    if (paused) return go_on(session, err); /* they may be whom the others wait for: no checkpoint here */
    take_seats(session, seats);
    for (uint32_t i = 0; i < session->n_runners; i++) {
        lb_status status = LB_OK;
        if (session->runners[i].state != RUNNER_WAITS || !lb_rendezvous_postpone(&seats[i], &status, err)) continue;
        session->runners[i].state = RUNNER_READY;
        return status;
    }
    LB_TRY(lb_machine_stand_in(stuck->machine, err));
    stuck->state = RUNNER_READY;
    return LB_OK;
}

static lb_status play(session *session, lb_err *err)
{
    lb_rank_seat *seats = calloc(session->n_runners + 1, sizeof *seats);
    uint32_t *members = calloc(session->n_runners + 1, sizeof *members);
    session->messages = lb_messages_new();
    lb_status status = seats && members && session->messages ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < session->n_runners && status == LB_OK; i++)
        status = next_step(session, &session->runners[i], err);
    for (bool left = true; left && status == LB_OK && !session->run.stop;) {
        left = false;
        for (uint32_t i = 0; i < session->n_runners && status == LB_OK; i++)
            status = advance(session, &session->runners[i], err);
        if (status == LB_OK)
            status = all_paused(session) ? keep_checkpoint(session, err) : hold_meetings(session, seats, members, err);
        for (uint32_t i = 0; i < session->n_runners; i++) left |= session->runners[i].state != RUNNER_DONE;
    }
    lb_messages_free(session->messages);
    session->messages = NULL;
    free(seats), free(members);
    return status;
}

static lb_status recorded_value(void *context, const lb_program *program, uint32_t value, lb_tensor *tensor,
                                lb_err *err)
{
    return lb_capture_value(context, program, value, tensor, err);
}

static lb_status other_program(void *context, int32_t rank, int64_t step, const lb_program **program, lb_err *err)
{
    return lb_capture_program(context, rank, step, program, err);
}

/* What shows in later ops only means nothing where every op reads what was recorded. */
static lb_status check_mode(const lb_plan *plan, lb_err *err)
{
    static const struct {
        lb_swap_kind kind;
        const char *option, *what;
    } chained[] = {{LB_SWAP_ROUTING, "routing", "forced routing"},
                   {LB_SWAP_SOURCE, "source", "another source"},
                   {LB_SWAP_SKIP, "skip", "a module that is left out"},
                   {LB_SWAP_MUON, "muon", "another optimizer"},
                   {LB_SWAP_UPDATE, "update", "another update"}};
    for (uint32_t i = 0; i < plan->n_swaps && plan->mode == LB_REPLAY_ISOLATED; i++) {
        const lb_swap *swap = &plan->swaps[i];
        const char *selector = swap->selector ? swap->selector : "", *argument = swap->argument ? swap->argument : "";
        if (swap->kind == LB_SWAP_ROUTING && !strcmp(argument, "recompute")) continue;
        for (size_t k = 0; k < sizeof chained / sizeof *chained; k++)
            if (chained[k].kind == swap->kind)
                return lb_fail(err, LB_ERR_INVALID,
                               "--%s %s%s%s: %s needs --mode chained (or layer); "
                               "an isolated op reads its recorded inputs, whatever ran before it",
                               chained[k].option, selector, *selector && *argument ? "=" : "", argument,
                               chained[k].what);
    }
    return LB_OK;
}

/* More threads than processors only take turns. Of those that cannot be started none is missed; OpenMP would end the
 * process, or write beyond its stack, of which it takes some for each thread. */
void lb_replay_threads(int threads)
{
    enum { ENOUGH = 64 };
    const long processors = sysconf(_SC_NPROCESSORS_ONLN), most = processors > ENOUGH ? processors : ENOUGH;
    const long asked = threads > 0 ? threads : omp_get_max_threads(), wanted = asked < most ? asked : most;
    int error;
    omp_set_num_threads(wanted > 1 ? 1 + (int)lb_thread_probe(wanted - 1, &error) : 1);
}

lb_status lb_replay_run(lb_replay *replay, const lb_plan *plan, const lb_observer *observer, lb_replay_summary *summary,
                        lb_err *err)
{
    lb_replay_summary unused;
    session session = {.replay = replay};
    if (!summary) summary = &unused;
    *summary = (lb_replay_summary){0};
    if (plan->size != sizeof *plan)
        return lb_fail(err, LB_ERR_INVALID, "lb_plan of another version: set size with LB_PLAN_INIT");
    session.run = (lb_run){plan, observer, {replay->capture, recorded_value, other_program}, summary, NULL, false};
    if (plan->mode == LB_REPLAY_ISOLATED && plan->compare && !plan->shadow && !plan->n_swaps)
        session.run.regeneration = lb_regeneration_new();
    double start = lb_clock_seconds();
    int threads = omp_get_max_threads();
    if (plan->threads > 0 && plan->threads != threads) lb_replay_threads(plan->threads);
    if (plan->touched) memset(plan->touched, 0, plan->n_swaps * sizeof *plan->touched);
    lb_status status = lb_choices_new(plan->swaps, plan->n_swaps, &session.choices, err);
    if (status == LB_OK && !plan->backend && lb_choices_want_torch(session.choices))
        status = lb_fail(err, LB_ERR_INVALID, "--kernel torch: no PyTorch was started for this replay");
    if (status == LB_OK) status = check_mode(plan, err);
    if (status == LB_OK && plan->select) status = lb_selector_new(plan->select, &session.selector, err);
    if (status == LB_OK) {
        session.rounds_operands = lb_choices_round_operands(session.choices, observer && observer->quantised);
        session.keeps = plan->keep && plan->mode == LB_REPLAY_CHAINED && !plan->shadow && !session.rounds_operands;
        status = make_runners(&session, err);
    }
    if (plan->keep) lb_checkpoints_begin(plan->keep, plan);
    if (status == LB_OK) resume(&session);
    if (status == LB_OK) status = play(&session, err);
    if (plan->threads > 0) omp_set_num_threads(threads);
    sum_up(&session, summary);
    if (plan->touched && session.choices) lb_choices_touched(session.choices, plan->touched);
    release_session(&session);
    lb_regeneration_free(session.run.regeneration);
    summary->seconds = lb_clock_seconds() - start;
    return status;
}
