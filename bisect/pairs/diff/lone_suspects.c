/* Ops without their like: see lone_suspects.h. */
#include "diff/lone_suspects.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

/* An op by where it stands and what it is called, and the how manieth of these of its part. */
typedef struct placed {
    uint64_t key;
    uint32_t part, op;
} placed;

typedef struct placed_list {
    placed *ops;
    uint32_t n;
} placed_list;

static uint64_t hash_text(uint64_t hash, const char *text)
{
    for (; text && *text; text++) hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001B3);
    return (hash ^ 0xFF) * UINT64_C(0x100000001B3);
}

/* What ranks tell each other depends on how they share out the work. */
static bool communicates(const lb_program *program, const lb_op *op)
{
    return op->flags & LB_OP_COLLECTIVE || op->phase == LB_PHASE_COMMUNICATION ||
           strstr(lb_op_name(program, op), "c10d");
}

static int by_key(const void *x, const void *y)
{
    const placed *a = x, *b = y;
    if (a->key != b->key) return a->key < b->key ? -1 : 1;
    if (a->part != b->part) return a->part < b->part ? -1 : 1;
    return a->op < b->op ? -1 : a->op > b->op;
}

static void number(placed_list *list)
{
    uint32_t nth = 0;
    uint64_t last = 0;
    for (uint32_t i = 0; i < list->n; i++) {
        const uint64_t key = list->ops[i].key;
        nth = i && key == last && list->ops[i].part == list->ops[i - 1].part ? nth + 1 : 0, last = key;
        list->ops[i].key = key + nth * UINT64_C(0x9E3779B97F4A7C15);
    }
}

static bool list_placed(const lb_diff_walk *walk, const lb_divergence *divergence, int side, placed_list *list)
{
    const lb_program *program = lb_diff_walk_side(walk, side);
    char **served = walk->alignment.served[side];
    *list = (placed_list){malloc((divergence->n[side] + 1) * sizeof *list->ops), 0};
    for (uint32_t i = 0; list->ops && i < divergence->n[side]; i++) {
        const uint32_t op = walk->divergences.lone[divergence->first[side] + i];
        const lb_op *x = &program->ops[op];
        if (communicates(program, x)) continue;
        uint64_t key = hash_text(UINT64_C(0xCBF29CE484222325) + x->phase, lb_op_layer(program, x));
        key = hash_text(hash_text(key, lb_op_name(program, x)),
                        served && op < walk->alignment.n_served[side] ? served[op] : NULL);
        list->ops[list->n++] = (placed){key, lb_program_view_part_of(side ? walk->b : walk->a, op), op};
    }
    if (list->ops) qsort(list->ops, list->n, sizeof *list->ops, by_key), number(list);
    if (list->ops) qsort(list->ops, list->n, sizeof *list->ops, by_key);
    return list->ops != NULL;
}

/* The first of that key; NULL. */
static const placed *find_like(const placed_list *list, uint64_t key)
{
    uint32_t first = 0, n = list->n;
    while (n > 0) {
        const uint32_t half = n / 2;
        if (list->ops[first + half].key < key)
            first += half + 1, n -= half + 1;
        else
            n = half;
    }
    return first < list->n && list->ops[first].key == key ? &list->ops[first] : NULL;
}

static bool add_alone(lb_diff_walk *walk, lb_divergence *alone, int side, uint32_t op)
{
    uint32_t *more = lb_array_grow(walk->divergences.lone, walk->divergences.n_lone, sizeof *more);
    if (!more) return false;
    walk->divergences.lone = more, more[walk->divergences.n_lone++] = op;
    alone->n[side]++;
    return true;
}

/* Are called with different arguments, of which not only sizes and means are others. */
static bool differ(const lb_diff_walk *walk, uint32_t a, uint32_t b)
{
    return !lb_op_same_args(walk->pa, &walk->pa->ops[a], walk->pb, &walk->pb->ops[b], walk->b->n_parts + 1);
}

static bool look_through(lb_diff_walk *walk, const placed_list lists[2], lb_lone_suspects *out)
{
    bool room = true;
    for (int side = 0; side < 2; side++) {
        out->alone.first[side] = walk->divergences.n_lone, out->alone.n[side] = 0;
        for (uint32_t i = 0; i < lists[side].n && room; i++) {
            const placed *mine = &lists[side].ops[i], *like = find_like(&lists[!side], mine->key);
            const uint32_t pair[] = {side || !like ? (like ? like->op : LB_NONE) : mine->op, side   ? mine->op
                                                                                             : like ? like->op
                                                                                                    : LB_NONE};
            if (!like) room = add_alone(walk, &out->alone, side, mine->op);
            if (!like || !differ(walk, pair[0], pair[1])) continue;
            if (out->other[0] == LB_NONE || pair[0] < out->other[0]) out->other[0] = pair[0], out->other[1] = pair[1];
        }
        if (out->alone.n[side])
            qsort(walk->divergences.lone + out->alone.first[side], out->alone.n[side], sizeof(uint32_t), lb_by_u32);
    }
    return room;
}

bool lb_lone_suspects_find(lb_diff_walk *walk, const lb_divergence *divergence, lb_lone_suspects *out)
{
    placed_list lists[2] = {{NULL, 0}, {NULL, 0}};
    *out = (lb_lone_suspects){.alone = *divergence, .other = {LB_NONE, LB_NONE}};
    if (!walk->a->group && walk->cuts.n == walk->cuts.unknown) return false;
    bool room = true;
    for (int side = 0; side < 2 && room; side++) room = list_placed(walk, divergence, side, &lists[side]);
    if (room) room = look_through(walk, lists, out);
    free(lists[0].ops), free(lists[1].ops);
    return room;
}
