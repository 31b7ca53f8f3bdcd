/* See adapter.h. What a configuration means is read from peft: tuners/lora/layer.py (scaling = alpha / r, with use_rslora
 * alpha / sqrt(r)) and utils/other.py (get_pattern_key: a pattern matches a module's name, or the end of it behind a dot). */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "adapter.h"

#include <jansson.h>
#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool lb_is_adapter(const lb_inventory *v)
{
    for (uint32_t i = 0; i < v->n_names; i++)
        if (lb_lora_half(v->names[i].name) && !lb_is_state_name(v->names[i].name)) return true;
    return false;
}

/* ---- names ------------------------------------------------------------------------------------------------------------ */

/* Where "lora_A" begins in a name, behind its dot; NULL: not there. */
static const char *half_in(const char *name)
{
    static const char *const words[] = {".lora_A", ".lora_B", ".lora_embedding_A",  ".lora_embedding_B",
                                        ".lora_a", ".lora_b", ".adapter.linear_in", ".adapter.linear_out"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *at = strstr(name, words[i]);
        if (at) return at;
    }
    return NULL;
}

/* "base_model.model.model.layers.0.q_proj.lora_A.weight" gives "model.layers.0.q_proj", malloc'ed. */
static char *module_of(const char *name)
{
    const char *end = half_in(name);
    if (end && strncmp(name, "base_model.model.", 17) == 0) name += 17;
    return end ? strndup(name, (size_t)(end - name)) : NULL;
}

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

const lb_named *lb_weight_of(const lb_inventory *v, const char *module)
{
    char name[1100];
    const lb_named *found = NULL;
    for (int layer = 0; layer < 2; layer++) {
        snprintf(name, sizeof name, "%s%s", module, layer ? ".base_layer.weight" : ".weight");
        const lb_named *exact = lb_inventory_find(v, name);
        if (exact) return exact;
        size_t n = strlen(name);
        for (uint32_t i = 0; i < v->n_names && !found; i++) { /* "model.layers.0…" against "layers.0…", either way */
            const char *other = v->names[i].name;
            size_t m = strlen(other);
            const char *longer = m > n ? other : name, *shorter = m > n ? name : other;
            size_t l = m > n ? m : n, s = m > n ? n : m;
            if (strstr(shorter, ".weight") && l > s && strcmp(longer + l - s, shorter) == 0 &&
                longer[l - s - 1] == '.' && strchr(shorter, '.') != strrchr(shorter, '.'))
                found = &v->names[i];
        }
    }
    return found;
}

/* ---- configuration ------------------------------------------------------------------------------------------------------ */

static json_t *load_config(const char *path)
{
    char file[4200];
    const char *slash = strrchr(path, '/');
    snprintf(file, sizeof file, "%s/adapter_config.json", path);
    json_t *config = json_load_file(file, 0, NULL);
    if (config) return config;
    snprintf(file, sizeof file, "%.*sadapter_config.json", slash ? (int)(slash - path) + 1 : 0, path);
    return json_load_file(file, 0, NULL);
}

/* Whether `key`, a regular expression, is a module's whole name or its end behind a dot. */
static bool pattern_fits(const char *key, const char *module)
{
    char pattern[1024];
    int code;
    PCRE2_SIZE at;
    snprintf(pattern, sizeof pattern, "^(?:.*\\.)?(?:%s)$", key);
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, 0, &code, &at, NULL);
    pcre2_match_data *match = compiled ? pcre2_match_data_create_from_pattern(compiled, NULL) : NULL;
    bool fits = match && pcre2_match(compiled, (PCRE2_SPTR)module, strlen(module), 0, 0, match, NULL) >= 0;
    pcre2_match_data_free(match);
    pcre2_code_free(compiled);
    return fits;
}

static double patterned(const json_t *patterns, const char *module, double otherwise)
{
    const char *key;
    json_t *number;
    json_object_foreach((json_t *)(uintptr_t)patterns, key,
                        number) if (json_is_number(number) &&
                                    pattern_fits(key, module)) return json_number_value(number);
    return otherwise;
}

