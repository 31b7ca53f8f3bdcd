/* Trials: one change, one chained replay of the window, one outcome. And the search that drives them.
 *
 * A session is what all stages of one bisection share. A change is a set of swaps together with the ranks whose
 * local values are not judged (they are left out). Its text, as one would type it for `lastbit replay`, identifies it
 * in the journal.
 */
#ifndef LB_BISECT_TRIAL_H
#define LB_BISECT_TRIAL_H

#include "trials/decisions.h"
#include "failure/failure.h"
#include "search/journal.h"
#include "search/group_search.h"
#include "search/sites.h"
#include "program/slice.h"
#include "failure/trace.h"

/* Where the contents come from by which a source is cured; op LB_NONE: nowhere in the window. */
typedef struct lb_remedy {
    int32_t rank;
    int64_t step, storage;
    uint32_t op;
} lb_remedy;

/* Checkpoints of a replay, and under what they were kept: its swaps, as text, and who was judged how. See rerun.h. */
typedef struct lb_past {
    lb_checkpoints *checkpoints; /* NULL: none, every trial begins at the first step */
    char *swaps;
    uint32_t n_swaps;
    bool *excluded;
    lb_failure_monitor_mode mode;
} lb_past;

typedef struct lb_bisect_session {
    lb_capture *capture;
    lb_replay *replay;
    const lb_bisect_options *options;
    const char *draft; /* of the reproducer's folder, while one is being made */
    lb_bisection *out;
    lb_failure_monitor *monitor;
    lb_failure_monitor_mode mode;
    lb_failure failure;          /* what the unchanged replay shows */
    uint64_t blind;              /* watched results that it could not compute: their bytes lack */
    uint64_t unrecorded, judged; /* of the recording: watched results without statistics, and those with */
    lb_trace *trace;             /* of the unchanged replay, up to the failing step */
    /* of the trial before in the steps that count, where a stage wants to know what its ops gave; NULL: none does */
    lb_trace *changed;
    const int32_t *ranks;
    uint32_t n_ranks;
    const int64_t *steps; /* of the window, ascending */
    uint32_t n_steps;
    lb_journal *journal;
    lb_decisions decisions; /* of the unchanged replay, whose bytes the recording lacks */
    lb_past past;           /* of the last replay with the background alone */
    lb_sites background;    /* changed in every trial beside what it changes: what cures the other culprits */
    bool *left_out;         /* per rank: not judged, whatever a trial changes; NULL: none */
    lb_remedy remedy;       /* of the first culprit */
    bool usual_data;        /* other data cure, though those of the failing step are like the others */
    bool any_data;          /* then they are blamed: nothing else cures */
    /* lb_bisect, for a caller that wants to know whether a smaller capture is found to fail in the same way. */
    lb_status (*bisect)(lb_capture *capture, const lb_bisect_options *options, lb_bisection **bisection, lb_err *err);
    lb_sites cure;         /* the smallest change so far that cures */
    char search_note[200]; /* what the last search had to say about its assumption, "" when it held */
} lb_bisect_session;

/* Begins a stage in the report; its row. */
lb_status lb_trial_stage_begin(lb_bisect_session *session, const char *name, lb_err *err);
void lb_trial_stage_end(lb_bisect_session *session, const char *outcome, const char *note, ...) LB_PRINTF(3, 4);
/* The same for a stage inside which others ran. */
void lb_trial_stage_end_row(lb_bisect_session *session, uint32_t row, const char *outcome, const char *note, ...)
    LB_PRINTF(4, 5);

/* Runs the window with the sites of `set` changed (NULL: all). The trial is entered in the report, said and
 * journaled. */
lb_status lb_trial_run(lb_bisect_session *session, const lb_sites *sites, const uint64_t *set, const char *purpose,
                       lb_search_outcome *outcome, lb_err *err);

/* The smallest set of sites that cures; `found` gets their rows (malloc'ed), *n 0 when changing all of them does not
 * cure. `cures`: that changing all of them does is known already. */
lb_status lb_trial_narrow(lb_bisect_session *session, const lb_sites *sites, bool cures, uint32_t **found, uint32_t *n,
                          lb_err *err);

/* The same for sites that are one per step of the window. Where changing the steps from the failing one on cures and
 * changing those before it does not, only the former are searched: their trials begin at the failing step. */
lb_status lb_trial_narrow_steps(lb_bisect_session *session, const lb_sites *sites, bool cures, uint32_t **found,
                                uint32_t *n, lb_err *err);
/* That first part of it alone: `*late` false where it does not hold. */
lb_status lb_trial_narrow_late_steps(lb_bisect_session *session, const lb_sites *sites, uint32_t **found, uint32_t *n,
                                     bool *late, lb_err *err);

/* Replays the window with the background changed alone: its first failure (kind NONE: there is none) and its trace
 * become the bisection's. */
lb_status lb_rerun_retrace(lb_bisect_session *session, lb_replay_summary *summary, lb_err *err);

/* Command-line text of the swaps of `set` (NULL: all) beside the background's; malloc'ed. */
char *lb_trial_change_text(const lb_bisect_session *session, const lb_sites *sites, const uint64_t *set);

/* The program of a rank and step of the window, NULL when there is none. */
const lb_program *lb_trial_program(const lb_bisect_session *session, int32_t rank, int64_t step);

void lb_trial_say(const lb_bisect_session *session, const char *format, ...) LB_PRINTF(2, 3);

#endif
