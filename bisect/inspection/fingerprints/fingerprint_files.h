/* What a table is made of: the tensors of a checkpoint's files, the parameters of a recorded step, a table that was
 * written. */
#ifndef LB_BISECT_FINGERPRINT_FILES_H
#define LB_BISECT_FINGERPRINT_FILES_H

#include "fingerprints/fingerprint_bytes.h"

#include <lastbit/input.h>

#include <sys/stat.h>

/* Each fills in table->bytes; the last one table->rows. */
lb_status lb_fingerprint_files_checkpoint(lb_fingerprint_table *table, lb_err *err);
lb_status lb_fingerprint_files_capture(lb_fingerprint_table *table, int64_t step, lb_err *err);
lb_status lb_fingerprint_files_table(lb_fingerprint_table *table, lb_err *err);
/* Rows for the quantised tensors of a checkpoint, which say what they lack. */
lb_status lb_fingerprint_files_unread(lb_fingerprint_table *table, lb_err *err);
/* Says of the rows of a capture whose bytes were not kept that they lack. */
void lb_fingerprint_files_lacking(lb_fingerprint_table *table);

#endif
