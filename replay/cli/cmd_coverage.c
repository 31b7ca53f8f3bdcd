/* Counting ops by name and by why they were not computed: see cmd_coverage.h. */
#include "cli/cmd_coverage.h"

#include "base/array.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One name, or one name with one reason. */
typedef struct tally {
    char *op, *why; /* why: NULL for what was computed */
    uint64_t count, identical, backend;
} tally;

struct lb_coverage {
    tally *rows;
    uint32_t n;
};

lb_coverage *lb_coverage_new(void)
{
    return calloc(1, sizeof(lb_coverage));
}

void lb_coverage_free(lb_coverage *coverage)
{
    if (!coverage) return;
    for (uint32_t i = 0; i < coverage->n; i++) {
        free(coverage->rows[i].op);
        free(coverage->rows[i].why);
    }
    free(coverage->rows);
    free(coverage);
}

/* Reasons begin with the name of the op, which stands beside them. */
static const char *without_name(const char *why, const char *op)
{
    const size_t n = strlen(op);
    if (!why || strncmp(why, op, n) || why[n] != ':') return why;
    return why + n + 1 + (why[n + 1] == ' ');
}

static bool same(const tally *row, const char *op, const char *why)
{
    return !strcmp(row->op, op) && (row->why && why ? !strcmp(row->why, why) : row->why == why);
}

/* Moves a row that has overtaken its neighbours: frequent names stay in front, where they are found at once. */
static uint32_t risen(lb_coverage *coverage, uint32_t i)
{
    for (; i > 0 && coverage->rows[i].count > coverage->rows[i - 1].count; i--) {
        const tally row = coverage->rows[i];
        coverage->rows[i] = coverage->rows[i - 1];
        coverage->rows[i - 1] = row;
    }
    return i;
}

static tally *row_of(lb_coverage *coverage, const char *op, const char *why)
{
    for (uint32_t i = 0; i < coverage->n; i++)
        if (same(&coverage->rows[i], op, why)) return &coverage->rows[i];
    tally *grown = lb_array_grow(coverage->rows, coverage->n, sizeof *grown);
    if (!grown) return NULL;
    coverage->rows = grown;
    const tally row = {strdup(op), why ? strdup(why) : NULL, 0, 0, 0};
    if (!row.op || (why && !row.why)) {
        free(row.op);
        free(row.why);
        return NULL;
    }
    coverage->rows[coverage->n] = row;
    return &coverage->rows[coverage->n++];
}

void lb_coverage_add(lb_coverage *coverage, const lb_event *event)
{
    const char *op = lb_op_name(event->program, &event->program->ops[event->op]);
    tally *row = row_of(coverage, op, event->verdict == LB_VERDICT_OPAQUE ? without_name(event->why, op) : NULL);
    if (!row) return;
    row->count++;
    row->backend += event->backend;
    row->identical +=
        event->verdict == LB_VERDICT_IDENTICAL || event->verdict == LB_VERDICT_REORDERED; /* the same bits, too */
    risen(coverage, (uint32_t)(row - coverage->rows));
}

json_t *lb_coverage_json(const lb_coverage *coverage, bool opaque)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < coverage->n; i++) {
        const tally *row = &coverage->rows[i];
        if (opaque && !row->why) continue;
        json_t *one = json_pack("{s:s, s:I}", "op", row->op, "count", (json_int_t)row->count);
        if (!opaque) json_object_set_new(one, "native", json_boolean(!row->why));
        if (!row->why) json_object_set_new(one, "identical", json_integer((json_int_t)row->identical));
        if (row->backend) json_object_set_new(one, "backend", json_integer((json_int_t)row->backend));
        if (row->why) json_object_set_new(one, "why", json_string(row->why));
        json_array_append_new(list, one);
    }
    return list;
}

void lb_coverage_print(const lb_coverage *coverage, bool all)
{
    bool any = false;
    for (uint32_t i = 0; i < coverage->n; i++) {
        const tally *row = &coverage->rows[i];
        if (!row->why) continue;
        if (!any) printf("\nnot computed (recorded results stood in):\n%8s  %-40s %s\n", "ops", "op", "why");
        printf("%8llu  %-40s %s\n", (unsigned long long)row->count, row->op, row->why);
        any = true;
    }
    if (!all) return;
    if (!any) printf("\nevery op was computed\n");
    printf("\n%8s %9s  %s\n", "ops", "bit-equal", "op");
    for (uint32_t i = 0; i < coverage->n; i++) {
        const tally *row = &coverage->rows[i];
        if (row->why) continue;
        printf("%8llu %7.1f %%  %s", (unsigned long long)row->count,
               100.0 * (double)row->identical / (double)row->count, row->op);
        if (row->backend == row->count)
            printf("  (by PyTorch)\n");
        else if (row->backend)
            printf("  (%llu by PyTorch)\n", (unsigned long long)row->backend);
        else
            printf("\n");
    }
}
