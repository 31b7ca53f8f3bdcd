/* The decision: see attribution.h. Each side's bits are identified by what gives them; a cause is the difference of two
 * identities. Nothing is concluded from a candidate that misses one element.
 *
 *      recorded inputs of B ──▶ A's ops under candidate c ──▶ equal to B's recorded bits?
 *      recorded inputs of A ──▶ A's ops under candidate c' ─▶ equal to A's recorded bits?
 *                                                             then the cause is c' against c
 *
 * The search is exhaustion and no fit: a list of known orders, kernels and precisions, each of
 * which is either excluded by one element or left standing. So an answer can be checked by whoever
 * runs the same candidate, and "unexplained" is an answer, too. */
#include "fallback_proof.h"

#include "ops.h"
#include "sample.h"

#include <lastbit/compare.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* With one match in hand 16 candidates are tried before time may end the search, so that a match is
 * never told before others had their chance. Once a kind has had 4 times its share of the time, other
 * places have ruled out what there is to rule out, and one alternative per place is enough. */
enum { MOST_MATCHES = 64, LEAST = 16, PATIENCE = 4 };

typedef struct scan {
    uint32_t matches[MOST_MATCHES], n; /* rows of the list */
    uint32_t best, tried, excluded;
    lb_score best_score;
    lb_sample sample;
    uint32_t likely; /* of those that the sample excluded, the one that came nearest */
    int64_t likely_matched;
} scan;

typedef struct finder {
    const lb_match_site *site;
    lb_attribution_memory *memory;
    lb_attribution_found *found;
    lb_candidate *list[2];
    uint32_t n[2];
    lb_score own[2][2]; /* [runner][bits] */
    double *spent;      /* on places of this kind */
    lb_err *err;
} finder;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const lb_value *output_of(const finder *f, int side)
{
    return lb_matched_region_value(f->site->source, side, f->site->region->sides[side].outputs[0]);
}

/* ---- trying all of them ---- */

static int32_t rank_in_memory(const lb_attribution_memory *m, const char *name)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (!strcmp(m->names[i], name)) return (int32_t)i;
    return -1;
}

static void remember(lb_attribution_memory *m, const char *name)
{
    enum { ROOM = sizeof m->names / sizeof *m->names };
    /* Move to front: a model repeats its layers, so that what explained the last place is the best
     * guess for the next, and the rest of the list is only needed to exclude alternatives. */
    int32_t at = rank_in_memory(m, name);
    uint32_t moved = at >= 0 ? (uint32_t)at : m->n < ROOM ? m->n++ : ROOM - 1;
    memmove(m->names + 1, m->names, moved * sizeof *m->names);
    snprintf(m->names[0], sizeof *m->names, "%s", name);
}

static lb_status try_one(finder *f, int runner, int bits, uint32_t row, scan *s)
{
    const lb_candidate *c = &f->list[runner][row];
    lb_score score;
    /* blocked:N has a parameter, and of twenty values one fits four elements by chance. */
    if (s->tried && s->best_score.elements < c->few) return LB_OK;
    /* A few rows and columns of a product decide about most candidates, which would otherwise take
     * minutes for a model of 135M parameters. The op as it is (row 0) always runs whole, since its
     * distance is reported; what looks at whole tensors for a scale cannot be sampled. */
    if (s->sample.taken && row && c->local) {
        LB_TRY(lb_match_site_try(&s->sample.site, runner, bits, c, &score, f->err));
        if (score.ran && !lb_score_all(&score)) {
            s->tried++, s->excluded++;
            if (score.matched > s->likely_matched) s->likely = row, s->likely_matched = score.matched;
            return LB_OK;
        }
    }
    LB_TRY(lb_match_site_try(f->site, runner, bits, c, &score, f->err));
    if (!score.ran) return LB_OK;
    s->tried++;
    /* Of equals the first stays best: likelier candidates stand further in front. */
    if (!s->best_score.ran || score.matched > s->best_score.matched) s->best = row, s->best_score = score;
    if (!lb_score_all(&score))
        s->excluded++;
    else if (s->n < MOST_MATCHES)
        s->matches[s->n++] = row;
    return LB_OK;
}

