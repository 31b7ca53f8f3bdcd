/* Sources: see diff_sources.h. */
#include "diff/diff_sources.h"
#include "pair/op_kind.h"

#include "diff/diff_cuts.h"
#include "diff/diff_place.h"
#include "diff/diff_rows.h"
#include "diff/diff_values.h"
#include "kernel/value_memory.h"
#include "shadow/cross_feed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum reason { CARRIED, NO_KNOWN_PAIR, WRITTEN_SINCE, PAST_UNKNOWN, AFTER_READING, NARROWED, OTHER } reason;

static const char *const sentences[] = {
    [CARRIED] = "%s%s came out of the step before differently",
    [NO_KNOWN_PAIR] = "%s%s was left by ops that are not known to be partners, and it has no name: "
                      "whether both sides carry the same cannot be told",
    [WRITTEN_SINCE] = "%s%s: the step before left it the same on both sides, and something wrote it since",
    [PAST_UNKNOWN] =
        "%s%s is not the same on both sides at the begin of what was compared; what the steps before did is not known",
    [AFTER_READING] = "%s%s was made in Python after numbers that differ had been read",
    [NARROWED] = "%s%s is the other side's value rounded to a narrower dtype",
    [OTHER] = "%s%s is not the same on both sides",
};

/* What both sides' storages are known to hold; *met: as in a taint. */
static lb_verdict before(const lb_diff_walk *walk, uint32_t ia, uint32_t *met)
{
    const lb_alignment *al = &walk->alignment;
    lb_verdict worst = LB_VERDICT_IDENTICAL;
    uint32_t parts[1] = {al->source_b_of_a[ia]}, n = parts[0] != LB_NONE;
    const uint32_t *list = parts;
    if (al->join_of_a[ia] != LB_NONE) {
        const lb_reassembly *join = &al->joins.list[al->join_of_a[ia]];
        list = al->joins.part_ops + join->first, n = join->parts;
    }
    for (uint32_t k = 0; k <= n; k++) {
        const lb_program *program = k ? walk->pb : walk->pa;
        const uint32_t v = lb_op_results(program, &program->ops[k ? list[k - 1] : ia])[0];
        const lb_taint *taint = lb_taint_of(&walk->storages[k > 0], program->values[v].storage);
        worst = lb_verdict_worse(worst, lb_verdict_worse(taint->verdict, taint->carried));
        if (taint->met > *met) *met = taint->met;
    }
    return worst;
}

/* Had the run steps before the first one that was compared, so that weights, states and caches come from there? */
static bool past_is_unknown(const lb_diff_walk *walk, uint32_t ia, const lb_value *value)
{
    if (walk->pa->step != walk->past->first || walk->past->first <= 0) return false;
    return lb_op_kind_is_memory_of_update(walk->pa, &walk->pa->ops[ia]) || value->source == LB_SOURCE_CARRIED ||
           value->source == LB_SOURCE_PARAMETER || value->source == LB_SOURCE_STATE;
}

/* A range with gaps is no value that the recording would know again: whether ops of the step before left it, its bytes
 * say. */
typedef enum whence { KNOWN, LEFT, WRITTEN, NOT_TOLD } whence;

