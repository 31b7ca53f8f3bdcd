/* The messages of an order give what its folds give, to everyone who receives it; what changes on one of them is had by
 * those behind it alone. */
#include "cmocka_first.h"

#include "orders/collective_hops.h"

#include <stdlib.h>
#include <string.h>

enum { COUNT = 40, MOST = 8 };
static uint64_t seed = 5;

static double number(void)
{
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return ((double)(seed >> 33) / (double)(1 << 30) - 1) * (double)(UINT64_C(1) << (seed >> 13) % 12);
}

typedef struct world {
    float bytes[MOST][COUNT];
    const void *inputs[MOST];
    lb_rank_terms terms;
} world;

static void make(world *world, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++) {
        for (int i = 0; i < COUNT; i++) world->bytes[r][i] = (float)number();
        world->inputs[r] = world->bytes[r];
    }
    world->terms = (lb_rank_terms){world->inputs, n, LB_F32, COUNT};
}

static void run(const world *world, const lb_collective_order *order, int at, uint32_t hop, uint64_t mask, double *held)
{
    lb_collective_hops hops;
    double brought[MOST];
    for (uint32_t r = 0; r < world->terms.n; r++) brought[r] = (double)world->bytes[r][at];
    assert_int_equal(lb_collective_hops_list(order, world->terms.n, COUNT, 4, at, &hops, NULL), LB_OK);
    const lb_hops_element element = {order, LB_REDUCE_SUM, LB_F32, world->terms.n, brought};
    lb_collective_hops_run(&hops, &element, (lb_hops_flip){hop, mask}, held);
    lb_collective_hops_release(&hops);
}

static void members_hold_what_the_folds_give(void **state)
{
    static const char *const texts[] = {
        "gloo",   "ring",  "ring:2",  "mpi_ring",  "mpich_ring",   "nbc_ring",        "tree",         "tree:2",
        "rank",   "wide",  "rotated", "linear",    "doubling",     "binomial",        "rabenseifner", "binary",
        "kary:3", "chain", "chain:1", "nbc_chain", "nbc_binomial", "in_order_binary", "binomial@0"};
    (void)state;
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
        for (uint32_t n = 2; n <= MOST; n++)
            for (uint32_t home = 0; home <= n; home++) { /* all receive; then each alone */
                lb_collective_order order;
                world world;
                float sum[COUNT];
                double held[MOST];
                make(&world, n);
                assert_int_equal(lb_collective_order_parse(texts[t], &order, NULL), LB_OK);
                order.home = home;
                assert_int_equal(lb_collective_reduce(&order, LB_REDUCE_SUM, &world.terms, sum, NULL), LB_OK);
                for (int at = 0; at < COUNT; at += 3) {
                    run(&world, &order, at, 0, 0, held);
                    for (uint32_t r = 0; r < n; r++)
                        if (!home || home == r + 1) assert_true((float)held[r] == sum[at]);
                }
            }
}

/* Each block is its owner's. */
static void owners_hold_their_blocks(void **state)
{
    static const char *const texts[] = {"ring", "pairwise", "halving"};
    (void)state;
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
        for (uint32_t n = 2; n <= MOST; n++) {
            const int each = COUNT / MOST;
            lb_collective_order order;
            world world;
            float sum[COUNT];
            double held[MOST];
            make(&world, n);
            world.terms.count = each * (int)n;
            assert_int_equal(lb_collective_order_parse(texts[t], &order, NULL), LB_OK);
            assert_int_equal(lb_collective_reduce_blocks(&order, LB_REDUCE_SUM, &world.terms, sum, NULL), LB_OK);
            for (int at = 0; at < each * (int)n; at++) {
                lb_collective_hops hops;
                double brought[MOST];
                const uint32_t owner = (uint32_t)(at / each);
                order.home = lb_collective_order_ends_at_home(&order) ? owner + 1 : 0;
                for (uint32_t r = 0; r < n; r++) brought[r] = (double)world.bytes[r][at];
                assert_int_equal(lb_collective_hops_list(&order, n, each * (int)n, 4, at, &hops, NULL), LB_OK);
                const lb_hops_element element = {&order, LB_REDUCE_SUM, LB_F32, n, brought};
                lb_collective_hops_run(&hops, &element, (lb_hops_flip){0, 0}, held);
                assert_true((float)held[owner] == sum[at]);
                lb_collective_hops_release(&hops);
            }
        }
}

/* In recursive doubling what came to one rank in the second turn goes on to those that it speaks with later. */
static void a_changed_message_reaches_those_behind_it(void **state)
{
    world world;
    double right[MOST], held[MOST];
    lb_collective_order order;
    lb_collective_hops hops;
    (void)state;
    make(&world, 8);
    assert_int_equal(lb_collective_order_parse("doubling", &order, NULL), LB_OK);
    assert_int_equal(lb_collective_hops_list(&order, 8, COUNT, 4, 0, &hops, NULL), LB_OK);
    run(&world, &order, 0, 0, 0, right);
    for (uint32_t h = 0; h < hops.n; h++) {
        uint32_t wrong = 0;
        run(&world, &order, 0, h, UINT64_C(1) << 22, held);
        for (uint32_t r = 0; r < 8; r++) wrong += held[r] != right[r];
        assert_int_equal(wrong, h < 8 ? 4 : h < 16 ? 2 : 1);
    }
    lb_collective_hops_release(&hops);
}

static void what_cannot_be_listed_is_refused(void **state)
{
    const lb_collective_order order = LB_ORDER_INIT;
    lb_collective_hops hops;
    (void)state;
    assert_int_equal(lb_collective_hops_list(&order, 4, 3, 4, 3, &hops, NULL), LB_ERR_INVALID);
    assert_int_equal(lb_collective_hops_list(&order, 65, 3, 4, 0, &hops, NULL), LB_ERR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_hold_what_the_folds_give),
        cmocka_unit_test(owners_hold_their_blocks),
        cmocka_unit_test(a_changed_message_reaches_those_behind_it),
        cmocka_unit_test(what_cannot_be_listed_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
