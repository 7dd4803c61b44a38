//! The library agrees with a naive optimizer of this folder (`support/reference.rs`) over random options, shapes
//! and gradients: same decisions at every check, same parameters to rounding.

use crate::support::agree::{both_agree_with, plain};
use crate::support::reference::Options;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

const STEPS: usize = 30;

fn seeded(cases: u32) -> Config {
    Config { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..Config::default() }
}

fn policies() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "foam",
        "foam",
        "foam_fixed_epsilon",
        "foam_no_refresh",
        "diagonal_residual",
        "stale",
        "grafting_only",
    ])
}

prop_compose! {
    /// When factors are checked and what is decided.
    fn control()(
        policy in policies(),
        cadence in prop::sample::select(vec!["reference", "paper"]),
        check_period in 1..6u64,
        start_step in 0..8u64,
        bias_correction: bool,
        root in prop::sample::select(vec![0.0, 2.0, 2.5, 4.0]),
        exponent_multiplier in prop::sample::select(vec![1.0, 1.0, 1.5]),
        beta2 in prop::sample::select(vec![0.8, 0.95, 0.99, 1.0]),
        epsilons in (-6.0..-3.0f64, -6.0..-3.0f64, 0.0..2.0f64),
        thresholds in (0.05..0.6f64, 0.05..0.6f64),
        statistics_period in prop::sample::select(vec![1, 1, 2, 3, 7]),
        keep_inverse_root: bool,
        refresh_delay in prop::sample::select(vec![0, 0, 0, 1, 2, 3, 5, 9]),
    ) -> Options {
        let (left, right, room) = epsilons;
        // This policy reads single entries of QᵀLQ, which are not determined while eigenvalues coincide: its
        // first basis has to wait until the statistics have full rank.
        let late = policy == "diagonal_residual";
        let statistics_period = if late { 1 } else { statistics_period };
        Options {
            policy,
            cadence: if late { "reference" } else { cadence },
            check_period,
            start_step: if late { 12 } else { start_step },
            bias_correction,
            root,
            exponent_multiplier,
            beta1: 0.0,
            beta2,
            epsilon_left: 10f64.powf(left),
            epsilon_right: 10f64.powf(right),
            epsilon_max: 10f64.powf(left.max(right) + room),
            tau: thresholds.0,
            residual_threshold: thresholds.1,
            grafting: "none",
            grafting_beta2: 0.9,
            grafting_epsilon: 1e-6,
            normalized_grafting: false,
            momentum: 0.0,
            nesterov: false,
            ema_momentum: false,
            nadam: false,
            weight_decay: 0.0,
            decoupled_weight_decay: true,
            lr: 0.01,
            negative_eigenvalues: "shift",
            statistics_period,
            keep_inverse_root,
            refresh_delay,
        }
    }
}

prop_compose! {
    /// All options, at random.
    fn options()(
        control in control(),
        beta1 in prop::sample::select(vec![0.0, 0.5, 0.9]),
        grafting in prop::sample::select(vec!["none", "sgd", "adagrad", "rmsprop", "adam"]),
        grafting_beta2 in prop::sample::select(vec![0.9, 0.99]),
        normalized_grafting: bool,
        momentum in prop::sample::select(vec![0.0, 0.6, 0.9]),
        switches: [bool; 5],
        weight_decay in prop::sample::select(vec![0.0, 0.01, 0.05]),
        lr in 1e-3..0.1f64,
    ) -> Options {
        let [nesterov, ema_momentum, nadam, decoupled_weight_decay, clamp] = switches;
        let needs_grafting = control.policy == "grafting_only" && grafting == "none";
        // Where the decay is in the gradient and nothing bounds the step, parameters can grow a thousandfold from one
        // check to the next: then rounding decides, and the reference's constants are not small any more.
        let free = grafting == "none" && (control.statistics_period > 1 || !control.keep_inverse_root);
        Options {
            beta1,
            grafting: if needs_grafting { "rmsprop" } else { grafting },
            grafting_beta2,
            normalized_grafting,
            momentum,
            nesterov,
            ema_momentum,
            nadam,
            weight_decay,
            decoupled_weight_decay: decoupled_weight_decay || free,
            lr,
            negative_eigenvalues: if clamp { "clamp" } else { "shift" },
            ..control
        }
    }
}

/// Runs both on the same gradients. The parameters may differ by `tolerance` of the largest one. Gives the
/// numbers of refreshes and reuses.
fn both_agree(options: &Options, dims: &[usize], seed: u64, tolerance: f64) -> (u64, u64) {
    both_agree_for(STEPS, options, dims, seed, tolerance)
}

