/* Printing routing replay: see cmd_routing.h. */
#include "cmd_routing.h"

#include "command_line.h"

#include <lastbit/routing.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *count(int64_t n)
{
    return n < 0 ? json_null() : json_integer((json_int_t)n);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------------ */

static json_t *endings_json(const lb_routing_report *r)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < r->n_endings; i++) {
        const lb_routing_ending *e = &r->endings[i];
        json_t *modes = json_array();
        for (int m = 0; m < LB_ROUTING_MODES; m++) {
            const lb_routing_gap *base = &e->gaps[LB_ROUTING_RECOMPUTE], *gap = &e->gaps[m];
            json_t *row =
                json_pack("{s:s, s:o, s:o, s:b}", "mode", lb_routing_mode_name(m), "output",
                          number(gap->output), "loss", number(gap->loss), "undecided", r->undecided[m]);
            if (m > LB_ROUTING_RECOMPUTE)
                json_object_set_new(row, "recovered",
                                    json_pack("{s:o, s:o}", "output",
                                              number(lb_routing_recovered(base->output, gap->output)), "loss",
                                              number(lb_routing_recovered(base->loss, gap->loss))));
            json_array_append_new(modes, row);
        }
        json_array_append_new(rows, json_pack("{s:I, s:i, s:s, s:o}", "step", (json_int_t)e->step, "rank",
                                              (int)e->rank, "output", e->output, "modes", modes));
    }
    return rows;
}

static json_t *layers_json(const lb_routing_report *r)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < r->n_layers; i++) {
        const lb_routing_layer *l = &r->layers[i];
        json_array_append_new(
            rows, json_pack("{s:I, s:i, s:s, s:i, s:I, s:I, s:o, s:I, s:I, s:I, s:o, s:o, s:o}", "step",
                            (json_int_t)l->step, "rank", (int)l->rank, "layer", l->layer, "call", (int)l->call,
                            "tokens", (json_int_t)l->tokens, "choices", (json_int_t)l->choices, "flips",
                            count(l->flips), "near_ties", (json_int_t)l->near_ties, "router_differences",
                            (json_int_t)l->router_differences, "unjudged", (json_int_t)l->unjudged,
                            "recomputed", count(l->recomputed), "largest_margin", number(l->largest_margin),
                            "largest_upstream", number(l->largest_upstream)));
    }
    return rows;
}

/* Router differences before near ties, wide margins first. */
static int by_weight(const void *a, const void *b)
{
    const lb_routing_flip *x = a, *y = b;
    if (x->kind != y->kind)
        return x->kind == LB_FLIP_ROUTER ? -1 : y->kind == LB_FLIP_ROUTER ? 1 : (int)x->kind - (int)y->kind;
    const double p = isnan(x->margin) ? -INFINITY : x->margin, q = isnan(y->margin) ? -INFINITY : y->margin;
    if (p != q) return p > q ? -1 : 1;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return x->token != y->token ? (x->token < y->token ? -1 : 1) : x->lost < y->lost ? -1 : x->lost > y->lost;
}

static json_t *flips_json(const lb_routing_report *r, uint32_t most)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < r->n_flips && i < most; i++) {
        const lb_routing_flip *f = &r->flips[i];
        const lb_routing_layer *l = &r->layers[f->layer];
        json_array_append_new(
            rows, json_pack("{s:I, s:i, s:s, s:i, s:I, s:I, s:o, s:s, s:o, s:o, s:o}", "step",
                            (json_int_t)l->step, "rank", (int)l->rank, "layer", l->layer, "call", (int)l->call,
                            "token", (json_int_t)f->token, "lost", (json_int_t)f->lost, "won", count(f->won),
                            "kind", lb_flip_kind_name(f->kind), "margin", number(f->margin), "upstream",
                            number(f->upstream), "rounding", number(f->rounding)));
    }
    return rows;
}

static json_t *swaps_json(const lb_plan *plan)
{
    json_t *swaps = json_array();
    for (uint32_t i = 0; i < plan->n_swaps; i++)
        json_array_append_new(swaps,
                              json_pack("{s:s, s:s, s:s, s:I}", "swap", lb_swap_option(plan->swaps[i].kind),
                                        "selector", plan->swaps[i].selector, "argument",
                                        plan->swaps[i].argument, "touched", (json_int_t)plan->touched[i]));
    return swaps;
}

static json_t *as_json(const lb_routing_report *r, const lb_plan *plan, uint32_t most)
{
    return json_pack("{s:s, s:o, s:{s:o, s:o, s:o, s:s}}", "mode", "chained", "swaps", swaps_json(plan),
                     "routing", "endings", endings_json(r), "layers", layers_json(r), "flips",
                     flips_json(r, most), "undecided_at", r->undecided_at);
}

/* ---- text ------------------------------------------------------------------------------------------------------------ */

static void print_number(double x, int width)
{
    if (isnan(x))
        printf("%*s", width, "-");
    else
        printf("%*.3g", width, x);
}

static void print_percent(double part)
{
    if (isnan(part))
        printf("%9s", "-");
    else
        printf("%8.1f%%", 100 * part);
}

