/* Tensors of a registered device are recorded as the host's are: the same program over memory of the host, and over
 * memory whose addresses fault when the host reads them. */
#define _GNU_SOURCE /* memfd_create */
#include "cmocka_first.h"
#include "scratch_folder.h"

#include "recorder/recorder.h"

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

/* ---- a device that goes on meanwhile: it reads in the order of its stream, and tells later ----------------------- */

typedef struct late_device {
    lb_device device;
    memory *memory;
    lb_device_work *under_way[4096];
    size_t n;
    unsigned patience; /* collects without waiting until the oldest is given; 0: only those who wait get any */
    unsigned asked, skip_every, submitted, skipped;
} late_device;

static void read_now(const late_device *d, lb_device_work *work)
{
    const ptrdiff_t there = d->memory->real - d->memory->seen;
    lb_measuring item = work->item;
    item.tensor.data = (char *)item.tensor.data + there;
    item.dense = (const char *)item.dense + there;
    if (work->measured) assert_true(lb_measure(&item, 1));
    work->item.out = item.out;
    if (work->bytes) memcpy(work->bytes, item.dense, item.dense_bytes);
}

static void submit_late(lb_device *device, lb_device_work *const *works, size_t n, void *stream, bool may_wait)
{
    late_device *d = (late_device *)device;
    (void)stream;
    for (size_t i = 0; i < n; i++) {
        const bool skipped = !may_wait && d->skip_every && ++d->submitted % d->skip_every == 0;
        works[i]->state = skipped ? LB_WORK_SKIPPED : LB_WORK_UNDER_WAY;
        d->skipped += skipped;
        if (skipped) continue;
        read_now(d, works[i]);
        assert_true(d->n < sizeof d->under_way / sizeof *d->under_way);
        d->under_way[d->n++] = works[i];
    }
}

static void collect_late(lb_device *device, const lb_device_work *work, bool wait)
{
    late_device *d = (late_device *)device;
    (void)work;
    const size_t done = wait ? d->n : d->patience && ++d->asked % d->patience == 0 && d->n ? 1 : 0;
    for (size_t i = 0; i < done; i++) d->under_way[i]->state = LB_WORK_DONE;
    d->n -= done;
    memmove(d->under_way, d->under_way + done, d->n * sizeof *d->under_way);
}

static void order_nothing(lb_device *device, void *stream)
{
    (void)device;
    (void)stream;
}

static void account(const lb_device *device, uint64_t *memory_bytes, uint64_t *skipped)
{
    *memory_bytes = 0;
    *skipped = ((const late_device *)device)->skipped;
}

static const char *never_lost(const lb_device *device)
{
    (void)device;
    return "";
}

static void close_late(lb_device *device)
{
    assert_int_equal(((late_device *)device)->n, 0);
}

static const lb_device_ops late_ops = {.name = "late",
                                       .asynchronous = true,
                                       .submit = submit_late,
                                       .order_before = order_nothing,
                                       .collect = collect_late,
                                       .account = account,
                                       .why_lost = never_lost,
                                       .close = close_late,
                                       .abandon = close_late};

/* Storage `n` begins at n * 8192. */
static lb_host_tensor seen_at(const memory *m, int n)
{
    lb_host_tensor seen = lb_host_tensor_of(m->seen + n * 8192, LB_F32, 1, (int64_t[]){N});
    seen.storage = n + 1; /* the same on both sides */
    if (m->seen != m->real) seen.device = 2;
    return seen;
}

static float *numbers_of(const memory *m, int n)
{
    return (float *)(m->real + n * 8192);
}

