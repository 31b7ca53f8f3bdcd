/* Collectives over machines: see collective_run.h. */
#include "ranks/collective_run.h"

#include "machine/event.h"
#include "machine/rebase.h"
#include "ranks/collective_streams.h"
#include "ranks/recorded_order.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

/* ---- moving ----------------------------------------------------------------------------------------------------- */

/* A sum without some ranks stands for one with all of them: DDP sums what each rank has divided by the world. */
static void rescale(const lb_collective_streams *x, char *out, int64_t n, double factor)
{
    for (int64_t i = 0; i < n && lb_dtype_is_float(x->dtype); i++)
        lb_from_f64(x->dtype, out + (size_t)i * x->size, factor * lb_to_f64(x->dtype, out + (size_t)i * x->size), NULL);
}

/* Elements [from, from + n) of every member, reduced; members excluded by a swap are left out. `home`: 1 + who alone
 * receives them; 0. */
static lb_status reduce_range(lb_collective_streams *x, int64_t from, int64_t n, uint32_t home, char *out)
{
    const void **inputs = malloc((x->n + 1) * sizeof *inputs);
    if (!inputs) return lb_fail(x->err, LB_ERR_NOMEM, "out of memory for a collective");
    lb_collective_order order = x->order;
    uint32_t k = 0;
    for (uint32_t r = 0; r < x->n; r++) {
        if (!lb_collective_streams_excludes(&x->members[r]))
            inputs[k++] = x->members[r].stream + (size_t)from * x->size;
        if (home == r + 1) order.home = k; /* without the home, the ring ends at the one before it */
    }
    if (home && !order.home) order.home = k;
    lb_status status = LB_OK;
    if (k)
        status = lb_collective_reduce(&order, x->reduction, &(lb_rank_terms){inputs, k, x->dtype, n}, out, x->err);
    else
        memset(out, 0, (size_t)n * x->size);
    free(inputs);
    if (status == LB_OK && k && k < x->n && x->reduction == LB_REDUCE_SUM) rescale(x, out, n, (double)x->n / k);
    return status;
}

/* Where chunk `c` of member `m` lies in its stream: given splits of rows, one tensor per rank, or equal parts. */
static void chunk_range(const lb_collective_streams *x, const lb_stream_member *m, uint32_t input, uint32_t c,
                        int64_t *from, int64_t *n)
{
    int64_t whole = m->starts[input + 1] - m->starts[input];
    *from = m->starts[input] + whole / x->n * c;
    *n = whole / x->n;
    if (x->name->coalesced && m->inputs.n == x->n) {
        *from = m->starts[c];
        *n = m->starts[c + 1] - m->starts[c];
        return;
    }
    if (x->name->splits < 0 || (uint32_t)x->name->splits + 1 >= m->op->args) return;
    const lb_arg *splits = &lb_op_args(m->program, m->op)[x->name->splits + 1];
    const lb_layout *layout = &m->program->values[m->inputs.values[input]].layout;
    if (splits->tag != LB_ARG_LIST || splits->count != x->n || layout->ndim < 1) return;
    int64_t row = 1, at = 0;
    for (int d = 1; d < layout->ndim; d++) row *= layout->shape[d];
    for (uint32_t i = 0; i < c; i++) at += m->program->args[splits->u.first + i].u.i;
    *from = m->starts[input] + at * row;
    *n = m->program->args[splits->u.first + c].u.i * row;
}

/* Each rank's block by itself, as rings do it that end there. */
static lb_status reduce_blocks(lb_collective_streams *x, char *out)
{
    const lb_stream_member *m = &x->members[0];
    int64_t from, n;
    for (uint32_t i = 0; i < (x->name->coalesced ? 1 : m->inputs.n); i++)
        for (uint32_t c = 0; c < x->n; c++) {
            chunk_range(x, m, i, c, &from, &n);
            LB_TRY(reduce_range(x, from, n, c + 1, out + (size_t)from * x->size));
        }
    return LB_OK;
}

