/* Lines of bounded length: see lastbit/input_lines.h. */
#include <lastbit/decode_limit.h>
#include <lastbit/input.h>
#include <lastbit/input_lines.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 16 };

lb_status lb_input_lines_open(lb_input_lines *lines, const char *path, size_t most, lb_err *err)
{
    const uint64_t half = lb_decode_limit_room() / 2;
    *lines = (lb_input_lines){.path = path, .most = most < half ? most : (size_t)half, .why = LB_ERR_INIT};
    return lb_input_stream(path, &lines->stream, err);
}

/* More bytes behind those that are there; false: there are none. */
static bool read_more(lb_input_lines *lines)
{
    if (lines->begin) {
        memmove(lines->bytes, lines->bytes + lines->begin, lines->end - lines->begin);
        lines->end -= lines->begin, lines->begin = 0;
    }
    if (lines->room - lines->end < PIECE) {
        const size_t room = lines->room ? 2 * lines->room : 2 * PIECE;
        char *grown = realloc(lines->bytes, room);
        if (!grown) return lb_fail(&lines->why, LB_ERR_NOMEM, "%s: out of memory", lines->path), false;
        lines->bytes = grown, lines->room = room;
    }
    /* A byte stays free for the NUL. */
    const size_t n = fread(lines->bytes + lines->end, 1, lines->room - lines->end - 1, lines->stream);
    lines->end += n;
    return n > 0;
}

/* Gives `size` bytes as a line and goes on behind `used` ones. */
static bool give(lb_input_lines *lines, size_t size, size_t used)
{
    lines->text = lines->bytes + lines->begin, lines->size = size;
    lines->text[size] = '\0';
    lines->begin += used;
    lines->number++;
    return true;
}

bool lb_input_lines_next(lb_input_lines *lines)
{
    if (!lines->stream || lines->why.status != LB_OK) return false;
    for (size_t looked = 0;;) {
        const size_t n = lines->end - lines->begin;
        char *line = n ? lines->bytes + lines->begin : NULL,
             *stop = n > looked ? memchr(line + looked, '\n', n - looked) : NULL;
        if ((stop ? (size_t)(stop - line) : n) > lines->most) {
            lb_fail(&lines->why, LB_ERR_LIMIT, "%s: line %llu is longer than %.1f MB, and no line of such a file is",
                    lines->path, (unsigned long long)lines->number + 1, (double)lines->most / (1 << 20));
            return false;
        }
        if (stop) return give(lines, (size_t)(stop - line), (size_t)(stop - line) + 1);
        looked = n;
        if (read_more(lines)) continue;
        if (lines->why.status != LB_OK || ferror(lines->stream)) return false;
        return n && give(lines, n, n);
    }
}

lb_status lb_input_lines_close(lb_input_lines *lines, lb_err *err)
{
    const lb_status ended = lb_input_stream_end(lines->stream, lines->path, err), status = lines->why.status;
    free(lines->bytes);
    lines->stream = NULL, lines->bytes = lines->text = NULL;
    return ended != LB_OK || status == LB_OK ? ended : lb_fail(err, status, "%s", lines->why.message);
}

/* Reads on into `*bytes`, which grow, up to the end or one byte more than `most`. */
static bool read_rest(FILE *stream, uint64_t most, char **bytes, size_t *size)
{
    size_t room = 0;
    for (size_t got = 1; got && *size <= most; *size += got) {
        if (room - *size < 2) {
            char *grown = realloc(*bytes, room ? room *= 2 : (room = PIECE));
            if (!grown) return false;
            *bytes = grown;
        }
        size_t wanted = room - *size - 1;
        if (wanted > most - *size && most < SIZE_MAX) wanted = (size_t)(most - *size) + 1;
        got = fread(*bytes + *size, 1, wanted, stream);
    }
    (*bytes)[*size] = '\0';
    return true;
}

lb_status lb_input_lines_rest(FILE *stream, const char *path, uint64_t most, char **bytes, size_t *size, lb_err *err)
{
    const char *name = path ? path : "stdin";
    *bytes = NULL, *size = 0;
    lb_status status = LB_OK;
    if (!read_rest(stream, most, bytes, size)) status = lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", name);
    if (status == LB_OK && *size > most)
        status =
            lb_fail(err, LB_ERR_LIMIT,
                    "%s: it is longer than %.1f MB; if it is meant to be, --max-decoded with a larger size reads it",
                    name, (double)most / (1 << 20));
    if (path) {
        const lb_status ended = lb_input_stream_end(stream, path, err);
        if (status == LB_OK) status = ended;
    } else if (status == LB_OK && ferror(stream)) {
        status = lb_input_refuse(name, "read", errno, err);
    }
    if (status == LB_OK) return LB_OK;
    free(*bytes);
    *bytes = NULL, *size = 0;
    return status;
}
