// The kernels of every step: is the gradient finite, time, the gradient as the statistics take it,
// filter and grafting, the length of the direction, and one fused pass that writes the parameter.
#pragma once
#include "common.cuh"

// The sites of a stack, carried by the launch itself: no copy, nothing to wait for.
struct Posted {
    Site sites[POSTED];
};

extern "C" __global__ void __launch_bounds__(POSTED) foam_post(Site *table, int first, int count, Posted posted) {
    int i = threadIdx.x;
    if (i < count) table[first + i] = posted.sites[i];
}

// The sites of blocks whose parameters and gradients lie one behind the other. Without `active` all take part.
extern "C" __global__ void __launch_bounds__(THREADS)
    foam_place(Stack s, u64 params, u64 grads, u64 param_bytes, u64 grad_bytes, double decay, int grad_dtype,
             const int *active) {
    int b = blockIdx.x * blockDim.x + threadIdx.x;
    if (b >= s.count) return;
    Site site = {params ? params + b * param_bytes : 0, grads + b * grad_bytes, 1.0, decay, grad_dtype,
                 active ? active[b] != 0 : 1};
    s.sites[b] = site;
}

// A joint step begins: nothing bad has been seen. `reopen` opens a closed gate.
extern "C" __global__ void foam_begin(Gate *gate, int reopen) {
    gate->bad = NONE;
    gate->calls += 1;
    if (reopen) gate->closed = 0;
}

// All gradients have been looked at: are the steps taken? All behind the gates of the list, or none. With a value other
// than 0, a bad gradient closes its gate. Long lists come in several launches, and `lead` keeps what was found so far.
extern "C" __global__ void foam_judge(int count, Stamped list, Gate *lead, int parts) {
    int open = parts & JUDGE_FIRST ? 1 : lead->open;
#pragma unroll 1
    for (int i = 0; parts & JUDGE_LOOK && i < count; i++) {
        const Gate *gate = (const Gate *)list.at[i];
        if (gate->bad != NONE || gate->closed) open = 0;
    }
    lead->open = open;
#pragma unroll 1
    for (int i = 0; parts & JUDGE_TELL && i < count; i++) {
        Gate *gate = (Gate *)list.at[i];
        gate->open = open;
        if (open) continue;
        gate->refused += 1;
        if (gate->bad == NONE) continue;
        if (gate->param == NONE) {
            gate->param = gate->bad;
            gate->call = gate->calls;
        }
        if (list.value[i]) gate->closed = 1;
    }
}

// The host has read the counts: they start again.
extern "C" __global__ void foam_acknowledge(Gate *gate) {
    gate->param = NONE;
    gate->refused = 0;
    gate->left_out = 0;
}

// Where element `e` of a block lies in the parameter, from the block's first element.
__device__ inline u64 place(const Stack &s, u32 e) {
    if (s.contiguous) return e;
    u64 at = 0;
    for (int axis = s.order - 1; axis >= 0; axis--) {
        u32 rest = e / s.dims[axis];
        at += (u64)(e - rest * s.dims[axis]) * s.strides[axis];
        e = rest;
    }
    return at;
}

// The gradient as the step uses it: scaled, and with the coupled decay.
template <typename T> __device__ inline T gradient(const Stack &s, const Rules &r, const Site &site, u64 at) {
    T g = load<T>(site.grad, site.grad_dtype, at);
    if (r.grad_scale != 1.0) g *= (T)r.grad_scale;
    if (!r.decoupled && site.decay != 0.0) g += (T)site.decay * load<T>(site.param, s.param_dtype, at);
    return g;
}

template <typename W> __device__ inline void inspect(const Stack &s, const Rules &r) {
    int b = blockIdx.y;
    Site site = s.sites[b];
    u32 first = blockIdx.x * s.chunk;
    u32 end = min(first + s.chunk, s.elements);
    double sum = 0.0;
    if (site.active) {
        for (u32 e = first + threadIdx.x; e < end; e += blockDim.x) {
            double g = (double)gradient<W>(s, r, site, place(s, e));
            sum += g * g;
        }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) s.partials[(u64)b * 2 * s.chunks + blockIdx.x] = sum;
}

