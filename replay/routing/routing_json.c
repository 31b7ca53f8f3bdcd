/* Routing replay for a program: see lastbit/routing.h. */
#include <lastbit/routing.h>

#include <lastbit/json_text.h>
#include <math.h>
#include <stdlib.h>

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *count(int64_t n)
{
    return n < 0 ? json_null() : json_integer((json_int_t)n);
}

static json_t *endings_json(const lb_routing_report *report)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < report->n_endings; i++) {
        const lb_routing_step_end *end = &report->endings[i];
        json_t *modes = json_array();
        for (int m = 0; m < LB_ROUTING_MODES; m++) {
            const lb_routing_gap *base = &end->gaps[LB_ROUTING_RECOMPUTE], *gap = &end->gaps[m];
            json_t *row = json_pack("{s:s, s:o, s:o, s:b}", "mode", lb_routing_mode_name(m), "output",
                                    number(gap->output), "loss", number(gap->loss), "undecided", report->undecided[m]);
            if (m > LB_ROUTING_RECOMPUTE)
                json_object_set_new(row, "recovered",
                                    json_pack("{s:o, s:o}", "output",
                                              number(lb_routing_recovered(base->output, gap->output)), "loss",
                                              number(lb_routing_recovered(base->loss, gap->loss))));
            json_array_append_new(modes, row);
        }
        json_array_append_new(rows, json_pack("{s:I, s:i, s:s, s:o}", "step", (json_int_t)end->step, "rank",
                                              (int)end->rank, "output", end->output, "modes", modes));
    }
    return rows;
}

static json_t *layers_json(const lb_routing_report *report)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < report->n_layers; i++) {
        const lb_routing_layer *layer = &report->layers[i];
        json_array_append_new(rows, json_pack("{s:I, s:i, s:s, s:i, s:I, s:I, s:o, s:I, s:I, s:I, s:o, s:o, s:o}",
                                              "step", (json_int_t)layer->step, "rank", (int)layer->rank, "layer",
                                              layer->layer, "call", (int)layer->call, "tokens",
                                              (json_int_t)layer->tokens, "choices", (json_int_t)layer->choices, "flips",
                                              count(layer->flips), "near_ties", (json_int_t)layer->near_ties,
                                              "router_differences", (json_int_t)layer->router_differences, "unjudged",
                                              (json_int_t)layer->unjudged, "recomputed", count(layer->recomputed),
                                              "largest_margin", number(layer->largest_margin), "largest_upstream",
                                              number(layer->largest_upstream)));
    }
    return rows;
}

static json_t *flips_json(const lb_routing_report *report, uint32_t most)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < report->n_flips && i < most; i++) {
        const lb_routing_flip *flip = &report->flips[i];
        const lb_routing_layer *layer = &report->layers[flip->layer];
        json_array_append_new(rows, json_pack("{s:I, s:i, s:s, s:i, s:I, s:I, s:o, s:s, s:o, s:o, s:o}", "step",
                                              (json_int_t)layer->step, "rank", (int)layer->rank, "layer", layer->layer,
                                              "call", (int)layer->call, "token", (json_int_t)flip->token, "lost",
                                              (json_int_t)flip->lost, "won", count(flip->won), "kind",
                                              lb_routing_flip_kind_name(flip->kind), "margin", number(flip->margin),
                                              "upstream", number(flip->upstream), "rounding", number(flip->rounding)));
    }
    return rows;
}

char *lb_routing_json(const lb_routing_report *report, uint32_t most)
{
    json_t *object = json_pack("{s:o, s:o, s:o, s:s}", "endings", endings_json(report), "layers", layers_json(report),
                               "flips", flips_json(report, most), "undecided_at", report->undecided_at);
    char *text = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    return text;
}