static whence whence_of(const lb_diff_walk *walk, int side, uint32_t source)
{
    const lb_program_view *view = side ? walk->b : walk->a;
    const lb_value *value = &view->program->values[lb_op_results(view->program, &view->program->ops[source])[0]];
    uint32_t row, left;
    const lb_program *program = lb_program_view_recorded(view, walk->alignment.shown[side][source], &row), *past;
    lb_tensor now, then;
    int64_t first, last;
    if (value->source != LB_SOURCE_BATCH && value->source != LB_SOURCE_OTHER) return KNOWN;
    if (lb_capture_program(view->capture, program->rank, program->step - 1, &past, NULL) != LB_OK) return KNOWN;
    const uint32_t giver = lb_cross_feed_giver_of_storage(past, program->values[row].storage, past->n_ops, &left);
    if (giver == LB_NONE || !lb_op_computes(past, &past->ops[giver])) return KNOWN;
    if (lb_capture_value(view->capture, program, row, &now, NULL) != LB_OK ||
        lb_capture_value(view->capture, past, left, &then, NULL) != LB_OK)
        return NOT_TOLD;
    if (lb_layout_dense_range(&program->values[row].layout, &first, &last, NULL) != LB_OK || now.dtype != then.dtype)
        return NOT_TOLD;
    const int64_t begin = past->values[left].layout.offset;
    if (!lb_layout_is_contiguous(&then.layout) || first < begin || last > begin + lb_layout_numel(&then.layout))
        return NOT_TOLD;
    then.data =
        (char *)then.data + (program->values[row].layout.offset - begin) * (int64_t)(lb_dtype_bits(then.dtype) / 8);
    then.layout = program->values[row].layout;
    return lb_memory_tensor_same(&now, &then) ? LEFT : WRITTEN;
}

/* A tensor without a name may be scaled once more than the other side's, or be an older one: exact arithmetic begins
 * behind it. */
static bool is_known_pair(const lb_diff_walk *walk, uint32_t va, uint32_t vb)
{
    const lb_value *a = &walk->pa->values[va], *b = &walk->pb->values[vb];
    if (*lb_program_text(walk->pa, a->name) || *lb_program_text(walk->pb, b->name) ||
        lb_program_views_are_uneven(walk->a, walk->b))
        return true;
    return lb_met_storages_shared(&walk->past->met, a->storage, b->storage, walk->swapped);
}

static reason reason_of(const lb_diff_walk *walk, uint32_t ia, lb_verdict left)
{
    const uint32_t ib = walk->alignment.source_b_of_a[ia], va = lb_op_results(walk->pa, &walk->pa->ops[ia])[0];
    const lb_value *value = &walk->pa->values[va];
    const uint32_t vb = ib == LB_NONE ? LB_NONE : lb_op_results(walk->pb, &walk->pb->ops[ib])[0];
    const whence from[] = {whence_of(walk, 0, ia), ib == LB_NONE ? KNOWN : whence_of(walk, 1, ib)};
    const bool unseen = value->source == LB_SOURCE_UNSEEN || from[0] == WRITTEN || from[1] == WRITTEN ||
                        (vb != LB_NONE && walk->pb->values[vb].source == LB_SOURCE_UNSEEN);
    const bool carried = value->source == LB_SOURCE_CARRIED || from[0] == LEFT || from[1] == LEFT ||
                         (vb != LB_NONE && walk->pb->values[vb].source == LB_SOURCE_CARRIED);
    if (from[0] == NOT_TOLD || from[1] == NOT_TOLD) return PAST_UNKNOWN;
    if (carried && !unseen && left != LB_VERDICT_IDENTICAL)
        return vb == LB_NONE || is_known_pair(walk, va, vb) ? CARRIED : NO_KNOWN_PAIR;
    if (vb != LB_NONE && lb_diff_values_same_rounded(walk, va, vb)) return NARROWED;
    if (unseen) return WRITTEN_SINCE;
    if (past_is_unknown(walk, ia, value)) return PAST_UNKNOWN;
    if (carried) return WRITTEN_SINCE;
    if (value->source == LB_SOURCE_OTHER && walk->past->read.verdict != LB_VERDICT_IDENTICAL) return AFTER_READING;
    return OTHER;
}

/* Constants made of numbers that were read are no further apart than these, up to a factor of 8. */
static bool is_explained(const lb_diff_walk *walk, const lb_diff_row *row)
{
    const lb_value *value = &walk->pa->values[lb_op_results(walk->pa, &walk->pa->ops[row->index])[0]];
    if (!lb_dtype_is_float(value->dtype)) return walk->past->read.integers;
    return row->measured && row->difference.rel_l2 <= 8 * walk->past->read.ratio;
}

