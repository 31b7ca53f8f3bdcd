/* Calls that meet: see collective_members.h. */
#include "exchanges/collective_members.h"

#include <stdlib.h>
#include <string.h>

enum { PEER = 2, TAG = 3 };

static bool is_message(const char *name, bool *sends)
{
    const char *after = strstr(name, "::"), *base = after ? after + 2 : name;
    *sends = !strncmp(base, "send", 4);
    return *sends || !strncmp(base, "recv", 4);
}

/* ---- what one call gives and receives ---------------------------------------------------------------------------- */

typedef struct value_list {
    const lb_program *p;
    uint32_t *values, n, room;
    bool failed;
} value_list;

static void add_value(void *context, uint32_t value)
{
    value_list *list = context;
    if (value == LB_NONE || list->failed) return;
    if (list->n == list->room) {
        const uint32_t room = list->room ? list->room * 2 : 4;
        uint32_t *grown = realloc(list->values, room * sizeof *grown);
        list->failed = !grown;
        if (!grown) return;
        list->values = grown, list->room = room;
    }
    list->values[list->n++] = value;
}

static void add_arg(value_list *list, const lb_arg *arg)
{
    if (arg->tag == LB_ARG_VALUE) add_value(list, arg->u.value);
    for (uint32_t i = 0; arg->tag == LB_ARG_LIST && i < arg->count; i++)
        add_arg(list, &list->p->args[arg->u.first + i]);
}

static int64_t integer_at(const lb_program *program, const lb_op *op, uint32_t at, int64_t otherwise)
{
    const lb_arg *arg = at < op->args ? &lb_op_args(program, op)[at] : NULL;
    return arg && arg->tag == LB_ARG_INT ? arg->u.i : otherwise;
}

static lb_status fill_member(const lb_program *program, uint32_t row, lb_collective_member *member, lb_err *err)
{
    const lb_collective *collective = &program->collectives[row];
    const lb_op *op = &program->ops[collective->op];
    const char *name = lb_op_name(program, op);
    value_list in = {.p = program}, out = {.p = program};
    bool sends = false;
    const bool message = is_message(name, &sends);
    *member = (lb_collective_member){
        .program = program, .row = row, .op = collective->op, .message = message, .sends = message && sends, .tag = -1};
    for (uint32_t k = 0; k < collective->ranks; k++)
        if ((int32_t)program->refs[collective->first_rank + k] == program->rank) member->place = k;
    const lb_arg *given = message && sends && op->args ? lb_op_args(program, op) : lb_collective_run_input(program, op);
    if (given) add_arg(&in, given);
    const uint32_t n = op->written ? op->written : op->results;
    const uint32_t *refs = op->written ? lb_op_written(program, op) : lb_op_results(program, op);
    for (uint32_t i = 0; i < n && !(message && sends); i++) add_value(&out, refs[i]);
    if (message) {
        const uint32_t peer = (uint32_t)integer_at(program, op, PEER, -1);
        member->sender = sends ? member->place : peer, member->receiver = sends ? peer : member->place;
        if (strncmp(name, "nccl::", 6) != 0) member->tag = integer_at(program, op, TAG, -1);
    }
    member->inputs = in.values, member->n_inputs = in.n, member->outputs = out.values, member->n_outputs = out.n;
    return in.failed || out.failed ? lb_fail(err, LB_ERR_NOMEM, "out of memory for collectives") : LB_OK;
}

/* ---- who meets whom ---------------------------------------------------------------------------------------------- */

static const lb_collective *row_of(const lb_collective_member *member)
{
    return &member->program->collectives[member->row];
}

static int by_group(const void *first, const void *second)
{
    const lb_collective_member *member = *(const lb_collective_member *const *)first;
    const lb_collective_member *b = *(const lb_collective_member *const *)second;
    const lb_collective *x = row_of(member), *y = row_of(b);
    const int names = strcmp(lb_program_text(member->program, x->group), lb_program_text(b->program, y->group));
    if (names) return names;
    if (x->ranks != y->ranks) return x->ranks < y->ranks ? -1 : 1;
    for (uint32_t i = 0; i < x->ranks; i++) {
        const uint32_t p = member->program->refs[x->first_rank + i], q = b->program->refs[y->first_rank + i];
        if (p != q) return p < q ? -1 : 1;
    }
    return 0;
}

