/* Selectors over a small program. */
#include "cmocka_first.h"

#include "program/selector.h"

#include <lastbit/replay.h>
#include <stdlib.h>
#include <string.h>

static lb_program *program(void)
{
    lb_program *program = lb_program_new();
    program->rank = 2;
    program->step = 7;
    uint32_t three = lb_program_scope(program, "model.layers.3", "LlamaDecoderLayer", 0);
    uint32_t mlp = lb_program_scope(program, "model.layers.3.mlp", "LlamaMLP", three);
    uint32_t other = lb_program_scope(program, "model.layers.31", "LlamaDecoderLayer", 0);
    const struct {
        const char *name;
        uint32_t scope;
        uint8_t phase;
    } ops[] = {{"aten::mm", mlp, LB_PHASE_FORWARD},
               {"aten::addmm", mlp, LB_PHASE_BACKWARD},
               {"aten::add.Tensor", three, LB_PHASE_FORWARD},
               {"aten::add_.Tensor", other, LB_PHASE_OPTIMIZER}};
    for (size_t i = 0; i < 4; i++) {
        lb_op op = {.name = lb_program_string(program, ops[i].name),
                    .scope = ops[i].scope,
                    .phase = ops[i].phase,
                    .node_name = LB_NONE};
        lb_program_add_op(program, &op);
    }
    return program;
}

/* The ops selected, as bits. */
static unsigned selected(const char *text)
{
    lb_program *p = program();
    lb_selector *selector;
    uint8_t marks[4] = {0};
    unsigned bits = 0;
    assert_int_equal(lb_selector_new(text, &selector, NULL), LB_OK);
    int64_t n;
    assert_int_equal(lb_selector_mark(selector, p, "-A-D", NULL, marks, 1, &n, NULL), LB_OK);
    for (unsigned i = 0; i < 4; i++) bits |= (unsigned)marks[i] << i;
    assert_int_equal(n, __builtin_popcount(bits));
    lb_selector_free(selector);
    lb_program_free(p);
    return bits;
}

static void terms_select_what_they_say(void **state)
{
    (void)state;
    assert_int_equal(selected(""), 0xf);
    assert_int_equal(selected("mlp/aten::(add)?mm"), 0x3);
    assert_int_equal(selected("layer=model.layers.3"), 0xf); /* as PCRE2 matches: layers.31, too */
    assert_int_equal(selected("layer=mlp"), 0x3);
    assert_int_equal(selected("layer=^layers"), 0);
    assert_int_equal(selected("layer=^model\\.layers\\.3(\\.|$)"), 0x7);
    assert_int_equal(selected("layer=^model\\.layers\\.3$"), 0x4);
    assert_int_equal(selected("layer=^(?:model\\.layers\\.3\\.mlp|model\\.layers\\.31)(\\.|$)"), 0xb);
    assert_int_equal(selected("op=mm"), 0x1);
    assert_int_equal(selected("op=add"), 0x4);
    assert_int_equal(selected("op=aten::add.Tensor"), 0x4);
    assert_int_equal(selected("class=LlamaMLP"), 0x3);
    assert_int_equal(selected("phase=backward,optimizer"), 0xa);
    assert_int_equal(selected("rank=0,2-3"), 0xf);
    assert_int_equal(selected("rank=0"), 0);
    assert_int_equal(selected("step=7&phase=forward&layer=model.layers.3.mlp"), 0x1);
    assert_int_equal(selected("index=0,2-3"), 0xd);
    assert_int_equal(selected("index=1&phase=forward"), 0);
    assert_int_equal(selected("block=A"), 0x4);
    assert_int_equal(selected("block=A,D"), 0xc);
}

static void broken_terms_are_named(void **state)
{
    (void)state;
    lb_selector *selector;
    static const char *const broken[] = {"layer=(", "rank=a", "phase=sideways", "block=e", "step=1-"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        lb_err err = LB_ERR_INIT;
        assert_int_equal(lb_selector_new(broken[i], &selector, &err), LB_ERR_INVALID);
        assert_non_null(strstr(err.message, "selector"));
        assert_null(selector);
    }
}

static void a_swap_is_split_at_its_last_equals_sign(void **state)
{
    (void)state;
    lb_swap swap;
    assert_int_equal(lb_swap_parse(LB_SWAP_PRECISION, "block=E=f32", &swap, NULL), LB_OK);
    assert_string_equal(swap.selector, "block=E");
    assert_string_equal(swap.argument, "f32");
    lb_swap_release(&swap);
    assert_int_equal(lb_swap_parse(LB_SWAP_PRECISION, "f64", &swap, NULL), LB_OK);
    assert_string_equal(swap.selector, "");
    lb_swap_release(&swap);
    assert_int_equal(lb_swap_parse(LB_SWAP_SKIP, "layer=model.layers.3", &swap, NULL), LB_OK);
    assert_string_equal(swap.selector, "layer=model.layers.3");
    lb_swap_release(&swap);
    assert_int_equal(lb_swap_parse(LB_SWAP_ORDER, "op=mm=", &swap, NULL), LB_ERR_INVALID);
}

/* A program of one op in a module of that name. */
static lb_program *one_op(const char *layer)
{
    lb_program *p = lb_program_new();
    lb_op op = {
        .name = lb_program_string(p, "aten::mm"), .scope = lb_program_scope(p, layer, NULL, 0), .node_name = LB_NONE};
    lb_program_add_op(p, &op);
    return p;
}

/* PCRE2 gives up at its limits: "not selected" would make another answer of it. */
static void pattern_that_tries_too_much_is_no_answer(void **state)
{
    (void)state;
    static const char *const texts[] = {"(x+)+$", "layer=(x+)+$", "class=(x+x+)+"};
    lb_program *p = one_op("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx!");
    p->scopes[p->n_scopes - 1].class_name = p->scopes[p->n_scopes - 1].path;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        lb_selector *selector;
        lb_err err = LB_ERR_INIT;
        uint8_t mark = 0;
        bool whole = true;
        assert_int_equal(lb_selector_new(texts[i], &selector, NULL), LB_OK);
        assert_int_equal(lb_selector_mark(selector, p, NULL, NULL, &mark, 1, NULL, &err), LB_ERR_INVALID);
        assert_non_null(strstr(err.message, "match limit"));
        assert_int_equal(lb_selector_scope(selector, p, p->n_scopes - 1, NULL, &whole, NULL), LB_ERR_INVALID);
        assert_false(whole || mark);
        lb_selector_free(selector);
    }
    lb_program_free(p);
}

static void names_of_any_length_are_searched_to_their_end(void **state)
{
    (void)state;
    char layer[6000];
    for (size_t n = 900; n < sizeof layer; n += 501) {
        memset(layer, 'm', n), layer[n] = 0;
        lb_program *p = one_op(layer);
        lb_selector *selector;
        uint8_t mark = 0;
        assert_int_equal(lb_selector_new("m/aten::mm$", &selector, NULL), LB_OK);
        assert_int_equal(lb_selector_mark(selector, p, NULL, NULL, &mark, 1, NULL, NULL), LB_OK);
        assert_int_equal(mark, 1);
        lb_selector_free(selector), lb_program_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(terms_select_what_they_say),
        cmocka_unit_test(broken_terms_are_named),
        cmocka_unit_test(a_swap_is_split_at_its_last_equals_sign),
        cmocka_unit_test(pattern_that_tries_too_much_is_no_answer),
        cmocka_unit_test(names_of_any_length_are_searched_to_their_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