static void judge_source(const lb_diff_walk *walk, reason why, lb_verdict left, lb_diff_row *row)
{
    row->local = LB_VERDICT_IDENTICAL, row->inherited = LB_VERDICT_IDENTICAL;
    switch (why) {
    case CARRIED: row->inherited = left; break;
    case NO_KNOWN_PAIR: row->inherited = lb_verdict_worse(left, LB_VERDICT_MISSING); break;
    case PAST_UNKNOWN: row->inherited = LB_VERDICT_MISSING; break;
    case AFTER_READING: row->inherited = walk->past->read.verdict; break;
    case NARROWED: row->local = LB_VERDICT_ROUNDING; break;
    case WRITTEN_SINCE:
    case OTHER: row->local = LB_VERDICT_DIVERGED; break;
    }
}

/* Which row of a batch: the first that differs, of how many. */
static void name_rows(const lb_diff_walk *walk, uint32_t ia, lb_diff_row *row)
{
    const lb_value *value = &walk->pa->values[lb_op_results(walk->pa, &walk->pa->ops[ia])[0]];
    const lb_layout *layout = &walk->pa->values[walk->alignment.shown[0][ia]].layout;
    char text[400];
    if (!row->measured || row->difference.first < 0 || layout->ndim < 2 ||
        !(value->flags & LB_VALUE_INPUT || value->source == LB_SOURCE_BATCH))
        return;
    int64_t inner = 1;
    for (int d = 1; d < layout->ndim; d++) inner *= layout->shape[d];
    if (inner <= 0) return;
    snprintf(text, sizeof text, "%s: from row %lld of %lld on", row->why, (long long)(row->difference.first / inner),
             (long long)layout->shape[0]);
    row->why = lb_report_keep(walk->report, text);
}

/* The parameter or buffer, and its module. */
static void name_source(const lb_diff_walk *walk, const lb_value *value, lb_diff_row *row)
{
    const char *name = lb_program_text(walk->pa, value->name);
    if (!*name) return;
    row->layer = lb_report_keep(walk->report, name), row->value = true;
}

/* ---- whose part it is ---- */

/* What part `k` of a join has, and what of the whole it should have; both row-major, malloc'ed. */
typedef struct part_bytes {
    void *has, *should;
    size_t size;
} part_bytes;

static void release_part(part_bytes *part_bytes)
{
    free(part_bytes->has), free(part_bytes->should);
}

/* `source`: an op of B that holds part `k`. */
static bool read_held(const lb_diff_walk *walk, const lb_reassembly *join, uint32_t k, uint32_t source, part_bytes *out)
{
    const uint32_t va = lb_op_results(walk->pa, &walk->pa->ops[join->whole])[0],
                   vb = lb_op_results(walk->pb, &walk->pb->ops[source])[0];
    lb_tensor whole, part;
    *out = (part_bytes){0};
    if (lb_program_view_value(walk->a, va, &whole, NULL) != LB_OK ||
        lb_program_view_value(walk->b, vb, &part, NULL) != LB_OK || whole.dtype != part.dtype ||
        lb_dtype_bits(part.dtype) < 8)
        return false;
    int dim;
    uint32_t n;
    const size_t element = lb_dtype_bits(part.dtype) / 8;
    lb_reassembly_piece *pieces =
        lb_reassembly_outcome_pieces(&walk->alignment.joins, join, walk->pa, walk->b, 0, &dim, &n);
    void *all = malloc((size_t)lb_layout_numel(&whole.layout) * element + 1);
    out->size = (size_t)lb_layout_numel(&part.layout) * element;
    out->has = malloc(out->size + 1), out->should = malloc(out->size + 1);
    const bool done = pieces && all && out->has && out->should && lb_tensor_gather(&whole, all, NULL) == LB_OK &&
                      lb_tensor_gather(&part, out->has, NULL) == LB_OK;
    if (done) lb_reassembly_cut(&whole.layout, dim, pieces, n, k, &part.layout, element, all, out->should);
    free(pieces), free(all);
    return done;
}

