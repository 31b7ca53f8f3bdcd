/* Printing routing replay: see cmd_routing.h. */
#include "cli/cmd_routing.h"

#include "cli/cmd_plan.h"

#include <lastbit/routing.h>

#include <stdio.h>
#include <stdlib.h>

static json_t *as_json(const lb_routing_report *report, const lb_plan *plan, uint32_t most)
{
    char *text = lb_routing_json(report, most);
    json_t *routing = text ? json_loads(text, 0, NULL) : NULL;
    free(text);
    return json_pack("{s:s, s:o, s:o}", "mode", "chained", "swaps", lb_plan_swaps_json(plan), "routing", routing);
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static lb_status print_text(const lb_routing_report *report, const lb_plan *plan, uint32_t most, lb_err *err)
{
    char *text = lb_routing_text(report, most);
    if (!text) return lb_fail(err, LB_ERR_NOMEM, "out of memory for the text");
    printf("routing replay: chained, with the routing recomputed and with parts of it as recorded\n");
    for (uint32_t i = 0; i < plan->n_swaps; i++)
        printf("  --%s %s%s%s%s\n", lb_command_swap_option(plan->swaps[i].kind), plan->swaps[i].selector,
               *plan->swaps[i].argument && *plan->swaps[i].selector ? "=" : "", plan->swaps[i].argument,
               plan->touched[i] ? "" : " concerned nothing");
    if (!plan->n_swaps)
        printf("  without a swap there is no gap to recover: give one, like --precision 'phase=forward=bf16'\n");
    fputs(text, stdout);
    free(text);
    return LB_OK;
}

lb_status lb_routing_print(lb_capture *capture, lb_replay *replay, const lb_plan *plan, uint32_t most, bool json,
                           bool *differs, lb_err *err)
{
    lb_routing_report report;
    lb_status status = lb_routing_report_make(capture, replay, plan, &report, err);
    *differs = false;
    for (uint32_t i = 0; i < report.n_layers; i++) *differs |= report.layers[i].router_differences > 0;
    if (status == LB_OK && json)
        lb_command_print_json("replay", as_json(&report, plan, most));
    else if (status == LB_OK)
        status = print_text(&report, plan, most, err);
    lb_routing_report_release(&report);
    return status;
}
