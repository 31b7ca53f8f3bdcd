/* See repeated_value.h. */
#include "levels/repeated_value.h"

#include <math.h>

enum { LATELY = 64 };

bool lb_repeated_value_take(lb_repeated_value *value, double number)
{
    if (value->n && number == value->last) {
        value->row++;
    } else {
        value->n += value->row + 1, value->repeats += value->row;
        const double left =
            pow(1 - 1.0 / LATELY, (double)value->row); /* the row that ends, and a number that is none */
        value->lately = (1 - (1 - value->lately) * left) * (1 - 1.0 / LATELY);
        value->calm = fmax(value->calm, value->lately);
        if (value->row > value->longest) value->longest = value->row;
        value->row = 0;
    }
    value->last = number;
    const double mean = ((double)value->repeats + 1) / ((double)value->n + 2), share = fmax(mean, value->calm);
    return value->n >= LB_REPEATED_LEAST && mean < LB_REPEATED_SHARE && value->row >= LB_REPEATED_ROW &&
           value->row > 3 * value->longest && (double)value->row * log(1 / share) > LB_REPEATED_LOGP;
}
