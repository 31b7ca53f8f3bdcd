/* Lines by a pattern: see log_match.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "watch/log_match.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum { GROUPS = 64, MATCH_LIMIT = 1000000 };

struct lb_match_reader {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
    struct {
        uint32_t group;
        lb_watch_field field;
    } groups[GROUPS];
    uint32_t n;
};

static void find_groups(lb_match_reader *reader, const lb_field_names *names)
{
    uint32_t count = 0, entry = 0;
    PCRE2_SPTR table = NULL;
    pcre2_pattern_info(reader->code, PCRE2_INFO_NAMECOUNT, &count);
    pcre2_pattern_info(reader->code, PCRE2_INFO_NAMEENTRYSIZE, &entry);
    pcre2_pattern_info(reader->code, PCRE2_INFO_NAMETABLE, &table);
    for (uint32_t i = 0; i < count && reader->n < GROUPS; i++, table += entry) {
        const char *name = (const char *)table + 2;
        const lb_watch_field field = lb_field_of(names, name, strlen(name));
        if (field == LB_WATCH_FIELDS) continue;
        reader->groups[reader->n].group = (uint32_t)table[0] << 8 | table[1];
        reader->groups[reader->n++].field = field;
    }
}

lb_status lb_match_reader_new(const lb_field_names *names, const char *pattern, lb_match_reader **reader, lb_err *err)
{
    int code;
    PCRE2_SIZE at;
    *reader = NULL;
    lb_match_reader *made = calloc(1, sizeof *made);
    if (!made) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    made->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_MATCH_INVALID_UTF, &code,
                               &at, NULL);
    if (!made->code) {
        PCRE2_UCHAR message[120];
        pcre2_get_error_message(code, message, sizeof message);
        free(made);
        return lb_fail(err, LB_ERR_INVALID, "pattern \"%s\", at character %zu: %s", pattern, (size_t)at,
                       (char *)message);
    }
    pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE); /* where there is none the interpreter runs */
    made->match = pcre2_match_data_create_from_pattern(made->code, NULL);
    made->context = pcre2_match_context_create(NULL);
    find_groups(made, names);
    if (!made->match || !made->context || !made->n) {
        const bool named = made->n > 0;
        lb_match_reader_free(made);
        if (named) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
        return lb_fail(err, LB_ERR_INVALID,
                       "pattern \"%s\" has no group with the name of a field, such as (?<step>\\d+) or (?<loss>\\S+)",
                       pattern);
    }
    pcre2_set_match_limit(made->context, MATCH_LIMIT);
    *reader = made;
    return LB_OK;
}

void lb_match_reader_free(lb_match_reader *reader)
{
    if (!reader) return;
    pcre2_match_context_free(reader->context);
    pcre2_match_data_free(reader->match);
    pcre2_code_free(reader->code);
    free(reader);
}

bool lb_match_read(lb_match_reader *reader, const char *line, size_t n, lb_watch_record *record, const char **why)
{
    *why = NULL;
    const int found = pcre2_match(reader->code, (PCRE2_SPTR)line, n, 0, 0, reader->match, reader->context);
    if (found == PCRE2_ERROR_MATCHLIMIT) *why = "the pattern tries too much on it";
    if (found < 0) return false;
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(reader->match);
    lb_log_field_record_clear(record);
    for (uint32_t i = 0; i < reader->n; i++) {
        const uint32_t g = reader->groups[i].group;
        if ((int)g >= found || ends[2 * g] == PCRE2_UNSET || ends[2 * g] == ends[2 * g + 1]) continue;
        if (!lb_log_field_record_put(record, reader->groups[i].field, line + ends[2 * g],
                                     ends[2 * g + 1] - ends[2 * g]))
            return *why = "a group that should be a number is none", false;
    }
    return true;
}
