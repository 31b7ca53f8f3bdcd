/* What was passed to the recorder while a graph was being captured, so that it can be passed again whenever the graph
 * runs.
 *
 *     capture   ops, modules, frees ─▶ tape          nothing was computed: no step holds them
 *                        └─▶ measuring nodes of the graph, each with a name (slot)
 *     run       tape ─▶ ops of the open step, before the graph is launched ─▶ their results come from the nodes
 *
 * Storages are rows of a table here: a storage that was freed during the capture, or since, no longer has a key of the
 * host's and gets one of the recorder's own. */
#ifndef LB_GRAPH_TAPE_H
#define LB_GRAPH_TAPE_H

#include <lastbit/capture.h>
#include "base/hash.h"

#define LB_TAPED_PLACE 0x80000000u /* in lb_place.call: a call of a module in the capture */

typedef struct lb_taped_storage {
    int64_t key;
    int64_t own;      /* 0: it lives. Else the host has freed it, and this is its key, in every tape that knows it */
    uint32_t version; /* writes so far, of the capture or of the run under way */
    uint32_t newest;  /* slot + 1 */
} lb_taped_storage;

typedef enum lb_taped_kind {
    LB_TAPED_BEGIN,
    LB_TAPED_END,
    LB_TAPED_FAILED,
    LB_TAPED_ENTER,
    LB_TAPED_LEAVE,
    LB_TAPED_ROUTING,
    LB_TAPED_COLLECTIVE,
    LB_TAPED_GROUP,
    LB_TAPED_FORGET
} lb_taped_kind;

/* A collective, as lb_recorder_collective is told. */
typedef struct lb_taped_collective {
    const char *group, *reduce, *algorithm;
    uint64_t sequence;
    int32_t *ranks;
    uint32_t n_ranks;
} lb_taped_collective;

/* A group, as lb_recorder_group is told; keys of members are rows of storages, -1: none. */
typedef struct lb_taped_group {
    const char *optimizer;
    lb_member *members;
    lb_option *options;
    uint32_t index, n_members, n_options;
} lb_taped_group;

typedef struct lb_taped {
    lb_taped_kind kind;
    bool deferred, recompute;
    uint32_t at;    /* END, FAILED: the entry that began it. COLLECTIVE, GROUP: an op of the tape. FORGET: a storage */
    lb_place place; /* of modules and routing; ENTER: `call` is what it was given */
    lb_recorded_call call;        /* BEGIN */
    lb_recorded_operand *results; /* END */
    lb_host_tensor **tensors;     /* ENTER, LEAVE, ROUTING (five, some NULL) */
    uint32_t n;                   /* of either */
    uint32_t *written;            /* END: storages that got a new version */
    uint32_t n_written;
    union {
        lb_taped_collective collective;
        lb_taped_group group;
    } u;
} lb_taped;

typedef struct lb_taped_slot { /* what a node measures */
    uint32_t storage, version;
    uint64_t hash; /* of the window */
    int64_t first, last;
    uint64_t slot;   /* see lb_device_work */
    bool each_run;   /* bytes come, too */
    uint32_t before; /* slot + 1 of the same storage */
} lb_taped_slot;

typedef struct lb_taped_device { /* slots of a back end */
    struct lb_device *device;
    uint64_t first, last;
} lb_taped_device;

typedef struct lb_taped_seen {
    lb_host_tensor *seen;
    uint32_t storage;
} lb_taped_seen;

typedef struct lb_tape {
    struct lb_tape *next;
    int64_t graph;
    uint64_t serial; /* of tapes, from 1 */
    lb_taped *entries;
    uint32_t n_entries, n_ops, n_places;
    lb_taped_storage *storages;
    uint32_t n_storages;
    lb_hash by_key; /* rows of those that live */
    lb_taped_seen *seen;
    uint32_t n_seen;
    lb_taped_slot *slots;
    uint32_t n_slots;
    lb_hash by_value; /* rows of slots */
    lb_taped_device *devices;
    uint32_t n_devices;
    void **blocks; /* all copies */
    uint32_t n_blocks;
    bool short_of_memory; /* an entry is missing */
} lb_tape;

lb_tape *lb_tape_new(int64_t graph, uint64_t serial);
void lb_tape_free(lb_tape *tape); /* one; NULL is fine */

/* The row of the storage that lives under this key; LB_NONE: out of memory. */
uint32_t lb_tape_storage(lb_tape *tape, int64_t key);
/* Its row if it is known; LB_NONE. */
uint32_t lb_tape_find(const lb_tape *tape, int64_t key);
/* The host has freed the storage, and may use its key for another one: from now on it has a key of the recorder's own,
 * the n-th of all. */
void lb_tape_gone(lb_tape *tape, int64_t key, uint64_t n);
/* The key that a run uses for the storage; whether a key is one of the recorder's own. */
int64_t lb_tape_key(const lb_tape *tape, uint32_t storage);
bool lb_tape_is_ours(int64_t key);

/* Copies that live as long as the tape; NULL and tape->short_of_memory when there is none left. */
lb_taped *lb_tape_add(lb_tape *tape, lb_taped_kind kind);
void *lb_tape_copy(lb_tape *tape, const void *data, size_t size);
const char *lb_tape_text(lb_tape *tape, const char *text); /* NULL stays NULL */
lb_host_tensor *lb_tape_seen(lb_tape *tape, const lb_host_tensor *seen);
lb_recorded_operand *lb_tape_operands(lb_tape *tape, const lb_recorded_operand *operands, uint32_t n);

bool lb_tape_add_slot(lb_tape *tape, struct lb_device *device, const lb_taped_slot *slot);
/* The slot that measures the storage as it is now, by version, one with bytes where there is one; NULL: none does. */
const lb_taped_slot *lb_tape_slot(const lb_tape *tape, uint32_t storage, uint64_t hash);
/* Whether bytes of the storage as it is now come with each run, and contain those. */
bool lb_tape_covers(const lb_tape *tape, uint32_t storage, int64_t first, int64_t last);

/* A run begins: gives tensors their present keys and that stream, and marks all storages as not yet written. */
void lb_tape_rewind(lb_tape *tape, void *stream);

#endif
