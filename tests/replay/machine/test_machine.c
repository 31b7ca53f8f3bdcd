/* The machine on programs written by hand: modes, in-place writes, regions, carried state, missing bytes, decisions. */
#include "cmocka_first.h"

#include "machine/machine.h"

#include "hand_program.h"

#include <math.h>

typedef struct seen {
    uint32_t n;
    uint32_t op[64];
    lb_verdict verdict[64];
    bool approximate[64], conditional[64];
    double ratio[64];
    double first[64];     /* element 0 of the first computed result, NaN when there is none */
    double exact[64];     /* the same of its shadow */
    double beside[64][2]; /* elements 0 of what was recorded and of its shadow */
    uint32_t stop_at;
} seen;

static bool look(void *context, const lb_event *event)
{
    seen *seen = context;
    seen->op[seen->n] = event->op;
    seen->verdict[seen->n] = event->verdict;
    seen->approximate[seen->n] = event->approximate;
    seen->conditional[seen->n] = event->conditional;
    seen->ratio[seen->n] = event->bound_ratio;
    seen->first[seen->n] = NAN;
    for (uint32_t i = 0; i < event->n_results; i++)
        if (event->computed[i].data) {
            seen->first[seen->n] = lb_to_f64(event->computed[i].dtype, event->computed[i].data);
            break;
        }
    const lb_tensor *exact = event->n_results && event->shadow[0].data ? &event->shadow[0] : NULL;
    seen->exact[seen->n] = exact ? lb_to_f64(exact->dtype, exact->data) : NAN;
    seen->n++;
    return seen->n != seen->stop_at;
}

/* Told before the op's own event. */
static void look_beside(void *context, const lb_program *program, uint32_t op, uint32_t value,
                        const lb_tensor *recorded, const lb_tensor *exact)
{
    seen *seen = context;
    assert_true(op < program->n_ops && value < program->n_values);
    seen->beside[seen->n][0] = lb_to_f64(recorded->dtype, recorded->data);
    seen->beside[seen->n][1] = *(double *)exact->data;
}

typedef struct fixture {
    lb_plan plan;
    lb_replay_summary summary;
    lb_choice choices[4];
    uint8_t choice_of[64];
    bool choose;
    seen seen;
} fixture;

/* Runs the programs one after another on one machine. */
static void replay(fixture *fixture, hand **hands, uint32_t n)
{
    lb_observer observer = {.context = &fixture->seen, .op = look, .beside = look_beside};
    lb_run run = {&fixture->plan, &observer, {hands[0], hand_recorded}, &fixture->summary, NULL, false};
    lb_machine *machine;
    lb_prepared *prepared[4];
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_machine_new(&run, 0, &machine, &err), LB_OK);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(lb_program_validate(hands[i]->program, &err), LB_OK);
        assert_int_equal(lb_prepared_make(hands[i]->program, NULL, NULL, &prepared[i], &err), LB_OK);
        assert_int_equal(lb_machine_declare(machine, prepared[i], &err), LB_OK);
    }
    for (uint32_t i = 0; i < n && !run.stop; i++) {
        lb_machine_state state = LB_MACHINE_STEP_DONE;
        run.recording.context = hands[i];
        assert_int_equal(
            lb_machine_begin(machine, prepared[i], fixture->choices, fixture->choose ? fixture->choice_of : NULL, &err),
            LB_OK);
        while (state != LB_MACHINE_STOPPED) {
            assert_int_equal(lb_machine_run(machine, &state, &err), LB_OK);
            if (state == LB_MACHINE_STEP_DONE) break;
            if (state == LB_MACHINE_AT_COLLECTIVE) assert_int_equal(lb_machine_stand_in(machine, &err), LB_OK);
        }
    }
    lb_machine_free(machine);
    for (uint32_t i = 0; i < n; i++) lb_prepared_free(prepared[i]);
}

static hand *new_hand(void)
{
    hand *h = aligned_alloc(16, (sizeof *h + 15) / 16 * 16);
    memset(h, 0, sizeof *h);
    h->program = lb_program_new();
    h->program->world = 1;
    return h;
}

static void free_hand(hand *h)
{
    lb_program_free(h->program);
    free(h);
}

