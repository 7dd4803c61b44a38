// The small functions that both families of kernels use.
#pragma once
#include "shared.cuh"

__device__ inline bool finite(double x) { return x - x == 0.0; }

// x / norm; 0 where the norm is 0.
__device__ inline double quotient(double x, double norm) { return norm > 0.0 ? x / norm : 0.0; }

// 1 - beta^t, or 1 where there is nothing to correct.
__device__ inline double bias_correction(int enabled, double log_beta, u64 step) {
    return enabled ? -expm1((double)step * log_beta) : 1.0;
}

// Whether the gradient of step `step`, from 1, enters the statistics, and how many have once it was taken.
__device__ inline bool accumulates(int period, u64 step) { return step == 1 || step % (u64)period == 0; }

__device__ inline u64 accumulations(int period, u64 step) {
    return period > 1 ? step / (u64)period + (step > 0 ? 1 : 0) : step;
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

// A number whose order as an integer is the order of the doubles, NaN and signed zeros included.
__device__ inline long long sort_key(double x) {
    long long bits = __double_as_longlong(x);
    return bits ^ (long long)((unsigned long long)(bits >> 63) >> 1);
}

// The places of the values in falling order; equal ones stay in their order.
template <typename T> __device__ inline void rank(const T *values, u64 step, u32 n, u32 *order) {
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        long long own = sort_key((double)values[(u64)i * step]);
        u32 before = 0;
        for (u32 j = 0; j < n; j++) {
            long long other = sort_key((double)values[(u64)j * step]);
            before += other > own || (other == own && j < i);
        }
        order[before] = i;
    }
    __syncthreads();
}
