/* Selectors and swap texts: see selector.h and lastbit/replay.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "program/selector.h"

#include <lastbit/text.h>

#include "base/array.h"
#include "base/pattern.h"
#include <lastbit/replay.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum term_kind {
    TERM_ANYWHERE,
    TERM_LAYER,
    TERM_OP,
    TERM_CLASS,
    TERM_PHASE,
    TERM_RANK,
    TERM_STEP,
    TERM_INDEX,
    TERM_BLOCK
} term_kind;

static const struct {
    const char *key, *before, *after; /* what a pattern is wrapped in */
} TERMS[] = {
    [TERM_ANYWHERE] = {"", "", ""},
    [TERM_LAYER] = {"layer=", "", ""},
    [TERM_OP] = {"op=", "^(?:\\w+::)?(?:", ")(?:\\.\\w+)?$"},
    [TERM_CLASS] = {"class=", "^(?:", ")$"},
    [TERM_PHASE] = {"phase=", NULL, NULL},
    [TERM_RANK] = {"rank=", NULL, NULL},
    [TERM_STEP] = {"step=", NULL, NULL},
    [TERM_INDEX] = {"index=", NULL, NULL},
    [TERM_BLOCK] = {"block=", NULL, NULL},
};

typedef struct range {
    int64_t first, last;
} range;

typedef struct term {
    term_kind kind;
    pcre2_code *pattern;
    range *ranges; /* RANK, STEP, INDEX */
    uint32_t n_ranges;
    uint32_t set; /* PHASE: bit per phase; BLOCK: bit per letter */
} term;

struct lb_selector {
    term *terms;
    uint32_t n_terms;
};

/* ---- parsing ---------------------------------------------------------------------------------------------------- */

static lb_status compile(term *term, const char *text, lb_err *err)
{
    const char *before = TERMS[term->kind].before, *after = TERMS[term->kind].after;
    char *spelt = lb_text_escaped(LB_TEXT_PATTERN, text, strlen(text)); /* as the names are that it is to find */
    size_t size = strlen(before) + (spelt ? strlen(spelt) : 0) + strlen(after) + 1;
    char *pattern = spelt ? malloc(size) : NULL;
    if (pattern) snprintf(pattern, size, "%s%s%s", before, spelt, after);
    free(spelt);
    if (!pattern) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    const lb_status status = lb_pattern_compile("selector pattern", text, pattern, PCRE2_UTF, &term->pattern, err);
    free(pattern);
    return status;
}

static lb_status parse_ranges(term *term, const char *text, lb_err *err)
{
    for (const char *at = text;;) {
        char *end;
        range parsed;
        parsed.first = parsed.last = strtoll(at, &end, 10);
        if (end == at) break;
        if (*end == '-') {
            at = end + 1;
            parsed.last = strtoll(at, &end, 10);
            if (end == at) break;
        }
        range *ranges = lb_array_grow(term->ranges, term->n_ranges, sizeof *ranges);
        if (!ranges) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
        term->ranges = ranges;
        term->ranges[term->n_ranges++] = parsed;
        if (*end == '\0') return LB_OK;
        if (*end != ',') break;
        at = end + 1;
    }
    return lb_fail(err, LB_ERR_INVALID, "selector %s%s: expected numbers and ranges like 0,3-5", TERMS[term->kind].key,
                   text);
}

static lb_status parse_phases(term *term, const char *text, lb_err *err)
{
    for (const char *at = text; *at;) {
        size_t n = strcspn(at, ",");
        uint32_t found = 0;
        for (lb_phase phase = LB_PHASE_FORWARD; phase <= LB_PHASE_OTHER; phase++)
            if (strlen(lb_phase_name(phase)) == n && !strncmp(lb_phase_name(phase), at, n)) found = 1u << phase;
        if (!found)
            return lb_fail(err, LB_ERR_INVALID,
                           "selector phase=%s: phases are forward, backward, optimizer, communication, other", text);
        term->set |= found;
        at += n + (at[n] == ',');
    }
    return LB_OK;
}

static lb_status parse_blocks(term *term, const char *text, lb_err *err)
{
    for (const char *at = text; *at; at++) {
        if (*at == ',') continue;
        if (!isupper((unsigned char)*at))
            return lb_fail(err, LB_ERR_INVALID, "selector block=%s: block classes are letters: A, D, E, M, R", text);
        term->set |= 1u << (*at - 'A');
    }
    return LB_OK;
}

