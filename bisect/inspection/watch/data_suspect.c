/* Suspects in the data: see data_suspect.h. */
#include "watch/data_suspect.h"

#include <string.h>

void lb_data_place_init(lb_data_place *place)
{
    *place = (lb_data_place){.shard_since = INT64_MIN, .curriculum_since = INT64_MIN};
}

/* Takes a word over; true when there was another one before. */
static bool change(char current[80], lb_watch_word word)
{
    const size_t n = word.n < 79 ? word.n : 79;
    if (strlen(current) == n && !memcmp(current, word.text, n)) return false;
    const bool was = *current != '\0';
    memcpy(current, word.text, n);
    current[n] = '\0';
    return was;
}

void lb_data_place_take(lb_data_place *place, const lb_watch_record *record)
{
    if (lb_watch_has(record, LB_WATCH_shard) && change(place->shard, record->word[0])) {
        place->shard_since = record->step;
        place->borders++;
    }
    if (lb_watch_has(record, LB_WATCH_curriculum) &&
        change(place->curriculum, record->word[LB_WATCH_curriculum - LB_WATCH_shard]))
        place->curriculum_since = record->step;
}

static bool is_near(int64_t border, int64_t from)
{
    return border != INT64_MIN && from >= border && from - border <= LB_BORDER_NEAR;
}

const char *lb_data_border(const lb_data_place *at_begin, int64_t from, int64_t until)
{
    if (is_near(at_begin->curriculum_since, from)) return "curriculum";
    return is_near(at_begin->shard_since, from) && until - from < LB_BORDER_SHORT ? "boundary" : NULL;
}

static uint64_t hash_of(lb_watch_word word)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (uint32_t i = 0; i < word.n; i++) hash = (hash ^ (unsigned char)word.text[i]) * 0x100000001b3u;
    return hash;
}

bool lb_data_suspect_take_tokens(lb_rank_tokens *tokens, const lb_watch_record *record, int32_t *other)
{
    if (!lb_watch_has(record, LB_WATCH_tokens) || !lb_watch_has(record, LB_WATCH_rank)) return false;
    const uint64_t hash = hash_of(record->word[LB_WATCH_tokens - LB_WATCH_shard]);
    if (tokens->step != record->step) tokens->step = record->step, tokens->n = 0;
    for (uint32_t i = 0; i < tokens->n; i++)
        if (tokens->row[i].hash == hash && tokens->row[i].rank != record->rank)
            return *other = tokens->row[i].rank, true;
    if (tokens->n < LB_RANKS_COMPARED) tokens->row[tokens->n].rank = record->rank, tokens->row[tokens->n++].hash = hash;
    return false;
}
