/* Storages and their buffers: see value_memory.h. */
#include "kernel/value_memory.h"

#include "base/array.h"
#include "base/hash.h"
#include <lastbit/statistics.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- buffers: four size classes per power of two, freed ones kept for the next op ------------------------------- */

enum { CLASSES = 4 * 48, HEADER = 64 };

typedef struct buffer {
    size_t bytes;  /* usable, behind the header */
    size_t wanted; /* what was asked for, of a storage; 0: scratch */
    struct buffer *next;
    uint32_t class;
    uint32_t owners; /* of a shared one, which no memory holds; else 0 */
    void *start;     /* what free() takes */
} buffer;

struct lb_memory {
    uint64_t limit, held;     /* held: buffers in use and free ones */
    uint64_t live, borrowed;  /* what storages asked for; those that lie in the capture */
    uint64_t peak, peak_live; /* of held and of live, each with borrowed */
    buffer *free[CLASSES];
    struct lb_memory *spare;    /* NULL: none */
    lb_hash by_id;              /* rows: storages as they were made */
    lb_memory_storage **chunks; /* of CHUNK storages each, which never move */
    uint32_t n_chunks;
};

/* Class c holds (4 + c % 4) << (4 + c / 4) bytes: 64, 80, 96, 112, 128, 160, … */
static size_t class_bytes(uint32_t class)
{
    return (size_t)(4 + class % 4) << (4 + class / 4);
}

static uint32_t class_of(size_t bytes)
{
    if (bytes <= 64) return 0;
    int power = 63 - __builtin_clzll((unsigned long long)(bytes - 1));
    uint32_t class = (uint32_t)(power - 6) * 4;
    while (class_bytes(class) < bytes) class ++;
    return class;
}

static void release_free_buffers(lb_memory *memory)
{
    for (uint32_t c = 0; c < CLASSES; c++)
        while (memory->free[c]) {
            buffer *buffer = memory->free[c];
            memory->free[c] = buffer->next;
            memory->held -= buffer->bytes;
            free(buffer->start);
        }
}

static buffer *buffer_of(void *data)
{
    return (buffer *)((char *)data - HEADER);
}

static void note_peak(lb_memory *memory)
{
    if (memory->held + memory->borrowed > memory->peak) memory->peak = memory->held + memory->borrowed;
    if (memory->live + memory->borrowed > memory->peak_live) memory->peak_live = memory->live + memory->borrowed;
}

/* Asks for pages of 2 MiB behind a large buffer: the first touch of 4 KiB pages costs more than most ops that fill
 * them. A wish, so what the system answers does not matter. */
static void wish_for_large_pages(char *start, size_t size)
{
#ifdef MADV_HUGEPAGE
    const size_t page = (size_t)2 << 20;
    const uintptr_t first = ((uintptr_t)start + page - 1) & ~(page - 1), end = ((uintptr_t)start + size) & ~(page - 1);
    if (end > first) madvise((void *)first, end - first, MADV_HUGEPAGE);
#endif
}

/* New memory at a multiple of 64. The system's fresh pages are zero: calloc does not write them again, and they take no
 * room until an op writes it. */
static buffer *new_buffer(size_t size, bool zero)
{
    const size_t room = HEADER + size + 64;
    char *start = zero ? calloc(1, room) : malloc(room);
    buffer *b = start ? (buffer *)(start + (-(uintptr_t)start & 63)) : NULL;
    if (!b) return NULL;
    wish_for_large_pages(start, room);
    b->start = start;
    return b;
}

/* One of the spare memory's, as if it had been this one's. */
static buffer *take_spare(lb_memory *memory, uint32_t class)
{
    lb_memory *spare = memory->spare;
    buffer *buffer = spare ? spare->free[class] : NULL;
    if (!buffer || (memory->limit && memory->held + buffer->bytes > memory->limit)) return NULL;
    spare->free[class] = buffer->next, spare->held -= buffer->bytes;
    memory->held += buffer->bytes;
    note_peak(memory);
    buffer->next = memory->free[class];
    memory->free[class] = buffer;
    return buffer;
}

