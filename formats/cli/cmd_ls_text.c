/* lastbit ls as text: one program, in full or in a line. */
#include "cli/cmd_ls.h"
#include "cli/value_shards.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The sign of a NaN says nothing, and differs from processor to processor. */
static double shown_number(double number)
{
    return isnan(number) ? fabs(number) : number;
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

const char *ls_plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

static void print_text(const char *text)
{
    enum { MOST = 60 };
    printf("'%.*s%s'", MOST, text, strlen(text) > MOST ? "…" : "");
}

static void print_arg(const lb_program *p, const lb_arg *arg)
{
    switch (arg->tag) {
    case LB_ARG_VALUE: printf("v%" PRIu32, arg->u.value); break;
    case LB_ARG_INT: printf("%" PRId64, arg->u.i); break;
    case LB_ARG_FLOAT: printf("%.9g", arg->u.f); break;
    case LB_ARG_BOOL: fputs(arg->u.i ? "true" : "false", stdout); break;
    case LB_ARG_DTYPE: fputs(lb_dtype_name((lb_dtype)arg->u.i), stdout); break;
    case LB_ARG_STRING: print_text(lb_program_text(p, arg->u.string)); break;
    case LB_ARG_COMPLEX: printf("%.9g%+.9gi", p->args[arg->u.first].u.f, p->args[arg->u.first + 1].u.f); break;
    case LB_ARG_LIST:
        putchar('[');
        for (uint32_t i = 0; i < arg->count; i++) {
            if (i) fputs(", ", stdout);
            print_arg(p, &p->args[arg->u.first + i]);
        }
        putchar(']');
        break;
    default: fputs("none", stdout);
    }
}

/* ---- what a program was ------------------------------------------------------------------------------------------ */

/* Measurements; a name that comes again and again (`item`: a tensor read as a number) is only counted. */
static void print_scalars(const lb_program *p)
{
    uint32_t *times = calloc(p->n_strings, sizeof *times), shown = 0;
    for (uint32_t i = 0; i < p->n_scalars && times; i++) times[p->scalars[i].name] += !lb_program_is_option(p, i);
    for (uint32_t i = 0; i < p->n_scalars && times; i++) {
        uint32_t name = p->scalars[i].name, n = times[name];
        if (n == 0 || lb_program_is_option(p, i)) continue;
        printf("%s%s ", shown++ ? ", " : "  ", lb_program_text(p, name));
        printf(n > 1 ? "%.0f times" : "%.9g", n > 1 ? n : shown_number(p->scalars[i].number));
        times[name] = 0;
    }
    if (shown) putchar('\n');
    free(times);
}

/* Switches that are off say nothing. */
static void print_groups(const lb_program *p)
{
    for (uint32_t g = 0; g < p->n_groups; g++) {
        const lb_group *row = &p->groups[g];
        printf("  %s group %" PRIu32 ": %" PRIu32 " parameter%s", lb_program_text(p, row->optimizer), row->index,
               row->params, ls_plural(row->params));
        for (uint32_t k = 0; k < row->options; k++) {
            const lb_scalar *option = &p->scalars[row->first_option + k];
            const char *name = lb_program_text(p, option->name);
            if (option->number != 0 || strcmp(name, "lr") == 0) printf(", %s %.9g", name, option->number);
        }
        putchar('\n');
    }
}

static void print_communication(const lb_program *p)
{
    uint32_t *times = calloc(p->n_strings, sizeof *times);
    for (uint32_t i = 0; i < p->n_collectives && times; i++) times[p->ops[p->collectives[i].op].name]++;
    if (p->n_collectives) printf("  %" PRIu32 " collective%s:", p->n_collectives, ls_plural(p->n_collectives));
    for (uint32_t i = 0; i < p->n_collectives && times; i++) {
        uint32_t name = p->ops[p->collectives[i].op].name;
        if (times[name]) printf(" %" PRIu32 " %s", times[name], lb_program_text(p, name));
        times[name] = 0;
    }
    if (p->n_collectives) putchar('\n');
    if (p->n_routings) printf("  %" PRIu32 " routing decision%s\n", p->n_routings, ls_plural(p->n_routings));
    free(times);
}

/* What the program marked, and what of its numbers steered Python. */
static void print_taps(const ls_view *view)
{
    const lb_program *p = view->p;
    for (uint32_t i = 0; i < p->n_boundaries; i++) {
        const lb_boundary *b = &p->boundaries[i];
        if (!lb_program_is_tap(p, b)) continue;
        const lb_value *v = &p->values[b->value];
        printf("  tap '%s': v%" PRIu32 " %s", lb_program_text(p, p->scopes[b->scope].path), b->value,
               lb_dtype_name(v->dtype));
        lb_command_print_shape(&v->layout);
        puts(view->kept[b->value] ? ", kept" : "");
    }
}

static void print_decisions(const lb_program *p)
{
    uint32_t *times = calloc(p->n_strings, sizeof *times), n = 0;
    for (uint32_t i = 0; i < p->n_ops && times; i++)
        if (p->ops[i].flags & LB_OP_DECISION) n++, times[p->ops[i].name]++;
    if (n) printf("  %" PRIu32 " decision%s:", n, ls_plural(n));
    for (uint32_t i = 0; i < p->n_ops && n; i++) {
        const uint32_t name = p->ops[i].name;
        if (!times[name]) continue;
        printf(" %" PRIu32 " %s", times[name], lb_program_text(p, name));
        times[name] = 0;
    }
    if (n) putchar('\n');
    free(times);
}

static void print_layers(const ls_view *view)
{
    const lb_program *p = view->p;
    ls_layer *all = ls_count_layers(view);
    char bytes[16];
    if (!all) return;
    printf("    %8s %8s %8s %14s %10s  %s\n", "ops", "forward", "backward", "results kept", "bytes", "layer (class)");
    for (uint32_t s = 0; s < p->n_scopes; s++) {
        const char *class_name = lb_program_text(p, p->scopes[s].class_name);
        char kept[32];
        snprintf(kept, sizeof kept, "%" PRIu64 "/%" PRIu64, all[s].results.kept, all[s].results.total);
        printf("    %8" PRIu64 " %8" PRIu64 " %8" PRIu64 " %14s %10s  %s", all[s].ops,
               all[s].by_phase[LB_PHASE_FORWARD], all[s].by_phase[LB_PHASE_BACKWARD], kept,
               lb_command_bytes_text(all[s].results.bytes, bytes),
               s ? lb_program_text(p, p->scopes[s].path) : "(outside)");
        printf(*class_name ? " (%s)\n" : "%s\n", class_name);
    }
    free(all);
}

static void print_rows(const lb_program *p, const uint32_t *rows, uint32_t n, const char *before)
{
    for (uint32_t r = 0; r < n; r++) {
        if (rows[r] == LB_NONE) continue;
        printf("%sv%" PRIu32 ":%s", r ? ", " : before, rows[r], lb_dtype_name(p->values[rows[r]].dtype));
        lb_command_print_shape(&p->values[rows[r]].layout);
    }
}

static void print_ops(const lb_program *p)
{
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        printf("    %7" PRIu32 " %-13s %-32s %s(", i, lb_phase_name((lb_phase)op->phase),
               *lb_op_layer(p, op) ? lb_op_layer(p, op) : "(outside)", lb_op_name(p, op));
        for (uint32_t a = 0; a < op->args; a++) {
            if (a) fputs(", ", stdout);
            print_arg(p, &lb_op_args(p, op)[a]);
        }
        putchar(')');
        print_rows(p, lb_op_results(p, op), op->results, " -> ");
        print_rows(p, lb_op_written(p, op), op->written, " writes ");
        puts(op->flags & LB_OP_FAILED ? " raised an exception" : "");
        char text[LB_LINE_TEXT + 200];
        const lb_code_line line = lb_op_line(p, op);
        lb_code_line_text(&line, text, sizeof text);
        if (*text) printf("%26s%s\n", "", text);
    }
}

