/* Aligning two programs: see align.h. */
#include "align.h"

#include "owner.h"
#include "sequence.h"
#include "shard_cover.h"
#include "shown_sources.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- groups ---- */

typedef struct entry {
    const char *path;    /* mapped */
    uint64_t kind, name; /* hash of name and shapes; of the name alone */
    uint32_t phase, share, part, call, op;
} entry;

bool lb_op_computes(const lb_program *program, const lb_op *op)
{
    if (op->flags & (LB_OP_VIEW | LB_OP_FAILED)) return false;
    const char *name = lb_op_name(program, op);
    return strncmp(name, "lb::", 4) != 0 && strncmp(name, "profiler::", 10) != 0;
}

/* "tanh" or "sum", which choose what is computed; no device ("cuda:0"), layout, name of a group, or text of what cannot be recorded. */
static bool is_word(const char *text)
{
    static const char *const devices[] = {"cpu", "cuda", "mps", "xpu", "hpu", "xla", "npu", "meta", "strided"};
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (!strcmp(text, devices[i])) return false;
    if (strstr(text, "_format") || strstr(text, "channels_last")) return false;
    for (const char *c = text; *c; c++)
        if (!islower((unsigned char)*c) && *c != '_') return false;
    return *text;
}

static bool args_equal(const lb_program *pa, const lb_arg *a, uint32_t na, const lb_program *pb, const lb_arg *b,
                       uint32_t nb, uint32_t parts)
{
    if (na != nb) return parts;
    for (uint32_t i = 0; i < na; i++) {
        if (a[i].tag != b[i].tag) return false;
        switch ((lb_arg_tag)a[i].tag) {
        case LB_ARG_INT:
            if (a[i].u.i != b[i].u.i && !parts) return false;
            break;
        case LB_ARG_BOOL:
            if (a[i].u.i != b[i].u.i) return false;
            break;
        case LB_ARG_FLOAT:
            if (memcmp(&a[i].u.f, &b[i].u.f, sizeof(double)) != 0 && (!parts || a[i].u.f != b[i].u.f * parts))
                return false;
            break;
        case LB_ARG_LIST:
        case LB_ARG_COMPLEX:
            if (!args_equal(pa, pa->args + a[i].u.first, a[i].count, pb, pb->args + b[i].u.first, b[i].count, parts))
                return false;
            break;
        case LB_ARG_VALUE: /* a lazy conjugate is another argument, though its bytes are the same */
            if ((pa->values[a[i].u.value].flags ^ pb->values[b[i].u.value].flags) & LB_VALUE_LAZY) return false;
            break;
        case LB_ARG_STRING:
            if (strcmp(lb_program_text(pa, a[i].u.string), lb_program_text(pb, b[i].u.string)) != 0 &&
                is_word(lb_program_text(pa, a[i].u.string)) && is_word(lb_program_text(pb, b[i].u.string)))
                return false;
            break;
        default: break;
        }
    }
    return true;
}

bool lb_arg_same(const lb_program *pa, const lb_arg *a, const lb_program *pb, const lb_arg *b)
{
    return args_equal(pa, a, 1, pb, b, 1, 0);
}

