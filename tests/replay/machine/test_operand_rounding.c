/* What precision swaps do around kernels, on programs written by hand: each type by itself, grids that nothing is held
 * in, products that a recipe takes and leaves, scales that live from step to step, random keys. */
#include "cmocka_first.h"

#include "ranks/choices.h"
#include "machine/operand_rounding.h"
#include "program/operand_role.h"
#include "precision/scale_history.h"

#include "hand_program.h"

#include <math.h>
#include <stdio.h>

enum { MOST = 16 };

/* Results of the ops of a run, in order, and the operands that were rounded. */
typedef struct outcome {
    uint32_t n_ops, n_told;
    float values[32][MOST];
    lb_dtype dtype[32];
    struct told {
        uint32_t op, operand;
        lb_precision_role role;
        char format[40], layer[20];
        lb_precision_loss loss;
    } told[32];
} outcome;

static bool note(void *context, const lb_event *event)
{
    outcome *outcome = context;
    const lb_tensor *tensor = &event->computed[0];
    outcome->dtype[outcome->n_ops] = tensor->dtype;
    lb_load_f32(outcome->values[outcome->n_ops++], tensor->dtype, tensor->data,
                (size_t)lb_layout_numel(&tensor->layout));
    return true;
}

static void hear(void *context, const lb_quantisation *q)
{
    outcome *outcome = context;
    struct told *t = &outcome->told[outcome->n_told++];
    *t = (struct told){q->op, q->operand, q->role, "", "", *q->loss};
    strcpy(t->format, q->format);
    strcpy(t->layer, q->layer);
}

/* Runs the programs as the steps of one run, chained, under precision swaps (of everything, one after another). */
static outcome run(hand **hands, uint32_t n, const char *first, const char *second, bool told)
{
    outcome outcome = {0};
    lb_plan plan = LB_PLAN_INIT;
    plan.mode = LB_REPLAY_CHAINED;
    plan.compare = false;
    lb_replay_summary summary = {0};
    lb_observer observer = {.context = &outcome, .op = note, .quantised = told ? hear : NULL};
    lb_run run = {&plan, &observer, {NULL, hand_recorded}, &summary, NULL, false};
    const lb_swap swaps[] = {{LB_SWAP_PRECISION, "", first}, {LB_SWAP_PRECISION, "", second}};
    lb_choices *choices;
    lb_machine *machine;
    lb_prepared *prepared[4];
    lb_err err = LB_ERR_INIT;
    if (lb_choices_new(swaps, first ? 1 + (second != NULL) : 0, &choices, &err) != LB_OK) fail_msg("%s", err.message);
    assert_int_equal(lb_machine_new(&run, 0, &machine, &err), LB_OK);
    if (lb_choices_round_operands(choices, told)) machine->rounding = lb_operand_rounding_new();
    for (uint32_t i = 0; i < n; i++) {
        if (lb_program_validate(hands[i]->program, &err) != LB_OK) fail_msg("%s", err.message);
        assert_int_equal(lb_prepared_make(hands[i]->program, NULL, NULL, &prepared[i], &err), LB_OK);
        assert_int_equal(lb_machine_declare(machine, prepared[i], &err), LB_OK);
    }
    for (uint32_t i = 0; i < n; i++) {
        lb_machine_state state;
        uint8_t *choice_of;
        run.recording.context = hands[i];
        assert_int_equal(lb_choices_make(choices, prepared[i], NULL, &choice_of, &err), LB_OK);
        if (machine->rounding) assert_int_equal(lb_operand_rounding_step(machine->rounding, prepared[i], &err), LB_OK);
        assert_int_equal(lb_machine_begin(machine, prepared[i], lb_choices_rows(choices), choice_of, &err), LB_OK);
        if (lb_machine_run(machine, &state, &err) != LB_OK) fail_msg("%s", err.message);
        assert_int_equal(state, LB_MACHINE_STEP_DONE);
        free(choice_of);
    }
    lb_operand_rounding_free(machine->rounding);
    lb_machine_free(machine);
    for (uint32_t i = 0; i < n; i++) lb_prepared_free(prepared[i]);
    lb_choices_free(choices);
    return outcome;
}

static hand *new_hand(int64_t step)
{
    hand *h = aligned_alloc(16, (sizeof *h + 15) / 16 * 16);
    memset(h, 0, sizeof *h);
    h->program = lb_program_new();
    h->program->world = 1;
    h->program->step = step;
    return h;
}

static void free_hand(hand *h)
{
    lb_program_free(h->program);
    free(h);
}

