/* Level auto: whatever the limits are, a step is kept whole at the level that it says it reached, and no result of a
 * higher level stays behind. */
#include "cmocka_first.h"
#include "scratch_folder.h"
#include "flight/flight_stage.h"

#include <lastbit/archive.h>
#include <lastbit/capture.h>

enum { N = 256, LAYERS = 3, OPS = 4, STEPS = 4, VALUE_BYTES = N * 4 };

static lb_recorded_operand tensor(const lb_host_tensor *seen)
{
    return (lb_recorded_operand){.tag = LB_ARG_VALUE, .u.tensor = seen};
}

static void op(lb_recorder *recorder, lb_place place, const char *name, const lb_host_tensor *in,
               const lb_host_tensor *out)
{
    lb_recorded_operand args[] = {tensor(in)}, results[] = {tensor(out)};
    lb_recorded_call call = LB_CALL_INIT;
    lb_pending *pending = NULL;
    call.name = name, call.place = place, call.args = args, call.n_args = 1;
    assert_int_equal(lb_recorder_op_begin(recorder, &call, &pending, NULL), LB_OK);
    assert_int_equal(lb_recorder_op_end(recorder, pending, results, 1, NULL, NULL), LB_OK);
}

/* A source, then LAYERS modules one after another of OPS ops each, every result with bytes of its own. */
static void record_step(lb_recorder *recorder, int64_t step)
{
    static float buffers[LAYERS * OPS + 1][N];
    const int64_t shape[] = {N};
    lb_host_tensor seen[LAYERS * OPS + 1];
    for (int b = 0; b <= LAYERS * OPS; b++) {
        for (int k = 0; k < N; k++) buffers[b][k] = (float)(step * 1000000 + b * 1000 + k);
        seen[b] = lb_host_tensor_of(buffers[b], LB_F32, 1, shape);
        lb_recorder_forget(recorder, seen[b].storage);
    }
    assert_int_equal(lb_recorder_step_begin(recorder, step, NULL, NULL), LB_OK);
    for (int layer = 0; layer < LAYERS; layer++) {
        char path[16];
        snprintf(path, sizeof path, "layers.%d", layer);
        lb_place place;
        const uint32_t scope = lb_recorder_scope(recorder, path, "Layer", 0);
        assert_int_equal(lb_recorder_enter(recorder, scope, &seen[layer * OPS], 1, false, &place, NULL), LB_OK);
        for (int i = 0; i < OPS; i++)
            op(recorder, place, "test::op", &seen[layer * OPS + i], &seen[layer * OPS + i + 1]);
        assert_int_equal(lb_recorder_leave(recorder, place, &seen[layer * OPS + OPS], 1, false, NULL), LB_OK);
    }
    assert_int_equal(lb_recorder_step_end(recorder, true, NULL), LB_OK);
}

static void record_run(uint64_t step_bytes, uint64_t total_bytes, bool beside)
{
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    lb_recorder *recorder = NULL;
    lb_err err = LB_ERR_INIT;
    options.overwrite = true;
    options.auto_step_bytes = step_bytes, options.auto_total_bytes = total_bytes;
    if (lb_recorder_open(in_scratch("run.lb"), &options, &recorder, &err) != LB_OK) fail_msg("%s", err.message);
    lb_recorder_async(recorder, beside);
    for (int64_t step = 0; step < STEPS; step++) record_step(recorder, step);
    assert_int_equal(lb_recorder_close(recorder, NULL), LB_OK);
}

static bool is_boundary(const lb_program *p, uint32_t value)
{
    for (uint32_t b = 0; b < p->n_boundaries; b++)
        if (p->boundaries[b].value == value) return true;
    return false;
}

/* The level of the step, whole and nothing more; its bytes are added to *bytes. */
static uint8_t check_step(lb_capture *capture, int64_t step, uint64_t *bytes)
{
    const lb_program *p;
    *bytes = 0;
    assert_int_equal(lb_capture_program(capture, 0, step, &p, NULL), LB_OK);
    for (uint32_t v = 0; v < p->n_values; v++) {
        const bool source = p->values[v].flags & LB_VALUE_SOURCE, kept = lb_capture_has_value(capture, p, v);
        const uint8_t least = source ? LB_LEVEL_SOURCES : is_boundary(p, v) ? LB_LEVEL_LAYERS : LB_LEVEL_OPS;
        assert_int_equal(kept, p->level >= least);
        assert_int_equal((p->values[v].flags & LB_VALUE_KEPT) != 0, kept);
        *bytes += kept ? VALUE_BYTES : 0;
    }
    return p->level;
}

