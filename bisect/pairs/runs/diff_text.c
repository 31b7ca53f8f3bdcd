/* A diff for a person: see lastbit/diff.h. What differs first and why we know, a table short enough to be read, what to
 * type next. */
#include <lastbit/diff.h>
#include <lastbit/text_stream.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 24, GUILTY = 12, LAST = 3, FEW = 6 };

static const char *verdict_sentence(lb_verdict verdict)
{
    switch (verdict) {
    case LB_VERDICT_IDENTICAL: return "the same bits everywhere";
    case LB_VERDICT_REORDERED: return "the same sums in another order";
    case LB_VERDICT_ROUNDING: return "other bits, but both sides compute the same function in exact arithmetic";
    case LB_VERDICT_NOISE: return "no more than two runs of the first side differ by";
    case LB_VERDICT_DIVERGED: return "the two sides compute different things";
    case LB_VERDICT_MISSING: return "something was captured on one side only, or could not be replayed";
    case LB_VERDICT_SWAPPED: break; /* a diff swaps nothing */
    case LB_VERDICT_OPAQUE: return "an op that replay does not know stands in between";
    }
    return "";
}

/* Checkpoints have tensors and no ops. */
static bool only_tensors(const lb_diff_report *report)
{
    return report->ops == 0 && report->sources > 0;
}

static const char *tensors_sentence(lb_verdict verdict)
{
    switch (verdict) {
    case LB_VERDICT_ROUNDING: return "the same tensors, rounded to another dtype";
    case LB_VERDICT_DIVERGED: return "some tensors hold other numbers";
    case LB_VERDICT_MISSING: return "one side lacks a tensor or a step";
    default: return verdict_sentence(verdict);
    }
}

static const char *layer_name(const lb_diff_row *row)
{
    return *row->layer ? row->layer : "(top level)";
}

static bool differs(const lb_diff_row *row)
{
    return row->verdict != LB_VERDICT_IDENTICAL;
}

