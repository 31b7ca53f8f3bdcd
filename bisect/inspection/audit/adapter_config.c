/* See adapter_config.h. Read from peft: tuners/tuners_utils.py, check_target_module_exists (exclude_modules,
 * modules_to_save, a list's words or a regular expression of whole names, layers_to_transform), and utils/other.py,
 * get_pattern_key (a pattern matches a module's name, or the end of it behind a dot). */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "audit/adapter_config.h"

#include <pcre2.h>
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

/* The first group of `pattern` in `text` as a number, 0 where it has none; -1: it does not match. */
static long matched(const char *pattern, const char *text)
{
    int code;
    PCRE2_SIZE at;
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, 0, &code, &at, NULL);
    pcre2_match_data *match = compiled ? pcre2_match_data_create_from_pattern(compiled, NULL) : NULL;
    const int groups = match ? pcre2_match(compiled, (PCRE2_SPTR)text, strlen(text), 0, 0, match, NULL) : -1;
    const long number = groups < 0 ? -1 : groups > 1 ? strtol(text + pcre2_get_ovector_pointer(match)[2], NULL, 10) : 0;
    pcre2_match_data_free(match);
    pcre2_code_free(compiled);
    return number;
}

/* Whether `key`, a regular expression, is a module's whole name or its end behind a dot. */
static bool pattern_fits(const char *key, const char *module)
{
    char pattern[1024];
    snprintf(pattern, sizeof pattern, "^(?:.*\\.)?(?:%s)$", key);
    return matched(pattern, module) >= 0;
}

static bool ends_in_word(const char *module, const char *word, size_t m)
{
    const size_t n = strlen(module);
    return n >= m && memcmp(module + n - m, word, m) == 0 && (n == m || module[n - m - 1] == '.');
}

double lb_adapter_config_patterned(const json_t *patterns, const char *module, double otherwise)
{
    const char *key;
    json_t *number;
    json_object_foreach((json_t *)(uintptr_t)patterns, key, number)
    {
        if (json_is_number(number) && pattern_fits(key, module)) return json_number_value(number);
    }
    return otherwise;
}

/* A regular expression of whole names, or a list of names and their ends. */
static bool is_named(const json_t *words, const char *module)
{
    size_t i;
    json_t *one;
    if (json_is_string(words)) {
        char pattern[1024];
        snprintf(pattern, sizeof pattern, "^(?:%s)$", json_string_value(words));
        return matched(pattern, module) >= 0;
    }
    json_array_foreach((json_t *)(uintptr_t)words, i, one)
    {
        const char *word = json_string_value(one);
        if (word && ends_in_word(module, word, strlen(word))) return true;
    }
    return false;
}

static bool is_saved_whole(const json_t *config, const char *module)
{
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(config, "modules_to_save"), i, one)
    {
        char pattern[1024];
        snprintf(pattern, sizeof pattern, "^(?:.*\\.)?%s(?:$|\\.)",
                 json_string_value(one) ? json_string_value(one) : "$.");
        if (matched(pattern, module) >= 0) return true;
    }
    return false;
}

static long layer_of(const json_t *patterns, const char *module)
{
    size_t i;
    json_t *one;
    char pattern[1024];
    if (!json_is_string(patterns) && !json_array_size(patterns)) return matched("^.*?\\.[^.]*\\.(\\d+)\\.", module);
    if (json_is_string(patterns)) {
        snprintf(pattern, sizeof pattern, "^(?:.*?\\.)?%s\\.(\\d+)\\.", json_string_value(patterns));
        return matched(pattern, module);
    }
    json_array_foreach((json_t *)(uintptr_t)patterns, i, one)
    {
        snprintf(pattern, sizeof pattern, "^(?:.*?\\.)?%s\\.(\\d+)\\.",
                 json_string_value(one) ? json_string_value(one) : "$.");
        const long layer = matched(pattern, module);
        if (layer >= 0) return layer;
    }
    return -1;
}

/* Whether layers_to_transform leaves the module's layer in. */
static bool is_in_layers(const json_t *config, const char *module)
{
    const json_t *layers = json_object_get(config, "layers_to_transform");
    size_t i;
    json_t *one;
    if (!json_is_integer(layers) && !json_array_size(layers)) return true;
    const long layer = layer_of(json_object_get(config, "layers_pattern"), module);
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

int lb_adapter_config_wants(const json_t *config, const char *module)
{
    const json_t *targets = json_object_get(config, "target_modules");
    if (lb_adapter_config_parameter(config, module, 0)) return 1;
    const json_t *excluded = json_object_get(config, "exclude_modules");
    if (excluded && is_named(excluded, module)) return 0;
    if (is_saved_whole(config, module)) return 0;
    if (json_is_string(targets))
        return strcmp(json_string_value(targets), "all-linear") == 0 ? -1 : is_named(targets, module);
    if (!json_array_size(targets)) return -1;
    return is_named(targets, module) && is_in_layers(config, module);
}

bool lb_adapter_config_changes_base(const json_t *config)
{
    static const char *const ways[] = {"pissa", "corda", "olora", "loftq", "lora_ga"};
    const char *way = json_string_value(json_object_get(config, "init_lora_weights"));
    for (size_t i = 0; way && i < sizeof ways / sizeof *ways; i++)
        if (strncasecmp(way, ways[i], strlen(ways[i])) == 0) return true;
    return false;
}
