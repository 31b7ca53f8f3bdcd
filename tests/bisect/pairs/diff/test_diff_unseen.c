/* Ops whose results have no digest are not said to have the same bits. */
#include "cmocka_first.h"
#include "program_sample.h"
#include "scratch_folder.h"

#include <lastbit/archive.h>
#include <lastbit/diff.h>

enum { N = 4, OPS = 3 };
static const float NUMBERS[N] = {1, -2, 3, -4};

static uint32_t add_value(lb_program *p, int64_t storage, bool seen)
{
    float data[N];
    for (int i = 0; i < N; i++) data[i] = storage % 2 ? -NUMBERS[i] : NUMBERS[i];
    const int64_t shape[] = {N};
    const lb_tensor t = {data, LB_F32, lb_layout_contiguous(1, shape)};
    lb_value v = {.storage = storage,
                  .layout = t.layout,
                  .dtype = LB_F32,
                  .flags = storage ? 0 : LB_VALUE_SOURCE | LB_VALUE_KEPT,
                  .source = storage ? LB_SOURCE_NOT : LB_SOURCE_BATCH,
                  .name = LB_NONE,
                  .statistics = LB_NONE};
    if (seen) v.logical = lb_digest_tensor(&t), v.blob = lb_digest_bytes(data, sizeof data);
    return lb_program_add_value(p, &v);
}

/* A source and OPS negations, one after the other; bit i of `seen`: that of op i has a digest. */
static lb_program *make_program(unsigned seen)
{
    lb_program *p = lb_program_new();
    uint32_t last = add_value(p, 0, true);
    p->world = 1, p->level = 3, p->complete = 1;
    sample_source_op(p, last);
    for (int i = 0; i < OPS; i++) {
        const lb_arg arg = {.tag = LB_ARG_VALUE, .u.value = last};
        last = add_value(p, i + 1, seen >> i & 1);
        sample_layer_op(p, "aten::neg", "layers.0", &arg, 1, last);
    }
    return p;
}

static lb_capture *record(const char *name, unsigned seen)
{
    lb_writer *writer = NULL;
    lb_capture *capture = NULL;
    const char *path = in_scratch(name);
    lb_program *p = make_program(seen);
    assert_int_equal(lb_writer_open(path, NULL, &writer, NULL), LB_OK);
    assert_int_equal(lb_writer_blob(writer, p->values[0].blob, LB_F32, NUMBERS, sizeof NUMBERS, NULL), LB_OK);
    assert_int_equal(lb_writer_program(writer, p, NULL), LB_OK);
    assert_int_equal(lb_writer_close(writer, NULL), LB_OK);
    lb_program_free(p);
    assert_int_equal(lb_capture_open(path, &capture, NULL), LB_OK);
    unlink(path);
    return capture;
}

static void results_without_digests_are_counted_apart(void **state)
{
    (void)state;
    enum { ALL = (1 << OPS) - 1 };
    const unsigned seen[][2] = {{ALL, ALL}, {ALL, 5}, {6, 3}, {0, ALL}, {0, 0}};
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) {
        lb_capture *a = record("a.tar", seen[i][0]), *b = record("b.tar", seen[i][1]);
        const lb_diff_options options = LB_DIFF_OPTIONS_INIT;
        lb_diff_report *r = NULL;
        lb_err err = LB_ERR_INIT;
        if (lb_diff_run(a, b, &options, &r, &err) != LB_OK) fail_msg("%s", err.message);
        const int both = __builtin_popcount(seen[i][0] & seen[i][1]);
        assert_int_equal(r->ops, OPS);
        assert_int_equal(r->identical, both);
        assert_int_equal(r->unseen, OPS - both);
        assert_int_equal(r->verdict, both ? LB_VERDICT_IDENTICAL : LB_VERDICT_MISSING);
        lb_diff_report_free(r);
        lb_capture_close(a), lb_capture_close(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(results_without_digests_are_counted_apart)};
    return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
