/* Looks a program up in PATH: see lastbit/executable.h. */
#define _GNU_SOURCE /* asprintf */
#include <lastbit/executable.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_program(const char *path)
{
    struct stat at;
    return stat(path, &at) == 0 && S_ISREG(at.st_mode) && access(path, X_OK) == 0;
}

char *lb_executable_find(const char *name)
{
    if (strchr(name, '/')) return strdup(name);
    const char *path = getenv("PATH");
    for (const char *item = path ? path : "/bin:/usr/bin"; *item;) {
        const size_t n = strcspn(item, ":");
        char *found = NULL;
        if (*item == '/' && asprintf(&found, "%.*s/%s", (int)n, item, name) < 0) return NULL;
        if (found && is_program(found)) return found;
        free(found);
        item += n + (item[n] == ':');
    }
    return NULL;
}
