/* Journals: see journal.h. */
#include "search/journal.h"

#include <lastbit/input_lines.h>
#include <lastbit/output.h>
#include <errno.h>
#include <lastbit/json_text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lb_journal {
    lb_output *out;
    bool begun;    /* there were lines when it was opened */
    json_t *known; /* change -> {outcome, what} */
};

#define SCHEMA "lastbit.journal/1"

/* A first line that a kill cut off: the start of what begin() writes. */
static bool is_cut_head(const char *line)
{
    static const char head[] = "{\"schema\":\"" SCHEMA "\"";
    const size_t n = strcspn(line, "\n");
    return strncmp(line, head, n < sizeof head - 1 ? n : sizeof head - 1) == 0;
}

/* A line that was being written when the process was killed is no line. */
static lb_status read_lines(lb_journal *journal, const char *path, const char *about, lb_err *err)
{
    lb_input_lines lines;
    lb_err why = LB_ERR_INIT;
    lb_status status = lb_input_lines_open(&lines, path, LB_INPUT_LINES_SHORT, &why);
    if (status == LB_ERR_NOT_FOUND) return LB_OK;
    if (status != LB_OK) return lb_fail(err, status, "%s", why.message);
    while (status == LB_OK && lb_input_lines_next(&lines)) {
        const bool first = lines.number == 1;
        json_t *row = json_loads(lines.text, 0, NULL);
        journal->begun = true;
        const char *of = json_string_value(json_object_get(row, "bisect"));
        const char *change = json_string_value(json_object_get(row, "change"));
        if (first && !of && !is_cut_head(lines.text))
            status = lb_fail(err, LB_ERR_EXISTS,
                             "%s is not a journal: expected {\"schema\": \"" SCHEMA
                             "\", ...} in its first line; nothing was written to it",
                             path);
        if (first && of && strcmp(of, about))
            status =
                lb_fail(err, LB_ERR_INVALID,
                        "%s is the journal of another bisection: it says \"%s\", this one is \"%s\"", path, of, about);
        if (change) json_object_set(journal->known, change, row);
        json_decref(row);
    }
    const lb_status ended = lb_input_lines_close(&lines, err);
    return status == LB_OK ? ended : status;
}

/* One line, in one piece. */
static lb_status put_line(lb_journal *journal, const json_t *row, lb_err *err)
{
    FILE *stream = row ? lb_output_stream(journal->out) : NULL;
    if (!stream || json_dumpf(row, stream, JSON_COMPACT) != 0) {
        if (!row || !lb_output_error(journal->out)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for the journal");
    } else {
        fputc('\n', stream);
    }
    return lb_output_commit(journal->out, err);
}

static lb_status begin(lb_journal *journal, const char *about, lb_err *err)
{
    if (journal->begun) {
        lb_output_write(journal->out, "\n", 1); /* ends a line that a kill cut off; empty lines say nothing */
        return lb_output_commit(journal->out, err);
    }
    json_t *head = json_pack("{s:s, s:s}", "schema", SCHEMA, "bisect", about);
    const lb_status status = put_line(journal, head, err);
    json_decref(head);
    return status;
}

lb_status lb_journal_open(const char *path, const char *about, bool resume, lb_journal **journal, lb_err *err)
{
    *journal = NULL;
    lb_journal *j = calloc(1, sizeof *j);
    if (j) j->known = json_object();
    if (!j || !j->known) {
        free(j);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    lb_status status = resume ? read_lines(j, path, about, err) : LB_OK;
    if (status == LB_OK) {
        lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
        lb_err why = LB_ERR_INIT;
        how.way = LB_OUTPUT_APPENDED;
        how.replace = resume;
        how.shared = true;
        status = lb_output_open(path, &how, &j->out, &why);
        if (status != LB_OK)
            lb_fail(err, status, "%s%s", why.message, status == LB_ERR_EXISTS ? " (--resume goes on with it)" : "");
    }
    if (status == LB_OK) status = begin(j, about, err);
    if (status == LB_OK)
        *journal = j;
    else
        lb_journal_close(j, NULL);
    return status;
}

lb_status lb_journal_close(lb_journal *journal, lb_err *err)
{
    if (!journal) return LB_OK;
    const lb_status status = lb_output_close(journal->out, err);
    json_decref(journal->known);
    free(journal);
    return status;
}

bool lb_journal_find(const lb_journal *journal, const char *change, lb_search_outcome *outcome, const char **what)
{
    json_t *row = journal ? json_object_get(journal->known, change) : NULL;
    const char *name = json_string_value(json_object_get(row, "outcome"));
    if (!name || !lb_search_outcome_parse(name, outcome)) return false;
    if (what) {
        const char *text = json_string_value(json_object_get(row, "what"));
        *what = text ? text : "";
    }
    return true;
}

lb_status lb_journal_add(lb_journal *journal, const char *change, lb_search_outcome outcome, const char *what,
                         double seconds, lb_err *err)
{
    if (!journal) return LB_OK;
    json_t *row = json_pack("{s:s, s:s, s:s, s:f}", "change", change, "outcome", lb_search_outcome_name(outcome),
                            "what", what, "seconds", seconds);
    const lb_status status = put_line(journal, row, err);
    if (row) json_object_set(journal->known, change, row);
    json_decref(row);
    return status;
}
