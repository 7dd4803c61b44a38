/* What foam_create refuses in the description of the parameters. */
#include "model.h"
#include <string.h>

/* Creation fails and leaves the output alone; the message names the parameter. */
#define REFUSES(status, says, edit)                                                                          \
    do {                                                                                                     \
        model m;                                                                                             \
        foam_optimizer *const untouched = (foam_optimizer *)(void *)&m;                                      \
        model_describe(&m);                                                                                  \
        foam_param *p = &m.described[TALL];                                                                  \
        int64_t *shape = m.shapes[TALL];                                                                     \
        (void)p, (void)shape;                                                                                \
        edit;                                                                                                \
        m.optimizer = untouched;                                                                             \
        foam_status got = model_create(&m);                                                                  \
        CHECK(m.error.param_index == TALL);                                                                  \
        FAILS(&m.error, status, says, got);                                                                  \
        CHECK(m.optimizer == untouched);                                                                     \
    } while (0)

static void descriptions(void) {
    REFUSES(FOAM_INVALID_ARGUMENT, "tall|shape|NULL", p->shape = NULL);
    REFUSES(FOAM_INVALID_ARGUMENT, "tall|-3", shape[1] = -3);
    REFUSES(FOAM_INVALID_ARGUMENT, "tall|0", shape[0] = 0);
    REFUSES(FOAM_INVALID_ARGUMENT, "tall", shape[0] = INT64_MIN);
    REFUSES(FOAM_INVALID_ARGUMENT, "tall|ndim|-1", p->ndim = -1);
    REFUSES(FOAM_INVALID_ARGUMENT, "tall|ndim", p->ndim = INT32_MAX);
    REFUSES(FOAM_UNSUPPORTED, "tall|dtype|f32", p->dtype.code = 0);
    REFUSES(FOAM_UNSUPPORTED, "tall|dtype|f32", p->dtype.code = 1);
    REFUSES(FOAM_UNSUPPORTED, "tall|dtype|f32", p->dtype.bits = 8);
    REFUSES(FOAM_UNSUPPORTED, "tall|dtype", p->dtype.code = 5);
    REFUSES(FOAM_UNSUPPORTED, "tall|dtype", (p->dtype.code = FOAM_DTYPE_BFLOAT, p->dtype.bits = 32));
    REFUSES(FOAM_UNSUPPORTED, "tall|lanes", p->dtype.lanes = 2);
    REFUSES(FOAM_UNSUPPORTED, "tall|lanes", p->dtype.lanes = 0);
    REFUSES(FOAM_INVALID_ARGUMENT, "matrix|unique", p->name = "matrix");
    REFUSES(FOAM_INVALID_ARGUMENT, "(3)|name is empty", p->name = "");
    REFUSES(FOAM_INVALID_ARGUMENT, "UTF-8", p->name = "ta\xffll");
    REFUSES(FOAM_INVALID_ARGUMENT, "tall|lr_scale", p->lr_scale = 0.0);
    REFUSES(FOAM_INVALID_ARGUMENT, "tall|lr_scale", p->lr_scale = -1.0);
    REFUSES(FOAM_INVALID_ARGUMENT, "tall|lr_scale", p->lr_scale = (double)NAN);
    REFUSES(FOAM_INVALID_ARGUMENT, "tall|lr_scale", p->lr_scale = (double)INFINITY);
    REFUSES(FOAM_INVALID_ARGUMENT, "tall|weight_decay_scale", p->weight_decay_scale = -1.0);
    REFUSES(FOAM_INVALID_ARGUMENT, "tall|weight_decay_scale", p->weight_decay_scale = (double)NAN);
    REFUSES(FOAM_INVALID_ARGUMENT, "tall|root", p->root = -2.0);
    REFUSES(FOAM_INVALID_ARGUMENT, "tall|root", p->root = (double)NAN);
    REFUSES(FOAM_INVALID_ARGUMENT, "tall|flags", p->flags = 0x80000000u);
    REFUSES(FOAM_INVALID_ARGUMENT, "tall|grafting",
            (p->flags = FOAM_PARAM_GRAFTING_ONLY, m.config.grafting = FOAM_GRAFTING_NONE));
    /* A name that the library makes up can clash with a given one, too. */
    REFUSES(FOAM_INVALID_ARGUMENT, "param_3|unique", (p->name = NULL, m.described[MATRIX].name = "param_3"));
}