static uint32_t matrix(hand *h, int64_t storage, lb_dtype dtype, int64_t rows, int64_t columns)
{
    uint32_t v = hand_value(h, storage, 0, dtype, 0, rows * columns);
    h->program->values[v].layout = lb_layout_contiguous(2, (int64_t[]){rows, columns});
    return v;
}

static uint32_t source(hand *h, int64_t storage, int64_t rows, int64_t columns, const float *numbers,
                       lb_source_kind kind)
{
    uint32_t v = matrix(h, storage, LB_F32, rows, columns);
    hand_record(h, v, numbers, true);
    if (kind == LB_SOURCE_PARAMETER) h->program->values[v].flags |= LB_VALUE_PARAMETER;
    hand_source(h, v, kind);
    return v;
}

static uint32_t product(hand *h, int64_t storage, uint32_t a, uint32_t b)
{
    const lb_layout *x = &h->program->values[a].layout, *y = &h->program->values[b].layout;
    uint32_t v = matrix(h, storage, LB_F32, x->shape[0], y->shape[1]);
    hand_op(h, "aten::mm", 0, (lb_arg[]){hand_arg(a), hand_arg(b)}, 2, (hand_values){&v, 1}, (hand_values){0});
    return v;
}

/* A row times a column of three: one number. */
static hand *dot(int64_t step, const float *row, const float *column)
{
    hand *h = new_hand(step);
    uint32_t x = source(h, 1, 1, 3, row, LB_SOURCE_BATCH), w = source(h, 2, 3, 1, column, LB_SOURCE_PARAMETER);
    product(h, 3, x, w);
    return h;
}

static float dot_under(const char *first, const char *second, const float *row, const float *column)
{
    hand *h = dot(0, row, column);
    outcome outcome = run(&h, 1, first, second, false);
    free_hand(h);
    return outcome.values[0][0];
}

static const float ones[] = {1, 1, 1};

static void compute_accumulate_and_storage_each_do_their_part(void **state)
{
    (void)state;
    /* 257 is 256 in bf16; 2048 + 1 is 2048 in f16; 1e8 + 1 is 1e8 in f32. */
    const float steps[] = {2048, 1, 1}, large[] = {1e8f, 1, -1e8f}, bytes[] = {257, 0, 0};
    assert_true(dot_under(NULL, NULL, bytes, ones) == 257);
    assert_true(dot_under("compute:bf16", NULL, bytes, ones) == 256);
    assert_true(dot_under("storage:bf16", NULL, bytes, ones) == 256);
    assert_true(dot_under(NULL, NULL, steps, ones) == 2050);
    assert_true(dot_under("accumulate:f16", NULL, steps, ones) == 2048);
    assert_true(dot_under("compute:bf16,accumulate:f32,storage:f32", NULL, steps, ones) == 2050);
    assert_true(dot_under("storage:f16", NULL, steps, ones) == 2050);
    assert_true(dot_under("accumulate:tf32", NULL, steps, ones) == 2048);
    assert_true(dot_under(NULL, NULL, large, ones) == 0);
    assert_true(dot_under("accumulate:f64", NULL, large, ones) == 1);
    assert_true(dot_under("compute:f64", NULL, large, ones) == 1);
    assert_true(dot_under("compute:f64,accumulate:f32", NULL, large, ones) == 0);
    /* A later swap changes what it names and nothing else. */
    assert_true(dot_under("compute:bf16", "accumulate:f64", bytes, ones) == 256);
    assert_true(dot_under("compute:bf16", "accumulate:f64", large, ones) == 1);
    assert_true(dot_under("accumulate:f64", "compute:bf16", large, ones) == 1);
    assert_true(dot_under("compute:bf16", "f64", bytes, ones) == 257);
}

static void every_type_rounds_operands_and_results(void **state)
{
    (void)state;
    static const struct {
        const char *type;
        float compute, storage; /* of 1.3 alone */
    } cases[] = {
        {"tf32", 0x1.4ccp0f, 0x1.4ccp0f},
        {"bf16", 0x1.4cp0f, 0x1.4cp0f},
        {"f16", 0x1.4ccp0f, 0x1.4ccp0f},
        {"e4m3fn", 1.25f, 1.25f},
        {"e5m2", 1.25f, 1.25f},
        {"e4m3fnuz", 1.25f, 1.25f},
        {"e5m2fnuz", 1.25f, 1.25f},
        {"e2m1", 1.5f, 1.5f},
        {"e8m0", 1, 1},
        {"f32", 1.3f, 1.3f},
        {"f64", 1.3f, 1.3f},
    };
    const float row[] = {1.3f, 0, 0}, one[] = {1, 0, 0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[40];
        /* The zeros of the other terms are 2^-127 in e8m0: their products with 1 or with each other are below f32's
         * last bit. */
        snprintf(text, sizeof text, "compute:%s", cases[i].type);
        assert_true(dot_under(text, NULL, row, one) == cases[i].compute);
        snprintf(text, sizeof text, "storage:%s", cases[i].type);
        assert_true(dot_under(text, NULL, row, one) == cases[i].storage);
    }
}

