/* See token_match.h. Tokens are aligned by E. W. Myers' greedy algorithm ("An O(ND) Difference Algorithm and Its
 * Variations", 1986) on their numbers, or on their texts where the numbers are not told or of two vocabularies. */
#include "parity/token_match.h"

#include "base/array.h"
#include <lastbit/digest.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { MOST_EDITS = 4096 }; /* sides that are further apart are two texts */

bool lb_token_match_note(lb_parity_finding **findings, uint32_t *n, lb_parity_finding_kind kind, bool corrected,
                         const char *format, ...)
{
    lb_parity_finding *more = lb_array_grow(*findings, *n, sizeof *more);
    if (!more) return false;
    *findings = more;
    more[*n] = (lb_parity_finding){.kind = kind, .corrected = corrected};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(more[*n].message, sizeof more[*n].message, format, arguments);
    va_end(arguments);
    (*n)++;
    return true;
}

/* ---- keys ---- */

static bool told(const lb_token_set *set, bool text)
{
    for (uint32_t s = 0; s < set->n; s++)
        for (uint32_t t = 0; t < set->sequences[s].n; t++) {
            const lb_token *token = &set->sequences[s].tokens[t];
            if (text ? !token->text : token->id < 0) return false;
        }
    return true;
}

static uint64_t key_of(const lb_token *token, bool text)
{
    return text ? XXH3_64bits(token->text, strlen(token->text)) : (uint64_t)token->id;
}

typedef struct keys {
    uint64_t *list, content;
    uint32_t n;
} keys;

static bool keys_of(const lb_token_sequence *sequence, bool text, keys *keys)
{
    keys->n = sequence->n;
    keys->list = malloc(((size_t)sequence->n + 1) * sizeof *keys->list);
    for (uint32_t t = 0; keys->list && t < sequence->n; t++) keys->list[t] = key_of(&sequence->tokens[t], text);
    keys->content = keys->list ? XXH3_64bits(keys->list, keys->n * sizeof *keys->list) : 0;
    return keys->list != NULL;
}

/* ---- the longest common subsequence ---- */

/* The furthest places on each diagonal after d edits, for every d: from which the way back is read. */
typedef struct trace {
    int32_t *reach; /* d * (d + 1) / 2 … hold those of d: diagonals -d, -d + 2, …, d */
    int32_t edits;
} trace;

static int32_t *row_of(const trace *trace, int32_t d)
{
    return trace->reach + (size_t)d * ((size_t)d + 1) / 2;
}

static int32_t start_of(const trace *trace, int32_t d, int32_t k)
{
    if (d == 0) return 0;
    const int32_t *before = row_of(trace, d - 1);
    const bool down = k == -d || (k != d && before[(k - 1 + d - 1) / 2] < before[(k + 1 + d - 1) / 2]);
    return down ? before[(k + 1 + d - 1) / 2] : before[(k - 1 + d - 1) / 2] + 1;
}

/* Marks in `of_a` which token of B each of A is, UINT32_MAX: none. True where it came to an end within MOST_EDITS. */
static bool common(const uint64_t *a, int32_t n, const uint64_t *b, int32_t most, uint32_t *of_a, bool *memory)
{
    trace trace = {0};
    bool found = false;
    int32_t distance, k = 0;
    for (distance = 0; distance <= MOST_EDITS && distance <= n + most && !found; distance++) {
        int32_t *more = realloc(trace.reach, ((size_t)distance + 1) * ((size_t)distance + 2) / 2 * sizeof *more);
        if (!more) {
            free(trace.reach);
            return *memory = false;
        }
        trace.reach = more;
        for (k = -distance; k <= distance; k += 2) {
            int32_t x = start_of(&trace, distance, k), y = x - k;
            while (x < n && y < most && x >= 0 && y >= 0 && a[x] == b[y]) x++, y++;
            row_of(&trace, distance)[(k + distance) / 2] = x;
            if (x >= n && y >= most) {
                found = true;
                break;
            }
        }
    }
    for (distance--; found && distance >= 0; distance--) {
        int32_t x = row_of(&trace, distance)[(k + distance) / 2];
        const int32_t start = start_of(&trace, distance, k);
        for (; x > start; x--) of_a[x - 1] = (uint32_t)(x - 1 - k);
        if (distance == 0) break;
        const int32_t *before = row_of(&trace, distance - 1);
        k +=
            k == -distance || (k != distance && before[(k - 1 + distance - 1) / 2] < before[(k + 1 + distance - 1) / 2])
                ? 1
                : -1;
    }
    free(trace.reach);
    return found;
}

