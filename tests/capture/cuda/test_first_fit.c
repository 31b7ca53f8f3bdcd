/* Room that is given back in any order: no two pieces overlap, and what is free is found. */
#include "cmocka_first.h"
#include "cuda/first_fit.h"

#include <stdlib.h>
#include <string.h>

static void what_is_given_back_is_taken_again(void **state)
{
    (void)state;
    lb_first_fit room;
    uint64_t at[4], again;
    lb_first_fit_init(&room, 4 * LB_ROOM_ALIGN + 17);
    for (int i = 0; i < 4; i++) {
        assert_true(lb_first_fit_take(&room, 1, &at[i]));
        assert_int_equal(at[i], i * LB_ROOM_ALIGN);
    }
    assert_false(lb_first_fit_take(&room, 1, &again));
    lb_first_fit_give(&room, at[1]);
    assert_false(lb_first_fit_take(&room, LB_ROOM_ALIGN + 1, &again));
    lb_first_fit_give(&room, at[2]);
    assert_true(lb_first_fit_take(&room, LB_ROOM_ALIGN + 1, &again));
    assert_int_equal(again, at[1]);
    lb_first_fit_give(&room, at[0]);
    lb_first_fit_give(&room, at[3]);
    lb_first_fit_give(&room, again);
    assert_true(lb_first_fit_take(&room, 4 * LB_ROOM_ALIGN, &again));
    assert_false(lb_first_fit_take(&room, 5 * LB_ROOM_ALIGN, &again));
    lb_first_fit_release(&room);
}

/* The old pieces stay while others come and go, far more in all than there is room for. */
static void pieces_never_overlap(void **state)
{
    (void)state;
    enum { SIZE = 64 * LB_ROOM_ALIGN, MOST = 40 };
    static uint8_t owner[SIZE];
    uint64_t at[MOST], bytes[MOST];
    bool taken[MOST] = {false};
    unsigned random = 7, takes = 0;
    lb_first_fit room;
    lb_first_fit_init(&room, SIZE);
    for (int turn = 0; turn < 20000; turn++) {
        random = random * 1103515245 + 12345;
        const unsigned i = (random >> 16) % MOST;
        if (taken[i]) {
            for (uint64_t b = 0; b < bytes[i]; b++) assert_int_equal(owner[at[i] + b], i + 1);
            memset(owner + at[i], 0, bytes[i]);
            lb_first_fit_give(&room, at[i]);
            taken[i] = false;
            continue;
        }
        bytes[i] = 1 + (random >> 8) % (3 * LB_ROOM_ALIGN);
        taken[i] = lb_first_fit_take(&room, bytes[i], &at[i]);
        if (!taken[i]) continue;
        takes++;
        for (uint64_t b = 0; b < bytes[i]; b++) assert_int_equal(owner[at[i] + b], 0);
        memset(owner + at[i], (int)i + 1, bytes[i]);
    }
    assert_true(takes > 5000);
    lb_first_fit_release(&room);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_given_back_is_taken_again),
                                       cmocka_unit_test(pieces_never_overlap)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
