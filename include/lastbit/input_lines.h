/* Lines of a file, of which none takes more memory than its reader allows.
 *
 * Simplest use:
 *
 *     lb_input_lines lines;
 *     LB_TRY(lb_input_lines_open(&lines, path, 1 << 20, err));
 *     while (lb_input_lines_next(&lines)) printf("line %llu: %s\n", (unsigned long long)lines.number, lines.text);
 *     return lb_input_lines_close(&lines, err);
 *
 * getline(3) takes as much memory as a line is long, and a device or a file of zeros has one line without an end. Here
 * a line that is longer than `most` bytes is LB_ERR_LIMIT, told with the file, the number of the line and the limit.
 *
 * One thread at a time may use a struct. */
#ifndef LASTBIT_INPUT_LINES_H
#define LASTBIT_INPUT_LINES_H

#include <lastbit/error.h>

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rules, names, rows of a journal. */
#define LB_INPUT_LINES_SHORT ((size_t)16 << 20)

typedef struct lb_input_lines {
    /* The line at hand, without its newline and with a NUL behind it; the reader may write into it. */
    char *text;
    size_t size;
    uint64_t number; /* from 1 on */
    /* The rest is its own. */
    FILE *stream;
    const char *path; /* borrowed */
    size_t most, begin, end, room;
    char *bytes;
    lb_err why;
} lb_input_lines;

/* As lb_input_stream. `most`: the bytes of one line; never more than half of what --max-decoded lets a document
 * hold. */
LB_API lb_status lb_input_lines_open(lb_input_lines *lines, const char *path, size_t most, lb_err *err);
/* The next line; false at the end and after a failure, which lb_input_lines_close tells. */
LB_API bool lb_input_lines_next(lb_input_lines *lines);
/* LB_OK when nothing failed since it was opened: neither memory nor the system, and no line was too long. */
LB_API lb_status lb_input_lines_close(lb_input_lines *lines, lb_err *err);

/* What is left of a stream, which is closed, with a NUL behind it; free() frees it. LB_ERR_LIMIT: it is more than
 * `most` bytes. A `path` of NULL: the stream is standard input, and stays open. */
LB_API lb_status lb_input_lines_rest(FILE *stream, const char *path, uint64_t most, char **bytes, size_t *size,
                                     lb_err *err);

#ifdef __cplusplus
}
#endif
#endif
