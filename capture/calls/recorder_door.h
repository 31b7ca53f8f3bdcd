/* The recorder's library, loaded when the first call is recorded: a shim is preloaded into programs that never call
 * what it stands beneath, and links nothing but the C library. */
#ifndef LB_CAPTURE_RECORDER_DOOR_H
#define LB_CAPTURE_RECORDER_DOOR_H

#include <lastbit/capture.h>

#include <stdbool.h>

#define LB_DOOR(X)                                                                                                     \
    X(lb_recorder_open)                                                                                                \
    X(lb_recorder_close)                                                                                               \
    X(lb_recorder_step_begin)                                                                                          \
    X(lb_recorder_step_end)                                                                                            \
    X(lb_recorder_forget)                                                                                              \
    X(lb_recorder_op_begin)                                                                                            \
    X(lb_recorder_op_end)                                                                                              \
    X(lb_recorder_op_failed)                                                                                           \
    X(lb_recorder_collective)                                                                                          \
    X(lb_recorder_notice)                                                                                              \
    X(lb_recorder_table)                                                                                               \
    X(lb_recorder_trigger)                                                                                             \
    X(lb_keep_level_parse)                                                                                             \
    X(lb_host_tensor_of)

typedef struct lb_door {
#define LB_DOOR_FIELD(name) __typeof__(&name) name;
    LB_DOOR(LB_DOOR_FIELD)
#undef LB_DOOR_FIELD
} lb_door;

/* NULL when the library (LASTBIT_LIB, or liblastbit_capture.so beside the shim) cannot be loaded; `why` then says
 * so. */
const lb_door *lb_door_open(char *why, size_t room);
/* Around a fork: a library that is just being loaded leaves locks of the loader and of exit locked in the child. It is
 * waited for, but not for ever: the thread that forks may be one that the loader waits for. */
void lb_door_before_fork(void);
void lb_door_after_fork(bool child);

#endif
