/* The reproducer: see shrink.h.
 *
 *      step s0            step s0 + 1 … failing step
 *      [culprit] ──▶ … ──▶ what carries its effect ──▶ [what is judged]      kept: reached from the culprit and reaching the
 *          ▲ sources           ▲ sources                                     failure; what they read besides becomes a source
 *
 * Bytes of those sources are what the failing replay had there. The result is opened and replayed before it counts; when it
 * does not fail in the same way, whole steps are written instead, and when those don't either, that is said.
 */
#define _GNU_SOURCE /* asprintf */
#include "shrink.h"

#include "excerpt.h"
#include "muon.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* One step of the excerpt. */
typedef struct part {
    const lb_program *program;
    struct lb_flow *flow;
    uint8_t *fates;
    uint8_t *forward; /* reached from the culprit */
    lb_digest *logical, *blob;
} part;

typedef struct shrinking {
    lb_inquiry *q;
    int32_t rank;
    part *parts;
    uint32_t n;
    lb_writer *writer;
    lb_status status; /* of the observer's writes */
    lb_err *err;
} shrinking;

/* ---- which ops ---------------------------------------------------------------------------------------------------- */

static bool in_layer(const lb_program *p, const lb_op *op, const char *layer)
{
    const char *path = lb_op_layer(p, op);
    size_t n = strlen(layer);
    return n && !strncmp(path, layer, n) && (!path[n] || path[n] == '.');
}

static lb_status seed_muon(const part *t, const lb_culprit *c, lb_err *err)
{
    lb_muon muon;
    LB_TRY(lb_muon_find(t->program, t->flow, &muon, err));
    for (uint32_t s = 0; s < muon.n; s++) {
        const char *owner = lb_program_text(t->program, t->program->scopes[muon.slices[s].scope].path);
        for (uint32_t i = 0; i < muon.slices[s].n_ops && !strcmp(owner, c->layer); i++)
            t->forward[muon.slices[s].ops[i]] = 1;
    }
    lb_muon_release(&muon);
    return LB_OK;
}

/* The culprit and what its cure changes: for Muon its slices, for a layer its ops of that phase, else the op itself. */
static lb_status seed(const part *t, const lb_culprit *c, lb_err *err)
{
    if (c->axis == LB_AXIS_MUON) return seed_muon(t, c, err);
    for (uint32_t i = 0; i < t->program->n_ops; i++) {
        const lb_op *op = &t->program->ops[i];
        bool layer = (c->axis == LB_AXIS_PRECISION || c->axis == LB_AXIS_BLOCK) && op->phase == c->phase &&
                     in_layer(t->program, op, c->layer) && strncmp(lb_op_name(t->program, op), "lb::", 4);
        if (i == c->row || layer) t->forward[i] = 1;
    }
    return LB_OK;
}

static bool is_source(const lb_program *p, uint32_t op)
{
    return !strcmp(lb_op_name(p, &p->ops[op]), "lb::source");
}

static int64_t source_storage(const lb_program *p, uint32_t op)
{
    return p->values[lb_op_results(p, &p->ops[op])[0]].storage;
}

static bool writes(const lb_program *p, uint32_t i, int64_t storage)
{
    const lb_op *op = &p->ops[i];
    if (op->flags & LB_OP_VIEW) return false;
    for (uint32_t r = 0; r < op->results + op->written; r++) {
        uint32_t v = r < op->results ? lb_op_results(p, op)[r] : lb_op_written(p, op)[r - op->results];
        if (v != LB_NONE && p->values[v].storage == storage) return true;
    }
    return false;
}

/* Does some op that `marks` holds write this storage? */
static bool written_by(const part *t, const uint8_t *marks, uint8_t mark, int64_t storage)
{
    for (uint32_t i = 0; i < t->program->n_ops; i++)
        if (marks[i] == mark && !is_source(t->program, i) && writes(t->program, i, storage)) return true;
    return false;
}

static void reach_forward(shrinking *s)
{
    for (uint32_t k = 0; k < s->n; k++) {
        part *t = &s->parts[k];
        for (uint32_t i = 0; k && i < t->program->n_ops; i++) {
            if (!is_source(t->program, i) ||
                t->program->values[lb_op_results(t->program, &t->program->ops[i])[0]].source !=
                    LB_SOURCE_CARRIED)
                continue;
            for (uint32_t before = k; before-- > 0 && !t->forward[i];)
                t->forward[i] =
                    written_by(&s->parts[before], s->parts[before].forward, 1, source_storage(t->program, i));
        }
        lb_slice_grow(t->flow, false, 0, NULL, t->forward);
    }
}

