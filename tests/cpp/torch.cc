/* foam_torch.hpp: the same bits as foam.h, parameter groups, archives, gradients of every kind, errors. */
#include "sequence.hpp"

#include <foam_torch.hpp>
#include <torch/optim.h>
#include <torch/serialize.h>

#include <sstream>

using foam::Status;
using foam::torch::FOAM;
using foam::torch::FOAMOptions;

static FOAMOptions sequence_settings() {
    FOAMOptions options(foam::Config("reference"));
    for (const auto &[key, value] : sequence_options) options.set(key, value);
    return options;
}

/* A sequence whose parameters and gradients are torch's. */
template <class T> struct TorchModel {
    Sequence<T> source;
    std::vector<torch::Tensor> params;

    TorchModel() {
        for (size_t p = 0; p < source.size(); p++) {
            params.push_back(torch::from_blob(source.params[p].data(), source.shapes[p], type()).clone());
            params.back().set_requires_grad(true);
        }
    }

    static at::ScalarType type() { return sizeof(T) == 8 ? torch::kDouble : torch::kFloat; }

    torch::OrderedDict<std::string, torch::Tensor> named() const {
        torch::OrderedDict<std::string, torch::Tensor> result;
        for (size_t p = 0; p < params.size(); p++) result.insert(source.names[p], params[p]);
        return result;
    }

    /* The next gradients, which depend on the parameters. */
    void advance(size_t without = SIZE_MAX) {
        for (size_t p = 0; p < params.size(); p++) {
            std::memcpy(source.params[p].data(), params[p].data_ptr(), source.params[p].size() * sizeof(T));
        }
        source.advance();
        for (size_t p = 0; p < params.size(); p++) {
            params[p].mutable_grad() = torch::from_blob(source.grads[p].data(), source.shapes[p], type()).clone();
            if (p == without) params[p].mutable_grad() = torch::Tensor();
        }
    }

    bool operator==(const Sequence<T> &other) const {
        for (size_t p = 0; p < params.size(); p++) {
            if (std::memcmp(params[p].data_ptr(), other.params[p].data(), other.params[p].size() * sizeof(T)) != 0) {
                return false;
            }
        }
        return true;
    }
};

static std::string saved(const FOAM &optimizer) {
    std::stringstream stream;
    torch::save(optimizer, stream);
    return stream.str();
}

static void restore(FOAM &optimizer, const std::string &bytes) {
    std::stringstream stream(bytes);
    torch::load(optimizer, stream);
}

template <class T> static void the_same_bits_as_the_c_functions() {
    PlainRun<T> plain;
    TorchModel<T> model;
    FOAM optimizer(model.named(), sequence_settings());
    const void *const place = model.params[0].data_ptr();
    // Made now, with the learning rate that the other run was created with: checkpoints record it.
    optimizer.handle();
    for (int step = 0; step < 30; step++) {
        // A schedule, and now and then a parameter without a gradient.
        const double lr = 0.1 / (1.0 + step);
        const size_t without = static_cast<size_t>(step) % 7;
        plain.step(lr, without);
        model.advance(without);
        optimizer.options().lr(lr);
        optimizer.step();
        EXPECT(model == plain.model);
    }
    EXPECT(!(model == Sequence<T>()));
    EXPECT(model.params[0].data_ptr() == place);
    EXPECT(optimizer.handle().save_memory() == plain.state());
    EXPECT(optimizer.handle().stats().reuse_calls > 0);
}