// The squared norm of each block; infinite when it, or its square in the statistics, is not finite.
extern "C" __global__ void __launch_bounds__(THREADS) foam_total(Stack s, Rules r, Gate *gate) {
    int b = blockIdx.x;
    double sum = 0.0;
    for (int c = threadIdx.x; c < s.chunks; c += blockDim.x) sum += s.partials[(u64)b * 2 * s.chunks + c];
    sum = block_sum(sum);
    if (threadIdx.x != 0) return;
    bool sound = sum < r.largest;
    s.squares[b] = sound ? sum : __longlong_as_double(0x7ff0000000000000ll);
    if (!sound && gate && s.sites[b].active) atomicMin(&gate->bad, s.params[b]);
}

// How the direction of a block comes about.
enum { DIRECTION_PRECONDITIONED = 0, DIRECTION_GRAFTED = 1, DIRECTION_ZERO = 2 };

// A block whose inverse roots have all been formed is preconditioned: the diagonal of a formed one (or its eigenvalues)
// is positive, and one that never was is zero. Until then the grafted method gives the direction, if there is one.
__device__ inline int direction_of(const Stack &s, const Rules &r, int b) {
    bool formed = s.factors > 0;
    for (int axis = 0; formed && axis < s.factors; axis++) {
        u64 at = (u64)b * s.dims[axis] * (s.eigenroots[axis] ? 1 : s.dims[axis]);
        u64 first = s.eigenroots[axis] ? s.eigenroots[axis] : s.roots[axis];
        formed = s.wide ? ((const double *)first)[at] != 0.0 : ((const float *)first)[at] != 0.0f;
    }
    return formed ? DIRECTION_PRECONDITIONED : r.grafts ? DIRECTION_GRAFTED : DIRECTION_ZERO;
}

// How a block at its step takes part, from the clock.
__device__ inline void set_order(const Stack &s, const Rules &r, int b, Order &o, u64 step) {
    o.active = 1;
    o.filter = bias_correction(r.filter_correction, r.log_beta1, step);
    o.moment = bias_correction(r.moment_correction, r.log_moment, step);
    double norm = r.normalized || r.moment_relative ? sqrt(s.squares[b]) : 0.0;
    o.normalize = r.normalized ? quotient(1.0, norm + r.tiny_norm) : 1.0;
    o.moment_epsilon = r.moment_epsilon;
    if (r.moment_relative) o.moment_epsilon *= sqrt(s.squares[b] / (double)s.elements) * o.normalize;
    o.length = 0.0;
}

// The clocks of the blocks that take part advance: L = w S with a stored S, so that
// L <- beta L + (1 - beta) G G' becomes w <- beta w, S <- S + (1 - beta) / w G G'. In a step that leaves the statistics
// alone only the step is counted, and the gradient enters them times 0.
extern "C" __global__ void __launch_bounds__(THREADS) foam_tick(Stack s, Rules r, const Gate *gate) {
    int b = blockIdx.x * blockDim.x + threadIdx.x;
    if (b >= s.count) return;
    Order o = {0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0, 0};
    bool present = s.sites[b].active, sound = finite(s.squares[b]);
    int info = (present ? 0 : INFO_IDLE) | (present && !sound ? INFO_NOT_FINITE : 0);
    if (present && sound && (!gate || gate->open)) {
        Clock clock = s.clocks[b];
        clock.step += 1;
        bool adds = accumulates(r.statistics_period, clock.step);
        double gain = adds ? 1.0 : 0.0;
        if (r.beta2 >= 1.0 && adds) {
            clock.weight = 1.0;
        } else if (adds) {
            double weight = clock.weight * r.beta2;
            bool small = weight < LEAST_WEIGHT;
            o.decay = small ? weight : 1.0;
            clock.weight = small ? 1.0 : weight;
            gain = (1.0 - r.beta2) / clock.weight;
        }
        o.gain_root = sqrt(gain);
        s.clocks[b] = clock;
        set_order(s, r, b, o, clock.step);
    }
    s.orders[b] = o;
    s.info[b] = info;
}

