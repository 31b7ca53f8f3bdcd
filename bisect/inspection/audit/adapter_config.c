/* See adapter_config.h. Read from peft: tuners/tuners_utils.py, check_target_module_exists (exclude_modules,
 * modules_to_save, a list's words or a regular expression of whole names, layers_to_transform), and utils/other.py,
 * get_pattern_key (a pattern matches a module's name, or the end of it behind a dot). */
#define _GNU_SOURCE /* vasprintf */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "audit/adapter_config.h"

#include "base/pattern.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *lb_adapter_half_in(const char *tensor)
{
    static const char *const words[] = {".lora_A", ".lora_B", ".lora_embedding_A",  ".lora_embedding_B",
                                        ".lora_a", ".lora_b", ".adapter.linear_in", ".adapter.linear_out"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *at = strstr(tensor, words[i]);
        if (at) return at;
    }
    return NULL;
}

char *lb_adapter_module_name(const char *tensor)
{
    const char *end = lb_adapter_half_in(tensor);
    if (end && strncmp(tensor, "base_model.model.", 17) == 0) tensor += 17;
    return end ? strndup(tensor, (size_t)(end - tensor)) : NULL;
}

/* The patterns are a stranger's, and so are the names that they are tried on: steps that PCRE2 may take for one of
 * them, which is a millisecond. */
enum { MOST_STEPS = 200000 };

static lb_status find_groups(const pcre2_code *code, const char *text, long *number, lb_err *err)
{
    pcre2_match_data *match = pcre2_match_data_create_from_pattern(code, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    if (context) pcre2_set_match_limit(context, MOST_STEPS);
    const int groups = match && context
                           ? pcre2_match(code, (PCRE2_SPTR)text, strlen(text), 0, PCRE2_NO_JIT, match, context)
                           : PCRE2_ERROR_NOMEMORY;
    const PCRE2_SIZE at = groups > 1 ? pcre2_get_ovector_pointer(match)[2] : PCRE2_UNSET;
    *number = groups < 0 ? -1 : at == PCRE2_UNSET ? 0 : strtol(text + at, NULL, 10);
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
    return lb_pattern_status(groups, text, strlen(text), err);
}

static void tell_pattern(lb_audit_gathering *gathering, const char *pattern, const char *module)
{
    if (gathering->pattern_told) return;
    gathering->pattern_told = true;
    lb_audit_find(gathering, LB_AUDIT_ADAPTER_CONFIG, (lb_audit_where){module, "adapter_config.json", NULL, 0},
                  "the pattern %.200s takes more than %d steps on this name: it was taken for one that does not fit",
                  pattern, MOST_STEPS);
}

/* The first group of a pattern, given as printf does, in `module` as a number, 0 where it has none; -1: it does not
 * match, or is none. */
LB_PRINTF(3, 4)
static long matched(lb_audit_gathering *gathering, const char *module, const char *format, ...)
{
    va_list args;
    char *pattern = NULL;
    pcre2_code *code = NULL;
    long number = -1;
    lb_status status = LB_ERR_NOMEM;
    va_start(args, format);
    if (vasprintf(&pattern, format, args) < 0) pattern = NULL;
    va_end(args);
    if (pattern) status = lb_pattern_compile("adapter_config.json", pattern, pattern, 0, &code, NULL);
    if (code) status = find_groups(code, module, &number, NULL);
    if (code && status == LB_ERR_INVALID) tell_pattern(gathering, pattern, module);
    gathering->failed |= status == LB_ERR_NOMEM;
    pcre2_code_free(code);
    free(pattern);
    return number;
}

/* Whether `key`, a regular expression, is a module's whole name or its end behind a dot. */
static bool pattern_fits(lb_audit_gathering *gathering, const char *key, const char *module)
{
    return matched(gathering, module, "^(?:.*\\.)?(?:%s)$", key) >= 0;
}

static bool ends_in_word(const char *module, const char *word, size_t m)
{
    const size_t n = strlen(module);
    return n >= m && memcmp(module + n - m, word, m) == 0 && (n == m || module[n - m - 1] == '.');
}

double lb_adapter_config_patterned(lb_audit_gathering *gathering, const json_t *patterns, const char *module,
                                   double otherwise)
{
    const char *key;
    json_t *number;
    json_object_foreach((json_t *)(uintptr_t)patterns, key, number)
    {
        if (json_is_number(number) && pattern_fits(gathering, key, module)) return json_number_value(number);
    }
    return otherwise;
}

/* A regular expression of whole names, or a list of names and their ends. */
static bool is_named(lb_audit_gathering *gathering, const json_t *words, const char *module)
{
    size_t i;
    json_t *one;
    if (json_is_string(words)) return matched(gathering, module, "^(?:%s)$", json_string_value(words)) >= 0;
    json_array_foreach((json_t *)(uintptr_t)words, i, one)
    {
        const char *word = json_string_value(one);
        if (word && ends_in_word(module, word, strlen(word))) return true;
    }
    return false;
}

static bool is_saved_whole(lb_audit_gathering *gathering, const json_t *config, const char *module)
{
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(config, "modules_to_save"), i, one)
    {
        const char *word = json_string_value(one);
        if (word && matched(gathering, module, "^(?:.*\\.)?%s(?:$|\\.)", word) >= 0) return true;
    }
    return false;
}

