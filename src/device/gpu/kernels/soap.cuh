// The kernels of SOAP: Adam in the basis, the gauge kappa, and the refresh of a basis with the moments in it.
// All matrices are column-major, one eigenvector per column of a basis.
#pragma once
#include "factor.cuh"
#include "step.cuh"

// What a step does with a block: Adam as it is, Adam in the basis, or only its first gradient is taken in.
enum { TURN_NONE = 0, TURN_BASIS = 1, TURN_FIRST = 2 };

template <typename W> __device__ inline bool formed(const W *column, u32 n) {
    double any = 0.0;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) any = column[i] != (W)0 ? 1.0 : any;
    return block_max(any) > 0.0;
}

// Works out what the step does with a block, whose order is that of its clock: the first gradient makes the basis and
// nothing else, n = t - 1 steps have been taken; a basis that never was made is zero.
__device__ inline void prepare(const Stack &s, const Rules &r, int in_basis) {
    int b = blockIdx.x;
    bool rotated = s.factors > 0;
    for (int axis = 0; rotated && axis < s.factors; axis++) {
        if (!s.roots[axis]) continue;
        u64 at = (u64)b * s.dims[axis] * s.dims[axis];
        rotated = s.wide ? formed((const double *)s.roots[axis] + at, s.dims[axis])
                         : formed((const float *)s.roots[axis] + at, s.dims[axis]);
    }
    if (threadIdx.x != 0) return;
    Order o = s.orders[b];
    Site site = s.sites[b];
    u64 step = s.clocks[b].step;
    bool first = o.active && step <= 1;
    o.active = o.active && !first;
    o.turn = o.active && rotated ? TURN_BASIS : first && in_basis && s.factors > 0 ? TURN_FIRST : TURN_NONE;
    if (in_basis) {
        // The statistic decays in every step that it takes part in: its clock carries nothing.
        bool sums = r.beta2 >= 1.0, adds = o.turn != TURN_NONE && accumulates(r.statistics_period, step);
        o.decay = !adds || sums ? 1.0 : r.beta2;
        o.gain_root = !adds ? 0.0 : sums ? 1.0 : sqrt(1.0 - r.beta2);
    }
    if (o.active) {
        o.filter = bias_correction(r.filter_correction, r.log_beta1, step - 1);
        o.moment = bias_correction(r.moment_correction, r.log_moment, step - 1);
        // The decay acts after the step: W <- (W + s u)(1 + s decay).
        o.length = sqrt(o.moment) / o.filter * (1.0 + r.scale * site.lr_scale * site.decay);
    }
    s.orders[b] = o;
}

// The gradient of the blocks with a basis; zeros for the others.
template <typename W> __device__ inline void load_gradient(const Stack &s, const Rules &r) {
    int b = blockIdx.y;
    Site site = s.sites[b];
    bool wanted = s.orders[b].turn == TURN_BASIS;
    W *out = (W *)s.work + (u64)b * s.elements;
    u32 first = blockIdx.x * s.chunk;
    u32 end = min(first + s.chunk, s.elements);
    for (u32 e = first + threadIdx.x; e < end; e += blockDim.x) {
        out[e] = wanted ? gradient<W>(s, r, site, place(s, e)) : (W)0;
    }
}

// What the statistics in the basis take in: the projected gradient, or the first one as it is, times the root of its
// gain.
template <typename W, typename S>
__device__ inline void collect(const Stack &s, const Rules &r, const W *projected, S *all) {
    int b = blockIdx.y;
    Site site = s.sites[b];
    Order o = s.orders[b];
    u64 base = (u64)b * s.elements;
    u32 first = blockIdx.x * s.chunk;
    u32 end = min(first + s.chunk, s.elements);
    for (u32 e = first + threadIdx.x; e < end; e += blockDim.x) {
        S x = (S)0;
        if (o.turn == TURN_BASIS) x = (S)o.gain_root * (S)projected[base + e];
        if (o.turn == TURN_FIRST) x = (S)o.gain_root * gradient<S>(s, r, site, place(s, e));
        all[base + e] = x;
    }
}

