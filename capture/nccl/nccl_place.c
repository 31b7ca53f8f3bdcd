/* Ranks of the job in this process: see nccl_place.h. */
#include "nccl_place.h"

#include "calls/shim_settings.h"

#include <stddef.h>

static lb_nccl_place *places;
static struct membership { /* who of us has joined what */
    struct membership *next;
    uint64_t id;
    int rank;
    lb_nccl_place *place;
} *memberships;
static _Thread_local struct here {
    lb_nccl_place *place;  /* where it last called or joined */
    lb_nccl_place *joined; /* as whom it joined first, by itself */
    bool several;          /* it has joined as others, too */
} here;

lb_nccl_place *lb_nccl_place_first(void)
{
    return places;
}

lb_nccl_place *lb_nccl_place_here(void)
{
    if (here.place) return here.place;
    return places && !places->next ? places : NULL;
}

void lb_nccl_place_enter(lb_nccl_place *place)
{
    here.place = place;
}

void lb_nccl_place_drop_all(void)
{
    places = NULL;
    memberships = NULL;
    here = (struct here){0};
}

static lb_nccl_place *make(int32_t rank, int32_t world, int device)
{
    lb_nccl_place *place = lb_shim_memory(sizeof *place);
    if (!place) return NULL;
    *place = (lb_nccl_place){.next = places,
                             .rank = rank,
                             .world = world,
                             .device = device,
                             .wanted = lb_shim_ranges_have(lb_shim_settings_now()->ranks, rank)};
    return places = place;
}

/* ---- which of them a member is ----------------------------------------------------------------------------------- */

static bool has_joined(const lb_nccl_place *place, uint64_t id)
{
    for (const struct membership *membership = memberships; membership; membership = membership->next)
        if (membership->id == id && membership->place == place) return true;
    return false;
}

/* It tries once more what failed. */
static lb_nccl_place *of_the_same(const lb_nccl_member *member)
{
    for (const struct membership *membership = memberships; membership; membership = membership->next)
        if (membership->id == member->id && membership->rank == member->rank) return membership->place;
    return NULL;
}

/* Threads that leave one device current tell nothing by it. */
static bool has_its_own_device(const lb_nccl_place *place)
{
    for (const lb_nccl_place *p = places; p; p = p->next)
        if (p != place && p->device == place->device) return false;
    return place->device >= 0;
}

static lb_nccl_place *of_device(const lb_nccl_member *member)
{
    for (lb_nccl_place *place = places; place; place = place->next)
        if (place->device == member->device && has_its_own_device(place) && !has_joined(place, member->id))
            return place;
    return NULL;
}

static lb_nccl_place *of_thread(const lb_nccl_member *member)
{
    if (!here.joined || here.several || member->of_a_set) return NULL;
    return has_joined(here.joined, member->id) ? NULL : here.joined;
}

static lb_nccl_place *of_rank(int32_t rank)
{
    for (lb_nccl_place *place = places; place; place = place->next)
        if (place->rank == rank) return place;
    return NULL;
}

/* One whose number the member has is not it where each has a device of its own. */
static bool may_be(const lb_nccl_place *place, const lb_nccl_member *member)
{
    const bool elsewhere = member->device >= 0 && member->device != place->device && has_its_own_device(place);
    return !elsewhere && !has_joined(place, member->id);
}

static bool is_of_the_job(const lb_nccl_member *member)
{
    for (const lb_nccl_place *place = places; place; place = place->next)
        if (place->world > member->ranks) return false;
    return true;
}

static lb_nccl_place *any(const lb_nccl_member *member)
{
    if (here.place && !has_joined(here.place, member->id)) return here.place;
    for (lb_nccl_place *place = places; place; place = place->next)
        if (!has_joined(place, member->id)) return place;
    return NULL;
}

/* Where its number is another's already, the least that no rank here has. */
static lb_nccl_place *make_one_more(const lb_nccl_member *member)
{
    int32_t rank = of_rank(member->rank) ? 0 : member->rank;
    while (of_rank(rank)) rank++;
    return make(rank, member->ranks, member->device);
}

/* The first makes a place of what the launcher says, or of the communicator itself where that has more ranks than
 * processes were started. */
static lb_nccl_place *make_first(const lb_nccl_member *member)
{
    const lb_shim_settings *settings = lb_shim_settings_now();
    if (settings->rank >= 0 && member->ranks <= settings->world)
        return make(settings->rank, settings->world, member->device);
    return make(member->rank, member->ranks, member->device);
}

static lb_nccl_place *find(const lb_nccl_member *member)
{
    lb_nccl_place *place;
    if (!places) return make_first(member);
    if ((place = of_the_same(member))) return place;
    if (!places->next && !has_joined(places, member->id)) return places;
    if ((place = of_device(member)) || (place = of_thread(member))) return place;
    if (is_of_the_job(member)) {
        place = of_rank(member->rank);
        return place && may_be(place, member) ? place : make_one_more(member);
    }
    place = any(member);
    return place ? place : make_one_more(member);
}

lb_nccl_place *lb_nccl_place_join(const lb_nccl_member *member)
{
    lb_nccl_place *place = find(member);
    struct membership *m = place ? lb_shim_memory(sizeof *m) : NULL;
    if (!place) return NULL;
    if (m) {
        *m = (struct membership){memberships, member->id, member->rank, place};
        memberships = m;
    }
    if (place->device < 0) place->device = member->device;
    here.place = place;
    if (member->of_a_set) return place;
    here.several |= here.joined && here.joined != place;
    if (!here.joined) here.joined = place;
    return place;
}
