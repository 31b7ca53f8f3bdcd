/* A large tensor measured in parts has the bits of one measured in one go, whatever is in it. */
#include "cmocka_first.h"

#include "audit/piece_measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = (4 << 20) + 12345 };
static float numbers[N];

static void fill(void)
{
    for (int i = 0; i < N; i++) numbers[i] = sinf((float)i) * (float)(i % 977);
}

static void check(lb_dtype dtype, int64_t first_bad)
{
    const int64_t shape[] = {N};
    void *bytes = malloc(lb_dtype_bytes(dtype, N));
    lb_store_f32(dtype, bytes, numbers, N, NULL);
    const lb_tensor tensor = {bytes, dtype, lb_layout_contiguous(1, shape)};
    const lb_piece_measured m = lb_piece_measure(&tensor);
    const lb_statistics statistics = lb_statistics_of(&tensor);
    assert_true(lb_piece_is_large(&tensor));
    assert_true(lb_digest_equal(m.digest, lb_digest_tensor(&tensor)));
    assert_memory_equal(&m.statistics, &statistics, sizeof statistics);
    assert_int_equal(m.first_bad, first_bad);
    free(bytes);
}

static void parts_have_the_bits_of_the_whole(void **state)
{
    (void)state;
    fill();
    for (size_t i = 0; i < 4; i++) check((const lb_dtype[]){LB_F32, LB_BF16, LB_F64, LB_E4M3FN}[i], -1);
}

static void the_first_number_that_is_none_is_found_in_its_part(void **state)
{
    (void)state;
    fill();
    numbers[N - 1] = INFINITY;
    check(LB_F32, N - 1);
    numbers[70001] = NAN;
    check(LB_BF16, 70001);
}

static void a_small_or_strided_tensor_is_measured_whole(void **state)
{
    (void)state;
    fill();
    numbers[3] = NAN;
    const int64_t shape[] = {2, 4};
    lb_tensor tensor = {numbers, LB_F32, lb_layout_contiguous(2, shape)};
    tensor.layout.stride[0] = 1, tensor.layout.stride[1] = 2; /* 0 2 4 6, 1 3 5 7 */
    assert_false(lb_piece_is_large(&tensor));
    assert_int_equal(lb_piece_measure(&tensor).first_bad, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_have_the_bits_of_the_whole),
        cmocka_unit_test(the_first_number_that_is_none_is_found_in_its_part),
        cmocka_unit_test(a_small_or_strided_tensor_is_measured_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
