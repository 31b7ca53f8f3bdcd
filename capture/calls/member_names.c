/* Names of communicators: see member_names.h. */
#include "calls/member_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEMBERS_TEXT = 64 };

struct lb_member_name {
    struct lb_member_name *next;
    char text[MEMBERS_TEXT];
    unsigned times;
};

uint64_t lb_member_names_hash(const void *bytes, size_t n)
{
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < n; i++) hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3;
    return hash;
}

/* "0-3,6"; a long list ends in a hash of all of it. */
static void list_members(const int32_t *members, int n, char *text, size_t room)
{
    size_t used = 0;
    text[0] = 0;
    for (int first = 0, last; first < n && used + 24 < room; first = last + 1) {
        for (last = first; last + 1 < n && members[last + 1] == members[last] + 1;) last++;
        used += (size_t)snprintf(text + used, room - used, first == last ? "%s%d" : "%s%d-%d", first ? "," : "",
                                 members[first], members[last]);
        if (used + 24 < room || last + 1 == n) continue;
        const uint64_t all = lb_member_names_hash(members, (size_t)n * sizeof *members);
        snprintf(text + used, room - used, "…%08x", (unsigned)all);
    }
}

static unsigned times_given(lb_member_names *names, const char *text)
{
    struct lb_member_name *name = names->first;
    while (name && strcmp(name->text, text) != 0) name = name->next;
    if (!name && (name = calloc(1, sizeof *name))) {
        snprintf(name->text, sizeof name->text, "%s", text);
        name->next = names->first;
        names->first = name;
    }
    return name ? ++name->times : 1;
}

void lb_member_names_give(lb_member_names *names, const int32_t *members, int n, char name[LB_MEMBER_NAME])
{
    char text[MEMBERS_TEXT];
    list_members(members, n, text, sizeof text);
    const unsigned times = times_given(names, text);
    snprintf(name, LB_MEMBER_NAME, times > 1 ? "%s#%u" : "%s", text, times);
}