// sqrt(v) + epsilon. Where no gradient was ever felt there is no step, not 0/0.
template <typename W> __device__ inline W divisor(const Rules &r, W v, double largest) {
    W d = sqrt(v) + (W)r.moment_epsilon;
    return d > (W)0 ? d : (W)largest;
}

// m and v take the gradient, in the basis where there is one, which becomes m / (sqrt(v) + epsilon). A block without a
// basis takes its step at once, unless the length has to be known first.
template <typename W>
__device__ inline void moments(const Stack &s, const Rules &r, W *x, int normalizes, double largest) {
    int b = blockIdx.y;
    Site site = s.sites[b];
    Order o = s.orders[b];
    u32 first = blockIdx.x * s.chunk;
    u32 end = min(first + s.chunk, s.elements);
    double sum = 0.0;
    for (u32 e = first + threadIdx.x; e < end; e += blockDim.x) {
        u64 at = (u64)b * s.elements + e;
        if (!o.active) {
            if (s.update) store<W>((u64)s.update, s.update_dtype, at, (W)0);
            continue;
        }
        u64 here = place(s, e);
        W g = o.turn == TURN_BASIS ? x[at] : gradient<W>(s, r, site, here);
        W scale = (W)1;
        if (s.moment) {
            W *v = (W *)s.moment + at;
            W moved = (W)r.moment_keep * *v + (W)r.moment_take * (g * g);
            *v = moved;
            scale = divisor<W>(r, moved, largest);
        }
        if (s.filter) {
            W *m = (W *)s.filter + at;
            g = (W)r.beta1 * *m + (W)(1.0 - r.beta1) * g;
            *m = g;
        }
        W d = g / scale;
        sum += (double)d * (double)d;
        if (o.turn == TURN_BASIS) {
            x[at] = d;
        } else if (!normalizes) {
            finish<W>(s, r, site, b, e, here, (W)o.length * d);
        }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) s.partials[(u64)b * 2 * s.chunks + blockIdx.x] = sum;
}

// A direction that is not finite gets the length 0 and is left out. The basis is orthogonal: the length of a direction
// in it is the length.
__device__ inline void direction_length(const Stack &s, Gate *gate, int normalizes) {
    int b = blockIdx.x;
    double squares = 0.0;
    for (int c = threadIdx.x; c < s.chunks; c += blockDim.x) squares += s.partials[(u64)b * 2 * s.chunks + c];
    squares = block_sum(squares);
    Order &o = s.orders[b];
    if (threadIdx.x != 0 || !o.active || (o.turn != TURN_BASIS && !normalizes)) return;
    if (!finite(squares)) {
        o.length = 0.0;
        s.info[b] |= INFO_LEFT_OUT;
        if (gate) atomicAdd(&gate->left_out, 1ull);
    } else if (normalizes) {
        o.length /= TINY_RMS + sqrt(squares / (double)s.elements);
    }
}

// The direction, turned back, takes its length, and the parameter its step. Where there is no basis the moments have
// the direction.
template <typename W>
__device__ inline void finish_direction(const Stack &s, const Rules &r, const W *direction, int normalizes,
                                        double largest) {
    int b = blockIdx.y;
    Order o = s.orders[b];
    if (!o.active || (o.turn != TURN_BASIS && !normalizes)) return;
    Site site = s.sites[b];
    W length = (W)o.length;
    u32 first = blockIdx.x * s.chunk;
    u32 end = min(first + s.chunk, s.elements);
    for (u32 e = first + threadIdx.x; e < end; e += blockDim.x) {
        u64 at = (u64)b * s.elements + e, here = place(s, e);
        W d;
        if (o.turn == TURN_BASIS) {
            d = direction[at];
        } else {
            d = s.filter ? ((const W *)s.filter)[at] : gradient<W>(s, r, site, here);
            if (s.moment) d /= divisor<W>(r, ((const W *)s.moment)[at], largest);
        }
        finish<W>(s, r, site, b, e, here, length == (W)0 ? (W)0 : length * d);
    }
}