static lb_capture *open_run(void)
{
    lb_capture *capture;
    lb_err err = LB_ERR_INIT;
    if (lb_capture_open(in_scratch("run.lb"), &capture, &err) != LB_OK) fail_msg("%s", err.message);
    return capture;
}

static void a_step_is_whole_at_the_highest_level_that_fits(void **state)
{
    (void)state;
    for (uint64_t values = 1; values <= 1 + LAYERS * OPS; values++)
        for (int beside = 0; beside < 2; beside++) {
            record_run(values * VALUE_BYTES, 0, beside);
            lb_capture *capture = open_run();
            for (int64_t step = 0; step < STEPS; step++) {
                uint64_t bytes;
                const uint8_t level = check_step(capture, step, &bytes);
                assert_int_equal(level, values > LAYERS * OPS ? LB_LEVEL_OPS
                                        : values > LAYERS     ? LB_LEVEL_LAYERS
                                                              : LB_LEVEL_SOURCES);
                assert_in_range(bytes, VALUE_BYTES, values * VALUE_BYTES);
            }
            lb_capture_close(capture);
        }
}

/* The bytes that do not fit are nowhere in the archive. */
static void the_total_is_kept_too(void **state)
{
    (void)state;
    const uint64_t total = (2 * (1 + LAYERS * OPS) + 1 + LAYERS) * VALUE_BYTES;
    record_run(0, total, false);
    lb_capture *capture = open_run();
    static const lb_level expected[STEPS] = {LB_LEVEL_OPS, LB_LEVEL_OPS, LB_LEVEL_LAYERS, LB_LEVEL_SOURCES};
    uint64_t sum = 0, bytes;
    for (int64_t step = 0; step < STEPS; step++) {
        assert_int_equal(check_step(capture, step, &bytes), expected[step]);
        sum += bytes;
    }
    assert_in_range(sum, total, total + VALUE_BYTES); /* a step's own source is always kept */
    lb_capture_close(capture);
    size_t size;
    free(read_whole(in_scratch("run.lb/rank-00000.tar"), &size));
    assert_in_range(size, sum, sum + STEPS * (20 << 10));
}

static lb_status count(void *context, lb_digest digest, lb_dtype dtype, const void *bytes, size_t size, lb_err *err)
{
    (void)digest, (void)dtype, (void)bytes, (void)err;
    *(uint64_t *)context += size;
    return LB_OK;
}

static void shared_bytes_stay_for_the_lowest_level(void **state)
{
    (void)state;
    const char bytes[3][8] = {"result", "layer", "both"};
    lb_digest digest[3];
    lb_flight_stage *stage = lb_flight_stage_new();
    bool fresh;
    for (int i = 0; i < 3; i++) {
        digest[i] = lb_digest_bytes(bytes[i], 8);
        const lb_blob_bytes blob = {digest[i], LB_U8, bytes[i], 8};
        assert_int_equal(lb_flight_stage_blob(stage, &blob, i == 1 ? LB_LEVEL_LAYERS : LB_LEVEL_OPS, &fresh, NULL),
                         LB_OK);
        assert_true(fresh);
    }
    const lb_blob_bytes both = {digest[2], LB_U8, bytes[2], 8};
    assert_int_equal(lb_flight_stage_blob(stage, &both, LB_LEVEL_LAYERS, &fresh, NULL), LB_OK);
    assert_false(fresh);
    assert_int_equal(lb_flight_stage_bytes(stage, LB_LEVEL_LAYERS), 16);
    lb_flight_stage_drop(stage, LB_LEVEL_LAYERS);
    assert_int_equal(lb_flight_stage_bytes(stage, LB_LEVEL_OPS), 0);
    assert_false(lb_flight_stage_has(stage, digest[0]));
    assert_true(lb_flight_stage_has(stage, digest[2]));
    uint64_t sum = 0;
    assert_int_equal(lb_flight_stage_each(stage, count, &sum, NULL), LB_OK);
    assert_int_equal(sum, 16);
    lb_flight_stage_free(stage);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_scratch, drop_scratch)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_step_is_whole_at_the_highest_level_that_fits),
        TEST(the_total_is_kept_too),
        TEST(shared_bytes_stay_for_the_lowest_level),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
