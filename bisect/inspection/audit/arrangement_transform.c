/* What a conversion does to the numbers themselves: scales, 1 + w, a norm's weight folded into the matrix behind it.
 * Each part of B's tensor that one weight of A gave is asked by itself. See arrangement.h. */
#include "audit/arrangement.h"

#include "base/array.h"
#include <lastbit/program.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Elements of a tensor that is asked: two sides of it are held as f64. */
static const int64_t MOST = (int64_t)1 << 26;

double *lb_arrangement_numbers(const lb_tensor *tensor)
{
    double *x = malloc((size_t)lb_layout_numel(&tensor->layout) * sizeof *x + 1);
    int64_t at = 0;
    for (lb_rows r = lb_rows_of(&tensor->layout); x && lb_rows_next(&r); at += r.count)
        lb_load_f64_strided(x + at, tensor->dtype,
                            (const char *)tensor->data + r.offset * (int64_t)(lb_dtype_bits(tensor->dtype) / 8),
                            (ptrdiff_t)r.stride, (size_t)r.count);
    return x;
}

void lb_arrangement_forget_changes(lb_arrangement *arrangement)
{
    for (uint32_t i = 0; i < arrangement->n_changes; i++) free(arrangement->changes[i].rows);
    free(arrangement->changes), arrangement->changes = NULL, arrangement->n_changes = 0;
}

/* ---- one part of a tensor ---- */

/* The rows (or columns) of B that one weight of A gave, each behind the other, on both sides. */
typedef struct part {
    double *a, *b;
    int64_t rows, columns;
} part;

static bool gives(const lb_arrangement *arrangement, uint32_t run, uint32_t of)
{
    return arrangement->runs[run].tensor == of;
}

/* How many numbers a row has: a run holds whole ones. */
static int64_t row_of(const lb_layout *b, const lb_content_run *run)
{
    return run->to_stride == 1 ? b->shape[b->ndim - 1] : run->n;
}

/* False: out of memory. Without rows where the runs hold no whole ones. */
static bool take_part(const lb_arrangement *arrangement, uint32_t of, const lb_layout *layout, const double *made,
                      const double *b, part *out)
{
    int64_t n = 0, columns = 0, at = 0;
    bool even = layout->ndim > 0;
    *out = (part){NULL};
    for (uint32_t i = 0; i < arrangement->n; i++) {
        const lb_content_run *run = &arrangement->runs[i];
        if (!gives(arrangement, i, of)) continue;
        const int64_t now = row_of(layout, run);
        even &= now > 0 && (!columns || now == columns) && run->n % now == 0, columns = now, n += run->n;
    }
    out->a = malloc((size_t)n * sizeof *out->a + 1), out->b = malloc((size_t)n * sizeof *out->b + 1);
    if (!out->a || !out->b) return false;
    for (uint32_t i = 0; i < arrangement->n; i++)
        for (int64_t k = 0; gives(arrangement, i, of) && k < arrangement->runs[i].n; k++, at++) {
            const int64_t to = arrangement->runs[i].to + k * arrangement->runs[i].to_stride;
            out->a[at] = made[to], out->b[at] = b[to];
        }
    out->columns = even ? columns : n, out->rows = even && columns ? n / columns : 1;
    return true;
}

/* ---- the vector that factors are ---- */

static double factor_of(const lb_arrangement_change *change, double x)
{
    const double factor = change->plus_one ? 1 + x : x;
    return change->divided ? 1 / factor : factor;
}

/* Up to one scale, which is one that conversions fold in: of attention, into the same matrix. */
static bool are_factors(lb_arrangement_change *change, const double *x, const double *factors, int64_t n, double room)
{
    double products = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        const double f = factor_of(change, x[i]);
        if (!isfinite(f)) return false;
        products += f * factors[i], squares += f * f;
    }
    double scale = squares > 0 ? products / squares : 0;
    scale = fabs(scale - 1) <= room ? 1 : lb_content_transform_usual(scale, 4 * room / sqrt((double)n) + 0x1p-23);
    for (int64_t i = 0; i < n; i++) {
        const double f = scale * factor_of(change, x[i]);
        if (!(fabs(f - factors[i]) <= room * fmax(fabs(f), fabs(factors[i])))) return false;
    }
    change->is.by = scale;
    return n > 0 && scale > 0;
}

