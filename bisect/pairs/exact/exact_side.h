/* One side of a pair run exactly (f64, casts the identity), with what each of its values is.
 *
 * A run notes the quantity of every value that some op reads or gives, keeps the numbers of those that are asked for,
 * and can go on from different numbers than its own: sources, draws and values that stand beside those of the other
 * side (`forced`). So a second implementation is run from the first one's numbers at every place where the two are
 * known to meet, and each part between such places is judged by itself. */
#ifndef LB_BISECT_EXACT_SIDE_H
#define LB_BISECT_EXACT_SIDE_H

#include "pair/program_view.h"
#include "exact/former_run.h"
#include "exact/quantity.h"
#include "joined/token_map.h"
#include "exact/value_graph.h"

typedef void (*lb_exact_progress)(const char *what, uint64_t done, uint64_t total);

/* One side, and what its runs have left. */
typedef struct lb_exact_side {
    const lb_program_view *view;
    const lb_program *program;
    lb_program *own; /* what runs: the program with the constants that scalars.h gave it */
    lb_prepared *prepared;
    lb_value_graph graph;
    uint64_t *kinds;         /* per op: the same for ops of one name, in place or not, on both sides */
    lb_quantity *quantities; /* per value */
    uint8_t *wanted;         /* per value: its numbers are kept */
    double **kept;           /* per value: row-major, malloc'ed; NULL */
    double *noise;           /* per value that is kept: see lb_shadow_noise */
    uint64_t *changed;       /* per value: what `changes` was when its numbers, or their noise, last changed */
    uint64_t changes;        /* counts up */
    double **held;           /* per value: numbers that every run goes on with; NULL: its own */
    /* per value: numbers that the next run goes on with, before those held, but for elements that are
     * lb_exact_side_own(); borrowed; NULL */
    double **forced;
    uint64_t runs;              /* chained runs so far, in whole or in part */
    uint64_t ops_run;           /* ops that compute, in all of them, and in trials of parts */
    lb_exact_progress progress; /* may be NULL */
    const lb_token_map *tokens; /* which token of the other side each of its own is; borrowed; NULL: not known */
    int number;                 /* 0: the map's first side, 1: its second one */
    lb_former_run former;
    /* Windows that are looked at when their giver has run: values by op. */
    uint32_t *first_window, *windows;
} lb_exact_side;

lb_status lb_exact_side_open(const lb_program_view *view, lb_exact_side *side, lb_err *err);
void lb_exact_side_close(lb_exact_side *side);
/* Every run goes on with these numbers (malloc'ed, taken over; NULL: with its own) where it gives, or begins with, the
 * value. */
void lb_exact_side_hold(lb_exact_side *side, uint32_t value, double *numbers);
/* That many ops more have run. */
void lb_exact_side_count(lb_exact_side *side, uint64_t ops);
/* Behind a change of numbers that are kept. */
void lb_exact_side_note_change(lb_exact_side *side, uint32_t value);
/* The numbers that the next run goes on with in the place of its own; NULL: its own. */
double *lb_exact_side_taken(const lb_exact_side *side, uint32_t value);
/* Stands in `forced` where the run's own number stays. */
double lb_exact_side_own(void);
/* Behind a change of `own`: what the last run left is not what the next one would give. */
lb_status lb_exact_side_prepare(lb_exact_side *side, lb_err *err);
lb_status lb_exact_side_run(lb_exact_side *side, lb_err *err);
/* A run whose results are handed over: what earlier runs kept, their quantities and their noise, stay. `*kept`: per
 * value, NULL where it was not wanted; for lb_exact_side_free_kept, before the next run of another kind: what did not
 * change is that of the last run. */
lb_status lb_exact_side_run_aside(lb_exact_side *side, double ***kept, lb_err *err);
void lb_exact_side_free_kept(const lb_exact_side *side, double **kept);
/* The same, every result disturbed: fills noise. Behind lb_exact_side_run. */
lb_status lb_exact_side_run_disturbed(lb_exact_side *side, lb_err *err);
/* The recorded numbers of a value, malloc'ed; NULL: they were not kept. */
double *lb_exact_side_recorded(const lb_exact_side *side, uint32_t value);
/* The windows on what an op gives, one by one: `*at` is 0 before the first; LB_NONE: no more. */
uint32_t lb_exact_side_window(const lb_exact_side *side, uint32_t value, uint32_t *at);
/* The one op of forward that goes on from an op's result or a window on all of it; LB_NONE: none, or several. */
uint32_t lb_exact_side_only_reader(const lb_exact_side *side, uint32_t op, uint32_t result);

#endif