// ---- a check

// A, if asked for, becomes the statistic, whole and scaled; Q, if asked for, the basis.
template <typename S, typename W> __device__ inline void fetch_turn(const Task *tasks, u32 n, S *a, S *q) {
    Task t = tasks[blockIdx.y];
    u64 numbers = (u64)n * n, base = blockIdx.y * numbers;
    double scale = statistic_scale(t);
    for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < numbers; k += (u64)gridDim.x * blockDim.x) {
        u64 i = k % n, j = k / n;
        if (a) a[base + k] = (S)((double)((const S *)t.statistic)[i >= j ? k : j + i * n] * scale);
        if (q) q[base + k] = (S)((const W *)t.basis)[k];
    }
}

// kappa of H: with a = max(diag H, 0) + floor * max diag H,
// kappa^2 = 1/n sum_{i<j} H_ij^2 / (a_i a_j) * (a_i + a_j) / (sqrt a_i + sqrt a_j)^2.
// For a refresh also the ends of the diagonal, and its falling order.
template <typename S> __device__ inline double gauge_root(const S *h, u32 n, u32 i, double largest) {
    double d = (double)h[(u64)i * (n + 1)];
    return sqrt((d > 0.0 ? d : 0.0) + KAPPA_FLOOR * largest);
}

// The sum by strips.
template <typename S> __device__ inline void gauge(u32 n, const S *hs, double *partials) {
    const S *h = hs + (u64)blockIdx.y * n * n;
    u32 first = blockIdx.x * STRIP, columns = min((u32)STRIP, n - first);
    double least, largest, sum = 0.0;
    ends<S>(h, (u64)n + 1, n, least, largest);
    __shared__ double own[STRIP];
    if (threadIdx.x < columns) own[threadIdx.x] = gauge_root<S>(h, n, first + threadIdx.x, largest);
    __syncthreads();
    // A statistic of zeros is diagonal in every basis.
    for (u32 i = first + 1 + threadIdx.x; largest > 0.0 && i < n; i += blockDim.x) {
        double root = gauge_root<S>(h, n, i, largest);
        for (u32 c = 0; c < columns && first + c < i; c++) {
            double x = (double)h[i + (u64)(first + c) * n] / (root * own[c] * (root + own[c]));
            sum += x * x * (root * root + own[c] * own[c]);
        }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) strip_sums(partials, n)[0] = sum;
}

template <typename S>
__device__ inline void judge_gauge(const Task *tasks, u32 n, const S *hs, const double *partials, u32 *all_orders) {
    u32 g = blockIdx.x;
    const Task &t = tasks[g];
    const S *h = hs + (u64)g * n * n;
    double least, largest;
    ends<S>(h, (u64)n + 1, n, least, largest);
    double kappa = sqrt(total(partials, n, g, 0) / (double)n);
    if (all_orders) rank<S>(h, (u64)n + 1, n, all_orders + (u64)g * n);
    if (threadIdx.x != 0) return;
    if (all_orders) {
        Renewal *renewal = (Renewal *)t.report;
        renewal->least = least;
        renewal->most = largest;
        renewal->kappa = kappa;
    } else {
        double nan = __longlong_as_double(0x7ff8000000000000ll);
        Drift out = {nan, nan, nan, nan, nan, nan, nan, nan, RULE_NONE, 1, kappa};
        *(Drift *)t.report = out;
    }
}

// The columns in their new order, times a power of two that brings the largest near one: it costs no digits, and keeps
// the squares of a reflection in range. What is not finite must not reach the solver.
template <typename S>
__device__ inline void reorder(const S *from_all, u32 n, S *to_all, const u32 *all_orders, Scale *scales) {
    u64 numbers = (u64)n * n, base = blockIdx.x * numbers;
    const S *from = from_all + base;
    const u32 *order = all_orders + (u64)blockIdx.x * n;
    double largest = 0.0;
    for (u64 k = threadIdx.x; k < numbers; k += blockDim.x) {
        double x = fabs((double)from[k]);
        largest = (x <= largest) ? largest : x;
    }
    largest = block_max(largest);
    Scale own = unit_of(largest);
    for (u64 k = threadIdx.x; k < numbers; k += blockDim.x) {
        u64 i = k % n, j = k / n;
        to_all[base + k] = own.finite ? from[i + (u64)order[j] * n] * (S)own.unit : (S)(i == j ? 1 : 0);
    }
    if (threadIdx.x == 0) scales[blockIdx.x] = own;
}

