/*
 * Trains a network of one hidden layer on the digits, with parameters, gradients and all of FOAM's state in the memory
 * of a GPU, and every step on a stream of the program's own.
 *
 * The network itself is computed on the host, to keep the program short: what it shows is who owns which buffer, and
 * what is ordered by the stream. It needs the CUDA headers and the driver, but no nvcc:
 *
 *   cargo build --release && ln -sf libfoam.so target/release/libfoam.so.0.1.1
 *   c++ -std=c++17 -O2 examples/cuda/train.cc -Iinclude -I/usr/local/cuda/include -Ltarget/release -lfoam \
 *       -Wl,-rpath,$PWD/target/release -l:libcuda.so.1 -o target/train_cuda
 *   target/train_cuda [examples/data/digits.bin] [EPOCHS]
 */
#include "../cpp/digits.hpp"
#include "../cpp/network.hpp"
#include "device.hpp"

#include <foam.hpp>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>

namespace {

constexpr std::size_t hidden = 32, batch = 64;

/** A parameter: the network's own vectors, and their images on the device. */
struct Parameter {
    std::vector<float> *value, *gradient;
    Buffer device_value, device_gradient;

    Parameter(std::vector<float> &w, std::vector<float> &g)
        : value(&w), gradient(&g), device_value(w), device_gradient(g) {}
};

void train(const std::string &path, int epochs) {
    Digits train, test;
    Digits::read(path, train, test);
    std::mt19937 random(1998);
    Network network({Digits::pixels, hidden, Digits::classes}, random);

    const Device device(0);
    std::printf("device: %s\n", device.name().c_str());
    const Stream stream;
    const foam_device place = {FOAM_DEVICE_CUDA, 0};
    std::vector<Parameter> parameters;
    std::vector<foam::Tensor> params, grads;
    std::vector<foam::Param> described;
    const auto add = [&](const std::string &name, std::vector<float> &w, std::vector<float> &g, foam::Shape shape) {
        parameters.emplace_back(w, g);
        const Parameter &added = parameters.back();
        added.device_value.upload(w, stream);
        params.emplace_back(added.device_value.data(), foam::DType::f32, shape, place);
        grads.emplace_back(added.device_gradient.data(), foam::DType::f32, shape, place);
        described.emplace_back(name, std::move(shape));
    };
    for (std::size_t index = 0; index < network.layers.size(); index++) {
        Layer &layer = network.layers[index];
        const auto inputs = static_cast<int64_t>(layer.inputs), outputs = static_cast<int64_t>(layer.outputs);
        const std::string name = "layer" + std::to_string(index + 1);
        add(name + ".weight", layer.weight, layer.weight_grad, {inputs, outputs});
        add(name + ".bias", layer.bias, layer.bias_grad, {outputs});
        described.back().weight_decay_scale = 0.0;
    }
    foam::Config config;
    config.device(foam::DeviceType::cuda, 0);
    config.lr(5e-3);
    config.log([](foam::LogLevel, std::string_view line) { std::printf("%.*s\n", int(line.size()), line.data()); });
    foam::Optimizer optimizer(config, described);
    foam::StepOptions options;
    options.stream = stream.get();

    std::vector<std::size_t> order(train.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (int epoch = 1; epoch <= epochs; epoch++) {
        std::shuffle(order.begin(), order.end(), random);
        double sum = 0.0;
        std::size_t steps = 0;
        for (std::size_t start = 0; start + batch <= order.size(); start += batch, steps++) {
            sum += network.backward(train, order.data() + start, batch);
            // Nothing waits in between: the stream puts the copies and the step in order.
            for (const Parameter &p : parameters) p.device_gradient.upload(*p.gradient, stream);
            optimizer.step(params, grads, options);
            for (const Parameter &p : parameters) p.device_value.download(*p.value, stream);
            stream.synchronize();
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
    const foam::Stats stats = optimizer.stats();
    std::printf("\nstate: %llu bytes on the device, %llu on the host\n",
                static_cast<unsigned long long>(stats.state_bytes_device),
                static_cast<unsigned long long>(stats.state_bytes_host));
}

} // namespace

int main(int count, char **arguments) {
    try {
        train(count > 1 ? arguments[1] : "examples/data/digits.bin", count > 2 ? std::stoi(arguments[2]) : 10);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