bool lb_op_same_args(const lb_program *pa, const lb_op *a, const lb_program *pb, const lb_op *b, uint32_t parts)
{
    return args_equal(pa, lb_op_args(pa, a), a->args, pb, lb_op_args(pb, b), b->args, parts);
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

static uint64_t hash_of(const char *text)
{
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    for (; *text; text++) hash = mix(hash, (uint8_t)*text);
    return hash;
}

/* Which number a loop asks for: `expert_ids == 3` is another op than `expert_ids == 2`. */
static void mix_sought(uint64_t *hash, const lb_program *p, const lb_op *op)
{
    if (strcmp(lb_op_name(p, op), "aten::eq.Scalar") && strcmp(lb_op_name(p, op), "aten::ne.Scalar")) return;
    for (uint32_t i = 0; i < op->args; i++)
        if (lb_op_args(p, op)[i].tag == LB_ARG_INT) *hash = mix(*hash, (uint64_t)lb_op_args(p, op)[i].u.i);
}

/* What an op is: its name and the shapes it takes and gives; dtypes may differ between the sides. */
static uint64_t kind_of(const lb_program *p, const lb_op *op)
{
    mixer m = {hash_of(lb_op_name(p, op)), p};
    lb_op_each_input(p, op, mix_input, &m);
    mix_sought(&m.hash, p, op);
    for (uint32_t i = 0; i < op->results; i++) mix_shape(&m.hash, p, lb_op_results(p, op)[i]);
    return m.hash;
}

static int compare_layers(const entry *a, const entry *b)
{
    if (a->phase != b->phase) return a->phase < b->phase ? -1 : 1;
    int order = strcmp(a->path, b->path);
    return order || a->share == b->share ? order : a->share < b->share ? -1 : 1;
}

static int compare_calls(const entry *a, const entry *b)
{
    if (a->part != b->part) return a->part < b->part ? -1 : 1;
    return a->call == b->call ? 0 : a->call < b->call ? -1 : 1;
}

static int compare_entries(const void *x, const void *y)
{
    const entry *a = x, *b = y;
    int order = compare_layers(a, b);
    if (!order) order = compare_calls(a, b);
    return order ? order : a->op < b->op ? -1 : a->op > b->op;
}

/* ---- parameters as layers ---- */

/* Per op of the optimizer, or of what ranks do with gradients, that serves a single parameter: its name, mapped; NULL for others. Both go
 * through the parameters in an order that says nothing: ops meet by whose they are. */
typedef struct served {
    char **names;
    uint32_t n;
} served;

static bool is_parameters(const lb_program *p, const lb_op *op)
{
    const bool outside = op->phase == LB_PHASE_OPTIMIZER || op->phase == LB_PHASE_COMMUNICATION;
    return outside && lb_op_computes(p, op) && !*lb_op_layer(p, op);
}

static lb_status list_served(const lb_program *p, const lb_map_rules *rules, bool wanted, served *out, lb_err *err)
{
    lb_flow *flow = NULL;
    lb_owners *owners = NULL;
    bool any = false;
    *out = (served){.names = calloc(p->n_ops + 1, sizeof *out->names), .n = p->n_ops};
    if (!out->names) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", p->n_ops);
    for (uint32_t i = 0; wanted && i < p->n_ops && !any; i++) any = is_parameters(p, &p->ops[i]);
    if (!any) return LB_OK;
    lb_status status = lb_flow_new(p, &flow, err);
    if (status == LB_OK) status = lb_owners_new(flow, NULL, &owners, err);
    for (uint32_t i = 0; i < p->n_ops && status == LB_OK; i++) {
        if (!is_parameters(p, &p->ops[i]) || lb_owner_count(owners, i, LB_OWNER_WHOLE) != 1) continue;
        out->names[i] = lb_map_rules_apply(rules, lb_owner_of(owners, i, LB_OWNER_WHOLE));
        if (!out->names[i]) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for names");
    }
    lb_owners_free(owners);
    lb_flow_free(flow);
    return status;
}

static void free_served(served *s)
{
    for (uint32_t i = 0; s->names && i < s->n; i++) free(s->names[i]);
    free(s->names);
}

/* `share`: so many parts of this side stand for one of the other. In an update the write of a parameter is another op than that of its
 * moments, whatever both are called: weight decay multiplies the one in place, a decay of averages the other. */
static entry *list_entries(const lb_program_view *side, char *const *paths, const served *whose, uint32_t share,
                           uint32_t *count)
{
    const lb_program *p = side->program;
    entry *list = malloc((p->n_ops ? p->n_ops : 1) * sizeof *list);
    *count = 0;
    for (uint32_t i = 0; list && i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        if (!lb_op_computes(p, op)) continue;
        const uint32_t part = lb_program_view_part_of(side, i);
        const uint64_t role = whose->names[i] && lb_op_writes_flagged(p, op, LB_VALUE_PARAMETER);
        list[(*count)++] = (entry){.path = whose->names[i] ? whose->names[i] : paths[op->scope],
                                   .kind = mix(kind_of(p, op), role),
                                   .name = mix(hash_of(lb_op_name(p, op)), role),
                                   .phase = op->phase,
                                   .share = part / share,
                                   .part = part,
                                   .call = op->call,
                                   .op = i};
    }
    if (list) qsort(list, *count, sizeof *list, compare_entries);
    return list;
}

/* A run of entries. */
typedef struct group {
    const entry *first;
    uint32_t n;
} group;

/* The list is sorted by what is compared, so that equal entries are neighbours and a group is a
 * range; nothing is copied. */
static uint32_t run_of(const entry *list, uint32_t count, int (*compare)(const entry *, const entry *))
{
    uint32_t n = 1;
    while (n < count && compare(&list[0], &list[n]) == 0) n++;
    return n;
}

/* The calls of a layer, in order; malloc'ed. */
static group *calls_of(group layer, uint32_t *n_calls)
{
    group *calls = malloc((layer.n + 1) * sizeof *calls);
    *n_calls = 0;
    for (uint32_t i = 0, n; calls && i < layer.n; i += n) {
        n = run_of(layer.first + i, layer.n - i, compare_calls);
        calls[(*n_calls)++] = (group){layer.first + i, n};
    }
    return calls;
}

/* What alignment works on. */
typedef struct aligner {
    const lb_program *a, *b;
    const entry *entries[2]; /* of both sides, sorted */
    uint32_t n_entries[2];
    lb_alignment *out;
    bool failed;
} aligner;

/* ---- rows of a larger batch ---- */

/* An op's inputs, then its results, LB_NONE among them. */
typedef struct operands {
    uint32_t list[64], n, inputs;
} operands;

static void add_operand(void *context, uint32_t value)
{
    operands *o = context;
    if (o->n < sizeof o->list / sizeof *o->list) o->list[o->n] = value;
    o->n++;
}

static bool list_operands(const lb_program *p, const lb_op *op, operands *o)
{
    o->n = 0;
    lb_op_each_input(p, op, add_operand, o);
    o->inputs = o->n;
    for (uint32_t i = 0; i < op->results; i++) add_operand(o, lb_op_results(p, op)[i]);
    return o->n <= sizeof o->list / sizeof *o->list;
}

/* Does B's op do to its batch what A's does to some rows of it? `*inputs`, `*any`: those of its inputs, and of all its operands, that
 * carry rows. */
static bool has_rows_of(const lb_batch_rows *rows, const lb_program *pa, uint32_t op_a, const lb_program *pb,
                        uint32_t op_b, uint32_t *inputs, uint32_t *any)
{
    operands a, b;
    *inputs = *any = 0;
    if (!list_operands(pa, &pa->ops[op_a], &a) || !list_operands(pb, &pb->ops[op_b], &b)) return false;
    if (a.n != b.n || a.inputs != b.inputs) return false;
    for (uint32_t i = 0; i < a.n; i++) {
        if (a.list[i] == LB_NONE || b.list[i] == LB_NONE) {
            if (a.list[i] != b.list[i]) return false;
            continue;
        }
        const int dim = lb_batch_rows_dim(rows, &pa->values[a.list[i]].layout, &pb->values[b.list[i]].layout);
        if (dim == LB_REASSEMBLY_NONE) return false;
        *any += dim >= 0, *inputs += dim >= 0 && i < a.inputs;
    }
    return true;
}

bool lb_alignment_reads_rows(const lb_alignment *al, const lb_program *a, uint32_t op_a, const lb_program *b,
                             uint32_t op_b)
{
    uint32_t inputs, any;
    return al->joins.rows && has_rows_of(al->joins.rows, a, op_a, b, op_b, &inputs, &any) && inputs;
}

/* Of B's op: the kind of the op of A that it is with A's rows; its own when it is none. */
static uint64_t kind_among(const aligner *al, group a, const entry *b)
{
    uint32_t inputs, any;
    for (uint32_t i = 0; i < a.n; i++) /* a weight may have as many times another's rows by chance */
        if (a.first[i].kind == b->kind) return b->kind;
    for (uint32_t i = 0; i < a.n; i++)
        if (a.first[i].name == b->name &&
            has_rows_of(al->out->joins.rows, al->a, a.first[i].op, al->b, b->op, &inputs, &any))
            return a.first[i].kind;
    return b->kind;
}

/* match[i]: index in `b` of the partner of a.first[i]; NULL when out of memory. */
static uint32_t *match_groups(aligner *al, group a, group b, bool by_name)
{
    uint32_t *match = malloc((a.n + 1) * sizeof *match);
    uint64_t *keys = malloc(((size_t)a.n + b.n + 1) * sizeof *keys);
    if (match && keys) {
        for (uint32_t i = 0; i < a.n; i++) keys[i] = by_name ? a.first[i].name : a.first[i].kind;
        for (uint32_t i = 0; i < b.n; i++)
            keys[a.n + i] = by_name               ? b.first[i].name
                            : al->out->joins.rows ? kind_among(al, a, &b.first[i])
                                                  : b.first[i].kind;
        lb_sequence_match(keys, a.n, keys + a.n, b.n, match);
    } else {
        free(match);
        match = NULL;
        al->failed = true;
    }
    free(keys);
    return match;
}

/* ---- one call against several ---- */

/* What collectives leave depends on who takes part: lists of gathered pieces are as long as the group, and an all-to-all mixes the
 * pieces of all ranks in each. */
static bool is_mixed(const aligner *al, const lb_reassembly *join)
{
    const lb_op *whole = &al->a->ops[join->whole], *part = &al->b->ops[al->out->joins.part_ops[join->first]];
    return whole->flags & LB_OP_COLLECTIVE &&
           (whole->written != part->written || strstr(lb_op_name(al->a, whole), "alltoall") ||
            strstr(lb_op_name(al->a, whole), "all_to_all"));
}

static bool can_join(const aligner *al, const lb_reassembly *join, uint32_t *values)
{
    const lb_op *whole = &al->a->ops[join->whole];
    if (is_mixed(al, join)) return false;
    for (uint32_t i = 0; i < whole->results + whole->written; i++) {
        uint32_t v = lb_op_outcome(al->a, whole, i);
        if (v == LB_NONE) continue;
        if (!lb_reassembly_values(&al->out->joins, join, al->b, i, values)) return false;
        if (lb_reassembly_dim(al->out->joins.rows, al->a, v, al->b, values, join->parts) == LB_REASSEMBLY_NONE)
            return false;
    }
    return true;
}

static bool add_join(aligner *al, uint32_t whole, const uint32_t *ops, uint32_t n, uint32_t *values)
{
    lb_reassemblies *j = &al->out->joins;
    lb_reassembly join = {whole, j->n_part_ops, n};
    memcpy(j->part_ops + j->n_part_ops, ops, n * sizeof *ops);
    if (!can_join(al, &join, values)) return false;
    al->out->join_of_a[whole] = j->n;
    for (uint32_t k = 0; k < n; k++) al->out->join_of_b[ops[k]] = j->n, al->out->place_of_b[ops[k]] = k;
    j->n_part_ops += n;
    j->list[j->n++] = join;
    return true;
}

static void join_calls(aligner *al, group a, const group *parts, uint32_t n)
{
    uint32_t **matches = calloc(n, sizeof *matches), *ops = malloc(2 * n * sizeof *ops), joined = al->out->joins.n;
    al->failed |= !matches || !ops;
    for (uint32_t k = 0; !al->failed && k < n; k++) matches[k] = match_groups(al, a, parts[k], true);
    for (uint32_t i = 0; !al->failed && i < a.n; i++) {
        bool everywhere = true;
        for (uint32_t k = 0; k < n && everywhere; k++) {
            everywhere = matches[k][i] != UINT32_MAX;
            if (everywhere) ops[k] = parts[k].first[matches[k][i]].op;
        }
        if (everywhere) add_join(al, a.first[i].op, ops, n, ops + n);
    }
    for (uint32_t i = 0; i < a.n && al->out->joins.n - joined != a.n; i++) al->out->irregular[a.first[i].op] = 1;
    for (uint32_t k = 0; matches && k < n; k++) free(matches[k]);
    free(matches), free(ops);
}

/* ---- one call against one ---- */

/* An op over weights alone is the same in any batch, and has to stay a plain pair: as a join of one
 * part it would be cut into rows that it does not have. */
static bool carries_rows(const aligner *al, uint32_t op_a, uint32_t op_b)
{
    uint32_t inputs, any;
    return al->out->joins.rows && has_rows_of(al->out->joins.rows, al->a, op_a, al->b, op_b, &inputs, &any) && any;
}

/* Between two pairs that are neighbours: the ops of one name, in order. */
static void pair_reshaped(aligner *al, group a, group b)
{
    if (!a.n || !b.n) return;
    uint32_t *match = match_groups(al, a, b, true);
    for (uint32_t i = 0; match && i < a.n; i++)
        if (match[i] != UINT32_MAX) al->out->reshaped_b_of_a[a.first[i].op] = b.first[match[i]].op;
    free(match);
}

/* `match`: as match_groups gives it, ascending. */
static void pair_all_reshaped(aligner *al, group a, group b, const uint32_t *match)
{
    uint32_t first_a = 0, first_b = 0;
    for (uint32_t i = 0; i < a.n; i++) {
        if (match[i] == UINT32_MAX) continue;
        pair_reshaped(al, (group){a.first + first_a, i - first_a}, (group){b.first + first_b, match[i] - first_b});
        first_a = i + 1, first_b = match[i] + 1;
    }
    pair_reshaped(al, (group){a.first + first_a, a.n - first_a}, (group){b.first + first_b, b.n - first_b});
}

/* `sure`: the sides call this layer equally often. Otherwise (an expert that got no token of a micro-batch) call i may be
 * another one, although names and shapes agree. */
static void pair_calls(aligner *al, group a, group b, bool sure)
{
    lb_alignment *out = al->out;
    uint32_t *match = match_groups(al, a, b, false), pairs = 0, joined = 0, room;
    for (uint32_t i = 0; match && i < a.n; i++) {
        if (match[i] == UINT32_MAX) continue;
        uint32_t op_a = a.first[i].op, op_b = b.first[match[i]].op;
        if (carries_rows(al, op_a, op_b)) {
            joined += add_join(al, op_a, &op_b, 1, &room);
            continue;
        }
        out->b_of_a[op_a] = op_b, out->a_of_b[op_b] = op_a;
        pairs++;
    }
    if (match && !out->joins.rows) pair_all_reshaped(al, a, b, match);
    free(match);
    out->pairs += pairs, pairs += joined;
    /* Where something is unaligned, names and shapes alone may have paired what are not partners. */
    for (uint32_t i = 0; i < a.n && (pairs != a.n || pairs != b.n || !sure); i++) out->irregular[a.first[i].op] = 1;
}

/* The calls of B that are parts of call `i` of `n` of A: an n-th of the calls of each program. */
static uint32_t parts_of(const group *b, uint32_t nb, uint32_t i, uint32_t n, group *parts)
{
    uint32_t found = 0;
    for (uint32_t first = 0, end; first < nb; first = end) {
        for (end = first; end < nb && b[end].first->part == b[first].first->part;) end++;
        uint32_t share = (end - first) / n;
        if (share * n != end - first) return 0;
        for (uint32_t k = 0; k < share; k++) parts[found++] = b[first + i * share + k];
    }
    return found;
}

/* How often the forward pass calls the layer of an entry. */
static uint32_t forward_calls(const entry *list, uint32_t n, const entry *of)
{
    uint32_t calls = 0;
    const entry *last = NULL;
    for (uint32_t i = 0; i < n; i++) {
        if (list[i].phase != LB_PHASE_FORWARD || strcmp(list[i].path, of->path)) continue;
        calls += !last || compare_calls(last, &list[i]) != 0;
        last = &list[i];
    }
    return calls;
}

/* A layer that goes forward equally often on both sides and backward less often on one (a module that blocks share, one of whose gradients
 * is cut) is no batch in parts: its calls meet by their numbers. */
static bool lacks_a_gradient(const aligner *al, const entry *a, const entry *b)
{
    return a->phase == LB_PHASE_BACKWARD &&
           forward_calls(al->entries[0], al->n_entries[0], a) == forward_calls(al->entries[1], al->n_entries[1], b);
}

static void align_calls(aligner *al, const group *a, uint32_t na, const group *b, uint32_t nb)
{
    group *parts = malloc(nb * sizeof *parts);
    al->failed |= !parts;
    bool several = parts && !al->out->joins.rows && nb > na && parts_of(b, nb, 0, na, parts) &&
                   !lacks_a_gradient(al, a[0].first, b[0].first);
    for (uint32_t i = 0; i < na && several && !al->failed; i++) {
        uint32_t n = parts_of(b, nb, i, na, parts);
        join_calls(al, a[i], parts, n);
    }
    for (uint32_t i = 0, j = 0; i < na && j < nb && !several && !al->failed;) {
        int order = na == nb ? 0 : compare_calls(a[i].first, b[j].first);
        if (order == 0) pair_calls(al, a[i], b[j], na == nb);
        i += order <= 0, j += order >= 0;
    }
    free(parts);
}

static void align_layer(aligner *al, group a, group b)
{
    uint32_t na, nb;
    group *calls_a = calls_of(a, &na), *calls_b = calls_of(b, &nb);
    if (calls_a && calls_b)
        align_calls(al, calls_a, na, calls_b, nb);
    else
        al->failed = true;
    free(calls_a), free(calls_b);
}

/* ---- sources ---- */

static const lb_value *source_value(const lb_program *p, uint32_t op)
{
    if (!lb_op_is_source(p, &p->ops[op])) return NULL;
    uint32_t value = lb_op_results(p, &p->ops[op])[0];
    return value == LB_NONE ? NULL : &p->values[value];
}

/* The first op that reads a source, and as which of its inputs, lists entered; op LB_NONE: none does. */
typedef struct reader {
    uint32_t op, input;
} reader;

typedef struct reading {
    const lb_program *program;
    int64_t storage;
    uint32_t input, n; /* the first input that lies in the storage; UINT32_MAX: none so far */
} reading;

static void note_read(void *context, uint32_t value)
{
    reading *r = context;
    if (value != LB_NONE && r->input == UINT32_MAX && r->program->values[value].storage == r->storage) r->input = r->n;
    r->n++;
}

static reader reader_of(const lb_program *p, uint32_t source)
{
    const int64_t storage = p->values[lb_op_results(p, &p->ops[source])[0]].storage;
    for (uint32_t i = source + 1; i < p->n_ops; i++) {
        reading r = {p, storage, UINT32_MAX, 0};
        if (!lb_op_computes(p, &p->ops[i])) continue;
        lb_op_each_input(p, &p->ops[i], note_read, &r);
        if (r.input != UINT32_MAX) return (reader){i, r.input};
    }
    return (reader){LB_NONE, 0};
}

/* One side's sources: their ops and names, "" where a source has none. */
typedef struct sources {
    uint32_t *ops, n;
    char **names;
    reader *readers;
} sources;

static bool list_sources(const lb_program *p, const lb_map_rules *rules, const uint32_t *shown, sources *s)
{
    s->n = 0;
    s->ops = malloc((p->n_ops + 1) * sizeof *s->ops), s->names = calloc(p->n_ops + 1, sizeof *s->names);
    s->readers = malloc((p->n_ops + 1) * sizeof *s->readers);
    if (!s->ops || !s->names || !s->readers) return false;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_value *v = source_value(p, i);
        if (!v) continue;
        s->ops[s->n] = i, s->readers[s->n] = reader_of(p, i);
        s->names[s->n] = lb_map_rules_apply(rules, lb_program_text(p, p->values[shown[i]].name));
        if (!s->names[s->n++]) return false;
    }
    return true;
}

