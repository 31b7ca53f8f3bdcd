/* An explanation for a person: the same cause in the same op of many layers is one line. */
#include <lastbit/explain.h>
#include <lastbit/text_stream.h>

#include "ranks/collective_names.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINES = 24, NAMED = 3, FLIPS = 10 };

/* "model.layers.*.mlp": what layers of one kind have in common. */
static void layer_pattern(const char *layer, char *text, size_t room)
{
    size_t n = 0;
    for (const char *c = layer; *c && n < room - 1;) {
        bool number = isdigit((unsigned char)*c) && (c == layer || c[-1] == '.');
        const char *end = c;
        while (isdigit((unsigned char)*end)) end++;
        if (number && (*end == '.' || !*end)) {
            text[n++] = '*', c = end;
            continue;
        }
        text[n++] = *c++;
    }
    text[n] = '\0';
    if (!*layer) snprintf(text, room, "(top level)");
}

static bool is_source(const lb_explain_finding *finding)
{
    return !strcmp(finding->op, LB_EXPLAIN_SOURCE);
}

/* What it says of ranks is in its reason: a collective, or a sum of what one gathered. */
static bool is_collective(const lb_explain_finding *finding)
{
    const char *ops[] = {finding->op, finding->other_op};
    bool any = strstr(finding->why, "no legal order");
    for (int i = 0; i < 2; i++)
        any |= strstr(ops[i], "c10d::") || strstr(ops[i], "_c10d_functional::") || lb_collective_run_knows(ops[i]);
    return any;
}

/* Sources of one kind that differ in the same way. */
static bool same_sources(const lb_explain_finding *a, const lb_explain_finding *b)
{
    const size_t n = strcspn(a->schedule, " ");
    return is_source(a) && is_source(b) && a->phase == b->phase && n == strcspn(b->schedule, " ") &&
           !strncmp(a->schedule, b->schedule, n) && !strcmp(a->why, b->why);
}

static bool same_line(const lb_explain_finding *a, const lb_explain_finding *b)
{
    char x[256], y[256];
    if (is_source(a) || is_source(b)) return same_sources(a, b);
    if (a->cause != b->cause || a->proof != b->proof || a->reversed != b->reversed || a->phase != b->phase)
        return false;
    if (strcmp(a->op, b->op) || strcmp(a->other_op, b->other_op) || strcmp(a->first, b->first)) return false;
    if (a->cause != LB_CAUSE_UNEXPLAINED && strcmp(a->schedule, b->schedule)) return false;
    if (is_collective(a) && strcmp(a->why, b->why)) return false;
    layer_pattern(a->layer, x, sizeof x), layer_pattern(b->layer, y, sizeof y);
    return !strcmp(x, y);
}

/* A line: the findings that it stands for. */
typedef struct fold {
    const lb_explain_finding *first;
    bool turned; /* A of the findings is the second capture */
    uint32_t places, least_excluded;
    int64_t matched, elements;
    double largest;            /* of what its places add, relative; 0: none was measured */
    char also[400];            /* what matches just as well at all of them */
    const char *layers[NAMED]; /* of sources: their names */
    uint32_t n_layers;         /* different ones, of which NAMED are kept */
} fold;

static bool lists(const char *list, const char *name, size_t n)
{
    for (const char *at = list; *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, ";");
        if (length == n && !strncmp(at, name, n)) return true;
        at += length + (at[length] == ';');
    }
    return false;
}

/* Keeps of "a; b; c" what another place lists too. */
static void intersect(char *kept, const char *other)
{
    char out[400] = "";
    size_t used = 0;
    for (const char *at = kept; *at;) {
        size_t n = strcspn(at, ";");
        if (lists(other, at, n))
            used += (size_t)snprintf(out + used, sizeof out - used, "%s%.*s", used ? "; " : "", (int)n, at);
        at += n, at += strspn(at, "; ");
    }
    snprintf(kept, sizeof out, "%s", out);
}

static void add_to_fold(fold *fold, const lb_explain_finding *finding)
{
    bool known = false;
    const char *name = finding->layer;
    if (is_source(finding)) name = finding->schedule + strcspn(finding->schedule, " "), name += *name == ' ';
    if (!fold->places)
        snprintf(fold->also, sizeof fold->also, "%s", finding->also);
    else
        intersect(fold->also, finding->also);
    for (uint32_t i = 0; i < fold->n_layers && i < NAMED; i++) known |= !strcmp(fold->layers[i], name);
    if (!known && fold->n_layers < NAMED) fold->layers[fold->n_layers] = name;
    fold->n_layers += !known;
    if (finding->local > fold->largest) fold->largest = finding->local;
    fold->places++, fold->matched += finding->matched, fold->elements += finding->elements;
    if (fold->places == 1 || finding->excluded < fold->least_excluded) fold->least_excluded = finding->excluded;
}

