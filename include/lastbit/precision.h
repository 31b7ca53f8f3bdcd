/* Precision: what a precision swap does to each tensor it touches, and the table of it.
 *
 * A replay under `--precision` rounds or quantises operands of the ops selected. An observer is told of each
 * (lb_quantisation). The table adds them up per layer and role, over ops, steps and ranks, and holds the losses with
 * and without the swaps.
 */
#ifndef LASTBIT_PRECISION_H
#define LASTBIT_PRECISION_H

#include <lastbit/replay.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a tensor is to the op that reads it. A weight is a parameter, whatever casts and views lie between; a gradient
 * was made in backward; everything else is an input. */
typedef enum lb_precision_role { LB_ROLE_INPUT, LB_ROLE_WEIGHT, LB_ROLE_GRADIENT } lb_precision_role;
#define LB_ROLES 3
LB_API const char *lb_precision_role_name(lb_precision_role role); /* "input", "weight", "gradient" */

/* What rounding did to a number of elements. Finite elements only, but for `nonfinite` and `masked`. */
typedef struct lb_precision_loss {
    uint64_t elements; /* finite ones */
    uint64_t nonzero;
    uint64_t nonfinite;
    uint64_t spoiled;             /* became NaN or infinite: they share a scale with an element that is */
    uint64_t masked;              /* were NaN or infinite and became finite */
    uint64_t underflow;           /* were not 0 and became 0 */
    uint64_t overflow;            /* beyond the largest value by half a step or more, before saturation */
    double amax;                  /* largest magnitude */
    double signal;                /* sum of squares */
    double error;                 /* sum of squared differences; over those that stayed finite */
    double scale_low, scale_high; /* of the factors multiplied by before rounding; 1 without scaling, 0 when none was */
} lb_precision_loss;
LB_API void lb_precision_loss_add(lb_precision_loss *sum, const lb_precision_loss *more);
LB_API double lb_precision_loss_mse(const lb_precision_loss *loss); /* error / elements */
/* 10 log10(signal / error) in dB; infinite without error */
LB_API double lb_precision_loss_sqnr(const lb_precision_loss *loss);

/* One operand of one op was rounded. Strings are valid during the call. */
struct lb_quantisation {
    const lb_program *program; /* the recorded program */
    uint32_t op;               /* its row there; LB_NONE for an op that a pass made */
    uint32_t operand;          /* position among the op's args */
    int64_t step;
    int32_t rank;
    const char *layer;
    lb_precision_role role;
    const char *format; /* "e4m3fn current" */
    const lb_precision_loss *loss;
};

/* One row per layer, role and format, in order of first appearance. */
typedef struct lb_precision_row {
    char *layer, *format;
    lb_precision_role role;
    uint64_t tensors; /* roundings */
    lb_precision_loss loss;
} lb_precision_row;

/* NaN where a run did not get to the loss. */
typedef struct lb_precision_effect {
    int64_t step;
    int32_t rank;
    double recorded, plain, swapped; /* as recorded; replayed without and with the swaps */
} lb_precision_effect;

typedef struct lb_precision_table {
    lb_precision_row *rows;
    uint32_t n_rows;
    lb_precision_effect *effects; /* one per rank and step that has a loss */
    uint32_t n_effects;
    struct lb_precision_memo *memo;
} lb_precision_table;

LB_API lb_precision_table *lb_precision_table_new(void); /* NULL when out of memory */
LB_API void lb_precision_table_free(lb_precision_table *table);
/* For lb_observer.quantised, with the table as its context. */
LB_API void lb_precision_table_add(lb_precision_table *table, const lb_quantisation *quantisation);
/* To be handed every event of a run: notes the loss, which is what backward starts from. */
LB_API void lb_precision_table_event(lb_precision_table *table, const lb_event *event, bool swapped);

#ifdef __cplusplus
}
#endif
#endif
