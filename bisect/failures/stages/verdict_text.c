/* The verdict of a bisection for a person, and the commands that show it again: see lastbit/bisect.h. */
#include <lastbit/bisect.h>
#include <lastbit/text_stream.h>

#include "shell/shell_word.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LABEL = 10, WIDTH = 110 };

/* ---- laying out ------------------------------------------------------------------------------------------------- */

/* Words broken into lines behind a label; a newline in the text begins a line. */
static void put_text(FILE *out, const char *label, const char *text)
{
    int column = fprintf(out, "%-*s", LABEL, label);
    for (bool first = true; *text;) {
        size_t n = strcspn(text, " \n");
        if (!first && column + 1 + (int)n > WIDTH) {
            fprintf(out, "\n%*s", LABEL, "");
            column = LABEL, first = true;
        }
        column += fprintf(out, "%s%.*s", first ? "" : " ", (int)n, text);
        first = text[n] == '\n';
        if (first) {
            fprintf(out, "\n%*s", LABEL, "");
            column = LABEL;
        }
        text += n + (text[n] != 0);
    }
    fputc('\n', out);
}

/* A command is one line, however long: it is there to be pasted. */
static void put_command(FILE *out, const char *label, char *command)
{
    if (command) fprintf(out, "%-*s%s\n", LABEL, label, command);
    free(command);
}

/* ---- commands --------------------------------------------------------------------------------------------------- */

static char *command(const char *words, const char *path, const char *asked, const char *more)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    fprintf(out, "lastbit %s ", words);
    lb_shell_word(out, path);
    if (asked && *asked) fprintf(out, " %s", asked);
    if (more && *more) fprintf(out, " %s", more);
    fclose(out);
    return text;
}

/* Of the changes that were seen to cure, on the way to the smallest: the shortest to type, if the smallest is long. */
static const char *shown_cure(const lb_bisection *b)
{
    enum { SHORT = 140 };
    const char *best = b->cure;
    if (!b->cure || strlen(b->cure) <= SHORT || b->n_culprits == 0) return best;
    for (uint32_t i = 0; i < b->n_trials; i++) { /* later ones are narrower */
        const lb_trial *t = &b->trials[i];
        if (!strcmp(t->outcome, "cured") && strcmp(t->purpose, "note") && *t->change && strlen(t->change) <= SHORT)
            best = t->change;
    }
    return best;
}

static bool replay_cures(const lb_bisection *b)
{
    return b->n_culprits && b->culprits[0].axis == LB_AXIS_KERNEL && !b->cure;
}

/* What a source holds shows it, and no replay does. */
static char *show_source(const lb_bisection *b, const char *path)
{
    char which[260];
    snprintf(which, sizeof which, "--step %" PRId64 " --rank %d --name %s", b->failure.step, b->failure.rank,
             b->n_culprits ? b->culprits[0].parameter : "");
    return command("show", path, which, NULL);
}

char *lb_bisect_show_text(const lb_bisection *b, const char *path)
{
    if (b->command) return strdup(b->command);
    if (b->outcome == LB_BISECT_CLEAN && !b->checked && !b->reference) return command("check", path, NULL, NULL);
    if (b->failure.kind == LB_FAILURE_NONE) return NULL;
    if (b->reference) {
        char *other = command("diff", path, NULL, NULL), *both = NULL;
        size_t size = 0;
        FILE *out = other ? lb_text_stream_open(&both, &size) : NULL;
        if (out) {
            fprintf(out, "%s ", other);
            lb_shell_word(out, b->reference);
            fclose(out);
        }
        free(other);
        return both;
    }
    if (b->failure.kind == LB_FAILURE_RANKS) return command("ranks", path, NULL, NULL);
    if (!strcmp(b->failure.name, "lb::source")) return show_source(b, path);
    if (replay_cures(b)) return command("replay", path, NULL, NULL);
    if (b->reproducer) return command("bisect --check", b->reproducer, b->asked, NULL);
    return command("bisect --check", path, b->asked, NULL);
}

