/* What is wrong with a file of another program: it was cut, or it holds something else. */
#include "cmocka_first.h"

#include "foreign/foreign_tensors.h"

#include <string.h>

static void an_index_that_was_cut_anywhere_says_so(void **state)
{
    (void)state;
    static const char index[] =
        "{\"metadata\": {\"total_size\": 12, \"tied\": true}, \"weight_map\": {\"a.b\": \"x-00001-of-00002\"}}";
    for (size_t size = 0; size < sizeof index - 1; size++)
        assert_int_equal(lb_foreign_damage(LB_ERR_CORRUPT, "model.safetensors.index.json", size ? index : NULL, size),
                         LB_FAULT_TRUNCATED);
    assert_int_equal(lb_foreign_damage(LB_ERR_CORRUPT, "model.safetensors.index.json", index, sizeof index - 1),
                     LB_FAULT_DAMAGED);
}

static void an_index_with_a_wrong_byte_is_damaged(void **state)
{
    (void)state;
    static const char index[] = "{\"metadata\": {\"total_size\"= 12}, \"weight_map\": {}}";
    assert_int_equal(lb_foreign_damage(LB_ERR_CORRUPT, "model.safetensors.index.json", index, sizeof index - 1),
                     LB_FAULT_DAMAGED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_index_that_was_cut_anywhere_says_so),
        cmocka_unit_test(an_index_with_a_wrong_byte_is_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
