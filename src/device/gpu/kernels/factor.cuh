// The kernels of a check: they prepare factors of equal side for the batched products, measure the drift,
// judge a decomposition before it is adopted, and weigh a basis with its damped spectrum.
// All matrices are column-major; of a symmetric one the lower triangle counts.
#pragma once
#include "common.cuh"

// The stored statistic times this is what is decomposed.
__device__ inline double statistic_scale(const Task &t) {
    Clock clock = *t.clock;
    return clock.weight / bias_correction(t.correct, t.log_beta2, clock.step);
}

// The largest entry of each statistic, and from it the unit.
template <typename S> __device__ inline void peak(const Task *tasks, u32 n, Scale *scales) {
    Task t = tasks[blockIdx.x];
    const S *a = (const S *)t.statistic;
    double scale = statistic_scale(t), largest = 0.0;
    for (u64 i = threadIdx.x; i < (u64)n * n; i += blockDim.x) {
        if (i % n < i / n) continue;
        double x = fabs((double)(S)((double)a[i] * scale));
        largest = (x <= largest) ? largest : x;
    }
    largest = block_max(largest);
    if (threadIdx.x != 0) return;
    Scale out = {1.0, 0.0, finite(largest), 0, 0.0};
    if (out.finite && largest > 0.0) {
        int exponent = (int)((__double_as_longlong(largest) >> 52) & 0x7ff) - 1023;
        exponent = max(-120, min(120, exponent));
        out.unit = __longlong_as_double((long long)(1023 - exponent) << 52);
    }
    scales[blockIdx.x] = out;
}

// A becomes the statistic, whole and scaled, in precision E; Q, if asked for, the basis.
template <typename S, typename E>
__device__ inline void fetch(const Task *tasks, u32 n, E *a, E *q, const Scale *scales) {
    Task t = tasks[blockIdx.y];
    u64 numbers = (u64)n * n, base = blockIdx.y * numbers;
    double scale = statistic_scale(t);
    const S *statistic = (const S *)t.statistic, *basis = (const S *)t.basis;
    for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < numbers; k += (u64)gridDim.x * blockDim.x) {
        u64 i = k % n, j = k / n;
        u64 lower = i >= j ? k : j + i * n;
        S x = (S)((double)statistic[lower] * scale);
        double y = (double)x;
        // A statistic that is not finite must not reach the solver; its factor is refused anyway.
        if (scales) y = scales[blockIdx.y].finite ? y * scales[blockIdx.y].unit : 0.0;
        a[base + k] = (E)y;
        if (q) q[base + k] = (E)basis[k];
    }
}

__device__ inline double damped(double d, double epsilon) {
    double x = (d > 0.0 ? d : 0.0) + epsilon;
    return x > 2.2250738585072014e-308 ? x : 2.2250738585072014e-308;
}

__device__ inline double power(double x, double exponent) { return exp(exponent * log(x)); }

// RC = |(H - D)_ij / sqrt((D_i + e)(D_j + e))|_F.
template <typename S>
__device__ inline double relative_change(const S *h, const S *d, double *weights, u32 n, double epsilon) {
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) weights[i] = 1.0 / damped((double)d[i], epsilon);
    __syncthreads();
    double sum = 0.0;
    for (u64 k = threadIdx.x; k < (u64)n * n; k += blockDim.x) {
        u32 i = (u32)(k % n), j = (u32)(k / n);
        if (i < j) continue;
        double x = (double)h[k];
        if (i == j) {
            x = (x - (double)d[i]) * weights[i];
            sum += x * x;
        } else {
            sum += 2.0 * (x * x * weights[i]) * weights[j];
        }
    }
    return sqrt(block_sum(sum));
}

// alpha = max e / |e|, e_i = (D_i + epsilon)^(-1/p).
template <typename S> __device__ inline double alpha(const S *d, u32 n, double exponent, double epsilon) {
    double largest = 0.0, squares = 0.0;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        double e = power(damped((double)d[i], epsilon), -exponent);
        largest = (e <= largest) ? largest : e;
        squares += e * e;
    }
    largest = block_max(largest);
    return largest / sqrt(block_sum(squares));
}

// The search for the smallest epsilon in [low, high] whose proxy is at most the target. RC and alpha fall
// as epsilon grows, so after both ends bisection finds it to one percent. `at` is the next one to try.
struct Search {
    double low, best, at, epsilon, proxy;
    int tried;
};

