/* The choices of foam.h as enumerations; their numbers are the same. Part of foam.hpp. */

#ifndef FOAM_ENUMS_HPP
#define FOAM_ENUMS_HPP

#include "../foam.h"
#include "mode.hpp"

#include <type_traits>

namespace foam {
inline namespace FOAM_HPP_MODE {

/** Status of a call; the numbers are foam.h's. */
enum class Status : int32_t {
    ok = FOAM_OK,
    invalid_argument = FOAM_INVALID_ARGUMENT,
    unsupported = FOAM_UNSUPPORTED,
    shape_mismatch = FOAM_SHAPE_MISMATCH,
    out_of_memory = FOAM_OUT_OF_MEMORY,
    device_error = FOAM_DEVICE_ERROR,
    not_finite = FOAM_NOT_FINITE,
    no_convergence = FOAM_NO_CONVERGENCE,
    io_error = FOAM_IO_ERROR,
    bad_checkpoint = FOAM_BAD_CHECKPOINT,
    collective_failed = FOAM_COLLECTIVE_FAILED,
    cancelled = FOAM_CANCELLED,
    busy = FOAM_BUSY,
    poisoned = FOAM_POISONED,
    panic = FOAM_PANIC,
};

/** What decides about a factor at a check step. */
enum class Policy : int32_t {
    stale = FOAM_POLICY_STALE,
    foam = FOAM_POLICY_FOAM,
    foam_fixed_epsilon = FOAM_POLICY_FOAM_FIXED_EPSILON,
    foam_no_refresh = FOAM_POLICY_FOAM_NO_REFRESH,
    diagonal_residual = FOAM_POLICY_DIAGONAL_RESIDUAL,
    foam_certified = FOAM_POLICY_FOAM_CERTIFIED,
    grafting_only = FOAM_POLICY_GRAFTING_ONLY,
    sandwich = FOAM_POLICY_SANDWICH,
};

/** The unit of the dampings. */
enum class EpsilonMode : int32_t { absolute = FOAM_EPSILON_ABSOLUTE, relative = FOAM_EPSILON_RELATIVE };

/** When factors are checked. */
enum class Cadence : int32_t { reference = FOAM_CADENCE_REFERENCE, paper = FOAM_CADENCE_PAPER };

/** Whose step length the direction takes. */
enum class Grafting : int32_t {
    none = FOAM_GRAFTING_NONE,
    sgd = FOAM_GRAFTING_SGD,
    adagrad = FOAM_GRAFTING_ADAGRAD,
    rmsprop = FOAM_GRAFTING_RMSPROP,
    adam = FOAM_GRAFTING_ADAM,
};

/** Precision of statistics, basis and spectrum. */
enum class StatisticDtype : int32_t {
    automatic = FOAM_STATISTIC_AUTO, /**< The option's text is "auto", which is a word of C++. */
    f32 = FOAM_STATISTIC_F32,
    f64 = FOAM_STATISTIC_F64,
};

/** What a gradient that is not finite does. */
enum class Nonfinite : int32_t { error = FOAM_NONFINITE_ERROR, skip = FOAM_NONFINITE_SKIP };

/** What becomes of eigenvalues that rounding made negative. */
enum class NegativeEigenvalues : int32_t { shift = FOAM_NEGATIVE_SHIFT, clamp = FOAM_NEGATIVE_CLAMP };

/** A fault made on purpose, for testing how your code handles one. */
enum class Fault : int32_t {
    none = FOAM_FAULT_NONE,
    panic = FOAM_FAULT_PANIC,
    evd_chosen = FOAM_FAULT_EVD_CHOSEN,
    evd_nonorthogonal = FOAM_FAULT_EVD_NONORTHOGONAL,
    evd_double = FOAM_FAULT_EVD_DOUBLE,
    evd_all = FOAM_FAULT_EVD_ALL,
};

/** Where memory lives. */
enum class DeviceType : int32_t {
    cpu = FOAM_DEVICE_CPU,
    cuda = FOAM_DEVICE_CUDA,
    cuda_host = FOAM_DEVICE_CUDA_HOST,
    cuda_managed = FOAM_DEVICE_CUDA_MANAGED,
};

/** Weight of a log line. */
enum class LogLevel : int32_t { warning = FOAM_LOG_WARNING, info = FOAM_LOG_INFO };

/** Which preconditioner gives the direction. */
enum class Preconditioner : int32_t {
    shampoo = FOAM_PRECONDITIONER_SHAMPOO,
    soap = FOAM_PRECONDITIONER_SOAP,
};

/** How a basis of Shampoo is refreshed. */
enum class RefreshMethod : int32_t {
    evd = FOAM_REFRESH_EVD,
    qr = FOAM_REFRESH_QR,
    automatic = FOAM_REFRESH_AUTO, /**< The option's text is "auto". */
};

/** How the products of every step are rounded on a CUDA device. */
enum class MatmulPrecision : int32_t {
    f32 = FOAM_MATMUL_F32,
    tf32 = FOAM_MATMUL_TF32,
};

/** Where SOAP keeps its statistics. */
enum class SoapForm : int32_t {
    exact = FOAM_SOAP_EXACT,
    in_basis = FOAM_SOAP_IN_BASIS,
};

/** At which steps factors are checked. */
enum class RefreshSchedule : int32_t {
    fixed = FOAM_SCHEDULE_FIXED,
    front_loaded = FOAM_SCHEDULE_FRONT_LOADED,
    geometric = FOAM_SCHEDULE_GEOMETRIC,
    kappa = FOAM_SCHEDULE_KAPPA,
    combined = FOAM_SCHEDULE_COMBINED,
};

/** What the last check of a factor did (`foam_factor_info::last_branch`). */
enum class Branch : int32_t {
    none = FOAM_BRANCH_NONE,
    evd_first = FOAM_BRANCH_EVD_FIRST,
    evd_stale = FOAM_BRANCH_EVD_STALE,
    reuse_raised = FOAM_BRANCH_REUSE_RAISED,
    reuse_lowered = FOAM_BRANCH_REUSE_LOWERED,
    reuse_floor = FOAM_BRANCH_REUSE_FLOOR,
    evd_cap = FOAM_BRANCH_EVD_CAP,
    evd_threshold = FOAM_BRANCH_EVD_THRESHOLD,
    reuse_clipped = FOAM_BRANCH_REUSE_CLIPPED,
    reuse_same = FOAM_BRANCH_REUSE_SAME,
    qr_short = FOAM_BRANCH_QR_SHORT,
    evd_failed = FOAM_BRANCH_EVD_FAILED,
};

/** Which matrix of a factor is read. */
enum class FactorMatrix : int32_t {
    statistic = FOAM_FACTOR_STATISTIC,
    basis = FOAM_FACTOR_BASIS,
    spectrum = FOAM_FACTOR_SPECTRUM,
    inverse_root = FOAM_FACTOR_INVERSE_ROOT,
};

/** Type of an element. */
enum class DType { f32, f64, f16, bf16 };

/** The number that foam.h has for an enumerator. */
template <class Enum> constexpr int32_t number(Enum value) noexcept {
    static_assert(std::is_enum_v<Enum> && std::is_same_v<std::underlying_type_t<Enum>, int32_t> &&
                      !std::is_same_v<Enum, DType>,
                  "an enumeration of foam.hpp that has numbers in foam.h");
    return static_cast<int32_t>(value);
}

/** The DLPack form of an element type. */
constexpr foam_dtype raw(DType dtype) noexcept {
    switch (dtype) {
    case DType::f64: return {FOAM_DTYPE_FLOAT, 64, 1};
    case DType::f16: return {FOAM_DTYPE_FLOAT, 16, 1};
    case DType::bf16: return {FOAM_DTYPE_BFLOAT, 16, 1};
    case DType::f32: break;
    }
    return {FOAM_DTYPE_FLOAT, 32, 1};
}

/** Version of the ABI that the loaded library implements: MAJOR << 16 | MINOR. */
inline uint32_t abi_version() noexcept { return FOAM_CALL(abi_version)(); }

/** One line about the library's build. */
inline const char *build_info() noexcept { return FOAM_CALL(build_info)(); }

/** The name of a status, for example "FOAM_BUSY". */
inline const char *name(Status status) noexcept { return FOAM_CALL(status_name)(number(status)); }

} // namespace FOAM_HPP_MODE
} // namespace foam

#endif /* FOAM_ENUMS_HPP */
