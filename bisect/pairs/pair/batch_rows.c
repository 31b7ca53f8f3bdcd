/* Which rows of one batch are another's: see batch_rows.h. */
#include "pair/batch_rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Relative L2 distance below which two rows of floats are the same row (in another type, or with a wrong number in
 * it). */
#define SAME_ROW 0.1

/* An input of both sides that holds few rows on one and many on the other. */
typedef struct carrier {
    const char *name;
    lb_dtype dtype[2]; /* of the smaller side, of the larger */
    char *bytes[2];    /* dense; NULL: not kept */
    size_t row[2];     /* elements of a row; alike unless sizes are odd */
    int64_t rows[2];
    bool turned;  /* the first side has many */
    bool decides; /* it is of the batch: else it only tells rows of the same batch apart (a cache) */
    bool made;    /* in Python, or before step 0 */
} carrier;

typedef struct carriers {
    carrier *list;
    uint32_t n;
    bool batch;        /* something is known as the batch, rows or not */
    char strange[300]; /* of the batch, but not of another number of rows alone; "": none */
} carriers;

void lb_batch_rows_release(lb_batch_rows *rows)
{
    free(rows->places);
    memset(rows, 0, sizeof *rows);
}

int lb_batch_rows_dim(const lb_batch_rows *rows, const lb_layout *few, const lb_layout *many)
{
    int dim = LB_REASSEMBLY_SAME;
    if (few->ndim != many->ndim) return LB_REASSEMBLY_NONE;
    for (int d = 0; d < few->ndim; d++) {
        if (few->shape[d] == many->shape[d]) continue;
        if (dim != LB_REASSEMBLY_SAME || few->shape[d] % rows->few || many->shape[d] % rows->many ||
            few->shape[d] / rows->few != many->shape[d] / rows->many)
            return LB_REASSEMBLY_NONE;
        dim = d;
    }
    return dim;
}

/* ---- what enters as rows ---- */

/* A source with gaps (columns of a batch) is recorded as the range of memory that it lies in: how it is read says what
 * it is. */
static const lb_value *as_read(const lb_program *program, const lb_value *source)
{
    int64_t first, last, from, to;
    if (source->layout.ndim != 1) return source;
    if (lb_layout_dense_range(&source->layout, &first, &last, NULL) != LB_OK) return source;
    for (uint32_t i = 0; i < program->n_values; i++) {
        const lb_value *value = &program->values[i];
        if (value->storage != source->storage || value->version != source->version || value->dtype != source->dtype)
            continue;
        if (value->layout.ndim < 2 || lb_layout_is_contiguous(&value->layout)) continue;
        if (lb_layout_dense_range(&value->layout, &from, &to, NULL) == LB_OK && from == first && to == last)
            return value;
    }
    return source;
}

static const lb_value *source_at(const lb_program *program, uint32_t op)
{
    if (!lb_op_is_source(program, &program->ops[op])) return NULL;
    const uint32_t value = lb_op_results(program, &program->ops[op])[0];
    const lb_value *v = value == LB_NONE ? NULL : &program->values[value];
    return v && v->source != LB_SOURCE_PARAMETER && v->source != LB_SOURCE_RANDOM ? v : NULL;
}

static bool is_batch(const lb_value *value)
{
    return value->source == LB_SOURCE_BATCH;
}

/* Where only the leading dimension differs. */
static bool differs_in_rows(const lb_value *a, const lb_value *b)
{
    const lb_layout *l = &a->layout, *m = &b->layout;
    if (l->ndim != m->ndim || !l->ndim || l->shape[0] == m->shape[0] || !l->shape[0] || !m->shape[0]) return false;
    for (int d = 1; d < l->ndim; d++)
        if (l->shape[d] != m->shape[d]) return false;
    return true;
}

static void print_shape(const lb_layout *layout, char *text, size_t room)
{
    size_t used = (size_t)snprintf(text, room, "[");
    for (int d = 0; d < layout->ndim && used < room; d++)
        used += (size_t)snprintf(text + used, room - used, d ? ", %lld" : "%lld", (long long)layout->shape[d]);
    if (used < room) snprintf(text + used, room - used, "]");
}

