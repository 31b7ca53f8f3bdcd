/* Collectives as a program of their own: see collective_extract.h. */
#include "exchanges/collective_extract.h"

#include "program/copier.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

typedef struct making {
    const lb_program *whole;
    lb_program *part;
    lb_copier copier;
} making;

/* A value keeps everything but the numbers of its strings and statistics. */
static void change(void *context, uint32_t value, lb_value *row)
{
    making *making = context;
    (void)value;
    row->name = lb_copier_string(&making->copier, row->name);
    if (row->statistics != LB_NONE)
        row->statistics = lb_copier_check(
            &making->copier, lb_program_add_statistics(making->part, &making->whole->statistics[row->statistics]));
}

static uint32_t add_op(making *making, const lb_op *from)
{
    lb_copier *copier = &making->copier;
    lb_op op = lb_copier_op(copier, from);
    op.node_name = lb_copier_string(copier, from->node_name), op.node = from->node;
    if (from->scope)
        op.scope = lb_copier_check(copier, lb_program_scope(making->part, lb_op_layer(making->whole, from),
                                                            lb_op_class(making->whole, from), 0));
    op.call = from->call;
    return lb_copier_check(copier, lb_program_add_op(making->part, &op));
}

/* A list of ranks that the whole program says once is said once again. */
static uint32_t ranks_of(making *making, const lb_collective *from)
{
    for (uint32_t i = 0; i < making->part->n_collectives; i++) {
        const lb_collective *collective = &making->part->collectives[i];
        if (collective->ranks == from->ranks &&
            !memcmp(&making->part->refs[collective->first_rank], &making->whole->refs[from->first_rank],
                    collective->ranks * sizeof *making->part->refs))
            return collective->first_rank;
    }
    return lb_copier_check(&making->copier,
                           lb_program_add_refs(making->part, &making->whole->refs[from->first_rank], from->ranks));
}

/* Bytes of a value that is a window lie with others of its storage. */
static int add_holders(making *making)
{
    const uint32_t own = making->part->n_values;
    int64_t *storages = malloc((own + 1) * sizeof *storages);
    uint32_t n = 0;
    if (!storages) return -1;
    for (uint32_t i = 0; i < own; i++)
        if (lb_digest_is_none(making->part->values[i].blob) || !(making->part->values[i].flags & LB_VALUE_KEPT))
            storages[n++] = making->part->values[i].storage;
    if (n) qsort(storages, n, sizeof *storages, lb_by_i64);
    for (uint32_t i = 0; n && i < making->whole->n_values; i++) {
        const lb_value *value = &making->whole->values[i];
        if (value->flags & LB_VALUE_KEPT && bsearch(&value->storage, storages, n, sizeof *storages, lb_by_i64))
            lb_copier_value(&making->copier, i);
    }
    free(storages);
    return 0;
}

/* Scope 0, and its strings, are there from the first. */
static lb_status fill(making *making, lb_collective_extract *out)
{
    const lb_program *program = making->whole;
    lb_copier *copier = &making->copier;
    making->part->step = program->step, making->part->rank = program->rank, making->part->world = program->world;
    making->part->level = program->level, making->part->complete = program->complete,
    making->part->shard = lb_copier_string(copier, program->shard);
    for (uint32_t i = 0; i < program->n_collectives && !copier->failed; i++) {
        lb_collective collective = program->collectives[i];
        if (!collective.ranks) continue;
        const uint32_t number = collective.op;
        collective.op = add_op(making, &program->ops[number]);
        collective.group = lb_copier_string(copier, collective.group),
        collective.reduce = lb_copier_string(copier, collective.reduce),
        collective.algorithm = lb_copier_string(copier, collective.algorithm);
        collective.first_rank = ranks_of(making, &program->collectives[i]);
        if (copier->failed) break;
        out->numbers[collective.op] = number;
        lb_copier_check(copier, lb_program_add_collective(making->part, &collective));
    }
    return !copier->failed && !add_holders(making) && !copier->failed ? LB_OK : LB_ERR_NOMEM;
}

lb_status lb_collective_extract_make(const lb_program *whole, lb_collective_extract *out, lb_err *err)
{
    making making = {.whole = whole, .part = lb_program_new()};
    making.copier = (lb_copier){.from = whole, .to = making.part, .change = change, .context = &making};
    out->program = making.part, out->numbers = malloc((whole->n_collectives + 1) * sizeof *out->numbers);
    const lb_status status = making.part && out->numbers ? fill(&making, out) : LB_ERR_NOMEM;
    lb_copier_release(&making.copier);
    if (status == LB_OK) return LB_OK;
    lb_collective_extract_release(out);
    return lb_fail(err, status, "out of memory for collectives");
}

void lb_collective_extract_release(lb_collective_extract *extract)
{
    lb_program_free(extract->program);
    free(extract->numbers);
    *extract = (lb_collective_extract){0};
}
