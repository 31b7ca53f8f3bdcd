/* Tokens that the two sides choose differently: see chosen_rows.h. */
#include "implementations/chosen_rows.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

typedef struct lookup {
    uint32_t op, table /* a row of the side's sources */, index /* a value */;
    bool given; /* the step begins with the index */
} lookup;

typedef struct lookups {
    lookup *list;
    uint32_t n;
} lookups;

/* Is a lookup of rows of a source by whole numbers? Fills it. */
static bool is_lookup(const lb_region_question *q, int side, uint32_t number, lookup *out)
{
    static const char *const names[] = {"aten::embedding", "aten::index_select", "aten::index"};
    const lb_exact_side *s = q->sides[side];
    const lb_program *p = s->program;
    const lb_op *op = &p->ops[number];
    *out = (lookup){.op = number, .table = LB_NONE, .index = LB_NONE};
    if (op->phase == LB_PHASE_BACKWARD || lb_op_name_among(p, op, names, 3) < 0) return false;
    for (uint32_t k = 0; k < op->args; k++) {
        const lb_arg *arg = &lb_op_args(p, op)[k];
        if (arg->tag != LB_ARG_VALUE || arg->u.value == LB_NONE) continue;
        const uint32_t v = arg->u.value, source = lb_value_graph_source(&s->graph, v);
        const lb_dtype dtype = p->values[v].dtype;
        if (lb_dtype_is_float(dtype) && source != LB_NONE) out->table = q->sources[side]->row_of[source];
        if (lb_dtype_is_integer(dtype) && dtype != LB_BOOL) out->index = v, out->given = source != LB_NONE;
    }
    return out->table != LB_NONE && out->index != LB_NONE;
}

static bool list_lookups(const lb_region_question *q, int side, lookups *out)
{
    lookup found;
    for (uint32_t i = 0; i < q->sides[side]->program->n_ops; i++) {
        if (!is_lookup(q, side, i, &found)) continue;
        lookup *more = lb_array_grow(out->list, out->n, sizeof *more);
        if (!more) return false;
        out->list = more, out->list[out->n++] = found;
    }
    return true;
}

/* The first of a table from row `i` on; the number of all: none. */
static uint32_t next_of(const lookups *all, uint32_t table, uint32_t i)
{
    while (i < all->n && all->list[i].table != table) i++;
    return i;
}

static bool are_other_rows(const lb_region_question *q, const lookup *a, const lookup *b)
{
    const lb_exact_side *const *s = q->sides;
    const int64_t n = lb_layout_numel(&s[0]->program->values[a->index].layout);
    if (lb_layout_numel(&s[1]->program->values[b->index].layout) != n) return false;
    double *x = lb_exact_side_recorded(s[0], a->index), *y = lb_exact_side_recorded(s[1], b->index);
    const bool other = x && y && memcmp(x, y, (size_t)n * sizeof *x) != 0;
    free(x), free(y);
    return other;
}

/* Of a table of A and the same one of B. */
static void compare(const lb_region_question *q, const lookups both[2], uint32_t a, uint32_t b, lb_chosen_rows *out)
{
    uint32_t i = next_of(&both[0], a, 0), j = next_of(&both[1], b, 0);
    if (i == both[0].n || j == both[1].n || !both[0].list[i].given || !both[1].list[j].given) return;
    for (; i < both[0].n && j < both[1].n; i = next_of(&both[0], a, i + 1), j = next_of(&both[1], b, j + 1)) {
        const lookup *x = &both[0].list[i], *y = &both[1].list[j];
        if (!are_other_rows(q, x, y)) continue;
        if (x->given || y->given) return;
        for (int k = 0; k < 2; k++) out->index[k] = (k ? y : x)->index, out->lookup[k] = (k ? y : x)->op;
        return;
    }
}

lb_status lb_chosen_rows_find(const lb_region_question *q, lb_chosen_rows *out, lb_err *err)
{
    lookups both[2] = {{0}, {0}};
    *out = (lb_chosen_rows){{LB_NONE, LB_NONE}, {LB_NONE, LB_NONE}};
    const bool room = list_lookups(q, 0, &both[0]) && list_lookups(q, 1, &both[1]);
    for (uint32_t j = 0; j < both[1].n && room && out->index[0] == LB_NONE; j++) {
        const lb_content *c = &q->contents->list[both[1].list[j].table];
        if (c->relation != LB_CONTENT_NONE && next_of(&both[1], both[1].list[j].table, 0) == j)
            compare(q, both, c->tensor, both[1].list[j].table, out);
    }
    free(both[0].list), free(both[1].list);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for the lookups of a step");
}
