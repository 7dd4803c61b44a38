/* Whether errors are thrown or returned, and whether the library is linked or loaded. Part of foam.hpp. */

#ifndef FOAM_MODE_HPP
#define FOAM_MODE_HPP

#if !defined(FOAM_NO_EXCEPTIONS) && !defined(__cpp_exceptions)
/** Functions return their errors instead of throwing them. */
#define FOAM_NO_EXCEPTIONS
#endif

/** The inline namespace of this kind of error handling and of calling: the kinds may meet in one program. */
#if defined(FOAM_NO_EXCEPTIONS) && defined(FOAM_PLUGIN)
#define FOAM_HPP_MODE without_exceptions_loaded
#elif defined(FOAM_NO_EXCEPTIONS)
#define FOAM_HPP_MODE without_exceptions
#elif defined(FOAM_PLUGIN)
#define FOAM_HPP_MODE with_exceptions_loaded
#else
#define FOAM_HPP_MODE with_exceptions
#endif

#ifdef FOAM_PLUGIN
#include "plugin.hpp"
/** A function of the library by its name without `foam_`: through the table that foam::load found. */
#define FOAM_CALL(function) ::foam::detail::api().function
#else
/** A function of the library by its name without `foam_`: the linker finds it. */
#define FOAM_CALL(function) ::foam_##function
#endif

#endif /* FOAM_MODE_HPP */
