/* Checks that say where they failed. */
#ifndef CHECK_HPP
#define CHECK_HPP

#include <foam.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>

inline int check_failures = 0;

/* Reports a condition that does not hold, and goes on. */
#define EXPECT(condition) check_that(static_cast<bool>(condition), #condition, __FILE__, __LINE__)

inline bool check_that(bool holds, const char *what, const char *file, int line) {
    if (!holds) {
        std::fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
        check_failures += 1;
    }
    return holds;
}

/* Both texts are the same. */
#define SAME(got, wanted) check_same((got), (wanted), #got, __FILE__, __LINE__)

inline void check_same(const std::string &got, const std::string &wanted, const char *what, const char *file,
                       int line) {
    if (got == wanted) return;
    std::fprintf(stderr, "%s:%d: %s is \"%s\", expected \"%s\"\n", file, line, what, got.c_str(), wanted.c_str());
    check_failures += 1;
}

/* The error has this status and parameter, and its message holds every one of `parts`. */
inline void check_error(const foam::Error &error, foam::Status status, long long param_index,
                        std::initializer_list<const char *> parts, const char *file, int line) {
    bool says = error.message()[0] != 0;
    for (const char *part : parts) says = says && std::string(error.message()).find(part) != std::string::npos;
    const std::string whole = std::string(foam::name(status)) + ": " + error.message();
    const foam_error &record = error.record();
    const bool complete = record.code == error.code() && record.axis == error.axis() &&
                          record.native_code == error.native_code() && error.what() == whole &&
                          std::string(error.status_name()) == foam::name(status);
    if (says && complete && error.status() == status && error.param_index() == param_index) return;
    std::fprintf(stderr, "%s:%d: expected %s for parameter %lld with", file, line, foam::name(status), param_index);
    for (const char *part : parts) std::fprintf(stderr, " \"%s\"", part);
    std::fprintf(stderr, "\n    got %s for parameter %lld\n", error.what(),
                 static_cast<long long>(error.param_index()));
    check_failures += 1;
}

#ifndef FOAM_NO_EXCEPTIONS
/* The expression throws that error. Usage: THROWS(expression, status, param_index, "part", "part", ...) */
#define THROWS(expression, status, param_index, ...)                                                                   \
    do {                                                                                                               \
        try {                                                                                                          \
            (void)(expression);                                                                                        \
            check_that(false, #expression " throws", __FILE__, __LINE__);                                              \
        } catch (const foam::Error &error) {                                                                           \
            check_error(error, status, param_index, {__VA_ARGS__}, __FILE__, __LINE__);                                \
        }                                                                                                              \
    } while (0)
#endif

/* The exit code of the program. */
inline int check_result(const char *program) {
    if (check_failures != 0) std::fprintf(stderr, "%s: %d checks failed\n", program, check_failures);
    return check_failures == 0 ? 0 : 1;
}

#endif
