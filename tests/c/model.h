/* A small model with a quadratic loss: every kind of parameter, its gradients, and its optimizer. */
#ifndef MODEL_H
#define MODEL_H

#include "check.h"

#include <math.h>

enum { MATRIX, VECTOR, SCALAR, TALL, HALF, MODEL_PARAMS };
enum { MODEL_LARGEST = 36 };

typedef struct model {
    foam_error error;
    foam_config config;
    foam_param described[MODEL_PARAMS];
    foam_optimizer *optimizer;
    int64_t shapes[MODEL_PARAMS][2];
    foam_tensor params[MODEL_PARAMS];
    foam_tensor grads[MODEL_PARAMS];
    /* The elements; doubles, so that every dtype finds its alignment. */
    double param_data[MODEL_PARAMS][MODEL_LARGEST];
    double grad_data[MODEL_PARAMS][MODEL_LARGEST];
    /* What model_remember saw. */
    double remembered_params[MODEL_PARAMS][MODEL_LARGEST];
    void *remembered_state;
    size_t remembered_size;
} model;

static inline size_t model_elements(const foam_tensor *tensor) {
    size_t elements = 1;
    for (int axis = 0; axis < tensor->ndim; axis++) elements *= (size_t)tensor->shape[axis];
    return elements;
}

static inline double model_get(const foam_tensor *tensor, size_t at) {
    if (tensor->dtype.bits == 64) return ((const double *)tensor->data)[at];
    if (tensor->dtype.bits == 32) return (double)((const float *)tensor->data)[at];
    uint32_t wide = (uint32_t)((const uint16_t *)tensor->data)[at] << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return (double)value;
}

static inline void model_put(const foam_tensor *tensor, size_t at, double value) {
    if (tensor->dtype.bits == 64) {
        ((double *)tensor->data)[at] = value;
    } else if (tensor->dtype.bits == 32) {
        ((float *)tensor->data)[at] = (float)value;
    } else {
        float narrow = (float)value;
        uint32_t wide;
        memcpy(&wide, &narrow, sizeof wide);
        ((uint16_t *)tensor->data)[at] = (uint16_t)(wide >> 16);
    }
}

/* The point that the loss pulls parameter `p` to, and how hard. */
static inline double model_goal(int p, size_t at) { return 0.5 * (double)((at * 7 + (size_t)p) % 5) - 1.0; }
static inline double model_weight(size_t at) { return 1.0 + (double)(at % 3); }

static inline double model_loss(const model *m) {
    double loss = 0.0;
    for (int p = 0; p < MODEL_PARAMS; p++) {
        for (size_t at = 0; at < model_elements(&m->params[p]); at++) {
            double off = model_get(&m->params[p], at) - model_goal(p, at);
            loss += 0.5 * model_weight(at) * off * off;
        }
    }
    return loss;
}

static inline void model_gradients(model *m) {
    for (int p = 0; p < MODEL_PARAMS; p++) {
        for (size_t at = 0; at < model_elements(&m->params[p]); at++) {
            double off = model_get(&m->params[p], at) - model_goal(p, at);
            model_put(&m->grads[p], at, model_weight(at) * off);
        }
    }
}

