/* The collectives of one step of one side: see exchange_calls.h. */
#include "runs/exchange_calls.h"

#include <stdlib.h>

void lb_exchange_calls_release(lb_exchange_calls *calls)
{
    if (calls->met) lb_collective_meetings_release(&calls->all);
    for (uint32_t r = 0; calls->ranks && r < calls->n_ranks; r++) lb_collective_extract_release(&calls->ranks[r]);
    free(calls->ranks), free(calls->ops);
    *calls = (lb_exchange_calls){0};
}

lb_status lb_exchange_calls_open(lb_exchange_calls *calls, uint32_t n_ranks, lb_err *err)
{
    *calls = (lb_exchange_calls){.ranks = calloc(n_ranks + 1, sizeof *calls->ranks), .n_ranks = n_ranks};
    return calls->ranks ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", n_ranks);
}

static int by_rank_and_op(const void *x, const void *y)
{
    const lb_exchange_call *a = x, *b = y;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    return (a->op > b->op) - (a->op < b->op);
}

static lb_status list_ops(lb_exchange_calls *calls, lb_err *err)
{
    calls->ops = calloc(calls->all.n_members + 1, sizeof *calls->ops);
    if (!calls->ops) return lb_fail(err, LB_ERR_NOMEM, "out of memory for collectives");
    for (uint32_t i = 0; i < calls->all.n; i++)
        for (uint32_t k = 0; k < calls->all.list[i].n; k++) {
            const lb_collective_member *m = &calls->all.list[i].members[k];
            calls->ops[calls->n_ops++] = (lb_exchange_call){m->program->rank, m->number, i};
        }
    if (calls->n_ops) qsort(calls->ops, calls->n_ops, sizeof *calls->ops, by_rank_and_op);
    return LB_OK;
}

lb_status lb_exchange_calls_write(lb_capture *capture, int32_t rank, int64_t step, lb_part_record *record, lb_err *err)
{
    const lb_program *whole = NULL;
    lb_collective_extract calls = {0};
    void *bytes = NULL;
    size_t size = 0;
    if (lb_capture_program(capture, rank, step, &whole, NULL) != LB_OK) whole = NULL;
    if (whole) LB_TRY(lb_collective_extract_make(whole, &calls, err));
    lb_status status = whole ? lb_program_encode(calls.program, &bytes, &size, err) : LB_OK;
    uint32_t n = whole ? calls.program->n_ops : 0;
    const void *written = bytes;
    lb_part_record_bytes(record, &written, &size);
    lb_part_record_count(record, &n);
    for (uint32_t i = 0; i < n; i++) lb_part_record_u32(record, &calls.numbers[i]);
    free(bytes);
    lb_collective_extract_release(&calls);
    lb_capture_drop_program(capture, rank, step);
    lb_capture_unload_rank(capture, rank);
    return status;
}

lb_status lb_exchange_calls_read(lb_part_record *record, int32_t rank, int64_t step, lb_collective_extract *calls,
                                 lb_err *err)
{
    const void *bytes = NULL;
    size_t size = 0;
    uint32_t n = 0;
    lb_part_record_bytes(record, &bytes, &size);
    lb_err why = LB_ERR_INIT;
    const lb_status decoded =
        record->status == LB_OK && size ? lb_program_decode(bytes, size, &calls->program, &why) : LB_OK;
    if (decoded == LB_ERR_NOMEM) return lb_fail(err, decoded, "%s", why.message);
    if (decoded != LB_OK) lb_part_record_refuse(record, "calls", "%.150s", why.message);
    if (calls->program && (calls->program->rank != rank || calls->program->step != step))
        lb_part_record_refuse(record, "calls", "of another rank or step");
    calls->numbers = lb_part_record_rows(record, NULL, &n, sizeof *calls->numbers);
    for (uint32_t i = 0; i < n; i++) lb_part_record_u32(record, &calls->numbers[i]);
    if (n != (calls->program ? calls->program->n_ops : 0))
        lb_part_record_refuse(record, "calls", "%u numbers of a program of %u ops", n,
                              calls->program ? calls->program->n_ops : 0);
    return record->status;
}

lb_status lb_exchange_calls_meet(lb_exchange_calls *calls, lb_err *err)
{
    LB_TRY(lb_collective_meetings_find_extracts(calls->ranks, calls->n_ranks, &calls->all, err));
    calls->met = true;
    return list_ops(calls, err);
}

uint32_t lb_exchange_calls_find(const lb_exchange_calls *calls, int32_t rank, uint32_t op)
{
    const lb_exchange_call key = {rank, op, 0};
    const lb_exchange_call *found =
        calls->n_ops ? bsearch(&key, calls->ops, calls->n_ops, sizeof key, by_rank_and_op) : NULL;
    return found ? found->exchange : LB_NONE;
}
