/* See device_kernels.h. */
#include "device_kernels.h"
#include "host_grid.h"
#include "device/kernel_item.h"

#include <string.h>

static uint64_t twin(uint64_t address, uint64_t bytes)
{
    return (uint64_t)(uintptr_t)standin_twin(address, bytes);
}

/* What the host would find at the item's addresses; false where one is none of the device's. Nothing is read of it but
 * its fixed words, */
static bool translate(lb_kernel_item *item)
{
    const uint64_t dense = item->dense_bytes ? twin(item->dense, item->dense_bytes) : item->dense;
    item->data += dense - item->dense;
    item->dense = dense;
    item->scratch = twin(item->scratch, lb_kernel_scratch_bytes(item));
    return item->dense_bytes == 0 ? item->scratch != 0 : item->scratch && dense;
}

/* which is all that lies at that word. */
static bool translate_at(uint64_t *words)
{
    lb_kernel_item item = {0};
    memcpy(&item, words, 8 * LB_KERNEL_FIXED_WORDS);
    const bool good = translate(&item);
    memcpy(words, &item, 8 * LB_KERNEL_FIXED_WORDS);
    return good;
}

static bool translate_launch(lb_kernel_launch *launch)
{
    bool good = true;
    launch->results = twin(launch->results, launch->n_results * sizeof(lb_kernel_result));
    const bool counted = launch->turn != 0;
    if (counted) launch->turn = twin(launch->turn, sizeof(uint64_t));
    for (uint32_t i = 0; i < launch->n_items && good; i++)
        good = translate_at(launch->words + (launch->words[i] >> 32));
    return good && launch->results && (!counted || launch->turn);
}

/* A slot whose item is done could have another. */
static bool are_done(const lb_kernel_launch *launch)
{
    const lb_kernel_result *results = (const lb_kernel_result *)(uintptr_t)launch->results;
    const uint64_t turn = launch->turn ? *(const uint64_t *)(uintptr_t)launch->turn : 0;
    for (uint32_t i = 0; i < launch->n_items; i++) {
        lb_kernel_item item = {0};
        memcpy(&item, launch->words + (launch->words[i] >> 32), 8 * LB_KERNEL_FIXED_WORDS);
        if (results[(item.slot + turn) % launch->n_results].ended) return false;
    }
    return true;
}

static bool run_measure(const standin_launch *how)
{
    static uint64_t launches;
    lb_kernel_launch launch;
    memcpy(&launch, how->parameters[0], sizeof launch);
    if (how->block[0] != LB_KERNEL_THREADS) return false;
    const bool good = translate_launch(&launch);
    const uint64_t seed = __atomic_fetch_add(&launches, 1, __ATOMIC_RELAXED);
    if (good) host_kernel_measure(&launch, (host_grid){.blocks = how->grid[0], .workers = 1, .seed = seed});
    return good && are_done(&launch);
}

static bool run_turn(const standin_launch *how)
{
    uint64_t address, by;
    memcpy(&address, how->parameters[0], sizeof address);
    memcpy(&by, how->parameters[1], sizeof by);
    uint64_t *turn = standin_twin(address, sizeof *turn);
    if (!turn) return false;
    uint64_t count = __atomic_load_n(turn, __ATOMIC_ACQUIRE);
    host_kernel_turn(&count, by);
    __atomic_store_n(turn, count, __ATOMIC_RELEASE); /* which a copy may read meanwhile, as on a device */
    return true;
}

const standin_kernel device_kernels[] = {
    {LB_KERNEL_NAME, run_measure, 1, {sizeof(lb_kernel_launch)}},
    {LB_KERNEL_TURN_NAME, run_turn, 2, {sizeof(uint64_t), sizeof(uint64_t)}},
};
const int n_device_kernels = sizeof device_kernels / sizeof *device_kernels;