/* The whole reduction: each input tensor by itself, or all as one stream. */
static lb_status reduce_all(lb_collective_streams *x, char *out)
{
    const lb_stream_member *m = &x->members[0];
    const uint32_t home = x->name->kind == LB_EXCHANGE_REDUCE ? x->root + 1 : 0;
    const bool scatters = x->name->kind == LB_EXCHANGE_REDUCE_SCATTER;
    if (scatters && lb_collective_order_ends_at_home(&x->order) && m->inputs.n) return reduce_blocks(x, out);
    /* torch's gloo makes an all-reduce of each tensor of a reduce-scatter (seen with 2.13). */
    const bool each = scatters && x->order.kind == LB_ORDER_GLOO && m->inputs.n == x->n;
    if (x->name->coalesced && !each) return reduce_range(x, 0, lb_collective_streams_length(m), home, out);
    for (uint32_t i = 0; i < m->inputs.n; i++)
        LB_TRY(
            reduce_range(x, m->starts[i], m->starts[i + 1] - m->starts[i], home, out + (size_t)m->starts[i] * x->size));
    return LB_OK;
}

typedef struct receipt {
    lb_collective_move *list;
    uint32_t n;
    int64_t elements;
} receipt;

/* `from`: a member, or LB_NONE for the reduction of all. */
static lb_status receive(lb_collective_streams *x, receipt *r, uint32_t from, int64_t at, int64_t n, int64_t limit)
{
    lb_collective_move *more = lb_array_grow(r->list, r->n, sizeof *more);
    if (!more) return lb_fail(x->err, LB_ERR_NOMEM, "out of memory for a collective");
    r->list = more;
    if (n < 0 || at < 0 || at + n > limit)
        return lb_fail(x->err, LB_ERR_UNSUPPORTED,
                       "the sizes of a collective's inputs and outputs do not fit together");
    r->list[r->n++] = (lb_collective_move){from, at, n};
    r->elements += n;
    return LB_OK;
}

static lb_status receive_all(lb_collective_streams *x, receipt *out, uint32_t member)
{
    return receive(x, out, member, 0, lb_collective_streams_length(&x->members[member]),
                   lb_collective_streams_length(&x->members[member]));
}

/* What member `who` receives, in the order of its outputs. */
static lb_status assemble(lb_collective_streams *x, uint32_t who, receipt *out)
{
    const lb_stream_member *root = &x->members[x->root], *me = &x->members[who];
    int64_t from, n;
    switch (x->name->kind) {
    case LB_EXCHANGE_ALL_REDUCE:
    case LB_EXCHANGE_REDUCE:
        return receive(x, out, LB_NONE, 0, lb_collective_streams_length(&x->members[0]),
                       lb_collective_streams_length(&x->members[0]));
    case LB_EXCHANGE_BROADCAST: return receive_all(x, out, x->root);
    case LB_EXCHANGE_ALL_GATHER:
    case LB_EXCHANGE_GATHER:
        for (uint32_t r = 0; r < x->n && x->name->coalesced;
             r++) /* output lists: one per rank, each with every tensor */
            LB_TRY(receive_all(x, out, r));
        for (uint32_t i = 0; i < me->inputs.n && !x->name->coalesced; i++)
            for (uint32_t r = 0; r < x->n; r++) {
                const lb_stream_member *m = &x->members[r];
                if (i >= m->inputs.n) continue;
                LB_TRY(
                    receive(x, out, r, m->starts[i], m->starts[i + 1] - m->starts[i], lb_collective_streams_length(m)));
            }
        return LB_OK;
    case LB_EXCHANGE_REDUCE_SCATTER:
        for (uint32_t i = 0; i < (x->name->coalesced ? 1 : me->inputs.n); i++) {
            chunk_range(x, me, i, who, &from, &n);
            LB_TRY(receive(x, out, LB_NONE, from, n, lb_collective_streams_length(me)));
        }
        return LB_OK;
    case LB_EXCHANGE_SCATTER:
        if (x->name->nccl && root->inputs.n == 1) { /* one buffer with a block for each */
            chunk_range(x, root, 0, who, &from, &n);
            return receive(x, out, x->root, from, n, lb_collective_streams_length(root));
        }
        if (root->inputs.n != x->n) break;
        return receive(x, out, x->root, root->starts[who], root->starts[who + 1] - root->starts[who],
                       lb_collective_streams_length(root));
    case LB_EXCHANGE_ALL_TO_ALL:
        for (uint32_t r = 0; r < x->n; r++) {
            chunk_range(x, &x->members[r], 0, who, &from, &n);
            LB_TRY(receive(x, out, r, from, n, lb_collective_streams_length(&x->members[r])));
        }
        return LB_OK;
    case LB_EXCHANGE_NOTHING: return LB_OK;
    }
    return lb_fail(x->err, LB_ERR_UNSUPPORTED, "the lists of a collective do not fit its group");
}

