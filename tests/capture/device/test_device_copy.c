/* The back end that copies: what it measures is what lb_measure gives for the same bytes, and what the host program
 * answers is the state of the work. */
#include "cmocka_first.h"
#include "device/device_copy.h"

#include <stdlib.h>
#include <string.h>

enum { N = 40000 };

typedef struct memory {
    uint8_t bytes[N];
    int answer; /* of the next copy */
    int copies;
    uint8_t aside[4][N]; /* what a graph copied there, by number */
    uint64_t first[4], n_held, n_gone;
} memory;

/* Addresses on the device have nothing to do with those of the host. */
#define BASE ((const void *)(uintptr_t)0x7000)

static int copy(void *context, int64_t storage, const void *data, uint64_t first, uint64_t last, void *to)
{
    memory *m = context;
    assert_int_equal(storage, 9);
    assert_ptr_equal(data, BASE);
    m->copies++;
    if (m->answer == 0) memcpy(to, m->bytes + first, last - first);
    return m->answer;
}

static uint64_t hold(void *context, int64_t storage, const void *data, uint64_t first, uint64_t last)
{
    memory *m = context;
    assert_int_equal(storage, 9);
    assert_ptr_equal(data, BASE);
    assert_true(last <= N);
    if (m->n_held == 3) return 0;
    m->first[++m->n_held] = first;
    return m->n_held;
}

static int copy_held(void *context, uint64_t held, uint64_t bytes, void *to)
{
    memory *m = context;
    memcpy(to, m->aside[held], bytes);
    return m->answer;
}

static void let_go(void *context, uint64_t held)
{
    memory *m = context;
    assert_in_range(held, 1, m->n_held);
    m->n_gone++;
}

static lb_device *device_over(memory *m)
{
    for (int i = 0; i < N; i++) m->bytes[i] = (uint8_t)(i * 31 + i / 251);
    m->answer = 0;
    const lb_device_access access = {.size = sizeof access,
                                     .copy = copy,
                                     .context = m,
                                     .hold = hold,
                                     .copy_held = copy_held,
                                     .let_go = let_go,
                                     .device_bytes = 1000};
    lb_device *device = lb_device_copy_new(&access);
    assert_non_null(device);
    return device;
}

/* The value of that layout as the host would measure it in `bytes`, or as a work for the device. */
static lb_measuring measuring(const void *base, const lb_layout *layout, lb_dtype dtype)
{
    int64_t first, last;
    const int64_t width = (int64_t)(lb_dtype_bits(dtype) / 8);
    assert_int_equal(lb_layout_dense_range(layout, &first, &last, NULL), LB_OK);
    return (lb_measuring){.tensor = {(char *)(uintptr_t)base + layout->offset * width, dtype, *layout},
                          .dense = (const char *)base + first * width,
                          .dense_bytes = (size_t)((last - first) * width),
                          .what = LB_MEASURE_STATISTICS | LB_MEASURE_BLOB};
}

static lb_device_work work_of(const lb_measuring *item, void *bytes)
{
    return (lb_device_work){.item = *item,
                            .measured = true,
                            .bytes = bytes,
                            .storage = 9,
                            .first = (uint64_t)((const char *)item->dense - (const char *)BASE)};
}

static void strided_values_are_measured_as_the_host_measures_them(void **state)
{
    (void)state;
    static memory m;
    lb_device *device = device_over(&m);
    lb_layout layouts[] = {lb_layout_contiguous(2, (int64_t[]){50, 100}), lb_layout_contiguous(2, (int64_t[]){50, 100}),
                           lb_layout_contiguous(2, (int64_t[]){50, 100}), lb_layout_contiguous(1, (int64_t[]){0})};
    layouts[1].stride[0] = 1, layouts[1].stride[1] = 60; /* transposed, with holes */
    layouts[2].stride[0] = 0;                            /* the same row again and again */
    const lb_dtype dtypes[] = {LB_F32, LB_BF16, LB_I8};
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
        layouts[l].offset = 7;
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
            lb_measuring here = measuring(m.bytes, &layouts[l], dtypes[d]),
                         there = measuring(BASE, &layouts[l], dtypes[d]);
            uint8_t fetched[N];
            lb_device_work work = work_of(&there, fetched);
            assert_true(lb_measure(&here, 1));
            device->ops->submit(device, (lb_device_work *const[]){&work}, 1, NULL, false);
            assert_int_equal(work.state, LB_WORK_DONE);
            assert_true(lb_digest_equal(work.item.out.logical, here.out.logical));
            assert_true(lb_digest_equal(work.item.out.blob, here.out.blob));
            assert_memory_equal(&work.item.out.statistics, &here.out.statistics, sizeof here.out.statistics);
            assert_int_equal(work.item.out.n_leaves, here.out.n_leaves);
            assert_memory_equal(fetched, here.dense, here.dense_bytes);
            free(work.item.out.leaves);
            free(here.out.leaves);
        }
    }
    device->ops->close(device);
}

