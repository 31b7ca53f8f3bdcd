/* make_steps FOLDER [NAME=NUMBER ...]: records steps as a training loop would, for tests that kill it, cut the power or
 * let it run on.
 *
 *   steps=8        how many steps; 0: until it is killed
 *   rank=0 world=1
 *   level=4        of lb_level; 4: auto
 *   ring=0         the flight recorder, with files that outlive a kill
 *   beside=1       steps are written by a thread beside the run
 *   elements=700   of the one weight; its bytes are all that grows with a step
 *   soak=0         every so many steps a line: step, resident bytes, descriptors, threads
 *   flush=0        waits after every step until it is on disk, and only then says so
 *   sync=0         of lb_output_sync; 0: at the end, 1: at every step, 2: never
 *   close_each=0   steps of one archive, then another is begun
 *   close=1        0: ends by SIGKILL in the place of closing the recorder
 *
 * After each step it prints the step's number. What a step holds follows from its number alone. */
#include <lastbit/capture.h>

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long number_of(int argc, char **argv, const char *name, long otherwise)
{
    const size_t n = strlen(name);
    for (int i = 2; i < argc; i++)
        if (strncmp(argv[i], name, n) == 0 && argv[i][n] == '=') return strtol(argv[i] + n + 1, NULL, 10);
    return otherwise;
}

static lb_recorded_operand tensor(const lb_host_tensor *seen)
{
    return (lb_recorded_operand){.tag = LB_ARG_VALUE, .u.tensor = seen};
}

static lb_status record(lb_recorder *recorder, const char *name, lb_recorded_operand *args, uint32_t n_args,
                        const lb_host_tensor *result, float *to, int n, float by, lb_err *err)
{
    lb_recorded_call call = LB_CALL_INIT;
    lb_pending *pending = NULL;
    lb_recorded_operand out = tensor(result);
    call.name = name;
    call.args = args;
    call.n_args = n_args;
    lb_status status = lb_recorder_op_begin(recorder, &call, &pending, err);
    for (int i = 0; i < n; i++) to[i] = to[i] * by + (float)i;
    return status == LB_OK ? lb_recorder_op_end(recorder, pending, &out, 1, NULL, err) : status;
}

/* A batch, a product of it and the weight, and the weight's update in place. */
static lb_status run_step(lb_recorder *recorder, float *weight, int n, long step, lb_err *err)
{
    enum { BATCH = 96 };
    float *batch = malloc(BATCH * sizeof *batch), *y = calloc((size_t)n, sizeof *y);
    if (!batch || !y) abort();
    for (int i = 0; i < BATCH; i++) batch[i] = (float)(step * 1000 + i);
    for (int i = 0; i < n; i++) y[i] = (float)step;
    lb_host_tensor x = lb_host_tensor_of(batch, LB_F32, 1, (int64_t[]){BATCH}),
                   w = lb_host_tensor_of(weight, LB_F32, 1, (int64_t[]){n}),
                   out = lb_host_tensor_of(y, LB_F32, 1, (int64_t[]){n});
    lb_status status = lb_recorder_step_begin(recorder, step, NULL, err);
    if (status == LB_OK)
        status =
            record(recorder, "test::forward", (lb_recorded_operand[]){tensor(&x), tensor(&w)}, 2, &out, y, n, 3, err);
    if (status == LB_OK)
        status = record(recorder, "aten::add_", (lb_recorded_operand[]){tensor(&w), tensor(&out)}, 2, &w, weight, n,
                        0.5f, err);
    if (status == LB_OK) lb_recorder_scalar(recorder, "loss", 1.0 / (double)(step + 1), NULL);
    lb_recorder_forget(recorder, x.storage);
    lb_recorder_forget(recorder, out.storage);
    if (status == LB_OK) status = lb_recorder_step_end(recorder, true, err);
    free(batch);
    free(y);
    return status;
}

static long entries(const char *folder)
{
    long n = 0;
    DIR *dir = opendir(folder);
    while (dir && readdir(dir)) n++;
    if (dir) closedir(dir);
    return n;
}

static void say_state(long step)
{
    long pages = 0, resident = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (statm && fscanf(statm, "%ld %ld", &pages, &resident) != 2) resident = -1;
    if (statm) fclose(statm);
    printf("%ld %ld %ld %ld\n", step, resident * sysconf(_SC_PAGESIZE), entries("/proc/self/fd"),
           entries("/proc/self/task"));
}

int main(int argc, char **argv)
{
    if (argc < 2) return 129;
    const long steps = number_of(argc, argv, "steps", 8), soak = number_of(argc, argv, "soak", 0),
               n = number_of(argc, argv, "elements", 700);
    const bool flush = number_of(argc, argv, "flush", 0);
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    options.rank = (int32_t)number_of(argc, argv, "rank", 0);
    options.world = (int32_t)number_of(argc, argv, "world", 1);
    options.level = (lb_level)number_of(argc, argv, "level", LB_LEVEL_AUTO);
    options.ring = (uint32_t)number_of(argc, argv, "ring", 0);
    options.ring_files = options.ring ? 2 : 0;
    options.sync = (uint8_t)number_of(argc, argv, "sync", 0);
    options.close_each = (uint32_t)number_of(argc, argv, "close_each", 0);
    options.overwrite = true;
    lb_recorder *recorder = NULL;
    lb_err err = LB_ERR_INIT;
    float *weight = calloc((size_t)n, sizeof *weight);
    lb_status status = weight ? lb_recorder_open(argv[1], &options, &recorder, &err) : LB_ERR_NOMEM;
    if (status == LB_OK) lb_recorder_async(recorder, number_of(argc, argv, "beside", 1));
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (long step = 0; status == LB_OK && (step < steps || !steps); step++) {
        status = run_step(recorder, weight, (int)n, step, &err);
        if (status == LB_OK && flush) lb_recorder_flush(recorder);
        if (soak ? step % soak == soak - 1 : true) soak ? say_state(step) : (void)printf("%ld\n", step);
    }
    if (status != LB_OK) fprintf(stderr, "make_steps: %s\n", err.message);
    if (!number_of(argc, argv, "close", 1)) raise(SIGKILL);
    const lb_status closed = lb_recorder_close(recorder, NULL);
    free(weight);
    return status == LB_OK && closed == LB_OK ? 0 : 1;
}
