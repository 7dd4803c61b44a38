/* A stack of blocks with a quadratic loss, and its state in buffers of the program's own. */
#ifndef STACK_H
#define STACK_H

#include "check.h"

#include <math.h>

enum { BLOCKS = 3, ROWS = 6, COLS = 4, ELEMENTS = BLOCKS * ROWS * COLS, MOST_BUFFERS = 16, LARGEST = BLOCKS * 40 };

typedef struct stack {
    foam_error error;
    foam_config config;
    foam_stack stack;
    int64_t block_shape[2], whole_shape[3], count_shape[1];
    size_t buffers;
    foam_stack_buffer layout[MOST_BUFFERS];
    foam_tensor state[MOST_BUFFERS];
    double state_data[MOST_BUFFERS][LARGEST * 2];
    foam_tensor grads, params, update, active, info;
    float grad_data[ELEMENTS], param_data[ELEMENTS], update_data[ELEMENTS];
    int32_t active_data[BLOCKS], info_data[BLOCKS];
    void *workspace;
    size_t workspace_size;
} stack;

static inline foam_tensor stack_tensor(void *data, int32_t ndim, int64_t *shape, uint8_t code, uint8_t bits) {
    foam_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.data = data;
    tensor.device.device_type = FOAM_DEVICE_CPU;
    tensor.ndim = ndim;
    tensor.dtype.code = code;
    tensor.dtype.bits = bits;
    tensor.dtype.lanes = 1;
    tensor.shape = shape;
    return tensor;
}

/* The arguments of any verb, in place. */
static inline foam_stack_args stack_args(stack *s) {
    foam_stack_args args;
    OK(&s->error, foam_stack_args_init(&args, sizeof args, &s->error));
    args.state = s->state;
    args.state_count = s->buffers;
    args.grads = &s->grads;
    args.params = &s->params;
    args.info = &s->info;
    args.update = &s->update;
    args.workspace = s->workspace;
    args.workspace_size = s->workspace_size;
    return args;
}

static inline void stack_open(stack *s) {
    const foam_error empty = FOAM_ERROR_INIT;
    memset(s, 0, sizeof *s);
    s->error = empty;
    OK(&s->error, foam_config_init(&s->config, sizeof s->config, "reference", &s->error));
    s->config.check_period = 3;
    s->config.num_threads = 2;
    s->config.epsilon = 1e-3;
    s->config.epsilon_max = 1e-1;
    s->config.lr = 0.05;
    s->config.momentum = 0.5;
    s->block_shape[0] = ROWS, s->block_shape[1] = COLS;
    s->whole_shape[0] = s->count_shape[0] = BLOCKS, s->whole_shape[1] = ROWS, s->whole_shape[2] = COLS;
    OK(&s->error, foam_stack_init(&s->stack, sizeof s->stack, &s->error));
    s->stack.shape = s->block_shape;
    s->stack.ndim = 2;
    s->stack.count = BLOCKS;
    OK(&s->error, foam_stack_layout(&s->config, &s->stack, s->layout, sizeof s->layout[0], MOST_BUFFERS,
                                    &s->buffers, &s->error));
    REQUIRE(s->buffers == 13);
    for (size_t i = 0; i < s->buffers; i++) {
        REQUIRE(s->layout[i].bytes <= sizeof s->state_data[i]);
        s->state[i] = stack_tensor(s->state_data[i], s->layout[i].ndim, s->layout[i].shape,
                                   s->layout[i].dtype.code, s->layout[i].dtype.bits);
    }
    OK(&s->error, foam_stack_reset(&s->config, &s->stack, s->state, s->buffers, &s->error));
    OK(&s->error, foam_stack_workspace(&s->config, &s->stack, &s->workspace_size, &s->error));
    s->workspace = malloc(s->workspace_size);
    REQUIRE(s->workspace != NULL);
    s->grads = stack_tensor(s->grad_data, 3, s->whole_shape, FOAM_DTYPE_FLOAT, 32);
    s->params = stack_tensor(s->param_data, 3, s->whole_shape, FOAM_DTYPE_FLOAT, 32);
    s->update = stack_tensor(s->update_data, 3, s->whole_shape, FOAM_DTYPE_FLOAT, 32);
    s->active = stack_tensor(s->active_data, 1, s->count_shape, FOAM_DTYPE_INT, 32);
    s->info = stack_tensor(s->info_data, 1, s->count_shape, FOAM_DTYPE_INT, 32);
    for (int i = 0; i < ELEMENTS; i++) s->param_data[i] = 0.25f * (float)(i % 9) - 1.0f;
}

static inline void stack_gradients(stack *s) {
    for (int i = 0; i < ELEMENTS; i++) s->grad_data[i] = s->param_data[i] * (float)(1 + i % 3);
}

/* One step on the gradients as they are. */
static inline void stack_step(stack *s) {
    foam_stack_args args = stack_args(s);
    OK(&s->error, foam_stack_accumulate(&s->config, &s->stack, &args, &s->error));
    OK(&s->error, foam_stack_check(&s->config, &s->stack, &args, &s->error));
    OK(&s->error, foam_stack_apply(&s->config, &s->stack, &args, &s->error));
    for (int i = 0; i < ELEMENTS; i++) s->param_data[i] += s->update_data[i];
}

static inline void stack_close(stack *s) {
    free(s->workspace);
    s->workspace = NULL;
}

#endif
