/* Routing replay: steps with mixtures of experts run again under swaps, with their routing recomputed and with parts of
 * it as it was recorded. How far each run ends from the recording says how much of the gap is the routing's; and each
 * choice of experts that would have changed is told apart: a near tie, or a router that differs.
 *
 * Simplest use:
 *
 *     lb_plan plan = LB_PLAN_INIT;                      // and the swaps whose effect is asked for
 *     lb_replay *replay;
 *     lb_routing_report report;
 *     LB_TRY(lb_replay_open(capture, &replay, err));
 *     lb_status status = lb_routing_report_make(capture, replay, &plan, &report, err);
 *     if (status == LB_OK) printf("%u choices of experts changed\n", report.n_flips);
 *     lb_routing_report_release(&report);
 *     lb_replay_close(replay);
 *
 *      hidden states ──▶ router ──▶ scores ──▶ ids, weights ──▶ slots ──▶ experts ──▶ … ──▶ output, loss
 *         upstream        own                  forced from here on, or not
 *
 * A flip is an expert that was chosen for a token and would not be under the swaps; it is paired as in
 * replay/composites/expert_flip.h with the one chosen in its place. Flips are looked for with the recorded ids in
 * force, so that no layer inherits another one's choices. The margin of a flip is how far apart both experts' recorded
 * scores were: logits, where the scores are a softmax or sigmoid of them. Upstream: what both scores move by when the
 * router as it was recorded gets the hidden states of the replay. A flip is a near tie when its margin is at most
 * upstream and rounding together (8 u max|score| of that token, u the unit roundoff of the scores); a wider one is a
 * router difference: the router itself (its weights, precision or order) has changed.
 */
#ifndef LASTBIT_ROUTING_H
#define LASTBIT_ROUTING_H

#include <lastbit/replay.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The runs, in order. Weights and slots are forced together with what stands before them. */
typedef enum lb_routing_mode {
    LB_ROUTING_PLAIN, /* without any swap: what kernels of different bits do by themselves */
    LB_ROUTING_RECOMPUTE,
    LB_ROUTING_IDS,
    LB_ROUTING_WEIGHTS,
    LB_ROUTING_SLOTS
} lb_routing_mode;
#define LB_ROUTING_MODES 5
LB_API const char *lb_routing_mode_name(lb_routing_mode mode); /* "plain", then as `--routing` has them */

/* Relative Euclidean distances from the recording; NaN where a run did not get there or nothing can be compared. */
typedef struct lb_routing_gap {
    double output, loss;
} lb_routing_gap;

/* What a step of a rank ends in. */
typedef struct lb_routing_step_end {
    int64_t step;
    int32_t rank;
    char *output; /* the last module that gave more than one number; "": none */
    lb_routing_gap gaps[LB_ROUTING_MODES];
} lb_routing_step_end;
/* The part of the gap that a mode takes away: 1 - gap / gap of recompute; NaN when that is 0 or unknown. */
LB_API double lb_routing_recovered(double recomputed, double gap);

/* One decision: a call of a router. */
typedef struct lb_routing_layer {
    int64_t step;
    int32_t rank;
    uint32_t call;
    char *layer;
    int64_t tokens, choices; /* choices: tokens times experts per token */
    int64_t flips;           /* near ties + router differences + unjudged; -1: not known */
    int64_t near_ties, router_differences;
    int64_t unjudged;   /* scores were not to be had, or this router cannot be run by itself */
    int64_t recomputed; /* choices that differ where routing is recomputed, those inherited included; -1: not reached */
    double largest_margin;   /* of a flip; NaN: there is none */
    double largest_upstream; /* of the scores of a flip; NaN */
} lb_routing_layer;

typedef enum lb_flip_kind { LB_FLIP_NEAR_TIE, LB_FLIP_ROUTER, LB_FLIP_UNJUDGED } lb_flip_kind;
LB_API const char *lb_routing_flip_kind_name(lb_flip_kind kind); /* "near tie", "router difference", "unjudged" */

typedef struct lb_routing_flip {
    uint32_t layer; /* row of layers */
    lb_flip_kind kind;
    int64_t token, lost, won;          /* won: -1 when no expert stands in its place */
    double margin, upstream, rounding; /* of the scores; NaN when unjudged */
} lb_routing_flip;

typedef struct lb_routing_report {
    lb_routing_step_end *endings; /* by rank and step */
    lb_routing_layer *layers;     /* in order of execution */
    lb_routing_flip *flips;       /* router differences first, then the widest margin */
    uint32_t n_endings, n_layers, n_flips;
    bool undecided[LB_ROUTING_MODES]; /* the chain ended: other experts mean other ops */
    char undecided_at[160];           /* of the first such run */
    bool against;                     /* made against another recording */
} lb_routing_report;

/* Replays the plan's window (chained) in every mode. plan->swaps must hold no routing swap. LB_ERR_NOT_CAPTURED: no
 * routing was recorded in it. The report is to be released also after a failure. */
LB_API lb_status lb_routing_report_make(lb_capture *capture, lb_replay *replay, const lb_plan *plan,
                                        lb_routing_report *report, lb_err *err);
LB_API void lb_routing_report_release(lb_routing_report *report);

/* Another recording of the same steps: what it has in the place of a value of this one, elements in this one's order
 * and shape, in a dtype of its own, good as long as `context`. False: nothing, or its bytes were not kept. */
typedef struct lb_routing_other {
    void *context;
    bool (*value)(void *context, const lb_program *program, uint32_t value, lb_tensor *tensor);
} lb_routing_other;

/* How much of the distance of two recordings is experts chosen differently: as above, but distances are from the other
 * recording's ends, what is forced are its ids, weights and slots, and a flip is a choice that it made differently.
 * Upstream: what both scores move by when the router as recorded here gets the other's hidden states. The plan may have
 * no swaps. `modes` false: flips alone are wanted, and nothing is forced. */
LB_API lb_status lb_routing_report_against(lb_capture *capture, lb_replay *replay, const lb_plan *plan,
                                           const lb_routing_other *other, bool modes, lb_routing_report *report,
                                           lb_err *err);
/* Its tables for a person, `most` flips of all; malloc'ed, NULL when out of memory. */
LB_API char *lb_routing_text(const lb_routing_report *report, uint32_t most);
/* The same as a JSON object: `endings`, `layers`, `flips`, `undecided_at`. */
LB_API char *lb_routing_json(const lb_routing_report *report, uint32_t most);

#ifdef __cplusplus
}
#endif
#endif
