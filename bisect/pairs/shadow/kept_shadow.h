/* Keeps the shadow numbers of one side until the other side's shadow has run: all results of each op (large ones as
 * sums, block_sums.h), and the value of each output of the step. */
#ifndef LB_BISECT_KEPT_SHADOW_H
#define LB_BISECT_KEPT_SHADOW_H

#include <lastbit/replay.h>

/* Of one op, row-major. */
typedef struct lb_kept_shadow {
    double *numbers; /* all results after each other, or their sums; NULL: not kept */
    bool summed;     /* of each result its sums are kept (block_sums.h) */
    uint32_t n_results;
    int64_t *elements; /* per result; -1: no shadow of it, or it is a result that is listed before */
    int64_t *starts;   /* per result: where it begins in `numbers` */
    double *noise;     /* per result; of its sums where these are kept */
    double *largest;   /* per result, where sums are kept */
} lb_kept_shadow;

/* Of one value, row-major. */
typedef struct lb_kept_value {
    double *numbers; /* NULL: not kept */
    int64_t elements;
    double noise;
} lb_kept_value;

/* Elements of result `i` of an event; -1: it has no shadow, or it was written in place and is listed before. */
int64_t lb_kept_shadow_elements(const lb_event *event, uint32_t i);

/* Keeps the shadows of an op that has run; what is kept already stays as it is. `whole`: keep all numbers, however many
 * there are; without it, large results are kept as sums. `*room`: bytes that may still be kept. False where they do not
 * fit. */
bool lb_kept_shadow_take(lb_kept_shadow *kept, const lb_event *event, bool whole, uint64_t *room);
void lb_kept_shadow_release(lb_kept_shadow *kept, uint64_t *room);
/* The op has run disturbed: the noise of each result. */
void lb_kept_shadow_measure(lb_kept_shadow *kept, const lb_event *disturbed);
/* How many numbers are kept of it. */
int64_t lb_kept_shadow_total(const lb_kept_shadow *kept);

/* Keeps the numbers of a value; where memory runs out it is not kept. */
void lb_kept_value_take(lb_kept_value *kept, const lb_tensor *shadow);
void lb_kept_value_measure(lb_kept_value *kept, const lb_tensor *disturbed);
void lb_kept_values_free(lb_kept_value *list, uint32_t n);

#endif
