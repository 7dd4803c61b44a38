/* What foam_step refuses. Every refusal names the parameter and leaves parameters and state as they were. */
#include "model.h"

/* A step with one thing wrong; `edit` may change args, params, grads, and shape and strides to point to. */
#define STEP(m, status, index, says, edit)                                                                   \
    do {                                                                                                     \
        foam_step_args args = model_args(m);                                                                 \
        foam_tensor params[MODEL_PARAMS], grads[MODEL_PARAMS];                                               \
        int64_t shape[2] = {12, 3}, strides[2] = {3, 1};                                                     \
        int32_t skipped = 77;                                                                                \
        (void)shape, (void)strides;                                                                          \
        memcpy(params, (m)->params, sizeof params);                                                          \
        memcpy(grads, (m)->grads, sizeof grads);                                                             \
        args.params = params;                                                                                \
        args.grads = grads;                                                                                  \
        args.skipped = &skipped;                                                                             \
        edit;                                                                                                \
        foam_status got = foam_step((m)->optimizer, &args, &(m)->error);                                     \
        CHECK((m)->error.param_index == (index));                                                            \
        REFUSED(m, status, says, got);                                                                       \
        CHECK(skipped == 77);                                                                                \
    } while (0)

static void arguments(model *m) {
    foam_step_args good = model_args(m);
    REFUSED(m, FOAM_INVALID_ARGUMENT, "NULL", foam_step(NULL, &good, &m->error));
    REFUSED(m, FOAM_INVALID_ARGUMENT, "args|NULL", foam_step(m->optimizer, NULL, &m->error));
    CHECK(foam_step(NULL, NULL, NULL) == FOAM_INVALID_ARGUMENT);
    CHECK(foam_step(m->optimizer, NULL, NULL) == FOAM_INVALID_ARGUMENT);
    REFUSED(m, FOAM_INVALID_ARGUMENT, "args|NULL", foam_step_args_init(NULL, sizeof good, &m->error));
    STEP(m, FOAM_INVALID_ARGUMENT, -1, "params|NULL", args.params = NULL);
    STEP(m, FOAM_INVALID_ARGUMENT, -1, "grads|NULL", args.grads = NULL);
    STEP(m, FOAM_INVALID_ARGUMENT, -1, "count|4|5", args.count = MODEL_PARAMS - 1);
    STEP(m, FOAM_INVALID_ARGUMENT, -1, "count|0|5", args.count = 0);
    STEP(m, FOAM_INVALID_ARGUMENT, -1, "count|5", args.count = SIZE_MAX);
    STEP(m, FOAM_INVALID_ARGUMENT, -1, "flags|FOAM_STEP_VALIDATE", args.flags = 2);
    STEP(m, FOAM_INVALID_ARGUMENT, -1, "lr", args.lr = -0.1);
    STEP(m, FOAM_INVALID_ARGUMENT, -1, "lr", args.lr = (double)INFINITY);
    STEP(m, FOAM_INVALID_ARGUMENT, -1, "lr", args.lr = -(double)INFINITY);
    STEP(m, FOAM_INVALID_ARGUMENT, -1, "grad_scale", args.grad_scale = 0.0);
    STEP(m, FOAM_INVALID_ARGUMENT, -1, "grad_scale", args.grad_scale = (double)NAN);
    STEP(m, FOAM_INVALID_ARGUMENT, -1, "grad_scale", args.grad_scale = (double)INFINITY);
}

