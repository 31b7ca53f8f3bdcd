/* Two implementations of a step: see implementations.h. */
#include "exact/scalars.h"
#include "exact/token_rows.h"
#include "counterparts/coded_weights.h"
#include "counterparts/counterpart_exits.h"
#include "counterparts/counterpart_orders.h"
#include "implementations/counterpart_scales.h"
#include "implementations/differences.h"
#include "counterparts/left_values.h"
#include "counterparts/made_weights.h"
#include "counterparts/norms.h"
#include "counterparts/rank_parts.h"
#include "shadow/shadow_numbers.h"
#include "implementations/slack.h"
#include "implementations/uses.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t MOST_KEPT = (int64_t)1 << 27; /* elements of a side, 1 GiB as f64 */

/* ---- what both begin with ---- */

static void feed(lb_implementations *x)
{
    for (uint32_t i = 0; i < x->sources[1].n; i++)
        lb_exact_side_hold(&x->sides[1], x->sources[1].list[i].value,
                           lb_step_sources_taken(&x->sources[0], &x->sources[1], &x->contents, i));
}

/* What a side's memory held as the step began: a row of its sources; LB_NONE. */
static uint32_t source_in(const lb_implementations *x, int side, int64_t storage)
{
    for (uint32_t i = 0; i < x->sources[side].n; i++)
        if (x->sides[side].program->values[x->sources[side].list[i].value].storage == storage) return i;
    return LB_NONE;
}

/* By more than rounding, or by a number that is not finite. */
static bool are_apart(const double *x, const double *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if ((!isfinite(x[i]) || !isfinite(y[i])) && x[i] != y[i] && !(isnan(x[i]) && isnan(y[i]))) return true;
    return !(lb_counterparts_distance(x, y, n) < 0x1p-20);
}

static bool is_parameter(const lb_implementations *x, int side, uint32_t row)
{
    return x->sides[side].program->values[x->sources[side].list[row].value].flags & LB_VALUE_PARAMETER;
}

/* Memory that an earlier step made on both sides (an average of weights), and whose numbers say nothing of which is
 * which (all alike), or what step made them: it was found by the order of its writes. B begins with A's, and a step is
 * judged by itself. What differs as a window begins `midway` came before it. */
static lb_status feed_left(lb_implementations *x, bool midway, lb_source_memory *memory, lb_err *err)
{
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < x->counterparts.n && status == LB_OK; i++) {
        const lb_counterpart *c = &x->counterparts.list[i];
        if (c->kind != LB_COUNTERPART_FINAL || c->name || c->n != 1) continue;
        const uint32_t final_a = x->counterparts.pieces[c->first].tensor,
                       a = source_in(x, 0, x->sides[0].program->values[final_a].storage),
                       b = source_in(x, 1, x->sides[1].program->values[c->b].storage);
        if (a == LB_NONE || b == LB_NONE || x->contents.list[b].tensor == a || is_parameter(x, 0, a) ||
            is_parameter(x, 1, b))
            continue;
        const lb_tensor *mine = &x->sources[1].tensors[b].tensor, *other = &x->sources[0].tensors[a].tensor;
        if (!mine->data || !other->data || !lb_layout_same_shape(&mine->layout, &other->layout)) continue;
        const int64_t n = lb_layout_numel(&mine->layout);
        double *to = lb_shadow_numbers_copy(mine), *from = lb_shadow_numbers_copy(other);
        const lb_content_run run = {a, 0, 1, 0, 1, n};
        if (to && from) {
            status = lb_step_sources_settle(&x->sources[0], &x->sources[1], b, &run, 1, memory, &x->contents, err);
            if (midway)
                x->contents.list[b].found = 0;
            else
                x->left_apart += are_apart(from, to, n);
            lb_exact_side_hold(&x->sides[1], x->sources[1].list[b].value, from), from = NULL;
        }
        free(to), free(from);
    }
    return status;
}

static bool is_read_by_ops(const lb_exact_side *s, uint32_t v)
{
    for (uint32_t k = s->graph.first_use[v]; k < s->graph.first_use[v + 1]; k++)
        if (!(s->program->ops[s->graph.uses[k]].flags & LB_OP_DECISION)) return true;
    return false;
}

