/* What the host says about shards, kept until the step ends and its values are known: see lastbit/shard.h. */
#ifndef LB_SHARDING_H
#define LB_SHARDING_H

#include "recorder/tracked_storage.h"

typedef struct lb_sharding_note {
    int64_t storage, key; /* ours, and the host's name */
    int64_t first;        /* byte where the tensor begins */
    int64_t elements;     /* of the part */
    lb_layout part;       /* contiguous */
    lb_layout tensor;     /* as it lies */
    lb_sharding said;     /* a copy, in one allocation */
    void *memory;         /* of that copy */
} lb_sharding_note;

typedef struct lb_sharding_notes {
    lb_sharding_note *list;
    uint32_t n;
    bool sorted; /* by storage, first */
} lb_sharding_notes;

/* Adds a note; it replaces an earlier one of the same part of the same tensor. */
lb_status lb_sharding_notes_add(lb_sharding_notes *notes, const lb_tracked *storage, const lb_host_tensor *tensor,
                                const lb_sharding *sharding, lb_err *err);
/* Adds their rows to a program whose values are all there. */
lb_status lb_sharding_notes_apply(lb_sharding_notes *notes, lb_program *program, lb_err *err);
/* Drops those of storages that are gone. */
void lb_sharding_notes_sweep(lb_sharding_notes *notes, const lb_tracked_set *storages);
void lb_sharding_notes_release(lb_sharding_notes *notes);

#endif
