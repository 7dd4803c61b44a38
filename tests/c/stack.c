/* A stack trains in buffers of the program's own, in place and out of place, as a handle does. */
#include "stack.h"

/* The same blocks as parameters of a handle. */
static foam_optimizer *handle(stack *s) {
    foam_param params[BLOCKS];
    foam_optimizer *optimizer = NULL;
    foam_config config = s->config;
    config.merge_dims = 0;
    for (int b = 0; b < BLOCKS; b++) {
        OK(&s->error, foam_param_init(&params[b], sizeof params[b], &s->error));
        params[b].shape = s->block_shape;
        params[b].ndim = 2;
    }
    OK(&s->error, foam_create(&config, params, BLOCKS, &optimizer, &s->error));
    return optimizer;
}

static void handle_step(stack *s, foam_optimizer *optimizer, float *params) {
    foam_tensor own[BLOCKS], grads[BLOCKS];
    foam_step_args args;
    OK(&s->error, foam_step_args_init(&args, sizeof args, &s->error));
    for (int b = 0; b < BLOCKS; b++) {
        own[b] = stack_tensor(params + b * ROWS * COLS, 2, s->block_shape, FOAM_DTYPE_FLOAT, 32);
        grads[b] = stack_tensor(s->grad_data + b * ROWS * COLS, 2, s->block_shape, FOAM_DTYPE_FLOAT, 32);
    }
    args.count = BLOCKS;
    args.params = own;
    args.grads = grads;
    OK(&s->error, foam_step(optimizer, &args, &s->error));
}

static void trains_as_a_handle_does(void) {
    static stack s;
    float params[ELEMENTS];
    double before = 0, after = 0;
    stack_open(&s);
    memcpy(params, s.param_data, sizeof params);
    foam_optimizer *optimizer = handle(&s);
    REQUIRE(optimizer != NULL);
    for (int i = 0; i < ELEMENTS; i++) before += (double)(s.param_data[i] * s.param_data[i]);
    for (int step = 0; step < 40; step++) {
        stack_gradients(&s);
        handle_step(&s, optimizer, params);
        stack_step(&s);
        CHECK(memcmp(params, s.param_data, sizeof params) == 0);
    }
    for (int i = 0; i < ELEMENTS; i++) after += (double)(s.param_data[i] * s.param_data[i]);
    CHECK(after < 0.1 * before);
    foam_destroy(optimizer);
    stack_close(&s);
}

/* The new state goes elsewhere: the old one stays, and what a verb does not write is not touched. */
static void out_of_place(void) {
    static stack s, other;
    static double elsewhere[MOST_BUFFERS][LARGEST * 2], old[MOST_BUFFERS][LARGEST * 2];
    foam_tensor out[MOST_BUFFERS];
    int32_t info[BLOCKS];
    stack_open(&s);
    stack_open(&other);
    for (int step = 0; step < 7; step++) {
        stack_gradients(&s);
        stack_gradients(&other);
        stack_step(&other);
        foam_stack_args args = stack_args(&s);
        foam_tensor info_out = s.info;
        info_out.data = info;
        args.state_out = out;
        for (int verb = 0; verb < 3; verb++) {
            for (size_t i = 0; i < s.buffers; i++) {
                out[i] = s.state[i];
                out[i].data = elsewhere[i];
            }
            memcpy(elsewhere, s.state_data, sizeof elsewhere);
            memcpy(old, s.state_data, sizeof old);
            if (verb == 0) OK(&s.error, foam_stack_accumulate(&s.config, &s.stack, &args, &s.error));
            if (verb == 1) OK(&s.error, foam_stack_check(&s.config, &s.stack, &args, &s.error));
            args.info_in = &s.info;
            args.info = &info_out;
            if (verb == 2) OK(&s.error, foam_stack_apply(&s.config, &s.stack, &args, &s.error));
            args.info_in = NULL;
            args.info = &s.info;
            CHECK(memcmp(old, s.state_data, sizeof old) == 0);
            memcpy(s.state_data, elsewhere, sizeof elsewhere);
        }
        for (int i = 0; i < ELEMENTS; i++) s.param_data[i] += s.update_data[i];
        CHECK(memcmp(s.state_data, other.state_data, sizeof s.state_data) == 0);
        CHECK(memcmp(s.param_data, other.param_data, sizeof s.param_data) == 0);
    }
    stack_close(&s);
    stack_close(&other);
}

