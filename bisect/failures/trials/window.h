/* The window of a bisection: which bytes it lacks, and the command that records it again with them. */
#ifndef LB_BISECT_WINDOW_H
#define LB_BISECT_WINDOW_H

#include "trials/trial.h"

typedef struct lb_window_lacking {
    uint32_t sources, opaque; /* without bytes: sources; results of ops that replay does not know */
    char first[200];          /* the first of them, in words */
} lb_window_lacking;

/* What a chained replay of the window would need and the capture does not have. */
lb_window_lacking lb_window_lack(const lb_bisect_session *session);

/* The command that records the steps that matter again with their sources, from what the receipt knows of the program;
 * malloc'ed. "YOUR PROGRAM" stands for what it doesn't know. `all_ranks`: ranks were left out, too. */
char *lb_window_record_again(const lb_bisect_session *session, int64_t failing_step);

#endif