static bool receives(const lb_collective_streams *x, uint32_t who)
{
    return lb_collective_name_is_received(x->name, x->root, who);
}

/* Only of streams that were widened, and not where another dimension than the first is cut. */
static void show(const lb_collective_streams *x, const lb_stream_member *m, uint32_t value, const char *bytes)
{
    const lb_layout *layout = &m->program->values[value].layout;
    const lb_tensor exact = {(char *)(uintptr_t)bytes, x->dtype, lb_layout_contiguous(layout->ndim, layout->shape)};
    if (x->dtype == LB_F64 && !x->name->dim) lb_event_show(m->machine, value, &exact);
}

static lb_status spread(lb_collective_streams *x, const lb_stream_member *m, const char *bytes, int64_t received)
{
    int64_t at = 0;
    for (uint32_t i = 0; i < m->outputs.n; i++) {
        uint32_t v = m->outputs.values[i];
        lb_tensor window;
        int64_t n = lb_layout_numel(&m->program->values[v].layout);
        if (at + n > received)
            return lb_fail(x->err, LB_ERR_UNSUPPORTED, "a collective's outputs are larger than what it moves");
        if (x->shows) {
            show(x, m, v, bytes + (size_t)at * x->size);
            at += n;
            continue;
        }
        LB_TRY(lb_machine_output(m->machine, v, &window, x->err));
        window = lb_collective_streams_cut_in_front(x, m, window);
        lb_tensor dense = {(char *)bytes + (size_t)at * x->size, x->dtype,
                           lb_layout_contiguous(window.layout.ndim, window.layout.shape)};
        lb_memory_tensor_copy(&window, &dense, NULL);
        at += n;
    }
    return LB_OK;
}

/* `reduced`: of the whole streams. */
static lb_status deliver(lb_collective_streams *x, uint32_t who, const char *reduced)
{
    receipt got = {0};
    int64_t room = 0;
    for (uint32_t i = 0; i < x->members[who].outputs.n; i++)
        room += lb_layout_numel(&x->members[who].program->values[x->members[who].outputs.values[i]].layout);
    lb_status status = assemble(x, who, &got);
    if (status == LB_OK && got.elements > room)
        status =
            lb_fail(x->err, LB_ERR_UNSUPPORTED, "the sizes of a collective's inputs and outputs do not fit together");
    char *bytes = status == LB_OK ? malloc((size_t)(got.elements + 1) * x->size) : NULL, *to = bytes;
    if (status == LB_OK && !bytes) status = lb_fail(x->err, LB_ERR_NOMEM, "out of memory for a collective");
    for (uint32_t i = 0; i < got.n && bytes; i++) {
        const lb_collective_move *move = &got.list[i];
        const char *stream = move->member == LB_NONE ? reduced : x->members[move->member].stream;
        memcpy(to, stream + (size_t)move->first * x->size, (size_t)move->n * x->size);
        to += (size_t)move->n * x->size;
    }
    if (bytes) status = spread(x, &x->members[who], bytes, got.elements);
    free(bytes), free(got.list);
    return status;
}

/* ---- the order that was recorded --------------------------------------------------------------------------------- */

static lb_status reduce_in(void *context, const lb_collective_order *order, char *out)
{
    lb_collective_streams *x = context;
    const lb_collective_order own = x->order;
    x->order = *order;
    const lb_status status = reduce_all(x, out);
    x->order = own;
    return status;
}

