// The kernels of a refresh by QR steps Q <- qr(A Q), for factors of equal side. With H = Q'AQ, its columns in falling
// order of the diagonal, and H + sI = L L', the columns of L span what those of H + sI span, so that qr(L) turns Q: it
// is Z = L R^-1 with L'L = R'R, the square of whose condition is only that of H. One step of Newton and Schulz on Q Z
// makes up for the rest, and what is left is measured and charged to the bound.
// A factor whose bound is at most tau, or that has taken its steps, is left alone.
#pragma once
#include "certify.cuh"

// Lists of pointers to the matrices of a group, for the batched solvers: those of each of the four, one behind the other.
KERNEL foam_point(u64 *lists, u64 a, u64 b, u64 c, u64 d, u64 bytes, u32 count) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    lists[i] = a + i * bytes;
    lists[count + i] = b + i * bytes;
    lists[2 * count + i] = c + i * bytes;
    lists[3 * count + i] = d + i * bytes;
}

// The state before the first step: a factor without a basis starts from I. Of a later statistic nothing is known but
// that it is not negative, until a step has bounded it.
template <typename S> __device__ inline void start_steps(const Task *tasks, u32 n) {
    Task t = tasks[blockIdx.y];
    bool first = !(t.flags & TASK_HAS_BASIS);
    double scale = statistic_scale(t);
    u64 numbers = (u64)n * n;
    for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < numbers; k += (u64)gridDim.x * blockDim.x) {
        u64 i = k % n, j = k / n;
        if (first) ((S *)t.basis)[k] = (S)(i == j ? 1 : 0);
        if (i != j) continue;
        double x = (double)((const S *)t.statistic)[k] * scale;
        if (first) ((S *)t.spectrum)[j] = (S)(x > 0.0 && finite(x) ? x : 0.0);
        ((S *)t.fresh)[j] = (S)0;
    }
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    double nan = __longlong_as_double(0x7ff8000000000000ll), infinity = __longlong_as_double(0x7ff0000000000000ll);
    Renewal own = {nan, nan, nan, RUNG_SHORT, 1, nan, infinity, nan, 0, 0};
    *(Renewal *)t.renewal = own;
}

// H + sI in falling order of its diagonal, times a power of two that brings it near one. The shift keeps rounding from
// making it indefinite; it is far below epsilon, which hides what it changes. What is not finite must not reach the solver.
template <typename S>
__device__ inline void arrange(const Task *tasks, u32 n, const S *hs, S *out, u32 *all_orders, Scale *scales) {
    const Task &t = tasks[blockIdx.x];
    u64 numbers = (u64)n * n, base = blockIdx.x * numbers;
    const S *h = hs + base;
    u32 *order = all_orders + (u64)blockIdx.x * n;
    double largest = 0.0, least, most;
    for (u64 k = threadIdx.x; k < numbers; k += blockDim.x) {
        double x = fabs((double)h[k]);
        largest = (x <= largest) ? largest : x;
    }
    largest = block_max(largest);
    ends<S>(h, (u64)n + 1, n, least, most);
    double rounding = sizeof(S) == 4 ? 5.9604644775390625e-8 : 1.1102230246251565e-16;
    double shift = fmax(0.1 * epsilon_at(t.ratio, t.epsilon, most), 8.0 * sqrt((double)n) * rounding * most);
    Scale own = unit_of(largest);
    if (own.finite && shift > largest) own = unit_of(shift);
    rank<S>(h, (u64)n + 1, n, order);
    for (u64 k = threadIdx.x; k < numbers; k += blockDim.x) {
        u64 i = k % n, j = k / n, a = order[i], b = order[j];
        double x = (double)h[a >= b ? a + b * n : b + a * n] + (i == j ? shift : 0.0);
        out[base + k] = own.finite ? (S)(x * own.unit) : (S)(i == j ? 1 : 0);
    }
    if (threadIdx.x == 0) scales[blockIdx.x] = own;
}

// L from its lower triangle, its rows where the columns of Q are.
template <typename S> __device__ inline void spread(u32 n, const S *ls, S *out, const u32 *all_orders) {
    u64 numbers = (u64)n * n, base = blockIdx.y * numbers;
    const u32 *order = all_orders + (u64)blockIdx.y * n;
    for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < numbers; k += (u64)gridDim.x * blockDim.x) {
        u64 i = k % n, j = k / n;
        out[base + order[i] + j * n] = i >= j ? ls[base + k] : (S)0;
    }
}

