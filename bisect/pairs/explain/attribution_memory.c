/* What was learned at earlier places: see attribution_memory.h. */
#include "explain/attribution_memory.h"

#include "base/array.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int32_t rank_in_memory(const lb_attribution_memory *memory, const char *name)
{
    for (uint32_t i = 0; i < memory->n; i++)
        if (!strcmp(memory->names[i], name)) return (int32_t)i;
    return -1;
}

void lb_attribution_memory_note(lb_attribution_memory *memory, const char *name)
{
    enum { ROOM = sizeof memory->names / sizeof *memory->names };
    /* Move to front: a model repeats its layers, so that what explained the last place is the best
     * guess for the next, and the rest of the list is only needed to exclude alternatives. */
    int32_t at = rank_in_memory(memory, name);
    uint32_t moved = at >= 0 ? (uint32_t)at : memory->n < ROOM ? memory->n++ : ROOM - 1;
    memmove(memory->names + 1, memory->names, moved * sizeof *memory->names);
    snprintf(memory->names[0], sizeof *memory->names, "%s", name);
}

uint32_t *lb_attribution_memory_sites(lb_attribution_memory *memory, const char *name, int side)
{
    enum { ROOM = sizeof memory->tally / sizeof *memory->tally };
    for (uint32_t i = 0; i < memory->n_tally; i++)
        if (!strcmp(memory->tally[i].name, name)) return &memory->tally[i].sites[side];
    if (memory->n_tally == ROOM) return NULL;
    snprintf(memory->tally[memory->n_tally].name, sizeof memory->tally->name, "%s", name);
    return &memory->tally[memory->n_tally++].sites[side];
}

const lb_exhausted_search *lb_attribution_memory_exhausted(const lb_attribution_memory *memory, uint64_t key)
{
    for (uint32_t i = 0; i < memory->n_exhausted; i++)
        if (memory->exhausted[i].key == key && memory->exhausted[i].places >= 2) return &memory->exhausted[i];
    return NULL;
}

void lb_attribution_memory_note_exhausted(lb_attribution_memory *memory, uint64_t key, const char *nearest,
                                          uint32_t tried)
{
    for (uint32_t i = 0; i < memory->n_exhausted; i++)
        if (memory->exhausted[i].key == key) {
            memory->exhausted[i].places++;
            return;
        }
    lb_exhausted_search *rows = lb_array_grow(memory->exhausted, memory->n_exhausted, sizeof *rows);
    if (!rows) return;
    memory->exhausted = rows;
    rows[memory->n_exhausted] = (lb_exhausted_search){.key = key, .tried = tried, .places = 1};
    snprintf(rows[memory->n_exhausted++].nearest, sizeof rows->nearest, "%s", nearest);
}

bool lb_attribution_memory_one_function(const lb_attribution_memory *memory, uint64_t kinds)
{
    for (uint32_t i = 0; i < memory->n_one_function; i++)
        if (memory->one_function[i] == kinds) return true;
    return false;
}

void lb_attribution_memory_note_function(lb_attribution_memory *memory, uint64_t kinds)
{
    enum { ROOM = sizeof memory->one_function / sizeof *memory->one_function };
    if (memory->n_one_function < ROOM && !lb_attribution_memory_one_function(memory, kinds))
        memory->one_function[memory->n_one_function++] = kinds;
}

void lb_attribution_memory_release(lb_attribution_memory *memory)
{
    lb_candidate_digests_release(&memory->digests);
    free(memory->exhausted);
    memory->exhausted = NULL, memory->n_exhausted = 0;
}

double *lb_attribution_memory_spent(lb_attribution_memory *memory, const lb_program *program,
                                    const lb_matched_region_side *side)
{
    enum { KINDS = sizeof memory->spent / sizeof *memory->spent };
    /* FNV's prime as multiplier. Two kinds that fall on one row share their time, which makes one
     * of them impatient and nothing wrong, so that the table needs no keys. */
    uint64_t hash = side->n_ops;
    for (uint32_t i = 0; i < side->n_ops; i++)
        for (const char *c = lb_op_name(program, &program->ops[side->ops[i]]); *c; c++)
            hash = hash * 1099511628211u + (uint8_t)*c;
    return &memory->spent[hash % KINDS];
}
