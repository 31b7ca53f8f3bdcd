/* Results of collectives: see collective_results.h. */
#include "exchanges/collective_results.h"

#include "exchanges/collective_result_text.h"

#include <stdlib.h>
#include <string.h>

typedef struct check {
    lb_rank_steps at;
    const lb_program **programs; /* of the step at hand; NULL: that rank did not record it */
    bool *infected; /* per rank: it has received something that is not finite, in this step or an earlier one */
    lb_collective_results *out;
    lb_collective_bits bits; /* of the last meeting */
    /* what is asked: who sent what is not finite; what came of what was sent */
    bool finite, received;
    lb_err *err;
} check;

/* ---- digests ----------------------------------------------------------------------------------------------------- */

static int64_t nans(const lb_program *program, uint32_t value)
{
    const uint32_t s = program->values[value].statistics;
    return s == LB_NONE ? 0 : program->statistics[s].nan;
}

/* 1: the same bits, 0: others, -1: not known. NaNs have no bits that matter. */
static int same_values(const lb_program *p, uint32_t a, const lb_program *q, uint32_t b)
{
    const lb_value *x = &p->values[a], *y = &q->values[b];
    if ((x->flags | y->flags) & LB_VALUE_UNDEFINED || lb_digest_is_none(x->logical) || lb_digest_is_none(y->logical) ||
        x->dtype != y->dtype || !lb_layout_same_shape(&x->layout, &y->layout))
        return -1;
    if (lb_digest_equal(x->logical, y->logical)) return 1;
    return nans(p, a) && nans(q, b) ? -1 : 0;
}

/* Of lists that should be the same one by one. */
static int same_lists(const lb_program *p, const uint32_t *a, uint32_t n, const lb_program *q, const uint32_t *b,
                      uint32_t m)
{
    int same = n == m && n ? 1 : -1;
    for (uint32_t i = 0; n == m && i < n; i++) {
        const int one = same_values(p, a[i], q, b[i]);
        if (!one) return 0;
        if (one < 0) same = -1;
    }
    return same;
}

static bool all_receive_alike(lb_exchange_kind kind)
{
    return kind == LB_EXCHANGE_ALL_REDUCE || kind == LB_EXCHANGE_BROADCAST || kind == LB_EXCHANGE_ALL_GATHER;
}

/* What a member received against another's, or against what the root sent. */
static int same_received(const lb_collective_exchange *exchange, uint32_t a, uint32_t b)
{
    const lb_collective_member *m = &exchange->meeting->members[a], *o = &exchange->meeting->members[b];
    return same_lists(m->program, m->outputs, m->n_outputs, o->program, o->outputs, o->n_outputs);
}

/* With how many of n members the one agrees that agrees with most, *best. Mostly it is with all, and no other is asked
 * for then: of a thousand ranks that is one row of the square. */
static uint32_t find_most(uint32_t n, bool (*agree)(const void *context, uint32_t a, uint32_t b), const void *context,
                          uint32_t *best)
{
    uint32_t votes = 0;
    *best = 0;
    for (uint32_t i = 0; i < n && votes < n; i++) {
        uint32_t same = 0;
        for (uint32_t k = 0; k < n; k++) same += agree(context, i, k);
        if (same > votes) *best = i, votes = same;
    }
    return votes;
}

static bool may_have_received_alike(const void *context, uint32_t a, uint32_t b)
{
    return same_received((const lb_collective_exchange *)context, a, b) != 0;
}

/* Members with different bits than most; where there is no majority, all but those that agree with the root of a
 * broadcast. */
static uint32_t outvoted(const lb_collective_exchange *exchange, bool *out)
{
    const uint32_t n = exchange->meeting->n;
    uint32_t best, votes = find_most(n, may_have_received_alike, exchange, &best), others = 0;
    if (votes == n) return 0;
    if (exchange->kind == LB_EXCHANGE_BROADCAST) {
        best = lb_collective_run_root(exchange->meeting->members->program,
                                      &exchange->meeting->members->program->ops[exchange->meeting->members->op]);
        votes = n;
    }
    for (uint32_t i = 0; i < n; i++) others += out[i] = 2 * votes <= n || !same_received(exchange, i, best);
    return others;
}

