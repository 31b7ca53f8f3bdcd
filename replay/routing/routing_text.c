/* Routing replay for a person: see lastbit/routing.h. */
#include <lastbit/routing.h>
#include <lastbit/text_stream.h>

#include <math.h>
#include <stdio.h>

static void print_number(FILE *out, double x, int width)
{
    if (isnan(x))
        fprintf(out, "%*s", width, "-");
    else
        fprintf(out, "%*.3g", width, x);
}

static void print_percent(FILE *out, double part)
{
    if (isnan(part))
        fprintf(out, "%9s", "-");
    else
        fprintf(out, "%8.1f%%", 100 * part);
}

/* The runs as the table calls them; NULL: not in it. Against another recording a run without swaps is the one that
 * recomputes. */
static const char *row_of(const lb_routing_report *report, lb_routing_mode mode)
{
    static const char *const against[LB_ROUTING_MODES] = {NULL, "its own choices", "the second side's ids",
                                                          "its ids and weights", "its ids, weights and slots"};
    if (report->against) return against[mode];
    return mode == LB_ROUTING_PLAIN ? "no swap, routing recomputed" : lb_routing_mode_name(mode);
}

static void print_ending(FILE *out, const lb_routing_report *report, const lb_routing_step_end *end)
{
    fprintf(out, "\nstep %lld, rank %d: %-28s %9s %9s %9s %9s\n", (long long)end->step, (int)end->rank,
            report->against ? "distance from the second side" : "distance from the recording", "output", "recovered",
            "loss", "recovered");
    for (int m = 0; m < LB_ROUTING_MODES; m++) {
        const lb_routing_gap *base = &end->gaps[LB_ROUTING_RECOMPUTE], *gap = &end->gaps[m];
        const bool forced = m > LB_ROUTING_RECOMPUTE;
        const char *row = row_of(report, (lb_routing_mode)m);
        if (!row) continue;
        fprintf(out, "  %-42s ", row);
        print_number(out, gap->output, 10);
        print_percent(out, forced ? lb_routing_recovered(base->output, gap->output) : NAN);
        print_number(out, gap->loss, 10);
        print_percent(out, forced ? lb_routing_recovered(base->loss, gap->loss) : NAN);
        fprintf(out, report->undecided[m] ? "  (the chain ended)\n" : "\n");
    }
    if (!isnan(end->gaps[LB_ROUTING_PLAIN].output))
        fprintf(out, "  output: of %s\n", *end->output ? end->output : "the whole model");
}

static void print_layers(FILE *out, const lb_routing_report *report)
{
    fprintf(out, "\n%-32s %5s %4s %8s %7s %7s %10s %10s %9s %9s %10s\n",
            report->against ? "choices that differ" : "choices that would change", "step", "rank", "choices", "flips",
            "ties", "of routers", "unjudged", "margin", "upstream", "recomputed");
    for (uint32_t i = 0; i < report->n_layers; i++) {
        const lb_routing_layer *layer = &report->layers[i];
        fprintf(out, "%-32s %5lld %4d %8lld ", layer->layer, (long long)layer->step, (int)layer->rank,
                (long long)layer->choices);
        if (layer->flips < 0)
            fprintf(out, "%7s %7s %10s %10s ", "-", "-", "-", "-");
        else
            fprintf(out, "%7lld %7lld %10lld %10lld ", (long long)layer->flips, (long long)layer->near_ties,
                    (long long)layer->router_differences, (long long)layer->unjudged);
        print_number(out, layer->largest_margin, 9);
        print_number(out, layer->largest_upstream, 10);
        if (layer->recomputed < 0)
            fprintf(out, "%11s\n", "-");
        else
            fprintf(out, "%11lld\n", (long long)layer->recomputed);
    }
    fprintf(out, report->against
                     ? "flips, ties, of routers: choices that the second side made differently; upstream: "
                       "what the first side's router\n"
                       "makes of the second's hidden states; both the largest of a flip; recomputed: "
                       "choices of the replay that differ\n"
                     : "flips, ties, of routers: with the recorded ids in force before each; margin and upstream: "
                       "the largest of a flip;\n"
                       "recomputed: choices that differ when nothing is forced\n");
}

static void print_flips(FILE *out, const lb_routing_report *report, uint32_t most)
{
    if (!report->n_flips || !most) return;
    fprintf(out, "\n%-18s %-32s %5s %4s %7s %6s %6s %10s %10s %10s\n", "flip", "layer", "step", "rank", "token", "lost",
            "won", "margin", "upstream", "rounding");
    for (uint32_t i = 0; i < report->n_flips && i < most; i++) {
        const lb_routing_flip *flip = &report->flips[i];
        const lb_routing_layer *layer = &report->layers[flip->layer];
        fprintf(out, "%-18s %-32s %5lld %4d %7lld %6lld %6lld ", lb_routing_flip_kind_name(flip->kind), layer->layer,
                (long long)layer->step, (int)layer->rank, (long long)flip->token, (long long)flip->lost,
                (long long)flip->won);
        print_number(out, flip->margin, 10), print_number(out, flip->upstream, 11),
            print_number(out, flip->rounding, 11);
        fprintf(out, "\n");
    }
    if (report->n_flips > most)
        fprintf(out, report->against ? "and %u more (--json)\n" : "and %u more (--worst N)\n", report->n_flips - most);
}

char *lb_routing_text(const lb_routing_report *report, uint32_t most)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    for (uint32_t i = 0; i < report->n_endings; i++) print_ending(out, report, &report->endings[i]);
    if (*report->undecided_at) fprintf(out, "  the chain ended at %s\n", report->undecided_at);
    print_layers(out, report);
    print_flips(out, report, most);
    fclose(out);
    return text;
}
