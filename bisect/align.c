/* Aligning two programs: see align.h. */
#include "align.h"

#include <stdlib.h>
#include <string.h>

/* ---- groups ---- */

typedef struct entry {
    const char *path; /* mapped */
    uint64_t kind;    /* hash of name and shapes */
    uint32_t phase, call, op;
} entry;

bool lb_op_computes(const lb_program *program, const lb_op *op)
{
    if (op->flags & (LB_OP_VIEW | LB_OP_FAILED)) return false;
    const char *name = lb_op_name(program, op);
    return strncmp(name, "lb::", 4) != 0 && strncmp(name, "profiler::", 10) != 0;
}

/* Non-tensor arguments compared; devices and other texts may differ, they change no number. */
static bool args_equal(const lb_program *pa, const lb_arg *a, uint32_t na, const lb_program *pb,
                       const lb_arg *b, uint32_t nb)
{
    if (na != nb) return false;
    for (uint32_t i = 0; i < na; i++) {
        if (a[i].tag != b[i].tag) return false;
        switch ((lb_arg_tag)a[i].tag) {
        case LB_ARG_INT:
        case LB_ARG_BOOL:
            if (a[i].u.i != b[i].u.i) return false;
            break;
        case LB_ARG_FLOAT:
            if (memcmp(&a[i].u.f, &b[i].u.f, sizeof(double)) != 0) return false;
            break;
        case LB_ARG_LIST:
        case LB_ARG_COMPLEX:
            if (!args_equal(pa, pa->args + a[i].u.first, a[i].count, pb, pb->args + b[i].u.first, b[i].count))
                return false;
            break;
        default: break;
        }
    }
    return true;
}

bool lb_op_same_args(const lb_program *pa, const lb_op *a, const lb_program *pb, const lb_op *b)
{
    return args_equal(pa, lb_op_args(pa, a), a->args, pb, lb_op_args(pb, b), b->args);
}

static uint64_t mix(uint64_t hash, uint64_t word)
{
    return (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15) ^ (hash >> 29);
}

static void mix_shape(uint64_t *hash, const lb_program *p, uint32_t value)
{
    if (value == LB_NONE) return;
    const lb_layout *l = &p->values[value].layout;
    *hash = mix(*hash, (uint64_t)l->ndim);
    for (int32_t i = 0; i < l->ndim; i++) *hash = mix(*hash, (uint64_t)l->shape[i]);
}

typedef struct mixer {
    uint64_t hash;
    const lb_program *program;
} mixer;

static void mix_input(void *context, uint32_t value)
{
    mixer *m = context;
    mix_shape(&m->hash, m->program, value);
}

/* What an op is: its name and the shapes it takes and gives; dtypes may differ between the sides. */
static uint64_t kind_of(const lb_program *p, const lb_op *op)
{
    mixer m = {UINT64_C(0xCBF29CE484222325), p};
    for (const char *c = lb_op_name(p, op); *c; c++) m.hash = mix(m.hash, (uint8_t)*c);
    lb_op_each_input(p, op, mix_input, &m);
    for (uint32_t i = 0; i < op->results; i++) mix_shape(&m.hash, p, lb_op_results(p, op)[i]);
    return m.hash;
}

static int compare_keys(const entry *a, const entry *b)
{
    if (a->phase != b->phase) return a->phase < b->phase ? -1 : 1;
    int order = strcmp(a->path, b->path);
    if (order) return order;
    return a->call == b->call ? 0 : a->call < b->call ? -1 : 1;
}

static int compare_entries(const void *x, const void *y)
{
    const entry *a = x, *b = y;
    int order = compare_keys(a, b);
    return order ? order : a->op < b->op ? -1 : a->op > b->op;
}

static entry *list_entries(const lb_program *p, char *const *paths, uint32_t *count)
{
    entry *list = malloc((p->n_ops ? p->n_ops : 1) * sizeof *list);
    *count = 0;
    for (uint32_t i = 0; list && i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        if (!lb_op_computes(p, op)) continue;
        list[(*count)++] = (entry){paths[op->scope], kind_of(p, op), op->phase, op->call, i};
    }
    if (list) qsort(list, *count, sizeof *list, compare_entries);
    return list;
}

static void pair_up(lb_alignment *out, const entry *a, const entry *b)
{
    out->b_of_a[a->op] = b->op;
    out->a_of_b[b->op] = a->op;
    out->pairs++;
}

/* Longest common subsequence of kinds. Groups above CELLS fall back to a greedy scan with a bounded look-ahead:
 * layers hold tens of ops, only a whole unscoped optimizer phase can be that long, and it is one repeated
 * motif. */
enum { CELLS = 1 << 24, AHEAD = 64 };