// Whether the solver's factor is orthogonal: it is believed only then. `o` is Q'Q.
__device__ inline void judge_turn(const Task *tasks, u32 n, const double *partials, const int *infos, Scale *scales,
                                  double tolerance) {
    const Task &t = tasks[blockIdx.x];
    double missing = sqrt(total(partials, n, blockIdx.x, 0));
    if (threadIdx.x != 0) return;
    // Written so that a sum that is not a number refuses.
    bool sound = scales[blockIdx.x].finite && infos[blockIdx.x] == 0 && missing <= tolerance * sqrt((double)n) &&
                 !(t.flags & TASK_FAIL);
    scales[blockIdx.x].sound = sound;
    Renewal *renewal = (Renewal *)t.report;
    renewal->noise = __longlong_as_double(0x7ff8000000000000ll);
    renewal->rung = sound ? RUNG_CHOSEN : RUNG_STALE;
    renewal->fresh = sound;
    renewal->steps = -1;
}

// The first basis: the eigenvectors, the largest eigenvalue first. The statistic in that basis is their diagonal.
template <typename S, typename E>
__device__ inline void sort_basis(const Task *tasks, u32 n, const E *qs, const E *ds, const Scale *scales, S *sorted,
                                  u32 *all_orders, int rung) {
    const Task &t = tasks[blockIdx.x];
    Scale scale = scales[blockIdx.x];
    u64 numbers = (u64)n * n, base = blockIdx.x * numbers;
    const E *d = ds + (u64)blockIdx.x * n;
    u32 *order = all_orders + (u64)blockIdx.x * n;
    S *statistic = (S *)t.statistic;
    Renewal own;
    if (scale.sound) {
        ends<E>(d, 1, n, own.least, own.most);
        own.least /= scale.unit;
        own.most /= scale.unit;
    } else {
        ends<S>(statistic, (u64)n + 1, n, own.least, own.most);
        own.least *= statistic_scale(t);
        own.most *= statistic_scale(t);
    }
    rank<E>(d, 1, n, order);
    for (u64 k = threadIdx.x; k < numbers; k += blockDim.x) {
        u64 i = k % n, j = k / n;
        sorted[base + k] = scale.sound ? (S)qs[base + i + (u64)order[j] * n] : (S)(i == j ? 1 : 0);
        if (!scale.sound || !(t.flags & TASK_PLAIN)) continue;
        double x = i == j ? (double)d[order[j]] / scale.unit : 0.0;
        statistic[k] = (S)(x > 0.0 ? x : 0.0);
    }
    if (threadIdx.x != 0) return;
    own.noise = own.kappa = __longlong_as_double(0x7ff8000000000000ll);
    own.steps = -1;
    own.rung = scale.sound ? rung : RUNG_STALE;
    own.fresh = scale.sound || !(t.flags & TASK_HAS_BASIS);
    *(Renewal *)t.report = own;
}

// A sound basis is taken over; otherwise the stale one stays, or, where there is none, Adam works as it is.
template <typename S, typename W>
__device__ inline void take_basis(const Task *tasks, u32 n, const S *news, const Scale *scales) {
    Task t = tasks[blockIdx.y];
    bool sound = scales[blockIdx.y].sound;
    if (!sound && (t.flags & TASK_HAS_BASIS)) return;
    u64 numbers = (u64)n * n;
    for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < numbers; k += (u64)gridDim.x * blockDim.x) {
        ((W *)t.basis)[k] = sound ? (W)news[blockIdx.y * numbers + k] : (W)(k % n == k / n ? 1 : 0);
    }
}