/* Groups have their numbers in order, for a list of a thousand ranks would be compared a million times while calls are
 * sorted. A program mostly says such a list once. */
static lb_status number_groups(lb_collective_meetings *matches, lb_err *err)
{
    lb_collective_member **firsts = malloc((matches->n_members + 1) * sizeof *firsts);
    uint32_t *numbers = malloc((matches->n_members + 1) * sizeof *numbers), n = 0, from = 0, number = 0;
    const bool room = firsts && numbers;
    for (uint32_t i = 0; room && i < matches->n_members; i++) {
        lb_collective_member *member = &matches->members[i];
        const lb_collective *collective = row_of(member);
        if (i && member[-1].program != member->program) from = n; /* those of one program stand together */
        uint32_t k = from;
        for (; k < n; k++) {
            const lb_collective *o = row_of(firsts[k]);
            if (o->group == collective->group && o->first_rank == collective->first_rank &&
                o->ranks == collective->ranks)
                break;
        }
        if (k == n) firsts[n++] = member;
        member->group = k;
    }
    if (room && n) qsort(firsts, n, sizeof *firsts, by_group);
    for (uint32_t k = 0; room && k < n; k++) {
        if (k && by_group(&firsts[k - 1], &firsts[k])) number++;
        numbers[firsts[k]->group] = number;
    }
    for (uint32_t i = 0; room && i < matches->n_members; i++)
        matches->members[i].group = numbers[matches->members[i].group];
    free(firsts), free(numbers);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for collectives");
}

#define BY(field)                                                                                                      \
    if (a->field != b->field) return a->field < b->field ? -1 : 1

/* The same way in the same group. */
static int by_way(const lb_collective_member *a, const lb_collective_member *b)
{
    BY(message);
    BY(group);
    if (!a->message) return 0;
    BY(sender);
    BY(receiver);
    BY(tag);
    return 0;
}

static int by_meeting(const void *x, const void *y)
{
    const lb_collective_member *a = x, *b = y;
    const int ways = by_way(a, b);
    if (ways) return ways;
    BY(ordinal);
    if (a->sends != b->sends) return a->sends ? -1 : 1;
    BY(place);
    return 0;
}

static int by_first_op(const void *x, const void *y)
{
    const lb_collective_meeting *a = x, *b = y;
    const lb_collective_member *p = a->members, *q = b->members;
    if (p->number != q->number) return p->number < q->number ? -1 : 1;
    return p->program->rank < q->program->rank ? -1 : p->program->rank > q->program->rank;
}

static int by_way_and_op(const void *x, const void *y)
{
    const lb_collective_member *a = x, *b = y;
    const int ways = by_way(a, b);
    if (ways) return ways;
    if (a->sends != b->sends) return a->sends ? -1 : 1;
    BY(place);
    BY(op);
    return 0;
}

/* Calls of one rank that go one way, by their number in the step: the k-th of each member meet, and the k-th that is
 * received is the k-th that was sent. Numbers of the recording are not used: members may have begun to count
 * elsewhere. */
static void count_calls(lb_collective_meetings *matches)
{
    if (matches->n_members) qsort(matches->members, matches->n_members, sizeof *matches->members, by_way_and_op);
    for (uint32_t i = 1; i < matches->n_members; i++) {
        lb_collective_member *a = &matches->members[i - 1], *b = &matches->members[i];
        if (!by_way(a, b) && a->place == b->place && a->sends == b->sends) b->ordinal = a->ordinal + 1;
    }
}

static void group_members(lb_collective_meetings *matches)
{
    count_calls(matches);
    if (matches->n_members) qsort(matches->members, matches->n_members, sizeof *matches->members, by_meeting);
    for (uint32_t from = 0, to; from < matches->n_members; from = to) {
        lb_collective_member *first = &matches->members[from];
        for (to = from + 1; to < matches->n_members && !by_way(first, &matches->members[to]) &&
                            first->ordinal == matches->members[to].ordinal;)
            to++;
        const bool both = to - from == 2 && first->sends && !matches->members[to - 1].sends;
        matches->list[matches->n++] =
            (lb_collective_meeting){.members = first,
                                    .n = to - from,
                                    .message = first->message,
                                    .whole = first->message ? both : to - from == row_of(first)->ranks};
    }
    if (matches->n) qsort(matches->list, matches->n, sizeof *matches->list, by_first_op);
}

