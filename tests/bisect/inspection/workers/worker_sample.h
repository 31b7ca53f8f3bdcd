/* Captures of data-parallel workers made on the spot: each step is a batch, a draw, a loss, gradients that autograd
 * leaves and all-reduces, and an optimizer's options. */
#ifndef LB_TESTS_WORKER_SAMPLE_H
#define LB_TESTS_WORKER_SAMPLE_H
#include "program_sample.h"
#include "scratch_folder.h"

#include <lastbit/archive.h>
#include <lastbit/ranks.h>
#include <sys/stat.h>

/* SAMPLE_POSITIONS: a batch that counts up from 0. */
enum { SAMPLE_POSITIONS = -1, SAMPLE_RANKS = 6, SAMPLE_STEPS = 4, SAMPLE_KEYS = 3, SAMPLE_ELEMENTS = 20 };
static const char *const sample_keys[SAMPLE_KEYS] = {"layers.0.a.weight", "layers.0.a.bias", "layers.1.b.weight"};

/* What one rank did in one step. */
typedef struct worker_deed {
    float loss; /* NaN: backward never began */
    float gradients[SAMPLE_KEYS][SAMPLE_ELEMENTS];
    int64_t batch, draw; /* seeds of their numbers; 0: none */
    int backwards;       /* micro-batches; 0: one */
    double lr;           /* 0: no optimizer */
} worker_deed;

typedef struct worker_run {
    int ranks, steps;
    worker_deed deeds[SAMPLE_STEPS][SAMPLE_RANKS];
    const char *receipts[SAMPLE_RANKS]; /* NULL: none */
} worker_run;

/* A value whose bytes are kept. */
static inline uint32_t worker_value(lb_writer *writer, lb_program *program, lb_dtype dtype, const char *name,
                                    uint32_t flags, const void *data, int64_t n)
{
    const size_t size = lb_dtype_bytes(dtype, (size_t)n);
    lb_value value = {.storage = (int64_t)program->n_values + 1,
                      .flags = LB_VALUE_KEPT | flags,
                      .layout = lb_layout_contiguous(1, &n),
                      .dtype = dtype,
                      .name = lb_program_string(program, name),
                      .blob = lb_digest_bytes(data, size)};
    const lb_tensor tensor = {(void *)(uintptr_t)data, dtype, value.layout};
    const lb_statistics statistics = lb_statistics_of(&tensor);
    value.logical = lb_digest_tensor(&tensor), value.statistics = lb_program_add_statistics(program, &statistics);
    OK(lb_writer_blob(writer, value.blob, dtype, data, size, &err));
    return lb_program_add_value(program, &value);
}

/* What an op is but for its arguments. */
typedef struct worker_op {
    const char *name, *node;
    lb_phase phase;
    uint32_t scope, flags;
} worker_op;

/* `result`: LB_NONE: none. */
static inline uint32_t worker_add_op(lb_program *program, worker_op o, const uint32_t *values, uint32_t n,
                                     uint32_t result)
{
    lb_arg args[2] = {{0}};
    for (uint32_t i = 0; i < n; i++) args[i] = (lb_arg){.tag = LB_ARG_VALUE, .u.value = values[i]};
    lb_op op = {.name = lb_program_string(program, o.name), .scope = o.scope, .flags = o.flags, .args = n};
    op.first_arg = n ? lb_program_add_args(program, args, n) : 0;
    op.results = result != LB_NONE;
    op.first_result = op.results ? lb_program_add_refs(program, &result, 1) : 0;
    op.node_name = o.node ? lb_program_string(program, o.node) : LB_NONE, op.node = -1, op.phase = (uint8_t)o.phase;
    return lb_program_add_op(program, &op);
}

static inline uint32_t worker_source(lb_writer *writer, lb_program *program, lb_dtype dtype, uint32_t flags,
                                     const void *data, int64_t n)
{
    const uint32_t value = worker_value(writer, program, dtype, NULL, LB_VALUE_SOURCE | flags, data, n);
    program->values[value].source = LB_SOURCE_BATCH;
    worker_add_op(program, (worker_op){"lb::source", NULL, LB_PHASE_FORWARD, 0, 0}, NULL, 0, value);
    return value;
}

static inline void worker_forward(lb_writer *writer, lb_program *program, const worker_deed *worker_deed,
                                  uint32_t layer)
{
    if (worker_deed->batch) {
        int64_t tokens[8];
        float table[4] = {1, 2, 3, 4};
        for (int i = 0; i < 8; i++)
            tokens[i] = worker_deed->batch == SAMPLE_POSITIONS ? i : (worker_deed->batch * 97 + i * i * 31) % 1009;
        const uint32_t values[] = {worker_source(writer, program, LB_F32, 0, table, 4),
                                   worker_source(writer, program, LB_I64, LB_VALUE_INPUT, tokens, 8)};
        float rows[8] = {0, 1};
        worker_add_op(program, (worker_op){"aten::embedding", NULL, LB_PHASE_FORWARD, layer, 0}, values, 2,
                      worker_value(writer, program, LB_F32, NULL, 0, rows, 8));
    }
    if (worker_deed->draw) {
        float numbers[16];
        for (int i = 0; i < 16; i++) numbers[i] = (float)((worker_deed->draw * 131 + i * 17) % 101);
        worker_add_op(program, (worker_op){"aten::rand", NULL, LB_PHASE_FORWARD, layer, LB_OP_RANDOM}, NULL, 0,
                      worker_value(writer, program, LB_F32, NULL, 0, numbers, 16));
    }
}

