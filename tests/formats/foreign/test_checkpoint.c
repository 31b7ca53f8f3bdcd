/* Which files of a folder are a checkpoint, what ranks wrote them, and what is told of those that are not there. */
#include "cmocka_first.h"
#include "failing_memory.h"
#include "scratch_folder.h"

#include <lastbit/checkpoint.h>

#include <sys/stat.h>

/* A safetensors file of tensors of two numbers; `names`: with blanks between them. */
static void write_tensors(const char *file, const char *names)
{
    char path[400], text[4096], list[400];
    uint64_t length = 0;
    int n = 0;
    snprintf(path, sizeof path, "%s/%s", scratch, file), snprintf(list, sizeof list, "%s", names);
    for (char *name = strtok(list, " "); name; name = strtok(NULL, " "), n++)
        length += (uint64_t)snprintf(text + length, sizeof text - length,
                                     "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[%d,%d]}",
                                     n ? "," : "{", name, 8 * n, 8 * n + 8);
    text[length++] = '}';
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    fwrite(&length, 8, 1, to), fwrite(text, 1, length, to);
    for (float x = 0; x < 2 * (float)n; x++) fwrite(&x, sizeof x, 1, to);
    assert_int_equal(fclose(to), 0);
}

static void write_text(const char *file, const char *text)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", scratch, file);
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    fputs(text, to);
    assert_int_equal(fclose(to), 0);
}

static void make_folder(const char *name)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    assert_int_equal(mkdir(path, 0700), 0);
}

static lb_checkpoint *opened(const char *path)
{
    lb_checkpoint *c = NULL;
    lb_err err = LB_ERR_INIT;
    if (lb_checkpoint_open(path, &c, &err) != LB_OK) fail_msg("%s", err.message);
    return c;
}

static const lb_checkpoint_file *file_of(const lb_checkpoint *c, const char *path)
{
    for (uint32_t i = 0; i < c->n_files; i++)
        if (!strcmp(c->files[i].path, path)) return &c->files[i];
    fail_msg("%s was not read", path);
    return NULL;
}

static const lb_checkpoint_fault *fault_of(const lb_checkpoint *c, lb_fault_kind kind, const char *file)
{
    for (uint32_t i = 0; i < c->n_faults; i++)
        if (c->faults[i].kind == kind && c->faults[i].file && !strcmp(c->faults[i].file, file)) return &c->faults[i];
    return NULL;
}

/* ---- the grid of ranks' files ----------------------------------------------------------------------------------- */

static void a_place_that_is_not_there_is_told(void **state)
{
    (void)state;
    write_tensors("zero_pp_rank_0_mp_rank_00_optim_states.safetensors", "a b");
    write_tensors("zero_pp_rank_1_mp_rank_01_optim_states.safetensors", "a b");
    write_tensors("zero_pp_rank_2_mp_rank_01_optim_states.safetensors", "a b");
    lb_checkpoint *c = opened(scratch);
    assert_true(c->rank_files);
    assert_int_equal(c->n_files, 3);
    /* data-parallel places first: rank = 2 dp + mp */
    assert_int_equal(file_of(c, "zero_pp_rank_1_mp_rank_01_optim_states.safetensors")->rank, 3);
    assert_int_equal(file_of(c, "zero_pp_rank_2_mp_rank_01_optim_states.safetensors")->rank, 5);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(c->files[i].kind, 0);
    assert_int_equal(c->n_faults, 3);
    static const struct {
        const char *file;
        int32_t rank;
    } absent[] = {{"zero_pp_rank_0_mp_rank_01_optim_states.safetensors", 1},
                  {"zero_pp_rank_1_mp_rank_00_optim_states.safetensors", 2},
                  {"zero_pp_rank_2_mp_rank_00_optim_states.safetensors", 4}};
    for (int i = 0; i < 3; i++) {
        const lb_checkpoint_fault *f = fault_of(c, LB_FAULT_NO_FILE, absent[i].file);
        assert_non_null(f);
        assert_int_equal(f->rank, absent[i].rank);
        assert_non_null(strstr(f->message, "one of the files that each rank writes"));
    }
    assert_int_equal(c->ranks, 6);
    lb_checkpoint_close(c);
}

