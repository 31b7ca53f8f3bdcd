/* A bisection's result: its words and its end. See lastbit/bisect.h. */
#include <lastbit/bisect.h>

#include <stdlib.h>

const char *lb_bisect_axis_name(lb_bisect_axis axis)
{
    static const char *const names[] = {"none", "muon", "precision", "rank", "block", "source", "kernel", "order"};
    return (unsigned)axis < sizeof names / sizeof *names ? names[axis] : "unknown";
}

const char *lb_bisect_outcome_name(lb_bisect_outcome outcome)
{
    static const char *const names[] = {"found", "clean", "not-reproduced", "undecided"};
    return (unsigned)outcome < 4 ? names[outcome] : "unknown";
}

void lb_bisection_free(lb_bisection *b)
{
    if (!b) return;
    for (uint32_t i = 0; i < b->n_culprits; i++) {
        free(b->culprits[i].ranks);
        for (int side = 0; side < 2; side++) lb_code_line_release(&b->culprits[i].lines[side]);
    }
    lb_code_line_release(&b->origin.line);
    lb_code_line_release(&b->failure.line);
    for (uint32_t i = 0; i < b->n_trials; i++) free(b->trials[i].change);
    free(b->culprits);
    free(b->stages);
    free(b->trials);
    free(b->cure);
    free(b->reproducer);
    free(b->reference);
    free(b->again);
    free(b->asked);
    free(b->command);
    free(b->note);
    free(b->reason);
    free(b);
}
