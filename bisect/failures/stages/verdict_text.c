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
static const char *shown_cure(const lb_bisection *bisection)
{
    enum { SHORT = 140 };
    const char *best = bisection->cure;
    if (!bisection->cure || strlen(bisection->cure) <= SHORT || bisection->n_culprits == 0) return best;
    for (uint32_t i = 0; i < bisection->n_trials; i++) { /* later ones are narrower */
        const lb_trial *trial = &bisection->trials[i];
        if (!strcmp(trial->outcome, "cured") && strcmp(trial->purpose, "note") && *trial->change &&
            strlen(trial->change) <= SHORT)
            best = trial->change;
    }
    return best;
}

static bool replay_cures(const lb_bisection *bisection)
{
    return bisection->n_culprits && bisection->culprits[0].axis == LB_AXIS_KERNEL && !bisection->cure;
}

/* What a source holds shows it, and no replay does. */
static char *show_source(const lb_bisection *bisection, const char *path)
{
    char which[260];
    snprintf(which, sizeof which, "--step %" PRId64 " --rank %d --name %s", bisection->failure.step,
             bisection->failure.rank, bisection->n_culprits ? bisection->culprits[0].parameter : "");
    return command("show", path, which, NULL);
}

char *lb_bisect_show_text(const lb_bisection *bisection, const char *capture_path)
{
    if (bisection->command) return strdup(bisection->command);
    if (bisection->outcome == LB_BISECT_CLEAN && !bisection->checked && !bisection->reference)
        return command("check", capture_path, NULL, NULL);
    if (bisection->failure.kind == LB_FAILURE_NONE) return NULL;
    if (bisection->reference) {
        char *other = command("diff", capture_path, NULL, NULL), *both = NULL;
        size_t size = 0;
        FILE *out = other ? lb_text_stream_open(&both, &size) : NULL;
        if (out) {
            fprintf(out, "%s ", other);
            lb_shell_word(out, bisection->reference);
            fclose(out);
        }
        free(other);
        return both;
    }
    if (bisection->failure.kind == LB_FAILURE_RANKS) return command("ranks", capture_path, NULL, NULL);
    if (!strcmp(bisection->failure.name, "lb::source")) return show_source(bisection, capture_path);
    if (replay_cures(bisection)) return command("replay", capture_path, NULL, NULL);
    if (bisection->reproducer) return command("bisect --check", bisection->reproducer, bisection->asked, NULL);
    return command("bisect --check", capture_path, bisection->asked, NULL);
}

char *lb_bisect_cure_text(const lb_bisection *bisection, const char *capture_path)
{
    if (bisection->command) return bisection->cure ? strdup(bisection->cure) : NULL;
    if (replay_cures(bisection)) return command("bisect --check", capture_path, bisection->asked, NULL);
    return bisection->cure ? command("bisect --check", capture_path, bisection->asked, shown_cure(bisection)) : NULL;
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

static void put_ranks(FILE *out, const lb_culprit *culprit)
{
    fprintf(out, culprit->n_ranks == 1 ? "rank " : "ranks ");
    for (uint32_t i = 0; i < culprit->n_ranks && i < 16; i++) fprintf(out, "%s%d", i ? ", " : "", culprit->ranks[i]);
    if (culprit->n_ranks > 16) fprintf(out, ", … (%u)", culprit->n_ranks);
}

static char *culprit_text(const lb_culprit *culprit)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    if (culprit->step < 0) /* of a live job: nothing more is known */
        fprintf(out, "%s%s%s", lb_bisect_axis_name(culprit->axis), *culprit->layer ? ": " : "", culprit->layer);
    else
        fprintf(out, "%s: %s",
                culprit->axis == LB_AXIS_BLOCK && !culprit->block ? "op" : lb_bisect_axis_name(culprit->axis),
                *culprit->layer ? culprit->layer : "(outside every module)");
    if (*culprit->op) fprintf(out, " %s", strcmp(culprit->op, "lb::source") ? culprit->op : "(its data)");
    if (*culprit->parameter) fprintf(out, " of %s", culprit->parameter);
    if (culprit->n_ranks && culprit->step < 0) {
        fprintf(out, ", ");
        put_ranks(out, culprit);
    } else if (culprit->n_ranks) {
        fprintf(out, "\n%s of step %" PRId64 ", ", lb_phase_name(culprit->phase),
                culprit->between ? culprit->acts : culprit->step);
        if (culprit->between) fprintf(out, "recorded behind step %" PRId64 "'s optimizer, ", culprit->step);
        put_ranks(out, culprit);
    }
    if (culprit->block) fprintf(out, ", block class %c (%s)", culprit->block, block_name(culprit->block));
    fclose(out);
    return text;
}

