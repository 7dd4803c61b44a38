/* An internal error stops at the boundary: the call says FOAM_PANIC, the handle is poisoned, and of all calls
   only the statistics and foam_destroy still work. Other handles do not notice. */
#include "model.h"

static void poisoned(model *m, foam_status status) {
    char buffer[64];
    double value = 77.0;
    size_t size = 78;
    foam_stats_info stats;
    CHECK(status == FOAM_PANIC);
    FAILS(&m->error, FOAM_PANIC, "panic", status);
    for (int again = 0; again < 2; again++) {
        FAILS(&m->error, FOAM_POISONED, "panic", model_step(m));
        FAILS(&m->error, FOAM_POISONED, "", foam_save_file(m->optimizer, "never-written", &m->error));
        FAILS(&m->error, FOAM_POISONED, "", foam_load_file(m->optimizer, "never-read", &m->error));
        FAILS(&m->error, FOAM_POISONED, "", foam_save_memory(m->optimizer, NULL, 0, &size, &m->error));
        FAILS(&m->error, FOAM_POISONED, "", foam_load_memory(m->optimizer, buffer, sizeof buffer, &m->error));
        FAILS(
            &m->error, FOAM_POISONED, "",
            foam_factor_read(m->optimizer, MATRIX, 0, 0, FOAM_FACTOR_SPECTRUM, &value, 1, &size, &m->error));
        FAILS(&m->error, FOAM_POISONED, "", foam_synchronize(m->optimizer, &m->error));
        FAILS(&m->error, FOAM_POISONED, "", foam_exact_gap(m->optimizer, MATRIX, 0, 0, &value, &m->error));
        CHECK(value == 77.0 && size == 78);
        memset(&stats, 0x5a, sizeof stats);
        stats.struct_size = sizeof stats;
        OK(&m->error, foam_stats(m->optimizer, &stats, &m->error));
        CHECK(stats.params == MODEL_PARAMS);
        OK(&m->error, foam_factor_stats(m->optimizer, NULL, 0, 0, &size, &m->error));
        CHECK(size == stats.factors);
        size = 78;
    }
}

int main(void) {
    model m, healthy;
    foam_stats_info stats;
    model_start(&healthy, 1);
    model_describe(&m);
    OK(&m.error, foam_config_set(&m.config, "inject_fault", "panic", &m.error));
    OK(&m.error, foam_config_set(&m.config, "inject_fault_step", "3", &m.error));
    OK(&m.error, model_create(&m));
    OK(&m.error, model_step(&m));
    OK(&m.error, model_step(&m));
    poisoned(&m, model_step(&m));
    stats.struct_size = sizeof stats;
    OK(&m.error, foam_stats(m.optimizer, &stats, &m.error));
    CHECK(stats.steps >= 2);
    OK(&healthy.error, model_step(&healthy));
    model_close(&m);
    OK(&healthy.error, model_step(&healthy));
    model_close(&healthy);
    return check_result("panic");
}
