/* The rules that practitioners watch a run by, each a few numbers of state fed step by step. */
#ifndef LB_LOSS_RULES_H
#define LB_LOSS_RULES_H

#include <stdbool.h>
#include <stdint.h>

/* Gradient norm against its exponential average, alpha 0.01, before it is updated: the first norm is the average, a
 * ratio above 10 is a warning, above 100 critical. Updated first, norm / average is below 1 / alpha = 100 and critical
 * is never reached. */
#define LB_NORM_ALPHA 0.01
#define LB_NORM_WARNING 10.0
#define LB_NORM_CRITICAL 100.0
typedef struct lb_norm_rule {
    double ema;
    bool known;
} lb_norm_rule;
/* Of a finite norm; the ratio, 0 of the first. *reference: what it was compared with. */
double lb_norm_rule_take(lb_norm_rule *rule, double norm, double *reference);

/* Loss: the mean of the last 10 against the mean of the 100 before them, from 20 on; while it is out the reference
 * stays. */
#define LB_LOSS_RATIO 2.0
#define LB_LOSS_BACK 1.25 /* below it the loss has come back */
enum { LB_LOSS_SMOOTH = 10, LB_LOSS_RECENT = 100, LB_LOSS_LEAST = 20 };
typedef struct lb_loss_rule {
    double window[LB_LOSS_SMOOTH + LB_LOSS_RECENT], smooth, recent;
    uint64_t n;
    bool out;
    uint32_t out_for;
    double value, reference; /* of the last step */
} lb_loss_rule;
/* Of a finite loss: whether it is out. */
bool lb_loss_rule_take(lb_loss_rule *rule, double loss);

/* Throughput: at least six of the last eight steps below 0.7 of the usual rate, which is a clipped exponential average.
 * A single slow step (a checkpoint, an evaluation) says nothing. After 500 steps the lower rate is the usual one. */
#define LB_RATE_FALL 0.7
typedef struct lb_rate_rule {
    double usual, value; /* value: the mean of the slow ones among the last eight */
    double last[8];
    uint64_t n;
    uint32_t out_for;
    bool out;
} lb_rate_rule;
bool lb_rate_rule_take(lb_rate_rule *rule, double rate);

/* Whether a log's own average of the norm has each step's norm in it already: then its ratio can never be critical. */
typedef struct lb_loss_rules_column {
    double ema, norm;
    uint32_t n, before, after; /* steps that fit an update with the norm of the step before, and with their own */
} lb_loss_rules_column;
void lb_loss_rules_column_take(lb_loss_rules_column *column, double norm, double ema);
bool lb_loss_rules_column_is_updated_first(const lb_loss_rules_column *column);

#endif
