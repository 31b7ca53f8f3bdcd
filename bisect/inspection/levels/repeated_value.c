/* See repeated_value.h. */
#include "levels/repeated_value.h"

#include <math.h>

enum { LATELY = 64 };

bool lb_repeated_value_take(lb_repeated_value *s, double number)
{
    if (s->n && number == s->last) {
        s->row++;
    } else {
        s->n += s->row + 1, s->repeats += s->row;
        const double left = pow(1 - 1.0 / LATELY, (double)s->row); /* the row that ends, and a number that is none */
        s->lately = (1 - (1 - s->lately) * left) * (1 - 1.0 / LATELY);
        s->calm = fmax(s->calm, s->lately);
        if (s->row > s->longest) s->longest = s->row;
        s->row = 0;
    }
    s->last = number;
    const double mean = ((double)s->repeats + 1) / ((double)s->n + 2), share = fmax(mean, s->calm);
    return s->n >= LB_REPEATED_LEAST && mean < LB_REPEATED_SHARE && s->row >= LB_REPEATED_ROW &&
           s->row > 3 * s->longest && (double)s->row * log(1 / share) > LB_REPEATED_LOGP;
}
