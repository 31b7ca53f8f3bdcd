/* JSON in and out: Jansson behind the gate for text (lastbit/text.h). A file that reads or writes JSON includes this in
 * the place of jansson.h; a test sees to it.
 *
 * Simplest use:
 *
 *     json_t *object = json_pack("{s:s}", "path", path);  // also where `path` is not UTF-8
 *     char *text = object ? json_dumps(object, 0) : NULL;
 *     if (text) puts(text);
 *     free(text), json_decref(object);
 *
 * Jansson refuses texts that are not UTF-8: one bad byte in a path, and a whole object comes out as NULL or a whole
 * file is not read. Here such a byte is spelt (\xff) where a value is made, and read as a private character. What is
 * written is valid JSON. A character that is a control, turns the direction of a text or is invisible is written as an
 * escape (\u202e), which every reader of JSON takes for the character. Nothing is dropped. NULL means out of memory. */
#ifndef LASTBIT_JSON_TEXT_H
#define LASTBIT_JSON_TEXT_H

#include <lastbit/error.h>

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As Jansson's functions of these names, on any bytes. */
LB_API json_t *lb_json_string(const char *text);
LB_API json_t *lb_json_stringn(const char *text, size_t n);
LB_API json_t *lb_json_sprintf(const char *format, ...) LB_PRINTF(1, 2);
LB_API json_t *lb_json_vsprintf(const char *format, va_list arguments) LB_PRINTF(1, 0);
/* Formats s s? s* s# n b i I f o o? o* O O? O* and { } [ ], with keys `s:`. Takes over what `o` gives also when it
 * fails. */
LB_API json_t *lb_json_pack(const char *format, ...);
LB_API int lb_json_object_set_new(json_t *object, const char *key, json_t *value);
LB_API int lb_json_object_set(json_t *object, const char *key, json_t *value);
LB_API char *lb_json_dumps(const json_t *json, size_t flags);
LB_API int lb_json_dumpf(const json_t *json, FILE *to, size_t flags);
LB_API json_t *lb_json_loadb(const char *bytes, size_t size, size_t flags, json_error_t *why);
LB_API json_t *lb_json_loads(const char *text, size_t flags, json_error_t *why);
LB_API json_t *lb_json_load_file(const char *path, size_t flags, json_error_t *why);

#ifndef LB_JSON_TEXT_OF_JANSSON
#define json_string lb_json_string
#define json_stringn lb_json_stringn
#define json_sprintf lb_json_sprintf
#define json_vsprintf lb_json_vsprintf
#define json_pack lb_json_pack
#define json_object_set_new lb_json_object_set_new
#define json_object_set lb_json_object_set
#define json_dumps lb_json_dumps
#define json_dumpf lb_json_dumpf
#define json_loadb lb_json_loadb
#define json_loads lb_json_loads
#define json_load_file lb_json_load_file
#endif

#ifdef __cplusplus
}
#endif
#endif
