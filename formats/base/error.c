/* Error reports: see lastbit/error.h. */
#include <lastbit/error.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *lb_status_name(lb_status status)
{
    switch (status) {
#define NAME(name, value, text)                                                                                        \
    case name: return #name;
        LB_STATUSES(NAME)
#undef NAME
    }
    return "LB_ERR_UNKNOWN";
}

const char *lb_status_text(lb_status status)
{
    switch (status) {
#define TEXT(name, value, text)                                                                                        \
    case name: return text;
        LB_STATUSES(TEXT)
#undef TEXT
    }
    return "a status this version does not know";
}

lb_status(lb_fail)(lb_err *err, lb_status status, const char *format, ...)
{
    if (!err || err->status != LB_OK) return status;
    err->status = status;
    va_list args;
    va_start(args, format);
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    return status;
}

void lb_err_clear(lb_err *err)
{
    if (err) *err = (lb_err)LB_ERR_INIT;
}

bool lb_error_is_full_disk(const char *message)
{
    static const int errors[] = {ENOSPC, EDQUOT, EFBIG};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (strstr(message, strerror(errors[i]))) return true;
    return false;
}

void lb_error_check_failed(const char *file, int line, const char *expression)
{
    fprintf(stderr, "lastbit: bug at %s:%d: %s does not hold\n", file, line, expression);
    abort();
}