char *lb_bisect_cure_text(const lb_bisection *b, const char *path)
{
    if (b->command) return b->cure ? strdup(b->cure) : NULL;
    if (replay_cures(b)) return command("bisect --check", path, b->asked, NULL);
    return b->cure ? command("bisect --check", path, b->asked, shown_cure(b)) : NULL;
}

/* ---- culprits --------------------------------------------------------------------------------------------------- */

static const char *block_name(char letter)
{
    switch (letter) {
    case 'A': return "attention";
    case 'D': return "dense MLP";
    case 'E': return "mixture of experts";
    case 'M': return "Mamba/SSM";
    case 'R': return "recurrent";
    default: return "";
    }
}

static void put_ranks(FILE *out, const lb_culprit *c)
{
    fprintf(out, c->n_ranks == 1 ? "rank " : "ranks ");
    for (uint32_t i = 0; i < c->n_ranks && i < 16; i++) fprintf(out, "%s%d", i ? ", " : "", c->ranks[i]);
    if (c->n_ranks > 16) fprintf(out, ", … (%u)", c->n_ranks);
}

static char *culprit_text(const lb_culprit *c)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    if (c->step < 0) /* of a live job: nothing more is known */
        fprintf(out, "%s%s%s", lb_bisect_axis_name(c->axis), *c->layer ? ": " : "", c->layer);
    else
        fprintf(out, "%s: %s", c->axis == LB_AXIS_BLOCK && !c->block ? "op" : lb_bisect_axis_name(c->axis),
                *c->layer ? c->layer : "(outside every module)");
    if (*c->op) fprintf(out, " %s", strcmp(c->op, "lb::source") ? c->op : "(its data)");
    if (*c->parameter) fprintf(out, " of %s", c->parameter);
    if (c->n_ranks && c->step < 0) {
        fprintf(out, ", ");
        put_ranks(out, c);
    } else if (c->n_ranks) {
        fprintf(out, "\n%s of step %" PRId64 ", ", lb_phase_name(c->phase), c->between ? c->acts : c->step);
        if (c->between) fprintf(out, "recorded behind step %" PRId64 "'s optimizer, ", c->step);
        put_ranks(out, c);
    }
    if (c->block) fprintf(out, ", block class %c (%s)", c->block, block_name(c->block));
    fclose(out);
    return text;
}

static void put_line(FILE *out, const char *label, const lb_code_line *line)
{
    char text[LB_LINE_TEXT + 200];
    lb_code_line_text(line, text, sizeof text);
    if (*text) fprintf(out, "%-*s%s\n", LABEL, label, text);
}

static void put_culprit(FILE *out, const char *label, const lb_culprit *c)
{
    char *text = culprit_text(c);
    put_text(out, label, text ? text : "");
    put_line(out, "line", &c->lines[0]);
    put_line(out, "reference", &c->lines[1]);
    put_text(out, "why", c->why);
    free(text);
}

static bool like_the_first(const lb_bisection *b, uint32_t i)
{
    const lb_culprit *c = &b->culprits[i], *first = &b->culprits[0];
    return b->n_culprits > 2 && c->axis == first->axis && c->step == first->step && c->phase == first->phase;
}

static bool listed_before(const lb_bisection *b, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (like_the_first(b, k) && !strcmp(b->culprits[k].layer, b->culprits[i].layer)) return true;
    return false;
}

