/* Holds the back ends of devices, and reads and measures the bytes of a storage through the back end of its device. */
#ifndef LB_DEVICE_BYTES_H
#define LB_DEVICE_BYTES_H

#include "device/device.h"
#include "recorder/graph_tape.h"
#include "recorder/tracked_storage.h"

#include <lastbit/json_text.h>

typedef struct lb_device_entry lb_device_entry; /* device_bytes.c */

/* Bytes [first, last) of a storage of a device. */
typedef struct lb_device_fetched {
    int64_t id;
    uint32_t version;
    uint64_t first, last, capacity;
    uint8_t *bytes;
} lb_device_fetched;

typedef struct lb_devices {
    lb_device_entry *list; /* as they were registered: of two that fit the later one counts */
    uint32_t n;
    lb_device_fetched fetched;  /* what was read last */
    uint64_t n_unreported_runs; /* graphs that ran without the recorder being told */
} lb_devices;

/* NULL: memory of the host, or of a device that was not registered. */
lb_device *lb_device_of(lb_recorder *recorder, const lb_host_tensor *seen);
void lb_devices_close(lb_devices *devices, bool forked);
/* For coverage: what each back end took and could not read; NULL where none was used. */
json_t *lb_devices_account(const lb_devices *devices);
bool lb_device_bytes_readable(const lb_tracked *storage, const lb_host_tensor *seen);
/* Bytes [first, last) where the host can read them, until the next such call; NULL when a device did not give them.
 * Those that were fetched last are not fetched again while no write there is known. */
const uint8_t *lb_device_bytes_of(lb_recorder *recorder, const lb_tracked *storage, uint64_t first, uint64_t last);
/* The same, fetched anew. */
const uint8_t *lb_device_bytes_fresh(lb_recorder *recorder, const lb_tracked *storage, uint64_t first, uint64_t last);
/* lb_measure of one value. LB_OK with *there false: its device did not give it, which is noted. `bytes`: the value is
 * about to be kept, so that a copy from a device brings its bytes along. */
lb_status lb_device_bytes_take(lb_recorder *recorder, const lb_tracked *storage, lb_measuring *item, bool bytes,
                               bool *there, lb_err *err);
/* For memory of the host: returns when copies from a device to this storage have arrived. */
void lb_device_bytes_arrive(lb_recorder *recorder, const lb_tracked *storage);
/* Returns when everything that is queued on the storage's stream by now has been done; false when the device cannot
 * tell. */
bool lb_device_bytes_wait(lb_recorder *recorder, lb_tracked *storage);
/* Notes that a device did not give a value. */
void lb_device_bytes_missing(lb_recorder *recorder, const lb_device *device, lb_work_state state);
/* `back_end` belongs to `devices` from here on, whatever the status. */
lb_status lb_devices_add(lb_devices *devices, uint8_t device, uint8_t unit, lb_device *back_end, lb_err *err);
/* The op has ended: frees large buffers. */
void lb_device_bytes_trim(lb_devices *devices);

/* A run of the graph is about to be queued on the stream; afterwards, whether it was (`launched`). */
void lb_devices_run(const lb_tape *tape);
void lb_devices_ran(const lb_tape *tape, bool launched, void *stream);
/* Notes graphs that ran without the recorder being told. */
void lb_devices_hear(lb_recorder *recorder);

#endif