static bool read_part(const lb_diff_walk *walk, const lb_reassembly *join, uint32_t k, part_bytes *out)
{
    return read_held(walk, join, k, walk->alignment.joins.part_ops[join->first + k], out);
}

static int32_t rank_of_source(const lb_diff_walk *walk, uint32_t source)
{
    return walk->b->parts[lb_program_view_part_of(walk->b, source)].program->rank;
}

/* A copy of a part of the join on another rank that has not the part's bits; LB_NONE. */
static uint32_t find_other_copy(const lb_diff_walk *walk, uint32_t join)
{
    const lb_alignment *al = &walk->alignment;
    const lb_reassembly *reassembly = &al->joins.list[join];
    for (uint32_t i = 0; i < walk->pb->n_ops; i++) {
        if (al->join_of_b[i] != join || !lb_op_is_source(walk->pb, &walk->pb->ops[i])) continue;
        const uint32_t part = al->joins.part_ops[reassembly->first + al->place_of_b[i]];
        if (part != i && lb_program_view_values_differ(walk->b, lb_op_results(walk->pb, &walk->pb->ops[i])[0], walk->b,
                                                       lb_op_results(walk->pb, &walk->pb->ops[part])[0]))
            return i;
    }
    return LB_NONE;
}

/* Where each rank holds all of it: the first that holds another, while some holds the same; LB_NONE. */
static uint32_t find_wrong_copy(const lb_diff_walk *walk, const lb_reassembly *join)
{
    const lb_reassemblies *joins = &walk->alignment.joins;
    const uint32_t whole = lb_op_results(walk->pa, &walk->pa->ops[join->whole])[0];
    uint32_t wrong = LB_NONE, same = 0;
    if (lb_reassembly_outcome_dim(joins, join, walk->pa, walk->pb, 0) != LB_REASSEMBLY_SAME) return LB_NONE;
    for (uint32_t k = 0; k < join->parts; k++) {
        const uint32_t op = joins->part_ops[join->first + k];
        const bool differs =
            lb_program_view_values_differ(walk->a, whole, walk->b, lb_op_results(walk->pb, &walk->pb->ops[op])[0]);
        if (differs && wrong == LB_NONE) wrong = op;
        same += !differs;
    }
    return same ? wrong : LB_NONE;
}

/* The first source of the join whose part is another: of those that are put together, then of the ranks that hold
 * copies. LB_NONE: none is, or that could not be read. */
static uint32_t find_wrong(const lb_diff_walk *walk, uint32_t number, part_bytes *mine)
{
    const lb_reassembly *join = &walk->alignment.joins.list[number];
    const uint32_t alone = find_wrong_copy(walk, join);
    if (alone != LB_NONE) return alone;
    for (uint32_t k = 0; k < join->parts; k++, release_part(mine)) {
        if (!read_part(walk, join, k, mine)) return LB_NONE;
        if (memcmp(mine->has, mine->should, mine->size)) return walk->alignment.joins.part_ops[join->first + k];
    }
    const uint32_t copy = find_other_copy(walk, number);
    return copy != LB_NONE && read_held(walk, join, walk->alignment.place_of_b[copy], copy, mine) ? copy : LB_NONE;
}

