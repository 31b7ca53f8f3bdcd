/* What one layer's tensor is made of, and its siblings are not. See arrangement.h. */
#include "audit/arrangement.h"

#include <lastbit/program.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NUMBERS = 8 };

static uint32_t numbers_in(const char *name, int64_t list[MOST_NUMBERS])
{
    uint32_t n = 0;
    for (const char *at = name; *at && n < MOST_NUMBERS;) {
        const size_t word = strcspn(at, "."), digits = strspn(at, "0123456789");
        if (word && digits == word) list[n++] = strtoll(at, NULL, 10);
        at += word + (at[word] == '.');
    }
    return n;
}

/* A's name for another layer: its numbers moved as B's name moved from `from` to `to`. False where that is no name. */
static bool moved_name(const char *name, const char *from, const char *to, char out[1100])
{
    int64_t a[MOST_NUMBERS], b[MOST_NUMBERS], c[MOST_NUMBERS];
    const uint32_t n = numbers_in(name, a), m = numbers_in(from, b);
    if (numbers_in(to, c) != m || strlen(name) > 900) return false;
    uint32_t k = 0;
    char *end = out;
    for (const char *at = name; *at;) {
        const size_t word = strcspn(at, "."), digits = strspn(at, "0123456789");
        if (word && digits == word && k < MOST_NUMBERS) {
            const bool follows = n <= m || (k == 0 && m > 0);
            const int64_t now = a[k] + (follows ? c[k] - b[k] : 0);
            if (now < 0) return false;
            end += sprintf(end, "%lld", (long long)now), k++;
        } else {
            memcpy(end, at, word), end += word;
        }
        at += word;
        if (*at) *end++ = *at++;
    }
    *end = '\0';
    return true;
}

/* The weight of A's shelf of that name, of the same rank and size as `like`; LB_NONE. Both shelves are in the order of
 * names. */
static uint32_t weight_named(const lb_arrangements *arrangements, const char *name, uint32_t like)
{
    const lb_inventory_name *named = lb_inventory_find(arrangements->a.side->inventory, name);
    const lb_layout wanted = lb_shelf_layout(&arrangements->a, like);
    if (!named) return LB_NONE;
    const uint32_t row = (uint32_t)(named - arrangements->a.side->inventory->names);
    uint32_t low = 0, high = arrangements->a.n;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (arrangements->a.list[middle].row < row)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < arrangements->a.n && arrangements->a.list[low].row == row; low++) {
        const lb_layout layout = lb_shelf_layout(&arrangements->a, low);
        if (arrangements->a.list[low].part == arrangements->a.list[like].part && lb_layout_same_shape(&layout, &wanted))
            return low;
    }
    return LB_NONE;
}

/* What siblings are made of: `reference`, a member's. Of each member: whether it agrees, does not, or cannot be
 * asked. */
typedef enum agreement { AGREES, DISAGREES, UNKNOWN, SILENT } agreement;

/* Siblings of B: tensors of one shape whose names differ in their numbers alone. */
typedef struct family {
    const uint32_t *members; /* of B's lb_shelf */
    uint32_t n;
    int64_t counts[MOST_NUMBERS]; /* of each number in their names: one more than the largest */
    agreement *says;
} family;

static void count_numbers(const lb_arrangements *arrangements, family *family)
{
    memset(family->counts, 0, sizeof family->counts);
    for (uint32_t i = 0; i < family->n; i++) {
        int64_t list[MOST_NUMBERS];
        const uint32_t n = numbers_in(lb_shelf_name(&arrangements->b, family->members[i]), list);
        for (uint32_t k = 0; k < n; k++)
            if (list[k] >= family->counts[k]) family->counts[k] = list[k] + 1;
    }
}

/* How far the sibling's numbers stand from those of `from` in A's tensor: of what B numbers and A does not (experts,
 * layers) A has all in one tensor, one behind the other. */
