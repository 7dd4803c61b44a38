// The kernels of a check: they prepare factors of equal side for the batched products, measure the drift,
// judge a decomposition before it is adopted, and weigh a basis with its damped spectrum.
// All matrices are column-major; of a symmetric one the lower triangle counts.
#pragma once
#include "common.cuh"

// The stored statistic times this is what is decomposed.
__device__ inline double statistic_scale(const Task &t) {
    if (t.flags & TASK_PLAIN) return 1.0;
    Clock clock = *t.clock;
    return clock.weight / bias_correction(t.correct, t.log_beta2, accumulations(t.correct, clock.step));
}

// The power of two that brings a matrix with this largest entry near one.
__device__ inline Scale unit_of(double largest) {
    Scale out = {1.0, 0.0, finite(largest), 0, 0.0};
    if (out.finite && largest > 0.0) {
        int exponent = (int)((__double_as_longlong(largest) >> 52) & 0x7ff) - 1023;
        exponent = max(-120, min(120, exponent));
        out.unit = __longlong_as_double((long long)(1023 - exponent) << 52);
    }
    return out;
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
    scales[blockIdx.x] = unit_of(largest);
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

// Epsilon for a factor with this largest eigenvalue: `least`, or `ratio` times it but at least `least`. A statistic of
// zeros has no scale, and gets 1.
__device__ inline double epsilon_at(double ratio, double least, double largest) {
    if (ratio == 0.0) return least;
    return largest > 0.0 ? fmax(ratio * largest, least) : 1.0;
}

// The ends of a spectrum, each at least 0; a thread block finds them.
template <typename S> __device__ inline void ends(const S *d, u64 step, u32 n, double &least, double &largest) {
    double below = -__longlong_as_double(0x7ff0000000000000ll), above = 0.0;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        double x = (double)d[(u64)i * step];
        x = x > 0.0 ? x : 0.0;
        below = fmax(below, -x);
        above = fmax(above, x);
    }
    least = -block_max(below);
    largest = block_max(above);
}

__device__ inline double damped(double d, double epsilon) {
    double x = (d > 0.0 ? d : 0.0) + epsilon;
    return x > 2.2250738585072014e-308 ? x : 2.2250738585072014e-308;
}

__device__ inline double power(double x, double exponent) { return exp(exponent * log(x)); }

