/* A whole life in C++: what is created is destroyed once, handles move, statistics and factors are read, the log function
   is called, a run is saved and resumed. Usage: lifecycle FOLDER */
#include "sequence.hpp"

#include <type_traits>

static_assert(!std::is_copy_constructible_v<foam::Optimizer> && !std::is_copy_assignable_v<foam::Optimizer>);
static_assert(std::is_nothrow_move_constructible_v<foam::Optimizer> &&
              std::is_nothrow_move_assignable_v<foam::Optimizer> &&
              std::is_nothrow_default_constructible_v<foam::Optimizer>);

/* An allocator that counts what is out. */
struct Heap {
    size_t taken = 0;
    size_t bytes = 0;

    static void *allocate(void *user, size_t size, size_t alignment) {
        Heap &heap = *static_cast<Heap *>(user);
        heap.taken += 1;
        heap.bytes += size;
        return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    }
    static void deallocate(void *user, void *data, size_t size, size_t) {
        Heap &heap = *static_cast<Heap *>(user);
        heap.taken -= 1;
        heap.bytes -= size;
        std::free(data);
    }
};

static foam::Config config() {
    return foam::Config("reference").check_period(3).max_factor_dim(8).merge_dims(false).num_threads(2).lr(0.05);
}

/* A sequence and its optimizer. */
struct Run {
    Sequence<float> model;
    foam::Optimizer optimizer;

    explicit Run(const foam::Config &options = config()) : optimizer(options, model.described()) {}
    foam::StepResult step(const foam::StepOptions &options = {}) {
        model.advance();
        return optimizer.step(model.param_tensors(), model.grad_tensors(), options);
    }
};

static void everything_is_given_back() {
    Heap heap;
    {
        Run run(config().allocator(Heap::allocate, Heap::deallocate, &heap));
        EXPECT(heap.taken > 0);
        for (int step = 0; step < 7; step++) run.step();
        EXPECT(heap.bytes >= run.optimizer.stats().state_bytes_host);
    }
    EXPECT(heap.taken == 0 && heap.bytes == 0);
}

static void a_handle_moves() {
    Heap heaps[2];
    Run first(config().allocator(Heap::allocate, Heap::deallocate, &heaps[0]));
    Run second(config().allocator(Heap::allocate, Heap::deallocate, &heaps[1]));
    first.step();
    foam_optimizer *const raw = first.optimizer.get();

    foam::Optimizer moved(std::move(first.optimizer));
    EXPECT(moved.get() == raw && !first.optimizer && moved && heaps[0].taken > 0);
    THROWS(first.step(), foam::Status::invalid_argument, -1, "optimizer is NULL");

    // Assignment destroys what was there, and only that.
    second.optimizer = std::move(moved);
    EXPECT(heaps[1].taken == 0 && heaps[0].taken > 0 && !moved);
    EXPECT(second.optimizer.get() == raw && second.optimizer.stats().steps == 1);
    // The moved one still knows its parameters' names.
    auto params = second.model.param_tensors();
    params[1] = foam::Tensor(static_cast<const float *>(second.model.params[1].data()), {5});
    THROWS(second.optimizer.step(params, second.model.grad_tensors()), foam::Status::invalid_argument, 1, "'vector'");

    std::vector<foam::Optimizer> many;
    many.push_back(std::move(second.optimizer));
    for (int more = 0; more < 4; more++) many.push_back(std::move(Run().optimizer));
    EXPECT(many[0].get() == raw);
    foam::Optimizer &self = many[0];
    many[0] = std::move(self);
    EXPECT(many[0].get() == raw && many[0].stats().steps == 1);
    many.clear();
    EXPECT(heaps[0].taken == 0);
}

static void the_statistics_add_up() {
    Run run;
    EXPECT(run.optimizer.stats().evd_rate() == 0.0);
    for (int step = 0; step < 30; step++) EXPECT(!run.step().skipped);
    const foam::Stats stats = run.optimizer.stats();
    EXPECT(stats.steps == 30 && stats.params == 4 && stats.skipped_steps == 0 && stats.threads == 2);
    EXPECT(stats.evd_calls + stats.reuse_calls == stats.checks && stats.checks > 0);
    EXPECT(stats.evd_rate() == static_cast<double>(stats.evd_calls) / static_cast<double>(stats.checks));

    EXPECT(stats.findings == 0 && run.optimizer.diagnosis().empty());
    std::vector<float> weight(96, 1.0f), grad(96);
    std::vector<std::string> said;
    auto strict = foam::Config().check_period(1).tau(1e-3).beta2(0.9);
    strict.refresh_schedule(foam::RefreshSchedule::fixed).log(
        [&](foam::LogLevel, std::string_view line) { said.emplace_back(line); });
    foam::Optimizer busy(strict, {{"weight", {12, 8}}});
    for (int t = 0; t < 30; t++) {
        for (size_t i = 0; i < grad.size(); i++) grad[i] = float((i * 37 + size_t(t) * 61) % 23) - 11.0f;
        busy.step({{weight.data(), {12, 8}}}, {{grad.data(), {12, 8}}});
        EXPECT((busy.stats().findings == FOAM_FINDING_ALWAYS_REFRESHES) == (t >= 19));
    }
    EXPECT(busy.diagnosis().find("always_refreshes: 2 of 2 factors: 30 eigendecompositions") == 0);
    EXPECT(said.size() == 1 && said[0].find("try tau = ") != std::string::npos);
    const std::vector<foam::FactorStats> factors = run.optimizer.factor_stats();
    EXPECT(factors.size() == stats.factors);
    uint64_t checks = 0;
    for (const foam::FactorStats &factor : factors) {
        checks += factor.checks;
        EXPECT(static_cast<foam::Branch>(factor.last_branch) != foam::Branch::none);
        const auto dim = static_cast<size_t>(factor.dim);
        const auto read = [&](foam::FactorMatrix what) {
            return run.optimizer.factor_read(factor.param_index, factor.block, factor.axis, what);
        };
        const std::vector<double> basis = read(foam::FactorMatrix::basis);
        EXPECT(read(foam::FactorMatrix::statistic).size() == dim * dim && basis.size() == dim * dim);
        EXPECT(read(foam::FactorMatrix::inverse_root).size() == dim * dim);
        EXPECT(read(foam::FactorMatrix::spectrum).size() == dim);
        for (size_t row = 0; row < dim; row++) {
            double length = 0.0;
            for (size_t at = row * dim; at < (row + 1) * dim; at++) length += basis[at] * basis[at];
            EXPECT(std::fabs(length - 1.0) < 1e-4);
        }
        const double gap = run.optimizer.exact_gap(factor.param_index, factor.block, factor.axis);
        EXPECT(std::isfinite(gap) && gap >= 0.0);
    }
    EXPECT(checks == stats.checks);
    run.optimizer.synchronize();
}