static void free_sources(sources *s)
{
    for (uint32_t i = 0; s->names && i < s->n; i++) free(s->names[i]);
    free(s->names), free(s->ops), free(s->readers);
}

/* In which way two sources may be the same one; the strongest first. */
typedef enum likeness { BY_NAME, BY_BITS, BY_BITS_ALONE, BY_USE } likeness;

static bool are_used_alike(const aligner *al, const reader *a, const reader *b)
{
    return a->op != LB_NONE && b->op != LB_NONE && al->out->b_of_a[a->op] == b->op && a->input == b->input;
}

static bool are_alike(const aligner *al, const lb_value *va, const sources *sa, uint32_t i, const lb_value *vb,
                      const sources *sb, uint32_t j, likeness how)
{
    const char *name_a = sa->names[i], *name_b = sb->names[j];
    const bool bits =
        va->dtype == vb->dtype && !lb_digest_is_none(va->logical) && lb_digest_equal(va->logical, vb->logical);
    switch (how) {
    case BY_NAME: return *name_a && !strcmp(name_a, name_b);
    case BY_BITS: return !*name_a && !*name_b && bits;
    case BY_BITS_ALONE: /* a batch that one side's module takes whole and the other's in slices has a name on one side */
        return bits && (!*name_a || !*name_b) && !((va->flags | vb->flags) & (LB_VALUE_PARAMETER | LB_VALUE_STATE));
    case BY_USE:
        if (va->dtype != vb->dtype && !(lb_dtype_is_float(va->dtype) && lb_dtype_is_float(vb->dtype))) return false;
        /* In a layer of other ops names alone may have paired the readers: weak for what earlier steps left, which looks all alike. */
        if (va->source == LB_SOURCE_CARRIED && sa->readers[i].op != LB_NONE && al->out->irregular[sa->readers[i].op])
            return false;
        return (!*name_a || !*name_b) && are_used_alike(al, &sa->readers[i], &sb->readers[j]);
    }
    return false;
}

