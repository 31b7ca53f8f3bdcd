/* The sources of one side, as align_sources.c and align_parts.c match them: names, first readers, places. */
#include "pair/aligner.h"

#include "base/array.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

const lb_value *lb_source_value(const lb_program *p, uint32_t op)
{
    if (!lb_op_is_source(p, &p->ops[op])) return NULL;
    uint32_t value = lb_op_results(p, &p->ops[op])[0];
    return value == LB_NONE ? NULL : &p->values[value];
}

/* ---- who reads a source first ---- */

/* For each storage the first read of it, of all ops behind the one that is looked at: ops are gone through from the
 * last one on. */
typedef struct first_reads {
    const lb_program *program;
    lb_hash rows; /* of `reads`, by storage */
    struct read {
        int64_t storage;
        lb_source_reader reader;
    } *reads;
    uint32_t n, op, input;
    bool failed;
} first_reads;

static struct read *read_of(const first_reads *all, int64_t storage)
{
    LB_HASH_EACH(row, &all->rows, (uint64_t)storage)
    if (all->reads[row].storage == storage) return &all->reads[row];
    return NULL;
}

static void note_read(first_reads *all, int64_t storage)
{
    struct read *read = read_of(all, storage);
    if (!read) {
        struct read *reads = lb_array_grow(all->reads, all->n, sizeof *reads);
        if (reads) all->reads = reads;
        if (!reads || !lb_hash_add(&all->rows, (uint64_t)storage, all->n)) {
            all->failed = true;
            return;
        }
        read = &reads[all->n++], *read = (struct read){storage, {LB_NONE, 0}};
    }
    /* Of several inputs in one storage the first. */
    if (read->reader.op != all->op) read->reader = (lb_source_reader){all->op, all->input};
}

static void note_input(void *context, uint32_t value)
{
    first_reads *all = context;
    if (value != LB_NONE) note_read(all, all->program->values[value].storage);
    all->input++;
}

static bool find_readers(lb_source_list *list)
{
    const lb_program *p = list->side->program;
    first_reads all = {.program = p};
    uint32_t row = list->n;
    for (uint32_t i = p->n_ops; i-- > 0 && !all.failed;) {
        if (row > 0 && list->ops[row - 1] == i) {
            const struct read *read = read_of(&all, lb_source_value(p, i)->storage);
            list->readers[--row] = read ? read->reader : (lb_source_reader){LB_NONE, 0};
        }
        all.op = i, all.input = 0;
        if (lb_op_computes(p, &p->ops[i])) lb_op_each_input(p, &p->ops[i], note_input, &all);
    }
    lb_hash_release(&all.rows), free(all.reads);
    return !all.failed;
}

/* ---- where in what is read of its storage each begins ---- */

/* Rows of one version of a storage lie side by side, the one that begins first before the others. */
typedef struct range {
    int64_t storage, version, offset;
    uint32_t row;
} range;

static int by_storage(const void *a, const void *b)
{
    const range *x = a, *y = b;
    const int order = lb_by_i64(&x->storage, &y->storage), versions = lb_by_i64(&x->version, &y->version);
    return order ? order : versions ? versions : lb_by_i64(&x->offset, &y->offset);
}

static bool find_places(lb_source_list *list)
{
    range *ranges = malloc((list->n + 1) * sizeof *ranges);
    if (!ranges) return false;
    for (uint32_t i = 0; i < list->n; i++) {
        const lb_value *value = lb_source_value(list->side->program, list->ops[i]);
        ranges[i] = (range){value->storage, value->version, value->layout.offset, i};
    }
    qsort(ranges, list->n, sizeof *ranges, by_storage);
    for (uint32_t i = 0, end; i < list->n; i = end) {
        for (end = i + 1;
             end < list->n && ranges[end].storage == ranges[i].storage && ranges[end].version == ranges[i].version;)
            end++;
        for (uint32_t k = i; k < end; k++)
            list->places[ranges[k].row] = (lb_source_place){ranges[k].offset - ranges[i].offset, end - i > 1};
    }
    free(ranges);
    return true;
}

