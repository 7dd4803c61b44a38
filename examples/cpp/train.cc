/*
 * Trains a network of one hidden layer on the digits, with FOAM and no framework at all.
 *
 *   cargo build --release && ln -sf libfoam.so target/release/libfoam.so.0.1.1
 *   c++ -std=c++17 -O2 examples/cpp/train.cc -Iinclude -Ltarget/release -lfoam \
 *       -Wl,-rpath,$PWD/target/release -o target/train_cpp
 *   target/train_cpp [examples/data/digits.bin] [EPOCHS]
 */
#include "digits.hpp"
#include "network.hpp"

#include <foam.hpp>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>

namespace {

constexpr std::size_t hidden = 48, batch = 64;

void train(const std::string &path, int epochs) {
    Digits train, test;
    Digits::read(path, train, test);
    std::mt19937 random(1998);
    Network network({Digits::pixels, hidden, Digits::classes}, random);

    // The optimizer sees the network's own buffers: made once, updated in place.
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
        const std::string name = "layer" + std::to_string(index + 1);
        described.emplace_back(name + ".weight", weight);
        described.emplace_back(name + ".bias", bias);
        described.back().weight_decay_scale = 0.0;
    }
    // Gradients of a mean loss over 64 images are around 1e-2: the damping is in units of their square.
    // 48 x 10 is small enough to be merged into one factor of 480; two small factors are cheaper.
    foam::Config config;
    config.lr(5e-3);
    config.log([](foam::LogLevel, std::string_view line) { std::printf("%.*s\n", int(line.size()), line.data()); });
    foam::Optimizer optimizer(config, described);

    std::vector<std::size_t> order(train.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (int epoch = 1; epoch <= epochs; epoch++) {
        std::shuffle(order.begin(), order.end(), random);
        double sum = 0.0;
        std::size_t steps = 0;
        for (std::size_t start = 0; start + batch <= order.size(); start += batch, steps++) {
            sum += network.backward(train, order.data() + start, batch);
            optimizer.step(params, grads);
        }
        const foam::Stats stats = optimizer.stats();
        std::printf("epoch %2d  loss %.4f  test accuracy %.2f %%  EVD rate %.1f %% (%llu of %llu)\n", epoch,
                    sum / static_cast<double>(steps), 100.0 * network.accuracy(test), 100.0 * stats.evd_rate(),
                    static_cast<unsigned long long>(stats.evd_calls), static_cast<unsigned long long>(stats.checks));
    }
    std::printf("\nparameter      axis  dim   epsilon     proxy  EVDs/checks\n");
    for (const foam::FactorStats &factor : optimizer.factor_stats()) {
        std::printf("%-13s %5lld %4lld  %.2e  %.2e  %llu/%llu\n",
                    described[static_cast<std::size_t>(factor.param_index)].name.c_str(),
                    static_cast<long long>(factor.axis), static_cast<long long>(factor.dim), factor.epsilon,
                    factor.proxy, static_cast<unsigned long long>(factor.evd_calls),
                    static_cast<unsigned long long>(factor.checks));
    }
}

} // namespace

int main(int count, char **arguments) {
    try {
        train(count > 1 ? arguments[1] : "examples/data/digits.bin", count > 2 ? std::stoi(arguments[2]) : 15);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
