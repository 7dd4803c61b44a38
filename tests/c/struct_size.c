/* Callers compiled against an older or a newer header: shorter structs are completed with defaults, longer
   ones are accepted if the tail that the library does not know is zero. */
#include "model.h"

/* A struct of a later version: today's, and a field that today's library has never heard of. */
#define LATER(type)                                                                                          \
    struct {                                                                                                 \
        type now;                                                                                            \
        uint64_t unknown;                                                                                    \
    }

static void configurations(void) {
    model m;
    char text[64];
    LATER(foam_config) later;
    model_describe(&m);

    /* Init writes as much as the caller has, and says how much that is. */
    memset(&later, 0x5a, sizeof later);
    OK(&m.error, foam_config_init(&later.now, sizeof later, "reference", &m.error));
    CHECK(later.now.struct_size == sizeof later && later.unknown == 0);
    OK(&m.error, foam_config_set(&later.now, "tau", "0.5", &m.error));
    CHECK(later.now.tau == 0.5 && later.now.struct_size == sizeof later && later.unknown == 0);
    memset(&later, 0x5a, sizeof later);
    OK(&m.error, foam_config_init(&later.now, offsetof(foam_config, tau), "reference", &m.error));
    CHECK(later.now.struct_size == offsetof(foam_config, tau) && later.now.epsilon_max == 3e-7);
    CHECK(*(unsigned char *)&later.now.tau == 0x5a);

    /* A shorter one is completed: tau has its default, whatever lies behind the end. */
    OK(&m.error, foam_config_get(&later.now, "tau", text, sizeof text, &m.error));
    CHECK(strcmp(text, "0.75") == 0);
    CHECK(foam_create(&later.now, m.described, MODEL_PARAMS, &m.optimizer, &m.error) == FOAM_OK);
    model_close(&m);

    /* A longer one with zeros is accepted, with anything else it is not. */
    memcpy(&later.now, &m.config, sizeof m.config);
    later.now.struct_size = sizeof later;
    later.unknown = 0;
    OK(&m.error, foam_create(&later.now, m.described, MODEL_PARAMS, &m.optimizer, &m.error));
    model_close(&m);
    later.unknown = (uint64_t)1 << 63;
    FAILS(&m.error, FOAM_UNSUPPORTED, "config|struct_size|zero",
          foam_create(&later.now, m.described, MODEL_PARAMS, &m.optimizer, &m.error));
    FAILS(&m.error, FOAM_UNSUPPORTED, "config|struct_size|zero",
          foam_config_set(&later.now, "tau", "0.5", &m.error));
    CHECK(m.optimizer == NULL);

    /* Too short for anything, or not a size at all. */
    static const uint32_t wrong[] = {0, 1, 4, 7, 1u << 20, UINT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        later.now.struct_size = wrong[i];
        FAILS(&m.error, FOAM_INVALID_ARGUMENT, "config|struct_size|sizeof(foam_config)",
              foam_create(&later.now, m.described, MODEL_PARAMS, &m.optimizer, &m.error));
        memset(&later.now, 0x5a, sizeof later.now);
        FAILS(&m.error, FOAM_INVALID_ARGUMENT, "struct_size|foam_config",
              foam_config_init(&later.now, wrong[i], "reference", &m.error));
        CHECK(later.now.struct_size == 0x5a5a5a5a);
        memcpy(&later.now, &m.config, sizeof m.config);
    }
}

/* The elements of an array are as far apart as the caller's struct_size says. */
static void descriptions(void) {
    enum { SHORT = offsetof(foam_param, weight_decay_scale) };
    model m;
    LATER(foam_param) later[MODEL_PARAMS];
    double packed[MODEL_PARAMS * SHORT / sizeof(double)];
    model_describe(&m);
    for (int p = 0; p < MODEL_PARAMS; p++) {
        memset(&later[p], 0x5a, sizeof later[p]);
        OK(&m.error, foam_param_init(&later[p].now, sizeof later[p], &m.error));
        CHECK(later[p].now.struct_size == sizeof later[p] && later[p].unknown == 0);
        later[p].now = m.described[p];
        later[p].now.struct_size = sizeof later[p];
        char *element = (char *)packed + p * SHORT;
        memcpy(element, &m.described[p], SHORT);
        uint32_t size = SHORT;
        memcpy(element, &size, sizeof size);
    }
    OK(&m.error, foam_create(&m.config, &later[0].now, MODEL_PARAMS, &m.optimizer, &m.error));
    model_step(&m);
    model_remember(&m);
    foam_destroy(m.optimizer);
    /* Shorter by the weight decay's scale and the root: same model, since both have their defaults. */
    void *state = m.remembered_state;
    size_t size = m.remembered_size;
    model_describe(&m);
    OK(&m.error, foam_create(&m.config, (foam_param *)(void *)packed, MODEL_PARAMS, &m.optimizer, &m.error));
    OK(&m.error, model_step(&m));
    model_remember(&m);
    CHECK(size == m.remembered_size && memcmp(state, m.remembered_state, size) == 0);
    free(state);
    model_close(&m);

    later[TALL].unknown = 1;
    FAILS(&m.error, FOAM_UNSUPPORTED, "params|struct_size|zero",
          foam_create(&m.config, &later[0].now, MODEL_PARAMS, &m.optimizer, &m.error));
    later[TALL].unknown = 0;
    later[TALL].now.struct_size = sizeof(foam_param);
    FAILS(&m.error, FOAM_INVALID_ARGUMENT, "params|struct_size",
          foam_create(&m.config, &later[0].now, MODEL_PARAMS, &m.optimizer, &m.error));
    later[0].now.struct_size = 3;
    FAILS(&m.error, FOAM_INVALID_ARGUMENT, "params|struct_size|sizeof(foam_param)",
          foam_create(&m.config, &later[0].now, MODEL_PARAMS, &m.optimizer, &m.error));
    FAILS(&m.error, FOAM_INVALID_ARGUMENT, "struct_size|foam_param",
          foam_param_init(&later[0].now, 5, &m.error));
    CHECK(m.optimizer == NULL);
}