static lb_status run_op(lb_recorder *recorder, const char *name, const lb_host_tensor *from, lb_host_tensor *to,
                        bool in_place, const memory *m, int into)
{
    lb_recorded_operand args[] = {{.tag = LB_ARG_VALUE, .u.tensor = from}},
                        results[] = {{.tag = LB_ARG_VALUE, .u.tensor = to}};
    lb_recorded_call call = LB_CALL_INIT;
    lb_pending *pending = NULL;
    call.name = name;
    call.args = args;
    call.n_args = 1;
    if (in_place) args[0].flags = LB_OPERAND_WRITTEN, call.flags = LB_OP_MUTABLE;
    const lb_status status = lb_recorder_op_begin(recorder, &call, &pending, NULL);
    for (int i = 0; i < N; i++) numbers_of(m, into)[i] += (float)(i % 37) + 0.5f;
    return status == LB_OK ? lb_recorder_op_end(recorder, pending, results, 1, NULL, NULL) : status;
}

static lb_status run_view(lb_recorder *recorder, const lb_host_tensor *from, const lb_host_tensor *to)
{
    lb_recorded_operand args[] = {{.tag = LB_ARG_VALUE, .u.tensor = from}},
                        results[] = {{.tag = LB_ARG_VALUE, .u.tensor = to}};
    lb_recorded_call call = LB_CALL_INIT;
    lb_pending *pending = NULL;
    call.name = "test::view";
    call.flags = LB_OP_VIEW;
    call.args = args;
    call.n_args = 1;
    const lb_status status = lb_recorder_op_begin(recorder, &call, &pending, NULL);
    return status == LB_OK ? lb_recorder_op_end(recorder, pending, results, 1, NULL, NULL) : status;
}

