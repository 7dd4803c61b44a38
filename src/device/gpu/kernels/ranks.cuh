// The kernels of ranks that share the work: rows of bytes into messages and out of them, and the words that tell
// whether a message arrived. What they need travels with the launch: no table, no copy, nothing to wait for.
#pragma once
#include "common.cuh"

template <typename T> __device__ inline void carry(const Carried &list, int number) {
    u64 row = list.row[number], total = row * list.rows[number];
    u64 from = list.from[number], to = list.to[number];
    u64 from_step = list.from_step[number], to_step = list.to_step[number];
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += (u64)gridDim.x * blockDim.x) {
        u64 line = i / row, at = (i - line * row) * sizeof(T);
        *(T *)(to + line * to_step + at) = *(const T *)(from + line * from_step + at);
    }
}

// One list entry per row of the grid.
extern "C" __global__ void __launch_bounds__(THREADS) foam_carry(Carried list) {
    int number = blockIdx.y;
    switch (list.width[number]) {
        case 8: carry<u64>(list, number); break;
        case 4: carry<u32>(list, number); break;
        default: carry<u16>(list, number); break;
    }
}

extern "C" __global__ void __launch_bounds__(STAMPED) foam_stamp(int count, Stamped list) {
    int i = threadIdx.x;
    if (i < count) *(u64 *)list.at[i] = list.value[i];
}

// The smallest number of a word that is not as expected.
extern "C" __global__ void __launch_bounds__(STAMPED) foam_expect(int first, int count, Stamped list, int *found) {
    int i = threadIdx.x;
    if (i < count && *(const u64 *)list.at[i] != list.value[i]) atomicMin(found, first + i);
}
