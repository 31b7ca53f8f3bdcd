/* Failures: see failure.h. */
#include "failure/failure.h"

#include "failure/watched.h"

#include "base/array.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum predicate_kind {
    PREDICATE_NONE,
    PREDICATE_NONFINITE,
    PREDICATE_MAX,
    PREDICATE_LOSS,
    PREDICATE_NORM
} predicate_kind;

/* The past of one quantity. */
typedef struct history {
    int32_t rank;
    int64_t key; /* storage of a parameter; -1 loss, -2 gradient norm */
    uint32_t n;
    double largest, mean, ema;
    double pending; /* of the step that runs */
    bool seen;
    uint32_t op;
} history;

/* Steps that a loss scaler skipped; the first of them by number. */
enum { SKIPPED_SHOWN = 6 };
typedef struct skipped_steps {
    int64_t first[SKIPPED_SHOWN], last;
    uint32_t n;
} skipped_steps;

/* What is known between two steps, none of which failed. */
typedef struct memory_of_steps {
    uint32_t number;
    history *past;
    uint32_t n_past;
    uint64_t *blind; /* per row */
    skipped_steps skipped;
} memory_of_steps;

struct lb_failure_monitor {
    const int32_t *ranks;
    uint32_t n_ranks;
    lb_watched *rows;
    uint32_t n_rows;
    predicate_kind predicate;
    double limit;
    lb_failure_monitor_mode mode;
    bool collect;
    bool *excluded; /* per rank row */
    uint32_t *done; /* per rank row: bit 0: past the failing step */
    lb_failure failure;
    history *past;
    uint32_t n_past;
    struct { /* what the recording's gross failure was held against: a change may take away the past that shows it */
        int32_t rank;
        int64_t key, step;
        double reference;
    } recorded;
    bool recording;
    bool all_skipped; /* the loss scaler skips every step: then what it met is no business of its own */
    skipped_steps skipped;
    char warning[240]; /* of these, in words */
    memory_of_steps *kept;
    uint32_t n_kept;
};

const char *lb_failure_kind_name(lb_failure_kind kind)
{
    static const char *const names[] = {"none",   "gradient", "loss",      "parameter",  "state",
                                        "output", "gross",    "predicate", "difference", "ranks"};
    return (unsigned)kind < sizeof names / sizeof *names ? names[kind] : "unknown";
}

/* ---- predicates ------------------------------------------------------------------------------------------------- */

static lb_status parse_predicate(lb_failure_monitor *m, const char *text, lb_selector **selector, lb_err *err)
{
    static const struct {
        const char *name;
        predicate_kind kind;
        bool number;
    } table[] = {{"nonfinite", PREDICATE_NONFINITE, false},
                 {"max", PREDICATE_MAX, true},
                 {"loss", PREDICATE_LOSS, true},
                 {"grad_norm", PREDICATE_NORM, true}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        size_t n = strlen(table[i].name);
        if (strncmp(text, table[i].name, n)) continue;
        const char *rest = text + n;
        char *end = (char *)rest;
        if (table[i].number) {
            if (*rest != '>') continue;
            m->limit = strtod(rest + 1, &end);
            if (end == rest + 1) break;
        }
        if (*end && *end != '@') break;
        m->predicate = table[i].kind;
        return lb_selector_new(*end ? end + 1 : "", selector, err);
    }
    return lb_fail(err, LB_ERR_INVALID,
                   "predicate \"%s\": expected nonfinite, max>NUMBER, loss>NUMBER or grad_norm>NUMBER, each with "
                   "@SELECTOR or without",
                   text);
}

/* ---- life-cycle ------------------------------------------------------------------------------------------------- */

