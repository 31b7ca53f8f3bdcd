/* Amax histories: see scale_history.h. */
#include "scale_history.h"

#include "quantiser.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct lb_scale_book {
    lb_scale_history *entries;
    uint32_t n, room;
    uint32_t *slots; /* entries by hash, plus 1; twice `room` of them */
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
    free(book->slots);
    free(book);
}

static uint32_t *slot_of(const lb_scale_book *book, const lb_recipe *recipe, const char *layer, lb_role role,
                         uint32_t slot)
{
    uint64_t hash = 1469598103934665603u + role + 31 * (uint64_t)slot;
    for (const char *p = layer; *p; p++) hash = (hash ^ (uint8_t)*p) * 1099511628211u;
    for (;; hash++) {
        uint32_t *at = &book->slots[(hash ^ hash >> 32) & (2 * book->room - 1)];
        if (!*at) return at;
        const lb_scale_history *e = &book->entries[*at - 1];
        if (e->recipe == recipe && e->role == role && e->slot == slot && !strcmp(e->layer, layer)) return at;
    }
}

static bool grow(lb_scale_book *book)
{
    if (book->n < book->room) return true;
    const uint32_t room = book->room ? book->room * 2 : 64;
    lb_scale_history *entries = realloc(book->entries, room * sizeof *entries);
    if (entries) book->entries = entries;
    uint32_t *slots = calloc(2 * (size_t)room, sizeof *slots);
    if (!entries || !slots) {
        free(slots);
        return false;
    }
    free(book->slots);
    book->slots = slots;
    book->room = room;
    for (uint32_t i = 0; i < book->n; i++) {
        const lb_scale_history *e = &book->entries[i];
        *slot_of(book, e->recipe, e->layer, e->role, e->slot) = i + 1;
    }
    return true;
}

lb_scale_history *lb_scale_book_find(lb_scale_book *book, const lb_recipe *recipe, const char *layer, lb_role role,
                                     uint32_t slot)
{
    if (!grow(book)) return NULL;
    uint32_t *at = slot_of(book, recipe, layer, role, slot);
    if (!*at) {
        lb_scale_history made = {.recipe = recipe, .layer = strdup(layer), .role = role, .slot = slot, .scale = 1};
        made.history = calloc((size_t)recipe->history, sizeof *made.history);
        if (!made.layer || !made.history) {
            free(made.layer);
            free(made.history);
            return NULL;
        }
        book->entries[book->n] = made;
        *at = ++book->n;
    }
    return &book->entries[*at - 1];
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
