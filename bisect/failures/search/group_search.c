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

static record *find(const lb_search *search, const uint64_t *sites)
{
    uint64_t hash = hash_of(sites, search->words);
    for (uint32_t i = 0; i < search->n_records; i++)
        if (search->records[i].hash == hash &&
            memcmp(search->records[i].sites, sites, search->words * sizeof *sites) == 0)
            return &search->records[i];
    return NULL;
}

/* Log-odds that the set cures, from its tells alone. */
static double log_odds(const lb_search *search, const record *record)
{
    uint32_t fails = record->told[LB_OUTCOME_SAME] + record->told[LB_OUTCOME_OTHER];
    return record->told[LB_OUTCOME_CURED] * log((1 - search->alarm) / search->miss) +
           fails * log(search->alarm / (1 - search->miss));
}

static bool noisy(const lb_search *search)
{
    return search->miss > NO_NOISE || search->alarm > NO_NOISE;
}

/* Accepted log-odds for one answer: the risk is shared among the answers that a proof needs. */
static double threshold(const lb_search *search)
{
    double share = search->risk / (4 * log2(search->n + 1.0) + 4);
    return log((1 - share) / share);
}

static enum answer known(const lb_search *search, const record *record)
{
    if (!record) return PENDING;
    if (record->told[LB_OUTCOME_INVALID] && !record->told[LB_OUTCOME_CURED]) return UNKNOWN;
    double odds = log_odds(search, record), enough = noisy(search) ? threshold(search) : 1;
    if (odds >= enough) return CURED;
    if (odds <= -enough) return FAILS;
    if (record->told[LB_OUTCOME_NOISE] >= IDLE_LIMIT) return UNKNOWN;
    uint32_t total = 0;
    for (int i = 0; i < OUTCOMES; i++) total += record->told[i];
    return total >= REPEAT_LIMIT ? UNKNOWN : PENDING;
}

static enum answer ask(lb_search *search, const uint64_t *sites, lb_search_purpose purpose)
{
    const record *record = find(search, sites);
    uint32_t count = size_of(sites, search->words);
    if (count == 0 && !record) return FAILS; /* nothing changed: the failure itself */
    enum answer answer = known(search, record);
    if (answer == PENDING) {
        memcpy(search->pending, sites, search->words * sizeof *sites);
        search->pending_count = count;
        search->purpose = purpose;
    }
    return answer;
}

/* ---- weigh: one culprit, under noise ---------------------------------------------------------------------------- */

/* Trials after which one culprit should have been found; beyond that there are several. */
static double weigh_limit(const lb_search *search)
{
    double p = fmax(search->miss, search->alarm) / 2 + fmin(search->miss, search->alarm) / 2;
    p = fmin(fmax(p, 1e-6), 0.49);
    double capacity = 1 + p * log2(p) + (1 - p) * log2(1 - p);
    return 10 + 3 * (log2(search->n) + log2(1 / search->risk)) / capacity;
}

/* The posterior over single culprits into w[0, n), the hypothesis "no single one" into w[n]; sums to 1. */
static void posterior(const lb_search *search, double *weights)
{
    double mass = 0, top = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < search->n; i++) mass += search->prior[i];
    for (uint32_t i = 0; i < search->n; i++) weights[i] = log(0.9 * search->prior[i] / mass);
    weights[search->n] = log(0.1);
    for (uint32_t k = 0; k < search->n_records; k++) {
        const record *record = &search->records[k];
        if (record->count == search->n) continue; /* the whole set is part of the premise */
        double cured = record->told[LB_OUTCOME_CURED];
        double fails = record->told[LB_OUTCOME_SAME] + record->told[LB_OUTCOME_OTHER];
        double in = cured * log(1 - search->alarm) + fails * log(search->alarm);
        double out = cured * log(search->miss) + fails * log(1 - search->miss);
        for (uint32_t i = 0; i < search->n; i++) weights[i] += lb_site_in(record->sites, i) ? in : out;
        weights[search->n] += out;
    }
    for (uint32_t i = 0; i <= search->n; i++) top = fmax(top, weights[i]);
    for (uint32_t i = 0; i <= search->n; i++) sum += weights[i] = exp(weights[i] - top);
    for (uint32_t i = 0; i <= search->n; i++) weights[i] /= sum;
}