static char *dense_bytes(const lb_program_view *side, const lb_value *value)
{
    lb_tensor t;
    if (lb_dtype_bits(value->dtype) < 8 ||
        lb_program_view_value(side, (uint32_t)(value - side->program->values), &t, NULL) != LB_OK)
        return NULL;
    char *dense = malloc(lb_dtype_bytes(value->dtype, (size_t)lb_layout_numel(&value->layout)) + 1);
    if (dense && lb_tensor_gather(&t, dense, NULL) == LB_OK) return dense;
    free(dense);
    return NULL;
}

static void add_carrier(carriers *all, const lb_program_view *const *sides, const lb_value *const *sources,
                        const lb_value *const *values, const char *name)
{
    carrier *c = &all->list[all->n++];
    *c = (carrier){.name = name,
                   .turned = values[0]->layout.shape[0] > values[1]->layout.shape[0],
                   .decides = is_batch(sources[0]) && is_batch(sources[1]),
                   .made = sources[0]->source == LB_SOURCE_OTHER && sources[1]->source == LB_SOURCE_OTHER};
    for (int k = 0; k < 2; k++) {
        const int from = c->turned ? !k : k;
        c->dtype[k] = values[from]->dtype, c->rows[k] = values[from]->layout.shape[0];
        c->row[k] = (size_t)(lb_layout_numel(&values[from]->layout) / c->rows[k]);
        c->bytes[k] = dense_bytes(sides[from], values[from]);
    }
}

static void note_strange(carriers *all, const lb_value *a, const lb_value *b, const char *name)
{
    char shapes[2][100];
    if (*all->strange || lb_layout_same_shape(&a->layout, &b->layout)) return;
    print_shape(&a->layout, shapes[0], sizeof shapes[0]), print_shape(&b->layout, shapes[1], sizeof shapes[1]);
    snprintf(all->strange, sizeof all->strange, "%.60s is %s on the first side and %s on the second",
             *name ? name : "an input", shapes[0], shapes[1]);
}

/* Of the batch, under different names, where none has the same: one side's caller names an argument that the other's
 * gives by its place. Only the first is taken: what comes after it may be a mask on one side and labels on the other.
 */
static void list_renamed(const lb_program_view *const *sides, uint8_t *const *taken, carriers *all)
{
    const lb_program *a = sides[0]->program, *b = sides[1]->program;
    for (uint32_t i = 0; i < a->n_ops && !all->batch; i++) {
        const lb_value *value = taken[0][i] ? NULL : source_at(a, i);
        for (uint32_t j = 0; value && is_batch(value) && j < b->n_ops; j++) {
            const lb_value *y = taken[1][j] ? NULL : source_at(b, j);
            if (!y || !is_batch(y) || value->dtype != y->dtype) continue;
            const lb_value *read[] = {as_read(a, value), as_read(b, y)};
            if (read[0]->layout.ndim != read[1]->layout.ndim) continue;
            all->batch = true;
            if (differs_in_rows(read[0], read[1]))
                add_carrier(all, sides, (const lb_value *[]){value, y}, read, lb_program_text(b, y->name));
            else
                note_strange(all, read[0], read[1], lb_program_text(a, value->name));
            break;
        }
    }
}

/* Sources of both sides by name and occurrence; unnamed ones by their place among those of one dtype that can be
 * rows. */