// Q <- 1.5 Q - 0.5 P, P = Q Q'Q.
template <typename S> __device__ inline void straighten(u32 n, S *qs, const S *ps) {
    u64 numbers = (u64)n * n, base = blockIdx.y * numbers;
    for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < numbers; k += (u64)gridDim.x * blockDim.x) {
        qs[base + k] = (S)-0.5 * ps[base + k] + (S)1.5 * qs[base + k];
    }
}

// |Q'Q - I|_F of a step, and whether its basis is believed. `o` is Q'Q; there are two answers of the solver.
__device__ inline void judge_step(const Task *tasks, u32 n, const double *partials, const int *infos, Scale *scales,
                                  double tolerance) {
    const Task &t = tasks[blockIdx.x];
    double missing = sqrt(total(partials, n, blockIdx.x, 0));
    if (threadIdx.x != 0) return;
    // Written so that a sum that is not a number refuses.
    scales[blockIdx.x].sound = scales[blockIdx.x].finite && infos[blockIdx.x] == 0 && infos[gridDim.x + blockIdx.x] == 0 &&
                               missing <= tolerance * sqrt((double)n);
    ((Drift *)t.report)->orthogonality = missing;
}

// What becomes of a step: a basis that is believed is taken, with diag H as spectrum and, as H + eI >= (1 - m)(diag H + e),
// a lower bound of H; it serves if its bound is at most tau.
template <typename S> __device__ inline void rule_step(const Task *tasks, u32 n, Scale *scales) {
    const Task &t = tasks[blockIdx.x];
    const Drift &found = *(const Drift *)t.report;
    Renewal *renewal = (Renewal *)t.renewal;
    bool open = renewal->rung == RUNG_SHORT && renewal->steps < t.steps, taken = open && scales[blockIdx.x].sound;
    double epsilon = epsilon_at(t.ratio, t.epsilon, found.largest), kept = fmax(0.0, 1.0 - found.loss);
    for (u32 i = threadIdx.x; taken && i < n; i += blockDim.x) {
        double d = ((const double *)t.diagonal)[i];
        ((S *)t.spectrum)[i] = (S)d;
        ((S *)t.fresh)[i] = (S)(kept * (d + epsilon) - epsilon);
    }
    __syncthreads();
    double least, largest;
    ends<S>((const S *)t.spectrum, 1, n, least, largest);
    if (threadIdx.x != 0) return;
    scales[blockIdx.x].sound = taken;
    if (open) {
        renewal->least = least;
        renewal->most = largest;
    }
    if (!taken) return;
    renewal->steps += 1;
    renewal->orthogonality = found.orthogonality;
    // What exceeded tau is a lower bound.
    bool known = found.rule != RULE_EXCEEDED && found.bound == found.bound;
    renewal->bound = known ? found.bound : __longlong_as_double(0x7ff0000000000000ll);
    if (renewal->bound <= t.target) renewal->rung = RUNG_CHOSEN;
}

template <typename S> __device__ inline void take_step(const Task *tasks, u32 n, const S *qs, const Scale *scales) {
    if (!scales[blockIdx.y].sound) return;
    u64 numbers = (u64)n * n;
    S *basis = (S *)tasks[blockIdx.y].basis;
    for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < numbers; k += (u64)gridDim.x * blockDim.x) {
        basis[k] = qs[blockIdx.y * numbers + k];
    }
}

#define QR_KERNELS(suffix, S)                                                                                  \
    KERNEL foam_qr_start_##suffix(const Task *tasks, u32 n) { start_steps<S>(tasks, n); }                      \
    KERNEL foam_qr_arrange_##suffix(const Task *tasks, u32 n, const S *h, S *out, u32 *orders, Scale *scales) { \
        arrange<S>(tasks, n, h, out, orders, scales);                                                          \
    }                                                                                                          \
    KERNEL foam_qr_spread_##suffix(u32 n, const S *l, S *out, const u32 *orders) {                             \
        spread<S>(n, l, out, orders);                                                                          \
    }                                                                                                          \
    KERNEL foam_qr_straighten_##suffix(u32 n, S *q, const S *p) { straighten<S>(n, q, p); }                    \
    KERNEL foam_qr_rule_##suffix(const Task *tasks, u32 n, Scale *scales) { rule_step<S>(tasks, n, scales); }  \
    KERNEL foam_qr_take_##suffix(const Task *tasks, u32 n, const S *q, const Scale *scales) {                  \
        take_step<S>(tasks, n, q, scales);                                                                     \
    }

QR_KERNELS(f32, float)
QR_KERNELS(f64, double)

KERNEL foam_qr_judge(const Task *tasks, u32 n, const double *partials, const int *infos, Scale *scales,
                     double tolerance) {
    judge_step(tasks, n, partials, infos, scales, tolerance);
}
