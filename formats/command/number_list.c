/* See number_list.h. */
#include "command/number_list.h"

#include <errno.h>
#include <stdlib.h>

static bool read_number(const char **at, int64_t *number)
{
    char *end;
    errno = 0;
    *number = strtoll(*at, &end, 10);
    if (end == *at || errno) return false;
    *at = end;
    return true;
}

bool lb_number_list_next(const char **at, int64_t *low, int64_t *high)
{
    if (!*at || !**at || !read_number(at, low)) return false;
    *high = *low;
    if (**at == '-' && (++*at, !read_number(at, high))) return false;
    if (**at != '\0' && **at != ',') return false;
    if (**at) ++*at;
    return true;
}

bool lb_number_list_is_valid(const char *list)
{
    int64_t low, high;
    if (!list) return true;
    for (const char *at = list; *at;)
        if (!lb_number_list_next(&at, &low, &high)) return false;
    return true;
}

bool lb_number_list_holds(const char *list, int64_t number)
{
    int64_t low, high;
    for (const char *at = list; lb_number_list_next(&at, &low, &high);)
        if (number >= low && number <= high) return true;
    return !list;
}
