/* Every custom op's row against calls that no stack would make: arguments missing, of other ranks and sizes, empty, of
 * other dtypes, and results that do not belong to them. A kernel computes or says why not; it neither aborts nor reads
 * beyond a tensor, whose memory ends where its elements end, for the sanitizers of the dev preset and for valgrind. */
#include "kernel/complex_rows.h"
#include "kernel/ops.h"
#include "kernel/required_arguments.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

enum { ARGS = 32, RESULTS = 16, CALLS_OF_A_ROW = 1000 };

static uint64_t state_of_draws = 88172645463325252u;

static uint32_t draw(uint32_t below) /* xorshift64 */
{
    state_of_draws ^= state_of_draws << 13, state_of_draws ^= state_of_draws >> 7;
    state_of_draws ^= state_of_draws << 17;
    return (uint32_t)(state_of_draws >> 33) % below;
}

/* What tensors of one call mostly have in common. */
typedef struct habit {
    int ndim;
    int64_t shape[4];
    lb_dtype dtype;
} habit;

static habit new_habit(void)
{
    static const lb_dtype dtypes[] = {LB_F32, LB_F32, LB_BF16, LB_F64, LB_U8, LB_I64};
    static const int64_t sizes[] = {1, 2, 2, 3, 4, 16, 0};
    habit habit = {.ndim = (int)draw(5), .dtype = dtypes[draw(6)]};
    const int64_t one_size = draw(2) ? sizes[draw(5)] : 0; /* alike in all, tensors of one call often fit */
    for (int d = 0; d < 4; d++) habit.shape[d] = one_size ? one_size : sizes[draw(7)];
    return habit;
}

static lb_tensor new_tensor(const habit *usual)
{
    static const lb_dtype odd[] = {LB_F32, LB_U8, LB_I64, LB_I32, LB_E4M3FN, LB_BOOL, LB_C64, LB_F16};
    habit h = draw(6) ? *usual : new_habit();
    if (!draw(3) && h.ndim) { /* the last dimensions alone, or the first ones */
        const int dropped = (int)draw((uint32_t)h.ndim);
        if (draw(2)) memmove(h.shape, h.shape + dropped, (size_t)(h.ndim - dropped) * sizeof *h.shape);
        h.ndim -= dropped;
    }
    if (!draw(4)) h.dtype = odd[draw(8)];
    lb_tensor tensor = {.dtype = h.dtype, .layout = lb_layout_contiguous(h.ndim, h.shape)};
    const size_t n = (size_t)lb_layout_numel(&tensor.layout), bytes = lb_dtype_bytes(h.dtype, n);
    tensor.data = malloc(bytes ? bytes : 1);
    assert_non_null(tensor.data);
    for (size_t i = 0; i < n; i++) {
        const double value = (double)draw(7) - (draw(4) ? 0 : 3);
        lb_convert(h.dtype, (char *)tensor.data + lb_dtype_bytes(h.dtype, i), LB_F64, &value, 1, NULL);
    }
    return tensor;
}

static lb_operand new_operand(const habit *usual)
{
    static const int64_t ints[3] = {1, 2, -1};
    static const double floats[3] = {1, 2, -1};
    const int64_t i = (int64_t)draw(9) - 2;
    switch (draw(8)) {
    case 0: return (lb_operand){.tag = LB_OPERAND_NONE};
    case 1: return (lb_operand){.tag = draw(3) ? LB_OPERAND_INT : LB_OPERAND_BOOL, .i = i, .f = (double)i};
    case 2: return (lb_operand){.tag = LB_OPERAND_FLOAT, .i = i, .f = (double)i + 0.5};
    case 3: {
        if (draw(2)) break;
        lb_tensor *list = calloc(2, sizeof *list);
        assert_non_null(list);
        list[0] = new_tensor(usual), list[1] = new_tensor(usual);
        return (lb_operand){.tag = LB_OPERAND_TENSORS, .count = 2, .tensors = list};
    }
    default: return (lb_operand){.tag = LB_OPERAND_TENSOR, .tensor = new_tensor(usual)};
    }
    return (lb_operand){.tag = LB_OPERAND_NUMBERS, .count = draw(4), .ints = ints, .floats = floats};
}

