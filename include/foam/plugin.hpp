/*
 * libfoam as a plugin: loaded at run time, never linked. Define FOAM_PLUGIN before the first include of foam.hpp;
 * then call foam::load before anything else of it.
 *
 *     #define FOAM_PLUGIN
 *     #include <foam.hpp>
 *
 *     std::string reason;
 *     if (foam::load("libfoam.so.0.1", &reason)) use(foam::Optimizer(...)); else do_without_it(reason);
 */

#ifndef FOAM_PLUGIN_HPP
#define FOAM_PLUGIN_HPP

#include "mode.hpp"

#include "../foam.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#ifndef _WIN32
#include <dlfcn.h>
#endif

namespace foam {
inline namespace FOAM_HPP_MODE {

namespace detail {

inline const foam_api *&table() noexcept {
    static const foam_api *loaded = nullptr;
    return loaded;
}

/** The functions. Without a library there is nothing to call, and nothing that could be said by an Error. */
inline const foam_api &api() noexcept {
    if (table() == nullptr) {
        std::fputs("foam.hpp: foam::load was not called, or found no library\n", stderr);
        std::abort();
    }
    return *table();
}

} // namespace detail

/** Whether there is a library to call. */
inline bool loaded() noexcept { return detail::table() != nullptr; }

/** Takes the functions that `get` (the library's foam_get_api) gives: for hosts that load libraries themselves. */
inline bool load(const foam_api *(*get)(uint32_t version), std::string *reason = nullptr) {
    const foam_api *found = get == nullptr ? nullptr : get(FOAM_API_VERSION);
    if (found != nullptr) {
        detail::table() = found;
        return true;
    }
    const foam_api *oldest = get == nullptr ? nullptr : get(1);
    if (reason != nullptr) {
        *reason = "it has no foam_api of version " + std::to_string(FOAM_API_VERSION);
        if (oldest != nullptr) *reason += ": " + std::string(oldest->build_info());
    }
    return false;
}

#ifndef _WIN32
/**
 * Loads the library: a path, or a name for the system's loader. False, with the reason if it is wanted, if there is
 * none or if it is too old. Not to be called at the same time as anything else of this header.
 */
inline bool load(const std::string &path, std::string *reason = nullptr) {
    void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    void *symbol = library == nullptr ? nullptr : dlsym(library, "foam_get_api");
    if (symbol == nullptr) {
        const char *problem = dlerror();
        if (reason != nullptr) *reason = problem == nullptr ? path + " was not found" : problem;
        if (library != nullptr) dlclose(library);
        return false;
    }
    if (load(reinterpret_cast<const foam_api *(*)(uint32_t)>(symbol), reason)) return true;
    if (reason != nullptr) *reason = path + ": " + *reason;
    dlclose(library);
    return false;
}
#endif

} // namespace FOAM_HPP_MODE
} // namespace foam

#endif /* FOAM_PLUGIN_HPP */
