/* Conditions of the user's: see failure_predicate.h. */
#include "failure/failure_predicate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    lb_failure_predicate_kind kind;
    bool number; /* ">NUMBER" follows */
} names[] = {{"nonfinite", LB_PREDICATE_NONFINITE, false},
             {"max", LB_PREDICATE_MAX, true},
             {"loss", LB_PREDICATE_LOSS, true},
             {"grad_norm", LB_PREDICATE_NORM, true}};

lb_status lb_failure_predicate_parse(const char *text, lb_failure_predicate *predicate, lb_selector **selector,
                                     lb_err *err)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i].name);
        if (strncmp(text, names[i].name, n)) continue;
        const char *rest = text + n;
        char *end = (char *)rest;
        if (names[i].number) {
            if (*rest != '>') continue;
            predicate->limit = strtod(rest + 1, &end);
            if (end == rest + 1) break;
        }
        if (*end && *end != '@') break;
        predicate->kind = names[i].kind;
        return lb_selector_new(*end ? end + 1 : "", selector, err);
    }
    return lb_fail(err, LB_ERR_INVALID,
                   "predicate \"%s\": expected nonfinite, max>NUMBER, loss>NUMBER or grad_norm>NUMBER, "
                   "each with @SELECTOR or without",
                   text);
}

bool lb_failure_predicate_holds(const lb_failure_predicate *predicate, double most, bool loss)
{
    switch (predicate->kind) {
    case LB_PREDICATE_NONFINITE: return isinf(most);
    case LB_PREDICATE_MAX: return most > predicate->limit;
    case LB_PREDICATE_LOSS: return loss && most > predicate->limit;
    default: return false;
    }
}