/* x, y sources; s = x + y; t = s * s; t += x in place (t is written, and has a second version). */
static hand *arithmetic(bool wrong_sum, bool keep_sum)
{
    hand *h = new_hand();
    uint32_t x = hand_value(h, 1, 0, LB_F32, 0, 4), y = hand_value(h, 2, 0, LB_F32, 0, 4),
             s = hand_value(h, 3, 0, LB_F32, 0, 4), t = hand_value(h, 4, 0, LB_F32, 0, 4),
             t1 = hand_value(h, 4, 1, LB_F32, 0, 4);
    hand_record(h, x, (float[]){1, 2, 3, 4}, true);
    hand_record(h, y, (float[]){10, 20, 30, 40}, true);
    hand_record(h, s, wrong_sum ? (float[]){12, 22, 33, 44} : (float[]){11, 22, 33, 44}, keep_sum);
    hand_record(h, t, wrong_sum ? (float[]){144, 484, 1089, 1936} : (float[]){121, 484, 1089, 1936}, true);
    hand_record(h, t1, wrong_sum ? (float[]){145, 486, 1092, 1940} : (float[]){122, 486, 1092, 1940}, true);
    hand_source(h, x, LB_SOURCE_PARAMETER);
    hand_source(h, y, LB_SOURCE_BATCH);
    hand_op(h, "aten::add.Tensor", 0, (lb_arg[]){hand_arg(x), hand_arg(y), hand_int(1)}, 3, (hand_values){&s, 1},
            (hand_values){0});
    hand_op(h, "aten::mul.Tensor", 0, (lb_arg[]){hand_arg(s), hand_arg(s)}, 2, (hand_values){&t, 1}, (hand_values){0});
    hand_op(h, "aten::add_.Tensor", LB_OP_MUTABLE, (lb_arg[]){hand_arg(t), hand_arg(x), hand_int(1)}, 3,
            (hand_values){&t1, 1}, (hand_values){&t1, 1});
    return h;
}

static void an_unswapped_replay_equals_the_recording_in_every_mode(void **state)
{
    (void)state;
    for (int mode = LB_REPLAY_ISOLATED; mode <= LB_REPLAY_CHAINED; mode++) {
        hand *h = arithmetic(false, true);
        fixture fixture = {.plan = LB_PLAN_INIT};
        fixture.plan.mode = (lb_replay_mode)mode;
        replay(&fixture, &h, 1);
        assert_int_equal(fixture.seen.n, 3);
        for (int i = 0; i < 3; i++) assert_int_equal(fixture.seen.verdict[i], LB_VERDICT_IDENTICAL);
        assert_int_equal(fixture.summary.bitwise, 3);
        assert_int_equal(fixture.summary.native, 3);
        assert_float_equal(fixture.seen.first[2], 122, 0);
        free_hand(h);
    }
}

static void isolated_replay_blames_the_op_that_differs_and_no_other(void **state)
{
    (void)state;
    hand *h = arithmetic(true, true);
    fixture fixture = {.plan = LB_PLAN_INIT};
    replay(&fixture, &h, 1);
    assert_int_equal(fixture.seen.verdict[0], LB_VERDICT_DIVERGED);
    assert_true(fixture.seen.ratio[0] > 1);
    assert_int_equal(fixture.seen.verdict[1], LB_VERDICT_IDENTICAL);
    assert_int_equal(fixture.seen.verdict[2], LB_VERDICT_IDENTICAL);
    assert_false(fixture.seen.approximate[1]);
    assert_float_equal(fixture.seen.first[0], 11, 0); /* what was computed, not the anchor */
    free_hand(h);
}

static void chained_replay_hands_the_difference_on_as_inherited(void **state)
{
    (void)state;
    hand *h = arithmetic(true, true);
    fixture fixture = {.plan = LB_PLAN_INIT};
    fixture.plan.mode = LB_REPLAY_CHAINED;
    replay(&fixture, &h, 1);
    assert_int_equal(fixture.seen.verdict[1], LB_VERDICT_DIVERGED);
    assert_true(fixture.seen.approximate[1] && fixture.seen.approximate[2]);
    assert_float_equal(fixture.seen.first[2], 122, 0);
    free_hand(h);
}