/* PENDING: wants a trial. CURED: *culprit is confirmed. FAILS: no single culprit. */
static enum answer weigh(lb_search *search, uint32_t *culprit, double *weights)
{
    posterior(search, weights);
    uint32_t best = 0;
    for (uint32_t i = 1; i < search->n; i++)
        if (weights[i] > weights[best]) best = i;
    memset(search->work, 0, search->words * sizeof *search->work);
    if (weights[best] >= 1 - search->risk / 2) {
        *culprit = best;
        add(search->work, best);
        return ask(search, search->work, LB_PURPOSE_CONFIRM);
    }
    if (weights[search->n] >= 1 - search->risk || search->trials >= weigh_limit(search)) return FAILS;
    /* The cut of the causal order, or the favourite alone, whose mass is nearest to one half. */
    double before = 0, gap = fabs(weights[best] - 0.5);
    uint32_t cut = UINT32_MAX;
    for (uint32_t i = 0; i + 1 < search->n; i++) {
        before += weights[i];
        if (fabs(before - 0.5) < gap) gap = fabs(before - 0.5), cut = i;
    }
    if (cut == UINT32_MAX)
        add(search->work, best);
    else
        for (uint32_t i = 0; i <= cut; i++) add(search->work, i);
    /* Asked whatever is known about this set: repeating it is the point. */
    memcpy(search->pending, search->work, search->words * sizeof *search->work);
    search->pending_count = size_of(search->work, search->words);
    search->purpose = LB_PURPOSE_WEIGH;
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

static double mass(const lb_search *search, const uint32_t *sites, uint32_t from, uint32_t to)
{
    double sum = 0;
    for (uint32_t i = from; i < to; i++) sum += search->prior[sites[i]];
    return sum;
}

/* Is U without open[from, to) still cured? */
static enum answer without(lb_search *search, narrowing *narrowing, uint32_t from, uint32_t to)
{
    memcpy(search->work, narrowing->changed, search->words * sizeof *search->work);
    for (uint32_t i = from; i < to; i++) drop(search->work, narrowing->open[i]);
    enum answer answer = ask(search, search->work, LB_PURPOSE_NARROW);
    if (answer == UNKNOWN) {
        narrowing->unknown = true;
        return FAILS;
    }
    return answer;
}

static void settle(lb_search *search, narrowing *narrowing, uint32_t from, uint32_t to)
{
    narrowing->settled += mass(search, narrowing->open, from, to);
    for (uint32_t i = from; i < to; i++) drop(narrowing->changed, narrowing->open[i]);
    memmove(narrowing->open + from, narrowing->open + to, (narrowing->n_open - to) * sizeof *narrowing->open);
    narrowing->n_open -= to - from;
}

/* Where [from, to) falls into two parts of like mass; both non-empty. */
static uint32_t middle(const lb_search *search, const narrowing *narrowing, uint32_t from, uint32_t to)
{
    double half = mass(search, narrowing->open, from, to) / 2, sum = 0;
    for (uint32_t i = from; i + 1 < to; i++) {
        double w = search->prior[narrowing->open[i]];
        if (sum + w / 2 >= half) return i > from ? i : from + 1;
        sum += w;
    }
    return to - 1;
}

/* How much of the open end to leave out next. Few culprits so far: all of it. Many: about as much as holds one. */
static uint32_t group(const lb_search *search, const narrowing *narrowing)
{
    if (narrowing->found == 0) return narrowing->n_open;
    static const double factor[] = {2, 2, 1.4, 1};
    double goal = (narrowing->found < 4 ? factor[narrowing->found] : 0.7) * narrowing->settled / narrowing->found,
           sum = 0;
    uint32_t size = 0;
    while (size < narrowing->n_open && (size == 0 || sum < goal))
        sum += search->prior[narrowing->open[narrowing->n_open - ++size]];
    return size;
}

/* open[from, to) holds a site that U cannot do without: finds the last one. */
static enum answer isolate(lb_search *search, narrowing *narrowing, uint32_t from, uint32_t to)
{
    while (to - from > 1) {
        uint32_t cut = middle(search, narrowing, from, to);
        switch (without(search, narrowing, cut, to)) {
        case PENDING: return PENDING;
        case CURED:
            settle(search, narrowing, cut, to);
            to = cut;
            break;
        default: from = cut;
        }
    }
    narrowing->settled += search->prior[narrowing->open[from]];
    narrowing->found++;
    memmove(narrowing->open + from, narrowing->open + to, (narrowing->n_open - to) * sizeof *narrowing->open);
    narrowing->n_open--;
    return CURED;
}

static enum answer narrow(lb_search *search, narrowing *narrowing)
{
    while (narrowing->n_open > 0) {
        uint32_t from = narrowing->n_open - group(search, narrowing), to = narrowing->n_open;
        switch (without(search, narrowing, from, to)) {
        case PENDING: return PENDING;
        case CURED: settle(search, narrowing, from, to); break;
        default:
            if (isolate(search, narrowing, from, to) == PENDING) return PENDING;
        }
    }
    return CURED;
}

/* ---- reduce and confirm ------------------------------------------------------------------------------------------ */

static uint32_t list(const lb_search *search, const uint64_t *set, uint32_t *sites)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < search->n; i++)
        if (lb_site_in(set, i)) sites[count++] = i;
    return count;
}

