// Minimises half the squared norm of a matrix with libfoam, through the C++ interface.
#include <foam.hpp>

#include <cstdio>
#include <vector>

int main() try {
    const foam::Shape shape{8, 4};
    std::vector<float> weight(32), gradient(32);
    for (int i = 0; i < 32; i++) weight[i] = static_cast<float>(i % 5) - 2.0f;

    // Damping is in units of the squared gradient, and these gradients are large.
    foam::Optimizer optimizer(foam::Config().lr(0.01).epsilon_max(1e-1).epsilon(1e-3), {{"weight", shape}});
    for (int step = 0; step < 300; step++) {
        gradient = weight;
        optimizer.step({{weight.data(), shape}}, {{gradient.data(), shape}});
    }

    double loss = 0;
    for (const float w : weight) loss += 0.5 * w * w;
    std::printf("%s\nloss after 300 steps: %.6f\n", foam_build_info(), loss);
    return loss < 1 ? 0 : 1;
} catch (const foam::Error &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
