/* What calls received, as long as the program may send it on: the newest of it, by address. Replay follows a number
 * from call to call by it: what is sent on unchanged is the value that was received. */
#ifndef LB_CAPTURE_RECEIVED_BYTES_H
#define LB_CAPTURE_RECEIVED_BYTES_H

#include "calls/recorder_door.h"

typedef struct lb_received_window {
    const void *address;
    size_t bytes;
    lb_dtype dtype;
    int64_t storage;
    char *copy; /* which the recorder knows as one storage */
} lb_received_window;

typedef struct lb_received_bytes {
    lb_received_window windows[32]; /* the oldest first */
    uint32_t n;
    size_t bytes;
} lb_received_bytes;

enum { LB_RECEIVED_MOST = 64 << 20 };

/* What was received in this very window, if the bytes that are sent from there are still those; NULL. */
const lb_received_window *lb_received_bytes_find(const lb_received_bytes *received, const void *address, size_t bytes,
                                                 lb_dtype dtype, const void *sent);
/* The program has other bytes there from now on. Takes the window's copy; of one without a copy it only forgets what
 * lay there. */
void lb_received_bytes_note(lb_received_bytes *received, const lb_door *door, lb_recorder *recorder,
                            const lb_received_window *window);
void lb_received_bytes_drop(lb_received_bytes *received, const lb_door *door, lb_recorder *recorder);

#endif
