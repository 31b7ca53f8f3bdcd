/* What ranks have alike, once: see joined_copies.h. */
#include "joined/joined_copies.h"

#include "pair/op_kind.h"
#include "kernel/ops.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

/* One op writes a storage. */
typedef struct write {
    uint32_t op, version;
    uint32_t new_op; /* its place in the new order; LB_NONE */
} write;

typedef struct memory {
    int64_t id;
    uint32_t part, into; /* `into`: the memory of a lower rank that has its history; LB_NONE */
    uint64_t history;
    write *writes;
    uint32_t n;
} memory;

typedef struct merger {
    lb_program_view *view;
    lb_program *p;
    memory *list;
    uint32_t n;
    uint32_t *memory_of; /* per value */
    uint32_t *row_of;    /* per value: the row that stands for it */
    uint8_t *dropped;    /* per op */
    bool done, failed;
} merger;

/* Above every other storage: joined_ranks.c's own begin at 2^61. */
#define WRITTEN_ANEW ((int64_t)1 << 62)

static bool writes(const lb_op *op)
{
    return !(op->flags & (LB_OP_VIEW | LB_OP_FAILED));
}

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    hash ^= hash >> 32;
    return hash * UINT64_C(0xBF58476D1CE4E5B9);
}

/* ---- memories ---- */

static int by_id(const void *x, const void *y)
{
    const int64_t *a = x, *b = y;
    return (*a > *b) - (*a < *b);
}

