/* foam.hpp and foam.h give the same bits: parameters, state and files. Usage: bitwise FOLDER */
#include "sequence.hpp"

#include <set>

/* The sequence's options, set by name. */
static foam::Config by_name() {
    foam::Config config("reference");
    for (const auto &[key, value] : sequence_options) config.set(key, value);
    return config;
}

/* The same, set by type. */
static foam::Config by_type() {
    return foam::Config("reference")
        .check_period(3)
        .max_factor_dim(8)
        .merge_dims(false)
        .num_threads(2)
        .lr(0.05)
        .epsilon(1e-6)
        .epsilon_max(1e-2);
}

template <class T> static void the_same_bits_as_the_c_functions(const foam::Config &config) {
    PlainRun<T> plain;
    Sequence<T> model;
    foam::Optimizer optimizer(config, model.described());
    const auto params = model.param_tensors(), grads = model.grad_tensors();
    for (int step = 0; step < 40; step++) {
        plain.step();
        model.advance();
        optimizer.step(params, grads);
        EXPECT(model == plain.model);
    }
    EXPECT(model != Sequence<T>());
    EXPECT(optimizer.save_memory() == plain.state());
    // The sequence is worth the name of a test only if the policy had something to decide.
    std::set<int32_t> branches;
    for (const foam::FactorStats &factor : optimizer.factor_stats()) branches.insert(factor.last_branch);
    EXPECT(optimizer.stats().reuse_calls > 0 && optimizer.stats().evd_calls > optimizer.stats().factors);
    EXPECT(branches.size() > 1);
}

template <class T> static void a_schedule_and_a_missing_gradient_give_the_same_bits() {
    PlainRun<T> plain;
    Sequence<T> model;
    foam::Optimizer optimizer(by_type(), model.described());
    for (int step = 0; step < 20; step++) {
        const double lr = 0.1 / (1.0 + step);
        const size_t without = static_cast<size_t>(step) % 5;
        plain.step(lr, without);
        model.advance();
        auto grads = model.grad_tensors();
        if (without < grads.size()) grads[without] = foam::Tensor();
        foam::StepOptions options;
        options.lr = lr;
        EXPECT(!optimizer.step(model.param_tensors(), grads, options).skipped);
        EXPECT(model == plain.model);
    }
}

/* What C saved, C++ continues, from a file and from memory. */
template <class T> static void a_c_run_is_continued(const std::string &folder) {
    const std::string path = folder + "/c.safetensors";
    PlainRun<T> plain;
    for (int step = 0; step < 10; step++) plain.step();
    plain.save(path);
    Sequence<T> from_file = plain.model, from_memory = plain.model;
    foam::Optimizer first(by_type(), from_file.described()), second(by_type().num_threads(1), from_memory.described());
    first.load_file(path);
    second.load_memory(plain.state());
    for (int step = 0; step < 15; step++) {
        plain.step();
        from_file.advance();
        from_memory.advance();
        first.step(from_file.param_tensors(), from_file.grad_tensors());
        second.step(from_memory.param_tensors(), from_memory.grad_tensors());
        EXPECT(from_file == plain.model && from_memory == plain.model);
    }
    EXPECT(first.stats().steps == 25 && first.save_memory() == plain.state());
    EXPECT(std::remove(path.c_str()) == 0);
}

/* 16-bit elements, and the three ways to say which kind they are. */
static void halves_by_tag_by_type_and_by_dlpack_are_alike() {
    const foam::Shape shape = {4, 3};
    const std::vector<uint16_t> start(12, 0x3f80), gradient = [] {
        std::vector<uint16_t> bits;
        for (uint16_t i = 0; i < 12; i++) bits.push_back(static_cast<uint16_t>(0x3c00 + 37 * i));
        return bits;
    }();
    for (const foam::DType dtype : {foam::DType::bf16, foam::DType::f16}) {
        std::vector<std::vector<uint16_t>> data(3, start);
        for (size_t way = 0; way < data.size(); way++) {
            std::vector<uint16_t> &bits = data[way];
            foam::Tensor param, grad;
            if (way == 0 && dtype == foam::DType::bf16) {
                param = foam::Tensor(reinterpret_cast<foam::bf16 *>(bits.data()), shape);
                grad = foam::Tensor(reinterpret_cast<const foam::bf16 *>(gradient.data()), shape);
            } else if (way == 0) {
                param = foam::Tensor(reinterpret_cast<foam::f16 *>(bits.data()), shape);
                grad = foam::Tensor(reinterpret_cast<const foam::f16 *>(gradient.data()), shape);
            } else {
                param = foam::Tensor(static_cast<void *>(bits.data()), dtype, shape);
                grad = foam::Tensor(static_cast<const void *>(gradient.data()), dtype, shape);
            }
            if (way == 2) {
                // As a DLTensor that a framework made: strides, and an offset into its allocation.
                int64_t strides[2] = {3, 1};
                foam_tensor foreign = param.raw();
                foreign.strides = strides;
                foreign.data = static_cast<char *>(foreign.data) - 64;
                foreign.byte_offset = 64;
                param = foam::Tensor::from_dlpack(&foreign);
                EXPECT(param.raw().strides[0] == 3 && param.raw().byte_offset == 64);
            }
            foam::Optimizer optimizer(by_type(), {{"half", param}});
            for (int step = 0; step < 5; step++) optimizer.step({param}, {grad});
        }
        EXPECT(data[0] != start && data[0] == data[1] && data[0] == data[2]);
    }
}

int main(int count, char **arguments) {
    if (!EXPECT(count == 2)) return 1;
    the_same_bits_as_the_c_functions<float>(by_name());
    the_same_bits_as_the_c_functions<float>(by_type());
    the_same_bits_as_the_c_functions<double>(by_name());
    the_same_bits_as_the_c_functions<double>(by_type());
    a_schedule_and_a_missing_gradient_give_the_same_bits<float>();
    a_schedule_and_a_missing_gradient_give_the_same_bits<double>();
    a_c_run_is_continued<float>(arguments[1]);
    a_c_run_is_continued<double>(arguments[1]);
    halves_by_tag_by_type_and_by_dlpack_are_alike();
    return check_result("bitwise");
}
