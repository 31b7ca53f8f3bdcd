/* What a verdict can rest on: see basis.h. */
#include "trials/basis.h"

#include <lastbit/maintenance.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void lb_basis_lacks(lb_bisect_session *session, const char *format, ...)
{
    char text[700];
    va_list args;
    if (session->out->reason) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    session->out->reason = strdup(text);
}

/* ---- tensors only ------------------------------------------------------------------------------------------------ */

static bool has_steps(const lb_bisect_session *session)
{
    for (uint32_t s = 0; s < session->n_steps; s++)
        for (uint32_t r = 0; r < session->n_ranks; r++) {
            const lb_program *program = lb_trial_program(session, session->ranks[r], session->steps[s]);
            for (uint32_t i = 0; program && i < program->n_ops; i++)
                if (!lb_op_is_source(program, &program->ops[i])) return true;
        }
    return false;
}

static bool all_finite(const lb_tensor *tensor)
{
    const lb_statistics statistics = lb_statistics_of(tensor);
    return !lb_statistics_nonfinite(&statistics);
}

/* Where the first element lies that is not finite: ", first at [3, 17]". One dimension after the other, by halves. */
static void say_where(const lb_tensor *tensor, char *text, size_t size)
{
    lb_tensor part = *tensor;
    size_t used = (size_t)snprintf(text, size, tensor->layout.ndim ? ", first at [" : "");
    for (int dimension = 0; dimension < tensor->layout.ndim && used < size; dimension++) {
        int64_t low = 0, high = part.layout.shape[dimension] - 1; /* the first index is in [low, high] */
        while (low < high) {
            lb_tensor left = part;
            left.layout.shape[dimension] = (low + high) / 2 + 1;
            if (all_finite(&left))
                low = left.layout.shape[dimension];
            else
                high = left.layout.shape[dimension] - 1;
        }
        used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, dimension ? ", " : "", low);
        part.data = (char *)part.data + low * part.layout.stride[dimension] * (int64_t)lb_dtype_bytes(part.dtype, 1);
        part.layout.shape[dimension] = 1;
    }
    if (tensor->layout.ndim && used < size) snprintf(text + used, size - used, "]");
}

/* One tensor of a file, where it is not finite: "; layers.3.weight: 1 of 16 elements is NaN, first at [1, 2]". */
static bool say_spoilt(const lb_bisect_session *session, const lb_program *program, uint32_t value, bool in_words,
                       char *text, size_t size)
{
    lb_tensor tensor;
    char where[120];
    if (!lb_dtype_is_float(program->values[value].dtype) ||
        lb_capture_value(session->capture, program, value, &tensor, NULL) != LB_OK)
        return false;
    const lb_statistics statistics = lb_statistics_of(&tensor);
    const int64_t bad = lb_statistics_nonfinite(&statistics);
    if (!bad) return false;
    if (!in_words) return true;
    say_where(&tensor, where, sizeof where);
    const size_t used = strlen(text);
    snprintf(text + used, size - used, "; %.120s: %" PRId64 " of %" PRId64 " elements %s %s%s",
             lb_program_text(program, program->values[value].name), bad, statistics.elements, bad == 1 ? "is" : "are",
             statistics.nan ? bad > statistics.nan ? "NaN or infinite" : "NaN" : "infinite", where);
    return true;
}

bool lb_basis_has_steps(lb_bisect_session *session)
{
    enum { SHOWN = 3 };
    char spoilt[480] = "";
    uint32_t n = 0;
    if (has_steps(session)) return true;
    for (uint32_t s = 0; s < session->n_steps; s++)
        for (uint32_t r = 0; r < session->n_ranks; r++) {
            const lb_program *program = lb_trial_program(session, session->ranks[r], session->steps[s]);
            for (uint32_t i = 0; program && i < program->n_ops; i++)
                for (uint32_t k = 0; k < program->ops[i].results; k++)
                    n += say_spoilt(session, program, lb_op_results(program, &program->ops[i])[k], n < SHOWN, spoilt,
                                    sizeof spoilt);
        }
    if (n > SHOWN) snprintf(spoilt + strlen(spoilt), sizeof spoilt - strlen(spoilt), "; %u tensors more", n - SHOWN);
    session->out->outcome = LB_BISECT_UNDECIDED;
    lb_basis_lacks(session,
                   "these are tensors only: no step was recorded that could be run again%s. "
                   "`lastbit show` prints them, `lastbit diff` compares them with others",
                   n ? spoilt : ", and all of them are finite");
    return false;
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

typedef struct first_damage {
    char message[480];
    uint64_t n;
} first_damage;

static void note_damage(void *context, const lb_damage *damage)
{
    first_damage *first = context;
    if (damage->kind == LB_DAMAGE_MISSING) return; /* not kept, or stripped: the replay knows */
    if (!first->n++) snprintf(first->message, sizeof first->message, "%s", damage->message);
}

static bool rests_on_recorded_bits(const lb_bisection *bisection)
{
    bool kernel = false;
    for (uint32_t i = 0; i < bisection->n_culprits; i++) kernel |= bisection->culprits[i].axis == LB_AXIS_KERNEL;
    return bisection->outcome != LB_BISECT_FOUND || kernel;
}

static void add_note(lb_bisection *bisection, const char *text)
{
    const size_t size = (bisection->note ? strlen(bisection->note) + 2 : 0) + strlen(text) + 1;
    char *all = malloc(size);
    if (!all) return;
    snprintf(all, size, "%s%s%s", bisection->note ? bisection->note : "", bisection->note ? "; " : "", text);
    free(bisection->note);
    bisection->note = all;
}

/* The capture is damaged: nothing is known of what stood there. */
static void give_up(lb_bisect_session *session, const char *message, uint64_t more)
{
    char others[60] = "";
    lb_bisection *bisection = session->out;
    for (uint32_t i = 0; i < bisection->n_culprits; i++) free(bisection->culprits[i].ranks);
    bisection->n_culprits = 0;
    bisection->outcome = LB_BISECT_UNDECIDED;
    free(bisection->reason);
    bisection->reason = NULL;
    if (more) snprintf(others, sizeof others, " (and %" PRIu64 " places more)", more);
    lb_basis_lacks(
        session,
        "the capture is damaged: %s%s. `lastbit verify` lists the damage, `lastbit recover` saves what is whole",
        message, others);
}

lb_status lb_basis_settle(lb_bisect_session *session, lb_status status, lb_err *err)
{
    first_damage damage = {.n = 0};
    lb_verification result;
    lb_err refusal = LB_ERR_INIT;
    if (status == LB_OK && lb_capture_refusal(session->capture, &refusal) != LB_OK) {
        if (refusal.status != LB_ERR_CORRUPT) return lb_fail(err, refusal.status, "%s", refusal.message);
        if (rests_on_recorded_bits(session->out)) give_up(session, refusal.message, 0);
    }
    if (status == LB_ERR_CORRUPT) {
        char message[sizeof err->message];
        snprintf(message, sizeof message, "%s", err ? err->message : "");
        if (err) *err = (lb_err)LB_ERR_INIT;
        give_up(session, message, 0);
        return LB_OK;
    }
    if (status != LB_OK || session->out->reason ||
        lb_capture_verify(lb_capture_path(session->capture), note_damage, &damage, &result, NULL) != LB_OK || !damage.n)
        return status;
    if (rests_on_recorded_bits(session->out))
        give_up(session, damage.message, damage.n - 1);
    else
        add_note(session->out, damage.message);
    return LB_OK;
}