static void a_stage_of_a_pipeline_stands_in_the_name_of_its_folder(void **state)
{
    (void)state;
    char file[80];
    for (int tensor = 0; tensor < 2; tensor++)
        for (int stage = 0; stage < 3; stage++) {
            snprintf(file, sizeof file, "mp_rank_%02d_%03d", tensor, stage);
            make_folder(file);
            snprintf(file, sizeof file, "mp_rank_%02d_%03d/model.safetensors", tensor, stage);
            write_tensors(file, stage == 1 ? "middle" : "outer");
        }
    lb_checkpoint *c = opened(scratch);
    assert_int_equal(c->n_files, 6);
    assert_int_equal(c->n_faults, 0);
    assert_int_equal(file_of(c, "mp_rank_01_002/model.safetensors")->stage, 2);
    assert_int_equal(file_of(c, "mp_rank_00_000/model.safetensors")->stage, 0);
    /* pipeline before tensor-parallel places: rank = 2 pp + tp */
    assert_int_equal(file_of(c, "mp_rank_01_002/model.safetensors")->rank, 5);
    assert_int_equal(file_of(c, "mp_rank_00_001/model.safetensors")->rank, 2);
    lb_checkpoint_close(c);
}

static void a_file_of_a_layer_gives_its_names_the_layer(void **state)
{
    (void)state;
    write_tensors("layer_03-model_00-model_states.safetensors", "weight");
    write_tensors("layer_03-model_01-model_states.safetensors", "weight");
    write_tensors("layer_11-model_00-model_states.safetensors", "weight");
    write_tensors("layer_11-model_01-model_states.safetensors", "weight");
    lb_checkpoint *c = opened(scratch);
    assert_int_equal(c->n_pieces, 4);
    assert_string_equal(c->pieces[0].name, "layers.11.weight");
    assert_string_equal(c->pieces[3].name, "layers.3.weight");
    assert_int_equal(c->pieces[2].rank, 0);
    assert_int_equal(c->pieces[3].rank, 1);
    assert_int_equal(c->n_faults, 0);
    lb_checkpoint_close(c);
}

static void a_grid_larger_than_any_is_not_filled(void **state)
{
    (void)state;
    write_tensors("tp_rank_0_pp_rank_0.safetensors", "a");
    write_tensors("tp_rank_99999_pp_rank_99999.safetensors", "a");
    lb_checkpoint *c = opened(scratch);
    assert_int_equal(c->n_faults, 0);
    lb_checkpoint_close(c);
    write_tensors("dp_rank_900.safetensors", "a");
    write_tensors("dp_rank_3.safetensors", "a");
    c = opened(scratch);
    assert_int_equal(c->n_faults, 64); /* of the 899 that lack, so many are named */
    assert_non_null(fault_of(c, LB_FAULT_NO_FILE, "dp_rank_0.safetensors")
                        ?: fault_of(c, LB_FAULT_NO_FILE, "dp_rank_000.safetensors"));
    lb_checkpoint_close(c);
}

/* ---- numbered rows, indexes ------------------------------------------------------------------------------------- */

static void a_row_of_numbered_files_says_which_lacks(void **state)
{
    (void)state;
    write_tensors("model-00001-of-00003.safetensors", "a");
    write_tensors("model-00003-of-00003.safetensors", "c");
    lb_checkpoint *c = opened(scratch);
    assert_false(c->rank_files);
    assert_int_equal(c->n_faults, 1);
    const lb_checkpoint_fault *f = fault_of(c, LB_FAULT_NO_FILE, "model-00002-of-00003.safetensors");
    assert_non_null(f);
    assert_int_equal(f->rank, -1);
    assert_int_equal(c->ranks, 0);
    lb_checkpoint_close(c);
}

static void shards_that_share_names_are_ranks(void **state)
{
    (void)state;
    write_tensors("model-00000-of-00003.safetensors", "a b");
    write_tensors("model-00002-of-00003.safetensors", "a b");
    lb_checkpoint *c = opened(scratch);
    assert_true(c->rank_files);
    assert_int_equal(c->ranks, 3);
    const lb_checkpoint_fault *f = fault_of(c, LB_FAULT_NO_FILE, "model-00001-of-00003.safetensors");
    assert_non_null(f);
    assert_int_equal(f->rank, 1);
    lb_checkpoint_close(c);
}

