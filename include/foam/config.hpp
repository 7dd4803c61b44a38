/* Every option, by type and by name. Part of foam.hpp. */

#ifndef FOAM_CONFIG_HPP
#define FOAM_CONFIG_HPP

#include "error.hpp"

#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace foam {
inline namespace FOAM_HPP_MODE {

/** Receives log lines, on a thread that is inside a call on the handle. What it throws is dropped. */
using LogFunction = std::function<void(LogLevel level, std::string_view message)>;

/** The options as the library holds them, and by name. */
class ConfigBase {
  public:
    /** Sets option `key` from its text form, which is checked at once. */
    Result<void> set(const std::string &key, const std::string &value) {
        return detail::run(
            [&](foam_error *error) { return FOAM_CALL(config_set)(&config_, key.c_str(), value.c_str(), error); });
    }
    /** The text form of option `key`. */
    Result<std::string> get(const std::string &key) const { return text(key.c_str()); }
    /** The names of all options, separated by spaces. */
    Result<std::string> keys() const { return text(nullptr); }
    /** Finds out what `Optimizer::create` would refuse about the options; nothing is created. */
    Result<void> validate() const {
        return detail::run([&](foam_error *error) { return FOAM_CALL(config_validate)(&config_, error); });
    }
    /** foam.h's struct, to set what this header has no function for. */
    foam_config &raw() noexcept { return config_; }
    /** foam.h's struct. */
    const foam_config &raw() const noexcept { return config_; }
    /** The log function that an optimizer will copy, or an empty one. */
    const LogFunction &log_function() const noexcept { return log_; }

  protected:
    ConfigBase() {
        // The one way to fail is a library of another major version; `foam_create` then refuses the empty struct.
        (void)FOAM_CALL(config_init)(&config_, static_cast<uint32_t>(sizeof config_), nullptr, nullptr);
    }
    Result<void> init(const char *preset) {
        return detail::run([&](foam_error *error) {
            return FOAM_CALL(config_init)(&config_, static_cast<uint32_t>(sizeof config_), preset, error);
        });
    }

    foam_config config_ = {};
    LogFunction log_;

  private:
    Result<std::string> text(const char *key) const {
        // All names together are well below this; a value is a word or a number.
        return detail::fill(std::string(8192, '\0'), [&](std::string &value, foam_error *error) {
            const foam_status status = FOAM_CALL(config_get)(&config_, key, value.data(), value.size(), error);
            value.resize(std::strlen(value.c_str()));
            return status;
        });
    }
};

/**
 * A setter (which returns the object, to be chained) and a getter for every option. Values are checked as a whole
 * when an optimizer is created.
 */
template <class Self> class Options : public ConfigBase {
#define FOAM_HPP_NUMBER(type, option)                                                                                  \
    Self &option(type value) noexcept { return config_.option = value, self(); }                                       \
    type option() const noexcept { return config_.option; }
#define FOAM_HPP_SWITCH(option)                                                                                        \
    Self &option(bool value) noexcept { return config_.option = value ? 1 : 0, self(); }                               \
    bool option() const noexcept { return config_.option != 0; }
#define FOAM_HPP_CHOICE(type, option)                                                                                  \
    Self &option(type value) noexcept { return config_.option = number(value), self(); }                               \
    type option() const noexcept { return static_cast<type>(config_.option); }

  public:
    /** What decides about a factor at a check step. */
    FOAM_HPP_CHOICE(Policy, policy)
    /** When factors are checked. */
    FOAM_HPP_CHOICE(Cadence, cadence)
    /** Steps between checks (the paper's f). */
    FOAM_HPP_NUMBER(int64_t, check_period)
    /** First check of the reference cadence; 0 means `check_period`. */
    FOAM_HPP_NUMBER(int64_t, start_step)
    /** Divide averages by 1 - beta^t. */
    FOAM_HPP_SWITCH(bias_correction)
    /** p of the inverse root; 0 means twice the block's order. */
    FOAM_HPP_NUMBER(double, root)
    /** The exponent is -exponent_multiplier / root. */
    FOAM_HPP_NUMBER(double, exponent_multiplier)
    /** Decay of the gradient filter. */
    FOAM_HPP_NUMBER(double, beta1)
    /** Decay of the statistics; 1 means a plain sum. */
    FOAM_HPP_NUMBER(double, beta2)
    /** Base damping, in the unit that epsilon_mode says. */
    FOAM_HPP_NUMBER(double, epsilon)
    /** Base damping of axis 0 of blocks of order 2 and more; 0 means `epsilon`. */
    FOAM_HPP_NUMBER(double, epsilon_left)
    /** Base damping of the other axes of such blocks; 0 means `epsilon`. */
    FOAM_HPP_NUMBER(double, epsilon_right)
    /** Largest damping before a refresh. */
    FOAM_HPP_NUMBER(double, epsilon_max)
    /** Tolerated proxy; smaller is fresher and dearer. */
    FOAM_HPP_NUMBER(double, tau)
    /** Threshold of the policy diagonal_residual. */
    FOAM_HPP_NUMBER(double, residual_threshold)
    /** Largest side of a block; larger dimensions are split. */
    FOAM_HPP_NUMBER(int64_t, max_factor_dim)
    /** Merge small neighbouring dimensions first. */
    FOAM_HPP_SWITCH(merge_dims)
    /** Whose step length is taken. */
    FOAM_HPP_CHOICE(Grafting, grafting)
    /** Decay of the grafted method's second moment. */
    FOAM_HPP_NUMBER(double, grafting_beta2)
    /** Added to the root of the grafted second moment. */
    FOAM_HPP_NUMBER(double, grafting_epsilon)
    /** Graft from the gradient divided by its norm. */
    FOAM_HPP_SWITCH(normalized_grafting)
    /** Momentum on the update. */
    FOAM_HPP_NUMBER(double, momentum)
    /** Nesterov momentum. */
    FOAM_HPP_SWITCH(nesterov)
    /** Scale the momentum's input by 1 - momentum. */
    FOAM_HPP_SWITCH(ema_momentum)
    /** Look one filter step ahead (NAdam). */
    FOAM_HPP_SWITCH(nadam)
    /** Weight decay. */
    FOAM_HPP_NUMBER(double, weight_decay)
    /** Decay the parameter itself instead of adding the decay to the gradient. */
    FOAM_HPP_SWITCH(decoupled_weight_decay)
    /** Learning rate of a step whose arguments give none. */
    FOAM_HPP_NUMBER(double, lr)
    /** Precision of statistics, basis and spectrum. */
    FOAM_HPP_CHOICE(StatisticDtype, statistic_dtype)
    /** What becomes of eigenvalues that rounding made negative. */
    FOAM_HPP_CHOICE(NegativeEigenvalues, negative_eigenvalues)
    /** Measure the proxy right after each refresh. */
    FOAM_HPP_SWITCH(noise_floor)
    /** What a gradient that is not finite does. */
    FOAM_HPP_CHOICE(Nonfinite, nonfinite)
    /** Threads that share the work, the caller's included; 0 means one for each core. Handles with the same number share one pool. */
    FOAM_HPP_NUMBER(int64_t, num_threads)
    /** A fault made on purpose. */
    FOAM_HPP_CHOICE(Fault, inject_fault)
    /** The first step at which it happens. */
    FOAM_HPP_NUMBER(int64_t, inject_fault_step)
    /** The unit of the dampings. */
    FOAM_HPP_CHOICE(EpsilonMode, epsilon_mode)
    /** Precondition vectors and scalars too. */
    FOAM_HPP_SWITCH(precondition_1d)
    /** Merging leaves the first dimension alone, so that a matrix stays a matrix. */
    FOAM_HPP_SWITCH(keep_matrix)
    /** Which preconditioner gives the direction; the preset "soap" sets all that SOAP needs. */
    FOAM_HPP_CHOICE(Preconditioner, preconditioner)
    /** Where SOAP keeps its statistics. */
    FOAM_HPP_CHOICE(SoapForm, soap_form)
    /** At which steps factors are checked (policy stale and SOAP: refreshed). */
    FOAM_HPP_CHOICE(RefreshSchedule, refresh_schedule)
    /** How a basis of Shampoo is refreshed. */
    FOAM_HPP_CHOICE(RefreshMethod, refresh_method)
    /** SOAP: divide the direction of a block by its root mean square. */
    FOAM_HPP_SWITCH(normalize_grads)
    /** SOAP: a side larger than this has no basis; 0 means no limit. */
    FOAM_HPP_NUMBER(int64_t, max_precond_dim)
    /** Steps between checks in the first part of the schedule front_loaded. */
    FOAM_HPP_NUMBER(int64_t, front_period)
    /** Steps of that part; 0 means 4 / (1 - beta2). */
    FOAM_HPP_NUMBER(int64_t, front_steps)
    /** Factor from a time to the next in the schedules geometric and combined. */
    FOAM_HPP_NUMBER(double, refresh_growth)
    /** Kappa above which the schedule kappa refreshes. */
    FOAM_HPP_NUMBER(double, kappa_threshold)
    /** Steps between corrections of the spectrum from one scheduled refresh to the next; 0 means none. */
    FOAM_HPP_NUMBER(int64_t, correction_period)
    /** Gradients enter the statistics at step 1 and at the multiples of this. */
    FOAM_HPP_NUMBER(int64_t, statistics_period)
    /** Keep an inverse root for every axis, or apply basis and spectrum in every step: less state, more products. */
    FOAM_HPP_SWITCH(keep_inverse_root)
    /** With QR steps: a factor most of whose recent checks asked for a refresh is refreshed at every check, unseen. */
    FOAM_HPP_SWITCH(qr_track)
    /** How the products of every step are rounded on a CUDA device; no effect on the CPU. */
    FOAM_HPP_CHOICE(MatmulPrecision, matmul_precision)
    /** Steps from the check that asks for a new basis to the step that takes it, made in the background meanwhile. */
    FOAM_HPP_NUMBER(int64_t, refresh_delay)
    /** Cut a dimension larger than max_factor_dim into pieces of about one size, not into full ones and a rest. */
    FOAM_HPP_SWITCH(even_blocks)
    /** On the CPU, keep the statistic and the inverse root of a large side in one square, not in a square each. */
    FOAM_HPP_SWITCH(share_squares)
#undef FOAM_HPP_NUMBER
#undef FOAM_HPP_SWITCH
#undef FOAM_HPP_CHOICE

    /** Where the state lives. */
    Self &device(DeviceType type, int32_t id = 0) noexcept {
        return config_.device_type = number(type), config_.device_id = id, self();
    }
    /** Where the state lives. */
    foam_device device() const noexcept { return {config_.device_type, config_.device_id}; }
    /** Who receives log lines; each optimizer keeps a copy. */
    Self &log(LogFunction function) {
        log_ = std::move(function);
        return self();
    }
    /** Who gives memory for the state and takes it back; foam.h says what they must do. */
    Self &allocator(foam_allocate_fn allocate, foam_deallocate_fn deallocate, void *user) noexcept {
        config_.allocate = allocate;
        config_.deallocate = deallocate;
        return config_.allocator_user = user, self();
    }

  private:
    Self &self() noexcept { return static_cast<Self &>(*this); }
};

/** Every option. Starts as the preset "default". */
class Config : public Options<Config> {
  public:
    /** The preset "default". */
    Config() = default;
#ifndef FOAM_NO_EXCEPTIONS
    /** A preset by name. */
    explicit Config(const std::string &name) { init(name.c_str()); }
#endif
    /** A preset by name: "default", "reference", "paper" or "soap". */
    static Result<Config> preset(const std::string &name) {
        return detail::fill(Config(), [&](Config &config, foam_error *error) {
            const uint32_t size = static_cast<uint32_t>(sizeof(foam_config));
            return FOAM_CALL(config_init)(&config.config_, size, name.c_str(), error);
        });
    }
};

} // namespace FOAM_HPP_MODE
} // namespace foam

#endif /* FOAM_CONFIG_HPP */