static int64_t moved_within(const lb_arrangements *arrangements, const family *family, uint32_t tensor,
                            const char *from, const char *to)
{
    int64_t a[MOST_NUMBERS], b[MOST_NUMBERS], c[MOST_NUMBERS], moved = 0;
    const lb_layout whole = lb_shelf_layout(&arrangements->a, tensor);
    const uint32_t n = numbers_in(lb_shelf_name(&arrangements->a, tensor), a), m = numbers_in(from, b);
    int64_t part = lb_layout_numel(&whole);
    if (numbers_in(to, c) != m) return 0;
    for (uint32_t k = n; k < m; k++) {
        if (part % family->counts[k]) return 0;
        part /= family->counts[k], moved += (c[k] - b[k]) * part;
    }
    return moved;
}

static bool is_inside(const lb_arrangements *arrangements, const lb_content_run *run)
{
    const lb_layout whole = lb_shelf_layout(&arrangements->a, run->tensor);
    const int64_t last = run->from + (run->n - 1) * run->from_stride;
    return run->from >= 0 && last >= 0 && run->from < lb_layout_numel(&whole) && last < lb_layout_numel(&whole);
}

/* The arrangement, which is tensor `from` of B, for its sibling `to`. Without runs where A has no such tensors. False
 * when out of memory. */
static bool move_arrangement(lb_arrangements *arrangements, const family *family, const lb_arrangement *arrangement,
                             uint32_t from, uint32_t to, lb_arrangement *out)
{
    *out = (lb_arrangement){.relation = arrangement->relation};
    uint32_t last = LB_NONE, last_moved = LB_NONE;
    int64_t within = 0;
    for (uint32_t i = 0; i < arrangement->n; i++) {
        lb_content_run run = arrangement->runs[i];
        char name[1100];
        if (run.tensor != last) {
            last = run.tensor;
            last_moved = moved_name(lb_shelf_name(&arrangements->a, run.tensor), lb_shelf_name(&arrangements->b, from),
                                    lb_shelf_name(&arrangements->b, to), name)
                             ? weight_named(arrangements, name, run.tensor)
                             : LB_NONE;
            within = moved_within(arrangements, family, run.tensor, lb_shelf_name(&arrangements->b, from),
                                  lb_shelf_name(&arrangements->b, to));
        }
        run.tensor = last_moved, run.from += within;
        if (last_moved == LB_NONE || !is_inside(arrangements, &run) ||
            lb_shelf_open(&arrangements->a, last_moved, NULL) != LB_OK) {
            out->n = 0;
            return true;
        }
        if (!lb_arrangement_add(out, run)) return false;
    }
    return true;
}

static bool same_runs(const lb_arrangement *x, const lb_arrangement *y)
{
    if (x->n != y->n) return false;
    for (uint32_t i = 0; i < x->n; i++) {
        const lb_content_run *p = &x->runs[i], *q = &y->runs[i];
        if (p->tensor != q->tensor || p->from != q->from || p->from_stride != q->from_stride || p->to != q->to ||
            p->to_stride != q->to_stride || p->n != q->n)
            return false;
    }
    return true;
}

/* UNKNOWN: nothing is known of this member, and the reference can be applied to it. */
static lb_status ask(lb_arrangements *arrangements, const family *family, uint32_t reference, uint32_t member,
                     agreement *says, lb_err *err)
{
    lb_arrangement moved;
    const lb_arrangement *own = &arrangements->list[member];
    *says = SILENT;
    if (!move_arrangement(arrangements, family, &arrangements->list[reference], reference, member, &moved))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    lb_status status = LB_OK;
    if (!moved.n) {
        *says = SILENT;
    } else if (own->relation == LB_CONTENT_NONE) {
        *says = UNKNOWN;
    } else if (same_runs(own, &moved)) {
        *says = AGREES;
    } else {
        lb_tensor made;
        lb_value_match match;
        status = lb_shelf_open(&arrangements->b, member, err);
        if (status == LB_OK)
            status =
                lb_arrangement_gather(arrangements, &moved, &arrangements->b.list[member].whole.tensor, &made, err);
        if (status == LB_OK) {
            status = lb_value_match_of(&made, &arrangements->b.list[member].whole.tensor, &match, err);
            *says = match.match == LB_AUDIT_IS_DIFFERENT ? DISAGREES : AGREES;
            free(made.data);
        }
    }
    free(moved.runs);
    return status;
}

/* "renamed" says how a tensor stands to the one that it is, "" that nothing moved. */
static const char *as_noun(const char *how, bool several)
{
    if (!*how) return several ? "copies" : "a copy";
    if (!strcmp(how, "renamed")) return several ? "copies under another name" : "a copy";
    return how;
}

