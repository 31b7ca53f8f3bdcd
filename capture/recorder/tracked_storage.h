/* Tracked storages: which storage a tensor lies in, which version of its contents, and which of its bytes mean
 * anything.
 *
 * Bytes of a storage are, for the program being recorded,
 *     UNKNOWN    no op of this program produced them: reading them makes a source
 *     UNDEFINED  allocated and never written: no digest, no finding
 *     DEFINED    produced by an op of this program, or read as a source before
 *     LEFT       as an earlier program left them: reading them makes a carried source
 * Nearly every storage is in one state as a whole; a map of its units exists only while it is mixed.
 *
 * A window is what a value is to its storage: a layout and dtype, at the current version. Windows outlive the program,
 * so that the next one can tell what is still as it was left. */
#ifndef LB_TRACKED_STORAGE_H
#define LB_TRACKED_STORAGE_H

#include <lastbit/capture.h>
#include "base/hash.h"

typedef enum lb_tracked_bytes {
    LB_BYTES_UNKNOWN,
    LB_BYTES_UNDEFINED,
    LB_BYTES_DEFINED,
    LB_BYTES_LEFT,
    LB_BYTES_STATES
} lb_tracked_bytes;

/* ---- which bytes mean anything ----------------------------------------------------------------------------------- */

typedef struct lb_tracked_map {
    uint8_t all;    /* lb_tracked_bytes, while units is NULL */
    uint8_t *units; /* one lb_tracked_bytes per `grain` bytes */
    uint64_t n_units;
    uint32_t grain;
    uint64_t count[LB_BYTES_STATES]; /* units in each state */
} lb_tracked_map;

/* True when an element of the view has a byte in that state. `width`: bytes per element. */
bool lb_tracked_map_has(const lb_tracked_map *map, const lb_layout *layout, size_t width, lb_tracked_bytes state);
/* Marks the elements of the view; false when out of memory. `total`: bytes of the storage. */
bool lb_tracked_map_set(lb_tracked_map *map, uint64_t total, const lb_layout *layout, size_t width,
                        lb_tracked_bytes state);
/* The first maximal run of bytes in that state within [*first, last): sets *first and *end; false when there is
 * none. */
bool lb_tracked_map_run(const lb_tracked_map *map, uint64_t *first, uint64_t last, lb_tracked_bytes state,
                        uint64_t *end);
bool lb_tracked_map_set_range(lb_tracked_map *map, uint64_t total, uint64_t first, uint64_t last,
                              lb_tracked_bytes state);

/* ---- storages ---------------------------------------------------------------------------------------------------- */

typedef struct lb_promise lb_promise; /* the measurement of a window, not finished yet: value_bytes.c */

typedef struct lb_in_flight lb_in_flight; /* the same on a device: device_in_flight.c */

typedef struct lb_tracked_window {
    uint64_t hash;       /* of layout and dtype */
    int64_t first, last; /* dense range in bytes */
    uint32_t row;        /* value in the current program, LB_NONE in an older one */
    uint32_t statistics; /* row in the current program */
    lb_digest logical, blob;
    lb_promise *promise;  /* the measurement that will bring what the window lacks; NULL: none is under way */
    lb_in_flight *coming; /* the same of a device; what is `kept` then comes too */
    uint64_t *leaves;     /* see measure.h */
    uint32_t n_leaves;
    lb_dtype dtype;
    bool kept;     /* the blob was kept for a value of this program */
    bool left;     /* its bytes were left out, though a level that keeps layers would have kept them */
    bool verified; /* compared with its bytes since the last doubt */
} lb_tracked_window;

typedef struct lb_tracked_role {
    int64_t first, last; /* bytes that the tensor spans */
    uint8_t kind;        /* lb_source_kind */
    uint32_t flags;
    char *name;
    uint64_t since; /* serial of the program that first named it so */
} lb_tracked_role;

typedef struct lb_tracked_deferred { /* to be measured when the op that writes it has completed */
    uint32_t row;
    lb_host_tensor seen;
} lb_tracked_deferred;

/* A storage as far as it is known. */
typedef struct lb_tracked {
    int64_t key;              /* the host's name */
    int64_t id;               /* ours, never used again */
    const uint8_t *base;      /* an address of the device, where it lies on one */
    struct lb_device *device; /* NULL: memory of the host, or of a device that was not registered */
    void *stream;             /* where what is known of it was queued last */
    uint64_t bytes;
    uint32_t version;
    uint64_t program; /* serial of the last program that touched it */
    bool escaped;
    bool ahead; /* see lb_graph_is_ahead */
    lb_tracked_map map;
    lb_tracked_window *windows;
    uint32_t n_windows, cap_windows;
    lb_tracked_role *roles;
    uint32_t n_roles;
    lb_tracked_deferred *deferred;
    uint32_t n_deferred;
    bool of_gradient;  /* this program computed it from gradients, outside backward, */
    bool of_parameter; /* or from parameters after backward */
    bool partial;      /* written in parts by this program */
    lb_digest left;    /* of what the last program left there: leftover_digest.c; none: unknown */
    /* of bytes as they were allocated, before any write: leftover_digest.c; none: they were not read */
    lb_digest fresh;
    /* Memory of the host: which of the copies to the host that may arrive later (lb_recorder.n_late) wrote to it last;
     * 0: none did. Until that has arrived its bytes are not read. */
    uint64_t late;
    lb_promise *promises; /* its bytes are being read: settle before they change, move or go */
    lb_in_flight *coming;
} lb_tracked;

typedef struct lb_tracked_set {
    lb_tracked **list;
    uint32_t n;
    lb_hash by_key; /* rows of `list` */
    int64_t next_id;
} lb_tracked_set;

lb_tracked *lb_tracked_set_find(const lb_tracked_set *storages, int64_t key);
/* Finds or makes it (all bytes UNKNOWN); NULL when out of memory. */
lb_tracked *lb_tracked_set_get(lb_tracked_set *storages, int64_t key, bool *fresh);
void lb_tracked_set_remove(lb_tracked_set *storages, int64_t key);
void lb_tracked_set_release(lb_tracked_set *storages);
/* Ops ran that were not recorded: no window says any more what is in its storage. */
void lb_tracked_set_distrust(lb_tracked_set *storages);

/* The program with this serial touches the storage for the first time: rows of the last program mean nothing any more.
 * `certain`: its bytes are as they were left. */
void lb_tracked_enter(lb_tracked *storage, uint64_t serial, bool certain);
/* The contents changed: a new version, of which no window is known. False when out of versions. */
void lb_tracked_change(lb_tracked *storage);
/* The storage's allocation is a new one now, all of it in that state. */
void lb_tracked_move(lb_tracked *storage, const void *base, uint64_t bytes, lb_tracked_bytes state);
/* The role of the smallest tensor that begins there and reaches as far; else of the largest that begins there, or of
 * the only one; NULL: none. A flat buffer and the first parameter in it begin at the same byte. */
const lb_tracked_role *lb_tracked_find_role(const lb_tracked *storage, int64_t first, int64_t last);
bool lb_tracked_add_role(lb_tracked *storage, const lb_tracked_role *role); /* copies the name */

uint64_t lb_tracked_window_hash(const lb_host_tensor *seen);
lb_tracked_window *lb_tracked_find_window(lb_tracked *storage, uint64_t hash);
/* NULL when out of memory; row and statistics are LB_NONE. */
lb_tracked_window *lb_tracked_add_window(lb_tracked *storage, const lb_host_tensor *seen, uint64_t hash, int64_t first,
                                         int64_t last);

#endif
