#define _GNU_SOURCE /* memmem */
#include "cmocka_first.h"
#include "program_sample.h"

#include <stdlib.h>
#include <string.h>

static void assert_text(const lb_program *p, const lb_shard *shard, const char *expected)
{
    char text[200];
    lb_shard_text(p, shard, text, sizeof text);
    assert_string_equal(text, expected);
}

static void shards_are_found_by_their_value(void **state)
{
    (void)state;
    lb_program *p = sharded_program();
    uint32_t n;
    lb_err err = LB_ERR_INIT;
    if (lb_program_validate(p, &err) != LB_OK) fail_msg("%s", err.message);
    const lb_shard *rows = lb_program_shards_of(p, 0, &n);
    assert_int_equal(n, 1);
    assert_text(p, rows, "dp 1 of 2 shard(0), tp 1 of 2 partial(sum), [2:4 6:8, :] of [8, 6]");
    const lb_layout part = lb_shard_part(p, rows), whole = lb_shard_whole(p, rows);
    assert_true(part.ndim == 2 && part.shape[0] == 4 && part.shape[1] == 6 && whole.shape[0] == 8);
    assert_false(lb_shard_is_flat(p, rows));
    const lb_shard *flat = lb_program_shards_of(p, 1, &n);
    assert_int_equal(n, 2);
    assert_true(flat[0].at == 1 && flat[1].at == 8 && lb_shard_is_flat(p, flat));
    assert_text(p, &flat[0], "3 of 4 shard(flat), elements [13:20] of [4, 5]");
    assert_text(p, &flat[1], "3 of 4 shard(flat), elements [0:5] of [9]");
    assert_true(lb_shard_part(p, &flat[0]).shape[0] == 7 && lb_shard_part(p, &flat[0]).ndim == 1);
    assert_null(lb_program_shards_of(p, 2, &n));
    assert_int_equal(n, 0);
    char few[12];
    lb_shard_text(p, rows, few, sizeof few);
    assert_string_equal(few, "dp 1 of 2 s");
    lb_program_free(p);
}

static void coordinates_run_fastest_along_the_last_axis(void **state)
{
    (void)state;
    lb_program *p = sharded_program();
    for (int32_t rank = 0; rank < 4; rank++) {
        assert_int_equal(lb_program_mesh_coordinate(p, &p->meshes[0], 0, rank), rank / 2);
        assert_int_equal(lb_program_mesh_coordinate(p, &p->meshes[0], 1, rank), rank % 2);
    }
    assert_int_equal(lb_program_mesh_coordinate(p, &p->meshes[0], 0, 4), -1);
    lb_program_free(p);
}

static void rows_that_are_there_are_found_again(void **state)
{
    (void)state;
    lb_program *p = sharded_program(), *again = sharded_program();
    const uint32_t extents = p->n_extents, placements = p->n_placements;
    assert_int_equal(placements, 3); /* both flat ones share theirs */
    for (int i = 0; i < 3; i++) {
        const lb_shard *s = &p->shards[i];
        assert_int_equal(lb_program_add_extents(p, again->extents + s->first_extent, s->extents), s->first_extent);
        assert_int_equal(lb_program_add_placements(p, again->placements + s->first_placement, s->placements),
                         s->first_placement);
    }
    assert_int_equal(lb_program_mesh(p, p->mesh_axes, 2, p->refs + p->meshes[0].first_rank, 4), 0);
    assert_true(p->n_extents == extents && p->n_placements == placements && p->n_meshes == 2);
    const uint32_t others[] = {3, 2, 1, 0};
    assert_int_equal(lb_program_mesh(p, p->mesh_axes, 2, others, 4), 2);
    lb_program_free(p), lb_program_free(again);
}

