/* The kinds of composites and their kernels: see lastbit/composite.h and fused.h. */
#include "fused/fused.h"

#include "fused/eager.h"
#include "orders/schedule.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *about;
} kinds[] = {
#define KIND(NAME, name, about) {name, about},
    LB_COMPOSITE_KINDS(KIND)
#undef KIND
};

static const lb_fused_kind *const fused[LB_COMPOSITE_KIND_COUNT] = {
#define KIND(NAME, ID, FLAGS) [LB_COMPOSITE_##NAME] = &lb_fused_##ID,
    LB_FUSED_KINDS(KIND)
#undef KIND
};

const char *lb_composite_kind_name(lb_composite_kind kind)
{
    return kind < LB_COMPOSITE_KIND_COUNT ? kinds[kind].name : "none";
}
const char *lb_composite_kind_about(lb_composite_kind kind)
{
    return kind < LB_COMPOSITE_KIND_COUNT ? kinds[kind].about : "";
}

bool lb_composite_kind_parse(const char *name, lb_composite_kind *kind)
{
    for (int i = 0; i < LB_COMPOSITE_KIND_COUNT; i++)
        if (!strcmp(name, kinds[i].name)) {
            *kind = (lb_composite_kind)i;
            return true;
        }
    return false;
}

const lb_fused_kind *lb_fused_kind_of(lb_composite_kind kind)
{
    return fused[kind];
}
const lb_composite_kernel *lb_composite_kernels(lb_composite_kind kind)
{
    return fused[kind]->kernels;
}
const char *lb_composite_options(lb_composite_kind kind)
{
    return fused[kind]->options;
}
/* ---- from a kernel's text to the kernel -------------------------------------------------------------------------- */

static bool cut(const char **at, const char *ends, char *out, size_t room)
{
    const size_t n = strcspn(*at, ends);
    if (n >= room) return false;
    memcpy(out, *at, n);
    out[n] = '\0';
    *at += n;
    return true;
}

static lb_status parse_text(const char *text, lb_fused_text *parsed, lb_err *err)
{
    const char *at = text;
    *parsed = (lb_fused_text){0};
    bool ok = cut(&at, ":,", parsed->name, sizeof parsed->name) && *parsed->name;
    if (ok && *at == ':')
        at++, ok = cut(&at, ",", parsed->parameters, sizeof parsed->parameters) && *parsed->parameters;
    while (ok && *at == ',') {
        at++;
        ok = parsed->n_options < sizeof parsed->options / sizeof *parsed->options;
        if (!ok) break;
        ok = cut(&at, ":,", parsed->options[parsed->n_options].key, sizeof parsed->options->key) && *at == ':';
        if (ok) at++, ok = cut(&at, ",", parsed->options[parsed->n_options].value, sizeof parsed->options->value);
        parsed->n_options++;
    }
    return ok && !*at ? LB_OK : lb_fail(err, LB_ERR_INVALID, "\"%s\" is not NAME[:PARAMETERS][,KEY:VALUE...]", text);
}

static lb_status refuse(lb_composite_kind kind, const char *text, lb_err *err)
{
    char all[360] = "eager";
    for (const lb_composite_kernel *kernel = fused[kind]->kernels; kernel->name; kernel++) {
        const size_t n = strlen(all);
        if (!strcmp(kernel->name, "eager")) continue;
        snprintf(all + n, sizeof all - n, " %s", kernel->parameters);
    }
    return lb_fail(err, LB_ERR_INVALID, "%s has no kernel \"%s\"; there are: %s%s%s", kinds[kind].name, text, all,
                   *fused[kind]->options ? "; options: " : "", fused[kind]->options);
}

static lb_status read_kernel(lb_composite_kind kind, const char *text, void *kernel, lb_err *err)
{
    lb_fused_text parsed;
    LB_CHECK(fused[kind]->kernel_size <= LB_FUSED_KERNEL_BYTES);
    LB_TRY(parse_text(text, &parsed, err));
    parsed.kind = kind;
    return fused[kind]->read(&parsed, kernel) ? LB_OK : refuse(kind, text, err);
}

