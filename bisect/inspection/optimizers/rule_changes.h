/* What programs make of a rule: its published forms, and changes that are faults. */
#ifndef LB_BISECT_RULE_CHANGES_H
#define LB_BISECT_RULE_CHANGES_H

#include "optimizers/optimizer_rule.h"

enum { LB_RULE_FORMS = 3, LB_RULE_CHANGES = 16 };

/* The rule in one of its published forms, a bit for each that may be chosen; false: it has no such form. */
bool lb_rule_changes_form(const lb_optimizer_rule *rule, uint32_t form, lb_optimizer_rule *base);
/* Applies one change; false: it is that way already, or the rule has no such thing. */
bool lb_rule_changes_apply(uint32_t change, lb_optimizer_rule *rule, double *steps);
/* "leaves weight decay out", behind the name of an optimizer. */
const char *lb_rule_changes_words(uint32_t change);

#endif