static bool shows_window(const lb_alignment *al, int side, const lb_program *p, uint32_t source)
{
    return al->shown[side][source] != lb_op_results(p, &p->ops[source])[0];
}

/* Ranges of as many elements may show other parts of a batch: what is shown has to be of one shape. */
static bool show_same_shape(const lb_alignment *al, const lb_program *a, uint32_t ia, const lb_program *b, uint32_t ib)
{
    const lb_value *x = &a->values[al->shown[0][ia]], *y = &b->values[al->shown[1][ib]];
    return x->dtype == y->dtype && lb_layout_same_shape(&x->layout, &y->layout);
}

/* Quadratic only in sources of one step, of which there are hundreds. */
static void pair_alike(aligner *al, const lb_program_view *side_a, const lb_program_view *side_b, const sources *sa,
                       const sources *sb, likeness how, uint8_t *taken_a, uint8_t *taken_b)
{
    const lb_program *a = side_a->program, *b = side_b->program;
    const lb_batch_rows *rows = al->out->joins.rows;
    uint32_t room;
    for (uint32_t i = 0; i < sa->n; i++) {
        const lb_value *va = source_value(a, sa->ops[i]);
        for (uint32_t j = 0; j < sb->n && !taken_a[i]; j++) {
            const lb_value *vb = source_value(b, sb->ops[j]);
            const bool same = shows_window(al->out, 0, a, sa->ops[i]) || shows_window(al->out, 1, b, sb->ops[j])
                                  ? show_same_shape(al->out, a, sa->ops[i], b, sb->ops[j])
                                  : lb_layout_same_shape(&va->layout, &vb->layout);
            if (taken_b[j] || (!same && !(rows && lb_batch_rows_dim(rows, &va->layout, &vb->layout) >= 0))) continue;
            if (lb_program_view_part_of(side_a, sa->ops[i]) != lb_program_view_part_of(side_b, sb->ops[j])) continue;
            if (!are_alike(al, va, sa, i, vb, sb, j, how)) continue;
            if (same)
                al->out->source_b_of_a[sa->ops[i]] = sb->ops[j];
            else if (!add_join(al, sa->ops[i], &sb->ops[j], 1, &room))
                continue;
            taken_a[i] = taken_b[j] = 1;
        }
    }
}