/* The first of "a; b; c; d", and how many more. */
static void print_also(FILE *out, const char *also)
{
    uint32_t n = 0;
    for (const char *at = also; *at; n++) {
        size_t length = strcspn(at, ";");
        if (n < NAMED) fprintf(out, "%s%.*s", n ? ", " : "; cannot be told apart on this data: ", (int)length, at);
        at += length, at += strspn(at, "; ");
    }
    if (n > NAMED) fprintf(out, ", and %u more", n - NAMED);
}

static void print_change(FILE *out, const fold *fold)
{
    const lb_explain_finding *finding = fold->first;
    const char *to = finding->reversed ? "first" : "second";
    bool said = strcmp(finding->op, finding->other_op) != 0; /* something, before the count */
    if (is_source(finding)) {
        fprintf(out, "%s; %" PRId64 " of %" PRId64 " elements agree", finding->why, fold->matched, fold->elements);
        return;
    }
    if (finding->cause == LB_CAUSE_UNEXPLAINED && !finding->tried && *finding->why) {
        fprintf(out, "%s", finding->why);
        return;
    }
    if (finding->cause == LB_CAUSE_UNEXPLAINED) {
        fprintf(out, "%s",
                finding->proof == LB_PROOF_BOUND ? "an order or a kernel of the library's own, none that is known here"
                                                 : "no candidate gives these bits");
        if (*finding->schedule) fprintf(out, " (nearest: %s)", finding->schedule);
        said = true;
    } else if (finding->cause == LB_CAUSE_INPUT) {
        fprintf(out, "inherited");
        said = true;
    } else if (finding->cause == LB_CAUSE_ROUTING) {
        fprintf(out, "%s: %s", finding->schedule, finding->why);
        return;
    } else if (*finding->schedule) {
        bool named = *finding->first && strcmp(finding->first, finding->schedule) && strcmp(finding->first, "own");
        if (named) fprintf(out, "%s became ", finding->first);
        fprintf(out, "%s%s", finding->schedule, finding->reversed ? " on the first side" : "");
        said = true;
    }
    if (!*finding->op)
        fprintf(out, " by %s, which the %s side has not", finding->other_op, fold->turned ? "second" : "first");
    else if (!*finding->other_op)
        fprintf(out, "; the %s side has no such op", fold->turned ? "first" : "second");
    else if (strcmp(finding->op, finding->other_op))
        fprintf(out, "; the %s side computes it by %s", fold->turned ? "first" : "second", finding->other_op);
    fprintf(out, "%s%" PRId64 " of %" PRId64 " elements of the %s side", said ? ". " : "", fold->matched,
            fold->elements, to);
    if (fold->least_excluded) fprintf(out, ", %u alternatives excluded", fold->least_excluded);
    print_also(out, fold->also);
    if (is_collective(finding) && *finding->why) fprintf(out, "; %s", finding->why);
    if (finding->proof == LB_PROOF_BOUND) fprintf(out, "; not bit by bit: inside the op's bound");
    if (finding->proof == LB_PROOF_EXACT) fprintf(out, "; not bit by bit: equal in exact arithmetic");
}

static void print_names(FILE *out, const fold *fold)
{
    for (uint32_t i = 0; i < fold->n_layers && i < NAMED; i++)
        fprintf(out, "%s%s", i ? ", " : "", *fold->layers[i] ? fold->layers[i] : "(top level)");
    if (fold->n_layers > NAMED) fprintf(out, ", and %u more", fold->n_layers - NAMED);
}

/* Where the first of them was called, once where both sides have the same line. */
static void print_lines(FILE *out, const fold *fold)
{
    const lb_explain_finding *finding = fold->first;
    char texts[2][LB_LINE_TEXT + 200];
    for (int side = 0; side < 2; side++) lb_code_line_text(&finding->lines[side], texts[side], sizeof texts[side]);
    const bool same = !strcmp(texts[0], texts[1]);
    for (int k = 0; k < (same ? 1 : 2); k++) {
        const char *text = texts[fold->turned ? !k : k];
        if (*text) fprintf(out, "%13sline      %s%s\n", "", same ? "" : k ? "second: " : "first: ", text);
    }
}