static void print_values(const ls_view *view)
{
    const lb_program *p = view->p;
    for (uint32_t i = 0; i < p->n_values; i++) {
        const lb_value *v = &p->values[i];
        char digest[33];
        bool is_undefined = v->flags & LB_VALUE_UNDEFINED;
        lb_digest_format(v->logical, digest);
        printf("    v%-7" PRIu32 " %-12.12s %-4s %-10s %-8s ", i,
               is_undefined                    ? "(undefined)"
               : lb_digest_is_none(v->logical) ? "(a view)"
                                               : digest,
               view->kept[i] ? "kept" : "-", lb_source_kind_name((lb_source_kind)v->source), lb_dtype_name(v->dtype));
        lb_command_print_shape(&v->layout);
        if (v->name != LB_NONE) printf(" %s", lb_program_text(p, v->name));
        if (view->op_of[i] != LB_NONE && v->source == LB_SOURCE_NOT)
            printf(" from op %" PRIu32 " %s", view->op_of[i], lb_op_name(p, &p->ops[view->op_of[i]]));
        value_shards_print(p, i, "; ");
        putchar('\n');
    }
}

void ls_print_program(const ls_view *view, const ls_options *options)
{
    static const char *const kinds[LS_LEVELS] = {"sources", "layer inputs and outputs", "other results"};
    const lb_program *p = view->p;
    char text[16];
    printf("rank %" PRId32 " of %" PRId32 ", step %" PRId64 ": level %s%s%s%s\n", p->rank, p->world, p->step,
           ls_levels_reached[p->level], p->complete ? "" : ", incomplete", p->shard == LB_NONE ? "" : ", shard ",
           lb_program_text(p, p->shard));
    printf("  %" PRIu32 " op%s:", p->n_ops, ls_plural(p->n_ops));
    for (int k = 0; k <= LB_PHASE_OTHER; k++)
        if (view->phases[k]) printf(" %" PRIu64 " %s", view->phases[k], lb_phase_name((lb_phase)k));
    printf("; %" PRIu32 " layer%s; %" PRIu32 " value%s\n  kept:", p->n_scopes - 1, ls_plural(p->n_scopes - 1),
           p->n_values, ls_plural(p->n_values));
    for (int k = 0; k < LS_LEVELS; k++)
        if (view->levels[k].total)
            printf(" %" PRIu64 " of %" PRIu64 " %s (%s)%s", view->levels[k].kept, view->levels[k].total, kinds[k],
                   lb_command_bytes_text(view->levels[k].bytes, text),
                   k + 1 < LS_LEVELS && view->levels[k + 1].total ? "," : "");
    putchar('\n');
    print_scalars(p);
    print_groups(p);
    print_communication(p);
    value_shards_summary(p);
    print_decisions(p);
    print_taps(view);
    for (uint32_t i = 0; i < p->n_notices; i++)
        printf("  %s: %s\n", lb_program_text(p, p->notices[i].kind), lb_program_text(p, p->notices[i].message));
    if (options->layers) print_layers(view);
    if (options->ops) print_ops(p);
    if (options->values) print_values(view);
}

void ls_print_line(const ls_view *view, bool heading)
{
    const lb_program *p = view->p;
    uint64_t kept = 0, bytes = 0;
    char text[16];
    for (int k = 0; k < LS_LEVELS; k++) kept += view->levels[k].kept, bytes += view->levels[k].bytes;
    if (heading) printf("%8s %5s  %-8s %8s %8s %8s %10s\n", "step", "rank", "level", "ops", "values", "kept", "bytes");
    printf("%8" PRId64 " %5" PRId32 "  %-8s %8" PRIu32 " %8" PRIu32 " %8" PRIu64 " %10s ", p->step, p->rank,
           ls_levels_reached[p->level], p->n_ops, p->n_values, kept, lb_command_bytes_text(bytes, text));
    for (uint32_t i = 0; i < p->n_scalars; i++) {
        const char *name = lb_program_text(p, p->scalars[i].name);
        if (strcmp(name, "loss") == 0 || strcmp(name, "grad_norm") == 0)
            printf(" %s %.7g", name, shown_number(p->scalars[i].number));
    }
    printf("%s%s%s\n", p->complete ? "" : " incomplete", p->n_notices ? " with notices" : "",
           p->shard == LB_NONE ? "" : " sharded");
}
