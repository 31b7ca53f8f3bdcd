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

static void print_arg(const lb_program *program, const lb_arg *arg)
{
    switch (arg->tag) {
    case LB_ARG_VALUE: printf("v%" PRIu32, arg->u.value); break;
    case LB_ARG_INT: printf("%" PRId64, arg->u.i); break;
    case LB_ARG_FLOAT: printf("%.9g", arg->u.f); break;
    case LB_ARG_BOOL: fputs(arg->u.i ? "true" : "false", stdout); break;
    case LB_ARG_DTYPE: fputs(lb_dtype_name((lb_dtype)arg->u.i), stdout); break;
    case LB_ARG_STRING: print_text(lb_program_text(program, arg->u.string)); break;
    case LB_ARG_COMPLEX:
        printf("%.9g%+.9gi", program->args[arg->u.first].u.f, program->args[arg->u.first + 1].u.f);
        break;
    case LB_ARG_LIST:
        putchar('[');
        for (uint32_t i = 0; i < arg->count; i++) {
            if (i) fputs(", ", stdout);
            print_arg(program, &program->args[arg->u.first + i]);
        }
        putchar(']');
        break;
    default: fputs("none", stdout);
    }
}

/* ---- what a program was ------------------------------------------------------------------------------------------ */

/* Measurements; a name that comes again and again (`item`: a tensor read as a number) is only counted. */
static void print_scalars(const lb_program *program)
{
    uint32_t *times = calloc(program->n_strings, sizeof *times), shown = 0;
    for (uint32_t i = 0; i < program->n_scalars && times; i++)
        times[program->scalars[i].name] += !lb_program_is_option(program, i);
    for (uint32_t i = 0; i < program->n_scalars && times; i++) {
        uint32_t name = program->scalars[i].name, n = times[name];
        if (n == 0 || lb_program_is_option(program, i)) continue;
        printf("%s%s ", shown++ ? ", " : "  ", lb_program_text(program, name));
        printf(n > 1 ? "%.0f times" : "%.9g", n > 1 ? n : shown_number(program->scalars[i].number));
        times[name] = 0;
    }
    if (shown) putchar('\n');
    free(times);
}

/* Switches that are off say nothing. */
static void print_groups(const lb_program *program)
{
    for (uint32_t g = 0; g < program->n_groups; g++) {
        const lb_group *row = &program->groups[g];
        printf("  %s group %" PRIu32 ": %" PRIu32 " parameter%s", lb_program_text(program, row->optimizer), row->index,
               row->params, ls_plural(row->params));
        for (uint32_t k = 0; k < row->options; k++) {
            const lb_scalar *option = &program->scalars[row->first_option + k];
            const char *name = lb_program_text(program, option->name);
            if (option->number != 0 || strcmp(name, "lr") == 0) printf(", %s %.9g", name, option->number);
        }
        putchar('\n');
    }
}

static void print_communication(const lb_program *program)
{
    uint32_t *times = calloc(program->n_strings, sizeof *times);
    for (uint32_t i = 0; i < program->n_collectives && times; i++)
        times[program->ops[program->collectives[i].op].name]++;
    if (program->n_collectives)
        printf("  %" PRIu32 " collective%s:", program->n_collectives, ls_plural(program->n_collectives));
    for (uint32_t i = 0; i < program->n_collectives && times; i++) {
        uint32_t name = program->ops[program->collectives[i].op].name;
        if (times[name]) printf(" %" PRIu32 " %s", times[name], lb_program_text(program, name));
        times[name] = 0;
    }
    if (program->n_collectives) putchar('\n');
    if (program->n_routings)
        printf("  %" PRIu32 " routing decision%s\n", program->n_routings, ls_plural(program->n_routings));
    free(times);
}

