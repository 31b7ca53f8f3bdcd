/* The inside of a capture, for verifying and packing. Private to formats/. */
#ifndef LB_CAPTURE_READER_H
#define LB_CAPTURE_READER_H

#include "archive/archive_reader.h"
#include "captures/blob_filter.h"
#include "captures/covering.h"
#include "foreign/foreign.h"

typedef struct lb_capture_reader_member {
    lb_archive *archive;
    int32_t rank; /* by its name; LB_NO_RANK: programs and tables say it */
} lb_capture_reader_member;

typedef struct lb_program_row {
    int32_t rank;
    int64_t step;
    uint32_t member, program;
} lb_program_row;

struct lb_capture {
    char *path;
    lb_capture_reader_member *members; /* by rank */
    uint32_t n_members;
    _Atomic(lb_blob_filter *) filter; /* NULL: not needed yet */
    _Atomic uint32_t found_in;        /* the member that last held a blob of another rank */
    lb_foreign *foreign;              /* instead of members */
    lb_covering *covering;
    lb_program_row *rows; /* by rank, step, then age: the youngest last */
    uint32_t n_rows;
    int32_t *ranks;
    uint32_t n_ranks;
    int64_t *steps;
    uint32_t n_steps;
};

/* Of a folder only the archives of some ranks are opened, and read: a capture that knows no others. */
typedef struct lb_rank_choice {
    bool (*holds)(void *context, int32_t rank);
    void *context;
} lb_rank_choice;
/* `choice`: NULL for all, as lb_capture_open does. */
lb_status lb_capture_reader_open(const char *path, const lb_rank_choice *choice, lb_capture **capture, lb_err *err);
/* "rank-00003.tar" gives 3; anything else LB_NO_RANK. */
int32_t lb_capture_reader_rank_of_name(const char *name);
/* Ranks of the archives in a folder, ascending; `*ranks` is malloc'ed. */
lb_status lb_capture_reader_ranks_of_folder(const char *folder, int32_t **ranks, uint32_t *n, lb_err *err);

#endif