/* The state goes through an archive bit for bit: the copy continues as the original does. */
template <class T> static void an_archive_keeps_every_bit() {
    TorchModel<T> model, copy;
    FOAM optimizer(model.named(), sequence_settings()), loaded(copy.named(), FOAMOptions(1.0).num_threads(1));
    for (int step = 0; step < 10; step++) model.advance(), optimizer.step();
    restore(loaded, saved(optimizer));
    // The options of the run come along, those of the machine do not.
    EXPECT(loaded.options().lr() == 0.05 && loaded.options().check_period() == 3);
    EXPECT(loaded.options().num_threads() == 1 && loaded.handle().stats().threads == 1);
    EXPECT(loaded.handle().stats().steps == 10);
    loaded.options().num_threads(2);
    EXPECT(loaded.handle().save_memory() == optimizer.handle().save_memory());
    copy.source = model.source;
    torch::NoGradGuard without_gradients;
    for (size_t p = 0; p < model.params.size(); p++) copy.params[p].copy_(model.params[p]);
    for (int step = 0; step < 10; step++) {
        model.advance(), optimizer.step();
        copy.advance(), loaded.step();
        for (size_t p = 0; p < model.params.size(); p++) EXPECT(torch::equal(model.params[p], copy.params[p]));
    }
    // Saved before the first step: nothing but options.
    FOAM fresh(copy.named(), FOAMOptions(0.5));
    restore(loaded, saved(fresh));
    EXPECT(loaded.options().lr() == 0.5 && loaded.handle().stats().steps == 0);
}

static void a_bad_archive_changes_nothing() {
    TorchModel<float> model, other;
    FOAM optimizer(model.named(), sequence_settings());
    for (int step = 0; step < 4; step++) model.advance(), optimizer.step();
    const std::string good = saved(optimizer);
    const auto state = optimizer.handle().save_memory();

    FOAM unnamed(other.params, sequence_settings().lr(0.7));
    other.advance(), unnamed.step();
    THROWS(restore(optimizer, saved(unnamed)), Status::bad_checkpoint, 0, "'matrix'");
    FOAM grouped(std::vector<torch::optim::OptimizerParamGroup>{{{other.params[0]}}, {{other.params[1]}}});
    THROWS(restore(optimizer, saved(grouped)), Status::bad_checkpoint, -1, "2 parameter groups", "expected 1");
    std::stringstream foreign;
    torch::save(torch::ones(3), foreign);
    THROWS(torch::load(optimizer, foreign), Status::bad_checkpoint, -1, "FOAM");
    EXPECT(optimizer.handle().save_memory() == state && optimizer.options().lr() == 0.05 && saved(optimizer) == good);
}

/* Each group has its own handle: two groups do what two optimizers do. */
static void groups_have_their_own_options() {
    TorchModel<float> together, apart;
    const FOAMOptions first = sequence_settings(), second = sequence_settings().lr(0.2).weight_decay(0.1).beta2(0.9);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<torch::Tensor>{together.params[0], together.params[1]});
    groups.emplace_back(std::vector<torch::Tensor>{together.params[2], together.params[3]},
                        std::make_unique<FOAMOptions>(second));
    FOAM optimizer(groups, first);
    optimizer.name_params(together.named());
    FOAM left({apart.params[0], apart.params[1]}, first), right({apart.params[2], apart.params[3]}, second);
    for (int step = 0; step < 12; step++) {
        together.advance(), apart.advance();
        optimizer.step(), left.step(), right.step();
        for (size_t p = 0; p < 4; p++) EXPECT(torch::equal(together.params[p], apart.params[p]));
    }
    EXPECT(optimizer.handle(0).stats().params == 2 && optimizer.handle(1).stats().params == 2);
    // Errors name the parameter, whichever group it is in.
    together.params[3].mutable_grad() = torch::full({12, 3}, std::nanf(""));
    THROWS(optimizer.step(), Status::not_finite, 1, "'tall'");
    apart.params[3].mutable_grad() = torch::full({12, 3}, std::nanf(""));
    THROWS(right.step(), Status::not_finite, 1, "'param_1'");
    // What one group refuses all refuse: the first has not stepped, and its state is as it was.
    EXPECT(optimizer.handle(0).stats().steps == 12 && optimizer.handle(1).stats().steps == 12);
    for (size_t p = 0; p < 4; p++) EXPECT(torch::equal(together.params[p], apart.params[p]));
    optimizer.options(1).nonfinite(foam::Nonfinite::skip);
    optimizer.step();
    EXPECT(optimizer.skipped() && optimizer.handle(0).stats().steps == 12);
    for (size_t p = 0; p < 4; p++) EXPECT(torch::equal(together.params[p], apart.params[p]));
    // A group that joins later.
    torch::Tensor late = torch::ones({3}, torch::requires_grad());
    late.mutable_grad() = torch::ones({3});
    together.advance();
    optimizer.add_param_group({{late}});
    optimizer.step();
    EXPECT(optimizer.handle(2).stats().steps == 1 && late[0].item<float>() < 1.0f);
}