lb_status lb_fused_kernel_of(const lb_call *call, lb_composite_kind kind, void *kernel)
{
    return read_kernel(kind, lb_fused_call_text(call), kernel, call->err);
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

lb_status lb_composite_check(lb_composite_kind kind, const char *kernel, lb_err *err)
{
    _Alignas(max_align_t) char unused[LB_FUSED_KERNEL_BYTES];
    return strcmp(kernel, "eager") ? read_kernel(kind, kernel, unused, err) : LB_OK;
}

uint32_t lb_composite_candidates(const lb_composite *composite, char (*texts)[LB_COMPOSITE_TEXT], uint32_t room)
{
    const lb_fused_kind *kind = fused[composite->kind];
    return kind->fixed ? lb_fused_candidate_add_all(texts, room, 0, kind->fixed)
                       : kind->candidates(composite, texts, room);
}

lb_status lb_composite_run(const lb_composite *composite, const char *kernel, const lb_tensor *inputs,
                           lb_tensor *outputs, lb_err *err)
{
    LB_TRY(lb_composite_check(composite->kind, kernel, err));
    if (!strcmp(kernel, "eager")) return lb_eager_run(composite, inputs, outputs, err);
    const lb_fused_kind *kind = fused[composite->kind];
    lb_operand args[LB_FUSED_ARGS] = {0};
    args[LB_FUSED_KERNEL] = (lb_operand){.tag = LB_OPERAND_STRING, .string = kernel};
    args[LB_FUSED_NUMBERS] =
        (lb_operand){.tag = LB_OPERAND_NUMBERS, .count = LB_COMPOSITE_NUMBERS, .floats = composite->numbers};
    args[LB_FUSED_FLAGS] = (lb_operand){.tag = LB_OPERAND_INT, .i = composite->flags, .f = composite->flags};
    for (int i = 0; i < LB_COMPOSITE_INPUTS; i++)
        if (inputs[i].data) args[LB_FUSED_INPUTS + i] = (lb_operand){.tag = LB_OPERAND_TENSOR, .tensor = inputs[i]};
    if (composite->n_list)
        args[LB_FUSED_LIST] = (lb_operand){
            .tag = LB_OPERAND_TENSORS, .count = composite->n_list, .tensors = inputs + LB_COMPOSITE_INPUTS};
    lb_call call = {.row = lb_op_find(kind->row, NULL),
                    .args = args,
                    .n_args = LB_FUSED_ARGS,
                    .results = outputs,
                    .n_results = LB_COMPOSITE_OUTPUTS,
                    .err = err};
    if ((!inputs[0].data && !composite->n_list) || !outputs[0].data)
        return lb_fail(err, LB_ERR_INVALID, "%s needs input 0 and output 0", kinds[composite->kind].name);
    return kind->run(&call, composite->kind, false);
}

/* ---- parts of a kernel's text ------------------------------------------------------------------------------------ */

static int word_place(const char *words, const char *word)
{
    const size_t n = strlen(word);
    int place = 0;
    for (const char *p = words; *p; p += strcspn(p, "|"), p += *p == '|', place++)
        if (strcspn(p, "|") == n && !strncmp(p, word, n)) return place;
    return -1;
}

int lb_fused_text_choice(const lb_fused_text *text, const char *key, const char *words, int otherwise)
{
    for (uint32_t i = 0; i < text->n_options; i++)
        if (!strcmp(text->options[i].key, key)) return word_place(words, text->options[i].value);
    return otherwise;
}

bool lb_fused_text_keys(const lb_fused_text *text, const char *keys)
{
    for (uint32_t i = 0; i < text->n_options; i++) {
        const size_t n = strlen(text->options[i].key);
        bool known = false;
        for (const char *p = keys; *p && !known; p += strcspn(p, " "), p += *p == ' ')
            known = strcspn(p, " ") == n && !strncmp(p, text->options[i].key, n);
        if (!known || !n) return false;
    }
    return true;
}

bool lb_fused_text_order(const lb_fused_text *text, const char *key, lb_schedule *order, bool *has)
{
    for (uint32_t i = 0; i < text->n_options; i++) {
        if (strcmp(text->options[i].key, key)) continue;
        if (lb_schedule_parse(text->options[i].value, order, NULL) != LB_OK) return false;
        const bool product = !strcmp(key, "gemm");
        if (order->kind == LB_SCHEDULE_TREE || (lb_schedule_of_products(order) && !product)) {
            lb_schedule_release(order);
            return false;
        }
        *has = true;
    }
    return true;
}

int lb_fused_text_numbers(const char *text, int64_t *numbers, int max)
{
    int n = 0;
    if (!*text) return 0;
    for (const char *p = text;; p++) {
        char *end;
        if (!isdigit((unsigned char)*p) || n == max) return -1;
        numbers[n] = strtoll(p, &end, 10);
        if (numbers[n++] < 1) return -1;
        p = end;
        if (!*p) return n;
        if (*p != 'x') return -1;
    }
}

uint32_t lb_fused_candidate_add(char (*texts)[LB_COMPOSITE_TEXT], uint32_t room, uint32_t n, const char *format, ...)
{
    char text[LB_COMPOSITE_TEXT];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    for (uint32_t i = 0; i < n && i < room; i++)
        if (!strcmp(texts[i], text)) return n;
    if (n < room) memcpy(texts[n], text, sizeof text);
    return n + 1;
}

uint32_t lb_fused_candidate_add_all(char (*texts)[LB_COMPOSITE_TEXT], uint32_t room, uint32_t n, const char *words)
{
    for (const char *p = words; *p; p += strcspn(p, " "), p += *p == ' ')
        n = lb_fused_candidate_add(texts, room, n, "%.*s", (int)strcspn(p, " "), p);
    return n;
}

/* ---- rows of the op table ---------------------------------------------------------------------------------------- */

#define INPUTS "kernel numbers flags input0 input1 input2 input3 input4 input5 input6 input7 list?[]"
#define FUNCTIONS(NAME, ID, FLAGS) LB_WITH_TWIN(ID, lb_fused_##ID.run(call, LB_COMPOSITE_##NAME, twin))
LB_FUSED_KINDS(FUNCTIONS)

#define ROW(NAME, ID, FLAGS)                                                                                           \
    {.name = "fused::" #ID, .args = INPUTS, LB_COMPUTED_BY(ID), .roundings = 1, .flags = FLAGS, .samples = "fused"},
static const lb_op_row rows[] = {LB_FUSED_KINDS(ROW){NULL}};

/* These kernels run ops of the table, so that the table cannot name them. */
__attribute__((constructor)) static void join_table(void)
{
    lb_op_family_add(rows);
}
