/* What every command shares: popt for options, exit codes, progress on stderr, JSON on stdout.
 *
 * A command is `int lb_cmd_NAME(int argc, const char **argv)`, argv[0] being its name; it returns an exit code.
 * cmd_NAME.c stands beside the library it drives and uses public headers and this one.
 */
#ifndef LB_COMMAND_LINE_H
#define LB_COMMAND_LINE_H

#include <lastbit/replay.h>
#include <popt.h>
#include <lastbit/json_text.h>

/* Exit codes fit `git bisect run`. Of files every command says the same: one that is missing, unreadable, empty, or of
 * no kind that the command reads is FAILED; one that is read but holds nothing that could be judged (no step, no op, no
 * number) is UNTESTABLE; damage is DIFFERENT for those that look for it, `verify` and `audit`. Wrong words on the
 * command line are MISUSED, wrong words in a file that it names are not. */
enum lb_exit {
    LB_EXIT_SAME = 0,
    LB_EXIT_DIFFERENT = 1,
    LB_EXIT_UNTESTABLE = 125,
    LB_EXIT_FAILED = 128,
    LB_EXIT_MISUSED = 129
};

/* X(name, one line for `lastbit --help`) */
#define LB_COMMANDS(X)                                                                                                 \
    X(record, "run a program and record its steps")                                                                    \
    X(doctor, "say what recording would see here, and what not")                                                       \
    X(ls, "list steps, ranks, layers, ops and values of a capture")                                                    \
    X(show, "show one value: statistics, contents, histogram; export as .npy")                                         \
    X(verify, "check every checksum and rule of a capture")                                                            \
    X(recover, "rebuild a capture whose writer was killed or whose index is damaged")                                  \
    X(pack, "pack a capture into one compressed file; strip private bytes")                                            \
    X(gather, "bring steps of ranks from the folders of several machines together in one capture")                     \
    X(replay, "re-execute recorded steps, as they were or under swaps")                                                \
    X(diff, "compare two captures layer by layer")                                                                     \
    X(explain, "say which kernel, precision or order turns one capture into another")                                  \
    X(order, "find the order in which a live kernel adds up")                                                          \
    X(bisect, "find the cause of a failing step")                                                                      \
    X(parity, "compare the log-probabilities that two runs gave the same tokens")                                      \
    X(watch, "read the log of a run, finished or growing, for what goes wrong in it")                                  \
    X(audit, "say whether a checkpoint or an adapter holds what was trained")                                          \
    X(fingerprint, "say of each tensor 128 bits that survive sharding, and which tensors did not arrive")              \
    X(report, "one HTML page of what other commands found")                                                            \
    X(ranks, "say whether data-parallel workers drift apart, and why")                                                 \
    X(check, "say what a recording proves by itself: is the gradient the derivative of the loss?")

#define LB_COMMAND_DECLARE(name, text) int lb_cmd_##name(int argc, const char **argv);
LB_COMMANDS(LB_COMMAND_DECLARE)
#undef LB_COMMAND_DECLARE

/* Describes a command to the shared parser. */
typedef struct lb_command {
    const char *name;
    const char *synopsis;             /* "CAPTURE [CAPTURE2]" */
    const char *about;                /* paragraphs for --help */
    const char *example;              /* a worked example, shown by --help */
    const struct poptOption *options; /* ended by POPT_TABLEEND; --json and --help are added */
    int min_args, max_args;           /* positional; max -1: any */
    bool stop_at_first_arg;           /* POSIX order: what follows belongs to another program (`record -- CMD`) */
    bool parts;                       /* several workers may share it: command_parts.h */
} lb_command;

typedef struct lb_command_arguments {
    poptContext context;
    const char **args; /* positional, NULL-terminated */
    int n_args;
    bool json;
} lb_command_arguments;

/* Returns -1 to go on, otherwise the exit code (0 after --help, 129 after wrong usage, said on stderr). */
int lb_command_arguments_parse(const lb_command *command, int argc, const char **argv, lb_command_arguments *arguments);
void lb_command_arguments_release(lb_command_arguments *arguments);