/* Does anything but a decision of the program (is it time to drop this layer?) read the draw? */
static bool is_computed_with(const lb_exact_side *s, uint32_t op, uint32_t v)
{
    bool computed = is_read_by_ops(s, v);
    for (uint32_t w = s->first_window[op]; w < s->first_window[op + 1] && !computed; w++)
        computed = is_read_by_ops(s, s->windows[w]);
    return computed;
}

/* What a side draws and computes with, in its order; `floats`: without whole numbers. */
static uint32_t list_draws(const lb_exact_side *s, bool floats, uint32_t *draws)
{
    const lb_program *p = s->program;
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const uint32_t v =
            p->ops[i].flags & LB_OP_RANDOM && lb_op_outcomes(&p->ops[i]) ? lb_op_outcome(p, &p->ops[i], 0) : LB_NONE;
        if (v != LB_NONE && !(floats && lb_dtype_is_integer(p->values[v].dtype)) && is_computed_with(s, i, v))
            draws[n++] = v;
    }
    return n;
}

static bool have_one_size(const lb_implementations *x, uint32_t a, uint32_t b)
{
    return lb_layout_numel(&x->sides[0].program->values[a].layout) ==
           lb_layout_numel(&x->sides[1].program->values[b].layout);
}

static const char *layer_of_draw(const lb_exact_side *s, uint32_t v)
{
    return lb_op_layer(s->program, &s->program->ops[s->graph.giver[v]]);
}

/* One side draws more: those of the other are found among its draws by layer and size, in their order. All of them
 * are, or nothing is known. Those that are left are of one side alone, as of a dropout that the other side lacks. */
static bool pair_fewer(const lb_implementations *x, uint32_t *draws[2], const uint32_t *n)
{
    const int few = n[1] < n[0];
    uint32_t found = 0;
    for (uint32_t i = 0; i < n[!few] && found < n[few]; i++) {
        const uint32_t more = draws[!few][i], less = draws[few][found];
        if (!have_one_size(x, few ? more : less, few ? less : more) ||
            strcmp(layer_of_draw(&x->sides[!few], more), layer_of_draw(&x->sides[few], less)) != 0)
            continue;
        draws[!few][found++] = more;
    }
    return found == n[few];
}

/* Draws of both sides in their order, where these are as many of the same sizes, or where one side's are some of the
 * other's. A batch of tokens may be drawn in the step on one side and before it on the other: where numbers differ,
 * whole ones stay what either side recorded. */
static void pair_draws(lb_implementations *x, uint32_t *draws[2], uint32_t *n)
{
    uint32_t found[2] = {0, 0};
    for (int k = 0; k < 2; k++) draws[k] = malloc((x->sides[k].program->n_ops + 1) * sizeof *draws[k]);
    for (int floats = 0; floats < 2 && draws[0] && draws[1]; floats++) {
        for (int k = 0; k < 2; k++) found[k] = list_draws(&x->sides[k], floats, draws[k]);
        if (found[0] == found[1]) break;
    }
    const bool as_many = found[0] == found[1], some = !as_many && pair_fewer(x, draws, found);
    *n = as_many || some ? (found[0] < found[1] ? found[0] : found[1]) : 0;
    for (uint32_t i = 0; i < *n; i++)
        if (!have_one_size(x, draws[0][i], draws[1][i])) *n = 0;
    x->draws_differ = as_many ? found[0] && !*n : !some;
    if (x->draws_differ)
        snprintf(x->missing, sizeof x->missing,
                 "the sides draw random numbers in other places (%u and %u draws): record both without dropout",
                 found[0], found[1]);
}

/* ---- what is kept ---- */

