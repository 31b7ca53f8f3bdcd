/* The search of group_search.h: recomputed from the tells at every `next`, so that it has no state to lose.
 *
 * The algorithms are written as if they could ask and get an answer at once. `ask` looks the set up among the tells;
 * when it does not know, it leaves the set in `search->pending` and returns PENDING, and all callers return.
 * Recomputing costs (trials x look-ups), which is nothing beside one trial.
 *
 *   whole ──cured──▶ [weigh: posterior, with noise] ──▶ narrow ──▶ confirm ──not minimal──▶ reduce ──▶ done
 */
#include "search/group_search.h"

#include "base/array.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum answer { FAILS = 0, CURED = 1, UNKNOWN = 2, PENDING = 3 };

#define OUTCOMES 5
#define NO_NOISE 1e-9     /* below this a rate counts as zero */
#define IDLE_LIMIT 8      /* NOISE outcomes of one set before it is given up */
#define REPEAT_LIMIT 1000 /* tells of one set before it is given up */

/* All tells about one set. */
typedef struct record {
    uint64_t *sites;
    uint64_t hash;
    uint32_t count; /* sites in it */
    uint32_t told[OUTCOMES];
} record;

struct lb_search {
    uint32_t n, words;
    double *prior;
    double miss, alarm, risk;
    uint32_t max_trials;
    record *records;
    uint32_t n_records;
    uint32_t trials;
    uint64_t *pending; /* the set that `next` wants to know */
    uint32_t pending_count;
    lb_search_purpose purpose;
    uint64_t *work; /* scratch set */
    uint32_t *culprits;
    lb_search_verdict verdict;
    bool done;
};

static const char *const outcome_names[OUTCOMES] = {"cured", "fails-same", "fails-other", "invalid", "noise"};

const char *lb_search_outcome_name(lb_search_outcome outcome)
{
    return (unsigned)outcome < OUTCOMES ? outcome_names[outcome] : "unknown";
}

bool lb_search_outcome_parse(const char *name, lb_search_outcome *outcome)
{
    for (int i = 0; i < OUTCOMES; i++)
        if (strcmp(name, outcome_names[i]) == 0) {
            *outcome = (lb_search_outcome)i;
            return true;
        }
    return false;
}

const char *lb_search_purpose_name(lb_search_purpose purpose)
{
    static const char *const names[] = {"whole", "narrow", "weigh", "reduce", "confirm"};
    return (unsigned)purpose < 5 ? names[purpose] : "unknown";
}

/* ---- sets ------------------------------------------------------------------------------------------------------- */

static void add(uint64_t *set, uint32_t site)
{
    set[site / 64] |= (uint64_t)1 << (site % 64);
}

static void drop(uint64_t *set, uint32_t site)
{
    set[site / 64] &= ~((uint64_t)1 << (site % 64));
}

static void fill(uint64_t *set, uint32_t n)
{
    memset(set, 0, LB_SITE_WORDS(n) * sizeof *set);
    for (uint32_t i = 0; i < n; i++) add(set, i);
}

static uint32_t size_of(const uint64_t *set, uint32_t words)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < words; i++) count += (uint32_t)__builtin_popcountll(set[i]);
    return count;
}

static bool subset(const uint64_t *a, const uint64_t *b, uint32_t words)
{
    for (uint32_t i = 0; i < words; i++)
        if (a[i] & ~b[i]) return false;
    return true;
}