// The same orders, for a call that comes after the clocks advanced.
extern "C" __global__ void __launch_bounds__(THREADS) foam_resume(Stack s, Rules r) {
    int b = blockIdx.x * blockDim.x + threadIdx.x;
    if (b >= s.count) return;
    Order o = {0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0, 0};
    int info = s.info[b];
    if (s.clocks[b].step == 0) info |= INFO_IDLE;
    if ((r.normalized || r.moment_relative) && !finite(s.squares[b])) info |= INFO_NOT_FINITE;
    if (!(info & (INFO_IDLE | INFO_NOT_FINITE))) set_order(s, r, b, o, s.clocks[b].step);
    s.orders[b] = o;
    s.info[b] = info;
}

// The gradient times the root of its gain, row-major, in the precision of the statistics; zeros for a
// block that takes no part, so that the product adds nothing.
template <typename S> __device__ inline void gather(const Stack &s, const Rules &r) {
    int b = blockIdx.y;
    Site site = s.sites[b];
    Order o = s.orders[b];
    S *out = (S *)s.work + (u64)b * s.elements;
    u32 first = blockIdx.x * s.chunk;
    u32 end = min(first + s.chunk, s.elements);
    for (u32 e = first + threadIdx.x; e < end; e += blockDim.x) {
        out[e] = o.active ? (S)o.gain_root * gradient<S>(s, r, site, place(s, e)) : (S)0;
    }
}

// The gradient in bf16 as it is, row-major: the products of such numbers are exact in f32. Zeros for a block that takes no
// part.
extern "C" __global__ void __launch_bounds__(THREADS) foam_gather_bf16(Stack s, u16 *out) {
    int b = blockIdx.y;
    const u16 *grad = (const u16 *)s.sites[b].grad;
    bool active = s.orders[b].active;
    u32 first = blockIdx.x * s.chunk;
    u32 end = min(first + s.chunk, s.elements);
    for (u32 e = first + threadIdx.x; e < end; e += blockDim.x) {
        out[(u64)b * s.elements + e] = active ? grad[place(s, e)] : (u16)0;
    }
}

// The statistic of an axis takes in the square P of such a gradient, with its gain; of both the lower triangle counts.
extern "C" __global__ void __launch_bounds__(THREADS) foam_add_square(Stack s, int axis, const float *squares) {
    int b = blockIdx.y;
    Order o = s.orders[b];
    if (!o.active || o.gain_root == 0.0) return;
    float gain = (float)(o.gain_root * o.gain_root);
    u64 n = s.dims[axis], numbers = n * n;
    float *statistic = (float *)s.statistics[axis] + b * numbers;
    const float *square = squares + b * numbers;
    for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < numbers; k += (u64)gridDim.x * blockDim.x) {
        if (k % n >= k / n) statistic[k] += gain * square[k];
    }
}

// The rare pass that brings the stored statistics back to scale.
template <typename S> __device__ inline void rescale(const Stack &s) {
    double decay = s.orders[blockIdx.x].decay;
    if (decay == 1.0) return;
    u64 n = s.dims[blockIdx.y], numbers = n * n;
    if (!s.statistics[blockIdx.y]) return;
    S *statistic = (S *)s.statistics[blockIdx.y] + blockIdx.x * numbers;
    for (u64 i = threadIdx.x; i < numbers; i += blockDim.x) statistic[i] *= (S)decay;
}

// (o, d, i) becomes (d, o, i): the unfolding along a middle axis, or with d and o exchanged its inverse.
template <typename T>
__device__ inline void unfold(const T *from, T *to, u32 elements, u32 outer, u32 dim, u32 inner) {
    u64 base = (u64)blockIdx.y * elements;
    for (u32 e = blockIdx.x * blockDim.x + threadIdx.x; e < elements; e += gridDim.x * blockDim.x) {
        u32 i = e % inner, rest = e / inner;
        u32 d = rest % dim, o = rest / dim;
        to[base + ((u64)d * outer + o) * inner + i] = from[base + e];
    }
}