/* More bytes than there are: an error, whatever stage notices. */
static void more_than_memory(void) {
    REFUSES(FOAM_OUT_OF_MEMORY, "tall", (shape[0] = (int64_t)1 << 22, shape[1] = (int64_t)1 << 22));
    REFUSES(FOAM_OUT_OF_MEMORY, "tall", (p->ndim = 1, shape[0] = (int64_t)1 << 45));
    REFUSES(FOAM_OUT_OF_MEMORY, "tall",
            (p->ndim = 1, shape[0] = (int64_t)1 << 45, p->flags = FOAM_PARAM_GRAFTING_ONLY));
    REFUSES(FOAM_OUT_OF_MEMORY, "tall",
            (shape[0] = (int64_t)1 << 23, shape[1] = (int64_t)1 << 23, m.config.max_factor_dim = INT64_MAX));
    REFUSES(FOAM_OUT_OF_MEMORY, "tall", (p->ndim = 1, shape[0] = (int64_t)1 << 59));
    /* 2^60 doubles are more bytes than a pointer can span, and 2^80 elements have no number. */
    REFUSES(FOAM_INVALID_ARGUMENT, "tall|overflows", (p->ndim = 1, shape[0] = (int64_t)1 << 60));
    REFUSES(FOAM_INVALID_ARGUMENT, "tall|overflows", (shape[0] = shape[1] = (int64_t)1 << 40));
}

/* Each parameter would fit into the address space, all of them do not. */
static void more_than_memory_together(void) {
    enum { MANY = 512 };
    foam_error error = FOAM_ERROR_INIT;
    foam_config config;
    foam_param params[MANY];
    foam_optimizer *optimizer = NULL;
    int64_t shape[1] = {(int64_t)1 << 18};
    OK(&error, foam_config_init(&config, sizeof config, "reference", &error));
    config.max_factor_dim = INT64_MAX;
    for (int i = 0; i < MANY; i++) {
        OK(&error, foam_param_init(&params[i], sizeof params[i], &error));
        params[i].shape = shape;
        params[i].ndim = 1;
    }
    FAILS(&error, FOAM_OUT_OF_MEMORY, "out of memory",
          foam_create(&config, params, MANY, &optimizer, &error));
    CHECK(optimizer == NULL);
}

static void null_and_count(void) {
    model m;
    model_describe(&m);
    FAILS(&m.error, FOAM_INVALID_ARGUMENT, "config|NULL",
          foam_create(NULL, m.described, MODEL_PARAMS, &m.optimizer, &m.error));
    FAILS(&m.error, FOAM_INVALID_ARGUMENT, "params|NULL",
          foam_create(&m.config, NULL, MODEL_PARAMS, &m.optimizer, &m.error));
    FAILS(&m.error, FOAM_INVALID_ARGUMENT, "out|NULL",
          foam_create(&m.config, m.described, MODEL_PARAMS, NULL, &m.error));
    FAILS(&m.error, FOAM_INVALID_ARGUMENT, "count",
          foam_create(&m.config, m.described, 0, &m.optimizer, &m.error));
    CHECK(foam_create(NULL, NULL, 0, NULL, NULL) == FOAM_INVALID_ARGUMENT);
    FAILS(&m.error, FOAM_INVALID_ARGUMENT, "param|NULL",
          foam_param_init(NULL, sizeof m.described[0], &m.error));
    CHECK(m.optimizer == NULL);
}

static void a_device_that_is_not_there(void) {
    model m;
    model_describe(&m);
    /* Without CUDA its driver is missing, with it there are fewer devices. */
    OK(&m.error, foam_config_set(&m.config, "device", "cuda:99", &m.error));
    CHECK(m.config.device_type == FOAM_DEVICE_CUDA);
    foam_status status = model_create(&m);
    CHECK(status == FOAM_UNSUPPORTED || status == FOAM_INVALID_ARGUMENT);
    CHECK(strstr(m.error.message, "device = cuda:99") != NULL);
    CHECK(m.optimizer == NULL);
    m.config.device_type = 0;
    FAILS(&m.error, FOAM_UNSUPPORTED, "device|cpu", model_create(&m));
    OK(&m.error, foam_config_set(&m.config, "device", "cpu", &m.error));
    OK(&m.error, model_create(&m));
    model_close(&m);
}

int main(void) {
    descriptions();
    more_than_memory();
    more_than_memory_together();
    null_and_count();
    a_device_that_is_not_there();
    return check_result("bad_create");
}
