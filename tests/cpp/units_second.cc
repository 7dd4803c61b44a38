/* Part of units.cc: with exceptions. */
#include <foam.hpp>

foam::Optimizer second_step(foam::Optimizer optimizer, float *w, const float *g);

foam::Optimizer second_step(foam::Optimizer optimizer, float *w, const float *g) {
    optimizer.step({{w, {2}}}, {{g, {2}}});
    return optimizer;
}
