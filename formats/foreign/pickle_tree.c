/* See pickle_tree.h. A pickle is a program for a stack machine; here every opcode only builds. */
#include "foreign/pickle_tree.h"

#include "base/array.h"
#include <lastbit/decode_limit.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ------------------------------------------------------------------------------------------------------ */

#define CHUNK 16384

typedef struct lb_pickle_chunk {
    struct lb_pickle_chunk *next;
    size_t used, size;
    char bytes[];
} chunk;

typedef struct machine {
    const uint8_t *start, *at, *end;
    const char *source;
    uint64_t offset;
    lb_err *err;
    lb_pickle_tree *tree;
    lb_pickle **stack, **memo;
    uint32_t *marks; /* heights of the stack */
    size_t n_stack, n_memo, n_marks;
    uint32_t stack_room, memo_room, mark_room;
    bool framed;   /* a frame began, and all of it is there */
    bool cut;      /* the bytes end before the pickle does */
    uint64_t left; /* bytes that the tree may still take */
    bool limited;  /* it may not */
} machine;

static lb_pickle none = {LB_PICKLE_NONE, 0, 0, {0}}, yes = {LB_PICKLE_BOOL, 0, 0, {1}},
                 no = {LB_PICKLE_BOOL, 0, 0, {0}};

static lb_status bad(machine *machine, const char *what)
{
    return lb_fail(machine->err, LB_ERR_CORRUPT, "%s: offset %" PRIu64 ": pickle: %s", machine->source,
                   machine->offset + (uint64_t)(machine->at - machine->start), what);
}

/* What is read next is not all there. Within a whole frame that is no end of the file but a wrong length. */
static lb_status lacks(machine *machine, const char *what)
{
    machine->cut = machine->cut || !machine->framed;
    return bad(machine, what);
}

static lb_status no_memory(machine *machine)
{
    if (machine->limited)
        return lb_fail(machine->err, LB_ERR_LIMIT,
                       "%s: offset %" PRIu64 ": pickle: its objects take more than %" PRIu64
                       " MB; if they are meant to, --max-decoded with a larger size reads it",
                       machine->source, machine->offset + (uint64_t)(machine->at - machine->start),
                       lb_decode_limit_room() >> 20);
    return lb_fail(machine->err, LB_ERR_NOMEM, "%s: pickle: out of memory", machine->source);
}

static void *take_memory(machine *machine, size_t size)
{
    chunk *last = machine->tree->chunks;
    size = (size + 15) / 16 * 16;
    if (!last || last->size - last->used < size) {
        size_t room = size > CHUNK ? size : CHUNK;
        if (room > machine->left) {
            machine->limited = true;
            return NULL;
        }
        last = (chunk *)malloc(sizeof *last + room);
        if (!last) return NULL;
        machine->left -= room;
        *last = (chunk){machine->tree->chunks, 0, room};
        machine->tree->chunks = last;
    }
    last->used += size;
    return last->bytes + last->used - size;
}

static bool add_item(machine *machine, lb_pickle *to, lb_pickle *item)
{
    if (to->n == to->room) {
        uint32_t wanted = to->room ? to->room * 2 : 4;
        lb_pickle **grown = wanted > to->room ? (lb_pickle **)take_memory(machine, wanted * sizeof *grown) : NULL;
        if (!grown) return false;
        if (to->n) memcpy(grown, to->u.items, to->n * sizeof *grown);
        to->u.items = grown;
        to->room = wanted;
    }
    to->u.items[to->n++] = item;
    return true;
}

#define GROW(array, n, room)                                                                                           \
    ((grown = lb_array_fit((array), &(room), (n) + 1, sizeof *(array))) && ((array) = grown, true))

static lb_status push(machine *machine, lb_pickle *node)
{
    void *grown;
    if (!node || !GROW(machine->stack, machine->n_stack, machine->stack_room)) return no_memory(machine);
    machine->stack[machine->n_stack++] = node;
    return LB_OK;
}

