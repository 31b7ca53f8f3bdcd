/* Renaming: see layer_names.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "pair/layer_names.h"

#include <lastbit/text.h>

#include "base/array.h"
#include "base/pattern.h"

#include <stdlib.h>
#include <string.h>

/* ---- map rules ---- */

typedef struct rule {
    pcre2_code *pattern;
    char *replacement;
    uint32_t options;
} rule;

struct lb_layer_names_map {
    rule *rules;
    uint32_t count;
};

/* Splits s/PATTERN/REPLACEMENT/[g]; any delimiter, no escape of it. */
static lb_status parse_rule(const char *text, rule *out, lb_err *err)
{
    size_t length = strlen(text);
    if (length < 4 || text[0] != 's')
        return lb_fail(err, LB_ERR_INVALID, "--map `%s`: expected s/PATTERN/REPLACEMENT/", text);
    char mark = text[1];
    const char *middle = strchr(text + 2, mark), *end = middle ? strchr(middle + 1, mark) : NULL;
    if (!end || (end[1] && strcmp(end + 1, "g") != 0))
        return lb_fail(err, LB_ERR_INVALID, "--map `%s`: expected s%cPATTERN%cREPLACEMENT%c", text, mark, mark, mark);
    char *pattern = lb_text_escaped(LB_TEXT_PATTERN, text + 2, (size_t)(middle - text - 2)); /* as names are spelt */
    if (!pattern) return lb_fail(err, LB_ERR_NOMEM, "--map: out of memory");
    const lb_status status = lb_pattern_compile("--map, the pattern of", text, pattern, PCRE2_UTF, &out->pattern, err);
    free(pattern);
    LB_TRY(status);
    out->replacement = strndup(middle + 1, (size_t)(end - middle - 1));
    out->options = PCRE2_SUBSTITUTE_EXTENDED | (end[1] == 'g' ? PCRE2_SUBSTITUTE_GLOBAL : 0);
    return out->replacement ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "--map: out of memory");
}

lb_status lb_layer_names_map_new(const char *const *rules, uint32_t count, lb_layer_names_map **out, lb_err *err)
{
    lb_layer_names_map *map = calloc(1, sizeof *map);
    if (!map || !(map->rules = calloc(count ? count : 1, sizeof *map->rules))) {
        free(map);
        return lb_fail(err, LB_ERR_NOMEM, "--map: out of memory");
    }
    map->count = count;
    for (uint32_t i = 0; i < count; i++) {
        lb_status status = parse_rule(rules[i], &map->rules[i], err);
        if (status != LB_OK) {
            lb_layer_names_map_free(map);
            return status;
        }
    }
    *out = map;
    return LB_OK;
}

void lb_layer_names_map_free(lb_layer_names_map *rules)
{
    if (!rules) return;
    for (uint32_t i = 0; i < rules->count; i++) {
        pcre2_code_free(rules->rules[i].pattern);
        free(rules->rules[i].replacement);
    }
    free(rules->rules);
    free(rules);
}

/* `path` after one rule, in memory of its own: as it was where the pattern does not match, or the replacement names a
 * group that the pattern lacks. NULL: out of memory. */
static char *apply_rule(const rule *rule, const char *path)
{
    const PCRE2_SIZE first = strlen(path) + strlen(rule->replacement) + 64;
    char *text = NULL;
    for (PCRE2_SIZE room = first;;) {
        char *larger = realloc(text, room);
        if (!larger) break;
        text = larger;
        const PCRE2_SIZE had = room;
        const int rc = pcre2_substitute(
            rule->pattern, (PCRE2_SPTR)path, PCRE2_ZERO_TERMINATED, 0, rule->options | PCRE2_SUBSTITUTE_OVERFLOW_LENGTH,
            NULL, NULL, (PCRE2_SPTR)rule->replacement, PCRE2_ZERO_TERMINATED, (PCRE2_UCHAR *)text, &room);
        if (rc > 0) return text;
        if (rc != PCRE2_ERROR_NOMEMORY) return strcpy(text, path);
        if (room == PCRE2_UNSET || room <= had) break; /* else the length that it takes */
    }
    free(text);
    return NULL;
}

