/* Orders of collectives: the golden vectors, the pieces each order cuts, and reductions other than sums. */
#include "cmocka_first.h"

#include "orders/collective_sum.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Four ranks with 512, 1, 1, -512 in bf16: each order gives its own result. */
static float golden(const char *text, int64_t count, int64_t at)
{
    static const float x[4] = {512, 1, 1, -512};
    uint16_t *ranks[4], *out = calloc((size_t)count, sizeof *out);
    for (int r = 0; r < 4; r++) {
        ranks[r] = calloc((size_t)count, sizeof **ranks);
        for (int64_t i = 0; i < count; i++) lb_store_f32(LB_BF16, &ranks[r][i], &x[r], 1, NULL);
    }
    lb_collective_order order;
    assert_int_equal(lb_collective_order_parse(text, &order, NULL), LB_OK);
    const lb_rank_terms terms = {(const void *const *)ranks, 4, LB_BF16, count};
    assert_int_equal(lb_collective_reduce(&order, LB_REDUCE_SUM, &terms, out, NULL), LB_OK);
    float result;
    lb_load_f32(&result, LB_BF16, &out[at], 1);
    for (int r = 0; r < 4; r++) free(ranks[r]);
    free(out);
    return result;
}

static void golden_vectors_come_out(void **state)
{
    (void)state;
    static const float nccl[4] = {2, 1, 2, 0}, gloo[4] = {0, 2, 1, 0}, mpi[4] = {0, 2, 1, 2};
    for (int c = 0; c < 4; c++) {
        assert_float_equal(golden("ring:1:1", 4, c), nccl[c], 0);
        assert_float_equal(golden("gloo", 8, 2 * c), gloo[c], 0);
        assert_float_equal(golden("mpi_ring", 4, c), mpi[c], 0);
    }
    assert_float_equal(golden("tree", 2, 0), 2, 0);
    assert_float_equal(golden("tree", 2, 1), 0, 0);
    assert_float_equal(golden("doubling", 1, 0), 0, 0);
    assert_float_equal(golden("rank", 1, 0), 0, 0);
    assert_float_equal(golden("wide", 1, 0), 2, 0);
}

/* What NCCL's chunk c gives, where the chunks are of no account: a reduction to rank c alone. */
static void ring_of_one_receiver_ends_there(void **state)
{
    (void)state;
    static const float x[4] = {512, 1, 1, -512}, ends[4] = {2, 1, 2, 0};
    uint16_t ranks[4][9], out[9];
    const void *inputs[4];
    for (int r = 0; r < 4; r++) {
        inputs[r] = ranks[r];
        for (int i = 0; i < 9; i++) lb_store_f32(LB_BF16, &ranks[r][i], &x[r], 1, NULL);
    }
    for (uint32_t home = 1; home <= 4; home++) {
        const lb_collective_order order = {.kind = LB_ORDER_RING, .channels = 2, .chunk = 1, .home = home};
        const lb_rank_terms terms = {inputs, 4, LB_BF16, 9};
        assert_int_equal(lb_collective_reduce(&order, LB_REDUCE_SUM, &terms, out, NULL), LB_OK);
        for (int i = 0; i < 9; i++) {
            float result;
            lb_load_f32(&result, LB_BF16, &out[i], 1);
            assert_float_equal(result, ends[home - 1], 0);
        }
    }
}

static void pieces_cover_every_element_once_and_fold_every_rank(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "gloo",      "ring",         "ring:2:8",     "mpi_ring",        "tree",       "tree:2",   "rank",
        "wide",      "rotated",      "doubling",     "linear",          "halving",    "binomial", "binary",
        "kary:3",    "chain",        "chain:1",      "in_order_binary", "mpich_ring", "nbc_ring", "pairwise",
        "nbc_chain", "nbc_binomial", "rabenseifner", "binomial@0"};
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
        for (uint32_t n = 1; n <= 9; n++)
            for (int64_t count = 0; count < 40; count += 13) {
                lb_collective_order order;
                lb_collective_pieces pieces;
                assert_int_equal(lb_collective_order_parse(texts[t], &order, NULL), LB_OK);
                assert_int_equal(lb_collective_order_pieces(&order, n, count, 4, &pieces, NULL), LB_OK);
                int64_t at = 0;
                for (uint32_t p = 0; p < pieces.n; p++) {
                    assert_int_equal(pieces.pieces[p].first, at);
                    at = pieces.pieces[p].last;
                    uint32_t folded = 0; /* every rank but the root is a source exactly once */
                    for (uint32_t f = 0; f + 1 < n; f++) {
                        assert_false(folded >> pieces.pieces[p].folds[f].dst & 1);
                        assert_false(folded >> pieces.pieces[p].folds[f].src & 1);
                        folded |= 1u << pieces.pieces[p].folds[f].src;
                    }
                    assert_int_equal(folded | 1u << pieces.pieces[p].root, (1u << n) - 1);
                }
                assert_int_equal(at, count);
                lb_collective_pieces_release(&pieces);
            }
}

