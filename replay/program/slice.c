/* Def-use edges and slices: see slice.h. One walk over the program; per storage the list of its writes so far.
 * Reaching definitions without a fixed point: a recorded step is straight-line code, whose writes
 * are met in the order in which they ran. So these are dynamic slices of one execution (Korel and
 * Laski 1988; Agrawal and Horgan 1990), the descendants of Weiser's (1981), and no control
 * dependence is followed: what Python decided is in the recording, why it did is not. */
#include "program/slice.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

/* One write to a storage: elements [first, last), dense when it leaves no hole. Elements of different dtypes are
 * compared in bytes. */
typedef struct write {
    uint32_t op;
    uint32_t previous; /* row of writes, LB_NONE: none before */
    int64_t first, last;
    bool dense;
} write;

typedef struct builder {
    const lb_program *program;
    lb_slice_flow *flow;
    write *writes;
    uint32_t n_writes;
    uint32_t *latest; /* per storage: row of writes */
    uint32_t *stamp;  /* per op: last reader for which it was noted as a def */
    uint32_t n_defs;
    uint32_t reader;
    bool failed;
} builder;

static void extent(const lb_value *value, int64_t *first, int64_t *last, bool *dense)
{
    int64_t n = lb_layout_numel(&value->layout);
    /* An extent that cannot be computed is taken to be all of the storage, and as not dense: such a
     * write overlaps everything and hides nothing, which adds edges and never loses one. The 64th
     * part leaves room for the multiplication by the size of an element. */
    if (lb_layout_dense_range(&value->layout, first, last, NULL) != LB_OK) *first = 0, *last = INT64_MAX / 64;
    /* As many elements as places means that no place is left out, except where elements overlap (an
     * expanded view), which no op writes to. */
    *dense = n == *last - *first;
    /* Bytes, because one storage is read as bf16 and as raw bytes (a view of another dtype), whose
     * elements have different numbers. */
    *first = (int64_t)lb_dtype_bytes(value->dtype, (size_t)*first);
    *last = (int64_t)lb_dtype_bytes(value->dtype, (size_t)*last);
}

bool lb_slice_op_defines(const lb_program *program, const lb_op *op)
{
    (void)program;
    /* A failed op has no results; a reader of them would follow a value that is none. */
    return !(op->flags & (LB_OP_VIEW | LB_OP_FAILED)) && (op->results || op->written);
}

uint32_t lb_slice_flow_storage(const lb_slice_flow *flow, int64_t id)
{
    int64_t *found = bsearch(&id, flow->storages, flow->n_storages, sizeof id, lb_by_i64);
    return found ? (uint32_t)(found - flow->storages) : LB_NONE;
}

static bool number_storages(const lb_program *program, lb_slice_flow *flow)
{
    flow->storages = malloc(((size_t)program->n_values + 1) * sizeof *flow->storages);
    flow->storage_of = malloc(((size_t)program->n_values + 1) * sizeof *flow->storage_of);
    if (!flow->storages || !flow->storage_of) return false;
    for (uint32_t i = 0; i < program->n_values; i++) flow->storages[i] = program->values[i].storage;
    /* Ids of storages are any numbers with gaps; dense ones let `latest` be an array, which the walk asks
     * for every read. */
    if (program->n_values) qsort(flow->storages, program->n_values, sizeof *flow->storages, lb_by_i64);
    for (uint32_t i = 0; i < program->n_values; i++)
        if (!i || flow->storages[i] != flow->storages[flow->n_storages - 1])
            flow->storages[flow->n_storages++] = flow->storages[i];
    for (uint32_t i = 0; i < program->n_values; i++)
        flow->storage_of[i] = lb_slice_flow_storage(flow, program->values[i].storage);
    return true;
}

/* ---- edges ------------------------------------------------------------------------------------------------------ */

/* Windows are compared by their ends alone. Two columns of a matrix interleave without touching and
 * still count as overlapping: an edge too many makes a slice larger, one too few would make it
 * wrong. */
static bool overlaps(const write *write, int64_t first, int64_t last)
{
    return write->first < last && first < write->last;
}

/* A write with holes hides nothing, whatever its ends are: the bytes in the holes are those of
 * earlier writes. */
static bool covers(const write *write, int64_t first, int64_t last)
{
    return write->dense && write->first <= first && write->last >= last;
}