/* Of a tensor that ranks share: the first rank whose part is another, and whose part it has instead. */
static void name_part(lb_diff_walk *walk, uint32_t number, lb_diff_row *row)
{
    const lb_reassembly *join = &walk->alignment.joins.list[number];
    char text[400], part[200] = "";
    uint32_t n;
    part_bytes mine = {0};
    const uint32_t wrong = find_wrong(walk, number, &mine);
    if (wrong == LB_NONE) {
        release_part(&mine);
        return;
    }
    const lb_shard *shard = lb_program_shards_of(walk->pb, lb_op_results(walk->pb, &walk->pb->ops[wrong])[0], &n);
    if (n == 1) lb_shard_text(walk->pb, shard, part, sizeof part);
    const char *range = strchr(part, '[');
    int used = snprintf(text, sizeof text, "%s: that of rank %d%s%s is another", row->why, rank_of_source(walk, wrong),
                        range ? ", " : "", range ? range : "");
    for (uint32_t k = 0; k < join->parts; k++) {
        part_bytes other;
        const uint32_t source = walk->alignment.joins.part_ops[join->first + k];
        const bool read = source != wrong && mine.has && read_part(walk, join, k, &other);
        const bool same = read && other.size == mine.size && !memcmp(mine.has, other.should, mine.size);
        if (source != wrong && mine.has) release_part(&other);
        if (!same || used < 0 || (size_t)used >= sizeof text) continue;
        snprintf(text + used, sizeof text - (size_t)used, ": it has what rank %d should have",
                 rank_of_source(walk, source));
        break;
    }
    release_part(&mine);
    row->why = lb_report_keep(walk->report, text);
    row->other = wrong;
}

/* One rank against the same rank of the other side: has it what another rank has there? */
static void name_other_rank(lb_diff_walk *walk, uint32_t ia, uint32_t ib, lb_diff_row *row)
{
    const uint32_t sources[] = {ia, ib}, mine = lb_program_view_part_of(walk->a, ia);
    const lb_program *programs[] = {walk->pa, walk->pb};
    uint32_t values[2], n;
    for (int k = 0; k < 2; k++) values[k] = lb_op_results(programs[k], &programs[k]->ops[sources[k]])[0];
    for (int k = 0; k < 2; k++) { /* what side k has there, among what the other side has */
        const lb_program *program = programs[!k];
        const lb_value *has = &programs[k]->values[values[k]];
        const char *name = lb_program_text(program, program->values[values[!k]].name);
        if (!lb_program_shards_of(program, values[!k], &n) || lb_digest_is_none(has->logical)) continue;
        for (uint32_t i = 0; i < program->n_ops; i++) {
            if (!lb_op_is_source(program, &program->ops[i])) continue;
            const lb_value *value = &program->values[lb_op_results(program, &program->ops[i])[0]];
            const uint32_t part = lb_program_view_part_of(k ? walk->a : walk->b, i);
            if (part == mine || !lb_digest_equal(value->logical, has->logical) ||
                strcmp(lb_program_text(program, value->name), name))
                continue;
            char text[400];
            snprintf(text, sizeof text, "%s: the %s side has what rank %d has on the %s side", row->why,
                     (k == 1) != walk->swapped ? "second" : "first", (k ? walk->a : walk->b)->parts[part].program->rank,
                     (k == 1) != walk->swapped ? "first" : "second");
            row->why = lb_report_keep(walk->report, text);
            return;
        }
    }
}

static void flow_source(lb_diff_walk *walk, uint32_t ia, const lb_diff_row *row)
{
    const lb_alignment *al = &walk->alignment;
    const uint32_t ib = al->source_b_of_a[ia];
    const uint32_t n = al->join_of_a[ia] != LB_NONE ? al->joins.list[al->join_of_a[ia]].parts : ib != LB_NONE;
    const uint32_t *list =
        al->join_of_a[ia] != LB_NONE ? al->joins.part_ops + al->joins.list[al->join_of_a[ia]].first : &ib;
    for (uint32_t k = 0; k <= n; k++) {
        const lb_program *program = k ? walk->pb : walk->pa;
        const uint32_t v = lb_op_results(program, &program->ops[k ? list[k - 1] : ia])[0];
        lb_taint *taint = lb_taint_of(&walk->storages[k > 0], program->values[v].storage);
        *taint = LB_TAINT_CLEAN(taint->storage); /* both shadows go on from one side's numbers … */
        taint->carried = row->verdict;           /* … and so can't say what follows from this */
        taint->met = row->met;
        taint->differs = row->verdict != LB_VERDICT_IDENTICAL;
    }
    for (uint32_t i = 0; al->join_of_a[ia] != LB_NONE && i < walk->pb->n_ops;
         i++) { /* ranks that hold copies of a part */
        if (al->join_of_b[i] != al->join_of_a[ia] || !lb_op_is_source(walk->pb, &walk->pb->ops[i])) continue;
        const uint32_t v = lb_op_results(walk->pb, &walk->pb->ops[i])[0];
        lb_taint *taint = lb_taint_of(&walk->storages[1], walk->pb->values[v].storage);
        *taint = LB_TAINT_CLEAN(taint->storage);
        taint->carried = row->verdict, taint->differs = row->verdict != LB_VERDICT_IDENTICAL;
    }
}

