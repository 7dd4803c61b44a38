// The kernels of a check: they prepare factors of equal side for the batched products, measure the drift,
// judge a decomposition before it is adopted, and weigh a basis with its damped spectrum. certify.cuh has the proven bounds.
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

// A pass over matrices is cut into strips of STRIP columns, one thread block for each strip of each factor. What a strip
// sums up goes to `partials`, SUMS numbers per strip, and whoever needs the whole adds the strips in their order. Strips
// depend on the side alone, so that no sum depends on the grid or on what else is in the group.
__device__ inline u32 strips(u32 n) { return (n + STRIP - 1) / STRIP; }

__device__ inline double *strip_sums(double *partials, u32 n) {
    return partials + ((u64)blockIdx.y * strips(n) + blockIdx.x) * SUMS;
}

// Sum number `which` of factor `g`; every thread gets it.
__device__ inline double total(const double *partials, u32 n, u32 g, int which) {
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < strips(n); i += blockDim.x) sum += partials[((u64)g * strips(n) + i) * SUMS + which];
    return block_sum(sum);
}

// The larger of two; NaN counts as larger than everything.
__device__ inline double larger(double a, double b) { return (a >= b || a != a) ? a : b; }

// The same for the largest, or `most` if that is larger.
__device__ inline double largest_of(const double *partials, u32 n, u32 g, int which, double most = 0.0) {
    for (u32 i = threadIdx.x; i < strips(n); i += blockDim.x) {
        most = larger(most, partials[((u64)g * strips(n) + i) * SUMS + which]);
    }
    return block_max(most);
}

// The largest entry of each statistic, by strips.
template <typename S> __device__ inline void peak(const Task *tasks, u32 n, double *partials) {
    const Task &t = tasks[blockIdx.y];
    const S *a = (const S *)t.statistic;
    double scale = statistic_scale(t), largest = 0.0;
    u32 first = blockIdx.x * STRIP, end = min(first + STRIP, n);
    for (u32 i = first + threadIdx.x; i < n; i += blockDim.x) {
        for (u32 j = first; j < end && j <= i; j++) {
            largest = larger(largest, fabs((double)(S)((double)a[i + (u64)j * n] * scale)));
        }
    }
    largest = block_max(largest);
    if (threadIdx.x == 0) strip_sums(partials, n)[0] = largest;
}

// A becomes the statistic, whole, in precision E; Q, if asked for, the basis. With scales, which get their units from
// `peaks`, it is scaled, and `twin` becomes a copy of it.
template <typename S, typename E>
__device__ inline void fetch(const Task *tasks, u32 n, E *a, E *q, E *twin, Scale *scales, const double *peaks) {
    const Task &t = tasks[blockIdx.y];
    u64 numbers = (u64)n * n, base = blockIdx.y * numbers;
    double scale = statistic_scale(t);
    Scale own = {1.0, 0.0, 1, 0, 0.0};
    if (scales) {
        own = unit_of(largest_of(peaks, n, blockIdx.y, 0));
        if (blockIdx.x == 0 && threadIdx.x == 0) scales[blockIdx.y] = own;
    }
    const S *statistic = (const S *)t.statistic, *basis = (const S *)t.basis;
    for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < numbers; k += (u64)gridDim.x * blockDim.x) {
        u64 i = k % n, j = k / n;
        u64 lower = i >= j ? k : j + i * n;
        S x = (S)((double)statistic[lower] * scale);
        // A statistic that is not finite must not reach the solver; its factor is refused anyway.
        E y = own.finite ? (E)((double)x * own.unit) : (E)0;
        a[base + k] = y;
        if (twin) twin[base + k] = y;
        if (q) q[base + k] = (E)basis[k];
    }
}

