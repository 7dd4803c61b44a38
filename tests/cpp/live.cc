/* Live options, validated steps and the list of blocks; with FOAM_PLUGIN all of it through the table that foam::load
   finds. Usage: live FOLDER */
#include "sequence.hpp"

static foam::Config config() {
    return foam::Config("reference").check_period(3).max_factor_dim(8).merge_dims(false).num_threads(2).lr(0.05);
}

static void options() {
    Sequence<float> model;
    foam::Optimizer optimizer(config(), model.described());
    SAME(optimizer.option("tau"), "0.75");
    optimizer.set_option("tau", "0.5");
    SAME(optimizer.option("tau"), "0.5");
    THROWS(optimizer.set_option("policy", "stale"), foam::Status::unsupported, -1, "policy", "live");
    THROWS(optimizer.set_option("tau", "-1"), foam::Status::invalid_argument, -1, "tau");
    SAME(optimizer.option("tau"), "0.5");
    THROWS(optimizer.option("taus"), foam::Status::invalid_argument, -1, "unknown option");
}

static void validation() {
    config().validate();
    THROWS(config().tau(-1.0).validate(), foam::Status::invalid_argument, -1, "tau");
    Sequence<float> model;
    foam::Optimizer optimizer(config(), model.described());
    model.advance();
    const std::vector<uint8_t> before = optimizer.save_memory();
    foam::StepOptions only;
    only.validate_only = true;
    EXPECT(!optimizer.step(model.param_tensors(), model.grad_tensors(), only).skipped);
    EXPECT(optimizer.save_memory() == before && optimizer.stats().steps == 0);
    only.lr = 1e39;
    THROWS(optimizer.step(model.param_tensors(), model.grad_tensors(), only), foam::Status::invalid_argument, 0, "lr");
}

static void blocks() {
    Sequence<float> model;
    foam::Optimizer optimizer(config(), model.described());
    const std::vector<foam::Block> blocks = optimizer.blocks();
    EXPECT(blocks.size() == optimizer.stats().blocks);
    int64_t elements = 0;
    for (const foam::Block &block : blocks) elements += block.elements;
    int64_t wanted = 0;
    for (const foam::Param &param : model.described()) {
        int64_t product = 1;
        for (int64_t size : param.shape) product *= size;
        wanted += product;
    }
    EXPECT(elements == wanted);
}

int main() {
#ifdef FOAM_PLUGIN
    std::string reason;
    EXPECT(!foam::load("./no-such-library.so", &reason) && !reason.empty() && !foam::loaded());
    EXPECT(!foam::load("libm.so.6", &reason) && reason.find("foam_get_api") != std::string::npos);
    if (!EXPECT(foam::load("libfoam.so.0.1", &reason))) std::fprintf(stderr, "    %s\n", reason.c_str());
    if (!foam::loaded()) return 1;
#endif
    options();
    validation();
    blocks();
    return check_result("live");
}
