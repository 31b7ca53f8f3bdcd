/* Naming the place: see diff_place.h. */
#include "diff_place.h"

#include "diff_values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMED = 4 };

static const lb_program *program_of(const lb_walk *w, int side)
{
    return side ? w->pb : w->pa;
}

/* ---- arguments ---- */

static bool follows(const lb_read_numbers *read, const lb_walk *w, const lb_arg *a, uint32_t na, const lb_arg *b, uint32_t nb)
{
    if (na != nb) return read->integers;
    for (uint32_t i = 0; i < na; i++) {
        if (a[i].tag != b[i].tag) return false;
        if (a[i].tag == LB_ARG_LIST || a[i].tag == LB_ARG_COMPLEX) {
            if (!follows(read, w, w->pa->args + a[i].u.first, a[i].count, w->pb->args + b[i].u.first, b[i].count)) return false;
        } else if (a[i].tag == LB_ARG_FLOAT) {
            const double x = a[i].u.f, y = b[i].u.f;
            if (x != y && !(fabs(x - y) <= 8 * read->ratio * fmax(fabs(x), fabs(y)))) return false;
        } else if ((a[i].tag == LB_ARG_INT || a[i].tag == LB_ARG_BOOL) && a[i].u.i != b[i].u.i && !read->integers) {
            return false;
        }
    }
    return true;
}

bool lb_place_args_follow(const lb_walk *w, uint32_t ia, uint32_t ib)
{
    const lb_op *a = &w->pa->ops[ia], *b = &w->pb->ops[ib];
    if (w->past->read.verdict == LB_VERDICT_IDENTICAL) return false;
    return follows(&w->past->read, w, lb_op_args(w->pa, a), a->args, lb_op_args(w->pb, b), b->args);
}

/* ---- parameters ---- */

/* "up.weight" of "optimizer.exp_avg:up.weight". */
static const char *bare_name(const char *name)
{
    const char *colon = strchr(name, ':');
    return colon && !strncmp(name, "optimizer.", 10) ? colon + 1 : name;
}

static const char *name_of(const lb_program *p, uint32_t value)
{
    if (value == LB_NONE) return "";
    const lb_value *v = &p->values[value];
    if (!(v->flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE | LB_VALUE_GRADIENT))) return "";
    return bare_name(lb_program_text(p, v->name));
}

typedef struct search {
    const lb_program *program;
    const char *name;
} search;

static void note_name(void *context, uint32_t value)
{
    search *s = context;
    if (!*s->name) s->name = name_of(s->program, value);
}

/* The parameter that an op of the optimizer serves: by what it writes (of a list, the element that differs), by what it reads. */
static const char *parameter_of(const lb_program *p, uint32_t row, uint32_t outcome)
{
    const lb_op *op = &p->ops[row];
    search s = {p, ""};
    if (outcome < lb_outcomes(op)) s.name = name_of(p, lb_outcome(p, op, outcome));
    for (uint32_t i = 0; i < lb_outcomes(op) && !*s.name; i++) s.name = name_of(p, lb_outcome(p, op, i));
    if (!*s.name) lb_op_each_input(p, op, note_name, &s);
    return s.name;
}

static void name_parameter(const lb_walk *w, const lb_program *p, const char *name, lb_diff_row *row)
{
    if (!*name) return;
    row->parameter = lb_report_keep(w->report, name);
    const uint32_t scope = lb_program_owner(p, name);
    const char *dot = strrchr(name, '.');
    char module[400];
    snprintf(module, sizeof module, "%.*s", dot ? (int)(dot - name) : 0, name);
    row->layer = lb_report_keep(w->report, scope ? lb_program_text(p, p->scopes[scope].path) : module);
    row->value = false;
}

/* ---- between modules ---- */

static bool is_around(const char *outer, const char *inner)
{
    const size_t n = strlen(outer);
    return !n || (!strncmp(outer, inner, n) && (inner[n] == '.' || inner[n] == '\0'));
}

/* The module that ran last before the op, or runs next, where that is another one; NULL: none in its phase. */
static const char *neighbour(const lb_program *p, uint32_t op, int step)
{
    const char *own = lb_op_layer(p, &p->ops[op]);
    for (int64_t i = (int64_t)op + step; i >= 0 && i < p->n_ops; i += step) {
        const lb_op *other = &p->ops[i];
        if (!lb_op_computes(p, other)) continue;
        if (other->phase != p->ops[op].phase) return NULL;
        const char *layer = lb_op_layer(p, other);
        if (strcmp(layer, own)) return layer;
    }
    return NULL;
}

