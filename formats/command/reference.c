/* See reference.h. */
#include "command/reference.h"

#include "command/schema_files.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static lb_help_form chosen = LB_HELP_PAGE;

void lb_reference_choose(lb_help_form form)
{
    chosen = form;
}

lb_help_form lb_reference_form(void)
{
    return chosen;
}

/* ---- options, included tables entered ---------------------------------------------------------------------------- */

typedef void visit_option(void *context, const struct poptOption *option);

static void each_option(const struct poptOption *table, visit_option *visit, void *context)
{
    for (; table->longName || table->shortName || table->arg; table++) {
        const unsigned kind = table->argInfo & POPT_ARG_MASK;
        if (kind == POPT_ARG_INCLUDE_TABLE)
            each_option(table->arg, visit, context);
        else if (kind != POPT_ARG_CALLBACK && table->descrip && !(table->argInfo & POPT_ARGFLAG_DOC_HIDDEN))
            visit(context, table);
    }
}

static bool takes_argument(const struct poptOption *option)
{
    return (option->argInfo & POPT_ARG_MASK) != POPT_ARG_NONE;
}

/* ---- man --------------------------------------------------------------------------------------------------------- */

/* Text of roff: a backslash, a hyphen that is one, and what begins a line like a request. */
static void put_roff(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\\')
            fputs("\\e", stdout);
        else if (text[i] == '-')
            fputs("\\-", stdout);
        else if ((text[i] == '.' || text[i] == '\'') && (i == 0 || text[i - 1] == '\n'))
            printf("\\&%c", text[i]);
        else
            putchar(text[i]);
    }
}

static void put_roff_text(const char *text)
{
    put_roff(text, strlen(text));
}

/* Paragraphs are filled; indented lines stay as they are. */
static void put_roff_lines(const char *text)
{
    bool kept = false;
    while (*text) {
        const size_t line = strcspn(text, "\n");
        const bool verbatim = *text == ' ';
        if (verbatim != kept) puts(verbatim ? ".nf" : ".fi");
        kept = verbatim;
        if (line == 0)
            puts(".PP");
        else
            put_roff(text, line), putchar('\n');
        text += line + (text[line] == '\n');
    }
    if (kept) puts(".fi");
}

static void man_option(void *context, const struct poptOption *option)
{
    (void)context;
    puts(".TP");
    if (option->shortName) printf("\\fB\\-%c\\fR%s", option->shortName, option->longName ? ", " : "");
    if (option->longName) fputs("\\fB\\-\\-", stdout), put_roff_text(option->longName), fputs("\\fR", stdout);
    if (option->argDescrip) fputs(" \\fI", stdout), put_roff_text(option->argDescrip), fputs("\\fR", stdout);
    putchar('\n');
    put_roff_text(option->descrip);
    putchar('\n');
}

static void man_command(const lb_command *command, const char *text, const struct poptOption *table)
{
    printf(".TH LASTBIT\\-%s 1 \"\" \"lastbit " LB_VERSION "\" \"lastbit\"\n.SH NAME\nlastbit\\-%s \\- ", command->name,
           command->name);
    put_roff_text(text);
    printf("\n.SH SYNOPSIS\n\\fBlastbit %s\\fR [\\fIOPTIONS\\fR] ", command->name);
    put_roff_text(command->synopsis);
    puts("\n.SH DESCRIPTION");
    put_roff_lines(command->about);
    puts("\n.SH OPTIONS");
    each_option(table, man_option, NULL);
    if (command->example) {
        puts(".SH EXAMPLES\n.nf");
        put_roff_text(command->example);
        puts("\n.fi");
    }
    char *fields = lb_schema_files_fields(command->name);
    puts(".SH JSON\n"
         "Fields of what is printed with \\fB\\-\\-json\\fR; \\fBlastbit help \\-\\-schema\\fR describes each.\n"
         ".PP");
    put_roff_text(fields ? fields : "");
    free(fields);
    puts("\n"
         ".SH EXIT STATUS\n"
         "0 same or clean; 1 different or found; 125 cannot be tested: read, but nothing in it can be judged; "
         "128 failed: a file is missing, unreadable, empty or of another kind; 129 misused.\n"
         ".SH SEE ALSO\n"
         "\\fBlastbit\\fR(1); \\fBlastbit help\\fR lists topics.");
}

void lb_reference_main_man(const char *const *names, const char *const *texts, int n)
{
    puts(".TH LASTBIT 1 \"\" \"lastbit " LB_VERSION "\" \"lastbit\"\n"
         ".SH NAME\n"
         "lastbit \\- trace replay and bisection for the numerics of LLM training and serving\n"
         ".SH SYNOPSIS\n"
         "\\fBlastbit\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR] \\fIARGS\\fR\n"
         ".SH DESCRIPTION\n"
         "Captures a training or serving step, "
         "replays it under other kernels, precisions and rank orders, "
         "and finds the first layer, "
         "rank and op where the numbers part company.\n"
         ".SH COMMANDS");
    for (int i = 0; i < n; i++) {
        printf(".TP\n\\fBlastbit\\-%s\\fR(1)\n", names[i]);
        put_roff_text(texts[i]);
        putchar('\n');
    }
}

/* ---- shells ------------------------------------------------------------------------------------------------------ */