// x^(-exponent/2). Where 2/exponent is a whole number, x times a power of 2^(2/exponent) gives the same digits.
__device__ inline double root_weight(double x, double exponent) {
    double period = 2.0 / exponent;
    int own = (int)((__double_as_longlong(x) >> 52) & 0x7ff) - 1023;
    if (period != rint(period) || !(x > 0.0) || !finite(x) || own < -1000) return power(x, -0.5 * exponent);
    double steps = floor(own / period);
    double down = __longlong_as_double((long long)(1023 - (int)(steps * period)) << 52);
    double back = __longlong_as_double((long long)(1023 - (int)steps) << 52);
    return power(x * down, -0.5 * exponent) * back;
}

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
__device__ inline bool go_on(Search &s, const Task &t, double high, double proxy) {
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
        s.at = high;
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
    Drift out = {nan, nan, nan, nan, nan, nan, nan, nan, RULE_NONE, 1, nan};
    bool given = t.flags & TASK_GIVEN_EPSILON;
    if (given) {
        ends<S>(d, 1, n, out.least, out.largest);
    } else {
        ends<S>(h, (u64)n + 1, n, out.least, out.largest);
    }
    double base = epsilon_at(t.ratio, t.epsilon, out.largest), high = epsilon_at(t.most_ratio, t.most, out.largest);
    Search s = {base, high, base, nan, nan, 0};
    bool first = true, more = t.flags & TASK_SEARCH;
    double epsilon = given ? base : fmax(base, t.record[GAUGE_EPSILON]);
    for (;;) {
        double a = alpha<S>(d, n, t.exponent, epsilon);
        double change = relative_change<S>(h, d, weights, n, epsilon);
        if (first) {
            out.alpha = a;
            out.relative_change = change;
            first = false;
        } else {
            more = go_on(s, t, high, change * a * t.exponent);
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

// a^(1/p) for whole p up to LARGEST_ROOT, else ln a.
__device__ inline double coupling_number(double a, double exponent) {
    double p = 1.0 / exponent;
    bool whole = fabs(p - rint(p)) < 1e-12 && p < LARGEST_ROOT + 0.5;
    return whole ? power(a, exponent) : log(a);
}

// C_ij = sqrt(a_i a_j) |f[a_i, a_j]| of the sandwich, f(x) = x^(-1/p), from the numbers of i and j.
__device__ inline double coupling(double x, double y, double exponent) {
    double p = 1.0 / exponent;
    if (fabs(p - rint(p)) < 1e-12 && p < LARGEST_ROOT + 0.5) {
        double sum = 1.0, last = 1.0;
        for (int k = 1; k < (int)rint(p); k++) {
            last *= y;
            sum = sum * x + last;
        }
        return power(x * y, 0.5 * rint(p) - 1.0) / sum;
    }
    // (ab)^(-q/2) sinh(q delta / 2) / sinh(delta / 2), delta = ln(a / b), without overflow.
    double delta = fabs(x - y), ratio = exponent;
    if (delta > 1e-9) ratio = exp(-0.5 * (1.0 - exponent) * delta) * expm1(-exponent * delta) / expm1(-delta);
    return exp(-0.5 * exponent * (x + y)) * ratio;
}

__device__ inline double growth(double exponent, double m) {
    if (m <= 0.0) return 1.0;
    if (m >= 1.0) return __longlong_as_double(0x7ff0000000000000ll);
    return expm1(-exponent * log1p(-m)) / (exponent * m);
}

__device__ inline double spectral_form(double exponent, double loss, double gain) {
    if (loss >= 1.0) return __longlong_as_double(0x7ff0000000000000ll);
    return fmax(expm1(-exponent * log1p(-loss)), -expm1(-exponent * log1p(gain)));
}

// The bound of the gap as it is once the diagonal of H is the spectrum, by the cheap rules. H becomes M, whole; N
// becomes I + M, or I where the sandwich is not wanted; E becomes I. Three vectors per factor are used.
template <typename S>
__device__ inline void certify(const Task *tasks, u32 n, S *hs, S *ns, S *es, double *all_vectors) {
    const Task &t = tasks[blockIdx.x];
    u64 numbers = (u64)n * n;
    S *h = hs + blockIdx.x * numbers, *big = ns + blockIdx.x * numbers, *e = es + blockIdx.x * numbers;
    double *roots = all_vectors + (u64)blockIdx.x * 3 * n, *v = roots + n, *image = v + n;
    double *diagonal = (double *)t.diagonal;
    double nan = __longlong_as_double(0x7ff8000000000000ll), q = t.exponent;
    Drift out = {nan, nan, nan, nan, nan, nan, nan, nan, RULE_NONE, 1, nan};
    ends<S>(h, (u64)n + 1, n, out.least, out.largest);
    out.orthogonality = (t.flags & TASK_QR) ? ((const Drift *)t.report)->orthogonality : t.orthogonality;
    out.residual = residual<S>(h, n, diagonal);
    double epsilon = epsilon_at(t.ratio, t.epsilon, out.largest);
    double squares = 0.0, most = 0.0, lost = 0.0;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        double a = diagonal[i] + epsilon, e = power(a, -q);
        squares += e * e;
        most = (e <= most) ? most : e;
        lost = fmax(lost, 1.0 - (t.kept * (double)((const S *)t.fresh)[i] + epsilon) / a);
        roots[i] = 1.0 / sqrt(a);
        image[i] = coupling_number(a, q);
        v[i] = 1.0;
    }
    double norm = sqrt(block_sum(squares));
    out.alpha = block_max(most) / norm;
    double average = block_max(lost);
    double change = 0.0, first = 0.0;
    for (u64 k = threadIdx.x; k < numbers; k += blockDim.x) {
        u64 i = k % n, j = k / n;
        if (i < j) continue;
        double x = i == j ? 0.0 : (double)h[k] * roots[i] * roots[j];
        double weighted = x * coupling(image[i], image[j], q);
        h[k] = (S)x;
        h[j + i * n] = (S)x;
        change += 2.0 * x * x;
        first += 2.0 * weighted * weighted;
    }
    change = sqrt(block_sum(change));
    double lower = sqrt(block_sum(first)) / norm, proxy = out.alpha * q * change;
    out.relative_change = change;
    // What Q misses of an orthogonal basis, as in the CPU's certificate.rs: alpha w (1 + q sqrt(max a / min a) (1 + |M|)).
    double spread = sqrt((out.largest + epsilon) / (out.least + epsilon));
    out.charge = out.alpha * out.orthogonality * (1.0 + q * spread * (1.0 + change));
    double target = t.target - out.charge;
    if (!(lower <= target)) {
        out.bound = lower;
        out.rule = RULE_EXCEEDED;
        out.loss = __longlong_as_double(0x7ff0000000000000ll);
    } else {
        out.rule = RULE_AVERAGE;
        out.bound = proxy == 0.0 ? 0.0 : proxy * growth(q, average);
        out.loss = proxy == 0.0 ? 0.0 : average;
        if (!(out.bound <= target)) {
            // Collatz-Wielandt: max (|M| v)_i / v_i is at least the spectral radius, for any v > 0.
            double radius = change * sqrt((n - 1.0) / n);
            for (int round = 0; round < 3; round++) {
                double worst = 0.0, sum = 0.0;
                for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
                    double x = 0.0;
                    for (u32 j = 0; j < n; j++) x += fabs((double)h[i + (u64)j * n]) * v[j];
                    image[i] = x;
                    worst = fmax(worst, x / v[i]);
                    sum += x;
                }
                radius = fmin(radius, block_max(worst));
                double mean = block_sum(sum) / n;
                for (u32 i = threadIdx.x; i < n; i += blockDim.x) v[i] = image[i] + 1e-3 * mean + 2.2250738585072014e-308;
                __syncthreads();
            }
            double loss = fmin(average, radius);
            out.rule = RULE_SPECTRAL;
            out.bound = fmin(proxy * growth(q, loss), spectral_form(q, loss, radius));
            out.loss = loss;
            out.decided = out.bound <= target;
        }
    }
    out.bound += out.charge;
    for (u64 k = threadIdx.x; k < numbers; k += blockDim.x) {
        e[k] = (S)(k % n == k / n ? 1 : 0);
        big[k] = k % n == k / n ? (S)1 : out.decided ? (S)0 : h[k];
    }
    if (threadIdx.x == 0) *(Drift *)t.report = out;
}

// The sandwich, for M and the lower triangle of N^-1: |C o (N^-1 - I - M)| + |C o (N^-1 - I + M)|, over 2 |f(B)|.
template <typename S>
__device__ inline void enclose(const Task *tasks, u32 n, const S *ms, const S *inverses, const int *infos,
                               double *all_vectors) {
    const Task &t = tasks[blockIdx.x];
    Drift *out = (Drift *)t.report;
    if (out->decided || infos[blockIdx.x] != 0) return;
    u64 numbers = (u64)n * n;
    const S *m = ms + blockIdx.x * numbers, *inverse = inverses + blockIdx.x * numbers;
    double *x = all_vectors + (u64)blockIdx.x * 3 * n, q = t.exponent, squares = 0.0, centre = 0.0, width = 0.0;
    double epsilon = epsilon_at(t.ratio, t.epsilon, out->largest);
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        double a = ((const double *)t.diagonal)[i] + epsilon, e = power(a, -q);
        squares += e * e;
        x[i] = coupling_number(a, q);
    }
    double norm = sqrt(block_sum(squares));
    for (u64 k = threadIdx.x; k < numbers; k += blockDim.x) {
        u64 i = k % n, j = k / n;
        if (i < j) continue;
        double c = coupling(x[i], x[j], q), twice = i == j ? 1.0 : 2.0;
        double y = (double)inverse[k] - (i == j ? 1.0 : 0.0), drift = (double)m[k];
        centre += twice * (y - drift) * (y - drift) * c * c;
        width += twice * (y + drift) * (y + drift) * c * c;
    }
    centre = sqrt(block_sum(centre));
    width = sqrt(block_sum(width));
    double bound = (centre + width) / (2.0 * norm) + out->charge;
    if (threadIdx.x == 0 && bound < out->bound) {
        out->bound = bound;
        out->rule = RULE_SANDWICH;
    }
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
        renewal->steps = -1;
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
        if (t.fresh) ((S *)t.fresh)[j] = spectrum[j];
    }
}

