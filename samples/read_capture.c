/* Reads a capture with liblastbit: walks the ops of its first step, compares two values, replays the step and bisects
 * it.
 *
 *     cc read_capture.c $(pkg-config --cflags --libs lastbit) -o read_capture && ./read_capture run.lb
 *
 * Every call that can fail returns a status and fills an lb_err, whose first cause and message stay. What a program, a
 * tensor or an event points at belongs to the capture and lives as long as it is open.
 */
#include <lastbit/archive.h>
#include <lastbit/bisect.h>
#include <lastbit/compare.h>
#include <lastbit/program.h>
#include <lastbit/replay.h>

#include <inttypes.h>
#include <stdio.h>

static int failed(const lb_err *err)
{
    fprintf(stderr, "read_capture: %s\n", err->message);
    return 128;
}

/* The layers of a step, each with the op that runs there first. */
static void list_layers(const lb_program *program)
{
    for (uint32_t i = 0, last = LB_NONE; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (op->scope == last || !*lb_op_layer(program, op)) continue;
        last = op->scope;
        printf("  op %4" PRIu32 "  %-9s %s: %s\n", i, lb_phase_name(op->phase), lb_op_layer(program, op),
               lb_op_name(program, op));
    }
}

/* The two values whose bytes were kept, which have one name's storage in two versions: before the step and after it. */
static lb_status compare_parameter(lb_capture *capture, const lb_program *program, lb_err *err)
{
    for (uint32_t a = 0; a < program->n_values; a++) {
        const lb_value *before = &program->values[a];
        if (before->name == LB_NONE || !lb_capture_has_value(capture, program, a)) continue;
        for (uint32_t b = a + 1; b < program->n_values; b++) {
            const lb_value *after = &program->values[b];
            if (after->storage != before->storage || after->version == before->version ||
                after->dtype != before->dtype || !lb_layout_same_shape(&after->layout, &before->layout) ||
                !lb_capture_has_value(capture, program, b))
                continue;
            lb_tensor x, y;
            lb_difference difference;
            LB_TRY(lb_capture_value(capture, program, a, &x, err));
            LB_TRY(lb_capture_value(capture, program, b, &y, err));
            LB_TRY(lb_compare(&x, &y, &difference, err));
            printf("%s: the step changed %" PRId64 " of %" PRId64 " elements, %" PRId64 " are not finite\n",
                   program->strings[before->name], difference.differing, difference.elements, difference.nonfinite);
            return LB_OK;
        }
    }
    printf("no parameter was kept both before and after the step\n");
    return LB_OK;
}

typedef struct tally {
    uint64_t ops, equal;
} tally;

static bool count(void *context, const lb_event *event)
{
    tally *all = context;
    all->ops++;
    all->equal += event->verdict == LB_VERDICT_IDENTICAL;
    return true;
}

static lb_status replay_step(lb_capture *capture, int64_t step, lb_err *err)
{
    tally all = {0};
    lb_replay *replay;
    lb_plan plan = LB_PLAN_INIT;
    plan.first_step = plan.last_step = step;
    lb_observer observer = {.context = &all, .op = count};
    lb_replay_summary summary;
    LB_TRY(lb_replay_open(capture, &replay, err));
    lb_status status = lb_replay_run(replay, &plan, &observer, &summary, err);
    lb_replay_close(replay);
    if (status == LB_OK) printf("replay: %" PRIu64 " of %" PRIu64 " ops gave the recorded bits\n", all.equal, all.ops);
    return status;
}

static lb_status bisect(lb_capture *capture, lb_err *err)
{
    lb_bisect_options options = LB_BISECT_OPTIONS_INIT;
    lb_bisection *found;
    LB_TRY(lb_bisect(capture, &options, &found, err));
    if (!found->n_culprits) printf("bisect: nothing is to blame\n");
    for (uint32_t i = 0; i < found->n_culprits; i++) {
        const lb_culprit *culprit = &found->culprits[i];
        printf("bisect: %s: %s %s\n", lb_bisect_axis_name(culprit->axis), culprit->layer, culprit->op);
    }
    lb_bisection_free(found);
    return LB_OK;
}

int main(int argc, char **argv)
{
    lb_err err = LB_ERR_INIT;
    lb_capture *capture;
    const lb_program *program;
    const int64_t *steps;
    const int32_t *ranks;
    if (argc != 2) return fprintf(stderr, "usage: read_capture CAPTURE\n"), 129;
    if (lb_capture_open(argv[1], &capture, &err) != LB_OK) return failed(&err);
    const uint32_t n = lb_capture_steps(capture, &steps);
    lb_capture_ranks(capture, &ranks);
    lb_status status =
        n ? LB_OK : lb_fail(&err, LB_ERR_NOT_FOUND, "%s: no step was recorded", lb_capture_path(capture));
    if (status == LB_OK) status = lb_capture_program(capture, ranks[0], steps[0], &program, &err);
    if (status == LB_OK) {
        printf("step %" PRId64 ": %" PRIu32 " ops, %" PRIu32 " values\n", program->step, program->n_ops,
               program->n_values);
        list_layers(program);
        status = compare_parameter(capture, program, &err);
    }
    if (status == LB_OK) status = replay_step(capture, steps[0], &err);
    if (status == LB_OK) status = bisect(capture, &err);
    lb_capture_close(capture);
    return status == LB_OK ? 0 : failed(&err);
}