static void align_greedy(lb_alignment *out, const entry *a, uint32_t na, const entry *b, uint32_t nb)
{
    uint32_t i = 0, j = 0;
    while (i < na && j < nb) {
        uint32_t best = UINT32_MAX, di = 0, dj = 0;
        for (uint32_t d = 0; d < AHEAD && best == UINT32_MAX; d++)
            for (uint32_t k = 0; k <= d; k++)
                if (i + k < na && j + d - k < nb && a[i + k].kind == b[j + d - k].kind) {
                    best = d, di = k, dj = d - k;
                    break;
                }
        if (best == UINT32_MAX) {
            i++, j++;
            continue;
        }
        i += di, j += dj;
        pair_up(out, &a[i++], &b[j++]);
    }
}

static void align_group(lb_alignment *out, const entry *a, uint32_t na, const entry *b, uint32_t nb)
{
    while (na && nb && a->kind == b->kind) pair_up(out, a++, b++), na--, nb--;
    uint32_t tail = 0;
    while (na && nb && a[na - 1].kind == b[nb - 1].kind) na--, nb--, tail++;
    for (uint32_t k = 0; k < tail; k++) pair_up(out, &a[na + k], &b[nb + k]);
    if (!na || !nb) return;
    uint32_t *best =
        (uint64_t)(na + 1) * (nb + 1) <= CELLS ? calloc((size_t)(na + 1) * (nb + 1), sizeof *best) : NULL;
    if (!best) {
        align_greedy(out, a, na, b, nb);
        return;
    }
#define BEST(i, j) best[(size_t)(i) * (nb + 1) + (j)]
    for (uint32_t i = na; i-- > 0;)
        for (uint32_t j = nb; j-- > 0;) {
            uint32_t skip = BEST(i + 1, j) > BEST(i, j + 1) ? BEST(i + 1, j) : BEST(i, j + 1);
            BEST(i, j) =
                a[i].kind == b[j].kind && BEST(i + 1, j + 1) + 1 >= skip ? BEST(i + 1, j + 1) + 1 : skip;
        }
    for (uint32_t i = 0, j = 0; i < na && j < nb;) {
        if (a[i].kind == b[j].kind && BEST(i, j) == BEST(i + 1, j + 1) + 1)
            pair_up(out, &a[i++], &b[j++]);
        else if (BEST(i + 1, j) >= BEST(i, j + 1))
            i++;
        else
            j++;
    }
#undef BEST
    free(best);
}

static uint32_t group_end(const entry *list, uint32_t count, uint32_t start)
{
    uint32_t end = start;
    while (end < count && compare_keys(&list[start], &list[end]) == 0) end++;
    return end;
}

/* A group of which something is unaligned: names and shapes alone may have paired what are not partners. */
static void mark_irregular(lb_alignment *out, const entry *a, uint32_t na, uint32_t nb)
{
    uint32_t pairs = 0;
    for (uint32_t i = 0; i < na; i++) pairs += out->b_of_a[a[i].op] != LB_NONE;
    if (pairs == na && pairs == nb) return;
    for (uint32_t i = 0; i < na; i++) out->irregular[a[i].op] = 1;
}

/* ---- sources ---- */

static const lb_value *source_value(const lb_program *p, uint32_t op)
{
    if (strcmp(lb_op_name(p, &p->ops[op]), "lb::source") != 0 || p->ops[op].results == 0) return NULL;
    uint32_t value = lb_op_results(p, &p->ops[op])[0];
    return value == LB_NONE ? NULL : &p->values[value];
}

/* One side's sources: their ops and names, "" where a source has none. */
typedef struct sources {
    uint32_t *ops, n;
    char **names;
} sources;

static bool list_sources(const lb_program *p, const lb_map_rules *rules, sources *s)
{
    s->n = 0;
    s->ops = malloc((p->n_ops + 1) * sizeof *s->ops), s->names = calloc(p->n_ops + 1, sizeof *s->names);
    if (!s->ops || !s->names) return false;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_value *v = source_value(p, i);
        if (!v) continue;
        s->ops[s->n] = i;
        s->names[s->n] = lb_map_rules_apply(rules, lb_program_text(p, v->name));
        if (!s->names[s->n++]) return false;
    }
    return true;
}

static void free_sources(sources *s)
{
    for (uint32_t i = 0; s->names && i < s->n; i++) free(s->names[i]);
    free(s->names), free(s->ops);
}

/* Named sources by name and occurrence, the others by their place among those of the same shape. Quadratic only in sources
 * of one step, of which there are hundreds. */
