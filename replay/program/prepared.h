/* A program analysed once for execution: what each op asks of the interpreter, and when storages die.
 *
 * It points into the program, which must outlive it, and is read-only afterwards: all runs share it.
 */
#ifndef LB_REPLAY_PREPARED_H
#define LB_REPLAY_PREPARED_H

#include "kernel/ops.h"

typedef enum lb_action {
    LB_ACT_NOTHING,  /* a view, a host mark, an op that failed or leaves its result undefined */
    LB_ACT_SOURCE,   /* lb::source */
    LB_ACT_STAND_IN, /* opaque or random: recorded results are taken */
    LB_ACT_COMPUTE,
    LB_ACT_COLLECTIVE,
    LB_ACT_DECIDE, /* item(): nothing to compute, its input is watched */
    LB_ACT_ZERO,   /* lb::zero: results := 0 */
    LB_ACT_COPY,   /* lb::copy: results[0] := args[0] */
    LB_ACT_STATE,  /* lb::state: keep what is there, else 0 */
    LB_ACT_ROUND   /* lb::round: results[0] := args[0] rounded to the dtype in args[1] */
} lb_action;

typedef struct lb_prepared_op {
    const lb_op_row *row;        /* NULL: opaque or pseudo */
    uint8_t action;              /* lb_action */
    uint8_t form;                /* lb_op_form */
    uint8_t view;                /* counted as a view, not as a computing op */
    uint32_t collective;         /* row of program->collectives, or LB_NONE */
    uint32_t first_dying, dying; /* rows of prepared->dying: storages that no later op touches */
} lb_prepared_op;

/* A storage as this program uses it: extent in elements of `dtype`, or in bytes when seen under several dtypes. A
 * complex number is two elements: its storage is one of its parts, under which it may be seen, too. */
typedef struct lb_prepared_storage {
    int64_t id, first, last;
    lb_dtype dtype;
    bool punned;
    bool paired;  /* some value in it is complex */
    bool written; /* an op of this program other than a source writes it */
} lb_prepared_storage;

typedef struct lb_prepared {
    const lb_program *program;
    const uint32_t *origin; /* per op: row of the recorded program, or LB_NONE; NULL: the program is as recorded */
    const lb_program *recorded;
    lb_prepared_op *ops;
    lb_prepared_storage *storages;
    uint32_t n_storages;
    uint32_t *storage_of;  /* per value: row of storages */
    uint32_t *dying;       /* rows of storages */
    uint8_t *routed;       /* per value: 1 ids, 2 weights, 3 slots of a routing decision, else 0; NULL: there is none */
    uint32_t *boundary_at; /* per op, plus one: first row of boundary_rows that stands before it */
    uint32_t *boundary_rows; /* module inputs, ordered by op */
    uint64_t computing;      /* ops that compute something (no sources, views, host marks) */
} lb_prepared;

/* `recorded` and `origin` may be NULL when `program` is the recorded one. */
lb_status lb_prepared_make(const lb_program *program, const lb_program *recorded, const uint32_t *origin,
                           lb_prepared **prepared, lb_err *err);
void lb_prepared_free(lb_prepared *prepared);
/* The op is a plain call: nothing is drawn, decided or taken from the recording. */
bool lb_prepared_is_call(const lb_op *op, const lb_prepared_op *prepared);

#endif