static void keep_backward(part *t)
{
    uint8_t *stop = malloc((size_t)t->program->n_ops + 1);
    for (uint32_t i = 0; stop && i < t->program->n_ops; i++) stop[i] = !t->forward[i];
    if (stop) lb_slice_grow(t->flow, true, 0, stop, t->fates);
    free(stop);
}

/* From the failure back to the culprit, over steps through what they carry. fates: KEEP where both slices meet. */
static bool reach_backward(shrinking *s)
{
    part *last = &s->parts[s->n - 1];
    uint32_t failing = s->q->failure.op;
    if (failing == LB_NONE || !last->forward[failing]) return false;
    last->fates[failing] = LB_EXCERPT_KEEP;
    /* Who reads it makes it a loss, a gradient, an output. */
    for (uint32_t e = last->flow->first_use[failing]; e < last->flow->first_use[failing + 1]; e++)
        if (!(last->program->ops[last->flow->uses[e]].flags & LB_OP_COLLECTIVE))
            last->fates[last->flow->uses[e]] = LB_EXCERPT_KEEP;
    for (uint32_t k = s->n; k-- > 0;) {
        part *t = &s->parts[k];
        keep_backward(t);
        for (uint32_t i = 0; i < t->program->n_ops; i++) {
            if (t->fates[i] != LB_EXCERPT_KEEP) continue;
            if (t->program->ops[i].flags & LB_OP_COLLECTIVE)
                return false; /* its other members would be needed too */
            if (!is_source(t->program, i)) continue;
            int64_t storage = source_storage(t->program, i);
            for (uint32_t before = k; before-- > 0;)
                for (uint32_t j = 0; j < s->parts[before].program->n_ops; j++)
                    if (s->parts[before].forward[j] && !is_source(s->parts[before].program, j) &&
                        writes(s->parts[before].program, j, storage))
                        s->parts[before].fates[j] = LB_EXCERPT_KEEP;
        }
    }
    return true;
}

/* What kept ops read and no kept op computed becomes a source. */
static void close_inputs(shrinking *s)
{
    for (uint32_t k = 0; k < s->n; k++) {
        part *t = &s->parts[k];
        const lb_program *p = t->program;
        for (uint32_t i = 0; i < p->n_ops; i++) {
            if (t->fates[i] != LB_EXCERPT_KEEP || is_source(p, i)) continue;
            for (uint32_t e = t->flow->first_def[i]; e < t->flow->first_def[i + 1]; e++)
                if (t->fates[t->flow->defs[e]] == LB_EXCERPT_DROP)
                    t->fates[t->flow->defs[e]] = LB_EXCERPT_SOURCE;
        }
        for (uint32_t i = 0; i < p->n_ops; i++) {
            if (!is_source(p, i) || t->fates[i] == LB_EXCERPT_DROP) continue;
            bool carried = false;
            for (uint32_t before = 0; before < k; before++)
                carried |= written_by(&s->parts[before], s->parts[before].fates, LB_EXCERPT_KEEP,
                                      source_storage(p, i));
            t->fates[i] = carried && p->values[lb_op_results(p, &p->ops[i])[0]].source == LB_SOURCE_CARRIED
                              ? LB_EXCERPT_CARRIED
                              : LB_EXCERPT_SOURCE;
        }
    }
}

/* ---- bytes ---------------------------------------------------------------------------------------------------------- */

/* Stores the dense range of a tensor; gaps between its elements are 0. */
static lb_status store(shrinking *s, part *t, uint32_t value, const lb_tensor *tensor)
{
    const lb_value *row = &t->program->values[value];
    int64_t first, last;
    LB_TRY(lb_layout_dense_range(&row->layout, &first, &last, s->err));
    size_t size = lb_dtype_bytes(row->dtype, (size_t)(last - first)),
           elements = lb_dtype_bytes(row->dtype, (size_t)lb_layout_numel(&row->layout));
    char *dense = calloc(1, size + 1), *packed = malloc(elements + 1);
    lb_status status = dense && packed ? LB_OK : lb_fail(s->err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) status = lb_tensor_gather(tensor, packed, s->err);
    if (status == LB_OK) {
        lb_tensor window = {dense + lb_dtype_bytes(row->dtype, (size_t)(row->layout.offset - first)),
                            row->dtype, row->layout};
        status = lb_tensor_scatter(&window, packed, s->err);
    }
    if (status == LB_OK && size) {
        t->blob[value] = lb_digest_bytes(dense, size);
        status = lb_writer_blob(s->writer, t->blob[value], row->dtype, dense, size, s->err);
    }
    if (status == LB_OK) t->logical[value] = lb_digest_tensor(tensor);
    free(dense);
    free(packed);
    return status;
}

