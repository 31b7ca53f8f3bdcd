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
    making *m = context;
    (void)value;
    row->name = lb_copier_string(&m->copier, row->name);
    if (row->statistics != LB_NONE)
        row->statistics =
            lb_copier_check(&m->copier, lb_program_add_statistics(m->part, &m->whole->statistics[row->statistics]));
}

static uint32_t add_op(making *m, const lb_op *from)
{
    lb_copier *c = &m->copier;
    lb_op op = lb_copier_op(c, from);
    op.node_name = lb_copier_string(c, from->node_name), op.node = from->node;
    if (from->scope)
        op.scope =
            lb_copier_check(c, lb_program_scope(m->part, lb_op_layer(m->whole, from), lb_op_class(m->whole, from), 0));
    op.call = from->call;
    return lb_copier_check(c, lb_program_add_op(m->part, &op));
}

/* A list of ranks that the whole program says once is said once again. */
static uint32_t ranks_of(making *m, const lb_collective *from)
{
    for (uint32_t i = 0; i < m->part->n_collectives; i++) {
        const lb_collective *c = &m->part->collectives[i];
        if (c->ranks == from->ranks &&
            !memcmp(&m->part->refs[c->first_rank], &m->whole->refs[from->first_rank], c->ranks * sizeof *m->part->refs))
            return c->first_rank;
    }
    return lb_copier_check(&m->copier, lb_program_add_refs(m->part, &m->whole->refs[from->first_rank], from->ranks));
}

/* Bytes of a value that is a window lie with others of its storage. */
static int add_holders(making *m)
{
    const uint32_t own = m->part->n_values;
    int64_t *storages = malloc((own + 1) * sizeof *storages);
    uint32_t n = 0;
    if (!storages) return -1;
    for (uint32_t i = 0; i < own; i++)
        if (lb_digest_is_none(m->part->values[i].blob) || !(m->part->values[i].flags & LB_VALUE_KEPT))
            storages[n++] = m->part->values[i].storage;
    if (n) qsort(storages, n, sizeof *storages, lb_by_i64);
    for (uint32_t i = 0; n && i < m->whole->n_values; i++) {
        const lb_value *v = &m->whole->values[i];
        if (v->flags & LB_VALUE_KEPT && bsearch(&v->storage, storages, n, sizeof *storages, lb_by_i64))
            lb_copier_value(&m->copier, i);
    }
    free(storages);
    return 0;
}

/* Scope 0, and its strings, are there from the first. */
static lb_status fill(making *m, lb_collective_extract *out)
{
    const lb_program *p = m->whole;
    lb_copier *copier = &m->copier;
    m->part->step = p->step, m->part->rank = p->rank, m->part->world = p->world;
    m->part->level = p->level, m->part->complete = p->complete, m->part->shard = lb_copier_string(copier, p->shard);
    for (uint32_t i = 0; i < p->n_collectives && !copier->failed; i++) {
        lb_collective c = p->collectives[i];
        if (!c.ranks) continue;
        const uint32_t number = c.op;
        c.op = add_op(m, &p->ops[number]);
        c.group = lb_copier_string(copier, c.group), c.reduce = lb_copier_string(copier, c.reduce),
        c.algorithm = lb_copier_string(copier, c.algorithm);
        c.first_rank = ranks_of(m, &p->collectives[i]);
        if (copier->failed) break;
        out->numbers[c.op] = number;
        lb_copier_check(copier, lb_program_add_collective(m->part, &c));
    }
    return !copier->failed && !add_holders(m) && !copier->failed ? LB_OK : LB_ERR_NOMEM;
}

lb_status lb_collective_extract_make(const lb_program *whole, lb_collective_extract *out, lb_err *err)
{
    making m = {.whole = whole, .part = lb_program_new()};
    m.copier = (lb_copier){.from = whole, .to = m.part, .change = change, .context = &m};
    out->program = m.part, out->numbers = malloc((whole->n_collectives + 1) * sizeof *out->numbers);
    const lb_status status = m.part && out->numbers ? fill(&m, out) : LB_ERR_NOMEM;
    lb_copier_release(&m.copier);
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