static bool list_carriers(const lb_program_view *const *sides, const lb_layer_names_map *rules, carriers *all)
{
    const lb_program *a = sides[0]->program, *b = sides[1]->program;
    uint8_t *taken = calloc(b->n_ops + 1, 1), *given = calloc(a->n_ops + 1, 1);
    all->list = calloc(a->n_ops + 1, sizeof *all->list);
    bool room = taken && given && all->list;
    for (uint32_t i = 0; i < a->n_ops && room; i++) {
        const lb_value *value = source_at(a, i);
        if (!value) continue;
        char *name = lb_layer_names_map_apply(rules, lb_program_text(a, value->name));
        room = name != NULL;
        for (uint32_t j = 0; j < b->n_ops && room; j++) {
            const lb_value *y = taken[j] ? NULL : source_at(b, j);
            if (!y || strcmp(name, lb_program_text(b, y->name)) != 0) continue;
            const lb_value *read[] = {as_read(a, value), as_read(b, y)};
            const bool same = lb_layout_same_shape(&read[0]->layout, &read[1]->layout),
                       rows = differs_in_rows(read[0], read[1]);
            if (!*name && (value->dtype != y->dtype || (!same && !rows))) continue;
            taken[j] = given[i] = 1;
            all->batch |= is_batch(value) || is_batch(y);
            if (rows)
                add_carrier(all, sides, (const lb_value *[]){value, y}, read, lb_program_text(b, y->name));
            else if (is_batch(value) && is_batch(y))
                note_strange(all, read[0], read[1], name);
            break;
        }
        free(name);
    }
    if (room) list_renamed(sides, (uint8_t *const[]){given, taken}, all);
    free(taken), free(given);
    return room;
}

static void release_carriers(carriers *all)
{
    for (uint32_t i = 0; i < all->n; i++) free(all->list[i].bytes[0]), free(all->list[i].bytes[1]);
    free(all->list);
}

/* ---- which row is which ---- */

static bool is_integer(const carrier *carrier)
{
    return !lb_dtype_is_float(carrier->dtype[0]) && carrier->dtype[0] == carrier->dtype[1];
}

/* Elements that stand for one row of the batch: of a flattened input several of its own. */
static size_t width_of(const carrier *carrier, const lb_batch_rows *rows)
{
    return carrier->row[0] * (size_t)(carrier->rows[0] / rows->few);
}

static bool same_integers(const carrier *carrier, const lb_batch_rows *rows, int64_t few, int64_t many)
{
    const size_t bytes = lb_dtype_bytes(carrier->dtype[0], width_of(carrier, rows));
    return !memcmp(carrier->bytes[0] + (size_t)few * bytes, carrier->bytes[1] + (size_t)many * bytes, bytes);
}

static double distance(const carrier *carrier, const lb_batch_rows *rows, int64_t few, int64_t many)
{
    const size_t n = width_of(carrier, rows);
    double *x = malloc((2 * n + 1) * sizeof *x), apart = 0, size = 0;
    if (!x) return INFINITY;
    lb_load_f64(x, carrier->dtype[0], carrier->bytes[0] + (size_t)few * lb_dtype_bytes(carrier->dtype[0], n), n);
    lb_load_f64(x + n, carrier->dtype[1], carrier->bytes[1] + (size_t)many * lb_dtype_bytes(carrier->dtype[1], n), n);
    for (size_t i = 0; i < n; i++) {
        const double d = x[i] == x[n + i] || (isnan(x[i]) && isnan(x[n + i])) ? 0 : x[i] - x[n + i];
        apart += d * d, size += isfinite(x[i]) ? x[i] * x[i] : 0;
    }
    free(x);
    return apart == 0 ? 0 : sqrt(apart / size);
}

/* The distance of two rows in their floats; infinite: they differ in an integer. */
static double row_distance(const carriers *all, const lb_batch_rows *rows, int64_t few, int64_t many)
{
    double sum = 0;
    for (uint32_t i = 0; i < all->n; i++)
        if (all->list[i].decides && is_integer(&all->list[i]) && !same_integers(&all->list[i], rows, few, many))
            return INFINITY;
    for (uint32_t i = 0; i < all->n; i++) {
        const carrier *carrier = &all->list[i];
        if (!lb_dtype_is_float(carrier->dtype[0]) || !lb_dtype_is_float(carrier->dtype[1])) continue;
        const double d = distance(carrier, rows, few, many);
        if (carrier->decides && !(d < SAME_ROW)) return INFINITY;
        sum += isfinite(d) ? d : 1;
    }
    return sum;
}

