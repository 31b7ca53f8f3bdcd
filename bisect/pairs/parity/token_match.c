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

static bool keys_of(const lb_token_sequence *q, bool text, keys *k)
{
    k->n = q->n;
    k->list = malloc(((size_t)q->n + 1) * sizeof *k->list);
    for (uint32_t t = 0; k->list && t < q->n; t++) k->list[t] = key_of(&q->tokens[t], text);
    k->content = k->list ? XXH3_64bits(k->list, k->n * sizeof *k->list) : 0;
    return k->list != NULL;
}

/* ---- the longest common subsequence ---- */

/* The furthest places on each diagonal after d edits, for every d: from which the way back is read. */
typedef struct trace {
    int32_t *reach; /* d * (d + 1) / 2 … hold those of d: diagonals -d, -d + 2, …, d */
    int32_t edits;
} trace;

static int32_t *row_of(const trace *t, int32_t d)
{
    return t->reach + (size_t)d * ((size_t)d + 1) / 2;
}

static int32_t start_of(const trace *t, int32_t d, int32_t k)
{
    if (d == 0) return 0;
    const int32_t *before = row_of(t, d - 1);
    const bool down = k == -d || (k != d && before[(k - 1 + d - 1) / 2] < before[(k + 1 + d - 1) / 2]);
    return down ? before[(k + 1 + d - 1) / 2] : before[(k - 1 + d - 1) / 2] + 1;
}

