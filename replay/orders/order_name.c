/* The names of a tree: which orders make it. See schedule_tree.c; here are the candidates and the trial. */
#include "orders/schedule.h"
#include "orders/schedule_tree.h"
#include "orders/tensor_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NAMES = 4, MOST_SIZES = 256, MOST_SLICES = 16, MOST_SHARES = 16 };

typedef struct naming {
    const lb_sum_tree *tree; /* canonical */
    const uint32_t *sample;  /* its terms among `terms`; NULL: all of them */
    uint32_t terms;
    lb_sum_of of;
    lb_dtype dtype;
    char *names;
    size_t room;
    int found;
    bool failed;
    /* Read off: the least term that term 0 meets first, the operands of that addition, and the terms below the nodes
     * above term 0 wherever more than one more is added: where blocks may end. */
    uint32_t partner, together, n_sizes;
    uint32_t sizes[MOST_SIZES];
} naming;

static void keep_name(naming *naming, const char *name)
{
    const size_t length = strlen(naming->names);
    if (naming->found++ < MOST_NAMES && length + strlen(name) + 4 < naming->room)
        snprintf(naming->names + length, naming->room - length, "%s%s", length ? " = " : "", name);
}

/* Keeps the name if its order makes the tree. */
static bool try_as(naming *naming, const char *name, lb_sum_of of)
{
    lb_sum_tree *made = NULL;
    if (naming->found >= MOST_NAMES || lb_sum_tree_named(name, naming->terms, of, naming->dtype, &made, NULL) != LB_OK)
        return false;
    lb_sum_tree *cut = naming->sample ? lb_sum_tree_sampled(made, naming->sample, naming->tree->leaves) : NULL;
    const bool same =
        naming->sample ? cut && lb_sum_tree_equal(cut, naming->tree) : lb_sum_tree_equal(made, naming->tree);
    lb_sum_tree_free(made);
    lb_sum_tree_free(cut);
    if (same) keep_name(naming, name);
    return same;
}

static bool try_name(naming *naming, const char *name)
{
    return try_as(naming, name, naming->of);
}

static bool try_size(naming *naming, const char *family, uint32_t size)
{
    char name[48];
    snprintf(name, sizeof name, "%s:%u", family, size);
    return try_name(naming, name);
}

/* ---- what the tree tells ----------------------------------------------------------------------------------------- */

static bool read_off(naming *naming)
{
    const lb_sum_tree *tree = naming->tree;
    uint32_t *parent = lb_sum_tree_parents(tree), *size = lb_sum_tree_sizes(tree), last = 0;
    const bool done = parent && size;
    if (done && tree->nodes) {
        const uint32_t node = parent[0];
        naming->together = tree->first[node + 1] - tree->first[node];
        uint32_t x = tree->operand[tree->first[node] + 1]; /* canonical: term 0 is the first operand */
        while (x >= tree->leaves) x = tree->operand[tree->first[x - tree->leaves]];
        naming->partner = naming->sample ? naming->sample[x] : x;
        for (uint32_t up = node; up != UINT32_MAX && naming->n_sizes < MOST_SIZES; up = parent[tree->leaves + up]) {
            if (last && size[up] > last + 1) naming->sizes[naming->n_sizes++] = last;
            last = size[up];
        }
    }
    free(parent);
    free(size);
    return done;
}

/* Whether terms [from, from + count) are added up in order below `x`, and nothing else is there. */
static bool is_run(const lb_sum_tree *tree, const uint32_t *size, uint32_t x, uint32_t from, uint32_t count)
{
    for (uint32_t left = count; left > 1; left--) {
        if (x < tree->leaves || size[x - tree->leaves] != left ||
            tree->first[x - tree->leaves + 1] - tree->first[x - tree->leaves] != 2)
            return false;
        const uint32_t *operand = tree->operand + tree->first[x - tree->leaves];
        if (operand[1] != from + left - 1) return false;
        x = operand[0];
    }
    return x == from;
}

/* The slices of K terms in the order in which a second pass adds them up, "2,0,3,1"; false: the tree is none of that
 * kind. */
