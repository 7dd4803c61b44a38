// A whole FOAM step as one XLA custom call: a thin handler around the stack functions of foam.h, to start from when
// your program has handlers of its own. train.py compiles it, registers it and trains with it.
//
// Operands: grads, params, then the state in the order of foam_stack_layout. Results: update, the new state,
// info, workspace. Attributes: options ("key=value;key=value") and scale (minus the learning rate).
#include <foam.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

// The configuration that `options` describes.
bool configure(std::string_view options, foam_config *config, foam_error *error) {
    if (foam_config_init(config, sizeof *config, nullptr, error)) return false;
    while (!options.empty()) {
        const std::string_view option = options.substr(0, options.find(';'));
        const std::string key(option.substr(0, option.find('=')));
        const std::string value(option.substr(std::min(option.size(), key.size() + 1)));
        if (foam_config_set(config, key.c_str(), value.c_str(), error)) return false;
        options.remove_prefix(std::min(options.size(), option.size() + 1));
    }
    return true;
}

foam_stack stack_of(int64_t count, const int64_t *shape, size_t ndim) {
    foam_stack stack;
    foam_stack_init(&stack, sizeof stack, nullptr);
    stack.count = count, stack.shape = shape, stack.ndim = int32_t(ndim);
    return stack;
}

// XLA's buffer as foam.h sees it; the library checks shape and type of every one.
foam_tensor tensor(const ffi::AnyBuffer &buffer) {
    foam_tensor tensor{};
    tensor.data = buffer.untyped_data();
    tensor.device.device_type = FOAM_DEVICE_CPU;
    tensor.ndim = int32_t(buffer.dimensions().size());
    tensor.shape = const_cast<int64_t *>(buffer.dimensions().begin());
    switch (buffer.element_type()) {
    case ffi::DataType::F32: tensor.dtype = {FOAM_DTYPE_FLOAT, 32, 1}; break;
    case ffi::DataType::F64: tensor.dtype = {FOAM_DTYPE_FLOAT, 64, 1}; break;
    case ffi::DataType::S32: tensor.dtype = {FOAM_DTYPE_INT, 32, 1}; break;
    case ffi::DataType::U32: tensor.dtype = {FOAM_DTYPE_UINT, 32, 1}; break;
    default: break; // {0, 0, 0} is refused by name
    }
    return tensor;
}

ffi::Error refuse(const foam_error &error) { return ffi::Error::InvalidArgument(error.message); }

ffi::Error step(ffi::AnyBuffer grads, ffi::AnyBuffer params, ffi::RemainingArgs state,
                ffi::Result<ffi::AnyBuffer> update, ffi::RemainingRets results, std::string_view options,
                double scale) {
    foam_error error = FOAM_ERROR_INIT;
    foam_config config;
    if (!configure(options, &config, &error)) return refuse(error);
    const auto dims = grads.dimensions();
    if (dims.size() < 2 || results.size() != state.size() + 2) {
        return ffi::Error::InvalidArgument("expected grads [count, ...], and as results update, state, info, workspace");
    }
    const foam_stack stack = stack_of(dims[0], dims.begin() + 1, dims.size() - 1);
    std::vector<foam_tensor> in, out;
    for (size_t i = 0; i < state.size(); i++) {
        in.push_back(tensor(*state.get<ffi::AnyBuffer>(i)));
        out.push_back(tensor(**results.get<ffi::AnyBuffer>(i)));
    }
    const ffi::AnyBuffer info_buffer = **results.get<ffi::AnyBuffer>(state.size());
    const ffi::AnyBuffer workspace = **results.get<ffi::AnyBuffer>(state.size() + 1);
    const foam_tensor g = tensor(grads), w = tensor(params), u = tensor(*update), info = tensor(info_buffer);

    // Whatever XLA did not put in place is copied first; from there on all three verbs work in place.
    for (size_t i = 0; i < in.size(); i++) {
        const size_t bytes = state.get<ffi::AnyBuffer>(i)->size_bytes();
        if (bytes != (*results.get<ffi::AnyBuffer>(i))->size_bytes()) {
            return ffi::Error::InvalidArgument("expected results of the state's sizes");
        }
        if (in[i].data != out[i].data) std::memcpy(out[i].data, in[i].data, bytes);
    }
    foam_stack_args args;
    foam_stack_args_init(&args, sizeof args, nullptr);
    args.state = out.data(), args.state_count = out.size();
    args.grads = &g, args.params = &w, args.update = &u, args.info = &info, args.scale = scale;
    args.workspace = workspace.untyped_data(), args.workspace_size = workspace.size_bytes();
    for (auto verb : {foam_stack_accumulate, foam_stack_check, foam_stack_apply}) {
        if (verb(&config, &stack, &args, &error)) return refuse(error);
    }
    return ffi::Error::Success();
}

thread_local std::string answer; // what the functions for the driver returned last

} // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(foam_cpp_step, step,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>() // grads
                                  .Arg<ffi::AnyBuffer>() // params
                                  .RemainingArgs()       // state
                                  .Ret<ffi::AnyBuffer>() // update
                                  .RemainingRets()       // state, info, workspace
                                  .Attr<std::string_view>("options")
                                  .Attr<double>("scale"));

// For the driver: the state as "name u32 3,4;name f32 3,6,6;", then "workspace u8 N"; or "error: what is wrong".
extern "C" const char *foam_cpp_layout(const char *options, int64_t count, const int64_t *shape, size_t ndim) {
    foam_error error = FOAM_ERROR_INIT;
    foam_config config;
    const foam_stack stack = stack_of(count, shape, ndim);
    size_t buffers = 0, bytes = 0;
    std::vector<foam_stack_buffer> layout(32);
    if (!configure(options, &config, &error) ||
        foam_stack_layout(&config, &stack, layout.data(), sizeof layout[0], layout.size(), &buffers, &error) ||
        foam_stack_workspace(&config, &stack, &bytes, &error)) {
        return (answer = std::string("error: ") + error.message).c_str();
    }
    answer.clear();
    for (size_t i = 0; i < buffers; i++) {
        const foam_stack_buffer &buffer = layout[i];
        const char *type = buffer.dtype.code == FOAM_DTYPE_UINT ? "u" : "f";
        answer += std::string(buffer.name) + ' ' + type + std::to_string(buffer.dtype.bits) + ' ';
        for (int32_t axis = 0; axis < buffer.ndim; axis++) answer += std::to_string(buffer.shape[axis]) + ',';
        answer.back() = ';';
    }
    return (answer += "workspace u8 " + std::to_string(bytes)).c_str();
}

// For the driver: writes the first values into buffers of that layout. Returns an empty text, or what is wrong.
extern "C" const char *foam_cpp_reset(const char *options, int64_t count, const int64_t *shape, size_t ndim,
                                      void **data) {
    foam_error error = FOAM_ERROR_INIT;
    foam_config config;
    const foam_stack stack = stack_of(count, shape, ndim);
    size_t buffers = 0;
    std::vector<foam_stack_buffer> layout(32);
    std::vector<foam_tensor> state;
    bool fine = configure(options, &config, &error) &&
                !foam_stack_layout(&config, &stack, layout.data(), sizeof layout[0], layout.size(), &buffers, &error);
    for (size_t i = 0; fine && i < buffers; i++) {
        foam_stack_buffer &buffer = layout[i];
        state.push_back({data[i], {FOAM_DEVICE_CPU, 0}, buffer.ndim, buffer.dtype, buffer.shape, nullptr, 0});
    }
    if (fine) foam_stack_reset(&config, &stack, state.data(), buffers, &error);
    return (answer = error.message).c_str();
}
