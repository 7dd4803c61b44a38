/*
 * foam_torch.hpp: FOAM as an optimizer of libtorch, header only, on top of foam.hpp.
 *
 *     foam::torch::FOAM optimizer(model->named_parameters(), foam::torch::FOAMOptions(1e-3).weight_decay(1e-4));
 *     optimizer.zero_grad();
 *     loss.backward();
 *     optimizer.step();
 *
 * Each parameter group has its own options and its own libfoam handle, made when it is first needed. The tensors
 * are passed on as they are: parameters are updated in place and must be contiguous (the error names one that is
 * not); a gradient that is not contiguous is copied. A parameter without a gradient takes no part in the step.
 * Learning-rate schedulers work; any other option may be changed between steps too, the state is kept.
 *
 * torch::save and torch::load keep the state bit for bit, and the options except `num_threads` and `device`.
 * Parameters that are given with their names have named state, and errors name them.
 *
 * All groups step or none: what one refuses (with `foam::Error`) all refuse, and a gradient that is not finite skips the
 * step of all, if the options of its group say so. On a GPU they wait for the device no more often than one group; those
 * on several devices are validated first.
 *
 * CUDA tensors are handed to the library on torch's current stream. Newer versions of torch tell it without the CUDA
 * headers; for older ones define FOAM_TORCH_CUDA, have the CUDA headers in the include path and link c10_cuda.
 */

#ifndef FOAM_TORCH_HPP
#define FOAM_TORCH_HPP

#include <foam.hpp>

#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>
#include <torch/utils.h>

#ifdef FOAM_TORCH_CUDA
#include <c10/cuda/CUDAStream.h>
#else
#include <c10/core/impl/VirtualGuardImpl.h>
#endif

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#ifdef FOAM_NO_EXCEPTIONS
#error "libtorch needs exceptions: compile with them, and without FOAM_NO_EXCEPTIONS"
#endif

/** FOAM for libtorch. */
namespace foam::torch {

/** Every option of foam.hpp's Config, in the manner of libtorch's options. */
struct FOAMOptions : public ::torch::optim::OptimizerCloneableOptions<FOAMOptions>, public foam::Options<FOAMOptions> {
    /** The preset "reference" with this learning rate. */
    FOAMOptions(double learning_rate = 2e-3) { lr(learning_rate); }
    /** The options of a configuration, for example of `foam::Config("paper")`. */
    explicit FOAMOptions(const foam::Config &config) { static_cast<ConfigBase &>(*this) = config; }

    /** The learning rate, for schedulers. */
    double get_lr() const override { return lr(); }
    /** Sets the learning rate, for schedulers. */
    void set_lr(const double value) override { lr(value); }

    /** Writes the options that belong to the run, not to the machine. */
    void serialize(::torch::serialize::OutputArchive &archive) const override {
        std::istringstream names(keys());
        for (std::string key; names >> key;) {
            if (portable(key)) archive.write(key, c10::IValue(get(key)));
        }
    }
    /** Reads what the other `serialize` wrote; options that the archive does not hold stay as they are. */
    void serialize(::torch::serialize::InputArchive &archive) override {
        std::istringstream names(keys());
        c10::IValue value;
        for (std::string key; names >> key;) {
            if (portable(key) && archive.try_read(key, value)) set(key, value.toStringRef());
        }
    }

