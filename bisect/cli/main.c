/* lastbit COMMAND …: finds the command and hands over. Each command is cmd_NAME.c beside the library it drives.
 */
#include "command/command_line.h"

#include "cli/surroundings.h"
#include "command/command_parts.h"
#include "command/help_page.h"
#include "command/refusal.h"
#include "command/reference.h"
#include "command/schema_files.h"
#include "command/text_door.h"

#include <lastbit/output.h>
#include <lastbit/processor.h>

#include <errno.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <signal.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>

typedef struct lb_entry {
    const char *name, *text;
    int (*run)(int argc, const char **argv);
} lb_entry;

/* Weak: a build without a part (capture without Python, say) still links, and says which command it lacks. */
#define WEAK(name, text) extern int lb_cmd_##name(int argc, const char **argv) __attribute__((weak));
LB_COMMANDS(WEAK)
#undef WEAK

static const lb_entry entries[] = {
#define ENTRY(name, text) {#name, text, lb_cmd_##name},
    LB_COMMANDS(ENTRY)
#undef ENTRY
};
enum { ENTRIES = sizeof entries / sizeof *entries };

static void print_usage(FILE *out)
{
    fprintf(out, "usage: lastbit COMMAND [OPTIONS] ARGS\n\n"
                 "Capture a training or serving step, replay it under other kernels, precisions and rank orders,\n"
                 "and find the first layer, rank and op where the numbers part company.\n\nCommands:\n");
    for (size_t i = 0; i < ENTRIES; i++) fprintf(out, "  %-11s  %s\n", entries[i].name, entries[i].text);
    fprintf(out, "\n`lastbit help COMMAND` explains each with an example; `lastbit help` lists topics, too.\n");
}

static const lb_entry *find_entry(const char *name)
{
    for (size_t i = 0; i < ENTRIES; i++)
        if (strcmp(name, entries[i].name) == 0) return &entries[i];
    return NULL;
}

static int run_entry(const lb_entry *entry, int argc, const char **argv)
{
    if (entry->run) return entry->run(argc, argv);
    fprintf(stderr, "lastbit: this build has no `%s`\n", entry->name);
    return LB_EXIT_UNTESTABLE;
}

/* `lastbit help [COMMAND or TOPIC]` */
static int print_page(const char *name)
{
    const lb_entry *entry = name ? find_entry(name) : NULL;
    const char *asked[] = {name, "--help", NULL};
    if (entry) return run_entry(entry, 2, asked);
    if (name && lb_help_topic(name)) return LB_EXIT_SAME;
    if (name) {
        fprintf(stderr, "lastbit help: no command and no topic `%s`; `lastbit help` lists both\n", name);
        return LB_EXIT_MISUSED;
    }
    print_usage(stdout);
    printf("\nTopics of `lastbit help TOPIC`:\n");
    lb_help_list_topics();
    printf("\nVerdicts have a colour on a terminal, unless NO_COLOR is set or TERM is dumb.\n");
    return LB_EXIT_SAME;
}

static int misused_reference(void)
{
    fprintf(stderr,
            "lastbit help: expected --man [COMMAND], --complete bash|zsh|fish, --markdown, or --schema COMMAND\n");
    return LB_EXIT_MISUSED;
}

static int print_man(const char *name)
{
    const char *names[ENTRIES], *texts[ENTRIES];
    if (name && !find_entry(name)) return misused_reference();
    if (name) return print_page(name);
    for (size_t i = 0; i < ENTRIES; i++) names[i] = entries[i].name, texts[i] = entries[i].text;
    lb_reference_main_man(names, texts, ENTRIES);
    return LB_EXIT_SAME;
}