static bool match_keys(const keys *a, const keys *b, uint32_t *of_a, bool *memory)
{
    uint32_t head = 0, tail = 0;
    while (head < a->n && head < b->n && a->list[head] == b->list[head]) head++;
    while (tail < a->n - head && tail < b->n - head && a->list[a->n - 1 - tail] == b->list[b->n - 1 - tail]) tail++;
    for (uint32_t i = 0; i < a->n; i++) of_a[i] = UINT32_MAX;
    for (uint32_t i = 0; i < head; i++) of_a[i] = i;
    for (uint32_t i = 0; i < tail; i++) of_a[a->n - 1 - i] = b->n - 1 - i;
    const uint32_t n = a->n - head - tail, m = b->n - head - tail;
    if (!n || !m) return true;
    const bool found = common(a->list + head, (int32_t)n, b->list + head, (int32_t)m, of_a + head, memory);
    for (uint32_t i = head; i < head + n; i++) of_a[i] = of_a[i] == UINT32_MAX ? UINT32_MAX : of_a[i] + head;
    return found;
}

/* ---- which sequence is which ---- */

typedef struct sides {
    const lb_token_set *a, *b;
    keys *ka, *kb;
    bool text, keyed, texts; /* matched by texts, by anything; both sides tell texts */
    uint32_t *partner;       /* of A's sequences, UINT32_MAX: none */
    bool *taken;             /* of B's */
} sides;

static void pair_up(sides *sides, uint32_t a, uint32_t b)
{
    sides->partner[a] = b, sides->taken[b] = true;
}

static bool all_named(const lb_token_set *set)
{
    for (uint32_t i = 0; i < set->n; i++)
        if (!set->sequences[i].name) return false;
    return set->n > 0;
}

/* By name where both sides name theirs; else by content, then those left over in order. */
static void pair_sequences(sides *sides)
{
    if (all_named(sides->a) && all_named(sides->b)) {
        for (uint32_t i = 0; i < sides->a->n; i++)
            for (uint32_t j = 0; j < sides->b->n; j++)
                if (!sides->taken[j] && strcmp(sides->a->sequences[i].name, sides->b->sequences[j].name) == 0) {
                    pair_up(sides, i, j);
                    break;
                }
        return;
    }
    const bool ordered = sides->a->n == sides->b->n;
    for (uint32_t i = 0; sides->keyed && i < sides->a->n; i++) {
        uint32_t found = UINT32_MAX;
        for (uint32_t j = 0; j < sides->b->n && found == UINT32_MAX; j++) {
            const uint32_t at = ordered ? (i + j) % sides->b->n : j; /* its own place first: texts may come twice */
            if (!sides->taken[at] && sides->kb[at].n == sides->ka[i].n && sides->kb[at].content == sides->ka[i].content)
                found = at;
        }
        if (found != UINT32_MAX) pair_up(sides, i, found);
    }
    uint32_t j = 0;
    for (uint32_t i = 0; i < sides->a->n; i++) {
        if (sides->partner[i] != UINT32_MAX) continue;
        while (j < sides->b->n && sides->taken[j]) j++;
        if (j < sides->b->n) pair_up(sides, i, j);
    }
}

static bool note_unpaired(const sides *sides, lb_token_match *match)
{
    uint32_t left_a = 0, left_b = 0;
    const char *name_a = NULL, *name_b = NULL;
    for (uint32_t i = 0; i < sides->a->n; i++)
        if (sides->partner[i] == UINT32_MAX && !left_a++) name_a = sides->a->sequences[i].name;
    for (uint32_t j = 0; j < sides->b->n; j++)
        if (!sides->taken[j] && !left_b++) name_b = sides->b->sequences[j].name;
    bool ok = true;
    if (left_a)
        ok = lb_token_match_note(&match->findings, &match->n_findings, LB_PARITY_SEQUENCE, false,
                                 "%u of %u sequences of the first side have no partner in the second%s%.60s", left_a,
                                 sides->a->n, name_a ? ": " : "", name_a ? name_a : "");
    if (ok && left_b)
        ok = lb_token_match_note(&match->findings, &match->n_findings, LB_PARITY_SEQUENCE, false,
                                 "%u of %u sequences of the second side have no partner in the first%s%.60s", left_b,
                                 sides->b->n, name_b ? ": " : "", name_b ? name_b : "");
    return ok;
}

/* ---- what did not match ---- */

/* Tokens between two that match, on either side. */
typedef struct edit {
    lb_parity_finding_kind kind;
    bool second;                               /* the side that has the tokens */
    int where;                                 /* -1 at the beginning, 1 at the end, 0 between */
    uint64_t key;                              /* of the tokens, so that equal edits are counted together */
    uint32_t pair, a, b, tokens, times, pairs; /* the first one; all of its kind */
    char text[80];
} edit;