/* ---- all of them ---- */

bool lb_source_list_init(lb_source_list *list, const lb_aligner *al, int which, const lb_layer_names_map *rules)
{
    const lb_program_view *side = which ? al->side_b : al->side_a;
    const uint32_t *shown = al->out->shown[which];
    const lb_program *p = side->program;
    const size_t room = p->n_ops + 1;
    *list = (lb_source_list){.side = side, .ops = malloc(room * sizeof *list->ops), .taken = calloc(room, 1)};
    list->names = calloc(room, sizeof *list->names), list->readers = malloc(room * sizeof *list->readers);
    list->places = malloc(room * sizeof *list->places);
    if (!list->ops || !list->names || !list->readers || !list->places || !list->taken) return false;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (!lb_source_value(p, i) || lb_aligner_group(al, which, i) == LB_NONE) continue;
        list->ops[list->n] = i;
        list->names[list->n] = lb_layer_names_map_apply(rules, lb_program_text(p, p->values[shown[i]].name));
        if (!list->names[list->n++]) return false;
    }
    return find_readers(list) && find_places(list);
}

void lb_source_list_release(lb_source_list *list)
{
    for (uint32_t i = 0; list->names && i < list->n; i++) free(list->names[i]);
    free(list->names), free(list->ops), free(list->readers), free(list->places), free(list->taken);
}

/* ---- stages ---- */

enum { MOST_SHARED = 2 }; /* tensors that two stages hold: embeddings tied to the head, and what goes with them */

static bool is_parameter(const lb_source_list *list, uint32_t row)
{
    return *list->names[row] && lb_source_value(list->side->program, list->ops[row])->flags & LB_VALUE_PARAMETER;
}

static bool is_said_to_be_part(const lb_source_list *list, uint32_t row)
{
    const lb_program *p = list->side->program;
    uint32_t n;
    return is_parameter(list, row) && lb_program_shards_of(p, lb_op_results(p, &p->ops[list->ops[row]])[0], &n);
}

/* A parameter, and the part that holds it. */
typedef struct holding {
    const char *name;
    uint32_t part;
} holding;

/* How many parameters each part holds alone, and how many are held by several, counted once for each that holds it. */
static void count_holdings(const holding *all, uint32_t n, uint32_t *held, uint32_t *shared)
{
    for (uint32_t i = 0, end; i < n; i = end) {
        bool alone = true;
        for (end = i; end < n && !strcmp(all[end].name, all[i].name); end++) alone &= all[end].part == all[i].part;
        if (alone)
            held[all[i].part] += end - i;
        else
            *shared += end - i;
    }
}

bool lb_source_list_find_stages(const lb_source_list *list, bool *are_stages)
{
    const uint32_t n_parts = list->side->n_parts;
    *are_stages = n_parts > 1;
    for (uint32_t j = 0; j < list->n && *are_stages; j++) *are_stages = !is_said_to_be_part(list, j);
    if (!*are_stages) return true;
    holding *all = malloc((list->n + 1) * sizeof *all);
    uint32_t *held = calloc(n_parts, sizeof *held), n = 0, shared = 0, stages = 0;
    const bool done = all && held;
    for (uint32_t j = 0; done && j < list->n; j++)
        if (is_parameter(list, j))
            all[n++] = (holding){list->names[j], lb_program_view_part_of(list->side, list->ops[j])};
    if (done) {
        qsort(all, n, sizeof *all, lb_by_text);
        count_holdings(all, n, held, &shared);
        for (uint32_t p = 0; p < n_parts; p++) stages += held[p] > 0;
        *are_stages = stages == n_parts && shared <= MOST_SHARED * n_parts;
    }
    free(all), free(held);
    return done;
}
