/* One element of what ranks reduce, in the order that NCCL documents, with the faults that are planted on its way. */
#ifndef LB_TESTS_STANDIN_REDUCE_H
#define LB_TESTS_STANDIN_REDUCE_H
#include "standin_nccl.h"
#include "standin_numbers.h"

/* A variable as a number. */
int standin_number(const char *name, int otherwise);
int standin_nodes(int ranks);

element standin_reduced(const task *t, size_t at);

/* A bit that a variable turns over: see standin_nccl.c. */
typedef struct flip {
    int call, who, element, bit; /* `who`: a rank, or a hop */
} flip;

bool standin_flip_of(const char *name, flip *f);
void standin_turn_over(int dtype, void *data, const flip *f);

#endif