/* The place of row `few`: the nearest that no other row has; an earlier step's where it is as near. -1: there is
 * none. */
static int64_t place_of(const carriers *all, const lb_batch_rows *rows, const lb_batch_rows *before,
                        const uint8_t *used, int64_t few)
{
    const bool known = before && before->places && before->few == rows->few && before->many == rows->many &&
                       before->turned == rows->turned;
    double least = INFINITY;
    int64_t best = -1;
    for (int64_t k = known ? -1 : 0; k < rows->many; k++) {
        const int64_t many = k < 0 ? before->places[few] : k;
        if (used[many]) continue;
        const double d = row_distance(all, rows, few, many);
        if (d < least) least = d, best = many;
    }
    return best;
}

static lb_status place_rows(const carriers *all, const lb_batch_rows *before, lb_batch_rows *rows, lb_err *err)
{
    uint8_t *used = calloc((size_t)rows->many + 1, 1);
    int64_t *places = malloc(((size_t)rows->few + 1) * sizeof *places), lost = -1;
    for (int64_t i = 0; used && places && i < rows->few && lost < 0; i++) {
        places[i] = place_of(all, rows, before, used, i);
        if (places[i] < 0)
            lost = i;
        else
            used[places[i]] = 1;
    }
    const bool room = used && places;
    free(used);
    if (room && lost < 0)
        rows->places = places;
    else
        free(places);
    if (room && lost >= 0)
        snprintf(rows->missing, sizeof rows->missing,
                 "the sides' batches have %lld and %lld rows (%.60s), "
                 "and row %lld of the smaller is not a row of the larger: nothing can be compared with it. "
                 "Record both sides with the same inputs among their rows",
                 (long long)(rows->turned ? rows->many : rows->few), (long long)(rows->turned ? rows->few : rows->many),
                 rows->by, (long long)lost);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %lld rows", (long long)rows->many);
}

/* ---- how many rows there are ---- */

/* What tells rows: the batch, or, where nothing is known as one (a loop without modules), what was made outside. */
static void choose_deciding(carriers *all)
{
    for (uint32_t i = 0; i < all->n && !all->batch; i++) all->list[i].decides = all->list[i].made;
}

/* The smallest of the deciding ones says how many rows there are: a flattened one has several for each. */
static bool count_rows(const carriers *all, lb_batch_rows *rows)
{
    const carrier *least = NULL;
    for (uint32_t i = 0; i < all->n; i++)
        if (all->list[i].decides && (!least || all->list[i].rows[0] < least->rows[0])) least = &all->list[i];
    if (!least) return false;
    rows->few = least->rows[0], rows->many = least->rows[1], rows->turned = least->turned;
    return true;
}

/* Those of another ratio are no rows of this batch. */
static void drop_others(carriers *all, const lb_batch_rows *rows)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < all->n; i++) {
        carrier *carrier = &all->list[i];
        if (carrier->turned == rows->turned && carrier->rows[0] % rows->few == 0 &&
            carrier->rows[0] / rows->few * rows->many == carrier->rows[1])
            all->list[n++] = *carrier;
        else
            free(carrier->bytes[0]), free(carrier->bytes[1]);
    }
    all->n = n;
}

/* Integers name rows better than floats do. */
static const carrier *naming(const carriers *all)
{
    const carrier *found = NULL;
    for (uint32_t i = 0; i < all->n; i++)
        if (all->list[i].decides && (!found || (is_integer(&all->list[i]) && !is_integer(found))))
            found = &all->list[i];
    return found;
}

static const char *without_bytes(const carriers *all)
{
    for (uint32_t i = 0; i < all->n; i++)
        if (all->list[i].decides && (!all->list[i].bytes[0] || !all->list[i].bytes[1])) return all->list[i].name;
    return NULL;
}

/* What does not decide may lack its bytes: it only tells equal rows apart, and is left out. */
static void keep_readable(carriers *all)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < all->n; i++)
        if (all->list[i].bytes[0] && all->list[i].bytes[1])
            all->list[n++] = all->list[i];
        else
            free(all->list[i].bytes[0]), free(all->list[i].bytes[1]);
    all->n = n;
}

