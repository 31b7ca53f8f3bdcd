/* Ranks that stand against each other: see rank_plan.h. */
#include "rank_pairs/rank_plan.h"

#include "pair/rank_copies.h"
#include "rank_pairs/rank_order.h"

#include <stdlib.h>
#include <string.h>

/* ---- batches ---- */

/* Ranks that are given the same batch. */
typedef struct batches {
    uint32_t *of;     /* per rank, numbered as they come */
    uint32_t n;       /* batches */
    uint32_t copies;  /* ranks that have each; 0: some have more than others, or it is unknown */
    int64_t elements; /* of what one rank is given */
} batches;

static uint64_t mixed(uint64_t hash, uint64_t word)
{
    return ((hash ^ word) * UINT64_C(0x9E3779B97F4A7C15)) ^ (hash >> 29);
}

/* Of all that a program is given from outside, in order; 0: nothing, or it is unknown. */
static uint64_t batch_mark(const lb_program *program, int64_t *elements)
{
    uint64_t mark = 0;
    *elements = 0;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        if (!lb_op_is_source(program, &program->ops[i])) continue;
        const lb_value *value = &program->values[lb_op_results(program, &program->ops[i])[0]];
        if (value->source != LB_SOURCE_BATCH) continue;
        if (lb_digest_is_none(value->logical)) return 0;
        mark = mixed(mixed(mark, value->logical.lo), value->logical.hi) | 1;
        *elements += lb_layout_numel(&value->layout);
    }
    return mark;
}

static uint32_t number_of(const uint64_t *marks, const uint32_t *numbers, uint32_t rank, uint32_t n)
{
    for (uint32_t k = 0; k < rank; k++)
        if (marks[k] == marks[rank]) return numbers[k];
    return n;
}

static bool find_batches(const lb_program *const *programs, uint32_t n, batches *out)
{
    uint64_t *marks = malloc((n + 1) * sizeof *marks);
    uint32_t *count = calloc(n + 1, sizeof *count);
    int64_t elements;
    *out = (batches){.of = malloc((n + 1) * sizeof *out->of), .elements = -1};
    bool known = true;
    for (uint32_t i = 0; i < n && marks && count && out->of; i++) {
        marks[i] = batch_mark(programs[i], &elements);
        known &= marks[i] != 0 && (i == 0 || elements == out->elements);
        out->elements = elements, out->of[i] = number_of(marks, out->of, i, out->n);
        out->n += out->of[i] == out->n, count[out->of[i]]++;
    }
    const bool room = marks && count && out->of;
    for (uint32_t g = 1; room && g < out->n; g++) known &= count[g] == count[0];
    if (room && known) out->copies = count[0];
    free(marks), free(count);
    return room;
}

/* ---- tensors that are held alike ---- */

typedef struct held {
    uint64_t *marks; /* of names and contents, ascending */
    uint32_t n;
} held;

static int by_mark(const void *x, const void *y)
{
    const uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return (a > b) - (a < b);
}

static bool list_held(const lb_program *program, held *out)
{
    *out = (held){.marks = malloc((program->n_ops + 1) * sizeof *out->marks)};
    for (uint32_t i = 0; out->marks && i < program->n_ops; i++) {
        if (!lb_op_is_source(program, &program->ops[i])) continue;
        const lb_value *value = &program->values[lb_op_results(program, &program->ops[i])[0]];
        const char *name = lb_program_text(program, value->name);
        uint64_t mark = mixed(value->logical.lo, value->logical.hi);
        if (!*name || lb_digest_is_none(value->logical)) continue;
        for (; *name; name++) mark = mixed(mark, (unsigned char)*name);
        out->marks[out->n++] = mark;
    }
    if (out->marks) qsort(out->marks, out->n, sizeof *out->marks, by_mark);
    return out->marks != NULL;
}

static uint32_t count_alike(const held *a, const held *b)
{
    uint32_t alike = 0;
    for (uint32_t i = 0, j = 0; i < a->n && j < b->n;) {
        const int order = by_mark(&a->marks[i], &b->marks[j]);
        alike += order == 0, i += order <= 0, j += order >= 0;
    }
    return alike;
}

/* Of both runs; the smaller first. */
typedef struct likeness {
    const held *held[2];
    const batches *batches[2];
    uint32_t n[2];
} likeness;

/* The rank of the smaller run that has its batch and holds most alike; LB_NONE: several do. */
static uint32_t nearest(const likeness *likeness, uint32_t row)
{
    const uint32_t several = likeness->batches[1]->n / likeness->batches[0]->n,
                   batch = likeness->batches[1]->of[row] / several;
    uint32_t best = 0, most = 0, equal = 0;
    for (uint32_t i = 0; i < likeness->n[0]; i++) {
        if (likeness->batches[0]->of[i] != batch) continue;
        const uint32_t alike = count_alike(&likeness->held[0][i], &likeness->held[1][row]);
        if (equal == 0 || alike > most)
            best = i, most = alike, equal = 1;
        else
            equal += alike == most;
    }
    return equal == 1 ? best : LB_NONE;
}

