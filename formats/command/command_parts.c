/* Which parts of a command there are, and who answers: see command_parts.h. */
#define _GNU_SOURCE /* asprintf, dl_iterate_phdr */
#include "command/command_parts.h"

#include "command/launcher.h"
#include "command/refusal.h"

#include <lastbit/input.h>
#include <lastbit/output.h>

#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *part_text, *folder_text, *output;
static int merge;

static const struct poptOption table[] = {
    {"part", 0, POPT_ARG_STRING, &part_text, 0, "do part I of N and write it to -o FILE", "I/N"},
    {"merge", 0, POPT_ARG_NONE, &merge, 0,
     "put parts together: the arguments are files of --part, or a folder of --parts, "
     "and the answer has the bytes that one process gives",
     NULL},
    {"parts", 0, POPT_ARG_STRING, &folder_text, 0,
     "share the work with all processes that are given this folder; default: with those that one srun, "
     "mpirun or torchrun started. off: do all of it. LASTBIT_PARTS in the environment sets the same",
     "FOLDER"},
    {"output", 'o', POPT_ARG_STRING, &output, 0, "write the part, or the answer, to this file", "FILE"},
    POPT_TABLEEND,
};

static struct {
    lb_parts *parts;
    lb_launcher worker;
    /* one part; in a folder; which we have named, and which goes with the last worker; what is known is not all */
    bool one, meet, own_folder, partial;
    char *folder;
    FILE *answer; /* where stdout leads */
    int out;      /* where it led; -1: not changed */
} now = {.out = -1};

const struct poptOption *lb_command_parts_table(void)
{
    return table;
}

bool lb_command_parts_is_merge(void)
{
    return merge != 0;
}

int lb_command_parts_partial(void)
{
    now.partial = true;
    return LB_EXIT_SAME;
}

lb_parts *lb_command_parts(void)
{
    return now.parts;
}

/* ---- what is asked ----------------------------------------------------------------------------------------------- */

bool lb_command_parts_is_how(int argc, const char **argv, int *i)
{
    static const char *const alone[] = {"--merge", "--json"};
    static const char *const valued[] = {"--part", "--parts", "--output", "--html", "--threads", "-o"};
    const char *word = argv[*i];
    for (size_t k = 0; k < sizeof alone / sizeof *alone; k++)
        if (strcmp(word, alone[k]) == 0) return true;
    for (size_t k = 0; k < sizeof valued / sizeof *valued; k++) {
        const size_t n = strlen(valued[k]);
        if (strncmp(word, valued[k], n) != 0) continue;
        if (!word[n]) {
            *i += *i + 1 < argc;
            return true;
        }
        if (word[n] == '=' || n == 2) return true;
    }
    return false;
}

/* The word, or what stands behind its '=', where that names something. */
static const char *named_by(const char *word, struct stat *st)
{
    const char *value = strchr(word, '=');
    if (lb_input_look(word, st, NULL) == LB_OK) return word;
    return *word == '-' && value && lb_input_look(value + 1, st, NULL) == LB_OK ? value + 1 : NULL;
}

static void mix(lb_digest *sum, const void *bytes, size_t n)
{
    const lb_digest one = lb_digest_bytes(bytes, n);
    const uint64_t both[] = {sum->hi, sum->lo, one.hi, one.lo};
    *sum = lb_digest_bytes(both, sizeof both);
}

static void mix_size_and_time(lb_digest *sum, const struct stat *st)
{
    const int64_t numbers[] = {S_ISDIR(st->st_mode) ? 0 : st->st_size, st->st_mtim.tv_sec, st->st_mtim.tv_nsec};
    mix(sum, numbers, sizeof numbers);
}

/* A file by its size and time, a folder by its time and the files in it: one that is written in its place changes the
 * folder's time as little as its name. */
static lb_status add_input(lb_digest *sum, const char *path, const struct stat *st, lb_err *err)
{
    lb_input_names names = {0};
    mix_size_and_time(sum, st);
    if (!S_ISDIR(st->st_mode)) return LB_OK;
    lb_status status = lb_input_list(path, &names, err);
    for (uint32_t i = 0; i < names.n && status == LB_OK; i++) {
        char *inside = NULL;
        struct stat one;
        mix(sum, names.rows[i], strlen(names.rows[i]));
        if (asprintf(&inside, "%s/%s", path, names.rows[i]) < 0)
            inside = NULL, status = lb_fail(err, LB_ERR_NOMEM, "out of memory for a name");
        if (inside && lb_input_look(inside, &one, NULL) == LB_OK && S_ISREG(one.st_mode)) mix_size_and_time(sum, &one);
        free(inside);
    }
    lb_input_names_release(&names);
    return status;
}

