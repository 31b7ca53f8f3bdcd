/* Rules and tables apart: see command_map.h. */
#include "command/command_map.h"

#include <stdlib.h>

lb_status lb_command_map_split(char *const *texts, lb_command_map *out, lb_err *err)
{
    uint32_t n = 0;
    while (texts && texts[n]) n++;
    *out = (lb_command_map){.rules = calloc(n + 1u, sizeof *out->rules)};
    if (!out->rules) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n; i++) {
        if (texts[i][0] == 's' && texts[i][1] == '/')
            out->rules[out->n_rules++] = texts[i];
        else if (!out->table)
            out->table = texts[i];
        else
            return lb_fail(err, LB_ERR_INVALID, "--map %s: one table at a time", texts[i]);
    }
    return LB_OK;
}

void lb_command_map_release(lb_command_map *map)
{
    free(map->rules);
    *map = (lb_command_map){0};
}
