/* Finding what sources show: see shown_sources.h. */
#include "pair/shown_sources.h"

#include <stdlib.h>
#include <string.h>

static bool is_source(const lb_program *program, const lb_op *op)
{
    return lb_op_is_source(program, op) && lb_op_results(program, op)[0] != LB_NONE;
}

/* Values that some op gives or writes; malloc'ed. */
static uint8_t *list_given(const lb_program *program)
{
    uint8_t *given = calloc(program->n_values + 1, 1);
    for (uint32_t i = 0; given && i < program->n_ops; i++)
        for (uint32_t k = 0; k < lb_op_outcomes(&program->ops[i]); k++)
            if (lb_op_outcome(program, &program->ops[i], k) != LB_NONE)
                given[lb_op_outcome(program, &program->ops[i], k)] = 1;
    return given;
}

/* With gaps, and the range ends where it ends: it is all of it, or what no range before holds. */
static bool shows(const lb_value *range, const lb_value *value)
{
    int64_t first, last;
    if (value->storage != range->storage || value->version != range->version || value->dtype != range->dtype)
        return false;
    if (lb_layout_dense_range(&value->layout, &first, &last, NULL) != LB_OK ||
        last - first == lb_layout_numel(&value->layout))
        return false;
    return first <= range->layout.offset && last == range->layout.offset + lb_layout_numel(&range->layout);
}

uint32_t *lb_shown_sources(const lb_program *program)
{
    uint32_t *shown = malloc((program->n_ops + 1) * sizeof *shown),
             *windows = malloc((program->n_values + 1) * sizeof *windows), n = 0;
    uint8_t *given = list_given(program);
    const bool room = shown && windows && given;
    for (uint32_t v = 0; room && v < program->n_values; v++)
        if (!given[v] && *lb_program_text(program, program->values[v].name)) windows[n++] = v;
    for (uint32_t i = 0; room && i < program->n_ops; i++) {
        shown[i] = is_source(program, &program->ops[i]) ? lb_op_results(program, &program->ops[i])[0] : LB_NONE;
        for (uint32_t k = 0, range = shown[i]; range != LB_NONE && shown[i] == range && k < n; k++)
            if (shows(&program->values[range], &program->values[windows[k]])) shown[i] = windows[k];
    }
    free(windows), free(given);
    if (!room) free(shown), shown = NULL;
    return shown;
}
