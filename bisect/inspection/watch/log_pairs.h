/* Lines of any program that names its numbers:
 *
 *      iter 10: loss 4.23, time 12.3ms
 *      loss=2.3 step=7
 *      step:10/1750 train_loss:4.2
 *      Epoch 1:  10%|# | 10/100 [00:01<00:09, 9.8it/s, train_loss=2.34]        a progress bar
 *      [step=10/1000]                                                          a header: numbers follow on lines of
 *                                                                              their own
 *
 * The name of a number is the one or two words before it. */
#ifndef LB_LOG_PAIRS_H
#define LB_LOG_PAIRS_H

#include "watch/log_field.h"
#include "watch/log_line.h"

typedef struct lb_pairs_reader {
    const lb_field_names *names;
    int64_t header, headers_total; /* step of the last line that was a header alone; -1: none */
    double skipped;                /* so far, where the log counts them; -1: nothing has come */
} lb_pairs_reader;

void lb_pairs_reader_init(lb_pairs_reader *reader, const lb_field_names *names);
/* Fills the record, but for its line. RECORD: a loss, a norm, a rate or a time, with a step or without. BAD: it names a
 * loss or a norm, and what follows is not a number. OTHER: anything else. */
lb_line_answer lb_pairs_read(lb_pairs_reader *reader, const char *line, size_t n, lb_watch_record *record,
                             const char **why);
/* Names of the numbers of a line that names two and more ("it=3 my_loss=2.1"), though it is no step. */
void lb_pairs_offer(const char *line, size_t n, lb_watch_names *seen);

#endif