static bool slice_order(const lb_sum_tree *tree, uint32_t k, char *text, size_t room)
{
    const uint32_t slices = (tree->leaves + k - 1) / k;
    uint32_t order[MOST_SLICES], left = slices, x = tree->leaves + tree->nodes - 1, *size = lb_sum_tree_sizes(tree);
    bool fine = size && slices > 2 && slices <= MOST_SLICES;
    while (fine && left) {
        /* One operand is a slice, the other everything before it; of the first two either may come first. */
        const uint32_t *pair = left > 1 ? tree->operand + tree->first[x - tree->leaves] : &x;
        fine = false;
        for (uint32_t side = left > 1 ? 2 : 1; side > 0 && !fine; side--) {
            uint32_t at = pair[side - 1];
            while (at >= tree->leaves) at = tree->operand[tree->first[at - tree->leaves]];
            const uint32_t from = at / k * k, count = tree->leaves - from < k ? tree->leaves - from : k;
            if (at != from || !is_run(tree, size, pair[side - 1], from, count)) continue;
            fine = true;
            order[--left] = from / k;
            x = left ? pair[2 - side] : x;
        }
        fine &= !left || left == 1 ||
                (x >= tree->leaves && tree->first[x - tree->leaves + 1] - tree->first[x - tree->leaves] == 2);
    }
    free(size);
    int n = 0;
    for (uint32_t s = 0; fine && s < slices; s++)
        n += snprintf(text + n, room - (size_t)n, "%s%u", s ? "," : "", order[s]);
    return fine;
}

/* ---- the candidates ---------------------------------------------------------------------------------------------- */

static void try_blocks(naming *naming)
{
    const uint32_t terms = naming->terms;
    for (uint32_t k = 2; naming->sample && k < terms; k *= 2)
        if (try_size(naming, "blocked", k)) return;
    for (uint32_t slices = 2; naming->sample && slices <= 64; slices++)
        if (try_size(naming, "splitk", slices)) return;
    for (uint32_t i = 0; !naming->sample && i < naming->n_sizes; i++) {
        const uint32_t k = naming->sizes[i], slices = (terms + k - 1) / k;
        char order[80], name[128];
        if (try_size(naming, "halved", 192)) return;
        if (try_size(naming, "blocked", k)) {
            if ((terms + slices - 1) / slices == k) try_size(naming, "splitk", slices);
            return;
        }
        if ((terms + slices - 1) / slices != k || !slice_order(naming->tree, k, order, sizeof order)) continue;
        snprintf(name, sizeof name, "splitk:%u@%s", slices, order);
        if (try_name(naming, name)) return;
    }
}

/* Threads may be more than there are terms: then several widths make one tree, and the least is the name. */
static void try_butterflies(naming *naming)
{
    for (uint32_t vector = 1; vector <= 16; vector *= 2) {
        if ((vector > 1) != (naming->partner == 1 && naming->terms > 2) && naming->terms > vector) continue;
        for (uint32_t threads = 2; threads <= LB_SCHEDULE_MAX_SIZE; threads += threads < 32 ? threads : 32) {
            char name[48];
            snprintf(name, sizeof name, vector > 1 ? "butterfly:%ux%u" : "butterfly:%u", threads, vector);
            if (try_name(naming, name)) return;
        }
    }
}

static void try_units(naming *naming)
{
    uint32_t width = naming->together;
    if (width < 3) return;
    try_size(naming, "fused", width);
    for (int arch = 0; lb_tensor_core_name(arch); arch++) {
        char name[64];
        snprintf(name, sizeof name, "tensorcore:%s", lb_tensor_core_name(arch));
        if (try_name(naming, name)) continue;
        for (uint32_t i = 0; !naming->sample && i < naming->n_sizes; i++) {
            snprintf(name, sizeof name, "tensorcore:%s:%u", lb_tensor_core_name(arch), naming->sizes[i]);
            if (naming->sizes[i] > width && try_name(naming, name)) break;
        }
    }
}

