/* Checks that say where they failed. The programs of this folder are C11 and C++17 at once. */
#ifndef CHECK_H
#define CHECK_H

#include <foam.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_failures = 0;

/* Reports a condition that does not hold, and goes on. */
#define CHECK(condition) check_that((condition) ? 1 : 0, #condition, __FILE__, __LINE__)

/* As CHECK, but nothing after it makes sense without it. */
#define REQUIRE(condition)                                                                                   \
    do {                                                                                                     \
        if (!CHECK(condition)) exit(1);                                                                      \
    } while (0)

/* The call succeeds, and says so in the record that it was given. */
#define OK(error, call) check_ok((call), (error), #call, __FILE__, __LINE__)

/* The call fails with `status`, and its message holds `says` (several parts are separated by '|'). */
#define FAILS(error, status, says, call)                                                                     \
    check_fails((call), (status), (says), (error), #call, __FILE__, __LINE__)

static inline int check_that(int holds, const char *what, const char *file, int line) {
    if (!holds) {
        fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
        check_failures += 1;
    }
    return holds;
}

static inline void check_ok(foam_status got, const foam_error *error, const char *call, const char *file,
                            int line) {
    if (got != FOAM_OK || error->code != FOAM_OK || error->message[0] != 0) {
        fprintf(stderr,
                "%s:%d: %s\n    gave %s (record: %s), expected FOAM_OK and an empty message\n    %s\n", file,
                line, call, foam_status_name(got), foam_status_name(error->code), error->message);
        check_failures += 1;
    }
}

/* Whether `text` holds every part of `parts`, which are separated by '|'. */
static inline int check_says(const char *text, const char *parts) {
    while (*parts != 0) {
        char part[128];
        size_t length = strcspn(parts, "|");
        if (length >= sizeof part) return 0;
        memcpy(part, parts, length);
        part[length] = 0;
        if (strstr(text, part) == NULL) return 0;
        parts += length + (parts[length] == '|' ? 1 : 0);
    }
    return 1;
}

static inline void check_fails(foam_status got, foam_status status, const char *says, foam_error *error,
                               const char *call, const char *file, int line) {
    int ended = memchr(error->message, 0, sizeof error->message) != NULL;
    if (got != status || error->code != got || !ended || !check_says(error->message, says)) {
        fprintf(
            stderr,
            "%s:%d: %s\n    gave %s (record: %s), expected %s and a message with \"%s\"\n    message: %s\n",
            file, line, call, foam_status_name(got), foam_status_name(error->code), foam_status_name(status),
            says, ended ? error->message : "(not terminated)");
        check_failures += 1;
    }
    if (got != FOAM_OK && error->message[0] == 0) {
        fprintf(stderr, "%s:%d: %s\n    failed without a message\n", file, line, call);
        check_failures += 1;
    }
    /* The next call must not profit from this one's record. */
    memset((char *)error + sizeof error->struct_size, 0x55, sizeof *error - sizeof error->struct_size);
    error->message[sizeof error->message - 1] = 0;
}

/* The exit code of the program. */
static inline int check_result(const char *program) {
    if (check_failures != 0) fprintf(stderr, "%s: %d checks failed\n", program, check_failures);
    return check_failures == 0 ? 0 : 1;
}

#endif