static inline void worker_backward(lb_writer *writer, lb_program *program, const worker_deed *worker_deed, int ranks)
{
    uint32_t members[SAMPLE_RANKS];
    for (int r = 0; r < ranks; r++) members[r] = (uint32_t)r;
    for (int i = 0; i < (worker_deed->backwards ? worker_deed->backwards : 1) && !isnan(worker_deed->loss); i++) {
        const float part = worker_deed->backwards > 1 ? worker_deed->loss / (float)worker_deed->backwards
                                                      : worker_deed->loss,
                    one = 1;
        const uint32_t loss = worker_source(writer, program, LB_F32, 0, &part, 1);
        worker_add_op(program, (worker_op){"aten::ones_like", NULL, LB_PHASE_BACKWARD, 0, 0}, &loss, 1,
                      worker_value(writer, program, LB_F32, NULL, 0, &one, 1));
    }
    for (uint32_t k = 0; k < SAMPLE_KEYS; k++) {
        const uint32_t given = worker_source(writer, program, LB_F32, 0, worker_deed->gradients[k], SAMPLE_ELEMENTS);
        const uint32_t left = worker_value(writer, program, LB_F32, sample_keys[k], LB_VALUE_GRADIENT,
                                           worker_deed->gradients[k], SAMPLE_ELEMENTS);
        worker_add_op(program, (worker_op){"aten::detach", "torch::autograd::AccumulateGrad", LB_PHASE_BACKWARD, 0, 0},
                      &given, 1, left);
        const uint32_t op = worker_add_op(
            program, (worker_op){"c10d::allreduce_", NULL, LB_PHASE_BACKWARD, 0, LB_OP_COLLECTIVE}, &left, 1, LB_NONE);
        lb_program_add_collective(program, &(lb_collective){op, lb_program_string(program, "default_pg"),
                                                            lb_program_string(program, "sum"), LB_NONE, k,
                                                            lb_program_add_refs(program, members, (uint32_t)ranks),
                                                            (uint32_t)ranks});
    }
}

static inline void worker_step(lb_writer *writer, const worker_run *run, int step, int rank)
{
    const worker_deed *worker_deed = &run->deeds[step][rank];
    lb_program *program = lb_program_new();
    program->step = step, program->rank = rank, program->world = run->ranks, program->level = 3, program->complete = 1;
    const uint32_t first = lb_program_scope(program, "layers.0", "Block", 0);
    lb_program_scope(program, "layers.0.a", "Linear", first);
    lb_program_scope(program, "layers.1", "Block", 0);
    worker_forward(writer, program, worker_deed, first);
    worker_backward(writer, program, worker_deed, run->ranks);
    if (worker_deed->lr != 0) {
        const uint32_t lr = lb_program_add_scalar(
            program, &(lb_scalar){lb_program_string(program, "lr"), program->n_ops, worker_deed->lr});
        lb_program_add_group(program,
                             &(lb_group){lb_program_string(program, "AdamW"), 0, program->n_ops, 0, 0, 0, lr, 1});
    }
    OK(lb_writer_program(writer, program, &err));
    lb_program_free(program);
}

static inline lb_capture *worker_capture(const worker_run *run)
{
    char command[200], name[64];
    lb_capture *capture;
    snprintf(command, sizeof command, "rm -rf %s/run.lb", scratch);
    assert_int_equal(system(command), 0);
    assert_int_equal(mkdir(in_scratch("run.lb"), 0700), 0);
    for (int r = 0; r < run->ranks; r++) {
        lb_writer *writer;
        snprintf(name, sizeof name, "run.lb/rank-%05d.tar", r);
        OK(lb_writer_open(in_scratch(name), NULL, &writer, &err));
        if (run->receipts[r]) OK(lb_writer_table(writer, "receipt", run->receipts[r], &err));
        for (int s = 0; s < run->steps; s++) worker_step(writer, run, s, r);
        OK(lb_writer_close(writer, &err));
    }
    OK(lb_capture_open(in_scratch("run.lb"), &capture, &err));
    return capture;
}

static inline lb_ranks_report *worker_report(const worker_run *run)
{
    lb_capture *capture = worker_capture(run);
    lb_ranks_report *report;
    OK(lb_ranks_run(capture, NULL, &report, &err));
    lb_capture_close(capture);
    return report;
}

#endif