static uint64_t hash_of(const uint64_t *set, uint32_t words)
{
    uint64_t h = 0x9e3779b97f4a7c15u;
    for (uint32_t i = 0; i < words; i++) {
        h = (h ^ set[i]) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return h;
}

/* ---- tells ------------------------------------------------------------------------------------------------------ */

static record *find(const lb_search *s, const uint64_t *sites)
{
    uint64_t hash = hash_of(sites, s->words);
    for (uint32_t i = 0; i < s->n_records; i++)
        if (s->records[i].hash == hash && memcmp(s->records[i].sites, sites, s->words * sizeof *sites) == 0)
            return &s->records[i];
    return NULL;
}

/* Log-odds that the set cures, from its tells alone. */
static double log_odds(const lb_search *s, const record *r)
{
    uint32_t fails = r->told[LB_OUTCOME_SAME] + r->told[LB_OUTCOME_OTHER];
    return r->told[LB_OUTCOME_CURED] * log((1 - s->alarm) / s->miss) + fails * log(s->alarm / (1 - s->miss));
}

static bool noisy(const lb_search *s)
{
    return s->miss > NO_NOISE || s->alarm > NO_NOISE;
}

/* Accepted log-odds for one answer: the risk is shared among the answers that a proof needs. */
static double threshold(const lb_search *s)
{
    double share = s->risk / (4 * log2(s->n + 1.0) + 4);
    return log((1 - share) / share);
}

static enum answer known(const lb_search *s, const record *r)
{
    if (!r) return PENDING;
    if (r->told[LB_OUTCOME_INVALID] && !r->told[LB_OUTCOME_CURED]) return UNKNOWN;
    double odds = log_odds(s, r), enough = noisy(s) ? threshold(s) : 1;
    if (odds >= enough) return CURED;
    if (odds <= -enough) return FAILS;
    if (r->told[LB_OUTCOME_NOISE] >= IDLE_LIMIT) return UNKNOWN;
    uint32_t total = 0;
    for (int i = 0; i < OUTCOMES; i++) total += r->told[i];
    return total >= REPEAT_LIMIT ? UNKNOWN : PENDING;
}

static enum answer ask(lb_search *s, const uint64_t *sites, lb_search_purpose purpose)
{
    const record *r = find(s, sites);
    uint32_t count = size_of(sites, s->words);
    if (count == 0 && !r) return FAILS; /* nothing changed: the failure itself */
    enum answer answer = known(s, r);
    if (answer == PENDING) {
        memcpy(s->pending, sites, s->words * sizeof *sites);
        s->pending_count = count;
        s->purpose = purpose;
    }
    return answer;
}

/* ---- weigh: one culprit, under noise ---------------------------------------------------------------------------- */

/* Trials after which one culprit should have been found; beyond that there are several. */
static double weigh_limit(const lb_search *s)
{
    double p = fmax(s->miss, s->alarm) / 2 + fmin(s->miss, s->alarm) / 2;
    p = fmin(fmax(p, 1e-6), 0.49);
    double capacity = 1 + p * log2(p) + (1 - p) * log2(1 - p);
    return 10 + 3 * (log2(s->n) + log2(1 / s->risk)) / capacity;
}

/* The posterior over single culprits into w[0, n), the hypothesis "no single one" into w[n]; sums to 1. */
static void posterior(const lb_search *s, double *w)
{
    double mass = 0, top = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < s->n; i++) mass += s->prior[i];
    for (uint32_t i = 0; i < s->n; i++) w[i] = log(0.9 * s->prior[i] / mass);
    w[s->n] = log(0.1);
    for (uint32_t k = 0; k < s->n_records; k++) {
        const record *r = &s->records[k];
        if (r->count == s->n) continue; /* the whole set is part of the premise */
        double cured = r->told[LB_OUTCOME_CURED];
        double fails = r->told[LB_OUTCOME_SAME] + r->told[LB_OUTCOME_OTHER];
        double in = cured * log(1 - s->alarm) + fails * log(s->alarm);
        double out = cured * log(s->miss) + fails * log(1 - s->miss);
        for (uint32_t i = 0; i < s->n; i++) w[i] += lb_site_in(r->sites, i) ? in : out;
        w[s->n] += out;
    }
    for (uint32_t i = 0; i <= s->n; i++) top = fmax(top, w[i]);
    for (uint32_t i = 0; i <= s->n; i++) sum += w[i] = exp(w[i] - top);
    for (uint32_t i = 0; i <= s->n; i++) w[i] /= sum;
}