/* Rows of the larger run by the rank of the smaller that each is most like; untouched where that is not told, or not of
 * as many each. */
static void order_by_likeness(const likeness *likeness, uint32_t *order)
{
    const uint32_t n_few = likeness->n[0], n_many = likeness->n[1];
    uint32_t *like = malloc(2 * (size_t)n_many * sizeof *like), *found = like + n_many, n = 0;
    for (uint32_t k = 0; like && k < n_many; k++) like[k] = nearest(likeness, order[k]);
    for (uint32_t i = 0; like && i < n_few; i++) {
        for (uint32_t k = 0; k < n_many; k++)
            if (like[k] == i) found[n++] = order[k];
        if (n != (i + 1) * (n_many / n_few)) break;
    }
    if (like && n == n_many) memcpy(order, found, n * sizeof *found);
    free(like);
}

static bool sort_alike(const lb_program *const *few, uint32_t n_few, const lb_program *const *many, uint32_t n_many,
                       const batches *x, const batches *y, uint32_t *order)
{
    held *all = calloc(n_few + n_many + 1, sizeof *all);
    bool room = all != NULL;
    for (uint32_t i = 0; i < n_few && room; i++) room = list_held(few[i], &all[i]);
    for (uint32_t i = 0; i < n_many && room; i++) room = list_held(many[i], &all[n_few + i]);
    const likeness likeness = {{all, all + n_few}, {x, y}, {n_few, n_many}};
    if (room) order_by_likeness(&likeness, order);
    for (uint32_t i = 0; all && i < n_few + n_many; i++) free(all[i].marks);
    free(all);
    return room;
}

/* ---- the plan ---- */

typedef struct maker {
    const lb_program *const *programs[2];
    batches batches[2];
    lb_rank_plan *plan;
} maker;

/* Was a mesh of so many ranks with several axes told? */
static bool tells_grid(const lb_program *program, uint32_t ranks)
{
    for (uint32_t i = 0; i < program->n_meshes; i++) {
        uint32_t several = 0;
        for (uint32_t k = 0; k < program->meshes[i].axes; k++)
            several += program->mesh_axes[program->meshes[i].first_axis + k].size > 1;
        if (several > 1 && program->meshes[i].ranks == ranks) return true;
    }
    return false;
}

/* Rows [first, first + n) of the order, those of one batch behind each other. */
static void gather_batches(const batches *batches, uint32_t *order, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        for (uint32_t k = i; k > 0 && batches->of[order[k - 1]] > batches->of[order[k]]; k--) {
            const uint32_t row = order[k];
            order[k] = order[k - 1], order[k - 1] = row;
        }
}

static bool are_in_order(const batches *batches, const uint32_t *order, uint32_t n, uint32_t copies)
{
    for (uint32_t i = 0; i < n; i++) {
        if (i % copies && batches->of[order[i]] != batches->of[order[i - 1]]) return false;
        if (i && i % copies == 0 && batches->of[order[i]] == batches->of[order[i - 1]]) return false;
    }
    return true;
}

/* So many ranks of each group hold so many batches. */
static void suppose_grid(const maker *maker, int side, uint32_t share, uint32_t several)
{
    lb_rank_plan *plan = maker->plan;
    const batches *batches = &maker->batches[side];
    const uint32_t copies = several ? share / several : 0;
    if (!copies || several * copies != share || tells_grid(maker->programs[side][0], share)) return;
    bool fits = true;
    for (uint32_t first = 0; first < plan->n[side]; first += share) {
        gather_batches(batches, plan->order[side] + first, share);
        fits &= are_in_order(batches, plan->order[side] + first, share, copies);
    }
    if (fits && several > 1 && copies > 1) plan->outer[side] = several, plan->inner[side] = copies;
}

static uint32_t row_of(const lb_program *const *programs, const lb_program *program)
{
    uint32_t row = 0;
    while (programs[row] != program) row++;
    return row;
}

/* Every rank of the smaller run against as many of the larger. */
static bool stand_by_number(maker *maker, int few)
{
    lb_rank_plan *plan = maker->plan;
    const uint32_t n_few = plan->n[few], n_many = plan->n[!few];
    const lb_program **sorted = malloc((n_many + 1) * sizeof *sorted);
    const batches *x = &maker->batches[few], *y = &maker->batches[!few];
    if (!sorted) return false;
    memcpy(sorted, maker->programs[!few], n_many * sizeof *sorted);
    bool told, room = lb_rank_order(maker->programs[few], n_few, sorted, n_many, &told);
    for (uint32_t i = 0; i < n_many; i++) plan->order[!few][i] = row_of(maker->programs[!few], sorted[i]);
    free(sorted);
    const bool known = x->copies && y->copies && y->n % x->n == 0;
    if (room && known && !told && n_few > 1 && n_many > n_few)
        room = sort_alike(maker->programs[few], n_few, maker->programs[!few], n_many, x, y, plan->order[!few]);
    if (room && known) suppose_grid(maker, !few, n_many / n_few, y->n / x->n);
    return room;
}