static lb_status parse_term(lb_selector *selector, const char *text, lb_err *err)
{
    term *terms = lb_array_grow(selector->terms, selector->n_terms, sizeof *terms);
    if (!terms) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    selector->terms = terms;
    term *parsed = &selector->terms[selector->n_terms++];
    *parsed = (term){.kind = TERM_ANYWHERE};
    for (term_kind kind = TERM_LAYER; kind <= TERM_BLOCK; kind++)
        if (!strncmp(text, TERMS[kind].key, strlen(TERMS[kind].key))) parsed->kind = kind;
    const char *value = text + strlen(TERMS[parsed->kind].key);
    const size_t word = strspn(text, "abcdefghijklmnopqrstuvwxyz");
    if (parsed->kind == TERM_ANYWHERE && word && text[word] == '=')
        return lb_fail(err, LB_ERR_INVALID,
                       "selector \"%s\": there is no \"%.*s=\"; "
                       "what can be asked for is layer= op= class= phase= rank= step= index= block=, "
                       "or a pattern alone",
                       text, (int)word, text);
    switch (parsed->kind) {
    case TERM_PHASE: return parse_phases(parsed, value, err);
    case TERM_RANK:
    case TERM_INDEX:
    case TERM_STEP: return parse_ranges(parsed, value, err);
    case TERM_BLOCK: return parse_blocks(parsed, value, err);
    default: return compile(parsed, value, err);
    }
}

lb_status lb_selector_new(const char *text, lb_selector **out, lb_err *err)
{
    *out = NULL;
    lb_selector *selector = calloc(1, sizeof *selector);
    char *one = malloc(strlen(text) + 1);
    lb_status status = selector && one ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (const char *at = text; status == LB_OK && *at;) {
        size_t n = 0;
        for (; *at && *at != '&'; at++) {
            if (at[0] == '\\' && at[1] == '&') at++;
            one[n++] = *at;
        }
        one[n] = '\0';
        if (n) status = parse_term(selector, one, err);
        if (*at == '&') at++;
    }
    free(one);
    if (status == LB_OK)
        *out = selector;
    else
        lb_selector_free(selector);
    return status;
}

void lb_selector_free(lb_selector *selector)
{
    if (!selector) return;
    for (uint32_t i = 0; i < selector->n_terms; i++) {
        pcre2_code_free(selector->terms[i].pattern);
        free(selector->terms[i].ranges);
    }
    free(selector->terms);
    free(selector);
}

/* ---- matching --------------------------------------------------------------------------------------------------- */

bool lb_selector_wants_blocks(const lb_selector *selector)
{
    for (uint32_t i = 0; i < selector->n_terms; i++)
        if (selector->terms[i].kind == TERM_BLOCK) return true;
    return false;
}

bool lb_selector_names_ops(const lb_selector *selector)
{
    for (uint32_t i = 0; i < selector->n_terms; i++)
        if (selector->terms[i].kind == TERM_INDEX) return true;
    return false;
}

static bool in_ranges(const term *term, int64_t x)
{
    for (uint32_t i = 0; i < term->n_ranges; i++)
        if (x >= term->ranges[i].first && x <= term->ranges[i].last) return true;
    return false;
}

static lb_status search(const term *term, const char *subject, bool *found, lb_err *err)
{
    pcre2_match_data *match = pcre2_match_data_create_from_pattern(term->pattern, NULL);
    const lb_status status = lb_pattern_find(term->pattern, match, subject, strlen(subject), found, err);
    pcre2_match_data_free(match);
    return status;
}

/* What a site is asked about; op NULL: the module as a whole. */
typedef struct site {
    const char *layer, *class_name, *op;
    char block;
} site;

static lb_status search_anywhere(const term *term, const site *site, bool *found, lb_err *err)
{
    if (!site->op) return search(term, site->layer, found, err);
    const size_t size = strlen(site->layer) + strlen(site->op) + 2;
    char *subject = malloc(size);
    if (!subject) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    snprintf(subject, size, "%s/%s", site->layer, site->op);
    const lb_status status = search(term, subject, found, err);
    free(subject);
    return status;
}

/* Terms that depend on (scope, op name) alone, so that a program of 40,000 ops asks each question once. */
static lb_status names_match(const lb_selector *selector, const site *site, bool *matches, lb_err *err)
{
    lb_status status = LB_OK;
    *matches = true;
    for (uint32_t i = 0; i < selector->n_terms && *matches && status == LB_OK; i++) {
        const term *term = &selector->terms[i];
        switch (term->kind) {
        case TERM_ANYWHERE: status = search_anywhere(term, site, matches, err); break;
        case TERM_LAYER: status = search(term, site->layer, matches, err); break;
        case TERM_OP:
            if (site->op) status = search(term, site->op, matches, err);
            break;
        case TERM_CLASS: status = search(term, site->class_name, matches, err); break;
        case TERM_BLOCK: *matches = isupper((unsigned char)site->block) && term->set >> (site->block - 'A') & 1; break;
        default: break;
        }
    }
    return status;
}

