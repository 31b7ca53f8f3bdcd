/* What ranks call, side by side: see collective_calls.h. */
#include "failure/collective_calls.h"

#include "exchanges/rank_steps.h"

#include "failure/own_gradient.h"

#include <lastbit/text_stream.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One call of one rank. */
typedef struct call {
    const lb_program *program;
    uint32_t op, row; /* row of the program's collectives; LB_NONE: it failed */
    char *text;       /* what must be the same on all members */
    char *gradients;  /* names of those that enter it, "" for none */
} call;

typedef struct rank_calls {
    const lb_program *program;
    call *list;
    uint32_t n;
    bool *used; /* per call: compared with its group's */
} rank_calls;

typedef struct check {
    lb_rank_steps at;
    rank_calls *of; /* per rank, of the step at hand */
    lb_collective_calls *out;
    lb_err *err;
} check;

/* ---- what a call says -------------------------------------------------------------------------------------------- */

typedef struct inputs {
    const lb_program *program;
    int64_t elements;
    lb_dtype dtype;
    uint32_t n;
} inputs;

static void count_input(void *context, uint32_t value)
{
    inputs *in = context;
    if (value == LB_NONE) return;
    in->elements += lb_layout_numel(&in->program->values[value].layout), in->n++;
    in->dtype = in->program->values[value].dtype;
}

/* Members may bring other sizes, or nothing at all: uneven all-to-alls, lists that only the root gives. */
static bool sizes_may_differ(const char *base)
{
    return !strncmp(base, "alltoall", 8) || !strncmp(base, "all_to_all", 10) || !strcmp(base, "gather_") ||
           !strcmp(base, "scatter_") || !strcmp(base, "allgather_") || !strcmp(base, "reduce_scatter_");
}

static int root_arg(const char *base)
{
    if (!strcmp(base, "broadcast_")) return 2;
    return !strcmp(base, "reduce_") || !strcmp(base, "gather_") || !strcmp(base, "scatter_") ? 3 : -1;
}

static const lb_arg *arg_at(const lb_program *program, const lb_op *op, uint32_t at, uint8_t tag)
{
    const lb_arg *arg = at < op->args ? &lb_op_args(program, op)[at] : NULL;
    return arg && arg->tag == tag ? arg : NULL;
}

/* NCCL's own call says what must be the same on all members, whether this one sends, receives or both
 * (capture/nccl/call_writer.h). */
static char *nccl_call_text(const lb_program *program, const lb_op *op, const lb_collective *row)
{
    char *text = NULL;
    size_t size = 0;
    const lb_arg *root = arg_at(program, op, 2, LB_ARG_INT), *count = arg_at(program, op, 3, LB_ARG_INT),
                 *dtype = arg_at(program, op, 4, LB_ARG_DTYPE);
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    fputs(lb_op_name(program, op) + strlen("nccl::"), out);
    if (row && row->reduce != LB_NONE) fprintf(out, "(%s)", lb_program_text(program, row->reduce));
    if (count && dtype) fprintf(out, " of %s[%" PRId64 "]", lb_dtype_name((lb_dtype)dtype->u.i), count->u.i);
    if (root) fprintf(out, " from or to member %" PRId64, root->u.i);
    fclose(out);
    return text;
}

static char *call_text(const lb_program *program, const lb_op *op, const lb_collective *row)
{
    char *text = NULL;
    size_t size = 0;
    const char *name = lb_op_name(program, op), *after = strstr(name, "::"), *base = after ? after + 2 : name;
    const int root = root_arg(base);
    inputs in = {.program = program};
    if (!strncmp(name, "nccl::", 6)) return nccl_call_text(program, op, row);
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    fputs(base, out);
    if (row && row->reduce != LB_NONE) fprintf(out, "(%s)", lb_program_text(program, row->reduce));
    lb_op_each_input(program, op, count_input, &in);
    if (in.n && !sizes_may_differ(base)) fprintf(out, " of %s[%" PRId64 "]", lb_dtype_name(in.dtype), in.elements);
    if (root >= 0 && (uint32_t)root < op->args && lb_op_args(program, op)[root].tag == LB_ARG_INT)
        fprintf(out, " from or to member %" PRId64, lb_op_args(program, op)[root].u.i);
    fclose(out);
    return text;
}

static int by_text(const void *x, const void *y)
{
    return strcmp(*(const char *const *)x, *(const char *const *)y);
}