/* The same ops of another layer share the time to rule out alternatives. */
static double *time_of_kind(lb_attribution_memory *m, const lb_program *p, const lb_matched_region_side *side)
{
    enum { KINDS = sizeof m->spent / sizeof *m->spent };
    /* FNV's prime as multiplier. Two kinds that fall on one row share their time, which makes one
     * of them impatient and nothing wrong, so that the table needs no keys. */
    uint64_t hash = side->n_ops;
    for (uint32_t i = 0; i < side->n_ops; i++)
        for (const char *c = lb_op_name(p, &p->ops[side->ops[i]]); *c; c++) hash = hash * 1099511628211u + (uint8_t)*c;
    return &m->spent[hash % KINDS];
}

/* Nothing matched: how near did the nearest come that the sample excluded, on all elements?
 * The counts of a sample and of a whole cannot be compared, and what is shown must be of the whole. */
static lb_status score_likely(finder *f, int runner, int bits, scan *s)
{
    lb_score score;
    LB_TRY(lb_match_site_try(f->site, runner, bits, &f->list[runner][s->likely], &score, f->err));
    if (score.ran && score.matched > s->best_score.matched) s->best = s->likely, s->best_score = score;
    return LB_OK;
}

/* NULL when there is no more room. */
static uint32_t *places_of(lb_attribution_memory *m, const char *name, int side)
{
    enum { ROOM = sizeof m->tally / sizeof *m->tally };
    for (uint32_t i = 0; i < m->n_tally; i++)
        if (!strcmp(m->tally[i].name, name)) return &m->tally[i].sites[side];
    if (m->n_tally == ROOM) return NULL;
    snprintf(m->tally[m->n_tally].name, sizeof m->tally->name, "%s", name);
    return &m->tally[m->n_tally++].sites[side];
}

/* No change comes first; then what gave the bits of most places so far, of equals the likelier one: what a place cannot tell
 * apart, others can. */
static void rank_matches(finder *f, int runner, int bits, scan *s)
{
    uint32_t votes[MOST_MATCHES];
    for (uint32_t i = 0; i < s->n; i++) {
        const uint32_t row = s->matches[i];
        uint32_t *sites = places_of(f->memory, f->list[runner][row].name, bits);
        const uint32_t vote = !row ? UINT32_MAX : sites ? (*sites)++ : 0;
        /* Insertion sort: there are 64 matches at most, and a vote of UINT32_MAX keeps "no change"
         * in front whatever the other places said. */
        uint32_t at = i;
        for (; at && (votes[at - 1] < vote || (votes[at - 1] == vote && s->matches[at - 1] > row)); at--)
            votes[at] = votes[at - 1], s->matches[at] = s->matches[at - 1];
        votes[at] = vote, s->matches[at] = row;
    }
}

/* Remembered ones first, then all in order. */
static lb_status scan_all(finder *f, int runner, int bits, scan *s)
{
    const double start = now();
    *s = (scan){0};
    if (!lb_match_site_can(f->site, runner, bits)) return LB_OK;
    uint8_t *done = calloc(f->n[runner] + 1, 1);
    if (!done) return lb_fail(f->err, LB_ERR_NOMEM, "out of memory");
    lb_status status = lb_sample_take(f->site, runner, bits, &s->sample, f->err);
    if (status == LB_OK) status = try_one(f, runner, bits, 0, s);
    done[0] = 1;
    for (uint32_t k = 0; k < f->memory->n && status == LB_OK; k++)
        for (uint32_t i = 0; i < f->n[runner] && status == LB_OK; i++)
            if (!done[i] && !strcmp(f->list[runner][i].name, f->memory->names[k]))
                done[i] = 1, status = try_one(f, runner, bits, i, s);
    for (uint32_t i = 0; i < f->n[runner] && status == LB_OK; i++) {
        if (done[i]) continue;
        const double spent = *f->spent + now() - start;
        /* Time never ends a search that has no match: that would call a place unexplained because
         * of a slow machine. */
        const uint32_t least = spent < PATIENCE * f->memory->seconds ? LEAST : 2;
        if (s->n && s->tried >= least && spent > f->memory->seconds) break;
        status = try_one(f, runner, bits, i, s);
    }
    lb_sample_release(&s->sample);
    /* `likely` is 0 where the sample excluded none: row 0 never goes through it. */
    if (status == LB_OK && !s->n && s->likely) status = score_likely(f, runner, bits, s);
    *f->spent += now() - start;
    rank_matches(f, runner, bits, s);
    free(done);
    return status;
}

/* ---- saying it ---- */

