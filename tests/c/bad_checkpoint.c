/* Files and buffers that are no checkpoint of this model, places that cannot be read or written: each is an
   error that leaves parameters and state as they were.
   Usage: bad_checkpoint FOLDER */
#define _POSIX_C_SOURCE 200809L
#include "model.h"

#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[2048];

static const char *path_of(const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *path, const void *data, size_t size) {
    FILE *file = fopen(path, "wb");
    REQUIRE(file != NULL);
    REQUIRE(fwrite(data, 1, size, file) == size);
    REQUIRE(fclose(file) == 0);
}

static size_t entries(void) {
    size_t count = 0;
    DIR *open = opendir(folder);
    REQUIRE(open != NULL);
    while (readdir(open) != NULL) count += 1;
    closedir(open);
    return count;
}

/* Refused from memory and from a file alike; the file's error names the file. */
static void refused_bytes(model *m, const void *data, size_t size, const char *says) {
    const char *path = path_of("hostile");
    char with_path[256];
    /* A copy of the exact size, so that a read past the end is seen by valgrind and the sanitizer. */
    void *exact = malloc(size > 0 ? size : 1);
    REQUIRE(exact != NULL);
    memcpy(exact, data, size);
    REFUSED(m, FOAM_BAD_CHECKPOINT, says, foam_load_memory(m->optimizer, exact, size, &m->error));
    free(exact);
    write_file(path, data, size);
    snprintf(with_path, sizeof with_path, "hostile|%s", says);
    REFUSED(m, FOAM_BAD_CHECKPOINT, with_path, foam_load_file(m->optimizer, path, &m->error));
    REQUIRE(remove(path) == 0);
}

/* The state of a model that `edit` made different. */
typedef void (*editor)(model *other);

static void refused_model(model *m, editor edit, const char *says) {
    model other;
    size_t size = 0;
    model_describe(&other);
    edit(&other);
    OK(&other.error, model_create(&other));
    void *state = model_state(&other, &size);
    refused_bytes(m, state, size, says);
    free(state);
    model_close(&other);
}

static void other_name(model *other) { other->described[VECTOR].name = "bias"; }
static void other_dtype(model *other) { other->described[MATRIX].dtype.bits = 64; }
static void other_blocks(model *other) { other->config.max_factor_dim = 4; }
static void other_momentum(model *other) { other->config.momentum = 0.9; }
static void other_shape(model *other) {
    other->shapes[MATRIX][0] = 4;
    other->shapes[MATRIX][1] = 6;
}

static void truncated(model *m, const char *state, size_t size) {
    const size_t lengths[] = {0, 1, 7, 8, 9, 16, 100, size / 4, size / 2, size - 64, size - 8, size - 1};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) refused_bytes(m, state, lengths[i], "");
}

static void foreign(model *m, const char *state, size_t size) {
    static const char text[] =
        "PK\003\004 this is an archive of something else, and long enough to hold a header";
    static const char absurd[16] = {(char)0xff, (char)0xff, (char)0xff, (char)0xff, (char)0xff, (char)0xff,
                                    (char)0xff, (char)0x7f, '{',        '}',        0,          0,
                                    0,          0,          0,          0};
    static const char nothing[] = "\002\000\000\000\000\000\000\000{}";
    static const char lying[] = "\100\000\000\000\000\000\000\000{\"a\":{\"dtype\":\"F32\",\"shape\":[2],"
                                "\"data_offsets\":[0,99999999999]}}      ";
    static const char zeros[256] = {0};
    refused_bytes(m, text, sizeof text, "");
    refused_bytes(m, absurd, sizeof absurd, "");
    refused_bytes(m, nothing, 10, "");
    refused_bytes(m, lying, sizeof lying - 1, "");
    refused_bytes(m, zeros, sizeof zeros, "");
    /* Today's checkpoint with a byte too much, and with its header spoiled. */
    char *spoiled = (char *)malloc(size + 1);
    REQUIRE(spoiled != NULL);
    memcpy(spoiled, state, size);
    spoiled[size] = 0;
    refused_bytes(m, spoiled, size + 1, "");
    spoiled[0] = (char)(spoiled[0] ^ 0x40);
    refused_bytes(m, spoiled, size, "");
    spoiled[0] = state[0];
    for (size_t at = 8; at < 40; at++) {
        spoiled[at] = (char)0xff;
        refused_bytes(m, spoiled, size, "");
        spoiled[at] = state[at];
    }
    free(spoiled);
}

