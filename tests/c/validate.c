/* What can be asked before anything happens: is a configuration good, is a check due, would a step be taken; and
   where in a tensor an error lies. */
#include "model.h"

static foam_config fresh(model *m) {
    foam_config config;
    OK(&m->error, foam_config_init(&config, sizeof config, "reference", &m->error));
    return config;
}

static void *no_memory(void *user, size_t size, size_t alignment) {
    (void)user, (void)size, (void)alignment;
    return NULL;
}

/* foam_config_validate refuses what foam_create refuses, with the same words, and accepts what it accepts. */
static void agrees(model *m, const foam_config *config, foam_status status, const char *says) {
    foam_optimizer *made = NULL;
    foam_error error = FOAM_ERROR_INIT;
    CHECK(foam_create(config, m->described, MODEL_PARAMS, &made, &error) == status);
    foam_destroy(made);
    if (status == FOAM_OK) {
        OK(&m->error, foam_config_validate(config, &m->error));
    } else {
        const foam_status got = foam_config_validate(config, &m->error);
        CHECK(strcmp(m->error.message, error.message) == 0);
        FAILS(&m->error, status, says, got);
    }
}

static void configurations(void) {
    model m;
    model_describe(&m);
    foam_config config = fresh(&m);
    agrees(&m, &config, FOAM_OK, "");
    config.policy = 99;
    agrees(&m, &config, FOAM_INVALID_ARGUMENT, "config.policy|99");
    config = fresh(&m);
    config.tau = -1.0;
    agrees(&m, &config, FOAM_INVALID_ARGUMENT, "tau");
    config = fresh(&m);
    config.epsilon_max = 1e-30;
    agrees(&m, &config, FOAM_INVALID_ARGUMENT, "epsilon_max");
    config = fresh(&m);
    config.device_type = 77;
    agrees(&m, &config, FOAM_UNSUPPORTED, "device_type|77");
    config = fresh(&m);
    config.allocate = no_memory;
    agrees(&m, &config, FOAM_INVALID_ARGUMENT, "allocate|both or neither");
    config = fresh(&m);
    config.policy = FOAM_POLICY_GRAFTING_ONLY;
    config.grafting = FOAM_GRAFTING_NONE;
    agrees(&m, &config, FOAM_INVALID_ARGUMENT, "grafting_only");
    FAILS(&m.error, FOAM_INVALID_ARGUMENT, "config is NULL", foam_config_validate(NULL, &m.error));
}

static void checks_due(void) {
    model m;
    int32_t due = 7;
    model_describe(&m);
    foam_config config = fresh(&m);
    config.check_period = 5;
    config.start_step = 12;
    for (int64_t step = 1; step <= 26; step++) {
        OK(&m.error, foam_config_check_due(&config, step, &due, &m.error));
        CHECK(due == (step == 12 || step == 15 || step == 20 || step == 25));
    }
    config.cadence = FOAM_CADENCE_PAPER;
    for (int64_t step = 1; step <= 12; step++) {
        OK(&m.error, foam_config_check_due(&config, step, &due, &m.error));
        CHECK(due == (step % 5 == 1));
    }
    due = 7;
    FAILS(&m.error, FOAM_INVALID_ARGUMENT, "step = 0", foam_config_check_due(&config, 0, &due, &m.error));
    FAILS(&m.error, FOAM_INVALID_ARGUMENT, "due is NULL", foam_config_check_due(&config, 1, NULL, &m.error));
    CHECK(due == 7);
}

/* A validated step is taken or refused as the step itself would be, and changes nothing. */
static void steps(void) {
    model m, other;
    model_start(&m, 7);
    model_start(&other, 7);
    foam_step_args args = model_args(&m);
    int32_t skipped = 5;
    args.flags = FOAM_STEP_VALIDATE;
    args.skipped = &skipped;
    model_gradients(&m);
    for (int again = 0; again < 3; again++) {
        OK(&m.error, foam_step(m.optimizer, &args, &m.error));
        CHECK(skipped == 0 && model_unchanged(&m));
    }
    model_put(&m.grads[TALL], 4, (double)INFINITY);
    REFUSED(&m, FOAM_NOT_FINITE, "tall", foam_step(m.optimizer, &args, &m.error));
    OK(&m.error, foam_set_option(m.optimizer, "nonfinite", "skip", &m.error));
    OK(&m.error, foam_step(m.optimizer, &args, &m.error));
    foam_stats_info info;
    info.struct_size = sizeof info;
    OK(&m.error, foam_stats(m.optimizer, &info, &m.error));
    CHECK(skipped == 1 && info.skipped_steps == 0 && info.steps == 7);
    OK(&m.error, foam_set_option(m.optimizer, "nonfinite", "error", &m.error));
    model_gradients(&m);
    foam_tensor kept = m.grads[MATRIX];
    m.grads[MATRIX].data = m.param_data[MATRIX];
    REFUSED(&m, FOAM_INVALID_ARGUMENT, "overlap", foam_step(m.optimizer, &args, &m.error));
    m.grads[MATRIX] = kept;
    args.lr = -1.0;
    REFUSED(&m, FOAM_INVALID_ARGUMENT, "args.lr", foam_step(m.optimizer, &args, &m.error));
    args.lr = (double)NAN;
    args.flags = FOAM_STEP_VALIDATE | 2;
    REFUSED(&m, FOAM_INVALID_ARGUMENT, "args.flags", foam_step(m.optimizer, &args, &m.error));
    for (int step = 0; step < 5; step++) {
        OK(&m.error, model_step(&m));
        OK(&other.error, model_step(&other));
    }
    CHECK(memcmp(m.param_data, other.param_data, sizeof m.param_data) == 0);
    model_close(&m);
    model_close(&other);
}

