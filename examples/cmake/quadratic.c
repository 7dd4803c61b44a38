/* Minimises half the squared norm of a matrix with libfoam, through the C interface. */
#include <foam.h>
#include <stdio.h>

enum { ROWS = 8, COLUMNS = 4, SIZE = ROWS * COLUMNS };

static int failed(const foam_error *error) {
    fprintf(stderr, "%s: %s\n", foam_status_name(error->code), error->message);
    return 1;
}

int main(void) {
    int64_t shape[2] = {ROWS, COLUMNS};
    float weight[SIZE], gradient[SIZE];
    for (int i = 0; i < SIZE; i++) weight[i] = (float)(i % 5) - 2.0f;

    foam_error error = FOAM_ERROR_INIT;
    foam_config config;
    foam_param param;
    foam_optimizer *optimizer = NULL;
    if (foam_config_init(&config, sizeof config, NULL, &error) ||
        foam_config_set(&config, "lr", "0.01", &error) || foam_param_init(&param, sizeof param, &error))
        return failed(&error);
    param.name = "weight";
    param.shape = shape;
    param.ndim = 2;
    if (foam_create(&config, &param, 1, &optimizer, &error)) return failed(&error);

    foam_tensor parameters = {weight, {FOAM_DEVICE_CPU, 0}, 2, {FOAM_DTYPE_FLOAT, 32, 1}, shape, NULL, 0};
    foam_tensor gradients = parameters;
    gradients.data = gradient;
    foam_step_args args;
    if (foam_step_args_init(&args, sizeof args, &error)) return failed(&error);
    args.count = 1;
    args.params = &parameters;
    args.grads = &gradients;
    for (int step = 0; step < 300; step++) {
        for (int i = 0; i < SIZE; i++) gradient[i] = weight[i];
        if (foam_step(optimizer, &args, &error)) return failed(&error);
    }
    foam_destroy(optimizer);

    double loss = 0;
    for (int i = 0; i < SIZE; i++) loss += 0.5 * weight[i] * weight[i];
    printf("%s\nloss after 300 steps: %.6f\n", foam_build_info(), loss);
    return loss < 1 ? 0 : 1;
}