  private:
    static bool portable(const std::string &key) { return key != "num_threads" && key != "device"; }
};

/** What stands between at::Tensor and foam_tensor. */
namespace detail {

/** The element type of a tensor that libfoam can work on. */
inline foam_dtype dtype(const at::Tensor &tensor, const std::string &what, int64_t index) {
    switch (tensor.scalar_type()) {
    case at::kFloat: return raw(DType::f32);
    case at::kDouble: return raw(DType::f64);
    case at::kHalf: return raw(DType::f16);
    case at::kBFloat16: return raw(DType::bf16);
    default:
        throw Error(Status::unsupported,
                    what + ": its type is " + c10::toString(tensor.scalar_type()) +
                        "; expected Float, Double, Half or BFloat16",
                    index);
    }
}

/** Where a tensor lives. */
inline foam_device device(const at::Tensor &tensor, const std::string &what, int64_t index) {
    const at::Device place = tensor.device();
    if (place.is_cpu()) return {FOAM_DEVICE_CPU, 0};
    if (place.is_cuda()) return {FOAM_DEVICE_CUDA, place.index()};
    throw Error(Status::unsupported, what + ": it lives on " + place.str() + "; expected cpu or cuda", index);
}

/** A view of a tensor; the tensor must outlive it. */
inline foam_tensor view(const at::Tensor &tensor, const std::string &what, int64_t index) {
    if (tensor.layout() != at::kStrided) {
        throw Error(Status::unsupported, what + ": it is sparse; expected a dense tensor", index);
    }
    // The library only reads sizes and strides.
    return {tensor.data_ptr(),
            device(tensor, what, index),
            static_cast<int32_t>(tensor.dim()),
            dtype(tensor, what, index),
            const_cast<int64_t *>(tensor.sizes().data()),
            const_cast<int64_t *>(tensor.strides().data()),
            0};
}

/** The stream's own pointer, where torch's device-independent streams can tell it. */
template <class Stream> auto native_handle(const Stream &stream, int) -> decltype(stream.native_handle()) {
    return stream.native_handle();
}
/** Older versions of torch cannot: better to refuse than to race on the wrong stream. */
template <class Stream> void *native_handle(const Stream &, long) {
    throw Error(Status::unsupported,
                "CUDA tensors: this torch cannot tell its current stream without the CUDA headers; "
                "expected FOAM_TORCH_CUDA to be defined, or a newer torch");
}

/** Torch's current stream on the device of `tensor`. */
inline void *current_stream(const at::Tensor &tensor) {
    if (!tensor.is_cuda()) return nullptr;
#ifdef FOAM_TORCH_CUDA
    return c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream();
#else
    const c10::impl::VirtualGuardImpl guard(tensor.device().type());
    return native_handle(guard.getStream(tensor.device()), 0);
#endif
}

} // namespace detail

/** Shampoo with measured staleness, as a libtorch optimizer. */
class FOAM : public ::torch::optim::Optimizer {
  public:
    /** Optimizes these parameters. */
    explicit FOAM(std::vector<at::Tensor> params, FOAMOptions defaults = {})
        : Optimizer(std::move(params), std::make_unique<FOAMOptions>(std::move(defaults))) {}
    /** Optimizes these parameters, whose names are those of the state and of errors. */
    explicit FOAM(const ::torch::OrderedDict<std::string, at::Tensor> &params, FOAMOptions defaults = {})
        : FOAM(params.values(), std::move(defaults)) {
        name_params(params);
    }
    /** Optimizes these groups; one without options has the defaults, one with options has those and no others. */
    explicit FOAM(const std::vector<::torch::optim::OptimizerParamGroup> &groups, FOAMOptions defaults = {})
        : Optimizer(std::vector<::torch::optim::OptimizerParamGroup>(),
                    std::make_unique<FOAMOptions>(std::move(defaults))) {
        for (const ::torch::optim::OptimizerParamGroup &group : groups) add_param_group(group);
    }

    /** Adds a group, with its own options if it has any. */
    void add_param_group(const ::torch::optim::OptimizerParamGroup &group) {
        Optimizer::add_param_group(group);
        // Newer versions of torch merge a group's options with the defaults, and lose those of types they do not know.
        if (group.has_options()) param_groups_.back().set_options(group.options().clone());
    }

    /** Gives names to parameters of any group; to be called before the first step. */
    void name_params(const ::torch::OrderedDict<std::string, at::Tensor> &params) {
        for (const auto &item : params) names_[item.value().unsafeGetTensorImpl()] = item.key();
    }

    /** One step of every group, or of none; first calls `closure`, if there is one, and returns its loss. */
    at::Tensor step(LossClosure closure = nullptr) override {
        at::Tensor loss;
        if (closure) {
            at::AutoGradMode with_gradients(true);
            loss = closure();
        }
        at::NoGradGuard without_gradients;
        skipped_ = step_groups();
        return loss;
    }

    /** Whether the last step was skipped because a gradient was not finite (option `nonfinite`). */
    bool skipped() const noexcept { return skipped_; }

    /** The handle of a group: its statistics, factors and files. */
    foam::Optimizer &handle(size_t group = 0) { return ready(group).optimizer; }

