/* adapter_config.json of strangers: patterns are tried on names within bounds, and nothing outside a name is read. */
#include "cmocka_first.h"

#include "audit/adapter_config.h"

#include <stdlib.h>
#include <string.h>

static lb_audit_gathering begin(void)
{
    lb_audit_gathering g = {.report = calloc(1, sizeof(lb_audit_report))};
    assert_non_null(g.report);
    return g;
}

static void end(lb_audit_gathering *g)
{
    assert_false(g->failed);
    free(g->causes), lb_hash_release(&g->found);
    lb_audit_report_free(g->report);
}

/* The number that {key: 4} gives the module, 1 where it does not fit. `module` is as long as its memory. */
static double number_of(lb_audit_gathering *g, const char *key, const char *module)
{
    json_t *patterns = json_object();
    char *name = strdup(module);
    assert_int_equal(json_object_set_new(patterns, key, json_integer(4)), 0);
    const double number = lb_adapter_config_patterned(g, patterns, name, 1);
    free(name), json_decref(patterns);
    return number;
}

static void groups_that_take_no_part_in_a_match_are_not_read(void **state)
{
    (void)state;
    lb_audit_gathering g = begin();
    assert_true(number_of(&g, "(x)|(q_proj)", "q_proj") == 4);
    assert_true(number_of(&g, "(?:(12)?)(q_proj)", "model.q_proj") == 4);
    assert_true(number_of(&g, "(x)?(y)?v_proj", "v_proj") == 4);
    assert_true(number_of(&g, "(", "q_proj") == 1);
    assert_int_equal(g.report->n_findings, 0);
    end(&g);
}

static void patterns_are_taken_whole_however_long(void **state)
{
    (void)state;
    lb_audit_gathering g = begin();
    char key[5000];
    size_t n = 0;
    for (int i = 0; i < 600; i++) n += (size_t)snprintf(key + n, sizeof key - n, "k_%d|", i);
    snprintf(key + n, sizeof key - n, "last_proj");
    assert_true(number_of(&g, key, "model.last_proj") == 4);
    assert_true(number_of(&g, key, "model.k_599") == 4);
    assert_true(number_of(&g, key, "model.k_600") == 1);
    end(&g);
}

static void patterns_that_try_too_much_are_a_finding_once(void **state)
{
    (void)state;
    lb_audit_gathering g = begin();
    const char *name = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx!";
    for (int i = 0; i < 3; i++) assert_true(number_of(&g, "(x+)+", name) == 1);
    assert_int_equal(g.report->n_findings, 1);
    assert_non_null(strstr(g.report->findings[0].message, "(x+)+"));
    assert_string_equal(g.report->findings[0].file, "adapter_config.json");
    end(&g);
}

static void targets_are_words_or_patterns(void **state)
{
    (void)state;
    static const struct {
        const char *config, *module;
        int wants;
    } cases[] = {
        {"{\"target_modules\": [\"q_proj\", \"mlp.up\"]}", "model.layers.3.q_proj", 1},
        {"{\"target_modules\": [\"q_proj\", \"mlp.up\"]}", "model.layers.3.mlp.up", 1},
        {"{\"target_modules\": [\"q_proj\"]}", "model.layers.3.xq_proj", 0},
        {"{\"target_modules\": \".*\\\\.q_proj\"}", "model.q_proj", 1},
        {"{\"target_modules\": \"all-linear\"}", "model.q_proj", -1},
        {"{\"target_modules\": [\"q_proj\"], \"exclude_modules\": \".*3.*\"}", "model.layers.3.q_proj", 0},
        {"{\"target_modules\": [\"q_proj\"], \"modules_to_save\": [7, \"q_proj\"]}", "model.layers.3.q_proj", 0},
        {"{\"target_modules\": [\"q_proj\"], \"layers_to_transform\": 3}", "model.layers.3.q_proj", 1},
        {"{\"target_modules\": [\"q_proj\"], \"layers_to_transform\": [1, 2]}", "model.layers.3.q_proj", 0},
        {"{\"target_modules\": [\"q_proj\"], \"layers_to_transform\": [4], \"layers_pattern\": \"h\"}", "h.4.q_proj",
         1},
        {"{\"target_modules\": [\"q_proj\"], \"layers_to_transform\": [4], \"layers_pattern\": [0, \"b\", \"h\"]}",
         "m.h.4.q_proj", 1},
        {"{\"target_modules\": [\"q_proj\"], \"layers_to_transform\": [4], \"layers_pattern\": [\"b\"]}", "h.4.q_proj",
         0},
        {"{}", "anything", -1},
        {"{\"target_parameters\": [\"experts.gate_up_proj\"]}", "l.experts.base_layer", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lb_audit_gathering g = begin();
        json_t *config = json_loads(cases[i].config, 0, NULL);
        assert_non_null(config);
        assert_int_equal(lb_adapter_config_wants(&g, config, cases[i].module), cases[i].wants);
        json_decref(config);
        end(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_that_take_no_part_in_a_match_are_not_read),
        cmocka_unit_test(patterns_are_taken_whole_however_long),
        cmocka_unit_test(patterns_that_try_too_much_are_a_finding_once),
        cmocka_unit_test(targets_are_words_or_patterns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