static part *part_of(shrinking *s, int64_t step)
{
    for (uint32_t k = 0; k < s->n; k++)
        if (s->parts[k].program->step == step) return &s->parts[k];
    return NULL;
}

static bool take_bytes(void *context, const lb_event *event)
{
    shrinking *s = context;
    part *t = event->rank == s->rank ? part_of(s, event->step) : NULL;
    if (!t || event->op >= t->program->n_ops) return true;
    uint8_t fate = t->fates[event->op];
    for (uint32_t i = 0; i < event->n_results && s->status == LB_OK; i++) {
        uint32_t v = event->values[i];
        if (v == LB_NONE || v >= t->program->n_values || !event->computed[i].data ||
            event->computed[i].dtype != t->program->values[v].dtype)
            continue;
        if (fate == LB_EXCERPT_SOURCE)
            s->status = store(s, t, v, &event->computed[i]);
        else if (fate == LB_EXCERPT_KEEP)
            t->logical[v] = lb_digest_tensor(&event->computed[i]);
    }
    return s->status == LB_OK;
}

/* Sources tell no event: their bytes are the recorded ones. */
static lb_status take_sources(shrinking *s)
{
    for (uint32_t k = 0; k < s->n; k++) {
        part *t = &s->parts[k];
        for (uint32_t i = 0; i < t->program->n_ops; i++) {
            if (t->fates[i] != LB_EXCERPT_SOURCE || !is_source(t->program, i)) continue;
            uint32_t v = lb_op_results(t->program, &t->program->ops[i])[0];
            lb_tensor tensor;
            LB_TRY(lb_capture_value(s->q->capture, t->program, v, &tensor, s->err));
            LB_TRY(store(s, t, v, &tensor));
        }
    }
    return LB_OK;
}

static lb_status replay_for_bytes(shrinking *s)
{
    lb_plan plan = LB_PLAN_INIT;
    lb_replay_summary summary = {0};
    lb_observer observer = {.context = s, .op = take_bytes};
    plan.mode = LB_REPLAY_CHAINED;
    plan.first_step = s->q->steps[0], plan.last_step = s->q->failure.step;
    plan.compare = false;
    plan.force_decisions = true;
    plan.threads = s->q->options->threads;
    LB_TRY(lb_replay_run(s->q->replay, &plan, &observer, &summary, s->err));
    return s->status;
}

/* ---- writing and checking ------------------------------------------------------------------------------------------- */

/* Empties a capture folder that a reproducer may replace: archives only, nothing else is touched. */
static lb_status make_folder(const char *path, bool overwrite, lb_err *err)
{
    if (mkdir(path, 0700) == 0) return LB_OK;
    if (errno != EEXIST) return lb_fail(err, LB_ERR_IO, "%s: %s", path, strerror(errno));
    if (!overwrite) return lb_fail(err, LB_ERR_EXISTS, "%s exists (--force replaces it)", path);
    DIR *dir = opendir(path);
    if (!dir) return lb_fail(err, LB_ERR_IO, "%s: %s", path, strerror(errno));
    for (struct dirent *e; (e = readdir(dir));)
        if (!strncmp(e->d_name, "rank-", 5)) unlinkat(dirfd(dir), e->d_name, 0);
    closedir(dir);
    return LB_OK;
}

static lb_status open_writer(shrinking *s, int32_t rank)
{
    lb_writer_options options = LB_WRITER_OPTIONS_INIT;
    options.overwrite = true;
    char *path = lb_capture_archive_path(s->q->options->reproducer, rank);
    if (!path) return lb_fail(s->err, LB_ERR_NOMEM, "out of memory");
    lb_status status = lb_writer_open(path, &options, &s->writer, s->err);
    free(path);
    return status;
}

static lb_status close_writer(shrinking *s, lb_status status)
{
    char *table = NULL;
    if (status == LB_OK && asprintf(&table, "{\"reproducer_of\":\"%s\",\"made_by\":\"lastbit bisect\"}",
                                    lb_capture_path(s->q->capture)) > 0)
        status = lb_writer_table(s->writer, "receipt", table, s->err);
    free(table);
    lb_status closed = lb_writer_close(s->writer, s->err);
    s->writer = NULL;
    return status == LB_OK ? closed : status;
}

