/* From probes to a tree: see probe.h.
 *
 * One term is drawn as the pivot; how many terms are below the node where it meets each other one sorts these into
 * groups: the smallest number is the pivot's own partner, the next what that sum meets, and so on up to the root. Each
 * group is a subtree, found in the same way; all groups of a level are asked about in one batch. So n terms need n log
 * n probes or fewer in most trees, whatever the order.
 *
 * A group may also be several subtrees that enter a fused sum together. The pivot of the level above tells: it stays
 * apart from a group's own sums, but vanishes where the group meets it. */
#include "probe/probe.h"
#include "orders/sum_tree.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct task {
    uint32_t start, count; /* of order[]: terms that are one or more operands of node `parent` */
    uint32_t regenerated;  /* a term below another operand of it */
    uint32_t parent;
} task;

typedef struct sized {
    uint32_t size, term;
} sized;

typedef struct building {
    lb_prober *prober;
    lb_probe_group *group;
    uint32_t n, nodes, room;
    uint32_t *order, *up; /* up[term], up[n + node]: the node it is an operand of */
    task *now, *next;
    uint32_t n_now, n_next;
    lb_probe_query *queries;
    sized *sizes;
} building;

static int by_size(const void *a, const void *b)
{
    const sized *x = a, *y = b;
    return x->size != y->size ? (x->size > y->size) - (x->size < y->size) : (x->term > y->term) - (x->term < y->term);
}

static bool contradiction(building *b, uint32_t pivot, uint32_t size, uint32_t expected)
{
    const uint32_t at = b->prober->position[pivot];
    lb_probe_group *g = b->group;
    g->outcome = LB_PROBE_NO_TREE;
    snprintf(g->reason, sizeof g->reason,
             "where %u terms should have met term %u, %u are gone: the terms are not added up as one tree", expected,
             at, size);
    return false;
}

static void add_task(building *b, uint32_t start, uint32_t count, uint32_t regenerated, uint32_t parent)
{
    if (count == 1)
        b->up[b->order[start]] = parent;
    else
        b->next[b->n_next++] = (task){start, count, regenerated, parent};
}

/* The pivot's way up: `s` are the other terms of the task by size, those that met the regenerated value last. */
static bool take_task(building *b, const task *t, const lb_probe_query *answers)
{
    const uint32_t pivot = b->order[t->start], others = t->count - 1;
    const uint32_t all = t->count + (t->regenerated != LB_PROBE_NONE);
    for (uint32_t k = 0; k < others; k++) {
        if (answers[k].size == LB_PROBE_NONE) {
            b->group->outcome = LB_PROBE_NO_TREE;
            snprintf(b->group->reason, sizeof b->group->reason, "a probe of terms %u and %u gave no number of units",
                     b->prober->position[pivot], b->prober->position[answers[k].j]);
            return false;
        }
        b->sizes[k] = (sized){answers[k].size, answers[k].j};
    }
    qsort(b->sizes, others, sizeof *b->sizes, by_size);
    for (uint32_t k = 0; k < others; k++) b->order[t->start + 1 + k] = b->sizes[k].term;
    uint32_t below = pivot, k = 0;
    while (k < others && (t->regenerated == LB_PROBE_NONE || b->sizes[k].size < all)) {
        uint32_t end = k;
        while (end < others && b->sizes[end].size == b->sizes[k].size) end++;
        if (b->sizes[k].size != end + 1) return contradiction(b, pivot, b->sizes[k].size, end + 1);
        const uint32_t node = b->nodes++;
        b->up[below] = node;
        add_task(b, t->start + 1 + k, end - k, pivot, node);
        below = b->n + node;
        k = end;
    }
    b->up[below] = t->parent;
    if (k < others) add_task(b, t->start + 1 + k, others - k, pivot, t->parent);
    return true;
}

/* In a tree of three terms or more some two meet after a third: never so if nothing small is ever lost. */
static bool nothing_is_lost(const building *b, const lb_probe_query *answers)
{
    if (b->n < 3) return false;
    for (uint32_t k = 0; k + 1 < b->n; k++)
        if (answers[k].size != 2) return false;
    return true;
}

