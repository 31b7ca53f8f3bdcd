/* A table that several regions compute and that differs: cosines of positions, decays, a bias by distance.
 *
 *      positions ─▶ frequencies ─▶ cosines ═╦═▶ q turned ─▶ …      region 1: all of it, up to the scores of layer 0
 *                                           ╠═▶ k turned ─▶ …      region 2
 *      └──────── the table ─────────┘       ╚═▶ q of layer 1 …     region 3, …
 *
 * Each side computes it in a form of its own, so that no value of it meets. What the regions have in common on both
 * sides, and what follows from no activation and no parameter, is where one difference would show in all of them. */
#ifndef LB_BISECT_REGION_TABLE_H
#define LB_BISECT_REGION_TABLE_H

#include "implementations/region_op.h"

/* Names an op of the table in each region that has no better reason than its first ops. False: out of memory. */
bool lb_region_table_name(const lb_region_frontier *frontier, lb_regions *regions);

#endif
