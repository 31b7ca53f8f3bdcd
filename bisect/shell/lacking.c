/* See lastbit/lacking.h. */
#define _GNU_SOURCE /* asprintf */
#include <lastbit/lacking.h>

#include "shell/shell_word.h"

#include <inttypes.h>
#include <lastbit/bisect.h>
#include <lastbit/text_stream.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add_layer(lb_lack *lack, const char *layer)
{
    if (!*layer) { /* outside every module: no pattern is narrower than all of them */
        lack->n_layers = LB_LACK_LAYERS + 1;
        return;
    }
    for (uint32_t i = 0; lack->n_layers <= LB_LACK_LAYERS && i < lack->n_layers; i++)
        if (!strcmp(lack->layers[i], layer)) return;
    if (lack->n_layers < LB_LACK_LAYERS) lack->layers[lack->n_layers] = layer;
    if (lack->n_layers <= LB_LACK_LAYERS) lack->n_layers++;
}

void lb_lack_add(lb_lack *lack, const lb_program *program, uint32_t op)
{
    const bool first = lack->world == 0;
    if (first || program->step < lack->first_step) lack->first_step = program->step;
    if (first || program->step > lack->last_step) lack->last_step = program->step;
    if (first || program->rank < lack->first_rank) lack->first_rank = program->rank;
    if (first || program->rank > lack->last_rank) lack->last_rank = program->rank;
    if (first || program->level < lack->level) lack->level = program->level;
    lack->world = program->world > 0 ? (uint32_t)program->world : 1;
    if (op == LB_NONE)
        lack->n_layers = LB_LACK_LAYERS + 1;
    else
        add_layer(lack, lb_op_layer(program, &program->ops[op]));
    lack->ops += op != LB_NONE;
}

static void print_range(FILE *out, int64_t first, int64_t last)
{
    fprintf(out, "%" PRId64, first);
    if (last != first) fprintf(out, "-%" PRId64, last);
}

/* Exactly these layers, as a pattern; false: out of memory. */
static bool print_layers(FILE *out, const lb_lack *lack)
{
    char *pattern = NULL;
    size_t size = 0;
    FILE *text = lb_text_stream_open(&pattern, &size);
    if (!text) return false;
    fputs("^(", text);
    for (uint32_t i = 0; i < lack->n_layers; i++) {
        if (i) fputc('|', text);
        for (const char *c = lack->layers[i]; *c; c++) {
            if (strchr("\\^$.[|()?*+{", *c)) fputc('\\', text);
            fputc(*c, text);
        }
    }
    fputs(")$", text);
    if (fclose(text) != 0) return false;
    fputs(" --layers ", out);
    lb_shell_word(out, pattern);
    free(pattern);
    return true;
}

/* False: out of memory. */
static bool print_command(FILE *out, const lb_lack *lack, lb_capture *capture, const char *like)
{
    char *program = capture ? lb_recorded_program(capture, lack->first_rank, lack->world) : NULL;
    fputs("lastbit record -o again.lb ", out);
    if (like) {
        fputs("--like ", out);
        lb_shell_word(out, like);
    } else {
        fputs("--level ops", out);
    }
    fputs(" --steps ", out);
    print_range(out, lack->first_step, lack->last_step);
    if (lack->world > 1 && lack->last_rank == lack->first_rank) fprintf(out, " --ranks %" PRId32, lack->first_rank);
    const bool whole = like || lack->n_layers > LB_LACK_LAYERS || print_layers(out, lack);
    fprintf(out, " -- %s", program ? program : "YOUR PROGRAM");
    free(program);
    return whole;
}

/* What was printed, or NULL where it is not whole. */
static char *printed(FILE *out, bool whole, char **text)
{
    if (fclose(out) == 0 && whole) return *text;
    free(*text);
    return NULL;
}

char *lb_lack_command(const lb_lack *lack, lb_capture *capture, const char *like)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lack->world ? lb_text_stream_open(&text, &size) : NULL;
    if (!out) return NULL;
    const bool whole = print_command(out, lack, capture, like);
    return printed(out, whole, &text);
}

char *lb_lack_sentence(const lb_lack *lack, lb_capture *capture, const char *who, const char *like)
{
    static const char *const levels[] = {"stats", "sources", "layers", "ops"};
    char *text = NULL;
    size_t size = 0;
    FILE *out = lack->world ? lb_text_stream_open(&text, &size) : NULL;
    if (!out) return NULL;
    fputs(who ? who : "the capture", out);
    fputs(" lacks bytes of ", out);
    if (lack->ops) fprintf(out, "%" PRIu64 " op%s of ", lack->ops, lack->ops == 1 ? "" : "s");
    fputs(lack->first_step == lack->last_step ? "step " : "steps ", out);
    print_range(out, lack->first_step, lack->last_step);
    fprintf(out, " (%s reached level %s)\n  to record them: ", who ? "it" : "which",
            lack->level < 4 ? levels[lack->level] : "");
    const bool whole = print_command(out, lack, capture, like);
    fputc('\n', out);
    return printed(out, whole, &text);
}
