/* See rank_name.h. */
#include "foreign/rank_name.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static int32_t number_at(const char *text, const char **end)
{
    if (!isdigit((unsigned char)*text)) return -1;
    char *behind;
    long n = strtol(text, &behind, 10);
    if (end) *end = behind;
    return n >= 0 && n < 1 << 20 ? (int32_t)n : -1;
}

/* "rank" as a word of its own, then at most one of "-_" and a number. */
static int32_t after_rank(const char *name)
{
    for (const char *at = name; (at = strstr(at, "rank")); at += 4) {
        if (at > name && isalnum((unsigned char)at[-1])) continue;
        const char *digits = at + 4 + (at[4] == '-' || at[4] == '_');
        int32_t rank = number_at(digits, NULL);
        if (rank >= 0) return rank;
    }
    return -1;
}

static int32_t of_a_name(const char *name, int32_t *stated)
{
    const char *of = strstr(name, "-of-"), *end = NULL;
    if (of && of - name > 5 && of[-6] == '-') {
        int32_t number = number_at(of - 5, &end), count = number_at(of + 4, NULL);
        if (number >= 0 && end == of && count > 0) {
            *stated = count;
            return number;
        }
    }
    if (strncmp(name, "__", 2) == 0 && strstr(name, ".distcp")) return number_at(name + 2, NULL);
    return after_rank(name);
}

int32_t lb_rank_in_name(const char *path, int32_t *stated)
{
    char name[256];
    *stated = 0;
    for (const char *end = path + strlen(path); end > path;) {
        const char *begin = end;
        while (begin > path && begin[-1] != '/') begin--;
        size_t n = (size_t)(end - begin);
        if (n < sizeof name) {
            memcpy(name, begin, n);
            name[n] = '\0';
            int32_t rank = of_a_name(name, stated);
            if (rank >= 0) return rank;
        }
        end = begin > path ? begin - 1 : path;
    }
    return -1;
}