static lb_collective_finding *new_finding(check *check, lb_collective_fault kind, uint32_t room)
{
    lb_collective_finding *grown = realloc(check->out->list, (check->out->n + 1) * sizeof *grown);
    if (!grown) return NULL;
    check->out->list = grown;
    lb_collective_finding *found = &grown[check->out->n];
    *found = (lb_collective_finding){.kind = kind,
                                     .step = check->at.step,
                                     .ranks = malloc((room + 1) * sizeof *found->ranks),
                                     .op = LB_NONE,
                                     .from = -1,
                                     .to = -1,
                                     .brought = -1,
                                     .bit = -1,
                                     .element = -1};
    if (!found->ranks) return NULL;
    check->out->n++;
    return found;
}

/* The first of those that are marked, and all of them. */
static void add_members(lb_collective_finding *found, const lb_collective_meeting *meeting, const bool *marked)
{
    for (uint32_t i = 0; i < meeting->n; i++) {
        const lb_collective_member *member = &meeting->members[i];
        if (!marked[i]) continue;
        if (!found->n_ranks) found->rank = member->program->rank, found->op = member->op;
        found->ranks[found->n_ranks++] = member->program->rank;
    }
}

static lb_status tell_result(check *check, const lb_collective_exchange *exchange, const bool *wrong)
{
    lb_collective_finding *found = new_finding(check, LB_COLLECTIVE_RESULT, exchange->meeting->n);
    if (!found) return lb_fail(check->err, LB_ERR_NOMEM, "out of memory for collectives");
    add_members(found, exchange->meeting, wrong);
    lb_collective_result_text(exchange, wrong, found);
    return found->message ? LB_OK : lb_fail(check->err, LB_ERR_NOMEM, "out of memory for collectives");
}

/* ---- one meeting ------------------------------------------------------------------------------------------------- */

/* Programs that PyTorch records may post a receive in the step before the one in which it is sent, so that counting
 * does not tell who meets whom: what came is what was sent when most of its elements are. */
static bool is_another_message(const lb_collective_exchange *exchange)
{
    const lb_collective_stream *got = &exchange->received[1], *sent = &exchange->sent[0];
    int64_t same = 0;
    if (!strncmp(lb_collective_member_name(exchange->meeting->members), "nccl::", 6)) return false;
    if (!got->bytes || !sent->bytes || got->elements != sent->elements || got->dtype != sent->dtype) return true;
    const size_t width = lb_collective_exchange_width(exchange, 1);
    for (int64_t k = 0; k < got->elements; k++)
        same += !memcmp(got->bytes + (size_t)k * width, sent->bytes + (size_t)k * width, width);
    return 2 * same < got->elements || got->elements < 4;
}

static bool adds_up(lb_exchange_kind kind)
{
    return kind == LB_EXCHANGE_ALL_REDUCE || kind == LB_EXCHANGE_REDUCE || kind == LB_EXCHANGE_REDUCE_SCATTER;
}

static int64_t sent_elements(const lb_collective_member *member)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < member->n_inputs; i++)
        n += lb_layout_numel(&member->program->values[member->inputs[i]].layout);
    return n;
}

static const char *reduction_of(const lb_collective_member *member)
{
    const uint32_t reduce = lb_collective_member_row(member)->reduce;
    return reduce == LB_NONE ? "" : lb_program_text(member->program, reduce);
}

/* Do both ask for the same? Of what is moved, members may give and take parts of different sizes. */
static bool asks_the_same(const lb_collective_member *a, const lb_collective_member *b)
{
    const lb_exchange_kind kind = lb_collective_run_kind(lb_collective_member_name(a));
    if (kind != lb_collective_run_kind(lb_collective_member_name(b))) return false;
    if (!adds_up(kind) || !a->n_inputs || !b->n_inputs) return true;
    return sent_elements(a) == sent_elements(b) && !strcmp(reduction_of(a), reduction_of(b)) &&
           a->program->values[a->inputs[0]].dtype == b->program->values[b->inputs[0]].dtype &&
           lb_collective_run_root(a->program, &a->program->ops[a->op]) ==
               lb_collective_run_root(b->program, &b->program->ops[b->op]);
}