static void roundings_overflow_and_subnormals_apply_to_what_is_named(void **state)
{
    (void)state;
    const float row[] = {1.99f, 0, 0}, huge[] = {1e6f, 0, 0}, tiny[] = {0x1p-10f, 0, 0}, exact[] = {0x1p-9f, 0, 0};
    assert_true(dot_under("storage:e5m2", NULL, row, ones) == 2);
    assert_true(dot_under("storage:e5m2,round:rz", NULL, row, ones) == 1.75f);
    assert_true(dot_under("compute:e5m2,round:rz", NULL, row, ones) == 1.75f);
    assert_true(dot_under("compute:tf32", NULL, row, ones) == 0x1.fd8p0f);
    assert_true(dot_under("compute:tf32,round:rz", NULL, row, ones) == 0x1.fd4p0f);
    assert_true(dot_under("tf32:rz", NULL, row, ones) == 0x1.fd4p0f);
    assert_true(dot_under("tf32", "compute:bf16", row, ones) == 0x1.fep0f); /* the later counts */
    assert_true(isinf(dot_under("storage:e5m2", NULL, huge, ones)));
    assert_true(dot_under("storage:e5m2,overflow:saturate", NULL, huge, ones) == 57344);
    assert_true(dot_under("storage:e4m3fn", NULL, huge, ones) == 448);
    assert_true(isnan(dot_under("storage:e4m3fn,overflow:ieee", NULL, huge, ones)));
    assert_true(dot_under("storage:e4m3fn", NULL, exact, ones) == 0x1p-9f);
    assert_true(dot_under("storage:e4m3fn,subnormals:flush", NULL, exact, ones) == 0);
    assert_true(dot_under("compute:e4m3fn,subnormals:flush", NULL, exact, ones) == 0);
    assert_true(dot_under("storage:e4m3fn,round:rna", NULL, tiny, ones) == 0x1p-9f);
    assert_true(dot_under("storage:e4m3fn", NULL, tiny, ones) == 0);
}

/* ---- roles ------------------------------------------------------------------------------------------------------ */

/* Forward: y = x w (a linear layer), z = y v (two activations). Backward, in the node of each: dw = x' g, dv = y' g. */
static hand *layers(void)
{
    hand *h = new_hand(0);
    static const float numbers[] = {1.3f, 2, 0, 100, 7, 5, 3, 1, 2};
    uint32_t x = source(h, 1, 3, 3, numbers, LB_SOURCE_BATCH), w = source(h, 2, 3, 3, numbers, LB_SOURCE_PARAMETER);
    uint32_t v = source(h, 3, 3, 3, numbers, LB_SOURCE_BATCH);
    uint32_t y = product(h, 4, x, w);
    h->program->ops[h->program->n_ops - 1].node = 8; /* the next one's: its own is 7 */
    product(h, 5, y, v);
    h->program->ops[h->program->n_ops - 1].node = 9;
    uint32_t g = hand_value(h, 6, 0, LB_F32, 0, 9);
    h->program->values[g].layout = lb_layout_contiguous(2, (int64_t[]){3, 3});
    hand_op(h, "aten::mul.Tensor", 0, (lb_arg[]){hand_arg(v), hand_arg(v)}, 2, (hand_values){&g, 1}, (hand_values){0});
    h->program->ops[h->program->n_ops - 1].phase = LB_PHASE_BACKWARD;
    product(h, 7, x, g);
    h->program->ops[h->program->n_ops - 1].phase = LB_PHASE_BACKWARD;
    h->program->ops[h->program->n_ops - 1].node = 7;
    product(h, 8, y, g);
    h->program->ops[h->program->n_ops - 1].phase = LB_PHASE_BACKWARD;
    h->program->ops[h->program->n_ops - 1].node = 8;
    return h;
}