/* Marks in `of_a` which token of B each of A is, UINT32_MAX: none. True where it came to an end within MOST_EDITS. */
static bool common(const uint64_t *a, int32_t n, const uint64_t *b, int32_t m, uint32_t *of_a, bool *memory)
{
    trace t = {0};
    bool found = false;
    int32_t d, k = 0;
    for (d = 0; d <= MOST_EDITS && d <= n + m && !found; d++) {
        int32_t *more = realloc(t.reach, ((size_t)d + 1) * ((size_t)d + 2) / 2 * sizeof *more);
        if (!more) {
            free(t.reach);
            return *memory = false;
        }
        t.reach = more;
        for (k = -d; k <= d; k += 2) {
            int32_t x = start_of(&t, d, k), y = x - k;
            while (x < n && y < m && x >= 0 && y >= 0 && a[x] == b[y]) x++, y++;
            row_of(&t, d)[(k + d) / 2] = x;
            if (x >= n && y >= m) {
                found = true;
                break;
            }
        }
    }
    for (d--; found && d >= 0; d--) {
        int32_t x = row_of(&t, d)[(k + d) / 2];
        const int32_t start = start_of(&t, d, k);
        for (; x > start; x--) of_a[x - 1] = (uint32_t)(x - 1 - k);
        if (d == 0) break;
        const int32_t *before = row_of(&t, d - 1);
        k += k == -d || (k != d && before[(k - 1 + d - 1) / 2] < before[(k + 1 + d - 1) / 2]) ? 1 : -1;
    }
    free(t.reach);
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

static void pair_up(sides *s, uint32_t a, uint32_t b)
{
    s->partner[a] = b, s->taken[b] = true;
}

static bool all_named(const lb_token_set *set)
{
    for (uint32_t i = 0; i < set->n; i++)
        if (!set->sequences[i].name) return false;
    return set->n > 0;
}

/* By name where both sides name theirs; else by content, then those left over in order. */
static void pair_sequences(sides *s)
{
    if (all_named(s->a) && all_named(s->b)) {
        for (uint32_t i = 0; i < s->a->n; i++)
            for (uint32_t j = 0; j < s->b->n; j++)
                if (!s->taken[j] && strcmp(s->a->sequences[i].name, s->b->sequences[j].name) == 0) {
                    pair_up(s, i, j);
                    break;
                }
        return;
    }
    const bool ordered = s->a->n == s->b->n;
    for (uint32_t i = 0; s->keyed && i < s->a->n; i++) {
        uint32_t found = UINT32_MAX;
        for (uint32_t j = 0; j < s->b->n && found == UINT32_MAX; j++) {
            const uint32_t at = ordered ? (i + j) % s->b->n : j; /* its own place first: texts may come twice */
            if (!s->taken[at] && s->kb[at].n == s->ka[i].n && s->kb[at].content == s->ka[i].content) found = at;
        }
        if (found != UINT32_MAX) pair_up(s, i, found);
    }
    uint32_t j = 0;
    for (uint32_t i = 0; i < s->a->n; i++) {
        if (s->partner[i] != UINT32_MAX) continue;
        while (j < s->b->n && s->taken[j]) j++;
        if (j < s->b->n) pair_up(s, i, j);
    }
}

static bool note_unpaired(const sides *s, lb_token_match *match)
{
    uint32_t left_a = 0, left_b = 0;
    const char *name_a = NULL, *name_b = NULL;
    for (uint32_t i = 0; i < s->a->n; i++)
        if (s->partner[i] == UINT32_MAX && !left_a++) name_a = s->a->sequences[i].name;
    for (uint32_t j = 0; j < s->b->n; j++)
        if (!s->taken[j] && !left_b++) name_b = s->b->sequences[j].name;
    bool ok = true;
    if (left_a)
        ok = lb_token_match_note(&match->findings, &match->n_findings, LB_PARITY_SEQUENCE, false,
                                 "%u of %u sequences of the first side have no partner in the second%s%.60s", left_a,
                                 s->a->n, name_a ? ": " : "", name_a ? name_a : "");
    if (ok && left_b)
        ok = lb_token_match_note(&match->findings, &match->n_findings, LB_PARITY_SEQUENCE, false,
                                 "%u of %u sequences of the second side have no partner in the first%s%.60s", left_b,
                                 s->b->n, name_b ? ": " : "", name_b ? name_b : "");
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
static bool repeats(const keys *k, uint32_t first, uint32_t n)
{
    return (first >= n && memcmp(k->list + first - n, k->list + first, n * sizeof *k->list) == 0) ||
           (first + 2 * n <= k->n && memcmp(k->list + first + n, k->list + first, n * sizeof *k->list) == 0);
}

static lb_parity_finding_kind kind_of_run(const keys *k, uint32_t first, uint32_t n, int where)
{
    if (where && n > 1 && all_equal(k->list + first, n)) return LB_PARITY_PADDING;
    if (repeats(k, first, n)) return LB_PARITY_REPEATED;
    return where && n == 1 ? LB_PARITY_SPECIAL : LB_PARITY_DROPPED;
}

static void note_edit(edits *e, edit found)
{
    for (uint32_t i = 0; i < e->n; i++) {
        edit *x = &e->list[i];
        if (x->kind != found.kind || x->second != found.second || x->where != found.where || x->key != found.key)
            continue;
        x->times++, x->pairs += x->pair != found.pair;
        x->pair = found.pair;
        return;
    }
    edit *more = lb_array_grow(e->list, e->n, sizeof *more);
    if (!more) {
        e->failed = true;
        return;
    }
    e->list = more;
    found.times = found.pairs = 1;
    more[e->n++] = found;
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

static void note_side(const sides *s, edits *e, const lb_sequence_match *pair, bool second, uint32_t first, uint32_t n,
                      int where)
{
    const keys *k = second ? &s->kb[pair->b] : &s->ka[pair->a];
    const lb_token_sequence *q = second ? &s->b->sequences[pair->b] : &s->a->sequences[pair->a];
    edit found = {
        .kind = kind_of_run(k, first, n, where), .second = second, .where = where, .tokens = n, .pair = pair->a};
    found.a = found.b = first;
    found.key = found.kind == LB_PARITY_PADDING ? k->list[first] : XXH3_64bits(k->list + first, n * sizeof *k->list);
    describe(q->tokens + first, n, found.text, sizeof found.text);
    note_edit(e, found);
}

/* What stands between two matches. True: fine. */
static bool note_gap(const sides *s, edits *e, lb_sequence_match *pair, lb_token_span gap)
{
    const lb_token_sequence *x = &s->a->sequences[pair->a], *y = &s->b->sequences[pair->b];
    const int where = gap.a == 0 && gap.b == 0                                     ? -1
                      : gap.a + gap.a_count == x->n && gap.b + gap.b_count == y->n ? 1
                                                                                   : 0;
    if (gap.a_count && !gap.b_count) note_side(s, e, pair, false, gap.a, gap.a_count, where);
    if (gap.b_count && !gap.a_count) note_side(s, e, pair, true, gap.b, gap.b_count, where);
    if (!gap.a_count || !gap.b_count) return !e->failed;
    edit found = {
        .kind = LB_PARITY_TEXT, .where = where, .pair = pair->a, .a = gap.a, .b = gap.b, .tokens = gap.a_count};
    if (s->texts && same_text(x->tokens + gap.a, gap.a_count, y->tokens + gap.b, gap.b_count)) {
        found.kind = LB_PARITY_TOKENS;
        if (!add_pieces(pair, x, y, gap)) return false;
    }
    describe(x->tokens + gap.a, gap.a_count, found.text, sizeof found.text);
    if (found.kind == LB_PARITY_TEXT)
        found.key = XXH3_64bits(s->ka[pair->a].list + gap.a, gap.a_count * sizeof(uint64_t));
    note_edit(e, found);
    return !e->failed;
}

static bool looks_like_template(const char *text)
{
    static const char *const marks[] = {"<|",      "|>",        "[INST", "[/INST", "<start_of",
                                        "<end_of", "assistant", "<s>",   "</s>",   "###"};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (strstr(text, marks[i])) return true;
    return false;
}

static bool is_template(const edit *e)
{
    const bool several = e->tokens > 1 && e->times > 1;
    return (e->kind == LB_PARITY_DROPPED && (several || looks_like_template(e->text))) ||
           (e->kind == LB_PARITY_TEXT && (e->times > 1 || looks_like_template(e->text)));
}

static bool note_findings(const edits *e, lb_token_match *match)
{
    static const char *const places[] = {"at the beginning", "within", "at the end"};
    bool ok = true;
    for (uint32_t i = 0; ok && i < e->n; i++) {
        const edit *x = &e->list[i];
        const char *side = x->second ? "second" : "first", *other = x->second ? "first" : "second",
                   *place = places[x->where + 1];
        lb_parity_finding **list = &match->findings;
        uint32_t *n = &match->n_findings;
        if (is_template(x))
            ok = lb_token_match_note(
                list, n, LB_PARITY_TEMPLATE, false,
                "other chat template: the %s side has \"%s\" %s, %u times in %u sequences, where the %s has %s", side,
                x->text, place, x->times, x->pairs, other, x->kind == LB_PARITY_TEXT ? "something else" : "nothing");
        else if (x->kind == LB_PARITY_PADDING)
            ok = lb_token_match_note(list, n, x->kind, true,
                                     "the %s side is padded %s with \"%s\" in %u sequences; padding is left out", side,
                                     place, x->text, x->pairs);
        else if (x->kind == LB_PARITY_SPECIAL)
            ok = lb_token_match_note(
                list, n, x->kind, false,
                "the %s side has the token \"%s\" %s of %u sequences, the %s has not: a special token is added on one "
                "side only, and what follows it is conditioned otherwise",
                side, x->text, place, x->pairs, other);
        else if (x->kind == LB_PARITY_REPEATED)
            ok = lb_token_match_note(list, n, x->kind, false,
                                     "the %s side says \"%s\" twice, %u times in %u sequences (first: token %u)", side,
                                     x->text, x->times, x->pairs, x->a);
        else if (x->kind == LB_PARITY_DROPPED)
            ok = lb_token_match_note(
                list, n, x->kind, false,
                "the %s side lacks %u tokens %s, \"%s\", which the %s has (%u times in %u sequences; first: token %u)",
                other, x->tokens, place, x->text, side, x->times, x->pairs, x->a);
        else if (x->kind == LB_PARITY_TOKENS)
            ok = lb_token_match_note(list, n, x->kind, true,
                                     "the sides cut the same text into other tokens, %u times in %u sequences (first: "
                                     "\"%s\" at token %u); such "
                                     "pieces are compared as a whole",
                                     x->times, x->pairs, x->text, x->a);
        else
            ok = lb_token_match_note(list, n, LB_PARITY_TEXT, false,
                                     "the sides score other tokens: \"%s\" from token %u on (%u times in %u sequences)",
                                     x->text, x->a, x->times, x->pairs);
    }
    return ok;
}

/* ---- a pair ---- */

static bool match_pair(const sides *s, edits *e, lb_sequence_match *pair)
{
    const lb_token_sequence *x = &s->a->sequences[pair->a], *y = &s->b->sequences[pair->b];
    uint32_t *of_a = malloc(((size_t)x->n + 1) * sizeof *of_a);
    bool ok = of_a != NULL, memory = true;
    if (ok && s->keyed) {
        match_keys(&s->ka[pair->a], &s->kb[pair->b], of_a, &memory);
        ok = memory;
    } else if (ok) { /* tokens without number and text meet by their places */
        for (uint32_t i = 0; i < x->n; i++) of_a[i] = i < y->n ? i : UINT32_MAX;
    }
    uint32_t a = 0, b = 0;
    for (uint32_t i = 0; ok && i <= x->n; i++) {
        if (i < x->n && of_a[i] == UINT32_MAX) continue;
        const uint32_t j = i < x->n ? of_a[i] : y->n;
        if (i > a || j > b) ok = s->keyed ? note_gap(s, e, pair, (lb_token_span){a, i - a, b, j - b}) : true;
        if (ok && i < x->n) ok = add_span(pair, (lb_token_span){i, 1, j, 1});
        a = i + 1, b = j + 1;
    }
    free(of_a);
    return ok;
}

static bool prepare(sides *s)
{
    s->partner = malloc(((size_t)s->a->n + 1) * sizeof *s->partner);
    s->taken = calloc(s->b->n + 1u, sizeof *s->taken);
    s->ka = calloc(s->a->n + 1u, sizeof *s->ka), s->kb = calloc(s->b->n + 1u, sizeof *s->kb);
    bool ok = s->partner && s->taken && s->ka && s->kb;
    for (uint32_t i = 0; ok && i < s->a->n; i++) s->partner[i] = UINT32_MAX;
    const bool numbers = told(s->a, false) && told(s->b, false);
    s->texts = told(s->a, true) && told(s->b, true);
    s->text = s->texts && !numbers, s->keyed = s->texts || numbers;
    for (uint32_t i = 0; ok && s->keyed && i < s->a->n; i++) ok = keys_of(&s->a->sequences[i], s->text, &s->ka[i]);
    for (uint32_t j = 0; ok && s->keyed && j < s->b->n; j++) ok = keys_of(&s->b->sequences[j], s->text, &s->kb[j]);
    return ok;
}

static void release(sides *s)
{
    for (uint32_t i = 0; s->ka && i < s->a->n; i++) free(s->ka[i].list);
    for (uint32_t j = 0; s->kb && j < s->b->n; j++) free(s->kb[j].list);
    free(s->ka), free(s->kb), free(s->partner), free(s->taken);
}

lb_status lb_token_match_make(const lb_token_set *a, const lb_token_set *b, lb_token_match *match, lb_err *err)
{
    sides s = {.a = a, .b = b};
    edits e = {0};
    *match = (lb_token_match){0};
    bool ok = prepare(&s);
    if (ok) pair_sequences(&s);
    ok = ok && note_unpaired(&s, match);
    match->pairs = calloc(a->n + 1u, sizeof *match->pairs);
    ok = ok && match->pairs;
    for (uint32_t i = 0; ok && i < a->n; i++) {
        if (s.partner[i] == UINT32_MAX) continue;
        match->pairs[match->n] = (lb_sequence_match){.a = i, .b = s.partner[i]};
        ok = match_pair(&s, &e, &match->pairs[match->n++]);
    }
    ok = ok && note_findings(&e, match);
    free(e.list);
    release(&s);
    return ok ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

void lb_token_match_release(lb_token_match *match)
{
    for (uint32_t i = 0; match->pairs && i < match->n; i++) free(match->pairs[i].spans);
    free(match->pairs), free(match->findings);
    *match = (lb_token_match){0};
}
