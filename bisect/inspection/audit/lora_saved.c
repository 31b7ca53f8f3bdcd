/* What an adapter carries beside A and B, as peft saves it: modules that were trained whole (modules_to_save, biases,
 * an embedding that was resized), rows of an embedding (trainable_token_indices, whose "delta" are the new rows
 * themselves, as tuners/trainable_tokens/layer.py copies them in), and biases of B. */
#include "audit/adapter.h"

#include "audit/adapter_config.h"
#include "audit/side_file.h"
#include "audit/value_match.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char rows_word[] = ".token_adapter.trainable_tokens_delta", bias_word[] = ".lora_B.bias";

typedef struct extra {
    enum { NOTHING, WHOLE, ROWS, BIAS } kind;
    char name[1100]; /* of the model's tensor */
} extra;

/* Takes `word` out of a name, and the segment behind it where that is the name of an adapter ("default"). */
static void cut_word(char *name, const char *word, bool adapter)
{
    char *at = strstr(name, word), *behind = at ? at + strlen(word) : NULL;
    if (!at || *behind != '.') return;
    if (adapter && strchr(behind + 1, '.')) behind = strchr(behind + 1, '.');
    memmove(at, behind, strlen(behind) + 1);
}

static extra extra_of(const char *tensor)
{
    extra extra = {NOTHING, ""};
    const char *name = strncmp(tensor, "base_model.model.", 17) == 0 ? tensor + 17 : tensor;
    const char *rows = strstr(name, rows_word), *bias = strstr(name, bias_word);
    if (lb_inventory_is_state(tensor) || strlen(name) >= sizeof extra.name - 8) return extra;
    if (rows || bias) {
        extra.kind = rows ? ROWS : BIAS;
        snprintf(extra.name, sizeof extra.name, "%.*s.%s", (int)((rows ? rows : bias) - name), name,
                 rows ? "weight" : "bias");
    } else if (!strstr(name, "lora_") && !strstr(name, "adapter")) {
        extra.kind = WHOLE;
        snprintf(extra.name, sizeof extra.name, "%s", name);
        cut_word(extra.name, ".modules_to_save", true);
        cut_word(extra.name, ".base_layer", false);
    }
    return extra;
}

static bool is_module_weight(const lb_adapter *adapter, const lb_inventory_name *own)
{
    for (uint32_t i = 0; i < adapter->n; i++)
        if (adapter->modules[i].weight == own && adapter->modules[i].held == adapter->inventory) return true;
    return false;
}

/* Everything beneath a module of stacked experts: which of its tensors are adapted the adapter does not tell. */
static void touch_experts(lb_adapter *adapter, const lb_adapter_module *module)
{
    size_t n = strlen(module->module);
    while (n > 11 && strncmp(module->module + n - 11, ".base_layer", 11) == 0) n -= 11;
    for (uint32_t i = 0; i < adapter->base->n_names; i++) {
        const char *name = adapter->base->names[i].name, *at = name;
        bool beneath = false;
        for (; !beneath && (at = strchr(at, module->module[0])); at++)
            beneath = (at == name || at[-1] == '.') && strncmp(at, module->module, n) == 0 && at[n] == '.';
        adapter->touched[i] |= beneath;
    }
}

lb_status lb_adapter_find_touched(lb_adapter *adapter, lb_err *err)
{
    const lb_inventory *base = adapter->base;
    adapter->touched = (bool *)calloc(base->n_names + 1u, sizeof *adapter->touched);
    if (!adapter->touched) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < adapter->n; i++) {
        const lb_adapter_module *module = &adapter->modules[i];
        if (module->named && module->weight) adapter->touched[module->named - base->names] = true;
        if (module->experts > 1) touch_experts(adapter, module);
    }
    for (uint32_t i = 0; i < adapter->inventory->n_names && base != adapter->inventory; i++) {
        const extra extra = extra_of(adapter->inventory->names[i].name);
        const lb_inventory_name *named = extra.kind != NOTHING ? lb_adapter_tensor_named(base, extra.name) : NULL;
        if (named) adapter->touched[named - base->names] = true;
    }
    return LB_OK;
}

/* ---- in a merged checkpoint -------------------------------------------------------------------------------------- */