static void put_line(FILE *out, const char *label, const lb_code_line *line)
{
    char text[LB_LINE_TEXT + 200];
    lb_code_line_text(line, text, sizeof text);
    if (*text) fprintf(out, "%-*s%s\n", LABEL, label, text);
}

static void put_culprit(FILE *out, const char *label, const lb_culprit *culprit)
{
    char *text = culprit_text(culprit);
    put_text(out, label, text ? text : "");
    put_line(out, "line", &culprit->lines[0]);
    put_line(out, "reference", &culprit->lines[1]);
    put_text(out, "why", culprit->why);
    free(text);
}

static bool like_the_first(const lb_bisection *bisection, uint32_t i)
{
    const lb_culprit *culprit = &bisection->culprits[i], *first = &bisection->culprits[0];
    return bisection->n_culprits > 2 && culprit->axis == first->axis && culprit->step == first->step &&
           culprit->phase == first->phase;
}

static bool listed_before(const lb_bisection *bisection, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (like_the_first(bisection, k) && !strcmp(bisection->culprits[k].layer, bisection->culprits[i].layer))
            return true;
    return false;
}

/* Culprits that differ from the first in their layer alone share a line. False: out of memory. */
static bool put_culprits(FILE *out, const lb_bisection *bisection)
{
    enum { SHOWN = 6 };
    char *alike = NULL, more[80];
    size_t size = 0;
    uint32_t n = 0, shown = 1;
    put_culprit(out, "culprit", &bisection->culprits[0]);
    FILE *list = lb_text_stream_open(&alike, &size);
    for (uint32_t i = 1; i < bisection->n_culprits && list; i++) {
        if (!like_the_first(bisection, i)) {
            if (shown++ < SHOWN) put_culprit(out, "and", &bisection->culprits[i]);
        } else if (!listed_before(bisection, i))
            fprintf(list, "%s%s", n++ ? ", " : "", bisection->culprits[i].layer);
    }
    if (!list || fclose(list) != 0) return false;
    if (n) put_text(out, "likewise", alike);
    snprintf(more, sizeof more, "%u more; --json lists them", shown - SHOWN);
    if (shown > SHOWN) put_text(out, "and", more);
    free(alike);
    const lb_failure *failure = &bisection->failure;
    const int64_t acts = bisection->culprits[0].between ? bisection->culprits[0].acts : bisection->culprits[0].step;
    if (bisection->culprits[0].n_ranks && acts >= 0 && acts < failure->step) {
        char when[120];
        snprintf(when, sizeof when, "It acts in step %" PRId64 "; the failure shows in step %" PRId64 ".", acts,
                 failure->step);
        put_text(out, "", when);
    }
    return true;
}

/* ---- a difference ---- */

static const char *set_text(lb_bisect_set_outcome outcome)
{
    switch (outcome) {
    case LB_BISECT_SET_SMALLEST: return ": exchanged together they leave rounding alone, and no smaller set does";
    case LB_BISECT_SET_NEEDED: return ": exchanged together they leave rounding alone, and each is needed";
    default: return "; whether these are all is not proven";
    }
}

static void put_place(FILE *out, const char *label, const lb_culprit *culprit)
{
    char *text = culprit_text(culprit), line[LB_LINE_TEXT + 200];
    char *where = text ? strchr(text, '\n') : NULL;
    if (where) *where++ = '\0';
    lb_code_line_text(&culprit->lines[0], line, sizeof line);
    fprintf(out, "%-*s%s%s%s\n", LABEL, label, text ? text : "", *line ? ", " : "", line);
    if (culprit->effect > 0)
        fprintf(out, "%-*s%.3g of what leaves the step (relative L2), by this place alone\n", LABEL, "effect",
                culprit->effect);
    if (where) put_text(out, "", where);
    put_line(out, "reference", &culprit->lines[1]);
    put_text(out, "why", culprit->why);
    free(text);
}