/* Delta debugging with shrinking parts (the schedule of CDD), then single sites until none can go. P(set) is cured. */
static enum answer reduce(lb_search *search, uint64_t *set, uint32_t *sites)
{
    for (double p = 0.1;; p = fmin(p / (1 - exp(-1.0)), 0.999)) {
        uint32_t count = list(search, set, sites), part = (uint32_t)fmax(1, floor(-1 / log(1 - p)));
        bool removed = false;
        for (uint32_t i = 0; i < count; i += part) {
            memcpy(search->work, set, search->words * sizeof *set);
            for (uint32_t k = i; k < count && k < i + part; k++) drop(search->work, sites[k]);
            enum answer answer = ask(search, search->work, LB_PURPOSE_REDUCE);
            if (answer == PENDING) return PENDING;
            if (answer == CURED) memcpy(set, search->work, search->words * sizeof *set), removed = true;
        }
        if (part == 1 && !removed) return CURED;
    }
}

/* Puts every member of the answer back once. FAILS: one of them was not needed after all. */
static enum answer confirm(lb_search *search, const uint64_t *set, uint32_t *sites, uint32_t *untested)
{
    uint32_t count = list(search, set, sites);
    for (uint32_t i = 0; i < count && count > 1; i++) {
        memcpy(search->work, set, search->words * sizeof *set);
        drop(search->work, sites[i]);
        enum answer answer = ask(search, search->work, LB_PURPOSE_CONFIRM);
        if (answer == PENDING) return PENDING;
        if (answer == CURED) return FAILS;
        if (answer == UNKNOWN) ++*untested;
    }
    return CURED;
}

static bool monotone(const lb_search *search)
{
    for (uint32_t a = 0; a < search->n_records; a++) {
        if (known(search, &search->records[a]) != CURED) continue;
        for (uint32_t b = 0; b < search->n_records; b++)
            if (known(search, &search->records[b]) == FAILS &&
                subset(search->records[a].sites, search->records[b].sites, search->words))
                return false;
    }
    return true;
}

/* ---- verdict ----------------------------------------------------------------------------------------------------- */