/* Any option may change between steps; the state stays. */
static void options_may_change_between_steps() {
    TorchModel<float> model, same;
    FOAM optimizer(model.named(), sequence_settings()), other(same.named(), sequence_settings().weight_decay(0.3));
    for (int step = 0; step < 5; step++) {
        model.advance(), optimizer.step();
    }
    foam_optimizer *const handle = optimizer.handle().get();
    const auto state = optimizer.handle().save_memory();
    optimizer.options().lr(0.01);
    EXPECT(optimizer.handle().get() == handle);
    optimizer.options().weight_decay(0.3);
    EXPECT(optimizer.handle().get() != handle && optimizer.handle().stats().steps == 5);
    // The new decay acts, from the old state on.
    same.source = model.source;
    torch::NoGradGuard without_gradients;
    for (size_t p = 0; p < model.params.size(); p++) same.params[p].copy_(model.params[p]);
    other.handle().load_memory(state);
    other.options().lr(0.01);
    model.advance(), optimizer.step(), same.advance(), other.step();
    for (size_t p = 0; p < model.params.size(); p++) EXPECT(torch::equal(model.params[p], same.params[p]));
    // Learning-rate schedulers need no more than this.
    torch::optim::StepLR schedule(optimizer, 1, 0.5);
    for (int step = 0; step < 3; step++) schedule.step();
    EXPECT(optimizer.options().lr() < 0.01);
}

static void closures_and_gradients() {
    torch::Tensor w = torch::full({3, 2}, 2.0, torch::requires_grad()),
                  unused = torch::ones({2}, torch::requires_grad());
    FOAM optimizer({w, unused}, FOAMOptions(0.05).epsilon(1e-3).epsilon_max(1e-1));
    std::vector<double> losses;
    torch::NoGradGuard outside; // The closure gets its gradients all the same.
    for (int step = 0; step < 40; step++) {
        const torch::Tensor loss = optimizer.step([&] {
            optimizer.zero_grad();
            torch::Tensor result = w.square().sum();
            result.backward();
            return result;
        });
        losses.push_back(loss.item<double>());
    }
    EXPECT(losses.front() == 24.0 && losses.back() < 1.0);
    EXPECT(!unused.grad().defined() && torch::equal(unused, torch::ones({2})));
    optimizer.zero_grad();
    EXPECT(!w.grad().defined());
    const torch::Tensor before = w.clone();
    optimizer.step();
    EXPECT(torch::equal(w, before));
}

/* Autograd notices that the step wrote the parameters. */
static void a_stale_graph_is_refused() {
    torch::Tensor w = torch::ones({2}, torch::requires_grad());
    FOAM optimizer(std::vector<torch::Tensor>{w});
    const torch::Tensor loss = w.square().sum();
    w.mutable_grad() = torch::ones({2});
    optimizer.step();
    bool refused = false;
    try {
        loss.backward();
    } catch (const c10::Error &error) {
        refused = std::string(error.what()).find("modified by an inplace operation") != std::string::npos;
    }
    EXPECT(refused);
}

