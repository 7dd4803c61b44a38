/* Part of units.cc: errors are returned, in a program that throws them elsewhere. */
#define FOAM_NO_EXCEPTIONS
#include <foam.hpp>

foam_status third_step(float *w, const float *g);

foam_status third_step(float *w, const float *g) {
    foam::Result<foam::Optimizer> optimizer = foam::Optimizer::create(foam::Config(), {{"w", {2}}});
    if (!optimizer) return optimizer.error().code();
    return optimizer->step({{w, {2}}}, {{g, {2}}}).error().code();
}