/* `numbers`: per program those of its ops; NULL: their rows. */
static lb_status find_meetings(const lb_program *const *programs, const uint32_t *const *numbers, uint32_t n,
                               lb_collective_meetings *matches, lb_err *err)
{
    uint32_t rows = 0;
    lb_status status = LB_OK;
    *matches = (lb_collective_meetings){0};
    for (uint32_t r = 0; r < n; r++) rows += programs[r] ? programs[r]->n_collectives : 0;
    matches->members = calloc(rows + 1, sizeof *matches->members),
    matches->list = calloc(rows + 1, sizeof *matches->list);
    if (!matches->members || !matches->list) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for collectives");
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t i = 0; programs[r] && i < programs[r]->n_collectives && status == LB_OK; i++)
            if (programs[r]->collectives[i].ranks) {
                lb_collective_member *one = &matches->members[matches->n_members++];
                status = fill_member(programs[r], i, one, err);
                one->number = numbers ? numbers[r][one->op] : one->op;
            }
    if (status == LB_OK) status = number_groups(matches, err);
    if (status == LB_OK)
        group_members(matches);
    else
        lb_collective_meetings_release(matches);
    return status;
}

lb_status lb_collective_meetings_find(const lb_program *const *programs, uint32_t n,
                                      lb_collective_meetings *collective_matches, lb_err *err)
{
    return find_meetings(programs, NULL, n, collective_matches, err);
}

lb_status lb_collective_meetings_find_extracts(const lb_collective_extract *extracts, uint32_t n,
                                               lb_collective_meetings *collective_matches, lb_err *err)
{
    const lb_program **programs = malloc((n + 1) * sizeof *programs);
    const uint32_t **numbers = malloc((n + 1) * sizeof *numbers);
    *collective_matches = (lb_collective_meetings){0};
    lb_status status = programs && numbers ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", n);
    for (uint32_t r = 0; r < n && status == LB_OK; r++)
        programs[r] = extracts[r].program, numbers[r] = extracts[r].numbers;
    if (status == LB_OK) status = find_meetings(programs, numbers, n, collective_matches, err);
    free(programs), free(numbers);
    return status;
}

void lb_collective_meetings_release(lb_collective_meetings *collective_matches)
{
    for (uint32_t i = 0; collective_matches->members && i < collective_matches->n_members; i++)
        free(collective_matches->members[i].inputs), free(collective_matches->members[i].outputs);
    free(collective_matches->members), free(collective_matches->list);
    *collective_matches = (lb_collective_meetings){0};
}

int32_t lb_collective_member_rank(const lb_collective_member *member, uint32_t place)
{
    const lb_collective *row = row_of(member);
    return place < row->ranks ? (int32_t)member->program->refs[row->first_rank + place] : -1;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

lb_status lb_collective_stream_read(lb_capture *capture, const lb_program *program, const uint32_t *values, uint32_t n,
                                    lb_collective_stream *stream, lb_err *err)
{
    *stream = (lb_collective_stream){.dtype = n ? program->values[values[0]].dtype : LB_U8};
    const size_t width = lb_dtype_bits(stream->dtype) / 8;
    bool there = width > 0;
    for (uint32_t i = 0; i < n; i++) {
        const lb_value *value = &program->values[values[i]];
        stream->elements += lb_layout_numel(&value->layout);
        there &= value->dtype == stream->dtype && !(value->flags & LB_VALUE_UNDEFINED) &&
                 lb_capture_has_value(capture, program, values[i]);
    }
    if (!there) return LB_OK;
    stream->bytes = malloc((size_t)(stream->elements + 1) * width);
    if (!stream->bytes) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective");
    int64_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        lb_tensor t;
        lb_status status = lb_capture_value(capture, program, values[i], &t, err);
        if (status == LB_OK) status = lb_tensor_gather(&t, stream->bytes + (size_t)at * width, err);
        if (status != LB_OK) {
            free(stream->bytes);
            stream->bytes = NULL;
            return status == LB_ERR_NOT_CAPTURED ? LB_OK : status;
        }
        at += lb_layout_numel(&t.layout);
    }
    return LB_OK;
}
