/* See adapter.h. What a configuration means is read from peft: tuners/lora/layer.py (scaling = alpha / r, with
 * use_rslora alpha / sqrt(r); ParamWrapper: A and B of stacked experts side by side, E times as many ranks) and
 * tuners/adalora/layer.py (A's rows times lora_E, alpha over the rank that training began with). */
#include "audit/adapter.h"

#include "audit/adapter_config.h"
#include "pair/layer_names.h"
#include "audit/side_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool lb_adapter_is(const lb_inventory *inventory)
{
    for (uint32_t i = 0; i < inventory->n_names; i++)
        if (lb_inventory_lora_half(inventory->names[i].name) && !lb_inventory_is_state(inventory->names[i].name))
            return true;
    return false;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* The name of the other half; malloc'ed. */
static char *partner_of(const char *name)
{
    static const char *const swaps[][2] = {{"lora_A", "lora_B"},
                                           {"lora_embedding_A", "lora_embedding_B"},
                                           {"lora_a", "lora_b"},
                                           {"linear_in", "linear_out"}};
    for (size_t i = 0; i < sizeof swaps / sizeof *swaps; i++)
        for (int k = 0; k < 2; k++) {
            const char *at = strstr(name, swaps[i][k]);
            if (!at) continue;
            char *other = (char *)malloc(strlen(name) + 8);
            if (other) sprintf(other, "%.*s%s%s", (int)(at - name), name, swaps[i][1 - k], at + strlen(swaps[i][k]));
            return other;
        }
    return NULL;
}

/* "model.layers.0…" against "layers.0…", either way, where two words at least are the same. */
static const lb_inventory_name *other_prefix(const lb_inventory *inventory, const char *name)
{
    const size_t n = strlen(name);
    for (uint32_t i = 0; i < inventory->n_names; i++) {
        const char *other = inventory->names[i].name;
        const size_t m = strlen(other), l = m > n ? m : n, s = m > n ? n : m;
        const char *longer = m > n ? other : name, *shorter = m > n ? name : other;
        if (l > s && longer[l - s - 1] == '.' && strcmp(longer + l - s, shorter) == 0 &&
            strchr(shorter, '.') != strrchr(shorter, '.'))
            return &inventory->names[i];
    }
    return NULL;
}

const lb_inventory_name *lb_adapter_tensor_named(const lb_inventory *inventory, const char *name)
{
    const lb_inventory_name *exact = lb_inventory_find(inventory, name);
    return exact ? exact : other_prefix(inventory, name);
}

const lb_inventory_name *lb_adapter_weight_named(const lb_inventory *inventory, const char *module)
{
    char name[1100];
    const lb_inventory_name *found = NULL;
    for (int layer = 0; layer < 2; layer++) {
        snprintf(name, sizeof name, "%s%s", module, layer ? ".base_layer.weight" : ".weight");
        const lb_inventory_name *exact = lb_inventory_find(inventory, name);
        if (exact) return exact;
        if (!found) found = other_prefix(inventory, name);
    }
    return found;
}

/* ---- configuration ----------------------------------------------------------------------------------------------- */

static bool is_adaptive(const json_t *config)
{
    const char *kind = json_string_value(json_object_get(config, "peft_type"));
    return kind && strcmp(kind, "ADALORA") == 0;
}

/* AdaLoRA's pattern keeps a flag for each rank that training began with. */
static double kept_ranks(const json_t *patterns, const char *module, double otherwise)
{
    char name[1100];
    size_t i;
    json_t *flag;
    snprintf(name, sizeof name, "%s.lora_E", module);
    const json_t *flags = json_object_get(patterns, name);
    if (!json_is_array(flags)) return otherwise;
    double kept = 0;
    json_array_foreach((json_t *)(uintptr_t)flags, i, flag) kept += json_is_true(flag);
    return kept;
}

/* A and B of a parameter by itself: of a matrix they are as of any module; of stacked experts they hold each expert's
 * ranks. */
static void read_parameter(lb_audit_gathering *gathering, const json_t *config, const char *parameter, double whole,
                           double alpha, lb_adapter_module *module)
{
    char name[1100];
    size_t n = strlen(module->module);
    while (n > 11 && strncmp(module->module + n - 11, ".base_layer", 11) == 0) n -= 11;
    snprintf(name, sizeof name, "%.*s.%s", (int)n, module->module, parameter);
    const double rank = lb_adapter_config_patterned(gathering, json_object_get(config, "rank_pattern"), name, whole);
    if (!(rank >= 1) || fmod((double)module->rank, rank) != 0) return;
    module->experts = (int64_t)((double)module->rank / rank);
    module->stated_rank = rank;
    module->alpha = lb_adapter_config_patterned(gathering, json_object_get(config, "alpha_pattern"), name, alpha);
}

static void read_scaling(lb_audit_gathering *gathering, const json_t *config, lb_adapter *adapter)
{
    const bool adaptive = is_adaptive(config);
    const double rank = json_number_value(json_object_get(config, adaptive ? "init_r" : "r")),
                 alpha = json_number_value(json_object_get(config, "lora_alpha"));
    const json_t *ranks = json_object_get(config, "rank_pattern");
    adapter->configured = config && rank > 0 && json_is_number(json_object_get(config, "lora_alpha"));
    adapter->rslora = json_is_true(json_object_get(config, "use_rslora")) && !adaptive;
    adapter->dora = json_is_true(json_object_get(config, "use_dora"));
    adapter->fan_in_fan_out = json_is_true(json_object_get(config, "fan_in_fan_out"));
    adapter->changes_base = lb_adapter_config_changes_base(config);
    if (config && !adapter->configured)
        lb_audit_find(gathering, LB_AUDIT_ADAPTER_CONFIG, (lb_audit_where){NULL, "adapter_config.json", NULL, 0},
                      "r and lora_alpha are not two numbers, r above 0");
    if (!config)
        lb_audit_note(gathering, LB_AUDIT_ADAPTER_CONFIG, (lb_audit_where){NULL, NULL, NULL, 0},
                      "no adapter_config.json: the scaling is not known, 1 is taken");
    for (uint32_t i = 0; i < adapter->n; i++) {
        lb_adapter_module *module = &adapter->modules[i];
        const char *parameter;
        module->scaling = 1;
        if (!adapter->configured) continue;
        module->stated_rank = adaptive ? kept_ranks(ranks, module->module, rank)
                                       : lb_adapter_config_patterned(gathering, ranks, module->module, rank);
        module->alpha =
            lb_adapter_config_patterned(gathering, json_object_get(config, "alpha_pattern"), module->module, alpha);
        for (size_t k = 0;
             module->rank && !module->experts && (parameter = lb_adapter_config_parameter(config, module->module, k));
             k++)
            read_parameter(gathering, config, parameter, rank, alpha, module);
        const double over = adaptive ? rank + 1e-5 : module->stated_rank;
        if (adaptive && module->alpha <= 0) module->alpha = rank;
        module->scaling = module->alpha / (adapter->rslora ? sqrt(over) : over);
    }
}

/* ---- pairs ------------------------------------------------------------------------------------------------------- */

int lb_adapter_cut(const lb_inventory *inventory, const lb_inventory_name *half, bool is_b)
{
    if (!inventory->checkpoint->rank_files || half->n < 2) return -1;
    bool equal = true;
    for (uint32_t i = 1; i < half->n; i++)
        equal &= lb_digest_equal(inventory->measured[half->first].digest, inventory->measured[half->first + i].digest);
    if (equal) return -1;
    return is_b ? 0 : 1;
}

/* A tensor as a matrix: all its dimensions but the first are columns, those of a convolution's kernel, too. */
static void matrix_sizes(const lb_layout *layout, int64_t sizes[2])
{
    sizes[0] = layout->shape[0], sizes[1] = 1;
    for (int d = 1; d < layout->ndim; d++)
        if (__builtin_mul_overflow(sizes[1], layout->shape[d], &sizes[1])) sizes[1] = -1;
}

static void whole_sizes(const lb_inventory *inventory, const lb_inventory_name *half, bool is_b, int64_t sizes[2])
{
    const lb_checkpoint_piece *piece = &inventory->checkpoint->pieces[half->first];
    int dim = lb_adapter_cut(inventory, half, is_b);
    matrix_sizes(&piece->whole, sizes);
    for (uint32_t i = 1; dim >= 0 && i < half->n; i++) {
        int64_t more[2];
        matrix_sizes(&piece[i].whole, more);
        sizes[dim] += more[dim];
    }
}

const lb_inventory_name *lb_adapter_beside(const lb_inventory *inventory, const char *half, const char *word)
{
    static const char *const ends[] = {"", ".weight", ".default.weight", ".default"};
    char name[1100];
    const lb_inventory_name *found = NULL;
    for (size_t i = 0; i < sizeof ends / sizeof *ends && !found; i++) {
        snprintf(name, sizeof name, "%.*s.%s%s", (int)(lb_adapter_half_in(half) - half), half, word, ends[i]);
        found = lb_inventory_find(inventory, name);
    }
    return found;
}

static void check_lengths(lb_audit_gathering *gathering, const lb_adapter *adapter, lb_adapter_module *module)
{
    const lb_inventory *inventory = adapter->inventory;
    const lb_audit_where where = lb_inventory_where(inventory, &inventory->checkpoint->pieces[module->a->first]);
    char shape[160];
    module->lengths = lb_adapter_beside(inventory, module->a->name, "lora_magnitude_vector");
    int64_t n = 0;
    for (uint32_t i = 0; module->lengths && i < module->lengths->n; i++) {
        n += lb_layout_numel(&inventory->checkpoint->pieces[module->lengths->first + i].whole);
        if (lb_adapter_cut(inventory, module->lengths, true) < 0) break;
    }
    if (!module->lengths && adapter->dora) {
        lb_audit_find(gathering, LB_AUDIT_ADAPTER_PARTNER, where,
                      "adapter_config.json says use_dora, and %s has no lora_magnitude_vector", module->module);
    } else if (module->lengths && adapter->configured && !adapter->dora) {
        lb_audit_find(gathering, LB_AUDIT_ADAPTER_CONFIG, where,
                      "%s has a lora_magnitude_vector, and adapter_config.json does not say use_dora: "
                      "it would be left out",
                      module->module);
    } else if (module->lengths && n != module->out) {
        const lb_checkpoint_piece *piece = &inventory->checkpoint->pieces[module->lengths->first];
        lb_audit_find(gathering, LB_AUDIT_SHAPE, lb_inventory_where(inventory, piece), "is %s, B has %lld rows",
                      lb_inventory_shape_text(&piece->whole, shape), (long long)module->out);
        module->lengths = NULL, module->rank = 0;
    }
}

/* One dimension where a half has two; B may have a bias. */
static bool is_flat(const lb_inventory *inventory, const lb_inventory_name *half)
{
    const lb_layout *layout = &inventory->checkpoint->pieces[half->first].whole;
    const size_t n = strlen(half->name);
    return layout->ndim == 1 && lb_layout_numel(layout) > 0 && !(n > 5 && strcmp(half->name + n - 5, ".bias") == 0);
}

static lb_status pair_halves(lb_audit_gathering *gathering, const lb_inventory *inventory,
                             const lb_layer_names_map *rules, lb_adapter *adapter, lb_err *err)
{
    adapter->modules = (lb_adapter_module *)calloc(inventory->n_names + 1u, sizeof *adapter->modules);
    if (!adapter->modules) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < inventory->n_names; i++) {
        const lb_inventory_name *half = &inventory->names[i];
        char kind = lb_adapter_half_in(half->name) && !lb_inventory_is_state(half->name)
                        ? lb_inventory_lora_half(half->name)
                        : 0;
        if (kind && is_flat(inventory, half))
            lb_audit_find(gathering, LB_AUDIT_SHAPE,
                          lb_inventory_where(inventory, &inventory->checkpoint->pieces[half->first]),
                          "has one dimension: a part of a flattened parameter, saved without gathering it");
        if (!kind || inventory->checkpoint->pieces[half->first].whole.ndim < 2) continue;
        char *other = partner_of(half->name);
        const lb_inventory_name *partner = other ? lb_inventory_find(inventory, other) : NULL;
        if (!partner && other && !lb_audit_is_found(gathering, other))
            lb_audit_find(gathering, LB_AUDIT_ADAPTER_PARTNER, (lb_audit_where){other, NULL, NULL, 0},
                          "lacks %c: %s is there, its other half is not", kind == 'A' ? 'B' : 'A', half->name);
        free(other);
        if (!partner || kind != 'A') continue;
        lb_adapter_module *module = &adapter->modules[adapter->n];
        int64_t a[2], b[2];
        module->module = lb_adapter_module_name(half->name);
        module->in_base = module->module ? lb_layer_names_map_apply(rules, module->module) : NULL;
        adapter->n++;
        if (!module->in_base) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
        module->a = half, module->b = partner;
        whole_sizes(inventory, module->a, false, a);
        whole_sizes(inventory, module->b, true, b);
        module->rank = a[0], module->in = a[1], module->out = b[0];
        module->groups = 1;
        if (inventory->checkpoint->pieces[module->a->first].whole.ndim > 2 && b[1] > 0 && b[1] < a[0] &&
            a[0] % b[1] == 0) {
            module->groups = a[0] / b[1];
        } else if (a[0] != b[1]) {
            lb_audit_find(gathering, LB_AUDIT_ADAPTER_RANK,
                          lb_inventory_where(inventory, &inventory->checkpoint->pieces[module->b->first]),
                          "A is of rank %lld, B of rank %lld", (long long)a[0], (long long)b[1]);
            module->rank = 0;
        }
    }
    return LB_OK;
}

