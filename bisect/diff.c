/* Diff of two captures: see lastbit/diff.h for the three questions.
 *
 * Per aligned step and rank: digests are compared op by op; only if something differs are both sides replayed
 * (shadow_pair.h); then one walk over A's program spreads the answers (diff_walk.h).
 */
#include "diff_walk.h"
#include "parity.h"
#include "routing_diff.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- structure ---- */

static void count_name(char *text, size_t size, const char *name)
{
    char *at = strstr(text, name);
    size_t n = strlen(name), used = strlen(text);
    if (at && (at[n] == ',' || at[n] == '\0' || at[n] == ' ')) return;
    if (used + n + 3 < size) snprintf(text + used, size - used, "%s%s", used ? ", " : "", name);
}

static void list_unaligned(const lb_program *p, const uint32_t *partner, const lb_op *like, const char *layer,
                           char *text, size_t size)
{
    *text = '\0';
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        if (partner[i] == LB_NONE && op->phase == like->phase && lb_op_computes(p, op) &&
            strcmp(lb_op_layer(p, op), layer) == 0)
            count_name(text, size, lb_op_name(p, op));
    }
}

static void add_structure(lb_walk *w, const lb_program *p, const uint32_t *partner)
{
    lb_diff_report *r = w->report;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        if (partner[i] != LB_NONE || !lb_op_computes(p, op)) continue;
        const char *layer = lb_op_layer(p, op);
        bool seen = false;
        for (uint32_t k = r->n_structures; k-- > 0 && !seen;)
            seen = r->structures[k].step == p->step && r->structures[k].rank == p->rank &&
                   r->structures[k].phase == op->phase && strcmp(r->structures[k].layer, layer) == 0;
        if (seen) continue;
        char only_a[400], only_b[400];
        list_unaligned(w->pa, w->alignment.b_of_a, op, layer, only_a, sizeof only_a);
        list_unaligned(w->pb, w->alignment.a_of_b, op, layer, only_b, sizeof only_b);
        lb_diff_structure s = {p->step,
                               p->rank,
                               (lb_phase)op->phase,
                               lb_report_keep(r, layer),
                               lb_report_keep(r, only_a),
                               lb_report_keep(r, only_b)};
        APPEND(r->structures, r->n_structures, s);
    }
}

/* ---- steps and ranks ---- */

static lb_status replay_both(lb_walk *w, const lb_diff_options *options, lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    LB_TRY(lb_shadow_pair_init(w->pa, w->pb, &w->alignment, &w->shadows, err));
    lb_status status = lb_shadow_pair_run(w->a, w->b, w->pa, w->pb, &w->alignment, w->differs,
                                          options->memory_bytes, &w->shadows, &why);
    char text[640];
    if (status == LB_ERR_NOMEM) return lb_fail(err, status, "%s", why.message);
    w->have_shadows = status == LB_OK;
    if (status != LB_OK) {
        snprintf(text, sizeof text, "step %lld rank %d could not be replayed: %s", (long long)w->pa->step,
                 w->pa->rank, why.message);
        lb_report_missing(w->report, text);
    } else if (w->shadows.over_memory) {
        lb_report_missing(w->report, "some exact shadows did not fit the memory limit; raise --memory");
    }
    if (!w->have_shadows) return LB_OK;
    return lb_reorder_find(w->a, w->b, w->pa, w->pb, &w->alignment, w->differs, &w->shadows, &w->reorderings,
                           err);
}

