//! The library does what the authors' code did: every trace of `tests/golden`, in both precisions.

use crate::traces::{Case, Precision, Report, replay};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

fn load(name: &str) -> Case {
    Case::load(&folder().join(format!("{name}.safetensors"))).unwrap()
}

/// Everything that is wrong, one thing a line.
fn complaints(report: &Report) -> String {
    let mut lines: Vec<String> = Vec::new();
    for check in report.checks.iter().filter(|c| !c.passed()) {
        let error = check.error.unwrap_or(f64::NAN);
        lines.push(format!(
            "{} is off by {error:.2e}, allowed {:.1e}: {}",
            check.name, check.tolerance, check.place
        ));
    }
    if let Some(d) = &report.first_difference {
        lines.push(format!(
            "{} of {} counters differ, first at step {}, {}, {}: expected {}, got {}",
            report.differing, report.compared, d.step, d.factor, d.column, d.expected, d.got
        ));
    }
    lines.join("\n")
}

fn agrees(name: &str, precision: Precision) {
    let report = replay(&load(name), precision).unwrap();
    assert!(report.compared > 0);
    assert!(report.passed(), "{name} in {}:\n{}", precision.name(), complaints(&report));
}

macro_rules! traces {
    ($($name:ident),+ $(,)?) => {
        $(mod $name {
            use super::{Precision, agrees};

            #[test]
            fn agrees_in_f32() {
                agrees(stringify!($name), Precision::F32);
            }

            #[test]
            fn agrees_in_f64() {
                agrees(stringify!($name), Precision::F64);
            }
        })+

        const TRACES: &[&str] = &[$(stringify!($name)),+];
    };
}

traces! {
    dr_shampoo_p2_wide_adam,
    foam_blocks_200x96_adam,
    foam_conv3d_nomerge_p6_nograft,
    foam_conv4d_merge_p2_adam,
    foam_diagonal_rows_zero_start_adam,
    foam_late_start_zero_grads_adam,
    foam_multi_params_adam,
    foam_no_adaptive_p2_square_adam,
    foam_no_evd_refresh_p4_tall_adam,
    foam_p2_square_adam,
    foam_p4_tall_nograft_clean,
    foam_rank1_nesterov_adam,
    foam_vector_p2_adam,
    foam_vit_paper_config,
    paper_foam_p2,
    paper_stale_p4,
    stale_p2_wide_sgdgraft_l2,
    stale_p4_adagrad_sum_lr_eps,
}

/// SOAP's traces: the weights after every step.
const SOAP: [&str; 7] = [
    "soap_conv4d",
    "soap_conv4d_merged",
    "soap_every_step",
    "soap_multi_vectors",
    "soap_normalized",
    "soap_one_side_identity",
    "soap_square",
];

fn soap(name: &str) -> Case {
    Case::load(&folder().join(format!("soap/{name}.safetensors"))).unwrap()
}

/// Replays a trace of SOAP with some options changed; the error of its weights, and the tolerance.
fn soap_error(name: &str, precision: Precision, changes: &[(&str, &str)]) -> (f64, f64) {
    let mut case = soap(name);
    let changes = changes.iter().map(|(key, value)| (key.to_string(), value.to_string()));
    case.setup.options.extend(changes);
    let report = replay(&case, precision).unwrap();
    (report.checks[0].error.unwrap(), report.checks[0].tolerance)
}