static void print_ending(const lb_routing_report *r, const lb_routing_ending *e)
{
    printf("\nstep %lld, rank %d: %-28s %9s %9s %9s %9s\n", (long long)e->step, (int)e->rank,
           "distance from the recording", "output", "recovered", "loss", "recovered");
    for (int m = 0; m < LB_ROUTING_MODES; m++) {
        const lb_routing_gap *base = &e->gaps[LB_ROUTING_RECOMPUTE], *gap = &e->gaps[m];
        const bool forced = m > LB_ROUTING_RECOMPUTE;
        printf("  %-42s ", m == LB_ROUTING_PLAIN ? "no swap, routing recomputed" : lb_routing_mode_name(m));
        print_number(gap->output, 10);
        print_percent(forced ? lb_routing_recovered(base->output, gap->output) : NAN);
        print_number(gap->loss, 10);
        print_percent(forced ? lb_routing_recovered(base->loss, gap->loss) : NAN);
        printf(r->undecided[m] ? "  (the chain ended)\n" : "\n");
    }
    if (!isnan(e->gaps[LB_ROUTING_PLAIN].output))
        printf("  output: of %s\n", *e->output ? e->output : "the whole model");
}

static void print_layers(const lb_routing_report *r)
{
    printf("\n%-32s %5s %4s %8s %7s %7s %10s %10s %9s %9s %10s\n", "choices that would change", "step", "rank",
           "choices", "flips", "ties", "of routers", "unjudged", "margin", "upstream", "recomputed");
    for (uint32_t i = 0; i < r->n_layers; i++) {
        const lb_routing_layer *l = &r->layers[i];
        printf("%-32s %5lld %4d %8lld ", l->layer, (long long)l->step, (int)l->rank, (long long)l->choices);
        if (l->flips < 0)
            printf("%7s %7s %10s %10s ", "-", "-", "-", "-");
        else
            printf("%7lld %7lld %10lld %10lld ", (long long)l->flips, (long long)l->near_ties,
                   (long long)l->router_differences, (long long)l->unjudged);
        print_number(l->largest_margin, 9);
        print_number(l->largest_upstream, 10);
        if (l->recomputed < 0)
            printf("%11s\n", "-");
        else
            printf("%11lld\n", (long long)l->recomputed);
    }
    printf("flips, ties, of routers: with the recorded ids in force before each; margin and upstream: the "
           "largest of a flip;\n"
           "recomputed: choices that differ when nothing is forced\n");
}

static void print_flips(const lb_routing_report *r, uint32_t most)
{
    if (!r->n_flips || !most) return;
    printf("\n%-18s %-32s %5s %4s %7s %6s %6s %10s %10s %10s\n", "flip", "layer", "step", "rank", "token",
           "lost", "won", "margin", "upstream", "rounding");
    for (uint32_t i = 0; i < r->n_flips && i < most; i++) {
        const lb_routing_flip *f = &r->flips[i];
        const lb_routing_layer *l = &r->layers[f->layer];
        printf("%-18s %-32s %5lld %4d %7lld %6lld %6lld ", lb_flip_kind_name(f->kind), l->layer,
               (long long)l->step, (int)l->rank, (long long)f->token, (long long)f->lost, (long long)f->won);
        print_number(f->margin, 10), print_number(f->upstream, 11), print_number(f->rounding, 11);
        printf("\n");
    }
    if (r->n_flips > most) printf("and %u more (--worst N)\n", r->n_flips - most);
}

static void print_text(const lb_routing_report *r, const lb_plan *plan, uint32_t most)
{
    printf("routing replay: chained, with the routing recomputed and with parts of it as recorded\n");
    for (uint32_t i = 0; i < plan->n_swaps; i++)
        printf("  --%s %s%s%s%s\n", lb_swap_option(plan->swaps[i].kind), plan->swaps[i].selector,
               *plan->swaps[i].argument && *plan->swaps[i].selector ? "=" : "", plan->swaps[i].argument,
               plan->touched[i] ? "" : " concerned nothing");
    if (!plan->n_swaps)
        printf(
            "  without a swap there is no gap to recover: give one, like --precision 'phase=forward=bf16'\n");
    for (uint32_t i = 0; i < r->n_endings; i++) print_ending(r, &r->endings[i]);
    if (*r->undecided_at) printf("  the chain ended at %s\n", r->undecided_at);
    print_layers(r);
    print_flips(r, most);
}

lb_status lb_routing_print(lb_capture *capture, lb_replay *replay, const lb_plan *plan, uint32_t most,
                           bool json, bool *differs, lb_err *err)
{
    lb_routing_report r;
    const lb_status status = lb_routing_report_make(capture, replay, plan, &r, err);
    *differs = false;
    for (uint32_t i = 0; i < r.n_layers; i++) *differs |= r.layers[i].router_differences > 0;
    if (status == LB_OK && r.n_flips) qsort(r.flips, r.n_flips, sizeof *r.flips, by_weight);
    if (status == LB_OK && json)
        lb_print_json("replay", as_json(&r, plan, most));
    else if (status == LB_OK)
        print_text(&r, plan, most);
    lb_routing_report_release(&r);
    return status;
}
