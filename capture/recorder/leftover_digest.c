/* What a program leaves in a storage that it wrote in parts, and whether it is still there when the next one comes.
 *
 * Windows remember what is left of values that were written or read as a whole. In a key-value cache that grows by a slice
 * no window of one program is a window of the next: there one digest goes over all bytes that mean anything. It is taken
 * while the host says that the storage is alive, and compared at the first touch by the next program, before anything can
 * be written there. So a write that nobody saw is found when it came after the step's end; storages that NumPy shares are
 * left out. */
#include "recorder.h"

#include <stdlib.h>
#include <xxhash.h>

static void add_runs(XXH3_state_t *state, const lb_known *storage, lb_bytes wanted)
{
    uint64_t first = 0, end = 0;
    while (lb_map_run(&storage->map, &first, storage->bytes, wanted, &end)) {
        const uint64_t run[2] = {first, end};
        XXH3_128bits_update(state, run, sizeof run);
        XXH3_128bits_update(state, storage->base + first, end - first);
        first = end;
    }
}

/* None when out of memory, or when nothing is there to be left. */
static lb_digest digest_of(const lb_known *storage)
{
    XXH3_state_t *state = storage->base && storage->bytes ? XXH3_createState() : NULL;
    if (!state) return (lb_digest){0, 0};
    XXH3_128bits_reset(state);
    add_runs(state, storage, LB_BYTES_DEFINED);
    add_runs(state, storage, LB_BYTES_LEFT);
    const XXH128_hash_t hash = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    return (lb_digest){hash.high64, hash.low64};
}

void lb_left_remember(lb_known *storage)
{
    storage->left = digest_of(storage);
}

/* A batch that was put together before the step began, by ops of the last one, is a batch. */
static bool is_new_batch(const lb_known *storage, uint64_t serial)
{
    for (uint32_t r = 0; r < storage->n_roles; r++)
        if (storage->roles[r].kind == LB_SOURCE_BATCH && storage->roles[r].since == serial) return true;
    return false;
}

bool lb_left_unchanged(const lb_known *storage, uint64_t serial)
{
    return !storage->escaped && !is_new_batch(storage, serial) && !lb_digest_is_none(storage->left) &&
           lb_digest_equal(storage->left, digest_of(storage));
}

#define MOST_FRESH 4096 /* bytes: what C++ fills element by element, indices and sizes, is small */

void lb_left_note_fresh(lb_known *storage)
{
    storage->fresh = (lb_digest){0, 0};
    if (storage->base && storage->bytes && storage->bytes <= MOST_FRESH && !storage->map.units &&
        storage->map.all == LB_BYTES_UNDEFINED)
        storage->fresh = lb_digest_bytes(storage->base, storage->bytes);
}

bool lb_left_was_filled(const lb_known *storage)
{
    return !lb_digest_is_none(storage->fresh) && !storage->map.units && storage->map.all == LB_BYTES_UNDEFINED &&
           !lb_digest_equal(storage->fresh, lb_digest_bytes(storage->base, storage->bytes));
}

/* A storage that was written or read as a whole, of which only a part is written now: what the window of the whole says of
 * its bytes would be lost. `first`, `last`: the part. */
void lb_left_before_part(lb_known *storage, uint64_t first, uint64_t last)
{
    if (storage->map.units || storage->map.all != LB_BYTES_UNKNOWN || (first == 0 && last >= storage->bytes)) return;
    for (uint32_t w = 0; w < storage->n_windows; w++) {
        const lb_window *window = &storage->windows[w];
        if (window->row != LB_NONE || window->first != 0 || (uint64_t)window->last != storage->bytes ||
            lb_digest_is_none(window->blob))
            continue;
        if (lb_digest_equal(lb_digest_bytes(storage->base, storage->bytes), window->blob))
            storage->map.all = LB_BYTES_LEFT;
        return;
    }
}