/* Does the side that has fewer batches have as many ranks as the other, or can all its ranks not have theirs made of
 * those of as many? */
static bool is_shared_otherwise(const maker *maker, int few)
{
    const batches *x = &maker->batches[few], *y = &maker->batches[!few];
    const uint32_t share = maker->plan->n[!few] / maker->plan->n[few];
    if (!x->copies || !y->copies || x->n == y->n) return false;
    const int coarse = x->n < y->n ? few : !few;
    const batches *c = &maker->batches[coarse], *f = &maker->batches[!coarse];
    if (f->n % c->n || c->elements != f->elements * (int64_t)(f->n / c->n)) return false;
    return coarse != few || share % (f->n / c->n);
}

static bool stand_by_batch(maker *maker, int coarse)
{
    lb_rank_plan *plan = maker->plan;
    const batches *coarser = &maker->batches[coarse], *finer = &maker->batches[!coarse];
    const uint32_t several = finer->n / coarser->n;
    for (int k = 0; k < 2; k++) {
        plan->group[k] = malloc((plan->n[k] + 1) * sizeof *plan->group[k]);
        plan->copy_of[k] = malloc((plan->n[k] + 1) * sizeof *plan->copy_of[k]);
        if (!plan->group[k] || !plan->copy_of[k]) return false;
        for (uint32_t i = 0; i < plan->n[k]; i++) plan->copy_of[k][i] = i;
    }
    gather_batches(finer, plan->order[!coarse], plan->n[!coarse]);
    suppose_grid(maker, !coarse, several * finer->copies, several);
    for (uint32_t i = 0; i < plan->n[!coarse]; i++)
        plan->group[!coarse][i] = finer->of[plan->order[!coarse][i]] / several;
    for (uint32_t i = 0, next = 0; i < plan->n[coarse]; i++) {
        uint32_t first = 0;
        while (coarser->of[first] != coarser->of[i]) first++;
        plan->group[coarse][i] = first == i ? next++ : LB_NONE, plan->copy_of[coarse][i] = first;
    }
    plan->coarse = coarse;
    return true;
}

static bool fill(maker *maker)
{
    lb_rank_plan *plan = maker->plan;
    const int few = plan->n[0] > plan->n[1];
    bool room = true;
    for (int k = 0; k < 2; k++) {
        plan->order[k] = malloc((plan->n[k] + 1) * sizeof *plan->order[k]);
        for (uint32_t i = 0; plan->order[k] && i < plan->n[k]; i++) plan->order[k][i] = i;
        room &= plan->order[k] && find_batches(maker->programs[k], plan->n[k], &maker->batches[k]);
    }
    if (!room) return false;
    if (!is_shared_otherwise(maker, few)) return stand_by_number(maker, few);
    return stand_by_batch(maker, maker->batches[0].n > maker->batches[1].n);
}

lb_status lb_rank_plan_make(const lb_program *const *const programs[2], const uint32_t n[2], lb_rank_plan *plan,
                            lb_err *err)
{
    *plan = (lb_rank_plan){.n = {n[0], n[1]}};
    maker maker = {.programs = {programs[0], programs[1]}, .plan = plan};
    const bool room = fill(&maker);
    for (int k = 0; k < 2; k++) free(maker.batches[k].of);
    if (room) return LB_OK;
    lb_rank_plan_release(plan);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", n[0] + n[1]);
}

bool lb_rank_plan_sort(const lb_rank_plan *plan, int side, const lb_program **programs)
{
    const lb_program **sorted = malloc((plan->n[side] + 1) * sizeof *sorted);
    for (uint32_t i = 0; sorted && i < plan->n[side]; i++) sorted[i] = programs[plan->order[side][i]];
    if (sorted) memcpy(programs, sorted, plan->n[side] * sizeof *sorted);
    free(sorted);
    return sorted != NULL;
}

static bool copy_list(const uint32_t *from, uint32_t n, uint32_t **to)
{
    *to = malloc((n + 1) * sizeof **to);
    if (*to) memcpy(*to, from, n * sizeof **to);
    return *to != NULL;
}

lb_status lb_rank_plan_apply(const lb_rank_plan *plan, int side, lb_program_view *view, lb_err *err)
{
    if (plan->group[side] && (!copy_list(plan->group[side], plan->n[side], &view->group) ||
                              !copy_list(plan->copy_of[side], plan->n[side], &view->copy_of)))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", plan->n[side]);
    if (view->copy_of) LB_TRY(lb_rank_copies_find(view, err));
    return plan->outer[side] ? lb_program_view_suppose_grid(view, plan->outer[side], plan->inner[side], err) : LB_OK;
}

void lb_rank_plan_release(lb_rank_plan *plan)
{
    for (int k = 0; k < 2; k++) free(plan->order[k]), free(plan->group[k]), free(plan->copy_of[k]);
    *plan = (lb_rank_plan){.n = {0, 0}};
}
