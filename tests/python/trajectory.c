/* Steps parameters through the C functions, for comparison with the bindings.

   trajectory SCRIPT RESULT

   SCRIPT is lines of text up to "data", then raw numbers: all parameters, then for each step all gradients.

     preset NAME             "reference" or "paper"; the first line
     option KEY VALUE
     param NAME ROOT SIZES...
     bits 32|64              of parameters and gradients
     steps COUNT
     load PATH               read the state before the first step
     save PATH               write it after the last
     data

   RESULT receives the parameters after the last step, raw. */

#include <foam.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PARAMS 16
#define MAX_DIMS 8

static foam_error error = FOAM_ERROR_INIT;

static void must(foam_status status) {
    if (status != FOAM_OK) {
        fprintf(stderr, "%s: %s\n", foam_status_name(status), error.message);
        exit(1);
    }
}

static void *filled(FILE *file, size_t bytes) {
    void *data = malloc(bytes);
    if (data == NULL || fread(data, 1, bytes, file) != bytes) {
        fprintf(stderr, "the script ends too early\n");
        exit(1);
    }
    return data;
}

int main(int argc, char **argv) {
    static char names[MAX_PARAMS][256], line[4096], load[4096], save[4096];
    static int64_t shapes[MAX_PARAMS][MAX_DIMS];
    static foam_param params[MAX_PARAMS];
    static foam_tensor weights[MAX_PARAMS], grads[MAX_PARAMS];
    size_t bytes[MAX_PARAMS];
    int count = 0, bits = 32;
    long steps = 0;
    foam_config config;
    FILE *script = argc == 3 ? fopen(argv[1], "rb") : NULL;
    if (script == NULL) return fprintf(stderr, "usage: trajectory SCRIPT RESULT\n"), 2;

    while (fgets(line, sizeof line, script) != NULL) {
        char *word = strtok(line, " \n");
        if (strcmp(word, "data") == 0) break;
        char *first = strtok(NULL, " \n");
        if (strcmp(word, "preset") == 0) must(foam_config_init(&config, sizeof config, first, &error));
        else if (strcmp(word, "option") == 0) must(foam_config_set(&config, first, strtok(NULL, " \n"), &error));
        else if (strcmp(word, "bits") == 0) bits = atoi(first);
        else if (strcmp(word, "steps") == 0) steps = atol(first);
        else if (strcmp(word, "load") == 0) strcpy(load, first);
        else if (strcmp(word, "save") == 0) strcpy(save, first);
        else if (strcmp(word, "param") == 0) {
            foam_param *param = &params[count];
            must(foam_param_init(param, sizeof *param, &error));
            param->name = strncpy(names[count], first, sizeof names[count] - 1);
            param->root = atof(strtok(NULL, " \n"));
            param->shape = shapes[count];
            for (char *size; (size = strtok(NULL, " \n")) != NULL;) shapes[count][param->ndim++] = atoll(size);
            count++;
        }
    }
    for (int i = 0; i < count; i++) {
        bytes[i] = (size_t)bits / 8;
        for (int axis = 0; axis < params[i].ndim; axis++) bytes[i] *= (size_t)shapes[i][axis];
        params[i].dtype.bits = (uint8_t)bits;
        foam_tensor tensor = {filled(script, bytes[i]), {FOAM_DEVICE_CPU, 0}, params[i].ndim, params[i].dtype, shapes[i], NULL, 0};
        weights[i] = grads[i] = tensor;
    }

    foam_optimizer *optimizer = NULL;
    must(foam_create(&config, params, (size_t)count, &optimizer, &error));
    if (load[0]) must(foam_load_file(optimizer, load, &error));
    foam_step_args args;
    must(foam_step_args_init(&args, sizeof args, &error));
    args.count = (size_t)count, args.params = weights, args.grads = grads;
    for (long t = 0; t < steps; t++) {
        for (int i = 0; i < count; i++) grads[i].data = filled(script, bytes[i]);
        must(foam_step(optimizer, &args, &error));
        for (int i = 0; i < count; i++) free(grads[i].data);
    }
    if (save[0]) must(foam_save_file(optimizer, save, &error));
    foam_destroy(optimizer);

    FILE *result = fopen(argv[2], "wb");
    for (int i = 0; i < count; i++) {
        if (result == NULL || fwrite(weights[i].data, 1, bytes[i], result) != bytes[i]) return 1;
        free(weights[i].data);
    }
    fclose(script);
    return fclose(result);
}
