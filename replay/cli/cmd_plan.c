/* From options to a plan: see cmd_plan.h. */
#include "cli/cmd_plan.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 4096 };

static lb_status parse_steps(const char *text, lb_plan *plan, lb_err *err)
{
    char *end;
    plan->first_step = plan->last_step = strtoll(text, &end, 10);
    if (end != text && *end == '-') {
        const char *second = end + 1;
        plan->last_step = *second ? strtoll(second, &end, 10) : INT64_MAX;
        if (!*second) end++;
    }
    if (end == text || *end || plan->last_step < plan->first_step)
        return lb_fail(err, LB_ERR_INVALID, "--steps %s: expected a step or a range like 3-5", text);
    return LB_OK;
}

static lb_status parse_ranks(const char *text, int32_t *ranks, uint32_t *n, lb_err *err)
{
    for (const char *at = text;;) {
        char *end;
        long first = strtol(at, &end, 10), last = first;
        if (end == at) break;
        if (*end == '-') {
            at = end + 1;
            last = strtol(at, &end, 10);
            if (end == at) break;
        }
        if (last < first || last - first >= MAX_RANKS - (long)*n) break;
        for (long r = first; r <= last; r++) ranks[(*n)++] = (int32_t)r;
        if (!*end) return LB_OK;
        if (*end != ',') break;
        at = end + 1;
    }
    return lb_fail(err, LB_ERR_INVALID, "--ranks %s: expected ranks and ranges like 0,2-3, %d at most", text,
                   MAX_RANKS);
}

/* What replays several times and prints a table of its own. */
static lb_status check_tables(const lb_cmd_plan_request *request, const lb_plan *plan, lb_err *err)
{
    const char *name = request->routing ? "--routing-report" : "--each";
    if (plan->mode != LB_REPLAY_CHAINED)
        return lb_fail(err, LB_ERR_INVALID, "%s compares where chains end: leave --mode out, or make it chained", name);
    if ((request->routing && request->each) || request->table || request->write || request->digest ||
        request->coverage || request->kernels || (request->routing && request->force))
        return lb_fail(err, LB_ERR_INVALID,
                       "%s replays several times: --table, --write, --digest, --coverage, "
                       "--kernels%s do not go with it",
                       name, request->routing ? ", --each and --force-decisions" : " and --routing-report");
    if (request->each && !request->swaps.n)
        return lb_fail(err, LB_ERR_INVALID, "--each tries swaps one by one: give some, like --fuse rms_norm=on");
    for (uint32_t i = 0; request->routing && i < request->swaps.n; i++)
        if (request->swaps.rows[i].kind == LB_SWAP_ROUTING)
            return lb_fail(err, LB_ERR_INVALID,
                           "--routing-report forces routing in every way by itself: leave --routing out");
    return LB_OK;
}

lb_status lb_cmd_plan_make(const lb_cmd_plan_request *request, lb_plan *plan, lb_err *err)
{
    static const struct {
        const char *name;
        lb_replay_mode mode;
    } modes[] = {{"isolated", LB_REPLAY_ISOLATED}, {"layer", LB_REPLAY_LAYER}, {"chained", LB_REPLAY_CHAINED}};
    static int32_t ranks[MAX_RANKS];
    *plan = (lb_plan)LB_PLAN_INIT;
    bool known = !request->mode;
    for (int i = 0; i < 3 && request->mode; i++)
        if (!strcmp(request->mode, modes[i].name)) {
            plan->mode = modes[i].mode;
            known = true;
        }
    if (!known) return lb_fail(err, LB_ERR_INVALID, "--mode %s: modes are isolated, layer, chained", request->mode);
    if (request->steps) LB_TRY(parse_steps(request->steps, plan, err));
    LB_TRY(lb_command_parse_memory(request->memory, &plan->memory_bytes, err));
    if (request->threads < 0 || request->worst < 0)
        return lb_fail(err, LB_ERR_INVALID, "--%s %d: expected a number from 0 on",
                       request->threads < 0 ? "threads" : "worst",
                       request->threads < 0 ? request->threads : request->worst);
    if (request->ranks) {
        LB_TRY(parse_ranks(request->ranks, ranks, &plan->n_ranks, err));
        plan->ranks = ranks;
    }
    plan->swaps = request->swaps.rows;
    plan->n_swaps = request->swaps.n;
    plan->threads = request->threads;
    plan->force_decisions = request->force || request->table;
    if ((request->table || request->routing || request->each) && !request->mode) plan->mode = LB_REPLAY_CHAINED;
    if (request->routing || request->each) LB_TRY(check_tables(request, plan, err));
    plan->select = request->select;
    if (request->backend && strcmp(request->backend, "torch") && strcmp(request->backend, "torch:all"))
        return lb_fail(err, LB_ERR_INVALID, "--backend %s: there is torch, for ops that are not known, and torch:all",
                       request->backend);
    plan->backend_all = request->backend && !strcmp(request->backend, "torch:all");
    plan->backend_selected = !request->backend;
    if (!lb_cmd_plan_request_wants_torch(request) && (request->imports || request->python))
        return lb_fail(err, LB_ERR_INVALID,
                       "--backend-import and --backend-python go with --backend torch or --kernel torch");
    if (request->select && !request->write)
        return lb_fail(err, LB_ERR_INVALID, "--select says what --write writes: give both");
    return LB_OK;
}

bool lb_cmd_plan_request_wants_torch(const lb_cmd_plan_request *request)
{
    bool wants = request->backend != NULL;
    for (uint32_t i = 0; i < request->swaps.n; i++)
        wants |= request->swaps.rows[i].kind == LB_SWAP_KERNEL && !strcmp(request->swaps.rows[i].argument, "torch");
    return wants;
}

void lb_cmd_plan_request_release(lb_cmd_plan_request *request)
{
    lb_command_swaps_release(&request->swaps);
    free(request->mode);
    free(request->steps);
    free(request->ranks);
    free(request->memory);
    free(request->write);
    free(request->select);
    free(request->backend);
    free(request->python);
    for (char **m = request->imports; m && *m; m++) free(*m);
    free(request->imports);
}

json_t *lb_plan_swaps_json(const lb_plan *plan)
{
    json_t *swaps = json_array();
    for (uint32_t i = 0; i < plan->n_swaps; i++)
        json_array_append_new(swaps,
                              json_pack("{s:s, s:s, s:s, s:I}", "swap", lb_command_swap_option(plan->swaps[i].kind),
                                        "selector", plan->swaps[i].selector, "argument", plan->swaps[i].argument,
                                        "touched", (json_int_t)plan->touched[i]));
    return swaps;
}
