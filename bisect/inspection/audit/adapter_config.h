/* adapter_config.json as peft reads it: which modules it asks for, their ranks and scalings. */
#ifndef LB_BISECT_AUDIT_ADAPTER_CONFIG_H
#define LB_BISECT_AUDIT_ADAPTER_CONFIG_H

#include "audit/audit_report.h"

#include <lastbit/json_text.h>

/* 1: an adapter of this module is asked for, 0: none is, -1: the configuration does not list modules. Of a parameter
 * that is adapted by itself the module is the one that holds it. */
int lb_adapter_config_wants(lb_audit_gathering *gathering, const json_t *config, const char *module);
/* The number of the first pattern that fits a module. A pattern that tries too much is a finding, and does not fit. */
double lb_adapter_config_patterned(lb_audit_gathering *gathering, const json_t *patterns, const char *module,
                                   double otherwise);
/* Number i of the parameters of `module` that are adapted by themselves ("experts.gate_up_proj"), as its last word;
 * NULL: there are no more. */
const char *lb_adapter_config_parameter(const json_t *config, const char *module, size_t i);
/* Whether making the adapter changed the base's weights (PiSSA, OLoRA, …): then A and B do not add to those on disk. */
bool lb_adapter_config_changes_base(const json_t *config);
/* "model.layers.0.q_proj" of "base_model.model.model.layers.0.q_proj.lora_A.weight", malloc'ed; NULL: not of an
 * adapter. */
char *lb_adapter_module_name(const char *tensor);
/* Where "lora_A" begins in a name, with the dot before it; NULL: not there. */
const char *lb_adapter_half_in(const char *tensor);

#endif
