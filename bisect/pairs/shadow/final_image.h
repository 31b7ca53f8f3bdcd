/* What a parameter holds at the end of a step whose last writes are of parts of it: rows zeroed, a column scaled, one
 * element set.
 *
 *      source ──▶ optimizer, all of it ──▶ weight[3:5].zero_() ──▶ weight[:, 7].mul_(2)      its image: one over the other
 *
 * An image is row-major and has the source's shape; the source's layout has to be contiguous. */
#ifndef LB_BISECT_FINAL_IMAGE_H
#define LB_BISECT_FINAL_IMAGE_H

#include "pair/program_view.h"

/* Does a value of the source's storage share elements with it, as far as their ranges tell? A flat buffer holds many
 * parameters, each of which is a window on it. */
bool lb_image_overlaps(const lb_value *source, const lb_value *value);
/* What a program writes, by storage; `program` lives longer. NULL: out of memory. */
typedef struct lb_image_writes lb_image_writes;
lb_image_writes *lb_image_writes_new(const lb_program *program);
void lb_image_writes_free(lb_image_writes *writes);
/* The last op before `end` that writes what the source is a window on, and the value that it left there; LB_NONE. */
uint32_t lb_image_write_before(const lb_image_writes *writes, uint32_t source, uint32_t end, uint32_t *value);
/* Elements of a value of the storage, row-major, put where they lie in the source's image; those that lie outside are
 * left out. */
void lb_image_paint(void *image, const lb_layout *source, const lb_layout *value, size_t element, const void *numbers);
/* The recorded bytes at the end of the step of what `source` (an op) was: tensor->data is malloc'ed. False when some
 * were not kept. */
bool lb_image_bits(const lb_program_view *side, uint32_t source, lb_tensor *tensor);
/* May the storages of two sources differ at the end of the step? Not if, since the last write of the whole, both sides
 * made the same writes of the same bits. */
bool lb_image_may_differ(const lb_image_writes *a, uint32_t source_a, const lb_image_writes *b, uint32_t source_b);

#endif