static bool ask_the_same(const void *context, uint32_t a, uint32_t b)
{
    const lb_collective_meeting *meeting = context;
    return asks_the_same(&meeting->members[a], &meeting->members[b]);
}

/* Marks those that ask for something else than most; all where there are no most. */
static uint32_t other_calls(const lb_collective_meeting *meeting, bool *other)
{
    uint32_t best, n = 0;
    if (meeting->message || !meeting->whole) return 0;
    const uint32_t votes = find_most(meeting->n, ask_the_same, meeting, &best);
    for (uint32_t i = 0; i < meeting->n && votes < meeting->n; i++)
        n += other[i] = 2 * votes <= meeting->n || !asks_the_same(&meeting->members[i], &meeting->members[best]);
    return n;
}

static lb_status tell_calls(check *check, const lb_collective_meeting *meeting, const bool *other)
{
    lb_collective_finding *found = new_finding(check, LB_COLLECTIVE_RESULT, meeting->n);
    if (!found) return lb_fail(check->err, LB_ERR_NOMEM, "out of memory for collectives");
    add_members(found, meeting, other);
    found->calls = true;
    lb_collective_result_text_calls(meeting, other, found);
    return found->message ? LB_OK : lb_fail(check->err, LB_ERR_NOMEM, "out of memory for collectives");
}

static bool same_name(const lb_collective_meeting *meeting)
{
    for (uint32_t i = 1; i < meeting->n && !meeting->message; i++)
        if (strcmp(lb_collective_member_name(&meeting->members[i]), lb_collective_member_name(meeting->members)))
            return false;
    return meeting->n > 1;
}

/* A meeting of the same members as large as this one. */
static bool is_as_large(const lb_collective_meeting *a, const lb_collective_meeting *b)
{
    return !b->message && b->n == a->n && adds_up(lb_collective_run_kind(lb_collective_member_name(b->members))) &&
           sent_elements(a->members) == sent_elements(b->members) &&
           a->members->program->values[a->members->inputs[0]].dtype ==
               (b->members->n_inputs ? b->members->program->values[b->members->inputs[0]].dtype : LB_NO_DTYPE) &&
           !strcmp(lb_program_text(a->members->program, lb_collective_member_row(a->members)->group),
                   lb_program_text(b->members->program, lb_collective_member_row(b->members)->group));
}

/* What is told of a sum asks what its members sent to the one before it: in this step, or in the last one. */
static lb_status read_earlier(check *check, const lb_collective_meetings *all, lb_collective_exchange *exchange)
{
    const lb_collective_meeting *before = NULL;
    const lb_program **programs = NULL;
    lb_collective_meetings last = {0};
    lb_status status = LB_OK;
    if (!adds_up(exchange->kind) || !exchange->meeting->members->n_inputs) return LB_OK;
    for (uint32_t i = 0; i < all->n && &all->list[i] != exchange->meeting; i++)
        if (is_as_large(exchange->meeting, &all->list[i])) before = &all->list[i];
    if (!before) {
        programs = calloc(check->at.n_ranks + 1, sizeof *programs);
        if (!programs) return lb_fail(check->err, LB_ERR_NOMEM, "out of memory for ranks");
        for (uint32_t r = 0; r < check->at.n_ranks; r++)
            if (lb_capture_program(check->at.capture, check->at.ranks[r], check->at.step - 1, &programs[r], NULL) !=
                LB_OK)
                programs[r] = NULL;
        status = lb_collective_meetings_find(programs, check->at.n_ranks, &last, check->err);
        for (uint32_t i = 0; status == LB_OK && i < last.n; i++)
            if (is_as_large(exchange->meeting, &last.list[i])) before = &last.list[i];
    }
    if (status == LB_OK && before)
        status = lb_collective_exchange_read_earlier(check->at.capture, exchange, before, check->err);
    lb_collective_meetings_release(&last);
    free(programs);
    return status;
}