/* Two steps; between them somebody unseen writes to storage 2. Afterwards a part of storage 3 is written. */
static void record_steps(memory *m, const char *name, lb_level level, int answer_in_step_1, late_device *late)
{
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    lb_recorder *recorder;
    options.level = level;
    assert_int_equal(lb_recorder_open(in_scratch(name), &options, &recorder, NULL), LB_OK);
    const lb_device_access access = {.size = sizeof access, .copy = copy, .context = m};
    assert_int_equal(lb_recorder_device(recorder, 2, LB_EVERY_UNIT, &access, NULL), LB_OK);
    if (late) assert_int_equal(lb_devices_add(&recorder->devices, 2, LB_EVERY_UNIT, &late->device, NULL), LB_OK);
    lb_host_tensor x = seen_at(m, 0), y = seen_at(m, 1), z = seen_at(m, 2), w = seen_at(m, 3), part = w, wide = y,
                   across = y;
    part.layout = lb_layout_contiguous(1, (int64_t[]){N / 2});
    wide.layout = lb_layout_contiguous(2, (int64_t[]){N / 10, 10});
    across.layout = lb_layout_contiguous(2, (int64_t[]){10, N / 10});
    across.layout.stride[0] = 1, across.layout.stride[1] = 10;
    memset(m->real, 0, BYTES);
    assert_int_equal(lb_recorder_role(recorder, &x, LB_SOURCE_PARAMETER, LB_VALUE_PARAMETER, "x", NULL), LB_OK);
    for (int step = 0; step < 2; step++) {
        m->answer = step ? answer_in_step_1 : 0;
        assert_int_equal(lb_recorder_step_begin(recorder, step, NULL, NULL), LB_OK);
        assert_int_equal(run_op(recorder, "test::make", &x, &y, false, m, 1), LB_OK);
        assert_int_equal(run_view(recorder, &y, &wide), LB_OK);
        assert_int_equal(run_view(recorder, &wide, &across), LB_OK);
        lb_place place = {lb_recorder_scope(recorder, "layer", "Layer", 0), 0};
        assert_int_equal(lb_recorder_enter(recorder, place.scope, &across, 1, false, &place, NULL), LB_OK);
        assert_int_equal(run_op(recorder, "test::make", &y, &w, false, m, 3), LB_OK);
        assert_int_equal(lb_recorder_leave(recorder, place, &w, 1, false, NULL), LB_OK);
        assert_int_equal(run_op(recorder, "test::write_", &y, &y, true, m, 1), LB_OK);
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
        assert_int_equal(x->statistics == LB_NONE, y->statistics == LB_NONE);
        if (x->statistics != LB_NONE)
            assert_memory_equal(&p->statistics[x->statistics], &q->statistics[y->statistics], sizeof p->statistics[0]);
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
    record_steps(&host, "host.lb", LB_LEVEL_OPS, 0, NULL);
    record_steps(&device, "device.lb", LB_LEVEL_OPS, 0, NULL);
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

/* At each level, and however late the device tells. */
static void a_device_that_goes_on_meanwhile_is_recorded_as_the_host_is(void **state)
{
    (void)state;
    for (lb_level level = LB_LEVEL_STATS; level <= LB_LEVEL_AUTO; level++) {
        memory host = map_memory(false);
        char here[32], there[32];
        snprintf(here, sizeof here, "host%d.lb", level);
        record_steps(&host, here, level, 0, NULL);
        lb_capture *a = open_capture(here);
        for (unsigned patience = 0; patience < 4; patience++) {
            memory seen = map_memory(true);
            late_device late = {.device = {&late_ops}, .memory = &seen, .patience = patience};
            snprintf(there, sizeof there, "late%d%u.lb", level, patience);
            record_steps(&seen, there, level, 0, &late);
            assert_int_equal(seen.copies, 0);
            lb_capture *b = open_capture(there);
            for (int step = 0; step < 2; step++) assert_values_equal(a, b, step);
            lb_capture_close(b);
            unmap_memory(&seen);
        }
        lb_capture_close(a);
        unmap_memory(&host);
    }
}

static void values_that_are_skipped_have_no_digest_and_the_others_have(void **state)
{
    (void)state;
    memory seen = map_memory(true);
    late_device late = {.device = {&late_ops}, .memory = &seen, .skip_every = 2};
    record_steps(&seen, "skipped.lb", LB_LEVEL_LAYERS, 0, &late);
    lb_capture *capture = open_capture("skipped.lb");
    const lb_program *p = step_of(capture, 0);
    uint32_t without = 0;
    for (uint32_t v = 0; v < p->n_values; v++) {
        without += lb_digest_is_none(p->values[v].logical);
        lb_tensor t; /* whatever says that it was kept is there */
        if (p->values[v].flags & LB_VALUE_KEPT) assert_int_equal(lb_capture_value(capture, p, v, &t, NULL), LB_OK);
    }
    assert_true(without > 0 && without < p->n_values);
    char said[32];
    snprintf(said, sizeof said, "\"skipped\":%u", late.skipped);
    assert_non_null(strstr(lb_capture_table(capture, 0, "coverage"), said));
    lb_capture_close(capture);
    unmap_memory(&seen);
}

static void a_device_that_fails_costs_bytes_and_no_op(void **state)
{
    (void)state;
    memory device = map_memory(true);
    record_steps(&device, "lost.lb", LB_LEVEL_OPS, -1, NULL);
    lb_capture *capture = open_capture("lost.lb");
    const lb_program *p = step_of(capture, 0), *q = step_of(capture, 1);
    uint32_t digests = 0, later = 0;
    for (uint32_t v = 0; v < p->n_values; v++) digests += !lb_digest_is_none(p->values[v].logical);
    for (uint32_t v = 0; v < q->n_values; v++) later += !lb_digest_is_none(q->values[v].logical);
    assert_true(digests > 0);
    assert_int_equal(later, 0);
    uint32_t ops = 0;
    for (uint32_t i = 0; i < q->n_ops; i++) ops += strncmp(lb_op_name(q, &q->ops[i]), "test::", 6) == 0;
    assert_int_equal(ops, 8);
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
        lb_recorder_device(recorder, 0, 0, &(lb_device_access){.size = sizeof(lb_device_access), .copy = copy}, NULL),
        LB_ERR_INVALID);
    assert_int_equal(lb_recorder_step_begin(recorder, 0, NULL, NULL), LB_OK);
    lb_host_tensor x = seen_at(&device, 0), y = seen_at(&device, 1);
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
        TEST(a_device_that_goes_on_meanwhile_is_recorded_as_the_host_is),
        TEST(values_that_are_skipped_have_no_digest_and_the_others_have),
        TEST(a_device_that_fails_costs_bytes_and_no_op),
        TEST(a_device_that_nobody_registered_is_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