char *lb_layer_names_map_apply(const lb_layer_names_map *rules, const char *path)
{
    char *current = strdup(path);
    for (uint32_t i = 0; rules && current && i < rules->count; i++) {
        char *next = apply_rule(&rules->rules[i], current);
        free(current);
        current = next;
    }
    return current;
}

/* ---- known frameworks ---- */

/* One spelling for what frameworks call differently, tried in this order on names that don't meet as they are. `^`
 * is the start of a path; `@` stands for the start of one of its components, `$` for the end of one. Read off from
 * the module trees of Hugging Face transformers (Llama, GPT-2, GPT-NeoX), nanoGPT, Meta's Llama, Megatron Core and
 * vLLM. Merged projections (vLLM's qkv_proj and gate_up_proj, GPT-2's c_attn) are not a renaming:
 * they are different ops. */
static const char *const spellings[][2] = {
    /* wrappers: DDP, torch.compile, FSDP, activation checkpointing, PEFT, Megatron's Float16Module, multimodal
     * models */
    {"@(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\\.", ""},
    {"^base_model\\.model\\.", ""},
    {"^(?:model|transformer|decoder|gpt_neox|backbone|language_model|text_model)\\.", ""},
    {"^(?:model|transformer|decoder|gpt_neox|backbone)\\.", ""},
    {"@(?:h|blocks|block)\\.(?=\\d)", "layers."},
    /* in a block */
    {"@(?:self_attention|attention|attn)$", "self_attn"},
    {"@(?:feed_forward|ffn|ff)$", "mlp"},
    {"@(?:ln_1|norm1|attention_norm|input_norm)$", "input_layernorm"},
    {"@(?:ln_2|norm2|ffn_norm|pre_mlp_layernorm)$", "post_attention_layernorm"},
    {"@self_attn\\.(?:c_proj|linear_proj|out_proj|dense|wo)$", "self_attn.o_proj"},
    {"@mlp\\.(?:c_proj|linear_fc2|dense_4h_to_h|fc2|w2)$", "mlp.down_proj"},
    {"@mlp\\.(?:c_fc|linear_fc1|dense_h_to_4h|fc1)$", "mlp.up_proj"},
    {"@wq$", "q_proj"},
    {"@wk$", "k_proj"},
    {"@wv$", "v_proj"},
    {"@mlp\\.w1$", "mlp.gate_proj"},
    {"@mlp\\.w3$", "mlp.up_proj"},
    /* around them */
    {"^(?:wte|tok_embeddings|embedding\\.word_embeddings|word_embeddings|embed_in|embed)$", "embed_tokens"},
    {"^(?:ln_f|final_layernorm|final_layer_norm|norm_f)$", "norm"},
    {"^(?:output_layer|embed_out|output|head)$", "lm_head"},
};
enum { SPELLINGS = sizeof spellings / sizeof *spellings };

/* `^` also after the colon of "optimizer.exp_avg:NAME". NULL: out of memory. */
static pcre2_code *compile_spelling(const char *text)
{
    char pattern[400] = "";
    for (size_t n = 0; *text && n + 24 < sizeof pattern; text++, n = strlen(pattern)) {
        if (*text == '^')
            strcpy(pattern + n, "(?:^|(?<=:))");
        else if (*text == '@')
            strcpy(pattern + n, "(?:^|(?<=[.:]))");
        else if (*text == '$')
            strcpy(pattern + n, "(?=\\.|$)");
        else
            pattern[n] = *text, pattern[n + 1] = '\0';
    }
    int code;
    PCRE2_SIZE at;
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &at, NULL);
    LB_CHECK(compiled || code == PCRE2_ERROR_HEAP_FAILED);
    return compiled;
}