// The ends of the spectrum in use.
template <typename S> __device__ inline void bounds(const Task *tasks, u32 n) {
    Task t = tasks[blockIdx.x];
    double least, largest;
    ends<S>((const S *)t.spectrum, 1, n, least, largest);
    if (threadIdx.x != 0) return;
    Renewal *renewal = (Renewal *)t.report;
    renewal->least = least;
    renewal->most = largest;
}

// The factor's record becomes the one that fits how its refresh went, with what only the device knows filled in.
__device__ inline void choose(const Choice &c, double epsilon) {
    const Renewal &renewal = *c.renewal;
    bool failed = renewal.rung == RUNG_STALE || renewal.rung == RUNG_SHORT;
    const u32 *chosen = failed ? c.failure : c.success;
    for (u32 i = threadIdx.x; i < RECORD_WORDS; i += blockDim.x) c.record[i] = chosen[i];
    __syncthreads();
    if (threadIdx.x != 0) return;
    double *gauges = (double *)c.record;
    gauges[GAUGE_EPSILON] = epsilon;
    if (renewal.fresh) {
        gauges[GAUGE_NOISE_FLOOR] = renewal.noise;
        gauges[GAUGE_EIGENVALUE_MIN] = renewal.least;
        gauges[GAUGE_EIGENVALUE_MAX] = renewal.most;
    }
    if (renewal.steps >= 0) {
        gauges[GAUGE_GAP_BOUND] = renewal.bound;
        gauges[GAUGE_ORTHOGONALITY] = renewal.orthogonality;
        ((long long *)c.record)[COUNTER_QR_STEPS] += renewal.steps;
    }
    if (renewal.rung == RUNG_DOUBLE || renewal.rung == RUNG_STALE) atomicOr(c.info, INFO_FELL_BACK);
}

