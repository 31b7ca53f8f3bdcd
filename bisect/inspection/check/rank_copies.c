/* Copies among the parameters of several ranks: see rank_copies.h. */
#include "check/rank_copies.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- two parameters ---- */

static const lb_shard *part_of(const lb_program *program, uint32_t value, uint32_t *n)
{
    const lb_shard *shard = lb_program_shards_of(program, value, n);
    if (!shard) return NULL;
    const lb_layout whole = lb_shard_whole(program, shard), part = lb_shard_part(program, shard);
    return *n > 1 || lb_layout_numel(&part) < lb_layout_numel(&whole) ? shard : NULL;
}

static bool is_same_part(const lb_program *p, const lb_shard *a, uint32_t n_a, const lb_program *q, const lb_shard *b,
                         uint32_t n_b)
{
    if (n_a != n_b) return false;
    for (uint32_t i = 0; i < n_a; i++) {
        if (a[i].extents != b[i].extents || a[i].at != b[i].at) return false;
        for (uint32_t k = 0; k < a[i].extents; k++) {
            const lb_extent *x = &p->extents[a[i].first_extent + k], *y = &q->extents[b[i].first_extent + k];
            if (x->dim != y->dim || x->whole != y->whole || x->from != y->from || x->size != y->size) return false;
        }
    }
    return true;
}

/* Zeros, ones: such numbers are alike whatever they are of. */
static bool is_constant(const lb_moved_run *run, uint32_t value)
{
    lb_tensor tensor;
    double *x = lb_moved_run_recorded(run, value, &tensor);
    bool constant = x != NULL;
    for (int64_t i = 1; constant && i < lb_layout_numel(&tensor.layout); i++) constant = x[i] == x[0];
    free(x);
    return constant;
}

/* What their optimizers read is one thing, as far as rounding goes, whatever each multiplied it by. */
static bool reads_same(const lb_moved_run *a, uint32_t v, const lb_moved_run *b, uint32_t w)
{
    lb_tensor t, u;
    double both = 0, first = 0, second = 0;
    if (v == LB_NONE || w == LB_NONE) return v == w;
    double *x = lb_moved_run_recorded(a, v, &t), *y = lb_moved_run_recorded(b, w, &u);
    bool same = x && y && lb_layout_numel(&t.layout) == lb_layout_numel(&u.layout);
    for (int64_t i = 0; same && i < lb_layout_numel(&t.layout); i++)
        both += x[i] * y[i], first += x[i] * x[i], second += y[i] * y[i];
    same = same && both > 0 && both * both >= (1 - 1e-4) * first * second;
    free(x), free(y);
    return same;
}

typedef struct two_ranks {
    const lb_check_step *a, *b;
    bool trusting; /* parameters that begin alike are copies, whatever was read as their gradients */
} two_ranks;

static bool is_copy(const two_ranks *two, const lb_moved_site *one, const lb_moved_site *another)
{
    const lb_program *p = two->a->run.program, *q = two->b->run.program;
    const lb_value *x = &p->values[one->value], *y = &q->values[another->value];
    uint32_t n, m;
    if (strcmp(two->a->trained.rows[one->row].name, two->b->trained.rows[another->row].name) != 0) return false;
    const lb_shard *part = part_of(p, one->value, &n), *other = part_of(q, another->value, &m);
    if (part || other) return part && other && is_same_part(p, part, n, q, other, m);
    if (!lb_layout_same_shape(&x->layout, &y->layout)) return false;
    if (!lb_digest_equal(x->logical, y->logical) || lb_digest_is_none(x->logical)) return false;
    const bool stages = !two->a->run.n_roots || !two->b->run.n_roots; /* of a pipeline, which may begin alike */
    return two->trusting || (!stages && !is_constant(&two->a->run, one->value)) ||
           reads_same(&two->a->run, one->read, &two->b->run, another->read);
}

/* ---- groups ---- */

static uint32_t group_of(const lb_rank_copies *copies, const lb_check_step *steps, uint32_t rank, uint32_t site,
                         bool trusting)
{
    for (uint32_t g = 0; g < copies->n; g++) {
        const uint32_t first = lb_rank_copies_first(copies, g);
        if (copies->sites[(size_t)g * copies->ranks + rank] != LB_NONE || first == rank) continue;
        const two_ranks two = {&steps[first], &steps[rank], trusting};
        if (is_copy(&two, &steps[first].run.sites[copies->sites[(size_t)g * copies->ranks + first]],
                    &steps[rank].run.sites[site]))
            return g;
    }
    return copies->n;
}

static void group_all(lb_rank_copies *copies, const lb_check_step *steps, bool trusting)
{
    copies->n = 0;
    for (uint32_t k = 0; k < copies->ranks; k++)
        for (uint32_t i = 0; i < steps[k].run.n_sites; i++) {
            if (steps[k].run.sites[i].row == LB_NONE) continue;
            const uint32_t g = group_of(copies, steps, k, i, trusting);
            uint32_t *row = &copies->sites[(size_t)g * copies->ranks];
            if (g == copies->n) memset(row, 0xFF, copies->ranks * sizeof *row), copies->n++;
            row[k] = i;
        }
}

