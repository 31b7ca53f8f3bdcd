/* See side_file.h. */
#include "side_file.h"

#include <stdio.h>
#include <string.h>

json_t *lb_side_file_load(const char *path, const char *name)
{
    char file[4200];
    const char *slash = strrchr(path, '/');
    snprintf(file, sizeof file, "%s/%s", path, name);
    json_t *found = json_load_file(file, 0, NULL);
    if (found) return found;
    snprintf(file, sizeof file, "%.*s%s", slash ? (int)(slash - path) + 1 : 0, path, name);
    return json_load_file(file, 0, NULL);
}
