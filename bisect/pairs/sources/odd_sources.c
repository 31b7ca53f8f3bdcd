/* Siblings that are made of other tensors: see odd_sources.h. */
#include "sources/odd_sources.h"

#include "base/array.h"
#include "program/state_name.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t mixed(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0xFF51AFD7ED558CCD);
    return hash ^ hash >> 32;
}

/* A name without the numbers between its dots; `*number`: the first of these, -1 where there is none. */
static uint64_t pattern_of(const char *name, int64_t *number)
{
    uint64_t hash = 1;
    *number = -1;
    for (const char *at = name; *at;) {
        const size_t word = strcspn(at, "."), digits = strspn(at, "0123456789");
        const bool is_number = word && digits == word;
        if (is_number && *number < 0) *number = strtoll(at, NULL, 10);
        for (size_t i = 0; i < (is_number ? 1 : word); i++) hash = mixed(hash, is_number ? '*' : (uint64_t)at[i]);
        at += word;
        if (*at) hash = mixed(hash, '.'), at++;
    }
    return hash;
}

/* What a tensor of B is made of, in A's names without numbers; layers are counted from B's own. */
static uint64_t making_of(const lb_step_sources *a, const lb_contents *contents, uint32_t row, int64_t layer)
{
    const lb_content *c = &contents->list[row];
    uint64_t hash = 2;
    for (uint32_t k = 0; k < c->n; k++) {
        const lb_content_run *r = &contents->runs[c->first + k];
        int64_t number;
        hash = mixed(hash, pattern_of(a->list[r->tensor].name, &number));
        hash = mixed(hash, number < 0 || layer < 0 ? 0 : (uint64_t)(number - layer));
        const int64_t words[] = {r->from, r->from_stride, r->to, r->to_stride, r->n};
        for (size_t i = 0; i < sizeof words / sizeof *words; i++) hash = mixed(hash, (uint64_t)words[i]);
    }
    return hash;
}

typedef struct member {
    uint64_t family, making;
    uint32_t row;
} member;

static int by_family(const void *x, const void *y)
{
    const member *a = x, *b = y;
    if (a->family != b->family) return a->family < b->family ? -1 : 1;
    if (a->making != b->making) return a->making < b->making ? -1 : 1;
    return (a->row > b->row) - (a->row < b->row);
}

/* One number all over stands anywhere, and states lie as their parameters do. */
static bool tells(const lb_step_sources *a, const lb_step_sources *b, const lb_contents *contents, uint32_t row)
{
    const lb_content *c = &contents->list[row];
    const lb_tensor *t = &b->tensors[row].tensor;
    bool named = b->list[row].learnt && *b->list[row].name && !lb_state_name_is(b->list[row].name) && c->n &&
                 c->relation != LB_CONTENT_NONE && c->relation != LB_CONTENT_NAMED && t->data &&
                 lb_layout_is_contiguous(&t->layout);
    for (uint32_t k = 0; k < c->n && named; k++) named = *a->list[contents->runs[c->first + k].tensor].name != '\0';
    if (!named) return false;
    const size_t width = lb_dtype_bits(t->dtype) / 8, n = (size_t)lb_layout_numel(&t->layout);
    const char *bytes = t->data;
    for (size_t i = 1; i < n && width; i++)
        if (memcmp(bytes, bytes + i * width, width)) return true;
    return false;
}

/* Members of one family, by making: the largest of its parts, where it is more than half. */
static bool add_odd(const member *list, uint32_t n, lb_odd_source **out, uint32_t *n_out)
{
    uint32_t first = 0, most = 0;
    for (uint32_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && list[end].making == list[i].making;) end++;
        if (end - i > most) first = i, most = end - i;
    }
    for (uint32_t i = 0; i < n && 2 * most > n; i++) {
        if (list[i].making == list[first].making) continue;
        lb_odd_source *more = lb_array_grow(*out, *n_out, sizeof *more);
        if (!more) return false;
        *out = more, (*out)[(*n_out)++] = (lb_odd_source){list[i].row, list[first].row, most};
    }
    return true;
}

lb_status lb_odd_sources_find(const lb_step_sources *a, const lb_step_sources *b, const lb_contents *contents,
                              lb_odd_source **list, uint32_t *n, lb_err *err)
{
    member *members = malloc((b->n + 1u) * sizeof *members);
    uint32_t known = 0;
    *list = NULL, *n = 0;
    for (uint32_t i = 0; members && i < b->n; i++) {
        int64_t layer;
        const uint64_t family = pattern_of(b->list[i].name, &layer);
        if (layer >= 0 && tells(a, b, contents, i))
            members[known++] = (member){mixed(family, b->list[i].part), making_of(a, contents, i, layer), i};
    }
    if (known) qsort(members, known, sizeof *members, by_family);
    bool room = members != NULL;
    for (uint32_t i = 0, end; i < known && room; i = end) {
        for (end = i + 1; end < known && members[end].family == members[i].family;) end++;
        room = add_odd(members + i, end - i, list, n);
    }
    free(members);
    if (room) return LB_OK;
    free(*list), *list = NULL, *n = 0;
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for siblings of %u tensors", b->n);
}

static size_t add_names(const lb_step_sources *a, const lb_contents *contents, uint32_t row, char *text, size_t size)
{
    const lb_content *c = &contents->list[row];
    size_t at = 0;
    enum { MOST = 4 };
    uint32_t last = LB_NONE, told = 0;
    for (uint32_t k = 0; k < c->n && told < MOST && at + 100 < size; k++) {
        const uint32_t t = contents->runs[c->first + k].tensor;
        if (t == last) continue;
        at += (size_t)snprintf(text + at, size - at, "%s%.90s", last == LB_NONE ? "" : " + ", a->list[t].name);
        last = t, told++;
    }
    return at;
}

void lb_odd_source_text(const lb_odd_source *odd, const lb_step_sources *a, const lb_step_sources *b,
                        const lb_contents *contents, char text[700])
{
    size_t at = (size_t)snprintf(text, 700, "%.120s holds the numbers of ", b->list[odd->row].name);
    at += add_names(a, contents, odd->row, text + at, at < 330 ? 330 - at : 1);
    at += (size_t)snprintf(text + at, 700 - at, ", and %u of its siblings are made as %.90s is, of ", odd->siblings,
                           b->list[odd->like].name);
    add_names(a, contents, odd->like, text + at, 700 - at);
}