/* `lastbit help --man [COMMAND]`, `--complete SHELL`, `--markdown`, `--schema COMMAND` */
static int print_reference(const char *form, const char *what)
{
    static const struct {
        const char *shell;
        lb_help_form form;
    } shells[] = {{"bash", LB_HELP_BASH}, {"zsh", LB_HELP_ZSH}, {"fish", LB_HELP_FISH}};
    lb_help_form all = strcmp(form, "--markdown") == 0 && !what ? LB_HELP_MARKDOWN : LB_HELP_PAGE;
    for (int i = 0; i < 3 && what && strcmp(form, "--complete") == 0; i++)
        if (strcmp(what, shells[i].shell) == 0) all = shells[i].form;
    if (strcmp(form, "--schema") == 0) return what && lb_schema_files_print(what) ? LB_EXIT_SAME : misused_reference();
    lb_reference_choose(strcmp(form, "--man") == 0 ? LB_HELP_MAN : all);
    if (strcmp(form, "--man") == 0) return print_man(what);
    if (all == LB_HELP_PAGE) return misused_reference();
    lb_reference_begin();
    for (size_t i = 0; i < ENTRIES; i++) print_page(entries[i].name);
    lb_reference_end();
    return LB_EXIT_SAME;
}

/* The library passes over a word that it does not know, and a user who doubts the instructions would not hear of it. */
static bool is_known_isa(const char *text)
{
    bool known = !text || !*text;
    for (int level = LB_ISA_SCALAR; level <= LB_ISA_AVX512 && !known; level++)
        known = strcmp(text, lb_processor_isa_name((lb_isa)level)) == 0;
    return known;
}

/* An answer that did not arrive is none, whatever it said; nor is one that was made while the system refused memory or
 * a read. */
static int deliver(const char *name, int code)
{
    const int had = ferror(stdout), kept = lb_refusal_end(code);
    if (kept != code) __fpurge(stdout);
    if (fflush(stdout) == 0 && !had) return lb_refusal_end(lb_command_parts_end(name, kept));
    fprintf(stderr, "lastbit %s: its answer could not be written%s%s\n", name, had ? "" : ": ",
            had ? "" : strerror(errno));
    return lb_refusal_end(LB_EXIT_FAILED);
}

/* Working copies come and go with every op. Left alone, glibc hands what is large back to the system at once, and the
 * next op pays for the first touch of every page, which is more than most ops compute. */
static void keep_freed_memory(void)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 128 << 20);
#endif
}

/* What was half written goes with the command. */
static void leave_nothing(int signal_number)
{
    lb_output_remove_drafts();
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/* A command that watches or records has handlers of its own, which come after. */
static void catch_signals(void)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction now;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (sigaction(ends[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL) signal(ends[i], leave_nothing);
}

/* The command's exit code. */
static int run(int argc, const char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return LB_EXIT_MISUSED;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_usage(stdout);
        return LB_EXIT_SAME;
    }
    if (strcmp(argv[1], "help") == 0 && argc > 2 && argv[2][0] == '-')
        return print_reference(argv[2], argc > 3 ? argv[3] : NULL);
    if (strcmp(argv[1], "help") == 0) return print_page(argc > 2 ? argv[2] : NULL);
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        printf("lastbit %s\n", LB_VERSION);
        return LB_EXIT_SAME;
    }
    if (!is_known_isa(getenv("LASTBIT_ISA")))
        return lb_command_misused(argv[1], "LASTBIT_ISA=%s in the environment: expected scalar, avx2 or avx512",
                                  getenv("LASTBIT_ISA"));
    const lb_entry *entry = find_entry(argv[1]);
    if (entry) return run_entry(entry, argc - 1, argv + 1);
    fprintf(stderr, "lastbit: no command `%s`\n\n", argv[1]);
    print_usage(stderr);
    return LB_EXIT_MISUSED;
}

int main(int argc, const char **argv)
{
    const char *command = argc > 1 ? argv[1] : "help";
    if (argc > 1) lb_surroundings_enter(argv[1], argv);
    lb_refusal_begin(command);
    keep_freed_memory();
    lb_text_door_open();
    /* A reader that goes away (`lastbit ls … | head`) is no failure of ours: end quietly as other tools do. A file that
     * grows too large (ulimit -f) is a write that fails, which is said. */
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_IGN);
    catch_signals();
    return deliver(command, lb_surroundings_run(run, argc, argv));
}