/* One tensor as the adapter, the base and the merged checkpoint hold it. */
typedef struct meeting {
    const lb_inventory_name *own, *before, *after; /* before: may be NULL */
    const lb_inventory *inventory, *base, *merged;
} meeting;

static const lb_checkpoint_piece *piece_of(const lb_inventory *inventory, const lb_inventory_name *name)
{
    return &inventory->checkpoint->pieces[name->first];
}

static bool has_bits_of(const lb_inventory *a, const lb_inventory_name *x, const lb_inventory *b,
                        const lb_inventory_name *y)
{
    return piece_of(a, x)->tensor.dtype == piece_of(b, y)->tensor.dtype &&
           lb_digest_equal(a->measured[x->first].digest, b->measured[y->first].digest);
}

static void tell_unlike(lb_audit_gathering *gathering, const meeting *meeting, const char *what)
{
    const lb_audit_where where = lb_inventory_where(meeting->merged, piece_of(meeting->merged, meeting->after));
    if (meeting->before && has_bits_of(meeting->base, meeting->before, meeting->merged, meeting->after))
        lb_audit_find(gathering, LB_AUDIT_UNMERGED, where, "has the bits of the base's, and the adapter holds %s",
                      what);
    else
        lb_audit_find(gathering, LB_AUDIT_MERGE_DIFFERS, where, "is not %s of the adapter", what);
}

static lb_status judge_whole(lb_audit_gathering *gathering, const meeting *meeting, lb_err *err)
{
    const lb_checkpoint_piece *own = piece_of(meeting->inventory, meeting->own),
                              *after = piece_of(meeting->merged, meeting->after);
    lb_value_match match;
    char is[160], wants[160];
    if (!lb_layout_same_shape(&own->whole, &after->whole)) {
        lb_audit_find(gathering, LB_AUDIT_SHAPE, lb_inventory_where(meeting->merged, after),
                      "is %s, and the adapter, which saved it whole, has %s",
                      lb_inventory_shape_text(&after->whole, is), lb_inventory_shape_text(&own->whole, wants));
        return LB_OK;
    }
    LB_TRY(lb_value_match_of(&own->tensor, &after->tensor, &match, err));
    if (match.match == LB_AUDIT_IS_DIFFERENT) tell_unlike(gathering, meeting, "what was saved whole");
    return LB_OK;
}

/* The adapter's, the base's and the merged numbers, malloc'ed. */
typedef struct numbers {
    float *own, *before, *after;
} numbers;

static lb_status numbers_init(const meeting *meeting, numbers *k, lb_err *err)
{
    *k = (numbers){NULL, NULL, NULL};
    LB_TRY(lb_adapter_tensor(meeting->inventory, meeting->own, -1, &k->own, err));
    LB_TRY(lb_adapter_tensor(meeting->base, meeting->before, -1, &k->before, err));
    return lb_adapter_tensor(meeting->merged, meeting->after, -1, &k->after, err);
}

static void numbers_release(numbers *k)
{
    free(k->own), free(k->before), free(k->after);
}

/* The rows that trainable_token_indices names for a module: a list for the embedding, or a list for each of several
 * names. */
static const json_t *indices_of(const json_t *config, const char *tensor)
{
    const json_t *indices = json_object_get(config, "trainable_token_indices");
    const char *key;
    json_t *list;
    json_object_foreach((json_t *)(uintptr_t)indices, key, list)
    {
        if (strstr(tensor, key)) return list;
    }
    return json_is_array(indices) ? indices : NULL;
}

