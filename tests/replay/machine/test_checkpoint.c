/* A replay that begins at a checkpoint gives the bits of one that begins at the first step: on recorded training
 * steps. */
#include "machine/checkpoint.h"
#include "cmocka_first.h"

#include <stdlib.h>
#include <string.h>

#define CLEAN LB_SOURCE_DIR "/samples/clean.lbz" /* steps 0 and 1, Muon and AdamW */

typedef struct world {
    lb_capture *capture;
    lb_replay *replay;
    lb_checkpoints *kept;
} world;

/* Digests of all that ran in one step, in order. */
typedef struct seen {
    int64_t step;
    uint64_t low, high, n, ops;
    bool refuse;
} seen;

static bool look(void *context, const lb_event *event)
{
    seen *s = context;
    s->ops++;
    for (uint32_t i = 0; event->step == s->step && i < event->n_results; i++) {
        if (!event->computed || !event->computed[i].data) continue;
        lb_digest d = lb_digest_tensor(&event->computed[i]);
        uint64_t words[2];
        memcpy(words, &d, sizeof words);
        s->low = s->low * 31 + words[0] + event->op, s->high = s->high * 31 + words[1];
        s->n++;
    }
    return true;
}

static bool allow(void *context, uint32_t checkpoint)
{
    (void)checkpoint;
    return !((seen *)context)->refuse;
}

static lb_replay_summary run(world *world, const lb_swap *swaps, uint32_t n, uint32_t common, bool keep, bool from,
                             seen *s)
{
    lb_plan plan = LB_PLAN_INIT;
    lb_replay_summary summary;
    lb_observer observer = {.context = s, .op = look, .keep = allow};
    plan.mode = LB_REPLAY_CHAINED, plan.compare = false, plan.force_decisions = true, plan.threads = 1;
    plan.swaps = swaps, plan.n_swaps = n, plan.n_common = common;
    if (keep) plan.keep = world->kept;
    if (from) plan.from = world->kept;
    assert_int_equal(lb_replay_run(world->replay, &plan, &observer, &summary, NULL), LB_OK);
    return summary;
}

static void open_world(world *w, uint64_t limit)
{
    *w = (world){0};
    assert_int_equal(lb_capture_open(CLEAN, &w->capture, NULL), LB_OK);
    assert_int_equal(lb_replay_open(w->capture, &w->replay, NULL), LB_OK);
    assert_int_equal(lb_checkpoints_new(limit, &w->kept, NULL), LB_OK);
}

static void close_world(world *world)
{
    lb_checkpoints_free(world->kept);
    lb_replay_close(world->replay);
    lb_capture_close(world->capture);
}

static const lb_swap LATER[] = {
    {LB_SWAP_PRECISION, "step=1&phase=backward", "f64"},
    {LB_SWAP_SKIP, "step=1&layer=layers.1", ""},
    {LB_SWAP_MUON, "step=1", "f32"},
    {LB_SWAP_MUON, "step=1", "adamw"},
    {LB_SWAP_ORDER, "step=1", "pairwise"},
    {LB_SWAP_PRECISION, "step=1&phase=optimizer", "bf16"},
    {LB_SWAP_ROUNDING, "step=1", "stochastic:7"},
    {LB_SWAP_KERNEL, "step=1", "finite"},
};
enum { N_LATER = sizeof LATER / sizeof *LATER };

static void a_run_from_a_checkpoint_gives_the_bits_of_a_whole_one(void **state)
{
    world world;
    (void)state;
    open_world(&world, UINT64_MAX);
    seen plain = {.step = 1}, kept = plain;
    run(&world, NULL, 0, 0, false, false, &plain);
    run(&world, NULL, 0, 0, true, false, &kept);
    assert_memory_equal(&plain, &kept, sizeof plain); /* keeping changes nothing */
    assert_int_equal(lb_checkpoints_count(world.kept), 1);
    assert_true(lb_checkpoints_bytes(world.kept) > 0);
    for (uint32_t i = 0; i < N_LATER; i++)
        for (int again = 0; again < 2; again++) { /* the first run through it leaves the checkpoint as it was */
            seen whole = {.step = 1}, resumed = {.step = 1};
            lb_replay_summary a = run(&world, &LATER[i], 1, 0, false, false, &whole);
            lb_replay_summary b = run(&world, &LATER[i], 1, 0, false, true, &resumed);
            assert_false(a.resumed);
            assert_true(b.resumed);
            assert_int_equal(a.ops, b.ops);
            assert_true(whole.ops > resumed.ops && whole.n > 1000);
            assert_true(whole.low == resumed.low && whole.high == resumed.high && whole.n == resumed.n);
            assert_true(whole.low != plain.low || i == 7); /* the swap did something; no result here is non-finite */
        }
    close_world(&world);
}

static void a_swap_in_an_earlier_step_runs_from_the_start(void **state)
{
    static const lb_swap all[] = {{LB_SWAP_PRECISION, "", "f64"},
                                  {LB_SWAP_SKIP, "step=0&layer=layers.1", ""},
                                  {LB_SWAP_PRECISION, "step=0&phase=optimizer", "f64"}};
    world world;
    (void)state;
    open_world(&world, UINT64_MAX);
    seen s = {.step = 1};
    run(&world, NULL, 0, 0, true, false, &s);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        seen whole = {.step = 1}, asked = {.step = 1};
        run(&world, &all[i], 1, 0, false, false, &whole);
        assert_false(run(&world, &all[i], 1, 0, false, true, &asked).resumed);
        assert_memory_equal(&whole, &asked, sizeof whole);
    }
    close_world(&world);
}

static void swaps_that_were_there_when_it_was_kept_may_lie_anywhere(void **state)
{
    static const lb_swap both[] = {{LB_SWAP_SKIP, "layer=layers.2", ""}, {LB_SWAP_PRECISION, "step=1", "f64"}};
    world world;
    (void)state;
    open_world(&world, UINT64_MAX);
    seen s = {.step = 1}, whole = s, resumed = s;
    run(&world, both, 1, 0, true, false, &s);
    run(&world, both, 2, 1, false, false, &whole);
    assert_true(run(&world, both, 2, 1, false, true, &resumed).resumed);
    assert_true(whole.low == resumed.low && whole.high == resumed.high && whole.n == resumed.n);
    assert_false(run(&world, both, 2, 0, false, true, &resumed).resumed);
    close_world(&world);
}

static void nothing_is_kept_above_the_limit_or_when_the_observer_refuses(void **state)
{
    world world;
    (void)state;
    open_world(&world, 1000);
    seen s = {.step = 1};
    run(&world, NULL, 0, 0, true, false, &s);
    assert_int_equal(lb_checkpoints_count(world.kept), 0);
    assert_false(run(&world, LATER, 1, 0, false, true, &s).resumed);
    close_world(&world);
    open_world(&world, UINT64_MAX);
    s.refuse = true;
    run(&world, NULL, 0, 0, true, false, &s);
    assert_int_equal(lb_checkpoints_count(world.kept), 0);
    close_world(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_from_a_checkpoint_gives_the_bits_of_a_whole_one),
        cmocka_unit_test(a_swap_in_an_earlier_step_runs_from_the_start),
        cmocka_unit_test(swaps_that_were_there_when_it_was_kept_may_lie_anywhere),
        cmocka_unit_test(nothing_is_kept_above_the_limit_or_when_the_observer_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
