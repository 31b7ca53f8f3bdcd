/* Ops that a replay could not judge because the capture holds no bytes of their inputs: how many, and how to get at
 * them. */
#ifndef LB_CMD_MISSING_H
#define LB_CMD_MISSING_H

#include <lastbit/lacking.h>
#include <lastbit/replay.h>

/* Zeroed: none. */
typedef struct lb_missing {
    lb_lack lack;
} lb_missing;

void lb_missing_add(lb_missing *missing, const lb_event *event);
/* What is missing and the commands that help, in lines; malloc'ed, NULL when nothing is missing. `backend`: PyTorch had
 * its try. */
char *lb_missing_text(const lb_missing *missing, lb_capture *capture, const char *path, bool backend);

#endif