static lb_status diff_step(lb_walk *w, const lb_diff_options *options, const lb_map_rules *rules, lb_err *err)
{
    LB_TRY(lb_alignment_make(w->pa, w->pb, rules, &w->alignment, err));
    uint32_t n = w->pa->n_ops, differing = 0;
    w->differs = calloc(n + 1, 1), w->settled = calloc(n + 1, 1);
    if (!w->differs || !w->settled) return lb_fail(err, LB_ERR_NOMEM, "diff: out of memory for %u ops", n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = w->alignment.b_of_a[i];
        w->differs[i] = j != LB_NONE && lb_walk_pair_differs(w, i, j);
        differing += w->differs[i] || lb_walk_source_differs(w, i);
    }
    if (differing && options->n_noise)
        LB_TRY(lb_noise_measure(w->a, w->pa, options->noise, options->n_noise, &w->noise, err));
    if (differing && !options->digests_only) LB_TRY(replay_both(w, options, err));
    lb_walk_program(w);
    add_structure(w, w->pa, w->alignment.b_of_a);
    add_structure(w, w->pb, w->alignment.a_of_b);
    if (options->digests_only) return LB_OK;
    LB_TRY(lb_routing_diff_add(w->a, w->b, w->pa, w->pb, rules, w->report, err));
    return lb_parity_add(w->a, w->b, w->pa, w->pb, options, w->report, err);
}

static lb_status diff_rank(lb_capture *a, lb_capture *b, int32_t rank_a, int32_t rank_b,
                           const lb_diff_options *options, const lb_map_rules *rules, lb_diff_report *report,
                           uint64_t *shared, lb_err *err)
{
    const int64_t *steps;
    uint32_t n_steps = lb_capture_steps(a, &steps);
    lb_taints storages = {0};
    LB_TRY(lb_taints_init(&storages, err)); /* kept over the steps: a parameter hands its verdict on */
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < n_steps && status == LB_OK; i++) {
        if (steps[i] < options->first_step || steps[i] > options->last_step) continue;
        lb_walk w = {
            .a = a, .b = b, .report = report, .storages = &storages, .digests_only = options->digests_only};
        if (options->progress) options->progress("comparing steps", i, n_steps);
        char text[160];
        if (lb_capture_program(a, rank_a, steps[i], &w.pa, NULL) != LB_OK) continue;
        if (lb_capture_program(b, rank_b, steps[i], &w.pb, NULL) != LB_OK) {
            snprintf(text, sizeof text, "step %lld of rank %d was captured on the first side only",
                     (long long)steps[i], rank_a);
            lb_report_missing(report, text);
            continue;
        }
        (*shared)++;
        status = diff_step(&w, options, rules, err);
        lb_alignment_release(&w.alignment);
        lb_shadow_pair_release(&w.shadows);
        lb_noise_release(&w.noise);
        free(w.differs), free(w.settled), free(w.reorderings);
    }
    lb_taints_release(&storages);
    return status;
}

lb_status lb_diff_run(lb_capture *a, lb_capture *b, const lb_diff_options *options, lb_diff_report **out,
                      lb_err *err)
{
    lb_map_rules *rules = NULL;
    LB_TRY(lb_map_rules_new(options->maps, options->n_maps, &rules, err));
    lb_diff_report *report = calloc(1, sizeof *report);
    const int32_t *ranks_a, *ranks_b;
    uint32_t na = lb_capture_ranks(a, &ranks_a), nb = lb_capture_ranks(b, &ranks_b);
    lb_status status = report ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "diff: out of memory");
    uint64_t shared = 0;
    for (uint32_t i = 0; status == LB_OK && i < na; i++) {
        uint32_t j = 0;
        while (j < nb && ranks_b[j] != ranks_a[i]) j++;
        if (j < nb) {
            status = diff_rank(a, b, ranks_a[i], ranks_b[j], options, rules, report, &shared, err);
        } else {
            char text[80];
            snprintf(text, sizeof text, "rank %d was captured on the first side only", ranks_a[i]);
            lb_report_missing(report, text);
        }
    }
    if (status == LB_OK && shared == 0)
        status = lb_fail(err, LB_ERR_NOT_FOUND,
                         "diff: %s and %s share no step of one rank; see `lastbit ls` for what each holds",
                         lb_capture_path(a), lb_capture_path(b));
    lb_map_rules_free(rules);
    if (status == LB_OK && report->n_missing && report->verdict == LB_VERDICT_IDENTICAL)
        report->verdict = LB_VERDICT_MISSING;
    if (status == LB_OK) lb_parity_finish(report);
    if (status == LB_OK)
        *out = report;
    else
        lb_diff_report_free(report);
    return status;
}
