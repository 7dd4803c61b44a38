/* Every option that is set by type reads back as the text that sets it by name. */
#include "check.hpp"

#include <set>
#include <sstream>

/* One option: set by type in one configuration, by text in another; both read back as the text. */
template <class Set> static void option(std::set<std::string> &seen, const char *key, const char *text, Set set) {
    foam::Config typed("reference"), named("reference");
    const std::string before = typed.get(key);
    set(typed);
    named.set(key, text);
    SAME(typed.get(key), text);
    SAME(named.get(key), text);
    // A test with the default as its value would show nothing.
    EXPECT(before != text);
    // Nothing else was touched.
    std::istringstream keys(typed.keys());
    for (std::string other; keys >> other;) SAME(typed.get(other), named.get(other));
    EXPECT(seen.insert(key).second);
}

/* `option` by type, and its getter, agree with the text. */
#define OPTION(key, value, text)                                                                                       \
    option(seen, #key, text, [](foam::Config &config) {                                                                \
        EXPECT(&config.key(value) == &config);                                                                         \
        EXPECT(config.key() == value);                                                                                 \
    })

/* Every enumerator has the text of its name. */
#define CHOICE(key, type, name) SAME(foam::Config("reference").key(foam::type::name).get(#key), #name)

static void every_option_by_type() {
    std::set<std::string> seen;
    OPTION(policy, foam::Policy::foam_certified, "foam_certified");
    OPTION(cadence, foam::Cadence::paper, "paper");
    OPTION(check_period, 7, "7");
    OPTION(start_step, 3, "3");
    OPTION(bias_correction, false, "false");
    OPTION(root, 4.0, "4.0");
    OPTION(exponent_multiplier, 1.5, "1.5");
    OPTION(beta1, 0.5, "0.5");
    OPTION(beta2, 1.0, "1.0");
    OPTION(epsilon, 1e-8, "1e-8");
    OPTION(epsilon_left, 2e-8, "2e-8");
    OPTION(epsilon_right, 3e-8, "3e-8");
    OPTION(epsilon_max, 0.125, "0.125");
    OPTION(tau, 0.25, "0.25");
    OPTION(residual_threshold, 0.2, "0.2");
    OPTION(max_factor_dim, 256, "256");
    OPTION(merge_dims, false, "false");
    OPTION(grafting, foam::Grafting::rmsprop, "rmsprop");
    OPTION(grafting_beta2, 0.9, "0.9");
    OPTION(grafting_epsilon, 1e-7, "1e-7");
    OPTION(normalized_grafting, true, "true");
    OPTION(momentum, 0.75, "0.75");
    OPTION(nesterov, true, "true");
    OPTION(ema_momentum, false, "false");
    OPTION(nadam, true, "true");
    OPTION(weight_decay, 0.0625, "0.0625");
    OPTION(decoupled_weight_decay, false, "false");
    OPTION(lr, 0.3, "0.3");
    OPTION(statistic_dtype, foam::StatisticDtype::f64, "f64");
    OPTION(negative_eigenvalues, foam::NegativeEigenvalues::clamp, "clamp");
    OPTION(noise_floor, false, "false");
    OPTION(nonfinite, foam::Nonfinite::skip, "skip");
    OPTION(num_threads, 3, "3");
    OPTION(inject_fault, foam::Fault::evd_all, "evd_all");
    OPTION(inject_fault_step, 9, "9");
    OPTION(preconditioner, foam::Preconditioner::soap, "soap");
    OPTION(refresh_method, foam::RefreshMethod::qr, "qr");
    OPTION(soap_form, foam::SoapForm::in_basis, "in_basis");
    OPTION(refresh_schedule, foam::RefreshSchedule::geometric, "geometric");
    OPTION(epsilon_mode, foam::EpsilonMode::relative, "relative");
    OPTION(precondition_1d, false, "false");
    OPTION(keep_matrix, true, "true");
    OPTION(normalize_grads, true, "true");
    OPTION(max_precond_dim, 512, "512");
    OPTION(front_period, 3, "3");
    OPTION(front_steps, 77, "77");
    OPTION(refresh_growth, 2.5, "2.5");
    OPTION(kappa_threshold, 0.25, "0.25");
    OPTION(correction_period, 7, "7");
    OPTION(statistics_period, 3, "3");
    OPTION(keep_inverse_root, false, "false");
    OPTION(qr_track, true, "true");
    OPTION(matmul_precision, foam::MatmulPrecision::tf32, "tf32");
    OPTION(refresh_delay, 4, "4");
    OPTION(even_blocks, true, "true");
    OPTION(share_squares, false, "false");
    option(seen, "device", "cuda:2", [](foam::Config &config) {
        config.device(foam::DeviceType::cuda, 2);
        EXPECT(config.device().device_type == FOAM_DEVICE_CUDA && config.device().device_id == 2);
    });
    std::istringstream keys(foam::Config("reference").keys());
    size_t known = 0;
    for (std::string key; keys >> key; known++) {
        if (!EXPECT(seen.count(key) == 1)) std::fprintf(stderr, "    option %s has no typed setter\n", key.c_str());
    }
    EXPECT(known == seen.size());
}