fn both_agree_for(steps: usize, options: &Options, dims: &[usize], seed: u64, tolerance: f64) -> (u64, u64) {
    both_agree_with("", steps, options, dims, seed, tolerance)
}

#[test]
fn delayed_refreshes_agree_in_every_policy() {
    for policy in ["foam", "foam_fixed_epsilon", "stale"] {
        for refresh_delay in [1, 2, 3, 4, 6, 10] {
            let options = Options { refresh_delay, ..plain(policy) };
            let (refreshes, _) = both_agree(&options, &[6, 5], 3, 1e-8);
            assert!(refreshes > 2, "{policy}, {refresh_delay}: {refreshes} refreshes");
            both_agree(&Options { statistics_period: 2, ..options.clone() }, &[4, 2, 3], 3, 1e-8);
            both_agree(&Options { keep_inverse_root: false, ..options }, &[40, 33], 3, 1e-8);
        }
    }
    let late = Options { start_step: 15, refresh_delay: 2, ..plain("diagonal_residual") };
    both_agree(&late, &[6, 5], 3, 1e-8);
}

#[test]
fn steps_through_the_basis_agree_in_pieces_and_in_every_order() {
    for dims in
        [&[300, 140][..], &[128, 270], &[3, 140, 60], &[2, 5, 300], &[5, 300, 2], &[300], &[3, 4, 1], &[1, 1]]
    {
        both_agree_for(10, &Options { keep_inverse_root: false, ..plain("foam") }, dims, 5, 1e-8);
    }
}

#[test]
fn statistics_take_every_kth_gradient_in_every_policy() {
    for policy in ["foam", "foam_fixed_epsilon", "foam_no_refresh", "stale"] {
        for statistics_period in [2, 3, 5, 100] {
            let options = Options { statistics_period, ..plain(policy) };
            both_agree(&options, &[6, 5], 3, 1e-8);
            both_agree(&Options { beta2: 1.0, ..options.clone() }, &[4, 2, 3], 3, 1e-8);
            both_agree(&Options { bias_correction: false, ..options }, &[5], 3, 1e-8);
        }
    }
    // The first basis comes when the statistics have full rank, see above.
    let late = Options { start_step: 15, statistics_period: 2, ..plain("diagonal_residual") };
    both_agree(&late, &[6, 5], 3, 1e-8);
}

#[test]
fn a_dimension_of_one_is_an_axis_like_any_other_wherever_it_stands() {
    for dims in
        [&[1, 3, 4][..], &[3, 1, 4], &[3, 4, 1], &[1, 1, 5], &[5, 1, 1], &[2, 3, 1, 1], &[4, 1], &[1, 4]]
    {
        both_agree(&plain("foam"), dims, 7, 1e-8);
    }
}

/// Sides beyond one panel of a product, rows beyond a padded stride, elements beyond one task.
#[test]
fn blocks_that_are_worked_on_in_pieces_agree() {
    for dims in [&[300, 140][..], &[128, 270], &[3, 140, 60], &[2, 5, 300], &[5, 300, 2], &[300]] {
        both_agree_for(10, &plain("foam"), dims, 5, 1e-8);
    }
    both_agree_for(10, &plain("grafting_only"), &[3, 20_000], 5, 1e-8);
}

#[test]
fn the_policies_of_a_plain_run_all_come_to_both_outcomes() {
    for policy in ["foam", "foam_fixed_epsilon", "foam_no_refresh", "diagonal_residual", "stale"] {
        let (refreshes, reuses) = both_agree(&plain(policy), &[6, 5], 3, 1e-8);
        let expected = match policy {
            "stale" => (true, false),
            "foam_no_refresh" => (false, true),
            _ => (true, true),
        };
        assert_eq!((refreshes > 2, reuses > 0), expected, "{policy}: {refreshes} refreshes, {reuses} reuses");
    }
}

proptest! {
    #![proptest_config(seeded(1000))]

    #[test]
    fn matrices_agree_over_random_options(
        options in options(), rows in 1..9usize, cols in 1..9usize, seed: u64,
    ) {
        both_agree(&options, &[rows, cols], seed, 1e-8);
    }

    #[test]
    fn vectors_agree_over_random_options(options in options(), n in 1..12usize, seed: u64) {
        both_agree(&options, &[n], seed, 1e-8);
    }
}

proptest! {
    #![proptest_config(seeded(300))]

    #[test]
    fn tensors_of_order_three_and_four_agree_over_random_options(
        options in options(), dims in prop::collection::vec(1..6usize, 3..5), seed: u64,
    ) {
        both_agree(&options, &dims, seed, 1e-8);
    }
}