static void *take_buffer(lb_memory *memory, size_t bytes, bool zero, size_t *capacity, lb_err *err)
{
    if (bytes > ((size_t)1 << 46)) {
        lb_fail(err, LB_ERR_NOMEM, "a tensor of %zu bytes does not fit in memory", bytes);
        return NULL;
    }
    uint32_t class = class_of(bytes);
    buffer *buffer = memory->free[class] ? memory->free[class] : take_spare(memory, class);
    if (buffer) {
        memory->free[class] = buffer->next;
        if (zero) memset((char *)buffer + HEADER, 0, bytes);
    } else {
        size_t size = class_bytes(class);
        if (memory->limit && memory->held + size > memory->limit) release_free_buffers(memory);
        if (memory->limit && memory->held + size > memory->limit) {
            lb_fail(err, LB_ERR_LIMIT, "replay needs more than the %llu bytes of --memory: %llu held, %zu more wanted",
                    (unsigned long long)memory->limit, (unsigned long long)memory->held, size);
            return NULL;
        }
        buffer = new_buffer(size, zero);
        if (!buffer) {
            lb_fail(err, LB_ERR_NOMEM, "out of memory: %zu bytes for a tensor", size);
            return NULL;
        }
        buffer->bytes = size;
        buffer->class = class;
        memory->held += size;
        note_peak(memory);
    }
    buffer->wanted = 0;
    buffer->owners = 0;
    if (capacity) *capacity = buffer->bytes;
    return (char *)buffer + HEADER;
}

static void give_buffer(lb_memory *memory, void *data)
{
    if (!data) return;
    buffer *buffer = buffer_of(data);
    memory->live -= buffer->wanted;
    buffer->next = memory->free[buffer->class];
    memory->free[buffer->class] = buffer;
}

void *lb_memory_scratch(lb_memory *memory, size_t bytes, lb_err *err)
{
    return take_buffer(memory, bytes, false, NULL, err);
}
void lb_memory_scratch_free(lb_memory *memory, void *scratch)
{
    give_buffer(memory, scratch);
}
uint64_t lb_memory_peak(const lb_memory *memory)
{
    return memory->peak;
}
uint64_t lb_memory_peak_live(const lb_memory *memory)
{
    return memory->peak_live;
}

/* ---- storages by id --------------------------------------------------------------------------------------------- */

enum { CHUNK = 256 };

static lb_memory_storage *storage_at(const lb_memory *memory, uint32_t row)
{
    return &memory->chunks[row / CHUNK][row % CHUNK];
}

lb_memory *lb_memory_new(uint64_t limit_bytes)
{
    lb_memory *memory = calloc(1, sizeof *memory);
    if (!memory) return NULL;
    memory->limit = limit_bytes;
    return memory;
}

void lb_memory_share(lb_memory *memory, lb_memory *spare)
{
    memory->spare = spare;
}

static void leave_buffers(lb_memory *memory)
{
    for (uint32_t c = 0; c < CLASSES; c++)
        while (memory->free[c]) {
            buffer *buffer = memory->free[c];
            memory->free[c] = buffer->next, memory->held -= buffer->bytes;
            buffer->next = memory->spare->free[c];
            memory->spare->free[c] = buffer, memory->spare->held += buffer->bytes;
        }
}

void lb_memory_free(lb_memory *memory)
{
    if (!memory) return;
    for (uint32_t i = 0; i < memory->by_id.n; i++) lb_memory_storage_drop(memory, storage_at(memory, i));
    if (memory->spare) leave_buffers(memory);
    release_free_buffers(memory);
    for (uint32_t i = 0; i < memory->n_chunks; i++) free(memory->chunks[i]);
    free(memory->chunks);
    lb_hash_release(&memory->by_id);
    free(memory);
}

lb_memory_storage *lb_memory_find(const lb_memory *memory, int64_t id)
{
    LB_HASH_EACH(row, &memory->by_id, (uint64_t)id)
    if (storage_at(memory, row)->id == id) return storage_at(memory, row);
    return NULL;
}

static lb_memory_storage *new_storage(lb_memory *memory, int64_t id)
{
    const uint32_t row = memory->by_id.n;
    if (row == memory->n_chunks * CHUNK) {
        lb_memory_storage **chunks = lb_array_grow(memory->chunks, memory->n_chunks, sizeof *chunks);
        if (!chunks) return NULL;
        memory->chunks = chunks;
        lb_memory_storage *chunk = calloc(CHUNK, sizeof *chunk);
        if (!chunk) return NULL;
        memory->chunks[memory->n_chunks++] = chunk;
    }
    return lb_hash_add(&memory->by_id, (uint64_t)id, row) ? storage_at(memory, row) : NULL;
}

