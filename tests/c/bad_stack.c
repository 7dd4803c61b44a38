/* A wrong call on a stack is refused by name and writes nothing. */
#include "stack.h"

static stack s;
static double remembered[MOST_BUFFERS][LARGEST * 2];
static float remembered_update[ELEMENTS];

static int unchanged(void) {
    return memcmp(remembered, s.state_data, sizeof remembered) == 0 &&
           memcmp(remembered_update, s.update_data, sizeof remembered_update) == 0 && s.info_data[0] == 77 &&
           s.info_data[1] == 77 && s.info_data[2] == 77;
}

/* Calls `verb` after `change` was made to the arguments: it is refused, and nothing was written. */
#define VERB(verb, status, says, change)                                                                     \
    do {                                                                                                     \
        foam_stack_args args = stack_args(&s);                                                               \
        foam_tensor state[MOST_BUFFERS], grads = s.grads, params = s.params, update = s.update,              \
                                         active = s.active, info = s.info;                                   \
        memcpy(state, s.state, sizeof state);                                                                \
        args.state = state, args.grads = &grads, args.params = &params, args.update = &update;               \
        args.info = &info;                                                                                   \
        (void)active;                                                                                        \
        change;                                                                                              \
        FAILS(&s.error, status, says, verb(&s.config, &s.stack, &args, &s.error));                           \
        CHECK(unchanged());                                                                                  \
    } while (0)

#define ACCUMULATE(status, says, change) VERB(foam_stack_accumulate, status, says, change)
#define CHECKING(status, says, change) VERB(foam_stack_check, status, says, change)
#define APPLY(status, says, change) VERB(foam_stack_apply, status, says, change)

enum { CLOCK, RECORD, STATISTIC_0, STATISTIC_1, BASIS_0, BASIS_1, SPECTRUM_0, SPECTRUM_1, ROOT_0, ROOT_1, FILTER };

