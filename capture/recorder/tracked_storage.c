/* See tracked_storage.h. */
#include "recorder/tracked_storage.h"

#include "base/array.h"
#include "base/hash.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define MAX_REMEMBERED 64 /* windows of one storage from one program to the next */

/* ---- which bytes mean anything ----------------------------------------------------------------------------------- */

static void map_release(lb_tracked_map *map)
{
    free(map->units);
    map->units = NULL;
}

static void become_uniform(lb_tracked_map *map, lb_tracked_bytes state)
{
    map_release(map);
    map->all = (uint8_t)state;
}

static void settle(lb_tracked_map *map)
{
    for (int s = 0; map->units && s < LB_BYTES_STATES; s++)
        if (map->count[s] == map->n_units) become_uniform(map, (lb_tracked_bytes)s);
}

/* Makes units of at most `width` bytes that start on a multiple of it; `at` is where a view begins. */
static bool split(lb_tracked_map *map, uint64_t total, size_t width, uint64_t at)
{
    uint32_t grain = width ? (uint32_t)width : 1;
    while (grain > 1 && (at % grain || total % grain)) grain /= 2;
    if (map->units && map->grain <= grain && grain % map->grain == 0) return true;
    if (map->units && map->grain < grain) grain = 1;
    uint64_t n = total / grain;
    uint8_t *units = malloc(n ? n : 1);
    if (!units) return false;
    uint64_t count[LB_BYTES_STATES] = {0};
    for (uint64_t i = 0; i < n; i++) {
        units[i] = map->units ? map->units[i * grain / map->grain] : map->all;
        count[units[i]]++;
    }
    free(map->units);
    map->units = units;
    map->n_units = n;
    map->grain = grain;
    memcpy(map->count, count, sizeof count);
    return true;
}

static void paint(lb_tracked_map *map, uint64_t first, uint64_t last, lb_tracked_bytes state)
{
    if (last > map->n_units) last = map->n_units;
    for (uint64_t i = first; i < last; i++) {
        map->count[map->units[i]]--;
        map->units[i] = (uint8_t)state;
    }
    if (last > first) map->count[state] += last - first;
}

bool lb_tracked_map_set_range(lb_tracked_map *map, uint64_t total, uint64_t first, uint64_t last,
                              lb_tracked_bytes state)
{
    if (first >= last || (!map->units && map->all == state)) return true;
    if (first == 0 && last >= total) {
        become_uniform(map, state);
        return true;
    }
    size_t width = 8;
    while (width > 1 && (first % width || last % width)) width /= 2;
    if (!split(map, total, width, first)) return false;
    paint(map, first / map->grain, (last + map->grain - 1) / map->grain, state);
    settle(map);
    return true;
}

bool lb_tracked_map_set(lb_tracked_map *map, uint64_t total, const lb_layout *layout, size_t width,
                        lb_tracked_bytes state)
{
    int64_t first, last;
    if (!map->units && map->all == state) return true;
    if (lb_layout_dense_range(layout, &first, &last, NULL) != LB_OK) return true;
    if (last - first == lb_layout_numel(layout)) /* no holes */
        return lb_tracked_map_set_range(map, total, (uint64_t)first * width, (uint64_t)last * width, state);
    if (!split(map, total, width, (uint64_t)layout->offset * width)) return false;
    const uint64_t per = width / map->grain;
    for (lb_rows rows = lb_rows_of(layout); lb_rows_next(&rows);) {
        uint64_t at = (uint64_t)(layout->offset + rows.offset) * per;
        if (rows.stride == 1) {
            paint(map, at, at + (uint64_t)rows.count * per, state);
            continue;
        }
        for (int64_t i = 0; i < rows.count; i++) {
            uint64_t element = at + (uint64_t)(i * rows.stride) * per;
            paint(map, element, element + per, state);
        }
    }
    settle(map);
    return true;
}

bool lb_tracked_map_has(const lb_tracked_map *map, const lb_layout *layout, size_t width, lb_tracked_bytes state)
{
    if (!map->units) return map->all == state && lb_layout_numel(layout) > 0;
    if (map->count[state] == 0) return false;
    for (lb_rows rows = lb_rows_of(layout); lb_rows_next(&rows);) {
        for (int64_t i = 0; i < (rows.stride == 1 ? 1 : rows.count); i++) {
            uint64_t at = (uint64_t)(layout->offset + rows.offset + i * rows.stride) * width;
            uint64_t end = at + (rows.stride == 1 ? (uint64_t)rows.count * width : width);
            at /= map->grain;
            end = (end + map->grain - 1) / map->grain;
            if (end > map->n_units) end = map->n_units;
            if (at < end && memchr(map->units + at, (int)state, end - at)) return true;
        }
    }
    return false;
}

