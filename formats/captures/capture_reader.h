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
    lb_capture_reader_member *members; /* by rank, and of one rank in the order in which they were written */
    uint32_t n_members;
    _Atomic(lb_blob_filter *) filter; /* NULL: not needed yet */
    _Atomic uint32_t found_in;        /* the member that last held a blob of another rank */
    lb_foreign *foreign;              /* instead of members */
    lb_covering *covering;
    struct lb_program_shelf *shelf; /* of all members' programs */
    lb_program_row *rows;           /* by rank, step, then age: the youngest last */
    uint32_t n_rows;
    int32_t *ranks;
    uint32_t n_ranks;
    int64_t *steps;
    uint32_t n_steps;
    _Atomic bool refused; /* memory, for a program or a value */
    lb_err unread; /* the first program that is recorded and could not be read; guarded by a lock of the reader */
    _Atomic uint32_t asked; /* how often, for a program or a value */
};

/* Whether no later recording of that step of that rank stands behind row `r`. */
static inline bool lb_capture_reader_is_youngest(const lb_capture *capture, uint32_t r)
{
    const lb_program_row *row = &capture->rows[r];
    return r + 1 == capture->n_rows || row[1].rank != row->rank || row[1].step != row->step;
}

/* Of a folder only the archives of some ranks are opened, and read: a capture that knows no others. */
typedef struct lb_rank_choice {
    bool (*holds)(void *context, int32_t rank);
    void *context;
} lb_rank_choice;
/* `choice`: NULL for all, as lb_capture_open does. */
lb_status lb_capture_reader_open(const char *path, const lb_rank_choice *choice, lb_capture **capture, lb_err *err);
/* A rank has one archive, or several that are read as one. */
typedef struct lb_archive_name {
    int32_t rank;
    int64_t part; /* -1: the one of a rank that has one */
} lb_archive_name;
/* "rank-00003.tar" gives {3, -1}, "rank-00003-0000000002.tar" {3, 2}; false for anything else. */
bool lb_capture_reader_parse_name(const char *name, lb_archive_name *archive);
/* The archives in a folder, by rank and part; `*archives` is malloc'ed. */
lb_status lb_capture_reader_list_folder(const char *folder, lb_archive_name **archives, uint32_t *n, lb_err *err);
/* Malloc'ed; NULL when out of memory. */
char *lb_capture_reader_path(const char *folder, const lb_archive_name *archive);

#endif
