/* lastbit COMMAND …: finds the command and hands over. Each command is cmd_NAME.c beside the library it drives.
 */
#include "command_line.h"

#include <lastbit/processor.h>

#include <errno.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <signal.h>
#include <stdio.h>
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
    fprintf(out,
            "usage: lastbit COMMAND [OPTIONS] ARGS\n\n"
            "Capture a training or serving step, replay it under other kernels, precisions and rank orders,\n"
            "and find the first layer, rank and op where the numbers part company.\n\nCommands:\n");
    for (size_t i = 0; i < ENTRIES; i++) fprintf(out, "  %-8s  %s\n", entries[i].name, entries[i].text);
    fprintf(out, "\n`lastbit COMMAND --help` explains each with an example.\n");
}

/* The library passes over a word that it does not know, and whoever doubts the instructions would not hear of it. */
static bool is_known_isa(const char *text)
{
    bool known = !text || !*text;
    for (int level = LB_ISA_SCALAR; level <= LB_ISA_AVX512 && !known; level++)
        known = strcmp(text, lb_isa_name((lb_isa)level)) == 0;
    return known;
}

/* An answer that did not arrive is none, whatever it said. */
static int deliver(const char *name, int code)
{
    const int had = ferror(stdout);
    if (fflush(stdout) == 0 && !had) return code;
    fprintf(stderr, "lastbit %s: its answer could not be written%s%s\n", name, had ? "" : ": ", had ? "" : strerror(errno));
    return LB_EXIT_FAILED;
}

/* Working copies come and go with every op. Left alone, glibc hands what is large back to the system at once, and the next op pays for the
 * first touch of every page, which is more than most ops compute. */
static void keep_freed_memory(void)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 128 << 20);
#endif
}

int main(int argc, const char **argv)
{
    keep_freed_memory();
    /* A reader that goes away (`lastbit ls … | head`) is no failure of ours: end quietly as other tools do. A file that grows too large
     * (ulimit -f) is a write that fails, which is said. */
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_IGN);
    if (argc < 2) {
        print_usage(stderr);
        return LB_EXIT_MISUSED;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_usage(stdout);
        return deliver("--help", LB_EXIT_SAME);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("lastbit %s\n", LB_VERSION);
        return LB_EXIT_SAME;
    }
    if (!is_known_isa(getenv("LASTBIT_ISA")))
        return lb_command_misused(argv[1], "LASTBIT_ISA=%s in the environment: expected scalar, avx2 or avx512", getenv("LASTBIT_ISA"));
    for (size_t i = 0; i < ENTRIES; i++)
        if (strcmp(argv[1], entries[i].name) == 0) {
            if (entries[i].run) return deliver(argv[1], entries[i].run(argc - 1, argv + 1));
            fprintf(stderr, "lastbit: this build has no `%s`\n", argv[1]);
            return LB_EXIT_UNTESTABLE;
        }
    fprintf(stderr, "lastbit: no command `%s`\n\n", argv[1]);
    print_usage(stderr);
    return LB_EXIT_MISUSED;
}