// The statistic as it is, scaled and whole, for a refresh that is taken later.
template <typename S> __device__ inline void keep(const Task *tasks, u32 n) {
    const Task &t = tasks[blockIdx.y];
    u64 numbers = (u64)n * n;
    double scale = statistic_scale(t);
    const S *statistic = (const S *)t.statistic;
    S *kept = (S *)t.found;
    for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < numbers; k += (u64)gridDim.x * blockDim.x) {
        u64 i = k % n, j = k / n;
        kept[k] = (S)((double)statistic[i >= j ? k : j + i * n] * scale);
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
// Takes the proxy there; says whether another is wanted.
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

// H of factor `g`, and what it has to be multiplied by. After a refresh (with scales) it is that of the scaled statistic
// in the new basis; where there is none, the statistic's diagonal serves: the basis is I, and H the statistic itself.
template <typename S> struct Rotated {
    const S *h;
    double unit;
};

template <typename S>
__device__ inline Rotated<S> rotated(const S *hs, const S *as, const Scale *scales, u32 n, u32 g) {
    u64 base = (u64)g * n * n;
    Rotated<S> out = {hs + base, 1.0};
    if (!scales) return out;
    if (!scales[g].sound) out.h = as + base;
    out.unit = scales[g].finite ? 1.0 / scales[g].unit : __longlong_as_double(0x7ff8000000000000ll);
    return out;
}

// The epsilon that a drift is measured at first: the one in use, or the given one. The ends are those of the diagonal of
// H, or of the spectrum.
template <typename S>
__device__ inline double first_epsilon(const Task &t, u32 n, const Rotated<S> &r, double &least, double &largest) {
    bool given = t.flags & TASK_GIVEN_EPSILON;
    if (given) {
        ends<S>((const S *)t.spectrum, 1, n, least, largest);
    } else {
        ends<S>(r.h, (u64)n + 1, n, least, largest);
    }
    double base = epsilon_at(t.ratio, t.epsilon, largest);
    return given ? base : fmax(base, t.record[GAUGE_EPSILON]);
}

// What is below the diagonal of H, by strips: sum 0 is that of RC = |(H - D)_ij / sqrt((D_i + e)(D_j + e))|_F, sum 1
// that of |H|_F. In round 0 at the first epsilon, then along the search.
template <typename S>
__device__ inline void drift(const Task *tasks, u32 n, const S *hs, const S *as, const Scale *scales,
                             const Search *searches, double *partials, int round) {
    u32 g = blockIdx.y, first = blockIdx.x * STRIP, columns = min((u32)STRIP, n - first);
    if (round > 0 && !searches[g].more) return;
    const Task &t = tasks[g];
    const S *d = (const S *)t.spectrum;
    Rotated<S> r = rotated<S>(hs, as, scales, n, g);
    double least, largest;
    double epsilon = round > 0 ? searches[g].at : first_epsilon<S>(t, n, r, least, largest);
    __shared__ double weights[STRIP];
    if (threadIdx.x < columns) weights[threadIdx.x] = 1.0 / damped((double)d[first + threadIdx.x], epsilon);
    __syncthreads();
    double change = 0.0, below = 0.0;
    for (u32 i = first + 1 + threadIdx.x; i < n; i += blockDim.x) {
        double weight = 1.0 / damped((double)d[i], epsilon);
        for (u32 c = 0; c < columns && first + c < i; c++) {
            double x = (double)r.h[i + (u64)(first + c) * n] * r.unit;
            change += 2.0 * (x * x * weight) * weights[c];
            below += 2.0 * (x * x);
        }
    }
    change = block_sum(change);
    below = block_sum(below);
    if (threadIdx.x != 0) return;
    double *sums = strip_sums(partials, n);
    sums[0] = change;
    sums[1] = below;
}

// The strips of a factor together with its diagonal: in round 0 RC, alpha and the residual
// |H - diag d|_F / |H|_F with d = max(diag H, 0), which is kept if the policy may adopt it; then a step of the search.
template <typename S>
__device__ inline void judge_drift(const Task *tasks, u32 n, const S *hs, const S *as, const Scale *scales,
                                   Search *searches, const double *partials, int round) {
    u32 g = blockIdx.x;
    const Task &t = tasks[g];
    if (round > 0 && !searches[g].more) return;
    const S *d = (const S *)t.spectrum;
    Rotated<S> r = rotated<S>(hs, as, scales, n, g);
    double nan = __longlong_as_double(0x7ff8000000000000ll), least = nan, largest = nan;
    double epsilon = round > 0 ? searches[g].at : first_epsilon<S>(t, n, r, least, largest);
    double on = 0.0, odd = 0.0, squares = 0.0;
    double *diagonal = round == 0 && (t.flags & TASK_KEEP_DIAGONAL) ? (double *)t.diagonal : 0;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        double x = (double)r.h[i + (u64)i * n] * r.unit, positive = x > 0.0 ? x : 0.0;
        double change = (x - (double)d[i]) / damped((double)d[i], epsilon);
        if (diagonal) diagonal[i] = positive;
        on += change * change;
        odd += (x - positive) * (x - positive);
        squares += x * x;
    }
    double change = sqrt(block_sum(on) + total(partials, n, g, 0)), a = alpha<S>(d, n, t.exponent, epsilon);
    double below = total(partials, n, g, 1), off = block_sum(odd) + below, whole = block_sum(squares) + below;
    if (t.flags & TASK_NOISE) {
        Renewal *renewal = (Renewal *)t.report;
        if (threadIdx.x == 0 && renewal->fresh) renewal->noise = change * a * t.exponent;
        return;
    }
    if (threadIdx.x != 0) return;
    Drift *out = (Drift *)t.report;
    if (round > 0) {
        Search s = searches[g];
        s.more = go_on(s, t, epsilon_at(t.most_ratio, t.most, out->largest), change * a * t.exponent);
        out->epsilon = s.epsilon;
        out->proxy = s.proxy;
        searches[g] = s;
        return;
    }
    Drift found = {change, a,       whole == 0.0 ? 0.0 : sqrt(off / whole), nan, nan, least, largest, nan, RULE_NONE,
                   1,      nan};
    *out = found;
    double base = epsilon_at(t.ratio, t.epsilon, largest);
    Search s = {base, epsilon_at(t.most_ratio, t.most, largest), base, nan, nan, 0, (t.flags & TASK_SEARCH) != 0};
    searches[g] = s;
}