/* What ops do by themselves has a name where they are one sum or one product. */
/* The order in which replay reduces among the runner's ranks; NULL: the region holds no collective that says it. */
static const char *own_rank_order(const finder *f, int runner)
{
    const lb_matched_region_source *source = f->site->source;
    const lb_program_view *view = runner ? source->b : source->a;
    const lb_matched_region_side *side = &f->site->region->sides[runner];
    for (uint32_t i = 0; i < side->n_ops; i++) {
        const lb_program *p;
        const lb_op *op = &view->program->ops[side->ops[i]];
        const lb_collective *row = op->flags & LB_OP_COLLECTIVE ? lb_side_collective(view, side->ops[i], &p) : NULL;
        if (row && row->algorithm != LB_NONE) return lb_program_text(p, row->algorithm);
        if (row && !strncmp(lb_op_name(view->program, op), "nccl::", 6)) return "ring";
    }
    return NULL;
}

static const char *own_name(const finder *f, int runner)
{
    bool sum = false, product = false;
    const char *among_ranks = own_rank_order(f, runner);
    if (among_ranks) return among_ranks;
    for (uint32_t i = 0; i < f->n[runner]; i++) {
        if (!strcmp(f->list[runner][i].name, "gloo")) return "gloo";
        sum |= !strcmp(f->list[runner][i].name, "pairwise");
        product |= !strncmp(f->list[runner][i].name, "tensorcore", 10);
    }
    /* A user reads "torch:1 against splitk:4" and not "own against splitk:4"; through several ops
     * there is no one order to name. */
    return f->site->region->sides[0].n_ops != 1 ? "own" : product ? "sequential" : sum ? "torch:1" : "own";
}

static const char *name_of(const finder *f, int runner, uint32_t row)
{
    return row ? f->list[runner][row].name : own_name(f, runner);
}

/* The recorded bits are rounded to a narrower dtype than the runner computes its result in.
 * Wider is no such case: numbers that were rounded to bf16 once do not get their bits back by a
 * cast to f32. */
static bool rounds_at_end(const finder *f, int runner, int bits)
{
    const lb_value *mine = output_of(f, runner), *theirs = output_of(f, bits);
    return mine->dtype != theirs->dtype && lb_dtype_is_float(theirs->dtype) &&
           lb_dtype_bits(theirs->dtype) < lb_dtype_bits(mine->dtype);
}

static bool is_fused(const lb_candidate *c)
{
    return c->n_swaps && c->swaps[0].kind == LB_SWAP_FUSE;
}

/* ---- experts' outputs put together ---- */

static bool is_finalise(const lb_candidate *c)
{
    return is_fused(c) && !strncmp(c->name, "finalise:", 9);
}

/* A kernel that says of slots and products how they are added tells more than the order of the sum that is a part of it. */
static void lead_with_finalise(const finder *f, int runner, scan *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        const uint32_t row = s->matches[i];
        if (!is_finalise(&f->list[runner][row])) continue;
        memmove(s->matches + 1, s->matches, i * sizeof *s->matches);
        s->matches[0] = row;
        return;
    }
}

/* The kernel that gives the runner's own bits, and not the other side's: what its ops do by themselves. LB_NONE: none. */
static lb_status own_finalise(finder *f, int runner, const scan *theirs, uint32_t *row)
{
    *row = LB_NONE;
    for (uint32_t i = 1; i < f->n[runner]; i++) {
        lb_score score;
        bool also_theirs = false;
        if (!is_finalise(&f->list[runner][i])) continue;
        for (uint32_t k = 0; k < theirs->n; k++) also_theirs |= theirs->matches[k] == i;
        if (also_theirs) continue;
        /* A kernel that also gives the other side's bits explains no difference, and has been left
         * out above. */
        LB_TRY(lb_match_site_try(f->site, runner, runner, &f->list[runner][i], &score, f->err));
        if (!lb_score_all(&score)) continue;
        *row = i;
        return LB_OK;
    }
    return LB_OK;
}

/* Are there ops among the runner's that add up many numbers? */
static bool has_sums(const finder *f, int runner)
{
    const lb_matched_region_side *s = &f->site->region->sides[runner];
    const lb_program *p = lb_matched_region_program(f->site->source, runner);
    for (uint32_t i = 0; i < s->n_ops; i++) {
        lb_op_form form;
        const lb_op_row *row = lb_op_find(lb_op_name(p, &p->ops[s->ops[i]]), &form);
        if (row && row->flags & (LB_ROW_REDUCTION | LB_ROW_MATMUL)) return true;
    }
    return false;
}