static void note_def(builder *builder, uint32_t op)
{
    /* An op that reads q, k and v out of one product depends on it once. */
    if (builder->stamp[op] == builder->reader) return;
    builder->stamp[op] = builder->reader;
    uint32_t *more = lb_array_grow(builder->flow->defs, builder->n_defs, sizeof *more);
    if (!more) {
        builder->failed = true;
        return;
    }
    builder->flow->defs = more;
    builder->flow->defs[builder->n_defs++] = op;
}

static void read_value(void *context, uint32_t value)
{
    builder *builder = context;
    int64_t first, last;
    bool dense;
    extent(&builder->program->values[value], &first, &last, &dense);
    /* Latest first, until one write hides all that came before. A storage is mostly written whole
     * and the walk ends at once; a cache that is filled token by token is the slow case, as many
     * steps per read as it has tokens. */
    for (uint32_t w = builder->latest[builder->flow->storage_of[value]]; w != LB_NONE;
         w = builder->writes[w].previous) {
        if (!overlaps(&builder->writes[w], first, last)) continue;
        note_def(builder, builder->writes[w].op);
        if (covers(&builder->writes[w], first, last)) break;
    }
}

static void add_write(builder *builder, uint32_t op, uint32_t value)
{
    if (value == LB_NONE) return;
    uint32_t storage = builder->flow->storage_of[value], latest = builder->latest[storage];
    write written = {.op = op, .previous = latest};
    extent(&builder->program->values[value], &written.first, &written.last, &written.dense);
    /* An empty write hides nothing and has no reader; its row would only lengthen the walk. */
    if (written.first == written.last) return;
    /* What is written is listed as a result too when the op returns it. */
    if (latest != LB_NONE && builder->writes[latest].op == op && builder->writes[latest].first == written.first &&
        builder->writes[latest].last == written.last)
        return;
    /* Writes are rows of one array and linked by number, since a realloc moves them all. */
    write *more = lb_array_grow(builder->writes, builder->n_writes, sizeof *more);
    if (!more) {
        builder->failed = true;
        return;
    }
    builder->writes = more;
    builder->writes[builder->n_writes] = written;
    builder->latest[storage] = builder->n_writes++;
}

static void link_op(builder *builder, uint32_t i)
{
    const lb_program *program = builder->program;
    const lb_op *op = &program->ops[i];
    builder->reader = i;
    builder->flow->first_def[i] = builder->n_defs;
    /* Reads before writes: an op in place depends on what was there, and not on itself. */
    lb_op_each_input(program, op, read_value, builder);
    uint32_t n = builder->n_defs - builder->flow->first_def[i];
    /* Ascending, because lb_slice_flow_defs_of goes through them from the latest on and stops at the
     * first that covers. */
    if (n > 1) qsort(builder->flow->defs + builder->flow->first_def[i], n, sizeof *builder->flow->defs, lb_by_u32);
    if (!lb_slice_op_defines(program, op)) return;
    for (uint32_t r = 0; r < op->results; r++) add_write(builder, i, lb_op_results(program, op)[r]);
    for (uint32_t r = 0; r < op->written; r++) add_write(builder, i, lb_op_written(program, op)[r]);
}

/* A counting sort by the op that defines: linear, and readers come out in execution order because
 * they are entered in it. */
static bool reverse_edges(lb_slice_flow *flow, uint32_t n_ops)
{
    uint32_t n = flow->first_def[n_ops];
    uint32_t *next = calloc((size_t)n_ops + 1, sizeof *next);
    flow->first_use = calloc((size_t)n_ops + 1, sizeof *flow->first_use);
    flow->uses = malloc(((size_t)n + 1) * sizeof *flow->uses);
    bool ok = next && flow->first_use && flow->uses;
    if (ok) {
        for (uint32_t e = 0; e < n; e++) flow->first_use[flow->defs[e] + 1]++;
        for (uint32_t i = 0; i < n_ops; i++) flow->first_use[i + 1] += flow->first_use[i];
        for (uint32_t i = 0; i < n_ops; i++)
            for (uint32_t e = flow->first_def[i]; e < flow->first_def[i + 1]; e++) {
                uint32_t def = flow->defs[e];
                flow->uses[flow->first_use[def] + next[def]++] = i;
            }
    }
    free(next);
    return ok;
}

/* Time and room are linear in ops and edges but for storages with many partial writes; a flow is
 * made once per program and asked often, so that both directions of the edges are kept. */