/* Every folded:L; that products are rounded is nothing that a tree shows. */
static bool try_folded(naming *naming)
{
    static const char *const known[] = {"folded:4,aligned:0,tail:after", "folded:8,pairs",
                                        "folded:16,head:1,tail:again", "folded:4,head:1,tail:after"};
    static const char *const tails[] = {"", ",tail:after", ",tail:again"}, *const folds[] = {"", ",pairs"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (try_name(naming, known[i])) return true;
    for (int lanes = 2; lanes <= LB_FOLDED_MAX_LANES; lanes *= 2)
        for (int head = -2; head < lanes; head++)
            for (int way = 0; way < 6; way++) {
                char name[80], first[24] = "";
                if (head == -1) snprintf(first, sizeof first, ",head:1");
                if (head >= 0) snprintf(first, sizeof first, ",aligned:%d", head);
                snprintf(name, sizeof name, "folded:%d%s%s%s", lanes, first, tails[way / 2], folds[way % 2]);
                if ((lanes > 2 || way % 2 == 0) && try_name(naming, name)) return true;
            }
    return false;
}

/* Chains as long as one of the sizes, or one chain of all. */
static void try_dot_products(naming *naming)
{
    if (naming->of != LB_SUM_PRODUCT) return;
    if (try_name(naming, "torchdot") || try_name(naming, "eights")) return;
    for (uint32_t shares = 1; (naming->sample || naming->partner == 2) && shares <= MOST_SHARES; shares++)
        if (try_size(naming, "tdpbf16", shares)) return;
    if (naming->partner != 1 || try_name(naming, "dpbf16")) return;
    for (uint32_t i = 0; i < naming->n_sizes; i++)
        if (try_size(naming, "dpbf16", naming->sizes[i])) return;
    try_size(naming, "dpbf16", naming->terms + naming->terms % 2);
}

static void try_all(naming *naming)
{
    static const char *const plain[] = {"pairwise", "numpy", "cascade:8", "cascade:4", "cascade:16"};
    if (try_name(naming, "sequential")) return;
    if (naming->together > 2) {
        try_units(naming);
        return;
    }
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) try_name(naming, plain[i]);
    try_dot_products(naming);
    if (naming->partner > 1) try_size(naming, "lanes", naming->partner);
    try_blocks(naming);
    if (!naming->found || naming->of == LB_SUM_PRODUCT) {
        const uint32_t most = naming->of == LB_SUM_PRODUCT ? 16 : naming->terms >= 32768 ? 64 : 0;
        for (uint32_t threads = 1; threads <= most; threads++)
            if (try_size(naming, "torch", threads)) break;
    }
    if (!naming->found && naming->of == LB_SUM_PRODUCT) try_folded(naming);
    if (!naming->found) try_butterflies(naming);
    if (!naming->found) try_as(naming, "cascade:1", LB_SUM_ROW);
    if (!naming->found) try_name(naming, "cascade:8 of columns");
    if (!naming->found) try_name(naming, "reversed");
}

/* `naming` has the tree as it was given, what it adds up, and room for the names. */
static bool name(naming *naming)
{
    naming->tree = lb_sum_tree_canonical(naming->tree);
    if (naming->room) *naming->names = 0;
    if (naming->tree && naming->tree->leaves > 1 && read_off(naming)) try_all(naming);
    if (naming->tree && naming->tree->leaves == 1) keep_name(naming, "sequential");
    lb_sum_tree_free((lb_sum_tree *)naming->tree);
    return naming->found > 0;
}

bool lb_sum_tree_name(const lb_sum_tree *tree, lb_sum_of of, lb_dtype dtype, char *names, size_t room)
{
    return lb_sum_tree_name_sampled(tree, NULL, tree->leaves, of, dtype, names, room);
}

bool lb_sum_tree_name_sampled(const lb_sum_tree *tree, const uint32_t *sample, uint32_t n, lb_sum_of of, lb_dtype dtype,
                              char *names, size_t room)
{
    naming naming = {
        .tree = tree, .sample = sample, .terms = n, .of = of, .dtype = dtype, .names = names, .room = room};
    return name(&naming);
}
