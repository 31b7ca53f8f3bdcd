/* What larger tensors a value is part of, for `ls` and `show`. */
#ifndef LB_VALUE_SHARDS_H
#define LB_VALUE_SHARDS_H

#include "command/command_line.h"

#include <lastbit/program.h>

/* After `before`, on a line of its own for each where that begins with a line's end. */
void value_shards_print(const lb_program *program, uint32_t value, const char *before);
/* A list; NULL where the value is part of nothing. */
json_t *value_shards_json(const lb_program *program, uint32_t value);
/* How many values are parts, and over which meshes: a line, or nothing. */
void value_shards_summary(const lb_program *program);

#endif
