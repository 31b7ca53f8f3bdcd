/* See capture_strip.h. */
#include "captures/capture_strip.h"

#include "captures/capture_reader.h"

#include "base/array.h"
#include <lastbit/maintenance.h>

/* ---- lists of digests -------------------------------------------------------------------------------------------- */

static int by_digest(const void *a, const void *b)
{
    const lb_digest *x = (const lb_digest *)a, *y = (const lb_digest *)b;
    if (x->hi != y->hi) return x->hi < y->hi ? -1 : 1;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

static bool add(lb_strip_list *list, lb_digest digest)
{
    lb_digest *grown = lb_array_grow(list->digests, list->n, sizeof *grown);
    if (!grown) return false;
    list->digests = grown;
    list->digests[list->n++] = digest;
    return true;
}

static void sort(lb_strip_list *list)
{
    uint64_t n = 0;
    if (list->n) qsort(list->digests, list->n, sizeof *list->digests, by_digest);
    for (uint64_t i = 0; i < list->n; i++)
        if (n == 0 || !lb_digest_equal(list->digests[n - 1], list->digests[i])) list->digests[n++] = list->digests[i];
    list->n = n;
}

static const lb_digest *find(const lb_strip_list *list, lb_digest digest)
{
    return list->n ? (const lb_digest *)bsearch(&digest, list->digests, list->n, sizeof digest, by_digest) : NULL;
}

bool lb_strip_list_holds(lb_strip_list *list, lb_digest digest, bool *first)
{
    const lb_digest *found = find(list, digest);
    if (!found) return false;
    *first = !list->met[found - list->digests];
    list->met[found - list->digests] = 1;
    return true;
}

void lb_strip_list_release(lb_strip_list *list)
{
    free(list->digests);
    free(list->met);
    memset(list, 0, sizeof *list);
}

/* ---- one program ------------------------------------------------------------------------------------------------- */

/* Storages numbered from 0, and which of them are left out. */
typedef struct storages {
    uint32_t *of; /* number of each value's storage */
    uint8_t *gone;
} storages;

typedef struct storage_row {
    int64_t storage;
    uint32_t value;
} storage_row;

static int by_storage(const void *a, const void *b)
{
    int64_t x = ((const storage_row *)a)->storage, y = ((const storage_row *)b)->storage;
    return (x > y) - (x < y);
}

static void storages_release(storages *storages)
{
    free(storages->of);
    free(storages->gone);
}

static bool number_storages(const lb_program *program, storages *storages)
{
    storage_row *rows = (storage_row *)malloc((program->n_values + 1u) * sizeof *rows);
    storages->of = (uint32_t *)malloc((program->n_values + 1u) * sizeof *storages->of);
    storages->gone = (uint8_t *)calloc(program->n_values + 1u, 1);
    bool made = rows && storages->of && storages->gone;
    if (made) {
        for (uint32_t v = 0; v < program->n_values; v++) rows[v] = (storage_row){program->values[v].storage, v};
        qsort(rows, program->n_values, sizeof *rows, by_storage);
        uint32_t number = 0;
        for (uint32_t i = 0; i < program->n_values; i++) {
            number += i > 0 && rows[i].storage != rows[i - 1].storage;
            storages->of[rows[i].value] = number;
        }
    }
    free(rows);
    return made;
}

static bool is_chosen(const lb_value *value, uint32_t strip)
{
    if ((strip & LB_STRIP_DATA) && (value->source == LB_SOURCE_BATCH || (value->flags & LB_VALUE_INPUT))) return true;
    if ((strip & LB_STRIP_PARAMS) && (value->source == LB_SOURCE_PARAMETER || (value->flags & LB_VALUE_PARAMETER)))
        return true;
    return (strip & LB_STRIP_STATE) && (value->source == LB_SOURCE_STATE || (value->flags & LB_VALUE_STATE));
}

/* Ops whose results hold elements of their arguments unchanged or cast: of the first one, or of any. */
typedef enum moves { MOVES_NOTHING, MOVES_FIRST, MOVES_ANY } moves;

static moves moves_of(const char *name)
{
    static const char *const first[] = {"clone",        "_to_copy",       "contiguous",  "index",
                                        "index_select", "gather",         "embedding",   "take",
                                        "repeat",       "roll",           "flip",        "constant_pad_nd",
                                        "masked_fill",  "masked_select",  "lift_fresh",  "lift_fresh_copy",
                                        "slice_copy",   "select_copy",    "expand_copy", "view_copy",
                                        "t_copy",       "transpose_copy", "permute_copy"};
    static const char *const any[] = {"copy_",      "_foreach_copy_",   "cat",     "stack", "broadcast_",
                                      "allgather_", "_allgather_base_", "scatter_"};
    const char *bare = strstr(name, "::");
    bare = bare ? bare + 2 : name;
    size_t n = strcspn(bare, ".");
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        if (strlen(first[i]) == n && memcmp(bare, first[i], n) == 0) return MOVES_FIRST;
    for (size_t i = 0; i < sizeof any / sizeof *any; i++)
        if (strlen(any[i]) == n && memcmp(bare, any[i], n) == 0) return MOVES_ANY;
    return MOVES_NOTHING;
}

typedef struct inputs {
    const storages *storages;
    moves moves;
    uint32_t seen;
    bool gone;
} inputs;

static void look_at_input(void *context, uint32_t value)
{
    inputs *in = (inputs *)context;
    if (in->moves == MOVES_ANY || in->seen == 0) in->gone |= in->storages->gone[in->storages->of[value]];
    in->seen++;
}

static void mark(storages *storages, const uint32_t *rows, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (rows[i] != LB_NONE) storages->gone[storages->of[rows[i]]] = 1;
}

static void mark_storages(const lb_program *program, uint32_t strip, storages *storages)
{
    for (uint32_t v = 0; v < program->n_values; v++)
        if (is_chosen(&program->values[v], strip)) storages->gone[storages->of[v]] = 1;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        inputs in = {storages, moves_of(lb_op_name(program, op)), 0, false};
        if (in.moves == MOVES_NOTHING) continue;
        lb_op_each_input(program, op, look_at_input, &in);
        if (!in.gone) continue;
        mark(storages, lb_op_results(program, op), op->results);
        mark(storages, lb_op_written(program, op), op->written);
    }
}

