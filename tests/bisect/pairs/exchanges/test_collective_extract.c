/* Calls of a recorded run of four ranks, told from extracts as from whole programs. */
#include "cmocka_first.h"

#include "exchanges/collective_members.h"

#include <string.h>

enum { RANKS = 4 };

static lb_capture *capture;
static const lb_program *programs[RANKS];
static lb_collective_extract extracts[RANKS];
static lb_collective_meetings whole, part;

static int open_sample(void **state)
{
    const int64_t *steps;
    const int32_t *ranks;
    (void)state;
    if (lb_capture_open(LB_SOURCE_DIR "/samples/poisoned-rank.lbz", &capture, NULL) != LB_OK) return -1;
    if (lb_capture_steps(capture, &steps) < 1 || lb_capture_ranks(capture, &ranks) != RANKS) return -1;
    for (int r = 0; r < RANKS; r++)
        if (lb_capture_program(capture, ranks[r], steps[0], &programs[r], NULL) != LB_OK ||
            lb_collective_extract_make(programs[r], &extracts[r], NULL) != LB_OK)
            return -1;
    return lb_collective_meetings_find(programs, RANKS, &whole, NULL) ||
           lb_collective_meetings_find_extracts(extracts, RANKS, &part, NULL);
}

static int close_sample(void **state)
{
    (void)state;
    lb_collective_meetings_release(&whole), lb_collective_meetings_release(&part);
    for (int r = 0; r < RANKS; r++) lb_collective_extract_release(&extracts[r]);
    lb_capture_close(capture);
    return 0;
}

static void the_same_calls_meet_in_the_same_order(void **state)
{
    (void)state;
    assert_true(whole.n > 1);
    assert_int_equal(part.n, whole.n);
    for (uint32_t i = 0; i < whole.n; i++) {
        assert_int_equal(part.list[i].n, whole.list[i].n);
        assert_int_equal(part.list[i].whole, whole.list[i].whole);
        for (uint32_t k = 0; k < whole.list[i].n; k++) {
            const lb_collective_member *a = &whole.list[i].members[k], *b = &part.list[i].members[k];
            assert_int_equal(a->op, a->number);
            assert_int_equal(b->number, a->op);
            assert_int_equal(b->program->rank, a->program->rank);
            assert_int_equal(b->ordinal, a->ordinal);
            assert_string_equal(lb_op_name(b->program, &b->program->ops[b->op]),
                                lb_op_name(a->program, &a->program->ops[a->op]));
        }
    }
}

static void bytes_are_those_of_the_whole_step(void **state)
{
    uint32_t kept = 0;
    (void)state;
    for (uint32_t i = 0; i < whole.n; i++)
        for (uint32_t k = 0; k < whole.list[i].n; k++) {
            const lb_collective_member *a = &whole.list[i].members[k], *b = &part.list[i].members[k];
            lb_collective_stream x, y;
            assert_int_equal(b->n_outputs, a->n_outputs);
            lb_collective_stream_read(capture, a->program, a->outputs, a->n_outputs, &x, NULL);
            lb_collective_stream_read(capture, b->program, b->outputs, b->n_outputs, &y, NULL);
            assert_int_equal(y.elements, x.elements);
            assert_int_equal(y.bytes != NULL, x.bytes != NULL);
            if (x.bytes) assert_memory_equal(y.bytes, x.bytes, (size_t)x.elements * (lb_dtype_bits(x.dtype) / 8));
            kept += x.bytes != NULL;
            free(x.bytes), free(y.bytes);
        }
    assert_true(kept > 0);
}

static void nothing_else_is_in_it_and_it_can_be_written(void **state)
{
    (void)state;
    for (int r = 0; r < RANKS; r++) {
        const lb_program *p = extracts[r].program;
        void *bytes;
        size_t size;
        lb_program *again;
        assert_int_equal(p->n_ops, programs[r]->n_collectives);
        assert_true(p->n_values < programs[r]->n_values);
        assert_int_equal(lb_program_encode(p, &bytes, &size, NULL), LB_OK);
        assert_int_equal(lb_program_decode(bytes, size, &again, NULL), LB_OK);
        assert_int_equal(again->n_collectives, p->n_collectives);
        lb_program_free(again);
        free(bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_calls_meet_in_the_same_order),
        cmocka_unit_test(bytes_are_those_of_the_whole_step),
        cmocka_unit_test(nothing_else_is_in_it_and_it_can_be_written),
    };
    return cmocka_run_group_tests(tests, open_sample, close_sample);
}
