/* The steps that a capture lists, each by the digest of its program, and whether all bytes are there that it says were
 * kept. */
#ifndef LB_TESTS_STEP_LIST_H
#define LB_TESTS_STEP_LIST_H

#include <lastbit/archive.h>

enum { MOST_STEPS = 4096 };

typedef struct step {
    int32_t rank;
    int64_t number;
    lb_digest program, values; /* values: their digests alone, which no level and no window change */
    bool whole;
} step;

typedef struct step_list {
    step list[MOST_STEPS];
    int n, own; /* own: that the capture itself lists; behind them the window of a flight recorder */
} step_list;

const step *step_list_find(const step_list *in, int32_t rank, int64_t number);
void step_list_add(step_list *to, const step *one);
/* Adds the steps of a capture; false where it does not open. Bytes that are there and are not those of their digest, or
 * a program that cannot be encoded, never may be: `*wrong` names it. */
bool step_list_read(const char *path, step_list *to, const char **wrong);

#endif