/* s = x + y, which was recorded wrong; d = dropout(s) by a mask that was drawn, t = d + d. */
static hand *dropped_sum(bool keep_mask)
{
    hand *h = new_hand();
    uint32_t x = hand_value(h, 1, 0, LB_F32, 0, 4), y = hand_value(h, 2, 0, LB_F32, 0, 4),
             s = hand_value(h, 3, 0, LB_F32, 0, 4), d = hand_value(h, 4, 0, LB_F32, 0, 4),
             mask = hand_value(h, 5, 0, LB_BOOL, 0, 4), t = hand_value(h, 6, 0, LB_F32, 0, 4);
    hand_record(h, x, (float[]){1, 2, 3, 4}, true);
    hand_record(h, y, (float[]){10, 20, 30, 40}, true);
    hand_record(h, s, (float[]){12, 22, 33, 44}, true);
    hand_record(h, d, (float[]){24, 0, 66, 88}, true);
    hand_record(h, mask, (float[]){1, 0, 1, 1}, keep_mask);
    hand_record(h, t, (float[]){48, 0, 132, 176}, true);
    hand_source(h, x, LB_SOURCE_PARAMETER);
    hand_source(h, y, LB_SOURCE_BATCH);
    hand_op(h, "aten::add.Tensor", 0, (lb_arg[]){hand_arg(x), hand_arg(y), hand_int(1)}, 3, (hand_values){&s, 1},
            (hand_values){0});
    lb_arg half = {.tag = LB_ARG_FLOAT, .u.f = 0.5};
    hand_op(h, "aten::native_dropout", LB_OP_RANDOM, (lb_arg[]){hand_arg(s), half, hand_int(1)}, 3,
            (hand_values){(uint32_t[]){d, mask}, 2}, (hand_values){0});
    hand_op(h, "aten::add.Tensor", 0, (lb_arg[]){hand_arg(d), hand_arg(d), hand_int(1)}, 3, (hand_values){&t, 1},
            (hand_values){0});
    return h;
}

static void what_follows_from_a_draw_is_computed_and_handed_on(void **state)
{
    (void)state;
    hand *h = dropped_sum(true);
    fixture fixture = {.plan = LB_PLAN_INIT};
    fixture.plan.mode = LB_REPLAY_CHAINED;
    replay(&fixture, &h, 1);
    assert_float_equal(fixture.seen.first[1], 22, 0); /* of 11, by the mask that was drawn */
    assert_float_equal(fixture.seen.first[2], 44, 0);
    assert_true(fixture.seen.approximate[1] && fixture.seen.approximate[2]);
    free_hand(h);
}

static void without_its_draw_an_op_is_not_judged(void **state)
{
    (void)state;
    hand *h = dropped_sum(false);
    fixture fixture = {.plan = LB_PLAN_INIT};
    replay(&fixture, &h, 1);
    assert_int_equal(fixture.seen.verdict[1], LB_VERDICT_MISSING);
    assert_int_equal(fixture.seen.verdict[2], LB_VERDICT_IDENTICAL);
    free_hand(h);
}

static void a_shadow_by_itself_is_what_it_is_beside_its_machine(void **state)
{
    (void)state;
    fixture fixture[2] = {{.plan = LB_PLAN_INIT}, {.plan = LB_PLAN_INIT}};
    for (int alone = 0; alone < 2; alone++) {
        hand *h = arithmetic(true, true);
        fixture[alone].plan.mode = LB_REPLAY_CHAINED, fixture[alone].plan.compare = false;
        fixture[alone].plan.shadow = true, fixture[alone].plan.shadow_only = alone;
        replay(&fixture[alone], &h, 1);
        free_hand(h);
        assert_int_equal(fixture[alone].seen.n, 3);
    }
    for (int i = 0; i < 3; i++) {
        assert_float_equal(fixture[0].seen.exact[i], fixture[1].seen.exact[i], 0);
        assert_false(isnan(fixture[0].seen.first[i]));
        assert_true(isnan(fixture[1].seen.first[i]));
    }
    assert_float_equal(fixture[1].seen.exact[2], 122, 0);
}

