/* Texts from strangers: names of layers, tensors and ops, lines of code, paths, messages that quote them.
 *
 * Simplest use:
 *
 *     char *name = lb_text_name("layer\x01", 6);
 *     if (name) puts(name);
 *     free(name);
 *
 * A name enters through one gate, lb_text_name, wherever it comes from: the recorded program, a checkpoint of another
 * library, a log. Behind it every name is valid UTF-8 without a control character, so that it can stand on one line, in
 * JSON and in a command to paste. What it may not hold stands there as it would in a program:
 *
 *     \xff          a byte that is no UTF-8; a control character below 0x20, and DEL
 *     \u{202e}      a control character above, one that turns the direction of a text, or one that is invisible
 *     \x5c          the backslash itself, where what follows would read as one of these
 *
 * Names that differ stay different. Text leaves through one door each: on terminals formats/command/text_door.h, in
 * JSON lastbit/json_text.h.
 *
 * JSON has no bytes, and its parser refuses texts that are no UTF-8. A byte that JSON could not hold is read as the
 * private character U+10FF00 + byte, which is spelt as the byte wherever it leaves. Such a character itself is spelt as
 * its four bytes. */
#ifndef LASTBIT_TEXT_H
#define LASTBIT_TEXT_H

#include <lastbit/error.h>

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum lb_text_kind {
    LB_TEXT_NAME,    /* as above */
    LB_TEXT_CARRIED, /* a name that JSON carried: private characters of it are bytes */
    /* a name that a person gave, who may have copied it from an answer: its backslashes are what they seem */
    LB_TEXT_ARGUMENT,
    LB_TEXT_PATTERN, /* the same in a regular expression */
    LB_TEXT_SHOWN,   /* what a person reads: lines and tabs stay, and backslashes are what they seem */
    LB_TEXT_UTF8     /* valid UTF-8 and nothing else: control characters stay */
} lb_text_kind;

/* Escapes n bytes into `to`, which has room for `room` with the NUL that always ends it, cut before an escape or a
 * character that does not fit. Returns the bytes that the whole takes without the NUL, as snprintf does. */
LB_API size_t lb_text_escape(lb_text_kind kind, const char *bytes, size_t n, char *to, size_t room);
/* The same, malloc'ed; NULL when out of memory. */
LB_API char *lb_text_escaped(lb_text_kind kind, const char *bytes, size_t n);
/* Whether nothing in it needs an escape: it is its own form. A name's form is none that could come of another name. */
LB_API bool lb_text_is_plain(lb_text_kind kind, const char *bytes, size_t n);

/* A name by its gate; malloc'ed, NULL when out of memory. */
LB_API char *lb_text_name(const char *bytes, size_t n);
/* Whether `text` may stand as a name behind the gate: an escape in it is one. */
LB_API bool lb_text_is_name(const char *text, size_t n);

/* The bytes of the character at `text`, and which it is; 1 and LB_TEXT_NONE where none of UTF-8 begins (overlong forms
 * and surrogates are none). n > 0. */
enum { LB_TEXT_NONE = -1 };
LB_API size_t lb_text_character(const char *text, size_t n, int32_t *character);
/* Control characters, those that turn the direction of a text, invisible ones, and bytes that JSON could not hold. */
LB_API bool lb_text_is_hidden(int32_t character);

#ifdef __cplusplus
}
#endif
#endif
