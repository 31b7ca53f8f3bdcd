/* The same ops on both sides: see same_ops.h. */
#include "explain/same_ops.h"

#include "pair/op_kind.h"

#include <stdlib.h>
#include <string.h>

/* B's value for each of A that was met so far; LB_NONE: it was not. */
typedef struct counterparts {
    const lb_program *a, *b;
    uint32_t *of_a;
} counterparts;

/* What one op reads, in the order of its arguments. */
typedef struct reads {
    uint32_t *values;
    uint32_t n, room;
} reads;

static void note_read(void *context, uint32_t value)
{
    reads *reads = context;
    if (reads->n < reads->room) reads->values[reads->n] = value;
    reads->n++;
}

enum { MOST_READS = 64, MOST_VIEWS = 16 }; /* of one op; one of another. With more it is not known to be the same */

static bool is_counterpart(counterparts *c, uint32_t mine, uint32_t theirs, uint32_t views);

static bool reads_the_same(counterparts *counterparts, const lb_op *x, const lb_op *y, uint32_t views)
{
    uint32_t of_x[MOST_READS], of_y[MOST_READS];
    reads reads = {of_x, 0, MOST_READS}, b = {of_y, 0, MOST_READS};
    lb_op_each_input(counterparts->a, x, note_read, &reads);
    lb_op_each_input(counterparts->b, y, note_read, &b);
    bool same = reads.n == b.n && reads.n <= MOST_READS;
    for (uint32_t i = 0; i < reads.n && same; i++) same = is_counterpart(counterparts, of_x[i], of_y[i], views);
    return same;
}

/* The view that gives a value, and as which of its results; NULL: another op does. */
static const lb_op *view_of(const lb_program *program, uint32_t value, uint32_t *result)
{
    for (uint32_t i = 0; i < program->n_ops; i++)
        for (uint32_t k = 0; k < program->ops[i].results && program->ops[i].flags & LB_OP_VIEW; k++)
            if (lb_op_results(program, &program->ops[i])[k] == value) {
                *result = k;
                return &program->ops[i];
            }
    return NULL;
}

static bool is_same_op(const counterparts *counterparts, const lb_op *x, const lb_op *y)
{
    return !strcmp(lb_op_name(counterparts->a, x), lb_op_name(counterparts->b, y)) &&
           lb_op_same_args(counterparts->a, x, counterparts->b, y, 0);
}

/* Views compute nothing and are no ops of a region: they are followed back to what they are views of. */
static bool is_counterpart(counterparts *counterparts, uint32_t mine, uint32_t theirs, uint32_t views)
{
    uint32_t of_x = LB_NONE, of_y = LB_NONE;
    if (mine == LB_NONE || theirs == LB_NONE) return mine == theirs;
    if (counterparts->of_a[mine] != LB_NONE) return counterparts->of_a[mine] == theirs;
    const lb_op *x = view_of(counterparts->a, mine, &of_x), *y = view_of(counterparts->b, theirs, &of_y);
    return x && y && of_x == of_y && views < MOST_VIEWS && is_same_op(counterparts, x, y) &&
           reads_the_same(counterparts, x, y, views + 1);
}

/* What the op of A gives stands against what the op of B gives. */
static bool note_outcomes(counterparts *counterparts, const lb_op *x, const lb_op *y)
{
    if (x->results != y->results || x->written != y->written) return false;
    for (uint32_t i = 0; i < lb_op_outcomes(x); i++) {
        const uint32_t mine = lb_op_outcome(counterparts->a, x, i), theirs = lb_op_outcome(counterparts->b, y, i);
        if ((mine == LB_NONE) != (theirs == LB_NONE)) return false;
        if (mine == LB_NONE) continue;
        if (counterparts->a->values[mine].dtype != counterparts->b->values[theirs].dtype) return false;
        counterparts->of_a[mine] = theirs;
    }
    return true;
}

static bool are_alike(counterparts *counterparts, const lb_matched_region *region)
{
    const lb_matched_region_side *x = &region->sides[0], *y = &region->sides[1];
    for (uint32_t i = 0; i < x->n_leaves; i++)
        if (x->partners[i] < counterparts->b->n_values) counterparts->of_a[x->leaves[i]] = x->partners[i];
    for (uint32_t i = 0; i < x->n_ops; i++) {
        const lb_op *mine = &counterparts->a->ops[x->ops[i]], *theirs = &counterparts->b->ops[y->ops[i]];
        if (!is_same_op(counterparts, mine, theirs) || !reads_the_same(counterparts, mine, theirs, 0) ||
            !note_outcomes(counterparts, mine, theirs))
            return false;
    }
    for (uint32_t i = 0; i < region->n_outputs; i++)
        if (!is_counterpart(counterparts, x->outputs[i], y->outputs[i], 0)) return false;
    return true;
}

lb_status lb_same_ops(const lb_matched_region_source *source, const lb_matched_region *region, bool *same, lb_err *err)
{
    counterparts counterparts = {source->a->program, source->b->program, NULL};
    *same = false;
    if (!region->sides[0].n_ops || region->sides[0].n_ops != region->sides[1].n_ops) return LB_OK;
    if (!(counterparts.of_a = malloc((counterparts.a->n_values + 1) * sizeof *counterparts.of_a)))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t v = 0; v < counterparts.a->n_values; v++) counterparts.of_a[v] = LB_NONE;
    *same = are_alike(&counterparts, region);
    free(counterparts.of_a);
    return LB_OK;
}

/* Is a module `where`, or inside the one that `path` names, or beside it in one module? Routers are modules of their
 * own (mlp.gate beside mlp.experts), or functions of the layer that holds the experts. */
static bool is_of_router(const char *path, const char *where)
{
    const char *dot = strrchr(path, '.');
    const size_t n = strlen(path), parent = dot ? (size_t)(dot - path) : 0;
    if (!strncmp(path, where, n) && (!where[n] || where[n] == '.')) return true;
    return parent && !strncmp(path, where, parent) && where[parent] == '.';
}

static bool is_made_before(const lb_program *program, uint32_t value, uint32_t op)
{
    for (uint32_t i = 0; i < op; i++)
        for (uint32_t k = 0; k < lb_op_outcomes(&program->ops[i]); k++)
            if (lb_op_outcome(program, &program->ops[i], k) == value) return true;
    return false;
}

bool lb_same_ops_chose(const lb_matched_region_source *source, const lb_matched_region *region)
{
    const lb_program *a = source->a->program, *b = source->b->program;
    const uint32_t op = region->sides[0].op;
    if (op == LB_NONE) return false;
    const char *where = source->paths[0][a->ops[op].scope];
    for (uint32_t i = 0; i < a->n_routings; i++) {
        const lb_routing *routing = &a->routings[i];
        if (routing->ids == LB_NONE || !is_of_router(source->paths[0][routing->scope], where) ||
            !is_made_before(a, routing->ids, op))
            continue;
        for (uint32_t k = 0; k < b->n_routings; k++) {
            const lb_routing *y = &b->routings[k];
            if (y->ids != LB_NONE && lb_matched_region_same_choice(source, routing, y) &&
                lb_matched_region_differs(source, routing->ids, y->ids))
                return true;
        }
    }
    return false;
}
