/* One side of a comparison: a step of one rank, or several recorded programs taken as one.
 *
 * A full forward pass is compared with a prefill and decode steps, one process with many ranks, a batch with
 * micro-batches. The programs of a side are put one after the other into a single one, in which the values and ops of
 * part p begin at parts[p].first_value and first_op. Nothing replays that program: alignment and the walk read it.
 */
#ifndef LB_BISECT_PROGRAM_VIEW_H
#define LB_BISECT_PROGRAM_VIEW_H

#include <lastbit/archive.h>

struct lb_shard_axes; /* replay/program/shard_axes.h */

typedef struct lb_program_view_part {
    const lb_program *program; /* as recorded */
    uint32_t first_op, first_value;
} lb_program_view_part;

typedef struct lb_program_view {
    lb_capture *capture;
    const lb_program *program; /* the one recorded program, or `merged` */
    lb_program *merged;        /* NULL: one part */
    lb_program_view_part *parts;
    uint32_t n_parts;
    bool by_calls; /* parts are calls of the model in one program (joined_calls.h), which all of them have */
    /* dimensions along which parts do not follow each other in the order of `parts`; NULL: one program */
    struct lb_shard_axes *axes;
    /* Per value, filled in by an alignment: the parts of the value are put together in this many interleaved blocks
     * along their dimension (cut_blocks.h). 0 or 1: one part behind the other. */
    uint32_t *blocks;
    /* Per part: parts of the two sides that are compared with each other have the same number. LB_NONE: the part is
     * compared with none, as another part computes the same. NULL: where the sides have n and m·n parts, each part of
     * the one is compared with m of the other. */
    uint32_t *group;
    uint32_t *copy_of; /* per part, where there are groups: the part that stands for this one, which may be itself */
    /* Per op, where there are groups (rank_copies.h): the op that gives the same bits in the part that stands for the
     * op's own part; LB_NONE: there is none. */
    uint32_t *original;
    /* per op, where there are groups: the parts that its own part stands for do not have its result; NULL: no groups */
    uint8_t *own;
    /* The next three: where the ops of the whole stand in a different order than in the parts (joined_ranks.h); else
     * NULL. Values behind those of the parts were not recorded. */
    uint32_t *op_of;   /* per op of the parts, one part behind the other: the op of the whole */
    uint32_t *rank_of; /* per op of the whole: its part */
    /* per op of the whole: the parts that it stands for, one bit each; bit 63 is for part 63 and all behind it */
    uint64_t *ranks_of;
} lb_program_view;

/* The programs stay the capture's. LB_ERR_NOMEM is the only failure. */
lb_status lb_program_view_init(lb_capture *capture, const lb_program *const *programs, uint32_t n,
                               lb_program_view *side, lb_err *err);
/* One program as it was recorded: a flat part of a tensor stays flat. */
lb_status lb_program_view_init_recorded(lb_capture *capture, const lb_program *program, lb_program_view *side,
                                        lb_err *err);
/* As lb_program_view_init, but `merged` is made also for one program, so that the whole may be changed. */
lb_status lb_program_view_init_merged(lb_capture *capture, const lb_program *const *programs, uint32_t n,
                                      lb_program_view *side, lb_err *err);
/* The ops of the whole were put in another order: takes the tables over. */
void lb_program_view_reorder(lb_program_view *side, uint32_t *op_of, uint32_t *rank_of, uint64_t *ranks_of);
/* The bit of a part in `ranks_of`. */
static inline uint64_t lb_program_view_rank_bit(uint32_t part)
{
    return (uint64_t)1 << (part < 63 ? part : 63);
}
/* Did a rank record it? */
bool lb_program_view_is_recorded(const lb_program_view *side, uint32_t value);
/* The value has these bytes; takes them over. False when out of memory. */
void lb_program_view_release(lb_program_view *side);
/* The number of the group by which `part` is compared with parts of the other side, and how many groups there are. */
uint32_t lb_program_view_group(const lb_program_view *side, const lb_program_view *other, uint32_t part);
uint32_t lb_program_view_groups(const lb_program_view *side, const lb_program_view *other);
/* The first part of that group, and how many follow it in the same one; LB_NONE: none. */
uint32_t lb_program_view_first_of(const lb_program_view *side, const lb_program_view *other, uint32_t group,
                                  uint32_t *n);
/* True where some part of a side is compared with none of the other's. */
bool lb_program_views_are_uneven(const lb_program_view *a, const lb_program_view *b);
/* Supposes that the side's ranks form a grid of `outer` by `inner` of which the recording says nothing; the inner index
 * runs faster. */
lb_status lb_program_view_suppose_grid(lb_program_view *side, uint32_t outer, uint32_t inner, lb_err *err);
/* The part that an op of the whole lies in. */
uint32_t lb_program_view_part_of(const lb_program_view *side, uint32_t op);
uint32_t lb_program_view_part_of_value(const lb_program_view *side, uint32_t value);
/* The part that is the step of the rank; LB_NONE: there is none. */
uint32_t lb_program_view_part_at(const lb_program_view *side, int32_t rank, int64_t step);
/* The op of the whole that is op `op` of that recorded program; LB_NONE when the side has no such part. */
uint32_t lb_program_view_op(const lb_program_view *side, const lb_program *recorded, uint32_t op);
uint32_t lb_program_view_value_of(const lb_program_view *side, const lb_program *recorded, uint32_t value);
/* The storage of the whole that is a storage of a recorded program of that part. */
int64_t lb_program_view_storage(const lb_program_view *side, uint32_t part, int64_t storage);
/* A flat part of a larger tensor gets the shape of the part, and loses its padding. False where the value is not such a
 * part. */
bool lb_program_view_shape(const lb_program_view *side, uint32_t value, lb_tensor *tensor);
/* The same for a tensor of a running program, which has it flat as recorded: it gets the part's shape where it holds
 * all of the part. */
void lb_program_view_part_shape(const lb_program_view *side, uint32_t value, lb_tensor *tensor);
/* As lb_capture_value, of a value of the whole. */
lb_status lb_program_view_value(const lb_program_view *side, uint32_t value, lb_tensor *tensor, lb_err *err);
/* Compares digests, and where these differ the bytes that were kept: NaNs are equal to each other, and so are the same
 * whole numbers in two integer dtypes. A value without a digest does not differ. */
bool lb_program_view_values_differ(const lb_program_view *a, uint32_t value_a, const lb_program_view *b,
                                   uint32_t value_b);
/* The recorded program and row of a value of the whole. */
const lb_program *lb_program_view_recorded(const lb_program_view *side, uint32_t value, uint32_t *row);

#endif
