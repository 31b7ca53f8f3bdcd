/* TensorBoard's event file: what of it is a step's scalars.
 *
 *      a record (TFRecord)   u64 length | u32 masked crc32c of it | `length` bytes | u32 masked crc32c of them
 *      its bytes             a protocol buffer, with the numbers of its fields:
 *                            Event { wall_time 1, step 2, summary 5 { value 1 { tag 1, simple_value 2,
 *                                                                               tensor 8 { dtype 1, content 4,
 *                                                                                          *_val 5… } } } }
 *
 * Sources: tensorflow/core/lib/io/record_writer.h, core/util/event.proto, core/framework/summary.proto and
 * tensor.proto. Scalars of one step come as events of their own, and are gathered until another step begins. */
#ifndef LB_TENSORBOARD_H
#define LB_TENSORBOARD_H

#include "watch/log_field.h"

uint32_t lb_tensorboard_crc32c(const void *bytes, size_t n); /* Castagnoli's, as RFC 3720 has it */

/* Whether bytes begin like an event file; 12 are enough. */
bool lb_tensorboard_event_begins(const uint8_t *bytes, size_t n);

typedef struct lb_event_reader {
    const lb_field_names *names;
    lb_watch_record record; /* gathered so far; its step is known when `open` */
    bool open;
} lb_event_reader;

typedef struct lb_event_out {
    void *context;
    void (*record)(void *context, lb_watch_record *record);
    void (*complaint)(void *context, const char *why);
} lb_event_out;

/* Reads the records that lie whole in `bytes`; gives how many bytes that were, SIZE_MAX when no record can begin
 * there. */
size_t lb_tensorboard_event_read(lb_event_reader *reader, const uint8_t *bytes, size_t n, const lb_event_out *out);
/* No more will come: the step gathered is given. */
void lb_tensorboard_event_end(lb_event_reader *reader, const lb_event_out *out);

#endif
