/* Names of what a step is given, as recordings have them: "input:0" or "input:input_ids", the arguments of the
 * outermost module. */
#ifndef LB_REPLAY_INPUT_NAME_H
#define LB_REPLAY_INPUT_NAME_H

#include <stdbool.h>
#include <string.h>

#define LB_INPUT_NAME_PREFIX "input:"

static inline bool lb_input_name_is(const char *name)
{
    return strncmp(name, LB_INPUT_NAME_PREFIX, sizeof LB_INPUT_NAME_PREFIX - 1) == 0;
}

#endif