#[test]
fn every_trace_of_soap_agrees() {
    let mut complaints = Vec::new();
    for name in SOAP {
        for precision in Precision::ALL {
            let (error, tolerance) = soap_error(name, precision, &[]);
            let report = replay(&soap(name), precision).unwrap();
            assert!(report.compared > 0 && report.differing == 0, "{name}: the counts of refreshes differ");
            println!("{name} {}: {error:.1e}, allowed {tolerance:.1e}", precision.name());
            if error > tolerance || error.is_nan() {
                complaints.push(format!("{name} in {}: {error:.2e} > {tolerance:.1e}", precision.name()));
            }
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn soap_with_its_statistics_in_the_basis_agrees_too() {
    for name in SOAP {
        let (error, tolerance) = soap_error(name, Precision::F64, &[("soap_form", "in_basis")]);
        println!("{name}: {error:.1e}");
        assert!(error <= tolerance, "{name}: {error:.2e} > {tolerance:.1e}");
        let (error, tolerance) = soap_error(name, Precision::F32, &[("soap_form", "in_basis")]);
        println!("{name} f32: {error:.1e}, allowed {tolerance:.1e}");
        assert!(error <= tolerance, "{name}: {error:.2e} > {tolerance:.1e}");
    }
}

#[test]
fn a_trace_of_soap_notices_every_option() {
    let changes = [
        ("soap_square", ("beta1", "0.949")),
        ("soap_square", ("beta2", "0.949")),
        ("soap_square", ("grafting_beta2", "0.949")),
        ("soap_square", ("check_period", "11")),
        ("soap_square", ("bias_correction", "false")),
        ("soap_square", ("weight_decay", "0.0101")),
        ("soap_multi_vectors", ("precondition_1d", "true")),
        ("soap_normalized", ("normalize_grads", "false")),
        ("soap_one_side_identity", ("max_precond_dim", "24")),
        ("soap_conv4d_merged", ("merge_dims", "false")),
        ("soap_square", ("max_factor_dim", "8")),
    ];
    for (name, change) in changes {
        let (error, tolerance) = soap_error(name, Precision::F64, &[change]);
        assert!(error > 100.0 * tolerance, "{name} with {change:?}: {error:.1e}");
    }
}

#[test]
fn every_trace_of_soap_has_its_test() {
    let names = std::fs::read_dir(folder().join("soap")).unwrap().map(|entry| entry.unwrap().path());
    let traces = names.filter(|path| path.extension().is_some_and(|e| e == "safetensors"));
    let mut stems: Vec<String> =
        traces.map(|p| p.file_stem().unwrap().to_str().unwrap().to_string()).collect();
    stems.sort();
    assert_eq!(stems, SOAP);
}

#[test]
fn every_trace_has_its_tests() {
    let names = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let traces = names.filter(|path| path.extension().is_some_and(|e| e == "safetensors"));
    let mut stems: Vec<String> =
        traces.map(|p| p.file_stem().unwrap().to_str().unwrap().to_string()).collect();
    stems.sort();
    assert_eq!(stems, TRACES);
}

// A certificate that cannot fail is worth nothing: the comparison must notice a trace that was changed.

#[test]
fn a_changed_counter_is_found_where_it_is() {
    let mut case = load("paper_foam_p2");
    case.factors[1].counters[9 * 40 + 1] += 1.0;
    let report = replay(&case, Precision::F64).unwrap();
    let first = report.first_difference.as_ref().unwrap();
    assert!(!report.passed() && report.differing == 1, "{}", complaints(&report));
    assert_eq!((first.step, first.factor.as_str(), first.column), (41, "p0.b0.f1", "evd"));
    assert_eq!(first.expected, first.got + 1);
}

#[test]
fn a_changed_number_is_found_whatever_it_is() {
    type Change = fn(&mut Case);
    let changes: [(&str, Change); 6] = [
        ("W", |case| case.params[0].weights[1][7][3] += 1e-6),
        ("h", |case| case.factors[0].series[1][4 * 30 + 1] *= 1.0 + 1e-7),
        ("alpha", |case| case.factors[0].series[1][3] = 0.5),
        ("factor", |case| case.factors[0].finals[1].statistic[0] *= 1.0 + 1e-6),
        ("inv", |case| case.factors[1].finals[1].inverse_root[0] *= 1.0 + 1e-5),
        ("eigvals", |case| case.factors[1].finals[1].spectrum[0] = f64::NAN),
    ];
    for (name, change) in changes {
        let mut case = load("paper_foam_p2");
        change(&mut case);
        let report = replay(&case, Precision::F64).unwrap();
        let failed: Vec<_> = report.checks.iter().filter(|c| !c.passed()).map(|c| c.name).collect();
        assert_eq!(failed, [name]);
    }
}

#[test]
fn a_foreign_file_is_refused_by_name() {
    let refusal = |path: &Path| Case::load(path).err().unwrap();
    let missing = folder().join("missing.safetensors");
    assert!(refusal(&missing).contains("missing.safetensors: cannot be read"), "{}", refusal(&missing));
    let readme = folder().join("README.md");
    assert!(
        refusal(&readme).contains("README.md: is not a golden trace: not safetensors"),
        "{}",
        refusal(&readme)
    );
}
