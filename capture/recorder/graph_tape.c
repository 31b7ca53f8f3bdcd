/* See graph_tape.h: entries, and copies of everything that they point to. */
#include "recorder/graph_tape.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

#define OUR_KEYS INT64_MIN /* the host's keys are addresses, or numbers that it counts up */

lb_tape *lb_tape_new(int64_t graph, uint64_t serial)
{
    lb_tape *tape = calloc(1, sizeof *tape);
    if (tape) tape->graph = graph, tape->serial = serial;
    return tape;
}

void lb_tape_free(lb_tape *tape)
{
    if (!tape) return;
    for (uint32_t i = 0; i < tape->n_blocks; i++) free(tape->blocks[i]);
    for (uint32_t e = 0; e < tape->n_entries; e++) free(tape->entries[e].written);
    free(tape->blocks);
    free(tape->entries);
    free(tape->storages);
    free(tape->seen);
    free(tape->slots);
    free(tape->devices);
    lb_hash_release(&tape->by_key);
    lb_hash_release(&tape->by_value);
    free(tape);
}

/* ---- storages ---------------------------------------------------------------------------------------------------- */

uint32_t lb_tape_find(const lb_tape *tape, int64_t key)
{
    LB_HASH_EACH(row, &tape->by_key, (uint64_t)key)
    if (tape->storages[row].key == key && !tape->storages[row].own) return row;
    return LB_NONE;
}

uint32_t lb_tape_storage(lb_tape *tape, int64_t key)
{
    const uint32_t known = lb_tape_find(tape, key);
    if (known != LB_NONE) return known;
    lb_taped_storage *list = lb_array_grow(tape->storages, tape->n_storages, sizeof *list);
    if (list) tape->storages = list;
    if (!list || !lb_hash_add(&tape->by_key, (uint64_t)key, tape->n_storages)) {
        tape->short_of_memory = true;
        return LB_NONE;
    }
    list[tape->n_storages] = (lb_taped_storage){.key = key};
    return tape->n_storages++;
}

void lb_tape_gone(lb_tape *tape, int64_t key, uint64_t n)
{
    const uint32_t row = lb_tape_find(tape, key);
    if (row != LB_NONE) tape->storages[row].own = OUR_KEYS + (int64_t)n;
}

int64_t lb_tape_key(const lb_tape *tape, uint32_t storage)
{
    const lb_taped_storage *s = &tape->storages[storage];
    return s->own ? s->own : s->key;
}