static void recorded_results_are_taken_and_shown_beside_what_the_op_gives(void **state)
{
    (void)state;
    for (int kept = 0; kept < 2; kept++) {
        hand *h = arithmetic(kept, kept);
        fixture fixture = {.plan = LB_PLAN_INIT};
        fixture.plan.shadow = fixture.plan.shadow_only = true;
        replay(&fixture, &h, 1);
        assert_int_equal(fixture.seen.n, 3);
        assert_float_equal(fixture.seen.beside[0][0], kept ? 12 : 11, 0);
        assert_float_equal(fixture.seen.beside[0][1], 11, 0);
        for (int i = 1; i < 3; i++) { /* each from what was recorded before it, in place, too */
            const double expected = (kept ? 144 : 121) + (i - 1);
            assert_float_equal(fixture.seen.beside[i][0], expected, 0);
            assert_float_equal(fixture.seen.beside[i][1], expected, 0);
        }
        assert_int_equal(fixture.summary.compared, kept ? 0 : 1);
        free_hand(h);
    }
}

static void no_verdict_rests_on_a_value_that_was_not_kept_and_differs(void **state)
{
    (void)state;
    hand *h = arithmetic(true, false);
    fixture fixture = {.plan = LB_PLAN_INIT};
    replay(&fixture, &h, 1);
    assert_int_equal(fixture.seen.verdict[0], LB_VERDICT_MISSING); /* differs from a digest: by how much is unknown */
    assert_true(fixture.seen.approximate[1]);
    assert_false(fixture.seen.approximate[2]); /* its input was kept */
    assert_int_equal(fixture.seen.verdict[2], LB_VERDICT_IDENTICAL);
    free_hand(h);
    h = arithmetic(false, false);
    memset(&fixture.seen, 0, sizeof fixture.seen);
    replay(&fixture, &h, 1);
    assert_int_equal(fixture.seen.verdict[0], LB_VERDICT_IDENTICAL); /* the digest agrees: exact */
    assert_false(fixture.seen.approximate[1]);
    free_hand(h);
}

static void what_depends_on_missing_bytes_is_missing(void **state)
{
    (void)state;
    hand *h = arithmetic(false, true);
    h->kept[0] = false;
    fixture fixture = {.plan = LB_PLAN_INIT};
    fixture.plan.mode = LB_REPLAY_CHAINED;
    replay(&fixture, &h, 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(fixture.seen.verdict[i], LB_VERDICT_MISSING);
        assert_true(isnan(fixture.seen.first[i]));
    }
    assert_int_equal(fixture.summary.verdict, LB_VERDICT_MISSING);
    free_hand(h);
}

static void the_observer_can_stop_a_run(void **state)
{
    (void)state;
    hand *h = arithmetic(false, true);
    fixture fixture = {.plan = LB_PLAN_INIT, .seen.stop_at = 2};
    replay(&fixture, &h, 1);
    assert_int_equal(fixture.seen.n, 2);
    free_hand(h);
}

