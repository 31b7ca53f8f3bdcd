/* What the user says of two checkpoints' tensors (contents/content_map.h), before names and numbers do. See
 * arrangement.h. */
#include "audit/arrangement.h"

#include "contents/content_map.h"

#include <lastbit/program.h>

#include <stdlib.h>
#include <string.h>

static bool is_named(const lb_content_map *map, const char *name)
{
    for (uint32_t i = 0; i < map->n; i++) {
        if (!strcmp(map->list[i].second, name)) return true;
        for (uint32_t k = 0; k < map->list[i].n_first; k++)
            if (!strcmp(map->list[i].first[k], name)) return true;
    }
    return false;
}

/* All tensors of a side, with the numbers of those that the map names. NULL: out of memory, or they cannot be read. */
static lb_content_tensor *list_tensors(lb_shelf *shelf, const lb_content_map *map, lb_err *err)
{
    lb_content_tensor *list = calloc(shelf->n + 1u, sizeof *list);
    if (!list) lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; list && i < shelf->n; i++) {
        list[i] = (lb_content_tensor){lb_shelf_name(shelf, i),
                                      {NULL, lb_shelf_piece(shelf, i)->tensor.dtype, lb_shelf_layout(shelf, i)}};
        if (!is_named(map, list[i].name)) continue;
        if (lb_shelf_open(shelf, i, err) != LB_OK) return free(list), NULL;
        list[i].tensor = shelf->list[i].whole.tensor;
    }
    return list;
}

/* What the map made of one tensor of B is told. */
static lb_status take(lb_arrangements *arrangements, const lb_contents *contents, uint32_t b, lb_err *err)
{
    const lb_content *content = &contents->list[b];
    lb_arrangement *arrangement = &arrangements->list[b];
    if (content->relation == LB_CONTENT_NONE) return LB_OK;
    arrangement->relation = content->relation == LB_CONTENT_NAMED && content->n > 1 ? LB_CONTENT_FUSED
                            : content->relation == LB_CONTENT_NAMED                 ? LB_CONTENT_RENAMED
                                                                                    : content->relation;
    for (uint32_t k = 0; k < content->n; k++)
        if (!lb_arrangement_add(arrangement, contents->runs[content->first + k]))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    return lb_arrangement_tell(arrangements, b, err);
}

/* Tensors that stand for nothing of the other side: nothing is said of them. */
static void leave_out(lb_arrangements *arrangements, const lb_content_map *map)
{
    for (uint32_t i = 0; i < map->n; i++)
        for (uint32_t b = 0; b < arrangements->b.n && !map->list[i].n_first; b++)
            if (!strcmp(lb_shelf_name(&arrangements->b, b), map->list[i].second))
                arrangements->b.side->states[arrangements->b.list[b].row] = LB_COMPARISON_ARRANGED;
}

static lb_status obey(lb_arrangements *arrangements, const lb_content_map *map, lb_err *err)
{
    lb_content_tensor *a = list_tensors(&arrangements->a, map, err),
                      *b = a ? list_tensors(&arrangements->b, map, err) : NULL;
    lb_contents contents = {.list = calloc(arrangements->b.n + 1u, sizeof *contents.list), .n = arrangements->b.n};
    lb_content_disagreement *list = NULL;
    uint32_t n = 0;
    lb_status status = !a || !b ? (err ? err->status : LB_ERR_NOMEM) : contents.list ? LB_OK : LB_ERR_NOMEM;
    for (uint32_t i = 0; contents.list && b && i < contents.n; i++)
        contents.list[i] = (lb_content){.tensor = LB_NONE, .all = lb_layout_numel(&b[i].tensor.layout)};
    if (status == LB_OK)
        status = lb_content_map_apply(map, a, arrangements->a.n, b, arrangements->b.n, &contents, &list, &n, err);
    for (uint32_t i = 0; status == LB_OK && i < contents.n; i++) status = take(arrangements, &contents, i, err);
    for (uint32_t i = 0; status == LB_OK && i < n; i++) {
        char text[600];
        lb_content_map_disagreement_text(map, &list[i], a, b, text);
        lb_audit_note(arrangements->comparison->gathering, LB_AUDIT_DIFFERS,
                      (lb_audit_where){lb_shelf_name(&arrangements->a, list[i].a), NULL, NULL, 0}, "%s", text);
    }
    if (status == LB_OK) leave_out(arrangements, map);
    lb_contents_release(&contents);
    free(a), free(b), free(list);
    return status;
}

lb_status lb_arrangement_take_map(lb_comparison *comparison, const lb_content_map *map, lb_err *err)
{
    lb_arrangements arrangements;
    lb_status status = lb_arrangements_open(comparison, &arrangements, err);
    if (status == LB_OK) status = obey(&arrangements, map, err);
    lb_arrangements_close(&arrangements);
    return status;
}
