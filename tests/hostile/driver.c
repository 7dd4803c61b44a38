/* Random calls from C, right and wrong, under the address and undefined-behaviour sanitizers: buffers have exactly the
 * sizes that are passed, handles and lists are freed, and nothing may be read or written beyond them or leak. */
#include <foam.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t state;

static uint64_t bits(void)
{
    uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static size_t below(size_t count)
{
    return (size_t)(bits() % count);
}

static double uniform(void)
{
    return (double)(bits() >> 11) / 9007199254740992.0 - 0.5;
}

static void need(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

enum { MOST = 3 };
static const char *KEYS[] = {"tau", "lr", "policy", "check_period", "nonsense", "epsilon_max", "beta2", "device"};
static const char *VALUES[] = {"0.1", "-1", "nan", "stale", "", "7", "1e-3", "cuda:9", "0"};

typedef struct {
    foam_optimizer *handle;
    size_t count;
    int64_t shape[MOST][2];
    int32_t ndim[MOST];
    float *params[MOST];
    float *grads[MOST];
} model;

static size_t elements(const model *m, size_t i)
{
    size_t all = 1;
    for (int32_t axis = 0; axis < m->ndim[i]; axis++)
        all *= (size_t)m->shape[i][axis];
    return all;
}

static foam_tensor tensor(model *m, size_t i, float *data)
{
    foam_tensor t = {0};
    t.data = data;
    t.device.device_type = FOAM_DEVICE_CPU;
    t.ndim = m->ndim[i];
    t.dtype.code = FOAM_DTYPE_FLOAT;
    t.dtype.bits = 32;
    t.dtype.lanes = 1;
    t.shape = m->shape[i];
    return t;
}

static int create(model *m)
{
    foam_config config;
    foam_error error = {0};
    error.struct_size = sizeof error;
    need(foam_config_init(&config, sizeof config, below(2) ? "reference" : "paper", &error) == FOAM_OK, "config");
    config.num_threads = 1 + (int32_t)below(3);
    config.check_period = 1 + (int32_t)below(4);
    for (size_t k = below(4); k > 0; k--)
        (void)foam_config_set(&config, KEYS[below(8)], VALUES[below(9)], &error);
    foam_param params[MOST];
    m->count = 1 + below(MOST);
    for (size_t i = 0; i < m->count; i++) {
        need(foam_param_init(&params[i], sizeof params[i], &error) == FOAM_OK, "param");
        m->ndim[i] = (int32_t)below(3);
        m->shape[i][0] = 1 + (int64_t)below(20);
        m->shape[i][1] = 1 + (int64_t)below(20);
        params[i].shape = m->shape[i];
        params[i].ndim = m->ndim[i];
    }
    m->handle = NULL;
    foam_status status = foam_create(&config, params, m->count, &m->handle, &error);
    need((status == FOAM_OK) == (m->handle != NULL), "a handle without success, or success without a handle");
    if (status != FOAM_OK)
        return 0;
    for (size_t i = 0; i < m->count; i++) {
        size_t n = elements(m, i);
        m->params[i] = malloc(n * sizeof(float));
        m->grads[i] = malloc(n * sizeof(float));
        for (size_t k = 0; k < n; k++)
            m->params[i][k] = (float)uniform();
    }
    return 1;
}

static void step(model *m, int spoil)
{
    foam_tensor params[MOST], grads[MOST];
    foam_step_args args;
    need(foam_step_args_init(&args, sizeof args, NULL) == FOAM_OK, "args");
    for (size_t i = 0; i < m->count; i++) {
        for (size_t k = 0; k < elements(m, i); k++)
            m->grads[i][k] = (float)uniform();
        params[i] = tensor(m, i, m->params[i]);
        grads[i] = tensor(m, i, m->grads[i]);
    }
    args.count = m->count;
    args.params = params;
    args.grads = grads;
    if (spoil) {
        size_t i = below(m->count);
        switch (below(7)) {
        case 0: args.count++; break;
        case 1: grads[i].ndim = 5; break;
        case 2: grads[i].dtype.bits = 12; break;
        case 3: params[i].data = NULL; break;
        case 4: args.struct_size = (uint32_t)below(8); break;
        case 5: args.lr = -1.0; break;
        default: m->grads[i][0] = NAN; break;
        }
    }
    float before = m->params[0][0];
    foam_status status = foam_step(m->handle, &args, NULL);
    need(spoil || status == FOAM_OK || status == FOAM_UNSUPPORTED, "a good step failed");
    need(status == FOAM_OK || memcmp(&before, &m->params[0][0], sizeof before) == 0, "a failed step changed a parameter");
}

static void look(model *m)
{
    size_t count = 0, size = 0;
    char *text = malloc(64);
    (void)foam_get_option(m->handle, KEYS[below(8)], text, below(65), NULL);
    free(text);
    need(foam_factor_stats(m->handle, NULL, sizeof(foam_factor_info), 0, &count, NULL) == FOAM_OK, "count");
    foam_factor_info *items = malloc((count ? count : 1) * sizeof *items);
    (void)foam_factor_stats(m->handle, items, sizeof *items, below(count + 1), &count, NULL);
    free(items);
    need(foam_save_memory(m->handle, NULL, 0, &size, NULL) == FOAM_OK, "size");
    unsigned char *bytes = malloc(size);
    need(foam_save_memory(m->handle, bytes, size, &size, NULL) == FOAM_OK, "save");
    if (below(2))
        bytes[below(size)] ^= (unsigned char)(1u << below(8));
    foam_status status = foam_load_memory(m->handle, bytes, size, NULL);
    need(status == FOAM_OK || status == FOAM_BAD_CHECKPOINT, "load");
    free(bytes);
    double *values = malloc(400 * sizeof *values);
    (void)foam_factor_read(m->handle, (int64_t)below(4) - 1, 0, (int64_t)below(3) - 1, (int32_t)below(5), values,
                           below(401), &count, NULL);
    free(values);
}

int main(int argc, char **argv)
{
    uint64_t first = 0, most = UINT64_MAX, calls = 0, models = 0;
    double seconds = 1.0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--first"))
            first = strtoull(argv[i + 1], NULL, 10);
        if (!strcmp(argv[i], "--count"))
            most = strtoull(argv[i + 1], NULL, 10);
        if (!strcmp(argv[i], "--seconds"))
            seconds = strtod(argv[i + 1], NULL);
    }
    time_t begun = time(NULL);
    for (uint64_t seed = first; seed - first < most; seed++) {
        if (most == UINT64_MAX && difftime(time(NULL), begun) > seconds)
            break;
        printf("@%llu\n", (unsigned long long)seed);
        fflush(stdout);
        state = seed;
        model m;
        if (!create(&m))
            continue;
        models++;
        for (size_t k = 0; k < 20; k++, calls++) {
            if (below(4) == 0)
                look(&m);
            else
                step(&m, below(3) == 0);
        }
        foam_destroy(m.handle);
        for (size_t i = 0; i < m.count; i++) {
            free(m.params[i]);
            free(m.grads[i]);
        }
    }
    printf("+calls %llu\n+models %llu\n", (unsigned long long)calls, (unsigned long long)models);
    return 0;
}