static void what_cannot_be_copied_now_is_skipped_and_counted(void **state)
{
    (void)state;
    static memory m;
    lb_device *device = device_over(&m);
    const lb_layout layout = lb_layout_contiguous(1, (int64_t[]){100});
    lb_measuring item = measuring(BASE, &layout, LB_F32);
    lb_device_work first = work_of(&item, NULL), second = work_of(&item, NULL);
    m.answer = 1;
    device->ops->submit(device, (lb_device_work *const[]){&first}, 1, NULL, true);
    assert_int_equal(first.state, LB_WORK_SKIPPED);
    m.answer = 0;
    device->ops->submit(device, (lb_device_work *const[]){&second}, 1, NULL, true);
    assert_int_equal(second.state, LB_WORK_DONE);
    uint64_t memory_bytes, skipped;
    device->ops->account(device, &memory_bytes, &skipped);
    assert_int_equal(skipped, 1);
    assert_string_equal(device->ops->why_lost(device), "");
    free(second.item.out.leaves);
    device->ops->close(device);
}

static void a_lost_device_is_not_asked_again(void **state)
{
    (void)state;
    static memory m;
    lb_device *device = device_over(&m);
    const lb_layout layout = lb_layout_contiguous(1, (int64_t[]){100});
    lb_measuring item = measuring(BASE, &layout, LB_F32);
    lb_device_work works[2] = {work_of(&item, NULL), work_of(&item, NULL)};
    m.answer = -1;
    m.copies = 0;
    device->ops->submit(device, (lb_device_work *const[]){&works[0], &works[1]}, 2, NULL, true);
    assert_int_equal(works[0].state, LB_WORK_LOST);
    assert_int_equal(works[1].state, LB_WORK_LOST);
    assert_int_equal(m.copies, 1);
    assert_true(*device->ops->why_lost(device));
    device->ops->close(device);
}

/* Three values of a graph: what a run leaves of each is what it is in that run, until the graph is gone. */
static void values_of_a_graph_come_with_each_run(void **state)
{
    (void)state;
    static memory m;
    lb_device *device = device_over(&m);
    const lb_layout layout = lb_layout_contiguous(1, (int64_t[]){50}), none = lb_layout_contiguous(1, (int64_t[]){0}),
                    large = lb_layout_contiguous(1, (int64_t[]){200});
    const lb_measuring items[] = {measuring(BASE, &layout, LB_F32), measuring(BASE, &layout, LB_F32),
                                  measuring(BASE, &none, LB_F32), measuring(BASE, &large, LB_F32)};
    lb_device_work works[4], *list[4];
    for (int i = 0; i < 4; i++) works[i] = work_of(&items[i], NULL), list[i] = &works[i];
    device->ops->capture(device, list, 4, NULL);
    for (int i = 0; i < 4; i++) assert_int_equal(works[i].state, LB_WORK_SKIPPED);
    assert_true(works[0].slot && works[1].slot && works[2].slot && works[0].each_run);
    assert_int_equal(works[3].slot, 0); /* 1000 bytes are to be taken at most */
    for (int run = 0; run < 2; run++) {
        float there[50];
        for (int i = 0; i < 50; i++) there[i] = (float)(run * 50 + i);
        memcpy(m.aside[1], there, sizeof there);
        device->ops->expect(device, list, 3, true);
        device->ops->runs(device, works[0].slot, works[2].slot);
        for (int i = 0; i < 3; i++) assert_int_equal(works[i].state, LB_WORK_UNDER_WAY);
        device->ops->ran(device, works[0].slot, works[2].slot, NULL);
        for (int i = 0; i < 3; i++) assert_int_equal(works[i].state, LB_WORK_DONE);
        assert_true(lb_digest_equal(works[0].item.out.logical, lb_digest_tensor(&(lb_tensor){there, LB_F32, layout})));
        assert_int_equal(works[2].item.out.statistics.elements, 0);
        for (int i = 0; i < 3; i++) free(works[i].item.out.leaves);
    }
    device->ops->expect(device, list, 1, true);
    device->ops->failed(device, works[0].slot, works[2].slot);
    assert_int_equal(works[0].state, LB_WORK_SKIPPED);
    device->ops->expect(device, list, 1, true);
    device->ops->forget(device, works[0].slot, works[2].slot);
    assert_int_equal(works[0].state, LB_WORK_SKIPPED);
    assert_int_equal(m.n_gone, 2);
    device->ops->expect(device, list + 1, 1, true);
    assert_int_equal(works[1].state, LB_WORK_SKIPPED);
    device->ops->capture(device, list, 1, NULL); /* its room is free again */
    assert_true(works[0].slot > works[2].slot);
    uint64_t memory_bytes, skipped;
    device->ops->account(device, &memory_bytes, &skipped);
    assert_int_equal(memory_bytes, 400);
    assert_int_equal(skipped, 4);
    device->ops->close(device); /* the graph may live on: nothing is let go */
    assert_int_equal(m.n_gone, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strided_values_are_measured_as_the_host_measures_them),
        cmocka_unit_test(what_cannot_be_copied_now_is_skipped_and_counted),
        cmocka_unit_test(a_lost_device_is_not_asked_again),
        cmocka_unit_test(values_of_a_graph_come_with_each_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
