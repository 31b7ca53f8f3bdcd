/* Amax histories: see scale_history.h. */
#include "precision/scale_history.h"

#include "precision/quantiser.h"

#include "base/array.h"
#include "base/hash.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct lb_scale_book {
    lb_scale_history *entries;
    uint32_t n;
    lb_hash index;
    int64_t steps;
};

lb_scale_book *lb_scale_book_new(void)
{
    return calloc(1, sizeof(lb_scale_book));
}

void lb_scale_book_free(lb_scale_book *book)
{
    if (!book) return;
    for (uint32_t i = 0; i < book->n; i++) {
        free(book->entries[i].layer);
        free(book->entries[i].history);
    }
    free(book->entries);
    lb_hash_release(&book->index);
    free(book);
}

lb_scale_history *lb_scale_book_find(lb_scale_book *book, const lb_recipe *recipe, const char *layer,
                                     lb_precision_role role, uint32_t slot)
{
    uint64_t hash = 1469598103934665603u + role + 31 * (uint64_t)slot;
    for (const char *p = layer; *p; p++) hash = (hash ^ (uint8_t)*p) * 1099511628211u;
    LB_HASH_EACH(row, &book->index, hash)
    {
        lb_scale_history *history = &book->entries[row];
        if (history->recipe == recipe && history->role == role && history->slot == slot &&
            !strcmp(history->layer, layer))
            return history;
    }
    lb_scale_history *entries = lb_array_grow(book->entries, book->n, sizeof *entries);
    if (!entries) return NULL;
    book->entries = entries;
    lb_scale_history made = {.recipe = recipe, .layer = strdup(layer), .role = role, .slot = slot, .scale = 1};
    made.history = calloc((size_t)recipe->history, sizeof *made.history);
    if (!made.layer || !made.history || !lb_hash_add(&book->index, hash, book->n)) {
        free(made.layer);
        free(made.history);
        return NULL;
    }
    entries[book->n] = made;
    return &entries[book->n++];
}

/* The kernel's constant: the largest value over 2^margin, in f32. */
static float scaled_max(const lb_scale_history *entry)
{
    return (float)lb_dtype_max_finite(entry->recipe->element[entry->role]) * powf(2.0f, -(float)entry->recipe->margin);
}

static void set_scale(lb_scale_history *entry, float amax)
{
    if (!isfinite(amax) || !(amax > 0)) return;
    entry->scale = scaled_max(entry) / amax;
    if (entry->scale > FLT_MAX) entry->scale = FLT_MAX;
    entry->begun = true;
}

float lb_scale_history_take(lb_scale_history *entry, float amax)
{
    entry->touched = true;
    entry->history[0] = fmaxf(entry->history[0], amax);
    if (entry->recipe->calibrated && !entry->begun) set_scale(entry, amax);
    return entry->scale;
}

static void roll(lb_scale_history *entry, bool renew)
{
    const int64_t n = entry->recipe->history;
    const float latest = entry->history[0];
    float amax = 0;
    for (int64_t i = 0; i < n; i++) amax = fmaxf(amax, entry->history[i]);
    /* Row 1 is the oldest: it is what moves into 0 and is cleared there. */
    for (int64_t i = 0; i + 1 < n; i++) entry->history[i] = entry->history[i + 1];
    entry->history[n - 1] = latest;
    entry->history[0] = 0;
    if (renew) set_scale(entry, entry->recipe->most_recent ? latest : amax);
    entry->touched = false;
}

void lb_scale_book_step(lb_scale_book *book)
{
    book->steps++;
    for (uint32_t i = 0; i < book->n; i++) {
        lb_scale_history *entry = &book->entries[i];
        if (entry->touched) roll(entry, book->steps % entry->recipe->interval == 0);
    }
}
