/* Elimination, one variable at a time: see lastbit/parity.h. */
#include "live/live_job.h"

#include <lastbit/input.h>
#include <lastbit/input_lines.h>
#include <lastbit/output.h>
#include <lastbit/decode_limit.h>
#include "base/array.h"
#include <lastbit/parity.h>

#include <errno.h>
#include <lastbit/json_text.h>
#include <lastbit/text_stream.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

typedef struct runner {
    const char *path, *work;
    json_t *file;
    const lb_parity_options *options;
    lb_parity_matrix *matrix;
    lb_token_set *reference, *baseline; /* the first may be the second */
    double seconds;
    lb_err *err;
} runner;

static const char *keep(runner *runner, char *text)
{
    char **more = text ? lb_array_grow(runner->matrix->texts, runner->matrix->n_texts, sizeof *more) : NULL;
    if (!more) {
        free(text);
        return NULL;
    }
    runner->matrix->texts = more;
    return more[runner->matrix->n_texts++] = text;
}

/* ---- the file ---- */

static lb_status check_variables(const runner *runner)
{
    json_t *variables = json_object_get(runner->file, "variables"), *values, *value;
    const char *name;
    size_t i;
    if (!json_is_object(variables) || json_object_size(variables) == 0)
        return lb_fail(runner->err, LB_ERR_CORRUPT, "%s: \"variables\": expected {\"NAME\": [\"VALUE\", ...], ...}",
                       runner->path);
    json_object_foreach(variables, name, values)
    {
        if (!json_is_array(values) || json_array_size(values) < 2)
            return lb_fail(runner->err, LB_ERR_CORRUPT, "%s: variable \"%s\": expected a list of two values or more",
                           runner->path, name);
        json_array_foreach(values, i, value) if (!json_is_string(value)) return lb_fail(
            runner->err, LB_ERR_CORRUPT, "%s: variable \"%s\": value %zu: expected a text", runner->path, name, i);
        char place[120];
        snprintf(place, sizeof place, "{%.100s}", name);
        if (!strstr(json_string_value(json_object_get(runner->file, "command")), place))
            return lb_fail(runner->err, LB_ERR_CORRUPT, "%s: variable \"%s\" stands nowhere in the command (as %s)",
                           runner->path, name, place);
    }
    return LB_OK;
}

static lb_status load_file(runner *runner)
{
    json_error_t why;
    runner->file = lb_decode_limit_json_file(runner->path, JSON_REJECT_DUPLICATES, &why);
    if (!runner->file && why.line < 0) return lb_fail(runner->err, LB_ERR_IO, "%s: %s", runner->path, why.text);
    if (!runner->file) return lb_fail(runner->err, LB_ERR_CORRUPT, "%s: line %d: %s", runner->path, why.line, why.text);
    const char *command = json_string_value(json_object_get(runner->file, "command"));
    if (!command || !strstr(command, "{out}"))
        return lb_fail(runner->err, LB_ERR_CORRUPT,
                       "%s: \"command\": expected a text with {out} for the token file that it writes", runner->path);
    const json_t *seconds = json_object_get(runner->file, "seconds"),
                 *reference = json_object_get(runner->file, "reference");
    if (seconds && !(json_number_value(seconds) > 0))
        return lb_fail(runner->err, LB_ERR_CORRUPT, "%s: \"seconds\": expected a number above 0", runner->path);
    if (reference && !json_is_string(reference))
        return lb_fail(runner->err, LB_ERR_CORRUPT, "%s: \"reference\": expected a file", runner->path);
    runner->seconds = json_number_value(seconds);
    return check_variables(runner);
}

/* A path in the file is meant from where the file lies. */
static char *beside(const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');
    const size_t folder = *name == '/' || !slash ? 0 : (size_t)(slash - path) + 1;
    char *joined = malloc(folder + strlen(name) + 1);
    if (joined) memcpy(joined, path, folder), strcpy(joined + folder, name);
    return joined;
}

/* ---- commands ---- */

