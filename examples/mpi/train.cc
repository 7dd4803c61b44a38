/*
 * Trains a network on the digits with any number of MPI ranks, which share the optimizer's work and state.
 *
 *   cargo build --release && ln -sf libfoam.so target/release/libfoam.so.0.1.1
 *   mpicxx -std=c++17 -O2 examples/mpi/train.cc -Iinclude -Iexamples/cpp -Ltarget/release -lfoam \
 *       -Wl,-rpath,$PWD/target/release -o target/train_mpi
 *   mpiexec -n 3 target/train_mpi [examples/data/digits.bin] [EPOCHS] [CHECKPOINT]
 *
 * Twelve parts of every batch are dealt to the ranks, and their gradients are added up in one order: with 1, 2, 3, 4, 6
 * or 12 ranks the run is the same, bit for bit.
 */
#include "digits.hpp"
#include "mpi_comm.hpp"
#include "network.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>

namespace {

constexpr std::size_t hidden = 48, parts = 12, part = 5, batch = parts * part;

/** Every parameter (or gradient) of the network, in order. */
template <class Visit> void each(Network &network, bool gradients, Visit visit) {
    for (Layer &layer : network.layers) {
        visit(gradients ? layer.weight_grad : layer.weight);
        visit(gradients ? layer.bias_grad : layer.bias);
    }
}

/** The mean gradient over a batch: this rank's parts, then everybody's, in the order of the parts. */
void reduce(Network &network, const Digits &train, const std::size_t *order, MPI_Comm comm, int rank, int size) {
    std::size_t count = 0;
    each(network, true, [&](auto &values) { count += values.size(); });
    const std::size_t own = parts / static_cast<std::size_t>(size);
    std::vector<float> mine, all(parts * count);
    for (std::size_t index = 0; index < own; index++) {
        network.backward(train, order + (static_cast<std::size_t>(rank) * own + index) * part, part);
        each(network, true, [&](auto &values) { mine.insert(mine.end(), values.begin(), values.end()); });
    }
    const int floats = static_cast<int>(mine.size());
    MPI_Allgather(mine.data(), floats, MPI_FLOAT, all.data(), floats, MPI_FLOAT, comm);
    std::size_t at = 0;
    each(network, true, [&](auto &values) {
        for (std::size_t index = 0; index < values.size(); index++, at++) {
            float sum = 0.0f;
            for (std::size_t p = 0; p < parts; p++) sum += all[p * count + at];
            values[index] = sum / static_cast<float>(parts);
        }
    });
}

/** A number that tells whether two runs are the same. */
uint64_t fingerprint(Network &network) {
    uint64_t hash = 0xcbf29ce484222325u;
    each(network, false, [&](auto &values) {
        for (float value : values) {
            uint32_t word = 0;
            std::memcpy(&word, &value, sizeof word);
            hash = (hash ^ word) * 0x100000001b3u;
        }
    });
    return hash;
}

void train(const std::string &path, int epochs, const std::string &checkpoint) {
    MpiComm comm(MPI_COMM_WORLD);
    if (parts % static_cast<std::size_t>(comm.size()) != 0) throw std::runtime_error("expected 1, 2, 3, 4, 6 or 12 ranks");
    Digits train, test;
    Digits::read(path, train, test);
    std::mt19937 random(1998);
    Network network({Digits::pixels, hidden, Digits::classes}, random);

    std::vector<foam::Tensor> params, grads;
    std::vector<foam::Param> described;
    for (std::size_t index = 0; index < network.layers.size(); index++) {
        Layer &layer = network.layers[index];
        const foam::Shape weight = {static_cast<int64_t>(layer.inputs), static_cast<int64_t>(layer.outputs)};
        const foam::Shape bias = {static_cast<int64_t>(layer.outputs)};
        params.emplace_back(layer.weight.data(), weight);
        params.emplace_back(layer.bias.data(), bias);
        grads.emplace_back(layer.weight_grad.data(), weight);
        grads.emplace_back(layer.bias_grad.data(), bias);
        described.emplace_back("layer" + std::to_string(index + 1) + ".weight", weight);
        described.emplace_back("layer" + std::to_string(index + 1) + ".bias", bias);
    }
    foam::Config config;
    config.lr(5e-3).max_factor_dim(32);
    foam::Optimizer optimizer(config, comm, described);

    std::vector<std::size_t> order(train.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (int epoch = 1; epoch <= epochs; epoch++) {
        std::shuffle(order.begin(), order.end(), random);
        for (std::size_t start = 0; start + batch <= order.size(); start += batch) {
            reduce(network, train, order.data() + start, MPI_COMM_WORLD, comm.rank(), comm.size());
            optimizer.step(params, grads);
        }
        if (comm.rank() == 0) std::printf("epoch %d: accuracy %.4f\n", epoch, network.accuracy(test));
    }
    // All ranks together; rank 0 writes the file, which does not know how many there were.
    if (!checkpoint.empty()) optimizer.save_file(checkpoint);
    const foam::Stats stats = optimizer.stats();
    std::fprintf(stderr, "rank %d of %d: %llu bytes of state, %llu collectives, %llu bytes sent\n", comm.rank(), comm.size(),
                 static_cast<unsigned long long>(stats.state_bytes_host),
                 static_cast<unsigned long long>(stats.collectives), static_cast<unsigned long long>(stats.bytes_sent));
    if (comm.rank() == 0) std::printf("parameters %016llx\n", static_cast<unsigned long long>(fingerprint(network)));
}

} // namespace

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int status = 0;
    try {
        train(argc > 1 ? argv[1] : "examples/data/digits.bin", argc > 2 ? std::atoi(argv[2]) : 3, argc > 3 ? argv[3] : "");
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        status = 1;
    }
    MPI_Finalize();
    return status;
}