static void stacks(void) {
    size_t count = 99, bytes = 99;
    foam_stack_buffer items[MOST_BUFFERS];
    int64_t shape[9] = {2, 2, 2, 2, 2, 2, 2, 2, 2};
    foam_stack good = s.stack;
#define STACK(status, says, change)                                                                          \
    do {                                                                                                     \
        s.stack = good;                                                                                      \
        change;                                                                                              \
        FAILS(&s.error, status, says,                                                                        \
              foam_stack_layout(&s.config, &s.stack, NULL, sizeof items[0], 0, &count, &s.error));           \
        FAILS(&s.error, status, says, foam_stack_workspace(&s.config, &s.stack, &bytes, &s.error));          \
        FAILS(&s.error, status, says, foam_stack_reset(&s.config, &s.stack, s.state, s.buffers, &s.error));  \
        foam_stack_args args = stack_args(&s);                                                               \
        FAILS(&s.error, status, says, foam_stack_check(&s.config, &s.stack, &args, &s.error));               \
        CHECK(unchanged() && count == 99 && bytes == 99);                                                    \
    } while (0)
    STACK(FOAM_INVALID_ARGUMENT, "stack.flags = 0x2", s.stack.flags = 2);
    STACK(FOAM_INVALID_ARGUMENT, "stack.ndim = 0|1 <= ndim <= 8", s.stack.ndim = 0);
    STACK(FOAM_INVALID_ARGUMENT, "stack.ndim = -1", s.stack.ndim = -1);
    STACK(FOAM_INVALID_ARGUMENT, "stack.ndim = 9", (s.stack.ndim = 9, s.stack.shape = shape));
    STACK(FOAM_INVALID_ARGUMENT, "stack.shape is NULL|2 sizes", s.stack.shape = NULL);
    STACK(FOAM_INVALID_ARGUMENT, "stack.shape[1] = 0|at least 1", (s.stack.shape = shape, shape[1] = 0));
    STACK(FOAM_INVALID_ARGUMENT, "stack.shape|overflows", (s.stack.shape = shape, shape[1] = INT64_MAX / 2));
    STACK(FOAM_INVALID_ARGUMENT, "stack.count = 0", s.stack.count = 0);
    STACK(FOAM_INVALID_ARGUMENT, "stack.count = -3", s.stack.count = -3);
    STACK(FOAM_INVALID_ARGUMENT, "stack.count = 1048577", s.stack.count = 1048577);
    STACK(FOAM_UNSUPPORTED, "stack.dtype|bits 8|bf16", s.stack.dtype.bits = 8);
    STACK(FOAM_INVALID_ARGUMENT, "stack.weight_decay_scale = -1", s.stack.weight_decay_scale = -1.0);
    STACK(FOAM_INVALID_ARGUMENT, "stack.root = -2", s.stack.root = -2.0);
    STACK(FOAM_INVALID_ARGUMENT, "stack|struct_size|foam_stack", s.stack.struct_size = 4);
    s.stack = good;
    foam_config config = s.config;
    s.config.grafting = FOAM_GRAFTING_NONE;
    STACK(FOAM_INVALID_ARGUMENT, "FOAM_STACK_GRAFTING_ONLY|grafting = none",
          s.stack.flags = FOAM_STACK_GRAFTING_ONLY);
    s.config = config;
    s.config.tau = -1.0;
    STACK(FOAM_INVALID_ARGUMENT, "tau", (void)0);
    s.config = config;
    s.config.struct_size = 3;
    STACK(FOAM_INVALID_ARGUMENT, "config|struct_size", (void)0);
    s.config = config;
    s.stack = good;
    FAILS(&s.error, FOAM_INVALID_ARGUMENT, "config is NULL",
          foam_stack_workspace(NULL, &s.stack, &bytes, &s.error));
    FAILS(&s.error, FOAM_INVALID_ARGUMENT, "stack is NULL",
          foam_stack_workspace(&s.config, NULL, &bytes, &s.error));
    FAILS(&s.error, FOAM_INVALID_ARGUMENT, "bytes is NULL",
          foam_stack_workspace(&s.config, &s.stack, NULL, &s.error));
    FAILS(&s.error, FOAM_INVALID_ARGUMENT, "stack is NULL", foam_stack_init(NULL, sizeof good, &s.error));
    FAILS(&s.error, FOAM_INVALID_ARGUMENT, "struct_size", foam_stack_init(&good, 7, &s.error));
    FAILS(&s.error, FOAM_INVALID_ARGUMENT, "args is NULL", foam_stack_args_init(NULL, 8, &s.error));
    config.device_type = FOAM_DEVICE_CUDA;
    CHECK(foam_stack_workspace(&config, &s.stack, &bytes, NULL) != FOAM_OK);
}

/* Structs of an older and of a newer caller. */
static void versions(void) {
    struct {
        foam_stack now;
        uint64_t unknown;
    } later;
    struct {
        foam_stack_args now;
        uint64_t unknown;
    } wider;
    size_t bytes = 0;
    memset(&later, 0x5a, sizeof later);
    OK(&s.error, foam_stack_init(&later.now, sizeof later, &s.error));
    CHECK(later.now.struct_size == sizeof later && later.unknown == 0 && later.now.weight_decay_scale == 1.0);
    later.now = s.stack;
    later.now.struct_size = sizeof later;
    OK(&s.error, foam_stack_workspace(&s.config, &later.now, &bytes, &s.error));
    CHECK(bytes == s.workspace_size);
    later.unknown = 1;
    FAILS(&s.error, FOAM_UNSUPPORTED, "stack.struct_size|zero",
          foam_stack_workspace(&s.config, &later.now, &bytes, &s.error));
    later.now.struct_size = offsetof(foam_stack, weight_decay_scale);
    later.now.root = -1.0;
    OK(&s.error, foam_stack_workspace(&s.config, &later.now, &bytes, &s.error));
    wider.now = stack_args(&s);
    wider.now.struct_size = sizeof wider;
    wider.unknown = 1;
    FAILS(&s.error, FOAM_UNSUPPORTED, "args.struct_size|zero",
          foam_stack_check(&s.config, &s.stack, &wider.now, &s.error));
    CHECK(unchanged());
}

