/* What commands print for a person: verdicts in their colours on a terminal that has colours; see command_line.h. */
#include "command/command_line.h"

#include "command/text_door.h"

#include <lastbit/text.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_coloured(void)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && !(no && *no) && term && *term && strcmp(term, "dumb") != 0;
}

/* The code of a verdict's colour: green is well, red is not, yellow is in between; NULL: no verdict. */
static const char *colour_of(const char *word, size_t n)
{
    static const struct {
        const char *word, *code;
    } colours[] = {{"identical", "32"}, {"clean", "32"},    {"reordered", "33"}, {"rounding", "33"},
                   {"noise", "33"},     {"diverged", "31"}, {"failure", "31"},   {"culprit", "31"},
                   {"missing", "35"},   {"opaque", "35"},   {"undecided", "35"}, {"swapped", "36"}};
    for (size_t i = 0; i < sizeof colours / sizeof *colours; i++)
        if (strlen(colours[i].word) == n && !strncmp(word, colours[i].word, n)) return colours[i].code;
    return NULL;
}

static void print_verdict(const char *word, size_t n)
{
    const char *code = is_coloured() ? colour_of(word, n) : NULL;
    if (code)
        printf("%s%.*s%s", lb_text_code(code), (int)n, word, lb_text_code("0"));
    else
        printf("%.*s", (int)n, word);
}

void lb_command_print_verdict(const char *word, int width)
{
    const size_t n = strlen(word);
    print_verdict(word, n);
    printf("%*s", width > (int)n ? width - (int)n : 0, "");
}

/* Whether what ends at `at` lets a verdict follow: the start of a line, two columns of space, "verdict: ". */
static bool may_follow(const char *text, const char *at)
{
    const size_t n = (size_t)(at - text);
    if (n == 0 || at[-1] == '\n') return true;
    return at[-1] == ' ' && n > 1 && (at[-2] == ' ' || at[-2] == '\n' || (n >= 9 && !strncmp(at - 9, "verdict: ", 9)));
}

void lb_command_print_text(const char *text)
{
    for (const char *at = text; *at;) {
        const size_t n = strspn(at, "abcdefghijklmnopqrstuvwxyz");
        const bool whole = n && (!at[n] || strchr(" :\n", at[n])) && may_follow(text, at);
        if (whole)
            print_verdict(at, n);
        else
            printf("%.*s", n ? (int)n : 1, at);
        at += n ? n : 1;
    }
}

void lb_command_print_shape(const lb_layout *layout)
{
    putchar('[');
    for (int d = 0; d < layout->ndim; d++) printf(d ? ",%" PRId64 : "%" PRId64, layout->shape[d]);
    putchar(']');
}