static bool program_matches(const lb_selector *selector, const lb_program *program)
{
    for (uint32_t i = 0; i < selector->n_terms; i++) {
        const term *term = &selector->terms[i];
        if (term->kind == TERM_RANK && !in_ranges(term, program->rank)) return false;
        if (term->kind == TERM_STEP && !in_ranges(term, program->step)) return false;
    }
    return true;
}

static uint32_t phases_wanted(const lb_selector *selector)
{
    uint32_t wanted = UINT32_MAX;
    for (uint32_t i = 0; i < selector->n_terms; i++)
        if (selector->terms[i].kind == TERM_PHASE) wanted &= selector->terms[i].set;
    return wanted;
}

static bool index_matches(const lb_selector *selector, uint32_t op)
{
    for (uint32_t i = 0; i < selector->n_terms; i++)
        if (selector->terms[i].kind == TERM_INDEX && !in_ranges(&selector->terms[i], op)) return false;
    return true;
}

typedef struct answer {
    uint32_t scope, name;
    uint8_t known, matches;
} answer;

lb_status lb_selector_mark(const lb_selector *selector, const lb_program *program, const char *blocks,
                           const uint32_t *origin, uint8_t *marks, uint8_t mask, int64_t *selected, lb_err *err)
{
    int64_t n = 0;
    if (selected) *selected = 0;
    if (!program_matches(selector, program)) return LB_OK;
    uint32_t phases = phases_wanted(selector), size = 1024;
    while (size < program->n_ops / 4 && size < 65536) size *= 2;
    answer *answers = calloc(size, sizeof *answers);
    lb_status status = answers ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < program->n_ops && status == LB_OK; i++) {
        const lb_op *op = &program->ops[i];
        if (!(phases >> op->phase & 1)) continue;
        /* A direct-mapped memo: a collision only costs the question again. */
        answer *memo = &answers[(op->scope * 0x9E3779B1u ^ op->name * 0x85EBCA77u) >> 7 & (size - 1)];
        if (!memo->known || memo->scope != op->scope || memo->name != op->name) {
            site where = {lb_op_layer(program, op), lb_op_class(program, op), lb_op_name(program, op),
                          blocks ? blocks[op->scope] : 0};
            bool matches;
            status = names_match(selector, &where, &matches, err);
            *memo = (answer){op->scope, op->name, 1, matches};
        }
        if (!memo->matches || !index_matches(selector, origin ? origin[i] : i)) continue;
        marks[i] |= mask;
        n++;
    }
    free(answers);
    if (selected) *selected = n;
    return status;
}

lb_status lb_selector_scope(const lb_selector *selector, const lb_program *program, uint32_t scope, const char *blocks,
                            bool *selected, lb_err *err)
{
    const lb_scope *row = &program->scopes[scope];
    site where = {lb_program_text(program, row->path), lb_program_text(program, row->class_name), NULL,
                  blocks ? blocks[scope] : 0};
    *selected = false;
    if (!program_matches(selector, program)) return LB_OK;
    return names_match(selector, &where, selected, err);
}

/* ---- swaps as text ---------------------------------------------------------------------------------------------- */

lb_status lb_swap_parse(lb_swap_kind kind, const char *text, lb_swap *swap, lb_err *err)
{
    *swap = (lb_swap){.kind = kind};
    const char *split = kind == LB_SWAP_SKIP ? NULL : strrchr(text, '=');
    size_t n = split ? (size_t)(split - text) : kind == LB_SWAP_SKIP ? strlen(text) : 0;
    const char *argument = split ? split + 1 : kind == LB_SWAP_SKIP ? "" : text;
    if (kind != LB_SWAP_SKIP && !*argument)
        return lb_fail(err, LB_ERR_INVALID, "\"%s\": expected SELECTOR=WHAT, e.g. layer=model.layers.3=f32", text);
    char *selector = strndup(text, n), *copy = strdup(argument);
    swap->selector = selector;
    swap->argument = copy;
    if (!selector || !copy) {
        lb_swap_release(swap);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    return LB_OK;
}

void lb_swap_release(lb_swap *swap)
{
    free((char *)swap->selector);
    free((char *)swap->argument);
    swap->selector = swap->argument = NULL;
}