/* What member `who` recorded, as parts of the reduction; false: it was not kept, or it is no part. */
static lb_status add_recorded(lb_collective_streams *x, uint32_t who, lb_recorded_sum *sum, bool *whole)
{
    const lb_stream_member *m = &x->members[who];
    receipt got = {0};
    lb_status status = assemble(x, who, &got);
    *whole = status == LB_OK && got.n == m->outputs.n;
    for (uint32_t i = 0; i < got.n && *whole; i++) {
        const lb_collective_move *move = &got.list[i];
        lb_tensor recorded;
        *whole = move->member == LB_NONE && lb_rebase_recorded(m->machine, m->outputs.values[i], &recorded) &&
                 recorded.dtype == x->dtype && lb_layout_numel(&recorded.layout) == move->n;
        if (!*whole) break;
        recorded = lb_collective_streams_cut_in_front(x, m, recorded);
        lb_recorded_part *part = &sum->parts[sum->n_parts];
        *part = (lb_recorded_part){move->first, move->n, malloc((size_t)(move->n + 1) * x->size),
                                   calloc((size_t)move->n + 1, sizeof(bool))};
        if (!part->bytes || !part->legal) status = lb_fail(x->err, LB_ERR_NOMEM, "out of memory for a collective");
        if (status == LB_OK) status = lb_tensor_gather(&recorded, part->bytes, x->err);
        sum->n_parts++;
        *whole = status == LB_OK;
    }
    free(got.list);
    return status == LB_ERR_NOMEM ? status : LB_OK;
}

/* Only what replay computed as it was recorded is compared: another order, or other inputs, is another question. */
static bool is_as_recorded(const lb_collective_streams *x)
{
    const lb_machine *first = x->members[0].machine;
    bool as = x->known.exact && !x->known.swapped && !first->is_shadow && !x->shows;
    for (uint32_t r = 0; r < x->n; r++) as &= !x->members[r].choice->order && !x->members[r].choice->swapped;
    return as && (first->run->plan->compare || first->run->plan->mode == LB_REPLAY_ISOLATED);
}

static lb_status recognise(lb_collective_streams *x, const char *reduced)
{
    lb_recorded_sum sum = {.reduction = x->reduction, .reduce = reduce_in, .context = x};
    const int64_t count = lb_collective_streams_length(&x->members[0]);
    const void **inputs = malloc((x->n + 1) * sizeof *inputs);
    uint32_t room = 1;
    bool whole = true;
    for (uint32_t r = 0; r < x->n; r++) room += x->members[r].outputs.n;
    sum.parts = calloc(room, sizeof *sum.parts);
    char *other = malloc((size_t)(count + 1) * x->size);
    lb_status status = inputs && sum.parts && other
                           ? LB_OK
                           : lb_fail(x->err, LB_ERR_NOMEM, "out of memory for a collective over %u ranks", x->n);
    for (uint32_t r = 0; r < x->n && status == LB_OK && whole; r++) {
        inputs[r] = x->members[r].stream;
        if (receives(x, r)) status = add_recorded(x, r, &sum, &whole);
    }
    sum.terms = (lb_rank_terms){inputs, x->n, x->dtype, count};
    if (status == LB_OK && whole && sum.n_parts && !lb_recorded_order_gives(&sum, reduced))
        status = lb_recorded_order_find(&sum, other, &x->sum);
    for (uint32_t p = 0; p < sum.n_parts; p++) free(sum.parts[p].bytes), free(sum.parts[p].legal);
    free(sum.parts), free(inputs), free(other);
    return status;
}

/* ---- all of it -------------------------------------------------------------------------------------------------- */

/* vLLM's and SGLang's custom_all_reduce.cuh, among GPUs that all reach each other: what is small each rank adds up
 * whole, in rank order; what is large in parts, each from its own rank on; in f32 both times, so that f32 is rounded at
 * every addition. */
static lb_collective_order_kind order_by_size(const lb_collective_streams *x)
{
    const int64_t bytes = lb_collective_streams_length(&x->members[0]) * (int64_t)x->size;
    const bool whole = x->n == 2 || (x->n <= 4 && bytes < 512 * 1024) || (x->n <= 8 && bytes < 256 * 1024);
    if (x->dtype == LB_F32) return whole ? LB_ORDER_RANK : LB_ORDER_MPI_RING;
    return whole ? LB_ORDER_WIDE : LB_ORDER_ROTATED;
}

