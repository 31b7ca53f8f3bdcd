/* One step of two implementations of one model: do they compute the same function, and where do they not?
 *
 *   1. Sources meet by their numbers (step_sources.h), whatever their names and layouts.
 *   2. Both sides run exactly, from the same numbers. Where all that leaves the step agrees they are the same function:
 *   that is a proof, and needs
 *      neither names nor ops in common.
 *   3. Otherwise B runs again from A's numbers at every counterpart (counterparts.h). What is apart there is apart by
 *   itself: the regions
 *      (regions.h), every one of them, and not the first alone. The effect of one is how far what leaves A moves when
 *      it alone is B's.
 *
 * Chained runs: A 2 + one for each region, of which MOST_REGIONS are measured; B 2 (3 with tables) + one for each value
 * that regions share. */
#ifndef LB_BISECT_IMPLEMENTATIONS_H
#define LB_BISECT_IMPLEMENTATIONS_H

#include "sources/apart_sources.h"
#include "sources/merged_adapters.h"
#include "implementations/exchange.h"
#include "implementations/regions.h"
#include "counterparts/tables.h"

enum { LB_IMPLEMENTATIONS_MOST_REGIONS = 8 };

/* A rounding to a coarser dtype that one side alone makes (slack.h). */
typedef struct lb_coarse {
    int side;
    uint32_t value, times; /* the first value cast so, and how many there are; times 0: none */
    /* relative L2 of what leaves: by these casts alone, and by all the rounding of the other side */
    double effect, usual;
} lb_coarse;

/* The losses that the sides go back from differ by one factor (counterpart_scales.h). */
typedef struct lb_loss_scale {
    double ratio; /* B's by A's; 0: they do not differ so */
    bool alone;   /* and by nothing else: from a loss scaled so, B leaves what A leaves */
    /* Per value: what the step does from backward on makes it in proportion to the loss. NULL: not asked. */
    uint8_t *linear[2];
    bool in_units; /* numbers and quantities that A's last run kept of backward are `ratio` times its own */
} lb_loss_scale;

/* Trials of a region, and what came of them (repairs.h). */
typedef struct lb_repairs_tried {
    lb_digest question;  /* all that the answer depends on */
    lb_repair answer[2]; /* LB_REPAIR_NONE: no edit does it */
} lb_repairs_tried;

typedef struct lb_implementations {
    lb_exact_side sides[2]; /* A, B */
    lb_step_sources sources[2];
    lb_contents contents;
    lb_token_map *tokens;      /* NULL: parts of a side, if it has any, are no parts of a sequence or a batch */
    lb_merged_adapter *merged; /* adapters of one side that the other has in its weights */
    uint32_t n_merged;
    lb_counterparts counterparts;
    uint32_t *met[2];
    lb_regions regions;
    lb_repairs_tried *tried;
    uint32_t n_tried;
    lb_exchange *exchanges; /* by which regions were put right in B, as it is now */
    uint32_t n_exchanges;
    uint8_t *innocent;  /* per op of B: that its arguments are other ones changes nothing */
    uint8_t *around[2]; /* per op: of a region that was cut from both ends (halfway.h) */
    bool judged;        /* something that leaves the step has a counterpart, and every one of these was compared */
    bool same;          /* and all of them agree */
    bool draws_differ;  /* the sides draw random numbers in other places: nothing is judged */
    char missing[300];  /* why it was not judged; "" */
    uint32_t tables;    /* that B takes A's numbers of */
    uint32_t alone;     /* tensors that one side alone holds, whose rounding was allowed for */
    lb_coarse coarse;
    lb_loss_scale loss;
    uint32_t left_apart; /* memory that an earlier step left with different numbers on the two sides: A's were taken */
    lb_apart_sources moved; /* what held other numbers as the window began: A's were taken */
} lb_implementations;

/* One step of each side, of one program each, which may be that of all its ranks (joined_ranks.h). `memory`: kept from
 * step to step. `progress`: told of ops while they run; NULL. */
lb_status lb_implementations_judge(const lb_program_view *a, const lb_program_view *b, lb_source_memory *memory,
                                   lb_exact_progress progress, lb_implementations *out, lb_err *err);
void lb_implementations_release(lb_implementations *result);

#endif