/* Rates that the parameters' numbers do not reach are refused by name, not turned into NaN. */
static void rates(void) {
    model m;
    model_start(&m, 4);
    foam_step_args args = model_args(&m);
    args.lr = 1e39;
    REFUSED(&m, FOAM_INVALID_ARGUMENT, "matrix|lr|1e39", foam_step(m.optimizer, &args, &m.error));
    REFUSED(&m, FOAM_INVALID_ARGUMENT, "matrix|weight_decay|1e300",
            foam_set_option(m.optimizer, "weight_decay", "1e300", &m.error));
    REFUSED(&m, FOAM_INVALID_ARGUMENT, "matrix|lr|1e39", foam_set_option(m.optimizer, "lr", "1e39", &m.error));
    args.lr = 1e38;
    args.flags = FOAM_STEP_VALIDATE;
    OK(&m.error, foam_step(m.optimizer, &args, &m.error));
    foam_optimizer *made = NULL;
    m.config.weight_decay = 1e300;
    FAILS(&m.error, FOAM_INVALID_ARGUMENT, "matrix|weight_decay",
          foam_create(&m.config, m.described, MODEL_PARAMS, &made, &m.error));
    /* f64 has room for it. */
    OK(&m.error, foam_create(&m.config, &m.described[TALL], 1, &made, &m.error));
    foam_destroy(made);
    model_close(&m);
}

static void axes(void) {
    model m;
    int64_t shape[2] = {12, 4}, strides[2] = {5, 1};
    double value = 0.0;
    size_t count = 0;
    model_start(&m, 4);
    foam_step_args args = model_args(&m);
    foam_tensor kept = m.grads[TALL];
    m.grads[TALL].shape = shape;
    CHECK(foam_step(m.optimizer, &args, &m.error) == FOAM_SHAPE_MISMATCH);
    CHECK(m.error.param_index == TALL && m.error.axis == 1);
    m.grads[TALL] = kept;
    m.grads[TALL].strides = strides;
    CHECK(foam_step(m.optimizer, &args, &m.error) == FOAM_UNSUPPORTED);
    CHECK(m.error.param_index == TALL && m.error.axis == 0);
    m.grads[TALL] = kept;
    CHECK(foam_factor_read(m.optimizer, MATRIX, 0, 5, FOAM_FACTOR_BASIS, &value, 1, &count, &m.error) ==
          FOAM_INVALID_ARGUMENT);
    CHECK(m.error.param_index == MATRIX && m.error.axis == 5);
    CHECK(foam_exact_gap(m.optimizer, MATRIX, 0, 2, &value, &m.error) == FOAM_INVALID_ARGUMENT);
    CHECK(m.error.param_index == MATRIX && m.error.axis == 2);
    CHECK(foam_exact_gap(m.optimizer, MATRIX, 9, 0, &value, &m.error) == FOAM_INVALID_ARGUMENT);
    CHECK(m.error.param_index == MATRIX && m.error.axis == -1);
    foam_optimizer *made = NULL;
    m.shapes[TALL][1] = 0;
    CHECK(foam_create(&m.config, m.described, MODEL_PARAMS, &made, &m.error) == FOAM_INVALID_ARGUMENT);
    CHECK(m.error.param_index == TALL && m.error.axis == 1 && made == NULL);
    m.shapes[TALL][1] = 3;
    foam_stack stack;
    int64_t sizes[3] = {4, 3, 0};
    OK(&m.error, foam_stack_init(&stack, sizeof stack, &m.error));
    stack.shape = sizes;
    stack.ndim = 3;
    CHECK(foam_stack_layout(&m.config, &stack, NULL, 0, 0, &count, &m.error) == FOAM_INVALID_ARGUMENT);
    CHECK(m.error.axis == 2);
    model_close(&m);
}

int main(void) {
    configurations();
    checks_due();
    steps();
    rates();
    axes();
    return check_result("validate");
}
