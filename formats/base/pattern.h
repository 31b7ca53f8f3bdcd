/* Regular expressions (PCRE2) whose failures are told apart: no match, no memory, a pattern that tries too much.
 *
 *     pcre2_code *code;
 *     bool found;
 *     LB_TRY(lb_pattern_compile("--keep", text, PCRE2_UTF, &code, err));
 *     LB_TRY(lb_pattern_find(code, match, name, strlen(name), &found, err));
 *
 * A header alone: a file that includes it defines PCRE2_CODE_UNIT_WIDTH as 8 before, and links PCRE2, which `formats`
 * does not. */
#ifndef LASTBIT_PATTERN_H
#define LASTBIT_PATTERN_H

#include <lastbit/error.h>

#include <pcre2.h>
#include <string.h>

/* LB_ERR_INVALID with the place where `text` is no pattern. `what` says whose it is; `shown`: as the user gave it. Code
 * for this processor is made where that is possible. */
static inline lb_status lb_pattern_compile(const char *what, const char *shown, const char *text, uint32_t options,
                                           pcre2_code **code, lb_err *err)
{
    int number;
    PCRE2_SIZE at;
    PCRE2_UCHAR why[120];
    *code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, options, &number, &at, NULL);
    if (*code) return pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE), LB_OK;
    if (number == PCRE2_ERROR_HEAP_FAILED || number == PCRE2_ERROR_NOMEMORY)
        return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory for a pattern", what);
    pcre2_get_error_message(number, why, sizeof why);
    return lb_fail(err, LB_ERR_INVALID, "%s \"%.300s\", at character %zu: %s", what, shown, (size_t)at, (char *)why);
}

/* What a negative answer of PCRE2 on `subject` means: LB_OK where nothing matched. */
static inline lb_status lb_pattern_status(int answer, const char *subject, size_t n, lb_err *err)
{
    PCRE2_UCHAR why[120];
    if (answer >= 0 || answer == PCRE2_ERROR_NOMATCH) return LB_OK;
    if (answer == PCRE2_ERROR_NOMEMORY) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a pattern");
    pcre2_get_error_message(answer, why, sizeof why);
    return lb_fail(err, LB_ERR_INVALID, "a pattern cannot be tried on \"%.*s\"%s: %s", n < 100 ? (int)n : 100, subject,
                   n < 100 ? "" : "…", (char *)why);
}

/* Whether it matches anywhere in the n bytes of `subject`. */
static inline lb_status lb_pattern_find(const pcre2_code *code, pcre2_match_data *match, const char *subject, size_t n,
                                        bool *found, lb_err *err)
{
    const int answer = match ? pcre2_match(code, (PCRE2_SPTR)subject, n, 0, 0, match, NULL) : PCRE2_ERROR_NOMEMORY;
    *found = answer >= 0;
    return lb_pattern_status(answer, subject, n, err);
}

#endif