static void want_computed(lb_implementations *x)
{
    for (int k = 0; k < 2; k++) {
        const lb_program *p = x->sides[k].program;
        int64_t all = 0;
        for (uint32_t v = 0; v < p->n_values; v++)
            if (x->sides[k].graph.given[v] && lb_dtype_is_float(p->values[v].dtype))
                all += lb_layout_numel(&p->values[v].layout);
        const bool parted = x->sides[0].view->n_parts > 1 || x->sides[1].view->n_parts > 1; /* choices in parts, too */
        for (uint32_t v = 0; v < p->n_values; v++)
            x->sides[k].wanted[v] |=
                x->sides[k].graph.given[v] && (all <= MOST_KEPT || lb_layout_numel(&p->values[v].layout) == 1) &&
                (lb_dtype_is_float(p->values[v].dtype) || (parted && lb_dtype_is_integer(p->values[v].dtype)));
    }
}

static void want(lb_implementations *x)
{
    want_computed(x);
    for (uint32_t i = 0; i < x->counterparts.n_pieces; i++) x->sides[0].wanted[x->counterparts.pieces[i].tensor] = 1;
    for (uint32_t i = 0; i < x->counterparts.n; i++) {
        const lb_counterpart *c = &x->counterparts.list[i];
        x->sides[1].wanted[c->b] = 1;
        for (int k = 0; k < 2; k++)
            if (c->of[k] != LB_NONE) x->sides[k].wanted[c->of[k]] = 1;
    }
}

/* ---- runs ---- */

/* Marks what follows from the value on its side; `reached`: per value. */
static void mark_following(const lb_exact_side *s, uint32_t value, uint8_t *reached)
{
    const lb_value_graph *g = &s->graph;
    memset(reached, 0, s->program->n_values + 1);
    reached[value] = 1;
    for (uint32_t v = value + 1; v < s->program->n_values; v++)
        for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1] && !reached[v]; k++)
            reached[v] = reached[g->preds[k]];
}

/* Does something that both sides give out, and that is the same, follow from it? A model's result that the program goes
 * on from (logits that one side cools in the model, and the other in its sampler) is in what the program ends with. */
static bool is_in_same_exit(const lb_implementations *x, int side, uint32_t value, uint8_t *reached)
{
    bool in = false;
    mark_following(&x->sides[side], value, reached);
    for (uint32_t i = 0; i < x->counterparts.n && !in; i++) {
        const lb_counterpart *c = &x->counterparts.list[i];
        if (c->kind != LB_COUNTERPART_EXIT || c->state != LB_COUNTERPART_SAME) continue;
        in = side && c->b != value && reached[c->b];
        for (uint32_t k = 0; k < c->n && !side && !in; k++) {
            const uint32_t va = x->counterparts.pieces[c->first + k].tensor;
            in = va != value && reached[va];
        }
    }
    return in;
}

/* What leaves on one side alone, and is no value of the other side either. Where the other side has such results, too,
 * they may be the same in another shape, or differ: that is not known. What one side gives out in addition (its hidden
 * states) says nothing against what both give out. */
static uint32_t count_unmet(const lb_implementations *x)
{
    uint32_t n[2] = {0, 0};
    for (int k = 0; k < 2; k++) {
        uint8_t *reached = malloc((size_t)x->sides[k].program->n_values + 1);
        for (uint32_t i = 0; i < x->counterparts.n_lone[k]; i++) {
            const uint32_t v = x->counterparts.lone[k][i];
            n[k] += x->sides[k].quantities[v].tells && x->met[k][v] == LB_NONE &&
                    lb_program_view_is_recorded(x->sides[k].view, v) && !(reached && is_in_same_exit(x, k, v, reached));
        }
        free(reached);
    }
    return n[0] && n[1] ? n[0] + n[1] : 0;
}

/* Is some element of A's value in the place of B's? */
static bool stands_for(const lb_implementations *x, const lb_counterpart *c, int side, uint32_t storage_of)
{
    const lb_value *values = x->sides[side].program->values;
    if (c->is_rebound && values[storage_of].storage == c->rebound) return true;
    if (side) return values[c->b].storage == values[storage_of].storage;
    for (uint32_t k = 0; k < c->n; k++)
        if (values[x->counterparts.pieces[c->first + k].tensor].storage == values[storage_of].storage) return true;
    return false;
}

