/* The archive of one rank of the job whose calls are recorded: opened at its first call, a step open at a time. For
 * the thread that writes calls alone, which tells of failures itself.
 *
 *     lb_call_archive_open ─▶ ( lb_call_archive_enter ─▶ ops by lb_call_archive_door )* ─▶ lb_call_archive_close */
#ifndef LB_CAPTURE_CALL_ARCHIVE_H
#define LB_CAPTURE_CALL_ARCHIVE_H

#include "calls/received_bytes.h"
#include "calls/recorder_door.h"

typedef struct lb_call_archive {
    lb_recorder *recorder;
    bool opened, in_step; /* `opened`: it was tried */
    int64_t open_step;
    int64_t next_storage; /* how many names of storages were given */
    uint64_t told[64];    /* hashes of what was said in the open step */
    uint32_t n_told;
    lb_received_bytes received;
} lb_call_archive;

/* The recorder's functions, once an archive was opened. */
const lb_door *lb_call_archive_door(void);
/* As the settings of the shim say it (shim_settings.h); `world`: 0 where it is not known. */
lb_status lb_call_archive_open(lb_call_archive *archive, int32_t rank, int32_t world, lb_err *err);
/* A program may come back to a step that it has left: that one is closed, and what follows belongs to the step that is
 * open. */
lb_status lb_call_archive_enter(lb_call_archive *archive, int64_t step, lb_err *err);
lb_status lb_call_archive_end_step(lb_call_archive *archive, lb_err *err);
/* What is not recorded; in a step each thing is said once. */
void lb_call_archive_skipped(lb_call_archive *archive, const char *text);
/* A step that is open stays incomplete. */
void lb_call_archive_close(lb_call_archive *archive);

#endif
