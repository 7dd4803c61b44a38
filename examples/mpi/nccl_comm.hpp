/*
 * foam::Comm over NCCL. The library's messages lie in host memory, so that they are copied to the device and back; the
 * collectives are sends and receives of bytes. The tests compile it; it has not run on GPUs.
 */
#pragma once

#include <cuda_runtime.h>
#include <foam.hpp>
#include <nccl.h>

#include <numeric>
#include <vector>

class NcclComm : public foam::Comm {
  public:
    NcclComm(ncclComm_t comm, int rank, int size, cudaStream_t stream)
        : foam::Comm(rank, size), comm_(comm), stream_(stream) {}
    ~NcclComm() override {
        cudaFree(out_.data);
        cudaFree(in_.data);
    }

    int32_t all_to_allv(const void *send, const uint64_t *send_bytes, void *recv, const uint64_t *recv_bytes,
                        void *) override {
        std::vector<uint64_t> starts(static_cast<size_t>(size()));
        std::exclusive_scan(send_bytes, send_bytes + size(), starts.begin(), uint64_t{0});
        return move(send, starts.back() + send_bytes[size() - 1], starts.data(), send_bytes, recv, recv_bytes);
    }

    int32_t all_gatherv(const void *send, uint64_t bytes, void *recv, const uint64_t *recv_bytes, void *) override {
        const std::vector<uint64_t> starts(static_cast<size_t>(size()), 0), sizes(static_cast<size_t>(size()), bytes);
        return move(send, bytes, starts.data(), sizes.data(), recv, recv_bytes);
    }

  private:
    struct Buffer {
        char *data = nullptr;
        uint64_t size = 0;
        cudaError_t grow(uint64_t bytes) {
            if (bytes <= size) return cudaSuccess;
            cudaFree(data);
            data = nullptr;
            size = 0;
            const cudaError_t status = cudaMalloc(reinterpret_cast<void **>(&data), bytes);
            if (status == cudaSuccess) size = bytes;
            return status;
        }
    };

    /** Sends `sizes[r]` bytes from `starts[r]` on to rank r, and receives what `recv_bytes` says. */
    int32_t move(const void *send, uint64_t bytes, const uint64_t *starts, const uint64_t *sizes, void *recv,
                 const uint64_t *recv_bytes) {
        const uint64_t total = std::accumulate(recv_bytes, recv_bytes + size(), uint64_t{0});
        if (cudaError_t status = out_.grow(bytes)) return status;
        if (cudaError_t status = in_.grow(total)) return status;
        if (cudaError_t status = cudaMemcpyAsync(out_.data, send, bytes, cudaMemcpyHostToDevice, stream_)) return status;
        if (ncclResult_t status = ncclGroupStart()) return 1000 + status;
        uint64_t at = 0;
        for (int32_t rank = 0; rank < size(); rank++) {
            if (ncclResult_t status = ncclSend(out_.data + starts[rank], sizes[rank], ncclUint8, rank, comm_, stream_))
                return 1000 + status;
            if (ncclResult_t status = ncclRecv(in_.data + at, recv_bytes[rank], ncclUint8, rank, comm_, stream_))
                return 1000 + status;
            at += recv_bytes[rank];
        }
        if (ncclResult_t status = ncclGroupEnd()) return 1000 + status;
        if (cudaError_t status = cudaMemcpyAsync(recv, in_.data, total, cudaMemcpyDeviceToHost, stream_)) return status;
        return cudaStreamSynchronize(stream_);
    }

    ncclComm_t comm_;
    cudaStream_t stream_;
    Buffer out_, in_;
};