/* `sources`: digests of the sources that stay; `results`: of everything else. */
static bool list_program(const lb_program *program, uint32_t strip, lb_strip_list *gone, lb_strip_list *sources,
                         lb_strip_list *results)
{
    storages storages = {NULL, NULL};
    bool listed = number_storages(program, &storages);
    if (listed) mark_storages(program, strip, &storages);
    for (uint32_t v = 0; v < program->n_values && listed; v++) {
        const lb_value *value = &program->values[v];
        if (lb_digest_is_none(value->blob)) continue;
        if (storages.gone[storages.of[v]])
            listed = add(gone, value->blob);
        else if (strip & LB_STRIP_RESULTS)
            listed = add(value->flags & LB_VALUE_SOURCE ? sources : results, value->blob);
    }
    storages_release(&storages);
    return listed;
}

lb_status lb_strip_list_make(lb_capture *capture, uint32_t strip, lb_strip_list *list, lb_err *err)
{
    memset(list, 0, sizeof *list);
    if (strip == 0) return LB_OK;
    lb_strip_list sources = {0}, results = {0};
    lb_status status = LB_OK;
    for (uint32_t r = 0; r < capture->n_rows && status == LB_OK; r++) {
        const lb_program *program;
        status = lb_capture_program(capture, capture->rows[r].rank, capture->rows[r].step, &program, err);
        if (status == LB_OK && !list_program(program, strip, list, &sources, &results))
            status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    /* A source stays although a result equals it. */
    sort(&sources);
    for (uint64_t i = 0; i < results.n && status == LB_OK; i++)
        if (!find(&sources, results.digests[i]) && !add(list, results.digests[i]))
            status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
    sort(list);
    list->met = (uint8_t *)calloc(list->n + 1, 1);
    if (!list->met && status == LB_OK) status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
    lb_strip_list_release(&sources);
    lb_strip_list_release(&results);
    return status;
}
