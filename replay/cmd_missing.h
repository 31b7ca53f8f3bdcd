/* Ops that a replay could not judge because the capture holds no bytes of their inputs: how many, and how to get at them. */
#ifndef LB_CMD_MISSING_H
#define LB_CMD_MISSING_H

#include <lastbit/archive.h>
#include <lastbit/replay.h>

/* Zeroed: none. */
typedef struct lb_missing {
    uint64_t ops;
    int64_t first_step, last_step;
    int32_t rank;
    uint32_t world;
    uint8_t level; /* the lowest that was recorded */
} lb_missing;

void lb_missing_add(lb_missing *missing, const lb_event *event);
/* What is missing and the command that helps, in lines; malloc'ed, NULL when nothing is missing. */
char *lb_missing_text(const lb_missing *missing, lb_capture *capture);

#endif
