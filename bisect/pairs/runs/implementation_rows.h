/* Ops of two implementations as rows of one report, in the first side's order: which of them a region covers
 * (implementations.h), what met, and in which bits. */
#ifndef LB_BISECT_IMPLEMENTATION_ROWS_H
#define LB_BISECT_IMPLEMENTATION_ROWS_H

#include "diff/diff_report.h"
#include "implementations/implementations.h"
#include "sources/odd_sources.h"

#include "base/hash.h"

/* What an op is to the regions of its side. */
enum { LB_ROW_PLAIN, LB_ROW_IN_REGION, LB_ROW_NAMED };

typedef struct lb_implementation_rows {
    const lb_implementations *x;
    const uint8_t *spared; /* per region (smallest_set.h); NULL: not asked */
    lb_diff_report *report;
    const lb_program *p[2];
    uint8_t *state[2];   /* per op: LB_ROW_… */
    lb_hash by_digest;   /* the second side's values */
    uint32_t *beside[2]; /* per scope of either side: the other's (modules.h); NULL where no place differs */
    lb_odd_source *odd;  /* tensors of B that are made of others than their siblings are */
    uint32_t n_odd;
} lb_implementation_rows;

/* False: out of memory; it is to be closed all the same. */
bool lb_implementation_rows_open(lb_implementation_rows *rows, const lb_implementations *x, const uint8_t *spared,
                                 lb_diff_report *report);
void lb_implementation_rows_close(lb_implementation_rows *rows);

/* The row of an op of either side, `identical` and without a sentence; LB_NONE: the side runs no such op. */
lb_diff_row lb_implementation_rows_at(const lb_implementation_rows *rows, uint32_t a, uint32_t b);
/* Ranks of the parts that have a bit; steps of one rank are parts, too. */
uint64_t lb_implementation_rows_ranks(const lb_implementation_rows *rows, int side, uint64_t parts);
/* The tensors of A that one of B is made of, each once, joined by " + "; malloc'ed. NULL: out of memory. */
char *lb_implementation_rows_tensors(const lb_implementations *x, const lb_content *content);

/* Every op whose result is a quantity of the other side, adapters that one side has merged, what leaves the step. */
void lb_implementation_rows_add(lb_implementation_rows *rows);

#endif