static lb_status level(building *b, bool *fine, lb_err *err)
{
    lb_prober *p = b->prober;
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_now; i++) {
        const task *t = &b->now[i];
        uint32_t *terms = b->order + t->start, at = lb_prober_random(p, t->count), pivot = terms[at];
        terms[at] = terms[0];
        terms[0] = pivot;
        for (uint32_t k = 1; k < t->count; k++)
            b->queries[n++] = (lb_probe_query){pivot, terms[k], t->regenerated, t->count, terms, 0};
    }
    LB_TRY(lb_prober_ask(p, b->queries, n, err));
    if (b->now[0].regenerated == LB_PROBE_NONE && nothing_is_lost(b, b->queries)) {
        b->group->outcome = LB_PROBE_EXACT;
        snprintf(b->group->reason, sizeof b->group->reason, "units survive beside terms of %g", p->units.huge);
        *fine = false;
        return LB_OK;
    }
    b->n_next = 0;
    const lb_probe_query *answers = b->queries;
    for (uint32_t i = 0; *fine && i < b->n_now; i++) {
        *fine = take_task(b, &b->now[i], answers);
        answers += b->now[i].count - 1;
    }
    task *done = b->now;
    b->now = b->next;
    b->next = done;
    b->n_now = b->n_next;
    return LB_OK;
}

/* Node 0 is above the root. Operands in order of their numbers; a node after its operands. */
static lb_status make_tree(const building *b, lb_sum_tree **tree, lb_err *err)
{
    const uint32_t all = b->n + b->nodes;
    uint32_t *first = calloc((size_t)b->nodes + 2, sizeof *first), *child = malloc((size_t)all * sizeof *child);
    uint32_t *queue = malloc((size_t)(b->nodes + 1) * sizeof *queue), *id = malloc((size_t)all * sizeof *id),
             n_queue = 0;
    lb_tree_builder builder = lb_tree_begin(b->n);
    builder.failed |= !first || !child || !queue || !id;
    for (uint32_t x = 0; !builder.failed && x < all; x++)
        if (x != b->n) first[b->up[x] + 2]++;
    for (uint32_t i = 0; !builder.failed && i < b->nodes; i++) first[i + 2] += first[i + 1];
    for (uint32_t x = 0; !builder.failed && x < all; x++)
        if (x != b->n) child[first[b->up[x] + 1]++] = x;
    if (!builder.failed) queue[n_queue++] = 0;
    for (uint32_t q = 0; !builder.failed && q < n_queue; q++) /* parents before their operands */
        for (uint32_t k = first[queue[q]]; k < first[queue[q] + 1]; k++)
            if (child[k] >= b->n) queue[n_queue++] = child[k] - b->n;
    for (uint32_t x = 0; !builder.failed && x < b->n; x++) id[x] = x;
    for (uint32_t q = n_queue; !builder.failed && q > 1; q--) {
        const uint32_t node = queue[q - 1];
        for (uint32_t k = first[node]; k < first[node + 1]; k++) child[k] = id[child[k]];
        id[b->n + node] = lb_tree_fuse(&builder, child + first[node], first[node + 1] - first[node]);
    }
    free(first);
    free(child);
    free(queue);
    free(id);
    return lb_tree_end(&builder, tree, err);
}

static void progress(const building *b)
{
    const lb_probe_options *o = &b->prober->options;
    uint32_t left = 0;
    for (uint32_t i = 0; i < b->n_now; i++) left += b->now[i].count;
    if (o->progress) o->progress(o->progress_context, b->n - left, b->n);
}

lb_status lb_probe_find_tree(lb_prober *prober, lb_probe_group *group, lb_err *err)
{
    const uint32_t n = prober->terms;
    building b = {.prober = prober, .group = group, .n = n, .nodes = 1};
    b.order = malloc((size_t)n * sizeof *b.order);
    b.up = malloc(((size_t)2 * n + 2) * sizeof *b.up);
    b.now = malloc(((size_t)n + 1) * sizeof *b.now);
    b.next = malloc(((size_t)n + 1) * sizeof *b.next);
    b.queries = malloc(((size_t)n + 1) * sizeof *b.queries);
    b.sizes = malloc(((size_t)n + 1) * sizeof *b.sizes);
    lb_status status = b.order && b.up && b.now && b.next && b.queries && b.sizes
                           ? LB_OK
                           : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    bool fine = true;
    for (uint32_t i = 0; status == LB_OK && i < n; i++) b.order[i] = i;
    if (status == LB_OK && n == 1) b.up[0] = 0;
    if (status == LB_OK && n > 1) b.now[b.n_now++] = (task){0, n, LB_PROBE_NONE, 0};
    while (status == LB_OK && fine && b.n_now) {
        status = level(&b, &fine, err);
        progress(&b);
    }
    if (status == LB_OK && fine) {
        group->outcome = LB_PROBE_TREE;
        status = make_tree(&b, &group->tree, err);
    }
    free(b.order);
    free(b.up);
    free(b.now);
    free(b.next);
    free(b.queries);
    free(b.sizes);
    return status;
}
