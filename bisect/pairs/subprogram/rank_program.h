/* What a subprogram consists of: a program for each rank that has a part in it. subprogram.c makes them,
 * subprogram_run.c runs them. */
#ifndef LB_BISECT_RANK_PROGRAM_H
#define LB_BISECT_RANK_PROGRAM_H

#include "program/prepared.h"
#include "subprogram/rank_rows.h"

/* The ops of one rank. */
typedef struct lb_rank_program {
    lb_program *program;
    lb_prepared *prepared;
    const lb_keyed_row *leaves, *outputs; /* of the subprogram, those that are this rank's */
    uint32_t n_leaves, n_outputs;
} lb_rank_program;

/* A value of a rank program's program. */
typedef struct lb_spot {
    uint32_t rank_program, row;
} lb_spot;

struct lb_subprogram {
    lb_rank_program *rank_programs;
    uint32_t n_rank_programs;
    lb_spot *leaves, *outputs;
    uint32_t n_leaves, n_outputs;
    lb_rank_rows rows;        /* of the parts that it was made of */
    lb_keyed_rows by_address; /* rank programs by where their program lies */
};

#endif
