/* A text that is printed piece by piece: see lastbit/text_stream.h. */
#define _GNU_SOURCE /* fopencookie */
#include "base/byte_buffer.h"

#include <lastbit/text_stream.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct text_stream {
    byte_buffer printed; /* a NUL behind what was printed has room */
    char **text;
    size_t *size;
} text_stream;

/* 0 is a failure, which the stream remembers from then on. */
static ssize_t take(void *context, const char *bytes, size_t n)
{
    text_stream *stream = (text_stream *)context;
    buffer_add(&stream->printed, bytes, n);
    buffer_add(&stream->printed, "", 1);
    if (stream->printed.failed) return errno = ENOMEM, 0;
    stream->printed.size--;
    return (ssize_t)n;
}

/* Where it stands; it goes nowhere else. */
static int tell(void *context, off64_t *offset, int whence)
{
    const text_stream *stream = (const text_stream *)context;
    const off64_t here = (off64_t)stream->printed.size;
    if (whence == SEEK_SET ? *offset != here : *offset != 0) return errno = ESPIPE, -1;
    *offset = here;
    return 0;
}

/* The last bytes have come by then, or did not fit. */
static int end(void *context)
{
    text_stream *stream = (text_stream *)context;
    if (!stream->printed.bytes) take(stream, "", 0);
    const bool whole = !stream->printed.failed;
    if (whole)
        *stream->text = stream->printed.bytes, *stream->size = stream->printed.size;
    else
        buffer_release(&stream->printed);
    free(stream);
    return whole ? 0 : -1;
}

FILE *lb_text_stream_open(char **text, size_t *size)
{
    static const cookie_io_functions_t calls = {.write = take, .seek = tell, .close = end};
    *text = NULL, *size = 0;
    text_stream *s = (text_stream *)calloc(1, sizeof *s);
    if (!s) return NULL;
    s->text = text, s->size = size;
    FILE *stream = fopencookie(s, "w", calls);
    if (!stream) free(s);
    return stream;
}
