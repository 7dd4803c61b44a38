/* Whether errors are thrown or returned. Part of foam.hpp. */

#ifndef FOAM_MODE_HPP
#define FOAM_MODE_HPP

#if !defined(FOAM_NO_EXCEPTIONS) && !defined(__cpp_exceptions)
/** Functions return their errors instead of throwing them. */
#define FOAM_NO_EXCEPTIONS
#endif

/** The inline namespace of this kind of error handling: the two kinds may meet in one program. */
#ifdef FOAM_NO_EXCEPTIONS
#define FOAM_HPP_MODE without_exceptions
#else
#define FOAM_HPP_MODE with_exceptions
#endif

#endif /* FOAM_MODE_HPP */
