/* What is said of all layers and ranks of a diff, counted over every row before any is left out.
 *
 * by_layer[]  a row per layer and phase: the worst verdict of its ranks and steps, its largest differences, on how many
 *             ranks it differs
 * map         layers × ranks, without parameters and other values: two digits per cell, the ranks of its worst verdict
 *             and of the worst that was made there (column_table.h; '.': none), and a letter, the size of its largest
 *             relative difference: 'a' at most 1e-12, two letters a decade, '.' not measured
 * histograms  rows by largest ulp distance (powers of two) and by relative L2 (decades)
 */
#ifndef LB_REPORT_DRIFT_SUMMARY_H
#define LB_REPORT_DRIFT_SUMMARY_H

#include <lastbit/json_text.h>

/* Above so many cells neighbouring layers share one. */
enum { LB_MAP_CELLS = 400000 };

/* {"by_layer", "map", "histograms"} of the field `layers` of a diff; NULL: it has no rows. */
json_t *lb_drift_summary(const json_t *layers);

/* Columns of equal length, `step` among them ({"step": […], "loss": […]}), with at most `points` rows: of each run of
 * steps the smallest and the largest value of each column stay, so that no spike is lost. New; the input stays. */
json_t *lb_drift_curves_thinned(const json_t *curves, size_t points);

#endif