/* Parameters that the step writes and whose new numbers stand beside none of the other side. */
static uint32_t count_unpaired_updates(const lb_implementations *x)
{
    uint32_t n = 0;
    for (int k = 0; k < 2; k++) {
        const lb_program *p = x->sides[k].program;
        for (uint32_t i = 0; i < x->sources[k].n; i++) {
            const uint32_t v = x->sources[k].list[i].value;
            bool written = false, paired = false;
            if (!(p->values[v].flags & LB_VALUE_PARAMETER)) continue;
            for (uint32_t o = 0; o < p->n_ops && !written; o++)
                written =
                    !lb_op_is_source(p, &p->ops[o]) && lb_op_writes(p, &p->ops[o], p->values[v].storage) != LB_NONE;
            for (uint32_t c = 0; c < x->counterparts.n && written && !paired; c++)
                paired = x->counterparts.list[c].kind == LB_COUNTERPART_FINAL &&
                         stands_for(x, &x->counterparts.list[c], k, v);
            n += written && !paired;
        }
    }
    return n;
}

/* Results whose order is not known, where no update says that it does not matter. */
static uint32_t count_unordered(const lb_implementations *x)
{
    uint32_t n = 0, finals = 0, apart = 0;
    for (uint32_t i = 0; i < x->counterparts.n; i++) {
        const lb_counterpart *c = &x->counterparts.list[i];
        n += c->any_order && c->kind == LB_COUNTERPART_EXIT;
        finals += c->kind == LB_COUNTERPART_FINAL && c->state == LB_COUNTERPART_SAME;
        apart += lb_differences_leave(c) && c->state == LB_COUNTERPART_APART;
    }
    return apart || !finals ? n : 0;
}

/* Is the value what a parameter may have been given in the place of its memory (`p.data = …`), which no op tells: an op
 * behind backward gives it, and none reads it? */
static bool may_be_rebound(const lb_exact_side *s, uint32_t v, uint32_t like)
{
    const lb_program *p = s->program;
    const lb_value_graph *g = &s->graph;
    if (v == LB_NONE || !lb_value_graph_is_computed(g, v) ||
        !lb_layout_same_shape(&p->values[v].layout, &p->values[like].layout))
        return false;
    for (uint32_t i = g->giver[v] + 1; i < p->n_ops; i++)
        if (p->ops[i].phase == LB_PHASE_BACKWARD || lb_op_reads(p, &p->ops[i], p->values[v].storage) != LB_NONE)
            return false;
    return true;
}

/* What such a parameter ends with is no last write to its memory. The other side's numbers say which value it is; of
 * several ranks another one's copy has the same. */
static bool find_rebound(lb_implementations *x)
{
    bool any = false;
    if (x->sides[0].view->n_parts > 1 || x->sides[1].view->n_parts > 1) return false;
    for (uint32_t i = 0; i < x->counterparts.n; i++) {
        lb_counterpart *c = &x->counterparts.list[i];
        if (c->kind != LB_COUNTERPART_FINAL || c->state != LB_COUNTERPART_APART || c->n != 1) continue;
        uint32_t *a = &x->counterparts.pieces[c->first].tensor;
        const uint32_t of_b = x->met[0][*a], of_a = x->met[1][c->b];
        if (may_be_rebound(&x->sides[1], of_b, c->b))
            c->is_rebound = true, c->rebound = x->sides[1].program->values[c->b].storage, c->b = of_b, any = true;
        else if (may_be_rebound(&x->sides[0], of_a, *a))
            c->is_rebound = true, c->rebound = x->sides[0].program->values[*a].storage, *a = of_a, any = true;
    }
    return any;
}

