/* A whole life: create, train, look inside, save, load elsewhere, continue bit for bit, destroy.
   Usage: lifecycle FOLDER */
#include "model.h"

/* The loss falls from ten steps to the next ten, and most of it is gone in the end. */
static void trains(model *m) {
    double first = model_loss(m), before = first;
    for (int round = 0; round < 6; round++) {
        for (int step = 0; step < 10; step++) OK(&m->error, model_step(m));
        CHECK(model_loss(m) < before);
        before = model_loss(m);
    }
    printf("loss %g -> %g in 60 steps\n", first, before);
    CHECK(before < 0.1 * first);
}

static void a_parameter_without_gradient_rests(model *m) {
    model_remember(m);
    foam_step_args args = model_args(m);
    int32_t skipped = 7;
    args.skipped = &skipped;
    m->grads[VECTOR].data = NULL;
    OK(&m->error, foam_step(m->optimizer, &args, &m->error));
    m->grads[VECTOR].data = m->grad_data[VECTOR];
    CHECK(skipped == 0);
    CHECK(memcmp(m->param_data[VECTOR], m->remembered_params[VECTOR], sizeof m->param_data[VECTOR]) == 0);
    for (int p = 0; p < MODEL_PARAMS; p++) {
        size_t elements = model_elements(&m->params[p]) * m->params[p].dtype.bits / 8;
        int same = memcmp(m->param_data[p], m->remembered_params[p], elements) == 0;
        CHECK(same == (p == VECTOR));
        /* Nothing is written behind the last element. */
        const char *behind = (const char *)m->param_data[p] + elements;
        const char *was = (const char *)m->remembered_params[p] + elements;
        CHECK(memcmp(behind, was, sizeof m->param_data[p] - elements) == 0);
    }
}

/* A learning rate of zero counts as a step and moves nothing. */
static void a_step_of_length_zero_moves_nothing(model *m) {
    foam_step_args args = model_args(m);
    args.lr = 0.0;
    model_remember(m);
    OK(&m->error, foam_step(m->optimizer, &args, &m->error));
    CHECK(memcmp(m->param_data, m->remembered_params, sizeof m->param_data) == 0);
}

static foam_stats_info stats_of(model *m) {
    foam_stats_info stats;
    memset(&stats, 0xff, sizeof stats);
    stats.struct_size = sizeof stats;
    OK(&m->error, foam_stats(m->optimizer, &stats, &m->error));
    return stats;
}

static void the_statistics_add_up(model *m, uint64_t steps) {
    foam_stats_info stats = stats_of(m);
    CHECK(stats.struct_size == sizeof stats && stats.flags == 0);
    CHECK(stats.steps == steps && stats.skipped_steps == 0);
    CHECK(stats.params == MODEL_PARAMS);
    CHECK(stats.blocks >= MODEL_PARAMS && stats.factors >= stats.blocks);
    CHECK(stats.checks > stats.factors && stats.evd_calls >= stats.factors);
    CHECK(stats.evd_calls + stats.reuse_calls == stats.checks);
    CHECK(stats.failed_evds == 0 && stats.fallback_stale == 0);
    CHECK(stats.state_bytes_host > 0 && stats.state_bytes_device == 0);
    CHECK(stats.threads == 2);
    CHECK(stats.seconds_total >= 0.0);
}

static void the_factors_are_listed_in_order(model *m) {
    enum { ROOM = 64 };
    foam_factor_info items[ROOM];
    size_t count = 0;
    uint64_t checks = 0, evds = 0;
    OK(&m->error, foam_factor_stats(m->optimizer, NULL, 0, 0, &count, &m->error));
    CHECK(count == stats_of(m).factors);
    REQUIRE(count <= ROOM);
    OK(&m->error, foam_factor_stats(m->optimizer, items, sizeof items[0], ROOM, &count, &m->error));
    for (size_t i = 0; i < count; i++) {
        const foam_factor_info *now = &items[i];
        CHECK(now->struct_size == sizeof items[0]);
        CHECK(now->dim >= 1 && now->dim <= 8 && now->epsilon >= now->epsilon_base && now->epsilon_base > 0);
        CHECK(now->eigenvalue_min <= now->eigenvalue_max && now->last_refresh <= now->last_check);
        checks += now->checks;
        evds += now->evd_calls;
        if (i == 0) continue;
        const foam_factor_info *last = &items[i - 1];
        CHECK(now->param_index > last->param_index ||
              (now->param_index == last->param_index &&
               (now->block > last->block || (now->block == last->block && now->axis > last->axis))));
    }
    CHECK(checks == stats_of(m).checks && evds == stats_of(m).evd_calls);
    /* matrix 6 x 4, vector 5, then whatever a scalar is, then tall 12 x 3 as 8 x 3 and 4 x 3. */
    CHECK(items[0].param_index == MATRIX && items[0].dim == 6 && items[1].dim == 4);
    CHECK(items[2].param_index == VECTOR && items[2].dim == 5);
    size_t tall = 3;
    while (tall < count && items[tall].param_index < TALL) tall += 1;
    REQUIRE(tall + 4 <= count);
    static const int64_t dims[4] = {8, 3, 4, 3};
    for (size_t i = 0; i < 4; i++) {
        CHECK(items[tall + i].param_index == TALL && items[tall + i].dim == dims[i]);
        CHECK(items[tall + i].block == (int64_t)(i / 2) && items[tall + i].axis == (int64_t)(i % 2));
    }
}