static lb_status compare_meeting(check *check, const lb_collective_meetings *all, lb_collective_exchange *exchange,
                                 bool *wrong, bool *told)
{
    const lb_collective_meeting *meeting = exchange->meeting;
    uint32_t n = 0;
    check->out->compared++;
    LB_TRY(lb_collective_exchange_mark(check->at.capture, exchange, wrong, &n, check->err));
    check->bits.known = meeting->whole;
    for (uint32_t i = 0; i < meeting->n && check->bits.known; i++)
        check->bits.known = exchange->right[i] != NULL || !meeting->members[i].n_outputs;
    if (exchange->sums && !exchange->misses)
        snprintf(check->bits.order, sizeof check->bits.order, "%s", exchange->order_name);
    if (!n && meeting->message && meeting->whole) {
        const lb_collective_member *a = &meeting->members[0], *b = &meeting->members[1];
        n = wrong[1] = !same_lists(a->program, a->inputs, a->n_inputs, b->program, b->outputs, b->n_outputs);
    }
    if (!n && !meeting->message && all_receive_alike(exchange->kind)) {
        n = outvoted(exchange, wrong);
        if (n) lb_collective_exchange_compare(exchange, wrong);
    }
    if (n && meeting->message && is_another_message(exchange)) n = 0;
    if (!n) return LB_OK;
    *told = true;
    if (exchange->sums && exchange->proven) LB_TRY(read_earlier(check, all, exchange));
    return tell_result(check, exchange, wrong);
}

static lb_status check_meeting(check *check, const lb_collective_meetings *all, const lb_collective_meeting *meeting,
                               bool *told)
{
    lb_collective_exchange exchange;
    bool *wrong = calloc(meeting->n + 1, sizeof *wrong);
    lb_status status = wrong ? lb_collective_exchange_open(meeting, &exchange, check->err)
                             : lb_fail(check->err, LB_ERR_NOMEM, "out of memory for ranks");
    if (status != LB_OK) {
        free(wrong);
        return status;
    }
    if (other_calls(meeting, wrong))
        *told = true, status = tell_calls(check, meeting, wrong);
    else if (same_name(meeting))
        status = compare_meeting(check, all, &exchange, wrong, told);
    lb_collective_exchange_close(&exchange);
    free(wrong);
    return status;
}

/* ---- numbers that are not finite --------------------------------------------------------------------------------- */

static const lb_statistics *statistics_of(const lb_program *program, uint32_t value)
{
    const lb_value *v = &program->values[value];
    return v->flags & LB_VALUE_UNDEFINED || v->statistics == LB_NONE || !lb_dtype_is_float(v->dtype)
               ? NULL
               : &program->statistics[v->statistics];
}

/* Does this call add up what it is given? Infinities are numbers elsewhere: masks are made of them. */
static bool adds(const lb_collective_member *member)
{
    lb_collective_reduction reduction;
    return lb_collective_member_row(member)->reduce != LB_NONE &&
           lb_collective_reduction_parse(lb_program_text(member->program, lb_collective_member_row(member)->reduce),
                                         &reduction) &&
           (reduction == LB_REDUCE_SUM || reduction == LB_REDUCE_AVG);
}

/* The first value that holds NaN, or infinities where they are added up; LB_NONE. */
static uint32_t first_nonfinite(const lb_collective_member *member, const uint32_t *values, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const lb_statistics *statistics = statistics_of(member->program, values[i]);
        if (statistics && (statistics->nan || (adds(member) && lb_statistics_nonfinite(statistics)))) return values[i];
    }
    return LB_NONE;
}