static void a_shard_is_copied_with_all_that_it_names(void **state)
{
    (void)state;
    lb_program *p = sharded_program(), *q = lb_program_new();
    char before[200], after[200];
    q->rank = p->rank;
    lb_program_string(q, "other strings");
    for (uint32_t v = p->n_values; v-- > 0;) lb_program_add_value(q, &p->values[v]);
    for (uint32_t i = 0; i < p->n_shards; i++)
        assert_true(lb_program_copy_shard(q, p, &p->shards[i], 2 - p->shards[i].value) != LB_NONE);
    lb_program_sort_shards(q);
    lb_err err = LB_ERR_INIT;
    if (lb_program_validate(q, &err) != LB_OK) fail_msg("%s", err.message);
    for (uint32_t i = 0; i < p->n_shards; i++) {
        uint32_t n, m;
        const lb_shard *a = lb_program_shards_of(p, p->shards[i].value, &n);
        const lb_shard *b = lb_program_shards_of(q, 2 - p->shards[i].value, &m);
        assert_int_equal(n, m);
        for (uint32_t k = 0; k < n; k++) {
            lb_shard_text(p, &a[k], before, sizeof before), lb_shard_text(q, &b[k], after, sizeof after);
            assert_string_equal(before, after);
            assert_string_equal(lb_program_text(p, a[k].name), lb_program_text(q, b[k].name));
        }
    }
    lb_program_free(p), lb_program_free(q);
}

static void shards_come_back_and_a_program_without_any_has_no_table_of_them(void **state)
{
    (void)state;
    static const char *const names[] = {"shards", "extents", "placements", "meshes", "mesh_axes"};
    lb_program *p = sharded_program(), *q, *none = lb_program_new();
    void *bytes, *few;
    size_t size, less;
    assert_int_equal(lb_program_encode(p, &bytes, &size, NULL), LB_OK);
    lb_err err = LB_ERR_INIT;
    if (lb_program_decode(bytes, size, &q, &err) != LB_OK) fail_msg("%s", err.message);
    assert_true(q->n_shards == 3 && q->n_extents == p->n_extents && q->n_meshes == 2 && q->n_mesh_axes == 3);
    for (uint32_t i = 0; i < p->n_placements; i++)
        assert_true(p->placements[i].kind == q->placements[i].kind && p->placements[i].dim == q->placements[i].dim &&
                    p->placements[i].reduce == q->placements[i].reduce);
    void *again;
    size_t as_many;
    assert_int_equal(lb_program_encode(q, &again, &as_many, NULL), LB_OK);
    assert_int_equal(size, as_many);
    assert_memory_equal(bytes, again, size);
    const lb_extent *flat = &q->extents[q->shards[1].first_extent + 2];
    assert_true(flat->dim == LB_EXTENT_FLAT && flat->whole == 20 && flat->from == 13 && flat->size == 7);
    assert_true(q->shards[1].at == 1 && q->shards[0].name == LB_NONE && q->shards[0].mesh == 0);
    assert_int_equal(lb_program_encode(none, &few, &less, NULL), LB_OK);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_non_null(memmem(bytes, size, names[i], strlen(names[i])));
        assert_null(memmem(few, less, names[i], strlen(names[i])));
    }
    free(bytes), free(again), free(few);
    lb_program_free(p), lb_program_free(q), lb_program_free(none);
}

static void every_flip_is_survived(void **state)
{
    (void)state;
    lb_program *p = sharded_program(), *q;
    void *bytes;
    size_t size;
    uint32_t n, refused = 0;
    char text[300];
    assert_int_equal(lb_program_encode(p, &bytes, &size, NULL), LB_OK);
    unsigned char *copy = malloc(size);
    for (size_t bit = 0; bit < size * 8; bit++) {
        memcpy(copy, bytes, size);
        copy[bit / 8] ^= (unsigned char)(1 << bit % 8);
        q = NULL;
        if (lb_program_decode(copy, size, &q, NULL) != LB_OK) {
            refused++;
            continue;
        }
        assert_int_equal(lb_program_validate(q, NULL), LB_OK);
        for (uint32_t i = 0; i < q->n_shards; i++) {
            const lb_layout part = lb_shard_part(q, &q->shards[i]);
            const lb_value *value = &q->values[q->shards[i].value];
            assert_true(lb_layout_numel(&part) <= lb_layout_numel(&value->layout));
            assert_non_null(lb_program_shards_of(q, q->shards[i].value, &n));
            lb_shard_text(q, &q->shards[i], text, sizeof text);
        }
        lb_program_free(q);
    }
    assert_true(refused > size);
    free(copy), free(bytes);
    lb_program_free(p);
}