static void conclude(lb_search *search, lb_search_kind kind, const uint64_t *set, const char *note)
{
    search->verdict.kind = kind;
    search->verdict.n_culprits = set ? list(search, set, search->culprits) : 0;
    search->verdict.monotone = monotone(search);
    search->verdict.risk = noisy(search) ? search->risk : 0;
    strncpy(search->verdict.note, note, sizeof search->verdict.note - 1);
    search->done = true;
}

/* The smallest set that is known to cure, NULL when there is none. */
static const uint64_t *smallest(const lb_search *search)
{
    const record *best = NULL;
    for (uint32_t i = 0; i < search->n_records; i++)
        if (known(search, &search->records[i]) == CURED && (!best || search->records[i].count < best->count))
            best = &search->records[i];
    return best ? best->sites : NULL;
}

static void proceed(lb_search *search, uint64_t *set, uint32_t *sites, double *weights)
{
    fill(set, search->n);
    enum answer answer = ask(search, set, LB_PURPOSE_WHOLE);
    if (answer == PENDING) return;
    if (answer == UNKNOWN) {
        conclude(search, LB_SEARCH_UNDECIDED, NULL, "changing everything could not be run to an answer");
        return;
    }
    if (answer == FAILS) {
        conclude(search, LB_SEARCH_NOTHING, NULL, "");
        return;
    }
    uint32_t single;
    if (noisy(search) && search->n > 1) {
        answer = weigh(search, &single, weights);
        if (answer == PENDING) return;
        if (answer == CURED) {
            memset(set, 0, search->words * sizeof *set);
            add(set, single);
            conclude(search, LB_SEARCH_FOUND, set, "");
            return;
        }
    }
    narrowing narrowing = {.changed = set, .open = sites, .n_open = search->n};
    for (uint32_t i = 0; i < search->n; i++) sites[i] = i;
    if (narrow(search, &narrowing) == PENDING) return;

    uint32_t untested = narrowing.unknown ? 1 : 0;
    const char *note = "";
    answer = confirm(search, set, sites, &untested);
    if (answer == PENDING) return;
    if (answer == FAILS) {
        note = "changing more undid a cure (sites mask each other): reduced by delta debugging instead";
        untested = 0;
        if (reduce(search, set, sites) == PENDING) return;
    }
    if (untested) note = "some trials could not be run: the answer cures, but may not be the smallest that does";
    conclude(search, LB_SEARCH_FOUND, set, note);
}

lb_status lb_search_next(lb_search *search, lb_search_step *step, lb_search_trial *trial, lb_err *err)
{
    uint64_t *set = malloc(search->words * sizeof *set);
    uint32_t *sites = malloc(search->n * sizeof *sites);
    double *w = malloc(((size_t)search->n + 1) * sizeof *w);
    lb_status status = LB_OK;
    search->done = false;
    memset(&search->verdict, 0, sizeof search->verdict);
    if (!set || !sites || !w) {
        status = lb_fail(err, LB_ERR_NOMEM, "search over %u sites: out of memory", search->n);
        goto out;
    }
    proceed(search, set, sites, w);
    if (!search->done && search->max_trials && search->trials >= search->max_trials)
        conclude(search, LB_SEARCH_UNDECIDED, smallest(search), "the limit of trials was reached");
    *step = search->done ? LB_SEARCH_DONE : LB_SEARCH_TRIAL;
    if (!search->done) *trial = (lb_search_trial){search->pending, search->pending_count, search->purpose};
out:
    free(set);
    free(sites);
    free(w);
    return status;
}

