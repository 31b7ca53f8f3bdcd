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
static void rescale(const lb_collective_streams *streams, char *out, int64_t n, double factor)
{
    for (int64_t i = 0; i < n && lb_dtype_is_float(streams->dtype); i++)
        lb_from_f64(streams->dtype, out + (size_t)i * streams->size,
                    factor * lb_to_f64(streams->dtype, out + (size_t)i * streams->size), NULL);
}

/* Elements [from, from + n) of every member, reduced; members excluded by a swap are left out. `home`: 1 + who alone
 * receives them; 0. */
static lb_status reduce_range(lb_collective_streams *streams, int64_t from, int64_t n, uint32_t home, char *out)
{
    const void **inputs = malloc((streams->n + 1) * sizeof *inputs);
    if (!inputs) return lb_fail(streams->err, LB_ERR_NOMEM, "out of memory for a collective");
    lb_collective_order order = streams->order;
    uint32_t k = 0;
    for (uint32_t r = 0; r < streams->n; r++) {
        if (!lb_collective_streams_excludes(&streams->members[r]))
            inputs[k++] = streams->members[r].stream + (size_t)from * streams->size;
        if (home == r + 1) order.home = k; /* without the home, the ring ends at the one before it */
    }
    if (home && !order.home) order.home = k;
    lb_status status = LB_OK;
    if (k)
        status = lb_collective_reduce(&order, streams->reduction, &(lb_rank_terms){inputs, k, streams->dtype, n}, out,
                                      streams->err);
    else
        memset(out, 0, (size_t)n * streams->size);
    free(inputs);
    if (status == LB_OK && k && k < streams->n && streams->reduction == LB_REDUCE_SUM)
        rescale(streams, out, n, (double)streams->n / k);
    return status;
}

/* Where chunk `c` of `member` lies in its stream: given splits of rows, one tensor per rank, or equal parts. */
static void chunk_range(const lb_collective_streams *streams, const lb_stream_member *member, uint32_t input,
                        uint32_t chunk, int64_t *from, int64_t *n)
{
    int64_t whole = member->starts[input + 1] - member->starts[input];
    *from = member->starts[input] + whole / streams->n * chunk;
    *n = whole / streams->n;
    if (streams->name->coalesced && member->inputs.n == streams->n) {
        *from = member->starts[chunk];
        *n = member->starts[chunk + 1] - member->starts[chunk];
        return;
    }
    if (streams->name->splits < 0 || (uint32_t)streams->name->splits + 1 >= member->op->args) return;
    const lb_arg *splits = &lb_op_args(member->program, member->op)[streams->name->splits + 1];
    const lb_layout *layout = &member->program->values[member->inputs.values[input]].layout;
    if (splits->tag != LB_ARG_LIST || splits->count != streams->n || layout->ndim < 1) return;
    int64_t row = 1, at = 0;
    for (int d = 1; d < layout->ndim; d++) row *= layout->shape[d];
    for (uint32_t i = 0; i < chunk; i++) at += member->program->args[splits->u.first + i].u.i;
    *from = member->starts[input] + at * row;
    *n = member->program->args[splits->u.first + chunk].u.i * row;
}

/* Each rank's block by itself, as rings do it that end there. */
static lb_status reduce_blocks(lb_collective_streams *streams, char *out)
{
    const lb_stream_member *member = &streams->members[0];
    int64_t from, n;
    for (uint32_t i = 0; i < (streams->name->coalesced ? 1 : member->inputs.n); i++)
        for (uint32_t c = 0; c < streams->n; c++) {
            chunk_range(streams, member, i, c, &from, &n);
            LB_TRY(reduce_range(streams, from, n, c + 1, out + (size_t)from * streams->size));
        }
    return LB_OK;
}

