/* What `lastbit replay --coverage` prints: every op by name, how often it ran, how often with the recorded bits, and of
 * those that nothing computed, why. */
#ifndef LB_CMD_COVERAGE_H
#define LB_CMD_COVERAGE_H

#include <lastbit/json_text.h>
#include <lastbit/replay.h>

typedef struct lb_coverage lb_coverage;

lb_coverage *lb_coverage_new(void); /* NULL: out of memory */
void lb_coverage_free(lb_coverage *coverage);
/* An op that no longer fits into memory is not counted. */
void lb_coverage_add(lb_coverage *coverage, const lb_event *event);
/* [{op, count, identical, native, backend, why}], `backend` where PyTorch ran some, the most frequent first; `opaque`:
 * only what nothing computed. */
json_t *lb_coverage_json(const lb_coverage *coverage, bool opaque);
/* What nothing computed and why; `all`: the ops that were computed, too. */
void lb_coverage_print(const lb_coverage *coverage, bool all);

#endif
