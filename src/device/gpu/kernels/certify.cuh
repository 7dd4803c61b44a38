// The kernels of a certificate: proven bounds of the gap of factors of equal side, by the rules of the CPU in their order.
// Every pass over a matrix is cut into strips or tiles, so that a large factor does not wait for one thread block.
#pragma once
#include "factor.cuh"

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

// The largest m, but for rounding, for which the spectral form is at most `target`; 0 if there is none.
__device__ inline double spectral_loss(double exponent, double target, double gain) {
    if (spectral_form(exponent, 0.0, gain) > target) return 0.0;
    return fmax(1.0 - 1e-12 - power(1.0 + target, -1.0 / exponent), 0.0);
}

// The remainder of the first order, as in bound.rs: |L|^2 and t, both divided by |f(B)|^2.
struct Remainder {
    double exponent, first, second;
};

// Its bound for M >= -m.
__device__ inline double remainder_bound(const Remainder &r, double m) {
    if (m >= 1.0) return __longlong_as_double(0x7ff0000000000000ll);
    if (m <= 0.0 || r.second == 0.0) return sqrt(r.first);
    double diagonal = m * r.second / ((1.0 - m) * (m + r.second));
    return sqrt(r.first + (r.exponent * m + power(1.0 - m, -r.exponent) - 1.0) * diagonal);
}