typedef struct edits {
    edit *list;
    uint32_t n;
    bool failed;
} edits;

static void describe(const lb_token *tokens, uint32_t n, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < n && i < 6 && used + 1 < size; i++) {
        int wrote = tokens[i].text
                        ? snprintf(text + used, size - used, "%s", tokens[i].text)
                        : snprintf(text + used, size - used, "%s%lld", i ? " " : "", (long long)tokens[i].id);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ') *c = ' ';
}

static bool all_equal(const uint64_t *keys, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        if (keys[i] != keys[0]) return false;
    return true;
}

/* Tokens [first, first + n) say again what stands right before or right behind them. */
static bool repeats(const keys *keys, uint32_t first, uint32_t n)
{
    return (first >= n && memcmp(keys->list + first - n, keys->list + first, n * sizeof *keys->list) == 0) ||
           (first + 2 * n <= keys->n &&
            memcmp(keys->list + first + n, keys->list + first, n * sizeof *keys->list) == 0);
}

static lb_parity_finding_kind kind_of_run(const keys *keys, uint32_t first, uint32_t n, int where)
{
    if (where && n > 1 && all_equal(keys->list + first, n)) return LB_PARITY_PADDING;
    if (repeats(keys, first, n)) return LB_PARITY_REPEATED;
    return where && n == 1 ? LB_PARITY_SPECIAL : LB_PARITY_DROPPED;
}

static void note_edit(edits *edits, edit found)
{
    for (uint32_t i = 0; i < edits->n; i++) {
        edit *x = &edits->list[i];
        if (x->kind != found.kind || x->second != found.second || x->where != found.where || x->key != found.key)
            continue;
        x->times++, x->pairs += x->pair != found.pair;
        x->pair = found.pair;
        return;
    }
    edit *more = lb_array_grow(edits->list, edits->n, sizeof *more);
    if (!more) {
        edits->failed = true;
        return;
    }
    edits->list = more;
    found.times = found.pairs = 1;
    more[edits->n++] = found;
}

static size_t text_length(const lb_token *tokens, uint32_t n)
{
    size_t length = 0;
    for (uint32_t i = 0; i < n; i++) length += strlen(tokens[i].text);
    return length;
}

static char *joined(const lb_token *tokens, uint32_t n)
{
    char *text = malloc(text_length(tokens, n) + 1), *at = text;
    for (uint32_t i = 0; text && i < n; i++) {
        const size_t length = strlen(tokens[i].text);
        memcpy(at, tokens[i].text, length);
        at += length;
    }
    if (text) *at = '\0';
    return text;
}

static bool same_text(const lb_token *x, uint32_t n, const lb_token *y, uint32_t m)
{
    char *a = joined(x, n), *b = joined(y, m);
    const bool same = a && b && strcmp(a, b) == 0;
    free(a), free(b);
    return same;
}

static bool add_span(lb_sequence_match *pair, lb_token_span span)
{
    lb_token_span *more = lb_array_grow(pair->spans, pair->n, sizeof *more);
    if (!more) return false;
    pair->spans = more;
    more[pair->n++] = span;
    return true;
}

/* Pieces of the same text, cut where both sides cut it. */
static bool add_pieces(lb_sequence_match *pair, const lb_token_sequence *x, const lb_token_sequence *y,
                       lb_token_span gap)
{
    uint32_t i = 0, j = 0;
    while (i < gap.a_count && j < gap.b_count) {
        lb_token_span span = {gap.a + i, 1, gap.b + j, 1};
        size_t a = strlen(x->tokens[gap.a + i].text), b = strlen(y->tokens[gap.b + j].text);
        i++, j++;
        while (a != b)
            if (a < b)
                a += strlen(x->tokens[gap.a + i++].text), span.a_count++;
            else
                b += strlen(y->tokens[gap.b + j++].text), span.b_count++;
        if (!add_span(pair, span)) return false;
    }
    return true;
}

static void note_side(const sides *sides, edits *edits, const lb_sequence_match *pair, bool second, uint32_t first,
                      uint32_t n, int where)
{
    const keys *keys = second ? &sides->kb[pair->b] : &sides->ka[pair->a];
    const lb_token_sequence *sequence = second ? &sides->b->sequences[pair->b] : &sides->a->sequences[pair->a];
    edit found = {
        .kind = kind_of_run(keys, first, n, where), .second = second, .where = where, .tokens = n, .pair = pair->a};
    found.a = found.b = first;
    found.key =
        found.kind == LB_PARITY_PADDING ? keys->list[first] : XXH3_64bits(keys->list + first, n * sizeof *keys->list);
    describe(sequence->tokens + first, n, found.text, sizeof found.text);
    note_edit(edits, found);
}

