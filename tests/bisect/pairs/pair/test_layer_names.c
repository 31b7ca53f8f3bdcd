/* Rules that rename, and names that meet by their known spellings. */
#include "cmocka_first.h"

#include "pair/layer_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *renamed(const char *rule, const char *path)
{
    lb_layer_names_map *map;
    assert_int_equal(lb_layer_names_map_new(&rule, 1, &map, NULL), LB_OK);
    char *name = lb_layer_names_map_apply(map, path);
    lb_layer_names_map_free(map);
    assert_non_null(name);
    return name;
}

/* A replacement that makes a name many times as long was left out where it did not fit. */
static void replacements_of_any_size_are_made(void **state)
{
    (void)state;
    char path[2001], rule[300] = "s/a/", *end = rule + strlen(rule);
    memset(end, 'b', 200), strcpy(end + 200, "/g");
    for (size_t n = 1; n < sizeof path; n = 2 * n + 1) {
        memset(path, 'a', n), path[n] = 0;
        char *name = renamed(rule, path);
        assert_int_equal(strlen(name), 200 * n);
        assert_int_equal(strspn(name, "b"), 200 * n);
        free(name);
    }
}

static void what_does_not_match_stays(void **state)
{
    (void)state;
    static const char *const cases[][3] = {{"s/x/y/", "abc", "abc"},
                                           {"s/b/${2}/", "abc", "abc"}, /* a group that the pattern lacks */
                                           {"s/b//", "abc", "ac"},
                                           {"s|^a\\.|z.|", "a.a.b", "z.a.b"},
                                           {"s/a/$0$0/g", "aba", "aabaa"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *name = renamed(cases[i][0], cases[i][1]);
        assert_string_equal(name, cases[i][2]);
        free(name);
    }
}

/* "h.N.attn" and "blocks.N.attn" would both be "layers.N.self_attn": of those each side keeps its own. */
static void names_that_would_be_spelled_alike_stay(void **state)
{
    (void)state;
    enum { N = 300 };
    char **a = calloc(2 * N, sizeof *a), **b = calloc(N, sizeof *b), text[64];
    for (int i = 0; i < N; i++) {
        snprintf(text, sizeof text, "h.%d.attn", i), a[2 * i] = strdup(text);
        snprintf(text, sizeof text, "%s.%d.%s", i % 2 ? "blocks" : "other", i, i % 2 ? "attn" : "mlp");
        a[2 * i + 1] = strdup(text);
        snprintf(text, sizeof text, "layers.%d.self_attn", i), b[i] = strdup(text);
    }
    assert_int_equal(lb_layer_names_meet(a, 2 * N, b, N, NULL), LB_OK);
    for (int i = 0; i < N; i++) {
        snprintf(text, sizeof text, i % 2 ? "h.%d.attn" : "layers.%d.self_attn", i);
        assert_string_equal(a[2 * i], text);
        if (i % 2) snprintf(text, sizeof text, "blocks.%d.attn", i), assert_string_equal(a[2 * i + 1], text);
        free(a[2 * i]), free(a[2 * i + 1]), free(b[i]);
    }
    free(a), free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replacements_of_any_size_are_made),
        cmocka_unit_test(what_does_not_match_stays),
        cmocka_unit_test(names_that_would_be_spelled_alike_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