static void tell_odd(lb_arrangements *arrangements, uint32_t member, uint32_t reference, uint32_t agree)
{
    char how[256], usual[256];
    const lb_arrangement *x = &arrangements->list[member], *y = &arrangements->list[reference];
    lb_arrangement_text(arrangements, x, how), lb_arrangement_text(arrangements, y, usual);
    if (lb_audit_is_found(arrangements->comparison->gathering, lb_shelf_name(&arrangements->a, x->runs[0].tensor)))
        return;
    lb_audit_find(
        arrangements->comparison->gathering, LB_AUDIT_ARRANGED,
        lb_inventory_where(arrangements->a.side->inventory, lb_shelf_piece(&arrangements->a, x->runs[0].tensor)),
        "%s is %s%s%s, and of its siblings %u are %s (%s of %s): this one was converted as they were not",
        lb_shelf_name(&arrangements->b, member), as_noun(how, false), x->relation == LB_CONTENT_SPLIT ? "" : " of ",
        x->relation == LB_CONTENT_SPLIT ? "" : lb_shelf_name(&arrangements->a, x->runs[0].tensor), agree,
        as_noun(usual, true), lb_shelf_name(&arrangements->b, reference),
        lb_shelf_name(&arrangements->a, y->runs[0].tensor));
}

/* Members that the reference explains, before those that it does not. */
static lb_status settle(lb_arrangements *arrangements, family *family, uint32_t reference, uint32_t agree, lb_err *err)
{
    for (uint32_t i = 0; i < family->n; i++) {
        const uint32_t member = family->members[i];
        if (family->says[i] == DISAGREES) tell_odd(arrangements, member, reference, agree);
        if (family->says[i] != UNKNOWN || !lb_shelf_is_pending(&arrangements->b, member)) continue;
        LB_TRY(lb_shelf_open(&arrangements->b, member, err));
        free(arrangements->list[member].runs);
        if (!move_arrangement(arrangements, family, &arrangements->list[reference], reference, member,
                              &arrangements->list[member]))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory");
        LB_TRY(lb_arrangement_tell(arrangements, member, err));
    }
    return LB_OK;
}

/* A few references are enough: most members agree with one of the first. */
enum { MOST_REFERENCES = 4 };

static lb_status judge_family(lb_arrangements *arrangements, family *family, lb_err *err)
{
    uint32_t best = LB_NONE, most = 0, tried = 0;
    for (uint32_t r = 0; r < family->n && tried < MOST_REFERENCES; r++) {
        uint32_t agree = 0, disagree = 0;
        if (arrangements->list[family->members[r]].relation == LB_CONTENT_NONE) continue;
        tried++;
        for (uint32_t i = 0; i < family->n; i++) {
            LB_TRY(ask(arrangements, family, family->members[r], family->members[i], &family->says[i], err));
            agree += family->says[i] == AGREES, disagree += family->says[i] == DISAGREES;
        }
        if (agree > most) best = family->members[r], most = agree;
        if (agree > disagree) break;
    }
    if (best == LB_NONE) return LB_OK;
    uint32_t disagree = 0;
    for (uint32_t i = 0; i < family->n; i++) {
        LB_TRY(ask(arrangements, family, best, family->members[i], &family->says[i], err));
        disagree += family->says[i] == DISAGREES;
    }
    for (uint32_t i = 0; i < family->n && disagree > most; i++)
        if (family->says[i] == DISAGREES) family->says[i] = SILENT; /* they have no usual arrangement */
    return settle(arrangements, family, best, most, err);
}

