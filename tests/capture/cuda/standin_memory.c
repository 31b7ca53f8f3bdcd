/* Memory of the stand-in: the same file mapped twice, once where nobody may read it. */
#define _GNU_SOURCE /* memfd_create */
#include "standin_inside.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DEVICE_BYTES (1ull << 30) /* sparse */
#define GUARD 4096                /* between allocations */

typedef struct block {
    struct block *next;
    CUdeviceptr at;
    size_t bytes;
    int device; /* -1: pinned memory of the host */
} block;

static struct {
    char *addresses, *twin;
    size_t used; /* never given again: what was freed stays unallocated */
} devices[STANDIN_DEVICES];
static block *blocks;

static void map_device(int d)
{
    const int file = memfd_create("device", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)DEVICE_BYTES) != 0) abort();
    devices[d].addresses = mmap(NULL, DEVICE_BYTES, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
    devices[d].twin = mmap(NULL, DEVICE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (devices[d].addresses == MAP_FAILED || devices[d].twin == MAP_FAILED) abort();
    close(file);
}

void standin_memory_begin(int n)
{
    while (blocks) {
        block *b = blocks;
        blocks = b->next;
        if (b->device < 0) free((void *)(uintptr_t)b->at);
        free(b);
    }
    for (int d = 0; d < n; d++) {
        if (!devices[d].addresses) map_device(d);
        /* a hole reads as zero, but memory of a device is never clean */
        if (devices[d].used) madvise(devices[d].twin, devices[d].used, MADV_REMOVE);
        devices[d].used = 0;
    }
}

static block *block_of(CUdeviceptr address, size_t bytes)
{
    for (block *b = blocks; b; b = b->next)
        if (address >= b->at && bytes <= b->bytes && address - b->at <= b->bytes - bytes) return b;
    return NULL;
}

char *standin_find(CUdeviceptr address, size_t bytes)
{
    const block *b = block_of(address, bytes);
    if (!b) return NULL;
    if (b->device < 0) return (char *)(uintptr_t)address;
    return devices[b->device].twin + (address - (CUdeviceptr)(uintptr_t)devices[b->device].addresses);
}

void *standin_twin(CUdeviceptr address, size_t bytes)
{
    pthread_mutex_lock(&standin_lock);
    void *at = standin_find(address, bytes);
    pthread_mutex_unlock(&standin_lock);
    return at;
}

bool standin_is_pinned(const void *address, size_t bytes)
{
    const block *b = block_of((CUdeviceptr)(uintptr_t)address, bytes);
    return b && b->device < 0;
}

static block *add_block(CUdeviceptr at, size_t bytes, int device)
{
    block *b = malloc(sizeof *b);
    if (!b) abort();
    *b = (block){blocks, at, bytes, device};
    return blocks = b;
}

static block *take_block(CUdeviceptr at, bool pinned)
{
    for (block **b = &blocks; *b; b = &(*b)->next) {
        if ((*b)->at != at || ((*b)->device < 0) != pinned) continue;
        block *found = *b;
        *b = found->next;
        return found;
    }
    return NULL;
}

static CUresult allocate(CUdeviceptr *to, size_t bytes)
{
    const int d = standin_current()->device;
    const size_t at = (devices[d].used + 255) / 256 * 256;
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > DEVICE_BYTES - GUARD || at > DEVICE_BYTES - GUARD - bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    devices[d].used = at + bytes + GUARD;
    *to = add_block((CUdeviceptr)(uintptr_t)(devices[d].addresses + at), bytes, d)->at;
    if (bytes <= 1 << 20) memset(devices[d].twin + at, 0xA5, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *to, size_t bytes)
{
    CUresult result = standin_enter("cuMemAlloc_v2", true);
    if (result) return result;
    pthread_mutex_lock(&standin_lock);
    result = standin_forbidden();
    if (!result) result = allocate(to, bytes);
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr at)
{
    CUresult result = standin_enter("cuMemFree_v2", true);
    if (result) return result;
    pthread_mutex_lock(&standin_lock);
    result = standin_forbidden();
    if (!result) standin_wait_for_all(standin_current());
    block *b = result ? NULL : take_block(at, false);
    if (!result && !b) result = CUDA_ERROR_INVALID_VALUE;
    free(b);
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuMemHostAlloc(void **to, size_t bytes, unsigned flags)
{
    (void)flags;
    CUresult result = standin_enter("cuMemHostAlloc", true);
    if (result) return result;
    pthread_mutex_lock(&standin_lock);
    result = standin_forbidden();
    if (!result) standin_wait_for_all(standin_current());
    void *memory = result || bytes == 0 ? NULL : aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!result && !memory) result = CUDA_ERROR_OUT_OF_MEMORY;
    if (!result) *to = (void *)(uintptr_t)add_block((CUdeviceptr)(uintptr_t)memory, bytes, -1)->at;
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuMemFreeHost(void *memory)
{
    CUresult result = standin_enter("cuMemFreeHost", true);
    if (result) return result;
    pthread_mutex_lock(&standin_lock);
    result = standin_forbidden();
    if (!result) standin_wait_for_all(standin_current());
    block *b = result ? NULL : take_block((CUdeviceptr)(uintptr_t)memory, true);
    if (!result && !b) result = CUDA_ERROR_INVALID_VALUE;
    if (b) free(memory);
    free(b);
    pthread_mutex_unlock(&standin_lock);
    return result;
}

static size_t bytes_of(int device)
{
    size_t sum = 0;
    pthread_mutex_lock(&standin_lock);
    for (const block *b = blocks; b; b = b->next)
        if (b->device == device) sum += b->bytes;
    pthread_mutex_unlock(&standin_lock);
    return sum;
}

size_t standin_device_bytes(int device)
{
    return bytes_of(device);
}

size_t standin_pinned_bytes(void)
{
    return bytes_of(-1);
}