static void judge(lb_implementations *x)
{
    uint32_t n = 0, unknown = 0, apart = 0, unsteady = 0;
    lb_counterpart_scales_settle_losses(x);
    for (uint32_t i = 0; i < x->counterparts.n; i++) {
        const lb_counterpart *c = &x->counterparts.list[i];
        if (!lb_differences_leave(c)) continue;
        n++, unknown += c->state == LB_COUNTERPART_UNKNOWN, apart += c->state == LB_COUNTERPART_APART;
        unsteady += c->unsteady;
    }
    x->judged = n > 0 && !unknown && !*x->missing;
    x->same = x->judged && !apart;
    const uint32_t unordered = x->judged ? count_unordered(x) : 0;
    if (unordered) {
        x->judged = x->same = false;
        snprintf(x->missing, sizeof x->missing,
                 "%u results are there in parts that stand in another order on the other side's ranks", unordered);
    }
    if (*x->missing) return;
    const uint32_t unmet = n && !apart ? count_unmet(x) : 0,
                   unpaired = n && !apart && !unmet ? count_unpaired_updates(x) : 0;
    if (!n)
        snprintf(x->missing, sizeof x->missing,
                 "nothing that leaves the step (results of the outermost modules, a loss, parameters) has a "
                 "counterpart on the other side");
    else if (unmet) {
        x->judged = x->same = false;
        snprintf(x->missing, sizeof x->missing,
                 "%u results of modules have other shapes on the other side, or none there", unmet);
    } else if (unpaired) {
        x->judged = x->same = false;
        snprintf(x->missing, sizeof x->missing,
                 "%u parameters are updated in memory that the other side lays out differently", unpaired);
    } else if (unsteady)
        snprintf(
            x->missing, sizeof x->missing,
            "%u of %u values that leave the step are carried as far by the last bits of f64 as the sides are apart: "
            "whether these compute the same cannot be told",
            unsteady, n);
    else if (unknown)
        snprintf(x->missing, sizeof x->missing,
                 "%u of %u values that leave the step could not be run exactly on both sides", unknown, n);
}

/* What both free runs kept, judged by what leaves. */
static lb_status compare_free(lb_implementations *x, lb_err *err)
{
    lb_counterparts_compare(&x->counterparts, &x->sides[0], &x->sides[1]);
    lb_rank_parts_settle(&x->counterparts, &x->sides[0], &x->sides[1]);
    if (lb_counterpart_exits_exchange(&x->counterparts, &x->sides[0], &x->sides[1]))
        lb_counterparts_compare(&x->counterparts, &x->sides[0], &x->sides[1]);
    LB_TRY(lb_differences_meet(x, err));
    if (lb_counterpart_orders_find_others(&x->counterparts, &x->sides[0], &x->sides[1], x->met[1]))
        lb_counterparts_compare(&x->counterparts, &x->sides[0], &x->sides[1]);
    if (find_rebound(x)) lb_counterparts_compare(&x->counterparts, &x->sides[0], &x->sides[1]);
    lb_counterparts_drop_wrong(&x->counterparts, x->met, &x->sides[0], &x->sides[1]);
    judge(x);
    return LB_OK;
}

/* All that leaves agrees: so should what either side keeps for the next step. */
static lb_status compare_kept(lb_implementations *x, const lb_source_memory *memory, lb_err *err)
{
    const lb_exact_side *const sides[] = {&x->sides[0], &x->sides[1]};
    bool any;
    if (!x->judged || !x->same || !x->met[0] || !x->met[1]) return LB_OK;
    LB_TRY(lb_left_values_pair(memory, sides, x->met, &x->counterparts, &any, err));
    if (!any) return LB_OK;
    lb_counterparts_compare(&x->counterparts, &x->sides[0], &x->sides[1]);
    judge(x);
    return LB_OK;
}

/* The free run of B, from A's sources and draws. */
static lb_status run_free(lb_implementations *x, lb_err *err)
{
    LB_TRY(lb_exact_side_run(&x->sides[1], err));
    return compare_free(x, err);
}

