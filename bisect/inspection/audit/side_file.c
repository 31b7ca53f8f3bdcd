/* See side_file.h. */
#include "audit/side_file.h"

#include <lastbit/decode_limit.h>
#include <lastbit/input.h>
#include <stdio.h>
#include <string.h>

/* A FIFO or a device of that name is none. */
static json_t *load(const char *file)
{
    json_error_t why;
    return lb_input_is_file(file) ? lb_decode_limit_json_file(file, 0, &why) : NULL;
}

json_t *lb_side_file_load(const char *path, const char *name)
{
    char file[4200];
    const char *slash = strrchr(path, '/');
    snprintf(file, sizeof file, "%s/%s", path, name);
    json_t *found = load(file);
    if (found) return found;
    snprintf(file, sizeof file, "%.*s%s", slash ? (int)(slash - path) + 1 : 0, path, name);
    return load(file);
}