/* The whole reduction: each input tensor by itself, or all as one stream. */
static lb_status reduce_all(lb_collective_streams *streams, char *out)
{
    const lb_stream_member *member = &streams->members[0];
    const uint32_t home = streams->name->kind == LB_EXCHANGE_REDUCE ? streams->root + 1 : 0;
    const bool scatters = streams->name->kind == LB_EXCHANGE_REDUCE_SCATTER;
    if (scatters && lb_collective_order_ends_at_home(&streams->order) && member->inputs.n)
        return reduce_blocks(streams, out);
    /* torch's gloo makes an all-reduce of each tensor of a reduce-scatter (seen with 2.13). */
    const bool each = scatters && streams->order.kind == LB_ORDER_GLOO && member->inputs.n == streams->n;
    if (streams->name->coalesced && !each)
        return reduce_range(streams, 0, lb_collective_streams_length(member), home, out);
    for (uint32_t i = 0; i < member->inputs.n; i++)
        LB_TRY(reduce_range(streams, member->starts[i], member->starts[i + 1] - member->starts[i], home,
                            out + (size_t)member->starts[i] * streams->size));
    return LB_OK;
}

typedef struct receipt {
    lb_collective_move *list;
    uint32_t n;
    int64_t elements;
} receipt;

/* `from`: a member, or LB_NONE for the reduction of all. */
static lb_status receive(lb_collective_streams *streams, receipt *receipt, uint32_t from, int64_t at, int64_t n,
                         int64_t limit)
{
    lb_collective_move *more = lb_array_grow(receipt->list, receipt->n, sizeof *more);
    if (!more) return lb_fail(streams->err, LB_ERR_NOMEM, "out of memory for a collective");
    receipt->list = more;
    if (n < 0 || at < 0 || at + n > limit)
        return lb_fail(streams->err, LB_ERR_UNSUPPORTED,
                       "the sizes of a collective's inputs and outputs do not fit together");
    receipt->list[receipt->n++] = (lb_collective_move){from, at, n};
    receipt->elements += n;
    return LB_OK;
}

static lb_status receive_all(lb_collective_streams *streams, receipt *out, uint32_t member)
{
    return receive(streams, out, member, 0, lb_collective_streams_length(&streams->members[member]),
                   lb_collective_streams_length(&streams->members[member]));
}

/* What member `who` receives, in the order of its outputs. */
static lb_status assemble(lb_collective_streams *streams, uint32_t who, receipt *out)
{
    const lb_stream_member *root = &streams->members[streams->root], *me = &streams->members[who];
    int64_t from, n;
    switch (streams->name->kind) {
    case LB_EXCHANGE_ALL_REDUCE:
    case LB_EXCHANGE_REDUCE:
        return receive(streams, out, LB_NONE, 0, lb_collective_streams_length(&streams->members[0]),
                       lb_collective_streams_length(&streams->members[0]));
    case LB_EXCHANGE_BROADCAST: return receive_all(streams, out, streams->root);
    case LB_EXCHANGE_ALL_GATHER:
    case LB_EXCHANGE_GATHER:
        for (uint32_t r = 0; r < streams->n && streams->name->coalesced;
             r++) /* output lists: one per rank, each with every tensor */
            LB_TRY(receive_all(streams, out, r));
        for (uint32_t i = 0; i < me->inputs.n && !streams->name->coalesced; i++)
            for (uint32_t r = 0; r < streams->n; r++) {
                const lb_stream_member *member = &streams->members[r];
                if (i >= member->inputs.n) continue;
                LB_TRY(receive(streams, out, r, member->starts[i], member->starts[i + 1] - member->starts[i],
                               lb_collective_streams_length(member)));
            }
        return LB_OK;
    case LB_EXCHANGE_REDUCE_SCATTER:
        for (uint32_t i = 0; i < (streams->name->coalesced ? 1 : me->inputs.n); i++) {
            chunk_range(streams, me, i, who, &from, &n);
            LB_TRY(receive(streams, out, LB_NONE, from, n, lb_collective_streams_length(me)));
        }
        return LB_OK;
    case LB_EXCHANGE_SCATTER:
        if (streams->name->nccl && root->inputs.n == 1) { /* one buffer with a block for each */
            chunk_range(streams, root, 0, who, &from, &n);
            return receive(streams, out, streams->root, from, n, lb_collective_streams_length(root));
        }
        if (root->inputs.n != streams->n) break;
        return receive(streams, out, streams->root, root->starts[who], root->starts[who + 1] - root->starts[who],
                       lb_collective_streams_length(root));
    case LB_EXCHANGE_ALL_TO_ALL:
        for (uint32_t r = 0; r < streams->n; r++) {
            chunk_range(streams, &streams->members[r], 0, who, &from, &n);
            LB_TRY(receive(streams, out, r, from, n, lb_collective_streams_length(&streams->members[r])));
        }
        return LB_OK;
    case LB_EXCHANGE_NOTHING: return LB_OK;
    }
    return lb_fail(streams->err, LB_ERR_UNSUPPORTED, "the lists of a collective do not fit its group");
}