static uint32_t memory_at(const merger *merger, int64_t id)
{
    uint32_t low = 0, high = merger->n;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (merger->list[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool list_memories(merger *merger)
{
    const lb_program *program = merger->p;
    int64_t *ids = malloc(((size_t)program->n_values + 1) * sizeof *ids);
    merger->list = calloc((size_t)program->n_values + 1, sizeof *merger->list);
    merger->memory_of = malloc(((size_t)program->n_values + 1) * sizeof *merger->memory_of);
    const bool room = ids && merger->list && merger->memory_of;
    for (uint32_t v = 0; room && v < program->n_values; v++) ids[v] = program->values[v].storage;
    if (room && program->n_values) qsort(ids, program->n_values, sizeof *ids, by_id);
    for (uint32_t v = 0; room && v < program->n_values; v++)
        if (!v || ids[v] != ids[v - 1])
            merger->list[merger->n++] = (memory){.id = ids[v], .part = LB_NONE, .into = LB_NONE};
    for (uint32_t v = 0; room && v < program->n_values; v++)
        merger->memory_of[v] = memory_at(merger, program->values[v].storage);
    free(ids);
    return room;
}

/* ---- memory written anew ---- */

typedef struct extent {
    int64_t first, last;
    bool fixed; /* holds a parameter or a state: it keeps its storage */
} extent;

/* What one op writes of some memory. */
typedef struct part_write {
    uint32_t memory, version;
    int64_t length; /* 0: it lies scattered, or the op reads that memory */
} part_write;

typedef struct reader {
    const merger *merger;
    uint32_t memory;
    bool found;
} reader;

static void note_read(void *context, uint32_t v)
{
    reader *reader = context;
    reader->found |= v != LB_NONE && reader->merger->memory_of[v] == reader->memory;
}

static extent *list_extents(const merger *merger)
{
    extent *list = calloc((size_t)merger->n + 1, sizeof *list);
    for (uint32_t v = 0; list && v < merger->p->n_values; v++) {
        extent *e = &list[merger->memory_of[v]];
        const lb_value *value = &merger->p->values[v];
        int64_t first, last;
        e->fixed |= (value->flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE)) != 0;
        if (lb_layout_dense_range(&value->layout, &first, &last, NULL) != LB_OK || first == last) continue;
        if (e->last == e->first) e->first = first, e->last = last;
        if (first < e->first) e->first = first;
        if (last > e->last) e->last = last;
    }
    return list;
}

static int by_version(const void *x, const void *y)
{
    const part_write *a = x, *b = y;
    if (a->memory != b->memory) return a->memory < b->memory ? -1 : 1;
    return (a->version > b->version) - (a->version < b->version);
}

static part_write *list_writes(merger *merger, uint32_t *n)
{
    part_write *list = NULL;
    *n = 0;
    for (uint32_t i = 0; i < merger->p->n_ops && !merger->failed; i++) {
        const lb_op *op = &merger->p->ops[i];
        for (uint32_t k = 0; writes(op) && k < lb_op_outcomes(op); k++) {
            const uint32_t outcome = lb_op_outcome(merger->p, op, k);
            bool again = outcome == LB_NONE;
            for (uint32_t before = 0; before < k && !again; before++)
                again = lb_op_outcome(merger->p, op, before) == outcome;
            if (again) continue;
            const lb_layout *layout = &merger->p->values[outcome].layout;
            reader reader = {merger, merger->memory_of[outcome], false};
            lb_op_each_input(merger->p, op, note_read, &reader);
            part_write *more = lb_array_grow(list, *n, sizeof *more);
            merger->failed |= !more;
            if (!more) return list;
            list = more;
            list[(*n)++] = (part_write){merger->memory_of[outcome], merger->p->values[outcome].version,
                                        reader.found || !lb_layout_is_contiguous(layout) ? 0 : lb_layout_numel(layout)};
        }
    }
    if (*n) qsort(list, *n, sizeof *list, by_version);
    return list;
}

/* Of values in a memory, those of this version and behind it lie in another one now. */
static void move_behind(const merger *merger, int64_t *ids, uint32_t memory, uint32_t version, int64_t id)
{
    for (uint32_t v = 0; v < merger->p->n_values; v++)
        if (merger->memory_of[v] == memory && merger->p->values[v].version >= version) ids[v] = id;
}

/* What is written over all of some memory, at once or part by part, by ops that read none of it, is memory of its own:
 * what stood there before on each rank says nothing of it. */
static bool part_memories(merger *merger)
{
    extent *extents = list_extents(merger);
    int64_t *ids = malloc(((size_t)merger->p->n_values + 1) * sizeof *ids), next = WRITTEN_ANEW;
    uint32_t n;
    part_write *list = list_writes(merger, &n);
    const bool room = extents && ids && !merger->failed;
    for (uint32_t v = 0; room && v < merger->p->n_values; v++) ids[v] = merger->p->values[v].storage;
    for (uint32_t i = 0; room && i < n;) {
        const part_write *write = &list[i];
        const extent *e = &extents[write->memory];
        const bool later = i && list[i - 1].memory == write->memory;
        int64_t covered = 0;
        bool plain = true;
        for (; i < n && list[i].memory == write->memory && list[i].version == write->version; i++)
            covered += list[i].length, plain &= list[i].length > 0;
        if (later && plain && !e->fixed && covered == e->last - e->first)
            move_behind(merger, ids, write->memory, write->version, next++);
    }
    for (uint32_t v = 0; room && v < merger->p->n_values; v++) merger->p->values[v].storage = ids[v];
    free(extents), free(ids), free(list);
    return room;
}

/* ---- histories ---- */

static uint64_t window_key(const lb_value *value)
{
    uint64_t key = mix((uint64_t)value->dtype, (uint64_t)value->layout.offset);
    key = mix(key, value->flags & LB_VALUE_LAZY);
    for (int d = 0; d < value->layout.ndim; d++)
        key = mix(mix(key, (uint64_t)value->layout.shape[d]), (uint64_t)value->layout.stride[d]);
    return key;
}

static uint64_t args_key(const merger *merger, const lb_arg *args, uint32_t n)
{
    uint64_t key = n;
    for (uint32_t i = 0; i < n; i++) {
        key = mix(key, args[i].tag);
        switch ((lb_arg_tag)args[i].tag) {
        case LB_ARG_NONE: break;
        case LB_ARG_VALUE:
            if (args[i].u.value == LB_NONE) break;
            key = mix(key, merger->list[merger->memory_of[args[i].u.value]].history);
            key = mix(key, window_key(&merger->p->values[args[i].u.value]));
            break;
        case LB_ARG_LIST:
        case LB_ARG_COMPLEX: key = mix(key, args_key(merger, merger->p->args + args[i].u.first, args[i].count)); break;
        case LB_ARG_STRING: key = mix(key, args[i].u.string); break;
        default: key = mix(key, (uint64_t)args[i].u.i); break;
        }
    }
    return key;
}

/* What was recorded of the results counts where nothing computes them; a value without a digest is like no other. */
static uint64_t results_key(const merger *merger, const lb_op *op, uint32_t at)
{
    uint64_t key = 0;
    for (uint32_t i = 0; i < lb_op_outcomes(op); i++) {
        const uint32_t v = lb_op_outcome(merger->p, op, i);
        if (v == LB_NONE) continue;
        const lb_value *value = &merger->p->values[v];
        if (lb_digest_is_none(value->logical)) return mix(key, (uint64_t)at + 1);
        key = mix(mix(key, value->logical.lo), value->logical.hi);
        if (lb_op_is_source(merger->p, op))
            key = mix(mix(key, value->name), value->flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE | LB_VALUE_GRADIENT));
    }
    return key;
}

static bool is_taken(const lb_program *program, const lb_op *op)
{
    lb_op_form form;
    if (op->flags & LB_OP_RANDOM || lb_op_is_source(program, op)) return true;
    const lb_op_row *row = lb_op_find(lb_op_name(program, op), &form);
    return !row || (!row->kernel && lb_op_outcomes(op) && !(row->flags & LB_ROW_UNDEFINED));
}

static void note_write(merger *merger, uint32_t op, uint32_t v, uint64_t key)
{
    memory *memory = &merger->list[merger->memory_of[v]];
    write *more = lb_array_grow(memory->writes, memory->n, sizeof *more);
    merger->failed |= !more;
    if (!more) return;
    memory->writes = more;
    memory->writes[memory->n++] = (write){op, merger->p->values[v].version, LB_NONE};
    if (memory->part == LB_NONE) memory->part = merger->view->rank_of[op];
    memory->history = mix(memory->history, mix(key, window_key(&merger->p->values[v])));
}

/* All keys before any of the op's own writes. */
static void note_ops(merger *merger)
{
    for (uint32_t i = 0; i < merger->p->n_ops && !merger->failed; i++) {
        const lb_op *op = &merger->p->ops[i];
        if (!writes(op)) continue;
        uint64_t key = mix(op->name, args_key(merger, lb_op_args(merger->p, op), op->args));
        if (is_taken(merger->p, op)) key = mix(key, results_key(merger, op, i));
        for (uint32_t k = 0; k < lb_op_outcomes(op) && !merger->failed; k++) {
            const uint32_t v = lb_op_outcome(merger->p, op, k);
            if (v != LB_NONE) note_write(merger, i, v, mix(key, k));
        }
    }
}

/* ---- which are one ---- */

typedef struct ranked {
    uint64_t history;
    uint32_t part, first, memory, nth;
} ranked;

static int by_history(const void *x, const void *y)
{
    const ranked *a = x, *b = y;
    if (a->history != b->history) return a->history < b->history ? -1 : 1;
    if (a->part != b->part) return a->part < b->part ? -1 : 1;
    return (a->first > b->first) - (a->first < b->first);
}

static int by_place(const void *x, const void *y)
{
    const ranked *a = x, *b = y;
    if (a->history != b->history) return a->history < b->history ? -1 : 1;
    if (a->nth != b->nth) return a->nth < b->nth ? -1 : 1;
    return (a->part > b->part) - (a->part < b->part);
}

/* Of several with one history on a rank, the n-th is the n-th of the other. */
static void pair_memories(merger *merger)
{
    ranked *list = malloc(((size_t)merger->n + 1) * sizeof *list);
    uint32_t n = 0;
    merger->failed |= !list;
    for (uint32_t i = 0; list && i < merger->n; i++)
        if (merger->list[i].n)
            list[n++] = (ranked){merger->list[i].history, merger->list[i].part, merger->list[i].writes[0].op, i, 0};
    if (n) qsort(list, n, sizeof *list, by_history);
    for (uint32_t i = 1; i < n; i++)
        if (list[i].history == list[i - 1].history && list[i].part == list[i - 1].part)
            list[i].nth = list[i - 1].nth + 1;
    if (n) qsort(list, n, sizeof *list, by_place);
    for (uint32_t i = 0, first = 0; i < n; i++) {
        if (list[i].history != list[first].history || list[i].nth != list[first].nth) first = i;
        if (i != first && merger->list[list[i].memory].n == merger->list[list[first].memory].n)
            merger->list[list[i].memory].into = list[first].memory;
    }
    free(list);
}

/* An op that gives something which is its rank's own stays, and with it all that it gives. True: some memory is its own
 * now. */
static bool keep_own(merger *merger)
{
    bool changed = false;
    for (uint32_t i = 0; i < merger->p->n_ops; i++) {
        const lb_op *op = &merger->p->ops[i];
        bool own = false;
        if (!writes(op)) continue;
        for (uint32_t k = 0; k < lb_op_outcomes(op); k++) {
            const uint32_t v = lb_op_outcome(merger->p, op, k);
            own |= v != LB_NONE && merger->list[merger->memory_of[v]].into == LB_NONE;
        }
        for (uint32_t k = 0; own && k < lb_op_outcomes(op); k++) {
            const uint32_t v = lb_op_outcome(merger->p, op, k);
            if (v == LB_NONE || merger->list[merger->memory_of[v]].into == LB_NONE) continue;
            merger->list[merger->memory_of[v]].into = LB_NONE, changed = true;
        }
    }
    return changed;
}

typedef struct shared {
    const merger *merger;
    bool own, any;
} shared;

static void note_input(void *context, uint32_t v)
{
    shared *shared = context;
    if (v == LB_NONE) return;
    shared->any = true, shared->own |= shared->merger->list[shared->merger->memory_of[v]].into == LB_NONE;
}

static void mark_dropped(merger *merger)
{
    for (uint32_t i = 0; i < merger->p->n_ops; i++) {
        const lb_op *op = &merger->p->ops[i];
        shared shared = {merger, false, false};
        for (uint32_t k = 0; k < lb_op_outcomes(op); k++) note_input(&shared, lb_op_outcome(merger->p, op, k));
        if (!shared.any) lb_op_each_input(merger->p, op, note_input, &shared);
        merger->dropped[i] = shared.any && !shared.own;
    }
}

/* ---- values ---- */

static uint32_t root_of(const merger *merger, uint32_t memory)
{
    while (merger->list[memory].into != LB_NONE) memory = merger->list[memory].into;
    return memory;
}

/* The last write that a value of that version sees; LB_NONE. */
static uint32_t write_at(const memory *memory, uint32_t version)
{
    uint32_t found = LB_NONE;
    for (uint32_t i = 0; i < memory->n && memory->writes[i].version <= version; i++) found = i;
    return found;
}

typedef struct keyed {
    uint64_t key;
    uint32_t value, moved;
} keyed;

static int by_key(const void *x, const void *y)
{
    const keyed *a = x, *b = y;
    if (a->key != b->key) return a->key < b->key ? -1 : 1;
    if (a->moved != b->moved) return a->moved < b->moved ? -1 : 1;
    return (a->value > b->value) - (a->value < b->value);
}

static bool are_one(const lb_value *a, const lb_value *b)
{
    return a->storage == b->storage && a->version == b->version && a->dtype == b->dtype &&
           !((a->flags ^ b->flags) & LB_VALUE_LAZY) && a->layout.ndim == b->layout.ndim &&
           a->layout.offset == b->layout.offset &&
           !memcmp(a->layout.shape, b->layout.shape, sizeof a->layout.shape[0] * (size_t)a->layout.ndim) &&
           !memcmp(a->layout.stride, b->layout.stride, sizeof a->layout.stride[0] * (size_t)a->layout.ndim);
}

/* Values in memory that stands for another become windows on that; where it has such a row already, that row. */
static void move_values(merger *merger)
{
    lb_program *program = merger->p;
    keyed *list = malloc(((size_t)program->n_values + 1) * sizeof *list);
    merger->row_of = malloc(((size_t)program->n_values + 1) * sizeof *merger->row_of);
    merger->failed |= !list || !merger->row_of;
    for (uint32_t v = 0; v < program->n_values && !merger->failed; v++) {
        const uint32_t from = merger->memory_of[v], to = root_of(merger, from);
        lb_value *value = &program->values[v];
        merger->row_of[v] = v;
        if (from != to) {
            const uint32_t seen = write_at(&merger->list[from], value->version);
            value->storage = merger->list[to].id, merger->memory_of[v] = to;
            value->version =
                seen == LB_NONE ? merger->list[to].writes[0].version - 1 : merger->list[to].writes[seen].version;
        }
        list[v] = (keyed){mix(mix((uint64_t)value->storage, value->version), window_key(value)), v, from != to};
    }
    if (!merger->failed && program->n_values) qsort(list, program->n_values, sizeof *list, by_key);
    for (uint32_t i = 1, first = 0; i < program->n_values && !merger->failed; i++) {
        if (list[i].key != list[first].key) first = i;
        if (i != first && list[i].moved &&
            are_one(&program->values[list[i].value], &program->values[list[first].value]))
            merger->row_of[list[i].value] = list[first].value;
    }
    free(list);
}

static void rename_values(merger *merger)
{
    lb_program *program = merger->p;
    for (uint32_t i = 0; i < program->n_args; i++)
        if (program->args[i].tag == LB_ARG_VALUE && program->args[i].u.value < program->n_values)
            program->args[i].u.value = merger->row_of[program->args[i].u.value];
    for (uint32_t i = 0; i < program->n_refs; i++)
        if (program->refs[i] < program->n_values) program->refs[i] = merger->row_of[program->refs[i]];
    for (uint32_t i = 0; i < program->n_boundaries; i++)
        if (program->boundaries[i].value != LB_NONE)
            program->boundaries[i].value = merger->row_of[program->boundaries[i].value];
    for (uint32_t i = 0; i < program->n_routings; i++) {
        lb_routing *routing = &program->routings[i];
        uint32_t *values[] = {&routing->logits, &routing->ids, &routing->weights, &routing->slots, &routing->dropped};
        for (int k = 0; k < 5; k++)
            if (*values[k] != LB_NONE) *values[k] = merger->row_of[*values[k]];
    }
}

/* ---- order ---- */

typedef struct order {
    merger *merger;
    uint32_t *first, *next, n; /* per op: successors, a list of edges */
    uint32_t *to, *waits;      /* waits: per op, how many others come before it */
    uint32_t op;               /* being linked */
    bool failed;
} order;

static void link_ops(order *order, uint32_t before, uint32_t after)
{
    if (before == after) return;
    uint32_t *next = lb_array_grow(order->next, order->n, sizeof *next);
    if (next) order->next = next;
    uint32_t *to = next ? lb_array_grow(order->to, order->n, sizeof *to) : NULL;
    order->failed |= !to;
    if (!to) return;
    order->to = to;
    order->to[order->n] = after, order->next[order->n] = order->first[before], order->first[before] = order->n++,
    order->waits[after]++;
}

static void link_read(void *context, uint32_t v)
{
    order *order = context;
    const merger *merger = order->merger;
    if (v == LB_NONE) return;
    const memory *memory = &merger->list[merger->memory_of[v]];
    const uint32_t seen = write_at(memory, merger->p->values[v].version);
    uint32_t next = seen == LB_NONE ? 0 : seen + 1;
    if (seen != LB_NONE) link_ops(order, memory->writes[seen].op, order->op);
    if (next < memory->n) link_ops(order, order->op, memory->writes[next].op);
}

static void link_all(order *order)
{
    merger *merger = order->merger;
    for (uint32_t i = 0; i < merger->n; i++)
        for (uint32_t k = 1; merger->list[i].into == LB_NONE && k < merger->list[i].n && !order->failed; k++)
            link_ops(order, merger->list[i].writes[k - 1].op, merger->list[i].writes[k].op);
    for (order->op = 0; order->op < merger->p->n_ops && !order->failed; order->op++) {
        const lb_op *op = &merger->p->ops[order->op];
        if (merger->dropped[order->op]) continue;
        lb_op_each_input(merger->p, op, link_read, order);
        for (uint32_t k = 0; !writes(op) && k < lb_op_outcomes(op); k++)
            link_read(order, lb_op_outcome(merger->p, op, k));
    }
}

typedef struct heap {
    uint32_t *list, n;
} heap;

static void push(heap *heap, uint32_t x)
{
    uint32_t i = heap->n++;
    for (; i && heap->list[(i - 1) / 2] > x; i = (i - 1) / 2) heap->list[i] = heap->list[(i - 1) / 2];
    heap->list[i] = x;
}

static uint32_t pop(heap *heap)
{
    const uint32_t least = heap->list[0], x = heap->list[--heap->n];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= heap->n) break;
        if (child + 1 < heap->n && heap->list[child + 1] < heap->list[child]) child++;
        if (heap->list[child] >= x) break;
        heap->list[i] = heap->list[child], i = child;
    }
    heap->list[i] = x;
    return least;
}