/* Swaps as options that may be given several times: --precision, --kernel, --order, --rounding, --skip, --muon,
 * --contribution, --source, --routing, --accumulate, --update, --fuse. lb_command_swaps_table gives a table to include,
 * valid as long as `list`, which gathers what was given. */
enum { LB_SWAP_KINDS = LB_SWAP_FUSE + 1 };
typedef struct lb_command_swaps {
    lb_swap *rows;
    uint32_t n;
    lb_err err; /* the first that could not be read */
    struct poptOption table[LB_SWAP_KINDS + 2];
} lb_command_swaps;
const struct poptOption *lb_command_swaps_table(lb_command_swaps *list);
const char *lb_command_swap_option(lb_swap_kind kind); /* "precision", … */
void lb_command_swaps_release(lb_command_swaps *list);

/* "lastbit NAME: message" on stderr; returns the exit code for the status (125 for not captured or unsupported,
 * else 128). LB_ERR_PARTIAL is no failure: nothing is said, and other parts have the rest. */
int lb_command_fail(const char *command, const lb_err *err);
int lb_command_misused(const char *command, const char *format, ...) LB_PRINTF(2, 3);

/* The folder of the Python package: LASTBIT_PYTHON, beside the executable (installed), or in the sources; malloc'ed. */
char *lb_command_python_folder(void);

/* A number of an answer: null for a NaN, "inf" and "-inf", for which JSON has no words. */
json_t *lb_command_json_number(double x);
/* The same with null for infinities, too. */
json_t *lb_command_json_finite(double x);
/* A line of the recorded program's code: {file, line, function, text}; null where none is known. */
json_t *lb_command_json_line(const lb_code_line *line);
/* Prints one object with "schema": "lastbit.NAME/1" first, "command", the line that gave it, and "inputs", the files
 * that it is about, each with the program and the time of its recording where it is a capture; frees the object. */
void lb_command_print_json(const char *command, json_t *object);
/* The same object as a page (`--html FILE`, lastbit/report.h); frees it. LB_OK when `path` is NULL. */
lb_status lb_command_write_page(const char *command, json_t *object, const char *path, lb_err *err);

/* A name as a user typed it, as names are spelt (lastbit/text.h): bytes of it, or what an answer printed. Takes the
 * malloc'ed text over, gives another; NULL stays. */
char *lb_command_name_argument(char *typed);
/* A whole number and nothing behind it; `number` is written whatever it is. */
bool lb_command_parse_integer(const char *text, int64_t *number);
/* "100" or "100-102", as --steps takes them. False on anything else. */
bool lb_command_parse_steps(const char *text, int64_t *first, int64_t *last);
/* "500M", "1.5GiB", "1000000": bytes, or in powers of 1024. False on anything else, on 0 and on overflow. */
bool lb_command_parse_size(const char *text, uint64_t *bytes);
/* The argument of --memory; NULL: none was given, and `bytes` stays. LB_ERR_INVALID says what is expected. */
lb_status lb_command_parse_memory(const char *text, uint64_t *bytes, lb_err *err);

/* "10.3 MB", in powers of 1024 as --budget takes them; gives `text`. */
const char *lb_command_bytes_text(uint64_t bytes, char text[16]);

/* Verdicts have a colour on a terminal, unless NO_COLOR is set or TERM is dumb; never in a pipe or a file. One word,
 * padded to `width`; a text, in which verdicts stand first on a line, in a column, or after "verdict: ". */
void lb_command_print_verdict(const char *word, int width);
void lb_command_print_text(const char *text);
/* "[2,3]" */
void lb_command_print_shape(const lb_layout *layout);

/* On stderr: a bar where that is a terminal, from two seconds on, otherwise a line every five seconds. `total` 0: it is
 * not known. `what`: static. */
void lb_command_progress(const char *what, uint64_t done, uint64_t total);
void lb_command_progress_end(void);
/* From here on nothing: another worker shows it. */
void lb_command_progress_hide(void);

#endif