// Takes the proxy at `at`; says whether another is wanted.
__device__ inline bool go_on(Search &s, const Task &t, double proxy) {
    bool enough = proxy <= t.target;
    if (enough) {
        s.best = s.at;
        s.epsilon = s.at;
        s.proxy = proxy;
    } else if (s.tried != 1) {
        s.low = s.at;
    }
    s.tried += 1;
    if (s.tried == 1) {
        s.at = t.high;
        return !enough;
    }
    if (s.tried == 2 && !enough) return false;
    // The geometric mean, root by root: the product of two tiny numbers would be zero.
    s.at = sqrt(s.low) * sqrt(s.best);
    return s.best > s.low * SEARCH_RATIO;
}

// |H - diag d|_F / |H|_F with d = max(diag H, 0), which is kept if the policy may adopt it.
template <typename S> __device__ inline double residual(const S *h, u32 n, double *diagonal) {
    double off = 0.0, whole = 0.0;
    for (u64 k = threadIdx.x; k < (u64)n * n; k += blockDim.x) {
        u32 i = (u32)(k % n), j = (u32)(k / n);
        if (i < j) continue;
        double x = (double)h[k];
        if (i == j) {
            double d = x > 0.0 ? x : 0.0;
            if (diagonal) diagonal[i] = d;
            off += (x - d) * (x - d);
            whole += x * x;
        } else {
            off += 2.0 * (x * x);
            whole += 2.0 * (x * x);
        }
    }
    off = block_sum(off);
    whole = block_sum(whole);
    return whole == 0.0 ? 0.0 : sqrt(off / whole);
}

// H = Q'LQ against D, one thread block per factor: first at the epsilon in use, then, if asked for, along
// the search.
template <typename S> __device__ inline void drift(const Task *tasks, u32 n, const S *hs, double *all_weights) {
    const Task &t = tasks[blockIdx.x];
    const S *h = hs + (u64)blockIdx.x * n * n, *d = (const S *)t.spectrum;
    double *weights = all_weights + (u64)blockIdx.x * n;
    double nan = __longlong_as_double(0x7ff8000000000000ll);
    Drift out = {nan, nan, nan, nan, nan};
    Search s = {t.low, t.high, t.low, nan, nan, 0};
    bool first = true, more = t.flags & TASK_SEARCH;
    double epsilon = (t.flags & TASK_GIVEN_EPSILON) ? t.epsilon : fmax(t.epsilon, t.record[GAUGE_EPSILON]);
    for (;;) {
        double a = alpha<S>(d, n, t.exponent, epsilon);
        double change = relative_change<S>(h, d, weights, n, epsilon);
        if (first) {
            out.alpha = a;
            out.relative_change = change;
            first = false;
        } else {
            more = go_on(s, t, change * a * t.exponent);
        }
        if (!more) break;
        epsilon = s.at;
    }
    if (t.flags & TASK_NOISE) {
        Renewal *renewal = (Renewal *)t.report;
        if (threadIdx.x == 0 && renewal->fresh) renewal->noise = out.relative_change * out.alpha * t.exponent;
        return;
    }
    out.epsilon = s.epsilon;
    out.proxy = s.proxy;
    out.residual = residual<S>(h, n, (t.flags & TASK_KEEP_DIAGONAL) ? (double *)t.diagonal : 0);
    if (threadIdx.x == 0) *(Drift *)t.report = out;
}

