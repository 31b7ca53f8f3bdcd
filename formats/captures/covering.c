/* See covering.h. */
#include "captures/covering.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct range { /* of a kept value, in bytes of its storage */
    int64_t storage, first, last;
    uint32_t version, row;
} range;

typedef struct index {
    struct index *next;
    const lb_program *program;
    uint32_t n;
    range ranges[]; /* by storage, version, first */
} index;

enum { BUCKETS = 1024 };

struct lb_covering {
    pthread_mutex_t lock;
    index *indexes[BUCKETS]; /* by the program's address */
};

lb_covering *lb_covering_new(void)
{
    lb_covering *covering = (lb_covering *)calloc(1, sizeof *covering);
    if (covering) pthread_mutex_init(&covering->lock, NULL);
    return covering;
}

void lb_covering_free(lb_covering *covering)
{
    if (!covering) return;
    for (int b = 0; b < BUCKETS; b++)
        for (index *index = covering->indexes[b], *next; index; index = next) {
            next = index->next;
            free(index);
        }
    pthread_mutex_destroy(&covering->lock);
    free(covering);
}

static bool range_of(const lb_program *program, uint32_t row, range *r)
{
    const lb_value *value = &program->values[row];
    int64_t first, last, bits = (int64_t)lb_dtype_bits(value->dtype);
    if (lb_layout_dense_range(&value->layout, &first, &last, NULL) != LB_OK) return false;
    *r = (range){value->storage, first * bits / 8, (last * bits + 7) / 8, value->version, row};
    return true;
}

static bool is_kept(const lb_value *value)
{
    return value->flags & LB_VALUE_KEPT && !lb_digest_is_none(value->blob);
}

static int compare(const void *a, const void *b)
{
    const range *x = (const range *)a, *y = (const range *)b;
    if (x->storage != y->storage) return x->storage < y->storage ? -1 : 1;
    if (x->version != y->version) return x->version < y->version ? -1 : 1;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

static index *make_index(const lb_program *program)
{
    uint32_t n = 0;
    for (uint32_t v = 0; v < program->n_values; v++) n += is_kept(&program->values[v]);
    index *i = (index *)malloc(sizeof *i + n * sizeof i->ranges[0]);
    if (!i) return NULL;
    i->program = program;
    i->n = 0;
    for (uint32_t v = 0; v < program->n_values; v++)
        if (is_kept(&program->values[v]) && range_of(program, v, &i->ranges[i->n])) i->n++;
    qsort(i->ranges, i->n, sizeof i->ranges[0], compare);
    return i;
}

static index **bucket_of(lb_covering *covering, const lb_program *program)
{
    return &covering->indexes[(uintptr_t)program / 64 % BUCKETS];
}

void lb_covering_drop(lb_covering *covering, const lb_program *program)
{
    pthread_mutex_lock(&covering->lock);
    for (index **at = bucket_of(covering, program); *at; at = &(*at)->next) {
        index *i = *at;
        if (i->program != program) continue;
        *at = i->next;
        free(i);
        break;
    }
    pthread_mutex_unlock(&covering->lock);
}

static const index *index_of(lb_covering *covering, const lb_program *program)
{
    pthread_mutex_lock(&covering->lock);
    index **bucket = bucket_of(covering, program), *i = *bucket;
    while (i && i->program != program) i = i->next;
    if (!i && (i = make_index(program))) {
        i->next = *bucket;
        *bucket = i;
    }
    pthread_mutex_unlock(&covering->lock);
    return i;
}

static bool contains(const range *outer, const range *inner)
{
    return outer->storage == inner->storage && outer->version == inner->version && outer->first <= inner->first &&
           outer->last >= inner->last;
}

static uint32_t search(const index *index, const range *wanted, range *found)
{
    uint32_t low = 0, high = index->n; /* the first of this storage and version */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const range *r = &index->ranges[middle];
        bool before = r->storage != wanted->storage ? r->storage < wanted->storage : r->version < wanted->version;
        if (before)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < index->n; low++) {
        const range *r = &index->ranges[low];
        if (r->storage != wanted->storage || r->version != wanted->version || r->first > wanted->first) break;
        if (!contains(r, wanted)) continue;
        *found = *r;
        return r->row;
    }
    return LB_NONE;
}

uint32_t lb_covering_find(lb_covering *covering, const lb_program *program, bool lasting, uint32_t value,
                          size_t *offset)
{
    range wanted, found;
    uint32_t row = LB_NONE;
    if (!range_of(program, value, &wanted)) return LB_NONE;
    const index *index = lasting ? index_of(covering, program) : NULL;
    if (index) {
        row = search(index, &wanted, &found);
    } else { /* a copy that may be gone tomorrow: look through it */
        for (uint32_t v = 0; v < program->n_values && row == LB_NONE; v++)
            if (program->values[v].storage == wanted.storage && is_kept(&program->values[v]) &&
                range_of(program, v, &found) && contains(&found, &wanted))
                row = v;
    }
    if (row != LB_NONE) *offset = (size_t)(wanted.first - found.first);
    return row;
}