/* What the program marked, and what of its numbers steered Python. */
static void print_taps(const ls_view *view)
{
    const lb_program *program = view->p;
    for (uint32_t i = 0; i < program->n_boundaries; i++) {
        const lb_boundary *boundary = &program->boundaries[i];
        if (!lb_program_is_tap(program, boundary)) continue;
        const lb_value *value = &program->values[boundary->value];
        printf("  tap '%s': v%" PRIu32 " %s", lb_program_text(program, program->scopes[boundary->scope].path),
               boundary->value, lb_dtype_name(value->dtype));
        lb_command_print_shape(&value->layout);
        puts(view->kept[boundary->value] ? ", kept" : "");
    }
}

static void print_decisions(const lb_program *program)
{
    uint32_t *times = calloc(program->n_strings, sizeof *times), n = 0;
    for (uint32_t i = 0; i < program->n_ops && times; i++)
        if (program->ops[i].flags & LB_OP_DECISION) n++, times[program->ops[i].name]++;
    if (n) printf("  %" PRIu32 " decision%s:", n, ls_plural(n));
    for (uint32_t i = 0; i < program->n_ops && n; i++) {
        const uint32_t name = program->ops[i].name;
        if (!times[name]) continue;
        printf(" %" PRIu32 " %s", times[name], lb_program_text(program, name));
        times[name] = 0;
    }
    if (n) putchar('\n');
    free(times);
}

static void print_layers(const ls_view *view)
{
    const lb_program *program = view->p;
    ls_layer *all = ls_count_layers(view);
    char bytes[16];
    if (!all) return;
    printf("    %8s %8s %8s %14s %10s  %s\n", "ops", "forward", "backward", "results kept", "bytes", "layer (class)");
    for (uint32_t s = 0; s < program->n_scopes; s++) {
        const char *class_name = lb_program_text(program, program->scopes[s].class_name);
        char kept[32];
        snprintf(kept, sizeof kept, "%" PRIu64 "/%" PRIu64, all[s].results.kept, all[s].results.total);
        printf("    %8" PRIu64 " %8" PRIu64 " %8" PRIu64 " %14s %10s  %s", all[s].ops,
               all[s].by_phase[LB_PHASE_FORWARD], all[s].by_phase[LB_PHASE_BACKWARD], kept,
               lb_command_bytes_text(all[s].results.bytes, bytes),
               s ? lb_program_text(program, program->scopes[s].path) : "(outside)");
        printf(*class_name ? " (%s)\n" : "%s\n", class_name);
    }
    free(all);
}

static void print_rows(const lb_program *program, const uint32_t *rows, uint32_t n, const char *before)
{
    for (uint32_t r = 0; r < n; r++) {
        if (rows[r] == LB_NONE) continue;
        printf("%sv%" PRIu32 ":%s", r ? ", " : before, rows[r], lb_dtype_name(program->values[rows[r]].dtype));
        lb_command_print_shape(&program->values[rows[r]].layout);
    }
}

static void print_ops(const lb_program *program)
{
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        printf("    %7" PRIu32 " %-13s %-32s %s(", i, lb_phase_name((lb_phase)op->phase),
               *lb_op_layer(program, op) ? lb_op_layer(program, op) : "(outside)", lb_op_name(program, op));
        for (uint32_t a = 0; a < op->args; a++) {
            if (a) fputs(", ", stdout);
            print_arg(program, &lb_op_args(program, op)[a]);
        }
        putchar(')');
        print_rows(program, lb_op_results(program, op), op->results, " -> ");
        print_rows(program, lb_op_written(program, op), op->written, " writes ");
        puts(op->flags & LB_OP_FAILED ? " raised an exception" : "");
        char text[LB_LINE_TEXT + 200];
        const lb_code_line line = lb_op_line(program, op);
        lb_code_line_text(&line, text, sizeof text);
        if (*text) printf("%26s%s\n", "", text);
    }
}

