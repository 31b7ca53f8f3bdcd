/* See side_file.h. */
#include "audit/side_file.h"

#include <lastbit/decode_limit.h>
#include <stdio.h>
#include <string.h>

json_t *lb_side_file_load(const char *path, const char *name)
{
    char file[4200];
    const char *slash = strrchr(path, '/');
    snprintf(file, sizeof file, "%s/%s", path, name);
    json_error_t why;
    json_t *found = lb_decode_limit_json_file(file, 0, &why);
    if (found) return found;
    snprintf(file, sizeof file, "%.*s%s", slash ? (int)(slash - path) + 1 : 0, path, name);
    return lb_decode_limit_json_file(file, 0, &why);
}
