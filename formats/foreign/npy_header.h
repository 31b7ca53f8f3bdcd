/* The header of a .npy file: a Python literal of three keys. Only what numpy.save writes is taken, and nothing is ever
 * unpickled. https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html. Private to formats/foreign. */
#ifndef LB_NPY_HEADER_H
#define LB_NPY_HEADER_H

#include "foreign/foreign_tensors.h"

typedef struct lb_npy_source {
    const char *source, *name; /* begin messages */
    const char *bytes;         /* the file's first `there` bytes, which hold the header */
    size_t there;
    uint64_t size; /* of the whole file */
} lb_npy_source;

enum { LB_NPY_HEADER_MOST = 65536 + 12 }; /* a header of version 1 is no longer */

typedef struct lb_npy_header {
    lb_dtype dtype;
    lb_layout layout;
    size_t begin, size; /* of the elements */
    bool no_number;     /* after LB_ERR_UNSUPPORTED: texts, dates, raw bytes or Python's objects */
} lb_npy_header;

lb_status lb_foreign_npy_header_read(const lb_npy_source *from, lb_npy_header *array, lb_err *err);

#endif