static lb_status judge_rows(lb_audit_gathering *gathering, const meeting *meeting, const json_t *indices, lb_err *err)
{
    const lb_layout *own = &piece_of(meeting->inventory, meeting->own)->whole,
                    *after = &piece_of(meeting->merged, meeting->after)->whole;
    const int64_t n = after->ndim == 2 && own->ndim == 2 && after->shape[1] == own->shape[1] ? after->shape[1] : 0;
    const lb_dtype dtype = piece_of(meeting->merged, meeting->after)->tensor.dtype;
    size_t i, unlike = 0;
    json_t *index;
    numbers k;
    if (!n || (int64_t)json_array_size(indices) != own->shape[0] || !meeting->before) return LB_OK;
    lb_status status = numbers_init(meeting, &k, err);
    if (status == LB_OK && dtype != LB_F32) lb_round_to_grid_f32(k.own, (size_t)(own->shape[0] * n), dtype, NULL);
    json_array_foreach((json_t *)(uintptr_t)indices, i, index)
    {
        const int64_t row = json_integer_value(index);
        if (status == LB_OK && row >= 0 && row < after->shape[0])
            unlike += memcmp(k.own + (int64_t)i * n, k.after + row * n, (size_t)n * sizeof(float)) != 0;
    }
    numbers_release(&k);
    if (unlike) tell_unlike(gathering, meeting, "what trainable_token_indices trained");
    return status;
}

/* |M - (b + s l)| stays within two roundings to the merged dtype. */
static lb_status judge_bias(lb_audit_gathering *gathering, const meeting *meeting, double scaling, lb_err *err)
{
    const lb_checkpoint_piece *after = piece_of(meeting->merged, meeting->after);
    const int64_t n = lb_layout_numel(&after->whole);
    const double u = lb_dtype_unit_roundoff(after->tensor.dtype), tiny = lb_dtype_min_subnormal(after->tensor.dtype);
    int64_t beyond = 0;
    numbers k;
    if (!meeting->before || lb_layout_numel(&piece_of(meeting->inventory, meeting->own)->whole) != n) return LB_OK;
    lb_status status = numbers_init(meeting, &k, err);
    for (int64_t i = 0; status == LB_OK && i < n; i++) {
        const double added = scaling * (double)k.own[i], expected = (double)k.before[i] + added;
        beyond += !(fabs((double)k.after[i] - expected) <= 2 * u * (fabs(expected) + fabs(added)) + tiny);
    }
    numbers_release(&k);
    if (beyond) tell_unlike(gathering, meeting, "a bias of B that, scaled, is to be added");
    return status;
}

static double scaling_of(const lb_adapter *adapter, const char *tensor)
{
    for (uint32_t i = 0; i < adapter->n; i++) {
        const char *half = lb_adapter_half_in(adapter->modules[i].a->name);
        const size_t n = (size_t)(half - adapter->modules[i].a->name);
        if (strncmp(tensor, adapter->modules[i].a->name, n) == 0 && tensor[n] == '.')
            return adapter->modules[i].scaling;
    }
    return 1;
}

static lb_status judge(lb_audit_gathering *gathering, const lb_adapter *adapter, const json_t *config,
                       const extra *extra, const meeting *meeting, lb_err *err)
{
    if (extra->kind == WHOLE) return judge_whole(gathering, meeting, err);
    if (extra->kind == ROWS) return judge_rows(gathering, meeting, indices_of(config, extra->name), err);
    return judge_bias(gathering, meeting, scaling_of(adapter, meeting->own->name), err);
}

lb_status lb_lora_saved_audit(lb_audit_gathering *gathering, const lb_adapter *adapter, const lb_inventory *merged,
                              lb_err *err)
{
    json_t *config = lb_side_file_load(adapter->inventory->checkpoint->path, "adapter_config.json");
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < adapter->inventory->n_names && status == LB_OK; i++) {
        const lb_inventory_name *own = &adapter->inventory->names[i];
        const extra extra = extra_of(own->name);
        if (extra.kind == NOTHING || is_module_weight(adapter, own)) continue;
        const meeting meeting = {own,
                                 lb_adapter_tensor_named(adapter->base, extra.name),
                                 lb_adapter_tensor_named(merged, extra.name),
                                 adapter->inventory,
                                 adapter->base,
                                 merged};
        if (!meeting.after && meeting.before)
            lb_audit_find(gathering, LB_AUDIT_MISSING, (lb_audit_where){meeting.before->name, NULL, NULL, 0},
                          "%s has no %s to hold what the adapter saved", merged->checkpoint->path,
                          meeting.before->name);
        else if (meeting.after && meeting.after->n == 1 && own->n == 1)
            status = judge(gathering, adapter, config, &extra, &meeting, err);
    }
    json_decref(config);
    return status;
}
