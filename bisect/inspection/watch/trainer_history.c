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

static void take_text(lb_history_reader *reader, char c)
{
    if (reader->escaped) {
        reader->escaped = false;
    } else if (c == '"') {
        reader->text = false;
        return;
    } else {
        reader->escaped = c == '\\';
    }
    if (reader->depth == 1 && reader->key_bytes < sizeof reader->key) reader->key[reader->key_bytes++] = c;
}

static bool is_history(const lb_history_reader *reader)
{
    return reader->key_bytes == sizeof HISTORY - 1 && !memcmp(reader->key, HISTORY, sizeof HISTORY - 1);
}

/* Whether an entry is over. */
static bool take_bracket(lb_history_reader *reader, char c)
{
    if (c == '{' || c == '[') {
        if (c == '[' && reader->depth == 1) reader->inside = is_history(reader);
        if (reader->inside && reader->depth == 2) reader->n = 0, reader->too_long = false;
        reader->depth++;
        return false;
    }
    if (reader->depth) reader->depth--;
    if (reader->depth == 1) reader->inside = false;
    return c == '}' && reader->inside && reader->depth == 2;
}

static bool take_byte(lb_history_reader *reader, char c)
{
    if (reader->text) return take_text(reader, c), false;
    if (c == '"') reader->text = true, reader->key_bytes = reader->depth == 1 ? 0 : reader->key_bytes;
    return strchr("{}[]", c) && c ? take_bracket(reader, c) : false;
}

/* On one line, as objects are read. */
static void keep(lb_history_reader *reader, char c)
{
    reader->too_long |= reader->n == sizeof reader->entry;
    if (!reader->too_long) reader->entry[reader->n++] = c == '\n' ? ' ' : c;
}

/* The Trainer's summary of a run ("train_loss" is a mean over it) stands among the entries. */
static bool is_summary(const lb_history_reader *reader)
{
    return memmem(reader->entry, reader->n, "\"train_runtime\"", 15) != NULL;
}

static bool has_number(const lb_watch_record *record)
{
    return (record->has & ((1u << LB_WATCH_N_NUMBERS) - 1)) != 0;
}

static lb_history_answer take_entry(lb_history_reader *reader, const lb_field_names *names, lb_watch_record *record,
                                    const char **why)
{
    *why = "an entry of log_history is longer than 16 KB";
    if (reader->too_long || !lb_object_read(names, reader->entry, reader->n, record, why)) return LB_HISTORY_COMPLAINT;
    if (is_summary(reader) || !has_number(record) || !lb_watch_has(record, LB_WATCH_step)) return LB_HISTORY_MORE;
    if (reader->given && record->step <= reader->until) return LB_HISTORY_MORE;
    reader->given = true, reader->until = record->step;
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
