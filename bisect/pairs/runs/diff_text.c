/* A diff for a person: see lastbit/diff.h. What differs first and why we know, a table short enough to be read, what to
 * type next. */
#include <lastbit/diff.h>
#include <lastbit/text_stream.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 24, GUILTY = 12, LAST = 3, FEW = 6 };

static const char *verdict_sentence(lb_verdict v)
{
    switch (v) {
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
static bool only_tensors(const lb_diff_report *r)
{
    return r->ops == 0 && r->sources > 0;
}

static const char *tensors_sentence(lb_verdict v)
{
    switch (v) {
    case LB_VERDICT_ROUNDING: return "the same tensors, rounded to another dtype";
    case LB_VERDICT_DIVERGED: return "some tensors hold other numbers";
    case LB_VERDICT_MISSING: return "one side lacks a tensor or a step";
    default: return verdict_sentence(v);
    }
}

static const char *layer_name(const lb_diff_row *r)
{
    return *r->layer ? r->layer : "(top level)";
}

static bool differs(const lb_diff_row *r)
{
    return r->verdict != LB_VERDICT_IDENTICAL;
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
static bool ulp_says_something(const lb_difference *d)
{
    return d->max_ulp < 8388608;
}

/* The worst of what the step leaves: a parameter, a state. */
static const lb_diff_row *worst_value(const lb_diff_report *report)
{
    const lb_diff_row *worst = NULL;
    for (uint32_t i = 0; i < report->n_layers; i++) {
        const lb_diff_row *l = &report->layers[i];
        if (l->value && differs(l) && l->measured && (!worst || l->difference.rel_l2 > worst->difference.rel_l2))
            worst = l;
    }
    return worst;
}

/* By how much the place differs; of ops that one side alone runs, where nothing stands beside it, what the steps
 * leave. */
static void print_effect(FILE *out, const lb_diff_report *report, const lb_diff_row *r)
{
    const lb_difference *d = &r->difference;
    const lb_diff_row *worst = worst_value(report);
    if (!r->measured) {
        if (worst)
            fprintf(out, "    effect    on what is left behind: relative L2 up to %.3g (%s)\n",
                    worst->difference.rel_l2, worst->layer);
        return;
    }
    if (d->differing == 0) {
        fprintf(out, "    effect    all %" PRId64 " numbers are equal, in another dtype\n", d->elements);
        return;
    }
    fprintf(out, "    effect    relative L2 %.3g, max abs %.3g", d->rel_l2, d->max_abs);
    if (ulp_says_something(d)) fprintf(out, ", max %.3g ulp", d->max_ulp);
    fprintf(out, "; %" PRId64 " of %" PRId64 " elements differ", d->differing, d->elements);
    if (d->pattern != LB_PATTERN_SCATTERED)
        fprintf(out, "; %s%s%s", lb_compare_pattern_text(d->pattern), d->detail[0] ? ": " : "", d->detail);
    fputc('\n', out);
}

static void print_op(FILE *out, const lb_diff_row *r)
{
    fprintf(out, "%s, %s, %s", lb_phase_name(r->phase), layer_name(r), r->op ? r->op : "");
    if (r->index != LB_NONE) fprintf(out, " (op %u)", r->index);
    if (r->index == LB_NONE && r->other != LB_NONE) fprintf(out, " (op %u of the second side)", r->other);
    const lb_code_line *line = &r->lines[!strncmp(r->why, "the second side alone", 21)];
    const char *slash = line->number ? strrchr(line->file, '/') : NULL;
    if (line->number) fprintf(out, ", at %s:%" PRIu32, slash ? slash + 1 : line->file, line->number);
    fprintf(out, "\n");
}

/* "called    eps 1e-08 / 0.001": of the first side and of the second; options of an op that one side alone runs. */
static void print_arguments(FILE *out, const lb_diff_row *r)
{
    const bool called = !strncmp(r->why, "called", 6);
    for (uint32_t i = 0; i < r->n_arguments; i++) {
        const lb_diff_argument *x = &r->arguments[i];
        fprintf(out, "    %-9s %s %s / %s%s%s%s\n",
                i        ? ""
                : called ? "called"
                         : "options",
                x->name, x->first, x->second, *x->group ? " (group " : "", x->group, *x->group ? ")" : "");
    }
    if (r->means) fprintf(out, "    %-9s %s\n", "means", r->means);
}

/* Once where both sides have the same. */
static void print_lines(FILE *out, const lb_diff_row *r)
{
    char texts[2][LB_LINE_TEXT + 200];
    for (int side = 0; side < 2; side++) lb_code_line_text(&r->lines[side], texts[side], sizeof texts[side]);
    if (!strcmp(texts[0], texts[1])) {
        if (*texts[0]) fprintf(out, "    line      %s\n", texts[0]);
        return;
    }
    for (int side = 0; side < 2; side++)
        if (*texts[side]) fprintf(out, "    line      %s: %s\n", side ? "second" : "first", texts[side]);
}

static void print_place(FILE *out, const lb_diff_report *report, const char *title, const lb_diff_row *r)
{
    fprintf(out, "%s: ", title);
    if (!only_tensors(report)) fprintf(out, "step %" PRId64 ", ", r->step);
    if (r->rank) fprintf(out, "rank %d, ", r->rank);
    bool source = r->op && strcmp(r->op, "lb::source") == 0;
    if (source)
        fprintf(out, "%s\n", layer_name(r));
    else
        print_op(out, r);
    print_effect(out, report, r);
    print_lines(out, r);
    print_arguments(out, r);
    fprintf(out, "    %-9s %s\n", lb_verdict_name(r->verdict), r->why);
}

/* How much of both was compared. */
static void print_counts(FILE *out, const lb_diff_report *r)
{
    if (only_tensors(r))
        fprintf(out, "%" PRIu64 " of %" PRIu64 " tensors that both sides have are the same\n", r->sources_identical,
                r->sources);
    else
        fprintf(out, "%" PRIu64 " of %" PRIu64 " aligned ops have the same bits\n", r->identical, r->ops);
    if (r->unseen)
        fprintf(out, "of %" PRIu64 " more a result has no digest: nothing is known of its bits\n", r->unseen);
}

/* The verdict, where it begins, and how much it is: in this order, whatever else there is to say. */
static void print_head(FILE *out, const lb_diff_report *r)
{
    fprintf(out, "verdict: %s — %s\n", lb_verdict_name(r->verdict),
            only_tensors(r) ? tensors_sentence(r->verdict) : verdict_sentence(r->verdict));
    bool own = r->has_first && r->first.local == r->first.verdict;
    const char *title = r->first.lossy                             ? "Most is lost here"
                        : r->verdict == LB_VERDICT_DIVERGED && own ? "They part here"
                                                                   : "First such difference";
    if (r->has_first) print_place(out, r, title, &r->first);
    if (r->has_first && (r->earliest.index != r->first.index || r->earliest.step != r->first.step ||
                         (r->first.lossy && r->earliest.other != r->first.other)))
        print_place(out, r, "Bits differ from here on", &r->earliest);
    print_counts(out, r);
}

/* ---- two implementations ---- */

/* Places that differ by themselves, largest effect first; the first of them stands at the head already. */
/* Which ranks run the op of a place, where a side has several. */
static void print_ranks(FILE *out, const lb_diff_difference *d)
{
    static const char *const sides[] = {"first", "second"};
    if ((d->ranks[0] | d->ranks[1]) <= 1) return;
    for (int k = 0; k < 2; k++) {
        const bool several = (d->ranks[k] & (d->ranks[k] - 1)) != 0;
        if (!d->ranks[k]) continue;
        fprintf(out, "%s%s of the %s side", k && d->ranks[0] ? ", " : "             rank", several ? "s" : "",
                sides[k]);
        for (int i = 0, n = 0; i < 64; i++)
            if (d->ranks[k] >> i & 1) fprintf(out, "%s%d", n++ ? ", " : " ", i);
    }
    fprintf(out, "\n");
}

static void print_differences(FILE *out, const lb_diff_report *r)
{
    bool measured = false;
    for (uint32_t i = 0; i < r->n_differences; i++) measured |= r->differences[i].effect == r->differences[i].effect;
    if (r->n_differences < 2 && !measured) return; /* the place that stands above, and nothing besides */
    fprintf(out, "\nplaces that differ by themselves%s:\n",
            measured ? ", by what each alone moves what leaves the step (relative L2)" : "");
    for (uint32_t i = 0; i < r->n_differences && i < ROWS; i++) {
        const lb_diff_difference *d = &r->differences[i];
        if (d->effect == d->effect)
            fprintf(out, "  %9.3g  ", d->effect);
        else
            fprintf(out, "          -  ");
        fprintf(out, "step %" PRId64 ", %s, %s %s", d->row.step, lb_phase_name(d->row.phase), layer_name(&d->row),
                d->row.op ? d->row.op : "");
        if (d->op_b && (strcmp(d->op_b, d->row.op) || strcmp(d->layer_b, d->row.layer)))
            fprintf(out, " | %s %s", *d->layer_b ? d->layer_b : "(top level)", d->op_b);
        else if (!d->op_b && d->layer_b && strcmp(d->layer_b, d->row.layer))
            fprintf(out, " | %s", d->layer_b);
        if (d->row.parameter) fprintf(out, " (%s)", d->row.parameter);
        if (d->times > 1) fprintf(out, ", and %u like it", d->times - 1);
        if (d->steps > 1) fprintf(out, ", in %u steps", d->steps);
        fprintf(out, "\n             %s\n", d->row.why);
        print_ranks(out, d);
        for (uint32_t k = 0; k < d->row.n_arguments; k++)
            fprintf(out, "             %s %s / %s\n", d->row.arguments[k].name, d->row.arguments[k].first,
                    d->row.arguments[k].second);
    }
    if (r->n_differences > ROWS) fprintf(out, "  and %u more (--json)\n", r->n_differences - ROWS);
}

static void print_map(FILE *out, const lb_diff_report *r)
{
    if (!r->implementations) return;
    fprintf(out,
            "\ntensors were matched by their numbers: %" PRIu64 " of %" PRIu64
            " named ones of the second side hold numbers of the first\n",
            r->sources_identical, r->sources);
    for (uint32_t i = 0, shown = 0; i < r->n_map && shown < GUILTY; i++, shown++)
        fprintf(out, "  %-10s  %s%s%s\n", *r->map[i].first ? r->map[i].relation : "unmatched", r->map[i].second,
                *r->map[i].first ? "  =  " : "", r->map[i].first);
    if (r->n_map > GUILTY) fprintf(out, "  and %u more (--map-out FILE)\n", r->n_map - GUILTY);
}

/* ---- which layers are shown ---- */

typedef struct choice {
    const lb_diff_report *report;
    uint8_t *shown; /* per row of layers */
    uint32_t n_shown, n_differing;
} choice;

static bool is_candidate(const choice *c, uint32_t i)
{
    return i < c->report->n_layers && !c->report->layers[i].value && !c->shown[i] && differs(&c->report->layers[i]);
}

static void show_row(choice *c, uint32_t i)
{
    c->shown[i] = 1, c->n_shown++;
}

/* Rows in order of first execution; the one where the report's first difference lies, or the first that differs. */
static uint32_t first_row(const lb_diff_report *r)
{
    for (uint32_t i = 0; r->has_first && i < r->n_layers; i++)
        if (r->layers[i].rank == r->first.rank && !strcmp(r->layers[i].layer, r->first.layer)) return i;
    return 0;
}

static void choose_rows(choice *c, bool all)
{
    const lb_diff_report *r = c->report;
    for (uint32_t i = 0; i < r->n_layers; i++) c->n_differing += !r->layers[i].value && differs(&r->layers[i]);
    if (all || c->n_differing <= ROWS) {
        for (uint32_t i = 0; i < r->n_layers; i++)
            if (all || (!r->layers[i].value && differs(&r->layers[i]))) show_row(c, i);
        return;
    }
    for (uint32_t i = 0; i < r->n_layers && c->n_shown < GUILTY; i++) {
        lb_verdict local = r->layers[i].local;
        if (is_candidate(c, i) && (local == LB_VERDICT_DIVERGED || local == LB_VERDICT_MISSING)) show_row(c, i);
    }
    for (uint32_t i = r->n_layers, last = 0; i-- > 0 && last < LAST;)
        if (is_candidate(c, i)) show_row(c, i), last++;
    uint32_t middle = first_row(r);
    for (uint32_t d = 0; d < r->n_layers && c->n_shown < ROWS; d++) {
        if (is_candidate(c, middle + d)) show_row(c, middle + d);
        if (d && d <= middle && c->n_shown < ROWS && is_candidate(c, middle - d)) show_row(c, middle - d);
    }
}

/* ---- the table ---- */

static int name_width(const choice *c)
{
    size_t width = strlen("layer");
    for (uint32_t i = 0; i < c->report->n_layers; i++) {
        size_t n = c->shown[i] ? strlen(layer_name(&c->report->layers[i])) : 0;
        if (n > width) width = n;
    }
    return (int)width;
}

static bool many_ranks(const lb_diff_report *r)
{
    for (uint32_t i = 1; i < r->n_layers; i++)
        if (r->layers[i].rank != r->layers[0].rank) return true;
    return false;
}

static void print_row(FILE *out, const lb_diff_row *l, int width, bool ranks)
{
    if (ranks) fprintf(out, "%4d  ", l->rank);
    fprintf(out, "%-*s  %-10s %-10s %-10s ", width, layer_name(l), lb_verdict_name(l->verdict),
            lb_verdict_name(l->local), lb_verdict_name(l->inherited));
    if (l->measured && ulp_says_something(&l->difference))
        fprintf(out, "%9.3g %9.3g %9.3g\n", l->difference.max_abs, l->difference.rel_l2, l->difference.max_ulp);
    else if (l->measured)
        fprintf(out, "%9.3g %9.3g %9s\n", l->difference.max_abs, l->difference.rel_l2, "-");
    else
        fprintf(out, "%9s %9s %9s\n", "-", "-", "-");
}

static void print_left_out(FILE *out, const choice *c)
{
    uint32_t left = c->n_differing - c->n_shown, guilty = 0;
    for (uint32_t i = 0; i < c->report->n_layers; i++)
        guilty += is_candidate(c, i) && c->report->layers[i].local == LB_VERDICT_DIVERGED;
    fprintf(out, "… and %u more layer%s", left, left == 1 ? "" : "s");
    if (guilty)
        fprintf(out, ", %u of them diverged by %s own doing", guilty, guilty == 1 ? "its" : "their");
    else
        fprintf(out, " that differ%s", left == 1 ? "s" : "");
    fprintf(out, "; --all lists them\n");
}

static void print_table(FILE *out, const lb_diff_report *r, bool all)
{
    choice c = {.report = r, .shown = calloc(r->n_layers + 1, 1)};
    if (!c.shown) return;
    choose_rows(&c, all);
    if (c.n_shown) {
        int width = name_width(&c);
        bool ranks = many_ranks(r);
        fprintf(out, "\n%s%-*s  %-10s %-10s %-10s %9s %9s %9s\n", ranks ? "rank  " : "", width, "layer", "verdict",
                "local", "inherited", "max abs", "rel L2", "max ulp");
        for (uint32_t i = 0; i < r->n_layers; i++)
            if (c.shown[i]) print_row(out, &r->layers[i], width, ranks);
        if (!all && c.n_differing > c.n_shown) print_left_out(out, &c);
    }
    free(c.shown);
}

/* Of checkpoints, each tensor that differs, and how. */
static void print_tensors(FILE *out, const lb_diff_report *r, bool all)
{
    uint32_t shown = 0, n = 0, differing = (uint32_t)(r->sources - r->sources_identical);
    for (uint32_t i = 0; i < r->n_layers && differing > 1; i++) { /* of a single one all was said above */
        const lb_diff_row *l = &r->layers[i];
        if (!l->value || !differs(l)) continue;
        n++;
        if (!all && shown >= ROWS) continue;
        if (shown++ == 0) fprintf(out, "\nverdict       max abs    rel L2  tensor\n");
        fprintf(out, "%-10s ", lb_verdict_name(l->verdict));
        if (l->measured)
            fprintf(out, "%10.3g %9.3g", l->difference.max_abs, l->difference.rel_l2);
        else
            fprintf(out, "%10s %9s", "-", "-");
        fprintf(out, "  %s", layer_name(l));
        if (!l->measured)
            fprintf(out, ": %s", l->why);
        else if (l->difference.differing && l->difference.pattern != LB_PATTERN_SCATTERED)
            fprintf(out, ": %s", l->difference.detail);
        fputc('\n', out);
    }
    if (n > shown) fprintf(out, "… and %u more tensors that differ; --all lists them\n", n - shown);
}

/* Parameters, states and batches in one line. */
static void print_values(FILE *out, const lb_diff_report *r)
{
    uint32_t counts[LB_VERDICT_COUNT] = {0}, n = 0, own = 0;
    const lb_diff_row *worst = worst_value(r);
    for (uint32_t i = 0; i < r->n_layers; i++) {
        const lb_diff_row *l = &r->layers[i];
        if (!l->value || !differs(l)) continue;
        n++, counts[l->verdict]++, own += l->local == LB_VERDICT_DIVERGED;
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

static void print_tokens(FILE *out, const lb_diff_report *r)
{
    for (uint32_t i = 0; i < r->n_tokens && r->tokens_looked_up; i++) { /* classes of images are no tokens */
        const lb_diff_tokens *t = &r->tokens[i];
        if (i == 0)
            fprintf(out, "\n%-12s %8s %10s %10s %8s %14s %14s\n", r->tokens_approximate ? "tokens (~)" : "tokens",
                    "count", "k3", "KL", "top-1", "max |d log p|", "mean |d log p|");
        fprintf(out, "%-12s %8" PRId64 " ", t->kind, t->count);
        if (t->has_targets)
            fprintf(out, "%10.3g %10.3g %7.4g%% %14.3g %14.3g\n", t->k3, t->kl, 100 * t->top1, t->max_abs, t->mean_abs);
        else
            fprintf(out, "%10s %10.3g %7.4g%% %14s %14s\n", "-", t->kl, 100 * t->top1, "-", "-");
    }
}

static void print_routing(FILE *out, const lb_diff_report *r)
{
    uint32_t flipped = 0;
    for (uint32_t i = 0; i < r->n_routings; i++) {
        const lb_diff_routing *x = &r->routings[i];
        if (!x->flips) continue;
        if (flipped++ == 0) fputc('\n', out);
        if (flipped > FEW) continue;
        fprintf(out, "routing: step %" PRId64 ", ", x->step);
        if (x->rank) fprintf(out, "rank %d, ", x->rank);
        fprintf(out, "%s: %" PRId64 " of %" PRId64 " choices flipped (%.3g%%)", *x->layer ? x->layer : "(top level)",
                x->flips, x->choices, 100 * (double)x->flips / (double)x->choices);
        if (x->largest_margin == x->largest_margin)
            fprintf(out, ", largest margin %.3g; %" PRId64 " near ties, %" PRId64 " explained by logits that moved",
                    x->largest_margin, x->near_ties, x->explained);
        fputc('\n', out);
    }
    if (flipped > FEW) fprintf(out, "routing: … and in %u more places; --json has them\n", flipped - FEW);
}

static void print_structure(FILE *out, const lb_diff_report *r, bool all)
{
    uint32_t shown = 0, n = 0, reshaped = 0;
    for (uint32_t i = 0; i < r->n_structures; i++) {
        const lb_diff_structure *s = &r->structures[i];
        bool same_ops = strcmp(s->ops_a, s->ops_b) == 0;
        reshaped += same_ops, n += !same_ops;
        if ((same_ops || shown >= FEW) && !all) continue;
        if (shown++ == 0) fprintf(out, "\nops on one side only:\n");
        fprintf(out, "  step %" PRId64 ", ", s->step);
        if (s->rank) fprintf(out, "rank %d, ", s->rank);
        fprintf(out, "%s, %s: first {%s}, second {%s}\n", lb_phase_name(s->phase), *s->layer ? s->layer : "(top level)",
                s->ops_a, s->ops_b);
    }
    if (!all && n > shown) fprintf(out, "  … in %u more places; --all lists them\n", n - shown);
    if (!all && reshaped)
        fprintf(out, "%sthe same ops, but in other shapes or numbers: in %u places; --all lists them\n",
                shown ? "  " : "\n", reshaped);
}

/* ---- what to do now ---- */

static void print_next(FILE *out, const lb_diff_report *r, const char *a, const char *b)
{
    if (!r->has_first) return;
    fprintf(out, "\nNext:\n");
    const char *paths[] = {a, b};
    for (int side = 0; side < 2; side++) {
        uint32_t op = side == 0 ? r->first.index : r->first.other;
        if (op == LB_NONE) continue;
        fprintf(out, "  lastbit show ");
        print_path(out, paths[side]);
        fprintf(out, " --step %" PRId64 " --rank %d --op %u\n",
                side && r->implementations ? r->first.other_step : r->first.step,
                side == 0 ? r->first.rank : r->first.other_rank, op);
    }
    if (r->verdict == LB_VERDICT_MISSING && r->first.local == LB_VERDICT_MISSING && r->first.measured)
        fprintf(out, "  lastbit record -o AGAIN.lb …    # the first side once more; then add `--noise "
                     "AGAIN.lb` to this diff\n");
    if (r->verdict != LB_VERDICT_DIVERGED || only_tensors(r)) return;
    fprintf(out, "  lastbit bisect ");
    print_path(out, b);
    fprintf(out, " --against ");
    print_path(out, a);
    fputc('\n', out);
}

char *lb_diff_text(const lb_diff_report *r, const char *a, const char *b, bool all)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    print_head(out, r);
    print_differences(out, r);
    print_table(out, r, all);
    if (only_tensors(r))
        print_tensors(out, r, all);
    else
        print_values(out, r);
    print_map(out, r);
    print_tokens(out, r);
    print_routing(out, r);
    print_structure(out, r, all);
    for (uint32_t i = 0; i < r->n_findings && (all || i < FEW); i++)
        fprintf(out, "%snote: %s\n", i ? "" : "\n", r->findings[i]);
    if (!all && r->n_findings > FEW) fprintf(out, "note: … and %u more; --all lists them\n", r->n_findings - FEW);
    for (uint32_t i = 0; i < r->n_missing && (all || i < ROWS); i++)
        fprintf(out, "%smissing: %s\n", i ? "" : "\n", r->missing[i]);
    if (!all && r->n_missing > ROWS) fprintf(out, "missing: … and %u more; --all lists them\n", r->n_missing - ROWS);
    print_next(out, r, a, b);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
