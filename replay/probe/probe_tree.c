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

static bool contradiction(building *building, uint32_t pivot, uint32_t size, uint32_t expected)
{
    const uint32_t at = building->prober->position[pivot];
    lb_probe_group *group = building->group;
    group->outcome = LB_PROBE_NO_TREE;
    snprintf(group->reason, sizeof group->reason,
             "where %u terms should have met term %u, %u are gone: the terms are not added up as one tree", expected,
             at, size);
    return false;
}

static void add_task(building *building, uint32_t start, uint32_t count, uint32_t regenerated, uint32_t parent)
{
    if (count == 1)
        building->up[building->order[start]] = parent;
    else
        building->next[building->n_next++] = (task){start, count, regenerated, parent};
}

/* The pivot's way up: `s` are the other terms of the task by size, those that met the regenerated value last. */
static bool take_task(building *building, const task *task, const lb_probe_query *answers)
{
    const uint32_t pivot = building->order[task->start], others = task->count - 1;
    const uint32_t all = task->count + (task->regenerated != LB_PROBE_NONE);
    for (uint32_t k = 0; k < others; k++) {
        if (answers[k].size == LB_PROBE_NONE) {
            building->group->outcome = LB_PROBE_NO_TREE;
            snprintf(building->group->reason, sizeof building->group->reason,
                     "a probe of terms %u and %u gave no number of units", building->prober->position[pivot],
                     building->prober->position[answers[k].j]);
            return false;
        }
        building->sizes[k] = (sized){answers[k].size, answers[k].j};
    }
    qsort(building->sizes, others, sizeof *building->sizes, by_size);
    for (uint32_t k = 0; k < others; k++) building->order[task->start + 1 + k] = building->sizes[k].term;
    uint32_t below = pivot, k = 0;
    while (k < others && (task->regenerated == LB_PROBE_NONE || building->sizes[k].size < all)) {
        uint32_t end = k;
        while (end < others && building->sizes[end].size == building->sizes[k].size) end++;
        if (building->sizes[k].size != end + 1) return contradiction(building, pivot, building->sizes[k].size, end + 1);
        const uint32_t node = building->nodes++;
        building->up[below] = node;
        add_task(building, task->start + 1 + k, end - k, pivot, node);
        below = building->n + node;
        k = end;
    }
    building->up[below] = task->parent;
    if (k < others) add_task(building, task->start + 1 + k, others - k, pivot, task->parent);
    return true;
}

/* In a tree of three terms or more some two meet after a third: never so if nothing small is ever lost. */
static bool nothing_is_lost(const building *building, const lb_probe_query *answers)
{
    if (building->n < 3) return false;
    for (uint32_t k = 0; k + 1 < building->n; k++)
        if (answers[k].size != 2) return false;
    return true;
}

static lb_status level(building *building, bool *fine, lb_err *err)
{
    lb_prober *prober = building->prober;
    uint32_t n = 0;
    for (uint32_t i = 0; i < building->n_now; i++) {
        const task *t = &building->now[i];
        uint32_t *terms = building->order + t->start, at = lb_prober_random(prober, t->count), pivot = terms[at];
        terms[at] = terms[0];
        terms[0] = pivot;
        for (uint32_t k = 1; k < t->count; k++)
            building->queries[n++] = (lb_probe_query){pivot, terms[k], t->regenerated, t->count, terms, 0};
    }
    LB_TRY(lb_prober_ask(prober, building->queries, n, err));
    if (building->now[0].regenerated == LB_PROBE_NONE && nothing_is_lost(building, building->queries)) {
        building->group->outcome = LB_PROBE_EXACT;
        snprintf(building->group->reason, sizeof building->group->reason, "units survive beside terms of %g",
                 prober->units.huge);
        *fine = false;
        return LB_OK;
    }
    building->n_next = 0;
    const lb_probe_query *answers = building->queries;
    for (uint32_t i = 0; *fine && i < building->n_now; i++) {
        *fine = take_task(building, &building->now[i], answers);
        answers += building->now[i].count - 1;
    }
    task *done = building->now;
    building->now = building->next;
    building->next = done;
    building->n_now = building->n_next;
    return LB_OK;
}