static bool stores_f64(const finder *f, int side)
{
    const lb_matched_region_side *s = &f->site->region->sides[side];
    const lb_program *p = lb_matched_region_program(f->site->source, side);
    for (uint32_t i = 0; i < s->n_ops; i++)
        for (uint32_t k = 0; k < p->ops[s->ops[i]].results; k++) {
            const uint32_t v = lb_op_results(p, &p->ops[s->ops[i]])[k];
            if (v != LB_NONE && p->values[v].dtype == LB_F64) return true;
        }
    return false;
}

static void tell_match(finder *f, int runner, int bits, const scan *s)
{
    lb_attribution_found *out = f->found;
    const lb_candidate *c = &f->list[runner][s->matches[0]];
    const char *narrow = rounds_at_end(f, runner, bits) ? lb_dtype_name(output_of(f, bits)->dtype) : NULL;
    size_t used = 0;
    out->proof = LB_PROOF_BITS, out->reversed = runner == 1;
    out->matched = out->elements = s->best_score.elements;
    out->tried = s->tried, out->excluded = s->excluded;
    /* A narrower dtype at the end outranks the order: it changes nearly every element, the order
     * only some, and naming the order alone would not give the bits. */
    out->cause = narrow ? LB_CAUSE_PRECISION : c->cause;
    out->fused = is_fused(c);
    if (narrow && s->matches[0] && strcmp(c->name, narrow))
        snprintf(out->schedule, sizeof out->schedule, "%s, %.80s", narrow, c->name);
    else
        snprintf(out->schedule, sizeof out->schedule, "%s", narrow ? narrow : name_of(f, runner, s->matches[0]));
    for (uint32_t i = 1; i < s->n; i++) {
        const lb_candidate *other = &f->list[runner][s->matches[i]];
        /* The same thing by another name. */
        if ((narrow && !strcmp(other->name, narrow)) || !strcmp(other->name, own_name(f, runner))) continue;
        if (used + strlen(other->name) + 3 > sizeof out->also) break;
        used += (size_t)snprintf(out->also + used, sizeof out->also - used, "%s%s", used ? "; " : "",
                                 name_of(f, runner, s->matches[i]));
    }
    /* Swaps are carried out in A's program by the budget: what was found in B's has no meaning
     * there. */
    for (uint32_t i = 0; runner == 0 && bits == 1 && i < c->n_swaps; i++)
        lb_attribution_add_swap(out, c->swaps[i].kind, c->arguments[i]);
    if (narrow && runner == 0 && bits == 1) {
        char storage[48];
        snprintf(storage, sizeof storage, "storage:%s", narrow);
        lb_attribution_add_swap(out, LB_SWAP_PRECISION, storage);
    }
    /* A match under "f64" must not become the claim that a side computed in f64: any form with
     * fewer roundings gives the same bits. */
    if (!strcmp(c->name, "f64") && !narrow && !has_sums(f, runner) && !stores_f64(f, !runner)) {
        /* No sum could have been carried in f64, and nothing was stored in it. */
        out->cause = LB_CAUSE_KERNEL;
        snprintf(out->schedule, sizeof out->schedule, "rounded once");
        snprintf(out->why, sizeof out->why,
                 "the %s side's ops evaluated exactly and rounded once at the end give these bits: the other form "
                 "rounds less on the "
                 "way (a fused multiply-add, a division where there was a product with the reciprocal, …)",
                 runner ? "second" : "first");
    }
    if (*c->alike && s->matches[0])
        snprintf(out->why, sizeof out->why, "for this number of terms %.80s is the same order as %.90s", c->name,
                 c->alike);
    remember(f->memory, c->name);
}

static void tell_input(finder *f, lb_proof proof, const lb_score *score, const char *why)
{
    lb_attribution_found *out = f->found;
    out->cause = LB_CAUSE_INPUT, out->proof = proof;
    out->matched = score->matched, out->elements = score->elements;
    snprintf(out->why, sizeof out->why, "%s", why);
}

/* ---- each side's own bits ---- */

