/* Rules: see loss_rules.h. */
#include "watch/loss_rules.h"

#include <math.h>

double lb_norm_rule_take(lb_norm_rule *rule, double norm, double *reference)
{
    const bool known = rule->known;
    const double before = *reference = known ? rule->ema : norm;
    rule->ema = known ? LB_NORM_ALPHA * norm + (1 - LB_NORM_ALPHA) * rule->ema : norm;
    rule->known = true;
    return known && before > 0 ? norm / before : 0;
}

/* ---- loss -------------------------------------------------------------------------------------------------------- */

enum { ALL = LB_LOSS_SMOOTH + LB_LOSS_RECENT, LONGEST = 2000 };

static void add_again(lb_loss_rule *rule)
{
    rule->smooth = rule->recent = 0;
    for (uint64_t back = 0; back < ALL && back < rule->n; back++) {
        double *sum = back < LB_LOSS_SMOOTH ? &rule->smooth : &rule->recent;
        *sum += rule->window[(rule->n - 1 - back) % ALL];
    }
}

static void push(lb_loss_rule *rule, double loss)
{
    const double leaves = rule->n >= ALL ? rule->window[rule->n % ALL] : 0;
    const double passes = rule->n >= LB_LOSS_SMOOTH ? rule->window[(rule->n - LB_LOSS_SMOOTH) % ALL] : 0;
    rule->window[rule->n % ALL] = loss;
    rule->smooth += loss - passes, rule->recent += passes - leaves;
    if (++rule->n % ALL == 0) add_again(rule); /* what rounding left in the sums goes */
}

bool lb_loss_rule_take(lb_loss_rule *rule, double loss)
{
    push(rule, loss);
    const uint64_t recent = rule->n < LB_LOSS_SMOOTH ? 0 : rule->n - LB_LOSS_SMOOTH;
    if (recent < LB_LOSS_LEAST) return false;
    rule->value = rule->smooth / LB_LOSS_SMOOTH;
    if (!rule->out) rule->reference = rule->recent / (double)(recent < LB_LOSS_RECENT ? recent : LB_LOSS_RECENT);
    if (rule->out) {
        rule->out = rule->value > LB_LOSS_BACK * rule->reference && ++rule->out_for < LONGEST;
    } else if (rule->reference > 0 && rule->value > LB_LOSS_RATIO * rule->reference) {
        rule->out = true, rule->out_for = 0;
    }
    return rule->out;
}

/* ---- throughput -------------------------------------------------------------------------------------------------- */

enum { STEPS = 8, SLOW = 6, BEGIN = 30, USUAL_AFTER = 500 };

bool lb_rate_rule_take(lb_rate_rule *rule, double rate)
{
    rule->last[rule->n++ % STEPS] = rate;
    const double alpha = fmax(0.01, 1.0 / (double)rule->n);
    const double step = rule->n == 1 ? rate : fmin(fmax(rate, 0.5 * rule->usual), 1.5 * rule->usual);
    if (rule->n <= BEGIN || !rule->out) {
        /* While it falls the usual rate hardly follows: what is slow counts a tenth. */
        const double slow = rule->n > BEGIN && rate < LB_RATE_FALL * rule->usual ? 0.1 : 1;
        rule->usual += slow * alpha * (step - rule->usual);
    }
    if (rule->n < BEGIN) return false;
    int below = 0;
    double sum = 0;
    for (int i = 0; i < STEPS; i++)
        if (rule->last[i] < LB_RATE_FALL * rule->usual) below++, sum += rule->last[i];
    if (below) rule->value = sum / below;
    const bool out = rule->out ? below > STEPS - SLOW : below >= SLOW;
    rule->out_for = out ? rule->out_for + 1 : 0;
    rule->out = out;
    if (rule->out_for >= USUAL_AFTER) rule->usual = rule->value, rule->out = false, rule->out_for = 0;
    return rule->out;
}

/* ---- a log's own average ----------------------------------------------------------------------------------------- */

enum { ENOUGH = 30 };

void lb_loss_rules_column_take(lb_loss_rules_column *column, double norm, double ema)
{
    if (column->n++) {
        const double before = column->ema + LB_NORM_ALPHA * (column->norm - column->ema),
                     after = column->ema + LB_NORM_ALPHA * (norm - column->ema);
        const double apart = fabs(before - after), to_before = fabs(ema - before), to_after = fabs(ema - after);
        if (apart > 0 && fmin(to_before, to_after) < 0.1 * apart) {
            column->before += to_before < to_after;
            column->after += to_after < to_before;
        }
    }
    column->ema = ema, column->norm = norm;
}

bool lb_loss_rules_column_is_updated_first(const lb_loss_rules_column *column)
{
    return column->after >= ENOUGH && column->after > 9 * column->before;
}