/* PENDING: wants a trial. CURED: *culprit is confirmed. FAILS: no single culprit. */
static enum answer weigh(lb_search *s, uint32_t *culprit, double *w)
{
    posterior(s, w);
    uint32_t best = 0;
    for (uint32_t i = 1; i < s->n; i++)
        if (w[i] > w[best]) best = i;
    memset(s->work, 0, s->words * sizeof *s->work);
    if (w[best] >= 1 - s->risk / 2) {
        *culprit = best;
        add(s->work, best);
        return ask(s, s->work, LB_PURPOSE_CONFIRM);
    }
    if (w[s->n] >= 1 - s->risk || s->trials >= weigh_limit(s)) return FAILS;
    /* The cut of the causal order, or the favourite alone, whose mass is nearest to one half. */
    double before = 0, gap = fabs(w[best] - 0.5);
    uint32_t cut = UINT32_MAX;
    for (uint32_t i = 0; i + 1 < s->n; i++) {
        before += w[i];
        if (fabs(before - 0.5) < gap) gap = fabs(before - 0.5), cut = i;
    }
    if (cut == UINT32_MAX)
        add(s->work, best);
    else
        for (uint32_t i = 0; i <= cut; i++) add(s->work, i);
    /* Asked whatever is known about this set: repeating it is the point. */
    memcpy(s->pending, s->work, s->words * sizeof *s->work);
    s->pending_count = size_of(s->work, s->words);
    s->purpose = LB_PURPOSE_WEIGH;
    return PENDING;
}

/* ---- narrow: any number of culprits ------------------------------------------------------------------------------ */

typedef struct narrowing {
    uint64_t *changed; /* U: P(U) is cured */
    uint32_t *open;    /* sites of U not known to be needed, ascending */
    uint32_t n_open;
    uint32_t found;
    double settled; /* prior mass of what was dropped or found */
    bool unknown;   /* some trial could not be run */
} narrowing;

static double mass(const lb_search *s, const uint32_t *sites, uint32_t from, uint32_t to)
{
    double sum = 0;
    for (uint32_t i = from; i < to; i++) sum += s->prior[sites[i]];
    return sum;
}

/* Is U without open[from, to) still cured? */
static enum answer without(lb_search *s, narrowing *n, uint32_t from, uint32_t to)
{
    memcpy(s->work, n->changed, s->words * sizeof *s->work);
    for (uint32_t i = from; i < to; i++) drop(s->work, n->open[i]);
    enum answer answer = ask(s, s->work, LB_PURPOSE_NARROW);
    if (answer == UNKNOWN) {
        n->unknown = true;
        return FAILS;
    }
    return answer;
}

static void settle(lb_search *s, narrowing *n, uint32_t from, uint32_t to)
{
    n->settled += mass(s, n->open, from, to);
    for (uint32_t i = from; i < to; i++) drop(n->changed, n->open[i]);
    memmove(n->open + from, n->open + to, (n->n_open - to) * sizeof *n->open);
    n->n_open -= to - from;
}

/* Where [from, to) falls into two parts of like mass; both non-empty. */
static uint32_t middle(const lb_search *s, const narrowing *n, uint32_t from, uint32_t to)
{
    double half = mass(s, n->open, from, to) / 2, sum = 0;
    for (uint32_t i = from; i + 1 < to; i++) {
        double w = s->prior[n->open[i]];
        if (sum + w / 2 >= half) return i > from ? i : from + 1;
        sum += w;
    }
    return to - 1;
}

