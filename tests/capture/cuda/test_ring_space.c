/* Pieces never overlap while they are taken, whatever the order in which they are given back. */
#include "cmocka_first.h"
#include "cuda/ring_space.h"

#include <string.h>

#define SIZE (64u << 10)
#define MOST 40

typedef struct piece {
    uint64_t at, bytes, name;
} piece;

static uint64_t random_word(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull; /* Knuth's MMIX constants */
    return *state >> 33;
}

static void pieces_never_overlap(void **state)
{
    (void)state;
    static unsigned char taken[SIZE];
    lb_ring_space space;
    lb_ring_space_init(&space, SIZE);
    piece held[MOST];
    size_t n = 0, refused = 0;
    uint64_t seed = 3;
    for (int step = 0; step < 20000; step++) {
        if (n < MOST && random_word(&seed) % 2) {
            piece p = {.bytes = random_word(&seed) % 6000};
            if (!lb_ring_space_take(&space, p.bytes, &p.at, &p.name)) {
                assert_true(n > 0);
                refused++;
                continue;
            }
            assert_true(p.at + p.bytes <= SIZE && p.at % LB_SPACE_ALIGN == 0);
            for (uint64_t i = 0; i < p.bytes; i += 64) assert_int_equal(taken[p.at + i], 0);
            memset(taken + p.at, 1, p.bytes);
            held[n++] = p;
        } else if (n > 0) {
            const size_t i = random_word(&seed) % n;
            memset(taken + held[i].at, 0, held[i].bytes);
            lb_ring_space_give(&space, held[i].name);
            held[i] = held[--n];
        }
    }
    assert_true(refused > 0);
    lb_ring_space_release(&space);
}

static void empty_ring_holds_a_piece_of_its_size(void **state)
{
    (void)state;
    lb_ring_space space;
    uint64_t at, name;
    lb_ring_space_init(&space, SIZE);
    assert_true(lb_ring_space_take(&space, 1000, &at, &name));
    assert_false(lb_ring_space_take(&space, SIZE, &at, &name));
    lb_ring_space_give(&space, name);
    assert_true(lb_ring_space_take(&space, SIZE, &at, &name));
    assert_int_equal(at, 0);
    assert_false(lb_ring_space_take(&space, 1, &at, &name));
    lb_ring_space_give(&space, name);
    assert_false(lb_ring_space_could_hold(&space, SIZE + 1));
    assert_false(lb_ring_space_take(&space, SIZE + 1, &at, &name));
    lb_ring_space_release(&space);
}

static void piece_of_nothing_changes_nothing(void **state)
{
    (void)state;
    lb_ring_space space;
    uint64_t at, some, nothing;
    lb_ring_space_init(&space, SIZE);
    assert_true(lb_ring_space_take(&space, 1000, &at, &some));
    assert_true(lb_ring_space_take(&space, 0, &at, &nothing));
    lb_ring_space_give(&space, some);
    assert_true(lb_ring_space_take(&space, SIZE - 1024, &at, &some));
    lb_ring_space_give(&space, nothing);
    assert_false(lb_ring_space_take(&space, SIZE / 2, &at, &nothing));
    lb_ring_space_give(&space, some);
    assert_true(lb_ring_space_take(&space, SIZE, &at, &some));
    lb_ring_space_release(&space);
}

/* As many pieces as the book has not seen before, and one that stays at the tail. */
static void one_piece_at_the_tail_holds_the_rest_back(void **state)
{
    (void)state;
    lb_ring_space space;
    uint64_t at, oldest, name;
    lb_ring_space_init(&space, SIZE);
    assert_true(lb_ring_space_take(&space, 1, &at, &oldest));
    int n = 0;
    while (lb_ring_space_take(&space, 1, &at, &name)) {
        lb_ring_space_give(&space, name);
        n++;
    }
    assert_int_equal(n, SIZE / LB_SPACE_ALIGN - 1);
    lb_ring_space_give(&space, oldest);
    assert_true(lb_ring_space_take(&space, SIZE, &at, &name));
    lb_ring_space_release(&space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_never_overlap),
        cmocka_unit_test(empty_ring_holds_a_piece_of_its_size),
        cmocka_unit_test(piece_of_nothing_changes_nothing),
        cmocka_unit_test(one_piece_at_the_tail_holds_the_rest_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
