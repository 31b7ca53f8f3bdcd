/* Pairs of workers against a table of all pairs, over groups and exclusions drawn at random. */
#include "cmocka_first.h"

#include "workers/worker_pairs.h"

#include <string.h>

enum { RANKS = 24 };

static uint32_t drawn(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % n;
}

/* Members in any order, perhaps twice, as a program may list them. */
static void pairs_are_those_of_a_table(void **unused)
{
    (void)unused;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        uint64_t state = seed;
        bool table[RANKS][RANKS] = {{false}};
        lb_worker_pairs pairs;
        assert_int_equal(lb_worker_pairs_init(RANKS, &pairs, NULL), LB_OK);
        const uint32_t calls = drawn(&state, 40), size = 1 + drawn(&state, RANKS), stride = 1 + drawn(&state, 3);
        for (uint32_t c = 0; c < calls; c++) {
            uint32_t members[RANKS + 4], n = 0, a = drawn(&state, RANKS);
            bool without[RANKS] = {false};
            const uint32_t first = drawn(&state, 4);
            for (uint32_t i = 0; i < size && first + i * stride < RANKS; i++) members[n++] = first + i * stride;
            if (seed % 3 == 0)
                for (uint32_t i = 0; i < 4; i++) members[n++] = drawn(&state, RANKS);
            if (seed % 2 == 0) without[drawn(&state, RANKS)] = true;
            for (uint32_t i = 0; i < n; i++)
                if (members[i] != a && !without[members[i]]) table[a][members[i]] = table[members[i]][a] = true;
            assert_int_equal(lb_worker_pairs_add(&pairs, a, members, n, without, NULL), LB_OK);
        }
        for (uint32_t a = 0; a < RANKS; a++) {
            bool has = false;
            for (uint32_t b = 0; b < RANKS; b++) {
                assert_int_equal(lb_worker_pairs_are(&pairs, a, b), table[a][b]);
                has |= table[a][b];
            }
            assert_int_equal(pairs.has[a], has);
        }
        lb_worker_pairs_release(&pairs);
    }
}

static void a_group_that_all_ranks_name_is_kept_once(void **unused)
{
    (void)unused;
    lb_worker_pairs pairs;
    const bool without[RANKS] = {false};
    assert_int_equal(lb_worker_pairs_init(RANKS, &pairs, NULL), LB_OK);
    for (int step = 0; step < 3; step++)
        for (uint32_t a = 0; a < RANKS; a++) {
            uint32_t members[RANKS];
            for (uint32_t i = 0; i < RANKS; i++) members[i] = (i + a) % RANKS;
            assert_int_equal(lb_worker_pairs_add(&pairs, a, members, RANKS, without, NULL), LB_OK);
        }
    assert_int_equal(pairs.n_groups, 1);
    lb_worker_pairs_release(&pairs);
}

static void no_rank_is_a_pair_with_itself(void **unused)
{
    (void)unused;
    lb_worker_pairs pairs;
    const bool without[RANKS] = {false};
    uint32_t alone[] = {3, 3};
    assert_int_equal(lb_worker_pairs_init(RANKS, &pairs, NULL), LB_OK);
    assert_int_equal(lb_worker_pairs_add(&pairs, 3, alone, 2, without, NULL), LB_OK);
    assert_int_equal(lb_worker_pairs_add(&pairs, 4, NULL, 0, without, NULL), LB_OK);
    assert_false(pairs.has[3]);
    assert_false(lb_worker_pairs_are(&pairs, 3, 3));
    lb_worker_pairs_release(&pairs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_are_those_of_a_table),
        cmocka_unit_test(a_group_that_all_ranks_name_is_kept_once),
        cmocka_unit_test(no_rank_is_a_pair_with_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
