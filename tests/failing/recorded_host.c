/* A program that records itself in every way that C has, and ends with 7 whatever the recorder does:
 *
 *     recorded_host FOLDER ops|auto|ring [LIKE]
 *
 * It prints each step to stdout, and to stderr what lb_recorder_open and lb_recorder_close told it. */
#include <lastbit/capture.h>

#include <stdio.h>
#include <string.h>

enum { N = 256, STEPS = 6, OWN_CODE = 7 };

static lb_recorder *recorder;
static float x[N], weight[N], y[N], gradient[N], loss[1];
static uint32_t line;

static lb_host_tensor seen(float *data, int64_t n)
{
    return lb_host_tensor_of(data, LB_F32, 1, &n);
}

static void op(const char *name, lb_phase phase, lb_place place, float *first, float *second, float *result, int64_t n)
{
    lb_host_tensor a = seen(first, N), b = seen(second, N), out = seen(result, n);
    const bool writes = result == first;
    lb_recorded_operand args[] = {{.tag = LB_ARG_VALUE, .flags = writes ? LB_OPERAND_WRITTEN : 0, .u.tensor = &a},
                                  {.tag = LB_ARG_VALUE, .u.tensor = &b},
                                  {.tag = LB_ARG_STRING, .u.text = "an attribute"}};
    lb_recorded_call call = LB_CALL_INIT;
    lb_pending *pending = NULL;
    uint32_t row;
    call.name = name, call.phase = phase, call.place = place, call.args = args, call.n_args = 3, call.line = line;
    call.flags = writes ? LB_OP_MUTABLE : 0;
    lb_recorder_op_begin(recorder, &call, &pending, NULL);
    for (int64_t i = 0; i < n; i++) result[i] = first[i] * 0.5f + second[i];
    const lb_status status = lb_recorder_op_end(
        recorder, pending, &(lb_recorded_operand){.tag = LB_ARG_VALUE, .u.tensor = &out}, 1, &row, NULL);
    if (status == LB_OK && phase == LB_PHASE_COMMUNICATION)
        lb_recorder_collective(recorder, row, "group", "sum", "ring", 1, (int32_t[]){0, 1}, 2, NULL);
}

static void step(int64_t number)
{
    const lb_host_tensor input = seen(x, N), output = seen(y, N), parameter = seen(weight, N);
    lb_place place = {0, 0}, outside = {0, 0};
    for (int i = 0; i < N; i++) x[i] = (float)(number * N + i);
    lb_recorder_role(recorder, &input, LB_SOURCE_BATCH, LB_VALUE_INPUT, "input", NULL);
    lb_recorder_step_begin(recorder, number, number % 2 ? "shard" : NULL, NULL);
    const uint32_t first = lb_recorder_next_op(recorder);
    lb_recorder_enter(recorder, lb_recorder_scope(recorder, "model.layer", "Layer", 0), &input, 1, false, &place, NULL);
    op("test::forward", LB_PHASE_FORWARD, place, x, weight, y, N);
    lb_recorder_leave(recorder, place, &output, 1, false, NULL);
    op("test::loss", LB_PHASE_FORWARD, outside, y, x, loss, 1);
    op("test::backward", LB_PHASE_BACKWARD, place, y, x, gradient, N);
    op("c10d::allreduce_", LB_PHASE_COMMUNICATION, outside, gradient, gradient, gradient, N);
    op("test::update_", LB_PHASE_OPTIMIZER, outside, weight, gradient, weight, N);
    lb_recorder_group(recorder, "SGD", 0, first, &(lb_member){"weight", parameter.storage, seen(gradient, N).storage},
                      1, &(lb_option){"lr", 0.1}, 1, NULL);
    lb_recorder_scalar(recorder, "loss", loss[0], NULL);
    lb_recorder_notice(recorder, "thread", "a notice", NULL);
    x[3] = -1; /* nobody said so */
    lb_recorder_escaped(recorder, input.storage);
    lb_recorder_step_end(recorder, true, NULL);
    lb_recorder_forget(recorder, seen(y, N).storage);
    printf("step %lld %g\n", (long long)number, (double)loss[0]);
}

int main(int argc, char **argv)
{
    lb_err err = LB_ERR_INIT;
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    if (argc < 3) return 129;
    if (!lb_keep_level_parse(argv[2], &options.level))
        options.ring = 2, options.ring_files = 1, options.level = LB_LEVEL_SOURCES;
    options.keep = "update", options.layers = "model", options.world = 2;
    options.like = argc > 3 ? argv[3] : NULL;
    if (lb_recorder_open(argv[1], &options, &recorder, &err) != LB_OK) {
        fprintf(stderr, "open: %s\n", err.message);
        recorder = NULL;
    }
    for (int i = 0; i < N; i++) weight[i] = (float)i / N;
    if (recorder) {
        const lb_host_tensor parameter = seen(weight, N);
        lb_recorder_role(recorder, &parameter, LB_SOURCE_PARAMETER, LB_VALUE_PARAMETER, "weight", NULL);
        lb_recorder_table(recorder, "receipt",
                          "{\"time\": 1.5, \"process\": {\"argv\": [\"host\", \"\\u00e9\"]}, \"versions\": {}}", NULL);
        line = lb_recorder_line(recorder, "host.c", 12, "step", "op(…);");
        for (int64_t number = 0; number < STEPS; number++) step(number);
        if (options.ring) lb_recorder_trigger(recorder, "a test", NULL);
        if (lb_recorder_close(recorder, &err) != LB_OK) fprintf(stderr, "close: %s\n", err.message);
    }
    return OWN_CODE;
}