/* The same mistakes in a parameter and in a gradient. */
static void tensors(model *m) {
    STEP(m, FOAM_INVALID_ARGUMENT, TALL, "tall|NULL", params[TALL].data = NULL);
    STEP(m, FOAM_INVALID_ARGUMENT, TALL, "tall|shape|NULL", params[TALL].shape = NULL);
    STEP(m, FOAM_INVALID_ARGUMENT, TALL, "tall|shape|NULL", grads[TALL].shape = NULL);
    STEP(m, FOAM_SHAPE_MISMATCH, TALL, "tall|shape[1] = 12|[12, 3]",
         (shape[0] = 3, shape[1] = 12, params[TALL].shape = shape));
    STEP(m, FOAM_SHAPE_MISMATCH, TALL, "tall|shape[1] = 4|[12, 3]",
         (shape[1] = 4, grads[TALL].shape = shape));
    STEP(m, FOAM_SHAPE_MISMATCH, TALL, "tall|shape[0] = -12", (shape[0] = -12, grads[TALL].shape = shape));
    STEP(m, FOAM_SHAPE_MISMATCH, TALL, "tall|shape[1] = 0", (shape[1] = 0, params[TALL].shape = shape));
    STEP(m, FOAM_SHAPE_MISMATCH, TALL, "tall",
         (shape[0] = INT64_MAX, shape[1] = INT64_MAX, grads[TALL].shape = shape));
    STEP(m, FOAM_SHAPE_MISMATCH, TALL, "tall|[12, 3]", params[TALL].ndim = 1);
    STEP(m, FOAM_SHAPE_MISMATCH, TALL, "tall|[12, 3]", grads[TALL].ndim = 0);
    STEP(m, FOAM_SHAPE_MISMATCH, TALL, "tall", grads[TALL].ndim = -1);
    STEP(m, FOAM_SHAPE_MISMATCH, TALL, "tall", params[TALL].ndim = INT32_MAX);
    STEP(m, FOAM_SHAPE_MISMATCH, SCALAR, "scalar", (params[SCALAR].ndim = 1, params[SCALAR].shape = shape));
    STEP(m, FOAM_SHAPE_MISMATCH, TALL, "tall|f32|f64", params[TALL].dtype.bits = 32);
    STEP(m, FOAM_SHAPE_MISMATCH, HALF, "half|f16|bf16", params[HALF].dtype.code = FOAM_DTYPE_FLOAT);
    STEP(m, FOAM_UNSUPPORTED, TALL, "tall|dtype|f32", params[TALL].dtype.code = 0);
    STEP(m, FOAM_UNSUPPORTED, TALL, "tall|dtype|f32", grads[TALL].dtype.code = 1);
    STEP(m, FOAM_UNSUPPORTED, TALL, "tall|lanes 2", params[TALL].dtype.lanes = 2);
    STEP(m, FOAM_UNSUPPORTED, TALL, "tall|lanes 0", grads[TALL].dtype.lanes = 0);
    STEP(m, FOAM_SHAPE_MISMATCH, TALL, "tall|device", params[TALL].device.device_type = FOAM_DEVICE_CUDA);
    STEP(m, FOAM_SHAPE_MISMATCH, TALL, "tall|device",
         grads[TALL].device.device_type = FOAM_DEVICE_CUDA_MANAGED);
    STEP(m, FOAM_SHAPE_MISMATCH, TALL, "tall|device", params[TALL].device.device_type = 0);
    STEP(m, FOAM_UNSUPPORTED, TALL, "tall|stride|contiguous",
         (strides[0] = 1, strides[1] = 12, params[TALL].strides = strides));
    STEP(m, FOAM_UNSUPPORTED, TALL, "tall|stride|contiguous",
         (strides[0] = 4, grads[TALL].strides = strides));
    STEP(m, FOAM_UNSUPPORTED, TALL, "tall|stride|contiguous",
         (strides[1] = 0, grads[TALL].strides = strides));
    STEP(m, FOAM_UNSUPPORTED, TALL, "tall|stride|contiguous",
         (strides[0] = -3, params[TALL].strides = strides));
    STEP(m, FOAM_INVALID_ARGUMENT, TALL, "tall|byte_offset", params[TALL].byte_offset = UINT64_MAX);
    STEP(m, FOAM_INVALID_ARGUMENT, TALL, "tall|byte_offset", grads[TALL].byte_offset = UINT64_MAX - 8);
    /* The last parameter is wrong: the others must not have been stepped before that was seen. */
    STEP(m, FOAM_INVALID_ARGUMENT, HALF, "half|NULL", params[HALF].data = NULL);
}

static void overlaps(model *m) {
    /* A parameter and its gradient, wholly and by one byte. */
    STEP(m, FOAM_INVALID_ARGUMENT, MATRIX, "matrix|overlap", grads[MATRIX].data = params[MATRIX].data);
    STEP(m, FOAM_INVALID_ARGUMENT, MATRIX, "matrix|overlap",
         grads[MATRIX].data = (char *)params[MATRIX].data + 24 * 4 - 1);
    STEP(m, FOAM_INVALID_ARGUMENT, MATRIX, "matrix|overlap",
         (grads[MATRIX].data = (char *)params[MATRIX].data - 24 * 4, grads[MATRIX].byte_offset = 4));
    /* A parameter and another one's gradient. */
    STEP(m, FOAM_INVALID_ARGUMENT, (m->error.param_index == TALL ? TALL : HALF), "overlap|tall|half",
         grads[HALF].data = (char *)params[TALL].data + 64);
    /* Two parameters. */
    STEP(m, FOAM_INVALID_ARGUMENT, (m->error.param_index == VECTOR ? VECTOR : SCALAR),
         "overlap|vector|scalar", params[SCALAR].data = (char *)params[VECTOR].data + 16);
    /* Neighbours that only touch are fine, and so are two gradients in one place: they are only read. */
    foam_tensor params[MODEL_PARAMS], grads[MODEL_PARAMS];
    foam_step_args args = model_args(m);
    memcpy(params, m->params, sizeof params);
    memcpy(grads, m->grads, sizeof grads);
    args.params = params;
    args.grads = grads;
    params[SCALAR].data = (char *)params[VECTOR].data + 20;
    grads[SCALAR].data = grads[VECTOR].data;
    OK(&m->error, foam_step(m->optimizer, &args, &m->error));
    model_remember(m);
}

