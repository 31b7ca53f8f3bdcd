/* The local verdict of one pair, as a table: evidence in, verdict out. */
#include "cmocka_first.h"

#include "diff/diff_verdict.h"

typedef struct judgement {
    const char *what;
    lb_evidence evidence;
    lb_verdict verdict;
} judgement;

static const judgement table[] = {
    {"agrees, with rounding of its own",
     {.inputs_differ = true,
      .same_args = true,
      .replayed = true,
      .agreement = LB_SHADOW_AGREES,
      .own = {LB_VERDICT_ROUNDING, LB_VERDICT_ROUNDING}},
     LB_VERDICT_ROUNDING},
    {"agrees, replayed bit by bit from inputs that differ",
     {.inputs_differ = true, .same_args = true, .replayed = true, .agreement = LB_SHADOW_AGREES},
     LB_VERDICT_IDENTICAL},
    {"agrees, the same inputs",
     {.same_args = true, .replayed = true, .agreement = LB_SHADOW_AGREES},
     LB_VERDICT_ROUNDING},
    {"disagrees and leads out, its inputs do not",
     {.same_args = true, .leads = true, .replayed = true, .agreement = LB_SHADOW_DISAGREES},
     LB_VERDICT_DIVERGED},
    {"disagrees because its inputs do",
     {.inputs_differ = true,
      .inputs_apart = true,
      .leads = true,
      .same_args = true,
      .replayed = true,
      .agreement = LB_SHADOW_DISAGREES},
     LB_VERDICT_IDENTICAL},
    {"disagrees, and nothing follows from it",
     {.inputs_differ = true, .same_args = true, .replayed = true, .agreement = LB_SHADOW_DISAGREES},
     LB_VERDICT_ROUNDING},
    {"recorded bits outside the op's own bound",
     {.same_args = true,
      .replayed = true,
      .agreement = LB_SHADOW_AGREES,
      .own = {LB_VERDICT_DIVERGED, LB_VERDICT_IDENTICAL}},
     LB_VERDICT_DIVERGED},
    {"other draws",
     {.same_args = true, .random = true, .replayed = true, .agreement = LB_SHADOW_AGREES},
     LB_VERDICT_DIVERGED},
    {"other draws, of other probabilities",
     {.inputs_differ = true,
      .same_args = true,
      .random = true,
      .decides = true,
      .replayed = true,
      .agreement = LB_SHADOW_AGREES},
     LB_VERDICT_IDENTICAL},
    {"a decision flipped by rounding",
     {.inputs_differ = true, .same_args = true, .decides = true, .replayed = true, .agreement = LB_SHADOW_AGREES},
     LB_VERDICT_IDENTICAL},
    {"a tie",
     {.same_args = true, .decides = true, .replayed = true, .agreement = LB_SHADOW_AGREES},
     LB_VERDICT_ROUNDING},
    {"a decision with other arguments",
     {.decides = true, .leads = true, .replayed = true, .agreement = LB_SHADOW_DISAGREES},
     LB_VERDICT_DIVERGED},
    {"other integers from the same inputs",
     {.same_args = true, .decides = true, .leads = true, .replayed = true, .agreement = LB_SHADOW_DISAGREES},
     LB_VERDICT_DIVERGED},
    {"integers that differ among ops of two kinds",
     {.same_args = true, .decides = true, .replayed = true, .agreement = LB_SHADOW_DISAGREES},
     LB_VERDICT_ROUNDING},
    {"not replayed", {.same_args = true}, LB_VERDICT_MISSING},
    {"could not be run",
     {.same_args = true, .replayed = true, .own = {LB_VERDICT_MISSING, LB_VERDICT_MISSING}},
     LB_VERDICT_MISSING},
    {"unknown, with other arguments",
     {.replayed = true, .own = {LB_VERDICT_ROUNDING, LB_VERDICT_ROUNDING}},
     LB_VERDICT_DIVERGED},
    {"unknown, with other arguments, in a layer of other ops",
     {.irregular = true, .replayed = true, .own = {LB_VERDICT_ROUNDING, LB_VERDICT_ROUNDING}},
     LB_VERDICT_ROUNDING},
};

static void evidence_decides(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const char *why = NULL;
        const lb_verdict verdict = lb_diff_verdict_of_pair(&table[i].evidence, &why);
        if (verdict != table[i].verdict)
            fail_msg("%s: %s, not %s", table[i].what, lb_verdict_name(verdict), lb_verdict_name(table[i].verdict));
        assert_true(why && *why);
    }
}

/* Whichever side is A, the verdict is the same. */
static void the_order_of_the_sides_is_only_in_the_words(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        lb_evidence turned = table[i].evidence;
        const char *why;
        turned.swapped = true;
        turned.own[0] = table[i].evidence.own[1], turned.own[1] = table[i].evidence.own[0];
        assert_int_equal(lb_diff_verdict_of_pair(&turned, &why), table[i].verdict);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evidence_decides),
        cmocka_unit_test(the_order_of_the_sides_is_only_in_the_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