static lb_status collect_programs(lb_failure_monitor *m, lb_capture *capture, int64_t first, int64_t last, lb_err *err)
{
    const int64_t *steps;
    uint32_t n_steps = lb_capture_steps(capture, &steps);
    m->rows = calloc((size_t)n_steps * m->n_ranks + 1, sizeof *m->rows);
    if (!m->rows) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t s = 0; s < n_steps; s++)
        for (uint32_t r = 0; r < m->n_ranks; r++) {
            if (steps[s] < first || steps[s] > last) continue;
            lb_err why = LB_ERR_INIT;
            const lb_program *program;
            lb_status status = lb_capture_program(capture, m->ranks[r], steps[s], &program, &why);
            if (status == LB_ERR_NOT_FOUND) continue;
            if (status != LB_OK) return lb_fail(err, status, "%s", why.message);
            m->rows[m->n_rows++] = (lb_watched){.program = program, .rank_row = r};
        }
    return LB_OK;
}

lb_status lb_failure_monitor_new(lb_capture *capture, int64_t first_step, int64_t last_step, const char *predicate,
                                 lb_failure_monitor **monitor, lb_err *err)
{
    lb_selector *selector = NULL;
    lb_failure_monitor *m = calloc(1, sizeof *m);
    *monitor = NULL;
    if (!m) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    m->n_ranks = lb_capture_ranks(capture, &m->ranks);
    m->excluded = calloc(m->n_ranks + 1, sizeof *m->excluded);
    m->done = calloc(m->n_ranks + 1, sizeof *m->done);
    lb_status status = m->excluded && m->done ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK && predicate) status = parse_predicate(m, predicate, &selector, err);
    if (status == LB_OK) status = collect_programs(m, capture, first_step, last_step, err);
    for (uint32_t i = 0; i < m->n_rows && status == LB_OK; i++) status = lb_watch_program(&m->rows[i], selector, err);
    lb_selector_free(selector);
    if (status == LB_OK)
        *monitor = m;
    else
        lb_failure_monitor_free(m);
    return status;
}

void lb_failure_monitor_free(lb_failure_monitor *m)
{
    if (!m) return;
    for (uint32_t i = 0; i < m->n_rows; i++) free(m->rows[i].marks);
    lb_failure_monitor_forget(m);
    free(m->rows);
    free(m->excluded);
    free(m->done);
    free(m->past);
    free(m);
}

static void say_skipped(lb_failure_monitor *m)
{
    const skipped_steps *s = &m->skipped;
    char list[160] = "";
    m->warning[0] = '\0';
    if (!s->n) return;
    for (uint32_t i = 0; i < s->n && i < SKIPPED_SHOWN; i++) {
        const size_t used = strlen(list);
        const bool last = i + 1 == s->n;
        snprintf(list + used, sizeof list - used, "%s%" PRId64, !i ? "" : last ? " and " : ", ", s->first[i]);
    }
    if (s->n > SKIPPED_SHOWN)
        snprintf(list + strlen(list), sizeof list - strlen(list), ", … %" PRId64 " (%u steps)", s->last, s->n);
    snprintf(m->warning, sizeof m->warning, "%s %s: the loss scaler met non-finite gradients and skips the step%s",
             s->n == 1 ? "step" : "steps", list, s->n == 1 ? "" : "s");
}

/* Each of its gradients says so, on each rank. */
static void note_skipped(lb_failure_monitor *m, int64_t step)
{
    skipped_steps *s = &m->skipped;
    if (s->n && s->last >= step) return;
    if (s->n < SKIPPED_SHOWN) s->first[s->n] = step;
    s->last = step, s->n++;
    say_skipped(m);
}

void lb_failure_monitor_reset(lb_failure_monitor *m, lb_failure_monitor_mode mode, const bool *excluded)
{
    m->mode = mode;
    m->collect = false;
    m->failure = (lb_failure){.op = LB_NONE, .rank = -1};
    m->n_past = 0;
    m->skipped.n = 0;
    say_skipped(m);
    for (uint32_t i = 0; i < m->n_rows; i++) m->rows[i].blind = m->rows[i].judged = 0;
    for (uint32_t i = 0; i < m->n_ranks; i++) {
        m->excluded[i] = excluded && excluded[i];
        m->done[i] = 0;
    }
}