/* How much of the open end to leave out next. Few culprits so far: all of it. Many: about as much as holds one. */
static uint32_t group(const lb_search *s, const narrowing *n)
{
    if (n->found == 0) return n->n_open;
    static const double factor[] = {2, 2, 1.4, 1};
    double goal = (n->found < 4 ? factor[n->found] : 0.7) * n->settled / n->found, sum = 0;
    uint32_t size = 0;
    while (size < n->n_open && (size == 0 || sum < goal)) sum += s->prior[n->open[n->n_open - ++size]];
    return size;
}

/* open[from, to) holds a site that U cannot do without: finds the last one. */
static enum answer isolate(lb_search *s, narrowing *n, uint32_t from, uint32_t to)
{
    while (to - from > 1) {
        uint32_t cut = middle(s, n, from, to);
        switch (without(s, n, cut, to)) {
        case PENDING: return PENDING;
        case CURED:
            settle(s, n, cut, to);
            to = cut;
            break;
        default: from = cut;
        }
    }
    n->settled += s->prior[n->open[from]];
    n->found++;
    memmove(n->open + from, n->open + to, (n->n_open - to) * sizeof *n->open);
    n->n_open--;
    return CURED;
}

static enum answer narrow(lb_search *s, narrowing *n)
{
    while (n->n_open > 0) {
        uint32_t from = n->n_open - group(s, n), to = n->n_open;
        switch (without(s, n, from, to)) {
        case PENDING: return PENDING;
        case CURED: settle(s, n, from, to); break;
        default:
            if (isolate(s, n, from, to) == PENDING) return PENDING;
        }
    }
    return CURED;
}

/* ---- reduce and confirm ------------------------------------------------------------------------------------------ */

static uint32_t list(const lb_search *s, const uint64_t *set, uint32_t *sites)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->n; i++)
        if (lb_site_in(set, i)) sites[count++] = i;
    return count;
}

/* Delta debugging with shrinking parts (the schedule of CDD), then single sites until none can go. P(set) is cured. */
static enum answer reduce(lb_search *s, uint64_t *set, uint32_t *sites)
{
    for (double p = 0.1;; p = fmin(p / (1 - exp(-1.0)), 0.999)) {
        uint32_t count = list(s, set, sites), part = (uint32_t)fmax(1, floor(-1 / log(1 - p)));
        bool removed = false;
        for (uint32_t i = 0; i < count; i += part) {
            memcpy(s->work, set, s->words * sizeof *set);
            for (uint32_t k = i; k < count && k < i + part; k++) drop(s->work, sites[k]);
            enum answer answer = ask(s, s->work, LB_PURPOSE_REDUCE);
            if (answer == PENDING) return PENDING;
            if (answer == CURED) memcpy(set, s->work, s->words * sizeof *set), removed = true;
        }
        if (part == 1 && !removed) return CURED;
    }
}

/* Puts every member of the answer back once. FAILS: one of them was not needed after all. */
static enum answer confirm(lb_search *s, const uint64_t *set, uint32_t *sites, uint32_t *untested)
{
    uint32_t count = list(s, set, sites);
    for (uint32_t i = 0; i < count && count > 1; i++) {
        memcpy(s->work, set, s->words * sizeof *set);
        drop(s->work, sites[i]);
        enum answer answer = ask(s, s->work, LB_PURPOSE_CONFIRM);
        if (answer == PENDING) return PENDING;
        if (answer == CURED) return FAILS;
        if (answer == UNKNOWN) ++*untested;
    }
    return CURED;
}

static bool monotone(const lb_search *s)
{
    for (uint32_t a = 0; a < s->n_records; a++) {
        if (known(s, &s->records[a]) != CURED) continue;
        for (uint32_t b = 0; b < s->n_records; b++)
            if (known(s, &s->records[b]) == FAILS && subset(s->records[a].sites, s->records[b].sites, s->words))
                return false;
    }
    return true;
}

/* ---- verdict ----------------------------------------------------------------------------------------------------- */

