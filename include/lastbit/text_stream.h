/* A text that is printed piece by piece, in the place of open_memstream.
 *
 * Simplest use:
 *
 *     char *text;
 *     size_t size;
 *     FILE *out = lb_text_stream_open(&text, &size);
 *     if (out) fprintf(out, "%s\n", path), fclose(out);
 *     if (text) puts(text);
 *     free(text);
 *
 * The text is whole, or it is NULL. With open_memstream it may be cut: the C library forgets that memory ran out in
 * the middle, and fclose says that all is well. */
#ifndef LASTBIT_TEXT_STREAM_H
#define LASTBIT_TEXT_STREAM_H

#include <lastbit/error.h>

#include <stddef.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A stream to print to; NULL when out of memory. `*text` is NULL until fclose, which sets it to the malloc'ed text, a
 * NUL behind it, and `*size` to its bytes without that. Out of memory on the way: fclose fails, `*text` stays NULL and
 * `*size` 0. ftell tells what was printed so far; the stream cannot be sought. */
LB_API FILE *lb_text_stream_open(char **text, size_t *size);

#ifdef __cplusplus
}
#endif

#endif
