/* What the parts of explain share: one call's session, and one step of both sides with all that is read from it.
 *
 *   explain.c          steps of one rank: places, layers, routing
 *   explain_sources.c  what enters a step with other numbers
 *   explain_routing.c  experts chosen otherwise
 *   explain_ranks.c    steps of all ranks together: what collectives made
 *   explain_budget.c   what the ends of all ranks' steps are made of
 *   explain_scene.c    aligning and reading a step
 *   explain_report.c   findings
 */
#ifndef LB_BISECT_EXPLAIN_SESSION_H
#define LB_BISECT_EXPLAIN_SESSION_H

#include "budget.h"
#include "contributions.h"
#include "selector.h"

typedef struct lb_explain_session {
    lb_capture *a, *b; /* b NULL: A's own replay */
    const lb_explain_options *options;
    const lb_map_rules *rules;
    lb_selector *selector;
    lb_explain_report *report;
    lb_cause_memory memory;
    bool
        turned; /* the first side calls its layers more often, or has the larger batch: it is looked at as the second */
    lb_batch_rows rows; /* of the step that is looked at; places NULL: the batches have one size */
    uint64_t shared; /* programs looked at */
    uint32_t absent; /* steps that only one side has: so many of the report's `missing` */
    uint64_t chosen; /* ops that the user's selector has in them */
    lb_ending *endings; /* of all steps that the budget is wanted of */
    uint32_t n_endings;
} lb_explain_session;

/* A step of both sides, all that is read from it. */
typedef struct lb_scene {
    lb_side sides[2];
    const lb_batch_rows *rows; /* the second side's batch is larger; NULL: it is not */
    lb_alignment alignment;
    lb_witness bytes[2];
    char **paths[2];
    uint8_t *selected; /* per op of A; NULL: all */
    uint8_t *row_numbers; /* per value of the second side; NULL: the batches have one size */
    lb_stretches stretches;
    lb_assemblies assemblies;
    bool ranks; /* the sides' parts are ranks of one step: only what collectives made is looked at */
    lb_meetings meetings[2]; /* of them */
    lb_stretch_source source;
} lb_scene;

/* The programs of both sides for one comparison; of several steps or ranks taken as one, all of them. */
typedef struct lb_matter {
    const lb_program **programs[2];
    uint32_t n[2];
} lb_matter;

/* Sides, alignment and paths. lb_scene_close is for after a failure too. */
lb_status lb_scene_align(const lb_explain_session *session, const lb_matter *matter, lb_scene *scene,
                         lb_err *err);
/* The same of several ranks, each aligned by itself, and their meetings. */
lb_status lb_scene_align_ranks(const lb_explain_session *session, const lb_matter *matter, lb_scene *scene,
                               lb_err *err);
/* Bytes, what the user selected, and the stretches. */
lb_status lb_scene_read(const lb_explain_session *session, lb_scene *scene, lb_err *err);
void lb_scene_close(lb_scene *scene);

/* A finding for each stretch that is looked at and has one. */
lb_status lb_explain_places(lb_explain_session *session, const lb_scene *scene, lb_err *err);

/* A finding for each layer whose experts were chosen otherwise, and with options->routing what of the gap is theirs. Steps put together
 * of several have none. */
lb_status lb_explain_routing(lb_explain_session *session, const lb_scene *scene, lb_err *err);

/* A finding for each source that enters with other numbers. */
lb_status lb_explain_sources(lb_explain_session *session, lb_scene *scene, lb_err *err);

/* What the budget will look at, remembered while the step is open; then the budgets of all steps, when everything was found. */
lb_status lb_explain_note_ending(lb_explain_session *session, const lb_scene *scene, lb_err *err);
lb_status lb_explain_budgets(lb_explain_session *session, lb_err *err);

/* ---- the report ---- */

lb_explain_report *lb_findings_new(void); /* NULL: out of memory */
/* A copy that lives as long as the report; "" when out of memory. */
const char *lb_findings_keep(lb_explain_report *report, const char *text);
void lb_findings_add_missing(lb_explain_report *report, const char *text);
lb_status lb_findings_add(lb_explain_report *report, const lb_explain_finding *row, lb_err *err);
lb_status lb_findings_add_place(lb_explain_session *session, const lb_scene *scene, const lb_stretch *stretch,
                                const lb_cause_found *found, lb_err *err);
/* Which rows of batches of other sizes were held against each other. */
lb_status lb_findings_add_rows(lb_explain_report *report, const lb_scene *scene, lb_err *err);
/* What the findings from row `first` on say of each layer. */
lb_status lb_findings_add_layers(lb_explain_report *report, uint32_t first, lb_err *err);
/* The op of a side that stands for a stretch; LB_NONE. */
uint32_t lb_place_op(const lb_scene *scene, const lb_stretch *stretch, int side);
/* Did the user select it? */
bool lb_place_wanted(const lb_scene *scene, const lb_stretch *stretch);

/* ---- all ranks ---- */

/* Is this value what a collective made whose members were all recorded, on both sides? */
bool lb_explain_meets(const lb_explain_session *session, const lb_scene *scene, int side, uint32_t value);
/* What collectives of that step made, on all ranks. */
lb_status lb_explain_ranks(lb_explain_session *session, int64_t step, lb_err *err);

#endif