/* Parts of one storage written by two ops and read as a whole, through a view. */
static void windows_of_one_storage_are_one_memory(void **state)
{
    (void)state;
    hand *h = new_hand();
    uint32_t x = hand_value(h, 1, 0, LB_F32, 0, 2), low = hand_value(h, 2, 1, LB_F32, 0, 2),
             high = hand_value(h, 2, 2, LB_F32, 2, 2), before_low = hand_value(h, 2, 0, LB_F32, 0, 2),
             before_high = hand_value(h, 2, 1, LB_F32, 2, 2), whole = hand_value(h, 2, 2, LB_F32, 0, 4),
             out = hand_value(h, 3, 0, LB_F32, 0, 4), empty = hand_value(h, 2, 0, LB_F32, 0, 4);
    h->program->values[empty].flags |= LB_VALUE_UNDEFINED;
    h->program->values[before_low].flags |= LB_VALUE_UNDEFINED;
    h->program->values[before_high].flags |= LB_VALUE_UNDEFINED;
    hand_record(h, x, (float[]){5, 6}, true);
    hand_record(h, out, (float[]){10, 12, 10, 12}, true);
    hand_source(h, x, LB_SOURCE_BATCH);
    hand_op(h, "aten::empty.memory_format", LB_OP_UNDEFINED, NULL, 0, (hand_values){&empty, 1}, (hand_values){0});
    hand_op(h, "aten::copy_", LB_OP_MUTABLE, (lb_arg[]){hand_arg(before_low), hand_arg(x)}, 2, (hand_values){&low, 1},
            (hand_values){&low, 1});
    hand_op(h, "aten::copy_", LB_OP_MUTABLE, (lb_arg[]){hand_arg(before_high), hand_arg(x)}, 2, (hand_values){&high, 1},
            (hand_values){&high, 1});
    hand_op(h, "aten::add.Tensor", 0, (lb_arg[]){hand_arg(whole), hand_arg(whole), hand_int(1)}, 3,
            (hand_values){&out, 1}, (hand_values){0});
    for (int mode = LB_REPLAY_ISOLATED; mode <= LB_REPLAY_CHAINED; mode++) {
        fixture fixture = {.plan = LB_PLAN_INIT};
        fixture.plan.mode = (lb_replay_mode)mode;
        replay(&fixture, &h, 1);
        assert_int_equal(fixture.seen.n, 3);
        assert_int_equal(fixture.seen.verdict[2], LB_VERDICT_IDENTICAL);
    }
    free_hand(h);
}

/* p -= g in step 0; step 1 reads p, carried. A replay of step 1 alone loads it, a chain keeps what it computed. */
static void carried_state_is_what_the_chain_computed(void **state)
{
    (void)state;
    hand *h[2] = {new_hand(), new_hand()};
    uint32_t p0 = hand_value(h[0], 1, 0, LB_F32, 0, 2), g = hand_value(h[0], 2, 0, LB_F32, 0, 2),
             p1 = hand_value(h[0], 1, 1, LB_F32, 0, 2);
    hand_record(h[0], p0, (float[]){1, 1}, true);
    hand_record(h[0], g, (float[]){0.5f, 0.5f}, true);
    hand_record(h[0], p1, (float[]){7, 7}, true); /* the recording disagrees with what replay computes */
    hand_source(h[0], p0, LB_SOURCE_PARAMETER);
    hand_source(h[0], g, LB_SOURCE_BATCH);
    hand_op(h[0], "aten::sub_.Tensor", LB_OP_MUTABLE, (lb_arg[]){hand_arg(p0), hand_arg(g), hand_int(1)}, 3,
            (hand_values){&p1, 1}, (hand_values){&p1, 1});
    h[1]->program->step = 1;
    uint32_t q = hand_value(h[1], 1, 1, LB_F32, 0, 2), r = hand_value(h[1], 3, 0, LB_F32, 0, 2);
    hand_record(h[1], q, (float[]){7, 7}, true);
    hand_record(h[1], r, (float[]){14, 14}, true);
    hand_source(h[1], q, LB_SOURCE_CARRIED);
    hand_op(h[1], "aten::add.Tensor", 0, (lb_arg[]){hand_arg(q), hand_arg(q), hand_int(1)}, 3, (hand_values){&r, 1},
            (hand_values){0});
    fixture f = {.plan = LB_PLAN_INIT};
    f.plan.mode = LB_REPLAY_CHAINED;
    replay(&f, h, 2);
    assert_float_equal(f.seen.first[1], 1, 0); /* 0.5 + 0.5 */
    fixture alone = {.plan = LB_PLAN_INIT};
    alone.plan.mode = LB_REPLAY_CHAINED;
    replay(&alone, &h[1], 1);
    assert_float_equal(alone.seen.first[0], 14, 0);
    free_hand(h[0]);
    free_hand(h[1]);
}