/* Ops that stay, each behind what it needs, else as they stood; `*n` fewer than there are: some wait for each other. */
static uint32_t *sort_ops(order *order, uint32_t *n)
{
    const merger *merger = order->merger;
    uint32_t *sorted = malloc(((size_t)merger->p->n_ops + 1) * sizeof *sorted);
    heap ready = {.list = malloc(((size_t)merger->p->n_ops + 1) * sizeof *ready.list)};
    *n = 0;
    for (uint32_t i = 0; ready.list && i < merger->p->n_ops; i++)
        if (!merger->dropped[i] && !order->waits[i]) push(&ready, i);
    while (sorted && ready.list && ready.n) {
        const uint32_t op = pop(&ready);
        sorted[(*n)++] = op;
        for (uint32_t e = order->first[op]; e != LB_NONE; e = order->next[e])
            if (!--order->waits[order->to[e]]) push(&ready, order->to[e]);
    }
    free(ready.list);
    return sorted;
}

/* The op that stands for a dropped one: it writes what that one's first result is in; LB_NONE. */
static uint32_t stands_for(const merger *merger, uint32_t op)
{
    const lb_op *o = &merger->p->ops[op];
    for (uint32_t k = 0; k < lb_op_outcomes(o); k++) {
        const uint32_t v = lb_op_outcome(merger->p, o, k);
        if (v == LB_NONE) continue;
        const memory *memory = &merger->list[merger->memory_of[v]];
        const uint32_t seen = write_at(memory, merger->p->values[v].version);
        if (seen != LB_NONE) return memory->writes[seen].op;
    }
    return LB_NONE;
}