    /** The options of a group. */
    FOAMOptions &options(size_t group = 0) {
        auto *options = dynamic_cast<FOAMOptions *>(&param_groups_.at(group).options());
        if (!options) {
            throw Error(Status::invalid_argument, "parameter group " + std::to_string(group) +
                                                      ": its options are another optimizer's; expected FOAMOptions");
        }
        return *options;
    }

    /** Writes options and state of every group. */
    void save(::torch::serialize::OutputArchive &archive) const override {
        archive.write("foam_groups", c10::IValue(static_cast<int64_t>(param_groups_.size())));
        for (size_t group = 0; group < param_groups_.size(); group++) {
            ::torch::serialize::OutputArchive options(archive.compilation_unit()), own(archive.compilation_unit());
            param_groups_[group].options().serialize(options);
            own.write("options", options);
            // A group that has not been used yet has no state.
            if (group < handles_.size() && handles_[group].optimizer) {
                const std::vector<uint8_t> bytes = handles_[group].optimizer.save_memory();
                at::Tensor state = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
                std::memcpy(state.data_ptr(), bytes.data(), bytes.size());
                own.write("state", state, /*is_buffer=*/true);
            }
            archive.write("foam_group_" + std::to_string(group), own);
        }
    }

    /** Reads what `save` wrote, for the same groups of parameters. A failure changes nothing. */
    void load(::torch::serialize::InputArchive &archive) override {
        c10::IValue count;
        if (!archive.try_read("foam_groups", count) || !count.isInt()) {
            throw Error(Status::bad_checkpoint,
                        "the archive holds no FOAM optimizer; expected one that FOAM::save wrote");
        }
        if (count.toInt() != static_cast<int64_t>(param_groups_.size())) {
            throw Error(Status::bad_checkpoint, "the archive holds " + std::to_string(count.toInt()) +
                                                    " parameter groups; expected " +
                                                    std::to_string(param_groups_.size()));
        }
        std::vector<FOAMOptions> loaded;
        std::vector<Handle> handles;
        for (size_t group = 0; group < param_groups_.size(); group++) {
            ::torch::serialize::InputArchive own, stored;
            archive.read("foam_group_" + std::to_string(group), own);
            own.read("options", stored);
            loaded.push_back(options(group));
            loaded.back().serialize(stored);
            handles.push_back(open(group, loaded.back()));
            at::Tensor state;
            if (own.try_read("state", state, /*is_buffer=*/true)) {
                state = state.to(at::kCPU, at::kByte).contiguous();
                handles.back().optimizer.load_memory(state.data_ptr(), static_cast<size_t>(state.numel()));
            }
        }
        for (size_t group = 0; group < loaded.size(); group++) options(group) = loaded[group];
        handles_ = std::move(handles);
    }

  private:
    /** A group's optimizer, and the options that it was made with. */
    struct Handle {
        foam::Optimizer optimizer;
        foam_config made = {};
        size_t params = 0;
    };

    std::string name_of(size_t group, size_t index) const {
        const auto name = names_.find(param_groups_[group].params()[index].unsafeGetTensorImpl());
        if (name != names_.end()) return name->second;
        // Counted over all groups, so that errors are not ambiguous.
        for (size_t before = 0; before < group; before++) index += param_groups_[before].params().size();
        return "param_" + std::to_string(index);
    }

    /** A handle for a group, with all state zero. */
    Handle open(size_t group, const FOAMOptions &options) const {
        const std::vector<at::Tensor> &tensors = param_groups_[group].params();
        FOAMOptions placed = options;
        std::vector<Param> params;
        for (size_t index = 0; index < tensors.size(); index++) {
            const std::string name = name_of(group, index), what = "parameter '" + name + "'";
            const auto number = static_cast<int64_t>(index);
            params.emplace_back(name, tensors[index].sizes().vec());
            params.back().dtype = detail::dtype(tensors[index], what, number);
            // The state lives with the parameters.
            const foam_device device = detail::device(tensors[index], what, number);
            if (index == 0) placed.device(static_cast<DeviceType>(device.device_type), device.device_id);
        }
        return {foam::Optimizer(placed, params), options.raw(), tensors.size()};
    }

    /** Whether two configurations are the same but for the learning rate, which every step gives. */
    static bool same(foam_config a, const foam_config &b) {
        a.lr = b.lr;
        return std::memcmp(&a, &b, sizeof a) == 0;
    }