// Decay, momentum and the parameter (or, for a functional call, the update) of one element.
template <typename W>
__device__ inline void finish(const Stack &s, const Rules &r, const Site &site, int b, u32 e, u64 at, W u) {
    bool reads = !s.update || (r.decoupled && site.decay != 0.0);
    W w = reads ? load<W>(site.param, s.param_dtype, at) : (W)0;
    if (r.decoupled && site.decay != 0.0) u += (W)site.decay * w;
    if (s.momentum) {
        W *m = (W *)s.momentum + (u64)b * s.elements + e;
        W own = (W)r.momentum_take * u;
        W moved = (W)r.momentum * *m + own;
        *m = moved;
        u = r.nesterov ? own + (W)r.momentum * moved : moved;
    }
    W change = (W)(r.scale * site.lr_scale) * u;
    if (s.update) {
        store<W>((u64)s.update, s.update_dtype, (u64)b * s.elements + e, change);
    } else {
        store<W>(site.param, s.param_dtype, at, w + change);
    }
}

// m and v; then m^ into the workspace and the squared length of the grafted step, or, for a block
// without inverse roots, the whole update.
template <typename W> __device__ inline void filter(const Stack &s, const Rules &r, double largest) {
    int b = blockIdx.y;
    Site site = s.sites[b];
    Order o = s.orders[b];
    int direction = o.active ? direction_of(s, r, b) : DIRECTION_ZERO;
    W *work = (W *)s.work + (u64)b * s.elements;
    u32 first = blockIdx.x * s.chunk;
    u32 end = min(first + s.chunk, s.elements);
    double sum = 0.0;
    for (u32 e = first + threadIdx.x; e < end; e += blockDim.x) {
        u64 at = (u64)b * s.elements + e;
        if (!o.active) {
            if (s.update) store<W>((u64)s.update, s.update_dtype, at, (W)0);
            work[e] = (W)0;
            continue;
        }
        u64 here = place(s, e);
        W g = gradient<W>(s, r, site, here);
        W source = g * (W)o.normalize, scale = (W)1;
        if (s.moment) {
            W *v = (W *)s.moment + at;
            W moved = (W)r.moment_keep * *v + (W)r.moment_take * (source * source);
            *v = moved;
            scale = sqrt(moved * (W)(1.0 / o.moment)) + (W)o.moment_epsilon;
            // Where no gradient was ever felt there is no step, not 0/0.
            scale = scale > (W)0 ? scale : (W)largest;
        }
        W filtered = g;
        if (s.filter) {
            W *m = (W *)s.filter + at;
            W keep = (W)r.beta1, take = (W)(1.0 - r.beta1);
            W moved = keep * *m + take * g;
            *m = moved;
            filtered = (r.nadam ? keep * moved + take * g : moved) * (W)(1.0 / o.filter);
        }
        if (!r.normalized) source = filtered;
        if (direction == DIRECTION_PRECONDITIONED) {
            work[e] = filtered;
            double x = (double)(source / scale);
            sum += x * x;
        } else {
            W u = direction == DIRECTION_GRAFTED ? filtered / scale : (W)0;
            work[e] = (W)0;
            finish<W>(s, r, site, b, e, here, u);
        }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) s.partials[(u64)b * 2 * s.chunks + blockIdx.x] = sum;
}

// Blocks in the bases take the eigenvalues of the inverse roots, axis by axis.
template <typename W> __device__ inline void scale(const Stack &s, W *blocks) {
    int b = blockIdx.y;
    u32 first = blockIdx.x * s.chunk;
    u32 end = min(first + s.chunk, s.elements);
    for (u32 e = first + threadIdx.x; e < end; e += blockDim.x) {
        u32 rest = e;
        W scale = (W)1, last = (W)1;
        for (int axis = s.order - 1; axis >= 0; axis--) {
            u32 n = s.dims[axis], next = rest / n;
            W root = ((const W *)s.eigenroots[axis])[(u64)b * n + (rest - next * n)];
            if (axis == s.order - 1) last = root;
            else scale *= root;
            rest = next;
        }
        blocks[(u64)b * s.elements + e] *= scale * last;
    }
}

