/* What packing needs of the writer beyond lastbit/archive.h. Private to formats/. */
#ifndef LB_ARCHIVE_WRITER_H
#define LB_ARCHIVE_WRITER_H

#include <lastbit/archive.h>

/* As lb_writer_open, but payloads are compressed with this zstd level (0: stored as they are). */
lb_status lb_writer_open_coded(const char *path, const lb_writer_options *options, int level, lb_writer **writer,
                               lb_err *err);
/* As lb_writer_table, for the table of one rank among several. */
lb_status lb_writer_rank_table(lb_writer *writer, int32_t rank, const char *name, const char *json, lb_err *err);

#endif