// |A|^2, |Q'Q - I|^2 and |A Q - Q D|^2, by strips. `o` is Q'Q, `image` is A Q.
template <typename E>
__device__ inline void compare(u32 n, const E *as, const E *qs, const E *os, const E *images, const E *ds,
                               double *partials) {
    u64 base = (u64)blockIdx.y * n * n;
    const E *d = ds + (u64)blockIdx.y * n;
    u32 first = blockIdx.x * STRIP, end = min(first + STRIP, n);
    double size = 0.0, wrong = 0.0, missing = 0.0;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        for (u32 j = first; j < end; j++) {
            u64 k = base + i + (u64)j * n;
            double a = (double)as[k], o = (double)os[k] - (i == j ? 1.0 : 0.0);
            double e = (double)images[k] - (double)qs[k] * (double)d[j];
            size += a * a;
            missing += o * o;
            wrong += e * e;
        }
    }
    size = block_sum(size);
    missing = block_sum(missing);
    wrong = block_sum(wrong);
    if (threadIdx.x != 0) return;
    double *sums = strip_sums(partials, n);
    sums[0] = size;
    sums[1] = missing;
    sums[2] = wrong;
}

// |Q'Q - I|^2 alone, by strips. `o` is Q'Q.
template <typename S> __device__ inline void miss(u32 n, const S *os, double *partials) {
    const S *o = os + (u64)blockIdx.y * n * n;
    u32 first = blockIdx.x * STRIP, end = min(first + STRIP, n);
    double missing = 0.0;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        for (u32 j = first; j < end; j++) {
            double x = (double)o[i + (u64)j * n] - (i == j ? 1.0 : 0.0);
            missing += x * x;
        }
    }
    missing = block_sum(missing);
    if (threadIdx.x == 0) strip_sums(partials, n)[0] = missing;
}

// Whether Q is orthogonal and A Q = Q D: what the solver gave is believed only then.
template <typename E>
__device__ inline void verify(const Task *tasks, u32 n, const double *partials, const E *ds, const int *infos,
                              Scale *scales, double tolerance) {
    u32 g = blockIdx.x;
    const E *d = ds + (u64)g * n;
    double least = 0.0, odd = 0.0;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        double x = -(double)d[i];
        least = larger(least, x);
        odd += finite(x) ? 0.0 : 1.0;
    }
    double size = sqrt(total(partials, n, g, 0)), missing = sqrt(total(partials, n, g, 1));
    double wrong = sqrt(total(partials, n, g, 2));
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

// Whether the time of a delayed refresh has come: the clock stands still in a step that the device refuses, which the
// host does not know of yet.
__device__ inline bool is_due(const Task &t) { return t.due == 0 || t.clock->step == t.due; }

// What a refresh came to, before its spectrum is looked at.
__device__ inline void report_renewal(const Task &t, int rung, int fresh, double noise) {
    Renewal *renewal = (Renewal *)t.report;
    renewal->rung = rung;
    renewal->fresh = fresh;
    renewal->noise = noise;
    renewal->steps = -1;
}

