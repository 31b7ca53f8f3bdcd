/* What was learned at earlier places: see attribution_memory.h. */
#include "explain/attribution_memory.h"

#include "base/array.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int32_t rank_in_memory(const lb_attribution_memory *m, const char *name)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (!strcmp(m->names[i], name)) return (int32_t)i;
    return -1;
}

void lb_attribution_memory_note(lb_attribution_memory *m, const char *name)
{
    enum { ROOM = sizeof m->names / sizeof *m->names };
    /* Move to front: a model repeats its layers, so that what explained the last place is the best
     * guess for the next, and the rest of the list is only needed to exclude alternatives. */
    int32_t at = rank_in_memory(m, name);
    uint32_t moved = at >= 0 ? (uint32_t)at : m->n < ROOM ? m->n++ : ROOM - 1;
    memmove(m->names + 1, m->names, moved * sizeof *m->names);
    snprintf(m->names[0], sizeof *m->names, "%s", name);
}

uint32_t *lb_attribution_memory_sites(lb_attribution_memory *m, const char *name, int side)
{
    enum { ROOM = sizeof m->tally / sizeof *m->tally };
    for (uint32_t i = 0; i < m->n_tally; i++)
        if (!strcmp(m->tally[i].name, name)) return &m->tally[i].sites[side];
    if (m->n_tally == ROOM) return NULL;
    snprintf(m->tally[m->n_tally].name, sizeof m->tally->name, "%s", name);
    return &m->tally[m->n_tally++].sites[side];
}

const lb_exhausted_search *lb_attribution_memory_exhausted(const lb_attribution_memory *m, uint64_t key)
{
    for (uint32_t i = 0; i < m->n_exhausted; i++)
        if (m->exhausted[i].key == key && m->exhausted[i].places >= 2) return &m->exhausted[i];
    return NULL;
}

void lb_attribution_memory_note_exhausted(lb_attribution_memory *m, uint64_t key, const char *nearest, uint32_t tried)
{
    for (uint32_t i = 0; i < m->n_exhausted; i++)
        if (m->exhausted[i].key == key) {
            m->exhausted[i].places++;
            return;
        }
    lb_exhausted_search *rows = lb_array_grow(m->exhausted, m->n_exhausted, sizeof *rows);
    if (!rows) return;
    m->exhausted = rows;
    rows[m->n_exhausted] = (lb_exhausted_search){.key = key, .tried = tried, .places = 1};
    snprintf(rows[m->n_exhausted++].nearest, sizeof rows->nearest, "%s", nearest);
}

bool lb_attribution_memory_one_function(const lb_attribution_memory *m, uint64_t kinds)
{
    for (uint32_t i = 0; i < m->n_one_function; i++)
        if (m->one_function[i] == kinds) return true;
    return false;
}

void lb_attribution_memory_note_function(lb_attribution_memory *m, uint64_t kinds)
{
    enum { ROOM = sizeof m->one_function / sizeof *m->one_function };
    if (m->n_one_function < ROOM && !lb_attribution_memory_one_function(m, kinds))
        m->one_function[m->n_one_function++] = kinds;
}

void lb_attribution_memory_release(lb_attribution_memory *m)
{
    lb_candidate_digests_release(&m->digests);
    free(m->exhausted);
    m->exhausted = NULL, m->n_exhausted = 0;
}

double *lb_attribution_memory_spent(lb_attribution_memory *m, const lb_program *p, const lb_matched_region_side *side)
{
    enum { KINDS = sizeof m->spent / sizeof *m->spent };
    /* FNV's prime as multiplier. Two kinds that fall on one row share their time, which makes one
     * of them impatient and nothing wrong, so that the table needs no keys. */
    uint64_t hash = side->n_ops;
    for (uint32_t i = 0; i < side->n_ops; i++)
        for (const char *c = lb_op_name(p, &p->ops[side->ops[i]]); *c; c++) hash = hash * 1099511628211u + (uint8_t)*c;
    return &m->spent[hash % KINDS];
}