/* 1: yes, 0: no, -1: the configuration does not list modules. */
static int is_target(const json_t *config, const char *module)
{
    const json_t *targets = json_object_get(config, "target_modules"), *one;
    size_t i;
    if (json_is_string(targets)) {
        const char *word = json_string_value(targets);
        return strcmp(word, "all-linear") == 0 ? -1 : pattern_fits(word, module);
    }
    if (!json_is_array(targets) || !json_array_size(targets)) return -1;
    json_array_foreach((json_t *)(uintptr_t)targets, i, one)
    {
        const char *word = json_string_value(one);
        size_t n = strlen(module), m = word ? strlen(word) : 0;
        if (word && n >= m && strcmp(module + n - m, word) == 0 && (n == m || module[n - m - 1] == '.')) return 1;
    }
    return 0;
}

static void read_scaling(lb_audit_gathering *g, const json_t *config, lb_adapter *adapter)
{
    const double r = json_number_value(json_object_get(config, "r")),
                 alpha = json_number_value(json_object_get(config, "lora_alpha"));
    adapter->configured = config && r > 0 && json_is_number(json_object_get(config, "lora_alpha"));
    adapter->rslora = json_is_true(json_object_get(config, "use_rslora"));
    adapter->dora = json_is_true(json_object_get(config, "use_dora"));
    if (config && !adapter->configured)
        lb_audit_find(g, LB_AUDIT_ADAPTER_CONFIG, (lb_audit_where){NULL, "adapter_config.json", NULL, 0},
                      "r and lora_alpha are not two numbers, r above 0");
    if (!config)
        lb_audit_note(g, LB_AUDIT_ADAPTER_CONFIG, (lb_audit_where){NULL, NULL, NULL, 0},
                      "no adapter_config.json: the scaling is not known, 1 is taken");
    for (uint32_t i = 0; i < adapter->n; i++) {
        lb_adapter_module *m = &adapter->modules[i];
        m->scaling = 1;
        if (!adapter->configured) continue;
        m->stated_rank = patterned(json_object_get(config, "rank_pattern"), m->module, r);
        m->alpha = patterned(json_object_get(config, "alpha_pattern"), m->module, alpha);
        m->scaling = m->alpha / (adapter->rslora ? sqrt(m->stated_rank) : m->stated_rank);
    }
}

/* ---- pairs ---------------------------------------------------------------------------------------------------------------- */

/* A half's sizes when all its shards are put together: which dimension is cut follows from which half differs between ranks. */
static int cut_dimension(const lb_inventory *v, const lb_named *half, bool is_b)
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

static void whole_sizes(const lb_inventory *v, const lb_named *half, bool is_b, int64_t sizes[2])
{
    const lb_checkpoint_piece *p = &v->checkpoint->pieces[half->first];
    int dim = cut_dimension(v, half, is_b);
    matrix_sizes(&p->whole, sizes);
    for (uint32_t i = 1; dim >= 0 && i < half->n; i++) {
        int64_t more[2];
        matrix_sizes(&p[i].whole, more);
        sizes[dim] += more[dim];
    }
}

/* The rows' lengths of the module that a half is of. */
static const lb_named *lengths_of(const lb_inventory *v, const char *half)
{
    static const char *const ends[] = {"", ".weight", ".default.weight"};
    char name[1100];
    const lb_named *found = NULL;
    for (size_t i = 0; i < sizeof ends / sizeof *ends && !found; i++) {
        snprintf(name, sizeof name, "%.*s.lora_magnitude_vector%s", (int)(half_in(half) - half), half, ends[i]);
        found = lb_inventory_find(v, name);
    }
    return found;
}