static void read_attributes(lb_collective_streams *x)
{
    const lb_stream_member *m = &x->members[0];
    const lb_prepared_op *prepared = &m->machine->prepared->ops[m->machine->next];
    x->reduction = LB_REDUCE_SUM;
    x->order = (lb_collective_order)LB_ORDER_INIT;
    if (x->name->shared_memory) x->order.kind = order_by_size(x);
    if (x->name->nccl) x->order.kind = LB_ORDER_RING;
    if (prepared->collective != LB_NONE) {
        const lb_collective *row = &m->program->collectives[prepared->collective];
        const char *reduce = lb_program_text(m->program, row->reduce);
        x->premultiplied = !strcmp(reduce, "premul_sum");
        lb_collective_reduction_parse(reduce, &x->reduction);
        if (row->algorithm != LB_NONE)
            lb_collective_order_parse(lb_program_text(m->program, row->algorithm), &x->order, NULL);
    }
    for (uint32_t r = 0; r < x->n; r++)
        if (x->members[r].choice->order) lb_collective_order_parse(x->members[r].choice->order, &x->order, NULL);
    const uint32_t root = lb_collective_name_root(x->name, m->program, m->op);
    if (root < x->n) x->root = root;
}

static lb_status run_streams(lb_collective_streams *x)
{
    char *reduced = NULL;
    bool reduces = x->name->kind == LB_EXCHANGE_ALL_REDUCE || x->name->kind == LB_EXCHANGE_REDUCE ||
                   x->name->kind == LB_EXCHANGE_REDUCE_SCATTER;
    lb_status status = LB_OK;
    for (uint32_t r = 0; r < x->n && status == LB_OK; r++) {
        status = lb_collective_streams_fill(x, &x->members[r]);
        if (status == LB_OK && lb_collective_streams_is_undefined(x, &x->members[r]))
            status = lb_fail(x->err, LB_ERR_UNSUPPORTED, "a member contributes bytes that nothing was seen to write");
        if (status == LB_OK && reduces &&
            lb_collective_streams_length(&x->members[r]) != lb_collective_streams_length(&x->members[0]))
            status = lb_fail(x->err, LB_ERR_UNSUPPORTED, "the members of a reduction bring different sizes");
    }
    if (status == LB_OK && x->known.missing) return LB_OK;
    for (uint32_t r = 0; r < x->n && status == LB_OK && reduces && x->premultiplied; r++)
        status = lb_collective_streams_multiply(x, &x->members[r]);
    if (status == LB_OK) status = lb_collective_streams_swap(x);
    if (status == LB_OK && reduces) {
        reduced = malloc((size_t)(lb_collective_streams_length(&x->members[0]) + 1) * x->size);
        status = reduced ? reduce_all(x, reduced) : lb_fail(x->err, LB_ERR_NOMEM, "out of memory for a collective");
        if (status == LB_OK && is_as_recorded(x)) status = recognise(x, reduced);
    }
    for (uint32_t r = 0; r < x->n && status == LB_OK; r++) {
        if (receives(x, r)) status = deliver(x, r, reduced);
    }
    free(reduced);
    return status;
}

