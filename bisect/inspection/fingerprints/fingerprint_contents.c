/* See fingerprint_contents.h. The tables' files are handed to audit's comparison as they are, siblings included, since
 * it learns from them how one side is laid out; its pairs and findings are then read by the names in them. */
#include "fingerprints/fingerprint_contents.h"

#include "audit/comparison.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool lb_fingerprint_contents_are_there(const lb_fingerprint_table *a, const lb_fingerprint_table *b)
{
    return a->bytes && b->bytes && !a->bytes->flat && !b->bytes->flat && a->bytes->checkpoint->n_pieces &&
           b->bytes->checkpoint->n_pieces;
}

/* ---- what the audit says of a name ------------------------------------------------------------------------------- */

static const lb_audit_pair *pair_of(const lb_audit_report *report, const char *name, const char *partner)
{
    const lb_audit_pair *found = NULL;
    for (uint32_t i = 0; i < report->n_pairs; i++) {
        const bool named = name && !strcmp(report->pairs[i].name, name),
                   other = partner && !strcmp(report->pairs[i].other, partner);
        if (named && (other || !found)) found = &report->pairs[i];
        if (other && !found) found = &report->pairs[i];
    }
    return found;
}

static const lb_audit_finding *finding_of(const lb_audit_report *report, const char *name, lb_audit_kind kind)
{
    for (uint32_t i = 0; i < report->n_findings && name; i++)
        if (report->findings[i].tensor && report->findings[i].kind == kind && !report->findings[i].note &&
            !strcmp(report->findings[i].tensor, name))
            return &report->findings[i];
    return NULL;
}

static bool say(lb_fingerprint_match *match, lb_fingerprint_kind kind, const char *how)
{
    char *copy = strdup(how);
    if (!copy) return false;
    free(match->how);
    match->kind = kind, match->how = copy;
    return true;
}

/* Audit spells a whole side by its own names: a tensor that is part of a fused one is found where no finding says that
 * its numbers are nowhere. */
static bool correct_missing(const lb_audit_report *report, lb_fingerprint_match *match)
{
    if (finding_of(report, match->name, LB_AUDIT_UNEXPECTED) || finding_of(report, match->name, LB_AUDIT_DIFFERS))
        return true;
    const lb_audit_pair *pair = pair_of(report, match->name, NULL);
    char how[400];
    if (pair && pair->match == LB_AUDIT_IS_DIFFERENT) return true;
    snprintf(how, sizeof how, "%s%s%s%s", pair ? "in " : "in a fused tensor", pair ? pair->other : "",
             pair && *pair->how ? ": " : "", pair ? pair->how : "");
    return say(match, LB_FINGERPRINT_IS_LAYOUT, how);
}

static bool correct_numbers(const lb_audit_report *report, lb_fingerprint_match *match)
{
    const lb_audit_finding *odd = finding_of(report, match->name, LB_AUDIT_ARRANGED),
                           *differs = finding_of(report, match->name, LB_AUDIT_DIFFERS),
                           *shape = finding_of(report, match->name, LB_AUDIT_SHAPE);
    const lb_audit_pair *pair = pair_of(report, match->name, match->partner);
    if (odd) return say(match, LB_FINGERPRINT_IS_ODD, odd->message);
    if (differs) return say(match, LB_FINGERPRINT_IS_NUMBERS, differs->message);
    if (shape) return say(match, LB_FINGERPRINT_IS_NUMBERS, shape->message);
    if (!pair || pair->match == LB_AUDIT_IS_DIFFERENT) return true;
    if (*pair->how) return say(match, LB_FINGERPRINT_IS_LAYOUT, pair->how);
    return say(match, LB_FINGERPRINT_IS_CAST, pair->match == LB_AUDIT_IS_ROUNDING ? "rounded, or one ulp apart" : "");
}

/* What the other side alone has by its name, and what made it. */
static bool correct_added(const lb_audit_report *report, lb_fingerprint_match *match)
{
    const lb_audit_pair *pair = pair_of(report, NULL, match->partner);
    char how[400];
    if (!pair || pair->match == LB_AUDIT_IS_DIFFERENT || finding_of(report, match->partner, LB_AUDIT_MISSING))
        return true;
    snprintf(how, sizeof how, "made of %s%s%s", pair->name, *pair->how ? ": " : "", pair->how);
    return say(match, LB_FINGERPRINT_IS_LAYOUT, how);
}

static bool correct(const lb_audit_report *report, lb_fingerprint_match *match)
{
    switch (match->kind) {
    case LB_FINGERPRINT_IS_MISSING: return correct_missing(report, match);
    case LB_FINGERPRINT_IS_NUMBERS: return correct_numbers(report, match);
    case LB_FINGERPRINT_IS_ADDED: return correct_added(report, match);
    default: return true;
    }
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

lb_status lb_fingerprint_contents_compare(const lb_fingerprint_table *a, const lb_fingerprint_table *b,
                                          lb_fingerprint_match *matches, uint32_t n,
                                          const lb_fingerprint_table_options *options, lb_err *err)
{
    lb_audit_options chosen = LB_AUDIT_OPTIONS_INIT;
    lb_inventory *x = NULL, *y = NULL;
    lb_err why = LB_ERR_INIT;
    chosen.progress = options->progress;
    lb_audit_gathering gathering = {
        calloc(1, sizeof(lb_audit_report)), &chosen, false, NULL, a->bytes->checkpoint, b->bytes->checkpoint};
    lb_status status = gathering.report ? LB_OK : lb_fail(&why, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) status = lb_inventory_new(a->bytes->checkpoint, true, &gathering, &x, &why);
    if (status == LB_OK) status = lb_inventory_new(b->bytes->checkpoint, true, &gathering, &y, &why);
    if (status == LB_OK) status = lb_comparison_audit(&gathering, x, y, &why);
    if (status == LB_OK && gathering.failed) status = lb_fail(&why, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n && status == LB_OK; i++)
        if (!correct(gathering.report, &matches[i])) status = lb_fail(&why, LB_ERR_NOMEM, "out of memory");
    free(gathering.causes);
    lb_inventory_free(x), lb_inventory_free(y);
    lb_audit_report_free(gathering.report);
    if (status == LB_ERR_CORRUPT || status == LB_ERR_UNSUPPORTED)
        return LB_OK; /* parts that audit cannot put together */
    return status == LB_OK ? LB_OK : lb_fail(err, status, "%s", why.message);
}
