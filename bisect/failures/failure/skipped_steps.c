/* Steps that a loss scaler skipped: see skipped_steps.h. */
#include "failure/skipped_steps.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool lb_skipped_steps_note(lb_skipped_steps *steps, int64_t step)
{
    if (steps->n && steps->last >= step) return false;
    if (steps->n < LB_SKIPPED_STEPS_SHOWN) steps->first[steps->n] = step;
    steps->last = step, steps->n++;
    return true;
}

void lb_skipped_steps_text(const lb_skipped_steps *steps, char *text, size_t size)
{
    char list[160] = "";
    *text = '\0';
    if (!steps->n) return;
    for (uint32_t i = 0; i < steps->n && i < LB_SKIPPED_STEPS_SHOWN; i++) {
        const size_t used = strlen(list);
        const char *before = !i ? "" : i + 1 == steps->n ? " and " : ", ";
        snprintf(list + used, sizeof list - used, "%s%" PRId64, before, steps->first[i]);
    }
    if (steps->n > LB_SKIPPED_STEPS_SHOWN)
        snprintf(list + strlen(list), sizeof list - strlen(list), ", … %" PRId64 " (%u steps)", steps->last, steps->n);
    snprintf(text, size, "%s %s: the loss scaler met non-finite gradients and skips the step%s",
             steps->n == 1 ? "step" : "steps", list, steps->n == 1 ? "" : "s");
}
