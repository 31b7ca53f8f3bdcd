/* The inside of a capture, for verifying and packing. Private to formats/. */
#ifndef LB_CAPTURE_READER_H
#define LB_CAPTURE_READER_H

#include "archive_reader.h"
#include "covering.h"
#include "foreign.h"

typedef struct lb_member {
    lb_archive *archive;
    int32_t rank; /* by its name; LB_NO_RANK: programs and tables say it */
} lb_member;

typedef struct lb_program_row {
    int32_t rank;
    int64_t step;
    uint32_t member, program;
} lb_program_row;

struct lb_capture {
    char *path;
    lb_member *members;
    uint32_t n_members;
    lb_foreign *foreign; /* instead of members */
    lb_covering *covering;
    lb_program_row *rows; /* by rank, step, then age: the youngest last */
    uint32_t n_rows;
    int32_t *ranks;
    uint32_t n_ranks;
    int64_t *steps;
    uint32_t n_steps;
};

/* "rank-00003.tar" gives 3; anything else LB_NO_RANK. */
int32_t lb_rank_of_name(const char *name);
/* Ranks of the archives in a folder, ascending; `*ranks` is malloc'ed. */
lb_status lb_folder_ranks(const char *folder, int32_t **ranks, uint32_t *n, lb_err *err);

#endif
