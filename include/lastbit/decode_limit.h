/* Decode limit: how much memory and time the decoding of one file may take, for every reader.
 *
 * Simplest use:
 *
 *     lb_decode_limit_set(UINT64_C(16) << 30, 100);       // before files are opened: 16 GB and 100 times a file's size
 *
 * A few kilobytes can hold gigabytes: zstd gives up to 32,768 bytes for one, deflate 1,032, JSON 75. An honest file can
 * have such a ratio, too (a tensor of zeros), so that a high ratio alone is no reason to refuse it. Refused is more
 * than
 *
 *     room + ratio * bytes of the file          that decoded bytes hold at the same time, of one file, and of all open
 *                                               files together
 *     room                                      that one parsed document holds (JSON, a pickle); a line of a file: half
 *                                               of it
 *     LB_DECODE_LIMIT_PASSES times the first    that are decoded in all, held or not: this bounds the time
 *
 * Readers that need not hold what they decode (`ls`, `verify`) stream it, and meet the last limit alone. A refusal is
 * LB_ERR_LIMIT; it names the file, the part of it, the limit, and the option that raises it. It is never a finding
 * about the file.
 *
 * The limits hold for the whole process; until they are set, they are the defaults. All functions may be called from
 * several threads.
 */
#ifndef LASTBIT_DECODE_LIMIT_H
#define LASTBIT_DECODE_LIMIT_H

#include <lastbit/error.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LB_DECODE_LIMIT_ROOM (UINT64_C(4) << 30)
#define LB_DECODE_LIMIT_RATIO 100
#define LB_DECODE_LIMIT_PASSES 16

/* Before files are opened. A room of UINT64_MAX: no limit. */
LB_API void lb_decode_limit_set(uint64_t room, uint64_t ratio);
/* What one parsed document may hold. */
LB_API uint64_t lb_decode_limit_room(void);

/* The account of one file, or of files that are read as one. Zero-initialise. */
typedef struct lb_decode_limit_account {
    uint64_t stored;       /* bytes of its files */
    uint64_t held, passed; /* decoded bytes that are in memory, and in all */
} lb_decode_limit_account;

/* A file of that size belongs to the account now. */
LB_API void lb_decode_limit_open(lb_decode_limit_account *account, uint64_t stored);
/* Its files are closed and nothing of them is held. */
LB_API void lb_decode_limit_close(lb_decode_limit_account *account);
/* Before `bytes` are decoded into memory; `what` ("run.lbz: offset 512: blob …") begins the message. After a failure
 * nothing is held. */
LB_API lb_status lb_decode_limit_hold(lb_decode_limit_account *account, uint64_t bytes, const char *what, lb_err *err);
/* They were freed. */
LB_API void lb_decode_limit_drop(lb_decode_limit_account *account, uint64_t bytes);
/* Before `bytes` are decoded piece by piece, or read again and again (an expanded tensor). */
LB_API lb_status lb_decode_limit_pass(lb_decode_limit_account *account, uint64_t bytes, const char *what, lb_err *err);

/* ---- JSON ---- */

struct json_t;
struct json_error_t;

/* Lets jansson's memory be counted, from now on and for the whole process: called first, by a program whose jansson is
 * its own. Without it the next function limits nothing. */
LB_API void lb_decode_limit_count_json(void);
/* json_loadb, which refuses to hold more than `most` bytes and then says so in `why` (not NULL). */
LB_API struct json_t *lb_decode_limit_json(const char *bytes, size_t size, size_t flags, uint64_t most,
                                           struct json_error_t *why);
/* json_load_file, alike, with the room of a document. */
LB_API struct json_t *lb_decode_limit_json_file(const char *path, size_t flags, struct json_error_t *why);
/* Whether the last of these calls of this thread failed for that reason: LB_ERR_LIMIT, otherwise `status`. */
LB_API lb_status lb_decode_limit_json_status(lb_status status);

#ifdef __cplusplus
}
#endif
#endif
