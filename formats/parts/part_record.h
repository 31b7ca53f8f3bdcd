/* The record of a unit of work, written and read by one and the same function:
 *
 *     static void tally_record(lb_part_record *r, tally *t)
 *     {
 *         lb_part_record_u64(r, &t->ops);
 *         lb_part_record_f64(r, &t->worst);
 *         lb_part_record_text(r, &t->message);
 *     }
 *
 * so that what is read is what was written. Numbers keep every bit, NaN among them. A failure stays: it is asked for
 * once, at the end. */
#ifndef LB_PART_RECORD_H
#define LB_PART_RECORD_H

#include "base/byte_buffer.h"
#include "base/msgpack_cursor.h"

enum { LB_PART_RECORD_RATIO = 32 };

typedef struct lb_part_record {
    bool reading;
    byte_buffer written;
    lb_cursor cursor;
    lb_status status; /* of reading */
} lb_part_record;

/* Reading: `bytes` stay where they are while the record, and texts that it gave, are in use. `source` is their file, in
 * which they begin at `base`: a refusal names both. */
lb_part_record lb_part_record_reader(const void *bytes, size_t size, const char *source, uint64_t base, lb_err *err);
/* Reading: what was read cannot be (LB_ERR_CORRUPT); the first failure stays. A record may come from anyone, and its
 * digest says only that it arrived whole: an engine checks each number that it uses as an index, a size or a word. */
void lb_part_record_refuse(lb_part_record *record, const char *field, const char *format, ...) LB_PRINTF(3, 4);
/* Whether all of it could be written, or all of it was read and was right. */
lb_status lb_part_record_end(lb_part_record *record, lb_err *err);
void lb_part_record_release(lb_part_record *record);

void lb_part_record_i64(lb_part_record *record, int64_t *number);
void lb_part_record_u64(lb_part_record *record, uint64_t *number);
void lb_part_record_i32(lb_part_record *record, int32_t *number);
void lb_part_record_u32(lb_part_record *record, uint32_t *number);
void lb_part_record_bool(lb_part_record *record, bool *truth);
void lb_part_record_f64(lb_part_record *record, double *number);
/* A word of an enumeration, from 0 to `most`. */
void lb_part_record_word(lb_part_record *record, uint32_t *word, uint32_t most);
/* How many there are of something, or at which place something is: from `least` (0, or -1 for none) to 2^48, so that
 * the sum over thirty thousand records is a number, too. */
void lb_part_record_tally(lb_part_record *record, int64_t *number, int64_t least);
void lb_part_record_total(lb_part_record *record, uint64_t *number);
/* NUL-terminated; NULL stays NULL. What is read lies in the record's bytes. */
void lb_part_record_text(lb_part_record *record, const char **text);
/* The same of what is never NULL: the record of one that is NULL is refused, and "" is read. */
void lb_part_record_name(lb_part_record *record, const char **text);
void lb_part_record_bytes(lb_part_record *record, const void **bytes, size_t *n);
/* How many rows follow, each of which takes a byte at least. */
void lb_part_record_count(lb_part_record *record, uint32_t *n);
/* The same, and reading makes room for them (calloc; one row more than there are). NULL: a failure. A row of `size`
 * bytes takes at least size / LB_PART_RECORD_RATIO bytes in a record: more rows than fit are refused before there is
 * room. */
void *lb_part_record_rows(lb_part_record *record, void *rows, uint32_t *n, size_t size);

#endif
