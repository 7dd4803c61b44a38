/*
 * host.c in C++: foam.hpp through the plugin's table.
 *
 *   ./host_cpp [LIBRARY]
 */
#define FOAM_PLUGIN
#include <foam.hpp>

#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr int rows = 8, columns = 4, steps = 150;

double curvature(size_t at) { return at % columns == 0 ? 400.0 : 0.1 * (1.0 + static_cast<double>(at % columns)); }

double loss(const std::vector<float> &w) {
    double sum = 0.0;
    for (size_t at = 0; at < w.size(); at++) sum += 0.5 * curvature(at) * static_cast<double>(w[at] * w[at]);
    return sum;
}

std::vector<float> gradient(const std::vector<float> &w) {
    std::vector<float> g(w.size());
    for (size_t at = 0; at < w.size(); at++) g[at] = static_cast<float>(curvature(at) * static_cast<double>(w[at]));
    return g;
}

void train_plain(std::vector<float> &w) {
    for (int step = 0; step < steps; step++) {
        const std::vector<float> g = gradient(w);
        for (size_t at = 0; at < w.size(); at++) w[at] -= 0.002f * g[at];
    }
}

void train_foam(std::vector<float> &w) {
    foam::Optimizer optimizer(foam::Config().root(4).check_period(5).merge_dims(false), {{"w", {rows, columns}}});
    for (int step = 0; step < steps; step++) {
        std::vector<float> g = gradient(w);
        foam::StepOptions options;
        options.lr = 0.2 * (1.0 - static_cast<double>(step) / steps);
        optimizer.step({{w.data(), {rows, columns}}}, {{g.data(), {rows, columns}}}, options);
    }
}

} // namespace

int main(int argc, char **argv) {
    std::vector<float> w(rows * columns);
    for (size_t at = 0; at < w.size(); at++) w[at] = 0.2f * (static_cast<float>(at * 37 % 23) - 11.0f);
    const double first = loss(w);
    std::string reason;
    const bool found = foam::load(argc > 1 ? argv[1] : "libfoam.so.0.1", &reason);
    try {
        if (found) {
            std::printf("plugin: %s\n", foam::build_info());
            train_foam(w);
        } else {
            std::printf("no plugin: %s\n", reason.c_str());
            train_plain(w);
        }
    } catch (const foam::Error &error) {
        std::printf("%s\n", error.what());
        return 1;
    }
    std::printf("%s: loss %.4g -> %.4g in %d steps\n", found ? "FOAM" : "plain SGD", first, loss(w), steps);
    return 0;
}