/* One bit of each byte of the header and of the numbers: nothing of it is taken. */
static void flipped(model *m, const char *state, size_t size) {
    char *spoiled = (char *)malloc(size);
    REQUIRE(spoiled != NULL);
    memcpy(spoiled, state, size);
    for (size_t at = 0; at < size; at += 7) {
        spoiled[at] = (char)(spoiled[at] ^ (1 << at % 8));
        CHECK(foam_load_memory(m->optimizer, spoiled, size, &m->error) == FOAM_BAD_CHECKPOINT);
        spoiled[at] = state[at];
    }
    spoiled[size - 300] = (char)(spoiled[size - 300] ^ 1);
    refused_bytes(m, spoiled, size, "tensor|does not match its|checksum");
    free(spoiled);
    CHECK(model_unchanged(m));
}

static void other_models(model *m) {
    refused_model(m, other_name, "vector");
    refused_model(m, other_shape, "matrix|expected|[6,4]");
    refused_model(m, other_dtype, "matrix|f64|expected|f32");
    refused_model(m, other_blocks, "tall|expected");
    refused_model(m, other_momentum, "tensors|expected");
}

static void places(model *m) {
    OK(&m->error, foam_save_file(m->optimizer, path_of("good"), &m->error));
    size_t before = entries();
    REFUSED(m, FOAM_IO_ERROR, "missing", foam_load_file(m->optimizer, path_of("missing"), &m->error));
    CHECK(foam_load_file(m->optimizer, path_of("missing"), &m->error) == FOAM_IO_ERROR);
    CHECK(m->error.native_code == ENOENT);
    REFUSED(m, FOAM_IO_ERROR, folder, foam_load_file(m->optimizer, folder, &m->error));
    REFUSED(m, FOAM_IO_ERROR, "good/inside", foam_load_file(m->optimizer, path_of("good/inside"), &m->error));
    REFUSED(m, FOAM_IO_ERROR, "", foam_load_file(m->optimizer, "", &m->error));
    /* Not writable: no such folder, a file for a folder, a folder for a file, no permission. */
    REFUSED(m, FOAM_IO_ERROR, "nowhere", foam_save_file(m->optimizer, path_of("nowhere/file"), &m->error));
    REFUSED(m, FOAM_IO_ERROR, "good", foam_save_file(m->optimizer, path_of("good/file"), &m->error));
    REQUIRE(mkdir(path_of("taken"), 0755) == 0);
    REFUSED(m, FOAM_IO_ERROR, "taken", foam_save_file(m->optimizer, path_of("taken"), &m->error));
    REQUIRE(rmdir(path_of("taken")) == 0);
    REFUSED(m, FOAM_IO_ERROR, "", foam_save_file(m->optimizer, "", &m->error));
    /* What is no regular file stays what it is. */
    struct stat about;
    REQUIRE(mkfifo(path_of("pipe"), 0600) == 0);
    REFUSED(m, FOAM_IO_ERROR, "pipe", foam_save_file(m->optimizer, path_of("pipe"), &m->error));
    REFUSED(m, FOAM_IO_ERROR, "pipe", foam_load_file(m->optimizer, path_of("pipe"), &m->error));
    REQUIRE(lstat(path_of("pipe"), &about) == 0);
    CHECK(S_ISFIFO(about.st_mode));
    REQUIRE(remove(path_of("pipe")) == 0);
    REFUSED(m, FOAM_IO_ERROR, "/dev/null", foam_save_file(m->optimizer, "/dev/null", &m->error));
    /* A link is followed, and the mode of the file behind it kept. */
    REQUIRE(chmod(path_of("good"), 0600) == 0);
    REQUIRE(symlink("good", path_of("link")) == 0);
    OK(&m->error, foam_save_file(m->optimizer, path_of("link"), &m->error));
    REQUIRE(lstat(path_of("link"), &about) == 0);
    CHECK(S_ISLNK(about.st_mode));
    REQUIRE(lstat(path_of("good"), &about) == 0);
    CHECK(S_ISREG(about.st_mode) && (about.st_mode & 0777) == 0600);
    REQUIRE(remove(path_of("link")) == 0);
    /* The longest name that there may be. */
    char longest[256];
    memset(longest, 'n', 255);
    longest[255] = 0;
    OK(&m->error, foam_save_file(m->optimizer, path_of(longest), &m->error));
    REQUIRE(remove(path_of(longest)) == 0);
    if (geteuid() != 0) {
        REQUIRE(chmod(folder, 0555) == 0);
        REFUSED(m, FOAM_IO_ERROR, "good", foam_save_file(m->optimizer, path_of("good"), &m->error));
        REQUIRE(chmod(folder, 0755) == 0);
    }
    /* None of these left a temporary file, and the good one is still good. */
    CHECK(entries() == before);
    OK(&m->error, foam_load_file(m->optimizer, path_of("good"), &m->error));
    CHECK(model_unchanged(m));
    /* Saving replaces, and leaves nothing else. */
    OK(&m->error, foam_save_file(m->optimizer, path_of("good"), &m->error));
    CHECK(entries() == before);
    REQUIRE(remove(path_of("good")) == 0);
}

