/* JSON text to MessagePack, for tables. Private to formats/.
 *
 * The recorder writes tables inside other people's processes, and a JSON library's parser ends those when it gets no
 * memory in the middle of a token (an assertion of jansson's). So the text is translated as it is read: no tree is
 * built, nothing is allocated but the result. It accepts what RFC 8259 does; strings are UTF-8, integers have 64 bits,
 * and a key holds no NUL. */
#ifndef LB_TABLE_TEXT_H
#define LB_TABLE_TEXT_H

#include "base/byte_buffer.h"

#include <lastbit/error.h>

#define LB_TABLE_DEPTH 64

/* Appends to `out`. LB_ERR_INVALID names the line and column where the text is not JSON, or is nested deeper than
 * LB_TABLE_DEPTH;
 * LB_ERR_NOMEM. */
lb_status lb_table_text_pack(const char *json, byte_buffer *out, lb_err *err);

#endif
