/* One family of MPI behind mpi_family.h: compiled with its mpi.h. It calls PMPI alone. */
#include "mpi/mpi_family.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

/* The bits of a handle: all of a pointer, or the lower half. */
#define OF(type, handle)                                                                                               \
    ((union {                                                                                                          \
        lb_mpi_handle whole;                                                                                           \
        type part;                                                                                                     \
    }){handle})                                                                                                        \
        .part
#define WHOLE(type, value)                                                                                             \
    ((union {                                                                                                          \
        type part;                                                                                                     \
        lb_mpi_handle whole;                                                                                           \
    }){value})                                                                                                         \
        .whole

static bool is_initialized(void)
{
    int begun = 0, ended = 0;
    return PMPI_Initialized(&begun) == MPI_SUCCESS && begun && PMPI_Finalized(&ended) == MPI_SUCCESS && !ended;
}

/* ---- communicators ----------------------------------------------------------------------------------------------- */

static int32_t *ranks_in_world(MPI_Comm comm, int size)
{
    MPI_Group of, world;
    int *own = malloc(2 * (size_t)size * sizeof *own), *there = own + size;
    int32_t *ranks = malloc((size_t)size * sizeof *ranks);
    bool known = own && ranks;
    for (int i = 0; own && i < size; i++) own[i] = i;
    PMPI_Comm_group(comm, &of);
    PMPI_Comm_group(MPI_COMM_WORLD, &world);
    known = known && PMPI_Group_translate_ranks(of, size, own, world, there) == MPI_SUCCESS;
    for (int i = 0; known && i < size; i++) {
        known = there[i] != MPI_UNDEFINED;
        ranks[i] = there[i];
    }
    PMPI_Group_free(&of);
    PMPI_Group_free(&world);
    free(own);
    if (known) return ranks;
    free(ranks);
    return NULL;
}

static bool get_members(lb_mpi_handle handle, lb_mpi_members *members)
{
    const MPI_Comm comm = OF(MPI_Comm, handle);
    int inter = 1;
    if (comm == MPI_COMM_NULL || PMPI_Comm_test_inter(comm, &inter) != MPI_SUCCESS || inter) return false;
    if (PMPI_Comm_size(comm, &members->size) != MPI_SUCCESS || PMPI_Comm_rank(comm, &members->rank) != MPI_SUCCESS)
        return false;
    members->world = ranks_in_world(comm, members->size);
    return true;
}

/* ---- datatypes --------------------------------------------------------------------------------------------------- */

static lb_dtype integer_of(bool is_signed, size_t bytes)
{
    switch (bytes) {
    case 1: return is_signed ? LB_I8 : LB_U8;
    case 2: return is_signed ? LB_I16 : LB_U16;
    case 4: return is_signed ? LB_I32 : LB_U32;
    case 8: return is_signed ? LB_I64 : LB_U64;
    default: return LB_NO_DTYPE;
    }
}

/* What a type of MPI's own consists of: one element, or two of a pair. Fortran's have the sizes that its compiler
 * gives them. */
static lb_dtype named(MPI_Datatype type, int bytes)
{
#define ARE(kind, ...)                                                                                                 \
    for (size_t i = 0; i < sizeof((const MPI_Datatype[]){__VA_ARGS__}) / sizeof(MPI_Datatype); i++)                    \
        if (((const MPI_Datatype[]){__VA_ARGS__})[i] == type) return kind
    if (type == MPI_DATATYPE_NULL) return LB_NO_DTYPE;
    ARE(LB_F32, MPI_FLOAT);
    ARE(LB_F64, MPI_DOUBLE);
    ARE(integer_of(true, (size_t)bytes), MPI_CHAR, MPI_SIGNED_CHAR, MPI_SHORT, MPI_INT, MPI_LONG, MPI_LONG_LONG,
        MPI_INT8_T, MPI_INT16_T, MPI_INT32_T, MPI_INT64_T, MPI_AINT, MPI_OFFSET, MPI_COUNT, MPI_WCHAR, MPI_INTEGER,
        MPI_INTEGER1, MPI_INTEGER2, MPI_INTEGER4, MPI_INTEGER8);
    ARE(integer_of(false, (size_t)bytes), MPI_UNSIGNED_CHAR, MPI_UNSIGNED_SHORT, MPI_UNSIGNED, MPI_UNSIGNED_LONG,
        MPI_UNSIGNED_LONG_LONG, MPI_UINT8_T, MPI_UINT16_T, MPI_UINT32_T, MPI_UINT64_T, MPI_BYTE, MPI_PACKED,
        MPI_CHARACTER);
    ARE(LB_BOOL, MPI_C_BOOL);
    ARE(integer_of(true, (size_t)bytes), MPI_LOGICAL);
    ARE(bytes == 4 ? LB_F32 : bytes == 8 ? LB_F64 : LB_NO_DTYPE, MPI_REAL, MPI_REAL4, MPI_REAL8, MPI_DOUBLE_PRECISION);
    ARE(bytes == 8    ? LB_C64
        : bytes == 16 ? LB_C128
                      : LB_NO_DTYPE,
        MPI_C_FLOAT_COMPLEX, MPI_C_DOUBLE_COMPLEX, MPI_COMPLEX, MPI_DOUBLE_COMPLEX, MPI_COMPLEX8, MPI_COMPLEX16);
    ARE(integer_of(true, (size_t)bytes / 2), MPI_2INT, MPI_2INTEGER);
    ARE(bytes == 8 ? LB_F32 : LB_F64, MPI_2REAL, MPI_2DOUBLE_PRECISION);
#undef ARE
    return LB_NO_DTYPE; /* long double, and pairs of two types */
}

