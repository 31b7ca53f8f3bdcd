/* What the host says of storages: that they are gone, moved or written by others, what they are called, and that their
 * bytes may be read while it goes on. See lastbit/capture.h. */
#include "recorder/leftover_digest.h"
#include "recorder/recorder.h"

#include <stdlib.h>
#include <string.h>

#define SPOOL_BYTES (64u << 20)

void lb_recorder_forget(lb_recorder *recorder, int64_t storage)
{
    pthread_mutex_lock(&recorder->lock);
    lb_tracked *tracked = lb_tracked_set_find(&recorder->storages, storage);
    if (tracked) lb_value_bytes_settle(recorder, tracked);
    lb_tracked_set_remove(&recorder->storages, storage);
    lb_graph_forget(recorder, storage);
    pthread_mutex_unlock(&recorder->lock);
}

uint32_t lb_recorder_partial(lb_recorder *recorder, int64_t *storages, uint32_t room)
{
    uint32_t n = 0;
    pthread_mutex_lock(&recorder->lock);
    for (uint32_t i = 0; i < recorder->storages.n && !recorder->dead; i++) {
        const lb_tracked *tracked = recorder->storages.list[i];
        if (tracked->partial && tracked->program == recorder->serial && lb_digest_is_none(tracked->left) && n < room)
            storages[n++] = tracked->key;
    }
    pthread_mutex_unlock(&recorder->lock);
    return n;
}

void lb_recorder_remember(lb_recorder *recorder, int64_t storage)
{
    pthread_mutex_lock(&recorder->lock);
    lb_tracked *tracked = recorder->dead ? NULL : lb_tracked_set_find(&recorder->storages, storage);
    if (tracked && tracked->partial && tracked->program == recorder->serial) lb_leftover_remember(recorder, tracked);
    pthread_mutex_unlock(&recorder->lock);
}

bool lb_recorder_async(lb_recorder *recorder, bool beside)
{
    pthread_mutex_lock(&recorder->lock);
    if (beside && !recorder->dead && !recorder->promises.queue) recorder->promises.queue = lb_measure_queue_new();
    if (!beside) lb_value_bytes_settle_all(recorder);
    recorder->promises.async = beside && recorder->promises.queue;
    /* What a budget has room for must be known at once. */
    const bool free_of_limits = !recorder->ring.flight && !recorder->archive.budget_bytes;
    if (recorder->promises.async && free_of_limits && recorder->keep.asked > LB_LEVEL_STATS && !recorder->archive.queue)
        recorder->archive.queue = lb_write_queue_new(recorder->archive.writer, SPOOL_BYTES);
    if (!recorder->promises.async && lb_write_queue_free(recorder->archive.queue)) recorder->archive.queue = NULL;
    const bool behind = recorder->archive.queue;
    pthread_mutex_unlock(&recorder->lock);
    return behind;
}

uint32_t lb_recorder_unheld(lb_recorder *recorder, int64_t *storages, uint32_t room, uint64_t *promised,
                            uint64_t *fulfilled)
{
    pthread_mutex_lock(&recorder->lock);
    const uint32_t n = recorder->promises.n_unheld < room ? recorder->promises.n_unheld : room;
    recorder->promises.n_unheld -= n;
    if (n) memcpy(storages, recorder->promises.unheld + recorder->promises.n_unheld, n * sizeof storages[0]);
    *promised = recorder->promises.n_made;
    *fulfilled = recorder->promises.n_fulfilled;
    pthread_mutex_unlock(&recorder->lock);
    return n;
}

void lb_recorder_settle(lb_recorder *recorder, int64_t storage)
{
    pthread_mutex_lock(&recorder->lock);
    lb_tracked *tracked = storage ? lb_tracked_set_find(&recorder->storages, storage) : NULL;
    if (tracked)
        lb_value_bytes_settle(recorder, tracked);
    else if (!storage)
        lb_value_bytes_settle_all(recorder);
    pthread_mutex_unlock(&recorder->lock);
}

void lb_recorder_resized(lb_recorder *recorder, int64_t storage, const void *data, uint64_t bytes)
{
    pthread_mutex_lock(&recorder->lock);
    lb_tracked *tracked = recorder->dead ? NULL : lb_tracked_set_find(&recorder->storages, storage);
    if (tracked) {
        lb_value_bytes_settle(recorder, tracked);
        lb_tracked_move(tracked, tracked->base || !tracked->bytes ? data : NULL, bytes,
                        tracked->bytes == 0 ? LB_BYTES_UNDEFINED : LB_BYTES_UNKNOWN);
    }
    pthread_mutex_unlock(&recorder->lock);
}