static void become_bytes(lb_memory_storage *storage)
{
    size_t bits = lb_dtype_bits(storage->recorded);
    storage->first = storage->first * (int64_t)bits / 8;
    storage->last = (storage->last * (int64_t)bits + 7) / 8;
    storage->recorded = storage->held = LB_U8;
    storage->punned = true;
}

lb_memory_storage *lb_memory_declare(lb_memory *memory, int64_t id, lb_dtype dtype, int64_t first, int64_t last,
                                     uint32_t program)
{
    lb_memory_storage *storage = lb_memory_find(memory, id);
    if (!storage) {
        storage = new_storage(memory, id);
        if (!storage) return NULL;
        *storage = (lb_memory_storage){.id = id,
                                       .first = first,
                                       .last = last,
                                       .recorded = dtype,
                                       .held = dtype,
                                       .exact = true,
                                       .first_program = program,
                                       .last_program = program,
                                       .taint = LB_VERDICT_IDENTICAL};
        return storage;
    }
    if (storage->recorded != dtype || storage->punned) {
        if (!storage->punned) become_bytes(storage);
        size_t bits = lb_dtype_bits(dtype);
        first = first * (int64_t)bits / 8;
        last = (last * (int64_t)bits + 7) / 8;
    }
    if (storage->first == storage->last)
        storage->first = first, storage->last = last;
    else if (first != last) {
        if (first < storage->first) storage->first = first;
        if (last > storage->last) storage->last = last;
    }
    storage->last_program = program;
    return storage;
}

/* A buffer that counts as live until it is given back. */
static void *take_live(lb_memory *memory, size_t bytes, bool zero, size_t *capacity, lb_err *err)
{
    void *data = take_buffer(memory, bytes, zero, capacity, err);
    if (!data) return NULL;
    buffer_of(data)->wanted = bytes;
    memory->live += bytes;
    note_peak(memory);
    return data;
}

static size_t held_bytes(const lb_memory_storage *storage)
{
    return lb_dtype_bytes(storage->held, (size_t)(storage->last - storage->first));
}

static void release_owner(void *base)
{
    if (--buffer_of(base)->owners == 0) free(buffer_of(base)->start);
}

static void give_base(lb_memory *memory, lb_memory_storage *storage)
{
    if (storage->borrowed) memory->borrowed -= held_bytes(storage);
    if (storage->shared)
        release_owner(storage->base);
    else if (!storage->borrowed)
        give_buffer(memory, storage->base);
    storage->base = NULL;
    storage->borrowed = storage->shared = false;
}

lb_status lb_memory_storage_allocate(lb_memory *memory, lb_memory_storage *storage, lb_dtype held, bool zero,
                                     lb_err *err)
{
    if (storage->base) return LB_OK;
    if (storage->punned) held = LB_U8;
    size_t bytes = lb_dtype_bytes(held, (size_t)(storage->last - storage->first));
    storage->base = take_live(memory, bytes, zero, &storage->capacity, err);
    if (!storage->base) return LB_ERR_LIMIT;
    storage->held = held;
    storage->borrowed = false;
    return LB_OK;
}

void lb_memory_storage_drop(lb_memory *memory, lb_memory_storage *storage)
{
    give_base(memory, storage);
    storage->held = storage->recorded;
    storage->filled_first = storage->filled_last = 0;
    storage->exact = true;
    storage->missing = false;
    storage->taint = LB_VERDICT_IDENTICAL;
}

lb_status lb_memory_storage_convert(lb_memory *memory, lb_memory_storage *storage, lb_dtype held, const lb_cast *cast,
                                    lb_err *err)
{
    if (!storage->base || (storage->held == held && !storage->borrowed)) return LB_OK;
    size_t n = (size_t)(storage->last - storage->first), capacity;
    void *data = take_live(memory, lb_dtype_bytes(held, n), false, &capacity, err);
    if (!data) return LB_ERR_LIMIT;
    if (held == storage->held)
        memcpy(data, storage->base, lb_dtype_bytes(held, n));
    else
        lb_convert(held, data, storage->held, storage->base, n, cast);
    give_base(memory, storage);
    storage->base = data;
    storage->capacity = capacity;
    storage->held = held;
    return LB_OK;
}

