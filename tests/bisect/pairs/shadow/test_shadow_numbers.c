/* Numbers of shadows: what is taken out is put back, in any dtype and layout, and nothing beside it is touched. */
#include "shadow/shadow_numbers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

static void numbers_are_put_back_in_every_dtype(void **state)
{
    (void)state;
    static const lb_dtype dtypes[] = {LB_F64, LB_F32, LB_BF16, LB_F16, LB_I64, LB_I32, LB_I16, LB_I8, LB_U8, LB_BOOL};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        const size_t width = lb_dtype_bits(dtypes[d]) / 8;
        unsigned char bytes[40 * 8], before[40 * 8];
        double in[12], out[12];
        memset(bytes, 0x5a, sizeof bytes);
        memcpy(before, bytes, sizeof bytes);
        lb_layout layout = {.ndim = 2, .shape = {4, 3}, .stride = {8, 2}}; /* every other element of rows of eight */
        const lb_tensor t = {bytes, dtypes[d], layout};
        for (int i = 0; i < 12; i++) in[i] = i % 2;
        lb_shadow_put(&t, in);
        assert_int_equal(lb_shadow_numbers(&t, out), 12);
        assert_memory_equal(in, out, sizeof in);
        for (size_t e = 0; e < 40; e++) {
            const bool of_it = e < 32 && e % 8 < 6 && e % 2 == 0;
            if (!of_it) assert_memory_equal(bytes + e * width, before + e * width, width);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_are_put_back_in_every_dtype)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
