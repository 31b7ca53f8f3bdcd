/* See arrangement.h. Here an arrangement is applied, put into words and told; tensors are handed from one search to the
 * next. */
#include "audit/arrangement.h"

#include "base/array.h"
#include <lastbit/program.h>
#include <lastbit/text_stream.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool lb_arrangement_add(lb_arrangement *arrangement, lb_content_run run)
{
    lb_content_run *more = lb_array_grow(arrangement->runs, arrangement->n, sizeof *more);
    if (!more) return false;
    arrangement->runs = more, arrangement->runs[arrangement->n++] = run;
    return true;
}

/* ---- values under an arrangement --------------------------------------------------------------------------------- */

static size_t width_of(lb_dtype dtype)
{
    return lb_dtype_bits(dtype) / 8;
}

static void copy_run(char *to, int64_t to_stride, const char *from, int64_t from_stride, int64_t n, size_t width)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(to + (size_t)(i * to_stride) * width, from + (size_t)(i * from_stride) * width, width);
}

/* A's numbers where B's stand, in A's dtype; what no run reaches is B's own, since nothing is said of it. malloc'ed. */
lb_status lb_arrangement_gather(lb_arrangements *arrangements, const lb_arrangement *arrangement, const lb_tensor *b,
                                lb_tensor *out, lb_err *err)
{
    const int64_t n = lb_layout_numel(&b->layout);
    const lb_dtype dtype = arrangements->a.list[arrangement->runs[0].tensor].whole.tensor.dtype;
    const size_t width = width_of(dtype);
    char *dense = malloc(lb_dtype_bytes(b->dtype, (size_t)n) + 1),
         *numbers = malloc(lb_dtype_bytes(dtype, (size_t)n) + 1);
    lb_status status = dense && numbers ? lb_tensor_gather(b, dense, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) lb_convert(dtype, numbers, b->dtype, dense, (size_t)n, NULL);
    free(dense);
    for (uint32_t i = 0; i < arrangement->n && status == LB_OK; i++) {
        const lb_content_run *run = &arrangement->runs[i];
        const lb_tensor *tensor = &arrangements->a.list[run->tensor].whole.tensor;
        char *own = NULL;
        if (tensor->dtype != dtype) {
            status = lb_fail(err, LB_ERR_CORRUPT, "%s: its parts are of several dtypes",
                             lb_shelf_name(&arrangements->a, run->tensor));
        } else if (!lb_layout_is_contiguous(&tensor->layout)) {
            own = malloc(lb_dtype_bytes(dtype, (size_t)lb_layout_numel(&tensor->layout)) + 1);
            status = own ? lb_tensor_gather(tensor, own, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
        }
        if (status == LB_OK)
            copy_run(numbers + (size_t)run->to * width, run->to_stride,
                     (own ? own : (const char *)tensor->data) + (size_t)run->from * width, run->from_stride, run->n,
                     width);
        free(own);
    }
    *out = (lb_tensor){numbers, dtype, lb_layout_contiguous(b->layout.ndim, b->layout.shape)};
    if (status != LB_OK) free(numbers), out->data = NULL;
    return status;
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

/* How many tensors, and how many stretches of them behind each other. */
static uint32_t count_parts(const lb_arrangements *arrangements, const lb_arrangement *arrangement, uint32_t *stretches)
{
    uint32_t parts = 0;
    *stretches = 0;
    for (uint32_t i = 0; i < arrangement->n; i++) {
        bool seen = false;
        for (uint32_t k = 0; k < i && !seen; k++)
            seen = arrangements->a.list[arrangement->runs[k].tensor].row ==
                   arrangements->a.list[arrangement->runs[i].tensor].row;
        parts += !seen;
        *stretches += !i || arrangement->runs[i].tensor != arrangement->runs[i - 1].tensor ||
                      arrangement->runs[i].from < arrangement->runs[i - 1].from;
        if (i > 4096) break; /* enough to tell */
    }
    return parts;
}

/* Shortens what two names begin and end with alike, in whole words. */
static void keep_common(const char *name, const char *other, size_t *head, size_t *tail)
{
    size_t begin = 0, end = 0;
    const size_t n = strlen(name), m = strlen(other);
    for (size_t i = 0; i < n && i < m && name[i] == other[i]; i++)
        if (name[i] == '.') begin = i + 1;
    for (size_t i = 1; i <= n - begin && i <= m - begin && name[n - i] == other[m - i]; i++)
        if (name[n - i] == '.') end = i;
    *head = begin < *head ? begin : *head, *tail = end < *tail ? end : *tail;
}

/* "gate_proj, up_proj": the tensors in the order in which B's begins with them. */
static void parts_text(const lb_arrangements *arrangements, const lb_arrangement *arrangement, char text[160])
{
    uint32_t told[4] = {0}, n = 0;
    int at = 0;
    for (uint32_t i = 0; i < arrangement->n && n < 4 && i < 4096; i++) {
        bool seen = false;
        for (uint32_t k = 0; k < n; k++)
            seen |= arrangements->a.list[told[k]].row == arrangements->a.list[arrangement->runs[i].tensor].row;
        if (!seen) told[n++] = arrangement->runs[i].tensor;
    }
    text[0] = '\0';
    size_t head = SIZE_MAX, tail = SIZE_MAX;
    for (uint32_t k = 0; k < n; k++)
        keep_common(lb_shelf_name(&arrangements->a, told[k]), lb_shelf_name(&arrangements->a, told[k ? 0 : n > 1]),
                    &head, &tail);
    for (uint32_t k = 0; k < n && at < 120; k++) {
        const char *name = lb_shelf_name(&arrangements->a, told[k]);
        const size_t own = strlen(name) - head - tail;
        at += snprintf(text + at, 160 - (size_t)at, "%s%.*s", k ? ", " : "", (int)(own < 36 ? own : 36), name + head);
    }
}

/* "from row 64", "from row 3 of matrix 2": where a part begins. */
static void place_text(const lb_layout *layout, int64_t from, bool turned, char text[80])
{
    const int64_t width = layout->ndim ? layout->shape[layout->ndim - 1] : 1;
    const int64_t matrix = layout->ndim == 3 ? layout->shape[1] * width : 0, inside = matrix ? from % matrix : from;
    const int64_t at = width == 0 ? 0 : turned ? inside % width : layout->ndim == 1 ? inside : inside / width;
    if (matrix)
        snprintf(text, 80, "from %s %lld of matrix %lld", turned ? "column" : "row", (long long)at,
                 (long long)(from / matrix));
    else
        snprintf(text, 80, "from %s %lld", turned ? "column" : "row", (long long)at);
}

void lb_arrangement_text(const lb_arrangements *arrangements, const lb_arrangement *arrangement, char how[256])
{
    uint32_t stretches;
    const uint32_t parts = count_parts(arrangements, arrangement, &stretches);
    const bool turned =
        (arrangement->runs[0].from_stride == 1) != (arrangement->runs[0].to_stride == 1) && arrangement->runs[0].n > 1;
    char names[160];
    if (arrangement->relation == LB_CONTENT_FUSED && parts == 1) {
        snprintf(how, 256, "shards put together%s", turned ? ", transposed" : "");
    } else if (arrangement->relation == LB_CONTENT_FUSED) {
        parts_text(arrangements, arrangement, names);
        const bool even = stretches > parts && stretches % parts == 0;
        if (even)
            snprintf(how, 256, "%u parts in %u groups%s: %s", parts, stretches / parts, turned ? ", transposed" : "",
                     names);
        else
            snprintf(how, 256, "%u parts side by side%s: %s", parts, turned ? ", transposed" : "", names);
    } else if (arrangement->relation == LB_CONTENT_SPLIT) {
        const lb_layout layout = lb_shelf_layout(&arrangements->a, arrangement->runs[0].tensor);
        char place[80];
        place_text(&layout, arrangement->runs[0].from, turned, place);
        snprintf(how, 256, "part of %.150s, %s on%s", lb_shelf_name(&arrangements->a, arrangement->runs[0].tensor),
                 place, turned ? ", transposed" : "");
    } else {
        snprintf(how, 256, "%s",
                 arrangement->relation == LB_CONTENT_SAME ? "" : lb_content_relation_name(arrangement->relation));
    }
}

/* ---- one tensor of B --------------------------------------------------------------------------------------------- */

static void mark(lb_arrangements *arrangements, uint32_t b)
{
    const lb_arrangement *arrangement = &arrangements->list[b];
    arrangements->b.side->states[arrangements->b.list[b].row] = LB_COMPARISON_ARRANGED;
    for (uint32_t i = 0; i < arrangement->n; i++) {
        lb_shelf_weight *weight = &arrangements->a.list[arrangement->runs[i].tensor];
        weight->used += arrangement->runs[i].n;
        if (arrangements->a.side->states[weight->row] == LB_COMPARISON_OPEN)
            arrangements->a.side->states[weight->row] = LB_COMPARISON_ARRANGED;
    }
}

/* Which of A's weights gave element `at` of B's tensor; the first one, where none did. */
static uint32_t weight_at(const lb_arrangement *arrangement, int64_t at)
{
    for (uint32_t i = 0; i < arrangement->n && at >= 0; i++) {
        const lb_content_run *run = &arrangement->runs[i];
        const int64_t k = (at - run->to) / run->to_stride;
        if (at >= run->to && k < run->n && run->to + k * run->to_stride == at) return run->tensor;
    }
    return arrangement->runs[0].tensor;
}

/* Its tensors of A, each once, joined by " + "; malloc'ed. */
static char *names_of(const lb_arrangements *arrangements, const lb_arrangement *arrangement)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    for (uint32_t i = 0; out && i < arrangement->n; i++) {
        bool told = i && arrangement->runs[i].tensor == arrangement->runs[i - 1].tensor;
        for (uint32_t k = 0; k < i && !told; k++)
            told = arrangements->a.list[arrangement->runs[k].tensor].row ==
                   arrangements->a.list[arrangement->runs[i].tensor].row;
        if (!told) fprintf(out, "%s%s", i ? " + " : "", lb_shelf_name(&arrangements->a, arrangement->runs[i].tensor));
    }
    if (out && fclose(out) != 0) free(text), text = NULL;
    return text;
}

/* Compares B's tensor with what an arrangement makes of A's, and tells. */
lb_status lb_arrangement_tell(lb_arrangements *arrangements, uint32_t b, lb_err *err)
{
    const lb_arrangement *arrangement = &arrangements->list[b];
    const lb_tensor *tensor = &arrangements->b.list[b].whole.tensor;
    const uint32_t first = arrangement->runs[0].tensor;
    char how[512], name[1100];
    lb_tensor made = arrangements->a.list[first].whole.tensor;
    lb_value_match match = {
        made.dtype == tensor->dtype ? LB_AUDIT_IS_IDENTICAL : LB_AUDIT_IS_CAST, LB_NO_DTYPE, {0}, -1};
    lb_status status = LB_OK;
    if (arrangement->n_changes) match.match = LB_AUDIT_IS_ROUNDING;
    match.difference = (lb_difference){.elements = lb_layout_numel(&tensor->layout), .first = -1, .cosine = 1};
    made.data = NULL;
    if (!arrangement->equal) status = lb_arrangement_gather(arrangements, arrangement, tensor, &made, err);
    if (!arrangement->equal && status == LB_OK) status = lb_value_match_of(&made, tensor, &match, err);
    if (status == LB_OK && match.match == LB_AUDIT_IS_DIFFERENT)
        status = lb_arrangement_explain(arrangements, b, &made, &match, err);
    lb_arrangement_text(arrangements, arrangement, how);
    lb_arrangement_change_text(arrangements, arrangement, how + strlen(how));
    bool several = false;
    for (uint32_t i = 1; i < arrangement->n && !several; i++)
        several = arrangements->a.list[arrangement->runs[i].tensor].row != arrangements->a.list[first].row;
    snprintf(name, sizeof name, "%s%s", lb_shelf_name(&arrangements->a, first), several ? " …" : "");
    char *names = names_of(arrangements, arrangement);
    if (!names && status == LB_OK) status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
    const lb_comparison_pair pair = {name, lb_shelf_name(&arrangements->b, b), how, &made, tensor, names, false};
    const lb_audit_where where = lb_inventory_where(
        arrangements->a.side->inventory,
        lb_shelf_piece(&arrangements->a, status == LB_OK ? weight_at(arrangement, match.worst) : first));
    if (status == LB_OK) lb_comparison_add(arrangements->comparison->gathering, &pair, &match, &where);
    free(made.data), free(names);
    if (status == LB_OK) mark(arrangements, b);
    return status;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

/* Elements of A's weight that are zero: of a padded table those behind its last row. */
static int64_t zeros_in(const lb_arrangements *arrangements, uint32_t a)
{
    const lb_inventory *inventory = arrangements->a.side->inventory;
    const lb_inventory_name *name = &inventory->names[arrangements->a.list[a].row];
    return name->n == 1 ? (int64_t)inventory->measured[name->first].statistics.zero : -1;
}

/* A tensor of A some of which is nowhere in B. */
static void tell_unused(const lb_arrangements *arrangements)
{
    for (uint32_t i = 0; i < arrangements->a.n; i++) {
        const lb_shelf_weight *weight = &arrangements->a.list[i];
        const lb_layout layout = lb_shelf_layout(&arrangements->a, i);
        const int64_t all = lb_layout_numel(&layout);
        if (weight->used && weight->used < all && all - weight->used <= zeros_in(arrangements, i)) {
            lb_audit_excuse(arrangements->comparison->gathering, LB_AUDIT_DEAD, lb_shelf_name(&arrangements->a, i));
            continue;
        }
        if (!weight->used || weight->used * 10 >= all * 9 ||
            lb_audit_is_found(arrangements->comparison->gathering, lb_shelf_name(&arrangements->a, i)))
            continue;
        lb_audit_find(arrangements->comparison->gathering, LB_AUDIT_UNEXPECTED,
                      lb_inventory_where(arrangements->a.side->inventory, lb_shelf_piece(&arrangements->a, i)),
                      "%lld of its %lld elements are in no tensor of %s", (long long)(all - weight->used),
                      (long long)all, arrangements->b.side->inventory->checkpoint->path);
    }
}

static lb_status tell_pairs(lb_arrangements *arrangements, lb_err *err)
{
    for (uint32_t i = 0; i < arrangements->b.n; i++) {
        if (!lb_shelf_is_pending(&arrangements->b, i) || arrangements->list[i].relation == LB_CONTENT_NONE) continue;
        LB_TRY(lb_arrangement_tell(arrangements, i, err));
    }
    return LB_OK;
}

static bool any_pending(const lb_arrangements *arrangements)
{
    bool rest = false;
    for (uint32_t i = 0; i < arrangements->a.n && !rest; i++) rest = lb_shelf_has_rest(&arrangements->a, i);
    return rest && lb_shelf_any_pending(&arrangements->b);
}

/* No step of training goes that far: their names say nothing of them. */
static bool are_unlike(const lb_difference *difference)
{
    return difference->cosine < 0.5;
}

/* Two checkpoints of one run differ in every weight, and their names say what is to be compared. Another shape is told
 * later: padded tables are found by their rows. */
static lb_status take_named(lb_arrangements *arrangements, lb_err *err)
{
    lb_comparison *comparison = arrangements->comparison;
    LB_TRY(lb_arrangement_search_named(arrangements, err));
    LB_TRY(tell_pairs(arrangements, err));
    LB_TRY(lb_arrangement_search_beside(arrangements, err));
    LB_TRY(tell_pairs(arrangements, err));
    for (uint32_t i = 0; i < comparison->a.inventory->n_names; i++)
        if (comparison->a.states[i] == LB_COMPARISON_OPEN && comparison->a.partners[i] != LB_NONE &&
            comparison->kept[i] && comparison->kept[i]->fits && !are_unlike(&comparison->kept[i]->match.difference))
            lb_comparison_tell_last(comparison, i);
    return LB_OK;
}

static lb_status find_all(lb_arrangements *arrangements, bool other_weights, lb_err *err)
{
    static lb_status (*const searches[])(lb_arrangements *, lb_err *) = {
        lb_arrangement_search_named, lb_arrangement_search_signs, lb_arrangement_search_beside,
        lb_arrangement_search_shifts, lb_arrangement_search_vectors};
    if (other_weights && any_pending(arrangements)) LB_TRY(take_named(arrangements, err));
    if (any_pending(arrangements)) {
        lb_audit_progress(arrangements->comparison->gathering, "contents", 0, 3);
        LB_TRY(lb_arrangement_search_contents(arrangements, false, err));
        lb_audit_progress(arrangements->comparison->gathering, "contents", 1, 3);
        LB_TRY(lb_arrangement_search_contents(arrangements, true, err));
        LB_TRY(lb_arrangement_search_constants(arrangements, err));
        LB_TRY(tell_pairs(arrangements, err));
        lb_audit_progress(arrangements->comparison->gathering, "contents", 2, 3);
        for (size_t i = 0; i < sizeof searches / sizeof *searches && any_pending(arrangements); i++) {
            LB_TRY(searches[i](arrangements, err));
            LB_TRY(tell_pairs(arrangements, err));
        }
    }
    lb_arrangement_tell_folded(arrangements);
    LB_TRY(lb_arrangement_family_judge(arrangements, err));
    tell_unused(arrangements);
    return LB_OK;
}

lb_status lb_arrangements_open(lb_comparison *comparison, lb_arrangements *arrangements, lb_err *err)
{
    *arrangements = (lb_arrangements){.comparison = comparison};
    const bool room =
        lb_shelf_init(&arrangements->a, &comparison->a) && lb_shelf_init(&arrangements->b, &comparison->b);
    if (room) arrangements->list = calloc(arrangements->b.n + 1u, sizeof *arrangements->list);
    return arrangements->list ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

void lb_arrangements_close(lb_arrangements *arrangements)
{
    for (uint32_t i = 0; arrangements->list && i < arrangements->b.n; i++)
        free(arrangements->list[i].runs), lb_arrangement_forget_changes(&arrangements->list[i]);
    free(arrangements->list);
    lb_shelf_release(&arrangements->a), lb_shelf_release(&arrangements->b);
}

lb_status lb_arrangement_find(lb_comparison *comparison, bool other_weights, lb_err *err)
{
    lb_arrangements arrangements;
    lb_status status = lb_arrangements_open(comparison, &arrangements, err);
    if (status == LB_OK) status = find_all(&arrangements, other_weights, err);
    const lb_err *refused = arrangements.a.refused.status != LB_OK ? &arrangements.a.refused : &arrangements.b.refused;
    if (status == LB_OK && refused->status != LB_OK) status = lb_fail(err, refused->status, "%s", refused->message);
    lb_arrangements_close(&arrangements);
    return status;
}