// The largest m, up to a millionth, whose bound is at most `target`; 0 if there is none.
__device__ inline double remainder_loss(const Remainder &r, double target) {
    double low = 0.0, high = 1.0;
#pragma unroll 1
    for (int round = 0; round < 20; round++) {
        double middle = 0.5 * (low + high);
        if (remainder_bound(r, middle) <= target) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

// What M >= -loss gives, with the proxy h.
__device__ inline double bound_by_loss(const Remainder &r, double proxy, double loss) {
    return fmin(remainder_bound(r, loss), proxy * growth(r.exponent, loss));
}

// The same with a bound of the spectral radius of M.
__device__ inline double bound_by_radius(const Remainder &r, double proxy, double average, double radius) {
    double loss = fmin(average, radius);
    return fmin(bound_by_loss(r, proxy, loss), spectral_form(r.exponent, loss, radius));
}

// The bound of the gap as it is once the diagonal of H is the spectrum. The cheap rules take several kernels, with a
// Certificate for each factor between them: first what the diagonal tells, and three vectors per factor.
template <typename S>
__device__ inline void certify_start(const Task *tasks, u32 n, const S *hs, double *all_vectors, Certificate *all) {
    u32 g = blockIdx.x;
    const Task &t = tasks[g];
    const S *h = hs + (u64)g * n * n;
    double *roots = all_vectors + (u64)g * 3 * n, *v = roots + n, *number = v + n;
    double *diagonal = (double *)t.diagonal;
    double nan = __longlong_as_double(0x7ff8000000000000ll), q = t.exponent;
    Drift out = {nan, nan, nan, nan, nan, nan, nan, nan, RULE_NONE, 1, nan};
    ends<S>(h, (u64)n + 1, n, out.least, out.largest);
    out.orthogonality = (t.flags & TASK_QR) ? ((const Drift *)t.report)->orthogonality : t.orthogonality;
    double epsilon = epsilon_at(t.ratio, t.epsilon, out.largest);
    double squares = 0.0, most = 0.0, lost = 0.0, on = 0.0;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        double x = (double)h[i + (u64)i * n], d = x > 0.0 ? x : 0.0;
        double a = d + epsilon, e = power(a, -q);
        diagonal[i] = d;
        on += d * d;
        squares += e * e;
        most = (e <= most) ? most : e;
        lost = fmax(lost, 1.0 - (t.kept * (double)((const S *)t.fresh)[i] + epsilon) / a);
        roots[i] = 1.0 / sqrt(a);
        number[i] = coupling_number(a, q);
        v[i] = e * e;
    }
    squares = block_sum(squares);
    out.alpha = block_max(most) / sqrt(squares);
    on = block_sum(on);
    double average = block_max(lost);
    if (threadIdx.x != 0) return;
    Certificate own = {squares, on, average, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0};
    all[g] = own;
    *(Drift *)t.report = out;
}

// H becomes M, whole, by strips: the sums are those of |M|^2, of the first and the second order, and of what is below the
// diagonal of H.
template <typename S>
__device__ inline void certify_scale(const Task *tasks, u32 n, S *hs, const double *all_vectors, double *partials) {
    u32 g = blockIdx.y, first = blockIdx.x * STRIP, end = min(first + STRIP, n);
    S *h = hs + (u64)g * n * n;
    const double *roots = all_vectors + (u64)g * 3 * n, *v = roots + n, *number = v + n;
    double q = tasks[g].exponent, change = 0.0, one = 0.0, two = 0.0, below = 0.0;
    for (u32 i = first + threadIdx.x; i < n; i += blockDim.x) {
        for (u32 j = first; j < end && j <= i; j++) {
            u64 k = i + (u64)j * n;
            double y = i == j ? 0.0 : (double)h[k], x = y * roots[i] * roots[j];
            double weighted = x * coupling(number[i], number[j], q);
            h[k] = (S)x;
            h[j + (u64)i * n] = (S)x;
            change += 2.0 * x * x;
            one += 2.0 * weighted * weighted;
            two += x * x * (v[i] + v[j]);
            below += 2.0 * y * y;
        }
    }
    change = block_sum(change);
    one = block_sum(one);
    two = block_sum(two);
    below = block_sum(below);
    if (threadIdx.x != 0) return;
    double *sums = strip_sums(partials, n);
    sums[0] = change;
    sums[1] = one;
    sums[2] = two;
    sums[3] = below;
}

__device__ inline Remainder remainder_of(const Task &t, const Certificate &own) {
    double q = t.exponent;
    Remainder out = {q, own.first, fmax((q <= 0.5 ? q : q * (0.5 + q)) * own.second - 0.5 * own.first, 0.0)};
    return out;
}

// What the sums alone decide: the bound is at least `lower`, and at most what an average can have lost allows.
__device__ inline void certify_average(const Task *tasks, u32 n, Certificate *all, const double *partials) {
    u32 g = blockIdx.x;
    const Task &t = tasks[g];
    Certificate own = all[g];
    Drift out = *(const Drift *)t.report;
    double change = sqrt(total(partials, n, g, 0)), below = total(partials, n, g, 3), q = t.exponent;
    own.first = total(partials, n, g, 1) / own.squares;
    own.second = total(partials, n, g, 2) / own.squares;
    if (threadIdx.x != 0) return;
    out.residual = below == 0.0 ? 0.0 : sqrt(below / (below + own.on));
    out.relative_change = change;
    double lower = sqrt(own.first), epsilon = epsilon_at(t.ratio, t.epsilon, out.largest);
    own.proxy = out.alpha * q * change;
    // What Q misses of an orthogonal basis, as in the CPU's certificate.rs: alpha w (1 + q sqrt(max a / min a) (1 + |M|)).
    double spread = sqrt((out.largest + epsilon) / (out.least + epsilon));
    out.charge = out.alpha * out.orthogonality * (1.0 + q * spread * (1.0 + change));
    out.proven = 0.0;
    own.target = t.target - out.charge;
    own.radius = change * sqrt((n - 1.0) / n);
    if (!(lower <= own.target)) {
        out.bound = lower;
        out.rule = RULE_EXCEEDED;
        out.loss = __longlong_as_double(0x7ff0000000000000ll);
    } else {
        out.rule = RULE_AVERAGE;
        out.bound = own.proxy == 0.0 ? 0.0 : bound_by_loss(remainder_of(t, own), own.proxy, own.average);
        out.loss = own.proxy == 0.0 ? 0.0 : own.average;
        own.open = !(out.bound <= own.target);
    }
    all[g] = own;
    *(Drift *)t.report = out;
}

// Whether the spectral radius of M is still looked for after so many rounds. Every thread of a block has to ask.
__device__ inline bool goes_on(const Task &t, const Certificate &own, u32 n, u32 g, const double *partials, int rounds) {
    bool more = own.open;
    for (int round = 0; more && round < rounds; round++) {
        double best = -largest_of(partials, n, g, 2 * round + 1, -__longlong_as_double(0x7ff0000000000000ll));
        more = bound_by_radius(remainder_of(t, own), own.proxy, own.average, best) <= own.target;
    }
    return more;
}

// A round of Collatz and Wielandt, by strips: max (|M| v)_i / v_i is at least the spectral radius, for any v > 0. The
// smallest such ratio is below all that further rounds can give: they are left out if that would not do. The image of
// each round takes the place of a vector; the sums of round r are the largest ratio, 2r, and minus the smallest.
template <typename S>
__device__ inline void certify_round(const Task *tasks, u32 n, const S *ms, double *all_vectors, const Certificate *all,
                                     double *partials, int round) {
    u32 g = blockIdx.y, first = blockIdx.x * STRIP, columns = min((u32)STRIP, n - first);
    if (!goes_on(tasks[g], all[g], n, g, partials, round)) return;
    const S *m = ms + (u64)g * n * n;
    double *image = all_vectors + (u64)g * 3 * n + (u64)round * n;
    const double *before = image - n;
    double mean = 0.0;
    if (round > 0) {
        for (u32 i = threadIdx.x; i < n; i += blockDim.x) mean += before[i];
        mean = block_sum(mean) / n;
    }
    double worst = 0.0, best = -__longlong_as_double(0x7ff0000000000000ll);
#pragma unroll 1
    for (u32 c = 0; c < columns; c++) {
        const S *column = m + (u64)(first + c) * n;
        double x = 0.0;
        for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
            x += fabs((double)column[i]) * (round > 0 ? before[i] + 1e-3 * mean + 1e-30 : 1.0);
        }
        x = block_sum(x);
        double v = round > 0 ? before[first + c] + 1e-3 * mean + 1e-30 : 1.0;
        worst = fmax(worst, x / v);
        best = fmax(best, -x / v);
        if (threadIdx.x == 0) image[first + c] = x;
    }
    if (threadIdx.x != 0) return;
    double *sums = strip_sums(partials, n);
    sums[2 * round] = worst;
    sums[2 * round + 1] = best;
}