static lb_pickle *make(machine *machine, lb_pickle_type type)
{
    lb_pickle *node = (lb_pickle *)take_memory(machine, sizeof *node);
    if (node) *node = (lb_pickle){.type = type};
    return node;
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* Nothing is popped below the last mark. */
static lb_status pop(machine *machine, lb_pickle **node)
{
    size_t floor = machine->n_marks ? machine->marks[machine->n_marks - 1] : 0;
    if (machine->n_stack <= floor) return bad(machine, "takes from an empty stack");
    *node = machine->stack[--machine->n_stack];
    return LB_OK;
}

static lb_status top(machine *machine, lb_pickle **node)
{
    LB_TRY(pop(machine, node));
    machine->n_stack++;
    return LB_OK;
}

static lb_status take_number(machine *machine, unsigned width, uint64_t *number)
{
    *number = 0;
    if ((size_t)(machine->end - machine->at) < width) return lacks(machine, "ends inside a number");
    memcpy(number, machine->at, width); /* little-endian */
    machine->at += width;
    return LB_OK;
}

static lb_status push_integer(machine *machine, int64_t number)
{
    lb_pickle *node = make(machine, LB_PICKLE_INT);
    if (node) node->u.i = number;
    return push(machine, node);
}

/* A text whose length takes `width` bytes. */
static lb_status push_text(machine *machine, unsigned width)
{
    uint64_t n = 0;
    LB_TRY(take_number(machine, width, &n));
    if (n > (uint64_t)(machine->end - machine->at) || n > UINT32_MAX)
        return lacks(machine, "a text is longer than what is left");
    lb_pickle *node = make(machine, LB_PICKLE_TEXT);
    if (node) {
        node->u.text = (const char *)machine->at;
        node->n = (uint32_t)n;
    }
    machine->at += n;
    return push(machine, node);
}

/* LONG1: two's complement of any width. */
static lb_status push_long(machine *machine)
{
    if (machine->at < machine->end && *machine->at > 8) return push_text(machine, 1);
    uint64_t n, bits = 0;
    LB_TRY(take_number(machine, 1, &n));
    LB_TRY(take_number(machine, (unsigned)n, &bits));
    unsigned unused = 64 - 8 * (unsigned)n;
    return push_integer(machine, n == 0 ? 0 : (int64_t)(bits << unused) >> unused);
}

static lb_status push_float(machine *machine)
{
    uint64_t bits;
    LB_TRY(take_number(machine, 8, &bits));
    bits = __builtin_bswap64(bits);
    lb_pickle *node = make(machine, LB_PICKLE_FLOAT);
    if (node) memcpy(&node->u.f, &bits, 8);
    return push(machine, node);
}

static lb_status push_line(machine *machine)
{
    const uint8_t *newline = (const uint8_t *)memchr(machine->at, '\n', (size_t)(machine->end - machine->at));
    if (!newline || newline - machine->at > 65536) return lacks(machine, "a name has no end");
    lb_pickle *node = make(machine, LB_PICKLE_TEXT);
    if (node) {
        node->u.text = (const char *)machine->at;
        node->n = (uint32_t)(newline - machine->at);
    }
    machine->at = newline + 1;
    return push(machine, node);
}

/* ---- building ---------------------------------------------------------------------------------------------------- */

/* A new node with the top `n` of the stack as items. */
static lb_status gather(machine *machine, lb_pickle_type type, size_t n)
{
    size_t floor = machine->n_marks ? machine->marks[machine->n_marks - 1] : 0;
    if (machine->n_stack - floor < n) return bad(machine, "takes from an empty stack");
    lb_pickle *node = make(machine, type);
    for (size_t i = 0; i < n && node; i++)
        if (!add_item(machine, node, machine->stack[machine->n_stack - n + i])) node = NULL;
    machine->n_stack -= n;
    return push(machine, node);
}

static lb_status take_mark(machine *machine, size_t *n)
{
    if (machine->n_marks == 0) return bad(machine, "has no mark to go back to");
    *n = machine->n_stack - machine->marks[machine->n_marks - 1];
    machine->n_marks--;
    return LB_OK;
}

static lb_status gather_to_mark(machine *machine, lb_pickle_type type)
{
    size_t n = 0;
    LB_TRY(take_mark(machine, &n));
    if (type == LB_PICKLE_DICT && n % 2) return bad(machine, "a dict lacks a value");
    return gather(machine, type, n);
}

/* The top `n` become items of what lies below them. */
static lb_status add_items(machine *machine, size_t n, bool pairs)
{
    size_t floor = machine->n_marks ? machine->marks[machine->n_marks - 1] : 0;
    if (machine->n_stack - floor < n + 1) return bad(machine, "takes from an empty stack");
    lb_pickle *to = machine->stack[machine->n_stack - n - 1];
    bool fits = pairs ? to->type == LB_PICKLE_DICT || to->type == LB_PICKLE_CALL : to->type == LB_PICKLE_LIST;
    if (!fits || (pairs && n % 2)) return bad(machine, "adds to what is not a list or dict");
    for (size_t i = 0; i < n; i++)
        if (!add_item(machine, to, machine->stack[machine->n_stack - n + i])) return no_memory(machine);
    machine->n_stack -= n;
    return LB_OK;
}

static lb_status add_marked(machine *machine, bool pairs)
{
    size_t n = 0;
    LB_TRY(take_mark(machine, &n));
    return add_items(machine, n, pairs);
}

/* callable, args → an object without state yet. `extra`: NEWOBJ_EX has keyword arguments, which are dropped. */
static lb_status call(machine *machine, bool extra)
{
    lb_pickle *dropped;
    if (extra) LB_TRY(pop(machine, &dropped));
    LB_TRY(gather(machine, LB_PICKLE_CALL, 2));
    return add_item(machine, machine->stack[machine->n_stack - 1], NULL) ? LB_OK : no_memory(machine);
}

static lb_status build(machine *machine)
{
    lb_pickle *state = NULL, *object = NULL;
    LB_TRY(pop(machine, &state));
    LB_TRY(top(machine, &object));
    if (object->type != LB_PICKLE_CALL) return bad(machine, "gives a state to what is not an object");
    object->u.items[2] = state;
    return LB_OK;
}

static lb_status push_global(machine *machine, bool from_stack)
{
    if (!from_stack) {
        LB_TRY(push_line(machine));
        LB_TRY(push_line(machine));
    }
    LB_TRY(gather(machine, LB_PICKLE_GLOBAL, 2));
    const lb_pickle *pickle = machine->stack[machine->n_stack - 1];
    return pickle->u.items[0]->type == LB_PICKLE_TEXT && pickle->u.items[1]->type == LB_PICKLE_TEXT
               ? LB_OK
               : bad(machine, "a class has no name");
}

/* Numbers of the memo come in order: anything else would only make it large. */
static lb_status remember(machine *machine, uint64_t index)
{
    lb_pickle *node = NULL;
    void *grown;
    LB_TRY(top(machine, &node));
    if (index > machine->n_memo) return bad(machine, "numbers of the memo come in order");
    if (index == machine->n_memo) {
        if (!GROW(machine->memo, machine->n_memo, machine->memo_room)) return no_memory(machine);
        machine->n_memo++;
    }
    machine->memo[index] = node;
    return LB_OK;
}

static lb_status recall(machine *machine, uint64_t index)
{
    return index < machine->n_memo ? push(machine, machine->memo[index])
                                   : bad(machine, "recalls what it never remembered");
}

static lb_status push_mark(machine *machine)
{
    void *grown;
    if (!GROW(machine->marks, machine->n_marks, machine->mark_room)) return no_memory(machine);
    machine->marks[machine->n_marks++] = (uint32_t)machine->n_stack;
    return LB_OK;
}

/* Reading needs no frames. One that reaches past the end says that the file was cut. */
static lb_status pass_frame(machine *machine)
{
    uint64_t size;
    LB_TRY(take_number(machine, 8, &size));
    machine->framed = size <= (uint64_t)(machine->end - machine->at);
    machine->cut = machine->cut || !machine->framed;
    return LB_OK;
}

/* ---- opcodes ----------------------------------------------------------------------------------------------------- */

static lb_status step(machine *machine, uint8_t code)
{
    uint64_t number = 0;
    lb_pickle *dropped = NULL;
    size_t n = 0;
    switch (code) {
    case 0x80: return take_number(machine, 1, &number); /* PROTO */
    case 0x95: return pass_frame(machine);              /* FRAME */
    case '(': return push_mark(machine);
    case '0': return pop(machine, &dropped);
    case '1': LB_TRY(take_mark(machine, &n)); return machine->n_stack -= n, LB_OK;
    case '2': LB_TRY(top(machine, &dropped)); return push(machine, dropped);
    case 'N': return push(machine, &none);
    case 0x88: return push(machine, &yes);
    case 0x89: return push(machine, &no);
    case 'J': LB_TRY(take_number(machine, 4, &number)); return push_integer(machine, (int32_t)number);
    case 'K': LB_TRY(take_number(machine, 1, &number)); return push_integer(machine, (int64_t)number);
    case 'M': LB_TRY(take_number(machine, 2, &number)); return push_integer(machine, (int64_t)number);
    case 0x8a: return push_long(machine);
    case 'G': return push_float(machine);
    case 0x8c:
    case 'U':
    case 'C': return push_text(machine, 1);
    case 'X':
    case 'T':
    case 'B': return push_text(machine, 4);
    case 0x8d:
    case 0x8e:
    case 0x96: return push_text(machine, 8);
    case ']':
    case ')':
    case 0x8f: return gather(machine, LB_PICKLE_LIST, 0);
    case '}': return gather(machine, LB_PICKLE_DICT, 0);
    case 0x85:
    case 0x86:
    case 0x87: return gather(machine, LB_PICKLE_LIST, code - 0x84u);
    case 't':
    case 'l':
    case 0x91: return gather_to_mark(machine, LB_PICKLE_LIST);
    case 'd': return gather_to_mark(machine, LB_PICKLE_DICT);
    case 'a': return add_items(machine, 1, false);
    case 'e':
    case 0x90: return add_marked(machine, false);
    case 's': return add_items(machine, 2, true);
    case 'u': return add_marked(machine, true);
    case 'c': return push_global(machine, false);
    case 0x93: return push_global(machine, true);
    case 'R':
    case 0x81: return call(machine, false);
    case 0x92: return call(machine, true);
    case 'b': return build(machine);
    case 'Q': return gather(machine, LB_PICKLE_PERSISTENT, 1);
    case 0x94: return remember(machine, machine->n_memo);
    case 'q': LB_TRY(take_number(machine, 1, &number)); return remember(machine, number);
    case 'r': LB_TRY(take_number(machine, 4, &number)); return remember(machine, number);
    case 'h': LB_TRY(take_number(machine, 1, &number)); return recall(machine, number);
    case 'j': LB_TRY(take_number(machine, 4, &number)); return recall(machine, number);
    default: break;
    }
    machine->at--;
    return lb_fail(machine->err, LB_ERR_UNSUPPORTED, "%s: offset %" PRIu64 ": pickle: opcode 0x%02x is not read",
                   machine->source, machine->offset + (uint64_t)(machine->at - machine->start), code);
}

static lb_status run(const void *bytes, size_t size, const char *source, uint64_t offset, lb_pickle_tree *tree,
                     bool *cut, lb_err *err)
{
    const uint8_t *start = (const uint8_t *)bytes;
    machine machine = {.start = start,
                       .at = start,
                       .end = start + size,
                       .source = source,
                       .offset = offset,
                       .err = err,
                       .tree = tree,
                       .left = lb_decode_limit_room()};
    *tree = (lb_pickle_tree){NULL, NULL};
    lb_status status = LB_OK;
    lb_pickle *root = NULL;
    while (status == LB_OK && machine.at < machine.end && *machine.at != '.') {
        uint8_t code = *machine.at++;
        status = step(&machine, code);
    }
    if (status == LB_OK && machine.at == machine.end) {
        machine.cut = true;
        status = bad(&machine, "has no end");
    }
    *cut = status != LB_OK && machine.cut;
    if (status == LB_OK) status = pop(&machine, &root);
    tree->root = root;
    free(machine.stack);
    free(machine.memo);
    free(machine.marks);
    if (status != LB_OK) lb_pickle_release(tree);
    return status;
}

lb_status lb_pickle_read(const void *bytes, size_t size, const char *source, uint64_t offset, lb_pickle_tree *tree,
                         lb_err *err)
{
    bool cut;
    return run(bytes, size, source, offset, tree, &cut, err);
}

bool lb_pickle_is_cut(const void *bytes, size_t size)
{
    lb_pickle_tree tree;
    bool cut;
    if (run(bytes, size, "", 0, &tree, &cut, NULL) == LB_OK) lb_pickle_release(&tree);
    return cut;
}

void lb_pickle_release(lb_pickle_tree *tree)
{
    for (chunk *chunk = tree->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    *tree = (lb_pickle_tree){NULL, NULL};
}

/* ---- looking ----------------------------------------------------------------------------------------------------- */

bool lb_pickle_is_text(const lb_pickle *node, const char *text)
{
    return node && node->type == LB_PICKLE_TEXT && node->n == strlen(text) && memcmp(node->u.text, text, node->n) == 0;
}

bool lb_pickle_is_call(const lb_pickle *node, const char *module, const char *name)
{
    if (!node || node->type != LB_PICKLE_CALL || node->u.items[0]->type != LB_PICKLE_GLOBAL) return false;
    lb_pickle *const *names = node->u.items[0]->u.items;
    return lb_pickle_is_text(names[0], module) && lb_pickle_is_text(names[1], name);
}

struct lb_pickle *const *lb_pickle_pairs(const lb_pickle *node, uint32_t *pairs)
{
    uint32_t before = node && node->type == LB_PICKLE_CALL ? 3 : 0;
    if (!node || (node->type != LB_PICKLE_DICT && node->type != LB_PICKLE_CALL) || node->n <= before)
        return *pairs = 0, NULL;
    *pairs = (node->n - before) / 2;
    return node->u.items + before;
}

const lb_pickle *lb_pickle_get(const lb_pickle *node, const char *key)
{
    uint32_t n;
    if (node && node->type == LB_PICKLE_CALL && node->u.items[2]) node = node->u.items[2];
    lb_pickle *const *pairs = lb_pickle_pairs(node, &n);
    for (uint32_t i = 0; i < n; i++)
        if (lb_pickle_is_text(pairs[2 * i], key)) return pairs[2 * i + 1];
    return NULL;
}

bool lb_pickle_integers(const lb_pickle *node, int64_t *numbers, int most, int *n)
{
    if (node && node->type == LB_PICKLE_CALL) { /* torch.Size((2, 3)) */
        const lb_pickle *args = node->u.items[1];
        if (args->type != LB_PICKLE_LIST || args->n != 1) return false;
        node = args->u.items[0];
    }
    if (!node || node->type != LB_PICKLE_LIST || node->n > (uint32_t)most) return false;
    for (uint32_t i = 0; i < node->n; i++) {
        if (node->u.items[i]->type != LB_PICKLE_INT) return false;
        numbers[i] = node->u.items[i]->u.i;
    }
    *n = (int)node->n;
    return true;
}