static void layouts(void) {
    size_t count = 0;
    foam_stack_buffer items[MOST_BUFFERS];
    unsigned char packed[MOST_BUFFERS * 24];
    memset(items, 0x5a, sizeof items);
    FAILS(&s.error, FOAM_INVALID_ARGUMENT, "items has room for 12|13",
          foam_stack_layout(&s.config, &s.stack, items, sizeof items[0], 12, &count, &s.error));
    CHECK(count == 13 && items[0].struct_size == 0x5a5a5a5a);
    FAILS(&s.error, FOAM_INVALID_ARGUMENT, "items has room for 13",
          foam_stack_layout(&s.config, &s.stack, NULL, sizeof items[0], 13, &count, &s.error));
    FAILS(&s.error, FOAM_INVALID_ARGUMENT, "item_size = 3|foam_stack_buffer",
          foam_stack_layout(&s.config, &s.stack, items, 3, MOST_BUFFERS, &count, &s.error));
    FAILS(&s.error, FOAM_INVALID_ARGUMENT, "count is NULL",
          foam_stack_layout(&s.config, &s.stack, items, sizeof items[0], MOST_BUFFERS, NULL, &s.error));
    /* A caller that knows less of an item gets what it knows. */
    memset(packed, 0x5a, sizeof packed);
    OK(&s.error, foam_stack_layout(&s.config, &s.stack, (foam_stack_buffer *)(void *)packed, 24, MOST_BUFFERS,
                                   &count, &s.error));
    CHECK(count == 13 && packed[13 * 24] == 0x5a);
    FAILS(&s.error, FOAM_INVALID_ARGUMENT, "count = 12|13",
          foam_stack_reset(&s.config, &s.stack, s.state, 12, &s.error));
    FAILS(&s.error, FOAM_INVALID_ARGUMENT, "state is NULL|13",
          foam_stack_reset(&s.config, &s.stack, NULL, 13, &s.error));
    foam_tensor state[MOST_BUFFERS];
    memcpy(state, s.state, sizeof state);
    state[RECORD].data = NULL;
    FAILS(&s.error, FOAM_INVALID_ARGUMENT, "state[1] 'record'|data is NULL|u32[3,2,",
          foam_stack_reset(&s.config, &s.stack, state, 13, &s.error));
    state[RECORD] = s.state[RECORD];
    state[BASIS_0].data = (char *)state[BASIS_1].data + 4;
    FAILS(&s.error, FOAM_INVALID_ARGUMENT, "'basis_0'|'basis_1'|overlap",
          foam_stack_reset(&s.config, &s.stack, state, 13, &s.error));
    CHECK(unchanged());
}

static void arguments(void) {
    ACCUMULATE(FOAM_INVALID_ARGUMENT, "args.flags = 0x1", args.flags = 1);
    ACCUMULATE(FOAM_INVALID_ARGUMENT, "args|struct_size|foam_stack_args", args.struct_size = 16);
    ACCUMULATE(FOAM_INVALID_ARGUMENT, "args.grad_scale = 0", args.grad_scale = 0.0);
    ACCUMULATE(FOAM_INVALID_ARGUMENT, "args.grad_scale", args.grad_scale = (double)NAN);
    APPLY(FOAM_INVALID_ARGUMENT, "args.scale = inf", args.scale = (double)INFINITY);
    APPLY(FOAM_INVALID_ARGUMENT, "scale = 1e39", args.scale = -1e39);
    ACCUMULATE(FOAM_INVALID_ARGUMENT, "args.state_count = 12|13", args.state_count = 12);
    ACCUMULATE(FOAM_INVALID_ARGUMENT, "args.state is NULL|13", args.state = NULL);
    ACCUMULATE(FOAM_INVALID_ARGUMENT, "args.grads: is NULL|[3,6,4]", args.grads = NULL);
    ACCUMULATE(FOAM_INVALID_ARGUMENT, "args.info: is NULL|i32[3]", args.info = NULL);
    APPLY(FOAM_INVALID_ARGUMENT, "args.update: is NULL|f32[3,6,4]", args.update = NULL);
    APPLY(FOAM_INVALID_ARGUMENT, "params are missing|weight_decay", args.params = NULL);
    CHECKING(FOAM_INVALID_ARGUMENT, "args.info: is NULL", args.info = NULL);
    CHECKING(FOAM_INVALID_ARGUMENT, "args.workspace is NULL", args.workspace = NULL);
    CHECKING(FOAM_INVALID_ARGUMENT, "args.workspace_size|at least|foam_stack_workspace",
             args.workspace_size = s.workspace_size - 1);
    FAILS(&s.error, FOAM_INVALID_ARGUMENT, "args is NULL",
          foam_stack_check(&s.config, &s.stack, NULL, &s.error));
}