static void bash_option(void *context, const struct poptOption *option)
{
    (void)context;
    if (option->shortName) printf(" -%c", option->shortName);
    if (option->longName) printf(" --%s", option->longName);
}

/* In single quotes, of which a shell ends one at each that the text has; `escaped` take a backslash. */
static void put_quoted(const char *text, const char *escaped)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", stdout);
        else if (strchr(escaped, *text))
            printf("\\%c", *text);
        else
            putchar(*text == '\n' ? ' ' : *text);
    }
}

/* '*--option[what it does]:value:_files' of each spelling. */
static void zsh_option(void *context, const struct poptOption *option)
{
    (void)context;
    for (int form = 0; form < 2; form++) {
        if (form ? !option->longName : !option->shortName) continue;
        if (form)
            printf(" \\\n        '*--%s[", option->longName);
        else
            printf(" \\\n        '*-%c[", option->shortName);
        put_quoted(option->descrip, "[]:\\");
        fputs(takes_argument(option) ? "]:value:_files'" : "]'", stdout);
    }
}

static void fish_option(void *context, const struct poptOption *option)
{
    printf("complete -c lastbit -n '__fish_seen_subcommand_from %s'", (const char *)context);
    if (option->shortName) printf(" -s %c", option->shortName);
    if (option->longName) printf(" -l %s", option->longName);
    if (takes_argument(option)) fputs(" -r", stdout);
    fputs(" -d '", stdout);
    put_quoted(option->descrip, "\\");
    puts("'");
}

/* ---- Markdown ---------------------------------------------------------------------------------------------------- */

static void markdown_option(void *context, const struct poptOption *option)
{
    (void)context;
    fputs("| `", stdout);
    if (option->shortName) printf("-%c%s", option->shortName, option->longName ? ", " : "");
    if (option->longName) printf("--%s", option->longName);
    if (option->argDescrip) printf(" %s", option->argDescrip);
    fputs("` | ", stdout);
    for (const char *c = option->descrip; *c; c++)
        if (strchr("|<>*_`", *c))
            printf("\\%c", *c);
        else
            putchar(*c);
    puts(" |");
}

static void markdown_command(const lb_command *command, const struct poptOption *table)
{
    printf("## lastbit %s\n\n    lastbit %s [OPTIONS] %s\n\n%s\n\n| option | |\n|---|---|\n", command->name,
           command->name, command->synopsis, command->about);
    each_option(table, markdown_option, NULL);
    if (command->example) printf("\n```\n%s\n```\n", command->example);
    char *fields = lb_schema_files_fields(command->name);
    if (fields) printf("\nWith `--json`: %s; `lastbit help --schema %s` describes each.\n", fields, command->name);
    free(fields);
    putchar('\n');
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

void lb_reference_begin(void)
{
    switch (chosen) {
    case LB_HELP_BASH:
        puts("# bash completion of lastbit\n_lastbit() {\n    local word=${COMP_WORDS[COMP_CWORD]} options= commands=\n"
             "    case ${COMP_WORDS[1]} in");
        break;
    case LB_HELP_ZSH: puts("#compdef lastbit\n_lastbit() {\n    local -a commands\n    case ${words[2]} in"); break;
    case LB_HELP_FISH: puts("# fish completion of lastbit"); break;
    case LB_HELP_MARKDOWN:
        puts("# lastbit: every command and option\n\nPrinted by `lastbit help --markdown`.\n");
        break;
    default: break;
    }
}

void lb_reference_command(const lb_command *command, const char *text, const struct poptOption *table)
{
    switch (chosen) {
    case LB_HELP_MAN: man_command(command, text, table); break;
    case LB_HELP_BASH:
        printf("    %s) options=\"", command->name);
        each_option(table, bash_option, NULL);
        puts("\" ;;");
        break;
    case LB_HELP_ZSH:
        printf("    %s) shift words; ((CURRENT--)); _arguments '*:file:_files'", command->name);
        each_option(table, zsh_option, NULL);
        puts(" ;;");
        break;
    case LB_HELP_FISH:
        printf("complete -c lastbit -n __fish_use_subcommand -f -a %s -d '", command->name);
        put_quoted(text, "\\");
        puts("'");
        each_option(table, fish_option, (void *)command->name);
        break;
    case LB_HELP_MARKDOWN: markdown_command(command, table); break;
    case LB_HELP_PAGE: break;
    }
}

#define NAME(name, text) " " #name
#define ZSH_NAME(name, text) " '" #name ":" text "'"
void lb_reference_end(void)
{
    if (chosen == LB_HELP_BASH)
        puts("    esac\n    if [ \"$COMP_CWORD\" = 1 ]; then\n        COMPREPLY=($(compgen -W \"help" LB_COMMANDS(
            NAME) "\" -- \"$word\"))\n    elif [ \"${word#-}\" != \"$word\" ]; then\n"
                  "        COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n    else\n"
                  "        COMPREPLY=($(compgen -f -- \"$word\"))\n    fi\n}\ncomplete -o filenames -F _lastbit "
                  "lastbit");
    if (chosen == LB_HELP_ZSH)
        puts(
            "    *) commands=(" LB_COMMANDS(ZSH_NAME) "); _describe command commands ;;\n    esac\n}\n_lastbit \"$@\"");
}