static bool receives(const lb_collective_streams *streams, uint32_t who)
{
    return lb_collective_name_is_received(streams->name, streams->root, who);
}

/* Only of streams that were widened, and not where another dimension than the first is cut. */
static void show(const lb_collective_streams *streams, const lb_stream_member *member, uint32_t value,
                 const char *bytes)
{
    const lb_layout *layout = &member->program->values[value].layout;
    const lb_tensor exact = {(char *)(uintptr_t)bytes, streams->dtype,
                             lb_layout_contiguous(layout->ndim, layout->shape)};
    if (streams->dtype == LB_F64 && !streams->name->dim) lb_event_show(member->machine, value, &exact);
}

static lb_status spread(lb_collective_streams *streams, const lb_stream_member *member, const char *bytes,
                        int64_t received)
{
    int64_t at = 0;
    for (uint32_t i = 0; i < member->outputs.n; i++) {
        uint32_t value = member->outputs.values[i];
        lb_tensor window;
        int64_t n = lb_layout_numel(&member->program->values[value].layout);
        if (at + n > received)
            return lb_fail(streams->err, LB_ERR_UNSUPPORTED, "a collective's outputs are larger than what it moves");
        if (streams->shows) {
            show(streams, member, value, bytes + (size_t)at * streams->size);
            at += n;
            continue;
        }
        LB_TRY(lb_machine_output(member->machine, value, &window, streams->err));
        window = lb_collective_streams_cut_in_front(streams, member, window);
        lb_tensor dense = {(char *)bytes + (size_t)at * streams->size, streams->dtype,
                           lb_layout_contiguous(window.layout.ndim, window.layout.shape)};
        lb_memory_tensor_copy(&window, &dense, NULL);
        at += n;
    }
    return LB_OK;
}

/* `reduced`: of the whole streams. */
static lb_status deliver(lb_collective_streams *streams, uint32_t who, const char *reduced)
{
    receipt got = {0};
    int64_t room = 0;
    for (uint32_t i = 0; i < streams->members[who].outputs.n; i++)
        room += lb_layout_numel(&streams->members[who].program->values[streams->members[who].outputs.values[i]].layout);
    lb_status status = assemble(streams, who, &got);
    if (status == LB_OK && got.elements > room)
        status = lb_fail(streams->err, LB_ERR_UNSUPPORTED,
                         "the sizes of a collective's inputs and outputs do not fit together");
    char *bytes = status == LB_OK ? malloc((size_t)(got.elements + 1) * streams->size) : NULL, *to = bytes;
    if (status == LB_OK && !bytes) status = lb_fail(streams->err, LB_ERR_NOMEM, "out of memory for a collective");
    for (uint32_t i = 0; i < got.n && bytes; i++) {
        const lb_collective_move *move = &got.list[i];
        const char *stream = move->member == LB_NONE ? reduced : streams->members[move->member].stream;
        memcpy(to, stream + (size_t)move->first * streams->size, (size_t)move->n * streams->size);
        to += (size_t)move->n * streams->size;
    }
    if (bytes) status = spread(streams, &streams->members[who], bytes, got.elements);
    free(bytes), free(got.list);
    return status;
}

/* ---- the order that was recorded --------------------------------------------------------------------------------- */

static lb_status reduce_in(void *context, const lb_collective_order *order, char *out)
{
    lb_collective_streams *streams = context;
    const lb_collective_order own = streams->order;
    streams->order = *order;
    const lb_status status = reduce_all(streams, out);
    streams->order = own;
    return status;
}