/* What stands between two matches. True: fine. */
static bool note_gap(const sides *sides, edits *edits, lb_sequence_match *pair, lb_token_span gap)
{
    const lb_token_sequence *x = &sides->a->sequences[pair->a], *y = &sides->b->sequences[pair->b];
    const int where = gap.a == 0 && gap.b == 0                                     ? -1
                      : gap.a + gap.a_count == x->n && gap.b + gap.b_count == y->n ? 1
                                                                                   : 0;
    if (gap.a_count && !gap.b_count) note_side(sides, edits, pair, false, gap.a, gap.a_count, where);
    if (gap.b_count && !gap.a_count) note_side(sides, edits, pair, true, gap.b, gap.b_count, where);
    if (!gap.a_count || !gap.b_count) return !edits->failed;
    edit found = {
        .kind = LB_PARITY_TEXT, .where = where, .pair = pair->a, .a = gap.a, .b = gap.b, .tokens = gap.a_count};
    if (sides->texts && same_text(x->tokens + gap.a, gap.a_count, y->tokens + gap.b, gap.b_count)) {
        found.kind = LB_PARITY_TOKENS;
        if (!add_pieces(pair, x, y, gap)) return false;
    }
    describe(x->tokens + gap.a, gap.a_count, found.text, sizeof found.text);
    if (found.kind == LB_PARITY_TEXT)
        found.key = XXH3_64bits(sides->ka[pair->a].list + gap.a, gap.a_count * sizeof(uint64_t));
    note_edit(edits, found);
    return !edits->failed;
}

static bool looks_like_template(const char *text)
{
    static const char *const marks[] = {"<|",      "|>",        "[INST", "[/INST", "<start_of",
                                        "<end_of", "assistant", "<s>",   "</s>",   "###"};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (strstr(text, marks[i])) return true;
    return false;
}

static bool is_template(const edit *edit)
{
    const bool several = edit->tokens > 1 && edit->times > 1;
    return (edit->kind == LB_PARITY_DROPPED && (several || looks_like_template(edit->text))) ||
           (edit->kind == LB_PARITY_TEXT && (edit->times > 1 || looks_like_template(edit->text)));
}

static bool note_findings(const edits *edits, lb_token_match *match)
{
    static const char *const places[] = {"at the beginning", "within", "at the end"};
    bool ok = true;
    for (uint32_t i = 0; ok && i < edits->n; i++) {
        const edit *edit = &edits->list[i];
        const char *side = edit->second ? "second" : "first", *other = edit->second ? "first" : "second",
                   *place = places[edit->where + 1];
        lb_parity_finding **list = &match->findings;
        uint32_t *n = &match->n_findings;
        if (is_template(edit))
            ok = lb_token_match_note(
                list, n, LB_PARITY_TEMPLATE, false,
                "other chat template: the %s side has \"%s\" %s, %u times in %u sequences, where the %s has %s", side,
                edit->text, place, edit->times, edit->pairs, other,
                edit->kind == LB_PARITY_TEXT ? "something else" : "nothing");
        else if (edit->kind == LB_PARITY_PADDING)
            ok = lb_token_match_note(list, n, edit->kind, true,
                                     "the %s side is padded %s with \"%s\" in %u sequences; padding is left out", side,
                                     place, edit->text, edit->pairs);
        else if (edit->kind == LB_PARITY_SPECIAL)
            ok = lb_token_match_note(
                list, n, edit->kind, false,
                "the %s side has the token \"%s\" %s of %u sequences, the %s has not: "
                "a special token is added on one side only, and what follows it is conditioned otherwise",
                side, edit->text, place, edit->pairs, other);
        else if (edit->kind == LB_PARITY_REPEATED)
            ok = lb_token_match_note(list, n, edit->kind, false,
                                     "the %s side says \"%s\" twice, %u times in %u sequences (first: token %u)", side,
                                     edit->text, edit->times, edit->pairs, edit->a);
        else if (edit->kind == LB_PARITY_DROPPED)
            ok = lb_token_match_note(
                list, n, edit->kind, false,
                "the %s side lacks %u tokens %s, \"%s\", which the %s has (%u times in %u sequences; first: token %u)",
                other, edit->tokens, place, edit->text, side, edit->times, edit->pairs, edit->a);
        else if (edit->kind == LB_PARITY_TOKENS)
            ok = lb_token_match_note(list, n, edit->kind, true,
                                     "the sides cut the same text into other tokens, %u times in %u sequences (first: "
                                     "\"%s\" at token %u); such pieces are compared as a whole",
                                     edit->times, edit->pairs, edit->text, edit->a);
        else
            ok = lb_token_match_note(list, n, LB_PARITY_TEXT, false,
                                     "the sides score other tokens: \"%s\" from token %u on (%u times in %u sequences)",
                                     edit->text, edit->a, edit->times, edit->pairs);
    }
    return ok;
}