/* ---- against the base -------------------------------------------------------------------------------------------- */

/* One rank's part stands for the whole: B has 1/k of the rows that the weight needs, or A 1/k of its columns. */
static bool find_dropped(lb_audit_gathering *gathering, const lb_adapter *adapter, const lb_inventory_name *half,
                         int64_t has, int64_t needs, const char *weight)
{
    const lb_checkpoint *checkpoint = adapter->inventory->checkpoint;
    const lb_checkpoint_piece *piece = &checkpoint->pieces[half->first];
    int32_t absent[64];
    uint32_t n = 0;
    if (has <= 0 || needs % has != 0 || needs / has < 2 || needs / has > 64) return false;
    const int32_t parts = (int32_t)(needs / has);
    for (int32_t r = 0; r < parts; r++)
        if (r != piece->rank) absent[n++] = r;
    if (checkpoint->ranks &&
        checkpoint->ranks != parts) /* other ranks hold copies: which of them lost theirs is not known */
        n = 0;
    lb_audit_find(
        gathering, LB_AUDIT_SHARD_MISSING,
        (lb_audit_where){half->name, checkpoint->files[piece->file].path, absent, piece->rank < 0 ? 0 : n},
        "holds %lld of the %lld that %s needs, 1 part of %d%s: the others had the same key and were taken for copies",
        (long long)has, (long long)needs, weight, parts, piece->rank >= 0 ? ", written by one rank" : "");
    return true;
}

