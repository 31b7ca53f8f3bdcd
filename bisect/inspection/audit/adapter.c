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

bool lb_adapter_is(const lb_inventory *v)
{
    for (uint32_t i = 0; i < v->n_names; i++)
        if (lb_inventory_lora_half(v->names[i].name) && !lb_inventory_is_state(v->names[i].name)) return true;
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
static const lb_inventory_name *other_prefix(const lb_inventory *v, const char *name)
{
    const size_t n = strlen(name);
    for (uint32_t i = 0; i < v->n_names; i++) {
        const char *other = v->names[i].name;
        const size_t m = strlen(other), l = m > n ? m : n, s = m > n ? n : m;
        const char *longer = m > n ? other : name, *shorter = m > n ? name : other;
        if (l > s && longer[l - s - 1] == '.' && strcmp(longer + l - s, shorter) == 0 &&
            strchr(shorter, '.') != strrchr(shorter, '.'))
            return &v->names[i];
    }
    return NULL;
}

const lb_inventory_name *lb_adapter_tensor_named(const lb_inventory *v, const char *name)
{
    const lb_inventory_name *exact = lb_inventory_find(v, name);
    return exact ? exact : other_prefix(v, name);
}

const lb_inventory_name *lb_adapter_weight_named(const lb_inventory *v, const char *module)
{
    char name[1100];
    const lb_inventory_name *found = NULL;
    for (int layer = 0; layer < 2; layer++) {
        snprintf(name, sizeof name, "%s%s", module, layer ? ".base_layer.weight" : ".weight");
        const lb_inventory_name *exact = lb_inventory_find(v, name);
        if (exact) return exact;
        if (!found) found = other_prefix(v, name);
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
static void read_parameter(const json_t *config, const char *parameter, double r, double alpha, lb_adapter_module *m)
{
    char name[1100];
    size_t n = strlen(m->module);
    while (n > 11 && strncmp(m->module + n - 11, ".base_layer", 11) == 0) n -= 11;
    snprintf(name, sizeof name, "%.*s.%s", (int)n, m->module, parameter);
    const double rank = lb_adapter_config_patterned(json_object_get(config, "rank_pattern"), name, r);
    if (rank <= 0 || fmod((double)m->rank, rank) != 0) return;
    m->experts = (int64_t)((double)m->rank / rank);
    m->stated_rank = rank;
    m->alpha = lb_adapter_config_patterned(json_object_get(config, "alpha_pattern"), name, alpha);
}

static void read_scaling(lb_audit_gathering *g, const json_t *config, lb_adapter *adapter)
{
    const bool adaptive = is_adaptive(config);
    const double r = json_number_value(json_object_get(config, adaptive ? "init_r" : "r")),
                 alpha = json_number_value(json_object_get(config, "lora_alpha"));
    const json_t *ranks = json_object_get(config, "rank_pattern");
    adapter->configured = config && r > 0 && json_is_number(json_object_get(config, "lora_alpha"));
    adapter->rslora = json_is_true(json_object_get(config, "use_rslora")) && !adaptive;
    adapter->dora = json_is_true(json_object_get(config, "use_dora"));
    adapter->fan_in_fan_out = json_is_true(json_object_get(config, "fan_in_fan_out"));
    adapter->changes_base = lb_adapter_config_changes_base(config);
    if (config && !adapter->configured)
        lb_audit_find(g, LB_AUDIT_ADAPTER_CONFIG, (lb_audit_where){NULL, "adapter_config.json", NULL, 0},
                      "r and lora_alpha are not two numbers, r above 0");
    if (!config)
        lb_audit_note(g, LB_AUDIT_ADAPTER_CONFIG, (lb_audit_where){NULL, NULL, NULL, 0},
                      "no adapter_config.json: the scaling is not known, 1 is taken");
    for (uint32_t i = 0; i < adapter->n; i++) {
        lb_adapter_module *m = &adapter->modules[i];
        const char *parameter;
        m->scaling = 1;
        if (!adapter->configured) continue;
        m->stated_rank = adaptive ? kept_ranks(ranks, m->module, r) : lb_adapter_config_patterned(ranks, m->module, r);
        m->alpha = lb_adapter_config_patterned(json_object_get(config, "alpha_pattern"), m->module, alpha);
        for (size_t k = 0; m->rank && !m->experts && (parameter = lb_adapter_config_parameter(config, m->module, k));
             k++)
            read_parameter(config, parameter, r, alpha, m);
        const double over = adaptive ? r + 1e-5 : m->stated_rank;
        if (adaptive && m->alpha <= 0) m->alpha = r;
        m->scaling = m->alpha / (adapter->rslora ? sqrt(over) : over);
    }
}

/* ---- pairs ------------------------------------------------------------------------------------------------------- */

int lb_adapter_cut(const lb_inventory *v, const lb_inventory_name *half, bool is_b)
{
    if (!v->checkpoint->rank_files || half->n < 2) return -1;
    bool equal = true;
    for (uint32_t i = 1; i < half->n; i++)
        equal &= lb_digest_equal(v->measured[half->first].digest, v->measured[half->first + i].digest);
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

static void whole_sizes(const lb_inventory *v, const lb_inventory_name *half, bool is_b, int64_t sizes[2])
{
    const lb_checkpoint_piece *p = &v->checkpoint->pieces[half->first];
    int dim = lb_adapter_cut(v, half, is_b);
    matrix_sizes(&p->whole, sizes);
    for (uint32_t i = 1; dim >= 0 && i < half->n; i++) {
        int64_t more[2];
        matrix_sizes(&p[i].whole, more);
        sizes[dim] += more[dim];
    }
}

const lb_inventory_name *lb_adapter_beside(const lb_inventory *v, const char *half, const char *word)
{
    static const char *const ends[] = {"", ".weight", ".default.weight", ".default"};
    char name[1100];
    const lb_inventory_name *found = NULL;
    for (size_t i = 0; i < sizeof ends / sizeof *ends && !found; i++) {
        snprintf(name, sizeof name, "%.*s.%s%s", (int)(lb_adapter_half_in(half) - half), half, word, ends[i]);
        found = lb_inventory_find(v, name);
    }
    return found;
}

static void check_lengths(lb_audit_gathering *g, const lb_adapter *adapter, lb_adapter_module *m)
{
    const lb_inventory *v = adapter->v;
    const lb_audit_where where = lb_inventory_where(v, &v->checkpoint->pieces[m->a->first]);
    char shape[160];
    m->lengths = lb_adapter_beside(v, m->a->name, "lora_magnitude_vector");
    int64_t n = 0;
    for (uint32_t i = 0; m->lengths && i < m->lengths->n; i++) {
        n += lb_layout_numel(&v->checkpoint->pieces[m->lengths->first + i].whole);
        if (lb_adapter_cut(v, m->lengths, true) < 0) break;
    }
    if (!m->lengths && adapter->dora) {
        lb_audit_find(g, LB_AUDIT_ADAPTER_PARTNER, where,
                      "adapter_config.json says use_dora, and %s has no lora_magnitude_vector", m->module);
    } else if (m->lengths && adapter->configured && !adapter->dora) {
        lb_audit_find(g, LB_AUDIT_ADAPTER_CONFIG, where,
                      "%s has a lora_magnitude_vector, and adapter_config.json does not say use_dora: it would be "
                      "left out",
                      m->module);
    } else if (m->lengths && n != m->out) {
        const lb_checkpoint_piece *p = &v->checkpoint->pieces[m->lengths->first];
        lb_audit_find(g, LB_AUDIT_SHAPE, lb_inventory_where(v, p), "is %s, B has %lld rows",
                      lb_inventory_shape_text(&p->whole, shape), (long long)m->out);
        m->lengths = NULL, m->rank = 0;
    }
}

/* One dimension where a half has two; B may have a bias. */
static bool is_flat(const lb_inventory *v, const lb_inventory_name *half)
{
    const lb_layout *layout = &v->checkpoint->pieces[half->first].whole;
    const size_t n = strlen(half->name);
    return layout->ndim == 1 && lb_layout_numel(layout) > 0 && !(n > 5 && strcmp(half->name + n - 5, ".bias") == 0);
}

static lb_status pair_halves(lb_audit_gathering *g, const lb_inventory *v, const lb_layer_names_map *rules,
                             lb_adapter *adapter, lb_err *err)
{
    adapter->modules = (lb_adapter_module *)calloc(v->n_names + 1u, sizeof *adapter->modules);
    if (!adapter->modules) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < v->n_names; i++) {
        const lb_inventory_name *half = &v->names[i];
        char kind = lb_adapter_half_in(half->name) && !lb_inventory_is_state(half->name)
                        ? lb_inventory_lora_half(half->name)
                        : 0;
        if (kind && is_flat(v, half))
            lb_audit_find(g, LB_AUDIT_SHAPE, lb_inventory_where(v, &v->checkpoint->pieces[half->first]),
                          "has one dimension: a part of a flattened parameter, saved without gathering it");
        if (!kind || v->checkpoint->pieces[half->first].whole.ndim < 2) continue;
        char *other = partner_of(half->name);
        const lb_inventory_name *partner = other ? lb_inventory_find(v, other) : NULL;
        if (!partner && other && !lb_audit_is_found(g, other))
            lb_audit_find(g, LB_AUDIT_ADAPTER_PARTNER, (lb_audit_where){other, NULL, NULL, 0},
                          "lacks %c: %s is there, its other half is not", kind == 'A' ? 'B' : 'A', half->name);
        free(other);
        if (!partner || kind != 'A') continue;
        lb_adapter_module *m = &adapter->modules[adapter->n];
        int64_t a[2], b[2];
        m->module = lb_adapter_module_name(half->name);
        m->in_base = m->module ? lb_layer_names_map_apply(rules, m->module) : NULL;
        adapter->n++;
        if (!m->in_base) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
        m->a = half, m->b = partner;
        whole_sizes(v, m->a, false, a);
        whole_sizes(v, m->b, true, b);
        m->rank = a[0], m->in = a[1], m->out = b[0];
        m->groups = 1;
        if (v->checkpoint->pieces[m->a->first].whole.ndim > 2 && b[1] > 0 && b[1] < a[0] && a[0] % b[1] == 0) {
            m->groups = a[0] / b[1];
        } else if (a[0] != b[1]) {
            lb_audit_find(g, LB_AUDIT_ADAPTER_RANK, lb_inventory_where(v, &v->checkpoint->pieces[m->b->first]),
                          "A is of rank %lld, B of rank %lld", (long long)a[0], (long long)b[1]);
            m->rank = 0;
        }
    }
    return LB_OK;
}

/* ---- against the base -------------------------------------------------------------------------------------------- */

/* One rank's part stands for the whole: B has 1/k of the rows that the weight needs, or A 1/k of its columns. */
static bool find_dropped(lb_audit_gathering *g, const lb_adapter *adapter, const lb_inventory_name *half, int64_t has,
                         int64_t needs, const char *weight)
{
    const lb_checkpoint *c = adapter->v->checkpoint;
    const lb_checkpoint_piece *p = &c->pieces[half->first];
    int32_t absent[64];
    uint32_t n = 0;
    if (has <= 0 || needs % has != 0 || needs / has < 2 || needs / has > 64) return false;
    const int32_t parts = (int32_t)(needs / has);
    for (int32_t r = 0; r < parts; r++)
        if (r != p->rank) absent[n++] = r;
    if (c->ranks && c->ranks != parts) /* other ranks hold copies: which of them lost theirs is not known */
        n = 0;
    lb_audit_find(
        g, LB_AUDIT_SHARD_MISSING, (lb_audit_where){half->name, c->files[p->file].path, absent, p->rank < 0 ? 0 : n},
        "holds %lld of the %lld that %s needs, 1 part of %d%s: the others had the same key and were taken for "
        "copies",
        (long long)has, (long long)needs, weight, parts, p->rank >= 0 ? ", written by one rank" : "");
    return true;
}

/* The weight that A and B add to: the adapter's own copy of it, where training resized or changed it, before the
 * base's. */
static void find_weight(const lb_adapter *adapter, lb_adapter_module *m)
{
    char own[1100];
    const char *half = lb_adapter_half_in(m->a->name);
    snprintf(own, sizeof own, "%.*s.base_layer.weight", (int)(half - m->a->name), m->a->name);
    m->named = lb_adapter_weight_named(adapter->base, m->in_base);
    m->weight = lb_inventory_find(adapter->v, own);
    m->held = m->weight ? adapter->v : adapter->base;
    if (!m->weight) m->weight = m->named;
}

/* Conv1D keeps [in, out]; of a square weight only the configuration says so. */
static bool is_turned(const lb_adapter *adapter, const lb_adapter_module *m, const int64_t s[2], bool matrix)
{
    const bool embedding = strstr(m->a->name, "embedding_A") != NULL;
    if (!matrix || s[0] != m->in || s[1] != m->out) return false;
    return s[0] != s[1] || embedding || adapter->fan_in_fan_out;
}

static void tell_other_shape(lb_audit_gathering *g, const lb_adapter *adapter, const lb_adapter_module *m,
                             const lb_inventory_name *w, const int64_t s[2])
{
    bool dropped = find_dropped(g, adapter, m->b, m->out, m->out < s[0] ? s[0] : m->out, w->name);
    dropped |= find_dropped(g, adapter, m->a, m->in, m->in < s[1] ? s[1] : m->in, w->name);
    if (!dropped)
        lb_audit_find(g, LB_AUDIT_ADAPTER_TARGET,
                      lb_inventory_where(adapter->v, &adapter->v->checkpoint->pieces[m->a->first]),
                      "A and B make [%lld, %lld], %s is [%lld, %lld]", (long long)m->out, (long long)m->in, w->name,
                      (long long)s[0], (long long)s[1]);
}

static void match_weight(lb_audit_gathering *g, lb_adapter *adapter, lb_adapter_module *m)
{
    const lb_audit_where where = lb_inventory_where(adapter->v, &adapter->v->checkpoint->pieces[m->a->first]);
    find_weight(adapter, m);
    const lb_inventory_name *w = m->weight;
    const lb_checkpoint_piece *piece = w ? &m->held->checkpoint->pieces[w->first] : NULL;
    m->weight = NULL;
    if (!piece && adapter->base != adapter->v && m->experts < 2)
        lb_audit_find(g, LB_AUDIT_ADAPTER_TARGET, where, "%s has no module %s%s", adapter->base->checkpoint->path,
                      m->in_base, g->options->n_maps ? "" : " (--map renames those that a library renames on loading)");
    if (!piece || piece->whole.ndim < 2 || m->rank == 0 || m->experts > 1) return;
    int64_t s[2];
    matrix_sizes(&piece->whole, s);
    if (is_turned(adapter, m, s, piece->whole.ndim == 2)) {
        m->weight = w, m->transposed = true;
    } else if (s[0] == m->out && s[1] == m->in) {
        m->weight = w;
    } else if (m->groups > 1 && s[0] == m->out && s[1] * m->groups == m->in) {
        m->unmergeable = true;
        lb_audit_note(g, LB_AUDIT_ADAPTER_RANK, where,
                      "a convolution of %lld groups: A reads all %lld inputs, each group of %s its own %lld: no weight "
                      "holds both, it works online alone",
                      (long long)m->groups, (long long)m->in, w->name, (long long)s[1]);
    } else {
        tell_other_shape(g, adapter, m, w, s);
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

/* The module of that name in the block of `m`; NULL: there is none. Modules are in the order of their names, a block's
 * side by side. */
static const lb_adapter_module *in_block(const lb_adapter *adapter, const lb_adapter_module *m, const char *name)
{
    const size_t n = (size_t)(strrchr(m->module, '.') - m->module) + 1;
    const lb_adapter_module *first = m, *end = adapter->modules + adapter->n;
    while (first > adapter->modules && strncmp(first[-1].module, m->module, n) == 0) first--;
    for (; first < end && strncmp(first->module, m->module, n) == 0; first++)
        if (strcmp(first->module + n, name) == 0) return first;
    return NULL;
}

/* Without a base, a half that one rank's part stands for is smaller than what its neighbours in the block ask for. */
static void find_smaller_than_partners(lb_audit_gathering *g, const lb_adapter *adapter, const lb_adapter_module *m)
{
    const char *last = strrchr(m->module, '.');
    int64_t writes = m->out, reads = m->in;
    const char *writer = NULL, *reader = NULL;
    for (size_t i = 0; last && i < sizeof partners / sizeof *partners; i++) {
        const bool first = strcmp(last + 1, partners[i].module) == 0;
        if (!first && !(partners[i].reads && strcmp(last + 1, partners[i].partner) == 0)) continue;
        const lb_adapter_module *other = in_block(adapter, m, first ? partners[i].partner : partners[i].module);
        if (!other || !other->rank) continue;
        const int64_t size = !first ? other->out : partners[i].reads ? other->in : other->out;
        if (first && size > writes) writes = size, writer = other->module;
        if (!first && size > reads) reads = size, reader = other->module;
    }
    if (writer && !lb_audit_is_found(g, m->b->name)) find_dropped(g, adapter, m->b, m->out, writes, writer);
    if (reader && !lb_audit_is_found(g, m->a->name)) find_dropped(g, adapter, m->a, m->in, reads, reader);
}

/* Modules of the base that the configuration names and the adapter lacks, where others of their kind have one. */
static void find_untouched(lb_audit_gathering *g, const lb_adapter *adapter, const json_t *config)
{
    const lb_inventory *base = adapter->base;
    if (!config || base == adapter->v) return;
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
        for (uint32_t k = 0; k < g->report->n_findings && module; k++)
            told |= g->report->findings[k].tensor && strstr(g->report->findings[k].tensor, module) != NULL;
        if (!has && !told && lb_adapter_config_wants(config, module) == 1)
            lb_audit_find(g, LB_AUDIT_MISSING, (lb_audit_where){module, NULL, NULL, 0},
                          "adapter_config.json targets it, the base has it, and the adapter has no A and B for it");
        free(module);
    }
}

static void check_module(lb_audit_gathering *g, const lb_adapter *adapter, const json_t *config,
                         const lb_adapter_module *m)
{
    lb_audit_where where = lb_inventory_where(adapter->v, &adapter->v->checkpoint->pieces[m->a->first]);
    const double stated = m->stated_rank * (double)(m->experts ? m->experts : 1);
    if (stated > 0 && m->rank && (double)m->rank != stated)
        lb_audit_find(g, LB_AUDIT_ADAPTER_RANK, where, "is of rank %lld, adapter_config.json says %g",
                      (long long)m->rank, stated);
    if (config && lb_adapter_config_wants(config, m->module) == 0)
        lb_audit_find(g, LB_AUDIT_ADAPTER_CONFIG, where, "target_modules does not name %s", m->module);
}

/* All of B zero: the adapter is at its first step. Some of it: those modules learnt nothing. */
static void check_zeros(lb_audit_gathering *g, const lb_adapter *adapter)
{
    const lb_inventory *v = adapter->v;
    uint32_t zeros = 0;
    for (uint32_t i = 0; i < adapter->n; i++) zeros += lb_inventory_is_zero(&v->measured[adapter->modules[i].b->first]);
    if (adapter->n && zeros == adapter->n)
        lb_audit_note(g, LB_AUDIT_ZERO, (lb_audit_where){NULL, NULL, NULL, 0},
                      "every B is zero, as at step 0: the adapter adds nothing");
    for (uint32_t i = 0; i < adapter->n && zeros < adapter->n; i++) {
        const lb_checkpoint_piece *p = &v->checkpoint->pieces[adapter->modules[i].b->first];
        if (lb_inventory_is_zero(&v->measured[adapter->modules[i].b->first]) && !lb_audit_is_found(g, p->name))
            lb_audit_find(g, LB_AUDIT_ZERO, lb_inventory_where(v, p), "is zero, and %u of %u other modules' are not",
                          adapter->n - zeros, adapter->n - 1);
    }
}

/* Of several ranks, each tensor once, and nothing to hold its shape against: dropped shards would look the same. */
static void note_unseen_shards(lb_audit_gathering *g, const lb_adapter *adapter)
{
    bool whole = adapter->n > 0;
    for (uint32_t i = 0; i < adapter->n; i++)
        whole &= adapter->modules[i].a->n == 1 && adapter->modules[i].b->n == 1 && !adapter->modules[i].weight;
    if (whole && adapter->v->checkpoint->distributed && adapter->v->checkpoint->ranks > 1 &&
        adapter->base == adapter->v)
        lb_audit_note(
            g, LB_AUDIT_SHARD_MISSING, (lb_audit_where){NULL, NULL, NULL, 0},
            "%d ranks wrote it, each tensor once: if the modules were sharded, shards of one key were dropped; "
            "--base CKPT tells by the shapes",
            adapter->v->checkpoint->ranks);
}

static void note_experts(lb_audit_gathering *g, const lb_adapter *adapter)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < adapter->n; i++) n += adapter->modules[i].experts > 1;
    if (n)
        lb_audit_note(
            g, LB_AUDIT_ADAPTER_RANK, (lb_audit_where){NULL, NULL, NULL, 0},
            "%u parameters of stacked experts have an adapter: their ranks are checked, and they are not merged "
            "here",
            n);
}

lb_status lb_adapter_init(lb_audit_gathering *g, const lb_inventory *v, const lb_inventory *base, lb_adapter *adapter,
                          lb_err *err)
{
    *adapter = (lb_adapter){.v = v, .base = base};
    lb_layer_names_map *rules = NULL;
    LB_TRY(lb_layer_names_map_new(g->options->maps, g->options->n_maps, &rules, err));
    lb_status status = pair_halves(g, v, rules, adapter, err);
    lb_layer_names_map_free(rules);
    LB_TRY(status);
    json_t *config = lb_side_file_load(v->checkpoint->path, "adapter_config.json");
    read_scaling(g, config, adapter);
    for (uint32_t i = 0; i < adapter->n; i++) {
        check_module(g, adapter, config, &adapter->modules[i]);
        check_lengths(g, adapter, &adapter->modules[i]);
        match_weight(g, adapter, &adapter->modules[i]);
    }
    for (uint32_t i = 0; i < adapter->n && base == v; i++)
        if (!adapter->modules[i].weight && adapter->modules[i].rank)
            find_smaller_than_partners(g, adapter, &adapter->modules[i]);
    note_experts(g, adapter);
    find_untouched(g, adapter, config);
    check_zeros(g, adapter);
    note_unseen_shards(g, adapter);
    json_decref(config);
    return lb_adapter_find_touched(adapter, err);
}

void lb_adapter_release(lb_adapter *adapter)
{
    for (uint32_t i = 0; i < adapter->n; i++) free(adapter->modules[i].module), free(adapter->modules[i].in_base);
    free(adapter->modules);
    free(adapter->touched);
}
