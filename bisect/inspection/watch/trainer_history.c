/* See trainer_history.h. Entries are found by counting brackets, so that a copy that is being written is read as far as
 * it goes. */
#define _GNU_SOURCE /* memmem */
#include "watch/trainer_history.h"

#include "watch/log_object.h"

#include <string.h>

static const char HISTORY[] = "log_history";

/* The document is written with an entry a line, behind a line that is its bracket alone. */
bool lb_history_begins(const char *line, size_t n)
{
    return n && *line == '{' && (n == 1 || memmem(line, n, "\"log_history\"", sizeof HISTORY + 1));
}

static void take_text(lb_history_reader *r, char c)
{
    if (r->escaped) {
        r->escaped = false;
    } else if (c == '"') {
        r->text = false;
        return;
    } else {
        r->escaped = c == '\\';
    }
    if (r->depth == 1 && r->key_bytes < sizeof r->key) r->key[r->key_bytes++] = c;
}

static bool is_history(const lb_history_reader *r)
{
    return r->key_bytes == sizeof HISTORY - 1 && !memcmp(r->key, HISTORY, sizeof HISTORY - 1);
}

/* Whether an entry is over. */
static bool take_bracket(lb_history_reader *r, char c)
{
    if (c == '{' || c == '[') {
        if (c == '[' && r->depth == 1) r->inside = is_history(r);
        if (r->inside && r->depth == 2) r->n = 0, r->too_long = false;
        r->depth++;
        return false;
    }
    if (r->depth) r->depth--;
    if (r->depth == 1) r->inside = false;
    return c == '}' && r->inside && r->depth == 2;
}

static bool take_byte(lb_history_reader *r, char c)
{
    if (r->text) return take_text(r, c), false;
    if (c == '"') r->text = true, r->key_bytes = r->depth == 1 ? 0 : r->key_bytes;
    return strchr("{}[]", c) && c ? take_bracket(r, c) : false;
}

/* On one line, as objects are read. */
static void keep(lb_history_reader *r, char c)
{
    r->too_long |= r->n == sizeof r->entry;
    if (!r->too_long) r->entry[r->n++] = c == '\n' ? ' ' : c;
}

/* The Trainer's summary of a run ("train_loss" is a mean over it) stands among the entries. */
static bool is_summary(const lb_history_reader *r)
{
    return memmem(r->entry, r->n, "\"train_runtime\"", 15) != NULL;
}

static bool has_number(const lb_watch_record *record)
{
    return (record->has & ((1u << LB_WATCH_N_NUMBERS) - 1)) != 0;
}

static lb_history_answer take_entry(lb_history_reader *r, const lb_field_names *names, lb_watch_record *record,
                                    const char **why)
{
    *why = "an entry of log_history is longer than 16 KB";
    if (r->too_long || !lb_object_read(names, r->entry, r->n, record, why)) return LB_HISTORY_COMPLAINT;
    if (is_summary(r) || !has_number(record) || !lb_watch_has(record, LB_WATCH_step)) return LB_HISTORY_MORE;
    if (r->given && record->step <= r->until) return LB_HISTORY_MORE;
    r->given = true, r->until = record->step;
    return LB_HISTORY_RECORD;
}

lb_history_answer lb_history_read(lb_history_reader *reader, const lb_field_names *names, const char **at,
                                  const char *end, lb_watch_record *record, const char **why)
{
    while (*at < end) {
        const char c = *(*at)++;
        const bool over = take_byte(reader, c);
        if (over || (reader->inside && reader->depth > 2)) keep(reader, c);
        const lb_history_answer answer = over ? take_entry(reader, names, record, why) : LB_HISTORY_MORE;
        if (answer != LB_HISTORY_MORE) return answer;
    }
    return LB_HISTORY_MORE;
}

bool lb_history_is_whole(const lb_history_reader *reader)
{
    return reader->depth == 0;
}

void lb_history_restart(lb_history_reader *reader)
{
    reader->depth = 0, reader->text = reader->escaped = reader->inside = false, reader->key_bytes = 0, reader->n = 0;
}