static void recipes_take_the_products_of_linear_layers(void **state)
{
    (void)state;
    hand *h = layers();
    outcome o = run(&h, 1, "fp8-current", NULL, true);
    assert_int_equal(o.n_told, 4); /* x, w; x, g */
    assert_int_equal(o.told[0].role, LB_ROLE_INPUT);
    assert_int_equal(o.told[1].role, LB_ROLE_WEIGHT);
    assert_int_equal(o.told[2].role, LB_ROLE_INPUT);
    assert_int_equal(o.told[3].role, LB_ROLE_GRADIENT);
    assert_string_equal(o.told[0].format, "e4m3fn current");
    assert_string_equal(o.told[3].format, "e5m2 current");
    assert_true(o.told[0].loss.amax == 100 && o.told[0].loss.elements == 9);
    assert_true(o.told[0].loss.scale_high == 448.0f / 100.0f);
    outcome plain = run(&h, 1, NULL, NULL, false);
    assert_memory_not_equal(o.values[0], plain.values[0], sizeof o.values[0]);
    outcome all = run(&h, 1, "fp8-current,products:all", NULL, true);
    assert_int_equal(all.n_told, 8);
    /* Told or not, the same bits. */
    outcome quiet = run(&h, 1, "fp8-current", NULL, false);
    assert_memory_equal(o.values, quiet.values, sizeof o.values);
    free_hand(h);
}

static void a_type_alone_is_told_and_gives_the_same_bits(void **state)
{
    (void)state;
    hand *h = layers();
    static const char *const types[] = {"bf16", "e4m3fn", "e5m2"};
    for (int i = 0; i < 3; i++) {
        outcome told = run(&h, 1, types[i], NULL, true), quiet = run(&h, 1, types[i], NULL, false);
        assert_true(told.n_told > 0);
        assert_string_equal(told.told[0].format, types[i]);
        assert_memory_equal(told.values, quiet.values, sizeof told.values);
        assert_int_equal(told.dtype[0], lb_dtype_parse(types[i]));
    }
    free_hand(h);
}

/* tf32 is for products: the multiplication elsewhere keeps its operands. */
static void tf32_touches_products_alone(void **state)
{
    (void)state;
    hand *h = layers();
    outcome outcome = run(&h, 1, "tf32", NULL, true);
    assert_int_equal(outcome.n_told, 8);
    for (uint32_t i = 0; i < outcome.n_told; i++) assert_string_equal(outcome.told[i].format, "tf32 rna");
    free_hand(h);
}

/* ---- scales over steps ------------------------------------------------------------------------------------------ */

/* x w with x = (a, 0.3, 0) and w = (1, 1, 1): amax a. */
static float scaled(float x, float scale)
{
    float y = x * scale;
    lb_round_to_grid_f32(&y, 1, LB_E4M3FN, &(lb_cast){.overflow = LB_OVERFLOW_SATURATE});
    return y * (1 / scale);
}

static void delayed_scales_come_from_the_steps_before(void **state)
{
    (void)state;
    static const float amax[] = {1000, 10, 4000, 2};
    hand *h[4];
    for (int i = 0; i < 4; i++) h[i] = dot(i, (float[]){amax[i], 0.3f, 0}, (float[]){1, 1, 1});
    /* Cold: 1, then 448 over the largest of the last two. */
    static const float cold[] = {1, 448.0f / 1000, 448.0f / 1000, 448.0f / 4000};
    outcome outcome = run(h, 4, "fp8-delayed,history:2", NULL, true);
    for (int i = 0; i < 4; i++) {
        assert_true(outcome.told[2 * i].loss.scale_high == cold[i]);
        assert_true(outcome.values[i][0] == scaled(amax[i], cold[i]) + scaled(0.3f, cold[i]));
        assert_true(outcome.told[2 * i + 1].loss.scale_high == (i ? 448 : 1));
    }
    assert_int_equal(outcome.told[0].loss.overflow, 1); /* 1000 unscaled */
    assert_int_equal(outcome.told[4].loss.overflow, 1); /* 4000 under the scale of 1000 */
    /* Calibrated: the first from its own amax; margin 1 halves it. */
    outcome = run(h, 4, "fp8-delayed,history:2,start:calibrated,margin:1", NULL, true);
    assert_true(outcome.told[0].loss.scale_high == 224.0f / 1000);
    assert_true(outcome.told[2].loss.scale_high == 224.0f / 1000);
    /* The latest alone; and every second step. */
    outcome = run(h, 4, "fp8-delayed,history:3,algorithm:most_recent", NULL, true);
    assert_true(outcome.told[4].loss.scale_high == 448.0f / 10);
    outcome = run(h, 4, "fp8-delayed,history:3,interval:2", NULL, true);
    assert_true(outcome.told[2].loss.scale_high == 1);
    assert_true(outcome.told[4].loss.scale_high == 448.0f / 1000);
    assert_true(outcome.told[6].loss.scale_high == 448.0f / 1000);
    for (int i = 0; i < 4; i++) free_hand(h[i]);
}

