/* lb_recorder_shard as a host in C calls it; what was recorded is read back through lastbit/archive.h. */
#include "cmocka_first.h"
#include "scratch_folder.h"

#include <lastbit/archive.h>
#include <lastbit/capture.h>

#include <stdlib.h>
#include <string.h>

static lb_recorder *open_recorder(void)
{
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    lb_recorder *recorder = NULL;
    lb_err err = LB_ERR_INIT;
    options.rank = 1, options.world = 2, options.overwrite = true;
    if (lb_recorder_open(in_scratch("run.lb"), &options, &recorder, &err) != LB_OK) fail_msg("%s", err.message);
    return recorder;
}

static lb_recorded_operand tensor(const lb_host_tensor *seen)
{
    return (lb_recorded_operand){.tag = LB_ARG_VALUE, .u.tensor = seen};
}

/* in -> out; both are values of the step from then on. */
static void record(lb_recorder *recorder, const lb_host_tensor *in, const lb_host_tensor *out)
{
    lb_recorded_operand args[] = {tensor(in)}, results[] = {tensor(out)};
    lb_recorded_call call = LB_CALL_INIT;
    lb_pending *pending = NULL;
    call.name = "aten::relu", call.args = args, call.n_args = 1;
    assert_int_equal(lb_recorder_op_begin(recorder, &call, &pending, NULL), LB_OK);
    assert_int_equal(lb_recorder_op_end(recorder, pending, results, 1, NULL, NULL), LB_OK);
}

static const lb_program *read_step(lb_recorder *recorder, lb_capture **capture)
{
    const lb_program *program = NULL;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_recorder_step_end(recorder, true, NULL), LB_OK);
    assert_int_equal(lb_recorder_close(recorder, NULL), LB_OK);
    if (lb_capture_open(in_scratch("run.lb"), capture, &err) != LB_OK) fail_msg("%s", err.message);
    if (lb_capture_program(*capture, 1, 0, &program, &err) != LB_OK) fail_msg("%s", err.message);
    assert_int_equal(lb_program_validate(program, &err), LB_OK);
    return program;
}

static void assert_said(const lb_program *p, uint32_t value, uint32_t which, const char *expected)
{
    uint32_t n;
    char text[200] = "";
    const lb_shard *rows = lb_program_shards_of(p, value, &n);
    if (which < n) lb_shard_text(p, &rows[which], text, sizeof text);
    assert_string_equal(text, expected);
}

static const lb_extent rows[] = {{0, 4, 2, 2}, {1, 3, 0, 3}};
static const int32_t ranks[] = {0, 1};
static const lb_sharding_axis axes[] = {{"tp", 2, LB_PLACEMENT_SHARD, 0, NULL}};

static lb_sharding half(void)
{
    lb_sharding s = LB_SHARDING_INIT;
    s.extents = rows, s.n_extents = 2, s.axes = axes, s.n_axes = 1, s.ranks = ranks, s.n_ranks = 2;
    return s;
}

static void a_tensor_and_what_is_written_to_it_say_their_part_and_a_transposed_view_does_not(void **state)
{
    (void)state;
    float in[6] = {1, 2, 3, 4, 5, 6}, out[6] = {0};
    lb_recorder *recorder = open_recorder();
    lb_host_tensor x = lb_host_tensor_of(in, LB_F32, 2, (int64_t[]){2, 3}),
                   y = lb_host_tensor_of(out, LB_F32, 2, (int64_t[]){2, 3});
    lb_host_tensor flat = lb_host_tensor_of(in, LB_F32, 1, (int64_t[]){6}), turned = x;
    turned.layout.shape[0] = 3, turned.layout.shape[1] = 2, turned.layout.stride[0] = 1, turned.layout.stride[1] = 3;
    lb_sharding s = half();
    assert_int_equal(lb_recorder_shard(recorder, &x, &s, NULL), LB_OK); /* before the step: it holds for all to come */
    assert_int_equal(lb_recorder_step_begin(recorder, 0, NULL, NULL), LB_OK);
    record(recorder, &x, &y), record(recorder, &flat, &y), record(recorder, &turned, &y);
    lb_capture *capture;
    const lb_program *p = read_step(recorder, &capture);
    uint32_t said = 0, n;
    for (uint32_t v = 0; v < p->n_values; v++) {
        if (!lb_program_shards_of(p, v, &n)) continue;
        assert_said(p, v, 0, "tp 1 of 2 shard(0), [2:4, :] of [4, 3]");
        assert_true(p->values[v].layout.ndim == 1 || p->values[v].layout.stride[0] == 3);
        said++;
    }
    assert_int_equal(said, 2); /* as it is, and flat */
    lb_capture_close(capture);
}