/* What one op of A reads, and each of its parts of B by a source of its own: slices of a batch. */
static void join_by_use(aligner *al, const sources *sa, const sources *sb, uint8_t *taken_a, uint8_t *taken_b)
{
    uint32_t *ops = malloc((3 * sb->n + 3) * sizeof *ops), *rows = ops + sb->n + 1, *room = rows + sb->n + 1;
    al->failed |= !ops;
    for (uint32_t i = 0; ops && i < sa->n; i++) {
        const reader *a = &sa->readers[i];
        const uint32_t join = taken_a[i] || a->op == LB_NONE ? LB_NONE : al->out->join_of_a[a->op];
        uint32_t found = 0, parts = join == LB_NONE ? 0 : al->out->joins.list[join].parts;
        for (uint32_t part = 0; part < parts; part++)
            for (uint32_t j = 0; j < sb->n && found == part; j++) {
                const reader *b = &sb->readers[j];
                if (taken_b[j] || b->op != al->out->joins.part_ops[al->out->joins.list[join].first + part] ||
                    b->input != a->input)
                    continue;
                ops[found] = sb->ops[j], rows[found++] = j;
            }
        if (!parts || found < parts || !add_join(al, sa->ops[i], ops, found, room)) continue;
        taken_a[i] = 1;
        for (uint32_t k = 0; k < found; k++) taken_b[rows[k]] = 1;
    }
    free(ops);
}