static long layer_of(lb_audit_gathering *gathering, const json_t *patterns, const char *module)
{
    static const char format[] = "^(?:.*?\\.)?%s\\.(\\d+)\\.";
    size_t i;
    json_t *one;
    if (json_is_string(patterns)) return matched(gathering, module, format, json_string_value(patterns));
    if (!json_array_size(patterns)) return matched(gathering, module, "^.*?\\.[^.]*\\.(\\d+)\\.");
    json_array_foreach((json_t *)(uintptr_t)patterns, i, one)
    {
        const char *word = json_string_value(one);
        const long layer = word ? matched(gathering, module, format, word) : -1;
        if (layer >= 0) return layer;
    }
    return -1;
}

/* Whether layers_to_transform leaves the module's layer in. */
static bool is_in_layers(lb_audit_gathering *gathering, const json_t *config, const char *module)
{
    const json_t *layers = json_object_get(config, "layers_to_transform");
    size_t i;
    json_t *one;
    if (!json_is_integer(layers) && !json_array_size(layers)) return true;
    const long layer = layer_of(gathering, json_object_get(config, "layers_pattern"), module);
    if (json_is_integer(layers)) return json_integer_value(layers) == layer;
    json_array_foreach((json_t *)(uintptr_t)layers, i, one)
    {
        if (layer >= 0 && json_integer_value(one) == layer) return true;
    }
    return false;
}

/* Without the words that wrappers of several parameters of one module put behind its name. */
static size_t bare_length(const char *module)
{
    static const char word[] = ".base_layer";
    size_t n = strlen(module);
    while (n > sizeof word - 1 && memcmp(module + n - (sizeof word - 1), word, sizeof word - 1) == 0)
        n -= sizeof word - 1;
    return n;
}

/* "gate_up_proj" without a module is how a configuration of modules is rewritten for a library that stacks experts in
 * one. */
const char *lb_adapter_config_parameter(const json_t *config, const char *module, size_t i)
{
    char bare[1100];
    size_t k, seen = 0;
    json_t *one;
    snprintf(bare, sizeof bare, "%.*s", (int)bare_length(module), module);
    json_array_foreach(json_object_get(config, "target_parameters"), k, one)
    {
        const char *word = json_string_value(one), *dot = word ? strrchr(word, '.') : NULL;
        const bool fits =
            dot ? ends_in_word(bare, word, (size_t)(dot - word)) : word && ends_in_word(bare, "experts", 7);
        if (fits && seen++ == i) return dot ? dot + 1 : word;
    }
    return NULL;
}

int lb_adapter_config_wants(lb_audit_gathering *gathering, const json_t *config, const char *module)
{
    const json_t *targets = json_object_get(config, "target_modules");
    if (lb_adapter_config_parameter(config, module, 0)) return 1;
    const json_t *excluded = json_object_get(config, "exclude_modules");
    if (excluded && is_named(gathering, excluded, module)) return 0;
    if (is_saved_whole(gathering, config, module)) return 0;
    if (json_is_string(targets))
        return strcmp(json_string_value(targets), "all-linear") == 0 ? -1 : is_named(gathering, targets, module);
    if (!json_array_size(targets)) return -1;
    return is_named(gathering, targets, module) && is_in_layers(gathering, config, module);
}

bool lb_adapter_config_changes_base(const json_t *config)
{
    static const char *const ways[] = {"pissa", "corda", "olora", "loftq", "lora_ga"};
    const char *way = json_string_value(json_object_get(config, "init_lora_weights"));
    for (size_t i = 0; way && i < sizeof ways / sizeof *ways; i++)
        if (strncasecmp(way, ways[i], strlen(ways[i])) == 0) return true;
    return false;
}