/* The weight that A and B add to: the adapter's own copy of it, where training resized or changed it, before the
 * base's. */
static void find_weight(const lb_adapter *adapter, lb_adapter_module *module)
{
    char own[1100];
    const char *half = lb_adapter_half_in(module->a->name);
    snprintf(own, sizeof own, "%.*s.base_layer.weight", (int)(half - module->a->name), module->a->name);
    module->named = lb_adapter_weight_named(adapter->base, module->in_base);
    module->weight = lb_inventory_find(adapter->inventory, own);
    module->held = module->weight ? adapter->inventory : adapter->base;
    if (!module->weight) module->weight = module->named;
}

/* Conv1D keeps [in, out]; of a square weight only the configuration says so. */
static bool is_turned(const lb_adapter *adapter, const lb_adapter_module *module, const int64_t sizes[2], bool matrix)
{
    const bool embedding = strstr(module->a->name, "embedding_A") != NULL;
    if (!matrix || sizes[0] != module->in || sizes[1] != module->out) return false;
    return sizes[0] != sizes[1] || embedding || adapter->fan_in_fan_out;
}

static void tell_other_shape(lb_audit_gathering *gathering, const lb_adapter *adapter, const lb_adapter_module *module,
                             const lb_inventory_name *weight, const int64_t sizes[2])
{
    bool dropped = find_dropped(gathering, adapter, module->b, module->out,
                                module->out < sizes[0] ? sizes[0] : module->out, weight->name);
    dropped |= find_dropped(gathering, adapter, module->a, module->in, module->in < sizes[1] ? sizes[1] : module->in,
                            weight->name);
    if (!dropped)
        lb_audit_find(gathering, LB_AUDIT_ADAPTER_TARGET,
                      lb_inventory_where(adapter->inventory, &adapter->inventory->checkpoint->pieces[module->a->first]),
                      "A and B make [%lld, %lld], %s is [%lld, %lld]", (long long)module->out, (long long)module->in,
                      weight->name, (long long)sizes[0], (long long)sizes[1]);
}