static lb_status write_parts(shrinking *s)
{
    lb_status status = LB_OK;
    for (uint32_t k = 0; k < s->n && status == LB_OK; k++) {
        lb_program *excerpt;
        status = lb_excerpt(s->parts[k].program, s->parts[k].fates, s->parts[k].logical, s->parts[k].blob,
                            &excerpt, s->err);
        if (status != LB_OK) break;
        status = lb_writer_program(s->writer, excerpt, s->err);
        lb_program_free(excerpt);
    }
    return status;
}

static bool watch_op(void *context, const lb_event *event)
{
    return lb_monitor_op(context, event);
}

static void watch_step(void *context, int32_t rank, int64_t step)
{
    lb_monitor_step_end(context, rank, step);
}

/* Opens what was written and replays it: the same kind of failure in the same step? */
static bool still_fails(const lb_inquiry *q, uint64_t *ops)
{
    lb_capture *capture = NULL;
    lb_replay *replay = NULL;
    lb_monitor *monitor = NULL;
    lb_plan plan = LB_PLAN_INIT;
    lb_replay_summary summary = {0};
    bool same = false;
    plan.mode = LB_REPLAY_CHAINED;
    plan.compare = false;
    plan.force_decisions = true;
    if (lb_capture_open(q->options->reproducer, &capture, NULL) == LB_OK &&
        lb_replay_open(capture, &replay, NULL) == LB_OK &&
        lb_monitor_new(capture, INT64_MIN, INT64_MAX, q->options->predicate, &monitor, NULL) == LB_OK) {
        lb_observer observer = {.context = monitor, .op = watch_op, .step_end = watch_step};
        lb_monitor_reset(monitor, q->mode, NULL);
        same = lb_replay_run(replay, &plan, &observer, &summary, NULL) == LB_OK;
        const lb_failure *f = lb_monitor_failure(monitor);
        same = same && f->kind != LB_FAILURE_NONE && f->step == q->failure.step;
        *ops = summary.ops;
    }
    lb_monitor_free(monitor);
    lb_replay_close(replay);
    lb_capture_close(capture);
    return same;
}

/* ---- whole steps ------------------------------------------------------------------------------------------------------ */

/* A step as it is, sources of the first one with their bytes. */
static lb_status write_whole(shrinking *s, const lb_program *p, bool first)
{
    part t = {.program = p};
    t.fates = malloc((size_t)p->n_ops + 1);
    t.logical = calloc(p->n_values + 1, sizeof *t.logical);
    t.blob = calloc(p->n_values + 1, sizeof *t.blob);
    lb_program *copy = NULL;
    lb_status status = t.fates && t.logical && t.blob ? LB_OK : lb_fail(s->err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t v = 0; v < p->n_values && status == LB_OK; v++) t.logical[v] = p->values[v].logical;
    for (uint32_t i = 0; i < p->n_ops && status == LB_OK; i++) {
        t.fates[i] = LB_EXCERPT_KEEP;
        bool stands =
            p->ops[i].flags & (LB_OP_RANDOM | LB_OP_COMPOSITE) || !lb_replay_knows(lb_op_name(p, &p->ops[i]));
        if (is_source(p, i)) {
            bool carried = p->values[lb_op_results(p, &p->ops[i])[0]].source == LB_SOURCE_CARRIED;
            t.fates[i] = carried && !first ? LB_EXCERPT_CARRIED : LB_EXCERPT_SOURCE;
        } else if (stands)
            t.fates[i] = LB_EXCERPT_SOURCE;
        for (uint32_t r = 0; t.fates[i] == LB_EXCERPT_SOURCE && r < p->ops[i].results && status == LB_OK; r++) {
            uint32_t v = lb_op_results(p, &p->ops[i])[r];
            lb_tensor tensor;
            if (v != LB_NONE && lb_capture_value(s->q->capture, p, v, &tensor, NULL) == LB_OK)
                status = store(s, &t, v, &tensor);
        }
    }
    if (status == LB_OK) status = lb_excerpt(p, t.fates, t.logical, t.blob, &copy, s->err);
    if (status == LB_OK) status = lb_writer_program(s->writer, copy, s->err);
    lb_program_free(copy);
    free(t.fates);
    free(t.logical);
    free(t.blob);
    return status;
}

