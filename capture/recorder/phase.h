/* The phase of an op that the host does not know: found from what the op touches, at the latest when the step ends. */
#ifndef LB_PHASE_H
#define LB_PHASE_H

#include "recorder/tracked_storage.h"

typedef struct lb_row_range {
    uint32_t first, last;
} lb_row_range;

/* Ops of the open step whose phase is not certain yet, each with the sources before it. */
typedef struct lb_phase_rows {
    lb_row_range *list;
    uint32_t n, cap;
} lb_phase_rows;

typedef enum lb_unclassified {
    LB_UNCLASSIFIED_NOT,
    LB_UNCLASSIFIED_OPEN,     /* the ops that read its results will tell */
    LB_UNCLASSIFIED_GRADIENT, /* it works on gradients, */
    LB_UNCLASSIFIED_PARAMETER /* or on parameters after a backward: so does what takes what it made */
} lb_unclassified;
/* The phase of an op that is about to be recorded, and whether it is certain. */
lb_unclassified lb_phase_of(const lb_recorder *recorder, const lb_recorded_call *call, uint8_t *phase);
/* Notes that an op of that kind made or wrote this storage. */
void lb_phase_made(lb_tracked_set *storages, lb_unclassified loose, int64_t key);
/* Remembers the rows of an op that is LB_UNCLASSIFIED_OPEN. */
lb_status lb_phase_remember(lb_phase_rows *rows, uint32_t first, uint32_t last, lb_err *err);
/* The step ends: gives those rows their phases. */
lb_status lb_phase_settle(lb_recorder *recorder, lb_err *err);

#endif
