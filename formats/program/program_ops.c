/* What an op is, from its name: see lastbit/program.h. */
#include <lastbit/program.h>

#include <string.h>

bool lb_op_is(const lb_program *program, const lb_op *op, const char *base)
{
    return lb_program_name_extends(lb_op_name(program, op), base);
}

bool lb_op_is_in_any_form(const lb_program *program, const lb_op *op, const char *base)
{
    static const char over_lists[] = "aten::_foreach_";
    const char *name = lb_op_name(program, op);
    if (strncmp(name, over_lists, sizeof over_lists - 1) == 0)
        name += sizeof over_lists - 1;
    else if (strncmp(name, "aten::", 6) == 0)
        name += 6;
    else
        return false;
    const size_t n = strlen(base);
    return strncmp(name, base, n) == 0 && lb_program_name_extends(name + n + (name[n] == '_'), "");
}

bool lb_op_is_cast(const lb_program *program, const lb_op *op)
{
    return lb_op_is(program, op, "aten::_to_copy");
}

bool lb_op_is_unscaling(const lb_program *program, const lb_op *op)
{
    return lb_op_is(program, op, "aten::_amp_foreach_non_finite_check_and_unscale_");
}

bool lb_op_is_over_lists(const lb_program *program, const lb_op *op)
{
    static const char *const beginnings[] = {"aten::_foreach_", "aten::_fused_"};
    const char *name = lb_op_name(program, op);
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
        if (strncmp(name, beginnings[i], strlen(beginnings[i])) == 0) return true;
    return false;
}