/* Verdict, place with its line, effect: the first three lines. */
static void put_difference(FILE *out, const lb_bisection *bisection)
{
    enum { SHOWN = 8 };
    const lb_bisect_set *set = &bisection->set;
    char text[400];
    snprintf(text, sizeof text, "step %" PRId64 ": %u %s this run from the reference%s", bisection->failure.step,
             bisection->n_culprits, bisection->n_culprits == 1 ? "place parts" : "places part",
             set->outcome == LB_BISECT_SET_SMALLEST && bisection->n_culprits == 1
                 ? ": exchanged, it leaves rounding alone"
                 : set_text(set->outcome));
    fprintf(out, "%-*s%s\n", LABEL, "diverged", text);
    for (uint32_t i = 0; i < bisection->n_culprits && i < SHOWN; i++)
        put_place(out, i ? "and" : "culprit", &bisection->culprits[i]);
    snprintf(text, sizeof text, "%u more; --json lists them", bisection->n_culprits - SHOWN);
    if (bisection->n_culprits > SHOWN) put_text(out, "and", text);
    if (set->cancels) {
        put_text(out, "cancelled", set->cancels);
        put_text(out, "", "differ, too, and take back together what each does");
    }
    if (set->why) put_text(out, "undecided", set->why);
    if (!set->runs) return;
    snprintf(text, sizeof text, "%" PRIu64 " runs of one side, the work of %.2g replays of both", set->runs,
             set->replays);
    put_text(out, "proof", text);
}

/* ---- all of it -------------------------------------------------------------------------------------------------- */

static void put_failure(FILE *out, const lb_failure *failure, const char *label)
{
    char text[640];
    if (failure->kind == LB_FAILURE_NONE) return;
    if (failure->rank < 0)
        snprintf(text, sizeof text, "%s", failure->what);
    else
        snprintf(text, sizeof text, "step %" PRId64 ", rank %d: %s%s%s%s%s%s", failure->step, failure->rank,
                 failure->what, *failure->name ? " (" : "", failure->layer,
                 *failure->layer && *failure->name ? " " : "", failure->name, *failure->name ? ")" : "");
    put_text(out, label, text);
}

static void put_origin(FILE *out, const lb_origin *origin)
{
    char text[700];
    if (origin->op == LB_NONE) return;
    snprintf(text, sizeof text, "step %" PRId64 ", %s, %s%s%s%s%s%s", origin->step, lb_phase_name(origin->phase),
             *origin->layer ? origin->layer : "(outside every module)", strcmp(origin->name, "lb::source") ? " " : "",
             strcmp(origin->name, "lb::source") ? origin->name : "", *origin->text ? "\n" : "", origin->text,
             *origin->text ? "." : "");
    put_text(out, "begins", text);
    put_line(out, "", &origin->line);
}

static void put_stages(FILE *out, const lb_bisection *bisection)
{
    for (uint32_t i = 0; i < bisection->n_stages; i++) {
        const lb_bisect_stage *stage = &bisection->stages[i];
        char text[400], trials[40] = "";
        if (stage->trials)
            snprintf(trials, sizeof trials, " (%u %s)", stage->trials, stage->trials == 1 ? "trial" : "trials");
        snprintf(text, sizeof text, "%s %s%s%s%s", stage->name, stage->outcome, *stage->note ? ": " : "", stage->note,
                 trials);
        put_text(out, i ? "" : "tried", text);
    }
}

static void put_reproducer(FILE *out, const lb_bisection *bisection)
{
    char text[200];
    if (!bisection->reproducer) return;
    snprintf(text, sizeof text,
             "%" PRIu64 " ops, %.3g %s, of the %" PRIu64 " ops of the window; the same failure and culprit",
             bisection->reproducer_ops,
             bisection->reproducer_bytes < 1e6 ? bisection->reproducer_bytes / 1e3 : bisection->reproducer_bytes / 1e6,
             bisection->reproducer_bytes < 1e6 ? "KB" : "MB", bisection->window_ops);
    fprintf(out, "%-*s%s\n", LABEL, "smallest", bisection->reproducer);
    put_text(out, "", text);
}

/* What was recorded of such an op stands in, whatever is changed before it. */
static bool shows_in_opaque(const lb_bisection *bisection)
{
    return bisection->failure.op != LB_NONE && strstr(bisection->failure.name, "::") &&
           strncmp(bisection->failure.name, "lb::", 4) && !lb_replay_knows(bisection->failure.name);
}

