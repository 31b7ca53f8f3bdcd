/* See lastbit/fingerprint_table.h: two sides by names, by fingerprints, and against what earlier files had. */
#include "fingerprints/fingerprint_contents.h"

#include "audit/gguf_names.h"
#include "pair/layer_names.h"

#include "base/array.h"
#include <lastbit/program.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *word, *text;
    bool finding;
} kinds[] = {
#define LB_FINGERPRINT_ROW(name, word, finding, text) {word, text, finding},
    LB_FINGERPRINT_KINDS(LB_FINGERPRINT_ROW)
#undef LB_FINGERPRINT_ROW
};

const char *lb_fingerprint_kind_name(lb_fingerprint_kind kind)
{
    return kind < LB_FINGERPRINT_KIND_COUNT ? kinds[kind].word : "unknown";
}

const char *lb_fingerprint_kind_text(lb_fingerprint_kind kind)
{
    return kind < LB_FINGERPRINT_KIND_COUNT ? kinds[kind].text : "";
}

bool lb_fingerprint_kind_is_finding(lb_fingerprint_kind kind)
{
    return kind < LB_FINGERPRINT_KIND_COUNT && kinds[kind].finding;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* Where the word that begins at `at` and ends with a dot is a wrapper's, its length with the dot; 0. */
static size_t wrapper_at(const char *at)
{
    static const char *const words[] = {
        "module.",     "_orig_mod.",  "_fsdp_wrapped_module.", "_forward_module.",
        "base_model.", "base_layer.", "original_module.",      "_checkpoint_wrapped_module."};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strncmp(at, words[i], strlen(words[i]))) return strlen(words[i]);
    return 0;
}

/* A name without the words of wrappers (DDP, FSDP, torch.compile, peft), and with one "model." at its head at most;
 * malloc'ed. */
static char *bare_name(const char *name)
{
    char *bare = malloc(strlen(name) + 1), *to = bare;
    if (!bare) return NULL;
    for (const char *at = name; *at;) {
        const size_t skip = wrapper_at(at);
        if (skip) {
            at += skip;
            continue;
        }
        const size_t word = strcspn(at, ".") + (at[strcspn(at, ".")] == '.');
        memcpy(to, at, word), to += word, at += word;
    }
    *to = '\0';
    while (!strncmp(bare, "model.model.", 12)) memmove(bare, bare + 6, strlen(bare + 6) + 1);
    return bare;
}

typedef struct side {
    const lb_fingerprint_table *table;
    char **names;       /* by row, as the other side may call them */
    uint32_t *order;    /* rows by those names */
    uint32_t *partners; /* by row */
} side;

static const side *sorted; /* qsort has no context */
#pragma omp threadprivate(sorted)

static int by_side_name(const void *a, const void *b)
{
    return strcmp(sorted->names[*(const uint32_t *)a], sorted->names[*(const uint32_t *)b]);
}

static bool side_init(side *opened, const lb_fingerprint_table *table)
{
    *opened = (side){table, calloc(table->n + 1u, sizeof(char *)), malloc((table->n + 1u) * sizeof(uint32_t)),
                     malloc((table->n + 1u) * sizeof(uint32_t))};
    bool made = opened->names && opened->order && opened->partners;
    for (uint32_t i = 0; i < table->n && made; i++) {
        opened->order[i] = i, opened->partners[i] = LB_NONE;
        char *spelled = lb_gguf_names_spell(table->rows[i].name);
        opened->names[i] = spelled ? bare_name(spelled) : NULL;
        made = opened->names[i] != NULL;
        free(spelled);
    }
    return made;
}

static void side_release(side *side)
{
    for (uint32_t i = 0; side->names && i < side->table->n; i++) free(side->names[i]);
    free(side->names), free(side->order), free(side->partners);
}

