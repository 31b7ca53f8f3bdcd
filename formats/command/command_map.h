/* `--map` of commands that compare two sides: rules that rename, and one table of tensors (lastbit/tensor_map.h).
 *
 *     --map 's/^module\\.//'     a rule
 *     --map edited.map          a table: anything that does not begin as a rule does
 */
#ifndef LASTBIT_COMMAND_MAP_H
#define LASTBIT_COMMAND_MAP_H

#include <lastbit/error.h>

typedef struct lb_command_map {
    const char **rules; /* malloc'ed; the texts are the option's */
    uint32_t n_rules;
    const char *table; /* NULL: none */
} lb_command_map;

/* `texts`: NULL-terminated, or NULL. LB_ERR_INVALID: two tables. */
lb_status lb_command_map_split(char *const *texts, lb_command_map *out, lb_err *err);
void lb_command_map_release(lb_command_map *map);

#endif
