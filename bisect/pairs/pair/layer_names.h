/* Maps the names of layers and values of both sides to common names, so that they can be matched: by the user's `--map`
 * rules, and by a table of the names that known frameworks use for the same thing. */
#ifndef LB_BISECT_LAYER_NAMES_H
#define LB_BISECT_LAYER_NAMES_H

#include <lastbit/error.h>

/* One `--map 's/PATTERN/REPLACEMENT/'`, applied to A's layer paths (PCRE2, all matches with a trailing `g`). */
typedef struct lb_layer_names_map lb_layer_names_map;
lb_status lb_layer_names_map_new(const char *const *rules, uint32_t count, lb_layer_names_map **out, lb_err *err);
void lb_layer_names_map_free(lb_layer_names_map *rules);
/* The mapped path, malloc'ed; `rules` may be NULL. */
char *lb_layer_names_map_apply(const lb_layer_names_map *rules, const char *path);

/* The one spelling of what known frameworks call differently, malloc'ed: "transformer.h.3.attn.c_proj" and
 * "model.layers.3.self_attn.o_proj" both give "layers.3.self_attn.o_proj". */
char *lb_layer_name_spelled(const char *name);
/* Names that only one side has get their known spelling, so that they may meet; those that both have stay, and so do
 * two names of a side that would be spelled alike. Texts are malloc'ed and may be replaced. */
lb_status lb_layer_names_meet(char **a, uint32_t na, char **b, uint32_t nb, lb_err *err);

#endif
