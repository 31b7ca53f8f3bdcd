/* Printing what each swap does: see cmd_switches.h. */
#include "cli/cmd_switches.h"

#include "cli/cmd_plan.h"

#include <lastbit/switches.h>

#include <lastbit/json_text.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *move_json(lb_switch_move move)
{
    return json_pack("{s:o, s:o}", "output", lb_command_json_finite(move.output), "loss",
                     lb_command_json_finite(move.loss));
}

static json_t *as_json(const lb_switch_table *table, const lb_plan *plan)
{
    json_t *swaps = lb_plan_swaps_json(plan), *endings = json_array();
    for (uint32_t i = 0; i < table->n_swaps; i++)
        json_object_set_new(json_array_get(swaps, i), "undecided", json_boolean(table->undecided[i]));
    for (uint32_t k = 0; k < table->n_endings; k++) {
        const lb_switch_step_end *step_end = &table->endings[k];
        json_t *each = json_array();
        for (uint32_t i = 0; i < table->n_swaps; i++)
            json_array_append_new(each, json_pack("{s:o, s:o}", "alone", move_json(step_end->alone[i]), "without",
                                                  move_json(step_end->without[i])));
        json_array_append_new(endings, json_pack("{s:I, s:i, s:s, s:o, s:o}", "step", (json_int_t)step_end->step,
                                                 "rank", (int)step_end->rank, "output", step_end->output, "all",
                                                 move_json(step_end->all), "swaps", each));
    }
    return json_pack("{s:s, s:o, s:o}", "mode", "chained", "swaps", swaps, "each", endings);
}

static void print_number(double x)
{
    if (isnan(x))
        printf(" %10s", "-");
    else
        printf(" %10.3g", x);
}

static void print_moves(lb_switch_move alone, const lb_switch_move *without)
{
    print_number(alone.output), print_number(alone.loss);
    if (without) print_number(without->output), print_number(without->loss);
    printf("\n");
}

/* What a dash and a swap that touches nothing mean. */
static void print_notes(const lb_switch_table *table, const lb_plan *plan)
{
    bool no_output = false, no_loss = false;
    for (uint32_t k = 0; k < table->n_endings; k++)
        no_output |= isnan(table->endings[k].all.output), no_loss |= isnan(table->endings[k].all.loss);
    if (no_output)
        printf("\n"
               "- output: it could not be computed from what the capture holds: "
               "record the step with --level sources (`lastbit replay CAPTURE --coverage` says what lacks)\n");
    else if (no_loss)
        printf("\n- loss: the step computes none that was recorded\n");
    for (uint32_t i = 0; i < table->n_swaps; i++)
        if (!plan->touched[i])
            printf("--%s %s%s%s touches nothing here: `lastbit replay CAPTURE --kernels` lists what can be changed\n",
                   lb_command_swap_option(plan->swaps[i].kind), plan->swaps[i].selector,
                   *plan->swaps[i].selector && *plan->swaps[i].argument ? "=" : "", plan->swaps[i].argument);
}

static void print_text(const lb_switch_table *table, const lb_plan *plan)
{
    for (uint32_t k = 0; k < table->n_endings; k++) {
        const lb_switch_step_end *step_end = &table->endings[k];
        printf("%sstep %lld, rank %d: how far %s%s and the loss move\n", k ? "\n" : "", (long long)step_end->step,
               (int)step_end->rank, *step_end->output ? "the output of " : "the model's output", step_end->output);
        printf("%-52s %8s %21s %21s\n%61s %10s %10s %10s %10s\n", "", "", "alone", "all without it", "touched",
               "output", "loss", "output", "loss");
        for (uint32_t i = 0; i < table->n_swaps; i++) {
            char text[160];
            const lb_swap *swap = &plan->swaps[i];
            snprintf(text, sizeof text, "--%s %s%s%s", lb_command_swap_option(swap->kind), swap->selector,
                     *swap->selector && *swap->argument ? "=" : "", swap->argument);
            printf("%-52s %8llu", text, (unsigned long long)plan->touched[i]);
            print_moves(step_end->alone[i], table->n_swaps > 1 ? &step_end->without[i] : NULL);
        }
        printf("%-52s %8s", "all", "");
        print_moves(step_end->all, NULL);
    }
    print_notes(table, plan);
}

lb_status lb_switches_print(lb_capture *capture, lb_replay *replay, const lb_plan *plan, bool json, bool *undecided,
                            lb_err *err)
{
    lb_switch_table table;
    const lb_status status = lb_switch_table_make(capture, replay, plan, &table, err);
    *undecided = false;
    for (uint32_t i = 0; status == LB_OK && i < table.n_swaps; i++) *undecided |= table.undecided[i];
    if (status == LB_OK && json)
        lb_command_print_json("replay", as_json(&table, plan));
    else if (status == LB_OK)
        print_text(&table, plan);
    lb_switch_table_release(&table);
    return status;
}