enum { DEEPEST = 16 };

/* The one type that all of it consists of. */
static lb_dtype base_of(MPI_Datatype type, int depth)
{
    int integers, addresses, types, combiner, bytes = 0;
    if (depth > DEEPEST || PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner) != MPI_SUCCESS)
        return LB_NO_DTYPE;
    if (combiner == MPI_COMBINER_NAMED || !types) {
        PMPI_Type_size(type, &bytes);
        return named(type, bytes);
    }
    int *counts = malloc(((size_t)integers + 1) * sizeof *counts);
    MPI_Aint *displacements = malloc(((size_t)addresses + 1) * sizeof *displacements);
    MPI_Datatype *made_of = malloc((size_t)types * sizeof *made_of);
    lb_dtype base = LB_NO_DTYPE;
    if (counts && displacements && made_of &&
        PMPI_Type_get_contents(type, integers, addresses, types, counts, displacements, made_of) == MPI_SUCCESS)
        for (int k = 0; k < types; k++) {
            int ni, na, nt, own;
            const lb_dtype part = base_of(made_of[k], depth + 1);
            base = k == 0 || part == base ? part : LB_NO_DTYPE;
            if (PMPI_Type_get_envelope(made_of[k], &ni, &na, &nt, &own) == MPI_SUCCESS && own != MPI_COMBINER_NAMED)
                PMPI_Type_free(&made_of[k]);
        }
    free(counts), free(displacements), free(made_of);
    return base;
}

static bool is_named(MPI_Datatype type)
{
    int integers, addresses, types, combiner;
    return PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner) == MPI_SUCCESS &&
           combiner == MPI_COMBINER_NAMED;
}

/* Blocks in the order in which they lie, without gaps: MPI says of a type how much it holds and how far it reaches.
 * That its blocks may stand in another order there (an indexed type) it says in none of these, so that only types
 * whose every level is contiguous are dense; others are packed. */
static bool is_contiguous(MPI_Datatype type, int depth)
{
    int integers, addresses, types, combiner, i[1];
    MPI_Aint a[1];
    MPI_Datatype inner;
    if (depth > DEEPEST || PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner) != MPI_SUCCESS)
        return false;
    if (combiner == MPI_COMBINER_NAMED) return true;
    if (combiner != MPI_COMBINER_CONTIGUOUS && combiner != MPI_COMBINER_DUP) return false;
    if (PMPI_Type_get_contents(type, integers, addresses, types, i, a, &inner) != MPI_SUCCESS) return false;
    const bool all = is_contiguous(inner, depth + 1);
    if (!is_named(inner)) PMPI_Type_free(&inner);
    return all;
}

static void get_element(lb_mpi_handle handle, lb_mpi_element *element)
{
    const MPI_Datatype type = OF(MPI_Datatype, handle);
    MPI_Aint lower = 0, extent = 0, first = 0, reach = 0;
    int bytes = 0;
    *element = (lb_mpi_element){.dtype = LB_NO_DTYPE};
    if (type == MPI_DATATYPE_NULL || PMPI_Type_size(type, &bytes) != MPI_SUCCESS || bytes < 0) return;
    PMPI_Type_get_extent(type, &lower, &extent);
    PMPI_Type_get_true_extent(type, &first, &reach);
    const bool plain = is_named(type);
    element->dtype = plain ? named(type, bytes) : base_of(type, 0);
    element->dense = reach == bytes && extent == bytes && first == 0 && (plain || is_contiguous(type, 0));
    element->bytes = bytes;
    element->extent = extent;
    element->first = first;
}