static void what_an_index_does_not_name_is_left_over(void **state)
{
    (void)state;
    write_tensors("model-00001-of-00002.safetensors", "a");
    write_tensors("model-00002-of-00002.safetensors", "b x");
    write_tensors("model-00009-of-00009.safetensors", "z");
    write_tensors("model.safetensors", "a b");
    write_text("model.safetensors.index.json",
               "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"model-00002-of-00002.safetensors\","
               "\"c\":\"model-00002-of-00002.safetensors\",\"d\":\"model-00003-of-00002.safetensors\"}}");
    lb_checkpoint *c = opened(scratch);
    assert_int_equal(c->n_pieces, 3);
    assert_non_null(fault_of(c, LB_FAULT_UNEXPECTED, "model-00009-of-00009.safetensors"));
    assert_non_null(fault_of(c, LB_FAULT_UNEXPECTED, "model.safetensors"));
    const lb_checkpoint_fault *missing = fault_of(c, LB_FAULT_MISSING, "model-00002-of-00002.safetensors");
    assert_non_null(missing);
    assert_string_equal(missing->tensor, "c");
    /* the file of d is not there: that is told, and nothing of d besides */
    assert_non_null(fault_of(c, LB_FAULT_NO_FILE, "model-00003-of-00002.safetensors"));
    assert_null(fault_of(c, LB_FAULT_MISSING, "model-00003-of-00002.safetensors"));
    assert_int_equal(c->n_faults, 5); /* and x, which the index does not name */
    lb_checkpoint_close(c);
}

static void a_damaged_index_hides_no_file(void **state)
{
    (void)state;
    write_tensors("model-00001-of-00001.safetensors", "a");
    write_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":");
    lb_checkpoint *c = opened(scratch);
    assert_int_equal(c->n_pieces, 1);
    assert_non_null(fault_of(c, LB_FAULT_TRUNCATED, "model.safetensors.index.json"));
    lb_checkpoint_close(c);
}

/* ---- which files ------------------------------------------------------------------------------------------------ */

static void the_same_weights_in_another_form_are_not_read_twice(void **state)
{
    (void)state;
    static const char *const others[] = {"model.fp16.safetensors", "pytorch_model.bin", "x.gguf", "notes.txt",
                                         ".hidden.safetensors"};
    write_tensors("model.safetensors", "a");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) write_text(others[i], "no tensors");
    char link[200];
    snprintf(link, sizeof link, "%s/gone.safetensors", scratch);
    assert_int_equal(symlink("nowhere", link), 0);
    lb_checkpoint *c = opened(scratch);
    assert_int_equal(c->n_files, 1);
    assert_int_equal(c->n_faults, 0);
    lb_checkpoint_close(c);
}

static void one_bad_file_among_others_is_a_fault(void **state)
{
    (void)state;
    char cut[200];
    write_tensors("a.safetensors", "a");
    write_tensors("b.safetensors", "b");
    write_text("c.safetensors", "\x10\1\1\1\1\1\1\1{}");
    snprintf(cut, sizeof cut, "%s/b.safetensors", scratch);
    struct stat st;
    assert_int_equal(stat(cut, &st), 0);
    assert_int_equal(truncate(cut, st.st_size - 3), 0);
    lb_checkpoint *c = opened(scratch);
    assert_int_equal(c->n_pieces, 1);
    assert_non_null(fault_of(c, LB_FAULT_TRUNCATED, "b.safetensors"));
    assert_true(fault_of(c, LB_FAULT_DAMAGED, "c.safetensors") || fault_of(c, LB_FAULT_TRUNCATED, "c.safetensors"));
    assert_int_equal(c->n_faults, 2);
    lb_checkpoint_close(c);
}

static void what_is_no_checkpoint_is_refused_with_a_reason(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text, *why;
        lb_status status;
    } refused[] = {{"nowhere", NULL, "is not there", LB_ERR_NOT_FOUND},
                   {"empty.safetensors", "", "is empty", LB_ERR_CORRUPT},
                   {"notes.txt", "words and words", "", LB_ERR_CORRUPT},
                   {"folder/", NULL, "name the folder of a checkpoint", LB_ERR_NOT_FOUND}};
    make_folder("folder");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        lb_checkpoint *c = NULL;
        lb_err err = LB_ERR_INIT;
        if (refused[i].text) write_text(refused[i].name, refused[i].text);
        assert_int_equal(lb_checkpoint_open(in_scratch(refused[i].name), &c, &err), refused[i].status);
        assert_null(c);
        if (!strstr(err.message, refused[i].why) || !err.message[0]) fail_msg("%zu: %s", i, err.message);
    }
    for (int kind = 0; kind <= LB_FAULT_DAMAGED; kind++)
        assert_true(*lb_checkpoint_fault_kind_name((lb_fault_kind)kind));
    assert_string_equal(lb_checkpoint_fault_kind_name((lb_fault_kind)99), "damaged");
}

