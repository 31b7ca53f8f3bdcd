/* Collectives as a program of their own: see collective_extract.h. */
#include "exchanges/collective_extract.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

typedef struct making {
    const lb_program *whole;
    lb_program *part;
    uint32_t *values; /* per value of the whole: its row in the part, LB_NONE */
    bool failed;
} making;

static uint32_t checked(making *m, uint32_t row)
{
    m->failed |= row == LB_NONE;
    return row;
}

static uint32_t string_of(void *context, uint32_t string)
{
    making *m = context;
    if (string == LB_NONE || string >= m->whole->n_strings) return string;
    return checked(m, lb_program_string(m->part, m->whole->strings[string]));
}

static uint32_t value_of(void *context, uint32_t value)
{
    making *m = context;
    if (value == LB_NONE || value >= m->whole->n_values) return value;
    if (m->values[value] != LB_NONE) return m->values[value];
    lb_value v = m->whole->values[value];
    v.name = string_of(m, v.name);
    if (v.statistics != LB_NONE)
        v.statistics = checked(m, lb_program_add_statistics(m->part, &m->whole->statistics[v.statistics]));
    return m->values[value] = checked(m, lb_program_add_value(m->part, &v));
}

static uint32_t refs_of(making *m, const uint32_t *refs, uint32_t n)
{
    uint32_t *mine = malloc((n + 1) * sizeof *mine);
    m->failed |= !mine;
    for (uint32_t i = 0; mine && i < n; i++) mine[i] = value_of(m, refs[i]);
    const uint32_t first = mine && n ? checked(m, lb_program_add_refs(m->part, mine, n)) : 0;
    free(mine);
    return first;
}

static uint32_t add_op(making *m, const lb_op *from)
{
    const lb_arg_rename rename = {value_of, string_of, m};
    lb_op op = *from;
    op.name = string_of(m, op.name), op.node_name = string_of(m, op.node_name), op.line = 0;
    op.scope = from->scope
                   ? checked(m, lb_program_scope(m->part, lb_op_layer(m->whole, from), lb_op_class(m->whole, from), 0))
                   : 0;
    op.first_arg =
        from->args
            ? checked(m, lb_program_copy_args(m->part, m->whole, lb_op_args(m->whole, from), from->args, &rename))
            : 0;
    op.first_result = refs_of(m, lb_op_results(m->whole, from), from->results);
    op.first_written = refs_of(m, lb_op_written(m->whole, from), from->written);
    return checked(m, lb_program_add_op(m->part, &op));
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
    return checked(m, lb_program_add_refs(m->part, &m->whole->refs[from->first_rank], from->ranks));
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
        if (v->flags & LB_VALUE_KEPT && bsearch(&v->storage, storages, n, sizeof *storages, lb_by_i64)) value_of(m, i);
    }
    free(storages);
    return 0;
}

/* Scope 0, and its strings, are there from the first. */
static lb_status fill(making *m, lb_collective_extract *out)
{
    const lb_program *p = m->whole;
    m->part->step = p->step, m->part->rank = p->rank, m->part->world = p->world;
    m->part->level = p->level, m->part->complete = p->complete, m->part->shard = string_of(m, p->shard);
    for (uint32_t i = 0; i < p->n_collectives && !m->failed; i++) {
        lb_collective c = p->collectives[i];
        if (!c.ranks) continue;
        const uint32_t number = c.op;
        c.op = add_op(m, &p->ops[number]);
        c.group = string_of(m, c.group), c.reduce = string_of(m, c.reduce), c.algorithm = string_of(m, c.algorithm);
        c.first_rank = ranks_of(m, &p->collectives[i]);
        if (m->failed) break;
        out->numbers[c.op] = number;
        checked(m, lb_program_add_collective(m->part, &c));
    }
    return !m->failed && !add_holders(m) && !m->failed ? LB_OK : LB_ERR_NOMEM;
}

lb_status lb_collective_extract_make(const lb_program *whole, lb_collective_extract *out, lb_err *err)
{
    making m = {.whole = whole, .part = lb_program_new(), .values = malloc((whole->n_values + 1) * sizeof *m.values)};
    out->program = m.part, out->numbers = malloc((whole->n_collectives + 1) * sizeof *out->numbers);
    if (m.values) memset(m.values, 0xff, (whole->n_values + 1) * sizeof *m.values); /* LB_NONE */
    const lb_status status = m.part && m.values && out->numbers ? fill(&m, out) : LB_ERR_NOMEM;
    free(m.values);
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
