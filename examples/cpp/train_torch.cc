/*
 * Trains a small convolutional network on the digits with libtorch and FOAM, saves model and optimizer in the middle,
 * and shows that a second pair that loads them goes on exactly alike.
 *
 *   cargo build --release && ln -sf libfoam.so target/release/libfoam.so.0.1.1
 *   eval "$(python examples/cpp/torch_flags.py)"      # sets TORCH_CXXFLAGS and TORCH_LDFLAGS from the installed torch
 *   c++ -O2 examples/cpp/train_torch.cc -Iinclude -Ibindings/cpp $TORCH_CXXFLAGS \
 *       -Ltarget/release -lfoam -Wl,-rpath,$PWD/target/release $TORCH_LDFLAGS -o target/train_torch
 *   target/train_torch [examples/data/digits.bin] [EPOCHS]
 */
#include "digits.hpp"

#include <foam_torch.hpp>
#include <torch/torch.h>

#include <cstdio>
#include <sstream>

namespace {

constexpr int64_t batch = 64;

/** 8 x 8 pixels, two convolutions, one affine map. */
struct NetworkImpl : torch::nn::Module {
    torch::nn::Conv2d first{nullptr}, second{nullptr};
    torch::nn::Linear last{nullptr};

    NetworkImpl() {
        first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1)));
        second = register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 16, 3).padding(1)));
        last = register_module("last", torch::nn::Linear(16 * 4 * 4, 10));
    }

    torch::Tensor forward(torch::Tensor x) {
        x = torch::relu(first->forward(x));
        x = torch::max_pool2d(torch::relu(second->forward(x)), 2);
        return last->forward(x.flatten(1));
    }
};
TORCH_MODULE(Network);

struct Set {
    torch::Tensor images, labels;

    explicit Set(const Digits &digits)
        : images(torch::tensor(digits.images).view({-1, 1, 8, 8})), labels(torch::tensor(digits.labels)) {}
};

/** One epoch over `order`; gives the mean loss. */
double epoch(Network &network, foam::torch::FOAM &optimizer, const Set &train, const torch::Tensor &order) {
    double sum = 0.0;
    const int64_t steps = train.labels.size(0) / batch;
    for (int64_t step = 0; step < steps; step++) {
        const torch::Tensor rows = order.slice(0, step * batch, (step + 1) * batch);
        const torch::Tensor loss = optimizer.step([&] {
            optimizer.zero_grad();
            const torch::Tensor logits = network->forward(train.images.index_select(0, rows));
            const torch::Tensor result =
                torch::nn::functional::cross_entropy(logits, train.labels.index_select(0, rows));
            result.backward();
            return result;
        });
        sum += loss.item<double>();
    }
    return sum / static_cast<double>(steps);
}

double accuracy(Network &network, const Set &test) {
    torch::NoGradGuard without_gradients;
    return network->forward(test.images).argmax(1).eq(test.labels).to(torch::kDouble).mean().item<double>();
}

/** Weights are decayed, biases are not: two groups, two handles. */
foam::torch::FOAM optimizer_for(Network &network) {
    const auto options = foam::torch::FOAMOptions(3e-3);
    std::vector<torch::Tensor> weights, biases;
    for (const torch::Tensor &param : network->parameters()) (param.dim() > 1 ? weights : biases).push_back(param);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(weights);
    groups.emplace_back(
        biases, std::make_unique<foam::torch::FOAMOptions>(foam::torch::FOAMOptions(options).weight_decay(0.0)));
    foam::torch::FOAM optimizer(groups, options);
    optimizer.name_params(network->named_parameters());
    return optimizer;
}

int train(const std::string &path, int epochs) {
    Digits train_digits, test_digits;
    Digits::read(path, train_digits, test_digits);
    const Set train(train_digits), test(test_digits);
    torch::manual_seed(1998);
    Network network, second;
    foam::torch::FOAM optimizer = optimizer_for(network), resumed = optimizer_for(second);
    torch::optim::StepLR schedule(optimizer, /*step_size=*/4, /*gamma=*/0.5);

    bool alike = true;
    for (int number = 1; number <= epochs; number++) {
        const torch::Tensor order = torch::randperm(train.labels.size(0));
        const bool middle = number == (epochs + 1) / 2;
        if (middle) {
            std::stringstream model, state;
            torch::save(network, model);
            torch::save(optimizer, state);
            torch::load(second, model);
            torch::load(resumed, state);
        }
        const double loss = epoch(network, optimizer, train, order);
        if (middle) {
            epoch(second, resumed, train, order);
            for (const auto &item : network->named_parameters()) {
                alike = alike && torch::equal(item.value(), second->named_parameters()[item.key()]);
            }
        }
        const foam::Stats stats = optimizer.handle(0).stats();
        std::printf("epoch %2d  lr %.1e  loss %.4f  test accuracy %.2f %%  EVD rate %.1f %%\n", number,
                    optimizer.options(0).lr(), loss, 100.0 * accuracy(network, test), 100.0 * stats.evd_rate());
        schedule.step();
    }
    std::printf("resumed from the middle: %s\n", alike ? "bit for bit the same" : "DIFFERENT");
    return alike ? 0 : 1;
}

} // namespace

int main(int count, char **arguments) {
    try {
        // One thread: torch's sums then have one order, and two equal runs are equal to the last bit.
        torch::set_num_threads(1);
        return train(count > 1 ? arguments[1] : "examples/data/digits.bin", count > 2 ? std::stoi(arguments[2]) : 8);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
