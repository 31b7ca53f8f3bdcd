/* What another capture kept, so that this one keeps the same: a pair can be compared only where both sides have bytes.
 *
 * The level is taken step by step. Whether an op's results are kept is taken from the op of the same phase, layer and
 * name and the same number among these; for layers, whether their inputs and outputs were kept. What the other program
 * does not have is kept as the level says. */
#ifndef LB_LIKE_H
#define LB_LIKE_H

#include <lastbit/capture.h>

typedef struct lb_like lb_like;

typedef enum lb_liking { LB_LIKING_UNKNOWN, LB_LIKING_LEFT, LB_LIKING_KEPT } lb_liking;

/* `rank`: whose archive is read; where it has no such rank, the first. */
lb_status lb_like_open(const char *path, int32_t rank, lb_like **like, lb_err *err);
void lb_like_close(lb_like *like);
/* A step begins. One that the other capture does not have is like the one before, or like its first. */
lb_status lb_like_step(lb_like *like, int64_t step, lb_level *level, lb_err *err);
/* The next op of that kind. */
lb_liking lb_like_op(lb_like *like, uint8_t phase, const char *layer, const char *op);
lb_liking lb_like_layer(lb_like *like, const char *layer);

#endif