/* The first of x's is taken, whose matches are ranked: x is the runner's own side. */
static bool share_one(const scan *x, const scan *y, uint32_t *row)
{
    for (uint32_t i = 0; i < x->n; i++)
        for (uint32_t k = 0; k < y->n; k++)
            if (x->matches[i] == y->matches[k]) {
                *row = x->matches[i];
                return true;
            }
    return false;
}

/* Of what gives the other side's bits, what gives the runner's own as well, whose own kernel does: few bits fit several kernels, and
 * one for both sides is less to believe than two. LB_NONE: nothing does. */
static lb_status serves_both(finder *f, int runner, const scan *theirs, uint32_t *row)
{
    *row = LB_NONE;
    for (uint32_t i = 0; i < theirs->n && *row == LB_NONE; i++) {
        const lb_candidate *c = &f->list[runner][theirs->matches[i]];
        lb_score score;
        /* Precisions are left out: an op on bf16 values gives the same in f32 and in f64 often
         * enough, and that would turn a difference of dtypes into one of inputs. */
        if (is_fused(c) || c->cause != LB_CAUSE_ORDER) continue;
        LB_TRY(lb_match_site_try(f->site, runner, runner, c, &score, f->err));
        if (lb_score_all(&score)) *row = theirs->matches[i];
    }
    return LB_OK;
}

/* Both sides ran the very same op: one program says all that the other would.
 * Saves half of the runs at most places, which are pairs. */
static bool same_ops(const finder *f)
{
    const lb_matched_region *s = f->site->region;
    const lb_program *a = f->site->source->a->program, *b = f->site->source->b->program;
    if ((!s->pair && !(s->parts && s->sides[1].n_ops)) || output_of(f, 0)->dtype != output_of(f, 1)->dtype ||
        !lb_match_site_can(f->site, 0, 1))
        return false;
    const lb_op *x = &a->ops[s->sides[0].op], *y = &b->ops[s->sides[1].op];
    return !strcmp(lb_op_name(a, x), lb_op_name(b, y)) && lb_op_same_args(a, x, b, y, s->parts);
}

static void keep_own(finder *f, const lb_candidate *c)
{
    /* What A's program needs to give A's own bits is kept apart from the cause: a budget starts its
     * replay from these swaps and then makes the change. */
    f->found->n_own = c->n_swaps;
    for (uint32_t i = 0; i < c->n_swaps; i++) {
        f->found->own[i].kind = c->swaps[i].kind;
        snprintf(f->found->own_arguments[i], sizeof *f->found->own_arguments, "%s", c->arguments[i]);
    }
}