static bool name_factors_of(lb_arrangements *arrangements, bool of_b, const double *factors, int64_t n, double room,
                            lb_arrangement_change *change)
{
    lb_shelf *shelf = of_b ? &arrangements->b : &arrangements->a;
    for (uint32_t i = 0; i < shelf->n; i++) {
        const lb_layout layout = lb_shelf_layout(shelf, i);
        const lb_dtype dtype = lb_shelf_piece(shelf, i)->tensor.dtype;
        if (layout.ndim != 1 || layout.shape[0] != n || !lb_dtype_is_float(dtype) || lb_dtype_bits(dtype) < 8 ||
            lb_shelf_open(shelf, i, NULL) != LB_OK)
            continue;
        double *x = lb_arrangement_numbers(&shelf->list[i].whole.tensor);
        const double own = room + 2 * lb_dtype_unit_roundoff(dtype);
        for (int way = 0; x && way < 4; way++) {
            change->vector = i, change->of_b = of_b, change->divided = way & 1, change->plus_one = way & 2;
            if (are_factors(change, x, factors, n, own)) return free(x), true;
        }
        free(x);
    }
    change->vector = LB_NONE;
    return false;
}

/* The factors of columns or rows are those of some vector on either side: without one they prove nothing. */
static bool is_folded(lb_arrangements *arrangements, const part *part, bool of_rows, double room,
                      lb_arrangement_change *change)
{
    const int64_t n = of_rows ? part->rows : part->columns;
    double *factors = malloc((size_t)n * sizeof *factors + 1);
    const bool folded =
        factors && part->rows > 1 && part->columns > 1 &&
        lb_content_transform_factors(part->a, part->b, part->rows, part->columns, of_rows, room, factors) &&
        (name_factors_of(arrangements, true, factors, n, room, change) ||
         name_factors_of(arrangements, false, factors, n, room, change));
    free(factors);
    if (folded)
        change->is.kind = of_rows ? LB_CONTENT_ROWS_SCALED : LB_CONTENT_COLUMNS_SCALED, change->is.known = 2 * room;
    return folded;
}

/* Some rows times one number, the others as they are: q in a matrix that both sides hold fused. `rows` says which. */
static bool are_rows_scaled(const part *part, double room, lb_arrangement_change *change)
{
    double *factors = malloc((size_t)part->rows * sizeof *factors + 1), scale = 1;
    uint8_t *scaled = calloc((size_t)part->rows + 1, 1);
    bool two = factors && scaled && part->columns > 1 &&
               lb_content_transform_factors(part->a, part->b, part->rows, part->columns, true, room, factors);
    int64_t n = 0;
    double sum = 0;
    for (int64_t i = 0; i < part->rows && two; i++) {
        if (fabs(factors[i] - 1) <= 2 * room) continue;
        two = !n || fabs(factors[i] - scale) <= 4 * room * fabs(scale);
        scaled[i] = 1, n++, sum += factors[i], scale = sum / (double)n;
    }
    free(factors);
    if (!two || !n || n == part->rows) return free(scaled), false;
    const double known = 4 * room / sqrt((double)(n * part->columns)) + 0x1p-23,
                 usual = lb_content_transform_usual(scale, known);
    change->is = (lb_content_transform){LB_CONTENT_SOME_ROWS_SCALED, usual != 0 ? usual : scale, known};
    change->rows = scaled;
    return true;
}

/* ---- a tensor ---- */