bool lb_tracked_map_run(const lb_tracked_map *map, uint64_t *first, uint64_t last, lb_tracked_bytes state,
                        uint64_t *end)
{
    if (*first >= last) return false;
    if (!map->units) {
        *end = last;
        return map->all == state;
    }
    uint64_t stop = last / map->grain, i = *first / map->grain;
    if (stop > map->n_units) stop = map->n_units;
    while (i < stop && map->units[i] != (uint8_t)state) i++;
    if (i >= stop) return false;
    *first = i * map->grain;
    while (i < stop && map->units[i] == (uint8_t)state) i++;
    *end = i * map->grain;
    return true;
}

/* A new program begins. What was DEFINED or LEFT becomes LEFT where `certain`, else UNKNOWN. */
static void map_forget(lb_tracked_map *map, bool certain)
{
    const lb_tracked_bytes now = certain ? LB_BYTES_LEFT : LB_BYTES_UNKNOWN;
    if (!map->units) {
        if (map->all == LB_BYTES_DEFINED || map->all == LB_BYTES_LEFT) map->all = (uint8_t)now;
        return;
    }
    const uint64_t n = map->count[LB_BYTES_DEFINED] + map->count[LB_BYTES_LEFT];
    for (uint64_t i = 0; i < map->n_units; i++)
        if (map->units[i] == LB_BYTES_DEFINED || map->units[i] == LB_BYTES_LEFT) map->units[i] = (uint8_t)now;
    map->count[LB_BYTES_DEFINED] = map->count[LB_BYTES_LEFT] = 0;
    map->count[now] += n;
    settle(map);
}

/* ---- storages ---------------------------------------------------------------------------------------------------- */

lb_tracked *lb_tracked_set_find(const lb_tracked_set *storages, int64_t key)
{
    LB_HASH_EACH(row, &storages->by_key, (uint64_t)key)
    if (storages->list[row]->key == key) return storages->list[row];
    return NULL;
}

lb_tracked *lb_tracked_set_get(lb_tracked_set *storages, int64_t key, bool *fresh)
{
    lb_tracked *tracked = lb_tracked_set_find(storages, key);
    *fresh = !tracked;
    if (tracked) return tracked;
    lb_tracked **list = lb_array_grow(storages->list, storages->n, sizeof *list);
    if (!list) return NULL;
    storages->list = list;
    tracked = calloc(1, sizeof *tracked);
    if (!tracked || !lb_hash_add(&storages->by_key, (uint64_t)key, storages->n)) {
        free(tracked);
        return NULL;
    }
    tracked->key = key;
    tracked->id = storages->next_id++;
    return list[storages->n++] = tracked;
}

static void drop_windows(lb_tracked *storage)
{
    for (uint32_t w = 0; w < storage->n_windows; w++) free(storage->windows[w].leaves);
    storage->n_windows = 0;
}

static void storage_free(lb_tracked *storage)
{
    drop_windows(storage);
    for (uint32_t r = 0; r < storage->n_roles; r++) free(storage->roles[r].name);
    map_release(&storage->map);
    free(storage->windows);
    free(storage->roles);
    free(storage->deferred);
    free(storage);
}

void lb_tracked_set_remove(lb_tracked_set *storages, int64_t key)
{
    LB_HASH_EACH(row, &storages->by_key, (uint64_t)key)
    {
        lb_tracked *tracked = storages->list[row], *last = storages->list[storages->n - 1];
        if (tracked->key != key) continue;
        lb_hash_remove(&storages->by_key, (uint64_t)key, row);
        storages->n--;
        if (last != tracked) { /* the last one takes its place */
            lb_hash_remove(&storages->by_key, (uint64_t)last->key, storages->n);
            lb_hash_add(&storages->by_key, (uint64_t)last->key, row); /* there is room */
            storages->list[row] = last;
        }
        storage_free(tracked);
        return;
    }
}

void lb_tracked_set_release(lb_tracked_set *storages)
{
    for (uint32_t i = 0; i < storages->n; i++) storage_free(storages->list[i]);
    free(storages->list);
    lb_hash_release(&storages->by_key);
    memset(storages, 0, sizeof *storages);
}

void lb_tracked_set_distrust(lb_tracked_set *storages)
{
    for (uint32_t i = 0; i < storages->n; i++) {
        lb_tracked *tracked = storages->list[i];
        drop_windows(tracked);
        tracked->left = (lb_digest){0, 0};
        if (tracked->map.units || tracked->map.all == LB_BYTES_UNDEFINED)
            become_uniform(&tracked->map, LB_BYTES_UNKNOWN);
    }
}