// The weights (D + epsilon)^(-1/2p); after a refresh, epsilon and the record depend on how that went.
template <typename S> __device__ inline void damp(const Task *tasks, u32 n, double *all_weights) {
    const Task &t = tasks[blockIdx.x];
    double *weights = all_weights + (u64)blockIdx.x * n;
    double epsilon = t.epsilon;
    if (t.flags & TASK_AFTER_REFRESH) {
        const Renewal &renewal = *(const Renewal *)t.report;
        epsilon = renewal.rung == RUNG_STALE ? epsilon_at(t.most_ratio, t.most, renewal.most)
                                             : epsilon_at(t.ratio, t.epsilon, renewal.most);
        choose(*(const Choice *)t.choice, epsilon);
    }
    S *d = (S *)t.spectrum;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        if (t.flags & TASK_ADOPT_DIAGONAL) d[i] = (S)((const double *)t.diagonal)[i];
        double x = (double)d[i];
        x = (x > 0.0 ? x : 0.0) + epsilon;
        weights[i] = (t.flags & TASK_RELATIVE) ? root_weight(x, t.exponent) : power(x, -0.5 * t.exponent);
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

// The eigenvalues (D + epsilon)^(-1/p) of an inverse root that is not kept.
template <typename S> __device__ inline void keep_eigenroot(const Task *tasks, u32 n, const double *all_weights) {
    S *roots = (S *)tasks[blockIdx.x].inverse_root;
    const double *weights = all_weights + (u64)blockIdx.x * n;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) roots[i] = (S)weights[i] * (S)weights[i];
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
// For a kernel with one thread block per factor: registers count for more than occupancy.
#define ROOMY extern "C" __global__ void __launch_bounds__(THREADS, 1)

#define FACTOR_KERNELS(suffix, S)                                                                              \
    KERNEL foam_peak_##suffix(const Task *tasks, u32 n, Scale *scales) { peak<S>(tasks, n, scales); }          \
    ROOMY foam_drift_##suffix(const Task *tasks, u32 n, const S *h, double *weights) {                        \
        drift<S>(tasks, n, h, weights);                                                                        \
    }                                                                                                          \
    ROOMY foam_certify_##suffix(const Task *tasks, u32 n, S *h, S *big, S *one, double *vectors) {            \
        certify<S>(tasks, n, h, big, one, vectors);                                                            \
    }                                                                                                          \
    ROOMY foam_enclose_##suffix(const Task *tasks, u32 n, const S *m, const S *inverse, const int *infos,     \
                                 double *vectors) {                                                            \
        enclose<S>(tasks, n, m, inverse, infos, vectors);                                                      \
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
    }                                                                                                          \
    KERNEL foam_eigenroot_##suffix(const Task *tasks, u32 n, const double *weights) {                          \
        keep_eigenroot<S>(tasks, n, weights);                                                                  \
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