static bool explain_part(lb_arrangements *arrangements, const part *part, double room, lb_arrangement_change *change)
{
    const lb_content_transform same = {LB_CONTENT_SCALED, 1, 0};
    const int64_t n = part->rows * part->columns;
    change->is = lb_content_transform_find(part->a, part->b, n, room);
    if (change->is.kind != LB_CONTENT_UNTRANSFORMED || lb_content_transform_holds(&same, part->a, part->b, n, room))
        return true;
    return is_folded(arrangements, part, false, room, change) || is_folded(arrangements, part, true, room, change) ||
           are_rows_scaled(part, room, change);
}

/* The weights of A that an arrangement takes, each once, without anything that was done to them. */
static bool list_changes(lb_arrangement *arrangement)
{
    lb_arrangement_forget_changes(arrangement);
    for (uint32_t i = 0; i < arrangement->n; i++) {
        bool listed = false;
        for (uint32_t k = 0; k < arrangement->n_changes && !listed; k++)
            listed = arrangement->changes[k].of == arrangement->runs[i].tensor;
        lb_arrangement_change *more =
            listed ? arrangement->changes : lb_array_grow(arrangement->changes, arrangement->n_changes, sizeof *more);
        if (!more) return false;
        arrangement->changes = more;
        if (!listed)
            arrangement->changes[arrangement->n_changes++] =
                (lb_arrangement_change){.of = arrangement->runs[i].tensor, .vector = LB_NONE};
    }
    return true;
}

static bool covers(const lb_arrangement *arrangement, int64_t elements)
{
    int64_t held = 0;
    for (uint32_t i = 0; i < arrangement->n; i++) held += arrangement->runs[i].n;
    return held == elements;
}

static double room_between(const lb_tensor *a, const lb_tensor *b)
{
    return lb_content_transform_room(a->dtype, b->dtype);
}

static bool are_asked(const lb_tensor *a, const lb_tensor *b)
{
    const int64_t n = lb_layout_numel(&b->layout);
    return lb_dtype_is_float(a->dtype) && lb_dtype_is_float(b->dtype) && lb_dtype_bits(a->dtype) >= 16 &&
           lb_dtype_bits(b->dtype) >= 16 && n > 0 && n <= MOST;
}

/* *explained: every part of it is. False: out of memory. */
static bool explain_parts(lb_arrangements *arrangements, lb_arrangement *arrangement, const lb_tensor *made,
                          const lb_tensor *b, bool *explained)
{
    double *x = lb_arrangement_numbers(made), *y = lb_arrangement_numbers(b);
    bool room = x && y && list_changes(arrangement);
    *explained = room;
    for (uint32_t i = 0; i < arrangement->n_changes && room && *explained; i++) {
        part p;
        room = take_part(arrangement, arrangement->changes[i].of, &b->layout, x, y, &p);
        *explained = room && explain_part(arrangements, &p, room_between(made, b), &arrangement->changes[i]);
        free(p.a), free(p.b);
    }
    free(x), free(y);
    return room;
}

static bool is_run(const lb_content_run *x, const lb_content_run *y)
{
    return x->tensor == y->tensor && x->from == y->from && x->from_stride == y->from_stride && x->to == y->to &&
           x->to_stride == y->to_stride && x->n == y->n;
}

/* One matrix that is another one as it is, or its transpose, is so by rows and by columns: the other way to say it.
 * False: it is neither, or out of memory. */