static void match_weight(lb_audit_gathering *gathering, lb_adapter *adapter, lb_adapter_module *module)
{
    const lb_audit_where where =
        lb_inventory_where(adapter->inventory, &adapter->inventory->checkpoint->pieces[module->a->first]);
    find_weight(adapter, module);
    const lb_inventory_name *weight = module->weight;
    const lb_checkpoint_piece *piece = weight ? &module->held->checkpoint->pieces[weight->first] : NULL;
    module->weight = NULL;
    if (!piece && adapter->base != adapter->inventory && module->experts < 2)
        lb_audit_find(gathering, LB_AUDIT_ADAPTER_TARGET, where, "%s has no module %s%s",
                      adapter->base->checkpoint->path, module->in_base,
                      gathering->options->n_maps ? "" : " (--map renames those that a library renames on loading)");
    if (!piece || piece->whole.ndim < 2 || module->rank == 0 || module->experts > 1) return;
    int64_t sizes[2];
    matrix_sizes(&piece->whole, sizes);
    if (is_turned(adapter, module, sizes, piece->whole.ndim == 2)) {
        module->weight = weight, module->transposed = true;
    } else if (sizes[0] == module->out && sizes[1] == module->in) {
        module->weight = weight;
    } else if (module->groups > 1 && sizes[0] == module->out && sizes[1] * module->groups == module->in) {
        module->unmergeable = true;
        lb_audit_note(gathering, LB_AUDIT_ADAPTER_RANK, where,
                      "a convolution of %lld groups: A reads all %lld inputs, each group of %s its own %lld: "
                      "no weight holds both, it works online alone",
                      (long long)module->groups, (long long)module->in, weight->name, (long long)sizes[1]);
    } else {
        tell_other_shape(gathering, adapter, module, weight, sizes);
    }
}

