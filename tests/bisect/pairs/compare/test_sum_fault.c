/* Sums over ranks: what some order gives is never a fault, over generated terms and all orders that the engine has;
 * what no order gives is one; a bit that is turned over on a hop is found on that hop. */
#include "cmocka_first.h"

#include "compare/sum_fault.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 24, MOST = 6, TURNS = 60 };
static const char *const orders[] = {"gloo", "ring",    "ring:2", "mpi_ring", "tree",        "tree:2",
                                     "rank", "rotated", "wide",   "doubling", "rabenseifner"};
static uint64_t seed = 11;

static uint64_t draw(void)
{
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return seed >> 33;
}

/* Numbers of many sizes and both signs: no two orders agree everywhere. */
static double number(void)
{
    const double scale = (double)(UINT64_C(1) << draw() % 12);
    return ((double)draw() / (double)(1 << 30) - 1) * scale;
}

typedef struct world {
    char bytes[MOST][COUNT * 8];
    const void *inputs[MOST];
    lb_rank_terms terms;
    size_t width;
} world;

static void make(world *w, lb_dtype dtype, uint32_t n)
{
    w->width = lb_dtype_bits(dtype) / 8;
    for (uint32_t r = 0; r < n; r++) {
        for (int i = 0; i < COUNT; i++) {
            const double x = number();
            lb_store_f64(dtype, w->bytes[r] + (size_t)i * w->width, &x, 1, NULL);
        }
        w->inputs[r] = w->bytes[r];
    }
    w->terms = (lb_rank_terms){w->inputs, n, dtype, COUNT};
}

static lb_collective_order order_of(const char *text)
{
    lb_collective_order order;
    assert_int_equal(lb_collective_order_parse(text, &order, NULL), LB_OK);
    return order;
}

static void what_an_order_gives_is_no_fault(void **state)
{
    static const lb_dtype dtypes[] = {LB_F32, LB_F64, LB_BF16, LB_F16};
    static const lb_collective_reduction reductions[] = {LB_REDUCE_SUM, LB_REDUCE_AVG, LB_REDUCE_MAX, LB_REDUCE_MIN};
    (void)state;
    for (int turn = 0; turn < TURNS; turn++) {
        world w;
        char out[COUNT * 8];
        make(&w, dtypes[turn % 4], 2 + (uint32_t)draw() % (MOST - 1));
        const lb_collective_order order = order_of(orders[draw() % (sizeof orders / sizeof *orders)]);
        const lb_collective_reduction reduction = reductions[draw() % 4];
        assert_int_equal(lb_collective_reduce(&order, reduction, &w.terms, out, NULL), LB_OK);
        for (int i = 0; i < COUNT; i++)
            assert_int_not_equal(lb_sum_fault_of(reduction, &w.terms, i, out + (size_t)i * w.width),
                                 LB_SUM_FAULT_PROVEN);
    }
}

/* A bit above those that orders differ in. */
static void a_bit_that_no_order_gives_is_proven(void **state)
{
    (void)state;
    for (int turn = 0; turn < TURNS; turn++) {
        world w;
        char out[COUNT * 8];
        make(&w, LB_F32, 2 + (uint32_t)draw() % (MOST - 1));
        const lb_collective_order order = order_of("ring");
        assert_int_equal(lb_collective_reduce(&order, LB_REDUCE_SUM, &w.terms, out, NULL), LB_OK);
        const int i = (int)(draw() % COUNT), bit = 12 + (int)(draw() % 10);
        char was[4];
        memcpy(was, out + 4 * i, 4);
        out[4 * i + bit / 8] ^= (char)(1 << bit % 8);
        assert_int_equal(lb_sum_fault_of(LB_REDUCE_SUM, &w.terms, i, out + 4 * i), LB_SUM_FAULT_PROVEN);
        assert_int_equal(lb_sum_fault_bit(was, out + 4 * i, 4), bit);
    }
}

static float f32_at(const world *w, uint32_t rank, int at)
{
    float x;
    memcpy(&x, w->bytes[rank] + 4 * at, 4);
    return x;
}

static void a_bit_of_a_partial_sum_is_found_on_its_hop(void **state)
{
    (void)state;
    for (int turn = 0; turn < TURNS; turn++) {
        world w;
        uint16_t path[MOST];
        lb_sum_fault_hop hops[64];
        const uint32_t n = 3 + (uint32_t)draw() % (MOST - 2);
        make(&w, LB_F32, n);
        const lb_collective_order order = order_of("ring");
        const int at = (int)(draw() % COUNT), bit = 14 + (int)(draw() % 8);
        assert_true(lb_sum_fault_path(&order, &w.terms, at, path));
        const uint32_t hop = 1 + (uint32_t)draw() % (n - 1);
        float sum = f32_at(&w, path[0], at);
        for (uint32_t k = 1; k < n; k++) {
            uint32_t bits;
            memcpy(&bits, &sum, 4);
            if (k == hop) bits ^= 1u << bit;
            memcpy(&sum, &bits, 4);
            sum += f32_at(&w, path[k], at);
        }
        const uint32_t found = lb_sum_fault_hops(&order, LB_REDUCE_SUM, &w.terms, at, &sum, hops, 64);
        bool there = false;
        for (uint32_t i = 0; i < found && i < 64; i++)
            there |= hops[i].from == path[hop - 1] && hops[i].to == path[hop] && hops[i].bit == bit;
        assert_true(there);
    }
}

static void those_behind_a_hop_name_it(void **state)
{
    world w;
    uint16_t path[MOST];
    lb_sum_fault_hop hop;
    (void)state;
    make(&w, LB_F32, 5);
    const lb_collective_order order = order_of("ring");
    assert_true(lb_sum_fault_path(&order, &w.terms, 0, path));
    for (uint32_t right = 1; right < 5; right++) {
        bool wrong[5];
        for (uint32_t k = 0; k < 5; k++) wrong[path[(4 + k) % 5]] = k >= right;
        assert_int_equal(lb_sum_fault_late(&order, &w.terms, 0, wrong, &hop), 1);
        assert_int_equal(hop.from, path[(4 + right - 1) % 5]);
        assert_int_equal(hop.to, path[(4 + right) % 5]);
    }
    /* Two that are not behind one hop, and no ring at all. */
    bool apart[5] = {false};
    apart[path[0]] = apart[path[2]] = true;
    assert_int_equal(lb_sum_fault_late(&order, &w.terms, 0, apart, &hop), 0);
    const lb_collective_order tree = order_of("tree");
    assert_false(lb_sum_fault_path(&tree, &w.terms, 0, path));
}

static void what_is_not_known_is_not_said(void **state)
{
    world w;
    float value = 1e30f;
    const float nan = 0.0f / 1.0f;
    (void)state;
    make(&w, LB_F32, 3);
    assert_int_equal(lb_sum_fault_of(LB_REDUCE_SUM, &w.terms, 0, &value), LB_SUM_FAULT_PROVEN);
    const float infinite = 1e38f * 10;
    memcpy(w.bytes[1], &infinite, 4);
    assert_int_equal(lb_sum_fault_of(LB_REDUCE_SUM, &w.terms, 0, &value), LB_SUM_FAULT_UNKNOWN);
    assert_int_equal(lb_sum_fault_bit(&nan, &nan, 4), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_an_order_gives_is_no_fault),
        cmocka_unit_test(a_bit_that_no_order_gives_is_proven),
        cmocka_unit_test(a_bit_of_a_partial_sum_is_found_on_its_hop),
        cmocka_unit_test(those_behind_a_hop_name_it),
        cmocka_unit_test(what_is_not_known_is_not_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
