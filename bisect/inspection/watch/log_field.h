/* Names that logs give to fields, and values put into a record by field. */
#ifndef LB_LOG_FIELD_H
#define LB_LOG_FIELD_H

#include <lastbit/watch.h>

/* A name of the user's own for a field: "gnorm=my/norm". */
typedef struct lb_field_alias {
    lb_watch_field field;
    char *name;
} lb_field_alias;
typedef struct lb_field_names {
    lb_field_alias *aliases;
    uint32_t n;
    lb_watch_names *seen; /* what the log calls them is noted here; NULL: it is not */
} lb_field_names;
lb_status lb_field_names_init(lb_field_names *names, const char *const *pairs, uint32_t n, lb_err *err);
void lb_field_names_release(lb_field_names *names);

/* LB_WATCH_FIELDS: of no interest. Case, separators and a leading "train/" make no difference to known names. A name in
 * folders is known by its last part ("Loss/train", "optim/total_grad_norm"), unless the log has a better one for that
 * field; one of an evaluation never is. */
lb_watch_field lb_field_of(const lb_field_names *names, const char *name, size_t n);
/* The log has a number of that name, which no field is known to be. */
void lb_field_offer(lb_watch_names *seen, const char *name, size_t n);
/* Whether a word means a field by itself, without ':' or '=' behind it: "iter 10", "loss 4.2". */
bool lb_field_is_plain(const char *name, size_t n);

/* An empty record. */
void lb_log_field_record_clear(lb_watch_record *record);
/* Puts `text` under a field: a number with thousands' commas, a unit, a percent sign or "/TOTAL" behind it. False: it
 * is not a number. */
bool lb_log_field_record_put(lb_watch_record *record, lb_watch_field field, const char *text, size_t n);
/* The same of a number that is known exactly. */
void lb_log_field_record_put_number(lb_watch_record *record, lb_watch_field field, double number);

#endif
