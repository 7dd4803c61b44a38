/* foam::Comm over MPI (4.0 and later, for counts of 64 bits). */
#pragma once

#include <foam.hpp>
#include <mpi.h>

#include <vector>

class MpiComm : public foam::Comm {
  public:
    explicit MpiComm(MPI_Comm comm) : foam::Comm(rank_of(comm), size_of(comm), FOAM_COMM_IN_PLACE), comm_(comm) {
        // Errors come back as codes: the library then says what became of the parameters.
        MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    }

    int32_t all_to_allv(const void *send, const uint64_t *send_bytes, void *recv, const uint64_t *recv_bytes,
                        void *) override {
        const Layout out(send_bytes, size()), in(recv_bytes, size());
        return MPI_Alltoallv_c(send, out.counts.data(), out.starts.data(), MPI_BYTE, recv, in.counts.data(),
                               in.starts.data(), MPI_BYTE, comm_);
    }

    int32_t all_gatherv(const void *send, uint64_t bytes, void *recv, const uint64_t *recv_bytes, void *) override {
        const Layout in(recv_bytes, size());
        const bool placed = send == static_cast<const char *>(recv) + in.starts[static_cast<size_t>(rank())];
        return MPI_Allgatherv_c(placed ? MPI_IN_PLACE : send, static_cast<MPI_Count>(bytes), MPI_BYTE, recv,
                                in.counts.data(), in.starts.data(), MPI_BYTE, comm_);
    }

  private:
    struct Layout {
        std::vector<MPI_Count> counts;
        std::vector<MPI_Aint> starts;
        Layout(const uint64_t *bytes, int32_t ranks) {
            MPI_Aint start = 0;
            for (int32_t rank = 0; rank < ranks; rank++) {
                counts.push_back(static_cast<MPI_Count>(bytes[rank]));
                starts.push_back(start);
                start += static_cast<MPI_Aint>(bytes[rank]);
            }
        }
    };
    static int rank_of(MPI_Comm comm) {
        int rank = 0;
        MPI_Comm_rank(comm, &rank);
        return rank;
    }
    static int size_of(MPI_Comm comm) {
        int size = 0;
        MPI_Comm_size(comm, &size);
        return size;
    }

    MPI_Comm comm_;
};