/* One program (runner) on both sides' bits: which candidates give each? `other`: the side whose inputs are not its own. */
static lb_status by_program(finder *f, int runner, bool *done)
{
    const int other = !runner;
    scan theirs = {0}, mine = {0};
    uint32_t both;
    *done = false;
    if (!lb_match_site_can(f->site, runner, other)) return LB_OK;
    const lb_score *own = &f->own[runner][runner], *across = &f->own[runner][other];
    const bool plain = lb_score_all(own);
    /* The cheapest answer is asked first: no change at all gives both sides' bits, hence only the
     * inputs differ. Where a rounding at the end was needed it is no such answer, but one of
     * precision. */
    if (plain && lb_score_all(across) && across->unrounded == across->elements) {
        tell_input(f, LB_PROOF_BITS, across, "the first side's ops give the second's bits on the second's inputs");
        f->found->tried = 1, *done = true;
        snprintf(f->found->first, sizeof f->found->first, "%s", own_name(f, runner));
        return LB_OK;
    }
    /* Two identities are needed: under what A's program gives B's bits, and under what it gives A's
     * own. Where replay has not A's kernel, the second is searched like the first. */
    LB_TRY(scan_all(f, runner, other, &theirs));
    lead_with_finalise(f, runner, &theirs);
    f->found->tried += theirs.tried, f->found->excluded += theirs.excluded;
    if (!plain) LB_TRY(scan_all(f, runner, runner, &mine));
    bool rounds = rounds_at_end(f, runner, other);
    if (theirs.n && !plain && !mine.n && is_fused(&f->list[runner][theirs.matches[0]])) {
        /* A kernel that is known for what it gives, beside one that is not: it gave none of the other side's bits. */
        tell_match(f, runner, other, &theirs);
        *f->found->first = '\0', *done = true;
        return LB_OK;
    }
    /* One identity alone is no cause: a match for B's bits says nothing of what changed while A's
     * own are unknown. The nearest is kept, so that "unexplained" comes with a number. */
    if (!theirs.n || (!plain && !mine.n)) {
        if (!theirs.n && (theirs.best_score.matched > f->found->matched || !f->found->elements)) {
            f->found->matched = theirs.best_score.matched, f->found->elements = theirs.best_score.elements;
            snprintf(f->found->schedule, sizeof f->found->schedule, "%s", name_of(f, runner, theirs.best));
            f->found->reversed = runner == 1;
        } else if (theirs.n && !f->found->elements) { /* it is the runner's own bits that nothing gives */
            f->found->matched = mine.best_score.matched, f->found->elements = mine.best_score.elements;
            snprintf(f->found->schedule, sizeof f->found->schedule, "%s", name_of(f, runner, mine.best));
            f->found->reversed = runner == 0;
        }
        return LB_OK;
    }
    *done = true;
    /* Counts from here on are those of the search that succeeded; the other's would make it look
     * more thorough. */
    f->found->tried = f->found->excluded = 0;
    both = LB_NONE;
    /* Occam's razor: one kernel on both sides needs one coincidence less than two kernels. */
    if (plain && !rounds && theirs.matches[0]) LB_TRY(serves_both(f, runner, &theirs, &both));
    if (!rounds && (plain ? both != LB_NONE : share_one(&mine, &theirs, &both))) {
        tell_input(f, LB_PROOF_BITS, &theirs.best_score, "both sides' bits come out of the same kernel");
        const lb_candidate *same = &f->list[runner][both];
        for (uint32_t i = 0; !runner && i < same->n_swaps; i++)
            lb_attribution_add_swap(f->found, same->swaps[i].kind, same->arguments[i]);
        snprintf(f->found->first, sizeof f->found->first, "%s", name_of(f, runner, both));
        return LB_OK;
    }
    tell_match(f, runner, other, &theirs);
    uint32_t first = plain ? 0 : mine.matches[0];
    if (is_finalise(&f->list[runner][theirs.matches[0]])) {
        uint32_t row;
        LB_TRY(own_finalise(f, runner, &theirs, &row));
        if (row != LB_NONE) first = row;
    }
    if (!plain && !runner) keep_own(f, &f->list[runner][first]);
    snprintf(f->found->first, sizeof f->found->first, "%s",
             rounds ? lb_dtype_name(output_of(f, runner)->dtype) : name_of(f, runner, first));
    /* B ran what replay has, and A did not: the change is A's, although the match is "own". */
    if (f->found->cause == LB_CAUSE_INPUT) f->found->cause = f->list[runner][first].cause;
    return LB_OK;
}

/* ---- where B is parts ---- */

/* Which parts candidate `row` gives; `*rest`: all of those that are not given yet. */
static lb_status try_rest(finder *f, uint32_t row, const uint8_t *given, uint8_t *mine, bool *rest)
{
    const uint32_t n = f->site->region->parts;
    *rest = true;
    memset(mine, 0, n);
    LB_TRY(lb_match_site_parts(f->site, &f->list[0][row], mine, f->err));
    for (uint32_t i = 0; i < n; i++) *rest &= given[i] || mine[i];
    return LB_OK;
}

static void tell_parts(finder *f, const scan *s, uint32_t base, const uint8_t *given)
{
    lb_attribution_found *out = f->found;
    const lb_candidate *c = &f->list[0][s->matches[0]];
    const uint32_t n = f->site->region->parts;
    uint32_t other = 0, first = n, last = 0;
    size_t used = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!given[i]) other++, first = i < first ? i : first, last = i;
    out->cause = c->cause, out->proof = LB_PROOF_BITS, out->reversed = false;
    out->matched = out->elements = f->own[0][1].elements;
    out->tried = s->tried, out->excluded = s->excluded;
    snprintf(out->first, sizeof out->first, "%s", name_of(f, 0, base));
    snprintf(out->schedule, sizeof out->schedule, "%s for %u of %u calls", c->name, other, n);
    for (uint32_t i = 1; i < s->n; i++) {
        const char *name = f->list[0][s->matches[i]].name;
        if (used + strlen(name) + 3 > sizeof out->also) break;
        used += (size_t)snprintf(out->also + used, sizeof out->also - used, "%s%s", used ? "; " : "", name);
    }
    snprintf(out->why, sizeof out->why,
             "calls %u to %u of %u have the bits of %.80s, the others those of the first side's kernel", first + 1,
             last + 1, n, c->name);
    remember(f->memory, c->name);
}

