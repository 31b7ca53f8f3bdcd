/* The back end that copies: what it measures is what lb_measure gives for the same bytes, and what the host program answers is the
 * state of the work. */
#include "cmocka_first.h"
#include "device_copy.h"

#include <stdlib.h>
#include <string.h>

enum { N = 40000 };

typedef struct memory {
    uint8_t bytes[N];
    int answer; /* of the next copy */
    int copies;
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

static lb_device *device_over(memory *m)
{
    for (int i = 0; i < N; i++) m->bytes[i] = (uint8_t)(i * 31 + i / 251);
    const lb_device_access access = {sizeof access, copy, m};
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strided_values_are_measured_as_the_host_measures_them),
        cmocka_unit_test(what_cannot_be_copied_now_is_skipped_and_counted),
        cmocka_unit_test(a_lost_device_is_not_asked_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