static bool do_pack(const void *from, int items, lb_mpi_handle datatype, void *to, int64_t bytes)
{
    int at = 0;
    return bytes <= INT32_MAX &&
           PMPI_Pack(from, items, OF(MPI_Datatype, datatype), to, (int)bytes, &at, MPI_COMM_WORLD) == MPI_SUCCESS &&
           at == bytes;
}

static lb_mpi_handle hold_datatype(lb_mpi_handle datatype)
{
    MPI_Datatype held = MPI_DATATYPE_NULL;
    PMPI_Type_dup(OF(MPI_Datatype, datatype), &held);
    return WHOLE(MPI_Datatype, held);
}

static void let_datatype_go(lb_mpi_handle datatype)
{
    MPI_Datatype held = OF(MPI_Datatype, datatype);
    if (held != MPI_DATATYPE_NULL) PMPI_Type_free(&held);
}

/* ---- operations, messages, the library --------------------------------------------------------------------------- */

static const char *reduction_of(lb_mpi_handle handle)
{
    const MPI_Op op = OF(MPI_Op, handle);
    const struct {
        MPI_Op op;
        const char *name;
    } names[] = {{MPI_SUM, "sum"},         {MPI_PROD, "product"}, {MPI_MAX, "max"},       {MPI_MIN, "min"},
                 {MPI_BAND, "band"},       {MPI_BOR, "bor"},      {MPI_BXOR, "bxor"},     {MPI_LAND, "land"},
                 {MPI_LOR, "lor"},         {MPI_LXOR, "lxor"},    {MPI_MAXLOC, "maxloc"}, {MPI_MINLOC, "minloc"},
                 {MPI_REPLACE, "replace"}, {MPI_NO_OP, "no_op"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].op == op) return names[i].name;
    return "user";
}

static lb_mpi_message get_message(const void *of)
{
    const MPI_Status *status = of;
    int bytes = 0, cancelled = 0;
    PMPI_Get_count(status, MPI_BYTE, &bytes);
    PMPI_Test_cancelled(status, &cancelled);
    return (lb_mpi_message){status->MPI_SOURCE, status->MPI_TAG, bytes == MPI_UNDEFINED ? -1 : bytes, cancelled};
}

static void get_library(char *text, size_t room)
{
    char whole[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length;
    PMPI_Get_library_version(whole, &length);
    char *built = strstr(whole, "MPICH configure"); /* a page of options */
    if (built) *built = 0;
    size_t n = 0;
    for (const char *at = whole; *at && n + 1 < room; at++) text[n++] = *at == '\n' || *at == '\t' ? ' ' : *at;
    while (n && text[n - 1] == ' ') n--;
    text[n] = 0;
}

static const char *get_threads(void)
{
    int level = MPI_THREAD_SINGLE;
    PMPI_Query_thread(&level);
    return level == MPI_THREAD_MULTIPLE     ? "multiple"
           : level == MPI_THREAD_SERIALIZED ? "serialized"
           : level == MPI_THREAD_FUNNELED   ? "funneled"
                                            : "single";
}

__attribute__((visibility("default"))) const lb_mpi_family *lb_mpi_family_here(void)
{
    static lb_mpi_family family;
    family = (lb_mpi_family){
#ifdef OPEN_MPI
        .name = "Open MPI",
#else
        .name = "MPICH",
#endif
        .world = WHOLE(MPI_Comm, MPI_COMM_WORLD),
        .in_place = MPI_IN_PLACE,
        .status_ignore = MPI_STATUS_IGNORE,
        .statuses_ignore = MPI_STATUSES_IGNORE,
        .handle_mask = sizeof(MPI_Comm) == sizeof(uintptr_t) ? UINTPTR_MAX : UINT32_MAX,
        .request_bytes = sizeof(MPI_Request),
        .status_bytes = sizeof(MPI_Status),
        .proc_null = MPI_PROC_NULL,
        .undefined = MPI_UNDEFINED,
        .initialized = is_initialized,
        .members = get_members,
        .element = get_element,
        .reduction = reduction_of,
        .pack = do_pack,
        .hold = hold_datatype,
        .let_go = let_datatype_go,
        .message = get_message,
        .library = get_library,
        .threads = get_threads};
    return &family;
}