// The squared length of the direction.
template <typename W> __device__ inline void norm(const Stack &s, const W *direction) {
    int b = blockIdx.y;
    u32 first = blockIdx.x * s.chunk;
    u32 end = min(first + s.chunk, s.elements);
    double sum = 0.0;
    for (u32 e = first + threadIdx.x; e < end; e += blockDim.x) {
        double x = (double)direction[(u64)b * s.elements + e];
        sum += x * x;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) s.partials[(u64)b * 2 * s.chunks + s.chunks + blockIdx.x] = sum;
}

// What the direction is multiplied by: 1, or what gives it the grafted method's length. A direction
// that is not finite gets the length 0 and is left out.
extern "C" __global__ void __launch_bounds__(THREADS) foam_length(Stack s, Rules r, Gate *gate) {
    int b = blockIdx.x;
    const double *partials = s.partials + (u64)b * 2 * s.chunks;
    double grafted = 0.0, own = 0.0;
    for (int c = threadIdx.x; c < s.chunks; c += blockDim.x) {
        grafted += partials[c];
        own += partials[s.chunks + c];
    }
    grafted = sqrt(block_sum(grafted));
    own = sqrt(block_sum(own));
    if (threadIdx.x != 0 || !s.orders[b].active || direction_of(s, r, b) != DIRECTION_PRECONDITIONED) return;
    double length = r.grafts ? quotient(grafted, own + r.tiny_norm) : 1.0;
    if (!finite(own)) {
        length = 0.0;
        s.info[b] |= INFO_LEFT_OUT;
        if (gate) atomicAdd(&gate->left_out, 1ull);
    }
    s.orders[b].length = length;
}

// The direction takes its length, and the parameter its step.
template <typename W> __device__ inline void update(const Stack &s, const Rules &r, const W *direction) {
    int b = blockIdx.y;
    Order o = s.orders[b];
    if (!o.active || direction_of(s, r, b) != DIRECTION_PRECONDITIONED) return;
    Site site = s.sites[b];
    W length = (W)o.length;
    u32 first = blockIdx.x * s.chunk;
    u32 end = min(first + s.chunk, s.elements);
    for (u32 e = first + threadIdx.x; e < end; e += blockDim.x) {
        W x = direction[(u64)b * s.elements + e];
        finish<W>(s, r, site, b, e, place(s, e), length == (W)0 ? (W)0 : length * x);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    foam_unfold_bf16(const u16 *from, u16 *to, u32 elements, u32 outer, u32 dim, u32 inner) {
    unfold<u16>(from, to, elements, outer, dim, inner);
}

#define STEP_KERNELS(suffix, T, largest)                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS) foam_inspect_##suffix(Stack s, Rules r) {            \
        inspect<T>(s, r);                                                                                      \
    }                                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS) foam_gather_##suffix(Stack s, Rules r) {             \
        gather<T>(s, r);                                                                                       \
    }                                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS) foam_rescale_##suffix(Stack s) { rescale<T>(s); }    \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                      \
        foam_unfold_##suffix(const T *from, T *to, u32 elements, u32 outer, u32 dim, u32 inner) {              \
        unfold<T>(from, to, elements, outer, dim, inner);                                                      \
    }                                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS) foam_filter_##suffix(Stack s, Rules r) {             \
        filter<T>(s, r, largest);                                                                              \
    }                                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS) foam_scale_##suffix(Stack s, T *blocks) {            \
        scale<T>(s, blocks);                                                                                   \
    }                                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS) foam_norm_##suffix(Stack s, const T *direction) {    \
        norm<T>(s, direction);                                                                                 \
    }                                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                      \
        foam_update_##suffix(Stack s, Rules r, const T *direction) {                                           \
        update<T>(s, r, direction);                                                                            \
    }

STEP_KERNELS(f32, float, 3.40282346638528859812e+38)
STEP_KERNELS(f64, double, 1.79769313486231570815e+308)
