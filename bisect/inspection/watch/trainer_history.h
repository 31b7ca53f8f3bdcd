/* transformers' trainer_state.json: one document, whose list "log_history" has an entry for each time that the Trainer
 * logged. Every checkpoint holds a copy with all entries until then, so that an entry is given once, by its step. */
#ifndef LB_TRAINER_HISTORY_H
#define LB_TRAINER_HISTORY_H

#include "watch/log_field.h"

typedef struct lb_history_reader {
    uint32_t depth;
    bool text, escaped, inside; /* inside: of log_history */
    char key[16];               /* the last text at depth 1 */
    uint32_t key_bytes;
    char entry[1 << 14]; /* what has come of it; a record's words lie here until the next call */
    size_t n;
    bool too_long, given;
    int64_t until; /* step of the last entry that was given */
} lb_history_reader;

typedef enum lb_history_answer {
    LB_HISTORY_MORE, /* all bytes were taken */
    LB_HISTORY_RECORD,
    LB_HISTORY_COMPLAINT /* *why says what is wrong with an entry */
} lb_history_answer;

/* Whether a first line begins such a document. */
bool lb_history_begins(const char *line, size_t n);
/* Takes bytes from *at on until an entry is whole. Evaluations and summaries have no numbers of a step and are passed
 * over. */
lb_history_answer lb_history_read(lb_history_reader *reader, const lb_field_names *names, const char **at,
                                  const char *end, lb_watch_record *record, const char **why);
/* Whether the document that has begun is over. */
bool lb_history_is_whole(const lb_history_reader *reader);
/* Another copy follows. */
void lb_history_restart(lb_history_reader *reader);

#endif