/* Culprits that differ from the first in their layer alone share a line. False: out of memory. */
static bool put_culprits(FILE *out, const lb_bisection *b)
{
    enum { SHOWN = 6 };
    char *alike = NULL, more[80];
    size_t size = 0;
    uint32_t n = 0, shown = 1;
    put_culprit(out, "culprit", &b->culprits[0]);
    FILE *list = lb_text_stream_open(&alike, &size);
    for (uint32_t i = 1; i < b->n_culprits && list; i++) {
        if (!like_the_first(b, i)) {
            if (shown++ < SHOWN) put_culprit(out, "and", &b->culprits[i]);
        } else if (!listed_before(b, i))
            fprintf(list, "%s%s", n++ ? ", " : "", b->culprits[i].layer);
    }
    if (!list || fclose(list) != 0) return false;
    if (n) put_text(out, "likewise", alike);
    snprintf(more, sizeof more, "%u more; --json lists them", shown - SHOWN);
    if (shown > SHOWN) put_text(out, "and", more);
    free(alike);
    const lb_failure *f = &b->failure;
    const int64_t acts = b->culprits[0].between ? b->culprits[0].acts : b->culprits[0].step;
    if (b->culprits[0].n_ranks && acts >= 0 && acts < f->step) {
        char when[120];
        snprintf(when, sizeof when, "It acts in step %" PRId64 "; the failure shows in step %" PRId64 ".", acts,
                 f->step);
        put_text(out, "", when);
    }
    return true;
}

/* ---- all of it -------------------------------------------------------------------------------------------------- */

static void put_failure(FILE *out, const lb_failure *f, const char *label)
{
    char text[640];
    if (f->kind == LB_FAILURE_NONE) return;
    if (f->rank < 0)
        snprintf(text, sizeof text, "%s", f->what);
    else
        snprintf(text, sizeof text, "step %" PRId64 ", rank %d: %s%s%s%s%s%s", f->step, f->rank, f->what,
                 *f->name ? " (" : "", f->layer, *f->layer && *f->name ? " " : "", f->name, *f->name ? ")" : "");
    put_text(out, label, text);
}

static void put_origin(FILE *out, const lb_origin *o)
{
    char text[700];
    if (o->op == LB_NONE) return;
    snprintf(text, sizeof text, "step %" PRId64 ", %s, %s%s%s%s%s%s", o->step, lb_phase_name(o->phase),
             *o->layer ? o->layer : "(outside every module)", strcmp(o->name, "lb::source") ? " " : "",
             strcmp(o->name, "lb::source") ? o->name : "", *o->text ? "\n" : "", o->text, *o->text ? "." : "");
    put_text(out, "begins", text);
    put_line(out, "", &o->line);
}

static void put_stages(FILE *out, const lb_bisection *b)
{
    for (uint32_t i = 0; i < b->n_stages; i++) {
        const lb_bisect_stage *s = &b->stages[i];
        char text[400], trials[40] = "";
        if (s->trials) snprintf(trials, sizeof trials, " (%u %s)", s->trials, s->trials == 1 ? "trial" : "trials");
        snprintf(text, sizeof text, "%s %s%s%s%s", s->name, s->outcome, *s->note ? ": " : "", s->note, trials);
        put_text(out, i ? "" : "tried", text);
    }
}

static void put_reproducer(FILE *out, const lb_bisection *b)
{
    char text[200];
    if (!b->reproducer) return;
    snprintf(text, sizeof text,
             "%" PRIu64 " ops, %.3g %s, of the %" PRIu64 " ops of the window; the same failure and culprit",
             b->reproducer_ops, b->reproducer_bytes < 1e6 ? b->reproducer_bytes / 1e3 : b->reproducer_bytes / 1e6,
             b->reproducer_bytes < 1e6 ? "KB" : "MB", b->window_ops);
    fprintf(out, "%-*s%s\n", LABEL, "smallest", b->reproducer);
    put_text(out, "", text);
}

/* What was recorded of such an op stands in, whatever is changed before it. */
static bool shows_in_opaque(const lb_bisection *b)
{
    return b->failure.op != LB_NONE && strstr(b->failure.name, "::") && strncmp(b->failure.name, "lb::", 4) &&
           !lb_replay_knows(b->failure.name);
}