/* Of a broadcast or a scatter only the root's input is sent. */
static bool sends(const lb_collective_member *member)
{
    const lb_op *op = &member->program->ops[member->op];
    const lb_exchange_kind kind = lb_collective_run_kind(lb_op_name(member->program, op));
    if (kind != LB_EXCHANGE_BROADCAST && kind != LB_EXCHANGE_SCATTER) return true;
    return lb_collective_run_root(member->program, op) == member->place;
}

static bool looks_for_scale(const lb_program *program)
{
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (lb_op_is_unscaling(program, &program->ops[i])) return true;
    return false;
}

/* Calls of one program together, in the order in which it made them. */
static int by_program_and_op(const void *x, const void *y)
{
    const lb_collective_member *member = *(const lb_collective_member *const *)x;
    const lb_collective_member *b = *(const lb_collective_member *const *)y;
    if (member->program != b->program) return (uintptr_t)member->program < (uintptr_t)b->program ? -1 : 1;
    if (member->op != b->op) return member->op < b->op ? -1 : 1;
    return member < b ? -1 : member > b;
}

typedef struct call_list {
    const lb_collective_member **rows;
    uint32_t n;
} call_list;

static lb_status list_calls(const lb_collective_meetings *all, call_list *calls, lb_err *err)
{
    *calls = (call_list){malloc((all->n_members + 1) * sizeof *calls->rows), all->n_members};
    if (!calls->rows) return lb_fail(err, LB_ERR_NOMEM, "out of memory for collectives");
    for (uint32_t i = 0; i < calls->n; i++) calls->rows[i] = &all->members[i];
    if (calls->n) qsort(calls->rows, calls->n, sizeof *calls->rows, by_program_and_op);
    return LB_OK;
}

/* The first call of one rank that sends what is not finite before anything such came in; NULL. */
static const lb_collective_member *origin_on(check *check, const call_list *calls, uint32_t rank_row, uint32_t *value)
{
    const lb_collective_member wanted = {.program = check->programs[rank_row]}, *key = &wanted, *last = NULL;
    size_t i = lb_array_first(calls->rows, calls->n, sizeof *calls->rows, &key, by_program_and_op);
    /* `wanted` stands elsewhere in memory than any row: it may come behind the first of op 0. */
    while (i && calls->rows[i - 1]->program == wanted.program) i--;
    for (; i < calls->n && calls->rows[i]->program == wanted.program && !check->infected[rank_row]; i++) {
        const lb_collective_member *next = calls->rows[i];
        if (last && next->op == last->op) continue;
        last = next;
        *value = sends(next) ? first_nonfinite(next, next->inputs, next->n_inputs) : LB_NONE;
        if (*value != LB_NONE) return next;
        check->infected[rank_row] = first_nonfinite(next, next->outputs, next->n_outputs) != LB_NONE;
    }
    return NULL;
}

static lb_status find_origins(check *check, const call_list *calls)
{
    lb_collective_finding *found = NULL;
    const lb_collective_member *first = NULL;
    uint32_t value, first_value = LB_NONE;
    for (uint32_t r = 0; r < check->at.n_ranks; r++) {
        const lb_collective_member *member = check->programs[r] ? origin_on(check, calls, r, &value) : NULL;
        if (!member) continue;
        check->infected[r] = true;
        if (!found) {
            found = new_finding(check, LB_COLLECTIVE_NONFINITE, check->at.n_ranks);
            if (!found) return lb_fail(check->err, LB_ERR_NOMEM, "out of memory for collectives");
            first = member, first_value = value;
            found->rank = check->at.ranks[r], found->op = member->op, found->note = looks_for_scale(member->program);
        }
        found->ranks[found->n_ranks++] = check->at.ranks[r];
    }
    if (!found) return LB_OK;
    found->message = lb_collective_result_text_nonfinite(found, first, first_value);
    return found->message ? LB_OK : lb_fail(check->err, LB_ERR_NOMEM, "out of memory for collectives");
}

