/* A failure throws foam::Error with the whole record: status, parameter, and a sentence that names what was wrong and
   what was expected. It changes nothing. Usage: errors FOLDER */
#include "sequence.hpp"

using foam::Status;

static void a_bad_option() {
    foam::Config config("reference");
    THROWS(config.set("tau", "0"), Status::invalid_argument, -1, "'tau'", "'0'", "(0, inf)");
    THROWS(config.set("grafting", "muon"), Status::invalid_argument, -1, "'grafting'", "muon", "adagrad");
    THROWS(config.set("taus", "1"), Status::invalid_argument, -1, "'taus'", "residual_threshold");
    THROWS(config.get("taus"), Status::invalid_argument, -1, "'taus'");
    EXPECT(config.tau() == 0.75);
    const std::vector<foam::Param> params = {{"w", {2, 2}}};
    // What was set by type is checked at creation.
    THROWS(foam::Optimizer(foam::Config("reference").tau(-1.0), params), Status::invalid_argument, -1, "'tau'", "-1");
    THROWS(foam::Optimizer(foam::Config("reference").epsilon_max(1e-12), params), Status::invalid_argument, -1, "epsilon_max");
    THROWS(foam::Optimizer::create(foam::Config("reference").beta1(1.0), params), Status::invalid_argument, -1, "beta1", "[0, 1)");
}

static void a_bad_parameter() {
    const foam::Config config("reference");
    THROWS(foam::Optimizer(config, {{"a", {2}}, {"b", {2, 0}}}), Status::invalid_argument, 1, "'b'");
    THROWS(foam::Optimizer(config, {{"a", {2}}, {"a", {3}}}), Status::invalid_argument, 1, "'a'");
    foam::Param slow("slow", {2});
    slow.lr_scale = 0.0;
    THROWS(foam::Optimizer(config, {slow}), Status::invalid_argument, 0, "slow", "lr_scale");
}

static void a_bad_step() {
    Sequence<float> model;
    foam::Optimizer optimizer(foam::Config("reference"), model.described());
    model.advance();
    auto params = model.param_tensors(), grads = model.grad_tensors();
    optimizer.step(params, grads);
    const Sequence<float> before = model;
    const auto state = optimizer.save_memory();

    grads[1] = foam::Tensor(model.grads[1].data(), {2, 2});
    THROWS(optimizer.step(params, grads), Status::shape_mismatch, 1, "'vector'", "gradient");
    grads = model.grad_tensors();
    params[3] = foam::Tensor(static_cast<const float *>(model.params[3].data()), {12, 3});
    THROWS(optimizer.step(params, grads), Status::invalid_argument, 3, "'tall'", "const", "writable");
    params.pop_back();
    THROWS(optimizer.step(params, grads), Status::invalid_argument, -1, "3 params", "4 grads");
    grads.pop_back();
    THROWS(optimizer.step(params, grads), Status::invalid_argument, -1, "count = 3", "expected 4");
    params = model.param_tensors(), grads = model.grad_tensors();
    model.grads[0][5] = std::nanf("");
    THROWS(optimizer.step(params, grads), Status::not_finite, 0, "'matrix'");
    model.grads[0][5] = 0.0f;
    foam::StepOptions bad;
    bad.lr = -1.0;
    THROWS(optimizer.step(params, grads, bad), Status::invalid_argument, -1, "lr", "-1");
    bad = {};
    bad.grad_scale = 0.0;
    THROWS(optimizer.step(params, grads, bad), Status::invalid_argument, -1, "grad_scale");
    // As if a DLTensor were transposed.
    foam_tensor transposed = params[0].raw();
    int64_t strides[2] = {1, 6};
    transposed.strides = strides;
    params[0] = foam::Tensor::from_dlpack(&transposed);
    THROWS(optimizer.step(params, grads), Status::unsupported, 0, "'matrix'", "contiguous");
    EXPECT(model == before && optimizer.save_memory() == state);
}

static void a_bad_read(const std::string &folder) {
    const foam::Optimizer optimizer(foam::Config("reference"), {{"w", {3, 2}}});
    THROWS(optimizer.factor_read(1, 0, 0, foam::FactorMatrix::basis), Status::invalid_argument, -1, "1");
    THROWS(optimizer.exact_gap(0, 0, 7), Status::invalid_argument, 0, "axis");
    foam::Optimizer other(foam::Config("reference"), {{"v", {3, 2}}});
    THROWS(other.load_memory(optimizer.save_memory()), Status::bad_checkpoint, 0, "'v'");
    THROWS(other.load_memory(std::vector<uint8_t>()), Status::bad_checkpoint, -1, "");
    THROWS(other.load_memory({1, 2, 3}), Status::bad_checkpoint, -1, "");
    const std::string nowhere = folder + "/no/such/folder/file";
    try {
        other.load_file(nowhere);
        EXPECT(false);
    } catch (const foam::Error &error) {
        check_error(error, Status::io_error, -1, {"no/such/folder"}, __FILE__, __LINE__);
        // The operating system's own number comes along: ENOENT.
        EXPECT(error.native_code() == 2);
    }
    THROWS(other.save_file(nowhere), Status::io_error, -1, "no/such/folder");
}

/* A moved-from or empty optimizer refuses every call, and does not crash. */
static void no_handle() {
    foam::Optimizer empty;
    EXPECT(!empty && empty.get() == nullptr);
    std::vector<float> w(2), g(2);
    THROWS(empty.step({{w.data(), {2}}}, {{g.data(), {2}}}), Status::invalid_argument, -1, "optimizer is NULL");
    THROWS(empty.stats(), Status::invalid_argument, -1, "optimizer is NULL");
    THROWS(empty.factor_stats(), Status::invalid_argument, -1, "optimizer is NULL");
    THROWS(empty.save_memory(), Status::invalid_argument, -1, "optimizer is NULL");
    THROWS(empty.synchronize(), Status::invalid_argument, -1, "optimizer is NULL");
}

static void a_panic_poisons() {
    std::vector<float> w(4, 1.0f), g(4, 1.0f);
    foam::Optimizer optimizer(foam::Config("reference").inject_fault(foam::Fault::panic), {{"w", {4}}});
    THROWS(optimizer.step({{w.data(), {4}}}, {{g.data(), {4}}}), Status::panic, -1, "panic");
    THROWS(optimizer.step({{w.data(), {4}}}, {{g.data(), {4}}}), Status::poisoned, -1, "");
    EXPECT(optimizer.stats().params == 1);
}

/* An error is an std::exception, copies without throwing, and survives the optimizer. */
static void an_error_is_a_value() {
    static_assert(std::is_nothrow_copy_constructible_v<foam::Error>);
    try {
        foam::Config("reference").set("tau", "much");
        EXPECT(false);
    } catch (const std::exception &error) {
        SAME(error.what(), std::string("FOAM_INVALID_ARGUMENT: ") + dynamic_cast<const foam::Error &>(error).message());
    }
}

int main(int count, char **arguments) {
    if (!EXPECT(count == 2)) return 1;
    a_bad_option();
    a_bad_parameter();
    a_bad_step();
    a_bad_read(arguments[1]);
    no_handle();
    a_panic_poisons();
    an_error_is_a_value();
    return check_result("errors");
}