static void pair_sources(const lb_program *a, const lb_program *b, const sources *sa, const sources *sb,
                         uint8_t *taken, lb_alignment *out)
{
    for (uint32_t i = 0; i < sa->n; i++) {
        const lb_value *va = source_value(a, sa->ops[i]);
        for (uint32_t j = 0; j < sb->n; j++) {
            const lb_value *vb = source_value(b, sb->ops[j]);
            if (taken[j] || !lb_layout_same_shape(&va->layout, &vb->layout)) continue;
            if (strcmp(sa->names[i], sb->names[j]) != 0 || (!*sa->names[i] && va->dtype != vb->dtype)) continue;
            out->source_b_of_a[sa->ops[i]] = sb->ops[j];
            taken[j] = 1;
            break;
        }
    }
}

static lb_status align_sources(const lb_program *a, const lb_program *b, const lb_map_rules *rules,
                               lb_alignment *out, lb_err *err)
{
    sources sa = {0}, sb = {0};
    uint8_t *taken = calloc(b->n_ops + 1, 1);
    bool listed = list_sources(a, rules, &sa) && list_sources(b, NULL, &sb) && taken;
    lb_status status = listed ? lb_names_meet(sa.names, sa.n, sb.names, sb.n, err)
                              : lb_fail(err, LB_ERR_NOMEM, "diff: out of memory for sources");
    if (status == LB_OK) pair_sources(a, b, &sa, &sb, taken, out);
    free_sources(&sa), free_sources(&sb);
    free(taken);
    return status;
}

/* ---- all of it ---- */

static char **scope_paths(const lb_program *p, const lb_map_rules *rules)
{
    char **paths = calloc(p->n_scopes + 1, sizeof *paths);
    for (uint32_t i = 0; paths && i < p->n_scopes; i++) {
        paths[i] = lb_map_rules_apply(rules, lb_program_text(p, p->scopes[i].path));
        if (!paths[i]) paths[i] = strdup("");
    }
    return paths;
}

static void free_paths(char **paths, uint32_t count)
{
    for (uint32_t i = 0; paths && i < count; i++) free(paths[i]);
    free(paths);
}

static uint32_t *none_list(uint32_t count)
{
    uint32_t *list = malloc((count ? count : 1) * sizeof *list);
    if (list) memset(list, 0xFF, count * sizeof *list);
    return list;
}

static void align_groups(lb_alignment *out, const entry *a, uint32_t na, const entry *b, uint32_t nb)
{
    for (uint32_t i = 0, j = 0; i < na && j < nb;) {
        int order = compare_keys(&a[i], &b[j]);
        uint32_t end_a = group_end(a, na, i), end_b = group_end(b, nb, j);
        if (order == 0) {
            align_group(out, a + i, end_a - i, b + j, end_b - j);
            mark_irregular(out, a + i, end_a - i, end_b - j);
        }
        if (order <= 0) i = end_a;
        if (order >= 0) j = end_b;
    }
    out->only_a = na - out->pairs, out->only_b = nb - out->pairs;
}

static lb_status align_ops(const lb_program *a, const lb_program *b, char **paths_a, char **paths_b,
                           lb_alignment *out, lb_err *err)
{
    uint32_t na = 0, nb = 0;
    LB_TRY(lb_names_meet(paths_a, a->n_scopes, paths_b, b->n_scopes, err));
    entry *list_a = list_entries(a, paths_a, &na), *list_b = list_entries(b, paths_b, &nb);
    if (list_a && list_b) align_groups(out, list_a, na, list_b, nb);
    bool done = list_a && list_b;
    free(list_a), free(list_b);
    return done ? LB_OK
                : lb_fail(err, LB_ERR_NOMEM, "diff: out of memory while aligning %u with %u ops", a->n_ops,
                          b->n_ops);
}

lb_status lb_alignment_make(const lb_program *a, const lb_program *b, const lb_map_rules *rules,
                            lb_alignment *out, lb_err *err)
{
    memset(out, 0, sizeof *out);
    char **paths_a = scope_paths(a, rules), **paths_b = scope_paths(b, NULL);
    out->b_of_a = none_list(a->n_ops), out->a_of_b = none_list(b->n_ops);
    out->source_b_of_a = none_list(a->n_ops), out->irregular = calloc(a->n_ops + 1, 1);
    bool room = paths_a && paths_b && out->b_of_a && out->a_of_b && out->source_b_of_a && out->irregular;
    lb_status status = room ? align_ops(a, b, paths_a, paths_b, out, err)
                            : lb_fail(err, LB_ERR_NOMEM, "diff: out of memory while aligning %u with %u ops",
                                      a->n_ops, b->n_ops);
    if (status == LB_OK) status = align_sources(a, b, rules, out, err);
    if (status != LB_OK) lb_alignment_release(out);
    free_paths(paths_a, a->n_scopes), free_paths(paths_b, b->n_scopes);
    return status;
}

void lb_alignment_release(lb_alignment *alignment)
{
    free(alignment->b_of_a), free(alignment->a_of_b), free(alignment->source_b_of_a),
        free(alignment->irregular);
    memset(alignment, 0, sizeof *alignment);
}