static void release(const lb_operand *arg)
{
    if (arg->tag == LB_OPERAND_TENSOR) free(arg->tensor.data);
    if (arg->tag != LB_OPERAND_TENSORS) return;
    for (uint32_t i = 0; i < arg->count; i++) free(arg->tensors[i].data);
    free((void *)arg->tensors);
}

static uint32_t names_of(const lb_op_row *row)
{
    uint32_t n = row->args && *row->args ? 1 : 0;
    for (const char *p = row->args; p && (p = strchr(p, ' ')); p++) n++;
    return n;
}

/* Whether the row took it. */
static bool is_computed(const lb_op_row *row)
{
    const habit usual = new_habit();
    lb_err err = LB_ERR_INIT;
    lb_operand args[ARGS];
    lb_tensor results[RESULTS];
    lb_call call = {.row = row, .args = args, .results = results, .err = &err};
    call.n_args = names_of(row) + (draw(8) ? 0 : 1);
    if (!draw(8)) call.n_args = draw(call.n_args + 1);
    call.n_results = draw(4) ? 1 + draw(4) : draw(RESULTS);
    for (uint32_t i = 0; i < call.n_args; i++) args[i] = new_operand(&usual);
    for (uint32_t i = 0; i < call.n_results; i++) {
        const bool like = call.n_args && draw(3);
        const lb_operand *arg = like ? &args[draw(call.n_args)] : NULL;
        habit h = usual;
        if (arg && arg->tag == LB_OPERAND_TENSOR) {
            h = (habit){arg->tensor.layout.ndim, {0}, arg->tensor.dtype};
            memcpy(h.shape, arg->tensor.layout.shape, sizeof h.shape);
        }
        results[i] = new_tensor(&h);
    }
    lb_status status = lb_required_arguments_are_there(&call);
    if (status == LB_OK) status = lb_row_run(&call);
    for (uint32_t i = 0; status == LB_OK && i < call.n_results; i++) { /* a twin's are f64 */
        free(results[i].data);
        results[i].dtype = LB_F64;
        const size_t bytes = lb_dtype_bytes(LB_F64, (size_t)lb_layout_numel(&results[i].layout));
        results[i].data = malloc(bytes ? bytes : 1);
        assert_non_null(results[i].data);
    }
    if (status == LB_OK && row->twin) (void)lb_row_twin(&call);
    if (status != LB_OK && !err.message[0]) fail_msg("%s fails without a word", row->name);
    for (uint32_t i = 0; i < call.n_args; i++) release(&args[i]);
    for (uint32_t i = 0; i < call.n_results; i++) free(results[i].data);
    return status == LB_OK;
}

static void odd_calls_are_refused_or_computed(void **state)
{
    (void)state;
    const lb_op_row *const *rows;
    uint32_t tried = 0, taken = 0;
    const uint32_t n = lb_op_rows(&rows);
    const char *only = getenv("LASTBIT_ODD_CALLS_OF");
    for (uint32_t r = 0; r < n; r++) {
        if (!rows[r]->samples || !rows[r]->kernel) continue;
        if (only ? !strstr(rows[r]->name, only) : strcmp(rows[r]->samples, "custom") != 0) continue;
        tried++;
        uint32_t computed = 0;
        for (int i = 0; i < CALLS_OF_A_ROW; i++) computed += is_computed(rows[r]);
        taken += computed > 0;
    }
    assert_true(only || tried > 50);
    assert_true(only || taken > tried / 3); /* the calls are not so odd that all stop at the door */
}

static float zeros[64];

static lb_operand of_shape(int ndim, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const int64_t shape[] = {a, b, c, d};
    return (lb_operand){.tag = LB_OPERAND_TENSOR, .tensor = {zeros, LB_F32, lb_layout_contiguous(ndim, shape)}};
}

