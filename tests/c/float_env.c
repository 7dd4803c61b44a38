/* A caller's floating-point environment changes no result, stops no step, and is what it was after every call. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "model.h"

#include <fenv.h>

enum { STEPS = 10 };

/* Gradients are computed in the standard environment: only the library's part is looked at. */
static void train(model *m, int64_t threads, void (*odd)(void), int (*kept)(void)) {
    fenv_t plain;
    fegetenv(&plain);
    model_describe(m);
    m->config.num_threads = threads;
    odd();
    const foam_status made = model_create(m);
    CHECK(made == FOAM_OK && kept());
    fesetenv(&plain);
    REQUIRE(m->optimizer != NULL);
    for (int step = 0; step < STEPS; step++) {
        foam_step_args args = model_args(m);
        model_gradients(m);
        odd();
        const foam_status status = foam_step(m->optimizer, &args, &m->error);
        const int same = kept();
        fesetenv(&plain);
        CHECK(same);
        OK(&m->error, status);
    }
}

static void nothing(void) {}
static int always(void) { return 1; }
static void upward(void) { fesetround(FE_UPWARD); }
static int is_upward(void) { return fegetround() == FE_UPWARD; }
#ifdef __GLIBC__
static void trapping(void) {
    feclearexcept(FE_ALL_EXCEPT);
    feenableexcept(FE_ALL_EXCEPT);
}
static int is_trapping(void) { return fegetexcept() == FE_ALL_EXCEPT && fetestexcept(FE_ALL_EXCEPT) == 0; }
#endif
#ifdef __x86_64__
#include <xmmintrin.h>
/* Flush to zero and denormals are zero. */
static void flushing(void) { _mm_setcsr(_mm_getcsr() | 0x8040); }
static int is_flushing(void) { return (_mm_getcsr() & 0x8040) == 0x8040; }
#endif

/* Whether the mode can be had at all: valgrind computes with neither traps nor flushing. */
static int possible(void (*odd)(void), int (*kept)(void)) {
    fenv_t plain;
    fegetenv(&plain);
    odd();
    const int has = kept();
    fesetenv(&plain);
    if (!has) printf("a mode is not possible here, and was not tried\n");
    return has;
}

static void unchanged_by(const model *plain, int64_t threads, void (*odd)(void), int (*kept)(void)) {
    static model other;
    if (!possible(odd, kept)) return;
    train(&other, threads, odd, kept);
    CHECK(memcmp(plain->param_data, other.param_data, sizeof other.param_data) == 0);
    model_close(&other);
}

int main(void) {
    static model plain;
    fenv_t before;
    fegetenv(&before);
    train(&plain, 1, nothing, always);
    for (int64_t threads = 1; threads <= 3; threads += 2) {
        unchanged_by(&plain, threads, upward, is_upward);
#ifdef __GLIBC__
        unchanged_by(&plain, threads, trapping, is_trapping);
#endif
#ifdef __x86_64__
        unchanged_by(&plain, threads, flushing, is_flushing);
#endif
    }
    model_close(&plain);
    fesetenv(&before);
    return check_result("float_env");
}
