/* Names of optimizer states, as recordings and checkpoints have them: "optimizer.exp_avg:layers.0.up.weight" is the
 * state exp_avg of the parameter layers.0.up.weight. A state that belongs to no parameter has no colon. */
#ifndef LB_REPLAY_STATE_NAME_H
#define LB_REPLAY_STATE_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define LB_STATE_NAME_PREFIX "optimizer."

static inline bool lb_state_name_is(const char *name)
{
    return strncmp(name, LB_STATE_NAME_PREFIX, sizeof LB_STATE_NAME_PREFIX - 1) == 0;
}

/* How many letters stand before the parameter's name, the colon included; 0: the name is not that of a parameter's
 * state. */
static inline size_t lb_state_name_before(const char *name)
{
    const char *colon = lb_state_name_is(name) ? strchr(name, ':') : NULL;
    return colon ? (size_t)(colon + 1 - name) : 0;
}

/* The parameter that a state is of; any other name is given back. */
static inline const char *lb_state_name_parameter(const char *name)
{
    return name + lb_state_name_before(name);
}

#endif