lb_status lb_slice_flow_new(const lb_program *program, lb_slice_flow **out, lb_err *err)
{
    *out = NULL;
    lb_slice_flow *flow = calloc(1, sizeof *flow);
    builder builder = {.program = program, .flow = flow};
    bool ok = flow != NULL;
    if (ok) {
        flow->program = program;
        flow->first_def = malloc(((size_t)program->n_ops + 1) * sizeof *flow->first_def);
        builder.stamp = malloc(((size_t)program->n_ops + 1) * sizeof *builder.stamp);
        ok = flow->first_def && builder.stamp && number_storages(program, flow);
    }
    if (ok) {
        builder.latest = malloc(((size_t)flow->n_storages + 1) * sizeof *builder.latest);
        ok = builder.latest != NULL;
    }
    if (ok) {
        for (uint32_t i = 0; i < flow->n_storages; i++) builder.latest[i] = LB_NONE;
        /* Not 0, for op 0 is a reader, too. */
        for (uint32_t i = 0; i < program->n_ops; i++) builder.stamp[i] = LB_NONE;
        for (uint32_t i = 0; i < program->n_ops && !builder.failed; i++) link_op(&builder, i);
        flow->first_def[program->n_ops] = builder.n_defs;
        ok = !builder.failed && reverse_edges(flow, program->n_ops);
    }
    free(builder.writes);
    free(builder.latest);
    free(builder.stamp);
    if (ok) {
        *out = flow;
        return LB_OK;
    }
    lb_slice_flow_free(flow);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for the data flow of %u ops", program->n_ops);
}

void lb_slice_flow_free(lb_slice_flow *flow)
{
    if (!flow) return;
    free(flow->first_def);
    free(flow->defs);
    free(flow->first_use);
    free(flow->uses);
    free(flow->storage_of);
    free(flow->storages);
    free(flow);
}

/* ---- questions -------------------------------------------------------------------------------------------------- */

static bool writes_window(const lb_program *program, const lb_op *op, int64_t storage, int64_t first, int64_t last,
                          bool *covered)
{
    bool hit = false;
    for (uint32_t r = 0; r < op->results + op->written; r++) {
        uint32_t value = lb_op_outcome(program, op, r);
        /* A write of an op that the caller does not read from may be among its outcomes: a norm
         * gives its mean beside its result. */
        if (value == LB_NONE || program->values[value].storage != storage) continue;
        write write;
        extent(&program->values[value], &write.first, &write.last, &write.dense);
        if (!overlaps(&write, first, last)) continue;
        hit = true;
        *covered |= covers(&write, first, last);
    }
    return hit;
}

uint32_t lb_slice_flow_defs_of(const lb_slice_flow *flow, uint32_t op, uint32_t value, uint32_t *defs, uint32_t max)
{
    const lb_program *program = flow->program;
    int64_t first, last, storage = program->values[value].storage;
    bool dense, covered = false;
    uint32_t count = 0;
    extent(&program->values[value], &first, &last, &dense);
    /* Edges are per op and not per argument, which keeps them few; which of them belong to one
     * argument is found again by window, among the few that the op has. */
    for (uint32_t e = flow->first_def[op + 1]; e-- > flow->first_def[op] && !covered;) {
        uint32_t i = flow->defs[e];
        if (!writes_window(program, &program->ops[i], storage, first, last, &covered)) continue;
        if (count < max) defs[count] = i;
        count++;
    }
    return count;
}

void lb_slice_grow(const lb_slice_flow *flow, bool backward, uint32_t phases, const uint8_t *stop, uint8_t *marks)
{
    const lb_program *program = flow->program;
    const uint32_t *first = backward ? flow->first_def : flow->first_use, *edges = backward ? flow->defs : flow->uses;
    /* Edges go strictly backward (forward) in execution order, so one pass over the ops reaches everything. */
    for (uint32_t k = 0; k < program->n_ops; k++) {
        uint32_t i = backward ? program->n_ops - 1 - k : k;
        if (!marks[i]) continue;
        for (uint32_t e = first[i]; e < first[i + 1]; e++) {
            uint32_t to = edges[e];
            if (phases && !(phases >> program->ops[to].phase & 1)) continue;
            /* Held back at the edge and not at the op: an op that was marked by the caller is
             * passed even if it is one of `stop`. */
            if (stop && stop[to]) continue;
            marks[to] = 1;
        }
    }
}