bool lb_tape_is_ours(int64_t key)
{
    return key < OUR_KEYS / 2;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

lb_taped *lb_tape_add(lb_tape *tape, lb_taped_kind kind)
{
    lb_taped *entries = lb_array_grow(tape->entries, tape->n_entries, sizeof *entries);
    tape->short_of_memory |= !entries;
    if (!entries) return NULL;
    tape->entries = entries;
    entries[tape->n_entries] = (lb_taped){.kind = kind};
    return &entries[tape->n_entries++];
}

static void *take(lb_tape *tape, size_t size)
{
    void **blocks = lb_array_grow(tape->blocks, tape->n_blocks, sizeof *blocks), *block = NULL;
    if (blocks) tape->blocks = blocks;
    if (blocks && (block = malloc(size ? size : 1))) tape->blocks[tape->n_blocks++] = block;
    tape->short_of_memory |= !block;
    return block;
}

void *lb_tape_copy(lb_tape *tape, const void *data, size_t size)
{
    void *copy = take(tape, size);
    if (copy && size) memcpy(copy, data, size);
    return copy;
}

const char *lb_tape_text(lb_tape *tape, const char *text)
{
    return text ? lb_tape_copy(tape, text, strlen(text) + 1) : NULL;
}

lb_host_tensor *lb_tape_seen(lb_tape *tape, const lb_host_tensor *seen)
{
    lb_taped_seen *list = lb_array_grow(tape->seen, tape->n_seen, sizeof *list);
    tape->short_of_memory |= !list;
    if (!list) return NULL;
    tape->seen = list;
    list[tape->n_seen] = (lb_taped_seen){lb_tape_copy(tape, seen, sizeof *seen), lb_tape_storage(tape, seen->storage)};
    return tape->short_of_memory ? NULL : list[tape->n_seen++].seen;
}

static void copy_operand(lb_tape *tape, lb_recorded_operand *operand)
{
    if (operand->tag == LB_ARG_STRING)
        operand->u.text = lb_tape_text(tape, operand->u.text);
    else if (operand->tag == LB_ARG_VALUE)
        operand->u.tensor = lb_tape_seen(tape, operand->u.tensor);
    else if (operand->tag == LB_ARG_LIST || operand->tag == LB_ARG_COMPLEX)
        operand->u.items = lb_tape_operands(tape, operand->u.items, operand->count);
}

lb_recorded_operand *lb_tape_operands(lb_tape *tape, const lb_recorded_operand *operands, uint32_t n)
{
    lb_recorded_operand *copy = lb_tape_copy(tape, operands, n * sizeof *copy);
    for (uint32_t i = 0; i < n && !tape->short_of_memory; i++) copy_operand(tape, &copy[i]);
    return copy;
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

static uint64_t key_of(uint32_t storage, uint32_t version, uint64_t hash)
{
    return hash ^ ((uint64_t)version << 32 | storage) * UINT64_C(0x9E3779B97F4A7C15);
}

static bool add_device(lb_tape *tape, struct lb_device *device, uint64_t slot)
{
    for (uint32_t i = 0; i < tape->n_devices; i++) {
        lb_taped_device *d = &tape->devices[i];
        if (d->device != device) continue;
        if (slot < d->first) d->first = slot;
        if (slot > d->last) d->last = slot;
        return true;
    }
    lb_taped_device *list = lb_array_grow(tape->devices, tape->n_devices, sizeof *list);
    if (!list) return false;
    tape->devices = list;
    list[tape->n_devices++] = (lb_taped_device){device, slot, slot};
    return true;
}

bool lb_tape_add_slot(lb_tape *tape, struct lb_device *device, const lb_taped_slot *slot)
{
    lb_taped_slot *list = lb_array_grow(tape->slots, tape->n_slots, sizeof *list);
    if (list) tape->slots = list;
    if (!list || !add_device(tape, device, slot->slot) ||
        !lb_hash_add(&tape->by_value, key_of(slot->storage, slot->version, slot->hash), tape->n_slots))
        return false;
    list[tape->n_slots] = *slot;
    list[tape->n_slots++].before = tape->storages[slot->storage].newest;
    tape->storages[slot->storage].newest = tape->n_slots;
    return true;
}

const lb_taped_slot *lb_tape_slot(const lb_tape *tape, uint32_t storage, uint64_t hash)
{
    const uint32_t version = tape->storages[storage].version;
    const lb_taped_slot *found = NULL;
    LB_HASH_EACH(row, &tape->by_value, key_of(storage, version, hash))
    {
        const lb_taped_slot *slot = &tape->slots[row];
        if (slot->storage != storage || slot->version != version || slot->hash != hash) continue;
        if (!found || slot->each_run) found = slot;
    }
    return found;
}

bool lb_tape_covers(const lb_tape *tape, uint32_t storage, int64_t first, int64_t last)
{
    for (uint32_t i = tape->storages[storage].newest; i; i = tape->slots[i - 1].before) {
        const lb_taped_slot *slot = &tape->slots[i - 1];
        if (slot->version != tape->storages[storage].version) return false;
        if (slot->each_run && slot->first <= first && slot->last >= last) return true;
    }
    return false;
}

void lb_tape_rewind(lb_tape *tape, void *stream)
{
    for (uint32_t s = 0; s < tape->n_storages; s++) tape->storages[s].version = 0;
    for (uint32_t i = 0; i < tape->n_seen; i++) {
        tape->seen[i].seen->storage = lb_tape_key(tape, tape->seen[i].storage);
        tape->seen[i].seen->stream = stream;
    }
}