    /** The handle of a group, made or made anew where needed. */
    Handle &ready(size_t group) {
        const FOAMOptions &wanted = options(group);
        if (handles_.size() <= group) handles_.resize(group + 1);
        Handle &handle = handles_[group];
        if (!handle.optimizer) {
            handle = open(group, wanted);
        } else if (handle.params != param_groups_[group].params().size()) {
            throw Error(Status::invalid_argument, "parameter group " + std::to_string(group) + " has " +
                                                      std::to_string(param_groups_[group].params().size()) +
                                                      " parameters; expected " + std::to_string(handle.params) +
                                                      " as at its first step (add_param_group adds more)");
        } else if (!same(handle.made, wanted.raw())) {
            Handle anew = open(group, wanted);
            anew.optimizer.load_memory(handle.optimizer.save_memory());
            handle = std::move(anew);
        }
        return handle;
    }

    /** A group's part of a step: views of its tensors, and what they need to live. */
    struct Work {
        size_t group;
        c10::Device device;
        std::vector<foam_tensor> params, grads;
        std::vector<at::Tensor> held;
        StepOptions options;
    };

    /** The part of a group that has a gradient, with its handle made. */
    std::optional<Work> prepare(size_t group) {
        const std::vector<at::Tensor> &tensors = param_groups_[group].params();
        if (tensors.empty()) return std::nullopt;
        ready(group);
        Work work{group, tensors.front().device(), {}, {}, {}, {}};
        for (size_t index = 0; index < tensors.size(); index++) {
            const std::string what = "parameter '" + name_of(group, index) + "'";
            const auto number = static_cast<int64_t>(index);
            work.params.push_back(detail::view(tensors[index], what, number));
            const at::Tensor &grad = tensors[index].grad();
            if (!grad.defined()) {
                work.grads.push_back(Tensor().raw());
                continue;
            }
            // A gradient is only read, so that a contiguous copy serves as well.
            work.held.push_back(grad.layout() == at::kStrided ? grad.contiguous() : grad);
            work.grads.push_back(detail::view(work.held.back(), "gradient of " + what, number));
        }
        if (work.held.empty()) return std::nullopt;
        work.options.lr = options(group).lr();
        work.options.stream = detail::current_stream(tensors.front());
        return work;
    }

    /** One step of the parts on one device; true if it was skipped. */
    bool step_together(const std::vector<Work> &works, const c10::Device &device, bool validate_only) {
        std::vector<foam::Optimizer::Share> shares;
        for (const Work &work : works) {
            if (work.device != device) continue;
            shares.push_back({&handles_[work.group].optimizer, work.params.data(), work.grads.data(),
                              work.params.size(), work.options});
            shares.back().options.validate_only = validate_only;
        }
        if (shares.size() > 1) return foam::Optimizer::step_together(shares).skipped;
        const foam::Optimizer::Share &one = shares.front();
        return one.optimizer->step(one.params, one.grads, one.count, one.options).skipped;
    }

    /** One step of all groups that have gradients; true if it was skipped. */
    bool step_groups() {
        std::vector<Work> works;
        std::vector<c10::Device> devices;
        for (size_t group = 0; group < param_groups_.size(); group++) {
            std::optional<Work> work = prepare(group);
            if (!work) continue;
            if (std::find(devices.begin(), devices.end(), work->device) == devices.end()) {
                devices.push_back(work->device);
            }
            works.push_back(std::move(*work));
        }
        // Between devices nothing is decided together: all but the first, or one that tells late, are asked before.
        for (size_t i = 0; devices.size() > 1 && i < devices.size(); i++) {
            if ((i > 0 || !devices[i].is_cpu()) && step_together(works, devices[i], true)) return true;
        }
        for (const c10::Device &device : devices) {
            if (step_together(works, device, false)) return true;
        }
        // Autograd must learn that these were written, as by any operation in place.
        for (const Work &work : works) {
            for (const at::Tensor &tensor : param_groups_[work.group].params()) {
                if (tensor.grad().defined()) tensor.unsafeGetTensorImpl()->bump_version();
            }
        }
        return false;
    }

    std::vector<Handle> handles_;
    std::unordered_map<const c10::TensorImpl *, std::string> names_;
    bool skipped_ = false;
};

} // namespace foam::torch

#endif /* FOAM_TORCH_HPP */
