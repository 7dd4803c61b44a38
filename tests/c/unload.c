/* A plugin's life: load the library at run time, use it in a thread of its own, close it, end the thread;
   twice. Usage: unload LIBRARY */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>

static const char *library;

/* Looks a function up; ISO C has no cast from void * to it. */
#define FUNCTION(type, name)                                                                                 \
    type name##_ = (type)0;                                                                                  \
    look_up(open, #name, &name##_, sizeof name##_)

static void look_up(void *open, const char *name, void *function, size_t size) {
    void *symbol = dlsym(open, name);
    REQUIRE(symbol != NULL && size == sizeof symbol);
    memcpy(function, &symbol, size);
}

typedef foam_status (*config_init)(foam_config *, uint32_t, const char *, foam_error *);
typedef foam_status (*param_init)(foam_param *, uint32_t, foam_error *);
typedef foam_status (*args_init)(foam_step_args *, uint32_t, foam_error *);
typedef foam_status (*create)(const foam_config *, const foam_param *, size_t, foam_optimizer **,
                              foam_error *);
typedef foam_status (*step)(foam_optimizer *, const foam_step_args *, foam_error *);
typedef void (*destroy)(foam_optimizer *);
typedef uint32_t (*version)(void);

static void use(void *open) {
    foam_config config;
    foam_param described;
    foam_step_args args;
    foam_tensor param, grad;
    foam_optimizer *optimizer = NULL;
    int64_t shape[2] = {9, 7};
    float values[63], gradients[63];
    FUNCTION(version, foam_abi_version);
    FUNCTION(config_init, foam_config_init);
    FUNCTION(param_init, foam_param_init);
    FUNCTION(args_init, foam_step_args_init);
    FUNCTION(create, foam_create);
    FUNCTION(step, foam_step);
    FUNCTION(destroy, foam_destroy);
    CHECK(dlsym(open, "foam_no_such_function") == NULL);
    CHECK(foam_abi_version_() >> 16 == FOAM_ABI_MAJOR);
    CHECK(foam_config_init_(&config, sizeof config, "paper", NULL) == FOAM_OK);
    CHECK(foam_param_init_(&described, sizeof described, NULL) == FOAM_OK);
    config.check_period = 2;
    config.num_threads = 2;
    config.max_factor_dim = 4;
    described.shape = shape;
    described.ndim = 2;
    REQUIRE(foam_create_(&config, &described, 1, &optimizer, NULL) == FOAM_OK);
    memset(&param, 0, sizeof param);
    param.data = values;
    param.device.device_type = FOAM_DEVICE_CPU;
    param.ndim = 2;
    param.dtype = described.dtype;
    param.shape = shape;
    grad = param;
    grad.data = gradients;
    CHECK(foam_step_args_init_(&args, sizeof args, NULL) == FOAM_OK);
    args.count = 1;
    args.params = &param;
    args.grads = &grad;
    for (int i = 0; i < 63; i++) {
        values[i] = (float)(i % 5);
        gradients[i] = (float)(i % 7 - 3);
    }
    for (int t = 0; t < 5; t++) CHECK(foam_step_(optimizer, &args, NULL) == FOAM_OK);
    foam_destroy_(optimizer);
}

/* The library is closed before the thread ends, so that whatever the thread keeps for it outlives the close.
 */
static void *plugin(void *user) {
    (void)user;
    void *open = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (open == NULL) fprintf(stderr, "%s\n", dlerror());
    REQUIRE(open != NULL);
    use(open);
    CHECK(dlclose(open) == 0);
    return NULL;
}

int main(int count, char **arguments) {
    REQUIRE(count == 2);
    library = arguments[1];
    for (int round = 0; round < 2; round++) {
        pthread_t thread;
        REQUIRE(pthread_create(&thread, NULL, plugin, NULL) == 0);
        REQUIRE(pthread_join(thread, NULL) == 0);
    }
    plugin(NULL);
    return check_result("unload");
}