/* Per rank the first one with whose parameter of that name its own is a copy; LB_NONE: it has none. */
static void parts_of(const lb_rank_copies *copies, const lb_check_step *steps, uint32_t group, uint32_t *first)
{
    memset(first, 0xFF, copies->ranks * sizeof *first);
    for (uint32_t g = 0; g < copies->n; g++) {
        if (strcmp(lb_rank_copies_name(copies, steps, g), lb_rank_copies_name(copies, steps, group)) != 0) continue;
        for (uint32_t k = 0; k < copies->ranks; k++)
            if (copies->sites[(size_t)g * copies->ranks + k] != LB_NONE) first[k] = lb_rank_copies_first(copies, g);
    }
}

static bool is_plain(const uint32_t *first, uint32_t ranks)
{
    bool one = true, each = true;
    for (uint32_t k = 0; k < ranks; k++) one &= first[k] == first[0], each &= first[k] == k || first[k] == LB_NONE;
    return one || each;
}

static bool holds_constant(const lb_rank_copies *copies, const lb_check_step *steps, uint32_t group)
{
    const uint32_t first = lb_rank_copies_first(copies, group);
    const lb_moved_run *run = &steps[first].run;
    uint32_t n;
    const uint32_t value = run->sites[copies->sites[(size_t)group * copies->ranks + first]].value;
    return !part_of(run->program, value, &n) && is_constant(run, value);
}

/* Constants that are copies on some ranks and not on others are so where numbers that tell more are, too. */
static bool mark_doubtful(lb_rank_copies *copies, const lb_check_step *steps)
{
    uint32_t *own = malloc(2 * (size_t)copies->ranks * sizeof *own), *other = own ? own + copies->ranks : NULL;
    for (uint32_t g = 0; own && g < copies->n; g++) {
        if (!holds_constant(copies, steps, g)) continue;
        parts_of(copies, steps, g, own);
        copies->doubtful[g] = !is_plain(own, copies->ranks);
        for (uint32_t h = 0; h < copies->n && copies->doubtful[g]; h++) {
            if (lb_rank_copies_count(copies, h) < 2 || holds_constant(copies, steps, h)) continue;
            parts_of(copies, steps, h, other);
            copies->doubtful[g] = memcmp(own, other, copies->ranks * sizeof *own) != 0;
        }
    }
    free(own);
    return own != NULL;
}

static bool are_alike(const lb_rank_copies *copies, const lb_check_step *steps)
{
    uint32_t n;
    for (uint32_t g = 0; g < copies->n; g++) {
        const uint32_t first = lb_rank_copies_first(copies, g);
        const lb_moved_run *run = &steps[first].run;
        if (lb_rank_copies_count(copies, g) < copies->ranks &&
            !part_of(run->program, run->sites[copies->sites[(size_t)g * copies->ranks + first]].value, &n))
            return false;
    }
    return true;
}

lb_status lb_rank_copies_make(lb_check_step *steps, uint32_t ranks, lb_rank_copies *copies, lb_err *err)
{
    size_t sites = 1;
    for (uint32_t k = 0; k < ranks; k++) sites += steps[k].run.n_sites;
    *copies = (lb_rank_copies){
        .ranks = ranks, .sites = malloc(sites * ranks * sizeof *copies->sites), .doubtful = calloc(sites, 1)};
    if (!copies->sites || !copies->doubtful)
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for parameters of %u ranks", ranks);
    bool losses = true;
    for (uint32_t k = 0; k < ranks; k++) losses &= steps[k].run.n_roots > 0;
    group_all(copies, steps, losses);
    copies->alike = losses && are_alike(copies, steps);
    if (losses && !copies->alike) group_all(copies, steps, false);
    if (!copies->alike && !mark_doubtful(copies, steps))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", ranks);
    for (uint32_t g = 0; g < copies->n; g++) {
        const uint32_t first = lb_rank_copies_first(copies, g);
        for (uint32_t k = 0; k < ranks; k++) {
            lb_moved_site *site = lb_rank_copies_site(copies, steps, g, k);
            if (!site) continue;
            site->share = 1.0 / lb_rank_copies_count(copies, g);
            site->first_rank = first, site->first_site = copies->sites[(size_t)g * ranks + first];
        }
    }
    return LB_OK;
}

void lb_rank_copies_release(lb_rank_copies *copies)
{
    free(copies->sites), free(copies->doubtful);
    *copies = (lb_rank_copies){0};
}

lb_moved_site *lb_rank_copies_site(const lb_rank_copies *copies, lb_check_step *steps, uint32_t group, uint32_t rank)
{
    const uint32_t site = copies->sites[(size_t)group * copies->ranks + rank];
    return site == LB_NONE ? NULL : &steps[rank].run.sites[site];
}

uint32_t lb_rank_copies_count(const lb_rank_copies *copies, uint32_t group)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < copies->ranks; k++) n += copies->sites[(size_t)group * copies->ranks + k] != LB_NONE;
    return n;
}

uint32_t lb_rank_copies_first(const lb_rank_copies *copies, uint32_t group)
{
    uint32_t k = 0;
    while (k + 1 < copies->ranks && copies->sites[(size_t)group * copies->ranks + k] == LB_NONE) k++;
    return k;
}

const char *lb_rank_copies_name(const lb_rank_copies *copies, const lb_check_step *steps, uint32_t group)
{
    const lb_check_step *step = &steps[lb_rank_copies_first(copies, group)];
    const uint32_t site = copies->sites[(size_t)group * copies->ranks + lb_rank_copies_first(copies, group)];
    return step->trained.rows[step->run.sites[site].row].name;
}