static void print_values(const ls_view *view)
{
    const lb_program *program = view->p;
    for (uint32_t i = 0; i < program->n_values; i++) {
        const lb_value *value = &program->values[i];
        char digest[33];
        bool is_undefined = value->flags & LB_VALUE_UNDEFINED;
        lb_digest_format(value->logical, digest);
        printf("    v%-7" PRIu32 " %-12.12s %-4s %-10s %-8s ", i,
               is_undefined                        ? "(undefined)"
               : lb_digest_is_none(value->logical) ? "(a view)"
                                                   : digest,
               view->kept[i] ? "kept" : "-", lb_source_kind_name((lb_source_kind)value->source),
               lb_dtype_name(value->dtype));
        lb_command_print_shape(&value->layout);
        if (value->name != LB_NONE) printf(" %s", lb_program_text(program, value->name));
        if (view->op_of[i] != LB_NONE && value->source == LB_SOURCE_NOT)
            printf(" from op %" PRIu32 " %s", view->op_of[i], lb_op_name(program, &program->ops[view->op_of[i]]));
        value_shards_print(program, i, "; ");
        putchar('\n');
    }
}

void ls_print_program(const ls_view *view, const ls_options *options)
{
    static const char *const kinds[LS_LEVELS] = {"sources", "layer inputs and outputs", "other results"};
    const lb_program *program = view->p;
    char text[16];
    printf("rank %" PRId32 " of %" PRId32 ", step %" PRId64 ": level %s%s%s%s\n", program->rank, program->world,
           program->step, ls_levels_reached[program->level], program->complete ? "" : ", incomplete",
           program->shard == LB_NONE ? "" : ", shard ", lb_program_text(program, program->shard));
    printf("  %" PRIu32 " op%s:", program->n_ops, ls_plural(program->n_ops));
    for (int k = 0; k <= LB_PHASE_OTHER; k++)
        if (view->phases[k]) printf(" %" PRIu64 " %s", view->phases[k], lb_phase_name((lb_phase)k));
    printf("; %" PRIu32 " layer%s; %" PRIu32 " value%s\n  kept:", program->n_scopes - 1,
           ls_plural(program->n_scopes - 1), program->n_values, ls_plural(program->n_values));
    for (int k = 0; k < LS_LEVELS; k++)
        if (view->levels[k].total)
            printf(" %" PRIu64 " of %" PRIu64 " %s (%s)%s", view->levels[k].kept, view->levels[k].total, kinds[k],
                   lb_command_bytes_text(view->levels[k].bytes, text),
                   k + 1 < LS_LEVELS && view->levels[k + 1].total ? "," : "");
    putchar('\n');
    print_scalars(program);
    print_groups(program);
    print_communication(program);
    value_shards_summary(program);
    print_decisions(program);
    print_taps(view);
    for (uint32_t i = 0; i < program->n_notices; i++)
        printf("  %s: %s\n", lb_program_text(program, program->notices[i].kind),
               lb_program_text(program, program->notices[i].message));
    if (options->layers) print_layers(view);
    if (options->ops) print_ops(program);
    if (options->values) print_values(view);
}

void ls_print_line(const ls_view *view, bool heading)
{
    const lb_program *program = view->p;
    uint64_t kept = 0, bytes = 0;
    char text[16];
    for (int k = 0; k < LS_LEVELS; k++) kept += view->levels[k].kept, bytes += view->levels[k].bytes;
    if (heading) printf("%8s %5s  %-8s %8s %8s %8s %10s\n", "step", "rank", "level", "ops", "values", "kept", "bytes");
    printf("%8" PRId64 " %5" PRId32 "  %-8s %8" PRIu32 " %8" PRIu32 " %8" PRIu64 " %10s ", program->step, program->rank,
           ls_levels_reached[program->level], program->n_ops, program->n_values, kept,
           lb_command_bytes_text(bytes, text));
    for (uint32_t i = 0; i < program->n_scalars; i++) {
        const char *name = lb_program_text(program, program->scalars[i].name);
        if (strcmp(name, "loss") == 0 || strcmp(name, "grad_norm") == 0)
            printf(" %s %.7g", name, shown_number(program->scalars[i].number));
    }
    printf("%s%s%s\n", program->complete ? "" : " incomplete", program->n_notices ? " with notices" : "",
           program->shard == LB_NONE ? "" : " sharded");
}