void lb_failure_monitor_forget(lb_failure_monitor *m)
{
    for (uint32_t i = 0; i < m->n_kept; i++) {
        free(m->kept[i].past);
        free(m->kept[i].blind);
    }
    free(m->kept);
    m->kept = NULL, m->n_kept = 0;
}

lb_status lb_failure_monitor_keep(lb_failure_monitor *m, uint32_t number, lb_err *err)
{
    memory_of_steps *more = lb_array_grow(m->kept, m->n_kept, sizeof *more),
                    row = {.number = number, .n_past = m->n_past};
    if (more) m->kept = more;
    row.past = malloc((m->n_past + 1) * sizeof *row.past);
    row.blind = malloc((m->n_rows + 1) * sizeof *row.blind);
    if (!more || !row.past || !row.blind) {
        free(row.past);
        free(row.blind);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    if (m->n_past) memcpy(row.past, m->past, m->n_past * sizeof *row.past);
    for (uint32_t i = 0; i < m->n_rows; i++) row.blind[i] = m->rows[i].blind;
    row.skipped = m->skipped;
    m->kept[m->n_kept++] = row;
    return LB_OK;
}

lb_status lb_failure_monitor_resume(lb_failure_monitor *m, uint32_t number, lb_err *err)
{
    for (uint32_t i = 0; i < m->n_kept; i++) {
        const memory_of_steps *row = &m->kept[i];
        if (row->number != number) continue;
        if (row->n_past > m->n_past) {
            history *more = lb_array_reserve(m->past, m->n_past, row->n_past - m->n_past, sizeof *more);
            if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
            m->past = more;
        }
        if (row->n_past) memcpy(m->past, row->past, row->n_past * sizeof *row->past);
        m->n_past = row->n_past;
        for (uint32_t k = 0; k < m->n_rows; k++) m->rows[k].blind = row->blind[k];
        m->skipped = row->skipped;
        say_skipped(m);
        return LB_OK;
    }
    return lb_fail(err, LB_ERR_NOT_FOUND, "nothing is kept under %u", number);
}

uint64_t lb_failure_monitor_blind(const lb_failure_monitor *m, int64_t last_step)
{
    uint64_t blind = 0;
    for (uint32_t i = 0; i < m->n_rows; i++)
        if (m->rows[i].program->step <= last_step) blind += m->rows[i].blind;
    return blind;
}

uint64_t lb_failure_monitor_judged(const lb_failure_monitor *m)
{
    uint64_t judged = 0;
    for (uint32_t i = 0; i < m->n_rows; i++) judged += m->rows[i].judged;
    return judged;
}

void lb_failure_monitor_collect(lb_failure_monitor *m, bool all)
{
    m->collect = all;
}

const lb_failure *lb_failure_monitor_failure(const lb_failure_monitor *m)
{
    return &m->failure;
}

const char *lb_failure_monitor_warning(const lb_failure_monitor *m)
{
    return m->warning;
}

static lb_watched *find_row(const lb_failure_monitor *m, int32_t rank, int64_t step)
{
    for (uint32_t i = 0; i < m->n_rows; i++)
        if (m->rows[i].program->rank == rank && m->rows[i].program->step == step) return &m->rows[i];
    return NULL;
}

const uint8_t *lb_failure_monitor_marks(const lb_failure_monitor *m, int32_t rank, int64_t step)
{
    const lb_watched *w = find_row(m, rank, step);
    return w ? w->marks : NULL;
}

/* ---- judging ---------------------------------------------------------------------------------------------------- */

static void report(lb_failure_monitor *m, const lb_watched *w, uint32_t op, lb_failure_kind kind, const char *what)
{
    const lb_program *p = w->program;
    bool earlier = m->failure.kind == LB_FAILURE_NONE || p->step < m->failure.step;
    /* Within a step what is nearer to the cause comes first: gradients and loss before what they are written into. */
    if (!earlier && (p->step > m->failure.step || kind >= m->failure.kind)) return;
    m->failure = (lb_failure){.kind = kind, .step = p->step, .rank = p->rank, .op = op};
    if (op != LB_NONE) {
        snprintf(m->failure.layer, sizeof m->failure.layer, "%s", lb_op_layer(p, &p->ops[op]));
        snprintf(m->failure.name, sizeof m->failure.name, "%s", lb_op_name(p, &p->ops[op]));
    }
    snprintf(m->failure.what, sizeof m->failure.what, "%s", what);
}

static lb_failure_kind kind_of_bits(uint8_t bits)
{
    if (bits & LB_WATCH_GRADIENT) return LB_FAILURE_GRADIENT;
    if (bits & LB_WATCH_LOSS) return LB_FAILURE_LOSS;
    if (bits & LB_WATCH_PARAMETER) return LB_FAILURE_PARAMETER;
    if (bits & LB_WATCH_STATE) return LB_FAILURE_STATE;
    return LB_FAILURE_OUTPUT;
}

/* What the program calls a parameter, or a tensor of optimizer state; "" when it has no name. */
static const char *storage_name(const lb_program *p, int64_t storage)
{
    for (uint32_t i = 0; i < p->n_group_params; i++)
        if (p->group_params[i].storage == storage) return lb_program_text(p, p->group_params[i].name);
    return "";
}

static const char *thing(lb_failure_kind kind)
{
    switch (kind) {
    case LB_FAILURE_GRADIENT: return "a local gradient";
    case LB_FAILURE_LOSS: return "the loss";
    case LB_FAILURE_PARAMETER: return "a parameter";
    case LB_FAILURE_STATE: return "optimizer state";
    default: return "the output";
    }
}

static void judge_nonfinite(lb_failure_monitor *m, const lb_watched *w, uint32_t op, uint8_t bits,
                            const lb_value *value, const lb_statistics *s)
{
    int64_t bad = lb_statistics_nonfinite(s);
    if (bits == LB_WATCH_OUTPUT) bad -= s->neg_inf; /* a mask */
    if (bad <= 0) return;
    lb_failure_kind kind = kind_of_bits(bits);
    if (kind == LB_FAILURE_GRADIENT && w->scaler && !m->all_skipped) {
        note_skipped(m, w->program->step);
        return;
    }
    char what[200];
    const char *name = kind == LB_FAILURE_PARAMETER ? storage_name(w->program, value->storage) : "";
    if (s->elements == 1)
        snprintf(what, sizeof what, "%s%s%.80s is %s", thing(kind), *name ? " " : "", name,
                 s->nan ? "NaN" : "infinite");
    else
        snprintf(what, sizeof what, "%" PRId64 " of %" PRId64 " elements of %s%s%.80s are %s", bad, s->elements,
                 thing(kind), *name ? " " : "", name,
                 s->nan && bad > s->nan ? "NaN or infinite"
                 : s->nan               ? "NaN"
                                        : "infinite");
    report(m, w, op, kind, what);
}

static history *find_past(lb_failure_monitor *m, int32_t rank, int64_t key)
{
    for (uint32_t i = 0; i < m->n_past; i++)
        if (m->past[i].rank == rank && m->past[i].key == key) return &m->past[i];
    history *more = lb_array_grow(m->past, m->n_past, sizeof *more);
    if (!more) return NULL;
    m->past = more;
    m->past[m->n_past] = (history){.rank = rank, .key = key, .op = LB_NONE};
    return &m->past[m->n_past++];
}

static double largest_magnitude(const lb_statistics *s)
{
    if (lb_statistics_nonfinite(s)) return INFINITY;
    return s->elements ? fmax(fabs(s->min), fabs(s->max)) : 0;
}

/* What the window's first source of that storage held: the past of a parameter begins there, not with its first
 * update. */
static double source_magnitude(const lb_program *p, int64_t storage)
{
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (!lb_op_is_source(p, &p->ops[i])) continue;
        const lb_value *v = &p->values[lb_op_results(p, &p->ops[i])[0]];
        if (v->storage != storage) continue;
        const lb_statistics *s = v->statistics == LB_NONE ? NULL : &p->statistics[v->statistics];
        return s && !lb_statistics_nonfinite(s) ? largest_magnitude(s) : 0;
    }
    return 0;
}

