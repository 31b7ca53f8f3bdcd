/* From a swap as text to a pass: see passes.h. */
#include "program/passes.h"
#include "program/block.h"
#include "program/muon.h"
#include "program/selector.h"

#include <stdlib.h>
#include <string.h>

static lb_status unchanged(const lb_program *in, lb_passed *out, lb_err *err)
{
    out->program = lb_program_copy(in);
    out->origin = malloc(((size_t)in->n_ops + 1) * sizeof *out->origin);
    if (!out->program || !out->origin) {
        lb_program_free(out->program);
        free(out->origin);
        *out = (lb_passed){0};
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    for (uint32_t i = 0; i < in->n_ops; i++) out->origin[i] = i;
    return LB_OK;
}

static lb_status apply_skip(const lb_program *in, const lb_slice_flow *flow, const lb_selector *selector,
                            lb_passed *out, lb_err *err)
{
    lb_blocks blocks = {0};
    LB_TRY(lb_blocks_find(in, flow, &blocks, err));
    uint32_t *scopes = malloc((in->n_scopes + 1) * sizeof *scopes), n = 0;
    lb_status status = scopes ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    /* The outermost selected modules; parents stand before their children. */
    for (uint32_t s = 1; s < in->n_scopes && status == LB_OK; s++) {
        bool below = false;
        for (uint32_t k = 0; k < n; k++) below |= lb_block_scope_within(in, s, scopes[k]);
        bool selected = false;
        if (!below) status = lb_selector_scope(selector, in, s, blocks.letters, &selected, err);
        if (selected) scopes[n++] = s;
    }
    out->touched = n;
    if (status == LB_OK && n)
        status = lb_pass_skip(in, scopes, n, &out->program, &out->origin, err);
    else if (status == LB_OK)
        status = unchanged(in, out, err);
    free(scopes);
    lb_blocks_release(&blocks);
    return status;
}

static lb_status apply_muon(const lb_program *in, const lb_slice_flow *flow, const lb_selector *selector,
                            const char *argument, lb_passed *out, lb_err *err)
{
    lb_muon muon;
    lb_blocks blocks = {0};
    LB_TRY(lb_muon_find(in, flow, &muon, err));
    lb_status status = lb_blocks_find(in, flow, &blocks, err);
    bool *chosen = calloc(muon.n + 1, sizeof *chosen);
    if (status == LB_OK && !chosen) status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t s = 0; s < muon.n && status == LB_OK; s++) {
        status = lb_selector_scope(selector, in, muon.slices[s].scope, blocks.letters, &chosen[s], err);
        out->touched += chosen[s];
    }
    if (status == LB_OK && !out->touched)
        status = unchanged(in, out, err);
    else if (status == LB_OK && !strcmp(argument, "f32"))
        status = lb_muon_pass_wide(in, flow, &muon, chosen, out, err);
    else if (status == LB_OK)
        status = lb_muon_pass_adamw(in, flow, &muon, chosen, out, err);
    free(chosen);
    lb_blocks_release(&blocks);
    lb_muon_release(&muon);
    return status;
}

lb_status lb_pass_apply(const lb_program *in, const uint32_t *given, const lb_swap *swap, lb_passed *out, lb_err *err)
{
    *out = (lb_passed){0};
    if (swap->kind != LB_SWAP_SKIP && swap->kind != LB_SWAP_MUON && swap->kind != LB_SWAP_UPDATE)
        return lb_fail(err, LB_ERR_INVALID, "swap %d is not a pass", (int)swap->kind);
    if (swap->kind == LB_SWAP_MUON && strcmp(swap->argument, "f32") && strcmp(swap->argument, "adamw"))
        return lb_fail(err, LB_ERR_INVALID, "Muon can be swapped for f32 or adamw, not \"%s\"", swap->argument);
    lb_selector *selector;
    lb_slice_flow *flow = NULL;
    LB_TRY(lb_selector_new(swap->selector, &selector, err));
    lb_status status = lb_slice_flow_new(in, &flow, err);
    if (status == LB_OK && swap->kind == LB_SWAP_SKIP)
        status = apply_skip(in, flow, selector, out, err);
    else if (status == LB_OK && swap->kind == LB_SWAP_UPDATE)
        status = lb_pass_update(in, given, flow, selector, swap->argument, out, err);
    else if (status == LB_OK)
        status = apply_muon(in, flow, selector, swap->argument, out, err);
    lb_slice_flow_free(flow);
    lb_selector_free(selector);
    return status;
}
