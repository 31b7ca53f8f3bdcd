/* The one-line format: "step 00050/30000 (0.17%) | loss: 4.2371 | lrm: 0.55 | dt: 412.10ms | tok/sec: 254,128 | …".
 *
 * Parts are separated by bars; a part is "name: value" or "name value". Names that a place in the line had before are
 * not looked up again, for lines of one program are alike. */
#ifndef LB_LOG_LINE_H
#define LB_LOG_LINE_H

#include "watch/log_field.h"

enum { LB_LINE_PARTS = 48, LB_LINE_NAME = 40 };
typedef struct lb_line_reader {
    const lb_field_names *names;
    struct {
        char name[LB_LINE_NAME];
        uint8_t n, field;
    } known[LB_LINE_PARTS];
} lb_line_reader;

typedef enum lb_line_answer {
    LB_LINE_RECORD,
    LB_LINE_OTHER, /* is not of this format */
    LB_LINE_BAD    /* begins as one does; *why says what is wrong */
} lb_line_answer;

/* Fills the record, but for its line. */
lb_line_answer lb_line_read(lb_line_reader *reader, const char *line, size_t n, lb_watch_record *record,
                            const char **why);

#endif