/* Sources that their use tells apart have other partners than their numbers said: counterparts are found anew. */
static lb_status settle_by_use(lb_implementations *x, const lb_products *products, lb_source_memory *memory,
                               lb_err *err)
{
    uint32_t settled;
    if (x->draws_differ) return LB_OK;
    LB_TRY(lb_uses_settle(x, products, memory, &settled, err));
    if (!settled) return LB_OK;
    lb_counterparts_release(&x->counterparts);
    LB_TRY(lb_counterparts_find(&x->sides[0], &x->sides[1], &x->sources[0], &x->sources[1], &x->contents,
                                &x->counterparts, err));
    const lb_exact_side *const sides[] = {&x->sides[0], &x->sides[1]};
    lb_left_values_follow(memory, sides, &x->counterparts);
    want(x);
    *x->missing = '\0';
    return compare_free(x, err);
}

/* Tables that are rounded images: B goes on from A's numbers. */
static lb_status run_from_tables(lb_implementations *x, lb_err *err)
{
    const lb_table_question asked = {
        {&x->sides[0], &x->sides[1]}, {&x->sources[0], &x->sources[1]}, &x->contents, {x->met[0], x->met[1]}};
    const uint32_t before = x->counterparts.n;
    bool changed[2];
    LB_TRY(lb_coded_weights_find(&asked, changed, err));
    if (changed[0]) LB_TRY(lb_exact_side_run(&x->sides[0], err));
    if (changed[0]) LB_TRY(lb_exact_side_run_disturbed(&x->sides[0], err));
    LB_TRY(lb_made_weights_find(&asked, &x->counterparts, err));
    LB_TRY(lb_tables_find(&asked, &x->counterparts, err));
    for (uint32_t i = before; i < x->counterparts.n; i++)
        lb_exact_side_hold(
            &x->sides[1], x->counterparts.list[i].b,
            lb_counterpart_taken(&x->counterparts, &x->counterparts.list[i], &x->sides[0], &x->sides[1]));
    x->tables += x->counterparts.n - before;
    return x->counterparts.n > before || changed[0] || changed[1] ? run_free(x, err) : LB_OK;
}

/* Are all tensors that one side alone holds those of adapters that are in the other side's weights? */
static bool are_adapters_alone(const lb_implementations *x)
{
    enum { BASE_DOWN_UP_AND_WHOLE = 4 };
    return x->alone <= BASE_DOWN_UP_AND_WHOLE * x->n_merged;
}

/* Tensors that one side alone holds, folded or filled before the step, were rounded then: what that can do is no
 * difference. Of adapters each element was compared with the other side's weights (merged_adapters.h): there is no
 * doubt in their rounding, and no place between the weight and what is added to it. */
static lb_status allow_for_rounding(lb_implementations *x, lb_err *err)
{
    LB_TRY(lb_slack_measure(x, false, &x->alone, err));
    if (!x->alone) return LB_OK;
    lb_counterparts_compare(&x->counterparts, &x->sides[0], &x->sides[1]);
    for (uint32_t i = 0; i < x->counterparts.n; i++)
        if (lb_differences_leave(&x->counterparts.list[i]) && x->counterparts.list[i].state == LB_COUNTERPART_APART)
            return LB_OK;
    if (are_adapters_alone(x)) {
        for (uint32_t i = 0; i < x->counterparts.n; i++)
            if (x->counterparts.list[i].in_doubt)
                x->counterparts.list[i].state = LB_COUNTERPART_SAME, x->counterparts.list[i].in_doubt = false;
        judge(x);
        return LB_OK;
    }
    LB_TRY(lb_differences_prove(x, err));
    if (x->same) judge(x);
    return LB_OK;
}

/* Numbers that a side read from tensors are the other side's exact ones. */
static lb_status run_from_scalars(lb_implementations *x, lb_err *err)
{
    bool changed[2];
    for (int k = 0; k < 2; k++) LB_TRY(lb_scalars_settle_read(&x->sides[k], &x->sides[!k], &changed[k], err));
    if (changed[0]) LB_TRY(lb_exact_side_run(&x->sides[0], err));
    if (changed[0]) LB_TRY(lb_exact_side_run_disturbed(&x->sides[0], err));
    return changed[0] || changed[1] ? run_free(x, err) : LB_OK;
}

/* Behind free runs of which not all that leaves agrees: what may explain that without a difference, and then the
 * differences. */