/* `label`: what stands in front, the cause where the line is one of all. */
static void print_fold(FILE *out, const char *label, const fold *fold)
{
    const lb_explain_finding *finding = fold->first;
    char pattern[256];
    if (is_source(finding) && fold->places > 1) {
        fprintf(out, "%-11s  %s: %u times %.*s: ", label, lb_phase_name(finding->phase), fold->places,
                (int)strcspn(finding->schedule, " "), finding->schedule);
        print_change(out, fold);
        fprintf(out, ": ");
        print_names(out, fold);
        fprintf(out, "\n");
        return;
    }
    layer_pattern(finding->layer, pattern, sizeof pattern);
    fprintf(out, "%-11s  %s, %s: %s: ", label,
            fold->n_layers > 1 ? pattern
            : *finding->layer  ? finding->layer
                               : pattern,
            lb_phase_name(finding->phase),
            is_source(finding) ? finding->schedule
            : *finding->op     ? finding->op
                               : finding->other_op);
    print_change(out, fold);
    if (fold->n_layers > 1) {
        fprintf(out, "; %u places: ", fold->places);
        print_names(out, fold);
    }
    fprintf(out, "\n");
    print_lines(out, fold);
}

static void print_summary(FILE *out, const lb_explain_report *report)
{
    uint32_t counts[LB_CAUSE_UNEXPLAINED + 1] = {0}, own = 0, sources = 0;
    for (uint32_t i = 0; i < report->n_findings; i++)
        if (is_source(&report->findings[i]))
            sources++;
        else
            counts[report->findings[i].cause]++;
    for (int c = LB_CAUSE_ORDER; c <= LB_CAUSE_UNEXPLAINED; c++) own += counts[c];
    if (!report->n_findings) {
        fprintf(out,
                report->n_missing ? "nothing could be said of what differs in %" PRIu64 " aligned ops\n"
                                  : "nothing differs in %" PRIu64 " aligned ops\n",
                report->ops);
        return;
    }
    fprintf(out,
            own == 1 ? "%u place differs for a reason of its own (" : "%u places differ for a reason of their own (",
            own);
    bool any = false;
    for (int c = LB_CAUSE_ORDER; c <= LB_CAUSE_UNEXPLAINED; c++) {
        if (!counts[c]) continue;
        fprintf(out, "%s%s %u", any ? ", " : "", lb_explain_cause_name((lb_cause)c), counts[c]);
        any = true;
    }
    fprintf(out, "%s), %u only inherit; %" PRIu64 " aligned ops\n", any ? "" : "none", counts[LB_CAUSE_INPUT],
            report->ops);
    if (sources)
        fprintf(out, sources == 1 ? "%u source enters with other numbers\n" : "%u sources enter with other numbers\n",
                sources);
}

static const char *plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

/* "rows: 1 of the first side, 8 of the second, by input:0: row 0 of the first is row 2 of the second". The same in many
 * steps once. */
static void print_rows(FILE *out, const lb_explain_report *report)
{
    enum { LISTED = 4 };
    for (uint32_t i = 0; i < report->n_rows; i++) {
        const lb_explain_rows *rows = &report->rows[i], *last = i ? &report->rows[i - 1] : NULL;
        if (last && last->rank == rows->rank && last->n == rows->n && last->first == rows->first &&
            last->second == rows->second && last->over_others == rows->over_others &&
            !memcmp(last->of_first, rows->of_first, rows->n * sizeof *rows->of_first) &&
            !memcmp(last->of_second, rows->of_second, rows->n * sizeof *rows->of_second))
            continue;
        fprintf(out,
                "rows: step %" PRId64 ", rank %d: the first side's batch has %" PRId64 " row%s, the second's %" PRId64
                " (%s); row%s ",
                rows->step, rows->rank, rows->first, plural(rows->first), rows->second, rows->by, plural(rows->n));
        for (int side = 0; side < 2; side++) {
            const int64_t *list = side ? rows->of_second : rows->of_first;
            for (uint32_t k = 0; k < rows->n && k < LISTED; k++) fprintf(out, k ? ", %" PRId64 : "%" PRId64, list[k]);
            if (rows->n > LISTED) fprintf(out, ", …");
            fprintf(out, side           ? " of the second\n"
                         : rows->n == 1 ? " of the first is row "
                                        : " of the first are rows ");
        }
        if (rows->over_others)
            fprintf(out,
                    "      %u op%s give%s something over all rows (a loss, a weight's gradient): over different rows, "
                    "and so not compared\n",
                    rows->over_others, plural(rows->over_others), rows->over_others == 1 ? "s" : "");
    }
}