static void tensors(void) {
    int64_t wrong[3] = {BLOCKS, COLS, ROWS}, fewer[3] = {BLOCKS - 1, ROWS, COLS}, strides[3] = {24, 1, 6};
    ACCUMULATE(FOAM_SHAPE_MISMATCH, "args.grads: expected|[3,6,4], got f32[3,4,6]", grads.shape = wrong);
    ACCUMULATE(FOAM_SHAPE_MISMATCH, "args.grads|got f32[2,6,4]", grads.shape = fewer);
    ACCUMULATE(FOAM_SHAPE_MISMATCH, "args.grads: ndim = 2: expected 3", grads.ndim = 2);
    ACCUMULATE(FOAM_SHAPE_MISMATCH, "args.grads: ndim = -1", grads.ndim = -1);
    ACCUMULATE(FOAM_INVALID_ARGUMENT, "args.grads: shape is NULL", grads.shape = NULL);
    ACCUMULATE(FOAM_INVALID_ARGUMENT, "args.grads: data is NULL", grads.data = NULL);
    ACCUMULATE(FOAM_SHAPE_MISMATCH, "args.grads|got i32", grads.dtype.code = FOAM_DTYPE_INT);
    ACCUMULATE(FOAM_SHAPE_MISMATCH, "args.grads|lanes 4", grads.dtype.lanes = 4);
    ACCUMULATE(FOAM_UNSUPPORTED, "args.grads: strides[2] = 6|contiguous", grads.strides = strides);
    ACCUMULATE(FOAM_SHAPE_MISMATCH, "args.grads: device type 2", grads.device.device_type = FOAM_DEVICE_CUDA);
    ACCUMULATE(FOAM_INVALID_ARGUMENT, "args.grads: byte_offset|wraps", grads.byte_offset = UINT64_MAX - 8);
    ACCUMULATE(FOAM_SHAPE_MISMATCH, "args.params: expected f32[3,6,4], got f16[3,6,4]", params.dtype.bits = 16);
    ACCUMULATE(FOAM_SHAPE_MISMATCH, "args.active: expected i32[3], got u32[3]",
               (args.active = &active, active.dtype.code = FOAM_DTYPE_UINT));
    APPLY(FOAM_SHAPE_MISMATCH, "args.update: expected f32[3,6,4], got f64[3,6,4]", update.dtype.bits = 64);
    CHECKING(FOAM_SHAPE_MISMATCH, "args.info: expected i32[3], got f32[3]", info.dtype.code = FOAM_DTYPE_FLOAT);
    CHECKING(FOAM_SHAPE_MISMATCH, "args.info_in: expected i32[3], got u32[3]",
             (args.info_in = &active, active.dtype.code = FOAM_DTYPE_UINT));
    ACCUMULATE(FOAM_SHAPE_MISMATCH, "args.state[2] 'statistic_0': expected f32[3,6,6], got f64[3,6,6]",
               state[STATISTIC_0].dtype.bits = 64);
    CHECKING(FOAM_INVALID_ARGUMENT, "args.state[7] 'spectrum_1': data is NULL|f32[3,4]",
             state[SPECTRUM_1].data = NULL);
    CHECKING(FOAM_SHAPE_MISMATCH, "args.state[1] 'record': expected u32[3,2,", state[RECORD].shape = wrong);
    APPLY(FOAM_INVALID_ARGUMENT, "args.state[10] 'filter': its address is not a multiple of 4",
          state[FILTER].byte_offset = 2);
    CHECKING(FOAM_SHAPE_MISMATCH, "args.state_out[4] 'basis_0': expected f32[3,6,6]",
             (args.state_out = s.state, state[BASIS_0].shape = s.layout[BASIS_0].shape, args.state = s.state,
              args.state_out = state, state[BASIS_0].shape = wrong));
}