static lb_status look_closer(lb_implementations *x, const lb_products *products, lb_source_memory *memory, lb_err *err)
{
    LB_TRY(settle_by_use(x, products, memory, err));
    if (x->judged && !x->same) LB_TRY(run_from_tables(x, err));
    if (x->judged && !x->same) LB_TRY(run_from_scalars(x, err));
    if (!x->judged || x->same) return LB_OK;
    LB_TRY(lb_counterpart_scales_find_losses(x, err));
    LB_TRY(lb_products_find(products, &x->counterparts, err));
    LB_TRY(lb_norms_find(&x->sides[0], &x->sides[1], &x->counterparts, err));
    lb_counterparts_compare(&x->counterparts, &x->sides[0], &x->sides[1]);
    lb_counterparts_drop_remade(&x->counterparts, &x->sides[0], &x->sides[1]);
    lb_counterpart_scales_drop(&x->counterparts, &x->sides[0], &x->sides[1], x->met[1]);
    LB_TRY(allow_for_rounding(x, err));
    return x->judged && !x->same ? lb_differences_find(x, err) : LB_OK;
}

/* B draws what A drew. */
static bool hold_draws(lb_implementations *x, uint32_t *const draws[2], uint32_t n)
{
    bool room = true;
    for (uint32_t i = 0; i < n && room; i++) {
        const double *drawn = x->sides[0].kept[draws[0][i]];
        const size_t bytes = (size_t)lb_layout_numel(&x->sides[0].program->values[draws[0][i]].layout) * sizeof *drawn;
        double *copy = drawn ? malloc(bytes + 1) : NULL;
        room = copy || !drawn;
        if (copy) memcpy(copy, drawn, bytes);
        lb_exact_side_hold(&x->sides[1], draws[1][i], copy);
    }
    return room;
}

static lb_status run_both(lb_implementations *x, lb_err *err)
{
    uint32_t *draws[2] = {NULL, NULL}, n_draws;
    pair_draws(x, draws, &n_draws);
    want(x);
    for (uint32_t i = 0; i < n_draws; i++) x->sides[0].wanted[draws[0][i]] = 1;
    const lb_table_question asked = {
        {&x->sides[0], &x->sides[1]}, {&x->sources[0], &x->sources[1]}, &x->contents, {NULL, NULL}};
    lb_status status = lb_tables_want(&asked, err);
    if (status == LB_OK) status = lb_exact_side_run(&x->sides[0], err);
    if (status == LB_OK) status = lb_exact_side_run_disturbed(&x->sides[0], err);
    if (status == LB_OK && !hold_draws(x, draws, n_draws))
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for %u draws", n_draws);
    free(draws[0]), free(draws[1]);
    return status == LB_OK ? run_free(x, err) : status;
}

static lb_status run_all(lb_implementations *x, lb_source_memory *memory, lb_err *err)
{
    lb_products *products;
    LB_TRY(run_both(x, err));
    LB_TRY(compare_kept(x, memory, err));
    if (x->same) return lb_slack_find_coarse(x, err);
    LB_TRY(lb_products_new(&x->sides[0], &x->sides[1], &products, err));
    const lb_status status = look_closer(x, products, memory, err);
    lb_products_free(products);
    return status == LB_OK && x->same ? lb_slack_find_coarse(x, err) : status;
}

/* Parameters of B that A does not hold, where ranks have parts of them: parts cut along another dimension hold no row
 * or column of each other. */
static uint32_t count_cut_otherwise(const lb_implementations *x)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < x->contents.n; i++) {
        const lb_step_source *s = &x->sources[1].list[i];
        if (x->contents.list[i].relation != LB_CONTENT_NONE ||
            !(x->sides[1].program->values[s->value].flags & LB_VALUE_PARAMETER))
            continue;
        n += lb_rank_parts_has_part(&x->sources[1], i) && lb_rank_parts_is_shared_out(&x->sources[0]);
    }
    return n;
}