/* Named sources by name and occurrence; of the others those that hold the same bits, and what is left by the aligned op that reads it
 * first, and as which of its inputs. */
static bool pair_sources(aligner *al, const lb_program_view *a, const lb_program_view *b, const sources *sa,
                         const sources *sb, uint8_t *taken)
{
    uint8_t *taken_a = calloc(sa->n + 1, 1);
    for (uint32_t i = 0; taken_a && i < sa->n; i++) taken_a[i] = al->out->join_of_a[sa->ops[i]] != LB_NONE;
    for (likeness how = BY_NAME; taken_a && how <= BY_USE; how++) pair_alike(al, a, b, sa, sb, how, taken_a, taken);
    if (taken_a) join_by_use(al, sa, sb, taken_a, taken);
    free(taken_a);
    return taken_a != NULL && !al->failed;
}

/* B is more programs: a source of A is one of each of those that stand for its own, put together. Of unnamed ones the place in
 * the program decides, and whether they can be put together. */
static void join_source(aligner *al, const lb_program_view *a, const lb_program_view *b, const sources *sa, uint32_t i,
                        const sources *sb, uint8_t *taken, uint32_t *room)
{
    const uint32_t parts = b->n_parts / a->n_parts, first = lb_program_view_part_of(a, sa->ops[i]) * parts;
    uint32_t *ops = room, *rows = room + parts, found = 0;
    const lb_value *va = source_value(al->a, sa->ops[i]);
    for (uint32_t j = 0; j < sb->n && found < parts; j++) {
        const lb_value *vb = source_value(al->b, sb->ops[j]);
        if (taken[j] || lb_program_view_part_of(b, sb->ops[j]) != first + found || va->dtype != vb->dtype) continue;
        if (strcmp(sa->names[i], sb->names[j]) != 0) continue;
        if (!*sa->names[i] && va->layout.ndim != vb->layout.ndim) continue;
        ops[found] = sb->ops[j], rows[found++] = j;
    }
    if (found < parts) return;
    add_join(al, sa->ops[i], ops, found, room + 2 * parts);
    if (al->out->join_of_a[sa->ops[i]] == LB_NONE) return;
    for (uint32_t k = 0; k < found; k++) taken[rows[k]] = 1;
}

static bool join_sources(aligner *al, const lb_program_view *a, const lb_program_view *b, const sources *sa,
                         const sources *sb, uint8_t *taken)
{
    uint32_t *room = malloc(3 * b->n_parts * sizeof *room);
    for (uint32_t i = 0; room && i < sa->n; i++)
        if (al->out->join_of_a[sa->ops[i]] == LB_NONE) join_source(al, a, b, sa, i, sb, taken, room);
    free(room);
    return room != NULL;
}

/* ---- sources that say which part of a larger tensor they are ---- */