/* Modules of one block whose sizes are one number: what both write, or one writes and the other reads. */
static const struct {
    const char *module, *partner;
    bool reads; /* the partner reads what the module writes */
} partners[] = {{"gate_proj", "up_proj", false},
                {"up_proj", "gate_proj", false},
                {"up_proj", "down_proj", true},
                {"gate_proj", "down_proj", true},
                {"w1", "w3", false},
                {"w3", "w1", false},
                {"w1", "w2", true},
                {"k_proj", "v_proj", false},
                {"v_proj", "k_proj", false}};

/* The module of that name in the block of `module`; NULL: there is none. Modules are in the order of their names, a
 * block's side by side. */
static const lb_adapter_module *in_block(const lb_adapter *adapter, const lb_adapter_module *module, const char *name)
{
    const size_t n = (size_t)(strrchr(module->module, '.') - module->module) + 1;
    const lb_adapter_module *first = module, *end = adapter->modules + adapter->n;
    while (first > adapter->modules && strncmp(first[-1].module, module->module, n) == 0) first--;
    for (; first < end && strncmp(first->module, module->module, n) == 0; first++)
        if (strcmp(first->module + n, name) == 0) return first;
    return NULL;
}

/* Without a base, a half that one rank's part stands for is smaller than what its neighbours in the block ask for. */
static void find_smaller_than_partners(lb_audit_gathering *gathering, const lb_adapter *adapter,
                                       const lb_adapter_module *module)
{
    const char *last = strrchr(module->module, '.');
    int64_t writes = module->out, reads = module->in;
    const char *writer = NULL, *reader = NULL;
    for (size_t i = 0; last && i < sizeof partners / sizeof *partners; i++) {
        const bool first = strcmp(last + 1, partners[i].module) == 0;
        if (!first && !(partners[i].reads && strcmp(last + 1, partners[i].partner) == 0)) continue;
        const lb_adapter_module *other = in_block(adapter, module, first ? partners[i].partner : partners[i].module);
        if (!other || !other->rank) continue;
        const int64_t size = !first ? other->out : partners[i].reads ? other->in : other->out;
        if (first && size > writes) writes = size, writer = other->module;
        if (!first && size > reads) reads = size, reader = other->module;
    }
    if (writer && !lb_audit_is_found(gathering, module->b->name))
        find_dropped(gathering, adapter, module->b, module->out, writes, writer);
    if (reader && !lb_audit_is_found(gathering, module->a->name))
        find_dropped(gathering, adapter, module->a, module->in, reads, reader);
}