// Whether Q is orthogonal and A Q = Q D: what the solver gave is believed only then.
// `o` is Q'Q, `image` is A Q.
template <typename E>
__device__ inline void verify(const Task *tasks, u32 n, const E *as, const E *qs, const E *os, const E *images,
                              const E *ds, const int *infos, Scale *scales, double tolerance) {
    int g = blockIdx.x;
    u64 numbers = (u64)n * n, base = g * numbers;
    const E *d = ds + (u64)g * n;
    double size = 0.0, wrong = 0.0, missing = 0.0, least = 0.0, odd = 0.0;
    for (u64 k = threadIdx.x; k < numbers; k += blockDim.x) {
        u64 i = k % n, j = k / n;
        double a = (double)as[base + k], o = (double)os[base + k] - (i == j ? 1.0 : 0.0);
        double e = (double)images[base + k] - (double)qs[base + k] * (double)d[j];
        size += a * a;
        missing += o * o;
        wrong += e * e;
    }
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        double x = -(double)d[i];
        least = (x <= least) ? least : x;
        odd += finite(x) ? 0.0 : 1.0;
    }
    size = sqrt(block_sum(size));
    missing = sqrt(block_sum(missing));
    wrong = sqrt(block_sum(wrong));
    least = block_max(least);
    odd = block_sum(odd);
    if (threadIdx.x != 0) return;
    double root = sqrt((double)n);
    Scale s = scales[g];
    bool sound = s.finite && infos[g] == 0 && odd == 0.0 && !(tasks[g].flags & TASK_FAIL);
    // Written so that a sum that is not a number refuses.
    sound = sound && missing <= tolerance * root && wrong <= tolerance * size * root;
    scales[g].sound = sound;
    scales[g].size = size;
    scales[g].shift = (tasks[g].flags & TASK_SHIFT) ? -least : 0.0;
}

// A fault made on purpose: two equal columns.
template <typename E> __device__ inline void spoil(const Task *tasks, u32 n, E *qs) {
    if (!(tasks[blockIdx.x].flags & TASK_SPOIL) || n < 2) return;
    E *q = qs + (u64)blockIdx.x * n * n;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) q[n + i] = q[i];
}

// A sound basis and spectrum are taken over. Otherwise the stale ones stay, or, where there are none,
// the statistic's diagonal is the preconditioner.
template <typename S, typename E>
__device__ inline void adopt(const Task *tasks, u32 n, const E *qs, const E *ds, const Scale *scales, int rung) {
    int g = blockIdx.y;
    Task t = tasks[g];
    Scale scale = scales[g];
    u64 numbers = (u64)n * n;
    S *basis = (S *)t.basis, *spectrum = (S *)t.spectrum;
    bool diagonal = !scale.sound && !(t.flags & TASK_HAS_BASIS);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        Renewal *renewal = (Renewal *)t.report;
        renewal->rung = scale.sound ? rung : RUNG_STALE;
        renewal->fresh = scale.sound || diagonal;
        renewal->noise = __longlong_as_double(0x7ff8000000000000ll);
    }
    if (!scale.sound && !diagonal) return;
    double own = statistic_scale(t);
    for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < numbers; k += (u64)gridDim.x * blockDim.x) {
        u64 i = k % n, j = k / n;
        basis[k] = scale.sound ? (S)qs[g * numbers + k] : (S)(i == j ? 1 : 0);
        if (i != j) continue;
        double x = scale.sound ? ((double)ds[(u64)g * n + j] - scale.shift) / scale.unit
                               : (double)((const S *)t.statistic)[k] * own;
        spectrum[j] = (S)(x > 0.0 && finite(x) ? x : 0.0);
    }
}

// The ends of the spectrum in use.
template <typename S> __device__ inline void bounds(const Task *tasks, u32 n) {
    Task t = tasks[blockIdx.x];
    const S *d = (const S *)t.spectrum;
    double most = 0.0, least = -__longlong_as_double(0x7ff0000000000000ll);
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        most = fmax(most, (double)d[i]);
        least = fmax(least, -(double)d[i]);
    }
    most = block_max(most);
    least = block_max(least);
    if (threadIdx.x != 0) return;
    Renewal *renewal = (Renewal *)t.report;
    renewal->least = -least;
    renewal->most = most;
}

// The factor's record becomes the one that fits how its refresh went, with what only the device knows filled in.
__device__ inline void choose(const Choice &c) {
    const Renewal &renewal = *c.renewal;
    const u32 *chosen = renewal.rung == RUNG_STALE ? c.failure : c.success;
    for (u32 i = threadIdx.x; i < RECORD_WORDS; i += blockDim.x) c.record[i] = chosen[i];
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (renewal.fresh) {
        double *gauges = (double *)c.record;
        gauges[GAUGE_NOISE_FLOOR] = renewal.noise;
        gauges[GAUGE_EIGENVALUE_MIN] = renewal.least;
        gauges[GAUGE_EIGENVALUE_MAX] = renewal.most;
    }
    if (renewal.rung != RUNG_CHOSEN) atomicOr(c.info, INFO_FELL_BACK);
}

