/* The command that records what a verdict lacked: no wider than need be, and no narrower. */
#include "cmocka_first.h"

#include <lastbit/lacking.h>

#include <stdlib.h>
#include <string.h>

typedef struct row {
    int64_t step;
    int32_t rank;
    const char *layer; /* NULL: the step as a whole */
} row;

static void expect(const row *rows, size_t n, int32_t world, const char *like, const char *wanted)
{
    lb_lack lack = {0};
    lb_program *programs[8];
    for (size_t i = 0; i < n; i++) {
        lb_program *p = programs[i] = lb_program_new();
        p->step = rows[i].step, p->rank = rows[i].rank, p->world = world, p->level = 1;
        const uint32_t root = lb_program_scope(p, "", NULL, LB_NONE);
        const uint32_t scope =
            rows[i].layer && *rows[i].layer ? lb_program_scope(p, rows[i].layer, "Layer", root) : root;
        const lb_op op = {.name = lb_program_string(p, "aten::mm"), .scope = scope, .node_name = LB_NONE};
        lb_lack_add(&lack, p, rows[i].layer ? lb_program_add_op(p, &op) : LB_NONE);
    }
    char *text = lb_lack_command(&lack, NULL, like);
    if (strcmp(text, wanted)) fail_msg("%s\nis not\n%s", text, wanted);
    free(text);
    for (size_t i = 0; i < n; i++) lb_program_free(programs[i]);
}

static void it_is_as_narrow_as_can_be(void **state)
{
    (void)state;
    expect((row[]){{3, 0, "layers.1.mlp"}}, 1, 1, NULL,
           "lastbit record -o again.lb --level ops --steps 3 --layers '^(layers\\.1\\.mlp)$' -- YOUR PROGRAM");
    expect((row[]){{3, 1, "a"}, {5, 1, "b"}, {4, 1, "a"}}, 3, 2, NULL,
           "lastbit record -o again.lb --level ops --steps 3-5 --ranks 1 --layers '^(a|b)$' -- YOUR PROGRAM");
    expect((row[]){{3, 0, "a"}, {3, 1, "a"}}, 2, 2, NULL,
           "lastbit record -o again.lb --level ops --steps 3 --layers '^(a)$' -- YOUR PROGRAM");
    expect((row[]){{3, 0, "a"}, {4, 0, ""}}, 2, 1, NULL,
           "lastbit record -o again.lb --level ops --steps 3-4 -- YOUR PROGRAM");
    expect((row[]){{7, 0, NULL}}, 1, 1, "a b.lb",
           "lastbit record -o again.lb --like 'a b.lb' --steps 7 -- YOUR PROGRAM");
}

static void nothing_lacking_is_no_command(void **state)
{
    (void)state;
    const lb_lack lack = {0};
    assert_null(lb_lack_command(&lack, NULL, NULL));
    assert_null(lb_lack_sentence(&lack, NULL, "the second side", NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_as_narrow_as_can_be),
        cmocka_unit_test(nothing_lacking_is_no_command),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