/* What member `who` recorded, as parts of the reduction; false: it was not kept, or it is no part. */
static lb_status add_recorded(lb_collective_streams *streams, uint32_t who, lb_recorded_sum *sum, bool *whole)
{
    const lb_stream_member *member = &streams->members[who];
    receipt got = {0};
    lb_status status = assemble(streams, who, &got);
    *whole = status == LB_OK && got.n == member->outputs.n;
    for (uint32_t i = 0; i < got.n && *whole; i++) {
        const lb_collective_move *move = &got.list[i];
        lb_tensor recorded;
        *whole = move->member == LB_NONE && lb_rebase_recorded(member->machine, member->outputs.values[i], &recorded) &&
                 recorded.dtype == streams->dtype && lb_layout_numel(&recorded.layout) == move->n;
        if (!*whole) break;
        recorded = lb_collective_streams_cut_in_front(streams, member, recorded);
        lb_recorded_part *part = &sum->parts[sum->n_parts];
        *part = (lb_recorded_part){move->first, move->n, malloc((size_t)(move->n + 1) * streams->size),
                                   calloc((size_t)move->n + 1, sizeof(bool))};
        if (!part->bytes || !part->legal)
            status = lb_fail(streams->err, LB_ERR_NOMEM, "out of memory for a collective");
        if (status == LB_OK) status = lb_tensor_gather(&recorded, part->bytes, streams->err);
        sum->n_parts++;
        *whole = status == LB_OK;
    }
    free(got.list);
    return status == LB_ERR_NOMEM ? status : LB_OK;
}

/* Only what replay computed as it was recorded is compared: another order, or other inputs, is another question. */
static bool is_as_recorded(const lb_collective_streams *streams)
{
    const lb_machine *first = streams->members[0].machine;
    bool as = streams->known.exact && !streams->known.swapped && !first->is_shadow && !streams->shows;
    for (uint32_t r = 0; r < streams->n; r++)
        as &= !streams->members[r].choice->order && !streams->members[r].choice->swapped;
    return as && (first->run->plan->compare || first->run->plan->mode == LB_REPLAY_ISOLATED);
}

static lb_status recognise(lb_collective_streams *streams, const char *reduced)
{
    lb_recorded_sum sum = {.reduction = streams->reduction, .reduce = reduce_in, .context = streams};
    const int64_t count = lb_collective_streams_length(&streams->members[0]);
    const void **inputs = malloc((streams->n + 1) * sizeof *inputs);
    uint32_t room = 1;
    bool whole = true;
    for (uint32_t r = 0; r < streams->n; r++) room += streams->members[r].outputs.n;
    sum.parts = calloc(room, sizeof *sum.parts);
    char *other = malloc((size_t)(count + 1) * streams->size);
    lb_status status =
        inputs && sum.parts && other
            ? LB_OK
            : lb_fail(streams->err, LB_ERR_NOMEM, "out of memory for a collective over %u ranks", streams->n);
    for (uint32_t r = 0; r < streams->n && status == LB_OK && whole; r++) {
        inputs[r] = streams->members[r].stream;
        if (receives(streams, r)) status = add_recorded(streams, r, &sum, &whole);
    }
    sum.terms = (lb_rank_terms){inputs, streams->n, streams->dtype, count};
    if (status == LB_OK && whole && sum.n_parts && !lb_recorded_order_gives(&sum, reduced))
        status = lb_recorded_order_find(&sum, other, &streams->sum);
    for (uint32_t p = 0; p < sum.n_parts; p++) free(sum.parts[p].bytes), free(sum.parts[p].legal);
    free(sum.parts), free(inputs), free(other);
    return status;
}

/* ---- all of it -------------------------------------------------------------------------------------------------- */

/* vLLM's and SGLang's custom_all_reduce.cuh, among GPUs that all reach each other: what is small each rank adds up
 * whole, in rank order; what is large in parts, each from its own rank on; in f32 both times, so that f32 is rounded at
 * every addition. */
static lb_collective_order_kind order_by_size(const lb_collective_streams *streams)
{
    const int64_t bytes = lb_collective_streams_length(&streams->members[0]) * (int64_t)streams->size;
    const bool whole =
        streams->n == 2 || (streams->n <= 4 && bytes < 512 * 1024) || (streams->n <= 8 && bytes < 256 * 1024);
    if (streams->dtype == LB_F32) return whole ? LB_ORDER_RANK : LB_ORDER_MPI_RING;
    return whole ? LB_ORDER_WIDE : LB_ORDER_ROTATED;
}

