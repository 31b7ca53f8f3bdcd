/* Errors: one table of statuses, one report that keeps the first cause.
 *
 * Simplest use:
 *
 *     lb_err why = LB_ERR_INIT;
 *     if (lb_fail(&why, LB_ERR_NOT_FOUND, "%s: no such file", path) != LB_OK) fprintf(stderr, "%s\n", why.message);
 *
 * Three kinds of trouble, never mixed: a bug of ours ends in LB_CHECK; bad input or environment gives a status
 * and a report; wrong usage is the command line's business alone. Libraries never print, exit or abort on
 * input.
 *
 * A report says what was found, where (file, offset, field, step, op) and what to do next. The first report
 * wins: callers that fail because a callee failed just pass the status on (LB_TRY).
 */
#ifndef LASTBIT_ERROR_H
#define LASTBIT_ERROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define LB_API __attribute__((visibility("default")))
#define LB_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define LB_NORETURN __attribute__((noreturn))
#else
#define LB_API
#define LB_PRINTF(fmt, args)
#define LB_NORETURN
#endif

/* X(name, value, what it means) */
#define LB_STATUSES(X)                                                                                                 \
    X(LB_OK, 0, "success")                                                                                             \
    X(LB_ERR_IO, -1, "the operating system refused to read or write")                                                  \
    X(LB_ERR_NOMEM, -2, "out of memory, or a size above the stated limit")                                             \
    X(LB_ERR_CORRUPT, -3, "bytes that contradict their checksum, their sizes or the format")                           \
    X(LB_ERR_VERSION, -4, "written by a newer major version of the format")                                            \
    X(LB_ERR_NOT_FOUND, -5, "no such step, rank, value, layer, op or file")                                            \
    X(LB_ERR_NOT_CAPTURED, -6, "known to have existed, but its bytes were not kept")                                   \
    X(LB_ERR_UNSUPPORTED, -7, "valid, but nothing here can compute it")                                                \
    X(LB_ERR_INVALID, -8, "an argument or a program that breaks a rule stated in the header")                          \
    X(LB_ERR_EXISTS, -9, "would overwrite something")                                                                  \
    X(LB_ERR_LIMIT, -10, "a budget given by the user is used up")                                                      \
    X(LB_ERR_STATE, -11, "called in the wrong order, e.g. an op outside a step")                                       \
    X(LB_ERR_PARTIAL, -12, "done in part: other parts have the rest (lastbit/parts.h)")

typedef enum lb_status {
#define LB_STATUS_ENUM(name, value, text) name = value,
    LB_STATUSES(LB_STATUS_ENUM)
#undef LB_STATUS_ENUM
} lb_status;

/* A report. Zero-initialise (LB_ERR_INIT). Every function that takes an `lb_err *` accepts NULL. */
typedef struct lb_err {
    lb_status status;
    char message[1000]; /* holds a list of all orders beside what is wrong */
} lb_err;
#define LB_ERR_INIT {LB_OK, ""}

LB_API const char *lb_status_name(lb_status status); /* "LB_ERR_IO"; never NULL */
LB_API const char *lb_status_text(lb_status status); /* one line that says what it means; never NULL */

/* Report `status` with a message if `err` has none yet; returns `status`, so that `return lb_fail(...)` reads
 * well. */
LB_API lb_status lb_fail(lb_err *err, lb_status status, const char *format, ...) LB_PRINTF(3, 4);
#ifdef __clang_analyzer__ /* which sees one file at a time, and would take a report for a success */
#define lb_fail(err, status, ...)                                                                                      \
    ((lb_fail)((err), (status), __VA_ARGS__), (status) == LB_OK ? LB_ERR_INVALID : (status))
#endif
LB_API void lb_err_clear(lb_err *err);
/* Whether the system refused memory, or a read, or a limit did: which says nothing about what was to be read. It is
 * passed on, and never a finding. */
static inline bool lb_is_refusal(lb_status status)
{
    return status == LB_ERR_IO || status == LB_ERR_NOMEM || status == LB_ERR_LIMIT;
}
/* Whether a message of the system in it says that there is no room left: a full disk, a quota, a limit on files. */
LB_API bool lb_error_is_full_disk(const char *message);

/* Pass a failure on. */
#define LB_TRY(expression)                                                                                             \
    do {                                                                                                               \
        lb_status lb_try_status_ = (expression);                                                                       \
        if (lb_try_status_ != LB_OK) return lb_try_status_;                                                            \
    } while (0)

/* A rule that only a bug of ours can break. Stays on in release builds. */
LB_API void lb_error_check_failed(const char *file, int line, const char *expression) LB_NORETURN;
#define LB_CHECK(expression) ((expression) ? (void)0 : lb_error_check_failed(__FILE__, __LINE__, #expression))

#ifdef __cplusplus
}
#endif
#endif
