/* Ops meet by place and name; what exists on one side only stays alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "pair/align.h"

#include <stdlib.h>
#include <string.h>

static uint32_t add_op(lb_program *p, const char *layer, const char *name, uint32_t flags)
{
    lb_op op = {.name = lb_program_string(p, name),
                .scope = lb_program_scope(p, layer, NULL, 0),
                .flags = flags,
                .node_name = LB_NONE,
                .node = -1};
    return lb_program_add_op(p, &op);
}

static uint32_t add_source(lb_program *p, const char *name, int64_t storage, int64_t size)
{
    lb_value v = {.storage = storage,
                  .layout = lb_layout_contiguous(1, &size),
                  .dtype = LB_F32,
                  .source = LB_SOURCE_PARAMETER,
                  .name = *name ? lb_program_string(p, name) : LB_NONE,
                  .statistics = LB_NONE};
    uint32_t value = lb_program_add_value(p, &v);
    lb_op op = {.name = lb_program_string(p, "lb::source"),
                .first_result = lb_program_add_refs(p, &value, 1),
                .results = 1,
                .node_name = LB_NONE,
                .node = -1};
    return lb_program_add_op(p, &op);
}

static lb_alignment align(const lb_program *a, const lb_program *b, const lb_layer_names_map *rules)
{
    lb_alignment al;
    lb_program_view sa, sb;
    assert_int_equal(lb_program_view_init(NULL, &a, 1, &sa, NULL), LB_OK);
    assert_int_equal(lb_program_view_init(NULL, &b, 1, &sb, NULL), LB_OK);
    assert_int_equal(lb_alignment_make(&sa, &sb, rules, NULL, NULL, &al, NULL), LB_OK);
    lb_program_view_release(&sa), lb_program_view_release(&sb);
    return al;
}

static void inserted_ops_leave_the_rest_aligned(void **state)
{
    (void)state;
    lb_program *a = lb_program_new(), *b = lb_program_new();
    const char *names_a[] = {"aten::mm", "aten::add.Tensor", "aten::mul.Tensor", "aten::mm", "aten::sum"};
    const char *names_b[] = {"aten::mm", "aten::_to_copy", "aten::add.Tensor", "aten::mm", "aten::exp", "aten::sum"};
    uint32_t ia[5], ib[6];
    for (int i = 0; i < 5; i++) ia[i] = add_op(a, "layers.0", names_a[i], 0);
    for (int i = 0; i < 6; i++) ib[i] = add_op(b, "layers.0", names_b[i], 0);
    lb_alignment al = align(a, b, NULL);
    assert_int_equal(al.b_of_a[ia[0]], ib[0]);
    assert_int_equal(al.b_of_a[ia[1]], ib[2]);
    assert_int_equal(al.b_of_a[ia[2]], LB_NONE);
    assert_int_equal(al.b_of_a[ia[3]], ib[3]);
    assert_int_equal(al.b_of_a[ia[4]], ib[5]);
    assert_int_equal(al.a_of_b[ib[1]], LB_NONE);
    assert_int_equal(al.pairs, 4);
    assert_int_equal(al.only_a, 1);
    assert_int_equal(al.only_b, 2);
    lb_alignment_release(&al);
    lb_program_free(a), lb_program_free(b);
}

static void layers_do_not_mix_and_views_do_not_count(void **state)
{
    (void)state;
    lb_program *a = lb_program_new(), *b = lb_program_new();
    uint32_t a0 = add_op(a, "layers.0", "aten::mm", 0), a1 = add_op(a, "layers.1", "aten::mm", 0);
    uint32_t a2 = add_op(a, "layers.1", "aten::t", LB_OP_VIEW);
    uint32_t b1 = add_op(b, "layers.1", "aten::mm", 0);
    lb_alignment al = align(a, b, NULL);
    assert_int_equal(al.b_of_a[a0], LB_NONE);
    assert_int_equal(al.b_of_a[a1], b1);
    assert_int_equal(al.b_of_a[a2], LB_NONE);
    assert_int_equal(al.only_a, 1);
    assert_int_equal(al.only_b, 0);
    lb_alignment_release(&al);
    lb_program_free(a), lb_program_free(b);
}

static void map_rules_rename_layers_of_the_first_side(void **state)
{
    (void)state;
    const char *texts[] = {"s/^model\\.blocks\\.(\\d+)\\.ff/decoder.layers.$1.mlp/"};
    lb_layer_names_map *rules;
    assert_int_equal(lb_layer_names_map_new(texts, 1, &rules, NULL), LB_OK);
    lb_program *a = lb_program_new(), *b = lb_program_new();
    uint32_t ia = add_op(a, "model.blocks.3.ff", "aten::mm", 0);
    uint32_t ib = add_op(b, "decoder.layers.3.mlp", "aten::mm", 0);
    lb_alignment al = align(a, b, rules);
    assert_int_equal(al.b_of_a[ia], ib);
    lb_alignment_release(&al);
    lb_layer_names_map_free(rules);
    lb_program_free(a), lb_program_free(b);
}

static void known_frameworks_meet_under_one_spelling(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"transformer.h.3.attn.c_proj", "model.layers.3.self_attn.o_proj"},
        {"transformer.h.11.mlp.c_proj", "module.decoder.layers.11.mlp.linear_fc2"},
        {"transformer.wte", "embedding.word_embeddings"},
        {"module.module.decoder.layers.0.pre_mlp_layernorm", "model.layers.0.post_attention_layernorm"},
        {"layers.7.attention.wq", "base_model.model.model.layers.7.self_attn.q_proj"},
        {"layers.7.feed_forward.w1", "model.layers.7.mlp.gate_proj"},
        {"gpt_neox.embed_in", "tok_embeddings"},
        {"output", "lm_head"},
        {"optimizer.exp_avg:transformer.h.0.ln_1.weight", "optimizer.exp_avg:model.layers.0.input_layernorm.weight"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char *x = lb_layer_name_spelled(pairs[i][0]), *y = lb_layer_name_spelled(pairs[i][1]);
        assert_string_equal(x, y);
        free(x), free(y);
    }
}

static void only_names_that_do_not_meet_are_spelled_anew(void **state)
{
    (void)state;
    lb_program *a = lb_program_new(), *b = lb_program_new();
    uint32_t a0 = add_op(a, "transformer.h.0.attn.c_proj", "aten::mm", 0);
    uint32_t a1 = add_op(a, "transformer.h.0.mlp", "aten::silu", 0);
    uint32_t a2 = add_op(a, "mixer.attn", "aten::sin", 0), a3 = add_op(a, "mixer.attention", "aten::sin", 0);
    uint32_t b0 = add_op(b, "model.layers.0.self_attn.o_proj", "aten::mm", 0);
    uint32_t b1 = add_op(b, "transformer.h.0.mlp", "aten::silu", 0), b2 = add_op(b, "mixer.self_attn", "aten::sin", 0);
    lb_alignment al = align(a, b, NULL);
    assert_int_equal(al.b_of_a[a0], b0);
    assert_int_equal(al.b_of_a[a1], b1);
    assert_int_equal(al.b_of_a[a2], LB_NONE); /* which of the two would it be? */
    assert_int_equal(al.b_of_a[a3], LB_NONE);
    assert_int_equal(al.a_of_b[b2], LB_NONE);
    lb_alignment_release(&al);
    lb_program_free(a), lb_program_free(b);
}