static void every_choice_by_name() {
    CHOICE(policy, Policy, stale);
    CHOICE(policy, Policy, foam);
    CHOICE(policy, Policy, foam_fixed_epsilon);
    CHOICE(policy, Policy, foam_no_refresh);
    CHOICE(policy, Policy, diagonal_residual);
    CHOICE(policy, Policy, foam_certified);
    CHOICE(policy, Policy, grafting_only);
    CHOICE(policy, Policy, sandwich);
    CHOICE(epsilon_mode, EpsilonMode, absolute);
    CHOICE(epsilon_mode, EpsilonMode, relative);
    CHOICE(cadence, Cadence, reference);
    CHOICE(cadence, Cadence, paper);
    CHOICE(grafting, Grafting, none);
    CHOICE(grafting, Grafting, sgd);
    CHOICE(grafting, Grafting, adagrad);
    CHOICE(grafting, Grafting, rmsprop);
    CHOICE(grafting, Grafting, adam);
    SAME(foam::Config("reference").statistic_dtype(foam::StatisticDtype::automatic).get("statistic_dtype"), "auto");
    SAME(foam::Config("reference").refresh_method(foam::RefreshMethod::automatic).get("refresh_method"), "auto");
    CHOICE(statistic_dtype, StatisticDtype, f32);
    CHOICE(statistic_dtype, StatisticDtype, f64);
    CHOICE(nonfinite, Nonfinite, error);
    CHOICE(nonfinite, Nonfinite, skip);
    CHOICE(negative_eigenvalues, NegativeEigenvalues, shift);
    CHOICE(negative_eigenvalues, NegativeEigenvalues, clamp);
    CHOICE(inject_fault, Fault, none);
    CHOICE(inject_fault, Fault, panic);
    CHOICE(inject_fault, Fault, evd_chosen);
    CHOICE(inject_fault, Fault, evd_nonorthogonal);
    CHOICE(inject_fault, Fault, evd_double);
    CHOICE(inject_fault, Fault, evd_all);
    CHOICE(preconditioner, Preconditioner, shampoo);
    CHOICE(preconditioner, Preconditioner, soap);
    CHOICE(refresh_method, RefreshMethod, evd);
    CHOICE(refresh_method, RefreshMethod, qr);
    CHOICE(matmul_precision, MatmulPrecision, f32);
    CHOICE(matmul_precision, MatmulPrecision, tf32);
    CHOICE(soap_form, SoapForm, exact);
    CHOICE(soap_form, SoapForm, in_basis);
    CHOICE(refresh_schedule, RefreshSchedule, fixed);
    CHOICE(refresh_schedule, RefreshSchedule, front_loaded);
    CHOICE(refresh_schedule, RefreshSchedule, geometric);
    CHOICE(refresh_schedule, RefreshSchedule, kappa);
}

static void presets() {
    SAME(foam::Config().get("policy"), "sandwich");
    SAME(foam::Config("default").get("epsilon_mode"), "relative");
    SAME(foam::Config("reference").get("epsilon_mode"), "absolute");
    SAME(foam::Config("paper").get("grafting"), "none");
    SAME(foam::Config::preset("paper").get("cadence"), "paper");
    THROWS(foam::Config("best"), foam::Status::invalid_argument, -1, "best", "reference, paper or soap");
    // A copy is independent.
    foam::Config first("reference"), second = first;
    second.tau(0.1);
    EXPECT(first.tau() == 0.75 && second.raw().tau == 0.1);
}

int main() {
    static_assert(foam::number(foam::Policy::foam_certified) == FOAM_POLICY_FOAM_CERTIFIED);
    static_assert(foam::number(foam::Status::panic) == FOAM_PANIC);
    static_assert(foam::raw(foam::DType::bf16).code == FOAM_DTYPE_BFLOAT && foam::raw(foam::DType::f64).bits == 64);
    every_option_by_type();
    every_choice_by_name();
    presets();
    return check_result("options");
}
