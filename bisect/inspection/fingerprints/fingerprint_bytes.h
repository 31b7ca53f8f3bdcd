/* Where the numbers of a table's rows lie: pieces of tensors in mapped files or in a capture, and their measuring. */
#ifndef LB_BISECT_FINGERPRINT_BYTES_H
#define LB_BISECT_FINGERPRINT_BYTES_H

#include <lastbit/archive.h>
#include <lastbit/checkpoint.h>
#include <lastbit/fingerprint_table.h>

/* What one file, or one rank of a capture, holds of a tensor. */
typedef struct lb_fingerprint_piece {
    lb_checkpoint_piece held; /* names are the owner's */
    int64_t flat;             /* the first of its elements in the whole, which lie one behind the other; -1: a block */
} lb_fingerprint_piece;

typedef struct lb_fingerprint_bytes {
    lb_checkpoint *checkpoint; /* of files; of a capture one that was made of its parameters, without `tensors` */
    lb_capture *capture;
    lb_fingerprint_piece *pieces; /* by name */
    uint32_t n;
    bool flat; /* some piece is */
} lb_fingerprint_bytes;

/* What one pass says of a block. */
typedef struct lb_fingerprint_measured {
    lb_fingerprint raw, numbers, rounded[LB_FINGERPRINT_NARROW];
    bool constant;
} lb_fingerprint_measured;

/* Gives a row its fingerprint, out of its pieces. Shards of ranks' files, whose places no file tells, are laid side by
 * side so that they have the shape `like` (NULL: as their names tell). What cannot be told is in row->lacks. */
lb_status lb_fingerprint_bytes_settle(const lb_fingerprint_table *table, lb_fingerprint_row *row, const lb_layout *like,
                                      bool rounded, lb_err *err);
/* Whether a narrow dtype rounds this one. */
bool lb_fingerprint_bytes_rounds(lb_dtype dtype, int narrow);
/* Of a whole row with its last two dimensions exchanged; false: it has no one block, or too few dimensions. */
lb_status lb_fingerprint_bytes_transposed(const lb_fingerprint_table *table, const lb_fingerprint_row *row, bool *made,
                                          lb_fingerprint *numbers, lb_err *err);
void lb_fingerprint_bytes_free(lb_fingerprint_bytes *bytes);

#endif
