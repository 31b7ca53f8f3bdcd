/* Numbers as logs print them. */
#ifndef LB_LOG_NUMBER_H
#define LB_LOG_NUMBER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct lb_log_number {
    double number;
    int decimals;    /* digits behind the point, less the exponent */
    bool is_integer; /* neither point nor exponent */
} lb_log_number;

/* Reads "1,234.5e-3", "-inf", "NaN", … at the start; gives the characters taken, 0 when it is no number. Rounded
 * correctly for up to 15 digits, within an ulp or two above. */
size_t lb_log_number_read(const char *text, size_t n, lb_log_number *out);

#endif
