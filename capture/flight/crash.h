/* What is to be done before a signal ends the process: the flight recorder's memory must get to disk.
 *
 * A handler may do next to nothing, and the thread it interrupts may hold any lock. So a thread of ours waits from the
 * beginning and does the work; the handler wakes it, and after a deadly signal waits for it, but not for long. Only
 * signals that would end the process are taken, and it ends as it would have. SIGKILL cannot be taken. */
#ifndef LB_CRASH_H
#define LB_CRASH_H

#include <stdbool.h>

/* From now on `rescue(signal)` runs once before the process ends by a signal without another handler. A forked child is
 * not concerned. False when there is no thread to be had. */
bool lb_crash_watch(void (*rescue)(int signal));

/* The process is about to end by itself, with nothing of the usual at its end (os._exit): `rescue(0)` begins in our
 * thread. False where no thread watches, or a signal came first. The caller waits until it is over, but not for
 * long. */
bool lb_crash_leave(void);
bool lb_crash_is_over(void);

#endif
