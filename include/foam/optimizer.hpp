/* The optimizer. Part of foam.hpp. */

#ifndef FOAM_OPTIMIZER_HPP
#define FOAM_OPTIMIZER_HPP

#include "comm.hpp"
#include "config.hpp"
#include "error.hpp"
#include "tensor.hpp"

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace foam {
inline namespace FOAM_HPP_MODE {

/** What one step may have of its own. */
struct StepOptions {
    std::optional<double> lr = std::nullopt; /**< Learning rate; none means the configuration's. */
    double grad_scale = 1.0;                 /**< Multiplies every gradient, to undo a loss scale. */
    void *stream = nullptr;                  /**< CUDA stream to order the work on. */
    bool validate_only = false;              /**< Find out what the step would refuse, and take none. */
    std::vector<void *> after = {};          /**< CUDA streams whose work so far comes before the step. */
};

/** What one step did. */
struct StepResult {
    bool skipped = false; /**< A gradient was not finite and the option `nonfinite` is `skip`. */
};

/** Statistics of the whole optimizer. */
struct Stats : foam_stats_info {
    /** Eigendecompositions done of those that stale Shampoo would do, in [0, 1]; 0 before the first check. */
    double evd_rate() const noexcept {
        if (checks == 0) return 0.0;
        return static_cast<double>(evd_calls) / static_cast<double>(checks);
    }
};

/** Statistics of one Kronecker factor. */
using FactorStats = foam_factor_info;

/** A block of a parameter: where it lies, its stack, its costs. */
using Block = foam_block_info;

/** An optimizer: owns its handle, moves, does not copy. One that was moved from refuses every call. */
class Optimizer {
  public:
    /** An optimizer without a handle, to be assigned to. */
    Optimizer() noexcept = default;
#ifndef FOAM_NO_EXCEPTIONS
    /** An optimizer for these parameters, with all state zero. */
    Optimizer(const ConfigBase &config, const std::vector<Param> &params) : Optimizer(create(config, params)) {}
    /** The same, with the work and the state shared by all ranks of `comm`, which must outlive the optimizer. */
    Optimizer(const ConfigBase &config, Comm &comm, const std::vector<Param> &params)
        : Optimizer(create(config, comm, params)) {}
#endif
    Optimizer(const Optimizer &) = delete;
    Optimizer &operator=(const Optimizer &) = delete;
    Optimizer(Optimizer &&) noexcept = default;
    /** Takes over another's handle and destroys its own. */
    Optimizer &operator=(Optimizer &&other) noexcept {
        if (this == &other) return *this;
        // The handle goes first: it may still write to the log function.
        handle_ = std::move(other.handle_);
        log_ = std::move(other.log_);
        names_ = std::move(other.names_);
        return *this;
    }
    ~Optimizer() = default;

    /** An optimizer for these parameters, with all state zero. */
    static Result<Optimizer> create(const ConfigBase &config, const std::vector<Param> &params) {
        return detail::fill(Optimizer(), [&](Optimizer &optimizer, foam_error *error) {
            return optimizer.open(config, nullptr, params, error);
        });
    }
    /** The same, with the work and the state shared by all ranks of `comm`, which must outlive the optimizer. Every
        rank makes this call, and later the same calls in the same order. */
    static Result<Optimizer> create(const ConfigBase &config, Comm &comm, const std::vector<Param> &params) {
        return detail::fill(Optimizer(), [&](Optimizer &optimizer, foam_error *error) {
            return optimizer.open(config, &comm, params, error);
        });
    }

    /** One step: reads `grads`, updates `params` in place; both in the order of creation. */
    Result<StepResult> step(Span<Tensor> params, Span<Tensor> grads, const StepOptions &options = {}) {
        if (params.size() != grads.size()) {
            return detail::failure<StepResult>(
                Error(Status::invalid_argument, "step got " + std::to_string(params.size()) + " params and " +
                                                    std::to_string(grads.size()) +
                                                    " grads; expected as many of both (an empty Tensor for none)"));
        }
        std::vector<foam_tensor> raws;
        raws.reserve(2 * params.size());
        for (const Tensor &param : params) {
            if (param.read_only()) return detail::failure<StepResult>(read_only(raws.size()));
            raws.push_back(param.raw());
        }
        for (const Tensor &grad : grads) raws.push_back(grad.raw());
        return step(raws.data(), raws.data() + params.size(), params.size(), options);
    }
    /** The same with foam.h's structs, to which a `DLTensor *` may be cast. */
    Result<StepResult> step(const foam_tensor *params, const foam_tensor *grads, size_t count,
                            const StepOptions &options = {}) {
        return detail::fill(StepResult(), [&](StepResult &result, foam_error *error) {
            foam_step_args args;
            int32_t skipped = 0;
            foam_status status = prepare(args, {this, params, grads, count, options}, skipped, error);
            if (status != FOAM_OK) return status;
            status = FOAM_CALL(step)(handle_.get(), &args, error);
            result.skipped = skipped != 0;
            return status;
        });
    }

    /** What one of several optimizers does in a step of all of them, with foam.h's structs. */
    struct Share {
        Optimizer *optimizer;      /**< Which one. */
        const foam_tensor *params; /**< Its parameters. */
        const foam_tensor *grads;  /**< Their gradients. */
        size_t count;              /**< How many of each. */
        StepOptions options;       /**< As for a step of its own. */
    };
    /** One step of several optimizers on one device, or of none of them (`foam_step_together`). */
    static Result<StepResult> step_together(const std::vector<Share> &shares) {
        return detail::fill(StepResult(), [&](StepResult &result, foam_error *error) {
            std::vector<foam_optimizer *> handles;
            std::vector<foam_step_args> args(shares.size());
            int32_t skipped = 0;
            for (size_t i = 0; i < shares.size(); i++) {
                handles.push_back(shares[i].optimizer->get());
                const foam_status status = prepare(args[i], shares[i], skipped, error);
                if (status != FOAM_OK) return status;
            }
            const foam_status status = FOAM_CALL(step_together)(handles.data(), args.data(), args.size(), error);
            result.skipped = skipped != 0;
            return status;
        });
    }

    /** Changes an option that does not shape the state, from the next step on. Keys and values are text. */
    Result<void> set_option(const std::string &key, const std::string &value) {
        return detail::run([&](foam_error *error) {
            return FOAM_CALL(set_option)(handle_.get(), key.c_str(), value.c_str(), error);
        });
    }
    /** The value of an option that is in use. */
    Result<std::string> option(const std::string &key) const {
        return detail::fill(std::string(), [&](std::string &text, foam_error *error) {
            char value[256] = "";
            const foam_status status = FOAM_CALL(get_option)(handle_.get(), key.c_str(), value, sizeof value, error);
            text = value;
            return status;
        });
    }
    /** The blocks that the parameters are cut into, ordered by parameter and block. */
    Result<std::vector<Block>> blocks() const {
        return detail::fill(std::vector<Block>(), [&](std::vector<Block> &items, foam_error *error) {
            size_t count = 0;
            const foam_status status = FOAM_CALL(blocks)(handle_.get(), nullptr, 0, 0, &count, error);
            if (status != FOAM_OK || count == 0) return status;
            items.resize(count);
            return FOAM_CALL(blocks)(handle_.get(), items.data(), sizeof(Block), count, &count, error);
        });
    }

    /** Statistics of the whole optimizer. */
    Result<Stats> stats() const {
        return detail::fill(Stats(), [&](Stats &stats, foam_error *error) {
            stats.struct_size = static_cast<uint32_t>(sizeof(foam_stats_info));
            return FOAM_CALL(stats)(handle_.get(), &stats, error);
        });
    }
    /** What keeps the configuration from working (`findings` of the statistics): a line for each finding, with the
        option to change and a value to try; empty if nothing was found. The log function gets each once. */
    Result<std::string> diagnosis() const {
        return detail::fill(std::string(), [&](std::string &text, foam_error *error) {
            size_t size = 0;
            const foam_status status = FOAM_CALL(diagnosis)(handle_.get(), nullptr, 0, &size, error);
            if (status != FOAM_OK) return status;
            text.resize(size);
            const foam_status filled = FOAM_CALL(diagnosis)(handle_.get(), &text[0], size, &size, error);
            text.resize(std::strlen(text.c_str()));
            return filled;
        });
    }
    /** Statistics of every factor, ordered by parameter, block and axis. */
    Result<std::vector<FactorStats>> factor_stats() const {
        return detail::fill(std::vector<FactorStats>(), [&](std::vector<FactorStats> &items, foam_error *error) {
            size_t count = 0;
            const foam_status status = FOAM_CALL(factor_stats)(handle_.get(), nullptr, 0, 0, &count, error);
            if (status != FOAM_OK || count == 0) return status;
            items.resize(count);
            return FOAM_CALL(factor_stats)(handle_.get(), items.data(), sizeof(FactorStats), count, &count, error);
        });
    }
    /** One of a factor's matrices, row-major. */
    Result<std::vector<double>> factor_read(int64_t param_index, int64_t block, int64_t axis, FactorMatrix what) const {
        return detail::fill(std::vector<double>(), [&](std::vector<double> &values, foam_error *error) {
            const auto read = [&](double *target, size_t *count) {
                return FOAM_CALL(factor_read)(handle_.get(), param_index, block, axis, number(what), target, values.size(),
                                        count, error);
            };
            size_t count = 0;
            const foam_status status = read(nullptr, &count);
            if (status != FOAM_OK || count == 0) return status;
            values.resize(count);
            return read(values.data(), &count);
        });
    }
    /** The exact relative operator gap of a factor, at the price of an eigendecomposition. */
    Result<double> exact_gap(int64_t param_index, int64_t block, int64_t axis) const {
        return detail::fill(0.0, [&](double &gap, foam_error *error) {
            return FOAM_CALL(exact_gap)(handle_.get(), param_index, block, axis, &gap, error);
        });
    }

    /** Writes the whole state to a safetensors file, which appears whole or not at all. */
    Result<void> save_file(const std::string &path) const {
        return detail::run([&](foam_error *error) { return FOAM_CALL(save_file)(handle_.get(), path.c_str(), error); });
    }
    /** Reads what `save_file` wrote; the run continues bit for bit. */
    Result<void> load_file(const std::string &path) {
        return detail::run([&](foam_error *error) { return FOAM_CALL(load_file)(handle_.get(), path.c_str(), error); });
    }
    /** The bytes that `save_file` would write. */
    Result<std::vector<uint8_t>> save_memory() const {
        return detail::fill(std::vector<uint8_t>(), [&](std::vector<uint8_t> &bytes, foam_error *error) {
            size_t size = 0;
            const foam_status status = FOAM_CALL(save_memory)(handle_.get(), nullptr, 0, &size, error);
            if (status != FOAM_OK) return status;
            bytes.resize(size);
            return FOAM_CALL(save_memory)(handle_.get(), bytes.data(), size, &size, error);
        });
    }
    /** Reads what `save_memory` gave. */
    Result<void> load_memory(const void *data, size_t size) {
        return detail::run([&](foam_error *error) { return FOAM_CALL(load_memory)(handle_.get(), data, size, error); });
    }
    /** Reads what `save_memory` gave. */
    Result<void> load_memory(const std::vector<uint8_t> &bytes) {
        // An empty vector has no pointer, and deserves the message about an empty checkpoint.
        return load_memory(bytes.empty() ? "" : static_cast<const void *>(bytes.data()), bytes.size());
    }

    /** Waits until all work on the optimizer's device is done. */
    Result<void> synchronize() {
        return detail::run([&](foam_error *error) { return FOAM_CALL(synchronize)(handle_.get(), error); });
    }
    /** foam.h's handle, still owned by this object; NULL if there is none. */
    foam_optimizer *get() const noexcept { return handle_.get(); }
    /** Whether there is a handle. */
    explicit operator bool() const noexcept { return handle_ != nullptr; }

  private:
    static foam_status prepare(foam_step_args &args, const Share &share, int32_t &skipped, foam_error *error) {
        const foam_status status = FOAM_CALL(step_args_init)(&args, static_cast<uint32_t>(sizeof args), error);
        if (status != FOAM_OK) return status;
        const StepOptions &options = share.options;
        args.count = share.count;
        args.params = share.params;
        args.grads = share.grads;
        args.stream = options.stream;
        args.skipped = &skipped;
        if (options.lr) args.lr = *options.lr;
        args.grad_scale = options.grad_scale;
        args.after = options.after.data();
        args.after_count = options.after.size();
        args.flags = options.validate_only ? FOAM_STEP_VALIDATE : 0;
        return FOAM_OK;
    }

    struct Destroy {
        void operator()(foam_optimizer *optimizer) const noexcept { FOAM_CALL(destroy)(optimizer); }
    };

    static void forward_log(void *user, int32_t level, const char *message) noexcept {
        const LogFunction &function = *static_cast<const LogFunction *>(user);
#ifdef FOAM_NO_EXCEPTIONS
        function(static_cast<LogLevel>(level), message);
#else
        // An exception must not pass through the library, and a logger must not stop a training.
        try {
            function(static_cast<LogLevel>(level), message);
        } catch (...) {
        }
#endif
    }

    Error read_only(size_t index) const {
        const std::string name = index < names_.size() ? names_[index] : std::to_string(index);
        return Error(Status::invalid_argument,
                     "parameter '" + name + "': its tensor is a view of const elements; expected writable ones",
                     static_cast<int64_t>(index));
    }

    foam_status open(const ConfigBase &config, Comm *comm, const std::vector<Param> &params, foam_error *error) {
        std::vector<foam_param> raws(params.size());
        for (size_t index = 0; index < params.size(); index++) {
            const Param &param = params[index];
            foam_param &raw = raws[index];
            const foam_status status = FOAM_CALL(param_init)(&raw, static_cast<uint32_t>(sizeof raw), error);
            if (status != FOAM_OK) return status;
            raw.flags = param.grafting_only ? FOAM_PARAM_GRAFTING_ONLY : 0;
            raw.name = param.name.empty() ? nullptr : param.name.c_str();
            raw.shape = param.shape.data();
            raw.ndim = static_cast<int32_t>(param.shape.size());
            raw.dtype = param.dtype;
            raw.lr_scale = param.lr_scale;
            raw.weight_decay_scale = param.weight_decay_scale;
            raw.root = param.root;
            if (param.shard) {
                raw.shard_axis = param.shard->axis;
                raw.shard_start = param.shard->start;
                raw.shard_length = param.shard->length;
            }
            names_.push_back(param.name.empty() ? "param_" + std::to_string(index) : param.name);
        }
        foam_config settings = config.raw();
        if (config.log_function()) {
            // On the heap, so that the library's pointer to it survives moves.
            log_ = std::make_unique<LogFunction>(config.log_function());
            settings.log = forward_log;
            settings.log_user = log_.get();
        }
        foam_optimizer *handle = nullptr;
        foam_status status = FOAM_OK;
        if (comm == nullptr) {
            status = FOAM_CALL(create)(&settings, raws.data(), raws.size(), &handle, error);
        } else {
            const foam_comm ranks = comm->raw();
            status = FOAM_CALL(create_ranks)(&settings, &ranks, raws.data(), raws.size(), &handle, error);
        }
        handle_.reset(handle);
        return status;
    }

    // Destroyed from the bottom up: the handle before the function that it logs to.
    std::vector<std::string> names_;
    std::unique_ptr<LogFunction> log_;
    std::unique_ptr<foam_optimizer, Destroy> handle_;
};

} // namespace FOAM_HPP_MODE
} // namespace foam

#endif /* FOAM_OPTIMIZER_HPP */
