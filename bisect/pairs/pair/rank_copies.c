/* What ranks have alike: see rank_copies.h. Ops of two ranks are compared by where they stand: their
 * numbers part as soon as one of the ranks runs an op more. */
#include "pair/rank_copies.h"

#include "pair/op_kind.h"

#include <stdlib.h>
#include <string.h>

/* An op of one part, by phase, module, call and name, and the how manieth of these. */
typedef struct stand {
    uint64_t key;
    uint32_t nth, op;
} stand;

typedef struct stands {
    stand *list;
    uint32_t n;
} stands;

static uint64_t key_of(const lb_program *program, const lb_op *op)
{
    const uint64_t words[] = {op->phase, op->scope, (uint64_t)op->call, op->name};
    uint64_t key = 0;
    for (int i = 0; i < 4; i++) key = ((key ^ words[i]) * UINT64_C(0x9E3779B97F4A7C15)) ^ (key >> 29);
    const uint32_t v = lb_op_is_source(program, op) ? lb_op_results(program, op)[0] : LB_NONE;
    return v == LB_NONE ? key : key ^ ((uint64_t)program->values[v].name << 32); /* sources by their names */
}

static int by_key(const void *x, const void *y)
{
    const stand *a = x, *b = y;
    if (a->key != b->key) return a->key < b->key ? -1 : 1;
    return a->op < b->op ? -1 : a->op > b->op;
}

static uint32_t end_of(const lb_program_view *view, uint32_t part)
{
    return part + 1 < view->n_parts ? view->parts[part + 1].first_op : view->program->n_ops;
}

static bool list_stands(const lb_program_view *view, uint32_t part, stands *out)
{
    const uint32_t first = view->parts[part].first_op, end = end_of(view, part);
    *out = (stands){malloc((end - first + 1) * sizeof *out->list), end - first};
    for (uint32_t i = first; out->list && i < end; i++)
        out->list[i - first] = (stand){key_of(view->program, &view->program->ops[i]), 0, i};
    if (!out->list) return false;
    qsort(out->list, out->n, sizeof *out->list, by_key);
    for (uint32_t i = 1; i < out->n; i++)
        out->list[i].nth = out->list[i].key == out->list[i - 1].key ? out->list[i - 1].nth + 1 : 0;
    return true;
}

static bool gives_same(const lb_program *program, const lb_op *a, const lb_op *b)
{
    if (lb_op_outcomes(a) != lb_op_outcomes(b)) return false;
    for (uint32_t k = 0; k < lb_op_outcomes(a); k++) {
        const uint32_t u = lb_op_outcome(program, a, k), v = lb_op_outcome(program, b, k);
        if (u == LB_NONE || v == LB_NONE) continue;
        if (!lb_layout_same_shape(&program->values[u].layout, &program->values[v].layout)) return false;
        const lb_digest digest = program->values[u].logical, y = program->values[v].logical;
        if (!lb_digest_is_none(digest) && !lb_digest_is_none(y) && !lb_digest_equal(digest, y)) return false;
    }
    return true;
}

static int compare(const stand *a, const stand *b)
{
    if (a->key != b->key) return a->key < b->key ? -1 : 1;
    return a->nth == b->nth ? 0 : a->nth < b->nth ? -1 : 1;
}

/* Ops of which the other part has none, or another result, are the part's own. */
static void meet(lb_program_view *view, const stands *originals, const stands *copies)
{
    const lb_program *program = view->program;
    for (uint32_t i = 0, j = 0; i < originals->n;) {
        const int order = j < copies->n ? compare(&originals->list[i], &copies->list[j]) : -1;
        const uint32_t a = originals->list[i].op, b = j < copies->n ? copies->list[j].op : LB_NONE;
        const bool same = order == 0 && gives_same(program, &program->ops[a], &program->ops[b]);
        if (same) view->original[b] = a;
        if (order <= 0) view->own[a] |= !same;
        i += order <= 0, j += order >= 0;
    }
}

lb_status lb_rank_copies_find(lb_program_view *view, lb_err *err)
{
    const uint32_t n = view->program->n_ops;
    stands *all = calloc(view->n_parts + 1, sizeof *all);
    view->original = malloc((n + 1) * sizeof *view->original), view->own = calloc(n + 1, 1);
    bool room = all && view->original && view->own;
    if (room) memset(view->original, 0xFF, (n + 1) * sizeof *view->original);
    for (uint32_t p = 0; p < view->n_parts && room; p++) room = list_stands(view, p, &all[p]);
    for (uint32_t p = 0; p < view->n_parts && room; p++)
        if (view->copy_of[p] != p) meet(view, &all[view->copy_of[p]], &all[p]);
    for (uint32_t p = 0; all && p < view->n_parts; p++) free(all[p].list);
    free(all);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", n);
}
