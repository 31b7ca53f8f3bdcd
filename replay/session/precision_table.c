/* The table of what a precision swap does, and its effect on the loss: see lastbit/precision.h. */
#include "base/array.h"
#include "base/hash.h"
#include <lastbit/precision.h>

#include "session/step_end.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *lb_precision_role_name(lb_precision_role role)
{
    static const char *const names[LB_ROLES] = {"input", "weight", "gradient"};
    return role < LB_ROLES ? names[role] : "none";
}

double lb_precision_loss_mse(const lb_precision_loss *loss)
{
    return loss->elements ? loss->error / (double)loss->elements : 0;
}

double lb_precision_loss_sqnr(const lb_precision_loss *loss)
{
    if (loss->error == 0) return INFINITY;
    return 10 * log10(loss->signal / loss->error);
}

/* ---- rows ------------------------------------------------------------------------------------------------------- */

/* Where the loss of a program is written; found once per program. */
typedef struct loss_place {
    const lb_program *program;
    uint32_t op, result; /* result: row among results, then written values; op LB_NONE: the program has no loss */
} loss_place;

struct lb_precision_memo {
    loss_place *places;
    uint32_t n_places;
    lb_hash rows;
};

lb_precision_table *lb_precision_table_new(void)
{
    lb_precision_table *table = calloc(1, sizeof *table);
    if (table) table->memo = calloc(1, sizeof *table->memo);
    if (table && table->memo) return table;
    free(table);
    return NULL;
}

void lb_precision_table_free(lb_precision_table *table)
{
    if (!table) return;
    for (uint32_t i = 0; i < table->n_rows; i++) {
        free(table->rows[i].layer);
        free(table->rows[i].format);
    }
    free(table->rows);
    free(table->effects);
    free(table->memo->places);
    lb_hash_release(&table->memo->rows);
    free(table->memo);
    free(table);
}

static uint64_t hash(const char *layer, lb_precision_role role, const char *format)
{
    uint64_t h = 1469598103934665603u + role;
    for (const char *p = layer; *p; p++) h = (h ^ (uint8_t)*p) * 1099511628211u;
    for (const char *p = format; *p; p++) h = (h ^ (uint8_t)*p) * 1099511628211u;
    return h;
}

/* The row, made when new; NULL when out of memory. */
static lb_precision_row *row_of(lb_precision_table *table, const char *layer, lb_precision_role role,
                                const char *format)
{
    const uint64_t h = hash(layer, role, format);
    LB_HASH_EACH(at, &table->memo->rows, h)
    {
        lb_precision_row *row = &table->rows[at];
        if (row->role == role && !strcmp(row->layer, layer) && !strcmp(row->format, format)) return row;
    }
    lb_precision_row *rows = lb_array_grow(table->rows, table->n_rows, sizeof *rows),
                     made = {strdup(layer), strdup(format), role, 0, {0}};
    if (rows) table->rows = rows;
    if (!rows || !made.layer || !made.format || !lb_hash_add(&table->memo->rows, h, table->n_rows)) {
        free(made.layer);
        free(made.format);
        return NULL;
    }
    rows[table->n_rows] = made;
    return &rows[table->n_rows++];
}

void lb_precision_table_add(lb_precision_table *table, const lb_quantisation *quantisation)
{
    lb_precision_row *row = row_of(table, quantisation->layer, quantisation->role, quantisation->format);
    if (!row) return;
    row->tensors++;
    lb_precision_loss_add(&row->loss, quantisation->loss);
}

/* ---- the loss --------------------------------------------------------------------------------------------------- */

static bool same_contents(const lb_program *program, uint32_t a, uint32_t b)
{
    return a != LB_NONE && program->values[a].storage == program->values[b].storage &&
           program->values[a].version == program->values[b].version;
}

static loss_place find_loss(const lb_program *program)
{
    loss_place place = {program, LB_NONE, 0};
    const uint32_t value = lb_step_end_loss(program).value;
    for (uint32_t i = 0; value != LB_NONE && i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (op->flags & LB_OP_VIEW) continue;
        for (uint32_t r = 0; r < op->results + op->written; r++) {
            const uint32_t v = lb_op_outcome(program, op, r);
            if (same_contents(program, v, value)) return (loss_place){program, i, r};
        }
    }
    return place;
}

static const loss_place *place_in(struct lb_precision_memo *memo, const lb_program *program)
{
    for (uint32_t i = memo->n_places; i-- > 0;)
        if (memo->places[i].program == program) return &memo->places[i];
    loss_place *places = lb_array_grow(memo->places, memo->n_places, sizeof *places);
    if (!places) return NULL;
    memo->places = places;
    memo->places[memo->n_places] = find_loss(program);
    return &memo->places[memo->n_places++];
}

static lb_precision_effect *effect_of(lb_precision_table *table, int32_t rank, int64_t step)
{
    for (uint32_t i = table->n_effects; i-- > 0;)
        if (table->effects[i].rank == rank && table->effects[i].step == step) return &table->effects[i];
    lb_precision_effect *effects = lb_array_grow(table->effects, table->n_effects, sizeof *effects);
    if (!effects) return NULL;
    table->effects = effects;
    table->effects[table->n_effects] = (lb_precision_effect){step, rank, NAN, NAN, NAN};
    return &table->effects[table->n_effects++];
}

static double first_element(const lb_tensor *tensor)
{
    return tensor->data && lb_layout_numel(&tensor->layout) ? lb_to_f64(tensor->dtype, tensor->data) : NAN;
}

void lb_precision_table_event(lb_precision_table *table, const lb_event *event, bool swapped)
{
    const loss_place *place = place_in(table->memo, event->program);
    if (!place || place->op != event->op || place->result >= event->n_results) return;
    lb_precision_effect *effect = effect_of(table, event->rank, event->step);
    if (!effect) return;
    *(swapped ? &effect->swapped : &effect->plain) = first_element(&event->computed[place->result]);
    if (isnan(effect->recorded)) effect->recorded = first_element(&event->recorded[place->result]);
}