/* A block that is not active, or whose gradient is not finite, keeps everything and gets no update. */
static void single_blocks(void) {
    static stack s;
    static double old[MOST_BUFFERS][LARGEST * 2];
    stack_open(&s);
    for (int step = 0; step < 4; step++) {
        stack_gradients(&s);
        stack_step(&s);
    }
    memcpy(old, s.state_data, sizeof old);
    stack_gradients(&s);
    s.grad_data[ROWS * COLS + 5] = (float)NAN;
    s.active_data[0] = 0, s.active_data[1] = 1, s.active_data[2] = 7;
    foam_stack_args args = stack_args(&s);
    args.active = &s.active;
    args.scale = -0.5;
    OK(&s.error, foam_stack_accumulate(&s.config, &s.stack, &args, &s.error));
    CHECK(s.info_data[0] == FOAM_INFO_IDLE && s.info_data[1] == FOAM_INFO_NOT_FINITE && s.info_data[2] == 0);
    OK(&s.error, foam_stack_check(&s.config, &s.stack, &args, &s.error));
    OK(&s.error, foam_stack_apply(&s.config, &s.stack, &args, &s.error));
    CHECK(s.info_data[0] == FOAM_INFO_IDLE && s.info_data[1] == FOAM_INFO_NOT_FINITE && s.info_data[2] == 0);
    int moved = 0;
    for (int i = 0; i < 2 * ROWS * COLS; i++) CHECK(s.update_data[i] == 0.0f);
    for (int i = 2 * ROWS * COLS; i < ELEMENTS; i++) moved += s.update_data[i] != 0.0f;
    CHECK(moved > 0);
    for (size_t i = 0; i < s.buffers; i++) {
        size_t part = (size_t)s.layout[i].bytes / BLOCKS;
        CHECK(memcmp(old[i], s.state_data[i], 2 * part) == 0);
    }
    stack_close(&s);
}

/* Blocks without a preconditioner have no factors' buffers, and check has nothing to do. */
static void grafting_only(void) {
    static stack s;
    stack_open(&s);
    s.stack.flags = FOAM_STACK_GRAFTING_ONLY;
    OK(&s.error, foam_stack_layout(&s.config, &s.stack, s.layout, sizeof s.layout[0], MOST_BUFFERS, &s.buffers,
                                   &s.error));
    REQUIRE(s.buffers == 4);
    CHECK(strcmp(s.layout[0].name, "clock") == 0 && strcmp(s.layout[3].name, "momentum") == 0);
    CHECK(s.layout[0].kind == FOAM_STACK_CLOCK && s.layout[1].kind == FOAM_STACK_FILTER);
    for (size_t i = 0; i < s.buffers; i++) {
        s.state[i] = stack_tensor(s.state_data[i], s.layout[i].ndim, s.layout[i].shape,
                                  s.layout[i].dtype.code, s.layout[i].dtype.bits);
    }
    OK(&s.error, foam_stack_reset(&s.config, &s.stack, s.state, s.buffers, &s.error));
    for (int step = 0; step < 5; step++) {
        stack_gradients(&s);
        stack_step(&s);
    }
    for (int b = 0; b < BLOCKS; b++) CHECK(s.info_data[b] == 0);
    stack_close(&s);
}

int main(void) {
    trains_as_a_handle_does();
    out_of_place();
    single_blocks();
    grafting_only();
    return check_result("stack");
}