static void gradients_of_any_layout_and_type() {
    const torch::Tensor gradient = torch::linspace(-1.0, 1.0, 6).view({2, 3});
    std::vector<torch::Tensor> results;
    for (const torch::Tensor &grad : {gradient, gradient.t().contiguous().t(), gradient.clone().to(torch::kFloat)}) {
        torch::Tensor w = torch::ones({2, 3}, torch::requires_grad());
        w.mutable_grad() = grad;
        FOAM(std::vector<torch::Tensor>{w}).step();
        results.push_back(w.detach());
    }
    EXPECT(torch::equal(results[0], results[1]) && torch::equal(results[0], results[2]));
    for (const auto type : {torch::kBFloat16, torch::kHalf}) {
        torch::Tensor w = torch::ones({2, 3}, torch::dtype(type).requires_grad(true));
        w.mutable_grad() = gradient.to(type);
        FOAM(std::vector<torch::Tensor>{w}, FOAMOptions(0.1)).step();
        EXPECT(w.scalar_type() == type && !torch::equal(w, torch::ones({2, 3}, type)));
    }
    // Skipped steps are told.
    torch::Tensor w = torch::ones({2}, torch::requires_grad());
    w.mutable_grad() = torch::full({2}, std::nanf(""));
    FOAM skipping(std::vector<torch::Tensor>{w}, FOAMOptions().nonfinite(foam::Nonfinite::skip));
    skipping.step();
    EXPECT(skipping.skipped() && skipping.handle().stats().skipped_steps == 1 && torch::equal(w, torch::ones({2})));
    w.mutable_grad() = torch::ones({2});
    skipping.step();
    EXPECT(!skipping.skipped());
}

static void bad_tensors_are_refused_by_name() {
    torch::OrderedDict<std::string, torch::Tensor> params;
    params.insert("weight", torch::ones({2, 3}).t());
    params["weight"].mutable_grad() = torch::ones({3, 2});
    THROWS(FOAM(params).step(), Status::unsupported, 0, "'weight'", "contiguous");
    params["weight"] = torch::ones({3}, torch::kInt);
    THROWS(FOAM(params).step(), Status::unsupported, 0, "'weight'", "Int", "BFloat16");
    params["weight"] = torch::ones({3}, torch::kComplexFloat);
    THROWS(FOAM(params).step(), Status::unsupported, 0, "'weight'", "ComplexFloat");
    params["weight"] = torch::ones({3}, torch::kMeta);
    THROWS(FOAM(params).step(), Status::unsupported, 0, "'weight'", "meta", "cuda");
    params["weight"] = torch::ones({3});
    params["weight"].mutable_grad() = torch::ones({3}).to_sparse();
    THROWS(FOAM(params).step(), Status::unsupported, 0, "gradient", "'weight'", "sparse");
    FOAM growing(params);
    params["weight"].mutable_grad() = torch::ones({3});
    growing.step();
    growing.add_parameters({torch::ones({2})});
    THROWS(growing.step(), Status::invalid_argument, -1, "group 0", "2 parameters", "expected 1");
    THROWS(FOAM(params, FOAMOptions().tau(-1.0)).step(), Status::invalid_argument, -1, "'tau'");
    std::vector<torch::optim::OptimizerParamGroup> foreign;
    foreign.emplace_back(params.values(), std::make_unique<torch::optim::SGDOptions>(0.1));
    THROWS(FOAM(foreign).step(), Status::invalid_argument, -1, "group 0", "FOAMOptions");
    EXPECT(FOAMOptions(foam::Config("paper")).grafting() == foam::Grafting::none);
}

int main() {
    torch::set_num_threads(1);
    the_same_bits_as_the_c_functions<float>();
    the_same_bits_as_the_c_functions<double>();
    an_archive_keeps_every_bit<float>();
    an_archive_keeps_every_bit<double>();
    a_bad_archive_changes_nothing();
    groups_have_their_own_options();
    options_may_change_between_steps();
    closures_and_gradients();
    a_stale_graph_is_refused();
    gradients_of_any_layout_and_type();
    bad_tensors_are_refused_by_name();
    return check_result("torch");
}