/* Those of B that have this name and say so, of the ranks [first, last); `ops` and `values` have room for all. */
static uint32_t list_parts(const aligner *al, const lb_program_view *b, const sources *sb, const char *name,
                           uint32_t first, uint32_t last, uint32_t *ops, uint32_t *values)
{
    uint32_t n = 0, shards;
    for (uint32_t j = 0; j < sb->n; j++) {
        const uint32_t v = lb_op_results(al->b, &al->b->ops[sb->ops[j]])[0],
                       part = lb_program_view_part_of(b, sb->ops[j]);
        if (part < first || part >= last || strcmp(sb->names[j], name) || !lb_program_shards_of(al->b, v, &shards))
            continue;
        ops[n] = sb->ops[j], values[n++] = v;
    }
    return n;
}

/* Of equal parts one is put together with others; the rest stand where it does. */
static void join_copies(aligner *al, const uint32_t *chosen, uint32_t found, const uint32_t *ops,
                        const uint32_t *values, uint32_t n)
{
    for (uint32_t j = 0; j < n; j++)
        for (uint32_t k = 0; k < found && al->out->join_of_b[ops[j]] == LB_NONE; k++) {
            const uint32_t part = lb_op_results(al->b, &al->b->ops[chosen[k]])[0];
            if (!lb_shard_is_copy(al->b, part, al->b, values[j])) continue;
            al->out->join_of_b[ops[j]] = al->out->join_of_b[chosen[k]], al->out->place_of_b[ops[j]] = k;
        }
}

/* A source of A that is the whole of what ranks of B have parts of: those that stand for its own rank, or else any (A's ranks hold the same
 * tensor then, and B's share one among them). */
static void join_shards(aligner *al, const lb_program_view *a, const lb_program_view *b, const sources *sa, uint32_t i,
                        const sources *sb, uint32_t *room)
{
    const uint32_t share = b->n_parts / a->n_parts, mine = lb_program_view_part_of(a, sa->ops[i]);
    const lb_value *whole = source_value(al->a, sa->ops[i]);
    uint32_t *ops = room, *values = room + sb->n, *order = values + sb->n, *chosen = order + sb->n;
    if (!*sa->names[i]) return;
    for (int all = 0; all < 2; all++) {
        const uint32_t first = all ? 0 : mine * share, last = all ? b->n_parts : (mine + 1) * share;
        const uint32_t n = list_parts(al, b, sb, sa->names[i], first, last, ops, values),
                       found = lb_shard_cover(al->b, &whole->layout, values, n, order);
        if (found < 2) continue;
        for (uint32_t k = 0; k < found; k++) chosen[k] = ops[order[k]];
        if (al->out->joins.n_part_ops + found <= al->b->n_ops && add_join(al, sa->ops[i], chosen, found, order))
            join_copies(al, chosen, found, ops, values, n);
        return;
    }
}

static bool join_by_shards(aligner *al, const lb_program_view *a, const lb_program_view *b, const sources *sa,
                           const sources *sb, uint8_t *taken)
{
    uint32_t *room = al->b->n_shards ? malloc((4 * (size_t)sb->n + 1) * sizeof *room) : NULL;
    for (uint32_t i = 0; room && i < sa->n; i++) join_shards(al, a, b, sa, i, sb, room);
    for (uint32_t j = 0; room && j < sb->n; j++) taken[j] |= al->out->join_of_b[sb->ops[j]] != LB_NONE;
    free(room);
    return room || !al->b->n_shards;
}