// Q <- 1.5 Q - 0.5 P, P = Q Q'Q, where asked for.
template <typename S, typename W>
__device__ inline void polish(const Task *tasks, u32 n, const S *qs, const S *ps, const Scale *scales) {
    Task t = tasks[blockIdx.y];
    if (!scales[blockIdx.y].sound || !(t.flags & TASK_POLISH)) return;
    u64 numbers = (u64)n * n, base = blockIdx.y * numbers;
    for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < numbers; k += (u64)gridDim.x * blockDim.x) {
        ((W *)t.basis)[k] = (W)((S)-0.5 * ps[base + k] + (S)1.5 * qs[base + k]);
    }
}

// The statistic in the new basis, symmetric to the last bit.
template <typename S>
__device__ inline void take_statistic(const Task *tasks, u32 n, const S *hs, const Scale *scales) {
    if (!scales[blockIdx.y].sound) return;
    S *statistic = (S *)tasks[blockIdx.y].statistic;
    u64 numbers = (u64)n * n;
    const S *h = hs + blockIdx.y * numbers;
    for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < numbers; k += (u64)gridDim.x * blockDim.x) {
        u64 i = k % n, j = k / n;
        statistic[k] = h[i >= j ? k : j + i * n];
    }
}

// Matrices in the precision of the work.
template <typename S, typename W> __device__ inline void narrow(u32 n, const S *from, W *to) {
    u64 numbers = (u64)n * n, base = blockIdx.y * numbers;
    for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < numbers; k += (u64)gridDim.x * blockDim.x) {
        to[base + k] = (W)from[base + k];
    }
}

// m (or v) of the blocks of some factors, one behind the other.
template <typename W> __device__ inline void pick(const Task *tasks, u32 elements, int second, W *out) {
    Task t = tasks[blockIdx.y];
    const W *from = (const W *)(second ? t.moment : t.filter);
    for (u32 e = blockIdx.x * blockDim.x + threadIdx.x; e < elements; e += gridDim.x * blockDim.x) {
        out[(u64)blockIdx.y * elements + e] = from[e];
    }
}

// The way back for the factors with a new basis: m as it is, v with its rows along the axis in their new order.
template <typename W>
__device__ inline void lay(const Task *tasks, u32 elements, int second, const W *all, const Scale *scales, u32 dim,
                           u32 inner, const u32 *all_orders) {
    if (!scales[blockIdx.y].sound) return;
    Task t = tasks[blockIdx.y];
    W *to = (W *)(second ? t.moment : t.filter);
    const W *from = all + (u64)blockIdx.y * elements;
    const u32 *order = all_orders + (u64)blockIdx.y * dim;
    for (u32 e = blockIdx.x * blockDim.x + threadIdx.x; e < elements; e += gridDim.x * blockDim.x) {
        u32 source = e;
        if (second) {
            u32 i = e % inner, rest = e / inner;
            source = (rest - rest % dim + order[rest % dim]) * inner + i;
        }
        to[e] = from[source];
    }
}

// The records of pending refreshes become those that fit how the refreshes went.
KERNEL foam_soap_settle(const Choice *choices) {
    const Choice &c = choices[blockIdx.x];
    const u32 *chosen = c.renewal->rung == RUNG_STALE ? c.failure : c.success;
    choose(c, ((const double *)chosen)[GAUGE_EPSILON]);
    if (threadIdx.x == 0) ((double *)c.record)[GAUGE_KAPPA] = c.renewal->kappa;
}

ROOMY foam_soap_prepare(Stack s, Rules r, int in_basis) { prepare(s, r, in_basis); }
KERNEL foam_soap_length(Stack s, Gate *gate, int normalizes) { direction_length(s, gate, normalizes); }

