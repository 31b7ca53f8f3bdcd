/* Lists of numbers as options take them: "3-5,8". */
#ifndef LB_NUMBER_LIST_H
#define LB_NUMBER_LIST_H

#include <stdbool.h>
#include <stdint.h>

/* NULL is one, too: it holds everything. */
bool lb_number_list_is_valid(const char *list);
/* Of a valid one. */
bool lb_number_list_holds(const char *list, int64_t number);
/* The next range at `*at`, which begins as the list; false at its end, or where it is no list. */
bool lb_number_list_next(const char **at, int64_t *low, int64_t *high);

#endif
