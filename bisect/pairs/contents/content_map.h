/* The table of tensors that `--map-out` writes and `--map` reads (lastbit/tensor_map.h): which tensor of the second
 * side is made of which of the first.
 *
 *      h.0.mix.c = blocks.0.attn.query.weight + blocks.0.attn.key.weight + blocks.0.attn.value.weight  # fused
 *      wte = tok.weight  # renamed
 *      h.0.extra =       # stands for no tensor of the first side
 *      # h.1.extra =     # a comment: left to the numbers
 *
 * Lines may be changed, added and removed. One that names what the numbers say changes nothing. One that names other
 * tensors is obeyed: the tensor is looked for among these alone, in any arrangement. Where their numbers are
 * different it stands beside them element by element, and the first element that disagrees is told. One that cannot
 * be obeyed is refused with its file and line. The sides may be named in the other order: a line is turned where its
 * names say so. */
#ifndef LB_BISECT_CONTENT_MAP_H
#define LB_BISECT_CONTENT_MAP_H

#include "contents/contents.h"

typedef struct lb_content_map_row {
    char *second;
    char **first; /* none: nothing of the first side */
    uint32_t n_first;
    uint64_t line;
} lb_content_map_row;

typedef struct lb_content_map {
    char *path;
    lb_content_map_row *list;
    uint32_t n;
} lb_content_map;

/* LB_ERR_CORRUPT names file and line; LB_ERR_NOT_FOUND. */
lb_status lb_content_map_read(const char *path, lb_content_map *map, lb_err *err);
void lb_content_map_release(lb_content_map *map);

/* A row whose tensors hold different numbers. */
typedef struct lb_content_disagreement {
    uint64_t line;
    uint32_t a, b;
    int64_t at[2], apart; /* elements of a and b; how many disagree */
    double is[2];
} lb_content_disagreement;

/* Behind lb_contents_match: what the rows say. LB_ERR_INVALID: a row that cannot be obeyed, with what to do.
 * `disagreements`: malloc'ed. */
lb_status lb_content_map_apply(const lb_content_map *map, const lb_content_tensor *a, uint32_t n_a,
                               const lb_content_tensor *b, uint32_t n_b, lb_contents *contents,
                               lb_content_disagreement **disagreements, uint32_t *n, lb_err *err);
/* "m.map, line 3: wte is not tok.weight: element 7 is 0.5 there and 1.5 here (12 of 40 disagree)". */
void lb_content_map_disagreement_text(const lb_content_map *map, const lb_content_disagreement *d,
                                      const lb_content_tensor *a, const lb_content_tensor *b, char text[600]);

#endif