static void print_next(FILE *out, const lb_explain_report *report, const char *path_a, const char *path_b)
{
    const lb_explain_finding *finding = NULL;
    for (uint32_t i = 0; i < report->n_findings && !finding; i++)
        if (report->findings[i].cause != LB_CAUSE_INPUT) finding = &report->findings[i];
    if (!finding) return;
    fprintf(out, "\nNext:\n  lastbit explain %s%s%s --steps %" PRId64, path_a, path_b ? " " : "", path_b ? path_b : "",
            finding->step);
    if (finding->index != LB_NONE) fprintf(out, " --select index=%u", finding->index);
    fprintf(out, " --json      # this finding again, with all it says\n");
    if (finding->index != LB_NONE)
        fprintf(out, "  lastbit show %s --step %" PRId64 " --rank %d --op %u\n",
                report->turned && path_b ? path_b : path_a, finding->step, finding->rank, finding->index);
}

/* ---- layers, and what the end is made of ---- */

/* A bar for a relative distance: two columns for each power of ten above 1e-9. */
static void print_bar(FILE *out, double distance)
{
    const double columns = distance > 0 ? 2 * (log10(distance) + 9) : 0;
    for (int i = 0; i < columns && i < 24; i++) fputc('#', out);
}

static void print_distance(FILE *out, double distance)
{
    if (isnan(distance))
        fprintf(out, "  %9s", "-");
    else
        fprintf(out, "  %9.2e", distance);
}

static void print_layers(FILE *out, const lb_explain_report *report)
{
    int width = 5;
    for (uint32_t i = 0; i < report->n_layers; i++) {
        const int n = (int)strlen(report->layers[i].layer);
        if (n > width) width = n < 48 ? n : 48;
    }
    fprintf(out, "\n%-*s  %-9s  %4s  %9s  %9s\n", width, "layer", "phase", "own", "local", "total");
    for (uint32_t i = 0; i < report->n_layers; i++) {
        const lb_explain_layer *layer = &report->layers[i];
        fprintf(out, "%-*s  %-9.9s  %4u", width, *layer->layer ? layer->layer : "(top)", lb_phase_name(layer->phase),
                layer->own);
        print_distance(out, layer->local), print_distance(out, layer->total);
        fprintf(out, "  ");
        print_bar(out, layer->total);
        fprintf(out, "\n");
    }
    fprintf(out, "own: places with a reason of their own; local: the most that one of them adds, "
                 "from the second side's inputs; total:\n"
                 "how far the sides are apart at the layer's last place. Relative L2.\n");
}

static void print_budget(FILE *out, const lb_explain_budget *budget)
{
    double sum = 0;
    fprintf(out, "\nBudget of step %" PRId64 ", rank %d: the output of %s is %.3g of its size away\n", budget->step,
            budget->rank, *budget->output ? budget->output : "the outermost module", budget->gap);
    for (uint32_t i = 0; i < budget->n_rows; i++) {
        const lb_explain_share *share = &budget->rows[i];
        sum += share->share;
        fprintf(out, "%8.1f %%  %s%s%s, %s, %u places (by itself it moves the output by %.1f %% of the gap)\n",
                100 * share->share, lb_explain_cause_name(share->cause), *share->schedule ? " " : "", share->schedule,
                *share->layer ? share->layer : "(top)", share->places, 100 * share->size);
    }
    fprintf(out, "%8.1f %%  interaction: all changes in one replay, less each by itself\n",
            100 * (budget->together - sum));
    fprintf(out, "%8.1f %%  what no replay made", 100 * (1 - budget->together));
    if (budget->left_out) fprintf(out, ": %u places have no swap (%s)", budget->left_out, budget->left);
    fprintf(out, "\nAll together: %" PRId64 " of %" PRId64 " elements have the second side's bits\n",
            budget->elements - budget->differing, budget->elements);
}

/* The same shares on another rank, as far as they are shown. */
static bool is_same_budget(const lb_explain_budget *a, const lb_explain_budget *b)
{
    bool same = a->step == b->step && a->n_rows == b->n_rows && a->left_out == b->left_out &&
                !strcmp(a->left, b->left) && fabs(a->together - b->together) < 5e-4;
    for (uint32_t i = 0; same && i < a->n_rows; i++)
        same = a->rows[i].cause == b->rows[i].cause && !strcmp(a->rows[i].schedule, b->rows[i].schedule) &&
               !strcmp(a->rows[i].layer, b->rows[i].layer) && fabs(a->rows[i].share - b->rows[i].share) < 5e-4;
    return same;
}