#define REFUSED_VALUE(place, broken, text)                                                                             \
    do {                                                                                                               \
        lb_err err = LB_ERR_INIT;                                                                                      \
        __typeof__(place) kept = place;                                                                                \
        place = broken;                                                                                                \
        assert_int_equal(lb_program_validate(p, &err), LB_ERR_CORRUPT);                                                \
        if (!strstr(err.message, text)) fail_msg("'%s' does not say '%s'", err.message, text);                         \
        place = kept;                                                                                                  \
        assert_int_equal(lb_program_validate(p, NULL), LB_OK);                                                         \
    } while (0)

static void a_broken_rule_is_named_by_table_row_and_field(void **state)
{
    (void)state;
    lb_program *p = sharded_program();
    const uint32_t rows = p->shards[0].first_extent, flat = p->shards[1].first_extent;
    REFUSED_VALUE(p->shards[0].value, 3, "shards[0].value");
    REFUSED_VALUE(p->shards[2].value, 0, "shards[2].value: rows are by value");
    REFUSED_VALUE(p->shards[1].name, 77, "shards[1].name");
    REFUSED_VALUE(p->shards[1].mesh, 2, "shards[1].mesh");
    REFUSED_VALUE(p->shards[0].placements, 1, "shards[0].placements");
    REFUSED_VALUE(p->shards[0].first_extent, p->n_extents, "shards[0].extents");
    REFUSED_VALUE(p->shards[0].extents, UINT32_MAX, "shards[0].extents");
    REFUSED_VALUE(p->shards[1].at, 10, "shards[1].at");
    REFUSED_VALUE(p->shards[0].at, -1, "shards[0].at");
    REFUSED_VALUE(p->shards[0].value, 1, "shards[0].at");
    REFUSED_VALUE(p->extents[rows].from, 7, "reaches beyond the whole");
    REFUSED_VALUE(p->extents[rows].from, INT64_MAX, "reaches beyond the whole");
    REFUSED_VALUE(p->extents[rows].size, -1, "reaches beyond the whole");
    REFUSED_VALUE(p->extents[rows + 2].dim, 2, "dimensions follow each other");
    REFUSED_VALUE(p->extents[rows + 1].whole, 9, "dimensions follow each other");
    REFUSED_VALUE(p->extents[rows].dim, INT32_MIN, "dimensions follow each other");
    REFUSED_VALUE(p->extents[flat + 2].whole, 21, "elements of a whole tensor");
    REFUSED_VALUE(p->extents[flat].size, 3, "elements of a whole tensor");
    REFUSED_VALUE(p->extents[flat + 1].whole, INT64_MAX, "more elements than can be counted");
    REFUSED_VALUE(p->meshes[0].axes, 9, "meshes[0].axes");
    REFUSED_VALUE(p->meshes[0].ranks, 3, "meshes[0].ranks");
    REFUSED_VALUE(p->mesh_axes[0].size, 0, "mesh_axes[0].size");
    REFUSED_VALUE(p->mesh_axes[0].size, UINT32_MAX, "meshes[0].ranks");
    REFUSED_VALUE(p->placements[0].kind, 3, "placements[0].kind");
    REFUSED_VALUE(p->placements[0].dim, 16, "placements[0].dim");
    REFUSED_VALUE(p->placements[1].reduce, 99, "placements[1].reduce");
    lb_program_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_are_found_by_their_value),
        cmocka_unit_test(coordinates_run_fastest_along_the_last_axis),
        cmocka_unit_test(rows_that_are_there_are_found_again),
        cmocka_unit_test(a_shard_is_copied_with_all_that_it_names),
        cmocka_unit_test(shards_come_back_and_a_program_without_any_has_no_table_of_them),
        cmocka_unit_test(every_flip_is_survived),
        cmocka_unit_test(a_broken_rule_is_named_by_table_row_and_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