// The rule of the spectral radius, and the largest m that would serve if M >= -m could be proven.
template <typename S>
__device__ inline void certify_end(const Task *tasks, u32 n, Certificate *all, const double *partials) {
    u32 g = blockIdx.x;
    const Task &t = tasks[g];
    Certificate own = all[g];
    Remainder remainder = remainder_of(t, own);
    double rounding = sizeof(S) == 4 ? ROUNDING_F32 : ROUNDING_F64;
#pragma unroll 1
    for (int round = 0; round < CERTIFY_ROUNDS && goes_on(t, own, n, g, partials, round); round++) {
        double worst = largest_of(partials, n, g, 2 * round);
        own.radius = fmin(own.radius, worst + worst * (n * rounding));
    }
    if (threadIdx.x != 0) return;
    Drift out = *(const Drift *)t.report;
    if (own.open) {
        out.rule = RULE_SPECTRAL;
        out.loss = fmin(own.average, own.radius);
        out.bound = bound_by_radius(remainder, own.proxy, own.average, own.radius);
        out.decided = out.bound <= own.target;
        // The largest m with which a bound is at most tau; then mI + M has to be positive definite.
        double aim = fmin(own.target, LARGEST_AIM), margin = 0.5 * n * rounding;
        double enough = fmax(remainder_loss(remainder, aim), spectral_loss(t.exponent, aim, own.radius));
        if (!out.decided && enough < out.loss && enough > margin) {
            out.proven = enough;
            out.proven_bound = fmin(bound_by_loss(remainder, own.proxy, enough),
                                    spectral_form(t.exponent, enough, own.radius));
            out.proven_bound += out.charge;
            own.diagonal = enough - margin;
        }
    }
    out.bound += out.charge;
    all[g] = own;
    *(Drift *)t.report = out;
}

// N becomes mI + M with that m, if it is to be proven, else I.
template <typename S>
__device__ inline void certify_prove(const Task *tasks, u32 n, const S *ms, S *ns, const Certificate *all) {
    u32 g = blockIdx.y;
    bool open = ((const Drift *)tasks[g].report)->proven > 0.0;
    u64 numbers = (u64)n * n, base = g * numbers;
    for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < numbers; k += (u64)gridDim.x * blockDim.x) {
        bool on_diagonal = k % n == k / n;
        ns[base + k] = open ? (on_diagonal ? (S)all[g].diagonal : ms[base + k]) : (S)(on_diagonal ? 1 : 0);
    }
}

// Whether mI + M had to be positive definite, and is, by the solver's answer.
__device__ inline bool is_proven(const Drift &out, int info) { return out.proven > 0.0 && info == 0; }

// N becomes I + M where no rule has served, else I; E becomes I.
template <typename S>
__device__ inline void complete(const Task *tasks, u32 n, const S *ms, S *ns, S *es, const int *proofs) {
    u32 g = blockIdx.y;
    const Drift &out = *(const Drift *)tasks[g].report;
    bool served = out.decided || is_proven(out, proofs[g]);
    u64 numbers = (u64)n * n, base = g * numbers;
    for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < numbers; k += (u64)gridDim.x * blockDim.x) {
        bool on_diagonal = k % n == k / n;
        es[base + k] = (S)(on_diagonal ? 1 : 0);
        ns[base + k] = on_diagonal ? (S)1 : served ? (S)0 : ms[base + k];
    }
}

