/* Ops copied from one program into another: what they name goes along once, under rows of the copy's own. */
#include "program/copier.h"
#include "small_program.h"

enum { CHAINS = 200, MOST_OPS = 24 };

typedef struct counted {
    lb_copier copier;
    uint32_t asked[64]; /* per value of `from`: how often its row was changed */
    int64_t shift;
} counted;

static void move(void *context, uint32_t value, lb_value *row)
{
    counted *counted = context;
    counted->asked[value]++;
    row->storage += counted->shift;
    row->statistics = LB_NONE;
    row->name = lb_copier_string(&counted->copier, row->name);
}

static counted copier_of(const lb_program *from, lb_program *to, int64_t shift)
{
    return (counted){.copier = {.from = from, .to = to, .change = move}, .shift = shift};
}

static void copy_op(counted *counted, uint32_t op)
{
    counted->copier.context = counted; /* it may have moved */
    const lb_op copy = lb_copier_op(&counted->copier, &counted->copier.from->ops[op]);
    lb_copier_check(&counted->copier, lb_program_add_op(counted->copier.to, &copy));
}

/* Ops of which each reads what two earlier ones gave. */
static lb_program *chain_of(uint32_t seed, uint32_t *n_ops)
{
    small s = {.p = lb_program_new()};
    uint32_t list[MOST_OPS + 1], draw = seed * 2654435761u + 1;
    list[0] = small_value(&s, 1, 0, LB_F32, 2, 2);
    small_source(&s, list[0]);
    *n_ops = 1 + seed % MOST_OPS;
    for (uint32_t i = 1; i <= *n_ops; i++) {
        draw = draw * 1664525u + 1013904223u;
        const uint32_t x = list[(draw >> 8) % i], y = list[(draw >> 16) % i];
        list[i] = small_value(&s, i + 1, 0, LB_F32, 2, 2);
        small_op(&s, draw & 1 ? "aten::add.Tensor" : "aten::mul.Tensor", list[i], NO, x, y);
    }
    return s.p;
}

static void a_copy_computes_what_it_was_copied_from(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < CHAINS; seed++) {
        uint32_t n;
        lb_program *from = chain_of(seed, &n), *to = lb_program_new();
        lb_program_scope(to, "", NULL, LB_NONE);
        counted counted = copier_of(from, to, 1000);
        for (uint32_t i = 0; i < from->n_ops; i++) copy_op(&counted, i);
        assert_false(counted.copier.failed);
        lb_err why = LB_ERR_INIT;
        assert_int_equal(lb_program_validate(to, &why), LB_OK);
        assert_int_equal(to->n_ops, from->n_ops);
        assert_int_equal(to->n_values, from->n_values);
        for (uint32_t i = 0; i < from->n_ops; i++) {
            const lb_op *a = &from->ops[i], *b = &to->ops[i];
            assert_string_equal(lb_op_name(from, a), lb_op_name(to, b));
            assert_int_equal(a->args, b->args);
            for (uint32_t k = 0; k < a->args; k++)
                if (lb_op_args(from, a)[k].tag == LB_ARG_VALUE)
                    assert_int_equal(from->values[lb_op_args(from, a)[k].u.value].storage + 1000,
                                     to->values[lb_op_args(to, b)[k].u.value].storage);
            for (uint32_t k = 0; k < lb_op_outcomes(a); k++)
                assert_int_equal(from->values[lb_op_outcome(from, a, k)].storage + 1000,
                                 to->values[lb_op_outcome(to, b, k)].storage);
        }
        lb_copier_release(&counted.copier);
        lb_program_free(from), lb_program_free(to);
    }
}

static void a_value_goes_along_once_however_often_it_is_read(void **state)
{
    (void)state;
    uint32_t n;
    lb_program *from = chain_of(17, &n), *to = lb_program_new();
    counted counted = copier_of(from, to, 0);
    for (int again = 0; again < 3; again++)
        for (uint32_t i = 0; i < from->n_ops; i++) copy_op(&counted, i);
    for (uint32_t i = 0; i < from->n_values; i++) {
        assert_int_equal(counted.asked[i], 1);
        assert_true(lb_copier_has_value(&counted.copier, i));
        assert_int_equal(lb_copier_value(&counted.copier, i), lb_copier_value(&counted.copier, i));
    }
    assert_int_equal(to->n_values, from->n_values);
    lb_copier_release(&counted.copier);
    lb_program_free(from), lb_program_free(to);
}

static void what_no_copied_op_names_stays_behind(void **state)
{
    (void)state;
    uint32_t n;
    lb_program *from = chain_of(9, &n), *to = lb_program_new();
    counted counted = copier_of(from, to, 0);
    copy_op(&counted, 0);
    assert_int_equal(to->n_values, 1);
    assert_false(lb_copier_has_value(&counted.copier, 1));
    assert_int_equal(lb_copier_value(&counted.copier, LB_NONE), LB_NONE);
    assert_int_equal(lb_copier_string(&counted.copier, LB_NONE), LB_NONE);
    assert_false(counted.copier.failed);
    lb_copier_check(&counted.copier, LB_NONE);
    assert_true(counted.copier.failed);
    lb_copier_release(&counted.copier);
    lb_program_free(from), lb_program_free(to);
}

static void two_programs_become_one(void **state)
{
    (void)state;
    uint32_t n, m;
    lb_program *first = chain_of(5, &n), *second = chain_of(6, &m), *to = lb_program_new();
    lb_program_scope(to, "", NULL, LB_NONE);
    counted a = copier_of(first, to, 0), b = copier_of(second, to, 1000);
    for (uint32_t i = 0; i < first->n_ops; i++) copy_op(&a, i);
    for (uint32_t i = 0; i < second->n_ops; i++) copy_op(&b, i);
    assert_int_equal(lb_program_validate(to, NULL), LB_OK);
    assert_int_equal(to->n_ops, first->n_ops + second->n_ops);
    assert_int_equal(to->n_values, first->n_values + second->n_values);
    lb_copier_release(&a.copier), lb_copier_release(&b.copier);
    lb_program_free(first), lb_program_free(second), lb_program_free(to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_computes_what_it_was_copied_from),
        cmocka_unit_test(a_value_goes_along_once_however_often_it_is_read),
        cmocka_unit_test(what_no_copied_op_names_stays_behind),
        cmocka_unit_test(two_programs_become_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