static void a_bad_map_rule_says_what_is_wrong(void **state)
{
    (void)state;
    const char *bad[] = {"layers", "s/(/x/", "s/a/b/q"};
    for (int i = 0; i < 3; i++) {
        lb_err err = LB_ERR_INIT;
        lb_layer_names_map *rules = NULL;
        assert_int_equal(lb_layer_names_map_new(&bad[i], 1, &rules, &err), LB_ERR_INVALID);
        assert_non_null(strstr(err.message, bad[i]));
    }
}

static void sources_meet_by_name_and_unnamed_ones_not_by_their_place(void **state)
{
    (void)state;
    lb_program *a = lb_program_new(), *b = lb_program_new();
    uint32_t aw = add_source(a, "w", 1, 4), ax = add_source(a, "", 2, 8), ay = add_source(a, "", 3, 8);
    uint32_t bx = add_source(b, "", 7, 8), bw = add_source(b, "w", 8, 4);
    lb_alignment al = align(a, b, NULL);
    assert_int_equal(al.source_b_of_a[aw], bw);
    assert_int_equal(al.source_b_of_a[ax],
                     LB_NONE); /* other bits, and nothing that reads them says that they are the same */
    (void)bx;
    assert_int_equal(al.source_b_of_a[ay], LB_NONE);
    lb_alignment_release(&al);
    lb_program_free(a), lb_program_free(b);
}

static void long_unscoped_groups_still_align(void **state)
{
    (void)state;
    enum { MANY = 6000 };
    static uint32_t ia[MANY], ib[MANY];
    lb_program *a = lb_program_new(), *b = lb_program_new();
    for (int i = 0; i < MANY; i++) {
        if (i == 10) add_op(a, "", "aten::sqrt", 0);
        if (i == MANY - 10) add_op(b, "", "aten::neg", 0);
        ia[i] = add_op(a, "", i % 3 ? "aten::mul.Tensor" : "aten::add.Tensor", 0);
        ib[i] = add_op(b, "", i % 3 ? "aten::mul.Tensor" : "aten::add.Tensor", 0);
    }
    lb_alignment al = align(a, b, NULL);
    assert_int_equal(al.pairs, MANY);
    assert_int_equal(al.b_of_a[ia[3000]], ib[3000]);
    lb_alignment_release(&al);
    lb_program_free(a), lb_program_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inserted_ops_leave_the_rest_aligned),
        cmocka_unit_test(layers_do_not_mix_and_views_do_not_count),
        cmocka_unit_test(map_rules_rename_layers_of_the_first_side),
        cmocka_unit_test(known_frameworks_meet_under_one_spelling),
        cmocka_unit_test(only_names_that_do_not_meet_are_spelled_anew),
        cmocka_unit_test(a_bad_map_rule_says_what_is_wrong),
        cmocka_unit_test(sources_meet_by_name_and_unnamed_ones_not_by_their_place),
        cmocka_unit_test(long_unscoped_groups_still_align),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