/* The arrangement of a tensor that a name has led to, as it is or transposed. */
bool lb_arrangement_by_name(lb_arrangements *arrangements, uint32_t b, bool turned)
{
    const lb_comparison_side *side = arrangements->b.side;
    const uint32_t row = arrangements->b.list[b].row, partner = side->partners[row];
    const lb_layout layout = lb_shelf_layout(&arrangements->b, b);
    lb_arrangement *arrangement = &arrangements->list[b];
    uint32_t a = LB_NONE;
    for (uint32_t i = 0; i < arrangements->a.n && partner != LB_NONE; i++)
        if (arrangements->a.list[i].row == partner) a = a == LB_NONE ? i : arrangements->a.n;
    if (a == LB_NONE || a == arrangements->a.n || lb_shelf_open(&arrangements->a, a, NULL) != LB_OK) return true;
    const int64_t all = lb_layout_numel(&layout);
    if (!turned) {
        arrangement->relation = LB_CONTENT_SAME;
        return lb_arrangement_add(arrangement, (lb_content_run){a, 0, 1, 0, 1, all});
    }
    const int64_t height = layout.shape[layout.ndim - 2], width = layout.shape[layout.ndim - 1];
    arrangement->relation = LB_CONTENT_TRANSPOSED;
    for (int64_t i = 0; i < all / width; i++) {
        const int64_t matrix = i / height * height * width;
        if (!lb_arrangement_add(arrangement, (lb_content_run){a, matrix + i % height, height, i * width, 1, width}))
            return false;
    }
    return true;
}

/* Whether a family has anything to say: some member was arranged, transposed or is open. */
static bool is_plain(const lb_arrangements *arrangements, const uint32_t *members, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (arrangements->b.side->states[arrangements->b.list[members[i]].row] != LB_COMPARISON_STRAIGHT) return false;
    return true;
}

static const lb_arrangements *sorted;
#pragma omp threadprivate(sorted)

static int by_family(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    const lb_inventory *inventory = sorted->b.side->inventory;
    const int order =
        strcmp(inventory->names[sorted->b.list[x].row].pattern, inventory->names[sorted->b.list[y].row].pattern);
    return order ? order : (x > y) - (x < y);
}

static bool are_alike(const lb_arrangements *arrangements, uint32_t x, uint32_t y)
{
    const lb_inventory *inventory = arrangements->b.side->inventory;
    const lb_layout one = lb_shelf_layout(&arrangements->b, x), other = lb_shelf_layout(&arrangements->b, y);
    return strcmp(inventory->names[arrangements->b.list[x].row].pattern,
                  inventory->names[arrangements->b.list[y].row].pattern) == 0 &&
           lb_layout_same_shape(&one, &other);
}

/* One number all over says nothing about where it came from. */
static bool is_telling(const lb_arrangements *arrangements, uint32_t b)
{
    const lb_inventory *inventory = arrangements->b.side->inventory;
    const lb_inventory_name *name = &inventory->names[arrangements->b.list[b].row];
    return !lb_inventory_is_constant(&inventory->measured[name->first]) &&
           lb_dtype_bits(lb_shelf_piece(&arrangements->b, b)->tensor.dtype) >= 8;
}

static lb_status judge_members(lb_arrangements *arrangements, family *family, lb_err *err)
{
    for (uint32_t k = 0; k < family->n; k++) {
        const uint32_t b = family->members[k];
        const lb_comparison_state state = arrangements->b.side->states[arrangements->b.list[b].row];
        if ((state == LB_COMPARISON_STRAIGHT || state == LB_COMPARISON_TURNED) &&
            !lb_arrangement_by_name(arrangements, b, state == LB_COMPARISON_TURNED))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    count_numbers(arrangements, family);
    return judge_family(arrangements, family, err);
}

lb_status lb_arrangement_family_judge(lb_arrangements *arrangements, lb_err *err)
{
    uint32_t *order = malloc((arrangements->b.n + 1u) * sizeof *order), n = 0;
    agreement *says = malloc((arrangements->b.n + 1u) * sizeof *says);
    lb_status status = order && says ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; status == LB_OK && i < arrangements->b.n; i++)
        if (is_telling(arrangements, i)) order[n++] = i;
    sorted = arrangements;
    if (status == LB_OK && n) qsort(order, n, sizeof *order, by_family);
    for (uint32_t i = 0, end; status == LB_OK && i < n; i = end) {
        for (end = i + 1; end < n && are_alike(arrangements, order[i], order[end]);) end++;
        family family = {.members = order + i, .n = end - i, .says = says + i};
        if (end - i > 1 && !is_plain(arrangements, order + i, end - i))
            status = judge_members(arrangements, &family, err);
        if (status == LB_OK) lb_arrangement_judge_changes(arrangements, order + i, end - i);
    }
    free(order), free(says);
    return status;
}
