/* The caller's allocator: it is asked for all state, gets everything back, may refuse at any time, and is
   left alone by a step that has found its pace. */
#include "model.h"

typedef struct counter {
    size_t allocations, live, bytes, refuse_from;
    int wrong;
} counter;

/* In front of each piece, so that its return can be compared with what was asked for. */
typedef struct label {
    void *start;
    size_t size, alignment;
} label;

static void *allocate(void *user, size_t size, size_t alignment) {
    counter *count = (counter *)user;
    size_t number = count->allocations++;
    if (number >= count->refuse_from) return NULL;
    if (alignment == 0 || (alignment & (alignment - 1)) != 0 || size == 0) count->wrong += 1;
    char *start = (char *)malloc(sizeof(label) + alignment + size);
    if (start == NULL) return NULL;
    char *piece = start + sizeof(label);
    piece += alignment - (uintptr_t)piece % alignment;
    label note = {start, size, alignment};
    memcpy(piece - sizeof note, &note, sizeof note);
    memset(piece, 0x5a, size);
    count->live += 1;
    count->bytes += size;
    return piece;
}

static void deallocate(void *user, void *piece, size_t size, size_t alignment) {
    counter *count = (counter *)user;
    label note;
    if (piece == NULL) {
        count->wrong += 1;
        return;
    }
    memcpy(&note, (char *)piece - sizeof note, sizeof note);
    if (note.size != size || note.alignment != alignment) count->wrong += 1;
    count->live -= 1;
    count->bytes -= size;
    free(note.start);
}

static void describe_with(model *m, counter *count, size_t refuse_from) {
    memset(count, 0, sizeof *count);
    count->refuse_from = refuse_from;
    model_describe(m);
    m->config.allocate = allocate;
    m->config.deallocate = deallocate;
    m->config.allocator_user = count;
}

/* The same bits as with the library's own memory, though this one is not zeroed. */
static size_t serves_a_whole_life(void) {
    model m, plain;
    counter count;
    foam_stats_info stats;
    describe_with(&m, &count, SIZE_MAX);
    OK(&m.error, model_create(&m));
    size_t at_creation = count.allocations;
    CHECK(at_creation > 0 && count.live > 0);
    model_start(&plain, 0);
    for (int step = 0; step < 6; step++) {
        OK(&m.error, model_step(&m));
        OK(&plain.error, model_step(&plain));
        CHECK(memcmp(m.param_data, plain.param_data, sizeof m.param_data) == 0);
    }
    stats.struct_size = sizeof stats;
    OK(&m.error, foam_stats(m.optimizer, &stats, &m.error));
    CHECK(count.bytes >= stats.state_bytes_host);
    size_t settled = count.allocations;
    for (int step = 0; step < 6; step++) OK(&m.error, model_step(&m));
    CHECK(count.allocations == settled);
    model_close(&m);
    model_close(&plain);
    CHECK(count.live == 0 && count.bytes == 0 && count.wrong == 0);
    return at_creation;
}

/* Refused from the n-th request on: creation fails, and all that was given comes back. */
static void may_refuse_at_creation(size_t requests) {
    for (size_t n = 0; n < requests; n++) {
        model m;
        counter count;
        describe_with(&m, &count, n);
        FAILS(&m.error, FOAM_OUT_OF_MEMORY, "memory", model_create(&m));
        CHECK(m.optimizer == NULL);
        CHECK(count.live == 0 && count.bytes == 0 && count.wrong == 0);
    }
}

/* Refused after creation: a step either needs nothing, or fails and changes nothing. */
static void may_refuse_later(void) {
    model m;
    counter count;
    describe_with(&m, &count, SIZE_MAX);
    OK(&m.error, model_create(&m));
    count.refuse_from = 0;
    for (int step = 0; step < 7; step++) {
        model_remember(&m);
        foam_status status = model_step(&m);
        CHECK(status == FOAM_OK || (status == FOAM_OUT_OF_MEMORY && model_unchanged(&m)));
    }
    model_close(&m);
    CHECK(count.live == 0 && count.bytes == 0 && count.wrong == 0);
}

static void both_or_neither(void) {
    model m;
    counter count;
    describe_with(&m, &count, SIZE_MAX);
    m.config.deallocate = NULL;
    FAILS(&m.error, FOAM_INVALID_ARGUMENT, "allocate|deallocate", model_create(&m));
    describe_with(&m, &count, SIZE_MAX);
    m.config.allocate = NULL;
    FAILS(&m.error, FOAM_INVALID_ARGUMENT, "allocate|deallocate", model_create(&m));
    CHECK(m.optimizer == NULL && count.allocations == 0);
}

static void *misaligned(void *user, size_t size, size_t alignment) {
    char *piece = (char *)allocate(user, size + 1, alignment);
    return piece == NULL ? NULL : piece + 1;
}

static void deallocate_misaligned(void *user, void *piece, size_t size, size_t alignment) {
    deallocate(user, (char *)piece - 1, size + 1, alignment);
}

static void memory_that_is_not_aligned_is_refused_and_returned(void) {
    model m;
    counter count;
    describe_with(&m, &count, SIZE_MAX);
    m.config.allocate = misaligned;
    m.config.deallocate = deallocate_misaligned;
    FAILS(&m.error, FOAM_INVALID_ARGUMENT, "allocate|align", model_create(&m));
    CHECK(m.optimizer == NULL && count.live == 0 && count.bytes == 0 && count.wrong == 0);
}

int main(void) {
    size_t requests = serves_a_whole_life();
    may_refuse_at_creation(requests);
    may_refuse_later();
    both_or_neither();
    memory_that_is_not_aligned_is_refused_and_returned();
    return check_result("memory");
}