/* Node 0 is above the root. Operands in order of their numbers; a node after its operands. */
static lb_status make_tree(const building *building, lb_sum_tree **tree, lb_err *err)
{
    const uint32_t all = building->n + building->nodes;
    uint32_t *first = calloc((size_t)building->nodes + 2, sizeof *first), *child = malloc((size_t)all * sizeof *child);
    uint32_t *queue = malloc((size_t)(building->nodes + 1) * sizeof *queue), *id = malloc((size_t)all * sizeof *id),
             n_queue = 0;
    lb_tree_builder builder = lb_tree_begin(building->n);
    builder.failed |= !first || !child || !queue || !id;
    for (uint32_t x = 0; !builder.failed && x < all; x++)
        if (x != building->n) first[building->up[x] + 2]++;
    for (uint32_t i = 0; !builder.failed && i < building->nodes; i++) first[i + 2] += first[i + 1];
    for (uint32_t x = 0; !builder.failed && x < all; x++)
        if (x != building->n) child[first[building->up[x] + 1]++] = x;
    if (!builder.failed) queue[n_queue++] = 0;
    for (uint32_t q = 0; !builder.failed && q < n_queue; q++) /* parents before their operands */
        for (uint32_t k = first[queue[q]]; k < first[queue[q] + 1]; k++)
            if (child[k] >= building->n) queue[n_queue++] = child[k] - building->n;
    for (uint32_t x = 0; !builder.failed && x < building->n; x++) id[x] = x;
    for (uint32_t q = n_queue; !builder.failed && q > 1; q--) {
        const uint32_t node = queue[q - 1];
        for (uint32_t k = first[node]; k < first[node + 1]; k++) child[k] = id[child[k]];
        id[building->n + node] = lb_tree_fuse(&builder, child + first[node], first[node + 1] - first[node]);
    }
    free(first);
    free(child);
    free(queue);
    free(id);
    return lb_tree_end(&builder, tree, err);
}

static void progress(const building *building)
{
    const lb_probe_options *options = &building->prober->options;
    uint32_t left = 0;
    for (uint32_t i = 0; i < building->n_now; i++) left += building->now[i].count;
    if (options->progress) options->progress(options->progress_context, building->n - left, building->n);
}

lb_status lb_probe_find_tree(lb_prober *prober, lb_probe_group *group, lb_err *err)
{
    const uint32_t n = prober->terms;
    building building = {.prober = prober, .group = group, .n = n, .nodes = 1};
    building.order = malloc((size_t)n * sizeof *building.order);
    building.up = malloc(((size_t)2 * n + 2) * sizeof *building.up);
    building.now = malloc(((size_t)n + 1) * sizeof *building.now);
    building.next = malloc(((size_t)n + 1) * sizeof *building.next);
    building.queries = malloc(((size_t)n + 1) * sizeof *building.queries);
    building.sizes = malloc(((size_t)n + 1) * sizeof *building.sizes);
    lb_status status =
        building.order && building.up && building.now && building.next && building.queries && building.sizes
            ? LB_OK
            : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    bool fine = true;
    for (uint32_t i = 0; status == LB_OK && i < n; i++) building.order[i] = i;
    if (status == LB_OK && n == 1) building.up[0] = 0;
    if (status == LB_OK && n > 1) building.now[building.n_now++] = (task){0, n, LB_PROBE_NONE, 0};
    while (status == LB_OK && fine && building.n_now) {
        status = level(&building, &fine, err);
        progress(&building);
    }
    if (status == LB_OK && fine) {
        group->outcome = LB_PROBE_TREE;
        status = make_tree(&building, &group->tree, err);
    }
    free(building.order);
    free(building.up);
    free(building.now);
    free(building.next);
    free(building.queries);
    free(building.sizes);
    return status;
}
