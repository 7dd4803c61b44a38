/* Three translation units share the header: this one and units_second.cc with exceptions, units_third.cc without. The
   linker must find each function once, and the two kinds of error handling must not be taken for each other. */
#include "check.hpp"

#include <foam.hpp> // The second time: nothing happens.

/* units_second.cc: takes over an optimizer, steps, hands it back; throws what the step throws. */
foam::Optimizer second_step(foam::Optimizer optimizer, float *w, const float *g);
/* units_third.cc: creates and steps on its own; gives the status of a step with `w`, which may be NULL. */
foam_status third_step(float *w, const float *g);

int main() {
    std::vector<float> w = {1.0f, 2.0f}, v = w, g = {0.5f, -0.5f};
    foam::Optimizer optimizer(foam::Config(), {{"w", {2}}});
    optimizer = second_step(std::move(optimizer), w.data(), g.data());
    EXPECT(optimizer.stats().steps == 1 && w[0] != 1.0f);
    // An exception that one unit throws, another catches.
    THROWS(second_step(std::move(optimizer), nullptr, g.data()), foam::Status::invalid_argument, 0, "'w'");
    EXPECT(third_step(v.data(), g.data()) == FOAM_OK && v == w);
    EXPECT(third_step(nullptr, g.data()) == FOAM_INVALID_ARGUMENT);
    return check_result("units");
}
