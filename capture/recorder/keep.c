/* See keep.h. AUTO begins with everything and gives up the most plentiful kind first: results, then layer values. The
 * first step measures what each kind takes; from then on a step begins at the level that the last one would have fitted
 * in. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "recorder/keep.h"

#include <lastbit/text.h>

#include "base/pattern.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lb_patterns {
    pcre2_code *keep, *layers; /* NULL: none */
    pcre2_match_data *match;
};

const char *lb_keep_level_name(lb_level level)
{
    static const char *const names[] = {"stats", "sources", "layers", "ops", "auto"};
    return (unsigned)level < sizeof names / sizeof names[0] ? names[level] : "";
}

bool lb_keep_level_parse(const char *text, lb_level *level)
{
    for (int l = LB_LEVEL_STATS; l <= LB_LEVEL_AUTO; l++) {
        if (strcmp(text, lb_keep_level_name((lb_level)l)) != 0) continue;
        *level = (lb_level)l;
        return true;
    }
    return false;
}

static lb_status compile(const char *what, const char *pattern, pcre2_code **code, lb_err *err)
{
    if (!pattern || !*pattern) return LB_OK;
    char *spelt = lb_text_escaped(LB_TEXT_PATTERN, pattern, strlen(pattern)); /* as names are */
    if (!spelt) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    const lb_status status = lb_pattern_compile(what, pattern, spelt, PCRE2_UTF | PCRE2_NO_AUTO_CAPTURE, code, err);
    free(spelt);
    return status;
}