/* Modules of the base that the configuration names and the adapter lacks, where others of their kind have one. */
static void find_untouched(lb_audit_gathering *gathering, const lb_adapter *adapter, const json_t *config)
{
    const lb_inventory *base = adapter->base;
    if (!config || base == adapter->inventory) return;
    for (uint32_t i = 0; i < base->n_names; i++) {
        const char *name = base->names[i].name;
        size_t n = strlen(name);
        if (n < 8 || strcmp(name + n - 7, ".weight") != 0 ||
            base->checkpoint->pieces[base->names[i].first].whole.ndim < 2)
            continue;
        char *module = strndup(name, n - 7);
        bool has = !module;
        for (uint32_t k = 0; k < adapter->n && !has; k++) has = adapter->modules[k].named == &base->names[i];
        bool told = false;
        for (uint32_t k = 0; k < gathering->report->n_findings && module; k++)
            told |=
                gathering->report->findings[k].tensor && strstr(gathering->report->findings[k].tensor, module) != NULL;
        if (!has && !told && lb_adapter_config_wants(gathering, config, module) == 1)
            lb_audit_find(gathering, LB_AUDIT_MISSING, (lb_audit_where){module, NULL, NULL, 0},
                          "adapter_config.json targets it, the base has it, and the adapter has no A and B for it");
        free(module);
    }
}

static void check_module(lb_audit_gathering *gathering, const lb_adapter *adapter, const json_t *config,
                         const lb_adapter_module *module)
{
    lb_audit_where where =
        lb_inventory_where(adapter->inventory, &adapter->inventory->checkpoint->pieces[module->a->first]);
    const double stated = module->stated_rank * (double)(module->experts ? module->experts : 1);
    if (stated > 0 && module->rank && (double)module->rank != stated)
        lb_audit_find(gathering, LB_AUDIT_ADAPTER_RANK, where, "is of rank %lld, adapter_config.json says %g",
                      (long long)module->rank, stated);
    if (config && lb_adapter_config_wants(gathering, config, module->module) == 0)
        lb_audit_find(gathering, LB_AUDIT_ADAPTER_CONFIG, where, "target_modules does not name %s", module->module);
}

