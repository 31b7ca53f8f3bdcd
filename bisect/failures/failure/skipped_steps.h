/* Steps that a loss scaler skipped: the first few by number, and how many there are. */
#ifndef LB_BISECT_SKIPPED_STEPS_H
#define LB_BISECT_SKIPPED_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LB_SKIPPED_STEPS_SHOWN = 6 };

typedef struct lb_skipped_steps {
    int64_t first[LB_SKIPPED_STEPS_SHOWN], last;
    uint32_t n;
} lb_skipped_steps;

/* Steps come in their order; false: that step was noted before. */
bool lb_skipped_steps_note(lb_skipped_steps *steps, int64_t step);
/* The warning that says which they are; "": there are none. */
void lb_skipped_steps_text(const lb_skipped_steps *steps, char *text, size_t size);

#endif
