/* The search back from what leaves a step to where two programs part, on merged programs written down by hand. */
#include "cmocka_first.h"

#include "merged/divergence.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 16 };

/* One side: per op the ops it reads, its node (-1: none), and whether it can be to blame. */
typedef struct side_case {
    int n, preds[MOST][3], n_preds[MOST], node[MOST];
} side_case;

/* Two sides, what their nodes are, and what leaves. */
typedef struct pair_case {
    side_case sides[2];
    uint32_t n_nodes;
    lb_node_state states[MOST];
    lb_sink sink;
    uint8_t blame;            /* of the first op of both; 0: as of every other, LB_BLAME_OP */
    const uint8_t *phases[2]; /* per op; NULL: all are of one */
} pair_case;

typedef struct world {
    uint32_t first[2][MOST + 1], preds[2][3 * MOST], node_of[2][MOST], ops[2 * MOST];
    uint8_t may_differ[2][MOST];
    lb_node nodes[MOST];
    lb_merged merged;
} world;

static void make(world *w, const pair_case *c)
{
    memset(w, 0, sizeof *w);
    uint32_t used = 0;
    for (int s = 0; s < 2; s++) {
        const side_case *side = &c->sides[s];
        uint32_t at = 0;
        for (int i = 0; i < side->n; i++) {
            w->first[s][i] = at;
            for (int k = 0; k < side->n_preds[i]; k++) w->preds[s][at++] = (uint32_t)side->preds[i][k];
            w->node_of[s][i] = side->node[i] < 0 ? LB_NONE : (uint32_t)side->node[i];
            w->may_differ[s][i] = i == 0 && c->blame ? c->blame : LB_BLAME_OP;
        }
        w->first[s][side->n] = at;
        w->merged.sides[s] = (lb_merged_side){(uint32_t)side->n, w->first[s],      w->preds[s],
                                              w->node_of[s],     w->may_differ[s], c->phases[s]};
    }
    for (uint32_t n = 0; n < c->n_nodes; n++) {
        w->nodes[n].state = (uint8_t)c->states[n];
        for (int s = 0; s < 2; s++) {
            w->nodes[n].first[s] = used;
            for (int i = 0; i < c->sides[s].n; i++)
                if (c->sides[s].node[i] == (int)n) w->ops[used++] = (uint32_t)i, w->nodes[n].n[s]++;
        }
    }
    w->merged.nodes = w->nodes, w->merged.n_nodes = c->n_nodes, w->merged.ops = w->ops;
    w->merged.sinks = &c->sink, w->merged.n_sinks = 1;
}

static lb_divergences divergences_of(const pair_case *c)
{
    world w;
    lb_divergences found;
    make(&w, c);
    assert_int_equal(lb_divergences_find(&w.merged, &found, NULL), LB_OK);
    return found;
}

/* x -> up (same) -> gelu | silu -> down (apart) -> add (apart) */
static void what_one_side_alone_runs_is_listed_between_the_same_and_the_first_apart(void **state)
{
    (void)state;
    const pair_case c = {.sides = {{4, {{0}, {0}, {1}, {2, 0}}, {0, 1, 1, 2}, {0, -1, 1, 2}},
                                   {5, {{0}, {0}, {1}, {2}, {3, 0}}, {0, 1, 1, 1, 2}, {0, -1, -1, 1, 2}}},
                         .n_nodes = 3,
                         .states = {LB_NODE_SAME, LB_NODE_APART, LB_NODE_APART},
                         .sink = {2, false, {LB_NONE, LB_NONE}}};
    lb_divergences found = divergences_of(&c);
    assert_int_equal(found.n, 1);
    assert_int_equal(found.list[0].node, 1);
    assert_int_equal(found.list[0].n[0], 1);
    assert_int_equal(found.lone[found.list[0].first[0]], 1);
    assert_int_equal(found.list[0].n[1], 2);
    assert_int_equal(found.lone[found.list[0].first[1]], 1);
    assert_true(found.leads[1] && found.leads[2] && !found.leads[0]);
    lb_divergences_release(&found);
}