/* bf16: 256 + 1 rounds to 256, so (256 + 1) - 256 is 0; in an f32 region it is 1 inside, and 1 at the border. */
static void a_region_keeps_values_wide_inside_and_rounds_them_at_its_border(void **state)
{
    (void)state;
    hand *h = new_hand();
    uint32_t a = hand_value(h, 1, 0, LB_BF16, 0, 1), b = hand_value(h, 2, 0, LB_BF16, 0, 1),
             s = hand_value(h, 3, 0, LB_BF16, 0, 1), d = hand_value(h, 4, 0, LB_BF16, 0, 1),
             e = hand_value(h, 5, 0, LB_BF16, 0, 1);
    hand_record(h, a, (float[]){256}, true);
    hand_record(h, b, (float[]){1}, true);
    hand_record(h, s, (float[]){256}, true);
    hand_record(h, d, (float[]){0}, true);
    hand_record(h, e, (float[]){256}, true);
    hand_source(h, a, LB_SOURCE_BATCH);
    hand_source(h, b, LB_SOURCE_BATCH);
    uint32_t add = hand_op(h, "aten::add.Tensor", 0, (lb_arg[]){hand_arg(a), hand_arg(b), hand_int(1)}, 3,
                           (hand_values){&s, 1}, (hand_values){0});
    uint32_t sub = hand_op(h, "aten::sub.Tensor", 0, (lb_arg[]){hand_arg(s), hand_arg(a), hand_int(1)}, 3,
                           (hand_values){&d, 1}, (hand_values){0});
    hand_op(h, "aten::mul.Tensor", 0, (lb_arg[]){hand_arg(s), hand_arg(b)}, 2, (hand_values){&e, 1}, (hand_values){0});
    fixture f = {.plan = LB_PLAN_INIT, .choose = true};
    f.plan.mode = LB_REPLAY_CHAINED;
    f.choices[1] = (lb_choice){.region = LB_F32, .widen_only = true, .swapped = true};
    f.choice_of[add] = f.choice_of[sub] = 1;
    replay(&f, &h, 1);
    assert_float_equal(f.seen.first[0], 257, 0);
    assert_float_equal(f.seen.first[1], 1, 0);
    assert_float_equal(f.seen.first[2], 256, 0); /* outside: reads 257 rounded to bf16 */
    f = (fixture){.plan = LB_PLAN_INIT, .choose = true};
    f.plan.mode = LB_REPLAY_CHAINED;
    f.choices[1] = (lb_choice){.region = LB_F32, .widen_only = true, .swapped = true};
    f.choice_of[add] = 1; /* widening one op does nothing when its consumer is narrow */
    replay(&f, &h, 1);
    assert_float_equal(f.seen.first[1], 0, 0);
    free_hand(h);
}

static void a_changed_index_ends_the_chain_and_a_changed_float_marks_it(void **state)
{
    (void)state;
    for (int integer = 0; integer < 2; integer++) {
        hand *h = new_hand();
        lb_dtype dtype = integer ? LB_I64 : LB_F32;
        uint32_t x = hand_value(h, 1, 0, dtype, 0, 1), s = hand_value(h, 2, 0, dtype, 0, 1),
                 t = hand_value(h, 3, 0, dtype, 0, 1);
        hand_record(h, x, (float[]){2}, true);
        hand_record(h, s, (float[]){5}, true); /* 2 + 2 was recorded as 5 */
        hand_record(h, t, (float[]){4}, true);
        hand_source(h, x, LB_SOURCE_BATCH);
        hand_op(h, "aten::add.Tensor", 0, (lb_arg[]){hand_arg(x), hand_arg(x), hand_int(1)}, 3, (hand_values){&s, 1},
                (hand_values){0});
        hand_op(h, "aten::_local_scalar_dense", LB_OP_DECISION, (lb_arg[]){hand_arg(s)}, 1, (hand_values){0},
                (hand_values){0});
        hand_op(h, "aten::mul.Tensor", 0, (lb_arg[]){hand_arg(x), hand_arg(x)}, 2, (hand_values){&t, 1},
                (hand_values){0});
        fixture fixture = {.plan = LB_PLAN_INIT};
        fixture.plan.mode = LB_REPLAY_CHAINED;
        replay(&fixture, &h, 1);
        assert_int_equal(fixture.summary.undecided, integer);
        if (integer) {
            assert_non_null(strstr(fixture.summary.undecided_at, "aten::_local_scalar_dense"));
            assert_int_equal(fixture.seen.n, 1);
        } else {
            assert_true(fixture.seen.conditional[fixture.seen.n - 1]);
        }
        free_hand(h);
    }
}

