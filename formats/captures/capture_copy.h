/* The bytes that a program names, from a capture into an archive: what packing and gathering share. Private to
 * formats/. */
#ifndef LB_CAPTURE_COPY_H
#define LB_CAPTURE_COPY_H

#include <lastbit/archive.h>

typedef struct lb_capture_copy {
    lb_capture *from;
    lb_writer *to;
    /* Of bytes that are there and not written yet: whether they are passed over. NULL: none are. */
    bool (*passes_over)(void *context, const lb_value *value);
    /* Bytes that a value says were kept, and that `from` does not have; gives LB_ERR_NOT_CAPTURED where no
     * other archive has them. NULL: they are left out. */
    lb_status (*elsewhere)(void *context, const lb_program *program, uint32_t value, const void **bytes, size_t *size,
                           lb_err *err);
    void *context;
    uint64_t blobs, bytes; /* written */
    uint64_t missing;      /* values that say they were kept, of which there are no bytes */
} lb_capture_copy;

/* Each blob once. Values whose bytes were not kept are no failure. */
lb_status lb_capture_copy_values(lb_capture_copy *copy, const lb_program *program, lb_err *err);

#endif
