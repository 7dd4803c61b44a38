/* The forms that a tensor may take: they all name the same elements, so they all give the same bits. */
#include "model.h"

typedef void (*dress)(model *m);

static int64_t strides[MODEL_PARAMS][2] = {{4, 1}, {1, 0}, {0, 0}, {3, 1}, {3, 1}};

static void with_strides(model *m) {
    for (int p = 0; p < MODEL_PARAMS; p++) {
        m->params[p].strides = strides[p];
        m->grads[p].strides = strides[p];
    }
}

/* The elements lie one double further than data says. */
static void with_byte_offset(model *m) {
    m->params[MATRIX].data = (char *)m->params[MATRIX].data - 8;
    m->params[MATRIX].byte_offset = 8;
    m->grads[TALL].data = (char *)m->grads[TALL].data - 16;
    m->grads[TALL].byte_offset = 16;
}

static void in_pinned_memory(model *m) {
    for (int p = 0; p < MODEL_PARAMS; p++) {
        m->params[p].device.device_type = FOAM_DEVICE_CUDA_HOST;
        m->grads[p].device.device_type = FOAM_DEVICE_CUDA_HOST;
    }
}

/* Not even aligned to an element: a view of packed bytes. */
static void not_aligned(model *m) {
    char *param = (char *)m->params[MATRIX].data, *grad = (char *)m->grads[MATRIX].data;
    memmove(param + 1, param, 24 * sizeof(float));
    memmove(grad + 3, grad, 24 * sizeof(float));
    m->params[MATRIX].data = param + 1;
    m->grads[MATRIX].data = grad + 3;
}

static void gives_the_same_bits(dress change) {
    model plain, dressed;
    model_start(&plain, 0);
    model_start(&dressed, 0);
    change(&dressed);
    foam_step_args args = model_args(&plain), other = model_args(&dressed);
    for (int step = 0; step < 4; step++) {
        OK(&plain.error, foam_step(plain.optimizer, &args, &plain.error));
        OK(&dressed.error, foam_step(dressed.optimizer, &other, &dressed.error));
        for (int p = 0; p < MODEL_PARAMS; p++) {
            const char *here = (const char *)dressed.params[p].data + dressed.params[p].byte_offset;
            size_t bytes = model_elements(&plain.params[p]) * plain.params[p].dtype.bits / 8;
            CHECK(memcmp(here, plain.params[p].data, bytes) == 0);
        }
    }
    model_close(&plain);
    model_close(&dressed);
}

/* The stride of a dimension of size 1 says nothing. */
static void a_stride_of_a_single_element_does_not_matter(void) {
    int64_t shape[3] = {1, 4, 1}, odd[3] = {99, 1, -7};
    float value[4] = {1, 2, 3, 4}, gradient[4] = {1, -1, 1, -1}, before[4];
    foam_error error = FOAM_ERROR_INIT;
    foam_config config;
    foam_param described;
    foam_step_args args;
    foam_tensor param, grad;
    foam_optimizer *optimizer = NULL;
    OK(&error, foam_config_init(&config, sizeof config, "paper", &error));
    OK(&error, foam_param_init(&described, sizeof described, &error));
    described.shape = shape;
    described.ndim = 3;
    OK(&error, foam_create(&config, &described, 1, &optimizer, &error));
    memset(&param, 0, sizeof param);
    param.data = value;
    param.device.device_type = FOAM_DEVICE_CPU;
    param.ndim = 3;
    param.dtype = described.dtype;
    param.shape = shape;
    param.strides = odd;
    grad = param;
    grad.data = gradient;
    memcpy(before, value, sizeof value);
    OK(&error, foam_step_args_init(&args, sizeof args, &error));
    args.count = 1;
    args.params = &param;
    args.grads = &grad;
    OK(&error, foam_step(optimizer, &args, &error));
    CHECK(memcmp(before, value, sizeof value) != 0);
    foam_destroy(optimizer);
}

int main(void) {
    gives_the_same_bits(with_strides);
    gives_the_same_bits(with_byte_offset);
    gives_the_same_bits(in_pinned_memory);
    gives_the_same_bits(not_aligned);
    a_stride_of_a_single_element_does_not_matter();
    return check_result("tensors");
}