static void step_arguments(void) {
    model m, other;
    LATER(foam_step_args) later;
    model_start(&m, 3);
    model_start(&other, 3);
    memset(&later, 0x5a, sizeof later);
    OK(&m.error, foam_step_args_init(&later.now, sizeof later, &m.error));
    CHECK(later.now.struct_size == sizeof later && later.unknown == 0 && isnan(later.now.lr));
    CHECK(later.now.grad_scale == 1.0 && later.now.skipped == NULL && later.now.stream == NULL);
    later.now.count = MODEL_PARAMS;
    later.now.params = m.params;
    later.now.grads = m.grads;
    later.unknown = 1;
    REFUSED(&m, FOAM_UNSUPPORTED, "args|struct_size|zero", foam_step(m.optimizer, &later.now, &m.error));
    later.unknown = 0;
    static const uint32_t wrong[] = {0, 4, 15, 1u << 20};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        later.now.struct_size = wrong[i];
        REFUSED(&m, FOAM_INVALID_ARGUMENT, "args|struct_size|sizeof(foam_step_args)",
                foam_step(m.optimizer, &later.now, &m.error));
    }
    /* Longer, exact and shorter do the same step; what lies behind the shorter one's end is not read. */
    later.now.struct_size = sizeof later;
    OK(&m.error, foam_step(m.optimizer, &later.now, &m.error));
    later.now.struct_size = offsetof(foam_step_args, lr);
    later.now.lr = -1.0;
    later.now.grad_scale = 0.0;
    OK(&m.error, foam_step(m.optimizer, &later.now, &m.error));
    foam_step_args args = model_args(&other);
    OK(&other.error, foam_step(other.optimizer, &args, &other.error));
    OK(&other.error, foam_step(other.optimizer, &args, &other.error));
    CHECK(memcmp(m.param_data, other.param_data, sizeof m.param_data) == 0);
    model_close(&m);
    model_close(&other);
}

/* A size that ends within a field says nothing about that field. */
static void halves(void) {
    model m;
    char text[64];
    foam_config config;
    model_start(&m, 4);
    OK(&m.error, foam_config_init(&config, sizeof config, "reference", &m.error));
    config.tau = 0.5;
    memset(&config.residual_threshold, 0x5a, sizeof config - offsetof(foam_config, residual_threshold));
    for (uint32_t part = 0; part < 8; part++) {
        config.struct_size = (uint32_t)offsetof(foam_config, residual_threshold) + part;
        OK(&m.error, foam_config_get(&config, "residual_threshold", text, sizeof text, &m.error));
        CHECK(strcmp(text, "0.1") == 0);
        OK(&m.error, foam_config_get(&config, "tau", text, sizeof text, &m.error));
        CHECK(strcmp(text, "0.5") == 0);
    }
    /* Half a pointer is none: the log callback behind it is not called, the tensors of a step are missing. */
    foam_step_args args = model_args(&m);
    args.skipped = (int32_t *)(void *)(uintptr_t)0x5a5a5a5a5a5a5a5aull;
    args.struct_size = offsetof(foam_step_args, skipped) + 4;
    OK(&m.error, foam_step(m.optimizer, &args, &m.error));
    /* What is written is whole fields, and zeros behind them. */
    foam_stats_info info;
    memset(&info, 0x5a, sizeof info);
    info.struct_size = offsetof(foam_stats_info, params) + 4;
    OK(&m.error, foam_stats(m.optimizer, &info, &m.error));
    CHECK(info.steps == 5 && info.params == 0x5a5a5a5a00000000ull);
    model_close(&m);
}