/* Code of a module that calls others stands between two of these: ", between layers.0.mlp and layers.1.input_layernorm". */
static void describe_neighbours(const lb_walk *w, const lb_program *p, uint32_t op, lb_diff_row *row)
{
    const char *own = lb_op_layer(p, &p->ops[op]);
    const char *before = neighbour(p, op, -1), *after = neighbour(p, op, 1);
    char text[800];
    if ((!before || !is_around(own, before)) && (!after || !is_around(own, after))) return;
    if (before) row->before = lb_report_keep(w->report, before);
    if (after) row->after = lb_report_keep(w->report, after);
    if (before && after)
        snprintf(text, sizeof text, "%s; between %.250s and %.250s", row->why, *before ? before : "(top level)",
                 *after ? after : "(top level)");
    else
        snprintf(text, sizeof text, "%s; %s %.250s", row->why, before ? "behind" : "before",
                 before ? (*before ? before : "(top level)") : (*after ? after : "(top level)"));
    row->why = lb_report_keep(w->report, text);
}

/* ---- ops of one side alone ---- */

static void list_names(const lb_program *p, const uint32_t *ops, uint32_t n, char *text, size_t size)
{
    size_t used = 0;
    *text = '\0';
    for (uint32_t i = 0; i < n && i < NAMED && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "", lb_op_name(p, &p->ops[ops[i]]));
    if (n > NAMED && used < size) snprintf(text + used, size - used, ", and %u more", n - NAMED);
}

static void describe_lone(const lb_walk *w, const lb_divergence *o, lb_diff_row *row)
{
    char lists[2][300], why[800];
    const uint32_t *ops[] = {w->divergences.lone + o->first[0], w->divergences.lone + o->first[1]};
    for (int side = 0; side < 2; side++)
        list_names(program_of(w, side), ops[side], o->n[side], lists[side ^ w->swapped], sizeof lists[0]);
    const uint32_t n[] = {o->n[w->swapped], o->n[!w->swapped]};
    if (n[0] && n[1])
        snprintf(why, sizeof why, "the first side runs %s here, the second %s, which differs in exact arithmetic", lists[0], lists[1]);
    else
        snprintf(why, sizeof why, "the %s side alone runs %s here, and what follows differs in exact arithmetic",
                 n[0] ? "first" : "second", n[0] ? lists[0] : lists[1]);
    row->why = lb_report_keep(w->report, why);
}

/* The first of what one side alone runs; where both do, the report's first side has the word. */
static int place_side(const lb_walk *w, const lb_divergence *o)
{
    const int first = w->swapped;
    return o->n[first] ? first : !first;
}

static lb_diff_row lone_row(lb_walk *w, const lb_divergence *o)
{
    const int side = place_side(w, o);
    const uint32_t op = w->divergences.lone[o->first[side]];
    const lb_program *p = program_of(w, side);
    const uint32_t other = o->n[!side] ? w->divergences.lone[o->first[!side]] : LB_NONE;
    lb_diff_row row = lb_walk_row(w, side ? LB_NONE : op, side ? op : LB_NONE);
    row.index = side ? other : op, row.other = side ? op : other;
    row.local = row.verdict = LB_VERDICT_DIVERGED;
    describe_lone(w, o, &row);
    if (p->ops[op].phase == LB_PHASE_OPTIMIZER)
        name_parameter(w, p, parameter_of(p, op, LB_NONE), &row);
    else
        describe_neighbours(w, p, op, &row);
    return row;
}

/* ---- origins ---- */

void lb_place_origin(lb_walk *w, const lb_divergence *o, uint32_t ia, const lb_evidence *e, lb_diff_row *row)
{
    const bool lone = o->n[0] || o->n[1], other_args = !e->same_args && !e->args_follow;
    if (e->own[0] == LB_VERDICT_DIVERGED || e->own[1] == LB_VERDICT_DIVERGED) return; /* said by the op itself */
    if (!lone && !e->same_args && e->args_follow) {
        row->local = LB_VERDICT_ROUNDING, row->inherited = w->past->read.verdict;
        row->why = "its arguments follow from numbers that Python read, which differ";
        return;
    }
    if (lone && !other_args) {
        lb_diff_row place = lone_row(w, o);
        lb_walk_report(w, &place);
        row->local = LB_VERDICT_ROUNDING, row->inherited = LB_VERDICT_DIVERGED;
        row->why = "it follows from ops that the two sides do not share, which compute other values";
        return;
    }
    row->local = LB_VERDICT_DIVERGED;
    row->why = other_args ? "called with other arguments, which give other exact values" : "the same inputs give other exact values";
    if (w->pa->ops[ia].phase == LB_PHASE_OPTIMIZER)
        name_parameter(w, w->pa, parameter_of(w->pa, ia, w->have_shadows ? w->shadows.rows[ia].outcome : LB_NONE), row);
    else
        describe_neighbours(w, w->pa, ia, row);
}

void lb_place_final(lb_walk *w, const lb_divergence *o, lb_diff_row *row)
{
    if (!o->n[0] && !o->n[1]) return;
    lb_diff_row place = lone_row(w, o);
    if (place.phase == LB_PHASE_OPTIMIZER && row->value) name_parameter(w, w->pa, bare_name(row->layer), &place);
    lb_walk_report(w, &place);
    row->local = LB_VERDICT_ROUNDING, row->inherited = LB_VERDICT_DIVERGED;
}
