/*
 * foam::Comm over NCCL, for optimizers on a CUDA device: messages lie in device memory, and the collectives are sends
 * and receives of bytes on the library's stream, which nobody waits for here. The tests compile it; it has not run on
 * GPUs.
 */
#pragma once

#include <cuda_runtime.h>
#include <foam.hpp>
#include <nccl.h>

class NcclComm : public foam::Comm {
  public:
    NcclComm(ncclComm_t comm, int rank, int size) : foam::Comm(rank, size), comm_(comm) {}

    int32_t all_to_allv(const void *send, const uint64_t *send_bytes, void *recv, const uint64_t *recv_bytes,
                        void *stream) override {
        return move(send, send_bytes, nullptr, recv, recv_bytes, static_cast<cudaStream_t>(stream));
    }

    int32_t all_gatherv(const void *send, uint64_t bytes, void *recv, const uint64_t *recv_bytes,
                        void *stream) override {
        return move(send, nullptr, &bytes, recv, recv_bytes, static_cast<cudaStream_t>(stream));
    }

  private:
    /** Sends each rank its bytes, or all of them the same, and receives what `recv_bytes` says. */
    int32_t move(const void *send, const uint64_t *each, const uint64_t *all, void *recv, const uint64_t *recv_bytes,
                 cudaStream_t stream) {
        const char *out = static_cast<const char *>(send);
        char *in = static_cast<char *>(recv);
        ncclResult_t status = ncclGroupStart();
        for (int32_t rank = 0; rank < size() && status == ncclSuccess; rank++) {
            const uint64_t bytes = all ? *all : each[rank];
            status = ncclSend(out, bytes, ncclUint8, rank, comm_, stream);
            if (status == ncclSuccess) status = ncclRecv(in, recv_bytes[rank], ncclUint8, rank, comm_, stream);
            out += all ? 0 : bytes;
            in += recv_bytes[rank];
        }
        const ncclResult_t ended = ncclGroupEnd();
        return status == ncclSuccess ? ended : status;
    }

    ncclComm_t comm_;
};