static void check_lengths(lb_audit_gathering *g, const lb_adapter *adapter, lb_adapter_module *m)
{
    const lb_inventory *v = adapter->v;
    const lb_audit_where where = lb_where(v, &v->checkpoint->pieces[m->a->first]);
    char shape[160];
    m->lengths = lengths_of(v, m->a->name);
    int64_t n = 0;
    for (uint32_t i = 0; m->lengths && i < m->lengths->n; i++) {
        n += lb_layout_numel(&v->checkpoint->pieces[m->lengths->first + i].whole);
        if (cut_dimension(v, m->lengths, true) < 0) break;
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
        lb_audit_find(g, LB_AUDIT_SHAPE, lb_where(v, p), "is %s, B has %lld rows", lb_shape_text(&p->whole, shape),
                      (long long)m->out);
        m->lengths = NULL, m->rank = 0;
    }
}

static lb_status pair_halves(lb_audit_gathering *g, const lb_inventory *v, lb_adapter *adapter, lb_err *err)
{
    adapter->modules = (lb_adapter_module *)calloc(v->n_names + 1u, sizeof *adapter->modules);
    if (!adapter->modules) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < v->n_names; i++) {
        const lb_named *half = &v->names[i];
        char kind = half_in(half->name) && !lb_is_state_name(half->name) ? lb_lora_half(half->name) : 0;
        if (!kind || v->checkpoint->pieces[half->first].whole.ndim < 2) continue;
        char *other = partner_of(half->name);
        const lb_named *partner = other ? lb_inventory_find(v, other) : NULL;
        bool told = false;
        for (uint32_t k = 0; other && k < g->report->n_findings; k++)
            told |= g->report->findings[k].tensor && strcmp(g->report->findings[k].tensor, other) == 0;
        if (!partner && !told)
            lb_audit_find(g, LB_AUDIT_ADAPTER_PARTNER, (lb_audit_where){other, NULL, NULL, 0},
                          "%s is there, its other half is not", half->name);
        free(other);
        if (!partner || kind != 'A') continue;
        lb_adapter_module *m = &adapter->modules[adapter->n];
        int64_t a[2], b[2];
        m->module = module_of(half->name);
        if (!m->module) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
        adapter->n++;
        m->a = half, m->b = partner;
        whole_sizes(v, m->a, false, a);
        whole_sizes(v, m->b, true, b);
        m->rank = a[0], m->in = a[1], m->out = b[0];
        if (v->checkpoint->pieces[m->a->first].whole.ndim > 2 && b[1] > 0 && b[1] < a[0] && a[0] % b[1] == 0) {
            lb_audit_note(g, LB_AUDIT_ADAPTER_RANK, lb_where(v, &v->checkpoint->pieces[m->b->first]),
                          "a convolution of %lld groups: it is not merged here", (long long)(a[0] / b[1]));
            m->rank = 0;
        } else if (a[0] != b[1]) {
            lb_audit_find(g, LB_AUDIT_ADAPTER_RANK, lb_where(v, &v->checkpoint->pieces[m->b->first]),
                          "A is of rank %lld, B of rank %lld", (long long)a[0], (long long)b[1]);
            m->rank = 0;
        }
    }
    return LB_OK;
}

/* ---- against the base ------------------------------------------------------------------------------------------------------ */

