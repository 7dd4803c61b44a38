/* Without exceptions every function returns its error. Compiled with -fno-exceptions, and with FOAM_NO_EXCEPTIONS.
   Usage: no_exceptions FOLDER */
#include "sequence.hpp"

#ifndef FOAM_NO_EXCEPTIONS
#error "foam.hpp must notice that there are no exceptions"
#endif

using foam::Status;

/* The result is that error. */
#define RETURNS(expression, status, param_index, ...)                                                                  \
    do {                                                                                                               \
        const auto result = (expression);                                                                              \
        EXPECT(!result.ok() && !result);                                                                               \
        check_error(result.error(), status, param_index, {__VA_ARGS__}, __FILE__, __LINE__);                           \
    } while (0)

static void options_return_errors() {
    foam::Config config;
    EXPECT(config.set("tau", "0.5").ok() && config.tau() == 0.5);
    SAME(config.get("tau").value(), "0.5");
    RETURNS(config.set("tau", "much"), Status::invalid_argument, -1, "'tau'", "much");
    RETURNS(config.get("taus"), Status::invalid_argument, -1, "'taus'");
    RETURNS(foam::Config::preset("best"), Status::invalid_argument, -1, "best");
    SAME(foam::Config::preset("paper")->get("cadence").value(), "paper");
    RETURNS(foam::Optimizer::create(config.tau(-1.0), {{"w", {2}}}), Status::invalid_argument, -1, "'tau'");
}

static void a_life_without_exceptions(const std::string &folder) {
    const std::string path = folder + "/no_exceptions.safetensors";
    PlainRun<float> plain;
    Sequence<float> model;
    foam::Config config = foam::Config::preset("reference").value();
    for (const auto &[key, value] : sequence_options) EXPECT(config.set(key, value).ok());
    foam::Result<foam::Optimizer> created = foam::Optimizer::create(config, model.described());
    if (!EXPECT(created.ok() && created.error().status() == Status::ok)) return;
    foam::Optimizer optimizer = std::move(created).value();
    for (int step = 0; step < 12; step++) {
        plain.step();
        model.advance();
        foam::Result<foam::StepResult> done = optimizer.step(model.param_tensors(), model.grad_tensors());
        EXPECT(done && !done->skipped && !(*done).skipped);
        EXPECT(model == plain.model);
    }
    EXPECT(optimizer.stats()->steps == 12 && optimizer.factor_stats()->size() == optimizer.stats()->factors);
    EXPECT(optimizer.factor_read(0, 0, 0, foam::FactorMatrix::spectrum)->size() == 6);
    EXPECT(*optimizer.exact_gap(0, 0, 0) >= 0.0);
    EXPECT(*optimizer.save_memory() == plain.state());
    EXPECT(optimizer.save_file(path).ok() && optimizer.load_file(path).ok() && optimizer.synchronize().ok());
    EXPECT(std::remove(path.c_str()) == 0);
    RETURNS(optimizer.load_file(path), Status::io_error, -1, "no_exceptions.safetensors");
    RETURNS(optimizer.load_memory(std::vector<uint8_t>{1}), Status::bad_checkpoint, -1, "");
    RETURNS(optimizer.exact_gap(9, 0, 0), Status::invalid_argument, -1, "9");

    auto grads = model.grad_tensors();
    grads[1] = foam::Tensor(model.grads[1].data(), {2, 2});
    RETURNS(optimizer.step(model.param_tensors(), grads), Status::shape_mismatch, 1, "'vector'");
    grads.pop_back();
    RETURNS(optimizer.step(model.param_tensors(), grads), Status::invalid_argument, -1, "4 params", "3 grads");
    foam::Optimizer moved = std::move(optimizer);
    RETURNS(optimizer.stats(), Status::invalid_argument, -1, "optimizer is NULL");
    EXPECT(moved.stats().ok() && model == plain.model);
}

int main(int count, char **arguments) {
    if (!EXPECT(count == 2)) return 1;
    options_return_errors();
    a_life_without_exceptions(arguments[1]);
    return check_result("no_exceptions");
}