/* The tree of a piece as text, of two operands the one with the smallest rank first. */
static void write_tree(const lb_collective_slice *piece, uint32_t n, char out[96])
{
    char text[8][96];
    int least[8];
    for (uint32_t r = 0; r < n; r++) snprintf(text[r], sizeof text[r], "%u", r), least[r] = (int)r;
    for (uint32_t f = 0; f + 1 < n; f++) {
        const uint32_t a = piece->folds[f].dst, b = piece->folds[f].src;
        const bool turned = least[b] < least[a];
        char joined[sizeof text[0]];
        const int length = snprintf(joined, sizeof joined, "(%s+%s)", text[turned ? b : a], text[turned ? a : b]);
        assert_in_range(length, 1, sizeof joined - 1);
        memcpy(text[a], joined, sizeof joined);
        if (turned) least[a] = least[b];
    }
    memcpy(out, text[piece->root], sizeof text[0]);
}

/* As the libraries' results have them (tests/replay/orders/mpi_judge.c). */
static void trees_of_ranks_have_their_shapes(void **state)
{
    (void)state;
    static const struct {
        const char *order;
        uint32_t n, home;
        const char *tree;
    } cases[] = {
        {"linear", 5, 3, "(0+(1+(2+(3+4))))"},
        {"chain:4", 8, 1, "((((0+(1+2))+(3+4))+(5+6))+7)"},
        {"chain:4", 8, 3, "(((0+7)+((2+(3+4))+(5+6)))+1)"},
        {"chain:1", 5, 3, "((((0+1)+4)+3)+2)"},
        {"binary", 8, 1, "((0+((1+(3+7))+5))+((2+4)+6))"},
        {"binary", 5, 4, "((0+2)+((1+4)+3))"},
        {"binomial", 5, 3, "(((0+4)+(2+3))+1)"},
        {"binomial@0", 5, 3, "(((0+1)+(2+3))+4)"},
        {"binomial", 7, 0, "(((0+1)+(2+3))+((4+5)+6))"},
        {"in_order_binary", 5, 2, "((0+1)+((2+3)+4))"},
        {"in_order_binary", 8, 0, "(((0+1)+(2+3))+((4+(5+6))+7))"},
        {"kary", 8, 1, "((0+((1+(3+7))+4))+((2+5)+6))"},
        {"kary", 5, 2, "(((0+(2+4))+1)+3)"},
        {"halving", 8, 0, "(((0+4)+(2+6))+((1+5)+(3+7)))"},
        {"halving", 5, 0, "(((0+1)+3)+(2+4))"},
        {"doubling", 5, 0, "(((0+1)+2)+(3+4))"},
        {"nbc_chain", 5, 3, "(((0+(3+4))+1)+2)"},
        {"nbc_binomial", 5, 3, "(((0+3)+(1+2))+4)"},
        {"pairwise", 4, 3, "((0+(1+2))+3)"},
        {"ring", 4, 3, "(((0+3)+1)+2)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lb_collective_order order;
        lb_collective_pieces pieces;
        char tree[96];
        assert_int_equal(lb_collective_order_parse(cases[i].order, &order, NULL), LB_OK);
        order.home = cases[i].home;
        assert_int_equal(lb_collective_order_pieces(&order, cases[i].n, 1, 4, &pieces, NULL), LB_OK);
        write_tree(&pieces.pieces[0], cases[i].n, tree);
        assert_string_equal(tree, cases[i].tree);
        lb_collective_pieces_release(&pieces);
    }
}

/* Where each block begins, and with whom. */
static void rings_are_cut_as_their_libraries_do(void **state)
{
    (void)state;
    static const struct {
        const char *order;
        int64_t first[3];
        const char *tree[3];
    } cases[] = {{"mpi_ring", {0, 5, 9}, {"((0+1)+2)", "(0+(1+2))", "((0+2)+1)"}},
                 {"mpich_ring", {0, 5, 10}, {"(0+(1+2))", "((0+2)+1)", "((0+1)+2)"}},
                 {"nbc_ring", {0, 5, 9}, {"((0+2)+1)", "((0+1)+2)", "(0+(1+2))"}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lb_collective_order order;
        lb_collective_pieces pieces;
        char tree[96];
        assert_int_equal(lb_collective_order_parse(cases[i].order, &order, NULL), LB_OK);
        assert_int_equal(lb_collective_order_pieces(&order, 3, 13, 8, &pieces, NULL), LB_OK);
        assert_int_equal(pieces.n, 3);
        for (int k = 0; k < 3; k++) {
            write_tree(&pieces.pieces[k], 3, tree);
            assert_int_equal(pieces.pieces[k].first, cases[i].first[k]);
            assert_string_equal(tree, cases[i].tree[k]);
        }
        lb_collective_pieces_release(&pieces);
    }
}

/* Segments of a MiB: a reduction to one rank fills them, an all-reduce makes them equal. */
static void gloo_cuts_a_large_reduction_to_one_rank_otherwise(void **state)
{
    (void)state;
    for (uint32_t home = 0; home < 2; home++) {
        const lb_collective_order order = {.kind = LB_ORDER_GLOO, .channels = 1, .home = home};
        lb_collective_pieces pieces;
        assert_int_equal(lb_collective_order_pieces(&order, 3, 1572869, 4, &pieces, NULL), LB_OK);
        assert_int_equal(pieces.pieces[0].last, home ? 786432 : 524292);
        lb_collective_pieces_release(&pieces);
    }
}

static void double_tree_has_the_shape_of_nccl(void **state)
{
    (void)state;
    lb_collective_order order;
    lb_collective_pieces pieces;
    lb_collective_order_parse("tree", &order, NULL);
    assert_int_equal(lb_collective_order_pieces(&order, 4, 2, 4, &pieces, NULL), LB_OK);
    /* tree 0: x0 + ((x2 + x1) + x3), tree 1: x3 + ((x1 + x2) + x0) */
    static const lb_collective_fold first[3] = {{2, 1}, {2, 3}, {0, 2}}, second[3] = {{1, 2}, {1, 0}, {3, 1}};
    assert_memory_equal(pieces.pieces[0].folds, first, sizeof first);
    assert_memory_equal(pieces.pieces[1].folds, second, sizeof second);
    lb_collective_pieces_release(&pieces);
}

static void integers_wrap_and_nan_wins_a_maximum(void **state)
{
    (void)state;
    lb_collective_order order = LB_ORDER_INIT;
    int8_t a[2] = {100, -3}, b[2] = {100, 5}, out[2];
    const void *ints[2] = {a, b};
    assert_int_equal(lb_collective_reduce(&order, LB_REDUCE_SUM, &(lb_rank_terms){ints, 2, LB_I8, 2}, out, NULL),
                     LB_OK);
    assert_int_equal(out[0], -56);
    assert_int_equal(lb_collective_reduce(&order, LB_REDUCE_MAX, &(lb_rank_terms){ints, 2, LB_I8, 2}, out, NULL),
                     LB_OK);
    assert_int_equal(out[1], 5);
    float x[2] = {1, NAN}, y[2] = {2, 3}, z[2];
    const void *floats[2] = {x, y};
    assert_int_equal(lb_collective_reduce(&order, LB_REDUCE_MAX, &(lb_rank_terms){floats, 2, LB_F32, 2}, z, NULL),
                     LB_OK);
    assert_true(z[0] == 2 && isnan(z[1]));
    assert_int_equal(lb_collective_reduce(&order, LB_REDUCE_BAND, &(lb_rank_terms){floats, 2, LB_F32, 2}, z, NULL),
                     LB_ERR_UNSUPPORTED);
}

static void average_multiplies_before_the_sum_as_nccl_does(void **state)
{
    (void)state;
    lb_collective_order order;
    float x[3][1] = {{1}, {1}, {1}}, out[1];
    const void *inputs[3] = {x[0], x[1], x[2]};
    lb_collective_order_parse("ring", &order, NULL);
    assert_int_equal(lb_collective_reduce(&order, LB_REDUCE_AVG, &(lb_rank_terms){inputs, 3, LB_F32, 1}, out, NULL),
                     LB_OK);
    float third = (float)(1.0 / 3);
    assert_true(out[0] == (third + third) + third);
}

static void average_divides_the_sum_as_torch_does_on_gloo(void **state)
{
    (void)state;
    lb_collective_order order;
    float x[3][1] = {{0.1f}, {0.7f}, {1.3f}}, out[1];
    const void *inputs[3] = {x[0], x[1], x[2]};
    lb_collective_order_parse("gloo", &order, NULL);
    assert_int_equal(lb_collective_reduce(&order, LB_REDUCE_AVG, &(lb_rank_terms){inputs, 3, LB_F32, 1}, out, NULL),
                     LB_OK);
    assert_true(out[0] == ((x[2][0] + x[1][0]) + x[0][0]) / 3);
}

static void unknown_orders_are_refused_with_the_known_ones(void **state)
{
    (void)state;
    lb_collective_order order;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_collective_order_parse("circle", &order, &err), LB_ERR_INVALID);
    assert_non_null(strstr(err.message, "rabenseifner"));
    assert_int_equal(lb_collective_order_parse("ring:x", &order, NULL), LB_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_vectors_come_out),
        cmocka_unit_test(ring_of_one_receiver_ends_there),
        cmocka_unit_test(pieces_cover_every_element_once_and_fold_every_rank),
        cmocka_unit_test(trees_of_ranks_have_their_shapes),
        cmocka_unit_test(rings_are_cut_as_their_libraries_do),
        cmocka_unit_test(gloo_cuts_a_large_reduction_to_one_rank_otherwise),
        cmocka_unit_test(double_tree_has_the_shape_of_nccl),
        cmocka_unit_test(integers_wrap_and_nan_wins_a_maximum),
        cmocka_unit_test(average_multiplies_before_the_sum_as_nccl_does),
        cmocka_unit_test(average_divides_the_sum_as_torch_does_on_gloo),
        cmocka_unit_test(unknown_orders_are_refused_with_the_known_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