void lb_memory_storage_borrow(lb_memory *memory, lb_memory_storage *storage, void *base)
{
    give_base(memory, storage);
    storage->base = base;
    storage->held = storage->recorded;
    storage->borrowed = true;
    storage->filled_first = storage->filled_last = 0;
    memory->borrowed += held_bytes(storage);
    note_peak(memory);
}

/* ---- sharing ---------------------------------------------------------------------------------------------------- */

void lb_memory_storage_share(lb_memory *memory, lb_memory_storage *storage, lb_memory_storage *copy)
{
    if (storage->base && !storage->borrowed) {
        buffer *buffer = buffer_of(storage->base);
        memory->held -= buffer->bytes;
        memory->live -= buffer->wanted;
        buffer->owners = 1;
        storage->borrowed = storage->shared = true;
        memory->borrowed += held_bytes(storage);
    }
    if (storage->shared) buffer_of(storage->base)->owners++;
    *copy = *storage;
}

void lb_memory_storage_adopt(lb_memory *memory, lb_memory_storage *storage, const lb_memory_storage *copy)
{
    const lb_memory_storage own = *storage;
    give_base(memory, storage);
    *storage = *copy;
    storage->first_program = own.first_program, storage->last_program = own.last_program;
    if (storage->shared) buffer_of(storage->base)->owners++;
    if (storage->borrowed) memory->borrowed += held_bytes(storage);
    note_peak(memory);
}

void lb_memory_shared_release(lb_memory_storage *copy)
{
    if (copy->shared) release_owner(copy->base);
    copy->base = NULL;
    copy->borrowed = copy->shared = false;
}

lb_memory_storage *lb_memory_next(const lb_memory *memory, uint32_t *at)
{
    return *at < memory->by_id.n ? storage_at(memory, (*at)++) : NULL;
}

/* ---- windows ---------------------------------------------------------------------------------------------------- */

/* In the storage's units. */
static bool window_range(const lb_memory_storage *storage, const lb_value *value, int64_t *first, int64_t *last,
                         bool *dense)
{
    if (lb_layout_dense_range(&value->layout, first, last, NULL) != LB_OK) return false;
    *dense = lb_layout_numel(&value->layout) == *last - *first;
    if (lb_dtype_is_complex(value->dtype) && !storage->punned) *first *= 2, *last *= 2;
    if (storage->punned) {
        size_t bits = lb_dtype_bits(value->dtype);
        *first = *first * (int64_t)bits / 8;
        *last = (*last * (int64_t)bits + 7) / 8;
    }
    return true;
}

bool lb_memory_storage_covers(const lb_memory_storage *storage, const lb_value *value)
{
    int64_t first, last;
    bool dense;
    return window_range(storage, value, &first, &last, &dense) && dense && first <= storage->first &&
           last >= storage->last;
}

void lb_memory_storage_fill(lb_memory_storage *storage, const lb_value *value)
{
    int64_t first, last;
    bool dense;
    if (!window_range(storage, value, &first, &last, &dense) || first == last) return;
    if (storage->filled_first == storage->filled_last) {
        storage->filled_first = first;
        storage->filled_last = last;
    }
    if (first < storage->filled_first) storage->filled_first = first;
    if (last > storage->filled_last) storage->filled_last = last;
}

bool lb_memory_storage_holds(const lb_memory_storage *storage, const lb_value *value)
{
    int64_t first, last;
    bool dense;
    return storage->base && window_range(storage, value, &first, &last, &dense) && first >= storage->filled_first &&
           last <= storage->filled_last;
}

lb_dtype lb_memory_held_dtype(lb_dtype held, lb_dtype dtype)
{
    if (!lb_dtype_is_complex(dtype)) return held;
    return held == LB_F64 ? LB_C128 : held == LB_F32 ? LB_C64 : held == LB_F16 ? LB_C32 : LB_NO_DTYPE;
}

lb_tensor lb_memory_storage_window(const lb_memory_storage *storage, const lb_value *value)
{
    const lb_dtype dtype = storage->punned ? value->dtype : lb_memory_held_dtype(storage->held, value->dtype);
    lb_tensor window = {.dtype = dtype, .layout = value->layout};
    LB_CHECK(dtype);
    size_t bits = lb_dtype_bits(window.dtype);
    int64_t origin = storage->punned ? storage->first * 8 : storage->first * (int64_t)lb_dtype_bits(storage->held);
    window.data = storage->base + (value->layout.offset * (int64_t)bits - origin) / 8;
    return window;
}
