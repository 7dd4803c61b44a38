/* Errors, thrown or returned. Part of foam.hpp. */

#ifndef FOAM_ERROR_HPP
#define FOAM_ERROR_HPP

#include "enums.hpp"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace foam {
inline namespace FOAM_HPP_MODE {

/** What went wrong: the whole foam_error. */
class Error : public std::exception {
  public:
    /** An error with this record. */
    explicit Error(const foam_error &record) noexcept : record_(record) {
        // The longest name is far shorter than the room behind a message.
        std::snprintf(text_, sizeof text_, "%s: %s", FOAM_CALL(status_name)(record.code), record.message);
    }
    /** An error of the C++ side: something that foam.h has no words for. */
    Error(Status status, const std::string &message, int64_t param_index = -1) noexcept
        : Error(make(status, message, param_index)) {}

    /** The status's name and the message. */
    const char *what() const noexcept override { return text_; }
    /** The status. */
    Status status() const noexcept { return static_cast<Status>(record_.code); }
    /** The status's number, FOAM_OK or another. */
    foam_status code() const noexcept { return record_.code; }
    /** The status's name, for example "FOAM_SHAPE_MISMATCH". */
    const char *status_name() const noexcept { return FOAM_CALL(status_name)(record_.code); }
    /** Index of the parameter concerned, or -1. */
    int64_t param_index() const noexcept { return record_.param_index; }
    /** Axis of the block concerned, or -1. */
    int32_t axis() const noexcept { return record_.axis; }
    /** Error code of the operating system or the device, or 0. */
    int32_t native_code() const noexcept { return record_.native_code; }
    /** A sentence for a person. */
    const char *message() const noexcept { return record_.message; }
    /** Everything, as the library wrote it. */
    const foam_error &record() const noexcept { return record_; }

  private:
    static foam_error make(Status status, const std::string &message, int64_t param_index) noexcept {
        foam_error record = FOAM_ERROR_INIT;
        record.code = number(status);
        record.param_index = param_index;
        std::snprintf(record.message, sizeof record.message, "%s", message.c_str());
        return record;
    }

    foam_error record_;
    char text_[FOAM_MESSAGE_SIZE + 64];
};

#ifdef FOAM_NO_EXCEPTIONS

/** A value, or the error that there is instead. */
template <class T> class [[nodiscard]] Result {
  public:
    /** A value. */
    Result(T value) : value_(std::move(value)) {}
    /** An error. */
    Result(const Error &error) noexcept : error_(error) {}

    /** Whether there is a value. */
    bool ok() const noexcept { return value_.has_value(); }
    /** Whether there is a value. */
    explicit operator bool() const noexcept { return ok(); }
    /** The error; its status is `Status::ok` if there is none. */
    const Error &error() const noexcept { return error_; }
    /** The value; asking for it when there is none ends the program. */
    T &value() & { return present(), *value_; }
    /** The value, read only. */
    const T &value() const & { return present(), *value_; }
    /** The value, to move from. */
    T &&value() && { return present(), std::move(*value_); }
    /** As `value`. */
    T &operator*() & { return value(); }
    /** As `value`. */
    T &&operator*() && { return std::move(*this).value(); }
    /** As `value`. */
    T *operator->() noexcept { return &value(); }

  private:
    void present() const noexcept {
        if (!ok()) std::abort();
    }

    Error error_{foam_error FOAM_ERROR_INIT};
    std::optional<T> value_;
};

/** Success, or an error. */
template <> class [[nodiscard]] Result<void> {
  public:
    /** Success. */
    Result() noexcept = default;
    /** An error. */
    Result(const Error &error) noexcept : error_(error) {}

    /** Whether the call succeeded. */
    bool ok() const noexcept { return error_.status() == Status::ok; }
    /** Whether the call succeeded. */
    explicit operator bool() const noexcept { return ok(); }
    /** The error; its status is `Status::ok` if there is none. */
    const Error &error() const noexcept { return error_; }

  private:
    Error error_{foam_error FOAM_ERROR_INIT};
};

#else

/** With exceptions, the result of a call is its value; a failure throws `Error`. */
template <class T> using Result = T;

#endif

/** What the two kinds of error handling have in common. */
namespace detail {

/** The way out of a function that fails. */
template <class T> Result<T> failure(const Error &error) {
#ifdef FOAM_NO_EXCEPTIONS
    return error;
#else
    throw error;
#endif
}

/** Calls a function of foam.h that gives nothing but a status. */
template <class Call> Result<void> run(Call call) {
    foam_error error = FOAM_ERROR_INIT;
    if (call(&error) != FOAM_OK) return failure<void>(Error(error));
    return Result<void>();
}

/** Calls a function of foam.h that fills `value`. */
template <class T, class Call> Result<T> fill(T value, Call call) {
    foam_error error = FOAM_ERROR_INIT;
    if (call(value, &error) != FOAM_OK) return failure<T>(Error(error));
    return value;
}

} // namespace detail

} // namespace FOAM_HPP_MODE
} // namespace foam

#endif /* FOAM_ERROR_HPP */