static void conclude(lb_search *s, lb_search_kind kind, const uint64_t *set, const char *note)
{
    s->verdict.kind = kind;
    s->verdict.n_culprits = set ? list(s, set, s->culprits) : 0;
    s->verdict.monotone = monotone(s);
    s->verdict.risk = noisy(s) ? s->risk : 0;
    strncpy(s->verdict.note, note, sizeof s->verdict.note - 1);
    s->done = true;
}

/* The smallest set that is known to cure, NULL when there is none. */
static const uint64_t *smallest(const lb_search *s)
{
    const record *best = NULL;
    for (uint32_t i = 0; i < s->n_records; i++)
        if (known(s, &s->records[i]) == CURED && (!best || s->records[i].count < best->count)) best = &s->records[i];
    return best ? best->sites : NULL;
}

static void proceed(lb_search *s, uint64_t *set, uint32_t *sites, double *w)
{
    fill(set, s->n);
    enum answer answer = ask(s, set, LB_PURPOSE_WHOLE);
    if (answer == PENDING) return;
    if (answer == UNKNOWN) {
        conclude(s, LB_SEARCH_UNDECIDED, NULL, "changing everything could not be run to an answer");
        return;
    }
    if (answer == FAILS) {
        conclude(s, LB_SEARCH_NOTHING, NULL, "");
        return;
    }
    uint32_t single;
    if (noisy(s) && s->n > 1) {
        answer = weigh(s, &single, w);
        if (answer == PENDING) return;
        if (answer == CURED) {
            memset(set, 0, s->words * sizeof *set);
            add(set, single);
            conclude(s, LB_SEARCH_FOUND, set, "");
            return;
        }
    }
    narrowing n = {.changed = set, .open = sites, .n_open = s->n};
    for (uint32_t i = 0; i < s->n; i++) sites[i] = i;
    if (narrow(s, &n) == PENDING) return;

    uint32_t untested = n.unknown ? 1 : 0;
    const char *note = "";
    answer = confirm(s, set, sites, &untested);
    if (answer == PENDING) return;
    if (answer == FAILS) {
        note = "changing more undid a cure (sites mask each other): reduced by delta debugging instead";
        untested = 0;
        if (reduce(s, set, sites) == PENDING) return;
    }
    if (untested) note = "some trials could not be run: the answer cures, but may not be the smallest that does";
    conclude(s, LB_SEARCH_FOUND, set, note);
}

lb_status lb_search_next(lb_search *s, lb_search_step *step, lb_search_trial *trial, lb_err *err)
{
    uint64_t *set = malloc(s->words * sizeof *set);
    uint32_t *sites = malloc(s->n * sizeof *sites);
    double *w = malloc(((size_t)s->n + 1) * sizeof *w);
    lb_status status = LB_OK;
    s->done = false;
    memset(&s->verdict, 0, sizeof s->verdict);
    if (!set || !sites || !w) {
        status = lb_fail(err, LB_ERR_NOMEM, "search over %u sites: out of memory", s->n);
        goto out;
    }
    proceed(s, set, sites, w);
    if (!s->done && s->max_trials && s->trials >= s->max_trials)
        conclude(s, LB_SEARCH_UNDECIDED, smallest(s), "the limit of trials was reached");
    *step = s->done ? LB_SEARCH_DONE : LB_SEARCH_TRIAL;
    if (!s->done) *trial = (lb_search_trial){s->pending, s->pending_count, s->purpose};
out:
    free(set);
    free(sites);
    free(w);
    return status;
}