static bool turn_runs(const lb_arrangement *x, const lb_tensor *b, lb_arrangement *out)
{
    const lb_content_run *runs = x->runs;
    const int64_t all = lb_layout_numel(&b->layout), width = b->layout.ndim == 2 ? b->layout.shape[1] : 0,
                  height = width ? b->layout.shape[0] : 0;
    const bool whole = x->n == 1 && runs->n == all, by_rows = runs->to_stride == 1;
    *out = (lb_arrangement){.relation = x->relation};
    if (!width || width * height != all || (!whole && x->n != (by_rows ? height : width))) return false;
    for (uint32_t i = 0; i < x->n && !whole; i++) {
        const lb_content_run turned = by_rows ? (lb_content_run){runs->tensor, i, height, i * width, 1, width}
                                              : (lb_content_run){runs->tensor, i * height, 1, i, width, height};
        if (!is_run(&runs[i], &turned)) return false;
    }
    const bool columns = whole || by_rows;
    for (int64_t i = 0; i < (columns ? width : height); i++) {
        const lb_content_run run = whole     ? (lb_content_run){runs->tensor, i, width, i, width, height}
                                   : by_rows ? (lb_content_run){runs->tensor, i * height, 1, i, width, height}
                                             : (lb_content_run){runs->tensor, i, height, i * width, 1, width};
        if (!lb_arrangement_add(out, run)) return free(out->runs), false;
    }
    return true;
}

/* By rows, and where these do not say it by columns: the outputs of a matrix are either. */
static bool explain_either_way(lb_arrangements *arrangements, lb_arrangement *arrangement, const lb_tensor *made,
                               const lb_tensor *b, bool *explained)
{
    lb_arrangement turned;
    bool other = false;
    if (!explain_parts(arrangements, arrangement, made, b, explained)) return false;
    const bool by_rows =
        *explained && arrangement->n_changes == 1 && arrangement->changes[0].is.kind == LB_CONTENT_ROWS_SCALED;
    if ((*explained && !by_rows) || !turn_runs(arrangement, b, &turned)) return true;
    const bool room = explain_parts(arrangements, &turned, made, b, &other);
    lb_arrangement *dropped = other ? arrangement : &turned;
    lb_arrangement_forget_changes(dropped), free(dropped->runs);
    if (other) *arrangement = turned;
    *explained |= other;
    return room;
}

lb_status lb_arrangement_explain(lb_arrangements *arrangements, uint32_t b, const lb_tensor *made,
                                 lb_value_match *match, lb_err *err)
{
    lb_arrangement *arrangement = &arrangements->list[b];
    const lb_tensor *tensor = &arrangements->b.list[b].whole.tensor;
    bool explained = false;
    if (!are_asked(made, tensor) || !covers(arrangement, lb_layout_numel(&tensor->layout))) return LB_OK;
    if (!explain_either_way(arrangements, arrangement, made, tensor, &explained))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (!explained) {
        lb_arrangement_forget_changes(arrangement);
        return LB_OK;
    }
    match->match = LB_AUDIT_IS_ROUNDING, match->worst = -1;
    match->difference.pattern = LB_PATTERN_SCATTERED, match->difference.detail[0] = '\0';
    return LB_OK;
}

/* ---- by names ---- */

/* B's tensor is A's by name, as it is or transposed, with what a conversion does to numbers. */
static lb_status try_named(lb_arrangements *arrangements, uint32_t b, bool turned, lb_err *err)
{
    lb_arrangement *arrangement = &arrangements->list[b];
    lb_value_match match = {0};
    lb_tensor made;
    const lb_tensor *tensor = &arrangements->b.list[b].whole.tensor;
    if (!lb_arrangement_by_name(arrangements, b, turned)) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    const lb_tensor *a = arrangement->n ? &arrangements->a.list[arrangement->runs[0].tensor].whole.tensor : NULL;
    const int32_t n = tensor->layout.ndim;
    bool fits = a && lb_shelf_is_pending(&arrangements->a, arrangement->runs[0].tensor) && a->layout.ndim == n;
    for (int32_t d = 0; fits && d < n; d++) {
        const int32_t other = turned && d >= n - 2 ? 2 * n - 3 - d : d;
        fits = a->layout.shape[other] == tensor->layout.shape[d];
    }
    if (fits && are_asked(a, tensor)) {
        LB_TRY(lb_arrangement_gather(arrangements, arrangement, tensor, &made, err));
        const lb_status status = lb_arrangement_explain(arrangements, b, &made, &match, err);
        free(made.data);
        if (status != LB_OK || arrangement->n_changes) return status;
    }
    free(arrangement->runs), arrangement->runs = NULL, arrangement->n = 0;
    arrangement->relation = LB_CONTENT_NONE;
    return LB_OK;
}