static void read_attributes(lb_collective_streams *streams)
{
    const lb_stream_member *member = &streams->members[0];
    const lb_prepared_op *prepared = &member->machine->prepared->ops[member->machine->next];
    streams->reduction = LB_REDUCE_SUM;
    streams->order = (lb_collective_order)LB_ORDER_INIT;
    if (streams->name->shared_memory) streams->order.kind = order_by_size(streams);
    if (streams->name->nccl) streams->order.kind = LB_ORDER_RING;
    if (prepared->collective != LB_NONE) {
        const lb_collective *row = &member->program->collectives[prepared->collective];
        const char *reduce = lb_program_text(member->program, row->reduce);
        streams->premultiplied = !strcmp(reduce, "premul_sum");
        lb_collective_reduction_parse(reduce, &streams->reduction);
        if (row->algorithm != LB_NONE)
            lb_collective_order_parse(lb_program_text(member->program, row->algorithm), &streams->order, NULL);
    }
    for (uint32_t r = 0; r < streams->n; r++)
        if (streams->members[r].choice->order)
            lb_collective_order_parse(streams->members[r].choice->order, &streams->order, NULL);
    const uint32_t root = lb_collective_name_root(streams->name, member->program, member->op);
    if (root < streams->n) streams->root = root;
}

static lb_status run_streams(lb_collective_streams *streams)
{
    char *reduced = NULL;
    bool reduces = streams->name->kind == LB_EXCHANGE_ALL_REDUCE || streams->name->kind == LB_EXCHANGE_REDUCE ||
                   streams->name->kind == LB_EXCHANGE_REDUCE_SCATTER;
    lb_status status = LB_OK;
    for (uint32_t r = 0; r < streams->n && status == LB_OK; r++) {
        status = lb_collective_streams_fill(streams, &streams->members[r]);
        if (status == LB_OK && lb_collective_streams_is_undefined(streams, &streams->members[r]))
            status =
                lb_fail(streams->err, LB_ERR_UNSUPPORTED, "a member contributes bytes that nothing was seen to write");
        if (status == LB_OK && reduces &&
            lb_collective_streams_length(&streams->members[r]) != lb_collective_streams_length(&streams->members[0]))
            status = lb_fail(streams->err, LB_ERR_UNSUPPORTED, "the members of a reduction bring different sizes");
    }
    if (status == LB_OK && streams->known.missing) return LB_OK;
    for (uint32_t r = 0; r < streams->n && status == LB_OK && reduces && streams->premultiplied; r++)
        status = lb_collective_streams_multiply(streams, &streams->members[r]);
    if (status == LB_OK) status = lb_collective_streams_swap(streams);
    if (status == LB_OK && reduces) {
        reduced = malloc((size_t)(lb_collective_streams_length(&streams->members[0]) + 1) * streams->size);
        status = reduced ? reduce_all(streams, reduced)
                         : lb_fail(streams->err, LB_ERR_NOMEM, "out of memory for a collective");
        if (status == LB_OK && is_as_recorded(streams)) status = recognise(streams, reduced);
    }
    for (uint32_t r = 0; r < streams->n && status == LB_OK; r++) {
        if (receives(streams, r)) status = deliver(streams, r, reduced);
    }
    free(reduced);
    return status;
}