// The weights (D + epsilon)^(-1/2p); after a refresh, epsilon and the record depend on how that went.
template <typename S> __device__ inline void damp(const Task *tasks, u32 n, double *all_weights) {
    const Task &t = tasks[blockIdx.x];
    double *weights = all_weights + (u64)blockIdx.x * n;
    double epsilon = t.epsilon;
    if (t.flags & TASK_AFTER_REFRESH) {
        if (((const Renewal *)t.report)->rung == RUNG_STALE) epsilon = t.fallback;
        choose(*(const Choice *)t.choice);
    }
    S *d = (S *)t.spectrum;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        if (t.flags & TASK_ADOPT_DIAGONAL) d[i] = (S)((const double *)t.diagonal)[i];
        double x = (double)d[i];
        weights[i] = power((x > 0.0 ? x : 0.0) + epsilon, -0.5 * t.exponent);
    }
}

// B = Q diag(weights).
template <typename S> __device__ inline void weigh(const Task *tasks, u32 n, const double *all_weights, S *b) {
    const S *q = (const S *)tasks[blockIdx.y].basis;
    const double *weights = all_weights + (u64)blockIdx.y * n;
    u64 numbers = (u64)n * n;
    for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < numbers; k += (u64)gridDim.x * blockDim.x) {
        b[blockIdx.y * numbers + k] = q[k] * (S)weights[k / n];
    }
}

// The inverse root B B', symmetric to the last bit, in the precision of the work.
template <typename S, typename W> __device__ inline void keep_root(const Task *tasks, u32 n, const S *products) {
    W *root = (W *)tasks[blockIdx.y].inverse_root;
    u64 numbers = (u64)n * n;
    const S *product = products + blockIdx.y * numbers;
    for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < numbers; k += (u64)gridDim.x * blockDim.x) {
        u64 i = k % n, j = k / n;
        root[k] = (W)product[i >= j ? k : j + i * n];
    }
}

#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS)

#define FACTOR_KERNELS(suffix, S)                                                                              \
    KERNEL foam_peak_##suffix(const Task *tasks, u32 n, Scale *scales) { peak<S>(tasks, n, scales); }          \
    KERNEL foam_drift_##suffix(const Task *tasks, u32 n, const S *h, double *weights) {                        \
        drift<S>(tasks, n, h, weights);                                                                        \
    }                                                                                                          \
    KERNEL foam_verify_##suffix(const Task *tasks, u32 n, const S *a, const S *q, const S *o, const S *image,  \
                                const S *d, const int *infos, Scale *scales, double tolerance) {               \
        verify<S>(tasks, n, a, q, o, image, d, infos, scales, tolerance);                                      \
    }                                                                                                          \
    KERNEL foam_spoil_##suffix(const Task *tasks, u32 n, S *q) { spoil<S>(tasks, n, q); }                      \
    KERNEL foam_bounds_##suffix(const Task *tasks, u32 n) { bounds<S>(tasks, n); }                             \
    KERNEL foam_damp_##suffix(const Task *tasks, u32 n, double *weights) { damp<S>(tasks, n, weights); }       \
    KERNEL foam_weigh_##suffix(const Task *tasks, u32 n, const double *weights, S *b) {                        \
        weigh<S>(tasks, n, weights, b);                                                                        \
    }

#define MIXED_KERNELS(suffix, S, E)                                                                            \
    KERNEL foam_fetch_##suffix(const Task *tasks, u32 n, E *a, E *q, const Scale *scales) {                    \
        fetch<S, E>(tasks, n, a, q, scales);                                                                   \
    }                                                                                                          \
    KERNEL foam_adopt_##suffix(const Task *tasks, u32 n, const E *q, const E *d, const Scale *scales,          \
                               int rung) {                                                                     \
        adopt<S, E>(tasks, n, q, d, scales, rung);                                                             \
    }

#define ROOT_KERNELS(suffix, S, W)                                                                             \
    KERNEL foam_root_##suffix(const Task *tasks, u32 n, const S *products) { keep_root<S, W>(tasks, n, products); }

FACTOR_KERNELS(f32, float)
FACTOR_KERNELS(f64, double)
MIXED_KERNELS(f32_f32, float, float)
MIXED_KERNELS(f32_f64, float, double)
MIXED_KERNELS(f64_f64, double, double)
ROOT_KERNELS(f32_f32, float, float)
ROOT_KERNELS(f32_f64, float, double)
ROOT_KERNELS(f64_f32, double, float)
ROOT_KERNELS(f64_f64, double, double)