/* `place`: per old op its place in the new order, of dropped ones that of what stands for them. */
static void move_boundaries(const merger *merger, const uint32_t *place, uint32_t n)
{
    for (uint32_t i = 0; i < merger->p->n_boundaries; i++) {
        lb_boundary *boundary = &merger->p->boundaries[i];
        const memory *memory = boundary->value == LB_NONE ? NULL : &merger->list[merger->memory_of[boundary->value]];
        const uint32_t seen = memory ? write_at(memory, merger->p->values[boundary->value].version) : LB_NONE;
        boundary->op = seen == LB_NONE ? n : place[memory->writes[seen].op] + 1;
        if (boundary->op > n) boundary->op = n;
    }
}

static bool put_in_order(merger *merger, const uint32_t *sorted, uint32_t n)
{
    lb_program *program = merger->p;
    uint32_t *place = malloc(((size_t)program->n_ops + 1) * sizeof *place),
             *part = malloc(((size_t)n + 1) * sizeof *part), *op_of = NULL, all = 0;
    lb_op *ops = malloc(((size_t)n + 1) * sizeof *ops);
    uint64_t *ranks = calloc((size_t)n + 1, sizeof *ranks);
    for (uint32_t k = 0; k < merger->view->n_parts; k++) all += merger->view->parts[k].program->n_ops;
    op_of = malloc(((size_t)all + 1) * sizeof *op_of);
    const bool room = place && part && ops && op_of && ranks;
    if (room) memset(place, 0xFF, ((size_t)program->n_ops + 1) * sizeof *place);
    for (uint32_t i = 0; room && i < n; i++) {
        place[sorted[i]] = i, ops[i] = program->ops[sorted[i]], part[i] = merger->view->rank_of[sorted[i]];
        ranks[i] = merger->view->ranks_of[sorted[i]];
    }
    for (uint32_t i = 0; room && i < program->n_ops; i++) {
        const uint32_t other = merger->dropped[i] ? stands_for(merger, i) : LB_NONE;
        if (other == LB_NONE || place[other] == LB_NONE) continue;
        place[i] = place[other];
        if (writes(&program->ops[i])) ranks[place[i]] |= merger->view->ranks_of[i];
    }
    for (uint32_t i = 0; room && i < all; i++)
        op_of[i] = merger->view->op_of[i] < program->n_ops ? place[merger->view->op_of[i]] : LB_NONE;
    if (room) {
        move_boundaries(merger, place, n);
        memcpy(program->ops, ops, (size_t)n * sizeof *ops), program->n_ops = n;
        lb_program_view_reorder(merger->view, op_of, part, ranks);
        merger->done = true;
    } else
        free(op_of), free(part), free(ranks);
    free(place), free(ops);
    return room;
}