static lb_status write_steps(shrinking *s, int64_t first_step)
{
    lb_inquiry *q = s->q;
    LB_TRY(make_folder(q->options->reproducer, true, s->err));
    for (uint32_t r = 0; r < q->n_ranks; r++) {
        LB_TRY(open_writer(s, q->ranks[r]));
        lb_status status = LB_OK;
        for (uint32_t k = 0; k < q->n_steps && status == LB_OK; k++) {
            const lb_program *p = lb_inquiry_program(q, q->ranks[r], q->steps[k]);
            if (p && q->steps[k] >= first_step && q->steps[k] <= q->failure.step)
                status = write_whole(s, p, q->steps[k] == first_step);
        }
        LB_TRY(close_writer(s, status));
    }
    return LB_OK;
}

/* ---- all of it ---------------------------------------------------------------------------------------------------------- */

static lb_status open_parts(shrinking *s, int64_t first_step)
{
    lb_inquiry *q = s->q;
    s->parts = calloc(q->n_steps + 1, sizeof *s->parts);
    if (!s->parts) return lb_fail(s->err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t k = 0; k < q->n_steps; k++) {
        const lb_program *p = lb_inquiry_program(q, s->rank, q->steps[k]);
        if (!p || q->steps[k] < first_step || q->steps[k] > q->failure.step) continue;
        part *t = &s->parts[s->n++];
        t->program = p;
        t->fates = calloc((size_t)p->n_ops + 1, 1);
        t->forward = calloc((size_t)p->n_ops + 1, 1);
        t->logical = calloc(p->n_values + 1, sizeof *t->logical);
        t->blob = calloc(p->n_values + 1, sizeof *t->blob);
        if (!t->fates || !t->forward || !t->logical || !t->blob)
            return lb_fail(s->err, LB_ERR_NOMEM, "out of memory");
        LB_TRY(lb_flow_new(p, &t->flow, s->err));
    }
    return LB_OK;
}

/* *small: something was written that may be the reproducer. */
static lb_status write_small(shrinking *s, int64_t first_step, bool *small)
{
    LB_TRY(open_parts(s, first_step));
    for (uint32_t i = 0; i < s->q->out->n_culprits; i++) {
        part *t = part_of(s, s->q->out->culprits[i].step);
        if (t) LB_TRY(seed(t, &s->q->out->culprits[i], s->err));
    }
    if (!s->n) return LB_OK;
    reach_forward(s);
    if (!reach_backward(s)) return LB_OK;
    close_inputs(s);
    LB_TRY(open_writer(s, s->rank));
    lb_err why = LB_ERR_INIT, *err = s->err;
    s->err = &why; /* bytes that were not kept are no failure: whole steps may do */
    lb_status status = take_sources(s);
    if (status == LB_OK) status = replay_for_bytes(s);
    if (status == LB_OK) status = write_parts(s);
    *small = close_writer(s, status) == LB_OK;
    s->err = err;
    return status == LB_ERR_NOMEM || status == LB_ERR_IO ? lb_fail(err, status, "%s", why.message) : LB_OK;
}

static void add_note(lb_bisection *b, const char *text)
{
    char *note = NULL;
    if (asprintf(&note, "%s%s%s", b->note ? b->note : "", b->note ? "; " : "", text) < 0) return;
    free(b->note);
    b->note = note;
}

lb_status lb_shrink(lb_inquiry *q, lb_err *err)
{
    shrinking s = {.q = q, .rank = q->failure.rank, .err = err};
    bool small = false;
    uint64_t ops = 0;
    int64_t first_step = q->failure.step;
    for (uint32_t i = 0; i < q->out->n_culprits; i++)
        if (q->out->culprits[i].step < first_step) first_step = q->out->culprits[i].step;
    LB_TRY(make_folder(q->options->reproducer, q->options->overwrite, err));
    lb_status status = write_small(&s, first_step, &small);
    bool fails = status == LB_OK && small && still_fails(q, &ops);
    if (status == LB_OK && !fails) {
        status = write_steps(&s, first_step);
        fails = status == LB_OK && still_fails(q, &ops);
    }
    if (fails) {
        q->out->reproducer = strdup(q->options->reproducer);
        lb_say(q, "reproducer %s: %" PRIu64 " ops, fails when replayed", q->options->reproducer, ops);
    } else if (status == LB_OK)
        add_note(q->out, "no smaller capture fails by itself: the capture is its own reproducer");
    for (uint32_t k = 0; k < s.n; k++) {
        lb_flow_free(s.parts[k].flow);
        free(s.parts[k].fates);
        free(s.parts[k].forward);
        free(s.parts[k].logical);
        free(s.parts[k].blob);
    }
    free(s.parts);
    return status;
}
