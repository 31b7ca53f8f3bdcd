/* Rows of the closing index that wait outside of memory, so that a run of a million steps takes no more of it than one
 * of a thousand.
 *
 * They lie in a file without a name in the folder of the archive, which goes with the process. It holds nothing that
 * the archive does not hold, too: where it cannot be made or written, rows stay in memory, and a process that is killed
 * loses an index, which a scan rebuilds. Private to formats/. */
#ifndef LB_ROW_SPILL_H
#define LB_ROW_SPILL_H

#include "archive/archive_index.h"

#include <stdio.h>

typedef struct lb_row_spill {
    FILE *file;   /* NULL: none yet; written by its descriptor, so that a forked child has nothing to flush */
    bool refused; /* the rows stay in memory from now on */
    uint64_t end; /* bytes in the file */
    uint64_t n_blobs, n_programs;
} lb_row_spill;

#define LB_ROW_SPILL_INIT {.file = NULL}

/* Takes the rows of blobs and programs out of `rows` where they are many. No coded pack may be among them: its row is
 * its number. */
void lb_row_spill_out(lb_row_spill *spill, const char *path, lb_index_rows *rows);
/* Puts them back, before those that are there. */
lb_status lb_row_spill_back(lb_row_spill *spill, const char *path, lb_index_rows *rows, lb_err *err);
void lb_row_spill_close(lb_row_spill *spill);

#endif