/* The names, sorted; "" where some are not told, NULL: out of memory. */
static char *gradients_of(const lb_own_gradients *own, uint32_t row)
{
    char *text = NULL;
    size_t size = 0;
    const char **names = malloc((own->n + 1) * sizeof *names);
    uint32_t n = 0;
    bool all = true;
    FILE *out = lb_text_stream_open(&text, &size);
    for (uint32_t i = 0; names && i < own->n; i++) {
        if (own->list[i].collective != row) continue;
        all &= own->list[i].name != LB_NONE;
        names[n++] = own->list[i].key;
    }
    if (names) qsort(names, n, sizeof *names, by_text);
    for (uint32_t i = 0; out && all && i < n; i++) fprintf(out, "%s%s", i ? ", " : "", names[i]);
    if (out) fclose(out);
    if (!names) free(text), text = NULL;
    free(names);
    return text;
}

static bool counts(const lb_program *program, const lb_op *op)
{
    const char *name = lb_op_name(program, op);
    return op->flags & LB_OP_COLLECTIVE && !strstr(name, "send") && !strstr(name, "recv");
}

static lb_status list_calls(const lb_program *program, rank_calls *out, lb_err *err)
{
    lb_slice_flow *flow;
    lb_own_gradients own;
    uint32_t n = 0, *rows = malloc((program->n_ops + 1) * sizeof *rows);
    *out = (rank_calls){.program = program};
    for (uint32_t i = 0; rows && i < program->n_ops; i++) rows[i] = LB_NONE, n += counts(program, &program->ops[i]);
    for (uint32_t i = 0; rows && i < program->n_collectives; i++) rows[program->collectives[i].op] = i;
    out->list = calloc(n + 1, sizeof *out->list), out->used = calloc(n + 1, sizeof *out->used);
    lb_status status = rows && out->list && out->used ? lb_slice_flow_new(program, &flow, err)
                                                      : lb_fail(err, LB_ERR_NOMEM, "out of memory for collectives");
    if (status != LB_OK) {
        free(rows);
        return status;
    }
    status = lb_own_gradients_find(program, flow, &own, err);
    lb_slice_flow_free(flow);
    for (uint32_t i = 0; i < program->n_ops && status == LB_OK; i++) {
        if (!counts(program, &program->ops[i]) || (rows[i] == LB_NONE && !(program->ops[i].flags & LB_OP_FAILED)))
            continue;
        call *c = &out->list[out->n++];
        *c = (call){program, i, rows[i],
                    call_text(program, &program->ops[i], rows[i] == LB_NONE ? NULL : &program->collectives[rows[i]]),
                    gradients_of(&own, rows[i] == LB_NONE ? LB_NONE - 1 : rows[i])};
        if (!c->text || !c->gradients) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for collectives");
    }
    lb_own_gradients_release(&own);
    free(rows);
    return status;
}

