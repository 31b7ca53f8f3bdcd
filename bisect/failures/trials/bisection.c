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

const char *lb_bisect_set_outcome_name(lb_bisect_set_outcome outcome)
{
    static const char *const names[] = {"none", "smallest", "needed", "undecided"};
    return (unsigned)outcome < sizeof names / sizeof *names ? names[outcome] : "unknown";
}

void lb_bisection_free(lb_bisection *bisection)
{
    if (!bisection) return;
    for (uint32_t i = 0; i < bisection->n_culprits; i++) {
        free(bisection->culprits[i].ranks);
        for (int side = 0; side < 2; side++) lb_code_line_release(&bisection->culprits[i].lines[side]);
    }
    lb_code_line_release(&bisection->origin.line);
    lb_code_line_release(&bisection->failure.line);
    for (uint32_t i = 0; i < bisection->n_trials; i++) free(bisection->trials[i].change);
    free(bisection->culprits);
    free(bisection->stages);
    free(bisection->trials);
    free(bisection->cure);
    free(bisection->reproducer);
    free(bisection->reference);
    free(bisection->again);
    free(bisection->asked);
    free(bisection->command);
    free(bisection->note);
    free(bisection->reason);
    free(bisection->set.why), free(bisection->set.cancels);
    free(bisection);
}