static void a_step_takes_its_options() {
    // No length, no movement.
    Run still;
    const Sequence<float> before = still.model;
    foam::StepOptions options;
    options.lr = 0.0;
    still.step(options);
    EXPECT(still.model == before && still.optimizer.stats().steps == 1);
    // Half of twice the gradient is the gradient.
    Run plain, scaled;
    options = {};
    options.grad_scale = 0.5;
    for (int step = 0; step < 8; step++) {
        plain.step();
        scaled.model.advance();
        for (auto &grad : scaled.model.grads) {
            for (float &value : grad) value *= 2.0f;
        }
        scaled.optimizer.step(scaled.model.param_tensors(), scaled.model.grad_tensors(), options);
        EXPECT(plain.model == scaled.model);
    }
    // A gradient that is not finite, where that is no error.
    Run skipping(config().nonfinite(foam::Nonfinite::skip));
    skipping.model.advance();
    skipping.model.grads[2][0] = std::numeric_limits<float>::infinity();
    EXPECT(skipping.optimizer.step(skipping.model.param_tensors(), skipping.model.grad_tensors()).skipped);
    EXPECT(skipping.model == before && skipping.optimizer.stats().skipped_steps == 1);
}

static void a_parameter_has_its_own_scales() {
    std::vector<float> w = {1.0f, -2.0f}, g = {0.5f, 0.5f};
    foam::Param param("w", {2});
    param.weight_decay_scale = 0.0;
    param.grafting_only = true;
    param.root = 4.0;
    foam::Optimizer optimizer(foam::Config("reference").weight_decay(10.0), {param});
    EXPECT(optimizer.stats().factors == 0);
    // One scalar, in braces.
    EXPECT(foam::Optimizer(foam::Config("reference"), {{"scalar", {}}}).stats().params == 1);
    param.grafting_only = false;
    optimizer = foam::Optimizer(foam::Config("reference").weight_decay(10.0), {param});
    EXPECT(optimizer.factor_stats().at(0).root == 4.0);
    // Without a gradient to follow and with the decay switched off, nothing moves.
    g = {0.0f, 0.0f};
    optimizer.step({{w.data(), {2}}}, {{g.data(), {2}}});
    EXPECT(w[0] == 1.0f && w[1] == -2.0f);
}

static void the_log_function_is_called() {
    std::string said;
    int calls = 0;
    foam::LogLevel level{};
    Run run(config().inject_fault(foam::Fault::evd_all).log([&](foam::LogLevel weight, std::string_view line) {
        calls += 1;
        level = weight;
        said = line;
    }));
    // The library keeps a pointer to the function: it must survive a move.
    foam::Optimizer moved = std::move(run.optimizer);
    for (int step = 0; step < 3; step++) {
        run.model.advance();
        moved.step(run.model.param_tensors(), run.model.grad_tensors());
    }
    EXPECT(calls > 0 && level == foam::LogLevel::warning && !said.empty());
    // What it throws does not pass through the library, and stops nothing.
    Run throwing(config().inject_fault(foam::Fault::evd_all).log([](foam::LogLevel, std::string_view) { throw 7; }));
    for (int step = 0; step < 3; step++) throwing.step();
    EXPECT(throwing.model == run.model && throwing.optimizer.stats().failed_evds > 0);
}

static void a_run_is_resumed(const std::string &folder) {
    const std::string path = folder + "/lifecycle.safetensors";
    Run first;
    for (int step = 0; step < 10; step++) first.step();
    first.optimizer.save_file(path);
    Run from_file, from_memory;
    from_file.optimizer.load_file(path);
    from_memory.optimizer.load_memory(first.optimizer.save_memory());
    from_file.model = from_memory.model = first.model;
    for (int step = 0; step < 10; step++) {
        first.step(), from_file.step(), from_memory.step();
        EXPECT(from_file.model == first.model && from_memory.model == first.model);
    }
    EXPECT(from_file.optimizer.save_memory() == first.optimizer.save_memory());
    EXPECT(std::remove(path.c_str()) == 0);
}

int main(int count, char **arguments) {
    if (!EXPECT(count == 2)) return 1;
    EXPECT(foam::abi_version() >> 16 == FOAM_ABI_MAJOR &&
           std::string(foam::build_info()).find("foam") != std::string::npos);
    SAME(foam::name(foam::Status::busy), "FOAM_BUSY");
    everything_is_given_back();
    a_handle_moves();
    the_statistics_add_up();
    a_step_takes_its_options();
    a_parameter_has_its_own_scales();
    the_log_function_is_called();
    a_run_is_resumed(arguments[1]);
    return check_result("lifecycle");
}