static uint32_t find(const side *side, const char *name)
{
    uint32_t low = 0, high = side->table->n;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        const int order = strcmp(side->names[side->order[middle]], name);
        if (order == 0 && side->partners[side->order[middle]] == LB_NONE) return side->order[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return LB_NONE;
}

static void meet(side *a, uint32_t i, side *b, uint32_t k)
{
    a->partners[i] = k, b->partners[k] = i;
}

/* The names as they are, without wrappers, and with words less at the head ("model.layers.0…", "layers.0…"). */
static void meet_by_names(side *a, side *b)
{
    for (uint32_t i = 0; i < a->table->n; i++) {
        const uint32_t k = find(b, a->names[i]);
        if (k != LB_NONE) meet(a, i, b, k);
    }
    for (int turn = 0; turn < 2; turn++) {
        side *x = turn ? b : a, *y = turn ? a : b;
        for (uint32_t i = 0; i < x->table->n; i++) {
            if (x->partners[i] != LB_NONE) continue;
            uint32_t k = LB_NONE;
            for (const char *at = strchr(x->names[i], '.'); at && strchr(at + 1, '.') && k == LB_NONE;
                 at = strchr(at + 1, '.'))
                k = find(y, at + 1);
            if (k != LB_NONE) meet(x, i, y, k);
        }
    }
}

static lb_status meet_all(side *a, side *b, lb_err *err)
{
    LB_TRY(lb_layer_names_meet(a->names, a->table->n, b->names, b->table->n, err));
    sorted = a;
    if (a->table->n) qsort(a->order, a->table->n, sizeof *a->order, by_side_name);
    sorted = b;
    if (b->table->n) qsort(b->order, b->table->n, sizeof *b->order, by_side_name);
    meet_by_names(a, b);
    return LB_OK;
}

/* ---- two rows ---------------------------------------------------------------------------------------------------- */

/* The numbers of a row rounded to a narrow dtype, out of its table or of its bytes. */
static lb_status rounded_numbers(const lb_fingerprint_table *table, lb_fingerprint_row *row, int k, bool *there,
                                 lb_err *err)
{
    *there = row->has_rounded[k];
    if (*there || !table->bytes || !lb_fingerprint_bytes_rounds(row->dtype, k)) return LB_OK;
    const lb_layout shape = row->shape;
    LB_TRY(lb_fingerprint_bytes_settle(table, row, &shape, true, err));
    *there = row->has_rounded[k] && !row->lacks;
    return LB_OK;
}

/* What one row is of another. `how` is "" or what was done. */
typedef struct likeness {
    lb_fingerprint_kind kind;
    char how[160];
} likeness;

/* Whether y is x, x cast, or x rounded; the other way round, too. */
static lb_status match_rows(const lb_fingerprint_table *a, lb_fingerprint_row *x, const lb_fingerprint_table *b,
                            lb_fingerprint_row *y, likeness *likeness, lb_err *err)
{
    lb_fingerprint_kind *kind = &likeness->kind;
    char *how = likeness->how;
    const size_t size = sizeof likeness->how;
    *kind = LB_FINGERPRINT_IS_NUMBERS, how[0] = '\0';
    if (!lb_layout_same_shape(&x->shape, &y->shape)) {
        if (!lb_fingerprint_equal(x->numbers, y->numbers) || x->shape.ndim == 0 || y->shape.ndim == 0) return LB_OK;
        *kind = LB_FINGERPRINT_IS_LAYOUT;
        snprintf(how, size, "the same numbers in the same order, in another shape");
        return LB_OK;
    }
    if (x->dtype == y->dtype && lb_fingerprint_equal(x->raw, y->raw)) return *kind = LB_FINGERPRINT_IS_SAME, LB_OK;
    if (lb_fingerprint_equal(x->numbers, y->numbers)) {
        *kind = LB_FINGERPRINT_IS_CAST;
        if (x->dtype == y->dtype)
            snprintf(how, size, "signs of zeros or bits of NaN differ");
        else
            snprintf(how, size, "%s as %s", lb_dtype_name(x->dtype), lb_dtype_name(y->dtype));
        return LB_OK;
    }
    for (int k = 0; k < LB_FINGERPRINT_NARROW; k++) {
        const char *narrow = lb_dtype_name(lb_fingerprint_table_narrow(k));
        bool there;
        LB_TRY(rounded_numbers(a, x, k, &there, err));
        if (there && lb_fingerprint_equal(x->rounded[k], y->numbers)) {
            *kind = LB_FINGERPRINT_IS_CAST;
            snprintf(how, size, "rounded to %s", narrow);
            return LB_OK;
        }
        LB_TRY(rounded_numbers(b, y, k, &there, err));
        if (there && lb_fingerprint_equal(y->rounded[k], x->numbers)) {
            *kind = LB_FINGERPRINT_IS_CAST;
            snprintf(how, size, "it is the other one rounded to %s", narrow);
            return LB_OK;
        }
    }
    return LB_OK;
}

/* Of a side without bytes a transposed tensor is known by turning the other side's. */
static lb_status match_turned(const lb_fingerprint_table *a, const lb_fingerprint_row *x, const lb_fingerprint_table *b,
                              const lb_fingerprint_row *y, likeness *likeness, lb_err *err)
{
    for (int turn = 0; turn < 2; turn++) {
        bool made;
        lb_fingerprint numbers;
        LB_TRY(lb_fingerprint_bytes_transposed(turn ? b : a, turn ? y : x, &made, &numbers, err));
        if (!made || !lb_fingerprint_equal(numbers, (turn ? x : y)->numbers)) continue;
        likeness->kind = LB_FINGERPRINT_IS_LAYOUT;
        snprintf(likeness->how, sizeof likeness->how, "transposed");
        return LB_OK;
    }
    return LB_OK;
}

/* ---- one pair of tables ------------------------------------------------------------------------------------------ */

typedef struct pair {
    lb_fingerprint_comparison *comparison;
    lb_fingerprint_table *const *tables, *const *others;
    uint32_t file, against, first; /* first: of its matches */
    const lb_fingerprint_table_options *options;
    side a, b;
} pair;

static lb_status add(pair *pair, lb_fingerprint_kind kind, uint32_t row, uint32_t other, const char *how, lb_err *err)
{
    lb_fingerprint_match *more = lb_array_grow(pair->comparison->matches, pair->comparison->n, sizeof *more);
    char *copy = strdup(how);
    if (more) pair->comparison->matches = more;
    if (!more || !copy) {
        free(copy);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    more[pair->comparison->n++] =
        (lb_fingerprint_match){.kind = kind,
                               .row = row,
                               .other = other,
                               .file = pair->file,
                               .against = pair->against,
                               .earlier = LB_NONE,
                               .later = LB_NONE,
                               .name = row == LB_NONE ? NULL : pair->a.table->rows[row].name,
                               .partner = other == LB_NONE ? NULL : pair->b.table->rows[other].name,
                               .how = copy};
    return LB_OK;
}

/* The row of an earlier table by that name. */
static lb_fingerprint_row *row_named(const lb_fingerprint_table *table, const char *name)
{
    uint32_t low = 0, high = table->n;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        const int order = strcmp(table->rows[middle].name, name);
        if (order == 0) return &table->rows[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static bool is_same_tensor(lb_fingerprint_kind kind)
{
    return kind == LB_FINGERPRINT_IS_SAME || kind == LB_FINGERPRINT_IS_CAST;
}

/* The last earlier table whose numbers `y` has; LB_NONE. */
static lb_status match_earlier(pair *pair, const char *name, lb_fingerprint_row *y, uint32_t *earlier, lb_err *err)
{
    *earlier = LB_NONE;
    for (uint32_t i = pair->file; i-- > 0 && *earlier == LB_NONE;) {
        lb_fingerprint_row *row = row_named(pair->tables[i], name);
        likeness likeness;
        if (!row || row->lacks) continue;
        LB_TRY(match_rows(pair->tables[i], row, pair->b.table, y, &likeness, err));
        if (is_same_tensor(likeness.kind)) *earlier = i;
    }
    return LB_OK;
}

/* A row whose shards no file places takes the other side's shape. */
static lb_status settle_alike(const side *side, lb_fingerprint_row *row, const lb_fingerprint_row *like, lb_err *err)
{
    const lb_fingerprint_table *table = side->table;
    if (!table->bytes || row->pieces < 2 || table->bytes->pieces[row->first].held.placed ||
        lb_layout_same_shape(&row->shape, &like->shape))
        return LB_OK;
    return lb_fingerprint_bytes_settle(table, row, &like->shape, false, err);
}

static lb_status compare_named(pair *pair, uint32_t i, lb_err *err)
{
    const uint32_t k = pair->a.partners[i];
    lb_fingerprint_row *x = &pair->a.table->rows[i], *y = &pair->b.table->rows[k];
    likeness likeness;
    LB_TRY(settle_alike(&pair->a, x, y, err));
    LB_TRY(settle_alike(&pair->b, y, x, err));
    if (x->lacks || y->lacks) return add(pair, LB_FINGERPRINT_IS_UNKNOWN, i, k, x->lacks ? x->lacks : y->lacks, err);
    LB_TRY(match_rows(pair->a.table, x, pair->b.table, y, &likeness, err));
    if (likeness.kind != LB_FINGERPRINT_IS_NUMBERS) return add(pair, likeness.kind, i, k, likeness.how, err);
    uint32_t earlier;
    LB_TRY(match_earlier(pair, x->name, y, &earlier, err));
    if (earlier != LB_NONE) {
        LB_TRY(add(pair, LB_FINGERPRINT_IS_OLD, i, k, "", err));
        pair->comparison->matches[pair->comparison->n - 1].earlier = earlier;
        return LB_OK;
    }
    LB_TRY(match_turned(pair->a.table, x, pair->b.table, y, &likeness, err));
    return add(pair, likeness.kind, i, k, likeness.how, err);
}

/* What no name meets, by its numbers: a tensor that is left over on the other side, or one that is stored once there
 * and twice here. Of constants the second says nothing: two norms of ones are not one. */
static lb_status compare_unnamed(pair *pair, uint32_t i, lb_err *err)
{
    lb_fingerprint_row *row = &pair->a.table->rows[i];
    for (int tied = 0; tied < 2 && !row->lacks; tied++)
        for (uint32_t k = 0; k < pair->b.table->n; k++) {
            lb_fingerprint_row *y = &pair->b.table->rows[k];
            if (y->lacks || (pair->b.partners[k] != LB_NONE) != (tied == 1) || (tied && row->constant) ||
                !lb_layout_same_shape(&row->shape, &y->shape) || !lb_fingerprint_equal(row->numbers, y->numbers))
                continue;
            if (!tied) meet(&pair->a, i, &pair->b, k);
            return add(pair, LB_FINGERPRINT_IS_NAME, i, k, row->dtype == y->dtype ? "" : "cast", err);
        }
    if (row->lacks) return add(pair, LB_FINGERPRINT_IS_UNKNOWN, i, LB_NONE, row->lacks, err);
    return add(pair, LB_FINGERPRINT_IS_MISSING, i, LB_NONE, "", err);
}

static bool needs_contents(const pair *pair)
{
    bool left = false;
    for (uint32_t i = pair->first; i < pair->comparison->n; i++)
        left |= pair->comparison->matches[i].kind == LB_FINGERPRINT_IS_NUMBERS ||
                pair->comparison->matches[i].kind == LB_FINGERPRINT_IS_MISSING;
    return left && lb_fingerprint_contents_are_there(pair->a.table, pair->b.table);
}

static lb_status compare_pair(pair *pair, lb_err *err)
{
    pair->first = pair->comparison->n;
    LB_TRY(meet_all(&pair->a, &pair->b, err));
    for (uint32_t i = 0; i < pair->a.table->n; i++) {
        if (pair->options->progress) pair->options->progress("comparing", i, pair->a.table->n);
        if (pair->a.partners[i] != LB_NONE) LB_TRY(compare_named(pair, i, err));
    }
    for (uint32_t i = 0; i < pair->a.table->n; i++)
        if (pair->a.partners[i] == LB_NONE) LB_TRY(compare_unnamed(pair, i, err));
    for (uint32_t k = 0; k < pair->b.table->n; k++)
        if (pair->b.partners[k] == LB_NONE) LB_TRY(add(pair, LB_FINGERPRINT_IS_ADDED, LB_NONE, k, "", err));
    if (!needs_contents(pair)) return LB_OK;
    return lb_fingerprint_contents_compare(pair->a.table, pair->b.table, pair->comparison->matches + pair->first,
                                           pair->comparison->n - pair->first, pair->options, err);
}

/* ---- all pairs --------------------------------------------------------------------------------------------------- */

/* Old numbers whose right ones the same tensor has in a later table of the other side. */
static lb_status find_late(pair *pair, uint32_t n_others, lb_err *err)
{
    for (uint32_t i = 0; i < pair->comparison->n; i++) {
        lb_fingerprint_match *old = &pair->comparison->matches[i];
        lb_fingerprint_row *row = old->row == LB_NONE ? NULL : &pair->tables[old->file]->rows[old->row];
        for (uint32_t j = old->against + 1; j < n_others && old->kind == LB_FINGERPRINT_IS_OLD; j++) {
            lb_fingerprint_row *y = row_named(pair->others[j], old->partner);
            likeness likeness;
            if (!y || y->lacks) continue;
            LB_TRY(match_rows(pair->tables[old->file], row, pair->others[j], y, &likeness, err));
            if (is_same_tensor(likeness.kind)) old->kind = LB_FINGERPRINT_IS_LATE, old->later = j;
        }
    }
    return LB_OK;
}

static lb_status compare_all(pair *pair, uint32_t n, uint32_t n_others, lb_err *err)
{
    const bool synced = n == n_others;
    for (uint32_t j = 0; j < n_others; j++) {
        pair->file = synced ? j : n - 1, pair->against = j;
        const bool made = side_init(&pair->a, pair->tables[pair->file]);
        lb_status status =
            side_init(&pair->b, pair->others[j]) && made ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
        if (status == LB_OK) status = compare_pair(pair, err);
        side_release(&pair->a), side_release(&pair->b);
        LB_TRY(status);
    }
    return synced ? find_late(pair, n_others, err) : LB_OK;
}

lb_status lb_fingerprint_table_compare(lb_fingerprint_table *const *tables, uint32_t n,
                                       lb_fingerprint_table *const *others, uint32_t n_others,
                                       const lb_fingerprint_table_options *options,
                                       lb_fingerprint_comparison **comparison, lb_err *err)
{
    lb_fingerprint_table_options chosen = LB_FINGERPRINT_TABLE_OPTIONS_INIT;
    if (options) memcpy(&chosen, options, options->size < sizeof chosen ? options->size : sizeof chosen);
    if (!n || !n_others) return lb_fail(err, LB_ERR_INVALID, "a side has no table to compare");
    pair pair = {
        .comparison = calloc(1, sizeof *pair.comparison), .tables = tables, .others = others, .options = &chosen};
    if (!pair.comparison) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    const lb_status status = compare_all(&pair, n, n_others, err);
    for (uint32_t i = 0; i < pair.comparison->n; i++) {
        pair.comparison->n_findings += lb_fingerprint_kind_is_finding(pair.comparison->matches[i].kind);
        pair.comparison->n_unknown += pair.comparison->matches[i].kind == LB_FINGERPRINT_IS_UNKNOWN;
    }
    if (status == LB_OK)
        *comparison = pair.comparison;
    else
        lb_fingerprint_comparison_free(pair.comparison);
    return status;
}

void lb_fingerprint_comparison_free(lb_fingerprint_comparison *comparison)
{
    if (!comparison) return;
    for (uint32_t i = 0; i < comparison->n; i++) free(comparison->matches[i].how);
    free(comparison->matches), free(comparison);
}