lb_status lb_search_tell(lb_search *search, const uint64_t *sites, lb_search_outcome outcome, lb_err *err)
{
    if ((unsigned)outcome >= OUTCOMES) return lb_fail(err, LB_ERR_INVALID, "no such outcome: %d", (int)outcome);
    if (search->n % 64 && sites[search->words - 1] >> (search->n % 64))
        return lb_fail(err, LB_ERR_INVALID, "a tell names a site beyond the %u that there are", search->n);
    record *told = find(search, sites);
    if (!told) {
        record *more = lb_array_grow(search->records, search->n_records, sizeof *more);
        if (!more) return lb_fail(err, LB_ERR_NOMEM, "search: out of memory for %u tells", search->n_records + 1);
        search->records = more;
        uint64_t *copy = malloc(search->words * sizeof *copy);
        if (!copy) return lb_fail(err, LB_ERR_NOMEM, "search: out of memory for a set of %u sites", search->n);
        memcpy(copy, sites, search->words * sizeof *copy);
        told = &search->records[search->n_records++];
        *told = (record){.sites = copy, .hash = hash_of(sites, search->words), .count = size_of(sites, search->words)};
    }
    told->told[outcome]++;
    search->trials++;
    return LB_OK;
}

lb_status lb_search_verdict_get(lb_search *search, lb_search_verdict *verdict, lb_err *err)
{
    if (!search->done) {
        lb_search_step step;
        lb_search_trial trial;
        LB_TRY(lb_search_next(search, &step, &trial, err));
        if (step == LB_SEARCH_TRIAL) {
            conclude(search, LB_SEARCH_UNDECIDED, smallest(search), "the search has not finished");
            search->done = false;
        }
    }
    *verdict = search->verdict;
    verdict->culprits = search->culprits;
    verdict->trials = search->trials;
    return LB_OK;
}

/* ---- life-cycle -------------------------------------------------------------------------------------------------- */

lb_status lb_search_new(const lb_search_options *options, lb_search **search, lb_err *err)
{
    lb_search_options given = LB_SEARCH_OPTIONS_INIT;
    memcpy(&given, options, options->size < sizeof given ? options->size : sizeof given);
    if (given.sites == 0 || given.sites > 1u << 24)
        return lb_fail(err, LB_ERR_INVALID, "a search needs 1 to %u sites, not %u", 1u << 24, given.sites);
    if (!(given.miss >= 0 && given.miss < 0.5 + 0.4999) || !(given.alarm >= 0 && given.alarm < 0.5) ||
        given.miss + given.alarm >= 1)
        return lb_fail(err, LB_ERR_INVALID, "noise rates miss %g and alarm %g leave nothing to learn", given.miss,
                       given.alarm);
    lb_search *made = calloc(1, sizeof *made);
    if (!made) return lb_fail(err, LB_ERR_NOMEM, "search: out of memory");
    made->n = given.sites;
    made->words = LB_SITE_WORDS(given.sites);
    made->miss = fmax(given.miss, NO_NOISE);
    made->alarm = fmax(given.alarm, NO_NOISE);
    made->risk = given.risk > 0 && given.risk < 0.5 ? given.risk : 0.01;
    made->max_trials = given.max_trials;
    made->prior = malloc(made->n * sizeof *made->prior);
    made->pending = malloc(made->words * sizeof *made->pending);
    made->work = malloc(made->words * sizeof *made->work);
    made->culprits = malloc(made->n * sizeof *made->culprits);
    if (!made->prior || !made->pending || !made->work || !made->culprits) {
        lb_search_free(made);
        return lb_fail(err, LB_ERR_NOMEM, "search over %u sites: out of memory", given.sites);
    }
    double sum = 0;
    for (uint32_t i = 0; i < made->n; i++) sum += given.prior && given.prior[i] > 0 ? given.prior[i] : 0;
    for (uint32_t i = 0; i < made->n; i++) {
        double share = sum > 0 ? (given.prior[i] > 0 ? given.prior[i] / sum : 0) : 1.0 / made->n;
        made->prior[i] = fmax(share, 1e-6 / made->n);
    }
    *search = made;
    return LB_OK;
}

void lb_search_free(lb_search *search)
{
    if (!search) return;
    for (uint32_t i = 0; i < search->n_records; i++) free(search->records[i].sites);
    free(search->records);
    free(search->prior);
    free(search->pending);
    free(search->work);
    free(search->culprits);
    free(search);
}
