/* The verdict of a bisection for a person: see lastbit/bisect.h. */
#define _GNU_SOURCE /* open_memstream */
#include <lastbit/bisect.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *block_name(char letter)
{
    switch (letter) {
    case 'A': return "attention";
    case 'D': return "dense MLP";
    case 'E': return "mixture of experts";
    case 'M': return "Mamba/SSM";
    case 'R': return "recurrent";
    default: return "";
    }
}

static void print_ranks(FILE *out, const lb_culprit *c)
{
    fprintf(out, c->n_ranks == 1 ? "rank " : "ranks ");
    for (uint32_t i = 0; i < c->n_ranks && i < 16; i++) fprintf(out, "%s%d", i ? ", " : "", c->ranks[i]);
    if (c->n_ranks > 16) fprintf(out, ", … (%u)", c->n_ranks);
}

static void print_culprit(FILE *out, const lb_culprit *c)
{
    fprintf(out, "culprit   %s: %s", lb_axis_name(c->axis), *c->layer ? c->layer : "(outside every module)");
    if (*c->op) fprintf(out, "  %s", c->op);
    fprintf(out, "  %s of step %" PRId64 ", ", lb_phase_name(c->phase), c->step);
    print_ranks(out, c);
    if (c->block) fprintf(out, ", block %c (%s)", c->block, block_name(c->block));
    fprintf(out, "\n          %s\n", c->why);
}

/* Culprits that differ from the first in their layer alone share a line. */
static void print_culprits(FILE *out, const lb_bisection *b)
{
    uint32_t alike = 0;
    print_culprit(out, &b->culprits[0]);
    for (uint32_t i = 1; i < b->n_culprits; i++) {
        const lb_culprit *c = &b->culprits[i], *first = &b->culprits[0];
        bool like = c->axis == first->axis && c->step == first->step && c->phase == first->phase;
        if (!like || b->n_culprits == 2)
            print_culprit(out, c);
        else if (++alike == 1)
            fprintf(out, "          likewise: %s", c->layer);
        else if (alike <= 6)
            fprintf(out, ", %s", c->layer);
    }
    if (alike > 6) fprintf(out, " and %u more", alike - 6);
    if (alike) fputc('\n', out);
}

static void print_found(FILE *out, const lb_bisection *b, const char *path)
{
    const lb_failure *f = &b->failure;
    if (f->kind != LB_FAILURE_NONE) {
        fprintf(out, "failure   step %" PRId64 " rank %d: %s", f->step, f->rank, f->what);
        if (*f->name) fprintf(out, " (%s%s%s)", f->layer, *f->layer ? " " : "", f->name);
        fputc('\n', out);
    }
    if (b->n_culprits) print_culprits(out, b);
    if (f->kind != LB_FAILURE_NONE && b->n_culprits && b->culprits[0].step < f->step)
        fprintf(out, "          It acts in step %" PRId64 "; the failure shows in step %" PRId64 ".\n",
                b->culprits[0].step, f->step);
    if (b->cure) {
        bool command = !strncmp(b->cure, "--", 2);
        if (command && strlen(b->cure) < 240)
            fprintf(out, "cure      lastbit replay --mode chained %s %s\n", b->cure, path);
        else
            fprintf(out, "cure      %.200s%s\n", b->cure,
                    strlen(b->cure) > 200 ? "… (--json has all of it)" : "");
    }
    if (b->reproducer)
        fprintf(out, "shows it  lastbit replay --mode chained %s\n", b->reproducer);
    else if (b->reference)
        fprintf(out, "shows it  lastbit diff %s %s\n", path, b->reference);
    else
        fprintf(out, "shows it  lastbit bisect %s\n", path);
}

char *lb_bisection_text(const lb_bisection *b, const char *path)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out) return NULL;
    switch (b->outcome) {
    case LB_BISECT_CLEAN: fprintf(out, "clean     no failure in this window\n"); break;
    case LB_BISECT_NOT_REPRODUCED:
        fprintf(out, "not reproduced: the recording fails in step %" PRId64 " (%s), its replay does not\n",
                b->failure.step, b->failure.what);
        break;
    case LB_BISECT_UNDECIDED:
        fprintf(out, "undecided");
        if (b->failure.kind != LB_FAILURE_NONE)
            fprintf(out, " step %" PRId64 " rank %d fails (%s), and no single change that was tried cures it",
                    b->failure.step, b->failure.rank, b->failure.what);
        fputc('\n', out);
        break;
    case LB_BISECT_FOUND: print_found(out, b, path); break;
    }
    for (uint32_t i = 0; i < b->n_stages; i++) {
        const lb_stage *s = &b->stages[i];
        fprintf(out, "%s %-10s %s%s%s", i ? "         " : "tried    ", s->name, s->outcome,
                *s->note ? ": " : "", s->note);
        if (s->trials) fprintf(out, " (%u %s)", s->trials, s->trials == 1 ? "trial" : "trials");
        fputc('\n', out);
    }
    if (b->note) fprintf(out, "note      %s\n", b->note);
    fclose(out);
    return text;
}