lb_status lb_keep_init(lb_keep *keep, const lb_recorder_options *options, lb_err *err)
{
    memset(keep, 0, sizeof *keep);
    keep->asked = options->level;
    keep->level = options->level == LB_LEVEL_AUTO ? LB_LEVEL_OPS : options->level;
    keep->budget_bytes = options->budget_bytes;
    keep->step_limit = options->auto_step_bytes ? options->auto_step_bytes : LB_AUTO_STEP_BYTES;
    keep->total_limit = options->auto_total_bytes ? options->auto_total_bytes : LB_AUTO_TOTAL_BYTES;
    keep->patterns = calloc(1, sizeof *keep->patterns);
    if (!keep->patterns) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    lb_status status = compile("--keep", options->keep, &keep->patterns->keep, err);
    if (status == LB_OK) status = compile("--layers", options->layers, &keep->patterns->layers, err);
    if (status != LB_OK) return status;
    keep->patterns->match = pcre2_match_data_create(1, NULL);
    return keep->patterns->match ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

void lb_keep_release(lb_keep *keep)
{
    if (!keep->patterns) return;
    pcre2_code_free(keep->patterns->keep);
    pcre2_code_free(keep->patterns->layers);
    pcre2_match_data_free(keep->patterns->match);
    free(keep->patterns);
    keep->patterns = NULL;
}

static bool matches(const lb_patterns *patterns, const pcre2_code *code, const char *text)
{
    return pcre2_match(code, (PCRE2_SPTR)text, strlen(text), 0, PCRE2_NO_UTF_CHECK, patterns->match, NULL) >= 0;
}

lb_level lb_keep_level_of(lb_keep_purpose purpose)
{
    static const lb_level least[] = {LB_LEVEL_SOURCES, LB_LEVEL_LAYERS, LB_LEVEL_OPS};
    return least[purpose];
}

static bool is_named(const lb_patterns *patterns, const char *layer, const char *op)
{
    char text[1024];
    if (!patterns->keep) return false;
    snprintf(text, sizeof text, "%s/%s", layer, op);
    return matches(patterns, patterns->keep, text);
}

bool lb_keep_wants(const lb_keep *keep, lb_keep_purpose purpose, const char *layer, const char *op)
{
    const lb_patterns *patterns = keep->patterns;
    if (keep->level >= lb_keep_level_of(purpose))
        return purpose == LB_FOR_SOURCE || !patterns->layers || matches(patterns, patterns->layers, layer);
    return purpose == LB_FOR_RESULT && is_named(patterns, layer, op);
}

bool lb_keep_wants_result(const lb_keep *keep, const char *layer, const char *op, lb_keep_purpose *purpose)
{
    const bool named = is_named(keep->patterns, layer, op);
    *purpose = named ? LB_FOR_SOURCE : LB_FOR_RESULT;
    return named || lb_keep_wants(keep, LB_FOR_RESULT, layer, op);
}

static void lower(lb_keep *keep, lb_level level)
{
    if (keep->level <= level) return;
    keep->level = level;
    if (keep->reached > level) keep->reached = level;
}

void lb_keep_limit(lb_keep *keep, lb_level level)
{
    if (keep->reached > level) keep->reached = level;
}

/* The highest level, not above `level`, at which a step like the last one fits into `room`. */
static lb_level fitting(const lb_keep *keep, lb_level level, uint64_t room)
{
    uint64_t need[4] = {0, keep->sources_bytes, 0, 0};
    need[2] = need[1] + keep->layers_bytes;
    need[3] = need[2] + keep->ops_bytes;
    while (level > LB_LEVEL_STATS && need[level] > room) level--;
    return level;
}

/* Of a first step nothing is known; what stays as it is (frozen weights) the second one finds in the archive. */
static void choose_auto(lb_keep *keep, uint64_t carried_bytes)
{
    uint64_t limit = keep->total_limit;
    if (keep->budget_bytes && limit > keep->budget_bytes - keep->budget_bytes / 8)
        limit = keep->budget_bytes - keep->budget_bytes / 8;
    const uint64_t rest = keep->total_bytes < limit ? limit - keep->total_bytes : 0;
    keep->room = rest < keep->step_limit ? rest : keep->step_limit;
    keep->lean = keep->steps > 0 && carried_bytes > rest;
    lb_keep next = *keep;
    next.sources_bytes = carried_bytes;
    keep->level = keep->lean ? LB_LEVEL_SOURCES : fitting(&next, LB_LEVEL_OPS, keep->room);
    if (keep->level < LB_LEVEL_SOURCES) keep->level = LB_LEVEL_SOURCES;
}

void lb_keep_step(lb_keep *keep, uint64_t total_bytes, uint64_t carried_bytes)
{
    if (keep->asked == LB_LEVEL_AUTO) choose_auto(keep, carried_bytes);
    if (keep->budget_bytes && keep->asked != LB_LEVEL_AUTO) {
        uint64_t room = total_bytes < keep->budget_bytes ? keep->budget_bytes - total_bytes : 0;
        keep->level = fitting(keep, keep->level, room);
    }
    keep->reached = keep->lean ? LB_LEVEL_STATS : keep->level;
    keep->sources_bytes = keep->layers_bytes = keep->ops_bytes = 0;
    keep->layers_left = keep->ops_left = 0;
    keep->steps++;
}

void lb_keep_spent(lb_keep *keep, lb_keep_purpose purpose, uint64_t bytes)
{
    keep->total_bytes += bytes;
    if (purpose == LB_FOR_SOURCE) keep->sources_bytes += bytes;
    if (purpose == LB_FOR_LAYER) keep->layers_bytes += bytes;
    if (purpose == LB_FOR_RESULT) keep->ops_bytes += bytes;
}

bool lb_keep_outgrown(lb_keep *keep, uint64_t layers_bytes, uint64_t ops_bytes)
{
    const lb_level before = keep->level;
    if (keep->asked != LB_LEVEL_AUTO) return false;
    if (keep->level == LB_LEVEL_OPS && keep->sources_bytes + layers_bytes + ops_bytes > keep->room) {
        lower(keep, LB_LEVEL_LAYERS);
        keep->ops_left += ops_bytes;
    }
    if (keep->level == LB_LEVEL_LAYERS && keep->sources_bytes + layers_bytes > keep->room) {
        lower(keep, LB_LEVEL_SOURCES);
        keep->layers_left += layers_bytes;
    }
    return keep->level != before;
}

void lb_keep_left(lb_keep *keep, lb_keep_purpose purpose, uint64_t bytes)
{
    if (purpose == LB_FOR_RESULT) keep->ops_left += bytes;
    if (purpose != LB_FOR_LAYER) return;
    keep->layers_left += bytes;
    lb_keep_of_layers(keep, bytes);
}

void lb_keep_of_layers(lb_keep *keep, uint64_t bytes)
{
    keep->ops_left -= bytes < keep->ops_left ? bytes : keep->ops_left;
}

void lb_keep_measured(lb_keep *keep, uint64_t layers_bytes, uint64_t ops_bytes)
{
    keep->layers_bytes = layers_bytes + keep->layers_left;
    keep->ops_bytes = ops_bytes + keep->ops_left;
}

void lb_keep_refused(lb_keep *keep, uint64_t bytes)
{
    keep->skipped_values++;
    keep->skipped_bytes += bytes;
    if (keep->reached > LB_LEVEL_STATS) keep->reached = LB_LEVEL_STATS;
}
