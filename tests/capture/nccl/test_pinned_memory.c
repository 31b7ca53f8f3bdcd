/* Pieces of pinned memory in any order: none overlaps another, all of it is there again when all are given back, and
 * the driver is asked for it once. */
#include "cmocka_first.h"
#include "pinned_memory.h"

#include <stdlib.h>
#include <string.h>

static int asked;
static bool refuses;
static void *memory; /* the recorder keeps its own for good, so the test gives it back */

static int make(void **to, size_t bytes, unsigned flags)
{
    (void)flags;
    asked++;
    if (refuses) return 2;
    memory = aligned_alloc(4096, bytes);
    *to = memory;
    return memory ? LB_CUDA_SUCCESS : 2;
}

static lb_stream_driver driver = {.cuMemHostAlloc = make};

static uint64_t dice = 1;
static size_t random_below(size_t n)
{
    dice = dice * 6364136223846793005ull + 1442695040888963407ull; /* Knuth's MMIX constants */
    return (size_t)(dice >> 33) % n;
}

static void pieces_in_any_order(void **state)
{
    (void)state;
    enum { MOST = 300 };
    struct {
        unsigned char *data;
        size_t bytes;
    } held[MOST] = {{0}};
    lb_pinned_memory_prepare(&driver);
    size_t full = 0;
    for (int round = 0; round < 40000; round++) {
        const size_t i = random_below(MOST);
        if (held[i].data) { /* the ends say that nobody else wrote there */
            assert_true(held[i].data[0] == (unsigned char)i && held[i].data[held[i].bytes - 1] == (unsigned char)i);
            lb_pinned_memory_give(held[i].data);
            held[i].data = NULL;
            continue;
        }
        held[i].bytes = 1 + random_below((size_t)1 << random_below(25));
        held[i].data = lb_pinned_memory_take(&driver, held[i].bytes);
        full += !held[i].data;
        if (held[i].data) held[i].data[0] = held[i].data[held[i].bytes - 1] = (unsigned char)i;
        if (held[i].data) assert_int_equal((uintptr_t)held[i].data % 256, 0);
    }
    assert_true(full > 0);
    for (size_t i = 0; i < MOST; i++)
        if (held[i].data) lb_pinned_memory_give(held[i].data);
    void *all = lb_pinned_memory_take(&driver, LB_PINNED_BYTES - 256);
    assert_non_null(all);
    assert_null(lb_pinned_memory_take(&driver, 1));
    lb_pinned_memory_give(all);
    assert_null(lb_pinned_memory_take(&driver, LB_PINNED_BYTES + 1));
    assert_int_equal(asked, 1);
    lb_pinned_memory_drop();
    free(memory);
}

static void a_driver_that_refuses_is_asked_once(void **state)
{
    (void)state;
    asked = 0;
    refuses = true;
    for (int i = 0; i < 3; i++) assert_null(lb_pinned_memory_take(&driver, 100));
    assert_int_equal(asked, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_in_any_order),
        cmocka_unit_test(a_driver_that_refuses_is_asked_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