lb_status lb_arrangement_search_named(lb_arrangements *arrangements, lb_err *err)
{
    for (uint32_t i = 0; i < arrangements->b.n; i++) {
        if (!lb_shelf_is_pending(&arrangements->b, i) || arrangements->list[i].relation != LB_CONTENT_NONE ||
            arrangements->b.side->partners[arrangements->b.list[i].row] == LB_NONE ||
            lb_shelf_open(&arrangements->b, i, NULL) != LB_OK)
            continue;
        LB_TRY(try_named(arrangements, i, false, err));
        if (arrangements->list[i].relation == LB_CONTENT_NONE && arrangements->b.list[i].whole.tensor.layout.ndim >= 2)
            LB_TRY(try_named(arrangements, i, true, err));
    }
    return LB_OK;
}

/* ---- words ---- */

static void factor_text(const lb_arrangements *arrangements, const lb_arrangement_change *change, char *text,
                        size_t size)
{
    const char *vector = change->vector == LB_NONE
                             ? ""
                             : lb_shelf_name(change->of_b ? &arrangements->b : &arrangements->a, change->vector);
    char scale[32] = "";
    if (change->is.by != 1) snprintf(scale, sizeof scale, " times %.7g", change->is.by);
    const char *by = change->divided ? "divided by" : "times", *plus = change->plus_one ? "1 + " : "";
    switch (change->is.kind) {
    case LB_CONTENT_SCALED: snprintf(text, size, "times %.7g", change->is.by); break;
    case LB_CONTENT_SHIFTED: snprintf(text, size, "%s 1", change->is.by < 0 ? "minus" : "plus"); break;
    case LB_CONTENT_COLUMNS_SCALED: snprintf(text, size, "each column %s %s%.80s%s", by, plus, vector, scale); break;
    case LB_CONTENT_ROWS_SCALED: snprintf(text, size, "each row %s %s%.80s%s", by, plus, vector, scale); break;
    case LB_CONTENT_SOME_ROWS_SCALED: snprintf(text, size, "some of its rows times %.7g", change->is.by); break;
    case LB_CONTENT_PRODUCT_ADDED:
        snprintf(text, size, "%s the matrix times %.80s", change->of_b ? "minus" : "plus", vector);
        break;
    default: text[0] = '\0';
    }
}

void lb_arrangement_change_text(const lb_arrangements *arrangements, const lb_arrangement *arrangement, char text[256])
{
    size_t at = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < arrangement->n_changes && at < 120; i++) {
        char factor[128];
        factor_text(arrangements, &arrangement->changes[i], factor, sizeof factor);
        if (!*factor) continue;
        at += (size_t)snprintf(text + at, 256 - at, "; ");
        if (arrangement->n_changes > 1)
            at += (size_t)snprintf(text + at, 256 - at, "%.80s ",
                                   lb_shelf_name(&arrangements->a, arrangement->changes[i].of));
        at += (size_t)snprintf(text + at, 256 - at, "%.110s", factor);
    }
}

/* ---- siblings ---- */

/* Do two siblings have the same done to their parts? */
static bool are_changed_alike(const lb_arrangement *x, const lb_arrangement *y)
{
    const uint32_t n = x->n_changes > y->n_changes ? x->n_changes : y->n_changes;
    for (uint32_t i = 0; i < n; i++) {
        const lb_content_transform plain = {LB_CONTENT_UNTRANSFORMED, 1, 0},
                                   p = i < x->n_changes ? x->changes[i].is : plain,
                                   q = i < y->n_changes ? y->changes[i].is : plain;
        if (p.kind != q.kind) return false;
        if (p.kind != LB_CONTENT_SHIFTED && fabs(p.by - q.by) > (p.known + q.known + 1e-6) * fabs(p.by)) return false;
        if (p.kind == LB_CONTENT_SHIFTED && p.by != q.by) return false;
    }
    return true;
}

