/* The list of findings: what is one finding over several steps, and what are two. */
#include "cmocka_first.h"

#include "workers/worker_findings.h"

#include <string.h>

static void add(lb_worker_findings *findings, lb_ranks_finding_kind kind, int32_t rank, const char *tensor,
                int64_t step)
{
    int32_t ranks[] = {0, rank};
    const lb_ranks_finding one = {
        .kind = kind, .step = step, .ranks = ranks, .n_ranks = 2, .tensor = (char *)(uintptr_t)tensor};
    assert_int_equal(lb_worker_findings_add(findings, &one, strdup("why"), NULL), LB_OK);
}

static void the_same_of_another_step_is_one_finding(void **state)
{
    (void)state;
    lb_worker_findings findings = {0};
    add(&findings, LB_RANKS_REPLICA, 1, "w", 3);
    add(&findings, LB_RANKS_REPLICA, 1, "w", 4);
    add(&findings, LB_RANKS_REPLICA, 1, "w", 9);
    assert_int_equal(findings.n, 1);
    assert_int_equal(findings.list[0].steps, 3);
    assert_int_equal(findings.list[0].step, 3);
    lb_worker_findings_release(&findings);
    assert_int_equal(findings.n, 0);
}

static void another_kind_tensor_or_rank_is_another(void **state)
{
    (void)state;
    lb_worker_findings findings = {0};
    add(&findings, LB_RANKS_REPLICA, 1, "w", 0);
    add(&findings, LB_RANKS_INITIAL, 1, "w", 0);
    add(&findings, LB_RANKS_REPLICA, 2, "w", 0);
    add(&findings, LB_RANKS_REPLICA, 1, "v", 0);
    add(&findings, LB_RANKS_REPLICA, 1, NULL, 0);
    assert_int_equal(findings.n, 5);
    add(&findings, LB_RANKS_REPLICA, 1, NULL, 1);
    assert_int_equal(findings.n, 5);
    assert_int_equal(findings.list[4].steps, 2);
    lb_worker_findings_release(&findings);
}

static void no_message_means_no_memory(void **state)
{
    (void)state;
    lb_worker_findings findings = {0};
    lb_err err = LB_ERR_INIT;
    const lb_ranks_finding one = {.kind = LB_RANKS_SEED};
    assert_int_equal(lb_worker_findings_add(&findings, &one, NULL, &err), LB_ERR_NOMEM);
    assert_int_equal(findings.n, 0);
}

static void ranks_are_named_while_they_are_few(void **state)
{
    (void)state;
    int32_t ranks[64];
    char text[96];
    for (int i = 0; i < 64; i++) ranks[i] = 1000 + i;
    assert_string_equal(lb_worker_rank_words(ranks, 1, text), "rank 1000");
    assert_string_equal(lb_worker_rank_words(ranks, 2, text), "ranks 1000,1001");
    assert_string_equal(lb_worker_rank_words(ranks, 64, text), "64 ranks");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_of_another_step_is_one_finding),
        cmocka_unit_test(another_kind_tensor_or_rank_is_another),
        cmocka_unit_test(no_message_means_no_memory),
        cmocka_unit_test(ranks_are_named_while_they_are_few),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