lb_status lb_batch_rows_find(const lb_program_view *a, const lb_program_view *b, const lb_layer_names_map *rules,
                             const lb_batch_rows *before, lb_batch_rows *out, lb_err *err)
{
    const lb_program_view *sides[] = {a, b};
    carriers all = {0};
    lb_status status = LB_OK;
    *out = (lb_batch_rows){0};
    if (!list_carriers(sides, rules, &all)) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for sources");
    if (status == LB_OK && *all.strange) {
        snprintf(out->missing, sizeof out->missing,
                 "%.290s: not another number of rows alone, "
                 "so that no op's result can be compared with the other side's. "
                 "Record both sides with inputs of one length",
                 all.strange);
        goto done;
    }
    if (status == LB_OK) choose_deciding(&all);
    if (status != LB_OK || !count_rows(&all, out)) goto done;
    drop_others(&all, out);
    snprintf(out->by, sizeof out->by, "%s", *naming(&all)->name ? naming(&all)->name : "an input");
    /* No error: this step is told as missing, and the next may have the bytes that lack here. */
    const char *lacking = without_bytes(&all);
    if (lacking)
        snprintf(out->missing, sizeof out->missing,
                 "the sides' batches have other numbers of rows, and the bytes of %.60s, by which rows are known, "
                 "were not kept on both sides: record them with --level sources or more",
                 lacking);
    keep_readable(&all);
    if (!lacking) status = place_rows(&all, before, out, err);
done:
    release_carriers(&all);
    return status;
}

static uint32_t outermost_calls(const lb_program *program)
{
    uint32_t calls = 0;
    for (uint32_t i = 0; i < program->n_boundaries; i++) {
        const lb_boundary *boundary = &program->boundaries[i];
        calls += boundary->scope == program->boundaries[0].scope && boundary->output && !boundary->recompute &&
                 boundary->position == 0;
    }
    return calls;
}

bool lb_batch_rows_apply(const lb_program *a, const lb_program *b)
{
    return outermost_calls(a) == outermost_calls(b);
}

/* ---- ops over a batch ---- */

/* An op's inputs, then its results, LB_NONE among them. */
typedef struct operands {
    uint32_t list[64], n, inputs;
} operands;

static void add_operand(void *context, uint32_t value)
{
    operands *operands = context;
    if (operands->n < sizeof operands->list / sizeof *operands->list) operands->list[operands->n] = value;
    operands->n++;
}

static bool list_operands(const lb_program *program, const lb_op *op, operands *operands)
{
    operands->n = 0;
    lb_op_each_input(program, op, add_operand, operands);
    operands->inputs = operands->n;
    for (uint32_t i = 0; i < op->results; i++) add_operand(operands, lb_op_results(program, op)[i]);
    return operands->n <= sizeof operands->list / sizeof *operands->list;
}

bool lb_batch_rows_meet(const lb_batch_rows *rows, const lb_program *pa, uint32_t op_a, const lb_program *pb,
                        uint32_t op_b, lb_row_operands *with_rows)
{
    operands a, b;
    *with_rows = (lb_row_operands){0};
    if (!list_operands(pa, &pa->ops[op_a], &a) || !list_operands(pb, &pb->ops[op_b], &b)) return false;
    if (a.n != b.n || a.inputs != b.inputs) return false;
    for (uint32_t i = 0; i < a.n; i++) {
        if (a.list[i] == LB_NONE || b.list[i] == LB_NONE) {
            if (a.list[i] != b.list[i]) return false;
            continue;
        }
        const int dim = lb_batch_rows_dim(rows, &pa->values[a.list[i]].layout, &pb->values[b.list[i]].layout);
        if (dim == LB_REASSEMBLY_NONE) return false;
        with_rows->all += dim >= 0, with_rows->inputs += dim >= 0 && i < a.inputs;
    }
    return true;
}