// A basis that was found ahead of time is taken over with its spectrum. Where none was found the stale one stays.
template <typename S> __device__ inline void take_found(const Task *tasks, u32 n) {
    const Task &t = tasks[blockIdx.y];
    const Renewal &found = *(const Renewal *)t.renewal;
    bool due = is_due(t), fresh = due && found.fresh;
    if (blockIdx.x == 0 && threadIdx.x == 0) report_renewal(t, due ? found.rung : RUNG_NONE, fresh, found.noise);
    if (!fresh) return;
    u64 squares = (u64)n * n, numbers = squares + n;
    const S *from = (const S *)t.found;
    for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < numbers; k += (u64)gridDim.x * blockDim.x) {
        if (k < squares) {
            ((S *)t.basis)[k] = from[k];
            continue;
        }
        ((S *)t.spectrum)[k - squares] = from[k];
        if (t.fresh) ((S *)t.fresh)[k - squares] = from[k];
    }
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
    bool diagonal = !scale.sound && !(t.flags & TASK_HAS_BASIS), due = is_due(t);
    bool fresh = due && (scale.sound || diagonal);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        int came_to = due ? (scale.sound ? rung : RUNG_STALE) : RUNG_NONE;
        report_renewal(t, came_to, fresh, __longlong_as_double(0x7ff8000000000000ll));
    }
    if (!fresh) return;
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
        if (renewal.rung == RUNG_NONE) {
            epsilon = t.record[GAUGE_EPSILON];
        } else {
            epsilon = renewal.rung == RUNG_STALE ? epsilon_at(t.most_ratio, t.most, renewal.most)
                                                 : epsilon_at(t.ratio, t.epsilon, renewal.most);
            choose(*(const Choice *)t.choice, epsilon);
        }
    }
    S *d = (S *)t.spectrum;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        if (t.flags & TASK_ADOPT_DIAGONAL) d[i] = (S)((const double *)t.diagonal)[i];
        double x = (double)d[i];
        x = (x > 0.0 ? x : 0.0) + epsilon;
        weights[i] = (t.flags & TASK_RELATIVE) ? root_weight(x, t.exponent) : power(x, -0.5 * t.exponent);
    }
}

// Whether there is a new inverse root: not of a delayed refresh whose time has not come.
__device__ inline bool is_renewed(const Task &t) {
    return !(t.flags & TASK_AFTER_REFRESH) || ((const Renewal *)t.report)->rung != RUNG_NONE;
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
    if (!is_renewed(tasks[blockIdx.x])) return;
    S *roots = (S *)tasks[blockIdx.x].inverse_root;
    const double *weights = all_weights + (u64)blockIdx.x * n;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) roots[i] = (S)weights[i] * (S)weights[i];
}

// The inverse root B B', symmetric to the last bit, in the precision of the work.
template <typename S, typename W> __device__ inline void keep_root(const Task *tasks, u32 n, const S *products) {
    if (!is_renewed(tasks[blockIdx.y])) return;
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
    KERNEL foam_peak_##suffix(const Task *tasks, u32 n, double *partials) { peak<S>(tasks, n, partials); }     \
    KERNEL foam_drift_##suffix(const Task *tasks, u32 n, const S *h, const S *a, const Scale *scales,          \
                               const Search *searches, double *partials, int round) {                          \
        drift<S>(tasks, n, h, a, scales, searches, partials, round);                                           \
    }                                                                                                          \
    ROOMY foam_judge_drift_##suffix(const Task *tasks, u32 n, const S *h, const S *a, const Scale *scales,     \
                                    Search *searches, const double *partials, int round) {                     \
        judge_drift<S>(tasks, n, h, a, scales, searches, partials, round);                                     \
    }                                                                                                          \
    KERNEL foam_compare_##suffix(u32 n, const S *a, const S *q, const S *o, const S *image, const S *d,        \
                                 double *partials) {                                                           \
        compare<S>(n, a, q, o, image, d, partials);                                                            \
    }                                                                                                          \
    KERNEL foam_miss_##suffix(u32 n, const S *o, double *partials) { miss<S>(n, o, partials); }                \
    KERNEL foam_verify_##suffix(const Task *tasks, u32 n, const double *partials, const S *d,                  \
                                const int *infos, Scale *scales, double tolerance) {                           \
        verify<S>(tasks, n, partials, d, infos, scales, tolerance);                                            \
    }                                                                                                          \
    KERNEL foam_keep_##suffix(const Task *tasks, u32 n) { keep<S>(tasks, n); }                                 \
    KERNEL foam_take_found_##suffix(const Task *tasks, u32 n) { take_found<S>(tasks, n); }                     \
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
    KERNEL foam_fetch_##suffix(const Task *tasks, u32 n, E *a, E *q, E *twin, Scale *scales,                   \
                               const double *peaks) {                                                          \
        fetch<S, E>(tasks, n, a, q, twin, scales, peaks);                                                      \
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
