// What the kernels and the host share, and the small functions that both families of kernels use.
// The structs are mirrored, field by field, in ../tables.rs.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// The most threads of a thread block; small blocks and factors get fewer.
#define THREADS 256
#define MAX_ORDER 8
#define POSTED 64

// Element types, as in ../tables.rs.
enum { F32 = 0, F64 = 1, F16 = 2, BF16 = 3 };
enum { DIRECTION_PRECONDITIONED = 0, DIRECTION_GRAFTED = 1, DIRECTION_ZERO = 2 };
enum { GRAFT_NONE = 0, GRAFT_SGD = 1, GRAFT_ADAGRAD = 2, GRAFT_RMSPROP = 3, GRAFT_ADAM = 4 };

// Bits of a block's info.
enum { INFO_ABSENT = 1, INFO_NOT_FINITE = 2, INFO_OVERFLOW = 4, INFO_FALLBACK = 8 };

// The caller's memory of one block: where its parameter and gradient begin.
struct Site {
    u64 param;
    u64 grad;
    double lr_scale;
    double decay;
    int grad_dtype;
    int active;
};

// The time of a block.
struct Clock {
    u64 step;
    double weight;
};

// What the current step does with a block, worked out by `tick` from its clock.
struct Order {
    double gain_root;
    double decay;
    double filter;
    double moment;
    double normalize;
    double length;
    int active;
    int direction;
};

// Whether steps are taken. All blocks of a handle share one; a functional call has none.
struct Gate {
    int bad;       // the first parameter of this step whose gradient is not finite, or NONE
    int open;      // this step is taken
    int closed;    // no step is taken until the host has heard of the bad one
    int param;     // the first bad parameter since the host last looked, or NONE
    u64 calls;     // steps asked for
    u64 refused;   // steps not taken since the host last looked
    u64 call;      // the call in which `param` was bad
    u64 overflowed; // directions left out since the host last looked
};
#define NONE 0x7fffffff

// A stack of equal blocks.
struct Stack {
    int count;
    int order;
    int chunks;
    int factors;
    u32 elements;
    u32 chunk;
    int param_dtype;
    int contiguous;
    int update_dtype;
    int reserved;
    u32 dims[MAX_ORDER];
    u64 strides[MAX_ORDER];
    u64 statistics[MAX_ORDER];
    Site *sites;
    const int *params;
    Clock *clocks;
    Order *orders;
    double *partials;
    double *squares;
    int *info;
    void *filter;
    void *moment;
    void *momentum;
    void *work;
    void *update;
};

// The hyperparameters of a step.
struct Rules {
    double beta1, beta2, log_beta1, log_beta2;
    double grafting_beta2, log_grafting_beta2, grafting_epsilon;
    double momentum, lr, grad_scale, largest;
    u64 first_check;
    int grafting, normalized, nadam, nesterov, ema_momentum, decoupled;
    int filter_correction, statistic_correction, moment_correction, paper;
};

__device__ inline bool finite(double x) { return x - x == 0.0; }

// 1 - beta^t, or 1 where there is nothing to correct.
__device__ inline double bias_correction(int enabled, double log_beta, u64 step) {
    return enabled ? -expm1((double)step * log_beta) : 1.0;
}

__device__ inline float from_half(u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

__device__ inline u16 to_half(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

__device__ inline float from_bfloat(u16 bits) { return __uint_as_float((u32)bits << 16); }

// To the nearest, ties to even; a NaN stays one.
__device__ inline u16 to_bfloat(float x) {
    u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)((bits >> 16) | 0x40u);
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

template <typename T> __device__ inline T load(u64 base, int dtype, u64 at) {
    switch (dtype) {
        case F32: return (T)((const float *)base)[at];
        case F64: return (T)((const double *)base)[at];
        case F16: return (T)from_half(((const u16 *)base)[at]);
        default: return (T)from_bfloat(((const u16 *)base)[at]);
    }
}

template <typename T> __device__ inline void store(u64 base, int dtype, u64 at, T x) {
    switch (dtype) {
        case F32: ((float *)base)[at] = (float)x; break;
        case F64: ((double *)base)[at] = (double)x; break;
        case F16: ((u16 *)base)[at] = to_half((float)x); break;
        default: ((u16 *)base)[at] = to_bfloat((float)x); break;
    }
}

// Sums over a thread block, whose size is a power of two, in a fixed order; every thread gets the result.
__device__ inline double block_sum(double x) {
    __shared__ double lanes[THREADS];
    lanes[threadIdx.x] = x;
    __syncthreads();
    #pragma unroll 1
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) lanes[threadIdx.x] += lanes[threadIdx.x + half];
        __syncthreads();
    }
    double total = lanes[0];
    __syncthreads();
    return total;
}

// The same for the largest; NaN counts as larger than everything.
__device__ inline double block_max(double x) {
    __shared__ double lanes[THREADS];
    lanes[threadIdx.x] = x;
    __syncthreads();
    #pragma unroll 1
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            double a = lanes[threadIdx.x], b = lanes[threadIdx.x + half];
            lanes[threadIdx.x] = (a >= b || a != a) ? a : b;
        }
        __syncthreads();
    }
    double total = lanes[0];
    __syncthreads();
    return total;
}
