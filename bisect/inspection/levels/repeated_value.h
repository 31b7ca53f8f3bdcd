/* A number that stays the same, digit by digit, for longer than chance lets it: a metric that is no longer computed.
 *
 * q is the share of steps so far whose number was that of the step before (one more of each kind counts as seen), or of
 * some 64 steps where it was largest: noise may be calm for a while, and its numbers are then alike. A row
 * of k repeats is stuck where k log(1 / q) is above LB_REPEATED_LOGP and k is more than three times the longest row so
 * far. Where q is LB_REPEATED_SHARE or more the log has too few digits for the metric: its rows grow as it settles, and
 * nothing is judged (17 of 10,000 clean runs of two digits had an alarm). */
#ifndef LB_REPEATED_VALUE_H
#define LB_REPEATED_VALUE_H

#include <stdbool.h>
#include <stdint.h>

#define LB_REPEATED_LOGP 30.0
#define LB_REPEATED_SHARE 0.2
enum {
    LB_REPEATED_LEAST = 64,
    LB_REPEATED_ROW = 15
}; /* steps before anything is judged; the shortest row that counts */

typedef struct lb_repeated_value {
    double last;
    uint64_t n, repeats, row, longest;
    double lately, calm; /* that share of the last 64 numbers where no row was; the largest so far */
} lb_repeated_value;

/* Whether it is stuck with this number. */
bool lb_repeated_value_take(lb_repeated_value *value, double number);

#endif