// The sandwich, for M and the lower triangle of N^-1: |C o (N^-1 - I - M)| + |C o (N^-1 - I + M)|, over 2 |f(B)|; by
// strips.
template <typename S>
__device__ inline void enclose(const Task *tasks, u32 n, const S *ms, const S *inverses, double *partials) {
    const Task &t = tasks[blockIdx.y];
    const Drift &out = *(const Drift *)t.report;
    if (out.decided) return;
    u64 base = (u64)blockIdx.y * n * n;
    u32 first = blockIdx.x * STRIP, columns = min((u32)STRIP, n - first);
    double q = t.exponent, centre = 0.0, width = 0.0, epsilon = epsilon_at(t.ratio, t.epsilon, out.largest);
    const double *diagonal = (const double *)t.diagonal;
    __shared__ double own[STRIP];
    if (threadIdx.x < columns) own[threadIdx.x] = coupling_number(diagonal[first + threadIdx.x] + epsilon, q);
    __syncthreads();
    for (u32 i = first + threadIdx.x; i < n; i += blockDim.x) {
        double number = coupling_number(diagonal[i] + epsilon, q);
        for (u32 column = 0; column < columns && first + column <= i; column++) {
            u64 k = base + i + (u64)(first + column) * n;
            bool on = i == first + column;
            double c = coupling(number, own[column], q), twice = on ? 1.0 : 2.0;
            double y = (double)inverses[k] - (on ? 1.0 : 0.0), drift = (double)ms[k];
            centre += twice * (y - drift) * (y - drift) * c * c;
            width += twice * (y + drift) * (y + drift) * c * c;
        }
    }
    centre = block_sum(centre);
    width = block_sum(width);
    if (threadIdx.x != 0) return;
    double *sums = strip_sums(partials, n);
    sums[0] = centre;
    sums[1] = width;
}

// The rule that serves where the cheap ones did not: the proof that M >= -m, or the sandwich.
template <typename S>
__device__ inline void judge_gap(const Task *tasks, u32 n, const int *infos, const int *proofs, const double *partials) {
    u32 g = blockIdx.x;
    const Task &t = tasks[g];
    Drift *out = (Drift *)t.report;
    if (out->decided) return;
    double q = t.exponent, squares = 0.0, epsilon = epsilon_at(t.ratio, t.epsilon, out->largest);
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        double e = power(((const double *)t.diagonal)[i] + epsilon, -q);
        squares += e * e;
    }
    double norm = sqrt(block_sum(squares));
    double bound = (sqrt(total(partials, n, g, 0)) + sqrt(total(partials, n, g, 1))) / (2.0 * norm) + out->charge;
    if (threadIdx.x != 0) return;
    if (is_proven(*out, proofs[g])) {
        out->bound = out->proven_bound;
        out->loss = out->proven;
    } else if (infos[g] == 0 && bound < out->bound) {
        out->bound = bound;
        out->rule = RULE_SANDWICH;
    }
}

#define CERTIFY_KERNELS(suffix, S)                                                                             \
    KERNEL foam_certify_start_##suffix(const Task *tasks, u32 n, const S *h, double *vectors,                  \
                                       Certificate *certificates) {                                            \
        certify_start<S>(tasks, n, h, vectors, certificates);                                                  \
    }                                                                                                          \
    ROOMY foam_certify_scale_##suffix(const Task *tasks, u32 n, S *h, const double *vectors,                   \
                                      double *partials) {                                                      \
        certify_scale<S>(tasks, n, h, vectors, partials);                                                      \
    }                                                                                                          \
    KERNEL foam_certify_round_##suffix(const Task *tasks, u32 n, const S *m, double *vectors,                  \
                                       const Certificate *certificates, double *partials, int round) {         \
        certify_round<S>(tasks, n, m, vectors, certificates, partials, round);                                 \
    }                                                                                                          \
    ROOMY foam_certify_end_##suffix(const Task *tasks, u32 n, Certificate *certificates,                       \
                                    const double *partials) {                                                  \
        certify_end<S>(tasks, n, certificates, partials);                                                      \
    }                                                                                                          \
    KERNEL foam_certify_prove_##suffix(const Task *tasks, u32 n, const S *m, S *big,                           \
                                       const Certificate *certificates) {                                      \
        certify_prove<S>(tasks, n, m, big, certificates);                                                      \
    }                                                                                                          \
    KERNEL foam_complete_##suffix(const Task *tasks, u32 n, const S *m, S *big, S *one, const int *proofs) {   \
        complete<S>(tasks, n, m, big, one, proofs);                                                            \
    }                                                                                                          \
    KERNEL foam_enclose_##suffix(const Task *tasks, u32 n, const S *m, const S *inverse, double *partials) {   \
        enclose<S>(tasks, n, m, inverse, partials);                                                            \
    }                                                                                                          \
    KERNEL foam_judge_gap_##suffix(const Task *tasks, u32 n, const int *infos, const int *proofs,              \
                                   const double *partials) {                                                   \
        judge_gap<S>(tasks, n, infos, proofs, partials);                                                       \
    }

ROOMY foam_certify_average(const Task *tasks, u32 n, Certificate *certificates, const double *partials) {
    certify_average(tasks, n, certificates, partials);
}

CERTIFY_KERNELS(f32, float)
CERTIFY_KERNELS(f64, double)
