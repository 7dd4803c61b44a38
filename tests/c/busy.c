/* A call that overlaps another one on the same handle gets FOAM_BUSY and changes nothing, whether it comes
   from another thread or out of the handle's own callback. No timing: the callback waits for the other
   thread. */
#define _POSIX_C_SOURCE 200809L
#include "model.h"

#include <pthread.h>

typedef struct meeting {
    model *m;
    pthread_t stepping;
    int warnings, met, on_other_thread;
} meeting;

/* Every call on the handle, from wherever; all of them must be turned away. */
static void turned_away(model *m) {
    foam_error error = FOAM_ERROR_INIT;
    foam_stats_info stats;
    foam_step_args args;
    size_t count = 77;
    double value = 78.0;
    char byte = 79;
    memset(&stats, 0x5a, sizeof stats);
    stats.struct_size = sizeof stats;
    OK(&error, foam_step_args_init(&args, sizeof args, &error));
    args.count = MODEL_PARAMS;
    args.params = m->params;
    args.grads = m->grads;
    FAILS(&error, FOAM_BUSY, "another call", foam_step(m->optimizer, &args, &error));
    FAILS(&error, FOAM_BUSY, "", foam_stats(m->optimizer, &stats, &error));
    FAILS(&error, FOAM_BUSY, "", foam_factor_stats(m->optimizer, NULL, 0, 0, &count, &error));
    FAILS(&error, FOAM_BUSY, "",
          foam_factor_read(m->optimizer, MATRIX, 0, 0, FOAM_FACTOR_SPECTRUM, &value, 1, &count, &error));
    FAILS(&error, FOAM_BUSY, "", foam_exact_gap(m->optimizer, MATRIX, 0, 0, &value, &error));
    FAILS(&error, FOAM_BUSY, "", foam_save_memory(m->optimizer, NULL, 0, &count, &error));
    FAILS(&error, FOAM_BUSY, "", foam_load_memory(m->optimizer, &byte, 1, &error));
    FAILS(&error, FOAM_BUSY, "", foam_save_file(m->optimizer, "never-written", &error));
    FAILS(&error, FOAM_BUSY, "", foam_load_file(m->optimizer, "never-read", &error));
    FAILS(&error, FOAM_BUSY, "", foam_synchronize(m->optimizer, &error));
    CHECK(count == 77 && value == 78.0 && stats.steps == 0x5a5a5a5a5a5a5a5aull);
    CHECK(foam_stats(m->optimizer, &stats, NULL) == FOAM_BUSY);
}

static void *other_thread(void *user) {
    turned_away((model *)user);
    return NULL;
}

/* The library calls this in the middle of a step, on the thread that steps. */
static void on_log(void *user, int32_t level, const char *message) {
    meeting *here = (meeting *)user;
    CHECK(message != NULL && message[0] != 0);
    CHECK(level == FOAM_LOG_WARNING || level == FOAM_LOG_INFO);
    CHECK(pthread_equal(pthread_self(), here->stepping));
    here->warnings += level == FOAM_LOG_WARNING ? 1 : 0;
    /* Creation may log as well; there is no handle to call yet. */
    if (here->m->optimizer == NULL || here->met == 2) return;
    here->met += 1;
    turned_away(here->m);
    if (here->on_other_thread) {
        pthread_t thread;
        REQUIRE(pthread_create(&thread, NULL, other_thread, here->m) == 0);
        REQUIRE(pthread_join(thread, NULL) == 0);
    }
}

/* Faults make the engine warn at the first check; the steps come out as if nobody had knocked. */
static void overlapping_calls(int on_other_thread) {
    model quiet, m;
    meeting here = {&m, pthread_self(), 0, 0, on_other_thread};
    model_describe(&quiet);
    OK(&quiet.error, foam_config_set(&quiet.config, "inject_fault", "evd_all", &quiet.error));
    OK(&quiet.error, model_create(&quiet));
    model_describe(&m);
    OK(&m.error, foam_config_set(&m.config, "inject_fault", "evd_all", &m.error));
    m.config.log = on_log;
    m.config.log_user = &here;
    OK(&m.error, model_create(&m));
    for (int step = 0; step < 6; step++) {
        OK(&quiet.error, model_step(&quiet));
        OK(&m.error, model_step(&m));
    }
    CHECK(here.warnings > 0 && here.met > 0);
    CHECK(memcmp(m.param_data, quiet.param_data, sizeof m.param_data) == 0);
    model_close(&m);
    model_close(&quiet);
}

/* One handle, used by one thread after the other; different handles, used by both at once. */
static void *train(void *user) {
    model *m = (model *)user;
    for (int step = 0; step < 6; step++) OK(&m->error, model_step(m));
    return NULL;
}

static void handles_move_between_threads(void) {
    model reference, moved[2];
    pthread_t threads[2];
    model_start(&reference, 12);
    for (int i = 0; i < 2; i++) model_start(&moved[i], 0);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 2; i++) REQUIRE(pthread_create(&threads[i], NULL, train, &moved[i]) == 0);
        for (int i = 0; i < 2; i++) REQUIRE(pthread_join(threads[i], NULL) == 0);
    }
    for (int i = 0; i < 2; i++) {
        CHECK(memcmp(reference.param_data, moved[i].param_data, sizeof reference.param_data) == 0);
        model_close(&moved[i]);
    }
    model_close(&reference);
}

/* Two threads push one handle without any arrangement: each call succeeds or is turned away, none is lost. */
typedef struct pusher {
    model *m;
    size_t done, busy;
} pusher;

static void *push(void *user) {
    pusher *p = (pusher *)user;
    foam_error error = FOAM_ERROR_INIT;
    foam_step_args args;
    if (foam_step_args_init(&args, sizeof args, &error) != FOAM_OK) return NULL;
    args.count = MODEL_PARAMS;
    args.params = p->m->params;
    args.grads = p->m->grads;
    for (int call = 0; call < 200; call++) {
        foam_status status = foam_step(p->m->optimizer, &args, &error);
        p->done += status == FOAM_OK ? 1 : 0;
        p->busy += status == FOAM_BUSY ? 1 : 0;
    }
    return NULL;
}

static void unarranged_calls(void) {
    model m;
    pthread_t thread;
    foam_stats_info stats;
    model_start(&m, 0);
    pusher first = {&m, 0, 0}, second = {&m, 0, 0};
    REQUIRE(pthread_create(&thread, NULL, push, &first) == 0);
    push(&second);
    REQUIRE(pthread_join(thread, NULL) == 0);
    CHECK(first.done + first.busy == 200 && second.done + second.busy == 200);
    stats.struct_size = sizeof stats;
    OK(&m.error, foam_stats(m.optimizer, &stats, &m.error));
    CHECK(stats.steps == first.done + second.done && stats.steps > 0);
    model_close(&m);
}

int main(void) {
    overlapping_calls(0);
    overlapping_calls(1);
    handles_move_between_threads();
    unarranged_calls();
    return check_result("busy");
}