static void put_undecided(FILE *out, const lb_bisection *bisection)
{
    char text[240];
    if (bisection->reason) {
        put_failure(out, &bisection->failure, "failure");
        put_text(out, "undecided", bisection->reason);
        return;
    }
    if (bisection->failure.kind == LB_FAILURE_NONE) {
        put_text(out, "undecided", bisection->n_stages ? bisection->stages[bisection->n_stages - 1].note : "");
        return;
    }
    put_failure(out, &bisection->failure, "failure");
    put_origin(out, &bisection->origin);
    if (bisection->again)
        put_text(out, "undecided", "the bytes that a replay needs were not kept");
    else if (bisection->n_trials && shows_in_opaque(bisection)) {
        snprintf(text, sizeof text,
                 "it shows in what %s gave, an op that replay does not know: its recorded result stands in, "
                 "whatever is changed before it",
                 bisection->failure.name);
        put_text(out, "undecided", text);
    } else if (bisection->n_trials)
        put_text(out, "undecided", "none of the changes that were tried cures it");
    else
        put_text(out, "undecided", "a replay of this window cannot speak for the recording");
}

/* How much the verdict rests on comes first: what was not judged is not clean. */
static void put_clean(FILE *out, const lb_bisection *bisection)
{
    char text[300], opaque[80] = "";
    const uint64_t judged = bisection->compared - bisection->unjudged, all = bisection->compared + bisection->opaque;
    if (bisection->reference) {
        snprintf(text, sizeof text, "nothing departs from the reference: all %" PRIu64 " ops have its bits", all);
        put_text(out, "clean", text);
        return;
    }
    if (bisection->command || bisection->checked) {
        put_text(out, "clean",
                 bisection->command ? "the command as it is succeeds" : "no failure in this window, changed like this");
        return;
    }
    if (bisection->opaque) snprintf(opaque, sizeof opaque, "%" PRIu64 " are opaque", bisection->opaque);
    if (judged == all)
        snprintf(text, sizeof text, "no failure in this window; all %" PRIu64 " ops were judged", all);
    else if (bisection->unjudged)
        snprintf(text, sizeof text,
                 "no failure in this window; %" PRIu64 " of %" PRIu64 " ops were judged: of %" PRIu64
                 " the bytes were not kept%s%s",
                 judged, all, bisection->unjudged, *opaque ? ", " : "", opaque);
    else
        snprintf(text, sizeof text, "no failure in this window; %" PRIu64 " of %" PRIu64 " ops were judged: %s", judged,
                 all, opaque);
    put_text(out, "clean", text);
}

char *lb_bisection_text(const lb_bisection *bisection, const char *capture_path)
{
    char *text = NULL;
    size_t size = 0;
    bool whole = true;
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    switch (bisection->outcome) {
    case LB_BISECT_CLEAN: put_clean(out, bisection); break;
    case LB_BISECT_NOT_REPRODUCED:
        put_failure(out, &bisection->failure, "recorded");
        put_text(out, "but", "its replay does not fail: nothing can be tried on it");
        break;
    case LB_BISECT_UNDECIDED: put_undecided(out, bisection); break;
    case LB_BISECT_FOUND:
        if (bisection->set.outcome != LB_BISECT_SET_NONE) {
            put_difference(out, bisection);
            break;
        }
        put_failure(out, &bisection->failure, "failure");
        put_origin(out, &bisection->origin);
        if (bisection->n_culprits) whole = put_culprits(out, bisection);
        break;
    }
    if (!bisection->checked) put_stages(out, bisection);
    if (bisection->note) put_text(out, "note", bisection->note);
    put_reproducer(out, bisection);
    put_command(out, "record it", bisection->again ? strdup(bisection->again) : NULL);
    if (!bisection->checked && !bisection->command && bisection->outcome == LB_BISECT_CLEAN && !bisection->reference) {
        put_text(out, "not asked",
                 "whether it computes the right thing. "
                 "What one run proves of that by itself - that its gradients are the derivative of its loss, "
                 "that tokens meet only where they may, where its digits go - is asked by");
        put_command(out, "", lb_bisect_show_text(bisection, capture_path));
    }
    if (!bisection->checked && bisection->outcome != LB_BISECT_CLEAN && !bisection->again)
        put_command(out, "shows it", lb_bisect_show_text(bisection, capture_path));
    if (!bisection->checked) put_command(out, "cures it", lb_bisect_cure_text(bisection, capture_path));
    if (fclose(out) == 0 && whole) return text;
    free(text);
    return NULL;
}