static void put_undecided(FILE *out, const lb_bisection *b)
{
    char text[240];
    if (b->reason) {
        put_failure(out, &b->failure, "failure");
        put_text(out, "undecided", b->reason);
        return;
    }
    if (b->failure.kind == LB_FAILURE_NONE) {
        put_text(out, "undecided", b->n_stages ? b->stages[b->n_stages - 1].note : "");
        return;
    }
    put_failure(out, &b->failure, "failure");
    put_origin(out, &b->origin);
    if (b->again)
        put_text(out, "undecided", "the bytes that a replay needs were not kept");
    else if (b->n_trials && shows_in_opaque(b)) {
        snprintf(text, sizeof text,
                 "it shows in what %s gave, an op that replay does not know: its recorded result stands in, whatever "
                 "is changed before it",
                 b->failure.name);
        put_text(out, "undecided", text);
    } else if (b->n_trials)
        put_text(out, "undecided", "none of the changes that were tried cures it");
    else
        put_text(out, "undecided", "a replay of this window cannot speak for the recording");
}

/* How much the verdict rests on comes first: what was not judged is not clean. */
static void put_clean(FILE *out, const lb_bisection *b)
{
    char text[300], opaque[80] = "";
    const uint64_t judged = b->compared - b->unjudged, all = b->compared + b->opaque;
    if (b->command || b->checked) {
        put_text(out, "clean",
                 b->command ? "the command as it is succeeds" : "no failure in this window, changed like this");
        return;
    }
    if (b->opaque) snprintf(opaque, sizeof opaque, "%" PRIu64 " are opaque", b->opaque);
    if (judged == all)
        snprintf(text, sizeof text, "no failure in this window; all %" PRIu64 " ops were judged", all);
    else if (b->unjudged)
        snprintf(text, sizeof text,
                 "no failure in this window; %" PRIu64 " of %" PRIu64 " ops were judged: of %" PRIu64
                 " the bytes were not kept%s%s",
                 judged, all, b->unjudged, *opaque ? ", " : "", opaque);
    else
        snprintf(text, sizeof text, "no failure in this window; %" PRIu64 " of %" PRIu64 " ops were judged: %s", judged,
                 all, opaque);
    put_text(out, "clean", text);
}

char *lb_bisection_text(const lb_bisection *b, const char *path)
{
    char *text = NULL;
    size_t size = 0;
    bool whole = true;
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    switch (b->outcome) {
    case LB_BISECT_CLEAN: put_clean(out, b); break;
    case LB_BISECT_NOT_REPRODUCED:
        put_failure(out, &b->failure, "recorded");
        put_text(out, "but", "its replay does not fail: nothing can be tried on it");
        break;
    case LB_BISECT_UNDECIDED: put_undecided(out, b); break;
    case LB_BISECT_FOUND:
        put_failure(out, &b->failure, "failure");
        put_origin(out, &b->origin);
        if (b->n_culprits) whole = put_culprits(out, b);
        break;
    }
    if (!b->checked) put_stages(out, b);
    if (b->note) put_text(out, "note", b->note);
    put_reproducer(out, b);
    put_command(out, "record it", b->again ? strdup(b->again) : NULL);
    if (!b->checked && !b->command && b->outcome == LB_BISECT_CLEAN && !b->reference) {
        put_text(out, "not asked",
                 "whether it computes the right thing. What one run proves of that by itself - that its gradients are "
                 "the derivative of its loss, that tokens meet only where they may, where its digits go - is asked by");
        put_command(out, "", lb_bisect_show_text(b, path));
    }
    if (!b->checked && b->outcome != LB_BISECT_CLEAN && !b->again)
        put_command(out, "shows it", lb_bisect_show_text(b, path));
    if (!b->checked) put_command(out, "cures it", lb_bisect_cure_text(b, path));
    if (fclose(out) == 0 && whole) return text;
    free(text);
    return NULL;
}
