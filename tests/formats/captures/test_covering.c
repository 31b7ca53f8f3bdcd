/* Which kept value holds the bytes of a view, by an index that lasts and by looking through the program. */
#include "cmocka_first.h"

#include "captures/covering.h"

#include <string.h>

static uint32_t add(lb_program *p, int64_t storage, uint32_t version, lb_dtype dtype, lb_layout layout, bool kept)
{
    lb_value v;
    memset(&v, 0, sizeof v);
    v.storage = storage, v.version = version, v.dtype = dtype, v.layout = layout;
    v.flags = kept ? LB_VALUE_KEPT : 0, v.name = lb_program_string(p, "v");
    if (kept) v.blob = (lb_digest){1, p->n_values + 1u};
    return lb_program_add_value(p, &v);
}

static lb_layout window(int64_t offset, int64_t n)
{
    lb_layout l = lb_layout_contiguous(1, &n);
    l.offset = offset;
    return l;
}

/* The holder of a value and where it begins there, found in both ways alike. */
static uint32_t holder(lb_covering *c, const lb_program *p, uint32_t value, size_t *offset)
{
    size_t once = 77, again = 77;
    const uint32_t slow = lb_covering_find(c, p, false, value, &once),
                   fast = lb_covering_find(c, p, true, value, &again);
    assert_int_equal(slow, fast);
    assert_int_equal(once, again);
    *offset = once;
    return fast;
}

static void a_view_lies_in_what_was_kept(void **state)
{
    (void)state;
    lb_program *p = lb_program_new();
    lb_covering *c = lb_covering_new();
    size_t offset;
    assert_non_null(c);
    const uint32_t elsewhere = add(p, 2, 0, LB_F32, window(0, 100), true);
    const uint32_t before = add(p, 1, 0, LB_F32, window(0, 16), true);
    const uint32_t after = add(p, 1, 1, LB_F32, window(8, 16), true);
    add(p, 1, 0, LB_F32, window(0, 100), false); /* larger, and not kept */
    const struct {
        int64_t storage;
        uint32_t version;
        int64_t first, n;
        uint32_t holder;
        size_t offset;
    } views[] = {{1, 0, 0, 16, before, 0},  {1, 0, 4, 4, before, 16}, {1, 0, 15, 1, before, 60},
                 {1, 1, 8, 1, after, 0},    {1, 1, 20, 4, after, 48}, {2, 0, 99, 1, elsewhere, 396},
                 {1, 0, 15, 2, LB_NONE, 0}, {1, 1, 7, 2, LB_NONE, 0}, {1, 2, 8, 1, LB_NONE, 0},
                 {3, 0, 0, 1, LB_NONE, 0},  {1, 1, 24, 1, LB_NONE, 0}};
    uint32_t rows[sizeof views / sizeof *views];
    for (size_t i = 0; i < sizeof views / sizeof *views; i++)
        rows[i] = add(p, views[i].storage, views[i].version, LB_F32, window(views[i].first, views[i].n), false);
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
        assert_int_equal(holder(c, p, rows[i], &offset), views[i].holder);
        if (views[i].holder != LB_NONE) assert_int_equal(offset, views[i].offset);
    }
    lb_covering_free(c), lb_program_free(p);
}

/* A view in another dtype is found by its bytes; of 4 bits an element ends within one. */
static void bytes_count_and_not_elements(void **state)
{
    (void)state;
    lb_program *p = lb_program_new();
    lb_covering *c = lb_covering_new();
    size_t offset;
    const uint32_t kept = add(p, 1, 0, LB_F32, window(2, 4), true); /* bytes 8 to 24 */
    const uint32_t inside = add(p, 1, 0, LB_BF16, window(5, 7), false),
                   outside = add(p, 1, 0, LB_U8, window(7, 2), false);
    const int64_t sizes[2] = {2, 2};
    lb_layout turned = lb_layout_contiguous(2, sizes);
    turned.stride[0] = 1, turned.stride[1] = 2, turned.offset = 2;
    const uint32_t transposed = add(p, 1, 0, LB_F32, turned, false);
    assert_int_equal(holder(c, p, inside, &offset), kept);
    assert_int_equal(offset, 2);
    assert_int_equal(holder(c, p, outside, &offset), LB_NONE);
    assert_int_equal(holder(c, p, transposed, &offset), kept);
    assert_int_equal(offset, 0);
    lb_covering_free(c), lb_program_free(p);
}

/* An index is of the program as it was; one that is dropped is made anew. */
static void a_dropped_index_is_made_anew(void **state)
{
    (void)state;
    lb_program *p = lb_program_new(), *other = lb_program_new();
    lb_covering *c = lb_covering_new();
    size_t offset;
    const uint32_t view = add(p, 1, 0, LB_F32, window(1, 1), false);
    assert_int_equal(lb_covering_find(c, p, true, view, &offset), LB_NONE);
    const uint32_t kept = add(p, 1, 0, LB_F32, window(0, 4), true);
    assert_int_equal(lb_covering_find(c, p, true, view, &offset), LB_NONE);
    assert_int_equal(lb_covering_find(c, p, false, view, &offset), kept);
    lb_covering_drop(c, other); /* which has none */
    lb_covering_drop(c, p);
    assert_int_equal(lb_covering_find(c, p, true, view, &offset), kept);
    assert_int_equal(offset, 4);
    lb_covering_free(c), lb_covering_free(NULL);
    lb_program_free(p), lb_program_free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_view_lies_in_what_was_kept),
        cmocka_unit_test(bytes_count_and_not_elements),
        cmocka_unit_test(a_dropped_index_is_made_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
