/* What `lastbit watch` does when something happens: a file that exists while checkpoints are held, a command for each
 * alarm, a webhook that it is sent to, a file that it is appended to, the flight recorder of a run that is being
 * recorded. Nothing here ends the watch: what fails is said on stderr. */
#ifndef LB_WATCH_ACTION_H
#define LB_WATCH_ACTION_H

#include <lastbit/watch.h>
#include <sys/types.h>

enum { LB_ACTIONS_WAITING = 64 };
typedef struct lb_waiting_alarm {
    lb_watch_alarm alarm;
    bool to_webhook; /* else it is for the command */
} lb_waiting_alarm;
typedef struct lb_watch_actions {
    const char *log;         /* for commands: LASTBIT_LOG */
    const char *const *logs; /* all that are read, the last NULL */
    const char *hold_file;   /* NULL: none */
    const char *command;     /* NULL: none */
    const char *webhook;     /* a URL that each alarm is posted to as JSON, by curl; NULL: none */
    const char *file;        /* alarms are appended to it, a line of JSON each; NULL: none */
    const char *trigger;     /* a process, or the folder that it records into; NULL: none */
    bool held, triggered;
    pid_t running; /* one command or webhook at a time, 0: none; the others wait */
    bool posting;  /* it is the webhook */
    lb_waiting_alarm waiting[LB_ACTIONS_WAITING];
    uint32_t n_waiting, first_waiting, passed_over, failed;
} lb_watch_actions;

/* A hold file that an earlier watch left goes; LB_ERR_EXISTS when no watch has written the file, or a file that is to
 * be written is one of `logs`, which end with NULL and stay the caller's. */
lb_status lb_watch_actions_begin(lb_watch_actions *actions, const char *const *logs, lb_err *err);
void lb_watch_actions_alarm(lb_watch_actions *actions, const lb_watch_alarm *alarm);
void lb_watch_actions_hold(lb_watch_actions *actions, const lb_watch_hold *hold);
/* Starts what waits when nothing runs. */
void lb_watch_actions_poll(lb_watch_actions *actions);
/* Waits for commands. The hold file goes unless the run is out still; `interrupted`: the watch ends first, and it
 * goes. */
void lb_watch_actions_end(lb_watch_actions *actions, bool interrupted);

#endif