static lb_layer_names_map *known_spellings(void)
{
    lb_layer_names_map *map = calloc(1, sizeof *map);
    if (!map || !(map->rules = calloc(SPELLINGS, sizeof *map->rules))) {
        free(map);
        return NULL;
    }
    for (size_t i = 0; i < SPELLINGS; i++) {
        rule *r = &map->rules[map->count++];
        r->pattern = compile_spelling(spellings[i][0]);
        r->replacement = strdup(spellings[i][1]);
        r->options = PCRE2_SUBSTITUTE_GLOBAL;
        if (r->pattern && r->replacement) continue;
        lb_layer_names_map_free(map);
        return NULL;
    }
    return map;
}

char *lb_layer_name_spelled(const char *name)
{
    lb_layer_names_map *map = known_spellings();
    char *spelled = map ? lb_layer_names_map_apply(map, name) : NULL;
    lb_layer_names_map_free(map);
    return spelled;
}

/* ---- meeting ---- */

/* Sorted pointers to the texts; the caller frees the list alone. */
static char **sorted(char *const *texts, uint32_t n)
{
    char **list = malloc((n + 1) * sizeof *list);
    if (!list) return NULL;
    memcpy(list, texts, n * sizeof *list);
    qsort(list, n, sizeof *list, lb_by_text);
    return list;
}

static bool has(char *const *list, uint32_t n, const char *text)
{
    return bsearch(&text, list, n, sizeof *list, lb_by_text) != NULL;
}

/* Two names of one side that would be spelled alike (an old and a new block, side by side) keep their own. `all`: the
 * spellings, sorted. */
static bool is_ambiguous(char *const *all, uint32_t n, const char *text)
{
    const size_t first = lb_array_first(all, n, sizeof *all, &text, lb_by_text);
    return first + 1 < n && strcmp(all[first + 1], text) == 0;
}

static void free_texts(char **texts, uint32_t n)
{
    for (uint32_t i = 0; texts && i < n; i++) free(texts[i]);
    free(texts);
}

/* For the names that the other side lacks: their known spelling, NULL for the others. */
static char **spell_strangers(const lb_layer_names_map *known, char *const *names, uint32_t n, char *const *others,
                              uint32_t n_others)
{
    char **spelled = calloc(n + 1, sizeof *spelled);
    for (uint32_t i = 0; spelled && i < n; i++)
        if (names[i][0] && !has(others, n_others, names[i])) spelled[i] = lb_layer_names_map_apply(known, names[i]);
    return spelled;
}

/* False when out of memory; a name may be NULL then. */
static bool take_spelling(char **names, char **spelled, uint32_t n)
{
    char **all = malloc((n + 1) * sizeof *all);
    uint32_t n_all = 0;
    bool done = all;
    for (uint32_t i = 0; i < n && done; i++)
        if (spelled[i]) all[n_all++] = spelled[i];
    if (done) qsort(all, n_all, sizeof *all, lb_by_text);
    for (uint32_t i = 0; i < n && done; i++) {
        if (!spelled[i] || is_ambiguous(all, n_all, spelled[i])) continue;
        free(names[i]);
        names[i] = strdup(spelled[i]);
        done = names[i] != NULL;
    }
    free(all);
    return done;
}

lb_status lb_layer_names_meet(char **a, uint32_t na, char **b, uint32_t nb, lb_err *err)
{
    char **in_a = sorted(a, na), **in_b = sorted(b, nb);
    lb_layer_names_map *known = known_spellings();
    char **spelled_a = NULL, **spelled_b = NULL;
    if (in_a && in_b && known) {
        spelled_a = spell_strangers(known, a, na, in_b, nb);
        spelled_b = spell_strangers(known, b, nb, in_a, na);
    }
    bool done = spelled_a && spelled_b;
    done = done && take_spelling(a, spelled_a, na) && take_spelling(b, spelled_b, nb);
    free(in_a), free(in_b);
    free_texts(spelled_a, na), free_texts(spelled_b, nb);
    lb_layer_names_map_free(known);
    return done ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for the names of %u and %u layers", na, nb);
}