/* One rank's part stands for the whole: B has 1/k of the rows that the weight needs, or A 1/k of its columns. */
static bool find_dropped(lb_audit_gathering *g, const lb_adapter *adapter, const lb_named *half, int64_t has,
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

static void match_weight(lb_audit_gathering *g, lb_adapter *adapter, lb_adapter_module *m)
{
    const bool given = adapter->base != adapter->v;
    const lb_named *w = lb_weight_of(adapter->base, m->module);
    m->named = w;
    const lb_checkpoint_piece *piece = w ? &adapter->base->checkpoint->pieces[w->first] : NULL;
    if (!piece || piece->whole.ndim < 2 || m->rank == 0) {
        if (given && !piece)
            lb_audit_find(g, LB_AUDIT_ADAPTER_TARGET,
                          lb_where(adapter->v, &adapter->v->checkpoint->pieces[m->a->first]), "%s has no module %s",
                          adapter->base->checkpoint->path, m->module);
        return;
    }
    int64_t s[2];
    matrix_sizes(&piece->whole, s);
    const bool embedding = strstr(m->a->name, "embedding_A") != NULL;
    if (s[0] == m->out && s[1] == m->in && !(embedding && s[0] == s[1])) {
        m->weight = w;
    } else if (piece->whole.ndim == 2 && s[0] == m->in && s[1] == m->out) {
        m->weight = w, m->transposed = true;
    } else {
        bool dropped = find_dropped(g, adapter, m->b, m->out, m->out < s[0] ? s[0] : m->out, w->name);
        dropped |= find_dropped(g, adapter, m->a, m->in, m->in < s[1] ? s[1] : m->in, w->name);
        if (!dropped)
            lb_audit_find(g, LB_AUDIT_ADAPTER_TARGET,
                          lb_where(adapter->v, &adapter->v->checkpoint->pieces[m->a->first]),
                          "A and B make [%lld, %lld], %s is [%lld, %lld]", (long long)m->out, (long long)m->in, w->name,
                          (long long)s[0], (long long)s[1]);
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

/* The module of that name in the block of `m`; NULL: there is none. Modules are in the order of their names, a block's side by side. */
static const lb_adapter_module *in_block(const lb_adapter *adapter, const lb_adapter_module *m, const char *name)
{
    const size_t n = (size_t)(strrchr(m->module, '.') - m->module) + 1;
    const lb_adapter_module *first = m, *end = adapter->modules + adapter->n;
    while (first > adapter->modules && strncmp(first[-1].module, m->module, n) == 0) first--;
    for (; first < end && strncmp(first->module, m->module, n) == 0; first++)
        if (strcmp(first->module + n, name) == 0) return first;
    return NULL;
}

static bool is_found(const lb_audit_gathering *g, const char *tensor)
{
    for (uint32_t i = 0; i < g->report->n_findings; i++)
        if (!g->report->findings[i].note && g->report->findings[i].tensor &&
            strcmp(g->report->findings[i].tensor, tensor) == 0)
            return true;
    return false;
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
    if (writer && !is_found(g, m->b->name)) find_dropped(g, adapter, m->b, m->out, writes, writer);
    if (reader && !is_found(g, m->a->name)) find_dropped(g, adapter, m->a, m->in, reads, reader);
}

/* Modules of the base that the configuration names and the adapter lacks, where others of their kind have one. */
static void find_untouched(lb_audit_gathering *g, const lb_adapter *adapter, const json_t *config)
{
    const lb_inventory *base = adapter->base;
    if (!config || base == adapter->v || json_object_get(config, "layers_to_transform") != json_null()) return;
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
        if (!has && !told && is_target(config, module) == 1)
            lb_audit_find(g, LB_AUDIT_MISSING, (lb_audit_where){module, NULL, NULL, 0},
                          "adapter_config.json targets it, the base has it, and the adapter has no A and B for it");
        free(module);
    }
}

static void check_module(lb_audit_gathering *g, const lb_adapter *adapter, const json_t *config,
                         const lb_adapter_module *m)
{
    lb_audit_where where = lb_where(adapter->v, &adapter->v->checkpoint->pieces[m->a->first]);
    if (m->stated_rank > 0 && m->rank && (double)m->rank != m->stated_rank)
        lb_audit_find(g, LB_AUDIT_ADAPTER_RANK, where, "is of rank %lld, adapter_config.json says %g",
                      (long long)m->rank, m->stated_rank);
    if (config && is_target(config, m->module) == 0)
        lb_audit_find(g, LB_AUDIT_ADAPTER_CONFIG, where, "target_modules does not name %s", m->module);
}

/* All of B zero: the adapter is at its first step. Some of it: those modules learnt nothing. */
static void check_zeros(lb_audit_gathering *g, const lb_adapter *adapter)
{
    const lb_inventory *v = adapter->v;
    uint32_t zeros = 0;
    for (uint32_t i = 0; i < adapter->n; i++) zeros += lb_is_zero(&v->measured[adapter->modules[i].b->first]);
    if (adapter->n && zeros == adapter->n)
        lb_audit_note(g, LB_AUDIT_ZERO, (lb_audit_where){NULL, NULL, NULL, 0},
                      "every B is zero, as at step 0: the adapter adds nothing");
    for (uint32_t i = 0; i < adapter->n && zeros < adapter->n; i++) {
        const lb_checkpoint_piece *p = &v->checkpoint->pieces[adapter->modules[i].b->first];
        bool told = false;
        for (uint32_t k = 0; k < g->report->n_findings; k++)
            told |= g->report->findings[k].tensor && strcmp(g->report->findings[k].tensor, p->name) == 0 &&
                    !g->report->findings[k].note;
        if (lb_is_zero(&v->measured[adapter->modules[i].b->first]) && !told)
            lb_audit_find(g, LB_AUDIT_ZERO, lb_where(v, p), "is zero, and %u of %u other modules' are not",
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

lb_status lb_adapter_init(lb_audit_gathering *g, const lb_inventory *v, const lb_inventory *base, lb_adapter *adapter,
                          lb_err *err)
{
    *adapter = (lb_adapter){.v = v, .base = base};
    LB_TRY(pair_halves(g, v, adapter, err));
    json_t *config = load_config(v->checkpoint->path);
    read_scaling(g, config, adapter);
    for (uint32_t i = 0; i < adapter->n; i++) {
        check_module(g, adapter, config, &adapter->modules[i]);
        check_lengths(g, adapter, &adapter->modules[i]);
        match_weight(g, adapter, &adapter->modules[i]);
    }
    for (uint32_t i = 0; i < adapter->n && base == v; i++)
        if (!adapter->modules[i].weight && adapter->modules[i].rank)
            find_smaller_than_partners(g, adapter, &adapter->modules[i]);
    find_untouched(g, adapter, config);
    check_zeros(g, adapter);
    note_unseen_shards(g, adapter);
    json_decref(config);
    return LB_OK;
}

void lb_adapter_release(lb_adapter *adapter)
{
    for (uint32_t i = 0; i < adapter->n; i++) free(adapter->modules[i].module);
    free(adapter->modules);
}

static lb_status numbers_of(const lb_inventory *v, const lb_named *name, int dim, float **out, lb_err *err)
{
    lb_whole whole;
    LB_TRY(lb_whole_init(v, name, dim, &whole, err));
    *out = lb_whole_numbers(&whole, err);
    lb_whole_release(&whole);
    return *out ? LB_OK : LB_ERR_NOMEM;
}

lb_status lb_adapter_numbers(const lb_adapter *adapter, const lb_adapter_module *m, float **a, float **b, lb_err *err)
{
    *a = *b = NULL;
    LB_TRY(numbers_of(adapter->v, m->a, cut_dimension(adapter->v, m->a, false), a, err));
    lb_status status = numbers_of(adapter->v, m->b, cut_dimension(adapter->v, m->b, true), b, err);
    if (status != LB_OK) free(*a), *a = NULL;
    return status;
}

lb_status lb_adapter_lengths(const lb_adapter *adapter, const lb_adapter_module *m, float **lengths, lb_err *err)
{
    *lengths = NULL;
    if (!m->lengths) return LB_OK;
    return numbers_of(adapter->v, m->lengths, cut_dimension(adapter->v, m->lengths, true), lengths, err);
}

lb_status lb_adapter_weight(const lb_adapter *adapter, const lb_adapter_module *m, float **w, lb_err *err)
{
    LB_TRY(numbers_of(adapter->base, m->weight, -1, w, err));
    if (!m->transposed) return LB_OK;
    float *turned = (float *)malloc((size_t)(m->in * m->out) * sizeof *turned);
    for (int64_t i = 0; turned && i < m->in; i++)
        for (int64_t o = 0; o < m->out; o++) turned[o * m->in + i] = (*w)[i * m->out + o];
    free(*w);
    *w = turned;
    return turned ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}