static void an_unknown_op_stands_in_and_is_counted(void **state)
{
    (void)state;
    hand *h = new_hand();
    uint32_t x = hand_value(h, 1, 0, LB_F32, 0, 1), s = hand_value(h, 2, 0, LB_F32, 0, 1),
             t = hand_value(h, 3, 0, LB_F32, 0, 1);
    hand_record(h, x, (float[]){2}, true);
    hand_record(h, s, (float[]){9}, true);
    hand_record(h, t, (float[]){18}, true);
    hand_source(h, x, LB_SOURCE_BATCH);
    hand_op(h, "mine::mystery", LB_OP_COMPOSITE, (lb_arg[]){hand_arg(x)}, 1, (hand_values){&s, 1}, (hand_values){0});
    hand_op(h, "aten::add.Tensor", 0, (lb_arg[]){hand_arg(s), hand_arg(s), hand_int(1)}, 3, (hand_values){&t, 1},
            (hand_values){0});
    fixture fixture = {.plan = LB_PLAN_INIT};
    fixture.plan.mode = LB_REPLAY_CHAINED;
    replay(&fixture, &h, 1);
    assert_int_equal(fixture.seen.verdict[0], LB_VERDICT_OPAQUE);
    assert_int_equal(fixture.seen.verdict[1], LB_VERDICT_IDENTICAL);
    assert_int_equal(fixture.summary.opaque, 1);
    free_hand(h);
}

static void a_memory_limit_is_kept_and_said(void **state)
{
    (void)state;
    hand *h = arithmetic(false, true);
    fixture fixture = {.plan = LB_PLAN_INIT};
    fixture.plan.memory_bytes = 64;
    lb_run run = {&fixture.plan, NULL, {h, hand_recorded}, &fixture.summary, NULL, false};
    lb_machine *machine;
    lb_prepared *prepared;
    lb_machine_state reached;
    lb_err err = LB_ERR_INIT;
    lb_machine_new(&run, 0, &machine, &err);
    lb_prepared_make(h->program, NULL, NULL, &prepared, &err);
    lb_machine_declare(machine, prepared, &err);
    lb_machine_begin(machine, prepared, NULL, NULL, &err);
    assert_int_equal(lb_machine_run(machine, &reached, &err), LB_ERR_LIMIT);
    assert_non_null(strstr(err.message, "--memory"));
    lb_machine_free(machine);
    lb_prepared_free(prepared);
    free_hand(h);
}

/* q, k, v sources; attention gives y, log-sum-exps and a generator's state that no replay computes; the state is read
 * again. */
static void by_products_are_taken_as_recorded(void **state)
{
    (void)state;
    hand *h = new_hand();
    uint32_t q = hand_value(h, 1, 0, LB_F32, 0, 2), y = hand_value(h, 2, 0, LB_F32, 0, 2),
             lse = hand_value(h, 3, 0, LB_F32, 0, 1), seed = hand_value(h, 4, 0, LB_I64, 0, 1),
             seed2 = hand_value(h, 5, 0, LB_I64, 0, 1);
    h->program->values[q].layout = h->program->values[y].layout = lb_layout_contiguous(4, (int64_t[]){1, 1, 1, 2});
    h->program->values[lse].layout = lb_layout_contiguous(3, (int64_t[]){1, 1, 1});
    hand_record(h, q, (float[]){1, 0}, true);
    hand_record(h, y, (float[]){1, 0}, true);
    hand_record(h, lse, (float[]){0.25f}, true);
    hand_record(h, seed, (float[]){77}, true);
    hand_record(h, seed2, (float[]){78}, true);
    hand_source(h, q, LB_SOURCE_PARAMETER);
    const lb_arg none = {.tag = LB_ARG_NONE}, zero = {.tag = LB_ARG_FLOAT}, no = {.tag = LB_ARG_BOOL};
    const lb_arg yes = {.tag = LB_ARG_BOOL, .u.i = 1}, scale = {.tag = LB_ARG_FLOAT, .u.f = 0.25};
    hand_op(h, "aten::_scaled_dot_product_efficient_attention", 0,
            (lb_arg[]){hand_arg(q), hand_arg(q), hand_arg(q), none, yes, zero, no, scale}, 8,
            (hand_values){(uint32_t[]){y, lse, seed}, 3}, (hand_values){0});
    hand_op(h, "aten::add.Tensor", 0, (lb_arg[]){hand_arg(seed), hand_int(1), hand_int(1)}, 3, (hand_values){&seed2, 1},
            (hand_values){0});
    for (int mode = LB_REPLAY_ISOLATED; mode <= LB_REPLAY_CHAINED; mode++) {
        fixture fixture = {.plan = LB_PLAN_INIT};
        fixture.plan.mode = (lb_replay_mode)mode;
        replay(&fixture, &h, 1);
        assert_int_equal(fixture.seen.verdict[0], LB_VERDICT_IDENTICAL);
        assert_int_equal(fixture.seen.verdict[1], LB_VERDICT_IDENTICAL);
        assert_float_equal(fixture.seen.first[1], 78, 0);
        assert_int_equal(fixture.summary.opaque, 0);
    }
    free_hand(h);
}

