/* A step by its calls of the model: see joined_calls.h. */
#include "joined/joined_calls.h"

#include "joined/token_map.h"

#include "pair/op_kind.h"

#include <stdlib.h>

enum { MOST_CALLS = 1024 };

typedef struct calls {
    uint32_t *ops, *tokens; /* per call: the op that looks its tokens up, and their value */
    uint32_t n;
} calls;

static int64_t storage_of_table(const lb_program *program, uint32_t op)
{
    return program->values[lb_op_args(program, &program->ops[op])[0].u.value].storage;
}

/* All look-ups of the table that most rows are looked up in; of several the first. */
static void keep_tokens(const lb_program *program, calls *all)
{
    int64_t most = 0, table = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < all->n; i++) {
        int64_t rows = 0;
        for (uint32_t k = 0; k < all->n; k++)
            if (storage_of_table(program, all->ops[k]) == storage_of_table(program, all->ops[i]))
                rows += lb_layout_numel(&program->values[all->tokens[k]].layout);
        if (rows > most) most = rows, table = storage_of_table(program, all->ops[i]);
    }
    for (uint32_t i = 0; i < all->n; i++)
        if (storage_of_table(program, all->ops[i]) == table)
            all->ops[n] = all->ops[i], all->tokens[n] = all->tokens[i], n++;
    all->n = n;
}

/* No calls where the step does more than infer. False when out of memory. */
static bool list_calls(const lb_program *program, calls *out)
{
    *out = (calls){malloc(MOST_CALLS * sizeof *out->ops), malloc(MOST_CALLS * sizeof *out->tokens), 0};
    if (!out->ops || !out->tokens) return false;
    if (!lb_op_only_infers(program)) return true;
    for (int indexed = 0; indexed < 2 && !out->n; indexed++)
        for (uint32_t i = 0; i < program->n_ops && out->n < MOST_CALLS; i++) {
            const uint32_t v = lb_token_map_looked_up(program, &program->ops[i], indexed);
            if (v != LB_NONE) out->ops[out->n] = i, out->tokens[out->n] = v, out->n++;
        }
    if (out->n < MOST_CALLS)
        keep_tokens(program, out);
    else
        out->n = 0;
    return true;
}

/* One side may have time before batch. */
static bool are_given_alike(const lb_program *a, const calls *x, const lb_program *b, const calls *y)
{
    bool alike = x->n == y->n;
    for (uint32_t i = 0; i < x->n && alike; i++)
        alike = lb_layout_same_sizes(&a->values[x->tokens[i]].layout, &b->values[y->tokens[i]].layout);
    return alike;
}

static bool cut_view(lb_program_view *view, const calls *at)
{
    lb_program_view_part *parts = calloc(at->n, sizeof *parts);
    if (!parts) return false;
    for (uint32_t k = 0; k < at->n; k++)
        parts[k] = (lb_program_view_part){view->parts[0].program, k ? at->ops[k] : 0, 0};
    free(view->parts);
    view->parts = parts, view->n_parts = at->n, view->by_calls = true;
    for (uint32_t i = 0, k = 0; view->rank_of && i < view->program->n_ops; i++) {
        while (k + 1 < at->n && parts[k + 1].first_op <= i) k++;
        view->rank_of[i] = k;
    }
    return true;
}

lb_status lb_joined_calls_cut(lb_program_view *const views[2], bool *cut, lb_err *err)
{
    calls of[2];
    const bool alone = views[0]->n_parts == 1 && views[1]->n_parts == 1;
    bool room = true;
    for (int k = 0; k < 2; k++) room = list_calls(views[k]->program, &of[k]) && room;
    *cut =
        room && alone && of[0].n && of[1].n && !are_given_alike(views[0]->program, &of[0], views[1]->program, &of[1]);
    for (int k = 0; k < 2 && *cut && room; k++) room = cut_view(views[k], &of[k]);
    for (int k = 0; k < 2; k++) free(of[k].ops), free(of[k].tokens);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for the calls of a step");
}