/* The command with its places filled: `variable` at `value`, the others at their first. malloc'ed. */
static char *fill_command(const runner *runner, const char *variable, const char *value, const char *out)
{
    char *text = NULL;
    size_t size = 0;
    FILE *to = lb_text_stream_open(&text, &size);
    if (!to) return NULL;
    const json_t *variables = json_object_get(runner->file, "variables");
    for (const char *at = json_string_value(json_object_get(runner->file, "command")); *at;) {
        const char *end = *at == '{' ? strchr(at, '}') : NULL;
        char name[120] = "";
        if (end && (size_t)(end - at) <= sizeof name) snprintf(name, sizeof name, "%.*s", (int)(end - at - 1), at + 1);
        const char *first = json_string_value(json_array_get(json_object_get(variables, name), 0));
        const char *put = strcmp(name, "out") == 0 ? out : variable && strcmp(name, variable) == 0 ? value : first;
        if (*name && put) {
            fputs(put, to);
            at = end + 1;
        } else {
            fputc(*at++, to);
        }
    }
    if (fclose(to) != 0) free(text), text = NULL;
    return text;
}

/* "WORK/precision=fp32-1a2b3c4d.jsonl": readable, and another for another command. */
static char *out_of(const runner *runner, const char *variable, const char *value, bool again)
{
    char label[80];
    snprintf(label, sizeof label, "%.30s%s%.30s",
             variable ? variable
             : again  ? "baseline-again"
                      : "baseline",
             variable ? "=" : "", variable ? value : "");
    for (char *c = label; *c; c++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789=.-_", *c)) *c = '_';
    char *plain = fill_command(runner, variable, value, label),
         *path = malloc(strlen(runner->work) + sizeof label + 32);
    if (plain && path)
        sprintf(path, "%s/%s-%08x.jsonl", runner->work, label, (unsigned)XXH3_64bits(plain, strlen(plain)));
    else
        free(path), path = NULL;
    free(plain);
    return path;
}

/* ---- the journal: a line per run that ended ---- */

static void note_run(const runner *runner, const lb_parity_cell *cell)
{
    char *path = malloc(strlen(runner->work) + 16);
    if (!path) return;
    sprintf(path, "%s/runs.jsonl", runner->work);
    json_t *line = json_pack("{s:s,s:s,s:i,s:f}", "command", cell->command, "out", cell->out, "exit", cell->exit,
                             "seconds", cell->seconds);
    char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    lb_output *journal = NULL;
    how.way = LB_OUTPUT_APPENDED;
    how.replace = how.shared = true;
    if (text && lb_output_open(path, &how, &journal, NULL) == LB_OK) {
        lb_output_write(journal, text, strlen(text));
        lb_output_write(journal, "\n", 1);
        lb_output_close(journal, NULL); /* a journal that cannot be written costs a run more, no answer */
    }
    free(text), free(path);
    json_decref(line);
}

/* cell->resumed: a run of the same command ended well, and its file is still there. A journal that cannot be read for
 * want of memory says nothing of that: a run costs hours. */
static lb_status look_in_journal(const runner *runner, lb_parity_cell *cell)
{
    char *path = malloc(strlen(runner->work) + 16);
    bool found = false, failed = false;
    if (!path) return lb_fail(runner->err, LB_ERR_NOMEM, "out of memory");
    sprintf(path, "%s/runs.jsonl", runner->work);
    lb_input_lines journal;
    lb_input_lines_open(&journal, path, LB_INPUT_LINES_SHORT, NULL);
    while (!failed && lb_input_lines_next(&journal)) {
        json_error_t error;
        json_t *run = json_loads(journal.text, 0, &error); /* a line that a kill cut is none */
        failed = !run && json_error_code(&error) == json_error_out_of_memory;
        const char *command = json_string_value(json_object_get(run, "command"));
        if (command && strcmp(command, cell->command) == 0) {
            found = json_integer_value(json_object_get(run, "exit")) == 0;
            cell->seconds = json_number_value(json_object_get(run, "seconds"));
        }
        json_decref(run);
    }
    const lb_status ended = lb_input_lines_close(&journal, NULL);
    free(path);
    if (failed || ended == LB_ERR_NOMEM) return lb_fail(runner->err, LB_ERR_NOMEM, "out of memory");
    cell->resumed = ended == LB_OK && found && lb_input_is_file(cell->out);
    return LB_OK;
}

/* ---- a cell ---- */

static double worst_of(const lb_parity_report *report)
{
    double worst = 0;
    for (uint32_t i = 0; i < report->n_kinds; i++)
        if (!(report->kinds[i].k3 <= worst)) worst = report->kinds[i].k3;
    return worst;
}

static lb_status score(runner *runner, lb_parity_cell *cell, const lb_token_set *tokens)
{
    lb_parity_options plain = *runner->options;
    lb_parity_report *report;
    plain.noise = NULL, plain.worst = 0;
    const lb_token_set *reference = runner->reference  ? runner->reference
                                    : runner->baseline ? runner->baseline
                                                       : tokens;
    LB_TRY(lb_parity_run(reference, tokens, &plain, &report, runner->err));
    cell->reference = report->all, cell->verdict = report->verdict, cell->worst = worst_of(report);
    cell->reference.name = "all";
    if (report->n_findings)
        snprintf(cell->message, sizeof cell->message, "%s: %.200s", lb_parity_finding_name(report->findings[0].kind),
                 report->findings[0].message);
    lb_parity_report_free(report);
    LB_TRY(lb_parity_run(runner->baseline ? runner->baseline : tokens, tokens, &plain, &report, runner->err));
    cell->baseline = report->all.k3, cell->worst_baseline = worst_of(report);
    lb_parity_report_free(report);
    cell->scored = true;
    return LB_OK;
}

static lb_status run_command(runner *runner, lb_parity_cell *cell)
{
    lb_job_result result;
    LB_TRY(lb_job_run(cell->command, NULL, runner->seconds, &result, runner->err));
    cell->exit = result.timed_out ? -1 : result.code, cell->seconds = result.seconds;
    if (cell->exit == 0) return LB_OK;
    if (result.timed_out)
        snprintf(cell->message, sizeof cell->message, "ended after %g s", runner->seconds);
    else
        snprintf(cell->message, sizeof cell->message, "exit code %d: %s", result.code, result.line);
    return LB_OK;
}

/* A cell that cannot be scored is a row of the table with its reason; the others go on. */
static lb_status run_cell(runner *runner, const char *variable, const char *value, bool again)
{
    lb_parity_cell *more = lb_array_grow(runner->matrix->cells, runner->matrix->n, sizeof *more);
    if (!more) return lb_fail(runner->err, LB_ERR_NOMEM, "out of memory");
    runner->matrix->cells = more;
    lb_parity_cell *cell = &more[runner->matrix->n++];
    *cell =
        (lb_parity_cell){.variable = variable, .value = value, .worst = NAN, .baseline = NAN, .worst_baseline = NAN};
    cell->verdict = LB_PARITY_UNDECIDED;
    cell->out = keep(runner, out_of(runner, variable, value, again));
    cell->command = cell->out ? keep(runner, fill_command(runner, variable, value, cell->out)) : NULL;
    if (!cell->command) return lb_fail(runner->err, LB_ERR_NOMEM, "out of memory");
    LB_TRY(look_in_journal(runner, cell));
    if (!cell->resumed) {
        LB_TRY(run_command(runner, cell));
        note_run(runner, cell);
    }
    if (cell->exit != 0) return LB_OK;
    lb_err why = LB_ERR_INIT;
    lb_token_set *tokens = NULL;
    const lb_status is_read = lb_token_set_read(cell->out, &tokens, &why);
    if (is_read == LB_ERR_NOMEM) return lb_fail(runner->err, is_read, "%s", why.message);
    if (is_read != LB_OK) {
        snprintf(cell->message, sizeof cell->message, "%.230s", why.message);
        return LB_OK;
    }
    lb_status status = score(runner, cell, tokens);
    if (!variable && !again && status == LB_OK)
        runner->baseline = tokens;
    else
        lb_token_set_free(tokens);
    return status;
}

static void judge(runner *runner)
{
    const lb_parity_cell *base = &runner->matrix->cells[0];
    const double threshold = runner->options->threshold;
    for (uint32_t i = 2; i < runner->matrix->n; i++) {
        lb_parity_cell *cell = &runner->matrix->cells[i];
        if (!cell->scored || !base->scored) continue;
        const bool apart = cell->worst_baseline >= threshold && !(cell->baseline <= 10 * runner->matrix->noise_floor);
        cell->matters = cell->verdict != base->verdict || apart;
    }
}

static lb_status run_all(runner *runner)
{
    json_t *variables = json_object_get(runner->file, "variables"), *values;
    const char *name;
    uint64_t total = 2, done = 0;
    json_object_foreach(variables, name, values) total += json_array_size(values) - 1;
    for (int again = 0; again < 2; again++) {
        if (runner->options->progress) runner->options->progress("runs", done++, total);
        LB_TRY(run_cell(runner, NULL, NULL, again));
        const lb_parity_cell *base = &runner->matrix->cells[again];
        if (!again && !base->scored)
            return lb_fail(runner->err, LB_ERR_UNSUPPORTED, "the baseline gave no token file: %s\n  %s", base->message,
                           base->command);
        if (again) runner->matrix->noise_floor = base->baseline;
    }
    json_object_foreach(variables, name, values) for (size_t i = 1; i < json_array_size(values); i++)
    {
        if (runner->options->progress) runner->options->progress("runs", done++, total);
        const char *variable = keep(runner, strdup(name)),
                   *value = keep(runner, strdup(json_string_value(json_array_get(values, i))));
        if (!variable || !value) return lb_fail(runner->err, LB_ERR_NOMEM, "out of memory");
        LB_TRY(run_cell(runner, variable, value, false));
    }
    judge(runner);
    return LB_OK;
}

lb_status lb_parity_matrix_run(const char *path, const char *work, const lb_parity_options *options,
                               lb_parity_matrix **matrix, lb_err *err)
{
    lb_err own = LB_ERR_INIT;
    lb_parity_options o = LB_PARITY_OPTIONS_INIT;
    if (options) o = *options;
    runner runner = {.path = path, .work = work, .options = &o, .err = err ? err : &own};
    *matrix = runner.matrix = calloc(1, sizeof *runner.matrix);
    if (!runner.matrix) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    runner.matrix->noise_floor = NAN;
    lb_status status = load_file(&runner);
    if (status == LB_OK && mkdir(work, 0700) != 0 && errno != EEXIST)
        status = lb_fail(runner.err, LB_ERR_IO, "%s: cannot make the folder of runs: %s", work, strerror(errno));
    const char *reference = json_string_value(json_object_get(runner.file, "reference"));
    char *file = status == LB_OK && reference ? beside(path, reference) : NULL;
    if (file) status = lb_token_set_read(file, &runner.reference, runner.err);
    free(file);
    if (status == LB_OK) status = run_all(&runner);
    lb_token_set_free(runner.reference), lb_token_set_free(runner.baseline);
    json_decref(runner.file);
    if (status != LB_OK) lb_parity_matrix_free(runner.matrix), *matrix = NULL;
    return status;
}

void lb_parity_matrix_free(lb_parity_matrix *matrix)
{
    if (!matrix) return;
    for (uint32_t i = 0; i < matrix->n_texts; i++) free(matrix->texts[i]);
    free(matrix->texts), free(matrix->cells);
    free(matrix);
}

/* ---- for a person ---- */

static void print_cell(FILE *out, const lb_parity_cell *cell, bool again)
{
    char label[64], k3[3][16];
    if (cell->variable)
        snprintf(label, sizeof label, "%s=%s", cell->variable, cell->value);
    else
        snprintf(label, sizeof label, again ? "baseline again" : "baseline");
    if (!cell->scored) {
        fprintf(out, "%-32s %-9s %s\n", label, "not run", cell->message);
        return;
    }
    const double numbers[] = {cell->reference.k3, cell->worst, cell->baseline};
    for (int i = 0; i < 3; i++) snprintf(k3[i], sizeof k3[i], "%.4g", numbers[i]);
    fprintf(out, "%-32s %-9s %10s %10s %10s  %7.1f s%s%s\n", label, lb_parity_verdict_name(cell->verdict), k3[0], k3[1],
            k3[2], cell->seconds, cell->resumed ? " (earlier)" : "", cell->matters ? "  MATTERS" : "");
    if (cell->message[0]) fprintf(out, "%32s %s\n", "", cell->message);
}

char *lb_parity_matrix_text(const lb_parity_matrix *matrix, double threshold)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    fprintf(out, "%-32s %-9s %10s %10s %10s\n", "run", "verdict", "k3", "worst kind", "to base");
    for (uint32_t i = 0; i < matrix->n; i++) print_cell(out, &matrix->cells[i], i == 1);
    fprintf(out, "\nnoise floor %.3g (two runs of the baseline); passes below %g\n", matrix->noise_floor, threshold);
    bool any = false;
    for (uint32_t i = 0; i < matrix->n; i++) {
        const lb_parity_cell *cell = &matrix->cells[i];
        if (!cell->matters) continue;
        fprintf(out, "%s%s=%s (%s)", any ? ", " : "what matters: ", cell->variable, cell->value,
                lb_parity_verdict_name(cell->verdict));
        any = true;
    }
    fprintf(out, any ? "\n" : "no variable by itself makes a difference above the noise and the threshold\n");
    if (fclose(out) != 0) free(text), text = NULL;
    return text;
}