/* Describes the model, with a configuration that shows every branch within a few steps. */
static inline void model_describe(model *m) {
    static const char *const names[MODEL_PARAMS] = {"matrix", "vector", "scalar", "tall", "half"};
    static const int32_t ndims[MODEL_PARAMS] = {2, 1, 0, 2, 2};
    static const int64_t shapes[MODEL_PARAMS][2] = {{6, 4}, {5, 0}, {0, 0}, {12, 3}, {3, 3}};
    static const uint8_t codes[MODEL_PARAMS] = {FOAM_DTYPE_FLOAT, FOAM_DTYPE_FLOAT, FOAM_DTYPE_FLOAT,
                                                FOAM_DTYPE_FLOAT, FOAM_DTYPE_BFLOAT};
    static const uint8_t bits[MODEL_PARAMS] = {32, 32, 32, 64, 16};
    const foam_error empty = FOAM_ERROR_INIT;
    memset(m, 0, sizeof *m);
    m->error = empty;
    OK(&m->error, foam_config_init(&m->config, sizeof m->config, "reference", &m->error));
    m->config.check_period = 3;
    m->config.max_factor_dim = 8;
    m->config.merge_dims = 0;
    m->config.num_threads = 2;
    m->config.lr = 0.05;
    memcpy(m->shapes, shapes, sizeof shapes);
    for (int p = 0; p < MODEL_PARAMS; p++) {
        OK(&m->error, foam_param_init(&m->described[p], sizeof m->described[p], &m->error));
        m->described[p].name = names[p];
        m->described[p].shape = m->shapes[p];
        m->described[p].ndim = ndims[p];
        m->described[p].dtype.code = codes[p];
        m->described[p].dtype.bits = bits[p];
        memset(&m->params[p], 0, sizeof m->params[p]);
        m->params[p].device.device_type = FOAM_DEVICE_CPU;
        m->params[p].ndim = ndims[p];
        m->params[p].dtype = m->described[p].dtype;
        m->params[p].shape = m->shapes[p];
        m->grads[p] = m->params[p];
        m->params[p].data = m->param_data[p];
        m->grads[p].data = m->grad_data[p];
        for (size_t at = 0; at < model_elements(&m->params[p]); at++) {
            model_put(&m->params[p], at, 0.25 * (double)((at * 3 + (size_t)p) % 9));
        }
    }
    model_gradients(m);
}

static inline foam_status model_create(model *m) {
    return foam_create(&m->config, m->described, MODEL_PARAMS, &m->optimizer, &m->error);
}

static inline foam_step_args model_args(model *m) {
    foam_step_args args;
    OK(&m->error, foam_step_args_init(&args, sizeof args, &m->error));
    args.count = MODEL_PARAMS;
    args.params = m->params;
    args.grads = m->grads;
    return args;
}

/* One step along the loss's gradient. */
static inline foam_status model_step(model *m) {
    foam_step_args args = model_args(m);
    model_gradients(m);
    return foam_step(m->optimizer, &args, &m->error);
}

/* The whole state of the optimizer; the caller frees it. */
static inline void *model_state(model *m, size_t *size) {
    OK(&m->error, foam_save_memory(m->optimizer, NULL, 0, size, &m->error));
    void *state = malloc(*size);
    REQUIRE(state != NULL);
    OK(&m->error, foam_save_memory(m->optimizer, state, *size, size, &m->error));
    return state;
}

/* Remembers parameters and state, bit for bit. */
static inline void model_remember(model *m) {
    free(m->remembered_state);
    memcpy(m->remembered_params, m->param_data, sizeof m->param_data);
    m->remembered_state = model_state(m, &m->remembered_size);
}

/* Whether parameters and state are what they were. */
static inline int model_unchanged(model *m) {
    size_t size = 0;
    void *state = model_state(m, &size);
    int same = memcmp(m->remembered_params, m->param_data, sizeof m->param_data) == 0 &&
               size == m->remembered_size && memcmp(state, m->remembered_state, size) == 0;
    free(state);
    return same;
}

/* The call fails, with that message, and leaves parameters and state as they were. */
#define REFUSED(m, status, says, call)                                                                       \
    do {                                                                                                     \
        FAILS(&(m)->error, status, says, call);                                                              \
        CHECK(model_unchanged(m));                                                                           \
    } while (0)

/* A model after a few steps, so that there is a state to spoil. */
static inline void model_start(model *m, int steps) {
    model_describe(m);
    OK(&m->error, model_create(m));
    REQUIRE(m->optimizer != NULL);
    for (int step = 0; step < steps; step++) OK(&m->error, model_step(m));
    model_remember(m);
}

static inline void model_close(model *m) {
    foam_destroy(m->optimizer);
    free(m->remembered_state);
    m->optimizer = NULL;
    m->remembered_state = NULL;
}

#endif
