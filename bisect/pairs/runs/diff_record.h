/* What one rank of many shows, as the record of a unit of work (parts/parts_each.h). */
#ifndef LB_BISECT_DIFF_RECORD_H
#define LB_BISECT_DIFF_RECORD_H

#include "parts/part_record.h"
#include "diff/diff_walk.h"

/* Reading: strings are copies that live as long as `keeper`. */
void lb_diff_record(lb_part_record *record, lb_diff_report *report, lb_diff_exchanges *exchanges,
                    lb_diff_report *keeper);

#endif
