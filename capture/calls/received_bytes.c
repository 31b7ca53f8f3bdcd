/* Bytes that may be sent on: see received_bytes.h. */
#include "calls/received_bytes.h"

#include <stdlib.h>
#include <string.h>

static void drop(lb_received_bytes *received, uint32_t at, const lb_door *door, lb_recorder *recorder)
{
    lb_received_window *gone = &received->windows[at];
    door->lb_recorder_forget(recorder, gone->storage);
    free(gone->copy);
    received->bytes -= gone->bytes;
    memmove(gone, gone + 1, (--received->n - at) * sizeof *gone);
}

const lb_received_window *lb_received_bytes_find(const lb_received_bytes *received, const void *address, size_t bytes,
                                                 lb_dtype dtype, const void *sent)
{
    for (uint32_t i = 0; sent && bytes && i < received->n; i++) {
        const lb_received_window *window = &received->windows[i];
        if (window->address == address && window->bytes == bytes && window->dtype == dtype)
            return memcmp(window->copy, sent, bytes) ? NULL : window;
    }
    return NULL;
}

void lb_received_bytes_note(lb_received_bytes *received, const lb_door *door, lb_recorder *recorder,
                            const lb_received_window *window)
{
    const uintptr_t from = (uintptr_t)window->address, to = from + window->bytes;
    const uint32_t room = sizeof received->windows / sizeof received->windows[0];
    for (uint32_t i = received->n; i-- > 0;) {
        const uintptr_t at = (uintptr_t)received->windows[i].address;
        if (at < to && from < at + received->windows[i].bytes) drop(received, i, door, recorder);
    }
    if (!window->copy) return;
    while (received->n == room || (received->n && received->bytes + window->bytes > LB_RECEIVED_MOST))
        drop(received, 0, door, recorder);
    received->windows[received->n++] = *window;
    received->bytes += window->bytes;
}

void lb_received_bytes_drop(lb_received_bytes *received, const lb_door *door, lb_recorder *recorder)
{
    while (received->n) drop(received, received->n - 1, door, recorder);
}
