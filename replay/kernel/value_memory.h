/* The storages of one rank during a run: buffers by storage id, possibly held in another dtype than recorded.
 *
 * A storage is one buffer over the bytes that any program of the run uses of it. Values are windows on it; views cost
 * nothing. A precision region holds what it writes in its own dtype: `held` differs from `recorded` then, and who reads
 * from outside gets a rounded copy (the border). Storages seen under several dtypes are never held wider; but complex
 * numbers and their parts are one dtype here, that of the parts, which are held in f32 or f64.
 *
 *      id 17  recorded bf16, elements [first, last)      held f32
 *             base ──▶ | e(first) | … | e(last-1) |      a window: base + (offset - first) * size(held)
 *
 * Beside the bytes a storage knows what they are worth: whether they equal the recorded ones (`exact`), whether
 * something in them could not be had at all (`missing`), and the worst verdict of any op that flowed in (`taint`).
 *
 * Buffers come from size classes and go back to them; `limit` bounds what is held at one time. One thread at a time.
 */
#ifndef LB_REPLAY_VALUE_MEMORY_H
#define LB_REPLAY_VALUE_MEMORY_H

#include <lastbit/program.h>
#include <lastbit/replay.h>

typedef struct lb_memory_storage {
    int64_t id;
    int64_t first, last;                  /* elements of `recorded` */
    char *base;                           /* element `first`; NULL: nothing written or loaded yet */
    size_t capacity;                      /* bytes behind base */
    int64_t filled_first, filled_last;    /* what has been written or loaded lies in here (units of first and last) */
    uint32_t first_program, last_program; /* of the run that touch it, counted as declared */
    lb_dtype recorded;                    /* u8 when seen under several dtypes: then first and last are bytes */
    lb_dtype held;
    bool punned;
    bool paired;   /* some value in it is complex: two elements each */
    bool borrowed; /* base points into the capture, or is shared: read only */
    bool shared;   /* base belongs to everyone that holds it: see lb_memory_storage_share */
    bool exact;
    bool missing;
    uint8_t taint;    /* lb_verdict */
    uint32_t version; /* of the value written or loaded last */
    uint64_t stamp;   /* serial number of the last op that wrote here: is this input also an output? */
} lb_memory_storage;

typedef struct lb_memory lb_memory;

/* `limit_bytes` 0: none. NULL when out of memory. */
lb_memory *lb_memory_new(uint64_t limit_bytes);
void lb_memory_free(lb_memory *memory);
/* Buffers that it lacks come from `spare`, and go there when it is freed: a memory that holds them between runs, which
 * need the same ones again, and whose limit counts for nothing. The system clears pages that it gives anew. */
void lb_memory_share(lb_memory *memory, lb_memory *spare);
/* Most bytes held at one time, buffers kept for reuse and borrowed storages included; and of those the most that
 * storages needed at one time. */
uint64_t lb_memory_peak(const lb_memory *memory);
uint64_t lb_memory_peak_live(const lb_memory *memory);

/* The storage of that id, made when new; its extent grows to [first, last) elements of `dtype`. All programs of a run
 * declare before the first one runs. NULL when out of memory. */
lb_memory_storage *lb_memory_declare(lb_memory *memory, int64_t id, lb_dtype dtype, int64_t first, int64_t last,
                                     uint32_t program);
lb_memory_storage *lb_memory_find(const lb_memory *memory, int64_t id);

/* Gives the storage a buffer in `held` if it has none, zeroed when `zero`. LB_ERR_LIMIT above the limit. */
lb_status lb_memory_storage_allocate(lb_memory *memory, lb_memory_storage *storage, lb_dtype held, bool zero,
                                     lb_err *err);
/* Turns the whole buffer into `held` (values converted, `cast` NULL: as torch) and makes a borrowed one its own. */
lb_status lb_memory_storage_convert(lb_memory *memory, lb_memory_storage *storage, lb_dtype held, const lb_cast *cast,
                                    lb_err *err);
/* Puts the storage onto bytes of the capture, in its recorded dtype; it owns none then. */
void lb_memory_storage_borrow(lb_memory *memory, lb_memory_storage *storage, void *base);
/* Makes `copy` another owner of the storage's contents, which from now on are not written in place: a writer takes a
 * copy of its own first. Contents in the capture stay there. A shared buffer is held by no memory and counts in no
 * limit; `copy` is given back by lb_memory_shared_release, or made the contents of a storage of any memory by
 * lb_memory_storage_adopt. Sharers run in one thread. */
void lb_memory_storage_share(lb_memory *memory, lb_memory_storage *storage, lb_memory_storage *copy);
void lb_memory_storage_adopt(lb_memory *memory, lb_memory_storage *storage, const lb_memory_storage *copy);
void lb_memory_shared_release(lb_memory_storage *copy);
/* Every storage that was declared, in no particular order; NULL after the last. `at` begins as 0. */
lb_memory_storage *lb_memory_next(const lb_memory *memory, uint32_t *at);
/* Drops the buffer; the storage stays declared. */
void lb_memory_storage_drop(lb_memory *memory, lb_memory_storage *storage);

/* True when the window covers every byte of the storage's extent without gaps. */
bool lb_memory_storage_covers(const lb_memory_storage *storage, const lb_value *value);
/* Notes that the window was written; and whether all of it had been written or loaded before. */
void lb_memory_storage_fill(lb_memory_storage *storage, const lb_value *value);
bool lb_memory_storage_holds(const lb_memory_storage *storage, const lb_value *value);
/* The window of a value as it is held (dtype = held, or the complex type of such parts). The storage has a buffer. */
lb_tensor lb_memory_storage_window(const lb_memory_storage *storage, const lb_value *value);

/* The dtype as which a value recorded in `dtype` appears where its parts are held in `held`. */
lb_dtype lb_memory_held_dtype(lb_dtype held, lb_dtype dtype);

/* Scratch buffers of the same pool, for border copies, overlap copies and shadows. */
void *lb_memory_scratch(lb_memory *memory, size_t bytes, lb_err *err);
void lb_memory_scratch_free(lb_memory *memory, void *scratch);

/* Copies every element of `from` into `to` (same shape), converting. */
void lb_memory_tensor_copy(const lb_tensor *to, const lb_tensor *from, const lb_cast *cast);
/* Same shape, same dtype, same bits; NaNs are equal to each other whatever their payload. */
bool lb_memory_tensor_same(const lb_tensor *a, const lb_tensor *b);
/* Is that the logical digest of these elements? Of NaN, whose bits differ from one instruction to the next, every one
 * may have the bits that some processor gives it, all of them the same. */
bool lb_memory_tensor_has_digest(const lb_tensor *tensor, lb_digest digest);

#endif