lb_status lb_collective_run_run(lb_machine *const *machines, uint32_t n, lb_err *err)
{
    lb_err local = LB_ERR_INIT;
    lb_collective_streams x = {.n = n, .known = LB_INPUTS_INIT, .err = &local, .members = calloc(n, sizeof *x.members)};
    lb_status status = x.members ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective");
    for (uint32_t r = 0; status == LB_OK && r < n; r++) {
        const lb_program *program = machines[r]->prepared->program;
        x.members[r] = (lb_stream_member){.machine = machines[r],
                                          .program = program,
                                          .op = &program->ops[machines[r]->next],
                                          .choice = lb_machine_choice(machines[r])};
        const lb_collective_name *name = lb_collective_name_find(lb_op_name(program, x.members[r].op));
        if (r == 0) x.name = name;
        if (!name || name->kind != x.name->kind)
            status = LB_ERR_UNSUPPORTED;
        else
            status = lb_collective_streams_collect(&x, &x.members[r]);
    }
    if (status == LB_OK) {
        x.shows = lb_event_shows_alone(machines[0]);
        x.dtype = lb_collective_streams_dtype(&x);
        x.size = lb_dtype_bits(x.dtype) / 8;
        read_attributes(&x);
        for (uint32_t r = 0; r < n; r++) x.known.swapped |= x.members[r].choice->swapped;
        status = x.size ? run_streams(&x) : LB_ERR_UNSUPPORTED;
    }
    for (uint32_t r = 0; r < n; r++) {
        if (status == LB_ERR_NOMEM || status == LB_ERR_LIMIT) break;
        lb_status end = status == LB_OK && receives(&x, r) && !x.shows
                            ? lb_machine_finish(machines[r], &x.known, &x.sum, err)
                            : lb_machine_stand_in(machines[r], err);
        if (end != LB_OK) {
            lb_collective_streams_release(&x);
            return end;
        }
    }
    lb_collective_streams_release(&x);
    if (status == LB_ERR_NOMEM || status == LB_ERR_LIMIT) return lb_fail(err, status, "%s", local.message);
    return LB_OK;
}

/* ---- told, and not run ------------------------------------------------------------------------------------------ */

/* Cut along another dimension than the first, or multiplied before it is added: moves do not say that. */
static bool says_moves(const lb_collective_streams *x)
{
    const uint32_t dim = (uint32_t)x->name->dim;
    for (uint32_t r = 0; r < x->n; r++) {
        const lb_stream_member *m = &x->members[r];
        if (dim && dim < m->op->args && lb_op_args(m->program, m->op)[dim].tag == LB_ARG_INT &&
            lb_op_args(m->program, m->op)[dim].u.i != 0)
            return false;
    }
    return !x->name->nccl || x->name->kind == LB_EXCHANGE_ALL_GATHER || x->name->kind == LB_EXCHANGE_BROADCAST;
}

static lb_status tell(lb_collective_streams *x, lb_collective_told *told)
{
    lb_status status = LB_OK;
    for (uint32_t r = 0; r < x->n && status == LB_OK; r++) {
        receipt got = {0};
        if (receives(x, r)) status = assemble(x, r, &got);
        told[r].moves = got.list, told[r].n_moves = got.n;
    }
    for (uint32_t r = 0; r < x->n; r++) {
        lb_stream_member *m = &x->members[r];
        told[r].inputs = m->inputs.values, told[r].n_inputs = m->inputs.n;
        told[r].outputs = m->outputs.values, told[r].n_outputs = m->outputs.n;
        m->inputs.values = m->outputs.values = NULL;
    }
    return status;
}

lb_status lb_collective_run_tell(const lb_program *const *programs, const uint32_t *ops, uint32_t n,
                                 lb_collective_told *told, lb_err *err)
{
    lb_collective_streams x = {.n = n, .err = err, .members = calloc(n, sizeof *x.members)};
    lb_status status = x.members ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective");
    memset(told, 0, n * sizeof *told);
    for (uint32_t r = 0; r < n && status == LB_OK; r++) {
        x.members[r] = (lb_stream_member){.program = programs[r], .op = &programs[r]->ops[ops[r]]};
        const lb_collective_name *name = lb_collective_name_find(lb_op_name(programs[r], x.members[r].op));
        if (r == 0) x.name = name;
        status = name && name->kind == x.name->kind ? lb_collective_streams_collect(&x, &x.members[r])
                                                    : lb_fail(err, LB_ERR_UNSUPPORTED, "not one collective");
    }
    if (status == LB_OK) {
        const uint32_t root = lb_collective_name_root(x.name, x.members[0].program, x.members[0].op);
        if (root < n) x.root = root;
        status = says_moves(&x) ? tell(&x, told)
                                : lb_fail(err, LB_ERR_UNSUPPORTED, "a collective that does more than move elements");
    }
    lb_collective_streams_release(&x);
    if (status != LB_OK) lb_collective_told_release(told, n);
    return status;
}

void lb_collective_told_release(lb_collective_told *told, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++) free(told[r].inputs), free(told[r].outputs), free(told[r].moves);
    memset(told, 0, n * sizeof *told);
}
