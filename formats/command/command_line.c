/* The shared side of every command: see command_line.h. */
#include "command/command_line.h"

#include "command/command_parts.h"
#include "command/help_page.h"
#include "command/reference.h"
#include "command/schema_files.h"
#include "command/text_door.h"

#include <lastbit/input.h>
#include <lastbit/clock.h>
#include "base/array.h"
#include <lastbit/decode_limit.h>
#include <lastbit/report.h>
#include <lastbit/text.h>
#include <lastbit/text_stream.h>

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* "With --json: verdict, first, ...; `lastbit help --schema diff` describes each." */
static void print_fields(const char *command)
{
    char *fields = lb_schema_files_fields(command), *text = NULL;
    size_t size = 0;
    FILE *to = fields ? lb_text_stream_open(&text, &size) : NULL;
    if (to) fprintf(to, "With --json: %s; `lastbit help --schema %s` describes each.", fields, command);
    if (to && fclose(to) == 0) putchar('\n'), lb_help_filled(text), putchar('\n');
    free(text), free(fields);
}

static void print_help(const lb_command *command, const struct poptOption *table)
{
    printf("usage: lastbit %s [OPTIONS]%s%s\n\n", command->name, *command->synopsis ? " " : "", command->synopsis);
    lb_help_filled(command->about);
    printf("\nOptions:\n");
    lb_help_options(table, false);
    if (command->example) printf("\nExample:\n%s\n", command->example);
    print_fields(command->name);
    printf("Exit codes: 0 same or clean, 1 different or found, 125 nothing to judge, "
           "128 failed (no such file or kind), 129 misused.\n");
}

