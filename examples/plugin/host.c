/*
 * A host that uses libfoam when it finds it and does without it otherwise: one dlopen, one dlsym, nothing linked.
 *
 *   ./host_c [LIBRARY]
 *
 * LIBRARY is a path or a name for the loader; the default is libfoam.so.0.1.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <foam.h>

enum { ROWS = 8, COLUMNS = 4, SIZE = ROWS * COLUMNS, STEPS = 150 };

/* A quadratic loss whose directions differ by a factor of 2000: the gradient alone is slow in the flat ones. */
static double curvature(int at) { return at % COLUMNS == 0 ? 400.0 : 0.1 * (1 + at % COLUMNS); }

static double loss(const float *w) {
    double sum = 0.0;
    for (int at = 0; at < SIZE; at++) sum += 0.5 * curvature(at) * w[at] * w[at];
    return sum;
}

static void gradient(const float *w, float *g) {
    for (int at = 0; at < SIZE; at++) g[at] = (float)(curvature(at) * w[at]);
}

/* The table of the plugin, or NULL with a line about why not. */
static const foam_api *load(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        printf("no plugin: %s\n", dlerror());
        return NULL;
    }
    const foam_api *(*get_api)(uint32_t) = NULL;
    void *symbol = dlsym(library, "foam_get_api");
    memcpy(&get_api, &symbol, sizeof get_api);
    const foam_api *api = get_api == NULL ? NULL : get_api(FOAM_API_VERSION);
    if (api == NULL) {
        const foam_api *oldest = get_api == NULL ? NULL : get_api(1);
        printf("the plugin is too old: %s\n", oldest == NULL ? "no foam_get_api" : oldest->build_info());
        return NULL;
    }
    printf("plugin: %s\n", api->build_info());
    return api;
}

static void train_plain(float *w) {
    float g[SIZE];
    for (int step = 0; step < STEPS; step++) {
        gradient(w, g);
        for (int at = 0; at < SIZE; at++) w[at] -= 0.002f * g[at];
    }
}

static int train_foam(const foam_api *api, float *w) {
    foam_error error = FOAM_ERROR_INIT;
    foam_config config;
    foam_param param;
    foam_step_args args;
    foam_optimizer *optimizer = NULL;
    int64_t shape[2] = {ROWS, COLUMNS};
    float g[SIZE];
    if (api->config_init(&config, sizeof config, NULL, &error) != FOAM_OK ||
        api->config_set(&config, "root", "4", &error) != FOAM_OK ||
        api->config_set(&config, "check_period", "5", &error) != FOAM_OK ||
        api->config_set(&config, "merge_dims", "false", &error) != FOAM_OK ||
        api->param_init(&param, sizeof param, &error) != FOAM_OK) {
        goto failed;
    }
    param.name = "w";
    param.shape = shape;
    param.ndim = 2;
    if (api->create(&config, &param, 1, &optimizer, &error) != FOAM_OK) goto failed;
    foam_tensor params = {w, {FOAM_DEVICE_CPU, 0}, 2, param.dtype, shape, NULL, 0}, grads = params;
    grads.data = g;
    for (int step = 0; step < STEPS; step++) {
        gradient(w, g);
        if (api->step_args_init(&args, sizeof args, &error) != FOAM_OK) goto failed;
        args.count = 1;
        args.params = &params;
        args.grads = &grads;
        args.lr = 0.2 * (1.0 - (double)step / STEPS);
        if (api->step(optimizer, &args, &error) != FOAM_OK) goto failed;
    }
    api->destroy(optimizer);
    return 0;
failed:
    printf("%s: %s\n", api->status_name(error.code), error.message);
    api->destroy(optimizer);
    return 1;
}

int main(int argc, char **argv) {
    float w[SIZE];
    for (int at = 0; at < SIZE; at++) w[at] = 0.2f * (float)(at * 37 % 23 - 11);
    const foam_api *api = load(argc > 1 ? argv[1] : "libfoam.so.0.1");
    const double first = loss(w);
    if (api == NULL) {
        train_plain(w);
    } else if (train_foam(api, w) != 0) {
        return 1;
    }
    printf("%s: loss %.4g -> %.4g in %d steps\n", api == NULL ? "plain SGD" : "FOAM", first, loss(w), STEPS);
    return 0;
}
