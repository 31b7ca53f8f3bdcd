/* See lastbit/audit.h. Here a checkpoint is opened and handed from one kind of findings to the next. */
#include "audit/adapter.h"
#include "audit/comparison.h"
#include "audit/gguf_names.h"

#include <stdlib.h>
#include <string.h>

/* A checkpoint beside the one that is audited. */
typedef struct companion {
    lb_checkpoint *checkpoint;
    lb_inventory *inventory;
} companion;

static lb_status companion_open(const char *path, bool measure, const lb_audit_gathering *gathering, companion *c,
                                lb_err *err)
{
    *c = (companion){NULL, NULL};
    if (!path) return LB_OK;
    LB_TRY(lb_checkpoint_open(path, &c->checkpoint, err));
    if (c->checkpoint->n_faults)
        return lb_fail(err, LB_ERR_CORRUPT, "%s: cannot be compared with: %s", path, c->checkpoint->faults[0].message);
    return lb_inventory_new(c->checkpoint, measure, gathering, &c->inventory, err);
}

static void companion_close(companion *c)
{
    lb_inventory_free(c->inventory);
    lb_checkpoint_close(c->checkpoint);
}

static void note_unread(lb_audit_gathering *gathering, const lb_checkpoint *c)
{
    char counts[400];
    if (!c->n_unread) return;
    lb_gguf_names_count(c, counts, sizeof counts);
    lb_audit_note(gathering, LB_AUDIT_UNREAD, (lb_audit_where){NULL, NULL, NULL, 0},
                  "%u tensors of %s are quantised (%s), such as %s: no number of them stands in the file, "
                  "and they are not judged",
                  c->n_unread, c->path, counts, c->unread[0].name);
}

static void audit_alone(lb_audit_gathering *gathering, const lb_inventory *inventory)
{
    lb_audit_key_faults(gathering, inventory->checkpoint);
    lb_audit_key_names(gathering, inventory);
    lb_audit_key_config(gathering, inventory);
    lb_audit_shards(gathering, inventory);
    lb_audit_shard_tiles(gathering, inventory);
    lb_audit_sibling_shapes(gathering, inventory);
    lb_audit_lost_shards(gathering, inventory);
    lb_audit_health(gathering, inventory);
    lb_audit_outliers(gathering, inventory);
    lb_audit_health_scales(gathering, inventory);
    if (gathering->options->restart) lb_audit_restart(gathering, inventory);
}

static lb_status audit_adapter(lb_audit_gathering *gathering, const lb_inventory *inventory, lb_err *err)
{
    const lb_audit_options *options = gathering->options;
    companion base, merged = {NULL, NULL};
    lb_adapter adapter = {NULL};
    lb_status status = companion_open(options->base, options->merged != NULL, gathering, &base, err);
    if (status == LB_OK)
        status = lb_adapter_init(gathering, inventory, base.inventory ? base.inventory : inventory, &adapter, err);
    if (status == LB_OK) status = lb_lora_online_audit(gathering, &adapter, err);
    if (status == LB_OK && options->merged) status = companion_open(options->merged, true, gathering, &merged, err);
    if (status == LB_OK && options->merged) status = lb_lora_merge_audit(gathering, &adapter, merged.inventory, err);
    lb_adapter_release(&adapter);
    companion_close(&merged);
    companion_close(&base);
    return status;
}

static lb_status audit(lb_audit_gathering *gathering, const lb_inventory *inventory, lb_err *err)
{
    const lb_audit_options *options = gathering->options;
    companion other = {NULL, NULL};
    lb_status status = LB_OK;
    audit_alone(gathering, inventory);
    note_unread(gathering, inventory->checkpoint);
    if (options->expect) {
        status = companion_open(options->expect, false, gathering, &other, err);
        gathering->other = other.checkpoint;
        if (status == LB_OK) lb_audit_key_expected(gathering, inventory, other.inventory);
        gathering->other = NULL;
        companion_close(&other);
    }
    if (status == LB_OK && lb_adapter_is(inventory))
        status = audit_adapter(gathering, inventory, err);
    else if (status == LB_OK && (options->base || options->merged) && !inventory->checkpoint->n_faults)
        status = lb_fail(err, LB_ERR_INVALID, "%s: holds no lora_A and lora_B, so that --base and --merged say nothing",
                         inventory->checkpoint->path);
    if (status == LB_OK && options->against) {
        status = companion_open(options->against, true, gathering, &other, err);
        gathering->other = other.checkpoint;
        if (status == LB_OK) note_unread(gathering, other.checkpoint);
        if (status == LB_OK) status = lb_comparison_audit(gathering, inventory, other.inventory, err);
        gathering->other = NULL;
        companion_close(&other);
    }
    if (status == LB_OK && gathering->failed)
        status = lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", inventory->checkpoint->path);
    return status;
}