static void release_calls(rank_calls *calls)
{
    for (uint32_t i = 0; calls->list && i < calls->n; i++) free(calls->list[i].text), free(calls->list[i].gradients);
    free(calls->list), free(calls->used);
    *calls = (rank_calls){0};
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

static bool same_group(const call *a, const call *b)
{
    const lb_collective *x = &a->program->collectives[a->row], *y = &b->program->collectives[b->row];
    return lb_own_gradient_same_group(a->program, x, b->program, y) &&
           !strcmp(lb_program_text(a->program, x->group), lb_program_text(b->program, y->group));
}

static uint32_t row_of_rank(const check *check, uint32_t rank)
{
    return lb_rank_steps_row(check->at.ranks, check->at.n_ranks, (int32_t)rank);
}

/* The next call of that rank in the group of `lead`, from its call `from` on; a failed one counts where nothing of the
 * group follows. */
static uint32_t next_call(const rank_calls *calls, const call *lead, uint32_t from)
{
    uint32_t failed = LB_NONE;
    for (uint32_t i = from; i < calls->n; i++) {
        if (calls->list[i].row == LB_NONE)
            failed = failed == LB_NONE ? i : failed;
        else if (same_group(&calls->list[i], lead))
            return i;
    }
    return failed;
}

/* ---- one collective ---------------------------------------------------------------------------------------------- */

/* What the members called; NULL: a rank that never came. */
typedef struct meeting {
    const call **calls;
    int32_t *ranks;
    uint32_t n;
} meeting;

/* Does this program have a parameter of the first of these names? */
static bool knows(const lb_program *program, const char *names)
{
    const size_t n = strcspn(names, ",");
    for (uint32_t i = 0; i < program->n_values; i++) {
        const lb_value *value = &program->values[i];
        const char *name =
            value->flags & (LB_VALUE_PARAMETER | LB_VALUE_GRADIENT) ? lb_program_text(program, value->name) : "";
        if (!strncmp(name, names, n) && !name[n]) return true;
    }
    return false;
}

/* Stages of a pipeline reduce the gradient of what they tie under a name of each one's own. */
static bool same_gradients(const call *a, const call *b)
{
    if (!*a->gradients || !*b->gradients || !strcmp(a->gradients, b->gradients)) return true;
    return !knows(a->program, b->gradients) && !knows(b->program, a->gradients);
}

static bool agree(const call *a, const call *b)
{
    if (!a || !b) return a == b;
    /* What a failed call reduces by is not recorded. */
    const size_t n = a->row == LB_NONE || b->row == LB_NONE ? strcspn(a->text, "( ") : 0;
    if (n ? strncmp(a->text, b->text, n) != 0 : strcmp(a->text, b->text) != 0) return false;
    if (n) {
        const char *x = strstr(a->text, " of "), *y = strstr(b->text, " of ");
        if (x && y && strcmp(x, y) != 0) return false;
    }
    return same_gradients(a, b);
}

/* Members that the most frequent call does not agree with; where no call has a majority, those that never came, or
 * all. */
static uint32_t outvoted(const meeting *meeting, bool *out)
{
    uint32_t best = 0, votes = 0, others = 0, absent = 0;
    for (uint32_t i = 0; i < meeting->n && votes < meeting->n; i++) {
        uint32_t same = 0;
        for (uint32_t k = 0; k < meeting->n; k++) same += agree(meeting->calls[i], meeting->calls[k]);
        if (same > votes) best = i, votes = same;
    }
    if (votes == meeting->n) return 0;
    for (uint32_t i = 0; i < meeting->n; i++) absent += !meeting->calls[i];
    if (2 * votes <= meeting->n && absent && absent < meeting->n) {
        for (uint32_t i = 0; i < meeting->n; i++) out[i] = !meeting->calls[i];
        return absent;
    }
    for (uint32_t i = 0; i < meeting->n; i++)
        others += out[i] = 2 * votes <= meeting->n || !agree(meeting->calls[i], meeting->calls[best]);
    return others;
}

static void print_call(FILE *out, const call *call)
{
    if (!call) {
        fputs("never came to it", out);
        return;
    }
    const lb_op *op = &call->program->ops[call->op];
    fprintf(out, "called %s", call->text);
    if (*lb_op_layer(call->program, op)) fprintf(out, " in %s", lb_op_layer(call->program, op));
    if (*call->gradients) fprintf(out, ", which reduces the gradient of %s", call->gradients);
    if (op->flags & LB_OP_FAILED) fputs(", and it failed", out);
}

/* Ranks that say the same in one clause. `group`: NULL: not recorded. */
static char *message_of(const meeting *meeting, const char *group, uint64_t sequence)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    if (group)
        fprintf(out, "collective %" PRIu64 " of group %s does not match: ", sequence, *group ? group : "(unnamed)");
    else
        fputs("a collective that failed does not match: ", out);
    for (uint32_t i = 0, said = 0; i < meeting->n; i++) {
        bool before = false;
        uint32_t alike = 0;
        for (uint32_t k = 0; k < i; k++) before |= agree(meeting->calls[k], meeting->calls[i]);
        if (before) continue;
        if (said++) fputs("; ", out);
        for (uint32_t k = i; k < meeting->n; k++) alike += agree(meeting->calls[i], meeting->calls[k]);
        fputs(alike > 1 ? "ranks " : "rank ", out);
        for (uint32_t k = i, n = 0; k < meeting->n; k++)
            if (agree(meeting->calls[i], meeting->calls[k])) fprintf(out, "%s%d", n++ ? "," : "", meeting->ranks[k]);
        fputc(' ', out);
        print_call(out, meeting->calls[i]);
        if (!meeting->calls[i] && !group) fputs(", or ended in it", out);
    }
    fclose(out);
    return text;
}

static lb_status add_mismatch(check *check, const meeting *meeting, const bool *outvotes, const call *lead)
{
    const lb_collective *row = &lead->program->collectives[lead->row];
    lb_call_mismatch *grown = realloc(check->out->list, (check->out->n + 1) * sizeof *grown);
    if (!grown) return lb_fail(check->err, LB_ERR_NOMEM, "out of memory for collectives");
    check->out->list = grown;
    lb_call_mismatch *mismatch = &grown[check->out->n++];
    const char *group = lb_program_text(lead->program, row->group);
    *mismatch = (lb_call_mismatch){.step = check->at.step,
                                   .sequence = row->sequence,
                                   .group = strdup(group),
                                   .op = LB_NONE,
                                   .ranks = malloc((meeting->n + 1) * sizeof *mismatch->ranks),
                                   .message = message_of(meeting, group, row->sequence)};
    if (!mismatch->group || !mismatch->ranks || !mismatch->message)
        return lb_fail(check->err, LB_ERR_NOMEM, "out of memory for collectives");
    for (uint32_t i = 0; i < meeting->n; i++) {
        if (!outvotes[i]) continue;
        if (!mismatch->n_ranks || (mismatch->op == LB_NONE && meeting->calls[i]))
            mismatch->rank = meeting->ranks[i], mismatch->op = meeting->calls[i] ? meeting->calls[i]->op : LB_NONE;
        mismatch->ranks[mismatch->n_ranks++] = meeting->ranks[i];
    }
    return LB_OK;
}

