/* The table that says which tensor of one side is made of which of the other: `--map-out` writes it, `--map` of diff,
 * bisect, explain and audit reads it. A line each:
 *
 *      SECOND = FIRST + FIRST  # relation
 *
 * Simplest use:
 *
 *     lb_tensor_map_write_head(stdout);
 *     lb_tensor_map_write(stdout, "h.0.attn.c.weight", "q.weight + k.weight + v.weight", "fused", false);
 *
 * Lines may be changed, added and removed: a program that reads them obeys each, or refuses it with its number. */
#ifndef LASTBIT_TENSOR_MAP_H
#define LASTBIT_TENSOR_MAP_H

#include <lastbit/error.h>

#include <stdbool.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

LB_API void lb_tensor_map_write_head(FILE *file);
/* `first`: names joined by " + "; "" where nothing of the first side is meant. A comment is not read back. */
LB_API void lb_tensor_map_write(FILE *file, const char *second, const char *first, const char *relation, bool comment);

#ifdef __cplusplus
}
#endif
#endif
