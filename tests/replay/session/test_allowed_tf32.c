/* A product of f32 that tensor cores multiplied as TF32 is inside its bound where the receipt says that they might, and
 * nowhere else. */
#include "cmocka_first.h"
#include "program_sample.h"
#include "scratch_folder.h"

#include <lastbit/archive.h>
#include <lastbit/replay.h>

#include "session/allowed_tf32.h"

enum { ROWS = 8, TERMS = 64, COLUMNS = 8 };

typedef struct recording {
    uint8_t device; /* lb_value.device */
    const char *receipt;
    float planted; /* added to one element of the product, in parts of its terms */
} recording;

static float drawn(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(int32_t)*seed * 0x1p-31f;
}

/* As an instruction reads it: the last 13 bits are cut off. */
static double as_tf32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0xffffe000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t add_value(lb_program *program, const recording *recording, int64_t storage, int64_t rows,
                          int64_t columns, const float *data)
{
    const int64_t shape[] = {rows, columns};
    const lb_tensor tensor = {(void *)(uintptr_t)data, LB_F32, lb_layout_contiguous(2, shape)};
    lb_value value = {.storage = storage,
                      .layout = tensor.layout,
                      .dtype = LB_F32,
                      .device = recording->device,
                      .flags = LB_VALUE_KEPT | (storage < 2 ? LB_VALUE_SOURCE : 0),
                      .source = storage < 2 ? LB_SOURCE_BATCH : LB_SOURCE_NOT,
                      .name = LB_NONE,
                      .statistics = LB_NONE};
    value.logical = lb_digest_tensor(&tensor);
    value.blob = lb_digest_bytes(data, (size_t)(rows * columns) * sizeof(float));
    return lb_program_add_value(program, &value);
}

static lb_program *program_of(const recording *recording, const float *a, const float *b, const float *c)
{
    lb_program *program = lb_program_new();
    const uint32_t values[] = {add_value(program, recording, 0, ROWS, TERMS, a),
                               add_value(program, recording, 1, TERMS, COLUMNS, b),
                               add_value(program, recording, 2, ROWS, COLUMNS, c)};
    program->world = 1, program->level = 3, program->complete = 1;
    for (int i = 0; i < 2; i++) sample_source_op(program, values[i]);
    const lb_arg args[] = {{.tag = LB_ARG_VALUE, .u.value = values[0]}, {.tag = LB_ARG_VALUE, .u.value = values[1]}};
    sample_layer_op(program, "aten::mm", "layers.0", args, 2, values[2]);
    return program;
}

static lb_capture *record(const recording *recording)
{
    static float a[ROWS * TERMS], b[TERMS * COLUMNS], c[ROWS * COLUMNS];
    uint32_t seed = 7;
    for (int i = 0; i < ROWS * TERMS; i++) a[i] = drawn(&seed);
    for (int i = 0; i < TERMS * COLUMNS; i++) b[i] = drawn(&seed);
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        double sum = 0, terms = 0;
        for (int k = 0; k < TERMS; k++) {
            const double term = as_tf32(a[i / COLUMNS * TERMS + k]) * as_tf32(b[k * COLUMNS + i % COLUMNS]);
            sum += term, terms += term < 0 ? -term : term;
        }
        c[i] = (float)(sum + (i == 5 ? recording->planted * terms : 0));
    }
    lb_writer *writer = NULL;
    lb_capture *capture = NULL;
    const char *path = in_scratch("run.tar");
    lb_program *program = program_of(recording, a, b, c);
    assert_int_equal(lb_writer_open(path, NULL, &writer, NULL), LB_OK);
    assert_int_equal(lb_writer_blob(writer, program->values[0].blob, LB_F32, a, sizeof a, NULL), LB_OK);
    assert_int_equal(lb_writer_blob(writer, program->values[1].blob, LB_F32, b, sizeof b, NULL), LB_OK);
    assert_int_equal(lb_writer_blob(writer, program->values[2].blob, LB_F32, c, sizeof c, NULL), LB_OK);
    assert_int_equal(lb_writer_program(writer, program, NULL), LB_OK);
    if (recording->receipt) assert_int_equal(lb_writer_table(writer, "receipt", recording->receipt, NULL), LB_OK);
    assert_int_equal(lb_writer_close(writer, NULL), LB_OK);
    lb_program_free(program);
    assert_int_equal(lb_capture_open(path, &capture, NULL), LB_OK);
    unlink(path);
    return capture;
}

static lb_verdict verdict_of(const recording *recording)
{
    lb_capture *capture = record(recording);
    lb_replay *replay = NULL;
    lb_plan plan = LB_PLAN_INIT;
    lb_replay_summary summary;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_replay_open(capture, &replay, NULL), LB_OK);
    if (lb_replay_run(replay, &plan, NULL, &summary, &err) != LB_OK) fail_msg("%s", err.message);
    lb_replay_close(replay);
    lb_capture_close(capture);
    return summary.verdict;
}

#define TORCH(settings) "{\"torch\":{" settings "}}"

static void product_is_inside_its_bound_where_tf32_was_allowed(void **state)
{
    (void)state;
    static const char *const allowed[] = {TORCH("\"tf32_matmul\":true"), TORCH("\"fp32_precision_matmul\":\"tf32\""),
                                          TORCH("\"matmul_precision\":\"high\"")};
    static const char *const not_allowed[] = {NULL, "{}", TORCH("\"tf32_matmul\":false,\"tf32_cudnn\":true"),
                                              TORCH("\"matmul_precision\":\"highest\"")};
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++) {
        assert_int_equal(verdict_of(&(recording){1, allowed[i], 0}), LB_VERDICT_ROUNDING);
        assert_int_equal(verdict_of(&(recording){0, allowed[i], 0}), LB_VERDICT_DIVERGED); /* the CPU has no TF32 */
        assert_int_equal(verdict_of(&(recording){1, allowed[i], 0.01f}), LB_VERDICT_DIVERGED);
    }
    for (size_t i = 0; i < sizeof not_allowed / sizeof *not_allowed; i++)
        assert_int_equal(verdict_of(&(recording){1, not_allowed[i], 0}), LB_VERDICT_DIVERGED);
}

static void convolutions_have_a_setting_of_their_own(void **state)
{
    (void)state;
    lb_capture *capture = record(&(recording){1, TORCH("\"tf32_matmul\":false,\"tf32_cudnn\":true"), 0});
    const lb_allowed_tf32 tf32 = lb_allowed_tf32_of(capture, 0);
    assert_true(tf32.convolutions && !tf32.products);
    lb_capture_close(capture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(product_is_inside_its_bound_where_tf32_was_allowed),
        cmocka_unit_test(convolutions_have_a_setting_of_their_own),
    };
    return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