void lb_tracked_enter(lb_tracked *storage, uint64_t serial, bool certain)
{
    if (storage->program == serial) return;
    storage->program = serial;
    storage->n_deferred = 0;
    map_forget(&storage->map, certain);
    storage->of_gradient = storage->of_parameter = false;
    storage->partial = certain; /* to be remembered again */
    storage->left = (lb_digest){0, 0};
    uint32_t n = 0; /* only what can be compared is worth remembering, and not every slice of a large tensor */
    for (uint32_t w = 0; w < storage->n_windows; w++) {
        lb_tracked_window *window = &storage->windows[w];
        if (lb_digest_is_none(window->logical) || n >= MAX_REMEMBERED) {
            free(window->leaves);
            continue;
        }
        window->row = window->statistics = LB_NONE;
        window->verified = window->kept = window->left = false;
        storage->windows[n++] = *window;
    }
    storage->n_windows = n;
}

void lb_tracked_change(lb_tracked *storage)
{
    storage->fresh = (lb_digest){0, 0};
    storage->version++;
    drop_windows(storage);
}

void lb_tracked_move(lb_tracked *storage, const void *base, uint64_t bytes, lb_tracked_bytes state)
{
    storage->base = (const uint8_t *)base;
    storage->bytes = bytes;
    map_release(&storage->map);
    storage->map.all = (uint8_t)state;
    storage->left = (lb_digest){0, 0};
    lb_tracked_change(storage);
}

/* Of two that begin where a window does: the smaller one that holds all of it, else the larger. */
static bool is_nearer(const lb_tracked_role *role, const lb_tracked_role *best, int64_t last)
{
    const bool holds = role->last >= last, held = best->last >= last;
    return holds != held ? holds : holds ? role->last < best->last : role->last > best->last;
}

const lb_tracked_role *lb_tracked_find_role(const lb_tracked *storage, int64_t first, int64_t last)
{
    const lb_tracked_role *best = NULL;
    for (uint32_t r = 0; r < storage->n_roles; r++) {
        const lb_tracked_role *role = &storage->roles[r];
        if (role->first == first && (!best || is_nearer(role, best, last))) best = role;
    }
    return best || storage->n_roles != 1 ? best : storage->roles;
}

bool lb_tracked_add_role(lb_tracked *storage, const lb_tracked_role *role)
{
    for (uint32_t r = 0; r < storage->n_roles; r++) {
        lb_tracked_role *old = &storage->roles[r];
        if (old->first != role->first || old->last != role->last) continue;
        char *name = NULL;
        if (role->name && old->name && strcmp(role->name, old->name) != 0) {
            if (!(name = strdup(role->name))) return false;
            free(old->name);
            old->name = name;
        }
        old->kind = role->kind;
        old->flags = role->flags;
        return true;
    }
    lb_tracked_role *roles = lb_array_grow(storage->roles, storage->n_roles, sizeof roles[0]);
    if (!roles) return false;
    storage->roles = roles;
    lb_tracked_role *added = &roles[storage->n_roles];
    *added = *role;
    if (role->name && !(added->name = strdup(role->name))) return false;
    storage->n_roles++;
    return true;
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */

uint64_t lb_tracked_window_hash(const lb_host_tensor *seen)
{
    int64_t words[3 + 2 * LB_MAX_DIMS];
    size_t n = 0;
    words[n++] = seen->dtype | (int64_t)seen->lazy << 8;
    words[n++] = seen->layout.ndim;
    words[n++] = seen->layout.offset;
    for (int d = 0; d < seen->layout.ndim; d++) {
        words[n++] = seen->layout.shape[d];
        words[n++] = seen->layout.stride[d];
    }
    return XXH3_64bits(words, n * sizeof words[0]);
}

lb_tracked_window *lb_tracked_find_window(lb_tracked *storage, uint64_t hash)
{
    for (uint32_t w = 0; w < storage->n_windows; w++)
        if (storage->windows[w].hash == hash) return &storage->windows[w];
    return NULL;
}

lb_tracked_window *lb_tracked_add_window(lb_tracked *storage, const lb_host_tensor *seen, uint64_t hash, int64_t first,
                                         int64_t last)
{
    lb_tracked_window *windows =
        lb_array_fit(storage->windows, &storage->cap_windows, storage->n_windows + 1, sizeof windows[0]);
    if (!windows) return NULL;
    storage->windows = windows;
    lb_tracked_window *window = &storage->windows[storage->n_windows++];
    memset(window, 0, sizeof *window);
    window->hash = hash;
    window->first = first;
    window->last = last;
    window->dtype = seen->dtype;
    window->row = window->statistics = LB_NONE;
    return window;
}