/* Of steps and calls rows tell which token is which: runs of both sides come first. */
static lb_status map_tokens(lb_implementations *x, lb_err *err)
{
    const lb_exact_side *const sides[] = {&x->sides[0], &x->sides[1]};
    LB_TRY(lb_token_map_make((const lb_program_view *const[]){sides[0]->view, sides[1]->view}, &x->tokens, err));
    if (x->tokens && x->tokens->of_one_rank) {
        want_computed(x);
        for (int k = 0; k < 2; k++) LB_TRY(lb_exact_side_run(&x->sides[k], err));
        LB_TRY(lb_token_rows_match(sides, x->tokens, err));
    }
    if (x->tokens && !x->tokens->sound) {
        lb_token_map_free(x->tokens), x->tokens = NULL;
        snprintf(x->missing, sizeof x->missing, "the steps of the two sides are given other tokens");
    }
    for (int k = 0; k < 2; k++) x->sides[k].tokens = x->tokens, x->sides[k].number = k;
    return LB_OK;
}

lb_status lb_implementations_judge(const lb_program_view *a, const lb_program_view *b, lb_source_memory *memory,
                                   lb_exact_progress progress, lb_implementations *x, lb_err *err)
{
    *x = (lb_implementations){0};
    lb_status status = lb_exact_side_open(a, &x->sides[0], err);
    if (status == LB_OK) status = lb_exact_side_open(b, &x->sides[1], err);
    for (int k = 0; k < 2; k++) x->sides[k].progress = progress;
    if (status == LB_OK) status = lb_scalars_settle(x->sides, err);
    if (status == LB_OK) status = lb_step_sources_list(a, &x->sources[0], err);
    if (status == LB_OK) status = lb_step_sources_list(b, &x->sources[1], err);
    if (status == LB_OK)
        status = lb_merged_adapters_find(&x->sources[0], &x->sources[1], UINT32_MAX, &x->merged, &x->n_merged, err);
    bool begins = false;
    if (status == LB_OK)
        status = lb_step_sources_match(&x->sources[0], &x->sources[1], x->merged, x->n_merged, memory, &x->contents,
                                       &begins, err);
    const uint32_t cut = status == LB_OK ? count_cut_otherwise(x) : 0;
    if (cut)
        snprintf(
            x->missing, sizeof x->missing,
            "%u parameters are parts of tensors that the other side's ranks cut along another dimension: record one of "
            "the sides on one rank",
            cut);
    if (status == LB_OK) feed(x);
    if (status == LB_OK) status = lb_scalars_hold(x->sides, err);
    if (status == LB_OK) status = map_tokens(x, err);
    if (status == LB_OK)
        status = lb_counterparts_find(&x->sides[0], &x->sides[1], &x->sources[0], &x->sources[1], &x->contents,
                                      &x->counterparts, err);
    const lb_exact_side *const sides[] = {&x->sides[0], &x->sides[1]};
    if (status == LB_OK) lb_left_values_follow(memory, sides, &x->counterparts);
    if (status == LB_OK) status = feed_left(x, begins && (x->sources[0].midway || x->sources[1].midway), memory, err);
    if (status == LB_OK && begins)
        status = lb_apart_sources_measure(&x->sources[0], &x->sources[1], &x->contents, &x->moved, err);
    if (status == LB_OK) status = run_all(x, memory, err);
    if (status == LB_OK && !lb_left_values_learn(memory, sides, &x->counterparts, x->met[1]))
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for what a step leaves");
    if (status != LB_OK) lb_implementations_release(x);
    return status;
}

void lb_implementations_release(lb_implementations *x)
{
    for (int k = 0; k < 2; k++) {
        lb_exact_side_close(&x->sides[k]);
        lb_step_sources_release(&x->sources[k]);
        free(x->met[k]);
    }
    lb_contents_release(&x->contents);
    lb_apart_sources_release(&x->moved);
    lb_counterparts_release(&x->counterparts);
    lb_regions_release(&x->regions);
    free(x->tried);
    lb_token_map_free(x->tokens);
    free(x->exchanges);
    free(x->innocent), free(x->around[0]), free(x->around[1]), free(x->merged);
    free(x->loss.linear[0]), free(x->loss.linear[1]);
    *x = (lb_implementations){0};
}