/* A number that no statistic survives, in the last element of the gradient of `p`. */
#define POISON(m, status, p, value, says)                                                                    \
    do {                                                                                                     \
        model_gradients(m);                                                                                  \
        model_put(&(m)->grads[p], model_elements(&(m)->grads[p]) - 1, (value));                              \
        STEP(m, status, p, says, (void)0);                                                                   \
    } while (0)

static void not_finite(model *m) {
    for (int p = 0; p < MODEL_PARAMS; p++) {
        const char *name = m->described[p].name;
        POISON(m, FOAM_NOT_FINITE, p, (double)NAN, name);
        POISON(m, FOAM_NOT_FINITE, p, (double)INFINITY, name);
        POISON(m, FOAM_NOT_FINITE, p, -(double)INFINITY, name);
    }
    /* Finite, but its square is not: 1e25 in single precision, 1e200 in double. */
    POISON(m, FOAM_NOT_FINITE, MATRIX, 1e25, "matrix");
    POISON(m, FOAM_NOT_FINITE, VECTOR, -1e30, "vector");
    POISON(m, FOAM_NOT_FINITE, TALL, 1e200, "tall");
    POISON(m, FOAM_NOT_FINITE, HALF, 1e30, "half");
    /* Finite only before it is scaled. */
    model_gradients(m);
    model_put(&m->grads[MATRIX], 0, 1e10);
    STEP(m, FOAM_NOT_FINITE, MATRIX, "matrix", args.grad_scale = 1e35);
    model_gradients(m);
    OK(&m->error, model_step(m));
}

/* Every square is finite, their sum is not: refused, or handled so that nothing becomes infinite. */
static void a_sum_of_squares_that_overflows(void) {
    model m;
    double values[36];
    size_t count = 0;
    model_start(&m, 2);
    model_gradients(&m);
    for (size_t at = 0; at < 24; at++) model_put(&m.grads[MATRIX], at, 1.5e19);
    foam_step_args args = model_args(&m);
    foam_status status = foam_step(m.optimizer, &args, &m.error);
    CHECK(status == FOAM_OK || (status == FOAM_NOT_FINITE && m.error.param_index == MATRIX));
    if (status != FOAM_OK) CHECK(model_unchanged(&m));
    for (int step = 0; step < 4; step++) OK(&m.error, model_step(&m));
    for (int64_t axis = 0; axis < 2; axis++) {
        OK(&m.error, foam_factor_read(m.optimizer, MATRIX, 0, axis, FOAM_FACTOR_STATISTIC, values, 36, &count,
                                      &m.error));
        for (size_t i = 0; i < count; i++) CHECK(isfinite(values[i]));
    }
    for (size_t at = 0; at < 24; at++) CHECK(isfinite(model_get(&m.params[MATRIX], at)));
    model_close(&m);
}

/* With nonfinite = skip the step succeeds, says that it was skipped, is counted and changes nothing. */
static void skipped(void) {
    static const double bad[] = {(double)NAN, (double)INFINITY, 1e25};
    model m;
    size_t count = 0;
    double before[36], after[36];
    foam_stats_info stats;
    model_describe(&m);
    OK(&m.error, foam_config_set(&m.config, "nonfinite", "skip", &m.error));
    OK(&m.error, model_create(&m));
    for (int step = 0; step < 4; step++) OK(&m.error, model_step(&m));
    OK(&m.error,
       foam_factor_read(m.optimizer, MATRIX, 0, 0, FOAM_FACTOR_STATISTIC, before, 36, &count, &m.error));
    memcpy(m.remembered_params, m.param_data, sizeof m.param_data);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int32_t was_skipped = 77;
        foam_step_args args = model_args(&m);
        args.skipped = &was_skipped;
        model_gradients(&m);
        model_put(&m.grads[VECTOR], 2, bad[i]);
        OK(&m.error, foam_step(m.optimizer, &args, &m.error));
        CHECK(was_skipped == 1);
        CHECK(memcmp(m.remembered_params, m.param_data, sizeof m.param_data) == 0);
    }
    OK(&m.error,
       foam_factor_read(m.optimizer, MATRIX, 0, 0, FOAM_FACTOR_STATISTIC, after, 36, &count, &m.error));
    CHECK(memcmp(before, after, sizeof before) == 0);
    stats.struct_size = sizeof stats;
    OK(&m.error, foam_stats(m.optimizer, &stats, &m.error));
    CHECK(stats.steps == 4 && stats.skipped_steps == 3);
    /* Mistakes are still mistakes. */
    model_remember(&m);
    STEP(&m, FOAM_INVALID_ARGUMENT, TALL, "tall|NULL", params[TALL].data = NULL);
    OK(&m.error, model_step(&m));
    model_close(&m);
}

int main(void) {
    model m;
    model_start(&m, 7);
    arguments(&m);
    tensors(&m);
    overlaps(&m);
    not_finite(&m);
    model_close(&m);
    a_sum_of_squares_that_overflows();
    skipped();
    return check_result("bad_step");
}