static void measure_companion(lb_audit_gathering *gathering, const char *path)
{
    companion other = {NULL, NULL};
    (void)companion_open(path, true, gathering, &other,
                         NULL); /* what is wrong with it is said by who goes through to the end */
    companion_close(&other);
}

/* A part's share of what does not rest on the others' records, in the order of those who have them all. */
static void do_share(lb_audit_gathering *gathering, lb_inventory *inventory)
{
    const lb_audit_options *options = gathering->options;
    (void)lb_inventory_profile(inventory, lb_audit_key_head_rows(inventory->checkpoint->path), gathering, NULL);
    if (lb_adapter_is(inventory) && options->merged) {
        measure_companion(gathering, options->base);
        measure_companion(gathering, options->merged);
    }
    if (options->against) measure_companion(gathering, options->against);
}

/* Findings first, in the order in which they were found, then notes. */
static void sort_findings(lb_audit_report *r)
{
    lb_audit_finding *sorted = (lb_audit_finding *)malloc((r->n_findings + 1u) * sizeof *sorted);
    uint32_t n = 0;
    for (int notes = 0; sorted && notes < 2; notes++)
        for (uint32_t i = 0; i < r->n_findings; i++)
            if (r->findings[i].note == (notes == 1)) sorted[n++] = r->findings[i];
    if (sorted && n) memcpy(r->findings, sorted, n * sizeof *sorted);
    free(sorted);
}

/* The files that hold tensors. */
static lb_status count_files(lb_audit_gathering *gathering, const lb_checkpoint *checkpoint, lb_err *err)
{
    bool *holds = calloc(checkpoint->n_files + 1u, sizeof *holds);
    if (!holds) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", checkpoint->path);
    for (uint32_t k = 0; k < checkpoint->n_pieces; k++) holds[checkpoint->pieces[k].file] = true;
    for (uint32_t i = 0; i < checkpoint->n_files; i++)
        if (holds[i]) gathering->report->bytes += checkpoint->files[i].size, gathering->report->files++;
    free(holds);
    return LB_OK;
}

lb_status lb_audit(const char *path, const lb_audit_options *options, lb_audit_report **report, lb_err *err)
{
    lb_audit_options chosen = LB_AUDIT_OPTIONS_INIT;
    if (options) memcpy(&chosen, options, options->size < sizeof chosen ? options->size : sizeof chosen);
    lb_checkpoint *checkpoint = NULL;
    lb_inventory *inventory = NULL;
    lb_audit_gathering gathering = {.report = (lb_audit_report *)calloc(1, sizeof **report), .options = &chosen};
    lb_status status = gathering.report ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    if (status == LB_OK) status = lb_checkpoint_open(path, &checkpoint, err);
    if (status == LB_OK && !checkpoint->n_pieces && checkpoint->n_unread)
        status = lb_fail(err, LB_ERR_UNSUPPORTED,
                         "%s: every tensor is quantised: no number of them stands in the file; "
                         "audit what it was made from",
                         path);
    gathering.own = checkpoint;
    if (status == LB_OK) status = lb_inventory_new(checkpoint, true, &gathering, &inventory, err);
    if (status == LB_ERR_PARTIAL && inventory) do_share(&gathering, inventory);
    if (status == LB_OK)
        status = lb_inventory_profile(inventory, lb_audit_key_head_rows(checkpoint->path), &gathering, err);
    if (status == LB_OK) {
        gathering.report->tensors = inventory->n_names;
        gathering.report->ranks = checkpoint->ranks;
        status = count_files(&gathering, checkpoint, err);
        if (status == LB_OK) status = audit(&gathering, inventory, err);
    }
    free(gathering.causes), lb_hash_release(&gathering.found);
    lb_inventory_free(inventory);
    lb_checkpoint_close(checkpoint);
    if (status != LB_OK) {
        lb_audit_report_free(gathering.report);
        return status;
    }
    sort_findings(gathering.report);
    *report = gathering.report;
    return LB_OK;
}
