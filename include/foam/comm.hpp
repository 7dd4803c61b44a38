/* How ranks reach each other. Part of foam.hpp. */

#ifndef FOAM_COMM_HPP
#define FOAM_COMM_HPP

#include "mode.hpp"

#include "../foam.h"

namespace foam {
inline namespace FOAM_HPP_MODE {

/**
 * A communicator: derive from it and give it the two collectives, which move bytes and compute nothing. They return 0,
 * or a code of your own; an exception counts as -1. The object must outlive the optimizer that uses it, and stay where
 * it is. `foam_comm` in foam.h says what the arguments are.
 */
class Comm {
  public:
    /** This rank, of `size` ranks; `flags` is 0 or `FOAM_COMM_IN_PLACE`. */
    Comm(int32_t rank, int32_t size, uint32_t flags = 0) noexcept : rank_(rank), size_(size), flags_(flags) {}
    Comm(const Comm &) = delete;
    Comm &operator=(const Comm &) = delete;
    virtual ~Comm() = default;

    /** Every rank gives every rank its own bytes. */
    virtual int32_t all_to_allv(const void *send, const uint64_t *send_bytes, void *recv, const uint64_t *recv_bytes,
                                void *stream) = 0;
    /** Every rank gives all ranks the same bytes. */
    virtual int32_t all_gatherv(const void *send, uint64_t bytes, void *recv, const uint64_t *recv_bytes,
                                void *stream) = 0;

    /** This rank. */
    int32_t rank() const noexcept { return rank_; }
    /** Number of ranks. */
    int32_t size() const noexcept { return size_; }

    /** The struct of foam.h. */
    foam_comm raw() noexcept {
        foam_comm comm = {};
        comm.struct_size = static_cast<uint32_t>(sizeof comm);
        comm.rank = rank_;
        comm.size = size_;
        comm.flags = flags_;
        comm.user = this;
        comm.all_to_allv = exchange;
        comm.all_gatherv = gather;
        return comm;
    }

  private:
    static int32_t exchange(void *user, const void *send, const uint64_t *send_bytes, void *recv,
                            const uint64_t *recv_bytes, void *stream) noexcept {
        return guarded([&] {
            return static_cast<Comm *>(user)->all_to_allv(send, send_bytes, recv, recv_bytes, stream);
        });
    }
    static int32_t gather(void *user, const void *send, uint64_t bytes, void *recv, const uint64_t *recv_bytes,
                          void *stream) noexcept {
        return guarded([&] { return static_cast<Comm *>(user)->all_gatherv(send, bytes, recv, recv_bytes, stream); });
    }
    template <class Call> static int32_t guarded(Call call) noexcept {
#ifdef FOAM_NO_EXCEPTIONS
        return call();
#else
        // An exception must not pass through the library.
        try {
            return call();
        } catch (...) {
            return -1;
        }
#endif
    }

    int32_t rank_, size_;
    uint32_t flags_;
};

} // namespace FOAM_HPP_MODE
} // namespace foam

#endif /* FOAM_COMM_HPP */
