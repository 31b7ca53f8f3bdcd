/* The context in which an op's values are recorded: its name, layer, call, phase and thread, and whether its inputs and
 * results are checked and kept. */
#ifndef LB_OP_SITE_H
#define LB_OP_SITE_H

#include "recorder/keep.h"
#include "recorder/tracked_storage.h"

typedef struct lb_op_site {
    const char *name; /* of the op */
    const char *layer;
    uint32_t scope, call; /* scope: row of the program */
    uint8_t phase, thread;
    bool verify;              /* inputs of this op are compared with what is known of them */
    bool keep;                /* its results are kept */
    bool keep_inputs;         /* and so that they can be judged, what it reads */
    lb_keep_purpose keep_for; /* and for which level that is */
    bool filled;              /* its results are made of nothing: what fills a buffer next may be unseen code */
    bool reads_floats;        /* what it makes of them that is no float is a choice: an index, a comparison */
    /* of a device: what is written to the host comes from there, and may arrive later; NULL: nothing does */
    const lb_host_tensor *late_from;
    bool late_copy; /* and it is a copy of this tensor's numbers */
} lb_op_site;

#endif
