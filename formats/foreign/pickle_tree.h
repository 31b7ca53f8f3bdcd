/* A pickle as a tree, and nothing more: names of classes stay names, nothing is imported, called or executed.
 *
 * https://github.com/python/cpython/blob/main/Lib/pickletools.py describes the opcodes; those that torch.save and
 * torch's distributed checkpoints write are taken, any other is refused by its offset. Objects may be shared and may
 * hold themselves: who walks a tree counts its depth. Memory is bounded by the input, some fifty bytes a byte. Private
 * to formats/. */
#ifndef LB_PICKLE_TREE_H
#define LB_PICKLE_TREE_H

#include <lastbit/error.h>

typedef enum lb_pickle_type {
    LB_PICKLE_NONE,
    LB_PICKLE_BOOL,
    LB_PICKLE_INT,
    LB_PICKLE_FLOAT,
    LB_PICKLE_TEXT,      /* also bytes, and integers beyond 64 bits; not NUL-terminated */
    LB_PICKLE_LIST,      /* list, tuple, set */
    LB_PICKLE_DICT,      /* keys and values in turn */
    LB_PICKLE_GLOBAL,    /* two texts: module, name */
    LB_PICKLE_CALL,      /* callable, args, state or NULL; then keys and values that were set on it */
    LB_PICKLE_PERSISTENT /* its id */
} lb_pickle_type;

typedef struct lb_pickle {
    lb_pickle_type type;
    uint32_t n, room; /* of items; n: bytes of a text */
    union {
        int64_t i;
        double f;
        const char *text; /* in the input */
        struct lb_pickle **items;
    } u;
} lb_pickle;

typedef struct lb_pickle_tree {
    const lb_pickle *root;
    struct lb_pickle_chunk *chunks; /* owns the tree */
} lb_pickle_tree;

/* `source` begins messages; `offset` is where the bytes lie in it. The tree points into the bytes. */
lb_status lb_pickle_read(const void *bytes, size_t size, const char *source, uint64_t offset, lb_pickle_tree *tree,
                         lb_err *err);
void lb_pickle_release(lb_pickle_tree *tree);
/* Do the bytes end before the pickle does? False of a whole one, and of one that is damaged otherwise. Frames tell,
 * where there are some (protocol 4): a file that was cut lacks the rest of its last one. Its last byte tells nothing:
 * the STOP is also a full stop. */
bool lb_pickle_is_cut(const void *bytes, size_t size);

bool lb_pickle_is_text(const lb_pickle *node, const char *text);
/* A call of `module.name`, or an object of that class. */
bool lb_pickle_is_call(const lb_pickle *node, const char *module, const char *name);
/* Keys and values of a dict, or of those set on an object; NULL when there are none. */
struct lb_pickle *const *lb_pickle_pairs(const lb_pickle *node, uint32_t *pairs);
/* The value of a key in a dict or in an object's state, or NULL. */
const lb_pickle *lb_pickle_get(const lb_pickle *node, const char *key);
/* At most `most` integers from a list, or from an object made of one (torch.Size). False when it is none. */
bool lb_pickle_integers(const lb_pickle *node, int64_t *numbers, int most, int *n);

#endif
