/* What one source of a side holds of a named tensor: all of it, a part of it, or one of several tensors that lie one
 * behind the other. A part is runs of the whole's elements in row-major order, each with its place in the source.
 *
 *      whole    0 1 2 3 4 5 6 7 8 9
 *      part         2 3     6 7 */
#ifndef LB_BISECT_HELD_PART_H
#define LB_BISECT_HELD_PART_H

#include "pair/program_view.h"

typedef enum lb_cut_kind {
    LB_CUT_PARAMETER,
    LB_CUT_STATE, /* of the optimizer */
    LB_CUT_BATCH
} lb_cut_kind;

typedef struct lb_held_part {
    char *name; /* of the whole, mapped */
    const lb_program_view *side;
    uint32_t op, value, rank; /* rank: the part of the side */
    uint32_t nth;             /* of the sources of this rank that have the name */
    lb_cut_kind kind;
    bool free;                  /* no source of the other side stands for it */
    const lb_shard *shard;      /* NULL: nothing was said */
    lb_extent own[LB_MAX_DIMS]; /* where nothing was said */
    int64_t at, elements;       /* elements of the value from `at` on */
} lb_held_part;

lb_layout lb_held_part_whole(const lb_held_part *part);
/* `n` elements of the whole from `whole` on stand from `at` on in the part. */
typedef void lb_held_run(void *context, int64_t whole, int64_t at, int64_t n);
/* Its recorded elements in their order, malloc'ed; NULL: they were not kept, or are of another size. */
uint8_t *lb_held_part_bytes(const lb_held_part *part, size_t element);
/* "[0:16, :] of [32, 16]". */
void lb_held_part_text(const lb_held_part *part, char *text, size_t size);
/* "[4, 8]". */
void lb_held_part_shape_text(const lb_layout *layout, char *text, size_t size);

/* What a side holds of a whole. */
typedef struct lb_held_image {
    uint8_t *bytes, *there; /* there: per element */
    size_t element;
} lb_held_image;

/* False: out of memory. */
bool lb_held_image_open(lb_held_image *image, const lb_layout *whole, size_t element);
void lb_held_image_release(lb_held_image *image);
/* Copies the part's elements into the image, where the image does not have them yet. */
void lb_held_image_draw(lb_held_image *image, const lb_held_part *part, const uint8_t *bytes);
/* Copies the elements that the image has into the part's bytes. */
void lb_held_image_cut(const lb_held_image *image, const lb_held_part *part, uint8_t *bytes);
/* Does the image lack some element of the part? Does it hold some element of the part with different bits? */
bool lb_held_image_lacks(const lb_held_image *image, const lb_held_part *part);
bool lb_held_image_differs(const lb_held_image *image, const lb_held_part *part, const uint8_t *bytes);

#endif
