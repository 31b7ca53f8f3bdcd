/* One run of a side's shadow, and what it shares with the other runs. shadow_pair.c makes the runs and hands their
 * events to shadow_meet.c (an op against an op), shadow_join.c (several against one) and shadow_leaving.c (what the
 * step leaves). No other file includes it. */
#ifndef LB_BISECT_SHADOW_RUN_H
#define LB_BISECT_SHADOW_RUN_H

#include "shadow/cut_shadows.h"
#include "shadow/exact_match.h"
#include "shadow/flip_reach.h"
#include "shadow/kept_shadow.h"
#include "shadow/shadow_pair.h"

typedef enum lb_shadow_run_kind { LB_SHADOW_RUN_A, LB_SHADOW_RUN_DISTURBED, LB_SHADOW_RUN_B } lb_shadow_run_kind;

/* The parts of a join so far: put together, or added up. */
typedef struct lb_shadow_assembly {
    double *numbers;
    uint8_t *each; /* per result: every part so far is the whole */
    uint32_t seen;
    bool broken;
} lb_shadow_assembly;

/* Of all runs of a pair together. */
typedef struct lb_shadow_progress {
    void (*tell)(const char *what, uint64_t done, uint64_t total); /* may be NULL */
    uint64_t done, total;                                          /* events */
} lb_shadow_progress;

typedef struct lb_shadow_run {
    const lb_program_view *side, *other;
    const lb_alignment *alignment;
    const uint8_t *wanted;
    lb_shadow_pair *out;
    lb_step_outputs *exits;
    int which; /* 0: A, 1: B */
    lb_shadow_run_kind kind;
    lb_kept_shadow *kept;           /* per op of A */
    lb_shadow_assembly *assemblies; /* per join */
    lb_kept_value *finals;          /* per final */
    lb_kept_value *images;          /* per final, of this run */
    lb_kept_value *results;         /* per exit */
    lb_exact_match *match;
    lb_flip_reach *reach;
    lb_cut_shadows *cuts;
    uint8_t *input_casts; /* per op: see input_casts.h */
    uint64_t room;        /* bytes still allowed */
    uint64_t serial;      /* of what is disturbed */
    struct lb_shadow_progress *told;
    struct lb_cross_feed *cross_feed;
} lb_shadow_run;

/* An op of B has run whose partner is op `row` of A: compares their shadows. */
void lb_shadow_run_meet(lb_shadow_run *run, uint32_t row, uint32_t op, const lb_event *event);
/* An op of B has run that has no partner: A may have the same op in different shapes. */
void lb_shadow_run_meet_reshaped(lb_shadow_run *run, uint32_t op, const lb_event *event);
/* An op of B has run that is a part of op `row` of A. */
void lb_shadow_run_join(lb_shadow_run *run, uint32_t row, uint32_t op, const lb_event *event);
void lb_shadow_assembly_release(lb_shadow_assembly *assembly);
/* Notes what parameters hold in the end, and what leaves by other ways. To be called for every op of every run. */
void lb_shadow_run_note_finals(lb_shadow_run *run, uint32_t op, const lb_event *event);
void lb_shadow_run_note_exits(lb_shadow_run *run, uint32_t op, const lb_event *event);
/* After all runs: parameters whose last writes were of parts of them. `disturbed`: the images of that run. */
void lb_shadow_run_judge_images(lb_shadow_run sides[2], const lb_kept_value *disturbed);

#endif