/* Values are gathered while a step runs and judged at its end. */
static void gather(lb_failure_monitor *m, const lb_watched *w, uint32_t op, uint8_t bits, const lb_value *value,
                   const lb_statistics *s)
{
    int64_t key = bits & LB_WATCH_PARAMETER  ? value->storage
                  : bits & LB_WATCH_LOSS     ? -1
                  : bits & LB_WATCH_GRADIENT ? -2
                                             : -3;
    if (key == -3) return;
    history *h = find_past(m, w->program->rank, key);
    if (!h) return;
    if (key >= 0 && !h->n && !h->seen && w->program->step == m->rows[0].program->step) {
        h->largest = source_magnitude(w->program, key);
        h->n = h->largest > 0;
    }
    if (key == -2 && lb_statistics_nonfinite(s)) /* its sum of squares is that of the finite elements alone */
        h->pending = w->scaler ? NAN : INFINITY; /* a scaler skips the step: that has no norm */
    else if (key == -2)
        h->pending += s->sum_squares;
    else
        h->pending = largest_magnitude(s);
    h->seen = true;
    if (h->op == LB_NONE || key != -2) h->op = op;
}

static bool is_gross(lb_failure_monitor *m, const history *h, const lb_program *p, double now, char *what, size_t size)
{
    bool many = h->n >= 20;
    const bool known = !m->recording && m->recorded.reference > 0 && m->recorded.rank == h->rank &&
                       m->recorded.key == h->key && p->step >= m->recorded.step;
    const uint32_t least = known ? 0 : h->key < 0 ? 2 : 1;
    double limit, reference;
    const char *name, *against, *which = "";
    if (h->key == -1) {
        name = "the loss", reference = many ? h->mean : h->largest, limit = many ? 2 : 10;
        against = many ? "its mean" : "its largest";
    } else if (h->key == -2) {
        name = "the gradient norm", reference = many ? h->ema : h->largest, limit = many ? 100 : 1000;
        against = many ? "its EMA" : "its largest";
    } else {
        name = "parameter ", which = storage_name(p, h->key), reference = h->largest, limit = 1e4,
        against = "its largest";
    }
    if (known) reference = fmax(reference, m->recorded.reference);
    const bool finite = isfinite(now); /* what is not is no matter of how large it was before */
    if (finite && (h->n < least || !(reference > 0) || now <= limit * reference)) return false;
    if (finite && m->recording && m->failure.kind == LB_FAILURE_NONE) {
        m->recorded.rank = h->rank, m->recorded.key = h->key, m->recorded.step = p->step;
        m->recorded.reference = reference;
    }
    if (finite)
        snprintf(what, size, "%s%.80s is %.4g, %.3g times %s before (%.4g)", name, which, now, now / reference, against,
                 reference);
    else
        snprintf(what, size, "%s%.80s is not finite", name, which);
    return true;
}

