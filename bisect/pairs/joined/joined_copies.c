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

static uint32_t memory_at(const merger *m, int64_t id)
{
    uint32_t low = 0, high = m->n;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (m->list[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool list_memories(merger *m)
{
    const lb_program *p = m->p;
    int64_t *ids = malloc(((size_t)p->n_values + 1) * sizeof *ids);
    m->list = calloc((size_t)p->n_values + 1, sizeof *m->list);
    m->memory_of = malloc(((size_t)p->n_values + 1) * sizeof *m->memory_of);
    const bool room = ids && m->list && m->memory_of;
    for (uint32_t v = 0; room && v < p->n_values; v++) ids[v] = p->values[v].storage;
    if (room && p->n_values) qsort(ids, p->n_values, sizeof *ids, by_id);
    for (uint32_t v = 0; room && v < p->n_values; v++)
        if (!v || ids[v] != ids[v - 1]) m->list[m->n++] = (memory){.id = ids[v], .part = LB_NONE, .into = LB_NONE};
    for (uint32_t v = 0; room && v < p->n_values; v++) m->memory_of[v] = memory_at(m, p->values[v].storage);
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
    reader *r = context;
    r->found |= v != LB_NONE && r->merger->memory_of[v] == r->memory;
}

static extent *list_extents(const merger *m)
{
    extent *list = calloc((size_t)m->n + 1, sizeof *list);
    for (uint32_t v = 0; list && v < m->p->n_values; v++) {
        extent *e = &list[m->memory_of[v]];
        const lb_value *value = &m->p->values[v];
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

static part_write *list_writes(merger *m, uint32_t *n)
{
    part_write *list = NULL;
    *n = 0;
    for (uint32_t i = 0; i < m->p->n_ops && !m->failed; i++) {
        const lb_op *op = &m->p->ops[i];
        for (uint32_t k = 0; writes(op) && k < lb_op_outcomes(op); k++) {
            const uint32_t v = lb_op_outcome(m->p, op, k);
            bool again = v == LB_NONE;
            for (uint32_t before = 0; before < k && !again; before++) again = lb_op_outcome(m->p, op, before) == v;
            if (again) continue;
            const lb_layout *l = &m->p->values[v].layout;
            reader r = {m, m->memory_of[v], false};
            lb_op_each_input(m->p, op, note_read, &r);
            part_write *more = lb_array_grow(list, *n, sizeof *more);
            m->failed |= !more;
            if (!more) return list;
            list = more;
            list[(*n)++] = (part_write){m->memory_of[v], m->p->values[v].version,
                                        r.found || !lb_layout_is_contiguous(l) ? 0 : lb_layout_numel(l)};
        }
    }
    if (*n) qsort(list, *n, sizeof *list, by_version);
    return list;
}

/* Of values in a memory, those of this version and behind it lie in another one now. */
static void move_behind(const merger *m, int64_t *ids, uint32_t memory, uint32_t version, int64_t id)
{
    for (uint32_t v = 0; v < m->p->n_values; v++)
        if (m->memory_of[v] == memory && m->p->values[v].version >= version) ids[v] = id;
}

/* What is written over all of some memory, at once or part by part, by ops that read none of it, is memory of its own:
 * what stood there before on each rank says nothing of it. */
static bool part_memories(merger *m)
{
    extent *extents = list_extents(m);
    int64_t *ids = malloc(((size_t)m->p->n_values + 1) * sizeof *ids), next = WRITTEN_ANEW;
    uint32_t n;
    part_write *list = list_writes(m, &n);
    const bool room = extents && ids && !m->failed;
    for (uint32_t v = 0; room && v < m->p->n_values; v++) ids[v] = m->p->values[v].storage;
    for (uint32_t i = 0; room && i < n;) {
        const part_write *w = &list[i];
        const extent *e = &extents[w->memory];
        const bool later = i && list[i - 1].memory == w->memory;
        int64_t covered = 0;
        bool plain = true;
        for (; i < n && list[i].memory == w->memory && list[i].version == w->version; i++)
            covered += list[i].length, plain &= list[i].length > 0;
        if (later && plain && !e->fixed && covered == e->last - e->first)
            move_behind(m, ids, w->memory, w->version, next++);
    }
    for (uint32_t v = 0; room && v < m->p->n_values; v++) m->p->values[v].storage = ids[v];
    free(extents), free(ids), free(list);
    return room;
}

/* ---- histories ---- */

static uint64_t window_key(const lb_value *v)
{
    uint64_t key = mix((uint64_t)v->dtype, (uint64_t)v->layout.offset);
    key = mix(key, v->flags & LB_VALUE_LAZY);
    for (int d = 0; d < v->layout.ndim; d++)
        key = mix(mix(key, (uint64_t)v->layout.shape[d]), (uint64_t)v->layout.stride[d]);
    return key;
}

static uint64_t args_key(const merger *m, const lb_arg *args, uint32_t n)
{
    uint64_t key = n;
    for (uint32_t i = 0; i < n; i++) {
        key = mix(key, args[i].tag);
        switch ((lb_arg_tag)args[i].tag) {
        case LB_ARG_NONE: break;
        case LB_ARG_VALUE:
            if (args[i].u.value == LB_NONE) break;
            key = mix(key, m->list[m->memory_of[args[i].u.value]].history);
            key = mix(key, window_key(&m->p->values[args[i].u.value]));
            break;
        case LB_ARG_LIST:
        case LB_ARG_COMPLEX: key = mix(key, args_key(m, m->p->args + args[i].u.first, args[i].count)); break;
        case LB_ARG_STRING: key = mix(key, args[i].u.string); break;
        default: key = mix(key, (uint64_t)args[i].u.i); break;
        }
    }
    return key;
}

/* What was recorded of the results counts where nothing computes them; a value without a digest is like no other. */
static uint64_t results_key(const merger *m, const lb_op *op, uint32_t at)
{
    uint64_t key = 0;
    for (uint32_t i = 0; i < lb_op_outcomes(op); i++) {
        const uint32_t v = lb_op_outcome(m->p, op, i);
        if (v == LB_NONE) continue;
        const lb_value *value = &m->p->values[v];
        if (lb_digest_is_none(value->logical)) return mix(key, (uint64_t)at + 1);
        key = mix(mix(key, value->logical.lo), value->logical.hi);
        if (lb_op_is_source(m->p, op))
            key = mix(mix(key, value->name), value->flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE | LB_VALUE_GRADIENT));
    }
    return key;
}

static bool is_taken(const lb_program *p, const lb_op *op)
{
    lb_op_form form;
    if (op->flags & LB_OP_RANDOM || lb_op_is_source(p, op)) return true;
    const lb_op_row *row = lb_op_find(lb_op_name(p, op), &form);
    return !row || (!row->kernel && lb_op_outcomes(op) && !(row->flags & LB_ROW_UNDEFINED));
}

static void note_write(merger *m, uint32_t op, uint32_t v, uint64_t key)
{
    memory *s = &m->list[m->memory_of[v]];
    write *more = lb_array_grow(s->writes, s->n, sizeof *more);
    m->failed |= !more;
    if (!more) return;
    s->writes = more;
    s->writes[s->n++] = (write){op, m->p->values[v].version, LB_NONE};
    if (s->part == LB_NONE) s->part = m->view->rank_of[op];
    s->history = mix(s->history, mix(key, window_key(&m->p->values[v])));
}

/* All keys before any of the op's own writes. */
static void note_ops(merger *m)
{
    for (uint32_t i = 0; i < m->p->n_ops && !m->failed; i++) {
        const lb_op *op = &m->p->ops[i];
        if (!writes(op)) continue;
        uint64_t key = mix(op->name, args_key(m, lb_op_args(m->p, op), op->args));
        if (is_taken(m->p, op)) key = mix(key, results_key(m, op, i));
        for (uint32_t k = 0; k < lb_op_outcomes(op) && !m->failed; k++) {
            const uint32_t v = lb_op_outcome(m->p, op, k);
            if (v != LB_NONE) note_write(m, i, v, mix(key, k));
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
static void pair_memories(merger *m)
{
    ranked *list = malloc(((size_t)m->n + 1) * sizeof *list);
    uint32_t n = 0;
    m->failed |= !list;
    for (uint32_t i = 0; list && i < m->n; i++)
        if (m->list[i].n) list[n++] = (ranked){m->list[i].history, m->list[i].part, m->list[i].writes[0].op, i, 0};
    if (n) qsort(list, n, sizeof *list, by_history);
    for (uint32_t i = 1; i < n; i++)
        if (list[i].history == list[i - 1].history && list[i].part == list[i - 1].part)
            list[i].nth = list[i - 1].nth + 1;
    if (n) qsort(list, n, sizeof *list, by_place);
    for (uint32_t i = 0, first = 0; i < n; i++) {
        if (list[i].history != list[first].history || list[i].nth != list[first].nth) first = i;
        if (i != first && m->list[list[i].memory].n == m->list[list[first].memory].n)
            m->list[list[i].memory].into = list[first].memory;
    }
    free(list);
}

/* An op that gives something which is its rank's own stays, and with it all that it gives. True: some memory is its own
 * now. */
static bool keep_own(merger *m)
{
    bool changed = false;
    for (uint32_t i = 0; i < m->p->n_ops; i++) {
        const lb_op *op = &m->p->ops[i];
        bool own = false;
        if (!writes(op)) continue;
        for (uint32_t k = 0; k < lb_op_outcomes(op); k++) {
            const uint32_t v = lb_op_outcome(m->p, op, k);
            own |= v != LB_NONE && m->list[m->memory_of[v]].into == LB_NONE;
        }
        for (uint32_t k = 0; own && k < lb_op_outcomes(op); k++) {
            const uint32_t v = lb_op_outcome(m->p, op, k);
            if (v == LB_NONE || m->list[m->memory_of[v]].into == LB_NONE) continue;
            m->list[m->memory_of[v]].into = LB_NONE, changed = true;
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
    shared *s = context;
    if (v == LB_NONE) return;
    s->any = true, s->own |= s->merger->list[s->merger->memory_of[v]].into == LB_NONE;
}

static void mark_dropped(merger *m)
{
    for (uint32_t i = 0; i < m->p->n_ops; i++) {
        const lb_op *op = &m->p->ops[i];
        shared s = {m, false, false};
        for (uint32_t k = 0; k < lb_op_outcomes(op); k++) note_input(&s, lb_op_outcome(m->p, op, k));
        if (!s.any) lb_op_each_input(m->p, op, note_input, &s);
        m->dropped[i] = s.any && !s.own;
    }
}

/* ---- values ---- */

static uint32_t root_of(const merger *m, uint32_t memory)
{
    while (m->list[memory].into != LB_NONE) memory = m->list[memory].into;
    return memory;
}

/* The last write that a value of that version sees; LB_NONE. */
static uint32_t write_at(const memory *s, uint32_t version)
{
    uint32_t found = LB_NONE;
    for (uint32_t i = 0; i < s->n && s->writes[i].version <= version; i++) found = i;
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
static void move_values(merger *m)
{
    lb_program *p = m->p;
    keyed *list = malloc(((size_t)p->n_values + 1) * sizeof *list);
    m->row_of = malloc(((size_t)p->n_values + 1) * sizeof *m->row_of);
    m->failed |= !list || !m->row_of;
    for (uint32_t v = 0; v < p->n_values && !m->failed; v++) {
        const uint32_t from = m->memory_of[v], to = root_of(m, from);
        lb_value *value = &p->values[v];
        m->row_of[v] = v;
        if (from != to) {
            const uint32_t seen = write_at(&m->list[from], value->version);
            value->storage = m->list[to].id, m->memory_of[v] = to;
            value->version = seen == LB_NONE ? m->list[to].writes[0].version - 1 : m->list[to].writes[seen].version;
        }
        list[v] = (keyed){mix(mix((uint64_t)value->storage, value->version), window_key(value)), v, from != to};
    }
    if (!m->failed && p->n_values) qsort(list, p->n_values, sizeof *list, by_key);
    for (uint32_t i = 1, first = 0; i < p->n_values && !m->failed; i++) {
        if (list[i].key != list[first].key) first = i;
        if (i != first && list[i].moved && are_one(&p->values[list[i].value], &p->values[list[first].value]))
            m->row_of[list[i].value] = list[first].value;
    }
    free(list);
}

static void rename_values(merger *m)
{
    lb_program *p = m->p;
    for (uint32_t i = 0; i < p->n_args; i++)
        if (p->args[i].tag == LB_ARG_VALUE && p->args[i].u.value < p->n_values)
            p->args[i].u.value = m->row_of[p->args[i].u.value];
    for (uint32_t i = 0; i < p->n_refs; i++)
        if (p->refs[i] < p->n_values) p->refs[i] = m->row_of[p->refs[i]];
    for (uint32_t i = 0; i < p->n_boundaries; i++)
        if (p->boundaries[i].value != LB_NONE) p->boundaries[i].value = m->row_of[p->boundaries[i].value];
    for (uint32_t i = 0; i < p->n_routings; i++) {
        lb_routing *r = &p->routings[i];
        uint32_t *values[] = {&r->logits, &r->ids, &r->weights, &r->slots, &r->dropped};
        for (int k = 0; k < 5; k++)
            if (*values[k] != LB_NONE) *values[k] = m->row_of[*values[k]];
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

static void link_ops(order *o, uint32_t before, uint32_t after)
{
    if (before == after) return;
    uint32_t *next = lb_array_grow(o->next, o->n, sizeof *next);
    if (next) o->next = next;
    uint32_t *to = next ? lb_array_grow(o->to, o->n, sizeof *to) : NULL;
    o->failed |= !to;
    if (!to) return;
    o->to = to;
    o->to[o->n] = after, o->next[o->n] = o->first[before], o->first[before] = o->n++, o->waits[after]++;
}

static void link_read(void *context, uint32_t v)
{
    order *o = context;
    const merger *m = o->merger;
    if (v == LB_NONE) return;
    const memory *s = &m->list[m->memory_of[v]];
    const uint32_t seen = write_at(s, m->p->values[v].version);
    uint32_t next = seen == LB_NONE ? 0 : seen + 1;
    if (seen != LB_NONE) link_ops(o, s->writes[seen].op, o->op);
    if (next < s->n) link_ops(o, o->op, s->writes[next].op);
}

static void link_all(order *o)
{
    merger *m = o->merger;
    for (uint32_t i = 0; i < m->n; i++)
        for (uint32_t k = 1; m->list[i].into == LB_NONE && k < m->list[i].n && !o->failed; k++)
            link_ops(o, m->list[i].writes[k - 1].op, m->list[i].writes[k].op);
    for (o->op = 0; o->op < m->p->n_ops && !o->failed; o->op++) {
        const lb_op *op = &m->p->ops[o->op];
        if (m->dropped[o->op]) continue;
        lb_op_each_input(m->p, op, link_read, o);
        for (uint32_t k = 0; !writes(op) && k < lb_op_outcomes(op); k++) link_read(o, lb_op_outcome(m->p, op, k));
    }
}

typedef struct heap {
    uint32_t *list, n;
} heap;

static void push(heap *h, uint32_t x)
{
    uint32_t i = h->n++;
    for (; i && h->list[(i - 1) / 2] > x; i = (i - 1) / 2) h->list[i] = h->list[(i - 1) / 2];
    h->list[i] = x;
}

static uint32_t pop(heap *h)
{
    const uint32_t least = h->list[0], x = h->list[--h->n];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= h->n) break;
        if (child + 1 < h->n && h->list[child + 1] < h->list[child]) child++;
        if (h->list[child] >= x) break;
        h->list[i] = h->list[child], i = child;
    }
    h->list[i] = x;
    return least;
}

/* Ops that stay, each behind what it needs, else as they stood; `*n` fewer than there are: some wait for each other. */
static uint32_t *sort_ops(order *o, uint32_t *n)
{
    const merger *m = o->merger;
    uint32_t *sorted = malloc(((size_t)m->p->n_ops + 1) * sizeof *sorted);
    heap ready = {.list = malloc(((size_t)m->p->n_ops + 1) * sizeof *ready.list)};
    *n = 0;
    for (uint32_t i = 0; ready.list && i < m->p->n_ops; i++)
        if (!m->dropped[i] && !o->waits[i]) push(&ready, i);
    while (sorted && ready.list && ready.n) {
        const uint32_t op = pop(&ready);
        sorted[(*n)++] = op;
        for (uint32_t e = o->first[op]; e != LB_NONE; e = o->next[e])
            if (!--o->waits[o->to[e]]) push(&ready, o->to[e]);
    }
    free(ready.list);
    return sorted;
}

/* The op that stands for a dropped one: it writes what that one's first result is in; LB_NONE. */
static uint32_t stands_for(const merger *m, uint32_t op)
{
    const lb_op *o = &m->p->ops[op];
    for (uint32_t k = 0; k < lb_op_outcomes(o); k++) {
        const uint32_t v = lb_op_outcome(m->p, o, k);
        if (v == LB_NONE) continue;
        const memory *s = &m->list[m->memory_of[v]];
        const uint32_t seen = write_at(s, m->p->values[v].version);
        if (seen != LB_NONE) return s->writes[seen].op;
    }
    return LB_NONE;
}

/* `place`: per old op its place in the new order, of dropped ones that of what stands for them. */
static void move_boundaries(const merger *m, const uint32_t *place, uint32_t n)
{
    for (uint32_t i = 0; i < m->p->n_boundaries; i++) {
        lb_boundary *b = &m->p->boundaries[i];
        const memory *s = b->value == LB_NONE ? NULL : &m->list[m->memory_of[b->value]];
        const uint32_t seen = s ? write_at(s, m->p->values[b->value].version) : LB_NONE;
        b->op = seen == LB_NONE ? n : place[s->writes[seen].op] + 1;
        if (b->op > n) b->op = n;
    }
}

static bool put_in_order(merger *m, const uint32_t *sorted, uint32_t n)
{
    lb_program *p = m->p;
    uint32_t *place = malloc(((size_t)p->n_ops + 1) * sizeof *place), *part = malloc(((size_t)n + 1) * sizeof *part),
             *op_of = NULL, all = 0;
    lb_op *ops = malloc(((size_t)n + 1) * sizeof *ops);
    uint64_t *ranks = calloc((size_t)n + 1, sizeof *ranks);
    for (uint32_t k = 0; k < m->view->n_parts; k++) all += m->view->parts[k].program->n_ops;
    op_of = malloc(((size_t)all + 1) * sizeof *op_of);
    const bool room = place && part && ops && op_of && ranks;
    if (room) memset(place, 0xFF, ((size_t)p->n_ops + 1) * sizeof *place);
    for (uint32_t i = 0; room && i < n; i++) {
        place[sorted[i]] = i, ops[i] = p->ops[sorted[i]], part[i] = m->view->rank_of[sorted[i]];
        ranks[i] = m->view->ranks_of[sorted[i]];
    }
    for (uint32_t i = 0; room && i < p->n_ops; i++) {
        const uint32_t other = m->dropped[i] ? stands_for(m, i) : LB_NONE;
        if (other == LB_NONE || place[other] == LB_NONE) continue;
        place[i] = place[other];
        if (writes(&p->ops[i])) ranks[place[i]] |= m->view->ranks_of[i];
    }
    for (uint32_t i = 0; room && i < all; i++)
        op_of[i] = m->view->op_of[i] < p->n_ops ? place[m->view->op_of[i]] : LB_NONE;
    if (room) {
        move_boundaries(m, place, n);
        memcpy(p->ops, ops, (size_t)n * sizeof *ops), p->n_ops = n;
        lb_program_view_reorder(m->view, op_of, part, ranks);
        m->done = true;
    } else
        free(op_of), free(part), free(ranks);
    free(place), free(ops);
    return room;
}

static uint32_t count_kept(const merger *m)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->p->n_ops; i++) n += !m->dropped[i];
    return n;
}

/* All of it on a copy: where ops would wait for each other, ranks stay as they are. */
static void merge(merger *m)
{
    m->failed = !list_memories(m) || !part_memories(m);
    free(m->list), free(m->memory_of);
    m->list = NULL, m->memory_of = NULL, m->n = 0;
    m->failed = m->failed || !list_memories(m);
    if (!m->failed) note_ops(m);
    if (m->failed) return;
    pair_memories(m);
    while (!m->failed && keep_own(m)) continue;
    m->dropped = calloc((size_t)m->p->n_ops + 1, 1), m->failed |= !m->dropped;
    if (m->failed) return;
    mark_dropped(m);
    move_values(m);
    if (m->failed) return;
    rename_values(m);
    const size_t n = (size_t)m->p->n_ops + 1;
    order o = {.merger = m, .first = malloc(n * sizeof *o.first), .waits = calloc(n, sizeof *o.waits)};
    m->failed |= !o.first || !o.waits;
    if (!m->failed) memset(o.first, 0xFF, n * sizeof *o.first), link_all(&o);
    m->failed |= o.failed;
    uint32_t many = 0, *sorted = m->failed ? NULL : sort_ops(&o, &many);
    m->failed |= !sorted;
    if (sorted && many == count_kept(m)) m->failed |= !put_in_order(m, sorted, many);
    free(sorted), free(o.first), free(o.next), free(o.to), free(o.waits);
}

lb_status lb_joined_copies_merge(lb_program_view *view, lb_err *err)
{
    lb_program *copy = lb_program_copy(view->merged);
    merger m = {.view = view, .p = copy, .failed = !copy};
    const uint32_t before = view->merged->n_ops;
    if (copy) merge(&m);
    for (uint32_t i = 0; i < m.n; i++) free(m.list[i].writes);
    free(m.list), free(m.memory_of), free(m.row_of), free(m.dropped);
    if (m.failed || !m.done) {
        lb_program_free(copy);
    } else {
        lb_program_free(view->merged);
        view->program = view->merged = copy;
    }
    return m.failed ? lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", before) : LB_OK;
}
