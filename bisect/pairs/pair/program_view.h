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
    const lb_program *program; /* that of the one part, or all of them */
    lb_program *merged;        /* NULL: one part */
    lb_program_view_part *parts;
    uint32_t n_parts;
    /* dimensions that its parts share out in another order than theirs; NULL: it is one program */
    struct lb_shard_axes *axes;
    /* per value, as an alignment found it: in so many blocks the dimension along which it is a part is put together,
     * each of the parts' like (cut_blocks.h); 0 or 1: one behind the other */
    uint32_t *blocks;
    /* per part: those of both sides that stand against each other have the same; LB_NONE: it stands against none, as
     * what it computes is there already. NULL: of n and m·n parts, m of the one against each of the other */
    uint32_t *group;
    uint32_t *copy_of; /* per part, where there are groups: the part that stands for it, or itself */
    /* per op, then (rank_copies.h): the op of the part that stands for its own which gives the same bits; LB_NONE */
    uint32_t *original;
    /* per op, then: what it gives the parts that its own stands for do not have; NULL: there are no groups */
    uint8_t *own;
    /* Where its ops stand in another order than the parts' (joined_ranks.h); NULL else. Values past those of the parts
     * were not recorded. */
    uint32_t *op_of;   /* per op of the parts, one part behind the other: the op of the whole */
    uint32_t *rank_of; /* per op of the whole: its part */
    /* per op of the whole: parts that it stands for, a bit each; part 63 stands for those behind it, too */
    uint64_t *ranks_of;
    uint32_t n_given; /* values that it was given bytes of */
    struct lb_given_value *given;
} lb_program_view;

/* A value that no part recorded, and its bytes. */
typedef struct lb_given_value {
    uint32_t value;
    lb_tensor tensor; /* contiguous, malloc'ed */
} lb_given_value;

/* The programs stay the capture's. LB_ERR_NOMEM is the only failure. */
lb_status lb_program_view_init(lb_capture *capture, const lb_program *const *programs, uint32_t n,
                               lb_program_view *side, lb_err *err);
/* One program as it was recorded: parts that lie flat stay so. */
lb_status lb_program_view_init_recorded(lb_capture *capture, const lb_program *program, lb_program_view *side,
                                        lb_err *err);
/* The same, of one program, too: the whole is a program of its own, which may be changed. */
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
bool lb_program_view_give(lb_program_view *side, uint32_t value, lb_tensor tensor);
void lb_program_view_release(lb_program_view *side);
/* By which parts of two sides stand against each other. */
uint32_t lb_program_view_group(const lb_program_view *side, const lb_program_view *other, uint32_t part);
uint32_t lb_program_view_groups(const lb_program_view *side, const lb_program_view *other);
/* The first part of that group, and how many follow it in the same one; LB_NONE: none. */
uint32_t lb_program_view_first_of(const lb_program_view *side, const lb_program_view *other, uint32_t group,
                                  uint32_t *n);
/* Not every part stands against one of the other side's. */
bool lb_program_views_are_uneven(const lb_program_view *a, const lb_program_view *b);
/* Its ranks stand in a grid of that many by that many, which no mesh tells; the latter run faster. */
lb_status lb_program_view_suppose_grid(lb_program_view *side, uint32_t outer, uint32_t inner, lb_err *err);
/* The part that an op of the whole lies in. */
uint32_t lb_program_view_part_of(const lb_program_view *side, uint32_t op);
uint32_t lb_program_view_part_of_value(const lb_program_view *side, uint32_t value);
/* The op of the whole that is op `op` of that recorded program; LB_NONE when the side has no such part. */
uint32_t lb_program_view_op(const lb_program_view *side, const lb_program *recorded, uint32_t op);
uint32_t lb_program_view_value_of(const lb_program_view *side, const lb_program *recorded, uint32_t value);
/* The storage of the whole that is a storage of a recorded program of that part. */
int64_t lb_program_view_storage(const lb_program_view *side, uint32_t part, int64_t storage);
/* A part of a larger tensor that lies flat has the shape of the part here. A recorded tensor of such a value gets it,
 * and loses its padding; false where the value is none. */
bool lb_program_view_shape(const lb_program_view *side, uint32_t value, lb_tensor *tensor);
/* A tensor of such a value of a program that runs, which has it as it was recorded, gets the shape of the part where it
 * is all of it. */
void lb_program_view_part_shape(const lb_program_view *side, uint32_t value, lb_tensor *tensor);
/* As lb_capture_value, of a value of the whole. */
lb_status lb_program_view_value(const lb_program_view *side, uint32_t value, lb_tensor *tensor, lb_err *err);
/* By digests, and where these differ by what was kept: NaNs are equal to each other, and so are the same whole numbers
 * in two integer dtypes. What has no digest does not differ. */
bool lb_program_view_values_differ(const lb_program_view *a, uint32_t value_a, const lb_program_view *b,
                                   uint32_t value_b);
/* The recorded program and row of a value of the whole. */
const lb_program *lb_program_view_recorded(const lb_program_view *side, uint32_t value, uint32_t *row);

#endif
