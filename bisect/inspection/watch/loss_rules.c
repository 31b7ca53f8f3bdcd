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

static void add_again(lb_loss_rule *r)
{
    r->smooth = r->recent = 0;
    for (uint64_t back = 0; back < ALL && back < r->n; back++) {
        double *sum = back < LB_LOSS_SMOOTH ? &r->smooth : &r->recent;
        *sum += r->window[(r->n - 1 - back) % ALL];
    }
}

static void push(lb_loss_rule *r, double loss)
{
    const double leaves = r->n >= ALL ? r->window[r->n % ALL] : 0;
    const double passes = r->n >= LB_LOSS_SMOOTH ? r->window[(r->n - LB_LOSS_SMOOTH) % ALL] : 0;
    r->window[r->n % ALL] = loss;
    r->smooth += loss - passes, r->recent += passes - leaves;
    if (++r->n % ALL == 0) add_again(r); /* what rounding left in the sums goes */
}

bool lb_loss_rule_take(lb_loss_rule *r, double loss)
{
    push(r, loss);
    const uint64_t recent = r->n < LB_LOSS_SMOOTH ? 0 : r->n - LB_LOSS_SMOOTH;
    if (recent < LB_LOSS_LEAST) return false;
    r->value = r->smooth / LB_LOSS_SMOOTH;
    if (!r->out) r->reference = r->recent / (double)(recent < LB_LOSS_RECENT ? recent : LB_LOSS_RECENT);
    if (r->out) {
        r->out = r->value > LB_LOSS_BACK * r->reference && ++r->out_for < LONGEST;
    } else if (r->reference > 0 && r->value > LB_LOSS_RATIO * r->reference) {
        r->out = true, r->out_for = 0;
    }
    return r->out;
}

/* ---- throughput -------------------------------------------------------------------------------------------------- */

enum { STEPS = 8, SLOW = 6, BEGIN = 30, USUAL_AFTER = 500 };

bool lb_rate_rule_take(lb_rate_rule *r, double rate)
{
    r->last[r->n++ % STEPS] = rate;
    const double alpha = fmax(0.01, 1.0 / (double)r->n);
    const double step = r->n == 1 ? rate : fmin(fmax(rate, 0.5 * r->usual), 1.5 * r->usual);
    if (r->n <= BEGIN || !r->out) {
        /* While it falls the usual rate hardly follows: what is slow counts a tenth. */
        const double slow = r->n > BEGIN && rate < LB_RATE_FALL * r->usual ? 0.1 : 1;
        r->usual += slow * alpha * (step - r->usual);
    }
    if (r->n < BEGIN) return false;
    int below = 0;
    double sum = 0;
    for (int i = 0; i < STEPS; i++)
        if (r->last[i] < LB_RATE_FALL * r->usual) below++, sum += r->last[i];
    if (below) r->value = sum / below;
    const bool out = r->out ? below > STEPS - SLOW : below >= SLOW;
    r->out_for = out ? r->out_for + 1 : 0;
    r->out = out;
    if (r->out_for >= USUAL_AFTER) r->usual = r->value, r->out = false, r->out_for = 0;
    return r->out;
}

/* ---- a log's own average ----------------------------------------------------------------------------------------- */

enum { ENOUGH = 30 };

void lb_loss_rules_column_take(lb_loss_rules_column *c, double norm, double ema)
{
    if (c->n++) {
        const double before = c->ema + LB_NORM_ALPHA * (c->norm - c->ema),
                     after = c->ema + LB_NORM_ALPHA * (norm - c->ema);
        const double apart = fabs(before - after), to_before = fabs(ema - before), to_after = fabs(ema - after);
        if (apart > 0 && fmin(to_before, to_after) < 0.1 * apart) {
            c->before += to_before < to_after;
            c->after += to_after < to_before;
        }
    }
    c->ema = ema, c->norm = norm;
}

bool lb_loss_rules_column_is_updated_first(const lb_loss_rules_column *c)
{
    return c->after >= ENOUGH && c->after > 9 * c->before;
}
