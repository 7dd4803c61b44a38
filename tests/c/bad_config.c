/* What a configuration refuses: by name, and set directly in the struct. */
#include "model.h"

#include <limits.h>

static foam_error error = FOAM_ERROR_INIT;

/* The refused call leaves the configuration as it was. */
static void refused_option(const char *key, const char *value, const char *says) {
    foam_config config, before;
    OK(&error, foam_config_init(&config, sizeof config, "reference", &error));
    memcpy(&before, &config, sizeof config);
    FAILS(&error, FOAM_INVALID_ARGUMENT, says, foam_config_set(&config, key, value, &error));
    CHECK(memcmp(&config, &before, sizeof config) == 0);
}

static void options_by_name(void) {
    static const struct {
        const char *key, *value, *says;
    } table[] = {
        /* The message names the key and lists the known ones, the last one too. */
        {"taus", "1", "'taus'|policy|tau|residual_threshold|inject_fault_step"},
        {"", "1", "''|policy"},
        {"Tau", "1", "'Tau'"},
        {"struct_size", "8", "'struct_size'"},
        {"tau", "", "tau|a number"},
        {"tau", "three quarters", "tau|three quarters|a number"},
        {"tau", "0", "tau|(0, inf)"},
        {"tau", "-1", "tau|(0, inf)"},
        {"tau", "nan", "tau|(0, inf)"},
        {"tau", "inf", "tau|(0, inf)"},
        {"tau", "1e999", "tau|(0, inf)"},
        {"beta1", "1", "beta1|[0, 1)"},
        {"beta1", "-0.1", "beta1|[0, 1)"},
        {"beta2", "1.0001", "beta2|[0, 1]"},
        {"epsilon", "0", "epsilon|(0, inf)"},
        {"epsilon_left", "-1e-9", "epsilon_left|[0, inf)"},
        {"epsilon_max", "0", "epsilon_max"},
        {"residual_threshold", "-1", "residual_threshold"},
        {"grafting_beta2", "1", "grafting_beta2|[0, 1)"},
        {"grafting_epsilon", "-1", "grafting_epsilon"},
        {"exponent_multiplier", "0", "exponent_multiplier"},
        {"root", "-2", "root"},
        {"momentum", "1", "momentum|[0, 1)"},
        {"weight_decay", "-1e-4", "weight_decay"},
        {"lr", "-0.1", "lr|[0, inf)"},
        {"lr", "inf", "lr|[0, inf)"},
        {"check_period", "0", "check_period|number in [1, "},
        {"check_period", "2.5", "check_period|whole number"},
        {"check_period", "99999999999999999999", "check_period|whole number"},
        {"start_step", "-1", "start_step|number in [0, "},
        {"max_factor_dim", "0", "max_factor_dim|number in [1, "},
        {"num_threads", "-1", "num_threads|number in [0, "},
        {"inject_fault_step", "0", "inject_fault_step|number in [1, "},
        {"nesterov", "maybe", "nesterov|maybe|true or false"},
        {"policy", "adam", "policy|adam|stale|foam_no_refresh|grafting_only"},
        {"cadence", "weekly", "cadence|reference|paper"},
        {"grafting", "muon", "grafting|muon|rmsprop"},
        {"statistic_dtype", "bf16", "statistic_dtype|f64"},
        {"negative_eigenvalues", "keep", "negative_eigenvalues|shift|clamp"},
        {"nonfinite", "ignore", "nonfinite|error|skip"},
        {"inject_fault", "fire", "inject_fault|panic"},
        {"device", "tpu", "device|tpu|cuda:N"},
        {"device", "cuda:-1", "device|cuda:N"},
        {"tau\xff", "1", "key|UTF-8"},
        {"tau", "\xff", "value|UTF-8"},
        {NULL, "1", "key|NULL"},
        {"tau", NULL, "value|NULL"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        refused_option(table[i].key, table[i].value, table[i].says);
    }
    foam_config config;
    FAILS(&error, FOAM_INVALID_ARGUMENT, "config|NULL", foam_config_set(NULL, "tau", "1", &error));
    FAILS(&error, FOAM_INVALID_ARGUMENT, "config|NULL", foam_config_init(NULL, sizeof config, NULL, &error));
    memset(&config, 0x5a, sizeof config);
    FAILS(&error, FOAM_INVALID_ARGUMENT, "best|reference|paper",
          foam_config_init(&config, sizeof config, "best", &error));
    CHECK(((const char *)&config)[8] == 0x5a);
    /* Without a record the status still tells. */
    CHECK(foam_config_set(NULL, "tau", "1", NULL) == FOAM_INVALID_ARGUMENT);
}

/* Every key reads back what was written, and NULL lists the keys. */
static void options_read_back(void) {
    foam_config config;
    char keys[1024], text[64], small[4] = "abc";
    size_t known = 0;
    OK(&error, foam_config_init(&config, sizeof config, "reference", &error));
    OK(&error, foam_config_set(&config, "tau", " 0.5 ", &error));
    OK(&error, foam_config_get(&config, "tau", text, sizeof text, &error));
    CHECK(strcmp(text, "0.5") == 0 && config.tau == 0.5);
    OK(&error, foam_config_get(&config, NULL, keys, sizeof keys, &error));
    for (char *key = keys, *end = keys; *end != 0; key = end + 1, known++) {
        foam_config before = config;
        end = key + strcspn(key, " ");
        char name[64];
        REQUIRE((size_t)(end - key) < sizeof name);
        memcpy(name, key, (size_t)(end - key));
        name[end - key] = 0;
        OK(&error, foam_config_get(&config, name, text, sizeof text, &error));
        OK(&error, foam_config_set(&config, name, text, &error));
        CHECK(memcmp(&before, &config, sizeof config) == 0);
        if (*end == 0) break;
    }
    CHECK(known >= 30);
    FAILS(&error, FOAM_INVALID_ARGUMENT, "capacity|6",
          foam_config_get(&config, "negative_eigenvalues", small, 0, &error));
    FAILS(&error, FOAM_INVALID_ARGUMENT, "capacity|5",
          foam_config_get(&config, "policy", small, sizeof small, &error));
    CHECK(strcmp(small, "abc") == 0);
    FAILS(&error, FOAM_INVALID_ARGUMENT, "'taus'",
          foam_config_get(&config, "taus", text, sizeof text, &error));
    FAILS(&error, FOAM_INVALID_ARGUMENT, "value|NULL", foam_config_get(&config, "tau", NULL, 64, &error));
    FAILS(&error, FOAM_INVALID_ARGUMENT, "config|NULL",
          foam_config_get(NULL, "tau", text, sizeof text, &error));
}

/* Creation refuses the configuration and leaves the output alone. */
#define REFUSES(says, edit)                                                                                  \
    do {                                                                                                     \
        model m;                                                                                             \
        foam_optimizer *const untouched = (foam_optimizer *)(void *)&m;                                      \
        model_describe(&m);                                                                                  \
        foam_config *c = &m.config;                                                                          \
        edit;                                                                                                \
        m.optimizer = untouched;                                                                             \
        FAILS(&m.error, FOAM_INVALID_ARGUMENT, says, model_create(&m));                                      \
        CHECK(m.optimizer == untouched);                                                                     \
    } while (0)

static void fields_of_the_struct(void) {
    REFUSES("epsilon_max|epsilon", (c->epsilon = 1e-3, c->epsilon_max = 1e-4));
    REFUSES("epsilon_max|epsilon_right", c->epsilon_right = 1.0);
    REFUSES("tau|(0, inf)", c->tau = 0.0);
    REFUSES("tau|(0, inf)", c->tau = -0.5);
    REFUSES("tau|(0, inf)", c->tau = (double)NAN);
    REFUSES("tau|(0, inf)", c->tau = (double)INFINITY);
    REFUSES("check_period|number in [1, ", c->check_period = 0);
    REFUSES("check_period|number in [1, ", c->check_period = -20);
    REFUSES("beta1|[0, 1)", c->beta1 = 1.0);
    REFUSES("beta1|[0, 1)", c->beta1 = -0.1);
    REFUSES("beta2|[0, 1]", c->beta2 = 1.5);
    REFUSES("beta2|[0, 1]", c->beta2 = (double)NAN);
    REFUSES("grafting_beta2|[0, 1)", c->grafting_beta2 = 1.0);
    REFUSES("momentum|[0, 1)", c->momentum = 2.0);
    REFUSES("epsilon|(0, inf)", c->epsilon = 0.0);
    REFUSES("lr|[0, inf)", c->lr = -1.0);
    REFUSES("lr|[0, inf)", c->lr = (double)INFINITY);
    REFUSES("weight_decay|[0, inf)", c->weight_decay = -1.0);
    REFUSES("root|[0, inf)", c->root = -1.0);
    REFUSES("max_factor_dim|number in [1, ", c->max_factor_dim = 0);
    REFUSES("num_threads|number in [0, 1024]", c->num_threads = -1);
    REFUSES("num_threads|number in [0, 1024]", c->num_threads = 1025);
    REFUSES("num_threads|number in [0, 1024]", c->num_threads = INT64_MAX);
    REFUSES("start_step|number in [0, ", c->start_step = -1);
    REFUSES("policy|99|foam_certified", c->policy = 99);
    REFUSES("policy|-1", c->policy = -1);
    REFUSES("cadence|2", c->cadence = 2);
    REFUSES("grafting|5|adam", c->grafting = 5);
    REFUSES("statistic_dtype|3", c->statistic_dtype = 3);
    REFUSES("nonfinite|2", c->nonfinite = 2);
    REFUSES("negative_eigenvalues|7", c->negative_eigenvalues = 7);
    REFUSES("inject_fault|77", c->inject_fault = 77);
    REFUSES("merge_dims|2|0 or 1", c->merge_dims = 2);
    REFUSES("nesterov|-1|0 or 1", c->nesterov = -1);
    REFUSES("flags|0", c->flags = 1);
    REFUSES("reserved|0", c->reserved = 1);
    REFUSES("grafting_only|grafting",
            (c->policy = FOAM_POLICY_GRAFTING_ONLY, c->grafting = FOAM_GRAFTING_NONE));
}

int main(void) {
    options_by_name();
    options_read_back();
    fields_of_the_struct();
    return check_result("bad_config");
}
