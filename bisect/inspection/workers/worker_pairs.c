/* Pairs of workers: see worker_pairs.h. */
#include "workers/worker_pairs.h"

#include "base/array.h"

#include <lastbit/digest.h>
#include <lastbit/program.h>

#include <stdlib.h>
#include <string.h>

/* Sorted, each once. */
typedef struct lb_worker_group {
    uint32_t *members, n;
} group;

typedef struct naming {
    uint32_t group;
    uint32_t *without, n_without; /* members that are left out, sorted */
} naming;

typedef struct lb_worker_named {
    naming *list;
    uint32_t n;
} named;

lb_status lb_worker_pairs_init(uint32_t n_ranks, lb_worker_pairs *pairs, lb_err *err)
{
    *pairs = (lb_worker_pairs){.n_ranks = n_ranks,
                               .named = calloc((size_t)n_ranks + 1, sizeof *pairs->named),
                               .has = calloc((size_t)n_ranks + 1, sizeof *pairs->has)};
    if (pairs->named && pairs->has) return LB_OK;
    lb_worker_pairs_release(pairs);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", n_ranks);
}

static bool holds(const uint32_t *rows, uint32_t n, uint32_t row)
{
    if (!n || row < rows[0]) return false;
    if (row - rows[0] < n && rows[row - rows[0]] == row) return true; /* no gap before it */
    const size_t at = lb_array_first(rows, n, sizeof *rows, &row, lb_by_u32);
    return at < n && rows[at] == row;
}

/* The row of the group with these members, which is added where there is none; LB_NONE: out of memory. */
static uint32_t intern(lb_worker_pairs *pairs, const uint32_t *members, uint32_t n)
{
    const uint64_t hash = lb_digest_bytes(members, n * sizeof *members).lo;
    LB_HASH_EACH(row, &pairs->by_members, hash)
    if (pairs->groups[row].n == n && !memcmp(pairs->groups[row].members, members, n * sizeof *members)) return row;
    group *grown = lb_array_grow(pairs->groups, pairs->n_groups, sizeof *grown);
    if (grown) pairs->groups = grown;
    uint32_t *copy = grown ? malloc((n + 1) * sizeof *copy) : NULL;
    if (!copy || !lb_hash_add(&pairs->by_members, hash, pairs->n_groups)) {
        free(copy);
        return LB_NONE;
    }
    memcpy(copy, members, n * sizeof *copy);
    pairs->groups[pairs->n_groups] = (group){copy, n};
    return pairs->n_groups++;
}

/* Whether this rank named the group so before, as it does in every step. */
static bool is_named(const named *named, uint32_t group, const uint32_t *without, uint32_t n)
{
    for (uint32_t i = 0; i < named->n; i++) {
        const naming *known = &named->list[i];
        if (known->group == group && known->n_without == n && !memcmp(known->without, without, n * sizeof *without))
            return true;
    }
    return false;
}

static lb_status add_naming(lb_worker_pairs *pairs, uint32_t a, const naming *added)
{
    named *named = &pairs->named[a];
    naming *grown = lb_array_grow(named->list, named->n, sizeof *grown);
    if (!grown) return LB_ERR_NOMEM;
    named->list = grown;
    named->list[named->n++] = *added;
    const group *group = &pairs->groups[added->group];
    for (uint32_t i = 0; i < group->n; i++) {
        const uint32_t b = group->members[i];
        if (b != a && !holds(added->without, added->n_without, b)) pairs->has[a] = pairs->has[b] = true;
    }
    return LB_OK;
}

lb_status lb_worker_pairs_add(lb_worker_pairs *pairs, uint32_t a, uint32_t *members, uint32_t n, const bool *without,
                              lb_err *err)
{
    uint32_t kept = 0, n_without = 0;
    if (!n) return LB_OK;
    for (uint32_t i = 1; i < n; i++)
        if (members[i - 1] > members[i]) {
            qsort(members, n, sizeof *members, lb_by_u32);
            break;
        }
    for (uint32_t i = 0; i < n; i++)
        if (!kept || members[kept - 1] != members[i]) members[kept++] = members[i];
    for (uint32_t i = 0; i < kept; i++) n_without += without[members[i]];
    const uint32_t row = intern(pairs, members, kept);
    naming added = {row, malloc((n_without + 1) * sizeof *added.without), 0};
    lb_status status = row != LB_NONE && added.without ? LB_OK : LB_ERR_NOMEM;
    for (uint32_t i = 0; status == LB_OK && i < kept; i++)
        if (without[members[i]]) added.without[added.n_without++] = members[i];
    const bool known = status == LB_OK && is_named(&pairs->named[a], row, added.without, added.n_without);
    if (status == LB_OK && !known) status = add_naming(pairs, a, &added);
    if (status != LB_OK || known) free(added.without);
    return status == LB_OK ? LB_OK : lb_fail(err, status, "out of memory for groups of %u ranks", pairs->n_ranks);
}

static bool names(const lb_worker_pairs *pairs, uint32_t a, uint32_t b)
{
    const named *named = &pairs->named[a];
    for (uint32_t i = 0; i < named->n; i++) {
        const naming *naming = &named->list[i];
        const group *group = &pairs->groups[naming->group];
        if (holds(group->members, group->n, b) && !holds(naming->without, naming->n_without, b)) return true;
    }
    return false;
}

bool lb_worker_pairs_are(const lb_worker_pairs *pairs, uint32_t a, uint32_t b)
{
    return a != b && (names(pairs, a, b) || names(pairs, b, a));
}

void lb_worker_pairs_release(lb_worker_pairs *pairs)
{
    for (uint32_t i = 0; i < pairs->n_groups; i++) free(pairs->groups[i].members);
    for (uint32_t a = 0; pairs->named && a < pairs->n_ranks; a++) {
        for (uint32_t i = 0; i < pairs->named[a].n; i++) free(pairs->named[a].list[i].without);
        free(pairs->named[a].list);
    }
    lb_hash_release(&pairs->by_members);
    free(pairs->groups), free(pairs->named), free(pairs->has);
    *pairs = (lb_worker_pairs){0};
}
