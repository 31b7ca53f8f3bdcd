/* Tensors of a registered device are recorded as the host's are: the same program over memory of the host, and over memory whose
 * addresses fault when the host reads them. */
#define _GNU_SOURCE /* memfd_create */
#include "cmocka_first.h"
#include "scratch_folder.h"

#include <lastbit/archive.h>
#include <lastbit/capture.h>

#include <sys/mman.h>

enum { N = 1000, BYTES = 1 << 16 };

/* One memory, mapped twice: `seen` faults, `real` is where the bytes are. On the host both are the same. */
typedef struct memory {
    char *seen, *real;
    int answer, copies;
} memory;

static memory map_memory(bool on_device)
{
    const int file = memfd_create("device", 0);
    assert_true(file >= 0 && ftruncate(file, BYTES) == 0);
    memory m = {.real = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)};
    m.seen = on_device ? mmap(NULL, BYTES, PROT_NONE, MAP_SHARED, file, 0) : m.real;
    close(file);
    assert_true(m.real != MAP_FAILED && m.seen != MAP_FAILED);
    return m;
}

static void unmap_memory(memory *m)
{
    munmap(m->real, BYTES);
    if (m->seen != m->real) munmap(m->seen, BYTES);
}

static int copy(void *context, int64_t storage, const void *data, uint64_t first, uint64_t last, void *to)
{
    memory *m = context;
    (void)storage;
    m->copies++;
    if (m->answer == 0) memcpy(to, m->real + ((const char *)data - m->seen) + first, last - first);
    return m->answer;
}

/* Storage `n` begins at n * 8192. */
static lb_seen seen_at(const memory *m, int n)
{
    lb_seen seen = lb_seen_of(m->seen + n * 8192, LB_F32, 1, (int64_t[]){N});
    seen.storage = n + 1; /* the same on both sides */
    if (m->seen != m->real) seen.device = 2;
    return seen;
}

static float *numbers_of(const memory *m, int n)
{
    return (float *)(m->real + n * 8192);
}

static lb_status run_op(lb_recorder *recorder, const char *name, const lb_seen *from, lb_seen *to, bool in_place,
                        const memory *m, int into)
{
    lb_operand args[] = {{.tag = LB_ARG_VALUE, .u.tensor = from}}, results[] = {{.tag = LB_ARG_VALUE, .u.tensor = to}};
    lb_call call = LB_CALL_INIT;
    lb_pending *pending = NULL;
    call.name = name;
    call.args = args;
    call.n_args = 1;
    if (in_place) args[0].flags = LB_OPERAND_WRITTEN, call.flags = LB_OP_MUTABLE;
    const lb_status status = lb_recorder_op_begin(recorder, &call, &pending, NULL);
    for (int i = 0; i < N; i++) numbers_of(m, into)[i] += (float)(i % 37) + 0.5f;
    return status == LB_OK ? lb_recorder_op_end(recorder, pending, results, 1, NULL, NULL) : status;
}

/* Two steps; between them somebody unseen writes to storage 2. Afterwards a part of storage 3 is written. */
static void record_steps(memory *m, const char *name, int answer_in_step_1)
{
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    lb_recorder *recorder;
    options.level = LB_LEVEL_OPS;
    assert_int_equal(lb_recorder_open(in_scratch(name), &options, &recorder, NULL), LB_OK);
    const lb_device_access access = {sizeof access, copy, m};
    assert_int_equal(lb_recorder_device(recorder, 2, LB_EVERY_UNIT, &access, NULL), LB_OK);
    lb_seen x = seen_at(m, 0), y = seen_at(m, 1), z = seen_at(m, 2), w = seen_at(m, 3), part = w;
    part.layout = lb_layout_contiguous(1, (int64_t[]){N / 2});
    memset(m->real, 0, BYTES);
    assert_int_equal(lb_recorder_role(recorder, &x, LB_SOURCE_PARAMETER, LB_VALUE_PARAMETER, "x", NULL), LB_OK);
    for (int step = 0; step < 2; step++) {
        m->answer = step ? answer_in_step_1 : 0;
        assert_int_equal(lb_recorder_step_begin(recorder, step, NULL, NULL), LB_OK);
        assert_int_equal(run_op(recorder, "test::make", &x, &y, false, m, 1), LB_OK);
        assert_int_equal(run_op(recorder, "test::make", &y, &w, false, m, 3), LB_OK);
        assert_int_equal(run_op(recorder, "test::write_", &part, &part, true, m, 3), LB_OK);
        assert_int_equal(run_op(recorder, "test::read", &z, &w, false, m, 3), LB_OK);
        assert_int_equal(run_op(recorder, "test::write_", &z, &z, true, m, 2), LB_OK);
        assert_int_equal(lb_recorder_step_end(recorder, true, NULL), LB_OK);
        numbers_of(m, 2)[5] = -1;
    }
    assert_int_equal(lb_recorder_close(recorder, NULL), LB_OK);
}

