/* Snapshots: values that are read out of a run, as they were when some op began.
 *
 * What gives a value may be an op of another layout, or of an earlier step: contents are followed through the storage.
 * Handed every event of a run, the set keeps the last contents of each wanted window. */
#ifndef LB_REPLAY_SNAPSHOT_H
#define LB_REPLAY_SNAPSHOT_H

#include <lastbit/replay.h>

typedef struct lb_snapshot {
    const lb_program *program;
    uint32_t value, before; /* op of the program */
    lb_tensor tensor;       /* row-major, in the dtype in which the run held it; data NULL: not seen, owned */
} lb_snapshot;

typedef struct lb_snapshots {
    lb_snapshot *rows;
    uint32_t n;
    bool failed; /* out of memory */
} lb_snapshots;

/* The row that it gets (the one it has); LB_NONE when out of memory or for value LB_NONE. */
uint32_t lb_snapshots_want(lb_snapshots *snapshots, const lb_program *program, uint32_t value, uint32_t before);
void lb_snapshots_event(lb_snapshots *snapshots, const lb_event *event);
/* The same as an lb_observer.op with the set as its context. */
bool lb_snapshots_watch(void *snapshots, const lb_event *event);
/* NULL: not seen. */
const lb_tensor *lb_snapshots_of(const lb_snapshots *snapshots, uint32_t row);
/* Forgets contents, keeps what is wanted. */
void lb_snapshots_clear(lb_snapshots *snapshots);
void lb_snapshots_release(lb_snapshots *snapshots);

#endif