static void a_flat_parameter_holds_parts_of_several_and_the_last_word_counts(void **state)
{
    (void)state;
    static const lb_extent a[] = {{0, 2, 0, 2}, {1, 3, 0, 3}, {LB_EXTENT_FLAT, 6, 4, 2}},
                           b[] = {{0, 5, 0, 5}, {LB_EXTENT_FLAT, 5, 0, 3}},
                           wrong[] = {{0, 5, 0, 5}, {LB_EXTENT_FLAT, 5, 1, 3}};
    float in[8] = {0}, out[8] = {0};
    lb_recorder *recorder = open_recorder();
    lb_host_tensor x = lb_host_tensor_of(in, LB_F32, 1, (int64_t[]){8}),
                   y = lb_host_tensor_of(out, LB_F32, 1, (int64_t[]){8});
    assert_int_equal(lb_recorder_step_begin(recorder, 0, NULL, NULL), LB_OK);
    record(recorder, &x, &y);
    lb_sharding s = LB_SHARDING_INIT;
    s.name = "b", s.at = 2, s.extents = wrong, s.n_extents = 2;
    assert_int_equal(lb_recorder_shard(recorder, &x, &s, NULL), LB_OK);
    s.extents = b;
    assert_int_equal(lb_recorder_shard(recorder, &x, &s, NULL), LB_OK);
    s.name = "a", s.at = 0, s.extents = a, s.n_extents = 3;
    assert_int_equal(lb_recorder_shard(recorder, &x, &s, NULL), LB_OK);
    lb_capture *capture;
    const lb_program *p = read_step(recorder, &capture);
    uint32_t n;
    const lb_shard *said = lb_program_shards_of(p, 0, &n);
    assert_int_equal(n, 2);
    assert_string_equal(lb_program_text(p, said[0].name), "a");
    assert_said(p, 0, 0, "elements [4:6] of [2, 3]");
    assert_said(p, 0, 1, "elements [0:3] of [5]");
    lb_capture_close(capture);
}

/* The second gradient of a buffer begins inside what the first one's note would take for padding. */
static void a_buffer_of_several_tensors_is_none_of_them(void **state)
{
    (void)state;
    float in[12] = {0}, out[12] = {0};
    lb_recorder *recorder = open_recorder();
    lb_host_tensor all = lb_host_tensor_of(in, LB_F32, 1, (int64_t[]){12}),
                   y = lb_host_tensor_of(out, LB_F32, 1, (int64_t[]){12});
    lb_host_tensor parts[2];
    lb_sharding s = half();
    for (int i = 0; i < 2; i++) {
        parts[i] = lb_host_tensor_of(in, LB_F32, 2, (int64_t[]){2, 3});
        parts[i].storage_bytes = sizeof in, parts[i].layout.offset = 6 * i, parts[i].data = in + 6 * i;
        assert_int_equal(lb_recorder_shard(recorder, &parts[i], &s, NULL), LB_OK);
    }
    assert_int_equal(lb_recorder_step_begin(recorder, 0, NULL, NULL), LB_OK);
    record(recorder, &all, &y), record(recorder, &parts[1], &y);
    lb_capture *capture;
    const lb_program *p = read_step(recorder, &capture);
    for (uint32_t v = 0; v < p->n_values; v++) {
        uint32_t n;
        const bool whole = lb_layout_numel(&p->values[v].layout) == 12;
        lb_program_shards_of(p, v, &n);
        assert_int_equal(n, whole ? 0 : 1);
    }
    lb_capture_close(capture);
}

static void what_cannot_be_is_refused_and_recording_goes_on(void **state)
{
    (void)state;
    static const lb_extent beyond[] = {{0, 4, 3, 2}, {1, 3, 0, 3}}, larger[] = {{0, 4, 0, 4}, {1, 3, 0, 3}};
    static const lb_sharding_axis many[] = {{NULL, UINT32_MAX, 0, 0, NULL}, {NULL, UINT32_MAX, 0, 0, NULL}},
                                  unknown[] = {{NULL, 2, 7, 0, NULL}};
    float in[6] = {0}, out[6] = {0};
    lb_recorder *recorder = open_recorder();
    lb_host_tensor x = lb_host_tensor_of(in, LB_F32, 2, (int64_t[]){2, 3}),
                   y = lb_host_tensor_of(out, LB_F32, 2, (int64_t[]){2, 3});
    lb_sharding bad[] = {half(), half(), half(), half(), half(), half()};
    const char *const says[] = {
        "reaches beyond the whole", "a part of 12 elements", "from element -1", "a mesh of", "placement 7", "lists 1"};
    bad[0].extents = beyond, bad[1].extents = larger, bad[2].at = -1, bad[3].axes = many, bad[3].n_axes = 2;
    bad[4].axes = unknown, bad[5].n_ranks = 1;
    assert_int_equal(lb_recorder_step_begin(recorder, 0, NULL, NULL), LB_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lb_err err = LB_ERR_INIT;
        assert_int_equal(lb_recorder_shard(recorder, &x, &bad[i], &err), LB_ERR_INVALID);
        if (!strstr(err.message, says[i])) fail_msg("'%s' does not say '%s'", err.message, says[i]);
    }
    record(recorder, &x, &y);
    lb_capture *capture;
    const lb_program *p = read_step(recorder, &capture);
    assert_true(p->complete && p->n_shards == 0 && p->n_ops == 2);
    lb_capture_close(capture);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_scratch, drop_scratch)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_tensor_and_what_is_written_to_it_say_their_part_and_a_transposed_view_does_not),
        TEST(a_flat_parameter_holds_parts_of_several_and_the_last_word_counts),
        TEST(a_buffer_of_several_tensors_is_none_of_them),
        TEST(what_cannot_be_is_refused_and_recording_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
