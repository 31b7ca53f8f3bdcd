/* Trials: one change, one chained replay of the window, one outcome. And the search that drives them.
 *
 * An inquiry is what all stages of one bisection share. A change is a set of swaps together with the ranks whose local values
 * are not judged (they are left out). Its text, as one would type it for `lastbit replay`, identifies it in the journal.
 */
#ifndef LB_BISECT_TRIAL_H
#define LB_BISECT_TRIAL_H

#include "failure.h"
#include "journal.h"
#include "search.h"
#include "slice.h"
#include "trace.h"

typedef struct lb_inquiry {
    lb_capture *capture;
    lb_replay *replay;
    const lb_bisect_options *options;
    lb_bisection *out;
    lb_monitor *monitor;
    lb_monitor_mode mode;
    lb_failure failure; /* what the unchanged replay shows */
    lb_trace *trace;    /* of the unchanged replay, up to the failing step */
    const int32_t *ranks;
    uint32_t n_ranks;
    const int64_t *steps; /* of the window, ascending */
    uint32_t n_steps;
    lb_journal *journal;
} lb_inquiry;

/* Something that can be changed by itself: the swap `before` BODY `after` = argument. Sites that differ in their bodies alone
 * are changed together by one swap, their bodies joined by `join` (a selector's own comma or a pattern's bar). */
typedef struct lb_site {
    lb_swap_kind kind;
    const char *argument;
    char *before, *body, *after;
    char join;
    uint32_t rank_row; /* LB_SWAP_RANK: the rank that is left out; otherwise LB_NONE */
} lb_site;

typedef struct lb_sites {
    lb_site *rows;
    uint32_t n, room;
} lb_sites;

/* What sites of one list share; strings are copied. */
typedef struct lb_site_form {
    lb_swap_kind kind;
    const char *argument; /* must outlive the sites */
    const char *before, *after;
    char join;
} lb_site_form;

lb_status lb_sites_add(lb_sites *sites, const lb_site_form *form, const char *body, lb_err *err);
/* Everywhere. */
lb_status lb_sites_add_all(lb_sites *sites, lb_swap_kind kind, const char *argument, lb_err *err);
void lb_sites_release(lb_sites *sites);

/* Begins a stage in the report; its row. */
lb_status lb_stage_begin(lb_inquiry *inquiry, const char *name, lb_err *err);
void lb_stage_end(lb_inquiry *inquiry, const char *outcome, const char *note, ...) LB_PRINTF(3, 4);

/* Runs the window with the sites of `set` changed (NULL: all). The trial is entered in the report, said and journaled. */
lb_status lb_try(lb_inquiry *inquiry, const lb_sites *sites, const uint64_t *set, const char *purpose,
                 lb_outcome *outcome, lb_err *err);

/* The smallest set of sites that cures; `found` gets their rows (malloc'ed), *n 0 when changing all of them does not cure. */
lb_status lb_narrow(lb_inquiry *inquiry, const lb_sites *sites, uint32_t **found, uint32_t *n, lb_err *err);

/* Command-line text of the swaps of `set` (NULL: all); malloc'ed. */
char *lb_change_text(const lb_sites *sites, const uint64_t *set);

/* The program of a rank and step of the window, NULL when there is none. */
const lb_program *lb_inquiry_program(const lb_inquiry *inquiry, int32_t rank, int64_t step);

/* A module path as a pattern that matches it literally. */
void lb_escape(const char *path, char *pattern, size_t size);

void lb_say(const lb_inquiry *inquiry, const char *format, ...) LB_PRINTF(2, 3);

#endif