/* The line of `lastbit --help` that names the command. */
static const char *text_of(const char *name)
{
#define LINE(command, text)                                                                                            \
    if (strcmp(name, #command) == 0) return text;
    LB_COMMANDS(LINE)
#undef LINE
    return "";
}

/* A message is one line, whatever the name that it quotes. */
static void print_quoted(FILE *to, const char *text)
{
    char *line = lb_text_escaped(LB_TEXT_ARGUMENT, text, strlen(text));
    fputs(line ? line : "out of memory", to);
    free(line);
}

int lb_command_misused(const char *command, const char *format, ...)
{
    char message[2000];
    va_list args;
    va_start(args, format);
    fprintf(stderr, "lastbit %s: ", command);
    vsnprintf(message, sizeof message, format, args);
    print_quoted(stderr, message);
    fprintf(stderr, "\nTry `lastbit %s --help`.\n", command);
    va_end(args);
    return LB_EXIT_MISUSED;
}

/* What was typed behind `lastbit`, which lives as long as the program, and what of it names files, while the arguments
 * live. */
static struct {
    int argc;
    const char **argv;
    const char *const *files; /* NULL: none, or another program's */
    int n_files;
    bool parts; /* it has options that say how the work is shared */
} typed;

/* The argument of --max-decoded: SIZE, SIZE:RATIO or none. */
static bool set_decode_limit(const char *text)
{
    const char *colon = text ? strchr(text, ':') : NULL;
    char size[32] = "";
    uint64_t room;
    int64_t ratio = LB_DECODE_LIMIT_RATIO;
    if (!text) return true;
    if (strcmp(text, "none") == 0) return lb_decode_limit_set(UINT64_MAX, 0), true;
    snprintf(size, sizeof size, "%.*s", (int)(colon ? colon - text : (ptrdiff_t)strlen(text)), text);
    if (!lb_command_parse_size(size, &room) || (colon && (!lb_command_parse_integer(colon + 1, &ratio) || ratio < 0)))
        return false;
    lb_decode_limit_set(room, (uint64_t)ratio);
    return true;
}

/* As many files as the command takes. */
static int check_count(const lb_command *command, const lb_command_arguments *arguments)
{
    if (arguments->n_args >= command->min_args && (command->max_args < 0 || arguments->n_args <= command->max_args))
        return -1;
    return lb_command_misused(command->name, "expected %s, got %d argument%s",
                              *command->synopsis ? command->synopsis : "options alone", arguments->n_args,
                              arguments->n_args == 1 ? "" : "s");
}

static int parse_line(const lb_command *command, int argc, const char **argv, lb_command_arguments *arguments)
{
    int json = 0, help = 0;
    const char *most = NULL;
    const bool reads_files = command->max_args != 0 && !command->stop_at_first_arg;
    const struct poptOption shared[] = {
        {"max-decoded", 0, POPT_ARG_STRING, &most, 0, "most memory that a file's decoded contents take; none: no limit",
         "4G[:100]"},
        {"json", 0, POPT_ARG_NONE, &json, 0, "print one JSON object on stdout", NULL},
        {"help", 'h', POPT_ARG_NONE, &help, 0, "show this text", NULL},
        POPT_TABLEEND,
    };
    const struct poptOption table[] = {
        {NULL, 0, POPT_ARG_INCLUDE_TABLE, (void *)(shared + (reads_files ? 0 : 1)), 0, NULL, NULL},
        {NULL, 0, POPT_ARG_INCLUDE_TABLE, (void *)(uintptr_t)(command->options ? command->options : shared + 3), 0,
         NULL, NULL},
        {NULL, 0, POPT_ARG_INCLUDE_TABLE, (void *)(uintptr_t)(command->parts ? lb_command_parts_table() : shared + 3),
         0, NULL, NULL},
        POPT_TABLEEND,
    };
    memset(arguments, 0, sizeof *arguments);
    lb_decode_limit_count_json();
    typed.argc = argc, typed.argv = argv, typed.parts = command->parts;
    poptContext context =
        poptGetContext(command->name, argc, argv, table, command->stop_at_first_arg ? POPT_CONTEXT_POSIXMEHARDER : 0);
    if (!context) return LB_EXIT_FAILED;
    arguments->context = context;

    /* Options with a `val` would end poptGetNextOpt early; none of ours has one, so one call reads everything.
     */
    int rc = poptGetNextOpt(context);
    if (rc < -1) {
        int code = lb_command_misused(command->name, "%s: %s", poptBadOption(context, POPT_BADOPTION_NOALIAS),
                                      poptStrerror(rc));
        lb_command_arguments_release(arguments);
        return code;
    }
    if (!set_decode_limit(most)) {
        const int code = lb_command_misused(
            command->name, "--max-decoded takes SIZE, SIZE:RATIO or none, as 8G or 8G:1000, not '%s'", most);
        free((void *)(uintptr_t)most);
        lb_command_arguments_release(arguments);
        return code;
    }
    free((void *)(uintptr_t)most);
    if (help) {
        if (lb_reference_form() == LB_HELP_PAGE)
            print_help(command, table);
        else
            lb_reference_command(command, text_of(command->name), table);
        lb_command_arguments_release(arguments);
        return LB_EXIT_SAME;
    }
    arguments->json = json != 0;
    arguments->args = poptGetArgs(context);
    while (arguments->args && arguments->args[arguments->n_args]) arguments->n_args++;
    typed.files = command->stop_at_first_arg ? NULL : arguments->args;
    typed.n_files = arguments->n_args;
    return -1;
}

/* What options name may be read: all their words but those that say where something is written. -1, or the exit code of
 * an output that is one of them. */
static int check_output(const lb_command *command)
{
    int code = -1;
    for (const struct poptOption *o = command->options; o && (o->longName || o->arg) && code < 0; o++) {
        const unsigned type = o->argInfo & POPT_ARG_MASK;
        const bool writes = o->longName && (!strcmp(o->longName, "html") || !strcmp(o->longName, "map-out"));
        if (!o->arg || writes) continue;
        const char *one[] = {type == POPT_ARG_STRING ? *(const char **)o->arg : NULL, NULL};
        const char *const *words = type == POPT_ARG_ARGV ? *(const char ***)o->arg : one;
        if (words && *words) code = lb_command_parts_check(command->name, words);
    }
    return code;
}

static int parse_again(const void *context, int argc, const char **argv, lb_command_arguments *arguments)
{
    const lb_command *command = (const lb_command *)context;
    int code = parse_line(command, argc, argv, arguments);
    if (code < 0) code = check_count(command, arguments);
    return code < 0 ? check_output(command) : code;
}

int lb_command_arguments_parse(const lb_command *command, int argc, const char **argv, lb_command_arguments *arguments)
{
    int code = parse_line(command, argc, argv, arguments);
    if (code < 0 && !(command->parts && lb_command_parts_is_merge())) code = check_count(command, arguments);
    if (code < 0 && command->parts) code = check_output(command);
    if (code < 0 && command->parts)
        code = lb_command_parts_begin(command->name, argc, argv, arguments, parse_again, command);
    if (code >= 0) lb_command_arguments_release(arguments);
    return code;
}

void lb_command_arguments_release(lb_command_arguments *arguments)
{
    if (arguments->context) poptFreeContext(arguments->context);
    typed.files = NULL;
    memset(arguments, 0, sizeof *arguments);
}

/* ---- ends and answers ------------------------------------------------------------------------------------------- */

int lb_command_fail(const char *command, const lb_err *err)
{
    if (err->status == LB_ERR_PARTIAL) return lb_command_parts_partial();
    fprintf(stderr, "lastbit %s: ", command);
    print_quoted(stderr, err->message[0] ? err->message : lb_status_text(err->status));
    fputc('\n', stderr);
    switch (err->status) {
    case LB_ERR_NOT_CAPTURED:
    case LB_ERR_UNSUPPORTED: return LB_EXIT_UNTESTABLE;
    default: return LB_EXIT_FAILED;
    }
}

/* A word of a POSIX shell, quoted where it needs quotes. */
static void print_word(FILE *to, const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,@%+";
    const bool bare = *text && strspn(text, plain) == strlen(text);
    if (!bare) fputc('\'', to);
    for (; *text; text++) fputs(*text == '\'' ? "'\\''" : (char[]){*text, '\0'}, to);
    if (!bare) fputc('\'', to);
}

/* The line as it was typed, without the options that say where its answer goes; malloc'ed. */
static char *typed_line(void)
{
    char *text = NULL;
    size_t size = 0;
    FILE *to = typed.argc ? lb_text_stream_open(&text, &size) : NULL;
    if (!to) return NULL;
    fputs("lastbit", to);
    for (int i = 0; i < typed.argc; i++) {
        if (strcmp(typed.argv[i], "--json") == 0 || strncmp(typed.argv[i], "--html=", 7) == 0) continue;
        if (strcmp(typed.argv[i], "--html") == 0 && ++i) continue;
        if (typed.parts && lb_command_parts_is_how(typed.argc, typed.argv, &i)) continue;
        if (strncmp(typed.argv[i], "--webhook", 9) == 0) { /* anyone who knows the address may post there */
            i += !typed.argv[i][9];
            fputs(" --webhook …", to);
            continue;
        }
        if (strcmp(typed.argv[i], "--") == 0) {
            fputs(" -- …", to); /* another program's arguments, which may hold secrets */
            break;
        }
        fputc(' ', to);
        print_word(to, typed.argv[i]);
    }
    if (fclose(to) == 0) return text;
    free(text);
    return NULL;
}

/* "runs/a.lb/", "a.lbz", or a folder with the archive of a rank: cheap to open. */
static bool looks_like_capture(const char *path)
{
    char first[4096];
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    snprintf(first, sizeof first, "%s/rank-00000.tar", path);
    return (n > 3 && !strncmp(path + n - 3, ".lb", 3)) || (n > 4 && !strncmp(path + n - 4, ".lbz", 4)) ||
           lb_input_is_file(first);
}

/* The program that was recorded and when, by the receipt of the first rank: into an object. */
static void add_receipt(json_t *input, const char *path)
{
    lb_capture *capture = NULL;
    const int32_t *ranks;
    if (!looks_like_capture(path) || lb_capture_open(path, &capture, NULL) != LB_OK) return;
    const char *text = lb_capture_ranks(capture, &ranks) ? lb_capture_table(capture, ranks[0], "receipt") : NULL;
    json_t *receipt = text ? json_loads(text, 0, NULL) : NULL;
    const json_t *time = json_object_get(receipt, "time"), *word;
    const json_t *argv = json_object_get(json_object_get(receipt, "process"), "argv");
    json_t *program = json_string("");
    size_t i;
    json_array_foreach(argv, i, word)
    {
        json_t *longer = json_sprintf("%s%s%s", json_string_value(program), i ? " " : "",
                                      json_is_string(word) ? json_string_value(word) : "");
        json_decref(program);
        program = longer;
    }
    if (json_is_number(time)) json_object_set_new(input, "recorded", json_integer((json_int_t)json_number_value(time)));
    if (json_string_length(program)) json_object_set(input, "program", program);
    json_decref(program), json_decref(receipt);
    lb_capture_close(capture);
}

/* The files that an answer is about, with what is known of a capture's run. */
static json_t *inputs_json(void)
{
    json_t *inputs = json_array();
    for (int i = 0; typed.files && i < typed.n_files; i++) {
        json_t *input = json_pack("{s:s, s:n, s:n}", "path", typed.files[i], "recorded", "program");
        if (!input) continue;
        add_receipt(input, typed.files[i]);
        json_array_append_new(inputs, input);
    }
    return inputs;
}

/* NULL: out of memory. Frees `object`. */
static json_t *answer(const char *command, json_t *object)
{
    char schema[64], *line = typed_line();
    snprintf(schema, sizeof schema, "lastbit.%s/1", command);
    json_t *all = json_pack("{s:s}", "schema", schema);
    json_t *words = line ? json_string(line) : NULL;
    if (all && words) json_object_set_new(all, "command", words);
    free(line);
    if (all) json_object_set_new(all, "inputs", inputs_json());
    if (all && json_object_update(all, object) != 0) {
        json_decref(all);
        all = NULL;
    }
    json_decref(object);
    return all;
}

json_t *lb_command_json_number(double x)
{
    return isfinite(x) ? json_real(x) : isnan(x) ? json_null() : json_string(x > 0 ? "inf" : "-inf");
}

json_t *lb_command_json_line(const lb_code_line *line)
{
    if (!line->number) return json_null();
    return json_pack("{s:s, s:I, s:s, s:s}", "file", line->file, "line", (json_int_t)line->number, "function",
                     line->function, "text", line->text);
}

json_t *lb_command_json_finite(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

void lb_command_print_json(const char *command, json_t *object)
{
    json_t *all = answer(command, object);
    if (!all) {
        fprintf(stderr, "lastbit %s: out of memory while printing\n", command);
    } else {
        json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
        putchar('\n');
    }
    json_decref(all);
}

lb_status lb_command_write_page(const char *command, json_t *object, const char *path, lb_err *err)
{
    if (!path) {
        json_decref(object);
        return LB_OK;
    }
    json_t *all = answer(command, object);
    char *text = all ? json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL, name[64];
    snprintf(name, sizeof name, "lastbit %s", command);
    const lb_report_part part = {name, text, text ? strlen(text) : 0};
    lb_status status =
        text ? lb_report_save(path, &part, 1, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory for the page");
    free(text);
    json_decref(all);
    return status;
}

char *lb_command_name_argument(char *typed)
{
    char *spelt = typed ? lb_text_escaped(LB_TEXT_ARGUMENT, typed, strlen(typed)) : NULL;
    if (!spelt) return typed;
    free(typed);
    return spelt;
}

bool lb_command_parse_integer(const char *text, int64_t *number)
{
    char *end;
    *number = strtoll(text, &end, 10);
    return *text && !*end;
}

bool lb_command_parse_steps(const char *text, int64_t *first, int64_t *last)
{
    char *end;
    *first = *last = strtoll(text, &end, 10);
    if (*end == '-') *last = strtoll(end + 1, &end, 10);
    return *end == '\0' && end != text && *first <= *last;
}

bool lb_command_parse_size(const char *text, uint64_t *bytes)
{
    static const char units[] = "KMGT";
    char *end;
    if (!isdigit((unsigned char)text[0])) return false;
    errno = 0;
    double number = strtod(text, &end);
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    int power = unit ? (int)(unit - units) + 1 : 0;
    if (unit) end++;
    if (*end == 'i' && power) end++;
    if (*end == 'B' || *end == 'b') end++;
    for (int i = 0; i < power; i++) number *= 1024;
    if (*end || errno || !(number >= 1) || number > 9e18) return false;
    *bytes = (uint64_t)number;
    return true;
}

lb_status lb_command_parse_memory(const char *text, uint64_t *bytes, lb_err *err)
{
    enum { LEAST = 1 << 20 };
    if (!text) return LB_OK;
    if (!lb_command_parse_size(text, bytes))
        return lb_fail(err, LB_ERR_INVALID, "--memory %s: expected a size such as 512M or 2G", text);
    if (*bytes >= LEAST) return LB_OK;
    return lb_fail(err, LB_ERR_INVALID,
                   "--memory %s: nothing can be computed in less than a megabyte; expected a size such as 512M", text);
}

const char *lb_command_bytes_text(uint64_t bytes, char text[16])
{
    static const char *const units[] = {"bytes", "KB", "MB", "GB", "TB"};
    double number = (double)bytes;
    int unit = 0;
    for (; number >= 1024 && unit < 4; unit++) number /= 1024;
    snprintf(text, 16, "%.*f %s", unit && number < 100 ? 1 : 0, number, units[unit]);
    return text;
}

char *lb_command_python_folder(void)
{
    const char *named = getenv("LASTBIT_PYTHON");
    if (named && *named) return strdup(named);
    char *path = realpath("/proc/self/exe", NULL), beside[4096];
    char *slash = path ? strrchr(path, '/') : NULL;
    snprintf(beside, sizeof beside, "%.*s/../lib/lastbit/python", slash ? (int)(slash - path) : 0, path ? path : "");
    free(path);
    return strdup(access(beside, R_OK) == 0 ? beside : LB_SOURCE_DIR "/capture");
}
