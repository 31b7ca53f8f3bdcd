/* What the scenarios of mpi_program.c share: who they are, and what they write down of each call. */
#ifndef LB_TEST_MPI_PROGRAM_H
#define LB_TEST_MPI_PROGRAM_H

#include <mpi.h>

#include <stdint.h>
#include <stdlib.h>

enum { N = 6, MOST = 8 };

extern int rank, ranks, calls; /* calls: made so far */
extern long parameter;         /* the third word of the command; 0: none */
extern uint64_t hash;          /* of all that this rank received */

/* A call is about to send these bytes (NULL: nothing); its number. */
int sent(const char *name, const void *data, size_t bytes);
/* Call `call` received these bytes (NULL: nothing). */
void received(int call, const char *name, const void *data, size_t bytes);

/* One call that does its work when it returns. NULL: this rank sends, or receives, nothing. */
#define CALL(name, in, in_bytes, out, out_bytes, arguments)                                                            \
    do {                                                                                                               \
        const int call_ = sent("MPI_" #name, in, in_bytes);                                                            \
        if (MPI_##name arguments != MPI_SUCCESS) exit(4);                                                              \
        received(call_, "MPI_" #name, out, out_bytes);                                                                 \
    } while (0)

/* Numbers that differ from rank to rank and from call to call. */
float number(int i);
void fill(float *x, int n);

/* ---- scenarios: mpi_calls.c -------------------------------------------------------------------------------------- */

void collectives(void);
void later(void);
void communicators(void);
void messages(void);
void types(void);
void strange(void);

/* ---- scenarios: mpi_endings.c ------------------------------------------------------------------------------------ */

void threads(void);
void steps(void);
void marked(void);
void aborting(void);
void killed(void);
void waiting(void);
void careless(void);
void numbered(void);
void counted(void);
void timed(void);

#endif