/* A's kernel gives some parts' bits, and of all candidates one gives those of all others: single rows go to kernels of their own. `base`:
 * what gives A's own bits. */
static lb_status scan_parts(finder *f, uint32_t base, bool *done)
{
    const double start = now();
    const uint32_t n = f->site->region->parts;
    uint8_t *given = calloc(n + 1, 3), *mine = given + n + 1, *tried = calloc(f->n[0] + 1, 1);
    lb_status status = given && tried ? LB_OK : lb_fail(f->err, LB_ERR_NOMEM, "out of memory");
    bool all = true, rest = false, any = false;
    scan s = {0};
    /* `given` is both what is read and what is written here: nothing is given yet. */
    if (status == LB_OK) status = try_rest(f, base, given, given, &all);
    for (uint32_t i = 0; status == LB_OK && i < n; i++) any |= given[i];
    /* No part with A's bits: then another kernel ran for all of them, which by_program would have
     * found. All parts: nothing differs that way. */
    const bool worth = status == LB_OK && any && !all;
    for (uint32_t k = 0; worth && k < f->memory->n + f->n[0] && status == LB_OK; k++) {
        uint32_t row = k < f->memory->n ? 0 : k - f->memory->n;
        for (uint32_t i = 0; k < f->memory->n && i < f->n[0]; i++)
            if (!strcmp(f->list[0][i].name, f->memory->names[k])) row = i;
        /* The memory's names come first and the list after them, in one loop; `tried` keeps a name
         * from running twice. Recipes that look at whole tensors see other tensors in single rows,
         * and are left out. */
        if (!row || row == base || tried[row] || !f->list[0][row].local) continue;
        if (s.n && s.tried >= LEAST && *f->spent + now() - start > f->memory->seconds) break;
        tried[row] = 1;
        status = try_rest(f, row, given, mine, &rest);
        s.tried++, s.excluded += !rest;
        if (status == LB_OK && rest && s.n < MOST_MATCHES) s.matches[s.n++] = row;
    }
    *f->spent += now() - start;
    *done = status == LB_OK && s.n;
    if (*done) rank_matches(f, 0, 1, &s), tell_parts(f, &s, base, given);
    free(given), free(tried);
    return status;
}

static lb_status by_parts(finder *f, bool *done)
{
    const lb_matched_region *region = f->site->region;
    scan mine = {0};
    /* This is for decode steps against one forward pass: a library has other kernels for one row
     * than for many, so that some calls may have A's bits and the single rows never. */
    if (region->parts < 2 || region->sides[1].op == LB_NONE || region->n_outputs != 1 ||
        !lb_match_site_can(f->site, 0, 1))
        return LB_OK;
    if (f->site->source->alignment->joins.rows) return LB_OK; /* rows of a larger batch: one call */
    /* A's own bits need a name before parts can be told from them: "own", or else what was found to
     * give them. */
    if (lb_score_all(&f->own[0][0])) return scan_parts(f, 0, done);
    LB_TRY(scan_all(f, 0, 0, &mine));
    return mine.n ? scan_parts(f, mine.matches[0], done) : LB_OK;
}

/* ---- where no candidate gives the bits ---- */

static void tell_unexplained(finder *f)
{
    lb_attribution_found *out = f->found;
    lb_difference d;
    out->cause = LB_CAUSE_UNEXPLAINED, out->proof = LB_PROOF_NONE;
    if (!out->elements && f->site->targets[0] && f->site->targets[1] &&
        lb_compare_numbers(&f->site->targets[0][0], &f->site->targets[1][0], &d, NULL) == LB_OK)
        out->elements = d.elements, out->matched = d.elements - d.differing;
    if (!out->tried)
        snprintf(out->why, sizeof out->why, "nothing could be tried: %s",
                 *f->site->why ? f->site->why : "no kernel here");
    else
        snprintf(out->why, sizeof out->why, "under none of %u candidates do the recorded inputs give the recorded bits",
                 out->tried);
}

static const lb_program *alone_of(const lb_match_site *site, int side)
{
    return site->subprograms[side] ? lb_subprogram_program(site->subprograms[side]) : NULL;
}

/* A's recorded output from B's.
 * As recorded and so without any run: the place's share of the whole gap is measured against it. */
