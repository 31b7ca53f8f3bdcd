/* What a program leaves in a storage that it wrote in parts, and whether it is still there when the next one comes.
 *
 * Windows remember what is left of values that were written or read as a whole. In a key-value cache that grows by a
 * slice no window of one program is a window of the next: there one digest goes over all bytes that mean anything. It
 * is taken while the host says that the storage is alive, and compared at the first touch by the next program, before
 * anything can be written there. So an unseen write is found when it came after the step's end; storages that NumPy
 * shares are left out. */
#include "recorder/leftover_digest.h"
#include "recorder/recorder.h"

#include <stdlib.h>
#include <xxhash.h>

/* False when a device does not give them. */
static bool add_runs(lb_recorder *recorder, XXH3_state_t *state, const lb_tracked *storage, lb_tracked_bytes wanted)
{
    uint64_t first = 0, end = 0;
    while (lb_tracked_map_run(&storage->map, &first, storage->bytes, wanted, &end)) {
        const uint64_t run[2] = {first, end};
        const uint8_t *bytes = lb_device_bytes_fresh(recorder, storage, first, end);
        if (!bytes) return false;
        XXH3_128bits_update(state, run, sizeof run);
        XXH3_128bits_update(state, bytes, end - first);
        first = end;
    }
    return true;
}

/* None when out of memory, or when nothing is there to be left. */
static lb_digest digest_of(lb_recorder *recorder, const lb_tracked *storage)
{
    XXH3_state_t *state = storage->base && storage->bytes ? XXH3_createState() : NULL;
    if (!state) return (lb_digest){0, 0};
    XXH3_128bits_reset(state);
    const bool all =
        add_runs(recorder, state, storage, LB_BYTES_DEFINED) && add_runs(recorder, state, storage, LB_BYTES_LEFT);
    const XXH128_hash_t hash = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    return all ? (lb_digest){hash.high64, hash.low64} : (lb_digest){0, 0};
}

void lb_leftover_remember(lb_recorder *recorder, lb_tracked *storage)
{
    storage->left = digest_of(recorder, storage);
}

/* A batch that was put together before the step began, by ops of the last one, is a batch. */
static bool is_new_batch(const lb_tracked *storage, uint64_t serial)
{
    for (uint32_t r = 0; r < storage->n_roles; r++)
        if (storage->roles[r].kind == LB_SOURCE_BATCH && storage->roles[r].since == serial) return true;
    return false;
}

bool lb_leftover_unchanged(lb_recorder *recorder, const lb_tracked *storage)
{
    return !storage->escaped && !is_new_batch(storage, recorder->serial) && !lb_digest_is_none(storage->left) &&
           lb_digest_equal(storage->left, digest_of(recorder, storage));
}

#define MOST_FRESH 4096 /* bytes: what C++ fills element by element, indices and sizes, is small */

static lb_digest digest_of_whole(lb_recorder *recorder, const lb_tracked *storage)
{
    const uint8_t *bytes = lb_device_bytes_fresh(recorder, storage, 0, storage->bytes);
    return bytes ? lb_digest_bytes(bytes, storage->bytes) : (lb_digest){0, 0};
}

/* The host never waits for this alone: of a device that goes on meanwhile nothing is known here. */
static bool is_looked_at(const lb_tracked *storage)
{
    return storage->base && storage->bytes && storage->bytes <= MOST_FRESH &&
           !(storage->device && storage->device->ops->asynchronous);
}

void lb_leftover_note_fresh(lb_recorder *recorder, lb_tracked *storage)
{
    storage->fresh = (lb_digest){0, 0};
    if (is_looked_at(storage) && !storage->map.units && storage->map.all == LB_BYTES_UNDEFINED)
        storage->fresh = digest_of_whole(recorder, storage);
}

bool lb_leftover_was_filled(lb_recorder *recorder, const lb_tracked *storage)
{
    if (lb_digest_is_none(storage->fresh) || storage->map.units || storage->map.all != LB_BYTES_UNDEFINED) return false;
    const lb_digest now = digest_of_whole(recorder, storage);
    return !lb_digest_is_none(now) && !lb_digest_equal(storage->fresh, now);
}

/* A storage that was written or read as a whole, of which only a part is written now: what the window of the whole says
 * of its bytes would be lost. `first`, `last`: the part. */
void lb_leftover_before_part(lb_recorder *recorder, lb_tracked *storage, uint64_t first, uint64_t last)
{
    if (storage->map.units || storage->map.all != LB_BYTES_UNKNOWN || (first == 0 && last >= storage->bytes)) return;
    for (uint32_t w = 0; w < storage->n_windows; w++) {
        const lb_tracked_window *window = &storage->windows[w];
        if (window->row != LB_NONE || window->first != 0 || (uint64_t)window->last != storage->bytes ||
            lb_digest_is_none(window->blob))
            continue;
        if (lb_digest_equal(digest_of_whole(recorder, storage), window->blob)) storage->map.all = LB_BYTES_LEFT;
        return;
    }
}
