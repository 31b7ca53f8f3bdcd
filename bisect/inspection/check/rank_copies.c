/* Copies among the parameters of several ranks: see rank_copies.h. */
#include "check/rank_copies.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- two parameters ---- */

static const lb_shard *part_of(const lb_program *p, uint32_t value, uint32_t *n)
{
    const lb_shard *shard = lb_program_shards_of(p, value, n);
    if (!shard) return NULL;
    const lb_layout whole = lb_shard_whole(p, shard), part = lb_shard_part(p, shard);
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
    lb_tensor t;
    double *x = lb_moved_run_recorded(run, value, &t);
    bool constant = x != NULL;
    for (int64_t i = 1; constant && i < lb_layout_numel(&t.layout); i++) constant = x[i] == x[0];
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

static bool is_copy(const two_ranks *two, const lb_moved_site *s, const lb_moved_site *t)
{
    const lb_program *p = two->a->run.program, *q = two->b->run.program;
    const lb_value *x = &p->values[s->value], *y = &q->values[t->value];
    uint32_t n, m;
    if (strcmp(two->a->trained.rows[s->row].name, two->b->trained.rows[t->row].name) != 0) return false;
    const lb_shard *part = part_of(p, s->value, &n), *other = part_of(q, t->value, &m);
    if (part || other) return part && other && is_same_part(p, part, n, q, other, m);
    if (!lb_layout_same_shape(&x->layout, &y->layout)) return false;
    if (!lb_digest_equal(x->logical, y->logical) || lb_digest_is_none(x->logical)) return false;
    const bool stages = !two->a->run.n_roots || !two->b->run.n_roots; /* of a pipeline, which may begin alike */
    return two->trusting || (!stages && !is_constant(&two->a->run, s->value)) ||
           reads_same(&two->a->run, s->read, &two->b->run, t->read);
}

/* ---- groups ---- */

static uint32_t group_of(const lb_rank_copies *c, const lb_check_step *steps, uint32_t rank, uint32_t site,
                         bool trusting)
{
    for (uint32_t g = 0; g < c->n; g++) {
        const uint32_t first = lb_rank_copies_first(c, g);
        if (c->sites[(size_t)g * c->ranks + rank] != LB_NONE || first == rank) continue;
        const two_ranks two = {&steps[first], &steps[rank], trusting};
        if (is_copy(&two, &steps[first].run.sites[c->sites[(size_t)g * c->ranks + first]],
                    &steps[rank].run.sites[site]))
            return g;
    }
    return c->n;
}

static void group_all(lb_rank_copies *c, const lb_check_step *steps, bool trusting)
{
    c->n = 0;
    for (uint32_t k = 0; k < c->ranks; k++)
        for (uint32_t i = 0; i < steps[k].run.n_sites; i++) {
            if (steps[k].run.sites[i].row == LB_NONE) continue;
            const uint32_t g = group_of(c, steps, k, i, trusting);
            uint32_t *row = &c->sites[(size_t)g * c->ranks];
            if (g == c->n) memset(row, 0xFF, c->ranks * sizeof *row), c->n++;
            row[k] = i;
        }
}

/* Per rank the first one with whose parameter of that name its own is a copy; LB_NONE: it has none. */
static void parts_of(const lb_rank_copies *c, const lb_check_step *steps, uint32_t group, uint32_t *first)
{
    memset(first, 0xFF, c->ranks * sizeof *first);
    for (uint32_t g = 0; g < c->n; g++) {
        if (strcmp(lb_rank_copies_name(c, steps, g), lb_rank_copies_name(c, steps, group)) != 0) continue;
        for (uint32_t k = 0; k < c->ranks; k++)
            if (c->sites[(size_t)g * c->ranks + k] != LB_NONE) first[k] = lb_rank_copies_first(c, g);
    }
}

static bool is_plain(const uint32_t *first, uint32_t ranks)
{
    bool one = true, each = true;
    for (uint32_t k = 0; k < ranks; k++) one &= first[k] == first[0], each &= first[k] == k || first[k] == LB_NONE;
    return one || each;
}

static bool holds_constant(const lb_rank_copies *c, const lb_check_step *steps, uint32_t group)
{
    const uint32_t first = lb_rank_copies_first(c, group);
    const lb_moved_run *run = &steps[first].run;
    uint32_t n;
    const uint32_t value = run->sites[c->sites[(size_t)group * c->ranks + first]].value;
    return !part_of(run->program, value, &n) && is_constant(run, value);
}

/* Constants that are copies on some ranks and not on others are so where numbers that tell more are, too. */
static bool mark_doubtful(lb_rank_copies *c, const lb_check_step *steps)
{
    uint32_t *own = malloc(2 * (size_t)c->ranks * sizeof *own), *other = own ? own + c->ranks : NULL;
    for (uint32_t g = 0; own && g < c->n; g++) {
        if (!holds_constant(c, steps, g)) continue;
        parts_of(c, steps, g, own);
        c->doubtful[g] = !is_plain(own, c->ranks);
        for (uint32_t h = 0; h < c->n && c->doubtful[g]; h++) {
            if (lb_rank_copies_count(c, h) < 2 || holds_constant(c, steps, h)) continue;
            parts_of(c, steps, h, other);
            c->doubtful[g] = memcmp(own, other, c->ranks * sizeof *own) != 0;
        }
    }
    free(own);
    return own != NULL;
}

static bool are_alike(const lb_rank_copies *c, const lb_check_step *steps)
{
    uint32_t n;
    for (uint32_t g = 0; g < c->n; g++) {
        const uint32_t first = lb_rank_copies_first(c, g);
        const lb_moved_run *run = &steps[first].run;
        if (lb_rank_copies_count(c, g) < c->ranks &&
            !part_of(run->program, run->sites[c->sites[(size_t)g * c->ranks + first]].value, &n))
            return false;
    }
    return true;
}

lb_status lb_rank_copies_make(lb_check_step *steps, uint32_t ranks, lb_rank_copies *c, lb_err *err)
{
    size_t sites = 1;
    for (uint32_t k = 0; k < ranks; k++) sites += steps[k].run.n_sites;
    *c = (lb_rank_copies){
        .ranks = ranks, .sites = malloc(sites * ranks * sizeof *c->sites), .doubtful = calloc(sites, 1)};
    if (!c->sites || !c->doubtful) return lb_fail(err, LB_ERR_NOMEM, "out of memory for parameters of %u ranks", ranks);
    bool losses = true;
    for (uint32_t k = 0; k < ranks; k++) losses &= steps[k].run.n_roots > 0;
    group_all(c, steps, losses);
    c->alike = losses && are_alike(c, steps);
    if (losses && !c->alike) group_all(c, steps, false);
    if (!c->alike && !mark_doubtful(c, steps)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", ranks);
    for (uint32_t g = 0; g < c->n; g++) {
        const uint32_t first = lb_rank_copies_first(c, g);
        for (uint32_t k = 0; k < ranks; k++) {
            lb_moved_site *s = lb_rank_copies_site(c, steps, g, k);
            if (!s) continue;
            s->share = 1.0 / lb_rank_copies_count(c, g);
            s->first_rank = first, s->first_site = c->sites[(size_t)g * ranks + first];
        }
    }
    return LB_OK;
}

void lb_rank_copies_release(lb_rank_copies *c)
{
    free(c->sites), free(c->doubtful);
    *c = (lb_rank_copies){0};
}

lb_moved_site *lb_rank_copies_site(const lb_rank_copies *c, lb_check_step *steps, uint32_t group, uint32_t rank)
{
    const uint32_t site = c->sites[(size_t)group * c->ranks + rank];
    return site == LB_NONE ? NULL : &steps[rank].run.sites[site];
}

uint32_t lb_rank_copies_count(const lb_rank_copies *c, uint32_t group)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < c->ranks; k++) n += c->sites[(size_t)group * c->ranks + k] != LB_NONE;
    return n;
}

uint32_t lb_rank_copies_first(const lb_rank_copies *c, uint32_t group)
{
    uint32_t k = 0;
    while (k + 1 < c->ranks && c->sites[(size_t)group * c->ranks + k] == LB_NONE) k++;
    return k;
}

const char *lb_rank_copies_name(const lb_rank_copies *c, const lb_check_step *steps, uint32_t group)
{
    const lb_check_step *s = &steps[lb_rank_copies_first(c, group)];
    const uint32_t site = c->sites[(size_t)group * c->ranks + lb_rank_copies_first(c, group)];
    return s->trained.rows[s->run.sites[site].row].name;
}
