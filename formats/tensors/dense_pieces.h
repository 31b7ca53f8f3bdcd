/* The elements of any view, in row-major order, as dense pieces of at most one digest leaf. Private to formats/.
 *
 * A contiguous view is cut where it lies. Another one is gathered into a buffer, many rows at a time, so that a
 * transposed matrix is read line by line of the cache and not element by element. Every piece but the last holds
 * exactly a leaf. */
#ifndef LB_DENSE_PIECES_H
#define LB_DENSE_PIECES_H

#include <lastbit/digest.h>

typedef struct lb_dense_pieces {
    const char *bytes; /* the piece at hand */
    size_t elements;
    /* private */
    lb_tensor tensor;
    size_t width, per_piece; /* bytes of an element (0: less than one), elements of a piece */
    bool contiguous;
    int64_t done, total; /* elements given out */
    lb_rows rows;
    int64_t row_at; /* elements of the current row already taken */
    bool has_row;
    char buffer[LB_DIGEST_LEAF];
} lb_dense_pieces;

/* The tensor must have a dtype and a number of elements; elements smaller than a byte must be contiguous (else: no
 * piece). */
void lb_dense_begin(lb_dense_pieces *pieces, const lb_tensor *tensor);
bool lb_dense_next(lb_dense_pieces *pieces);

#endif