static void statistics(void) {
    enum { SHORT = offsetof(foam_stats_info, blocks), ROOM = 32 };
    model m;
    LATER(foam_stats_info) later;
    LATER(foam_factor_info) items[ROOM];
    foam_factor_info short_items[ROOM];
    size_t count = 0;
    model_start(&m, 4);
    memset(&later, 0x5a, sizeof later);
    later.now.struct_size = sizeof later;
    OK(&m.error, foam_stats(m.optimizer, &later.now, &m.error));
    CHECK(later.now.struct_size == sizeof later && later.now.steps == 4 && later.unknown == 0);
    memset(&later, 0x5a, sizeof later);
    later.now.struct_size = SHORT;
    OK(&m.error, foam_stats(m.optimizer, &later.now, &m.error));
    CHECK(later.now.struct_size == SHORT && later.now.params == MODEL_PARAMS);
    CHECK(later.now.blocks == 0x5a5a5a5a5a5a5a5aull);
    later.now.struct_size = 4;
    REFUSED(&m, FOAM_INVALID_ARGUMENT, "struct_size|foam_stats_info",
            foam_stats(m.optimizer, &later.now, &m.error));
    CHECK(later.now.blocks == 0x5a5a5a5a5a5a5a5aull);

    memset(items, 0x5a, sizeof items);
    OK(&m.error, foam_factor_stats(m.optimizer, &items[0].now, sizeof items[0], ROOM, &count, &m.error));
    REQUIRE(count > 2 && count < ROOM);
    for (size_t i = 0; i < count; i++) {
        CHECK(items[i].now.struct_size == sizeof items[0].now && items[i].unknown == 0);
    }
    CHECK(items[count].unknown == 0x5a5a5a5a5a5a5a5aull);
    /* Packed items of 48 bytes: up to and with the root. */
    enum { ITEM = offsetof(foam_factor_info, epsilon_base) };
    memset(short_items, 0x5a, sizeof short_items);
    OK(&m.error, foam_factor_stats(m.optimizer, short_items, ITEM, ROOM, &count, &m.error));
    for (size_t i = 0; i < count; i++) {
        int64_t param = -1;
        memcpy(&param, (char *)short_items + i * ITEM + offsetof(foam_factor_info, param_index),
               sizeof param);
        CHECK(param == items[i].now.param_index);
        /* An item does not claim more bytes than were written. */
        uint32_t size = 0;
        memcpy(&size, (char *)short_items + i * ITEM, sizeof size);
        CHECK(size <= ITEM);
    }
    CHECK(((unsigned char *)short_items)[count * ITEM] == 0x5a);
    REFUSED(&m, FOAM_INVALID_ARGUMENT, "foam_factor_info",
            foam_factor_stats(m.optimizer, short_items, 3, ROOM, &count, &m.error));
    model_close(&m);
}

/* The record itself may be short, or have no size: the library writes no byte more than there are. */
static void error_records(void) {
    foam_error error;
    memset(&error, 0x5a, sizeof error);
    error.struct_size = offsetof(foam_error, message) + 8;
    CHECK(foam_config_set(NULL, "tau", "1", &error) == FOAM_INVALID_ARGUMENT);
    CHECK(error.code == FOAM_INVALID_ARGUMENT && error.param_index == -1);
    CHECK(strlen(error.message) == 7 && strncmp(error.message, "config ", 7) == 0);
    CHECK(error.message[8] == 0x5a && error.struct_size == offsetof(foam_error, message) + 8);
    memset(&error, 0x5a, sizeof error);
    error.struct_size = 0;
    CHECK(foam_config_set(NULL, "tau", "1", &error) == FOAM_INVALID_ARGUMENT);
    CHECK(error.code == 0x5a5a5a5a && error.message[0] == 0x5a);
    struct {
        foam_error now;
        char behind[16];
    } later;
    memset(&later, 0x5a, sizeof later);
    later.now.struct_size = sizeof later;
    CHECK(foam_config_set(NULL, "tau", "1", &later.now) == FOAM_INVALID_ARGUMENT);
    CHECK(later.now.code == FOAM_INVALID_ARGUMENT && strstr(later.now.message, "config") != NULL);
    /* A long key does not overrun the message. */
    char key[2048];
    foam_config config;
    foam_error whole = FOAM_ERROR_INIT;
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = 0;
    OK(&whole, foam_config_init(&config, sizeof config, "reference", &whole));
    FAILS(&whole, FOAM_INVALID_ARGUMENT, "kkkk", foam_config_set(&config, key, "1", &whole));
    FAILS(&whole, FOAM_INVALID_ARGUMENT, "kkkk", foam_config_set(&config, "tau", key, &whole));
}

int main(void) {
    configurations();
    descriptions();
    step_arguments();
    halves();
    statistics();
    error_records();
    return check_result("struct_size");
}