static void take_into_past(history *h, double now)
{
    h->largest = fmax(h->largest, now);
    h->mean += (now - h->mean) / (h->n + 1);
    h->ema = h->n ? 0.99 * h->ema + 0.01 * now : now;
    h->n++;
}

void lb_failure_monitor_step_end(lb_failure_monitor *m, int32_t rank, int64_t step)
{
    const lb_watched *w = find_row(m, rank, step);
    for (uint32_t i = 0; i < m->n_past && w; i++) {
        history *h = &m->past[i];
        char what[200];
        if (h->rank != rank || !h->seen) continue;
        double now = h->key == -2 ? sqrt(h->pending) : h->pending;
        if (w->scaler && h->key == -2 && isnan(now)) {
            h->pending = 0, h->seen = false, h->op = LB_NONE;
            continue;
        }
        if (m->mode == LB_MONITOR_GROSS && h->key < 0 && w->scale > 0) now /= w->scale;
        if (m->mode == LB_MONITOR_GROSS && is_gross(m, h, w->program, now, what, sizeof what))
            report(m, w, h->op, LB_FAILURE_GROSS, what);
        if (m->predicate == PREDICATE_NORM && h->key == -2 && (!isfinite(now) || now > m->limit)) {
            if (isfinite(now))
                snprintf(what, sizeof what, "the local gradient norm is %.6g, above %g", now, m->limit);
            else
                snprintf(what, sizeof what, "the local gradient is not finite, its norm above any limit");
            report(m, w, h->op, LB_FAILURE_PREDICATE, what);
        }
        if (isfinite(now)) take_into_past(h, now);
        h->pending = 0, h->seen = false, h->op = LB_NONE;
    }
    if (w) m->done[w->rank_row] = m->failure.kind != LB_FAILURE_NONE && step >= m->failure.step;
}