/* Is a rank that did not come to blame? Where every step was cut short and no call failed, the run was stopped. */
static bool speaks(const check *check, const meeting *meeting)
{
    bool missing = false, ended = false, failed = false;
    for (uint32_t i = 0; i < meeting->n; i++) {
        missing |= !meeting->calls[i];
        const uint32_t row = row_of_rank(check, (uint32_t)meeting->ranks[i]);
        if (meeting->calls[i]) ended |= check->of[row].program->complete != 0;
        if (!meeting->calls[i]) ended |= check->of[row].program->complete != 0;
    }
    for (uint32_t r = 0; r < check->at.n_ranks; r++)
        for (uint32_t i = 0; i < check->of[r].n; i++) failed |= check->of[r].list[i].row == LB_NONE;
    return !missing || ended || failed;
}

/* All calls of one group, whose first is `lead` of rank row `first`. */
static lb_status check_group(check *check, uint32_t first, uint32_t lead)
{
    const call *leader = &check->of[first].list[lead];
    const lb_collective *row = &leader->program->collectives[leader->row];
    const uint32_t members = row->ranks ? row->ranks : check->at.n_ranks;
    meeting meeting = {calloc(members + 1, sizeof *meeting.calls), calloc(members + 1, sizeof *meeting.ranks), 0};
    uint32_t *next = calloc(members + 1, sizeof *next);
    bool *out = calloc(members + 1, sizeof *out), told = false;
    lb_status status = meeting.calls && meeting.ranks && next && out
                           ? LB_OK
                           : lb_fail(check->err, LB_ERR_NOMEM, "out of memory for collectives");
    for (bool more = true; more && status == LB_OK;) {
        const call *named = NULL;
        more = false, meeting.n = 0;
        for (uint32_t k = 0; k < members; k++) {
            const uint32_t r = row->ranks ? row_of_rank(check, leader->program->refs[row->first_rank + k]) : k;
            if (r == LB_NONE || !check->of[r].program) continue;
            const uint32_t at = next_call(&check->of[r], leader, next[k]);
            meeting.calls[meeting.n] = at == LB_NONE ? NULL : &check->of[r].list[at],
            meeting.ranks[meeting.n++] = check->at.ranks[r];
            if (at == LB_NONE) continue;
            if (check->of[r].list[at].row != LB_NONE) more = true, named = named ? named : meeting.calls[meeting.n - 1];
            check->of[r].used[at] = true, next[k] = at + 1;
        }
        if (!more || meeting.n < 2) break;
        check->out->compared++;
        if (!told && outvoted(&meeting, out) && speaks(check, &meeting)) {
            told = true;
            status = add_mismatch(check, &meeting, out, named);
        }
    }
    free(meeting.calls), free(meeting.ranks);
    free(next);
    free(out);
    return status;
}

/* Where such a call took place in some step before it failed: its members; NULL: nothing is known. */
static const lb_collective *group_before(const check *check, const call *failed, const lb_program **program)
{
    const int64_t *steps;
    const uint32_t n = lb_capture_steps(check->at.capture, &steps);
    const char *name = lb_op_name(failed->program, &failed->program->ops[failed->op]);
    for (uint32_t s = 0; s < n && steps[s] <= check->at.step; s++) {
        if (lb_capture_program(check->at.capture, failed->program->rank, steps[s], program, NULL) != LB_OK) continue;
        for (uint32_t i = 0; i < (*program)->n_collectives; i++)
            if (!strcmp(lb_op_name(*program, &(*program)->ops[(*program)->collectives[i].op]), name))
                return &(*program)->collectives[i];
    }
    return NULL;
}

static bool is_member(const lb_collective *group, const lb_program *program, int32_t rank)
{
    for (uint32_t i = 0; group && i < group->ranks; i++)
        if ((int32_t)program->refs[group->first_rank + i] == rank) return true;
    return !group || !group->ranks;
}

