/* Positions behind padding: see first_positions.h. */
#include "check/first_positions.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The first token of a sequence that is not hidden; the number of columns: all are. */
static int64_t first_visible(const lb_token_ids *ids, const uint8_t *hidden, int64_t row)
{
    int64_t i = 0;
    while (i < ids->columns && hidden[row * ids->columns + i]) i++;
    return i;
}

/* Where two sequences begin: how much padding stands before them, and the position that each reads first. */
typedef struct beginnings {
    int64_t row[2], padded[2], position[2];
    uint32_t n, differ; /* sequences that were compared, and those that begin elsewhere than the first */
    bool shifted;       /* some are padded by different numbers of tokens than the first */
} beginnings;

static void compare(const lb_token_ids *ids, const lb_token_ids *positions, const uint8_t *hidden, beginnings *b)
{
    *b = (beginnings){.n = 0};
    for (int64_t row = 0; row < ids->rows; row++) {
        const int64_t at = first_visible(ids, hidden, row);
        if (at == ids->columns) continue;
        const int64_t position = positions->tokens[(positions->rows > 1 ? row : 0) * ids->columns + at];
        if (b->n++ == 0) b->row[0] = row, b->padded[0] = at, b->position[0] = position;
        b->shifted |= at != b->padded[0];
        if (position == b->position[0]) continue;
        if (!b->differ++) b->row[1] = row, b->padded[1] = at, b->position[1] = position;
    }
}

/* Do positions differ by just what the padding does? Documents that are cut elsewhere begin where they like. */
static bool is_by_padding(const beginnings *beginnings)
{
    return beginnings->differ &&
           beginnings->position[1] - beginnings->position[0] == beginnings->padded[1] - beginnings->padded[0];
}

static bool say(lb_check_step *step, const lb_token_ids *positions, const beginnings *beginnings)
{
    const lb_program *program = step->run.program;
    if (!is_by_padding(beginnings))
        return beginnings->differ || !beginnings->shifted ||
               lb_proof_list_prove(step->report,
                                   "step %lld: positions begin behind the padding: "
                                   "the first visible tokens of %u sequences read position %lld in %s",
                                   (long long)program->step, beginnings->n, (long long)beginnings->position[0],
                                   lb_op_layer(program, &program->ops[positions->op]));
    lb_check_finding *finding = lb_proof_list_add(step->report, LB_CHECK_POSITIONS, program);
    if (!finding) return false;
    lb_proof_list_place(finding, program, positions->op, LB_NONE, step->path);
    finding->effect = fabs((double)(beginnings->position[1] - beginnings->position[0]));
    snprintf(finding->message, sizeof finding->message,
             "sequence %lld is padded by %lld tokens on the left, and sequence %lld by %lld: "
             "their first visible tokens read positions %lld and %lld; the padding shifts what is behind it, "
             "in %u of %u sequences",
             (long long)beginnings->row[0], (long long)beginnings->padded[0], (long long)beginnings->row[1],
             (long long)beginnings->padded[1], (long long)beginnings->position[0], (long long)beginnings->position[1],
             beginnings->differ, beginnings->n);
    return true;
}

/* Whole numbers that mostly go up by one from token to token: positions, and no words. */
static bool counts_up(const lb_token_ids *ids)
{
    int64_t up = 0;
    for (int64_t i = 1; i < ids->rows * ids->columns; i++) up += ids->tokens[i] == ids->tokens[i - 1] + 1;
    return 2 * up > ids->rows * ids->columns;
}

static bool is_position_of(const lb_token_ids *positions, const lb_token_ids *ids)
{
    return positions != ids && positions->tokens && (positions->rows == ids->rows || positions->rows == 1) &&
           positions->columns == ids->columns && counts_up(positions);
}

bool lb_first_positions_judge(lb_check_step *step, const lb_scored_step *scored, const lb_token_marks *marks)
{
    if (scored->home) return true; /* positions are looked up where tokens are */
    uint8_t *ancestors = calloc((size_t)step->run.program->n_values + 1, 1),
            *seen = calloc((size_t)scored->n_ids + 1, 1);
    bool done = ancestors && seen;
    for (uint32_t k = 0; k < scored->n_losses && done; k++) {
        const lb_token_ids *ids = &scored->ids[scored->losses[k].ids];
        if (!marks[k].hidden) continue;
        done = lb_scored_rows_ancestors(&step->run, scored->losses[k].scores, ancestors);
        for (uint32_t i = 0; i < scored->n_ids && done; i++) {
            beginnings beginnings;
            if (seen[i] || !is_position_of(&scored->ids[i], ids) || !ancestors[scored->ids[i].value]) continue;
            seen[i] = 1;
            compare(ids, &scored->ids[i], marks[k].hidden, &beginnings);
            done = say(step, &scored->ids[i], &beginnings);
        }
    }
    free(ancestors), free(seen);
    return done;
}
