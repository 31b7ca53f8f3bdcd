/* Names resolve to rows by rule; every spelling here is one that torch 2.13 records. */
#include "kernel/ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static void spelling(const char *name, const char *row_name, lb_op_form form)
{
    lb_op_form found = LB_FORM_PLAIN;
    const lb_op_row *row = lb_op_find(name, &found);
    if (!row_name) {
        assert_null(row);
        return;
    }
    assert_non_null(row);
    assert_string_equal(row->name, row_name);
    assert_int_equal(found, form);
}

static void every_spelling_of_an_op_finds_its_base_row(void **state)
{
    (void)state;
    spelling("aten::add.Tensor", "aten::add.Tensor", LB_FORM_PLAIN);
    spelling("aten::add_.Tensor", "aten::add.Tensor", LB_FORM_INPLACE);
    spelling("aten::add.out", "aten::add.Tensor", LB_FORM_OUT);
    spelling("aten::special_entr.out", "aten::special_entr", LB_FORM_OUT);
    spelling("aten::mul.Scalar_out", "aten::mul.Scalar", LB_FORM_OUT);
    spelling("aten::threshold_backward.grad_input", "aten::threshold_backward", LB_FORM_OUT);
    spelling("aten::_foreach_add.List", "aten::add.Tensor", LB_FORM_FOREACH);
    spelling("aten::_foreach_add_.ScalarList", "aten::add.Scalar", LB_FORM_FOREACH_INPLACE);
    spelling("aten::_foreach_mul_.Tensor", "aten::mul.Tensor", LB_FORM_FOREACH_INPLACE);
    spelling("aten::_foreach_maximum_.List", "aten::maximum", LB_FORM_FOREACH_INPLACE);
    spelling("aten::_foreach_zero_", "aten::zero", LB_FORM_FOREACH_INPLACE);
    spelling("aten::multiply_.Tensor", "aten::mul.Tensor", LB_FORM_INPLACE);
    spelling("aten::__ior__.Tensor", "aten::bitwise_or.Tensor", LB_FORM_INPLACE);
    spelling("aten::batch_norm_elemt.out", "aten::batch_norm_elemt", LB_FORM_OUT);
    spelling("aten::mm.dtype_out", "aten::mm.dtype", LB_FORM_OUT);
    spelling("aten::_scaled_mm_v2.out", "aten::_scaled_mm_v2", LB_FORM_OUT);
    spelling("aten::_fft_r2c.out", "aten::_fft_r2c", LB_FORM_OUT);
    spelling("aten::bernoulli_.float", "aten::bernoulli.p", LB_FORM_INPLACE);
    spelling("aten::normal_", "aten::normal_functional", LB_FORM_INPLACE);
}

static void a_view_stays_a_view_when_written_in_place(void **state)
{
    (void)state;
    spelling("aten::squeeze_.dim", "aten::squeeze.dim", LB_FORM_PLAIN);
    spelling("aten::t_", "aten::t", LB_FORM_PLAIN);
}

static void unknown_names_are_opaque(void **state)
{
    (void)state;
    spelling("aten::no_such_op", NULL, LB_FORM_PLAIN);
    spelling("aten::_foreach_no_such_op_.Scalar", NULL, LB_FORM_PLAIN);
    spelling("mylib::add.Tensor", NULL, LB_FORM_PLAIN);
    spelling("add.Tensor", NULL, LB_FORM_PLAIN);
    spelling("aten::", NULL, LB_FORM_PLAIN);
    spelling("", NULL, LB_FORM_PLAIN);
    spelling("aten::_foreach_addcmul_.Tensor", NULL, LB_FORM_PLAIN); /* one tensor holds the scalars of all elements */
    char lengthy[600];
    memset(lengthy, 'x', sizeof lengthy - 1);
    memcpy(lengthy, "aten::", 6);
    lengthy[sizeof lengthy - 1] = '\0';
    spelling(lengthy, NULL, LB_FORM_PLAIN);
}

/* "self! indices?[] dim": a name and one of the marks of LB_ARG_MARKS, or none. */
static void every_mark_is_known(const lb_op_row *row)
{
    static const char *const marks[] = {"!", "[]", "?[]", "%"};
    for (const char *p = row->args; p && *p; p += strcspn(p, " "), p += *p == ' ') {
        const char *mark = p + strcspn(p, " " LB_ARG_MARKS);
        const size_t length = strcspn(mark, " ");
        bool known = !length;
        for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
            known |= length == strlen(marks[i]) && !strncmp(mark, marks[i], length);
        if (mark == p || !known) fail_msg("%s: its args \"%s\"", row->name, row->args);
    }
}

static void every_row_finds_itself_and_is_complete(void **state)
{
    (void)state;
    const lb_op_row *const *rows;
    const uint32_t n = lb_op_rows(&rows);
    assert_true(n > 100);
    for (uint32_t k = 0; k < n; k++) {
        const lb_op_row *row = rows[k];
        lb_op_form form;
        assert_ptr_equal(lb_op_find(row->name, &form), row);
        const uint32_t without = LB_ROW_RANDOM | LB_ROW_VIEW | LB_ROW_UNDEFINED | LB_ROW_HOST | LB_ROW_COLLECTIVE;
        if (!row->kernel && !(row->flags & without)) fail_msg("%s has no kernel", row->name);
        if (!row->samples || !*row->samples) fail_msg("%s has no samples, so no test", row->name);
        const bool bounded = row->flags & (LB_ROW_EXACT | LB_ROW_DISCONTINUOUS | LB_ROW_FACTORS) ||
                             row->roundings > 0 || row->roundings_per_term > 0;
        if (row->kernel && !bounded) fail_msg("%s has no bound", row->name);
        if (row->kernel && row->roundings_per_term > 0 && !row->twin) fail_msg("%s sums without a twin", row->name);
        if (row->roundings_per_term > 0 && !row->terms && !(row->flags & LB_ROW_REDUCTION))
            fail_msg("%s rounds once a term and does not say what its terms are", row->name);
        if (row->kernel) every_mark_is_known(row);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_spelling_of_an_op_finds_its_base_row),
        cmocka_unit_test(a_view_stays_a_view_when_written_in_place),
        cmocka_unit_test(unknown_names_are_opaque),
        cmocka_unit_test(every_row_finds_itself_and_is_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