static uint32_t count_kept(const merger *merger)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < merger->p->n_ops; i++) n += !merger->dropped[i];
    return n;
}

/* All of it on a copy: where ops would wait for each other, ranks stay as they are. */
static void merge(merger *merger)
{
    merger->failed = !list_memories(merger) || !part_memories(merger);
    free(merger->list), free(merger->memory_of);
    merger->list = NULL, merger->memory_of = NULL, merger->n = 0;
    merger->failed = merger->failed || !list_memories(merger);
    if (!merger->failed) note_ops(merger);
    if (merger->failed) return;
    pair_memories(merger);
    while (!merger->failed && keep_own(merger)) continue;
    merger->dropped = calloc((size_t)merger->p->n_ops + 1, 1), merger->failed |= !merger->dropped;
    if (merger->failed) return;
    mark_dropped(merger);
    move_values(merger);
    if (merger->failed) return;
    rename_values(merger);
    const size_t n = (size_t)merger->p->n_ops + 1;
    order order = {.merger = merger, .first = malloc(n * sizeof *order.first), .waits = calloc(n, sizeof *order.waits)};
    merger->failed |= !order.first || !order.waits;
    if (!merger->failed) memset(order.first, 0xFF, n * sizeof *order.first), link_all(&order);
    merger->failed |= order.failed;
    uint32_t many = 0, *sorted = merger->failed ? NULL : sort_ops(&order, &many);
    merger->failed |= !sorted;
    if (sorted && many == count_kept(merger)) merger->failed |= !put_in_order(merger, sorted, many);
    free(sorted), free(order.first), free(order.next), free(order.to), free(order.waits);
}

lb_status lb_joined_copies_merge(lb_program_view *view, lb_err *err)
{
    lb_program *copy = lb_program_copy(view->merged);
    merger merger = {.view = view, .p = copy, .failed = !copy};
    const uint32_t before = view->merged->n_ops;
    if (copy) merge(&merger);
    for (uint32_t i = 0; i < merger.n; i++) free(merger.list[i].writes);
    free(merger.list), free(merger.memory_of), free(merger.row_of), free(merger.dropped);
    if (merger.failed || !merger.done) {
        lb_program_free(copy);
    } else {
        lb_program_free(view->merged);
        view->program = view->merged = copy;
    }
    return merger.failed ? lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", before) : LB_OK;
}
