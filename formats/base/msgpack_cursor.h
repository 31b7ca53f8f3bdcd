/* Reads MessagePack from unchecked bytes.
 *
 * A cursor walks forward over bytes that stay where they are; text and binary come back as pointers into them. It never
 * allocates, never recurses and never believes a count: a container that claims more elements than there are bytes left
 * is refused where it stands. (msgpack-c's own unpacker asks malloc for what five bytes claim; it is used for writing
 * only.) The first failure is reported with the name of the source, the offset and the field, and stays. */
#ifndef LB_MSGPACK_CURSOR_H
#define LB_MSGPACK_CURSOR_H

#include <lastbit/error.h>

#include <string.h>

typedef struct lb_cursor {
    const uint8_t *start, *at, *end;
    const char *source; /* borrowed; what the messages begin with, e.g. the file */
    uint64_t base;      /* offset of `start` in the source */
    lb_err *err;
} lb_cursor;

typedef enum lb_msgpack_type {
    LB_MSGPACK_NIL,
    LB_MSGPACK_BOOL,
    LB_MSGPACK_INT,
    LB_MSGPACK_FLOAT,
    LB_MSGPACK_STR,
    LB_MSGPACK_BIN,
    LB_MSGPACK_ARRAY,
    LB_MSGPACK_MAP,
    LB_MSGPACK_EXT,
    LB_MSGPACK_END,    /* no bytes left */
    LB_MSGPACK_INVALID /* 0xc1 */
} lb_msgpack_type;

lb_cursor lb_cursor_of(const void *bytes, size_t size, const char *source, uint64_t base, lb_err *err);
lb_msgpack_type lb_cursor_peek(const lb_cursor *cursor);

/* Each reads one object of the named type or fails with LB_ERR_CORRUPT; `field` is for the message. */
lb_status lb_cursor_map(lb_cursor *cursor, const char *field, uint32_t *pairs);
lb_status lb_cursor_array(lb_cursor *cursor, const char *field, uint32_t *count);
lb_status lb_cursor_str(lb_cursor *cursor, const char *field, const char **text, uint32_t *n); /* not NUL-terminated */
lb_status lb_cursor_bin(lb_cursor *cursor, const char *field, const void **bytes, size_t *n);
lb_status lb_cursor_int(lb_cursor *cursor, const char *field, int64_t *number); /* above INT64_MAX: fails */
lb_status lb_cursor_f64(lb_cursor *cursor, const char *field, double *number);  /* an integer is taken too */
lb_status lb_cursor_bool(lb_cursor *cursor, const char *field, bool *truth);
/* Any object with all its children. */
lb_status lb_cursor_skip(lb_cursor *cursor, const char *field);

/* The same with a range check. */
lb_status lb_cursor_int_in(lb_cursor *cursor, const char *field, int64_t low, int64_t high, int64_t *number);
/* The next object fails as: "SOURCE: offset N: FIELD: …". For what a caller finds wrong. */
lb_status lb_cursor_fail(const lb_cursor *cursor, const char *field, const char *format, ...) LB_PRINTF(3, 4);

static inline bool lb_text_is(const char *text, uint32_t n, const char *literal)
{
    return n == strlen(literal) && memcmp(text, literal, n) == 0;
}

#endif
