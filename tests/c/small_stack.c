/* Everything works on a thread with the stack that foam.h asks for, from creation to a checkpoint. */
#include "model.h"

#include <pthread.h>

enum { SIDE = 96, STEPS = 7 };

static void *life(void *unused) {
    /* What the caller itself needs is not the library's: its own data is static. */
    static float weight[SIDE * SIDE], gradient[SIDE * SIDE];
    static double wide_weight[SIDE * SIDE], wide_gradient[SIDE * SIDE];
    static foam_error error = FOAM_ERROR_INIT;
    static foam_config config;
    static foam_param described[2];
    static foam_tensor params[2], grads[2];
    static int64_t shape[2] = {SIDE, SIDE};
    foam_optimizer *optimizer = NULL;
    (void)unused;
    OK(&error, foam_config_init(&config, sizeof config, "reference", &error));
    config.check_period = 2;
    config.num_threads = 2;
    config.merge_dims = 0;
    static const char *const names[2] = {"narrow", "wide"};
    void *const data[2][2] = {{weight, gradient}, {wide_weight, wide_gradient}};
    for (int p = 0; p < 2; p++) {
        OK(&error, foam_param_init(&described[p], sizeof described[p], &error));
        described[p].name = names[p];
        described[p].shape = shape;
        described[p].ndim = 2;
        described[p].dtype.bits = p == 0 ? 32 : 64;
        params[p].data = data[p][0];
        params[p].device.device_type = FOAM_DEVICE_CPU;
        params[p].ndim = 2;
        params[p].dtype = described[p].dtype;
        params[p].shape = shape;
        grads[p] = params[p];
        grads[p].data = data[p][1];
    }
    for (int policy = FOAM_POLICY_STALE; policy <= FOAM_POLICY_FOAM_CERTIFIED; policy++) {
        /* Every eigendecomposition path, the singular value decomposition included. */
        config.policy = policy;
        config.inject_fault = policy == FOAM_POLICY_STALE ? FOAM_FAULT_EVD_DOUBLE : FOAM_FAULT_NONE;
        OK(&error, foam_create(&config, described, 2, &optimizer, &error));
        foam_step_args args;
        OK(&error, foam_step_args_init(&args, sizeof args, &error));
        args.count = 2;
        args.params = params;
        args.grads = grads;
        for (int step = 0; step < STEPS; step++) {
            for (int at = 0; at < SIDE * SIDE; at++) {
                gradient[at] = (float)((at * 37 + step * 11) % 101) * 0.01f - 0.5f;
                wide_gradient[at] = (double)gradient[at];
            }
            OK(&error, foam_step(optimizer, &args, &error));
        }
        double gap = 0.0;
        size_t size = 0;
        OK(&error, foam_exact_gap(optimizer, 0, 0, 0, &gap, &error));
        OK(&error, foam_save_memory(optimizer, NULL, 0, &size, &error));
        void *state = malloc(size);
        REQUIRE(state != NULL);
        OK(&error, foam_save_memory(optimizer, state, size, &size, &error));
        OK(&error, foam_load_memory(optimizer, state, size, &error));
        free(state);
        foam_destroy(optimizer);
        optimizer = NULL;
    }
    return NULL;
}

int main(int argc, char **argv) {
    /* Another size may be tried by hand: small_stack FOLDER BYTES. */
    size_t bytes = argc > 2 ? (size_t)strtoull(argv[2], NULL, 10) : (size_t)FOAM_THREAD_STACK_SIZE;
    pthread_attr_t attributes;
    pthread_t thread;
    REQUIRE(pthread_attr_init(&attributes) == 0);
    REQUIRE(pthread_attr_setstacksize(&attributes, bytes) == 0);
    REQUIRE(pthread_create(&thread, &attributes, life, NULL) == 0);
    REQUIRE(pthread_join(thread, NULL) == 0);
    REQUIRE(pthread_attr_destroy(&attributes) == 0);
    return check_result("small_stack");
}
