/* A number in a table of a report. */
#ifndef LB_BISECT_NUMBER_WORD_H
#define LB_BISECT_NUMBER_WORD_H

#include <math.h>
#include <stdio.h>

/* "-" where there is none (NaN). */
static inline const char *lb_number_word(double x, int digits, char text[16])
{
    if (isnan(x))
        snprintf(text, 16, "-");
    else
        snprintf(text, 16, "%.*g", digits, x);
    return text;
}

#endif