/* Budgets of a step lie one after the other: ranks that say the same are named below the first of them. */
static void print_budgets(FILE *out, const lb_explain_report *report)
{
    for (uint32_t i = 0, next; i < report->n_budgets; i = next) {
        print_budget(out, &report->budgets[i]);
        for (next = i + 1; next < report->n_budgets && is_same_budget(&report->budgets[i], &report->budgets[next]);
             next++)
            fprintf(out, "%s%d", next == i + 1 ? "ranks " : ", ", report->budgets[next].rank);
        if (next > i + 1) fprintf(out, ": the same\n");
    }
}

/* Lines, in their order; malloc'ed, NULL when out of memory. */
static fold *fold_findings(const lb_explain_report *report, bool all, uint32_t *n_folds)
{
    uint8_t *done = calloc(report->n_findings + 1, 1);
    fold *folds = done ? calloc(report->n_findings + 1, sizeof *folds) : NULL;
    for (uint32_t k = 0; folds && k < 2 * report->n_findings;
         k++) { /* choices that differ come first: other inputs follow from them */
        const uint32_t i = k % report->n_findings;
        const bool routing = report->findings[i].cause == LB_CAUSE_ROUTING;
        if (done[i] || routing != (k < report->n_findings) ||
            (!all && report->findings[i].cause == LB_CAUSE_INPUT && !is_source(&report->findings[i])))
            continue;
        fold *f = &folds[(*n_folds)++];
        f->first = &report->findings[i], f->turned = report->turned;
        for (uint32_t n = i; n < report->n_findings; n++)
            if (!done[n] && same_line(&report->findings[i], &report->findings[n]))
                done[n] = 1, add_to_fold(f, &report->findings[n]);
    }
    free(done);
    return folds;
}

/* The line whose place adds most; of those that were not measured the first. */
static const fold *largest_fold(const fold *folds, uint32_t n, lb_cause cause)
{
    const fold *most = NULL;
    for (uint32_t i = 0; i < n; i++)
        if (folds[i].first->cause == cause && (!most || folds[i].largest > most->largest)) most = &folds[i];
    return most;
}

/* Of two runs in different types every op differs, and each line would say the same: how many there are, the first, and
 * the largest. */
static void print_cause(FILE *out, const fold *folds, uint32_t n, const fold *first)
{
    const fold *largest = largest_fold(folds, n, first->first->cause);
    uint32_t lines = 0, places = 0;
    for (uint32_t i = 0; i < n; i++)
        if (folds[i].first->cause == first->first->cause) lines++, places += folds[i].places;
    if (lines == 1) {
        print_fold(out, lb_explain_cause_name(first->first->cause), first);
        return;
    }
    fprintf(out, "%-11s  %u places, %u kinds\n", lb_explain_cause_name(first->first->cause), places, lines);
    print_fold(out, "  first", first);
    if (largest != first && largest->largest > 0) print_fold(out, "  largest", largest);
}

static void print_folds(FILE *out, const fold *folds, uint32_t n, bool all)
{
    uint32_t told = 0;
    if (n) fprintf(out, "\n");
    for (uint32_t i = 0; i < n && (all || n <= LINES); i++)
        print_fold(out, lb_explain_cause_name(folds[i].first->cause), &folds[i]);
    if (all || n <= LINES) return;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t cause = 1u << folds[i].first->cause;
        if (!(told & cause)) print_cause(out, folds, n, &folds[i]);
        told |= cause;
    }
    fprintf(out, "all %u lines, one for each kind: --all\n", n);
}

char *lb_explain_text(const lb_explain_report *report, const char *path_a, const char *path_b, bool all, bool table)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    uint32_t n_folds = 0;
    fold *folds = fold_findings(report, all, &n_folds);
    if (!out || !folds) {
        if (out) fclose(out);
        free(text), free(folds);
        return NULL;
    }
    print_summary(out, report);
    print_rows(out, report);
    print_folds(out, folds, n_folds, all);
    for (uint32_t i = 0; i < report->n_notes; i++) fprintf(out, "note: %s\n", report->notes[i]);
    for (uint32_t i = 0; i < report->n_missing; i++) fprintf(out, "missing: %s\n", report->missing[i]);
    if (table) print_layers(out, report);
    print_budgets(out, report);
    for (uint32_t i = 0; i < report->n_routings; i++) {
        char *routing = lb_routing_text(&report->routings[i], FLIPS);
        if (routing) fputs(routing, out);
        free(routing);
    }
    print_next(out, report, path_a, path_b);
    free(folds);
    fclose(out);
    return text;
}