/* ---- a pair ---- */

static bool match_pair(const sides *sides, edits *edits, lb_sequence_match *pair)
{
    const lb_token_sequence *x = &sides->a->sequences[pair->a], *y = &sides->b->sequences[pair->b];
    uint32_t *of_a = malloc(((size_t)x->n + 1) * sizeof *of_a);
    bool ok = of_a != NULL, memory = true;
    if (ok && sides->keyed) {
        match_keys(&sides->ka[pair->a], &sides->kb[pair->b], of_a, &memory);
        ok = memory;
    } else if (ok) { /* tokens without number and text meet by their places */
        for (uint32_t i = 0; i < x->n; i++) of_a[i] = i < y->n ? i : UINT32_MAX;
    }
    uint32_t a = 0, b = 0;
    for (uint32_t i = 0; ok && i <= x->n; i++) {
        if (i < x->n && of_a[i] == UINT32_MAX) continue;
        const uint32_t j = i < x->n ? of_a[i] : y->n;
        if (i > a || j > b)
            ok = sides->keyed ? note_gap(sides, edits, pair, (lb_token_span){a, i - a, b, j - b}) : true;
        if (ok && i < x->n) ok = add_span(pair, (lb_token_span){i, 1, j, 1});
        a = i + 1, b = j + 1;
    }
    free(of_a);
    return ok;
}

static bool prepare(sides *sides)
{
    sides->partner = malloc(((size_t)sides->a->n + 1) * sizeof *sides->partner);
    sides->taken = calloc(sides->b->n + 1u, sizeof *sides->taken);
    sides->ka = calloc(sides->a->n + 1u, sizeof *sides->ka), sides->kb = calloc(sides->b->n + 1u, sizeof *sides->kb);
    bool ok = sides->partner && sides->taken && sides->ka && sides->kb;
    for (uint32_t i = 0; ok && i < sides->a->n; i++) sides->partner[i] = UINT32_MAX;
    const bool numbers = told(sides->a, false) && told(sides->b, false);
    sides->texts = told(sides->a, true) && told(sides->b, true);
    sides->text = sides->texts && !numbers, sides->keyed = sides->texts || numbers;
    for (uint32_t i = 0; ok && sides->keyed && i < sides->a->n; i++)
        ok = keys_of(&sides->a->sequences[i], sides->text, &sides->ka[i]);
    for (uint32_t j = 0; ok && sides->keyed && j < sides->b->n; j++)
        ok = keys_of(&sides->b->sequences[j], sides->text, &sides->kb[j]);
    return ok;
}

static void release(sides *sides)
{
    for (uint32_t i = 0; sides->ka && i < sides->a->n; i++) free(sides->ka[i].list);
    for (uint32_t j = 0; sides->kb && j < sides->b->n; j++) free(sides->kb[j].list);
    free(sides->ka), free(sides->kb), free(sides->partner), free(sides->taken);
}

lb_status lb_token_match_make(const lb_token_set *a, const lb_token_set *b, lb_token_match *match, lb_err *err)
{
    sides sides = {.a = a, .b = b};
    edits edits = {0};
    *match = (lb_token_match){0};
    bool ok = prepare(&sides);
    if (ok) pair_sequences(&sides);
    ok = ok && note_unpaired(&sides, match);
    match->pairs = calloc(a->n + 1u, sizeof *match->pairs);
    ok = ok && match->pairs;
    for (uint32_t i = 0; ok && i < a->n; i++) {
        if (sides.partner[i] == UINT32_MAX) continue;
        match->pairs[match->n] = (lb_sequence_match){.a = i, .b = sides.partner[i]};
        ok = match_pair(&sides, &edits, &match->pairs[match->n++]);
    }
    ok = ok && note_findings(&edits, match);
    free(edits.list);
    release(&sides);
    return ok ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

void lb_token_match_release(lb_token_match *match)
{
    for (uint32_t i = 0; match->pairs && i < match->n; i++) free(match->pairs[i].spans);
    free(match->pairs), free(match->findings);
    *match = (lb_token_match){0};
}