static void vouch(lb_recorder *recorder, lb_tracked *storage)
{
    if (storage->map.units || storage->map.all != LB_BYTES_UNDEFINED) return;
    lb_value_bytes_settle(recorder, storage);
    lb_tracked_change(storage);
    storage->map.all = LB_BYTES_UNKNOWN;
}

void lb_recorder_vouch(lb_recorder *recorder, int64_t storage)
{
    pthread_mutex_lock(&recorder->lock);
    lb_tracked *tracked = recorder->dead ? NULL : lb_tracked_set_find(&recorder->storages, storage);
    if (tracked) vouch(recorder, tracked);
    pthread_mutex_unlock(&recorder->lock);
}

void lb_recorder_escaped(lb_recorder *recorder, int64_t storage)
{
    bool fresh;
    pthread_mutex_lock(&recorder->lock);
    lb_tracked *tracked = recorder->dead ? NULL : lb_tracked_set_get(&recorder->storages, storage, &fresh);
    if (tracked) {
        lb_value_bytes_settle(recorder, tracked);
        tracked->escaped = true;
    }
    pthread_mutex_unlock(&recorder->lock);
}

static void name_known_values(lb_recorder *recorder, lb_tracked *storage, const lb_tracked_role *role)
{
    if (!recorder->program || storage->program != recorder->serial) return;
    lb_program *program = recorder->program;
    for (uint32_t w = 0; w < storage->n_windows; w++) {
        const lb_tracked_window *window = &storage->windows[w];
        if (window->row == LB_NONE || window->first != role->first) continue;
        if (lb_tracked_find_role(storage, window->first, window->last) != role)
            continue; /* it is nearer to another's */
        lb_value *value = &program->values[window->row];
        if (value->name == LB_NONE) value->name = lb_program_name(program, role->name);
        const bool news = (value->flags & role->flags) != role->flags;
        value->flags |= role->flags;
        if (news && value->statistics != LB_NONE &&
            lb_statistics_nonfinite(&program->statistics[value->statistics]) > 0)
            recorder->n_nonfinite++;
    }
}

lb_status lb_recorder_role(lb_recorder *recorder, const lb_host_tensor *tensor, lb_source_kind kind, uint32_t flags,
                           const char *name, lb_err *err)
{
    lb_status status = lb_recorder_lock(recorder, false, err);
    if (status != LB_OK) return lb_recorder_unlock(recorder, status);
    lb_err cause = LB_ERR_INIT;
    bool fresh;
    lb_tracked *storage = lb_tracked_set_get(&recorder->storages, tensor->storage, &fresh);
    const int64_t width = (int64_t)(lb_dtype_bits(tensor->dtype) / 8), first = tensor->layout.offset * width;
    int64_t begin, end;
    if (lb_layout_dense_range(&tensor->layout, &begin, &end, NULL) != LB_OK) end = tensor->layout.offset;
    lb_tracked_role role = {first, end * width, (uint8_t)kind, flags, (char *)(uintptr_t)name, recorder->serial};
    if (storage && fresh) {
        storage->device = lb_device_of(recorder, tensor);
        const bool reachable = tensor->data && (tensor->device == 0 || storage->device);
        storage->base = reachable ? (const uint8_t *)tensor->data - first : NULL;
        storage->bytes = tensor->storage_bytes;
    }
    if (!storage || !lb_tracked_add_role(storage, &role))
        return lb_recorder_settled(recorder, lb_recorder_no_memory(&cause), &cause, err);
    name_known_values(recorder, storage, lb_tracked_find_role(storage, role.first, role.last));
    return lb_recorder_unlock(recorder, LB_OK);
}

lb_status lb_recorder_shard(lb_recorder *recorder, const lb_host_tensor *tensor, const lb_sharding *sharding,
                            lb_err *err)
{
    lb_status status = lb_recorder_lock(recorder, false, err);
    if (status != LB_OK) return lb_recorder_unlock(recorder, status);
    lb_err cause = LB_ERR_INIT;
    bool fresh;
    lb_tracked *storage = lb_tracked_set_get(&recorder->storages, tensor->storage, &fresh);
    if (storage && fresh) {
        const int64_t first = tensor->layout.offset * (int64_t)(lb_dtype_bits(tensor->dtype) / 8);
        storage->base = tensor->data ? (const uint8_t *)tensor->data - first : NULL;
        storage->bytes = tensor->storage_bytes;
    }
    status = storage ? lb_sharding_notes_add(&recorder->shardings, storage, tensor, sharding, &cause)
                     : lb_recorder_no_memory(&cause);
    if (status != LB_ERR_INVALID) return lb_recorder_settled(recorder, status, &cause, err);
    lb_fail(err, status, "%s", cause.message);
    return lb_recorder_unlock(recorder, status);
}