/* Node 1 is apart, node 2 behind it is the same again: nothing that leaves differs. */
static void what_meets_again_is_no_divergence(void **state)
{
    (void)state;
    const pair_case c = {
        .sides = {{3, {{0}, {0}, {1}}, {0, 1, 1}, {0, 1, 2}}, {3, {{0}, {0}, {1}}, {0, 1, 1}, {0, 1, 2}}},
        .n_nodes = 3,
        .states = {LB_NODE_SAME, LB_NODE_APART, LB_NODE_SAME},
        .sink = {2, false, {LB_NONE, LB_NONE}}};
    lb_divergences found = divergences_of(&c);
    assert_int_equal(found.n, 0);
    assert_false(found.leads[1]);
    lb_divergences_release(&found);
}

/* A decision hands on one side's choice: what it reads is a sink, although it is itself the same. */
static void what_a_decision_reads_is_judged(void **state)
{
    (void)state;
    const pair_case c = {
        .sides = {{3, {{0}, {0}, {1}}, {0, 1, 1}, {0, 1, 2}}, {3, {{0}, {0}, {1}}, {0, 1, 1}, {0, 1, 2}}},
        .n_nodes = 3,
        .states = {LB_NODE_SAME, LB_NODE_APART, LB_NODE_SAME},
        .sink = {2, true, {LB_NONE, LB_NONE}}};
    lb_divergences found = divergences_of(&c);
    assert_int_equal(found.n, 1);
    assert_int_equal(found.list[0].node, 1);
    lb_divergences_release(&found);
}

/* A result that either side makes by ops of its own: the sink itself is where they part. */
static void a_result_without_a_pair_is_its_own_divergence(void **state)
{
    (void)state;
    const pair_case c = {.sides = {{2, {{0}, {0}}, {0, 1}, {0, -1}}, {3, {{0}, {0}, {1}}, {0, 1, 1}, {0, -1, -1}}},
                         .n_nodes = 1,
                         .states = {LB_NODE_SAME},
                         .sink = {LB_NONE, false, {1, 2}}};
    lb_divergences found = divergences_of(&c);
    assert_int_equal(found.n, 1);
    assert_int_equal(found.list[0].node, LB_NONE);
    assert_int_equal(found.list[0].sink, 0);
    assert_int_equal(found.list[0].n[0] + found.list[0].n[1], 3);
    lb_divergences_release(&found);
}

/* Two faults side by side, of which neither follows from the other, and one behind both. */
static void independent_divergences_are_all_found(void **state)
{
    (void)state;
    const pair_case c = {.sides = {{4, {{0}, {0}, {0}, {1, 2}}, {0, 1, 1, 2}, {0, 1, 2, 3}},
                                   {4, {{0}, {0}, {0}, {1, 2}}, {0, 1, 1, 2}, {0, 1, 2, 3}}},
                         .n_nodes = 4,
                         .states = {LB_NODE_SAME, LB_NODE_APART, LB_NODE_APART, LB_NODE_APART},
                         .sink = {3, false, {LB_NONE, LB_NONE}}};
    lb_divergences found = divergences_of(&c);
    assert_int_equal(found.n, 2);
    assert_int_equal(found.list[0].node + found.list[1].node, 3);
    lb_divergences_release(&found);
}

/* What could not be run exactly hides nothing: the search goes on through it, on both sides. */
static void an_unknown_node_is_passed_through(void **state)
{
    (void)state;
    const pair_case c = {.sides = {{4, {{0}, {0}, {1}, {2}}, {0, 1, 1, 1}, {0, 1, 2, 3}},
                                   {4, {{0}, {0}, {1}, {2}}, {0, 1, 1, 1}, {0, 1, 2, 3}}},
                         .n_nodes = 4,
                         .states = {LB_NODE_SAME, LB_NODE_APART, LB_NODE_UNKNOWN, LB_NODE_APART},
                         .sink = {3, false, {LB_NONE, LB_NONE}}};
    lb_divergences found = divergences_of(&c);
    assert_int_equal(found.n, 1);
    assert_int_equal(found.list[0].node, 1);
    lb_divergences_release(&found);
}

