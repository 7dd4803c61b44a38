/* Options of a live optimizer: what may change does at the next step, what shapes the state is refused. */
#include "model.h"

static void expect(model *m, const char *key, const char *value) {
    char text[64];
    OK(&m->error, foam_get_option(m->optimizer, key, text, sizeof text, &m->error));
    if (!CHECK(strcmp(text, value) == 0)) fprintf(stderr, "    %s = %s, expected %s\n", key, text, value);
}

/* A changed option acts as if the optimizer had been created with it, from the next step on. */
static void takes_effect(const char *key, const char *value) {
    model live, made;
    model_start(&live, 4);
    model_describe(&made);
    OK(&made.error, foam_config_set(&made.config, key, value, &made.error));
    OK(&made.error, model_create(&made));
    OK(&made.error, foam_load_memory(made.optimizer, live.remembered_state, live.remembered_size, &made.error));
    memcpy(made.param_data, live.param_data, sizeof live.param_data);

    OK(&live.error, foam_set_option(live.optimizer, key, value, &live.error));
    CHECK(memcmp(made.param_data, live.param_data, sizeof live.param_data) == 0);
    for (int step = 0; step < 8; step++) {
        OK(&live.error, model_step(&live));
        OK(&made.error, model_step(&made));
    }
    if (!CHECK(memcmp(made.param_data, live.param_data, sizeof live.param_data) == 0)) {
        fprintf(stderr, "    after %s = %s\n", key, value);
    }
    model_close(&live);
    model_close(&made);
}

/* And it does change something. */
static void changes(const char *key, const char *value) {
    model live, other;
    model_start(&live, 4);
    model_start(&other, 4);
    OK(&live.error, foam_set_option(live.optimizer, key, value, &live.error));
    for (int step = 0; step < 8; step++) {
        OK(&live.error, model_step(&live));
        OK(&other.error, model_step(&other));
    }
    if (!CHECK(memcmp(other.param_data, live.param_data, sizeof live.param_data) != 0)) {
        fprintf(stderr, "    %s = %s changed nothing\n", key, value);
    }
    model_close(&live);
    model_close(&other);
}

static void refusals(void) {
    static const char *const fixed[][2] = {
        {"policy", "stale"},         {"cadence", "paper"},      {"start_step", "9"},    {"root", "4"},
        {"exponent_multiplier", "2"}, {"bias_correction", "0"},  {"beta1", "0"},         {"beta2", "1"},
        {"momentum", "0.9"},         {"max_factor_dim", "4"},   {"merge_dims", "1"},    {"grafting", "sgd"},
        {"normalized_grafting", "1"}, {"statistic_dtype", "f64"}, {"num_threads", "1"},  {"device", "cuda:0"},
    };
    model m;
    char text[512];
    model_start(&m, 4);
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        char says[64];
        snprintf(says, sizeof says, "option '%s'|live", fixed[i][0]);
        REFUSED(&m, FOAM_UNSUPPORTED, says, foam_set_option(m.optimizer, fixed[i][0], fixed[i][1], &m.error));
    }
    REFUSED(&m, FOAM_INVALID_ARGUMENT, "tau|(0, inf)", foam_set_option(m.optimizer, "tau", "-1", &m.error));
    REFUSED(&m, FOAM_INVALID_ARGUMENT, "epsilon_max", foam_set_option(m.optimizer, "epsilon_max", "1e-30", &m.error));
    REFUSED(&m, FOAM_INVALID_ARGUMENT, "unknown option|taus", foam_set_option(m.optimizer, "taus", "1", &m.error));
    REFUSED(&m, FOAM_INVALID_ARGUMENT, "key is NULL", foam_set_option(m.optimizer, NULL, "1", &m.error));
    REFUSED(&m, FOAM_INVALID_ARGUMENT, "value is NULL", foam_set_option(m.optimizer, "tau", NULL, &m.error));
    FAILS(&m.error, FOAM_INVALID_ARGUMENT, "optimizer is NULL", foam_set_option(NULL, "tau", "1", &m.error));
    expect(&m, "tau", "0.75");
    expect(&m, "policy", "foam");
    OK(&m.error, foam_get_option(m.optimizer, NULL, text, sizeof text, &m.error));
    CHECK(strstr(text, "lr") != NULL && strstr(text, "check_period") != NULL);
    CHECK(strstr(text, "policy") == NULL && strstr(text, "device") == NULL);
    FAILS(&m.error, FOAM_INVALID_ARGUMENT, "capacity = 2",
          foam_get_option(m.optimizer, "tau", text, 2, &m.error));
    model_close(&m);
}

static void periods(void) {
    model m;
    model_start(&m, 4);
    expect(&m, "start_step", "0");
    OK(&m.error, foam_set_option(m.optimizer, "check_period", "50", &m.error));
    expect(&m, "check_period", "50");
    expect(&m, "start_step", "3");
    for (int step = 0; step < 8; step++) OK(&m.error, model_step(&m));
    foam_stats_info info;
    info.struct_size = sizeof info;
    OK(&m.error, foam_stats(m.optimizer, &info, &m.error));
    CHECK(info.checks == info.factors);
    /* It went on with the bases that it had: the loss still falls. */
    double before = model_loss(&m);
    for (int step = 0; step < 8; step++) OK(&m.error, model_step(&m));
    CHECK(model_loss(&m) < before);
    model_close(&m);
}

int main(void) {
    static const char *const live[][2] = {{"lr", "0.011"},           {"weight_decay", "0.3"}, {"decoupled_weight_decay", "0"},
                                          {"epsilon", "1e-8"},       {"epsilon_left", "1e-8"}, {"grafting_epsilon", "0.5"},
                                          {"grafting_beta2", "0.5"}, {"beta1", "0.5"},        {"beta2", "0.5"},
                                          {"nadam", "1"}};
    for (size_t i = 0; i < sizeof live / sizeof live[0]; i++) {
        takes_effect(live[i][0], live[i][1]);
        changes(live[i][0], live[i][1]);
    }
    takes_effect("tau", "1e-9");
    takes_effect("epsilon_max", "1e-3");
    takes_effect("noise_floor", "0");
    refusals();
    periods();
    return check_result("options");
}