static bool is_plain(const lb_arrangement *x)
{
    for (uint32_t i = 0; i < x->n_changes; i++)
        if (x->changes[i].is.kind != LB_CONTENT_UNTRANSFORMED) return false;
    return true;
}

/* A scale that no conversion folds in; LB_NONE. */
static uint32_t unusual_change(const lb_arrangement *x)
{
    for (uint32_t i = 0; i < x->n_changes; i++) {
        const lb_content_transform *t = &x->changes[i].is;
        if ((t->kind == LB_CONTENT_SCALED || t->kind == LB_CONTENT_SOME_ROWS_SCALED) &&
            (t->by < 0 || lb_content_transform_usual(t->by, t->known) == 0))
            return i;
    }
    return LB_NONE;
}

static void tell_change(lb_arrangements *arrangements, uint32_t member, uint32_t alike, const lb_arrangement *usual)
{
    const lb_arrangement *x = &arrangements->list[member];
    const uint32_t strange = unusual_change(x);
    const uint32_t of =
        x->n ? x->changes ? x->changes[strange == LB_NONE ? 0 : strange].of : x->runs[0].tensor : LB_NONE;
    char own[256], theirs[256] = "";
    lb_arrangement_change_text(arrangements, x, own);
    if (usual) lb_arrangement_change_text(arrangements, usual, theirs);
    if (of == LB_NONE) return;
    const lb_audit_where where =
        lb_inventory_where(arrangements->a.side->inventory, lb_shelf_piece(&arrangements->a, of));
    if (usual)
        lb_audit_find(arrangements->comparison->gathering, x->changes ? LB_AUDIT_DIFFERS : LB_AUDIT_ARRANGED, where,
                      "%s has its numbers %s, and of its siblings %u have them %s: "
                      "this one was converted as they were not",
                      lb_shelf_name(&arrangements->b, member), *own ? own + 2 : "as they are", alike,
                      *theirs ? theirs + 2 : "as they are");
    else
        lb_audit_find(arrangements->comparison->gathering, LB_AUDIT_DIFFERS, where,
                      "%s has its numbers %s: "
                      "conversions multiply by powers of two and by roots of whole numbers, not by this number",
                      lb_shelf_name(&arrangements->b, member), *own ? own + 2 : "as they are");
}

/* Was it found on the other side at all? */
static bool is_known(const lb_arrangements *arrangements, uint32_t b)
{
    return arrangements->b.side->states[arrangements->b.list[b].row] != LB_COMPARISON_OPEN;
}

void lb_arrangement_judge_changes(lb_arrangements *arrangements, const uint32_t *members, uint32_t n)
{
    uint32_t most = 0, usual = LB_NONE;
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        const lb_arrangement *x = &arrangements->list[members[i]];
        uint32_t alike = 0;
        any |= !is_plain(x);
        for (uint32_t k = 0; k < n && is_known(arrangements, members[i]); k++)
            alike += is_known(arrangements, members[k]) && are_changed_alike(x, &arrangements->list[members[k]]);
        if (alike > most || (alike == most && alike && is_plain(x) && !is_plain(&arrangements->list[usual])))
            most = alike, usual = members[i];
    }
    for (uint32_t i = 0; i < n && any && usual != LB_NONE; i++) {
        const lb_arrangement *x = &arrangements->list[members[i]];
        if (!is_known(arrangements, members[i])) continue;
        if (!are_changed_alike(x, &arrangements->list[usual])) {
            if (!x->n && !lb_arrangement_by_name(arrangements, members[i], false)) continue;
            tell_change(arrangements, members[i], most, &arrangements->list[usual]);
        } else if (unusual_change(x) != LB_NONE) {
            tell_change(arrangements, members[i], most, NULL);
        }
    }
}