static lb_capture *open_capture(const char *name)
{
    lb_capture *capture;
    lb_err err = LB_ERR_INIT;
    if (lb_capture_open(in_scratch(name), &capture, &err) != LB_OK) fail_msg("%s", err.message);
    return capture;
}

static const lb_program *step_of(lb_capture *capture, int64_t step)
{
    const lb_program *program = NULL;
    lb_err err = LB_ERR_INIT;
    if (lb_capture_program(capture, 0, step, &program, &err) != LB_OK) fail_msg("%s", err.message);
    return program;
}

static void assert_values_equal(lb_capture *a, lb_capture *b, int64_t step)
{
    const lb_program *p = step_of(a, step), *q = step_of(b, step);
    assert_int_equal(p->n_ops, q->n_ops);
    assert_int_equal(p->n_values, q->n_values);
    for (uint32_t i = 0; i < p->n_ops; i++) assert_string_equal(lb_op_name(p, &p->ops[i]), lb_op_name(q, &q->ops[i]));
    for (uint32_t v = 0; v < p->n_values; v++) {
        const lb_value *x = &p->values[v], *y = &q->values[v];
        assert_true(lb_digest_equal(x->logical, y->logical) && lb_digest_equal(x->blob, y->blob));
        assert_true(x->source == y->source && x->flags == y->flags && x->version == y->version);
        assert_int_equal(x->device, 0);
        assert_int_equal(y->device, 2);
        lb_tensor s, t;
        const lb_status status = lb_capture_value(a, p, v, &s, NULL);
        assert_int_equal(lb_capture_value(b, q, v, &t, NULL), status);
        if (status == LB_OK)
            assert_memory_equal(s.data, t.data, lb_dtype_bytes(s.dtype, (size_t)lb_layout_numel(&s.layout)));
    }
}

static void a_device_is_recorded_as_the_host_is(void **state)
{
    (void)state;
    memory host = map_memory(false), device = map_memory(true);
    record_steps(&host, "host.lb", 0);
    record_steps(&device, "device.lb", 0);
    assert_int_equal(host.copies, 0);
    lb_capture *a = open_capture("host.lb"), *b = open_capture("device.lb");
    for (int step = 0; step < 2; step++) assert_values_equal(a, b, step);
    uint32_t unseen = 0;
    const lb_program *p = step_of(b, 1);
    for (uint32_t v = 0; v < p->n_values; v++) unseen += p->values[v].source == LB_SOURCE_UNSEEN;
    assert_int_equal(unseen, 1); /* what was written to storage 2 between the steps */
    lb_capture_close(a);
    lb_capture_close(b);
    unmap_memory(&host);
    unmap_memory(&device);
}

static void a_device_that_fails_costs_bytes_and_no_op(void **state)
{
    (void)state;
    memory device = map_memory(true);
    record_steps(&device, "lost.lb", -1);
    lb_capture *capture = open_capture("lost.lb");
    const lb_program *p = step_of(capture, 0), *q = step_of(capture, 1);
    uint32_t digests = 0, later = 0;
    for (uint32_t v = 0; v < p->n_values; v++) digests += !lb_digest_is_none(p->values[v].logical);
    for (uint32_t v = 0; v < q->n_values; v++) later += !lb_digest_is_none(q->values[v].logical);
    assert_true(digests > 0);
    assert_int_equal(later, 0);
    uint32_t ops = 0;
    for (uint32_t i = 0; i < q->n_ops; i++) ops += strncmp(lb_op_name(q, &q->ops[i]), "test::", 6) == 0;
    assert_int_equal(ops, 5);
    lb_capture_close(capture);
    unmap_memory(&device);
}

static void a_device_that_nobody_registered_is_not_read(void **state)
{
    (void)state;
    memory device = map_memory(true);
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    lb_recorder *recorder;
    assert_int_equal(lb_recorder_open(in_scratch("unread.lb"), &options, &recorder, NULL), LB_OK);
    assert_int_equal(
        lb_recorder_device(recorder, 0, 0, &(lb_device_access){sizeof(lb_device_access), copy, NULL}, NULL),
        LB_ERR_INVALID);
    assert_int_equal(lb_recorder_step_begin(recorder, 0, NULL, NULL), LB_OK);
    lb_seen x = seen_at(&device, 0), y = seen_at(&device, 1);
    assert_int_equal(run_op(recorder, "test::make", &x, &y, false, &device, 1), LB_OK);
    assert_int_equal(lb_recorder_step_end(recorder, true, NULL), LB_OK);
    assert_int_equal(lb_recorder_close(recorder, NULL), LB_OK);
    assert_int_equal(device.copies, 0);
    lb_capture *capture = open_capture("unread.lb");
    const lb_program *p = step_of(capture, 0);
    for (uint32_t v = 0; v < p->n_values; v++) assert_true(lb_digest_is_none(p->values[v].logical));
    lb_capture_close(capture);
    unmap_memory(&device);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_scratch, drop_scratch)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_device_is_recorded_as_the_host_is),
        TEST(a_device_that_fails_costs_bytes_and_no_op),
        TEST(a_device_that_nobody_registered_is_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