/* A's 1 reads 2 and B's 2 reads 1: each side's order is right, together they are a circle. The search ends, and names
 * one. */
static void crossed_nodes_do_not_hide_each_other(void **state)
{
    (void)state;
    const pair_case c = {
        .sides = {{3, {{0}, {0}, {1}}, {0, 1, 1}, {0, 1, 2}}, {3, {{0}, {0}, {1}}, {0, 1, 1}, {0, 2, 1}}},
        .n_nodes = 3,
        .states = {LB_NODE_SAME, LB_NODE_APART, LB_NODE_APART},
        .sink = {2, false, {LB_NONE, LB_NONE}}};
    lb_divergences found = divergences_of(&c);
    assert_int_equal(found.n, 1);
    lb_divergences_release(&found);
}

/* Weights that either side holds in tensors of its own are told apart from ops. */
static void sources_without_a_partner_are_noted(void **state)
{
    (void)state;
    const pair_case c = {.sides = {{2, {{0}, {0}}, {0, 1}, {-1, 0}}, {2, {{0}, {0}}, {0, 1}, {-1, 0}}},
                         .n_nodes = 1,
                         .states = {LB_NODE_APART},
                         .sink = {0, false, {LB_NONE, LB_NONE}},
                         .blame = LB_BLAME_SOURCE};
    lb_divergences found = divergences_of(&c);
    assert_int_equal(found.n, 1);
    assert_true(found.list[0].sources[0] && found.list[0].sources[1]);
    assert_int_equal(found.list[0].n[0] + found.list[0].n[1], 0);
    lb_divergences_release(&found);
}

/* Forward: x -> scores (masked otherwise: apart) -> result (same). Backward (op 3) reads the scores again, and a
 * gradient that is apart: what differs there comes from the gradient (node 4, behind op 4 that A alone runs). */
static void an_inner_value_that_backward_reads_again_is_no_divergence(void **state)
{
    (void)state;
    const pair_case c = {.sides = {{6, {{0}, {0}, {1}, {0}, {3}, {1, 4}}, {0, 1, 1, 1, 1, 2}, {0, 1, 2, -1, 3, 4}},
                                   {5, {{0}, {0}, {1}, {0}, {1, 3}}, {0, 1, 1, 1, 2}, {0, 1, 2, 3, 4}}},
                         .n_nodes = 5,
                         .states = {LB_NODE_SAME, LB_NODE_APART, LB_NODE_SAME, LB_NODE_APART, LB_NODE_APART},
                         .sink = {4, false, {LB_NONE, LB_NONE}},
                         .phases = {(const uint8_t[]){0, 0, 0, 1, 1, 1}, (const uint8_t[]){0, 0, 0, 1, 1}}};
    lb_divergences found = divergences_of(&c);
    assert_int_equal(found.n, 1);
    assert_int_equal(found.list[0].node, 3);
    assert_false(found.leads[1]);
    assert_int_equal(found.list[0].n[0], 1);
    lb_divergences_release(&found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_one_side_alone_runs_is_listed_between_the_same_and_the_first_apart),
        cmocka_unit_test(what_meets_again_is_no_divergence),
        cmocka_unit_test(what_a_decision_reads_is_judged),
        cmocka_unit_test(a_result_without_a_pair_is_its_own_divergence),
        cmocka_unit_test(independent_divergences_are_all_found),
        cmocka_unit_test(an_unknown_node_is_passed_through),
        cmocka_unit_test(crossed_nodes_do_not_hide_each_other),
        cmocka_unit_test(sources_without_a_partner_are_noted),
        cmocka_unit_test(an_inner_value_that_backward_reads_again_is_no_divergence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
