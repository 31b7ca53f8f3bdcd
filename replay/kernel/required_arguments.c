/* Reads the marks after the names of a row's args: see ops.h, LB_ARG_MARKS. A test compares them with torch's schemas.
 *
 * Tensors that a schema demands and autograd leaves undefined nevertheless (the states of random generators, sequence
 * lengths, the bias of an attention's backward) carry none: kernels take them as optional. */
#include "kernel/required_arguments.h"

#include <string.h>

typedef enum presence { ANYTHING, REQUIRED, REQUIRED_LIST, OPTIONAL_LIST, PARTS } presence;

static presence presence_of(const char *mark)
{
    return *mark == '!'   ? REQUIRED
           : *mark == '[' ? REQUIRED_LIST
           : *mark == '?' ? OPTIONAL_LIST
           : *mark == '%' ? PARTS
                          : ANYTHING;
}

static bool all_there(const lb_operand *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (!list->tensors[i].data) return false;
    return true;
}

/* What the recorder writes for a tensor that it can say nothing about. */
static bool stands_for_tensor(const lb_operand *arg)
{
    return arg->tag == LB_OPERAND_STRING && arg->string && !strncmp(arg->string, "tensor ", 7);
}

/* NULL: as it should be. */
static const char *wrong_with(const lb_call *call, const lb_operand *arg, presence presence)
{
    if (stands_for_tensor(arg)) return "was recorded without its bytes";
    if (arg->tag == LB_OPERAND_TENSORS && (presence == ANYTHING || presence == REQUIRED))
        return arg->count == 4 ? "is a nested tensor, of which its parts were recorded"
                               : "is a sparse tensor, of which its parts were recorded";
    if (presence == ANYTHING || presence == OPTIONAL_LIST) return NULL;
    if (presence == PARTS)
        return arg->tag == LB_OPERAND_TENSORS && all_there(arg) ? NULL : "is not a tensor that is made of parts";
    if (presence == REQUIRED_LIST) {
        const bool empty = arg->tag == LB_OPERAND_NUMBERS && !arg->count;
        return empty || (arg->tag == LB_OPERAND_TENSORS && all_there(arg)) ? NULL : "is not a list of dense tensors";
    }
    /* torch hands Python's numbers on where a tensor may stand for one. */
    const bool number = arg->tag == LB_OPERAND_INT || arg->tag == LB_OPERAND_FLOAT || arg->tag == LB_OPERAND_BOOL;
    if (arg->tag == LB_OPERAND_TENSOR || (number && call->row->flags & LB_ROW_ELEMENTWISE)) return NULL;
    return arg->tag == LB_OPERAND_NONE ? "is missing" : "is not a tensor";
}

lb_status lb_required_arguments_are_there(const lb_call *call)
{
    static const lb_operand none = {.tag = LB_OPERAND_NONE};
    uint32_t i = 0;
    if (!call->n_results && !(call->row->flags & LB_ROW_HOST))
        return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: no dense result was recorded", call->row->name);
    for (const char *p = call->row->args; p && *p; p += strcspn(p, " "), p += *p == ' ', i++) {
        const size_t length = strcspn(p, " " LB_ARG_MARKS);
        const char *wrong = wrong_with(call, i < call->n_args ? &call->args[i] : &none, presence_of(p + length));
        if (wrong)
            return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: its argument %.*s %s", call->row->name, (int)length, p,
                           wrong);
    }
    return LB_OK;
}