static lb_status check_finite(check *check, const lb_collective_meetings *all)
{
    call_list calls;
    LB_TRY(list_calls(all, &calls, check->err));
    const lb_status status = find_origins(check, &calls);
    free(calls.rows);
    return status;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static bool same_group_told(const lb_collective_meetings *all, const bool *told, uint32_t at)
{
    const lb_collective_member *member = all->list[at].members;
    for (uint32_t i = 0; i < at; i++) {
        const lb_collective_member *o = all->list[i].members;
        if (told[i] && !strcmp(lb_program_text(member->program, lb_collective_member_row(member)->group),
                               lb_program_text(o->program, lb_collective_member_row(o)->group)))
            return true;
    }
    return false;
}

static lb_status check_step(void *context)
{
    check *check = context;
    lb_collective_meetings all;
    for (uint32_t r = 0; r < check->at.n_ranks; r++)
        if (lb_capture_program(check->at.capture, check->at.ranks[r], check->at.step, &check->programs[r], NULL) !=
            LB_OK)
            check->programs[r] = NULL;
    LB_TRY(lb_collective_meetings_find(check->programs, check->at.n_ranks, &all, check->err));
    bool *told = calloc(all.n + 1, sizeof *told);
    lb_status status = told ? LB_OK : lb_fail(check->err, LB_ERR_NOMEM, "out of memory for collectives");
    if (status == LB_OK && check->finite) status = check_finite(check, &all);
    for (uint32_t i = 0; i < all.n && status == LB_OK && check->received; i++)
        if (!same_group_told(&all, told, i)) status = check_meeting(check, &all, &all.list[i], &told[i]);
    free(told);
    lb_collective_meetings_release(&all);
    return status;
}

/* `step` NULL: all of them. */
static lb_status check_steps(lb_capture *capture, const int64_t *step, bool finite, bool received,
                             lb_collective_results *out, lb_err *err)
{
    check check = {.at = lb_rank_steps_of(capture), .out = out, .finite = finite, .received = received, .err = err};
    *out = (lb_collective_results){0};
    if (check.at.n_ranks < 2) return LB_OK;
    check.programs = calloc(check.at.n_ranks, sizeof *check.programs),
    check.infected = calloc(check.at.n_ranks, sizeof *check.infected);
    lb_status status = check.programs && check.infected
                           ? LB_OK
                           : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", check.at.n_ranks);
    if (step) check.at.step = *step;
    if (status == LB_OK) status = step ? check_step(&check) : lb_rank_steps_each(&check.at, check_step, &check);
    free(check.programs), free(check.infected);
    if (status != LB_OK) lb_collective_results_release(out);
    return status;
}

lb_status lb_collective_results_check(lb_capture *capture, lb_collective_results *out, lb_err *err)
{
    return check_steps(capture, NULL, true, true, out, err);
}

lb_status lb_collective_results_check_step(lb_capture *capture, int64_t step, lb_collective_results *out, lb_err *err)
{
    return check_steps(capture, &step, true, true, out, err);
}

lb_status lb_collective_results_check_received(lb_capture *capture, int64_t step, lb_collective_results *out,
                                               lb_err *err)
{
    return check_steps(capture, &step, false, true, out, err);
}

lb_status lb_collective_results_check_finite(lb_capture *capture, lb_collective_results *out, lb_err *err)
{
    return check_steps(capture, NULL, true, false, out, err);
}

lb_status lb_collective_results_check_one(lb_capture *capture, int64_t step, const lb_collective_meetings *all,
                                          uint32_t number, lb_collective_results *out, lb_collective_bits *bits,
                                          lb_err *err)
{
    check check = {.at = lb_rank_steps_of(capture), .out = out, .err = err};
    bool told = false;
    *out = (lb_collective_results){0};
    check.at.step = step;
    const lb_status status = check_meeting(&check, all, &all->list[number], &told);
    *bits = check.bits;
    if (status != LB_OK) lb_collective_results_release(out);
    return status;
}

void lb_collective_results_release(lb_collective_results *results)
{
    for (uint32_t i = 0; i < results->n; i++)
        free(results->list[i].ranks), free(results->list[i].message), free(results->list[i].hops);
    free(results->list);
    *results = (lb_collective_results){0};
}