static void arguments(model *m) {
    char byte = 77;
    size_t size = 78;
    REFUSED(m, FOAM_INVALID_ARGUMENT, "path|NULL", foam_save_file(m->optimizer, NULL, &m->error));
    REFUSED(m, FOAM_INVALID_ARGUMENT, "path|NULL", foam_load_file(m->optimizer, NULL, &m->error));
    REFUSED(m, FOAM_INVALID_ARGUMENT, "NULL", foam_save_file(NULL, path_of("x"), &m->error));
    REFUSED(m, FOAM_INVALID_ARGUMENT, "NULL", foam_load_file(NULL, path_of("x"), &m->error));
    REFUSED(m, FOAM_INVALID_ARGUMENT, "NULL", foam_save_memory(NULL, NULL, 0, &size, &m->error));
    REFUSED(m, FOAM_INVALID_ARGUMENT, "NULL", foam_load_memory(NULL, &byte, 1, &m->error));
    REFUSED(m, FOAM_INVALID_ARGUMENT, "data|NULL", foam_load_memory(m->optimizer, NULL, 16, &m->error));
    REFUSED(m, FOAM_INVALID_ARGUMENT, "size|NULL", foam_save_memory(m->optimizer, NULL, 0, NULL, &m->error));
    REFUSED(m, FOAM_INVALID_ARGUMENT, "capacity", foam_save_memory(m->optimizer, &byte, 1, &size, &m->error));
    CHECK(byte == 77 && size == 78);
    /* One byte too few is too few: nothing is written. */
    char *most = (char *)malloc(m->remembered_size);
    REQUIRE(most != NULL);
    memset(most, 0x5a, m->remembered_size);
    REFUSED(m, FOAM_INVALID_ARGUMENT, "capacity",
            foam_save_memory(m->optimizer, most, m->remembered_size - 1, &size, &m->error));
    CHECK(most[0] == 0x5a && most[m->remembered_size - 1] == 0x5a && size == 78);
    free(most);
}

/* A handle that refused everything above loads a good checkpoint and goes on as the other does. */
static void a_good_one_still_loads(model *m, const void *state, size_t size) {
    model fresh;
    model_start(&fresh, 0);
    memcpy(fresh.param_data, m->param_data, sizeof m->param_data);
    OK(&fresh.error, foam_load_memory(fresh.optimizer, state, size, &fresh.error));
    for (int step = 0; step < 4; step++) {
        OK(&m->error, model_step(m));
        OK(&fresh.error, model_step(&fresh));
    }
    CHECK(memcmp(m->param_data, fresh.param_data, sizeof m->param_data) == 0);
    model_close(&fresh);
}

int main(int count, char **arguments_) {
    model m;
    size_t size = 0;
    REQUIRE(count == 2 && strlen(arguments_[1]) < sizeof folder - 32);
    snprintf(folder, sizeof folder, "%s/bad_checkpoint.%ld", arguments_[1], (long)getpid());
    REQUIRE(mkdir(folder, 0755) == 0);
    model_start(&m, 7);
    char *state = (char *)model_state(&m, &size);
    REQUIRE(size > 200);
    truncated(&m, state, size);
    foreign(&m, state, size);
    flipped(&m, state, size);
    other_models(&m);
    places(&m);
    arguments(&m);
    a_good_one_still_loads(&m, state, size);
    free(state);
    model_close(&m);
    CHECK(rmdir(folder) == 0);
    return check_result("bad_checkpoint");
}