lb_status lb_search_tell(lb_search *s, const uint64_t *sites, lb_search_outcome outcome, lb_err *err)
{
    if ((unsigned)outcome >= OUTCOMES) return lb_fail(err, LB_ERR_INVALID, "no such outcome: %d", (int)outcome);
    if (s->n % 64 && sites[s->words - 1] >> (s->n % 64))
        return lb_fail(err, LB_ERR_INVALID, "a tell names a site beyond the %u that there are", s->n);
    record *r = find(s, sites);
    if (!r) {
        record *more = lb_array_grow(s->records, s->n_records, sizeof *more);
        if (!more) return lb_fail(err, LB_ERR_NOMEM, "search: out of memory for %u tells", s->n_records + 1);
        s->records = more;
        uint64_t *copy = malloc(s->words * sizeof *copy);
        if (!copy) return lb_fail(err, LB_ERR_NOMEM, "search: out of memory for a set of %u sites", s->n);
        memcpy(copy, sites, s->words * sizeof *copy);
        r = &s->records[s->n_records++];
        *r = (record){.sites = copy, .hash = hash_of(sites, s->words), .count = size_of(sites, s->words)};
    }
    r->told[outcome]++;
    s->trials++;
    return LB_OK;
}

lb_status lb_search_verdict_get(lb_search *s, lb_search_verdict *verdict, lb_err *err)
{
    if (!s->done) {
        lb_search_step step;
        lb_search_trial trial;
        LB_TRY(lb_search_next(s, &step, &trial, err));
        if (step == LB_SEARCH_TRIAL) {
            conclude(s, LB_SEARCH_UNDECIDED, smallest(s), "the search has not finished");
            s->done = false;
        }
    }
    *verdict = s->verdict;
    verdict->culprits = s->culprits;
    verdict->trials = s->trials;
    return LB_OK;
}

/* ---- life-cycle -------------------------------------------------------------------------------------------------- */

lb_status lb_search_new(const lb_search_options *options, lb_search **search, lb_err *err)
{
    lb_search_options o = LB_SEARCH_OPTIONS_INIT;
    memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    if (o.sites == 0 || o.sites > 1u << 24)
        return lb_fail(err, LB_ERR_INVALID, "a search needs 1 to %u sites, not %u", 1u << 24, o.sites);
    if (!(o.miss >= 0 && o.miss < 0.5 + 0.4999) || !(o.alarm >= 0 && o.alarm < 0.5) || o.miss + o.alarm >= 1)
        return lb_fail(err, LB_ERR_INVALID, "noise rates miss %g and alarm %g leave nothing to learn", o.miss, o.alarm);
    lb_search *s = calloc(1, sizeof *s);
    if (!s) return lb_fail(err, LB_ERR_NOMEM, "search: out of memory");
    s->n = o.sites;
    s->words = LB_SITE_WORDS(o.sites);
    s->miss = fmax(o.miss, NO_NOISE);
    s->alarm = fmax(o.alarm, NO_NOISE);
    s->risk = o.risk > 0 && o.risk < 0.5 ? o.risk : 0.01;
    s->max_trials = o.max_trials;
    s->prior = malloc(s->n * sizeof *s->prior);
    s->pending = malloc(s->words * sizeof *s->pending);
    s->work = malloc(s->words * sizeof *s->work);
    s->culprits = malloc(s->n * sizeof *s->culprits);
    if (!s->prior || !s->pending || !s->work || !s->culprits) {
        lb_search_free(s);
        return lb_fail(err, LB_ERR_NOMEM, "search over %u sites: out of memory", o.sites);
    }
    double sum = 0;
    for (uint32_t i = 0; i < s->n; i++) sum += o.prior && o.prior[i] > 0 ? o.prior[i] : 0;
    for (uint32_t i = 0; i < s->n; i++) {
        double share = sum > 0 ? (o.prior[i] > 0 ? o.prior[i] / sum : 0) : 1.0 / s->n;
        s->prior[i] = fmax(share, 1e-6 / s->n);
    }
    *search = s;
    return LB_OK;
}

void lb_search_free(lb_search *s)
{
    if (!s) return;
    for (uint32_t i = 0; i < s->n_records; i++) free(s->records[i].sites);
    free(s->records);
    free(s->prior);
    free(s->pending);
    free(s->work);
    free(s->culprits);
    free(s);
}