void lb_diff_walk_source(lb_diff_walk *walk, uint32_t ia)
{
    const lb_value *value = &walk->pa->values[lb_op_results(walk->pa, &walk->pa->ops[ia])[0]];
    const uint32_t ib = walk->alignment.source_b_of_a[ia], join = walk->alignment.join_of_a[ia];
    const bool paired = ib != LB_NONE || join != LB_NONE;
    if (walk->cuts.held[0][ia] == LB_HELD_KNOWN) return; /* diff_cuts.c has its row */
    const uint32_t first =
        join != LB_NONE ? walk->alignment.joins.part_ops[walk->alignment.joins.list[join].first] : ib;
    lb_diff_row row = lb_diff_walk_row(walk, ia, first);
    walk->report->sources += paired;
    if (!lb_diff_values_of_source_differ(walk, ia) && (join == LB_NONE || find_other_copy(walk, join) == LB_NONE)) {
        walk->report->sources_identical += paired;
        flow_source(walk, ia, &row); /* the row is clean */
        return;
    }
    uint32_t met = 0;
    const lb_verdict left = before(walk, ia, &met);
    reason why = reason_of(walk, ia, left);
    name_source(walk, &walk->pa->values[walk->alignment.shown[0][ia]], &row);
    judge_source(walk, why, left, &row);
    walk->report->past_unknown |= why == PAST_UNKNOWN;
    const bool noise = join != LB_NONE ? lb_diff_values_measure_join(walk, &walk->alignment.joins.list[join], &row)
                                       : lb_diff_walk_measure_values(walk, walk->alignment.shown[0][ia],
                                                                     walk->alignment.shown[1][ib], &row);
    if (why == AFTER_READING && !is_explained(walk, &row)) judge_source(walk, why = OTHER, left, &row);
    /* Whatever happened before: no rounding makes a number infinite on one side alone. */
    if (why == PAST_UNKNOWN && row.measured && row.difference.nonfinite) judge_source(walk, why = OTHER, left, &row);
    char text[200];
    snprintf(text, sizeof text, sentences[why], lb_source_kind_name((lb_source_kind)value->source),
             row.value ? "" : " input");
    row.why = lb_report_keep(walk->report, text);
    const bool began = value->source == LB_SOURCE_PARAMETER && walk->pa->step == walk->past->first;
    lb_cuts_judge_source(walk, began || value->source == LB_SOURCE_BATCH, &row);
    name_rows(walk, ia, &row);
    if (row.local == LB_VERDICT_DIVERGED && join != LB_NONE)
        name_part(walk, join, &row);
    else if (row.local == LB_VERDICT_DIVERGED && walk->a->n_parts > 1)
        name_other_rank(walk, ia, ib, &row);
    if (noise) lb_diff_rows_call_noise(walk, &row, false);
    row.verdict = lb_verdict_worse(row.local, row.inherited);
    row.met = why == AFTER_READING ? walk->past->read.met : met;
    lb_diff_rows_report(walk, &row);
    flow_source(walk, ia, &row);
}
