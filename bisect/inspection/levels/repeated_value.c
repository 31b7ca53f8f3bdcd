/* See repeated_value.h. */
#include "levels/repeated_value.h"

#include <math.h>

bool lb_repeated_value_take(lb_repeated_value *s, double number)
{
    if (s->n && number == s->last) {
        s->row++;
    } else {
        s->n += s->row + 1, s->repeats += s->row;
        if (s->row > s->longest) s->longest = s->row;
        s->row = 0;
    }
    s->last = number;
    const double share = ((double)s->repeats + 1) / ((double)s->n + 2);
    return s->n >= LB_REPEATED_LEAST && share < LB_REPEATED_SHARE && s->row >= LB_REPEATED_ROW &&
           s->row > 3 * s->longest && (double)s->row * log(1 / share) > LB_REPEATED_LOGP;
}