#define SOAP_STEP_KERNELS(suffix, W, largest)                                                                  \
    KERNEL foam_soap_load_##suffix(Stack s, Rules r) { load_gradient<W>(s, r); }                               \
    KERNEL foam_soap_moments_##suffix(Stack s, Rules r, W *x, int normalizes) {                                \
        moments<W>(s, r, x, normalizes, largest);                                                              \
    }                                                                                                          \
    KERNEL foam_soap_update_##suffix(Stack s, Rules r, const W *direction, int normalizes) {                   \
        finish_direction<W>(s, r, direction, normalizes, largest);                                             \
    }                                                                                                          \
    KERNEL foam_soap_pick_##suffix(const Task *tasks, u32 elements, int second, W *out) {                      \
        pick<W>(tasks, elements, second, out);                                                                 \
    }                                                                                                          \
    KERNEL foam_soap_lay_##suffix(const Task *tasks, u32 elements, int second, const W *from,                  \
                                  const Scale *scales, u32 dim, u32 inner, const u32 *orders) {                \
        lay<W>(tasks, elements, second, from, scales, dim, inner, orders);                                     \
    }

#define SOAP_KERNELS(suffix, S)                                                                                \
    KERNEL foam_soap_gauge_##suffix(u32 n, const S *h, double *partials) { gauge<S>(n, h, partials); }         \
    KERNEL foam_soap_judge_gauge_##suffix(const Task *tasks, u32 n, const S *h, const double *partials,        \
                                          u32 *orders) {                                                       \
        judge_gauge<S>(tasks, n, h, partials, orders);                                                         \
    }                                                                                                          \
    KERNEL foam_soap_reorder_##suffix(const S *from, u32 n, S *to, const u32 *orders, Scale *scales) {         \
        reorder<S>(from, n, to, orders, scales);                                                               \
    }                                                                                                          \
    KERNEL foam_soap_statistic_##suffix(const Task *tasks, u32 n, const S *h, const Scale *scales) {           \
        take_statistic<S>(tasks, n, h, scales);                                                                \
    }

KERNEL foam_soap_judge(const Task *tasks, u32 n, const double *partials, const int *infos, Scale *scales,
                       double tolerance) {
    judge_turn(tasks, n, partials, infos, scales, tolerance);
}

#define SOAP_SORT_KERNELS(suffix, S, E)                                                                        \
    ROOMY foam_soap_sort_##suffix(const Task *tasks, u32 n, const E *q, const E *d, const Scale *scales,      \
                                   S *sorted, u32 *orders, int rung) {                                         \
        sort_basis<S, E>(tasks, n, q, d, scales, sorted, orders, rung);                                        \
    }

#define SOAP_MIXED_KERNELS(suffix, S, W)                                                                       \
    KERNEL foam_soap_collect_##suffix(Stack s, Rules r, const W *projected, S *out) {                          \
        collect<W, S>(s, r, projected, out);                                                                   \
    }                                                                                                          \
    KERNEL foam_soap_fetch_##suffix(const Task *tasks, u32 n, S *a, S *q) { fetch_turn<S, W>(tasks, n, a, q); } \
    KERNEL foam_soap_take_##suffix(const Task *tasks, u32 n, const S *q, const Scale *scales) {                \
        take_basis<S, W>(tasks, n, q, scales);                                                                 \
    }                                                                                                          \
    KERNEL foam_soap_polish_##suffix(const Task *tasks, u32 n, const S *q, const S *p, const Scale *scales) {  \
        polish<S, W>(tasks, n, q, p, scales);                                                                  \
    }                                                                                                          \
    KERNEL foam_soap_narrow_##suffix(u32 n, const S *from, W *to) { narrow<S, W>(n, from, to); }

SOAP_STEP_KERNELS(f32, float, 3.40282346638528859812e+38)
SOAP_STEP_KERNELS(f64, double, 1.79769313486231570815e+308)
SOAP_KERNELS(f32, float)
SOAP_KERNELS(f64, double)
SOAP_SORT_KERNELS(f32_f32, float, float)
SOAP_SORT_KERNELS(f32_f64, float, double)
SOAP_SORT_KERNELS(f64_f64, double, double)
SOAP_MIXED_KERNELS(f32_f32, float, float)
SOAP_MIXED_KERNELS(f32_f64, float, double)
SOAP_MIXED_KERNELS(f64_f32, double, float)
SOAP_MIXED_KERNELS(f64_f64, double, double)