/* S = Q' diag(D) Q up to staleness; Q is orthogonal, S and the inverse root are symmetric. */
static void the_factor_can_be_read(model *m) {
    enum { N = 6 };
    double statistic[N * N], basis[N * N], spectrum[N], root[N * N], gap = -1.0;
    size_t count = 0;
    OK(&m->error,
       foam_factor_read(m->optimizer, MATRIX, 0, 0, FOAM_FACTOR_SPECTRUM, NULL, 0, &count, &m->error));
    CHECK(count == N);
    OK(&m->error, foam_factor_read(m->optimizer, MATRIX, 0, 0, FOAM_FACTOR_STATISTIC, statistic, N * N,
                                   &count, &m->error));
    CHECK(count == N * N);
    OK(&m->error,
       foam_factor_read(m->optimizer, MATRIX, 0, 0, FOAM_FACTOR_BASIS, basis, N * N, &count, &m->error));
    CHECK(count == N * N);
    OK(&m->error,
       foam_factor_read(m->optimizer, MATRIX, 0, 0, FOAM_FACTOR_SPECTRUM, spectrum, N, &count, &m->error));
    CHECK(count == N);
    OK(&m->error, foam_factor_read(m->optimizer, MATRIX, 0, 0, FOAM_FACTOR_INVERSE_ROOT, root, N * N, &count,
                                   &m->error));
    CHECK(count == N * N);
    for (int i = 0; i < N; i++) {
        CHECK(statistic[i * N + i] >= 0.0 && root[i * N + i] > 0.0 && isfinite(spectrum[i]));
        for (int j = 0; j < N; j++) {
            double product = 0.0;
            for (int k = 0; k < N; k++) product += basis[i * N + k] * basis[j * N + k];
            CHECK(fabs(product - (i == j ? 1.0 : 0.0)) < 1e-4);
            CHECK(fabs(statistic[i * N + j] - statistic[j * N + i]) <=
                  1e-6 * (1.0 + fabs(statistic[i * N + j])));
            CHECK(fabs(root[i * N + j] - root[j * N + i]) <= 1e-4 * (1.0 + fabs(root[i * N + j])));
        }
    }
    OK(&m->error, foam_exact_gap(m->optimizer, MATRIX, 0, 0, &gap, &m->error));
    CHECK(isfinite(gap) && gap >= 0.0);
}

/* `other` has the same parameters and state as `m`: both go on, bit for bit the same. */
static void both_continue_alike(model *m, model *other) {
    memcpy(other->param_data, m->param_data, sizeof m->param_data);
    for (int step = 0; step < 8; step++) {
        OK(&m->error, model_step(m));
        OK(&other->error, model_step(other));
        CHECK(memcmp(m->param_data, other->param_data, sizeof m->param_data) == 0);
    }
    CHECK(stats_of(m).steps == stats_of(other).steps && stats_of(m).evd_calls == stats_of(other).evd_calls);
    CHECK(stats_of(m).checks == stats_of(other).checks &&
          stats_of(m).reuse_calls == stats_of(other).reuse_calls);
}

static void a_loaded_handle_continues_bit_for_bit(model *m, const char *folder) {
    char path[4096];
    model second, third;
    size_t size = 0;
    snprintf(path, sizeof path, "%s/lifecycle.safetensors", folder);
    OK(&m->error, foam_save_file(m->optimizer, path, &m->error));
    /* The number of threads is no part of the result. */
    model_describe(&second);
    second.config.num_threads = 1;
    OK(&second.error, model_create(&second));
    OK(&second.error, foam_load_file(second.optimizer, path, &second.error));
    both_continue_alike(m, &second);

    model_describe(&third);
    OK(&third.error, model_create(&third));
    void *state = model_state(m, &size);
    OK(&third.error, foam_load_memory(third.optimizer, state, size, &third.error));
    free(state);
    both_continue_alike(m, &third);
    /* Same configuration, same state: the same file. */
    model_remember(m);
    state = model_state(&third, &size);
    CHECK(size == m->remembered_size && memcmp(state, m->remembered_state, size) == 0);
    free(state);
    model_close(&second);
    model_close(&third);
    CHECK(remove(path) == 0);
}

/* Half of twice the gradient is the gradient. */
static void the_gradient_scale_multiplies(void) {
    model plain, scaled;
    model_start(&plain, 0);
    model_start(&scaled, 0);
    for (int step = 0; step < 5; step++) {
        foam_step_args args = model_args(&scaled);
        args.grad_scale = 0.5;
        model_gradients(&scaled);
        for (int p = 0; p < MODEL_PARAMS; p++) {
            for (size_t at = 0; at < model_elements(&scaled.grads[p]); at++) {
                model_put(&scaled.grads[p], at, 2.0 * model_get(&scaled.grads[p], at));
            }
        }
        OK(&scaled.error, foam_step(scaled.optimizer, &args, &scaled.error));
        OK(&plain.error, model_step(&plain));
        CHECK(memcmp(plain.param_data, scaled.param_data, sizeof plain.param_data) == 0);
    }
    model_close(&plain);
    model_close(&scaled);
}

int main(int count, char **arguments) {
    model m;
    REQUIRE(count == 2);
    CHECK(foam_abi_version() >> 16 == FOAM_ABI_MAJOR && (foam_abi_version() & 0xffff) >= FOAM_ABI_MINOR);
    printf("%s\n", foam_build_info());
    model_start(&m, 0);
    trains(&m);
    a_parameter_without_gradient_rests(&m);
    a_step_of_length_zero_moves_nothing(&m);
    the_statistics_add_up(&m, 62);
    the_factors_are_listed_in_order(&m);
    the_factor_can_be_read(&m);
    OK(&m.error, foam_synchronize(m.optimizer, &m.error));
    a_loaded_handle_continues_bit_for_bit(&m, arguments[1]);
    CHECK(foam_synchronize(m.optimizer, NULL) == FOAM_OK);
    model_close(&m);
    foam_destroy(NULL);
    the_gradient_scale_multiplies();
    return check_result("lifecycle");
}