static void judge_predicate(lb_failure_monitor *m, const lb_watched *w, uint32_t op, uint8_t bits,
                            const lb_statistics *s)
{
    char what[200];
    double most = largest_magnitude(s);
    bool hit = false;
    if (!(bits & LB_WATCH_PREDICATE)) return;
    if (m->predicate == PREDICATE_NONFINITE)
        hit = lb_statistics_nonfinite(s) > 0;
    else if (m->predicate == PREDICATE_MAX)
        hit = most > m->limit;
    else if (m->predicate == PREDICATE_LOSS)
        hit = bits & LB_WATCH_LOSS && most > m->limit; /* not finite: INFINITY */
    if (!hit) return;
    snprintf(what, sizeof what,
             "the predicate holds: largest magnitude %.6g, %" PRId64 " of %" PRId64 " elements not finite", most,
             lb_statistics_nonfinite(s), s->elements);
    report(m, w, op, LB_FAILURE_PREDICATE, what);
}

/* What an op gives beside the loss: the number of targets, of nll_loss_forward. */
static bool is_beside_loss(const lb_program *p, uint32_t op, const lb_value *value)
{
    const lb_op *row = &p->ops[op];
    const uint32_t first = row->results ? lb_op_results(p, row)[0] : LB_NONE;
    return first != LB_NONE && value != &p->values[first] && value->storage != p->values[first].storage;
}

static void judge(lb_failure_monitor *m, lb_watched *w, uint32_t op, const lb_value *value, const lb_statistics *s)
{
    uint8_t bits = w->marks[op] & (uint8_t)~LB_WATCH_EVIDENCE;
    if (bits & LB_WATCH_LOSS && is_beside_loss(w->program, op, value)) bits &= (uint8_t)~LB_WATCH_LOSS;
    if (!bits || !lb_dtype_is_float(value->dtype) || m->excluded[w->rank_row] || !s->elements) return;
    w->judged += m->mode != LB_MONITOR_PREDICATE || bits & LB_WATCH_PREDICATE;
    if (m->mode == LB_MONITOR_NONFINITE) {
        if (bits & (uint8_t)~LB_WATCH_PREDICATE)
            judge_nonfinite(m, w, op, bits & (uint8_t)~LB_WATCH_PREDICATE, value, s);
    } else {
        if (m->mode == LB_MONITOR_PREDICATE) judge_predicate(m, w, op, bits, s);
        gather(m, w, op, bits, value, s);
    }
}

