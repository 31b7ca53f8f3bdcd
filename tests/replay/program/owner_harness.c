/* Owners of a recorded step for Python (tests/replay/program/owners.py). */
#include "program/owner.h"

#include <lastbit/archive.h>

#include <stdio.h>
#include <stdlib.h>

typedef struct owned {
    lb_capture *capture;
    lb_slice_flow *flow;
    lb_owners *owners;
} owned;

LB_API void owners_close(owned *o)
{
    lb_owners_free(o->owners);
    lb_slice_flow_free(o->flow);
    lb_capture_close(o->capture);
    free(o);
}

/* `next`: the step that follows in the capture, -1 for none. */
LB_API owned *owners_open(const char *path, int32_t rank, int64_t step, int64_t next, char message[512])
{
    lb_err err = LB_ERR_INIT;
    owned *o = calloc(1, sizeof *o);
    const lb_program *program = NULL, *after = NULL;
    lb_status status = lb_capture_open(path, &o->capture, &err);
    if (status == LB_OK) status = lb_capture_program(o->capture, rank, step, &program, &err);
    if (status == LB_OK && next >= 0) status = lb_capture_program(o->capture, rank, next, &after, &err);
    if (status == LB_OK) status = lb_slice_flow_new(program, &o->flow, &err);
    if (status == LB_OK) status = lb_owners_new(o->flow, after, &o->owners, &err);
    snprintf(message, 512, "%s: %s", lb_status_name(status), err.message);
    if (status == LB_OK) return o;
    owners_close(o);
    return NULL;
}

LB_API uint32_t owners_elements(const owned *o, uint32_t op)
{
    return lb_owner_elements(o->owners, op);
}
LB_API uint32_t owners_element(const owned *o, uint32_t op, uint32_t value)
{
    return lb_owner_element(o->owners, op, value);
}
LB_API uint32_t owners_count(const owned *o, uint32_t op, uint32_t element)
{
    return lb_owner_count(o->owners, op, element);
}
LB_API const char *owners_of(const owned *o, uint32_t op, uint32_t element)
{
    return lb_owner_of(o->owners, op, element);
}
LB_API const char *owners_module(const owned *o, uint32_t op, uint32_t element)
{
    return lb_owner_module(o->owners, op, element);
}
LB_API const char *owners_of_value(const owned *o, uint32_t value)
{
    return lb_owner_of_value(o->owners, value);
}
