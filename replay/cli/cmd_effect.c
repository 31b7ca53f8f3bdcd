/* Printing the effect of swaps: see cmd_effect.h. */
#include "cli/cmd_effect.h"

#include <math.h>
#include <stdio.h>

json_t *lb_effect_number(double x)
{
    return isfinite(x) ? json_real(x) : isinf(x) ? json_string("inf") : json_null();
}

static json_t *size_json(const lb_effect_size *size)
{
    json_t *one =
        json_pack("{s:I, s:I, s:o, s:o}", "tensors", (json_int_t)size->tensors, "moved", (json_int_t)size->moved,
                  "max_abs", lb_effect_number(size->max_abs), "rel_l2", lb_effect_number(size->rel_l2));
    if (size->unknown) json_object_set_new(one, "unknown", json_integer((json_int_t)size->unknown));
    return one;
}

static double larger(double a, double b)
{
    return isnan(a) || b > a ? b : a;
}

static void add(lb_effect_size *all, const lb_effect_size *one)
{
    all->tensors += one->tensors;
    all->moved += one->moved;
    all->unknown += one->unknown;
    all->max_abs = larger(all->max_abs, one->max_abs);
    all->rel_l2 = larger(all->rel_l2, one->rel_l2);
}

static lb_effect sum_up(const lb_effect *rows, uint32_t n)
{
    const lb_effect_size none = {0, 0, 0, NAN, NAN};
    lb_effect all = {.output = none, .loss = none, .parameters = none};
    for (uint32_t i = 0; i < n; i++) {
        add(&all.output, &rows[i].output);
        add(&all.loss, &rows[i].loss);
        add(&all.parameters, &rows[i].parameters);
    }
    return all;
}

json_t *lb_effects_json(lb_effects *effects)
{
    const lb_effect *rows;
    if (!effects) return json_null();
    const uint32_t n = lb_effects_rows(effects, &rows);
    const lb_effect all = sum_up(rows, n);
    json_t *steps = json_array();
    for (uint32_t i = 0; i < n; i++) {
        const lb_effect *row = &rows[i];
        json_array_append_new(steps,
                              json_pack("{s:I, s:i, s:s, s:o, s:o, s:o, s:o, s:o}", "step", (json_int_t)row->step,
                                        "rank", (int)row->rank, "layer", row->layer, "output", size_json(&row->output),
                                        "loss", size_json(&row->loss), "parameters", size_json(&row->parameters),
                                        "loss_recorded", lb_effect_number(row->loss_reference), "loss_swapped",
                                        lb_effect_number(row->loss_swapped)));
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "output", size_json(&all.output), "loss", size_json(&all.loss),
                     "parameters", size_json(&all.parameters), "steps", steps);
}

static void print_size(const char *what, const lb_effect_size *size)
{
    if (!size->tensors)
        printf("  %-12s %10s\n", what, size->unknown ? "not known" : "-");
    else if (!size->moved)
        printf("  %-12s %10s\n", what, "unmoved");
    else
        printf("  %-12s by at most %.3g, relative %.3g\n", what, size->max_abs, size->rel_l2);
}

void lb_effects_print(lb_effects *effects)
{
    const lb_effect *rows;
    const uint32_t n = effects ? lb_effects_rows(effects, &rows) : 0;
    for (uint32_t i = 0; i < n; i++) {
        const lb_effect *row = &rows[i];
        char what[64];
        printf("effect on step %lld, rank %d:\n", (long long)row->step, (int)row->rank);
        print_size("output", &row->output);
        print_size("loss", &row->loss);
        if (row->loss.moved) printf("  %-12s from %.7g to %.7g\n", "", row->loss_reference, row->loss_swapped);
        snprintf(what, sizeof what, "%llu of %llu", (unsigned long long)row->parameters.moved,
                 (unsigned long long)row->parameters.tensors);
        print_size("parameters", &row->parameters);
        if (row->parameters.moved) printf("  %-12s %s moved\n", "", what);
    }
}