static void an_amax_that_says_nothing_leaves_the_scale(void **state)
{
    (void)state;
    lb_recipe recipe;
    assert_int_equal(lb_recipe_parse("fp8-delayed,history:1", &recipe, NULL), LB_OK);
    lb_scale_book *book = lb_scale_book_new();
    static const float amaxes[] = {7, 0, INFINITY, NAN, 14};
    static const float after[] = {64, 64, 64, 64, 32};
    for (int i = 0; i < 5; i++) {
        lb_scale_history *entry = lb_scale_book_find(book, &recipe, "a", LB_ROLE_INPUT, 0);
        lb_scale_history_take(entry, amaxes[i]);
        lb_scale_book_step(book);
        assert_true(lb_scale_book_find(book, &recipe, "a", LB_ROLE_INPUT, 0)->scale == after[i]);
    }
    /* A tensor that a step does not touch keeps its history; others have their own. */
    lb_scale_book_step(book);
    assert_true(lb_scale_book_find(book, &recipe, "a", LB_ROLE_INPUT, 0)->scale == 32);
    for (uint32_t i = 0; i < 500; i++)
        lb_scale_history_take(lb_scale_book_find(book, &recipe, "a", LB_ROLE_WEIGHT, i), 7);
    lb_scale_book_step(book);
    for (uint32_t i = 0; i < 500; i++)
        assert_true(lb_scale_book_find(book, &recipe, "a", LB_ROLE_WEIGHT, i)->scale == 64);
    assert_true(lb_scale_book_find(book, &recipe, "b", LB_ROLE_INPUT, 0)->scale == 1);
    lb_scale_book_free(book);
}

/* ---- random numbers --------------------------------------------------------------------------------------------- */

/* The same multiplication twice: what is drawn must differ from op to op and step to step, and not from run to run. */
static void every_tensor_draws_its_own_numbers(void **state)
{
    (void)state;
    hand *h[2];
    for (int i = 0; i < 2; i++) {
        h[i] = new_hand(i);
        float numbers[16];
        for (int k = 0; k < 16; k++) numbers[k] = 1.0f + 0x1p-8f + 0x1p-9f * (float)k;
        uint32_t x = source(h[i], 1, 4, 4, numbers, LB_SOURCE_BATCH), y = matrix(h[i], 2, LB_F32, 4, 4),
                 z = matrix(h[i], 3, LB_F32, 4, 4);
        hand_op(h[i], "aten::mul.Tensor", 0, (lb_arg[]){hand_arg(x), hand_arg(x)}, 2, (hand_values){&y, 1},
                (hand_values){0});
        hand_op(h[i], "aten::mul.Tensor", 0, (lb_arg[]){hand_arg(x), hand_arg(x)}, 2, (hand_values){&z, 1},
                (hand_values){0});
    }
    static const char *const swaps[] = {"storage:bf16,round:stochastic:5", "compute:bf16,round:stochastic:5",
                                        "storage:tf32,round:stochastic:5", "storage:e2m1,round:stochastic:5"};
    for (int s = 0; s < 4; s++) {
        outcome one = run(h, 2, swaps[s], NULL, false), two = run(h, 2, swaps[s], NULL, false);
        assert_memory_equal(one.values, two.values, sizeof one.values);
        assert_memory_not_equal(one.values[0], one.values[1], sizeof one.values[0]);
        assert_memory_not_equal(one.values[0], one.values[2], sizeof one.values[0]);
        char other[64];
        strcpy(other, swaps[s]);
        other[strlen(other) - 1] = '6';
        two = run(h, 2, other, NULL, false);
        assert_memory_not_equal(one.values[0], two.values[0], sizeof one.values[0]);
    }
    free_hand(h[0]), free_hand(h[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compute_accumulate_and_storage_each_do_their_part),
        cmocka_unit_test(every_type_rounds_operands_and_results),
        cmocka_unit_test(roundings_overflow_and_subnormals_apply_to_what_is_named),
        cmocka_unit_test(recipes_take_the_products_of_linear_layers),
        cmocka_unit_test(a_type_alone_is_told_and_gives_the_same_bits),
        cmocka_unit_test(tf32_touches_products_alone),
        cmocka_unit_test(delayed_scales_come_from_the_steps_before),
        cmocka_unit_test(an_amax_that_says_nothing_leaves_the_scale),
        cmocka_unit_test(every_tensor_draws_its_own_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