static lb_status run(const char *name, const lb_operand *args, uint32_t n_args, const lb_operand *result)
{
    lb_err err = LB_ERR_INIT;
    lb_tensor y = result->tensor;
    float room[64];
    y.data = room;
    const lb_call call = {lb_op_find(name, NULL), args, n_args, &y, 1, {0}, &err};
    assert_non_null(call.row);
    assert_int_equal(lb_required_arguments_are_there(&call), LB_OK);
    return lb_row_run(&call);
}

static void a_bias_shorter_than_the_channels_is_refused(void **state)
{
    (void)state;
    const lb_operand operand = of_shape(3, 1, 2, 4, 0);
    lb_operand args[] = {operand, of_shape(2, 2, 3, 0, 0), of_shape(1, 2, 0, 0, 0), {0}, {0}, operand};
    assert_int_equal(run("DaoAILab::_causal_conv1d_fwd_cpp", args, 6, &operand), LB_OK);
    args[2] = of_shape(1, 1, 0, 0, 0);
    assert_int_equal(run("DaoAILab::_causal_conv1d_fwd_cpp", args, 6, &operand), LB_ERR_UNSUPPORTED);
}

static void chunks_wider_than_the_rows_are_refused(void **state)
{
    (void)state;
    const lb_tensor list[] = {of_shape(2, 4, 3, 0, 0).tensor, of_shape(2, 4, 3, 0, 0).tensor};
    const lb_operand args[] = {{.tag = LB_OPERAND_TENSORS, .count = 2, .tensors = list},
                               {.tag = LB_OPERAND_INT},
                               {.tag = LB_OPERAND_INT, .i = 2, .f = 2}},
                     whole = of_shape(2, 2, 12, 0, 0), narrow = of_shape(2, 2, 11, 0, 0);
    assert_int_equal(run("fsdp::chunk_cat", args, 3, &whole), LB_OK);
    assert_int_equal(run("fsdp::chunk_cat", args, 3, &narrow), LB_ERR_UNSUPPORTED);
}

/* Two channels of -1 and 1: their moments are 0 and 1, exactly. */
static lb_status run_norm_backward(lb_operand saved_mean, lb_operand saved_invstd, lb_operand weight, float dx[4])
{
    float x[] = {-1, 1, 1, -1}, dy[] = {1, 2, -3, 5};
    lb_err err = LB_ERR_INIT;
    lb_operand args[10] = {
        of_shape(2, 2, 2, 0, 0), of_shape(2, 2, 2, 0, 0), weight, {0}, {0}, saved_mean, saved_invstd};
    lb_tensor result = of_shape(2, 2, 2, 0, 0).tensor;
    args[0].tensor.data = dy, args[1].tensor.data = x, result.data = dx;
    args[7] = (lb_operand){.tag = LB_OPERAND_BOOL, .i = 1, .f = 1};
    args[8] = (lb_operand){.tag = LB_OPERAND_FLOAT};
    const lb_call call = {lb_op_find("aten::native_batch_norm_backward", NULL), args, 9, &result, 1, {0}, &err};
    assert_non_null(call.row);
    return lb_row_run(&call);
}

static void a_norm_whose_forward_saved_nothing_has_the_moments_of_its_input(void **state)
{
    (void)state;
    float ones[] = {1, 1}, with[4], without[4];
    lb_operand invstd = of_shape(1, 2, 0, 0, 0);
    const lb_operand empty = of_shape(1, 0, 0, 0, 0), mean = invstd, none = {0};
    invstd.tensor.data = ones;
    assert_int_equal(run_norm_backward(mean, invstd, none, with), LB_OK);
    assert_int_equal(run_norm_backward(empty, empty, none, without), LB_OK);
    assert_memory_equal(with, without, sizeof with);
    assert_int_equal(run_norm_backward(of_shape(1, 1, 0, 0, 0), invstd, none, with), LB_ERR_INVALID);
    assert_int_equal(run_norm_backward(mean, invstd, of_shape(1, 1, 0, 0, 0), with), LB_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_norm_whose_forward_saved_nothing_has_the_moments_of_its_input),
        cmocka_unit_test(odd_calls_are_refused_or_computed),
        cmocka_unit_test(a_bias_shorter_than_the_channels_is_refused),
        cmocka_unit_test(chunks_wider_than_the_rows_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