bool lb_failure_monitor_op(lb_failure_monitor *m, const lb_event *event)
{
    lb_watched *w = find_row(m, event->rank, event->step);
    if (!w) return true;
    /* In a step after the failing one this rank has nothing to add. */
    bool past = m->failure.kind != LB_FAILURE_NONE && event->step > m->failure.step;
    if (!past && event->op < w->program->n_ops && w->marks[event->op] & (uint8_t)~LB_WATCH_EVIDENCE)
        for (uint32_t i = 0; i < event->n_results; i++) {
            if (event->values[i] == LB_NONE || event->values[i] >= w->program->n_values) continue;
            const lb_value *value = &w->program->values[event->values[i]];
            if (!event->computed || !event->computed[i].data) {
                w->blind += lb_dtype_is_float(value->dtype) && lb_layout_numel(&value->layout) > 0;
                continue;
            }
            lb_statistics s = lb_statistics_of(&event->computed[i]);
            judge(m, w, event->op, value, &s);
        }
    if (past) m->done[w->rank_row] = 1;
    if (m->failure.kind == LB_FAILURE_NONE) return true;
    if (!m->collect) return false;
    for (uint32_t i = 0; i < m->n_ranks; i++)
        if (!m->done[i]) return true;
    return false;
}

/* ---- in the recording ------------------------------------------------------------------------------------------- */

static void judge_recorded_op(lb_failure_monitor *m, lb_watched *w, uint32_t i)
{
    const lb_program *p = w->program;
    const lb_op *op = &p->ops[i];
    for (uint32_t r = 0; r < op->results + op->written; r++) {
        uint32_t v = lb_op_outcome(p, op, r);
        if (v == LB_NONE) continue;
        if (p->values[v].statistics == LB_NONE) {
            w->blind += lb_dtype_is_float(p->values[v].dtype) && lb_layout_numel(&p->values[v].layout) > 0 &&
                        !(op->flags & LB_OP_VIEW);
            continue;
        }
        judge(m, w, i, &p->values[v], &p->statistics[p->values[v].statistics]);
    }
}

/* How often a loss scaler of that program met gradients that are not finite. */
static uint32_t count_skipped(const lb_watched *w)
{
    const lb_program *p = w->program;
    uint32_t n = 0;
    for (uint32_t i = 0; w->scaler && i < p->n_ops; i++) {
        bool bad = false;
        for (uint32_t r = 0; lb_op_is_unscaling(p, &p->ops[i]) && r < p->ops[i].written && !bad; r++) {
            const uint32_t v = lb_op_written(p, &p->ops[i])[r];
            bad = v != LB_NONE && p->values[v].statistics != LB_NONE &&
                  lb_statistics_nonfinite(&p->statistics[p->values[v].statistics]);
        }
        n += bad;
    }
    return n;
}

/* One skipped step is how a scaler finds its scale. A window of several in which no parameter is ever updated does not
 * train. */
static bool skips_all(const lb_failure_monitor *m)
{
    uint32_t skipped = 0;
    for (uint32_t i = 0; i < m->n_rows; i++) {
        if (m->rows[i].updates) return false;
        skipped = m->rows[i].rank_row == m->rows[0].rank_row ? skipped + count_skipped(&m->rows[i]) : skipped;
    }
    return skipped > 1;
}

lb_status lb_failure_monitor_recording(lb_failure_monitor *m, lb_failure_monitor_mode mode, lb_err *err)
{
    (void)err;
    m->all_skipped = mode == LB_MONITOR_NONFINITE && skips_all(m);
    lb_failure_monitor_reset(m, mode, NULL);
    if (m->all_skipped)
        snprintf(m->warning, sizeof m->warning,
                 "the loss scaler skips every step of this window: no parameter is ever updated");
    m->recording = true;
    m->recorded.reference = 0;
    for (uint32_t i = 0; i < m->n_rows; i++) {
        lb_watched *w = &m->rows[i];
        if (m->failure.kind != LB_FAILURE_NONE && w->program->step > m->failure.step) break;
        for (uint32_t k = 0; k < w->program->n_ops; k++)
            if (w->marks[k]) judge_recorded_op(m, w, k);
        lb_failure_monitor_step_end(m, w->program->rank, w->program->step);
    }
    m->recording = false;
    return LB_OK;
}