static double distance_of(const lb_match_site *site)
{
    lb_difference d;
    if (!site->targets[0] || !site->targets[1]) return NAN;
    if (lb_compare_numbers(&site->targets[0][0], &site->targets[1][0], &d, NULL) != LB_OK) return NAN;
    return d.rel_l2;
}

static lb_status list_candidates(finder *f, int side)
{
    const lb_matched_region_side *ops = &f->site->region->sides[side];
    const lb_candidate_ops place = {lb_matched_region_program(f->site->source, side), ops->ops, ops->n_ops,
                                    alone_of(f->site, side)};
    return lb_candidates_list(&place, &f->memory->trees, &f->list[side], &f->n[side], f->err);
}

lb_status lb_attribution_find(const lb_match_site *site, lb_attribution_memory *memory, lb_attribution_found *found,
                              lb_err *err)
{
    finder f = {.site = site, .memory = memory, .found = found, .err = err};
    const lb_matched_region_source *source = site->source;
    lb_status status = LB_OK;
    bool done = false;
    *found = (lb_attribution_found){0};
    found->total = distance_of(site);
    f.spent = time_of_kind(memory, source->a->program, &site->region->sides[0]);
    for (int side = 0; side < 2 && status == LB_OK; side++) status = list_candidates(&f, side);
    for (int side = 0; side < 2 && status == LB_OK; side++)
        lb_candidates_put_recorded_first(side ? source->a : source->b, site->region->sides[!side].ops,
                                         site->region->sides[!side].n_ops, f.list[side], &f.n[side]);
    /* Own bits on all four combinations first: four runs answer most places, and say of the rest
     * which identities are known. */
    for (int runner = 0; runner < 2; runner++)
        for (int bits = 0; bits < 2 && status == LB_OK; bits++)
            status = lb_match_site_try(site, runner, bits, &f.list[runner][0], &f.own[runner][bits], err);
    found->local = f.own[0][1].ran ? f.own[0][1].distance : f.own[1][0].ran ? f.own[1][0].distance : NAN;
    if (status == LB_OK) status = by_program(&f, 0, &done);
    /* A's program first, because only its changes can become swaps; then B's; parts and
     * fallback proofs are weaker and come last. */
    if (status == LB_OK && !done && !same_ops(&f)) status = by_program(&f, 1, &done);
    if (status == LB_OK && !done) status = by_parts(&f, &done);
    if (status == LB_OK && !done)
        status = lb_fallback_proofs_find(site, lb_score_all(&f.own[0][0]), lb_score_all(&f.own[1][1]),
                                         site->region->parts && f.own[0][1].ran ? &f.own[0][1] : &f.own[1][1], found,
                                         &done, err);
    if (status == LB_OK && !done) tell_unexplained(&f);
    free(f.list[0]), free(f.list[1]);
    return status;
}

lb_status lb_attribution_identify(const lb_match_site *site, lb_attribution_memory *memory, bool *own,
                                  lb_attribution_found *found, lb_err *err)
{
    finder f = {.site = site, .memory = memory, .found = found, .err = err};
    const lb_matched_region_side *side = &site->region->sides[0];
    scan s = {0};
    bool inside;
    *found = (lb_attribution_found){0}, *own = false;
    f.spent = time_of_kind(memory, site->source->a->program, side);
    lb_status status = list_candidates(&f, 0);
    if (status == LB_OK) status = lb_match_site_try(site, 0, 0, &f.list[0][0], &f.own[0][0], err);
    *own = lb_score_all(&f.own[0][0]);
    if (status == LB_OK && !*own) status = scan_all(&f, 0, 0, &s);
    if (status != LB_OK || *own) goto done;
    snprintf(found->first, sizeof found->first, "%s", own_name(&f, 0));
    if (s.n) {
        tell_match(&f, 0, 0, &s);
        goto done;
    }
    found->tried = s.tried, found->excluded = s.excluded;
    found->matched = s.best_score.matched, found->elements = s.best_score.elements;
    snprintf(found->schedule, sizeof found->schedule, "%s", s.tried ? name_of(&f, 0, s.best) : "");
    /* Inside its bound the op may have run as a kernel that is unknown here; outside of it
     * something is wrong with the recording. */
    status = lb_match_site_reaches(site, 0, 0, &inside, err);
    tell_unexplained(&f);
    if (inside) found->proof = LB_PROOF_BOUND;
done:
    free(f.list[0]);
    return status;
}
