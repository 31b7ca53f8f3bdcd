/* One run that is watched, as its parts share it: what is known of it, alarms and findings, and excursions.
 *
 * An excursion: a detector finds its number out of the usual range. It raises one alarm where it begins and one where
 * it gets worse, and is over after some quiet steps. */
#ifndef LB_BISECT_RUN_STATE_H
#define LB_BISECT_RUN_STATE_H

#include "watch/checkpoint_hold.h"
#include "watch/data_suspect.h"
#include "levels/level_history.h"
#include "levels/level_model.h"
#include "levels/repeated_value.h"
#include "watch/loss_rules.h"
#include "watch/schedule_check.h"
#include "watch/spike_pattern.h"
#include "watch/token_drift.h"

#include <lastbit/watch.h>

enum { SAME_SEED_STEPS = 20 };

typedef enum lb_run_slot {
    NORM_RULE,
    NORM_MODEL,
    LOSS_RULE,
    LOSS_MODEL,
    NORM_STUCK,
    LOSS_STUCK,
    NONFINITE,
    RATE_RULE,
    SLOTS
} lb_run_slot;

typedef struct lb_run_excursion {
    bool on;
    lb_alarm_level level;
    uint32_t quiet;
    int64_t from, last;
    uint32_t alarm; /* row, UINT32_MAX: there was no room */
    lb_data_place place;
} lb_run_excursion;

struct lb_watch {
    lb_watch_options options;
    lb_norm_rule norm;
    lb_loss_rule loss;
    lb_rate_rule rate;
    lb_loss_rules_column ema;
    lb_level_model norm_model, loss_model;
    lb_repeated_value norm_value, loss_value;
    lb_level_history history;
    lb_schedule_check schedule;
    lb_data_place place;
    lb_rank_tokens tokens;
    lb_token_drift drift;
    lb_run_excursion excursions[SLOTS];
    lb_hold_state hold;
    double held_norm; /* the average that the norm left; 0: it is not out */
    bool norm_out;    /* of the last norm */
    lb_known_checkpoints known;
    uint32_t seen; /* fields of the step at hand */
    int32_t rank;
    bool ranked, shared_tokens, said_loss, said_hindsight, said_counts;
    uint64_t rows[LB_WATCH_FIELDS]; /* records that had the field */
    uint64_t records, nonfinite, skipped, skip_places;
    int64_t first_step, last_step, norm_since, loss_since, first_nonfinite, last_skip;
    double early[LB_EARLY_RECORDS];
    int64_t early_step[LB_EARLY_RECORDS];
    uint32_t n_early;
    /* Of a norm that is out among the first records, until it has settled or has not; step -1: none. */
    lb_watch_alarm at_start;
    uint64_t start_records;
    uint32_t start_quiet;
    bool early_spike, late_loss;
    double first_losses[SAME_SEED_STEPS];
    int64_t first_loss_steps[SAME_SEED_STEPS];
    uint32_t n_first;
    lb_watch_alarm *alarms;
    int64_t *visits; /* of each alarm: when its shard began */
    lb_watch_hold *holds;
    bool *serious; /* of each hold: loss or a number that is not finite was out */
    lb_watch_finding *findings;
    lb_watch_checkpoint *inside;
    uint32_t n_alarms, n_holds, n_findings, room_alarms, room_holds, room_findings;
    uint64_t dropped;
};

/* Room for one more row of `size` bytes; false: there is none, and the row is counted as dropped. */
bool lb_run_grow(lb_watch *watch, void **rows, uint32_t n, uint32_t *room, size_t size);
void lb_run_find(lb_watch *w, const char *kind, int64_t step, const char *format, ...) LB_PRINTF(4, 5);
/* Adds an alarm and says so; its row, UINT32_MAX without room. */
uint32_t lb_run_alarm(lb_watch *watch, lb_watch_alarm *alarm);
bool lb_alarm_is_about_values(const lb_watch_alarm *alarm);

/* A step in which the detector is out, and one in which it is not. */
void lb_run_out(lb_watch *watch, lb_run_slot which, lb_watch_alarm *alarm);
void lb_run_quiet(lb_watch *watch, lb_run_slot which);
void lb_run_over(lb_watch *watch, lb_run_slot which);

#endif
