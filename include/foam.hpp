/*
 * foam.hpp: libfoam for C++17 and later, header only, on top of foam.h.
 *
 *     foam::Optimizer optimizer(foam::Config().lr(1e-3), {{"weight", {8, 4}}});
 *     optimizer.step({{w, {8, 4}}}, {{g, {8, 4}}});
 *
 * Threads, ownership and buffers are as foam.h says: tensors are views, nothing is copied, and a handle is used
 * by one call at a time.
 *
 * Errors. Every function whose result is a `Result<T>` may fail. With exceptions `Result<T>` is `T` itself, and a
 * failure throws `foam::Error`. Without them (`-fno-exceptions`, or FOAM_NO_EXCEPTIONS defined before the
 * first include) it is a class that holds the value or the `foam::Error`; constructors that may fail are then
 * absent, use `Config::preset` and `Optimizer::create`. Both kinds may be linked into one program: they live in
 * inline namespaces of their own.
 *
 * Plugin. With FOAM_PLUGIN defined before the first include nothing is linked: foam::load finds the library at run
 * time, see foam/plugin.hpp.
 */

#ifndef FOAM_HPP
#define FOAM_HPP

#include "foam/comm.hpp"
#include "foam/config.hpp"
#include "foam/enums.hpp"
#include "foam/error.hpp"
#include "foam/optimizer.hpp"
#include "foam/tensor.hpp"

#endif /* FOAM_HPP */