/* All of B zero: the adapter is at its first step. Some of it: those modules learnt nothing. */
static void check_zeros(lb_audit_gathering *gathering, const lb_adapter *adapter)
{
    const lb_inventory *inventory = adapter->inventory;
    uint32_t zeros = 0;
    for (uint32_t i = 0; i < adapter->n; i++)
        zeros += lb_inventory_is_zero(&inventory->measured[adapter->modules[i].b->first]);
    if (adapter->n && zeros == adapter->n)
        lb_audit_note(gathering, LB_AUDIT_ZERO, (lb_audit_where){NULL, NULL, NULL, 0},
                      "every B is zero, as at step 0: the adapter adds nothing");
    for (uint32_t i = 0; i < adapter->n && zeros < adapter->n; i++) {
        const lb_checkpoint_piece *piece = &inventory->checkpoint->pieces[adapter->modules[i].b->first];
        if (lb_inventory_is_zero(&inventory->measured[adapter->modules[i].b->first]) &&
            !lb_audit_is_found(gathering, piece->name))
            lb_audit_find(gathering, LB_AUDIT_ZERO, lb_inventory_where(inventory, piece),
                          "is zero, and %u of %u other modules' are not", adapter->n - zeros, adapter->n - 1);
    }
}

/* Of several ranks, each tensor once, and nothing to hold its shape against: dropped shards would look the same. */
static void note_unseen_shards(lb_audit_gathering *gathering, const lb_adapter *adapter)
{
    bool whole = adapter->n > 0;
    for (uint32_t i = 0; i < adapter->n; i++)
        whole &= adapter->modules[i].a->n == 1 && adapter->modules[i].b->n == 1 && !adapter->modules[i].weight;
    if (whole && adapter->inventory->checkpoint->distributed && adapter->inventory->checkpoint->ranks > 1 &&
        adapter->base == adapter->inventory)
        lb_audit_note(
            gathering, LB_AUDIT_SHARD_MISSING, (lb_audit_where){NULL, NULL, NULL, 0},
            "%d ranks wrote it, each tensor once: if the modules were sharded, shards of one key were dropped; "
            "--base CKPT tells by the shapes",
            adapter->inventory->checkpoint->ranks);
}

static void note_experts(lb_audit_gathering *gathering, const lb_adapter *adapter)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < adapter->n; i++) n += adapter->modules[i].experts > 1;
    if (n)
        lb_audit_note(
            gathering, LB_AUDIT_ADAPTER_RANK, (lb_audit_where){NULL, NULL, NULL, 0},
            "%u parameters of stacked experts have an adapter: their ranks are checked, and they are not merged here",
            n);
}

lb_status lb_adapter_init(lb_audit_gathering *gathering, const lb_inventory *inventory, const lb_inventory *base,
                          lb_adapter *adapter, lb_err *err)
{
    *adapter = (lb_adapter){.inventory = inventory, .base = base};
    lb_layer_names_map *rules = NULL;
    LB_TRY(lb_layer_names_map_new(gathering->options->maps, gathering->options->n_maps, &rules, err));
    lb_status status = pair_halves(gathering, inventory, rules, adapter, err);
    lb_layer_names_map_free(rules);
    LB_TRY(status);
    json_t *config = lb_side_file_load(inventory->checkpoint->path, "adapter_config.json");
    read_scaling(gathering, config, adapter);
    for (uint32_t i = 0; i < adapter->n; i++) {
        check_module(gathering, adapter, config, &adapter->modules[i]);
        check_lengths(gathering, adapter, &adapter->modules[i]);
        match_weight(gathering, adapter, &adapter->modules[i]);
    }
    for (uint32_t i = 0; i < adapter->n && base == inventory; i++)
        if (!adapter->modules[i].weight && adapter->modules[i].rank)
            find_smaller_than_partners(gathering, adapter, &adapter->modules[i]);
    note_experts(gathering, adapter);
    find_untouched(gathering, adapter, config);
    check_zeros(gathering, adapter);
    note_unseen_shards(gathering, adapter);
    json_decref(config);
    return lb_adapter_find_touched(adapter, err);
}

void lb_adapter_release(lb_adapter *adapter)
{
    for (uint32_t i = 0; i < adapter->n; i++) free(adapter->modules[i].module), free(adapter->modules[i].in_base);
    free(adapter->modules);
    free(adapter->touched);
}