static void overlaps(void) {
    ACCUMULATE(FOAM_INVALID_ARGUMENT, "args.grads|'statistic_0'|overlap", grads.data = state[STATISTIC_0].data);
    ACCUMULATE(FOAM_INVALID_ARGUMENT, "'statistic_0'|'statistic_1'|overlap",
               state[STATISTIC_1].data = state[STATISTIC_0].data);
    APPLY(FOAM_INVALID_ARGUMENT, "args.grads|args.update|overlap", update.data = s.grad_data + 1);
    APPLY(FOAM_INVALID_ARGUMENT, "args.grads|args.update|overlap",
          (update.data = s.grad_data, grads.dtype.code = FOAM_DTYPE_FLOAT, grads.dtype.bits = 16));
    APPLY(FOAM_INVALID_ARGUMENT, "'inverse_root_0'|args.update|overlap", update.data = state[ROOT_0].data);
    APPLY(FOAM_INVALID_ARGUMENT, "args.workspace|overlap", args.workspace = s.state_data[FILTER];
          args.workspace_size = SIZE_MAX / 4);
    CHECKING(FOAM_INVALID_ARGUMENT, "args.state_out[4] 'basis_0'|'basis_0'|overlap",
             (args.state = s.state, args.state_out = state,
              state[BASIS_0].data = (char *)state[BASIS_0].data + 8));
}

static void damaged(void) {
    double good[LARGEST * 2];
    memcpy(good, s.state_data[CLOCK], sizeof good);
    ((double *)s.state_data[CLOCK])[1] = 2.0;
    memcpy(remembered, s.state_data, sizeof remembered);
    ACCUMULATE(FOAM_INVALID_ARGUMENT, "clock of block 0|weight = 2|foam_stack_reset", (void)0);
    memcpy(s.state_data[CLOCK], good, sizeof good);
    memcpy(good, s.state_data[RECORD], sizeof good);
    size_t numbers = 0;
    OK(&s.error, foam_record_fields(NULL, sizeof(foam_record_field), 0, &numbers, &s.error));
    s.state_data[RECORD][numbers] = (double)NAN;
    memcpy(remembered, s.state_data, sizeof remembered);
    CHECKING(FOAM_INVALID_ARGUMENT, "record of block 0, axis 1|epsilon = NaN", (void)0);
    memcpy(s.state_data[RECORD], good, sizeof good);
    memcpy(remembered, s.state_data, sizeof remembered);
}

/* A panic stops at the boundary; the next call works. */
static void panics(void) {
    foam_config config = s.config;
    foam_stack_args args = stack_args(&s);
    config.inject_fault = FOAM_FAULT_PANIC;
    FAILS(&s.error, FOAM_PANIC, "injected fault", foam_stack_accumulate(&config, &s.stack, &args, &s.error));
    OK(&s.error, foam_stack_reset(&s.config, &s.stack, s.state, s.buffers, &s.error));
    OK(&s.error, foam_stack_accumulate(&s.config, &s.stack, &args, &s.error));
}

int main(void) {
    stack_open(&s);
    for (int step = 0; step < 4; step++) {
        stack_gradients(&s);
        stack_step(&s);
    }
    for (int b = 0; b < BLOCKS; b++) s.info_data[b] = 77;
    memcpy(remembered, s.state_data, sizeof remembered);
    memcpy(remembered_update, s.update_data, sizeof remembered_update);
    stacks();
    versions();
    layouts();
    arguments();
    tensors();
    overlaps();
    damaged();
    panics();
    stack_close(&s);
    return check_result("bad_stack");
}