/* A path as a shell takes it. */
static void print_path(FILE *out, const char *path)
{
    bool plain = *path && *path != '-';
    for (const char *c = path; *c; c++)
        plain &= (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') ||
                 strchr("/._-+:,=@%", *c);
    if (plain) {
        fputs(path, out);
        return;
    }
    fputc('\'', out);
    for (const char *c = path; *c; c++) {
        if (*c == '\'')
            fputs("'\\''", out);
        else
            fputc(*c, out);
    }
    fputc('\'', out);
}

/* ---- what differs first ---- */

/* Further apart than a factor of two (in f32), or of other signs, numbers have no distance in ulp that says
 * anything. */
static bool ulp_says_something(const lb_difference *difference)
{
    return difference->max_ulp < 8388608;
}

/* The worst of what the step leaves: a parameter, a state. */
static const lb_diff_row *worst_value(const lb_diff_report *report)
{
    const lb_diff_row *worst = NULL;
    for (uint32_t i = 0; i < report->n_layers; i++) {
        const lb_diff_row *row = &report->layers[i];
        if (row->value && differs(row) && row->measured &&
            (!worst || row->difference.rel_l2 > worst->difference.rel_l2))
            worst = row;
    }
    return worst;
}

/* By how much the place differs; of ops that one side alone runs, where nothing stands beside it, what the steps
 * leave. */
static void print_effect(FILE *out, const lb_diff_report *report, const lb_diff_row *row)
{
    const lb_difference *difference = &row->difference;
    const lb_diff_row *worst = worst_value(report);
    if (!row->measured) {
        if (worst)
            fprintf(out, "    effect    on what is left behind: relative L2 up to %.3g (%s)\n",
                    worst->difference.rel_l2, worst->layer);
        return;
    }
    if (difference->differing == 0) {
        fprintf(out, "    effect    all %" PRId64 " numbers are equal, in another dtype\n", difference->elements);
        return;
    }
    fprintf(out, "    effect    relative L2 %.3g, max abs %.3g", difference->rel_l2, difference->max_abs);
    if (ulp_says_something(difference)) fprintf(out, ", max %.3g ulp", difference->max_ulp);
    fprintf(out, "; %" PRId64 " of %" PRId64 " elements differ", difference->differing, difference->elements);
    if (difference->pattern != LB_PATTERN_SCATTERED)
        fprintf(out, "; %s%s%s", lb_compare_pattern_text(difference->pattern), difference->detail[0] ? ": " : "",
                difference->detail);
    fputc('\n', out);
}

static void print_op(FILE *out, const lb_diff_row *row)
{
    fprintf(out, "%s, %s, %s", lb_phase_name(row->phase), layer_name(row), row->op ? row->op : "");
    if (row->index != LB_NONE) fprintf(out, " (op %u)", row->index);
    if (row->index == LB_NONE && row->other != LB_NONE) fprintf(out, " (op %u of the second side)", row->other);
    const lb_code_line *line = &row->lines[!strncmp(row->why, "the second side alone", 21)];
    const char *slash = line->number ? strrchr(line->file, '/') : NULL;
    if (line->number) fprintf(out, ", at %s:%" PRIu32, slash ? slash + 1 : line->file, line->number);
    fprintf(out, "\n");
}

/* "called    eps 1e-08 / 0.001": of the first side and of the second; options of an op that one side alone runs. */
static void print_arguments(FILE *out, const lb_diff_row *row)
{
    const bool called = !strncmp(row->why, "called", 6);
    for (uint32_t i = 0; i < row->n_arguments; i++) {
        const lb_diff_argument *argument = &row->arguments[i];
        fprintf(out, "    %-9s %s %s / %s%s%s%s\n",
                i        ? ""
                : called ? "called"
                         : "options",
                argument->name, argument->first, argument->second, *argument->group ? " (group " : "", argument->group,
                *argument->group ? ")" : "");
    }
    if (row->means) fprintf(out, "    %-9s %s\n", "means", row->means);
}

/* Once where both sides have the same. */
static void print_lines(FILE *out, const lb_diff_row *row)
{
    char texts[2][LB_LINE_TEXT + 200];
    for (int side = 0; side < 2; side++) lb_code_line_text(&row->lines[side], texts[side], sizeof texts[side]);
    if (!strcmp(texts[0], texts[1])) {
        if (*texts[0]) fprintf(out, "    line      %s\n", texts[0]);
        return;
    }
    for (int side = 0; side < 2; side++)
        if (*texts[side]) fprintf(out, "    line      %s: %s\n", side ? "second" : "first", texts[side]);
}

static void print_place(FILE *out, const lb_diff_report *report, const char *title, const lb_diff_row *row)
{
    fprintf(out, "%s: ", title);
    if (!only_tensors(report)) fprintf(out, "step %" PRId64 ", ", row->step);
    if (row->rank) fprintf(out, "rank %d, ", row->rank);
    bool source = row->op && strcmp(row->op, "lb::source") == 0;
    if (source)
        fprintf(out, "%s\n", layer_name(row));
    else
        print_op(out, row);
    print_effect(out, report, row);
    print_lines(out, row);
    print_arguments(out, row);
    fprintf(out, "    %-9s %s\n", lb_verdict_name(row->verdict), row->why);
}

/* How much of both was compared. */
static void print_counts(FILE *out, const lb_diff_report *report)
{
    if (only_tensors(report))
        fprintf(out, "%" PRIu64 " of %" PRIu64 " tensors that both sides have are the same\n",
                report->sources_identical, report->sources);
    else
        fprintf(out, "%" PRIu64 " of %" PRIu64 " aligned ops have the same bits\n", report->identical, report->ops);
    if (report->unseen)
        fprintf(out, "of %" PRIu64 " more a result has no digest: nothing is known of its bits\n", report->unseen);
}

/* The verdict, where it begins, and how much it is: in this order, whatever else there is to say. */
static void print_head(FILE *out, const lb_diff_report *report)
{
    fprintf(out, "verdict: %s — %s\n", lb_verdict_name(report->verdict),
            only_tensors(report) ? tensors_sentence(report->verdict) : verdict_sentence(report->verdict));
    bool own = report->has_first && report->first.local == report->first.verdict;
    const char *title = report->first.lossy                             ? "Most is lost here"
                        : report->verdict == LB_VERDICT_DIVERGED && own ? "They part here"
                                                                        : "First such difference";
    if (report->has_first) print_place(out, report, title, &report->first);
    if (report->has_first &&
        (report->earliest.index != report->first.index || report->earliest.step != report->first.step ||
         (report->first.lossy && report->earliest.other != report->first.other)))
        print_place(out, report, "Bits differ from here on", &report->earliest);
    print_counts(out, report);
}

/* ---- two implementations ---- */

/* Places that differ by themselves, largest effect first; the first of them stands at the head already. */
/* Which ranks run the op of a place, where a side has several. */
static void print_ranks(FILE *out, const lb_diff_difference *difference)
{
    static const char *const sides[] = {"first", "second"};
    if ((difference->ranks[0] | difference->ranks[1]) <= 1) return;
    for (int k = 0; k < 2; k++) {
        const bool several = (difference->ranks[k] & (difference->ranks[k] - 1)) != 0;
        if (!difference->ranks[k]) continue;
        fprintf(out, "%s%s of the %s side", k && difference->ranks[0] ? ", " : "             rank", several ? "s" : "",
                sides[k]);
        for (int i = 0, n = 0; i < 64; i++)
            if (difference->ranks[k] >> i & 1) fprintf(out, "%s%d", n++ ? ", " : " ", i);
    }
    fprintf(out, "\n");
}

static void print_differences(FILE *out, const lb_diff_report *report)
{
    bool measured = false;
    for (uint32_t i = 0; i < report->n_differences; i++)
        measured |= report->differences[i].effect == report->differences[i].effect;
    if (report->n_differences < 2 && !measured) return; /* the place that stands above, and nothing besides */
    fprintf(out, "\nplaces that differ by themselves%s:\n",
            measured ? ", by what each alone moves what leaves the step (relative L2)" : "");
    for (uint32_t i = 0; i < report->n_differences && i < ROWS; i++) {
        const lb_diff_difference *difference = &report->differences[i];
        if (difference->effect == difference->effect)
            fprintf(out, "  %9.3g  ", difference->effect);
        else
            fprintf(out, "          -  ");
        fprintf(out, "step %" PRId64 ", %s, %s %s", difference->row.step, lb_phase_name(difference->row.phase),
                layer_name(&difference->row), difference->row.op ? difference->row.op : "");
        if (difference->op_b &&
            (strcmp(difference->op_b, difference->row.op) || strcmp(difference->layer_b, difference->row.layer)))
            fprintf(out, " | %s %s", *difference->layer_b ? difference->layer_b : "(top level)", difference->op_b);
        else if (!difference->op_b && difference->layer_b && strcmp(difference->layer_b, difference->row.layer))
            fprintf(out, " | %s", difference->layer_b);
        if (difference->row.parameter) fprintf(out, " (%s)", difference->row.parameter);
        if (difference->times > 1) fprintf(out, ", and %u like it", difference->times - 1);
        if (difference->steps > 1) fprintf(out, ", in %u steps", difference->steps);
        fprintf(out, "\n             %s\n", difference->row.why);
        print_ranks(out, difference);
        for (uint32_t k = 0; k < difference->row.n_arguments; k++)
            fprintf(out, "             %s %s / %s\n", difference->row.arguments[k].name,
                    difference->row.arguments[k].first, difference->row.arguments[k].second);
    }
    if (report->n_differences > ROWS) fprintf(out, "  and %u more (--json)\n", report->n_differences - ROWS);
}

static void print_map(FILE *out, const lb_diff_report *report)
{
    if (!report->implementations) return;
    fprintf(out,
            "\ntensors were matched by their numbers: %" PRIu64 " of %" PRIu64
            " named ones of the second side hold numbers of the first\n",
            report->sources_identical, report->sources);
    for (uint32_t i = 0, shown = 0; i < report->n_map && shown < GUILTY; i++, shown++)
        fprintf(out, "  %-10s  %s%s%s\n", *report->map[i].first ? report->map[i].relation : "unmatched",
                report->map[i].second, *report->map[i].first ? "  =  " : "", report->map[i].first);
    if (report->n_map > GUILTY) fprintf(out, "  and %u more (--map-out FILE)\n", report->n_map - GUILTY);
}

/* ---- which layers are shown ---- */

typedef struct choice {
    const lb_diff_report *report;
    uint8_t *shown; /* per row of layers */
    uint32_t n_shown, n_differing;
} choice;

static bool is_candidate(const choice *choice, uint32_t i)
{
    return i < choice->report->n_layers && !choice->report->layers[i].value && !choice->shown[i] &&
           differs(&choice->report->layers[i]);
}

static void show_row(choice *choice, uint32_t i)
{
    choice->shown[i] = 1, choice->n_shown++;
}

/* Rows in order of first execution; the one where the report's first difference lies, or the first that differs. */
static uint32_t first_row(const lb_diff_report *report)
{
    for (uint32_t i = 0; report->has_first && i < report->n_layers; i++)
        if (report->layers[i].rank == report->first.rank && !strcmp(report->layers[i].layer, report->first.layer))
            return i;
    return 0;
}

static void choose_rows(choice *choice, bool all)
{
    const lb_diff_report *report = choice->report;
    for (uint32_t i = 0; i < report->n_layers; i++)
        choice->n_differing += !report->layers[i].value && differs(&report->layers[i]);
    if (all || choice->n_differing <= ROWS) {
        for (uint32_t i = 0; i < report->n_layers; i++)
            if (all || (!report->layers[i].value && differs(&report->layers[i]))) show_row(choice, i);
        return;
    }
    for (uint32_t i = 0; i < report->n_layers && choice->n_shown < GUILTY; i++) {
        lb_verdict local = report->layers[i].local;
        if (is_candidate(choice, i) && (local == LB_VERDICT_DIVERGED || local == LB_VERDICT_MISSING))
            show_row(choice, i);
    }
    for (uint32_t i = report->n_layers, last = 0; i-- > 0 && last < LAST;)
        if (is_candidate(choice, i)) show_row(choice, i), last++;
    uint32_t middle = first_row(report);
    for (uint32_t d = 0; d < report->n_layers && choice->n_shown < ROWS; d++) {
        if (is_candidate(choice, middle + d)) show_row(choice, middle + d);
        if (d && d <= middle && choice->n_shown < ROWS && is_candidate(choice, middle - d))
            show_row(choice, middle - d);
    }
}

/* ---- the table ---- */

static int name_width(const choice *choice)
{
    size_t width = strlen("layer");
    for (uint32_t i = 0; i < choice->report->n_layers; i++) {
        size_t n = choice->shown[i] ? strlen(layer_name(&choice->report->layers[i])) : 0;
        if (n > width) width = n;
    }
    return (int)width;
}

static bool many_ranks(const lb_diff_report *report)
{
    for (uint32_t i = 1; i < report->n_layers; i++)
        if (report->layers[i].rank != report->layers[0].rank) return true;
    return false;
}

static void print_row(FILE *out, const lb_diff_row *row, int width, bool ranks)
{
    if (ranks) fprintf(out, "%4d  ", row->rank);
    fprintf(out, "%-*s  %-10s %-10s %-10s ", width, layer_name(row), lb_verdict_name(row->verdict),
            lb_verdict_name(row->local), lb_verdict_name(row->inherited));
    if (row->measured && ulp_says_something(&row->difference))
        fprintf(out, "%9.3g %9.3g %9.3g\n", row->difference.max_abs, row->difference.rel_l2, row->difference.max_ulp);
    else if (row->measured)
        fprintf(out, "%9.3g %9.3g %9s\n", row->difference.max_abs, row->difference.rel_l2, "-");
    else
        fprintf(out, "%9s %9s %9s\n", "-", "-", "-");
}

static void print_left_out(FILE *out, const choice *choice)
{
    uint32_t left = choice->n_differing - choice->n_shown, guilty = 0;
    for (uint32_t i = 0; i < choice->report->n_layers; i++)
        guilty += is_candidate(choice, i) && choice->report->layers[i].local == LB_VERDICT_DIVERGED;
    fprintf(out, "… and %u more layer%s", left, left == 1 ? "" : "s");
    if (guilty)
        fprintf(out, ", %u of them diverged by %s own doing", guilty, guilty == 1 ? "its" : "their");
    else
        fprintf(out, " that differ%s", left == 1 ? "s" : "");
    fprintf(out, "; --all lists them\n");
}

static void print_table(FILE *out, const lb_diff_report *report, bool all)
{
    choice choice = {.report = report, .shown = calloc(report->n_layers + 1, 1)};
    if (!choice.shown) return;
    choose_rows(&choice, all);
    if (choice.n_shown) {
        int width = name_width(&choice);
        bool ranks = many_ranks(report);
        fprintf(out, "\n%s%-*s  %-10s %-10s %-10s %9s %9s %9s\n", ranks ? "rank  " : "", width, "layer", "verdict",
                "local", "inherited", "max abs", "rel L2", "max ulp");
        for (uint32_t i = 0; i < report->n_layers; i++)
            if (choice.shown[i]) print_row(out, &report->layers[i], width, ranks);
        if (!all && choice.n_differing > choice.n_shown) print_left_out(out, &choice);
    }
    free(choice.shown);
}

/* Of checkpoints, each tensor that differs, and how. */
static void print_tensors(FILE *out, const lb_diff_report *report, bool all)
{
    uint32_t shown = 0, n = 0, differing = (uint32_t)(report->sources - report->sources_identical);
    for (uint32_t i = 0; i < report->n_layers && differing > 1; i++) { /* of a single one all was said above */
        const lb_diff_row *row = &report->layers[i];
        if (!row->value || !differs(row)) continue;
        n++;
        if (!all && shown >= ROWS) continue;
        if (shown++ == 0) fprintf(out, "\nverdict       max abs    rel L2  tensor\n");
        fprintf(out, "%-10s ", lb_verdict_name(row->verdict));
        if (row->measured)
            fprintf(out, "%10.3g %9.3g", row->difference.max_abs, row->difference.rel_l2);
        else
            fprintf(out, "%10s %9s", "-", "-");
        fprintf(out, "  %s", layer_name(row));
        if (!row->measured)
            fprintf(out, ": %s", row->why);
        else if (row->difference.differing && row->difference.pattern != LB_PATTERN_SCATTERED)
            fprintf(out, ": %s", row->difference.detail);
        fputc('\n', out);
    }
    if (n > shown) fprintf(out, "… and %u more tensors that differ; --all lists them\n", n - shown);
}

/* Parameters, states and batches in one line. */
static void print_values(FILE *out, const lb_diff_report *report)
{
    uint32_t counts[LB_VERDICT_COUNT] = {0}, n = 0, own = 0;
    const lb_diff_row *worst = worst_value(report);
    for (uint32_t i = 0; i < report->n_layers; i++) {
        const lb_diff_row *row = &report->layers[i];
        if (!row->value || !differs(row)) continue;
        n++, counts[row->verdict]++, own += row->local == LB_VERDICT_DIVERGED;
    }
    if (!n) return;
    fprintf(out, "\nparameters, states and inputs: %u differ (", n);
    bool comma = false;
    for (int v = 0; v < LB_VERDICT_COUNT; v++) {
        if (!counts[v]) continue;
        fprintf(out, "%s%u %s", comma ? ", " : "", counts[v], lb_verdict_name((lb_verdict)v));
        comma = true;
    }
    fprintf(out, "%s)", counts[LB_VERDICT_DIVERGED] && !own ? ", all inherited" : "");
    if (worst) fprintf(out, ", most by relative L2 %.3g: %s", worst->difference.rel_l2, worst->layer);
    fputc('\n', out);
}

/* ---- tokens and routing ---- */

static void print_tokens(FILE *out, const lb_diff_report *report)
{
    for (uint32_t i = 0; i < report->n_tokens && report->tokens_looked_up; i++) { /* classes of images are no tokens */
        const lb_diff_tokens *tokens = &report->tokens[i];
        if (i == 0)
            fprintf(out, "\n%-12s %8s %10s %10s %8s %14s %14s\n", report->tokens_approximate ? "tokens (~)" : "tokens",
                    "count", "k3", "KL", "top-1", "max |d log p|", "mean |d log p|");
        fprintf(out, "%-12s %8" PRId64 " ", tokens->kind, tokens->count);
        if (tokens->has_targets)
            fprintf(out, "%10.3g %10.3g %7.4g%% %14.3g %14.3g\n", tokens->k3, tokens->kl, 100 * tokens->top1,
                    tokens->max_abs, tokens->mean_abs);
        else
            fprintf(out, "%10s %10.3g %7.4g%% %14s %14s\n", "-", tokens->kl, 100 * tokens->top1, "-", "-");
    }
}

static void print_routing(FILE *out, const lb_diff_report *report)
{
    uint32_t flipped = 0;
    for (uint32_t i = 0; i < report->n_routings; i++) {
        const lb_diff_routing *routing = &report->routings[i];
        if (!routing->flips) continue;
        if (flipped++ == 0) fputc('\n', out);
        if (flipped > FEW) continue;
        fprintf(out, "routing: step %" PRId64 ", ", routing->step);
        if (routing->rank) fprintf(out, "rank %d, ", routing->rank);
        fprintf(out, "%s: %" PRId64 " of %" PRId64 " choices flipped (%.3g%%)",
                *routing->layer ? routing->layer : "(top level)", routing->flips, routing->choices,
                100 * (double)routing->flips / (double)routing->choices);
        if (routing->largest_margin == routing->largest_margin)
            fprintf(out, ", largest margin %.3g; %" PRId64 " near ties, %" PRId64 " explained by logits that moved",
                    routing->largest_margin, routing->near_ties, routing->explained);
        fputc('\n', out);
    }
    if (flipped > FEW) fprintf(out, "routing: … and in %u more places; --json has them\n", flipped - FEW);
}

static void print_structure(FILE *out, const lb_diff_report *report, bool all)
{
    uint32_t shown = 0, n = 0, reshaped = 0;
    for (uint32_t i = 0; i < report->n_structures; i++) {
        const lb_diff_structure *structure = &report->structures[i];
        bool same_ops = strcmp(structure->ops_a, structure->ops_b) == 0;
        reshaped += same_ops, n += !same_ops;
        if ((same_ops || shown >= FEW) && !all) continue;
        if (shown++ == 0) fprintf(out, "\nops on one side only:\n");
        fprintf(out, "  step %" PRId64 ", ", structure->step);
        if (structure->rank) fprintf(out, "rank %d, ", structure->rank);
        fprintf(out, "%s, %s: first {%s}, second {%s}\n", lb_phase_name(structure->phase),
                *structure->layer ? structure->layer : "(top level)", structure->ops_a, structure->ops_b);
    }
    if (!all && n > shown) fprintf(out, "  … in %u more places; --all lists them\n", n - shown);
    if (!all && reshaped)
        fprintf(out, "%sthe same ops, but in other shapes or numbers: in %u places; --all lists them\n",
                shown ? "  " : "\n", reshaped);
}

/* ---- what to do now ---- */

static void print_next(FILE *out, const lb_diff_report *report, const char *a, const char *b)
{
    if (!report->has_first) return;
    fprintf(out, "\nNext:\n");
    const char *paths[] = {a, b};
    for (int side = 0; side < 2; side++) {
        uint32_t op = side == 0 ? report->first.index : report->first.other;
        if (op == LB_NONE) continue;
        fprintf(out, "  lastbit show ");
        print_path(out, paths[side]);
        fprintf(out, " --step %" PRId64 " --rank %d --op %u\n",
                side && report->implementations ? report->first.other_step : report->first.step,
                side == 0 ? report->first.rank : report->first.other_rank, op);
    }
    if (report->verdict == LB_VERDICT_MISSING && report->first.local == LB_VERDICT_MISSING && report->first.measured)
        fprintf(out, "  lastbit record -o AGAIN.lb …    # the first side once more; "
                     "then add `--noise AGAIN.lb` to this diff\n");
    if (report->verdict != LB_VERDICT_DIVERGED || only_tensors(report)) return;
    fprintf(out, "  lastbit bisect ");
    print_path(out, b);
    fprintf(out, " --against ");
    print_path(out, a);
    fputc('\n', out);
}

char *lb_diff_text(const lb_diff_report *report, const char *path_a, const char *path_b, bool all)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    print_head(out, report);
    print_differences(out, report);
    print_table(out, report, all);
    if (only_tensors(report))
        print_tensors(out, report, all);
    else
        print_values(out, report);
    print_map(out, report);
    print_tokens(out, report);
    print_routing(out, report);
    print_structure(out, report, all);
    for (uint32_t i = 0; i < report->n_findings && (all || i < FEW); i++)
        fprintf(out, "%snote: %s\n", i ? "" : "\n", report->findings[i]);
    if (!all && report->n_findings > FEW)
        fprintf(out, "note: … and %u more; --all lists them\n", report->n_findings - FEW);
    for (uint32_t i = 0; i < report->n_missing && (all || i < ROWS); i++)
        fprintf(out, "%smissing: %s\n", i ? "" : "\n", report->missing[i]);
    if (!all && report->n_missing > ROWS)
        fprintf(out, "missing: … and %u more; --all lists them\n", report->n_missing - ROWS);
    print_next(out, report, path_a, path_b);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