lb_status lb_collective_run_run(lb_machine *const *members, uint32_t n, lb_err *err)
{
    lb_err local = LB_ERR_INIT;
    lb_collective_streams streams = {
        .n = n, .known = LB_INPUTS_INIT, .err = &local, .members = calloc(n, sizeof *streams.members)};
    lb_status status = streams.members ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective");
    for (uint32_t rank = 0; status == LB_OK && rank < n; rank++) {
        const lb_program *program = members[rank]->prepared->program;
        streams.members[rank] = (lb_stream_member){.machine = members[rank],
                                                   .program = program,
                                                   .op = &program->ops[members[rank]->next],
                                                   .choice = lb_machine_choice(members[rank])};
        const lb_collective_name *name = lb_collective_name_find(lb_op_name(program, streams.members[rank].op));
        if (rank == 0) streams.name = name;
        if (!name || name->kind != streams.name->kind)
            status = LB_ERR_UNSUPPORTED;
        else
            status = lb_collective_streams_collect(&streams, &streams.members[rank]);
    }
    if (status == LB_OK) {
        streams.shows = lb_event_shows_alone(members[0]);
        streams.dtype = lb_collective_streams_dtype(&streams);
        streams.size = lb_dtype_bits(streams.dtype) / 8;
        read_attributes(&streams);
        for (uint32_t rank = 0; rank < n; rank++) streams.known.swapped |= streams.members[rank].choice->swapped;
        status = streams.size ? run_streams(&streams) : LB_ERR_UNSUPPORTED;
    }
    for (uint32_t rank = 0; rank < n; rank++) {
        if (status == LB_ERR_NOMEM || status == LB_ERR_LIMIT) break;
        lb_status end = status == LB_OK && receives(&streams, rank) && !streams.shows
                            ? lb_machine_finish(members[rank], &streams.known, &streams.sum, err)
                            : lb_machine_stand_in(members[rank], err);
        if (end != LB_OK) {
            lb_collective_streams_release(&streams);
            return end;
        }
    }
    lb_collective_streams_release(&streams);
    if (status == LB_ERR_NOMEM || status == LB_ERR_LIMIT) return lb_fail(err, status, "%s", local.message);
    return LB_OK;
}

/* ---- told, and not run ------------------------------------------------------------------------------------------ */

/* Cut along another dimension than the first, or multiplied before it is added: moves do not say that. */
static bool says_moves(const lb_collective_streams *streams)
{
    const uint32_t dim = (uint32_t)streams->name->dim;
    for (uint32_t r = 0; r < streams->n; r++) {
        const lb_stream_member *member = &streams->members[r];
        if (dim && dim < member->op->args && lb_op_args(member->program, member->op)[dim].tag == LB_ARG_INT &&
            lb_op_args(member->program, member->op)[dim].u.i != 0)
            return false;
    }
    return !streams->name->nccl || streams->name->kind == LB_EXCHANGE_ALL_GATHER ||
           streams->name->kind == LB_EXCHANGE_BROADCAST;
}

static lb_status tell(lb_collective_streams *streams, lb_collective_told *told)
{
    lb_status status = LB_OK;
    for (uint32_t r = 0; r < streams->n && status == LB_OK; r++) {
        receipt got = {0};
        if (receives(streams, r)) status = assemble(streams, r, &got);
        told[r].moves = got.list, told[r].n_moves = got.n;
    }
    for (uint32_t r = 0; r < streams->n; r++) {
        lb_stream_member *member = &streams->members[r];
        told[r].inputs = member->inputs.values, told[r].n_inputs = member->inputs.n;
        told[r].outputs = member->outputs.values, told[r].n_outputs = member->outputs.n;
        member->inputs.values = member->outputs.values = NULL;
    }
    return status;
}

lb_status lb_collective_run_tell(const lb_program *const *programs, const uint32_t *ops, uint32_t n,
                                 lb_collective_told *told, lb_err *err)
{
    lb_collective_streams streams = {.n = n, .err = err, .members = calloc(n, sizeof *streams.members)};
    lb_status status = streams.members ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective");
    memset(told, 0, n * sizeof *told);
    for (uint32_t r = 0; r < n && status == LB_OK; r++) {
        streams.members[r] = (lb_stream_member){.program = programs[r], .op = &programs[r]->ops[ops[r]]};
        const lb_collective_name *name = lb_collective_name_find(lb_op_name(programs[r], streams.members[r].op));
        if (r == 0) streams.name = name;
        status = name && name->kind == streams.name->kind ? lb_collective_streams_collect(&streams, &streams.members[r])
                                                          : lb_fail(err, LB_ERR_UNSUPPORTED, "not one collective");
    }
    if (status == LB_OK) {
        const uint32_t root = lb_collective_name_root(streams.name, streams.members[0].program, streams.members[0].op);
        if (root < n) streams.root = root;
        status = says_moves(&streams)
                     ? tell(&streams, told)
                     : lb_fail(err, LB_ERR_UNSUPPORTED, "a collective that does more than move elements");
    }
    lb_collective_streams_release(&streams);
    if (status != LB_OK) lb_collective_told_release(told, n);
    return status;
}

void lb_collective_told_release(lb_collective_told *told, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++) free(told[r].inputs), free(told[r].outputs), free(told[r].moves);
    memset(told, 0, n * sizeof *told);
}