/* max(0, -0): which zero it is depends on the instruction set; any other number would be another result. */
static void the_sign_of_a_zero_is_no_divergence(void **state)
{
    (void)state;
    for (int wrong = 0; wrong < 2; wrong++) {
        hand *h = new_hand();
        uint32_t x = hand_value(h, 1, 0, LB_F32, 0, 2), y = hand_value(h, 2, 0, LB_F32, 0, 2),
                 z = hand_value(h, 3, 0, LB_F32, 0, 2);
        hand_record(h, x, (float[]){0.0f, 1}, true);
        hand_record(h, y, (float[]){-0.0f, 2}, true);
        hand_record(h, z, wrong ? (float[]){0.0f, 1} : (float[]){0.0f, 2}, true);
        hand_source(h, x, LB_SOURCE_PARAMETER);
        hand_source(h, y, LB_SOURCE_PARAMETER);
        hand_op(h, "aten::maximum", 0, (lb_arg[]){hand_arg(x), hand_arg(y)}, 2, (hand_values){&z, 1}, (hand_values){0});
        fixture fixture = {.plan = LB_PLAN_INIT};
        replay(&fixture, &h, 1);
        assert_float_equal(fixture.seen.first[0], 0, 0);
        assert_true(signbit(fixture.seen.first[0])); /* ours keeps the second of equal zeros */
        assert_int_equal(fixture.seen.verdict[0], wrong ? LB_VERDICT_DIVERGED : LB_VERDICT_ROUNDING);
        free_hand(h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unswapped_replay_equals_the_recording_in_every_mode),
        cmocka_unit_test(isolated_replay_blames_the_op_that_differs_and_no_other),
        cmocka_unit_test(chained_replay_hands_the_difference_on_as_inherited),
        cmocka_unit_test(a_shadow_by_itself_is_what_it_is_beside_its_machine),
        cmocka_unit_test(recorded_results_are_taken_and_shown_beside_what_the_op_gives),
        cmocka_unit_test(no_verdict_rests_on_a_value_that_was_not_kept_and_differs),
        cmocka_unit_test(what_depends_on_missing_bytes_is_missing),
        cmocka_unit_test(the_observer_can_stop_a_run),
        cmocka_unit_test(windows_of_one_storage_are_one_memory),
        cmocka_unit_test(carried_state_is_what_the_chain_computed),
        cmocka_unit_test(a_region_keeps_values_wide_inside_and_rounds_them_at_its_border),
        cmocka_unit_test(a_changed_index_ends_the_chain_and_a_changed_float_marks_it),
        cmocka_unit_test(an_unknown_op_stands_in_and_is_counted),
        cmocka_unit_test(a_memory_limit_is_kept_and_said),
        cmocka_unit_test(by_products_are_taken_as_recorded),
        cmocka_unit_test(what_follows_from_a_draw_is_computed_and_handed_on),
        cmocka_unit_test(without_its_draw_an_op_is_not_judged),
        cmocka_unit_test(the_sign_of_a_zero_is_no_divergence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
