/* Trees of additions as text and as JSON. See lastbit/order.h for both forms. */
#include "orders/sum_tree.h"

#include <lastbit/decode_limit.h>
#include <lastbit/input.h>
#include <lastbit/input_lines.h>
#include "base/array.h"
#include <ctype.h>
#include <errno.h>
#include <lastbit/json_text.h>
#include <lastbit/text_stream.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 1 << 28 };

/* Numbers that grow. */
typedef struct list {
    uint32_t *at;
    size_t n;
} list;

static bool push(list *list, uint32_t x)
{
    uint32_t *grown = lb_array_grow(list->at, list->n, sizeof *grown);
    if (!grown) return false;
    list->at = grown;
    list->at[list->n++] = x;
    return true;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct reader {
    const char *text, *at;
    lb_tree_builder builder;
    list items; /* of all open brackets */
    list open;  /* for each of them, where its items start, and its character */
    uint32_t leaves, seen;
    lb_err *err;
} reader;

static lb_status broken(const reader *reader, const char *why)
{
    return lb_fail(reader->err, LB_ERR_INVALID, "tree, character %zu: %s", (size_t)(reader->at - reader->text) + 1,
                   why);
}

static bool number(const char **at, uint32_t *x)
{
    if (!isdigit((unsigned char)**at)) return false;
    uint64_t value = 0;
    for (; isdigit((unsigned char)**at); (*at)++)
        if ((value = value * 10 + (uint64_t)(**at - '0')) > LB_TREE_MAX_LEAVES) return false;
    *x = (uint32_t)value;
    return true;
}

typedef struct range {
    uint32_t from, to, step;
} range;

/* "A", "A..B" or "A..B/STEP"; B may be below A. */
static lb_status read_range(reader *reader, range *range)
{
    if (!number(&reader->at, &range->from)) return broken(reader, "expected a term, ( or [");
    range->to = range->from;
    range->step = 1;
    if (reader->at[0] != '.' || reader->at[1] != '.') return LB_OK;
    reader->at += 2;
    if (!number(&reader->at, &range->to)) return broken(reader, "expected the last term of a range");
    if (*reader->at == '/') {
        reader->at++;
        if (!number(&reader->at, &range->step) || !range->step) return broken(reader, "expected the step of a range");
    }
    const uint32_t distance = range->to > range->from ? range->to - range->from : range->from - range->to;
    return distance % range->step ? broken(reader, "the range does not meet its last term") : LB_OK;
}

/* The largest term, so that nodes can be numbered while they are read. */
static lb_status count_leaves(reader *reader)
{
    for (reader->at = reader->text; *reader->at;) {
        range range;
        if (!isdigit((unsigned char)*reader->at)) {
            reader->at++;
            continue;
        }
        LB_TRY(read_range(reader, &range));
        if (range.from >= reader->leaves) reader->leaves = range.from + 1;
        if (range.to >= reader->leaves) reader->leaves = range.to + 1;
    }
    if (reader->leaves > LB_TREE_MAX_LEAVES) return broken(reader, "too many terms");
    reader->at = reader->text;
    return reader->leaves ? LB_OK : broken(reader, "no term");
}

static lb_status read_terms(reader *reader)
{
    range range;
    LB_TRY(read_range(reader, &range));
    const uint32_t count = (range.to > range.from ? range.to - range.from : range.from - range.to) / range.step + 1;
    if (reader->seen + count > reader->leaves) return broken(reader, "more terms than there are: one is added twice");
    reader->seen += count;
    for (uint32_t i = 0; i < count; i++)
        if (!push(&reader->items, range.to > range.from ? range.from + i * range.step : range.from - i * range.step))
            return lb_fail(reader->err, LB_ERR_NOMEM, "out of memory");
    return LB_OK;
}

static lb_status close_bracket(reader *reader, char bracket)
{
    if (!reader->open.n) return broken(reader, "a bracket closes that was not opened");
    const uint32_t kind = reader->open.at[reader->open.n - 1];
    const size_t start = reader->open.at[reader->open.n - 2], count = reader->items.n - start;
    if ((kind == '(') != (bracket == ')')) return broken(reader, "the other kind of bracket is open");
    if (count < 2) return broken(reader, "an addition needs two operands");
    uint32_t *operands = reader->items.at + start, sum = operands[0];
    if (kind == '(')
        sum = lb_tree_fuse(&reader->builder, operands, (uint32_t)count);
    else
        for (size_t i = 1; i < count; i++) sum = lb_tree_add(&reader->builder, sum, operands[i]);
    reader->open.n -= 2;
    reader->items.n = start;
    operands[0] = sum;
    reader->items.n++;
    reader->at++;
    return LB_OK;
}

static lb_status read_all(reader *reader)
{
    while (*reader->at) {
        const char c = *reader->at;
        if (isspace((unsigned char)c))
            reader->at++;
        else if (c == '(' || c == '[') {
            if (!push(&reader->open, (uint32_t)reader->items.n) || !push(&reader->open, (uint32_t)c))
                return lb_fail(reader->err, LB_ERR_NOMEM, "out of memory");
            reader->at++;
        } else if (c == ')' || c == ']')
            LB_TRY(close_bracket(reader, c));
        else
            LB_TRY(read_terms(reader));
    }
    if (reader->open.n) return broken(reader, "a bracket is still open");
    return reader->items.n == 1 ? LB_OK : broken(reader, "more than one tree");
}

lb_status lb_sum_tree_parse(const char *text, lb_sum_tree **tree, lb_err *err)
{
    *tree = NULL;
    reader reader = {.text = text, .err = err};
    lb_status status = count_leaves(&reader);
    if (status == LB_OK) {
        reader.builder = lb_tree_begin(reader.leaves);
        status = read_all(&reader);
        if (status == LB_OK)
            status = lb_tree_end(&reader.builder, tree, err);
        else
            lb_sum_tree_free(reader.builder.tree);
    }
    free(reader.items.at);
    free(reader.open.at);
    return status;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

typedef struct writer {
    const lb_sum_tree *tree;
    const uint32_t *size;
    FILE *out;
    list work; /* operands still to be written, last one first; or CLOSE + a character */
    bool space;
} writer;
enum { CLOSE = 0x40000000 };

static uint32_t size_of(const writer *writer, uint32_t x)
{
    return x < writer->tree->leaves ? 1 : writer->size[x - writer->tree->leaves];
}

/* The elements of the chain that ends in binary node x: follows the operand that is at least twice as large as the
 * other. */
static bool chain_elements(const writer *writer, uint32_t x, list *elements)
{
    const lb_sum_tree *tree = writer->tree;
    for (;;) {
        const uint32_t node = x < tree->leaves ? 0 : x - tree->leaves, *operand = tree->operand + tree->first[node];
        if (x < tree->leaves || tree->first[node + 1] - tree->first[node] != 2) return push(elements, x);
        const uint32_t a = size_of(writer, operand[0]), b = size_of(writer, operand[1]);
        if (a < 2 * b && b < 2 * a) return push(elements, operand[1]) && push(elements, operand[0]);
        if (!push(elements, operand[a > b])) return false;
        x = operand[a < b];
    }
}

static void reverse(list *list)
{
    for (size_t i = 0, j = list->n; i + 1 < j; i++) {
        const uint32_t x = list->at[--j];
        list->at[j] = list->at[i];
        list->at[i] = x;
    }
}

/* A chain that runs down starts with the larger of its first two terms. */
static void order_first_two(const writer *writer, list *list)
{
    if (list->n > 2 && list->at[0] < writer->tree->leaves && list->at[1] < writer->tree->leaves &&
        list->at[2] < list->at[0]) {
        const uint32_t x = list->at[0];
        list->at[0] = list->at[1];
        list->at[1] = x;
    }
}

static void put_space(writer *writer)
{
    if (writer->space) fputc(' ', writer->out);
    writer->space = true;
}

/* The terms in a row, of equal distance, from element i on; returns how many were written. */
static size_t put_terms(writer *writer, const list *list, size_t i)
{
    const uint32_t leaves = writer->tree->leaves, *x = list->at;
    size_t n = 1;
    while (i + n < list->n && x[i + n] < leaves && (n == 1 || x[i + n] - x[i + n - 1] == x[i + 1] - x[i])) n++;
    if (n < 3) n = 1;
    put_space(writer);
    fprintf(writer->out, "%u", x[i]);
    if (n == 1) return 1;
    const uint32_t step = x[i + 1] > x[i] ? x[i + 1] - x[i] : x[i] - x[i + 1];
    fprintf(writer->out, "..%u", x[i + n - 1]);
    if (step > 1) fprintf(writer->out, "/%u", step);
    return n;
}

/* Writes what it can of a bracket's elements; from the first node on the rest waits in `work`. */
static bool put_elements(writer *writer, const list *list)
{
    size_t i = 0;
    while (i < list->n && list->at[i] < writer->tree->leaves) i += put_terms(writer, list, i);
    for (size_t k = list->n; k > i; k--)
        if (!push(&writer->work, list->at[k - 1])) return false;
    return true;
}

static bool put_node(writer *writer, uint32_t x, list *elements)
{
    const lb_sum_tree *tree = writer->tree;
    const uint32_t node = x - tree->leaves, n = tree->first[node + 1] - tree->first[node];
    elements->n = 0;
    if (n == 2 && !chain_elements(writer, x, elements)) return false;
    for (uint32_t k = n; n > 2 && k > 0; k--)
        if (!push(elements, tree->operand[tree->first[node] + k - 1])) return false;
    reverse(elements);
    if (n == 2) order_first_two(writer, elements);
    const bool chain = n == 2 && elements->n > 2;
    put_space(writer);
    fputc(chain ? '[' : '(', writer->out);
    writer->space = false;
    return push(&writer->work, CLOSE + (chain ? ']' : ')')) && put_elements(writer, elements);
}

/* Terms that follow each other in `work` are written together. */
static bool put_waiting_terms(writer *writer, list *elements)
{
    elements->n = 0;
    while (writer->work.n && writer->work.at[writer->work.n - 1] < writer->tree->leaves)
        if (!push(elements, writer->work.at[--writer->work.n])) return false;
    for (size_t i = 0; i < elements->n;) i += put_terms(writer, elements, i);
    return true;
}

static bool put_tree(writer *writer)
{
    list elements = {0};
    bool fine = push(&writer->work, writer->tree->leaves + writer->tree->nodes - 1);
    while (fine && writer->work.n) {
        const uint32_t x = writer->work.at[writer->work.n - 1];
        if (x < writer->tree->leaves) {
            fine = put_waiting_terms(writer, &elements);
            continue;
        }
        writer->work.n--;
        if (x >= CLOSE) {
            fputc((int)(x - CLOSE), writer->out);
            writer->space = true;
        } else
            fine = put_node(writer, x, &elements);
    }
    free(elements.at);
    return fine;
}

char *lb_sum_tree_print(const lb_sum_tree *tree)
{
    char *text = NULL;
    size_t size = 0;
    lb_sum_tree *canonical = lb_sum_tree_canonical(tree);
    uint32_t *sizes = canonical ? lb_sum_tree_sizes(canonical) : NULL;
    writer writer = {.tree = canonical, .size = sizes, .out = lb_text_stream_open(&text, &size)};
    bool fine = sizes && writer.out && put_tree(&writer);
    if (writer.out) fine &= !fclose(writer.out);
    free(writer.work.at);
    free(sizes);
    lb_sum_tree_free(canonical);
    if (fine) return text;
    free(text);
    return NULL;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

char *lb_sum_tree_to_json(const lb_sum_tree *tree, const char *name)
{
    char *text = lb_sum_tree_print(tree), *out = NULL;
    lb_sum_tree *canonical = lb_sum_tree_canonical(tree);
    json_t *nodes = json_array(), *all = NULL;
    for (uint32_t i = 0; canonical && i < canonical->nodes; i++) {
        json_t *node = json_array();
        for (uint32_t k = canonical->first[i]; k < canonical->first[i + 1]; k++)
            json_array_append_new(node, json_integer(canonical->operand[k]));
        json_array_append_new(nodes, node);
    }
    if (canonical && text)
        all = json_pack("{s:s, s:I, s:s*, s:s, s:O}", "schema", "lastbit.tree/1", "leaves",
                        (json_int_t)canonical->leaves, "name", name, "text", text, "nodes", nodes);
    if (all && tree->rounded) json_object_set_new(all, "products", json_string("rounded"));
    if (all) out = json_dumps(all, JSON_COMPACT);
    json_decref(all);
    json_decref(nodes);
    lb_sum_tree_free(canonical);
    free(text);
    return out;
}

static lb_status nodes_from_json(const json_t *nodes, lb_tree_builder *builder, lb_err *err)
{
    for (size_t i = 0; i < json_array_size(nodes) && !builder->failed; i++) {
        const json_t *node = json_array_get(nodes, i);
        const size_t n = json_array_size(node);
        uint32_t *operands = n >= 2 && n <= LB_TREE_MAX_LEAVES ? malloc(n * sizeof *operands) : NULL;
        if (!operands) return lb_fail(err, LB_ERR_INVALID, "tree: node %zu is not a list of two operands or more", i);
        bool fine = true;
        for (size_t k = 0; k < n; k++) {
            const json_t *x = json_array_get(node, k);
            const json_int_t value = json_is_integer(x) ? json_integer_value(x) : -1;
            fine &= value >= 0 && value < (json_int_t)(builder->tree->leaves + i);
            operands[k] = fine ? (uint32_t)value : 0;
        }
        if (fine) lb_tree_fuse(builder, operands, (uint32_t)n);
        free(operands);
        if (!fine) return lb_fail(err, LB_ERR_INVALID, "tree: node %zu adds what no node before it gives", i);
    }
    return LB_OK;
}

lb_status lb_sum_tree_from_json(const char *text, lb_sum_tree **tree, lb_err *err)
{
    *tree = NULL;
    json_error_t where;
    json_t *all = lb_decode_limit_json(text, strlen(text), 0, lb_decode_limit_room(), &where);
    if (!all) return lb_fail(err, LB_ERR_INVALID, "tree: no JSON: %s, line %d", where.text, where.line);
    const json_int_t leaves = json_integer_value(json_object_get(all, "leaves"));
    const json_t *nodes = json_object_get(all, "nodes");
    lb_status status = LB_OK;
    if (leaves < 1 || leaves > LB_TREE_MAX_LEAVES || !json_is_array(nodes))
        status = lb_fail(err, LB_ERR_INVALID, "tree: \"leaves\" (1 to %u) and a list \"nodes\" are needed",
                         LB_TREE_MAX_LEAVES);
    if (status == LB_OK) {
        lb_tree_builder builder = lb_tree_begin((uint32_t)leaves);
        const char *products = json_string_value(json_object_get(all, "products"));
        status = nodes_from_json(nodes, &builder, err);
        if (status == LB_OK)
            status = lb_tree_end(&builder, tree, err);
        else
            lb_sum_tree_free(builder.tree);
        if (status == LB_OK) (*tree)->rounded = products && !strcmp(products, "rounded");
    }
    json_decref(all);
    return status;
}

lb_status lb_sum_tree_read(const char *path, lb_sum_tree **tree, lb_err *err)
{
    *tree = NULL;
    FILE *file;
    if (lb_input_stream(path, &file, err) != LB_OK)
        return LB_ERR_IO; /* NOT_FOUND would be a step that was not recorded */
    char *text;
    size_t size;
    const uint64_t room = lb_decode_limit_room();
    LB_TRY(lb_input_lines_rest(file, path, room < MAX_FILE ? room : MAX_FILE, &text, &size, err));
    lb_err inner = LB_ERR_INIT;
    const char *start = text + strspn(text, " \t\r\n");
    lb_status status =
        *start == '{' ? lb_sum_tree_from_json(start, tree, &inner) : lb_sum_tree_parse(start, tree, &inner);
    if (status == LB_ERR_INVALID) status = LB_ERR_IO; /* as of a missing file: no argument is wrong */
    if (status != LB_OK && inner.status) lb_fail(err, status, "%s: %s", path, inner.message);
    free(text);
    return status;
}