/* The linker's digest of this program: records of another are of other code. */
typedef struct build_note {
    const void *bytes;
    size_t n;
} build_note;

static int find_build(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size;
    build_note *found = context;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        const char *at = (const char *)(info->dlpi_addr + segment->p_vaddr), *end = at + segment->p_memsz;
        while (segment->p_type == PT_NOTE && (size_t)(end - at) > sizeof(ElfW(Nhdr))) {
            const ElfW(Nhdr) *note = (const ElfW(Nhdr) *)at;
            const char *name = at + sizeof *note, *body = name + (note->n_namesz + 3) / 4 * 4;
            if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && !memcmp(name, "GNU", 4))
                *found = (build_note){body, note->n_descsz};
            at = body + (note->n_descsz + 3) / 4 * 4;
            if (at > end) break;
        }
    }
    return 1; /* the first is the program itself */
}

static void mix_build(lb_digest *sum)
{
    build_note build = {0};
    dl_iterate_phdr(find_build, &build);
    mix(sum, LB_VERSION, sizeof LB_VERSION);
    if (build.n) mix(sum, build.bytes, build.n);
}

static lb_status make_job(int argc, const char **argv, const char **words, lb_parts_job *job, lb_err *err)
{
    char *folder = getcwd(NULL, 0);
    *job = (lb_parts_job){.words = words, .folder = folder};
    if (!folder) return lb_fail(err, LB_ERR_IO, "the current folder cannot be told: %s", strerror(errno));
    mix_build(&job->inputs);
    for (int i = 0; i < argc; i++) {
        struct stat st;
        if (lb_command_parts_is_how(argc, argv, &i)) continue;
        words[job->n++] = argv[i];
        const char *input = i ? named_by(argv[i], &st) : NULL;
        if (input) LB_TRY(add_input(&job->inputs, input, &st, err));
    }
    return lb_input_refusal(err); /* what could not be looked at would make this another question for the others */
}

/* ---- which part -------------------------------------------------------------------------------------------------- */

static bool parse_part(const char *text, uint32_t *part, uint32_t *of)
{
    int64_t i = 0, n = 0;
    char head[24] = "";
    const char *slash = strchr(text, '/');
    snprintf(head, sizeof head, "%.*s", (int)(slash ? slash - text : 0), text);
    if (!slash || !lb_command_parse_integer(head, &i) || !lb_command_parse_integer(slash + 1, &n)) return false;
    *part = (uint32_t)i, *of = (uint32_t)n;
    return i >= 1 && i <= n && n <= 1000000;
}