static lb_status align_sources(const lb_program_view *a, const lb_program_view *b, const lb_map_rules *rules_a,
                               const lb_map_rules *rules_b, lb_alignment *out, lb_err *err)
{
    sources sa = {0}, sb = {0};
    aligner al = {.a = a->program, .b = b->program, .out = out};
    uint8_t *taken = calloc(b->program->n_ops + 1, 1);
    bool done = list_sources(a->program, rules_a, out->shown[0], &sa) &&
                list_sources(b->program, rules_b, out->shown[1], &sb) && taken;
    lb_status status = done ? lb_names_meet(sa.names, sa.n, sb.names, sb.n, err) : LB_ERR_NOMEM;
    if (status == LB_OK && b->n_parts > 1 && !out->joins.rows) done = join_by_shards(&al, a, b, &sa, &sb, taken);
    if (status == LB_OK && done && b->n_parts > a->n_parts)
        done = join_sources(&al, a, b, &sa, &sb, taken);
    else if (status == LB_OK && done)
        done = pair_sources(&al, a, b, &sa, &sb, taken);
    if (!done) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for sources");
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

static void align_layers(aligner *al, const entry *a, uint32_t na, const entry *b, uint32_t nb)
{
    lb_alignment *out = al->out;
    al->entries[0] = a, al->n_entries[0] = na, al->entries[1] = b, al->n_entries[1] = nb;
    for (uint32_t i = 0, j = 0, ni, nj; i < na && j < nb && !al->failed;) {
        int order = compare_layers(&a[i], &b[j]);
        ni = run_of(a + i, na - i, compare_layers), nj = run_of(b + j, nb - j, compare_layers);
        if (order == 0) align_layer(al, (group){a + i, ni}, (group){b + j, nj});
        if (order <= 0) i += ni;
        if (order >= 0) j += nj;
    }
    out->only_a = na - out->pairs - out->joins.n, out->only_b = nb - out->pairs - out->joins.n_part_ops;
}

static lb_status align_ops(const lb_program_view *a, const lb_program_view *b, char **paths_a, char **paths_b,
                           const served whose[2], lb_alignment *out, lb_err *err)
{
    uint32_t na = 0, nb = 0;
    aligner al = {.a = a->program, .b = b->program, .out = out};
    LB_TRY(lb_names_meet(paths_a, a->program->n_scopes, paths_b, b->program->n_scopes, err));
    entry *list_a = list_entries(a, paths_a, &whose[0], 1, &na),
          *list_b = list_entries(b, paths_b, &whose[1], b->n_parts / a->n_parts, &nb);
    if (list_a && list_b) align_layers(&al, list_a, na, list_b, nb);
    bool done = list_a && list_b && !al.failed;
    free(list_a), free(list_b);
    return done ? LB_OK
                : lb_fail(err, LB_ERR_NOMEM, "out of memory while aligning %u with %u ops", a->program->n_ops,
                          b->program->n_ops);
}

static bool open_alignment(lb_alignment *out, uint32_t na, uint32_t nb)
{
    memset(out, 0, sizeof *out);
    out->b_of_a = none_list(na), out->a_of_b = none_list(nb);
    out->source_b_of_a = none_list(na), out->reshaped_b_of_a = none_list(na), out->irregular = calloc(na + 1, 1);
    out->join_of_a = none_list(na), out->join_of_b = none_list(nb), out->place_of_b = none_list(nb);
    out->joins.list = calloc(na + 1, sizeof *out->joins.list), out->joins.part_ops = calloc(nb + 1, sizeof(uint32_t));
    return out->b_of_a && out->a_of_b && out->source_b_of_a && out->reshaped_b_of_a && out->irregular &&
           out->join_of_a && out->join_of_b && out->place_of_b && out->joins.list && out->joins.part_ops;
}

static uint32_t *list_shown(const lb_program *p, bool windows)
{
    if (windows) return lb_shown_sources(p);
    uint32_t *shown = none_list(p->n_ops + 1);
    for (uint32_t i = 0; shown && i < p->n_ops; i++)
        if (source_value(p, i)) shown[i] = lb_op_results(p, &p->ops[i])[0];
    return shown;
}

static lb_status make(const lb_program_view *a, const lb_program_view *b, const lb_map_rules *rules_a,
                      const lb_map_rules *rules_b, const lb_batch_rows *rows, bool by_parameter, lb_alignment *out,
                      lb_err *err)
{
    const lb_program *pa = a->program, *pb = b->program;
    char **paths_a = scope_paths(pa, rules_a), **paths_b = scope_paths(pb, rules_b);
    bool room = open_alignment(out, pa->n_ops, pb->n_ops) && paths_a && paths_b;
    out->joins.rows = rows;
    out->shown[0] = list_shown(pa, by_parameter), out->shown[1] = list_shown(pb, by_parameter);
    room = room && out->shown[0] && out->shown[1];
    served whose[2] = {{0}};
    lb_status status =
        room ? list_served(pa, rules_a, by_parameter, &whose[0], err)
             : lb_fail(err, LB_ERR_NOMEM, "out of memory while aligning %u with %u ops", pa->n_ops, pb->n_ops);
    if (status == LB_OK) status = list_served(pb, rules_b, by_parameter, &whose[1], err);
    if (status == LB_OK) status = align_ops(a, b, paths_a, paths_b, whose, out, err);
    free_served(&whose[0]), free_served(&whose[1]);
    if (status == LB_OK) status = align_sources(a, b, rules_a, rules_b, out, err);
    if (status != LB_OK) lb_alignment_release(out);
    free_paths(paths_a, pa->n_scopes), free_paths(paths_b, pb->n_scopes);
    return status;
}

lb_status lb_alignment_make(const lb_program_view *a, const lb_program_view *b, const lb_map_rules *rules_a,
                            const lb_map_rules *rules_b, const lb_batch_rows *rows, lb_alignment *out, lb_err *err)
{
    return make(a, b, rules_a, rules_b, rows, false, out, err);
}

lb_status lb_alignment_make_by_parameter(const lb_program_view *a, const lb_program_view *b,
                                         const lb_map_rules *rules_a, const lb_map_rules *rules_b, lb_alignment *out,
                                         lb_err *err)
{
    return make(a, b, rules_a, rules_b, NULL, true, out, err);
}

bool lb_alignment_finer(const lb_program *program, const lb_program *other)
{
    const lb_program *programs[] = {program, other};
    uint64_t calls[2] = {0, 0};
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < programs[k]->n_boundaries; i++) {
            const lb_boundary *b = &programs[k]->boundaries[i];
            calls[k] += b->output && !b->recompute && b->position == 0;
        }
    return calls[0] > calls[1];
}

bool lb_alignment_reassembly(lb_alignment *alignment, const lb_program *a, const lb_program *b, uint32_t whole,
                             const uint32_t *parts, uint32_t n)
{
    aligner al = {.a = a, .b = b, .out = alignment};
    uint32_t *values = malloc((n + 1) * sizeof *values);
    const bool joined = values && add_join(&al, whole, parts, n, values);
    free(values);
    return joined;
}

void lb_alignment_release(lb_alignment *alignment)
{
    free(alignment->b_of_a), free(alignment->a_of_b), free(alignment->source_b_of_a), free(alignment->reshaped_b_of_a),
        free(alignment->irregular);
    free(alignment->join_of_a), free(alignment->join_of_b), free(alignment->place_of_b);
    free(alignment->shown[0]), free(alignment->shown[1]);
    lb_reassemblies_release(&alignment->joins);
    memset(alignment, 0, sizeof *alignment);
}
