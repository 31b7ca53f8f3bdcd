/* The journal of a bisection: one JSON line per trial, appended in one piece as it ends, so that an interrupted search
 * resumes by looking its trials up instead of running them. The first line says what was bisected; a journal of
 * something else is refused. */
#ifndef LB_BISECT_JOURNAL_H
#define LB_BISECT_JOURNAL_H

#include "search/group_search.h"

typedef struct lb_journal lb_journal;

/* `about` identifies capture, window and predicate. `resume`: read what is there and go on; otherwise the file is begun
 * anew (LB_ERR_EXISTS when it holds something). */
lb_status lb_journal_open(const char *path, const char *about, bool resume, lb_journal **journal, lb_err *err);
/* What was added is on the disk when it returns LB_OK. NULL is fine. */
lb_status lb_journal_close(lb_journal *journal, lb_err *err);

/* Whether this change was tried; `what` (may be NULL) gets its text, owned by the journal. NULL journal: never. */
bool lb_journal_find(const lb_journal *journal, const char *change, lb_search_outcome *outcome, const char **what);
/* NULL journal: nothing. */
lb_status lb_journal_add(lb_journal *journal, const char *change, lb_search_outcome outcome, const char *what,
                         double seconds, lb_err *err);

#endif