/* Where workers of one start meet who were given no folder: here, under a name that all of them come to. */
static lb_status name_folder(const char *command, const lb_parts_job *job, lb_err *err)
{
    const lb_launcher *launcher = &now.worker;
    char name[600];
    if (!*launcher->job)
        return lb_fail(err, LB_ERR_INVALID,
                       "%u workers of %s that do not know which start they are of: "
                       "name a folder that all of them see and no other start has, by --parts FOLDER (or --parts off)",
                       launcher->of, launcher->launcher);
    const lb_digest question = lb_parts_job_digest(job);
    if (lb_digest_is_none(question)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a command");
    const int n = snprintf(name, sizeof name, "%016llx%016llx %s %s %s", (unsigned long long)question.hi,
                           (unsigned long long)question.lo, launcher->launcher, launcher->job, launcher->again);
    snprintf(name, sizeof name, "lastbit-%s-%016llx.parts", command,
             (unsigned long long)lb_digest_bytes(name, (size_t)n).lo);
    now.folder = strdup(name), now.own_folder = true;
    return now.folder ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

/* stdout into a file without a name. */
static lb_status take_stdout(lb_err *err)
{
    now.answer = lb_output_scratch(NULL, err);
    if (!now.answer) return LB_ERR_IO;
    fflush(stdout);
    now.out = dup(STDOUT_FILENO);
    if (now.out < 0 || dup2(fileno(now.answer), STDOUT_FILENO) < 0)
        return lb_fail(err, LB_ERR_IO, "stdout cannot be led elsewhere: %s", strerror(errno));
    return LB_OK;
}

static lb_status open_parts(const char *command, const lb_parts_job *job, const lb_command_arguments *files,
                            lb_err *err)
{
    lb_parts_options how = LB_PARTS_OPTIONS_INIT;
    how.job = job, how.refusal = lb_refusal_so_far;
    if (part_text && !parse_part(part_text, &how.part, &how.of))
        return lb_fail(err, LB_ERR_INVALID, "--part %s: expected I/N with I from 1 to N, as 1/8", part_text);
    now.one = how.of > 0;
    if (files) how.files = files->args, how.n_files = (uint32_t)files->n_args;
    now.meet = !now.one && !files;
    if (now.meet && folder_text && !(now.folder = strdup(folder_text)))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (now.meet && !folder_text) LB_TRY(name_folder(command, job, err));
    how.folder = now.folder, how.worker = now.worker.number, how.workers = now.worker.of;
    return lb_parts_open(&how, &now.parts, err);
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

/* The line that the parts are of, with what was said of the answer's form behind it; malloc'ed, words borrowed. */
static const char **merged_line(const lb_parts_job *job, bool json, int *n)
{
    const char **line = calloc(job->n + 2u, sizeof *line);
    if (!line) return NULL;
    memcpy(line, job->words, job->n * sizeof *line);
    *n = (int)job->n;
    if (json) line[(*n)++] = "--json";
    return line;
}

static lb_status check_merge(const char *command, const lb_parts_job *there, const lb_command_arguments *files,
                             lb_err *err)
{
    char *here = getcwd(NULL, 0);
    lb_status status = LB_OK;
    if (strcmp(there->words[0], command) != 0)
        status = lb_fail(err, LB_ERR_INVALID, "%s: a part of `lastbit %s`, not of `lastbit %s`", files->args[0],
                         there->words[0], command);
    else if (here && strcmp(here, there->folder) != 0)
        status = lb_fail(err, LB_ERR_INVALID, "%s: was made in %s: merge there, for names of files start from it",
                         files->args[0], there->folder);
    free(here);
    return status;
}

static int refuse(const char *command, const lb_err *err)
{
    return err->status == LB_ERR_INVALID ? lb_command_misused(command, "%s", err->message)
                                         : lb_command_fail(command, err);
}

int lb_command_parts_check(const char *command, const char *const *words)
{
    lb_err err = LB_ERR_INIT;
    return output && lb_output_inputs_refuse(output, words, &err) != LB_OK ? refuse(command, &err) : -1;
}

static int begin_merge(const char *command, lb_command_arguments *arguments,
                       int (*again)(const void *, int, const char **, lb_command_arguments *), const void *context)
{
    static lb_parts_job job; /* the line that is read again lives as long as the program */
    lb_err err = LB_ERR_INIT;
    lb_command_arguments files = *arguments;
    int n = 0, code = -1;
    const bool json = arguments->json;
    if (!files.n_args) return lb_command_misused(command, "--merge: expected files of --part, or a folder of --parts");
    if (lb_parts_job_read(files.args[0], &job, &err) != LB_OK || check_merge(command, &job, &files, &err) != LB_OK)
        return refuse(command, &err);
    const char **line = merged_line(&job, json, &n), **words = calloc(job.n + 1u, sizeof *words);
    if (!line || !words) return lb_command_misused(command, "out of memory");
    merge = 0;
    memset(arguments, 0, sizeof *arguments);
    code = again(context, n, line, arguments);
    if (code < 0 && output &&
        (lb_output_inputs_refuse(output, files.args, &err) != LB_OK ||
         lb_output_inputs_refuse(output, arguments->args, &err) != LB_OK))
        code = refuse(command, &err);
    lb_parts_job same = {0};
    if (code < 0 && (make_job(n, line, words, &same, &err) != LB_OK ||
                     open_parts(command, &same, &files, &err) != LB_OK || take_stdout(&err) != LB_OK))
        code = refuse(command, &err);
    free((void *)(uintptr_t)same.folder), free(words);
    poptFreeContext(files.context);
    return code;
}

/* ---- both ends --------------------------------------------------------------------------------------------------- */

int lb_command_parts_begin(const char *command, int argc, const char **argv, lb_command_arguments *arguments,
                           int (*again)(const void *, int, const char **, lb_command_arguments *), const void *context)
{
    lb_err err = LB_ERR_INIT;
    lb_parts_job job = {0};
    const char *set = getenv("LASTBIT_PARTS");
    if (!folder_text && !merge && !part_text && set && *set) folder_text = strdup(set);
    if (merge && folder_text) return lb_command_misused(command, "--merge FOLDER puts a folder's parts together");
    if (merge) return begin_merge(command, arguments, again, context);
    if (part_text && !output)
        return lb_command_misused(command, "--part %s: -o FILE says where the part goes", part_text);
    if (part_text && folder_text)
        return lb_command_misused(
            command, "--part and --parts: one is a share of its own, the other whatever no worker has begun");
    if (output && lb_output_inputs_refuse(output, arguments->args, &err) != LB_OK) return refuse(command, &err);
    if (!lb_launcher_find(&now.worker)) now.worker = (lb_launcher){0};
    const bool off = folder_text && strcmp(folder_text, "off") == 0;
    const bool shared = part_text || (folder_text ? !off : now.worker.of > 0);
    if (!shared && !output) return -1;
    const char **words = calloc((size_t)argc + 1, sizeof *words);
    lb_status status = words ? LB_OK : lb_fail(&err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK && shared) status = make_job(argc, argv, words, &job, &err);
    if (status == LB_OK && shared) status = open_parts(command, &job, NULL, &err);
    if (status == LB_OK) status = take_stdout(&err);
    if (now.meet && now.worker.number) lb_command_progress_hide();
    free((void *)(uintptr_t)job.folder), free(words);
    return status == LB_OK ? -1 : refuse(command, &err);
}

/* The answer, as it stands in the file; malloc'ed. */
static lb_status read_answer(char **bytes, size_t *n, lb_err *err)
{
    struct stat st;
    const int fd = fileno(now.answer);
    *bytes = NULL, *n = 0;
    if (fstat(fd, &st) != 0) return lb_fail(err, LB_ERR_IO, "the answer cannot be read back: %s", strerror(errno));
    if (!(*bytes = malloc((size_t)st.st_size + 1))) return lb_fail(err, LB_ERR_NOMEM, "out of memory for the answer");
    while (*n < (size_t)st.st_size) {
        const ssize_t got = pread(fd, *bytes + *n, (size_t)st.st_size - *n, (off_t)*n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return lb_fail(err, LB_ERR_IO, "the answer cannot be read back: %s", strerror(errno));
        *n += (size_t)got;
    }
    return LB_OK;
}

static lb_status give(const char *bytes, size_t n, lb_err *err)
{
    if (output) {
        lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
        how.replace = how.shared = true;
        return lb_output_save(output, &how, bytes, n, err);
    }
    const bool written = fwrite(bytes, 1, n, stdout) == n && fflush(stdout) == 0;
    return written ? LB_OK : lb_fail(err, LB_ERR_IO, "its answer could not be written: %s", strerror(errno));
}

/* ---- an answer that is one unit ---------------------------------------------------------------------------------- */

typedef struct asking {
    lb_command_run *run;
    const lb_command_arguments *arguments;
    const void *options;
    bool refused; /* the command failed, here, and has said why */
    int code;
} asking;

/* Before the object, and the text behind it. */
typedef struct asked_head {
    int32_t code, text; /* text: there is one */
    uint64_t object;
} asked_head;

static lb_status ask(void *context, char **bytes, size_t *n, lb_err *err)
{
    asking *asking = context;
    lb_command_answer answer = asking->run(asking->arguments, asking->options);
    asking->refused = !answer.object, asking->code = answer.code;
    if (asking->refused) return lb_fail(err, LB_ERR_PARTIAL, "no answer");
    char *object = json_dumps(answer.object, JSON_COMPACT | JSON_REAL_PRECISION(17));
    const size_t length = object ? strlen(object) : 0, text = answer.text ? strlen(answer.text) : 0;
    const asked_head head = {answer.code, answer.text != NULL, length};
    *n = sizeof head + length + text;
    *bytes = object ? malloc(*n) : NULL;
    if (*bytes) {
        memcpy(*bytes, &head, sizeof head);
        memcpy(*bytes + sizeof head, object, length);
        if (text) memcpy(*bytes + sizeof head + length, answer.text, text);
    }
    json_decref(answer.object);
    free(object), free(answer.text);
    return *bytes ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for the answer");
}

/* Anyone may have written the part: its digest says that it arrived whole, not that it is right. */
static lb_status read_asked(const char *bytes, size_t n, lb_command_answer *answer, lb_err *err)
{
    asked_head head = {0};
    json_error_t why = {0};
    if (n >= sizeof head) memcpy(&head, bytes, sizeof head);
    const bool ends = head.code == LB_EXIT_SAME || head.code == LB_EXIT_DIFFERENT || head.code == LB_EXIT_UNTESTABLE;
    if (n < sizeof head || head.object > n - sizeof head || !ends)
        return lb_fail(err, LB_ERR_CORRUPT, "a part holds no answer");
    const char *object = bytes + sizeof head, *text = object + head.object;
    const size_t length = (size_t)(bytes + n - text);
    if (memchr(text, '\0', length)) return lb_fail(err, LB_ERR_CORRUPT, "the text of a part's answer holds a NUL");
    answer->code = head.code;
    answer->object = json_loadb(object, (size_t)head.object, 0, &why);
    const bool contradicts = answer->object ? !json_is_object(answer->object)
                                            : why.text[0] && json_error_code(&why) != json_error_out_of_memory;
    if (answer->object && !contradicts && head.text) answer->text = strndup(text, length);
    if (answer->object && !contradicts && (!head.text || answer->text)) return LB_OK;
    json_decref(answer->object), free(answer->text);
    *answer = (lb_command_answer){0};
    return contradicts ? lb_fail(err, LB_ERR_CORRUPT, "a part's answer cannot be read as a JSON object: %s", why.text)
                       : lb_fail(err, LB_ERR_NOMEM, "out of memory for the answer");
}

int lb_command_answer_print(const char *command, lb_command_answer *answer, bool json, const char *html)
{
    lb_err err = LB_ERR_INIT;
    if (!answer->object) return answer->code;
    lb_status status = lb_command_write_page(command, json_incref(answer->object), html, &err);
    if (status == LB_OK && json) lb_command_print_json(command, json_incref(answer->object));
    if (status == LB_OK && !json && answer->text) lb_command_print_text(answer->text);
    json_decref(answer->object), free(answer->text);
    return status == LB_OK ? answer->code : lb_command_fail(command, &err);
}

int lb_command_parts_once(const char *command, lb_command_run *run, const lb_command_arguments *arguments,
                          const void *options, const char *html)
{
    asking asking = {run, arguments, options, false, LB_EXIT_FAILED};
    lb_command_answer answer = {0};
    lb_err err = LB_ERR_INIT;
    char *bytes = NULL;
    size_t n = 0;
    if (!now.parts) {
        answer = run(arguments, options);
        return lb_command_answer_print(command, &answer, arguments->json, html);
    }
    lb_status status = lb_parts_once(now.parts, "answer", ask, &asking, &bytes, &n, &err);
    if (asking.refused) return asking.code;
    if (status == LB_OK) status = read_asked(bytes, n, &answer, &err);
    free(bytes);
    return status == LB_OK ? lb_command_answer_print(command, &answer, arguments->json, html)
                           : lb_command_fail(command, &err);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* What parts were wanting when they were merged. */
static void say_lacking(const char *command)
{
    const lb_parts_tally tally = lb_parts_count(now.parts);
    if (tally.lacking)
        fprintf(stderr, "lastbit %s: %llu of %llu records were in none of the parts, and were made here\n", command,
                (unsigned long long)tally.lacking, (unsigned long long)(tally.lacking + tally.taken));
}

int lb_command_parts_end(const char *command, int code)
{
    lb_err err = LB_ERR_INIT;
    lb_status status = LB_OK;
    bool mine = true;
    char *bytes = NULL;
    size_t n = 0;
    if (now.out < 0) return code;
    const bool failed = code >= LB_EXIT_FAILED;
    dup2(now.out, STDOUT_FILENO);
    close(now.out), now.out = -1;
    if (!failed) status = read_answer(&bytes, &n, &err);
    if (failed || status != LB_OK) {
        /* nothing to give */
    } else if (now.meet && now.partial) { /* the others have given the answer, and their folder is gone */
        code = LB_EXIT_SAME;
    } else if (now.one) {
        status = lb_parts_save(now.parts, output, &err);
        if (status == LB_OK) code = LB_EXIT_SAME;
    } else {
        if (now.parts && !now.meet) say_lacking(command);
        if (now.meet) status = lb_parts_answer(now.parts, bytes, n, code, &mine, &err);
        if (status == LB_OK && mine) status = give(bytes, n, &err);
        if (!mine) code = LB_EXIT_SAME;
    }
    if (status != LB_OK) code = lb_command_fail(command, &err);
    lb_parts_close(now.parts, now.own_folder);
    fclose(now.answer);
    free(bytes), free(now.folder);
    now.parts = NULL, now.folder = NULL;
    return code;
}