/* ---- on a host that fails, and of many names -------------------------------------------------------------------- */

static uint32_t faults_without(long n, lb_status *status)
{
    lb_checkpoint *c = NULL;
    lb_err err = LB_ERR_INIT;
    fail_memory(n);
    *status = lb_checkpoint_open(scratch, &c, &err);
    uint32_t faults = 0;
    if (*status != LB_OK) assert_true(err.message[0]);
    if (*status == LB_OK) faults = c->n_faults;
    lb_checkpoint_close(*status == LB_OK ? c : NULL);
    return faults;
}

/* Each allocation fails once: all is told, or that there was no memory. */
static void without_memory_no_fault_is_lost(void **state)
{
    (void)state;
    if (!failing_memory) skip();
    lb_status status = LB_OK;
    write_tensors("tp_rank_0_pp_rank_0.safetensors", "a b");
    write_tensors("tp_rank_1_pp_rank_1.safetensors", "a b");
    write_tensors("model-00001-of-00003.safetensors", "a");
    const uint32_t all = faults_without(0, &status);
    assert_true(status == LB_OK && all >= 2);
    uint32_t refused = 0;
    for (long n = 1;; n++) {
        const uint32_t told = faults_without(n, &status);
        if (!memory_failed()) break;
        refused += status == LB_ERR_NOMEM;
        if (status == LB_OK) assert_int_equal(told, all);
        if (status != LB_OK) assert_int_equal(status, LB_ERR_NOMEM);
    }
    assert_true(refused > 20);
}

/* An index of two thousand names of which none is anywhere, and a header of as many escaped ones. */
static void many_names_are_all_told(void **state)
{
    (void)state;
    enum { MANY = 2000 };
    char path[200];
    FILE *to = fopen(in_scratch("model.safetensors.index.json"), "wb");
    assert_non_null(to);
    fputs("{\"weight_map\":{", to);
    for (int i = 0; i < MANY; i++) fprintf(to, "%s\"t%d\":\"f%d.safetensors\"", i ? "," : "", i, i % 2 ? i : 0);
    fputs("}}", to);
    assert_int_equal(fclose(to), 0);
    snprintf(path, sizeof path, "%s/f0.safetensors", scratch);
    char *text = malloc(100 * MANY);
    size_t n = 8;
    for (int i = 0; i < MANY; i++)
        n += (size_t)sprintf(text + n, "%s\"\\u0078%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                             i ? "," : "{", i, i, i + 1);
    text[n++] = '}';
    memcpy(text, &(uint64_t){n - 8}, 8);
    memset(text + n, 0, MANY);
    write_whole(path, text, n + MANY);
    free(text);
    lb_checkpoint *c = opened(scratch);
    assert_int_equal(c->n_pieces, MANY);
    assert_int_equal(c->n_faults, MANY + MANY); /* unexpected; files that are not there, and half of the names */
    lb_checkpoint_close(c);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_scratch, drop_scratch)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_place_that_is_not_there_is_told),
        TEST(a_stage_of_a_pipeline_stands_in_the_name_of_its_folder),
        TEST(a_file_of_a_layer_gives_its_names_the_layer),
        TEST(a_grid_larger_than_any_is_not_filled),
        TEST(a_row_of_numbered_files_says_which_lacks),
        TEST(shards_that_share_names_are_ranks),
        TEST(what_an_index_does_not_name_is_left_over),
        TEST(a_damaged_index_hides_no_file),
        TEST(the_same_weights_in_another_form_are_not_read_twice),
        TEST(one_bad_file_among_others_is_a_fault),
        TEST(what_is_no_checkpoint_is_refused_with_a_reason),
        TEST(without_memory_no_fault_is_lost),
        TEST(many_names_are_all_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
