/* Which rank a name tells. */
#include "cmocka_first.h"

#include "foreign/rank_name.h"

#include <string.h>

static void names_tell_their_rank(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        int32_t rank, stated;
    } rows[] = {
        {"mp_rank_01_model_states.pt", 1, 0},
        {"iter_0000100/mp_rank_03/model_optim_rng.pt", 3, 0},
        {"tp_rank_02", 2, 0},
        {"rank-7.safetensors", 7, 0},
        {"rank12.pt", 12, 0},
        {"__5_0.distcp", 5, 0},
        {"adapter_model-00001-of-00004.safetensors", 1, 4},
        {"rank_3/model-00002-of-00002.safetensors", 2, 2}, /* the innermost name speaks */
        {"model.safetensors", -1, 0},
        {"rank-pattern.json", -1, 0},
        {"crank3.pt", -1, 0}, /* no word of its own */
        {"rank99999999999999999999.pt", -1, 0},
        {"-of-", -1, 0},
        {"x-0000a-of-00002.bin", -1, 0},
        {"", -1, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int32_t stated = -1;
        assert_int_equal(lb_rank_in_name(rows[i].path, &stated), rows[i].rank);
        assert_int_equal(stated, rows[i].stated);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(names_tell_their_rank)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
