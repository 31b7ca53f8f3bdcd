/* What swaps did to what leaves a step, as `lastbit replay` says it. */
#ifndef LB_CMD_EFFECT_H
#define LB_CMD_EFFECT_H

#include <lastbit/json_text.h>
#include <lastbit/effect.h>

/* A size: null for a NaN, "inf" for an infinity. */
json_t *lb_effect_number(double x);
/* {output, loss, parameters: of all steps and ranks the largest, steps: [one by one]}; null for no effects. */
json_t *lb_effects_json(lb_effects *effects);
void lb_effects_print(lb_effects *effects);

#endif
