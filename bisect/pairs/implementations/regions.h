/* What two implementations compute between places where they are known to meet, and which of these parts are not the
 * same function.
 *
 *      … ─▶ norm ═╦═▶ q ═╗                         ═  met: counterparts, equal quantities, sources that both hold
 *                 ╠═▶ k ═╬─▶ scores ─▶ … ─▶ out ═▶     a region: what either side computes behind these up to a counterpart that is apart,
 *                 ╚═▶ v ═╝                             although B went on from A's numbers at every counterpart before it
 *
 * So each region is judged by itself, and a difference never reaches the region behind it. A value that several regions
 * read and that is no counterpart itself (the sum with the residual stream) would carry it on all the same: the last
 * such value of both sides is made a counterpart, and the side is run again.
 */
#ifndef LB_BISECT_REGIONS_H
#define LB_BISECT_REGIONS_H

#include "counterparts/counterparts.h"

/* Why a region's op is named. */
typedef enum lb_region_reason {
    LB_REGION_ARGUMENTS,  /* one op with different arguments, from the same inputs */
    LB_REGION_PART,       /* views that take different parts of the same numbers: a slice, a trim */
    LB_REGION_REARRANGED, /* both sides put the same numbers in another order, each by an op of its own */
    LB_REGION_ORDER,      /* one op that reads the same numbers in another order */
    LB_REGION_MASK,       /* one op with another mask, from the same inputs */
    LB_REGION_SOURCE,     /* it reads what the other side does not hold */
    LB_REGION_UPDATE,     /* one side alone updates a parameter */
    LB_REGION_MISSING,    /* one side alone computes it */
    LB_REGION_DETACHED,   /* a gradient stops on one side alone: region_detached.h */
    LB_REGION_REPAIRED,   /* one op written differently makes them the same: see `repair` */
    LB_REGION_OPS         /* both compute it by ops of their own */
} lb_region_reason;

/* An edit of one op (repairs.h). */
typedef enum lb_repair_kind {
    LB_REPAIR_NONE,
    LB_REPAIR_NUMBER,   /* an argument is another number */
    LB_REPAIR_LEFT_OUT, /* it hands on one of its operands */
    LB_REPAIR_FUNCTION  /* another function of the same arguments */
} lb_repair_kind;

typedef struct lb_repair {
    lb_repair_kind kind;
    int side;             /* whose op it is */
    uint32_t op, arg;     /* arg: the number, or the operand handed on */
    double before, after; /* numbers */
    const char *function; /* the other one; static */
    uint32_t other;       /* the op of the other side that has the number, and that alone; LB_NONE */
    bool alone;           /* neither side has the other's number */
    bool swapped;         /* its first two operands change places: a sum's factor is that of the second */
    uint32_t times;       /* ops of the region that it is made in: all of one line that are written so */
    uint32_t rank;        /* of several edits that do it the one with the lowest is what a person would change */
    /* What the op is written as now, and as it should be: name, first argument, how many. */
    uint32_t name[2], first_arg[2], args[2];
} lb_repair;

typedef struct lb_region {
    uint32_t counterpart; /* that is apart */
    /* Regions that this one stands for: the same op, the same source, or one optimizer over many parameters. */
    uint32_t times;
    uint32_t first[2], n[2];               /* rows of `ops`: of A and B, ascending; computing ops of the region */
    uint32_t first_unheld[2], n_unheld[2]; /* rows of `unheld`: sources it reads that the other side does not hold */
    uint32_t op[2];                        /* to be named, of A and of B; LB_NONE */
    lb_region_reason reason;
    int stops;          /* of LB_REGION_DETACHED: on which side */
    uint32_t source[2]; /* values: of the unheld sources the ones to be named; LB_NONE */
    /* The edit by which op and reason were found. `also`: where it takes two, the other; else LB_REPAIR_NONE. */
    lb_repair repair, also;
    /* A choice in it (experts, rows) fell differently on the two sides: both run with what they recorded. */
    bool chosen;
    bool follows;   /* it is the backward of another region */
    bool inherited; /* see inherited.h */
    /* nothing meets in most of forward: that the sides differ in it is so, and any op named would be a guess */
    bool vague;
    uint32_t put;      /* 1 + the row of lb_implementations.exchanges that puts it right in B; 0: none */
    uint32_t part;     /* its row of lb_regions.parts */
    uint64_t ranks[2]; /* that run the ops named, a bit each (program_view.h); 0: the side runs none */
    /* What B gives at the counterpart when this region alone is B's, malloc'ed; NULL: its last run's. */
    double *numbers;
    double effect; /* relative L2 of what leaves the step when this region alone is B's; NaN: not measured */
} lb_region;

/* A region as it was found, before those that are one difference became one row. */
typedef struct lb_region_part {
    uint32_t counterpart, put;
    uint32_t into; /* the part that it was joined to, or that it is the backward of; itself: to none */
} lb_region_part;

typedef struct lb_regions {
    lb_region *list;
    uint32_t n;
    lb_region_part *parts; /* once they were joined */
    uint32_t n_parts;
    uint32_t *ops, n_ops;
    uint32_t *unheld, n_unheld; /* values of sources */
} lb_regions;

/* Per value of either side: some value of the other side is the same quantity in the runs that were made; where none
 * is, one that is as near, element by element, as the rounding of tensors may take it (`room`, relative L2; 0: there
 * are not such tensors). malloc'ed, NULL: out of memory. */
uint32_t *lb_regions_meet(const lb_exact_side *mine, const lb_exact_side *other, double room);

typedef struct lb_region_question {
    const lb_exact_side *sides[2];
    const lb_step_sources *sources[2];
    const lb_contents *contents;
    const lb_counterparts *counterparts;
    const uint32_t *met[2]; /* lb_regions_meet of either side */
    /* Per op of B: that its arguments are other ones changes nothing; NULL: not known of any. */
    const uint8_t *innocent;
    /* Per op: of a part of forward that was cut from both ends, so that what backward does of it follows from what is
     * left; NULL: of none. */
    const uint8_t *around[2];
} lb_region_question;

/* Behind lb_counterparts_compare. LB_ERR_NOMEM is the only failure. */
lb_status lb_regions_find(const lb_region_question *asked, lb_regions *out, lb_err *err);
/* Copies a region of `from`, with what it lists; takes over its numbers. False when out of memory. */
bool lb_regions_append(lb_regions *to, const lb_regions *from, const lb_region *region);
/* The row of the difference that a part belongs to; LB_NONE: of one that was left out. */
uint32_t lb_regions_row_of(const lb_regions *regions, uint32_t part);
/* One difference that shows in several regions (one op, one source, one optimizer over many parameters; a part of
 * forward, and its backward) becomes one row. At the end: rows that are joined share no values any more. False
 * when out of memory. */
bool lb_regions_join_alike(const lb_region_question *asked, lb_regions *regions);
/* The phase in which B computes what is apart at the region's end. What it never updates ends as its source, and is the
 * optimizer's all the same. */
lb_phase lb_regions_phase(const lb_exact_side *b, const lb_counterparts *counterparts, const lb_region *region);
/* Does backward add a gradient to those of backwards before it by this op (LB_NONE: none)? */
bool lb_regions_accumulates(const lb_exact_side *side, uint32_t op);
void lb_regions_release(lb_regions *regions);

#endif