static const call *unmatched(const rank_calls *calls)
{
    for (uint32_t i = 0; i < calls->n; i++)
        if (calls->list[i].row == LB_NONE && !calls->used[i]) return &calls->list[i];
    return NULL;
}

static lb_status add_failed(check *check, const meeting *meeting, const bool *out, uint32_t first)
{
    lb_call_mismatch *grown = realloc(check->out->list, (check->out->n + 1) * sizeof *grown);
    if (!grown) return lb_fail(check->err, LB_ERR_NOMEM, "out of memory for collectives");
    check->out->list = grown;
    lb_call_mismatch *mismatch = &grown[check->out->n++];
    *mismatch = (lb_call_mismatch){.step = check->at.step,
                                   .group = strdup(""),
                                   .ranks = malloc((meeting->n + 1) * sizeof *mismatch->ranks),
                                   .message = message_of(meeting, NULL, 0),
                                   .rank = meeting->ranks[first],
                                   .op = meeting->calls[first]->op};
    if (!mismatch->group || !mismatch->ranks || !mismatch->message)
        return lb_fail(check->err, LB_ERR_NOMEM, "out of memory for collectives");
    for (uint32_t i = 0; i < meeting->n; i++)
        if (out[i]) mismatch->ranks[mismatch->n_ranks++] = meeting->ranks[i];
    return LB_OK;
}

/* Calls that failed on every rank that came: the group is that of such a call before. */
static lb_status check_failed(check *check)
{
    meeting meeting = {calloc(check->at.n_ranks + 1, sizeof *meeting.calls),
                       calloc(check->at.n_ranks + 1, sizeof *meeting.ranks), 0};
    bool *out = calloc(check->at.n_ranks + 1, sizeof *out);
    const call *failed = NULL;
    const lb_program *program = NULL;
    uint32_t first = 0;
    lb_status status = meeting.calls && meeting.ranks && out
                           ? LB_OK
                           : lb_fail(check->err, LB_ERR_NOMEM, "out of memory for collectives");
    for (uint32_t r = 0; r < check->at.n_ranks && !failed && status == LB_OK; r++) failed = unmatched(&check->of[r]);
    const lb_collective *group = failed ? group_before(check, failed, &program) : NULL;
    for (uint32_t r = 0; r < check->at.n_ranks && failed; r++) {
        if (!is_member(group, program, check->at.ranks[r])) continue;
        meeting.calls[meeting.n] = unmatched(&check->of[r]);
        if (meeting.calls[meeting.n] == failed) first = meeting.n;
        meeting.ranks[meeting.n++] = check->at.ranks[r];
    }
    if (failed && meeting.n > 1 && meeting.calls[first] == failed && outvoted(&meeting, out))
        status = add_failed(check, &meeting, out, first);
    free(meeting.calls), free(meeting.ranks);
    free(out);
    return status;
}

static lb_status check_step(void *context)
{
    check *check = context;
    lb_status status = LB_OK;
    const uint32_t before = check->out->n;
    for (uint32_t r = 0; r < check->at.n_ranks && status == LB_OK; r++) {
        const lb_program *program;
        if (lb_capture_program(check->at.capture, check->at.ranks[r], check->at.step, &program, NULL) == LB_OK)
            status = list_calls(program, &check->of[r], check->err);
    }
    for (uint32_t r = 0; r < check->at.n_ranks && status == LB_OK; r++)
        for (uint32_t i = 0; i < check->of[r].n && status == LB_OK; i++)
            if (!check->of[r].used[i] && check->of[r].list[i].row != LB_NONE) status = check_group(check, r, i);
    if (status == LB_OK && check->out->n == before) status = check_failed(check);
    for (uint32_t r = 0; r < check->at.n_ranks; r++) release_calls(&check->of[r]);
    return status;
}

lb_status lb_collective_calls_check(lb_capture *capture, lb_collective_calls *calls, lb_err *err)
{
    check check = {.at = lb_rank_steps_of(capture), .out = calls, .err = err};
    *calls = (lb_collective_calls){0};
    if (check.at.n_ranks < 2) return LB_OK;
    check.of = calloc(check.at.n_ranks, sizeof *check.of);
    if (!check.of) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", check.at.n_ranks);
    const lb_status status = lb_rank_steps_each(&check.at, check_step, &check);
    free(check.of);
    if (status != LB_OK) lb_collective_calls_release(calls);
    return status;
}

void lb_collective_calls_release(lb_collective_calls *calls)
{
    for (uint32_t i = 0; i < calls->n; i++) {
        lb_call_mismatch *mismatch = &calls->list[i];
        free(mismatch->group), free(mismatch->ranks), free(mismatch->message);
    }
    free(calls->list);
    *calls = (lb_collective_calls){0};
}
