//! A bound of the true relative operator gap that holds for any drift.
//!
//! Let A = L̂ + εI be in use, A + E = L + εI be fresh, M = A^(−1/2) E A^(−1/2), h = (α/p)·‖M‖_F. The
//! paper's inequality gap ≤ h holds to first order; for drift with negative directions the gap can
//! exceed h. With m = max(0, −λ_min(M)) < 1:
//!
//! gap ≤ h·g(m),   g(m) = p·((1−m)^(−1/p) − 1)/m,   g(0) = 1.
//!
//! Along A + tE the theorem of appendix H bounds the derivative by
//! (1/p)·‖(A+tE)^(−1/p)‖₂·‖(I+tM)^(−1/2) M (I+tM)^(−1/2)‖_F; with A + tE ⪰ (1−tm)·A the first factor
//! is at most (1−tm)^(−1/p)·‖A^(−1/p)‖₂ and the second at most ‖M‖_F/(1−tm). Integrating
//! (1−tm)^(−1−1/p) over [0, 1] gives g.
//!
//! m needs no computation: an exponential average loses at most the share 1 − β^ℓ of L̂ in ℓ steps.

/// g(m) for the exponent 1/p = `exponent`; infinite when m ≥ 1.
pub fn growth(exponent: f64, m: f64) -> f64 {
    if m <= 0.0 {
        return 1.0;
    }
    if m >= 1.0 {
        return f64::INFINITY;
    }
    // ((1−m)^(−q) − 1)/(q·m), without cancellation for small m.
    (-exponent * (-m).ln_1p()).exp_m1() / (exponent * m)
}

/// m after `t − refreshed` steps: 1 − β^ℓ, times the change of the bias correction if there is one.
pub fn largest_loss(beta: f64, bias_correction: bool, refreshed: u64, t: u64) -> f64 {
    if beta >= 1.0 {
        return 0.0;
    }
    let elapsed = t.saturating_sub(refreshed);
    let kept = beta.powf(elapsed as f64);
    let correction = |t| super::cadence::bias_correction(bias_correction, beta, t);
    let kept = kept * correction(refreshed) / correction(t);
    (1.0 - kept).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_has_the_values_of_its_formula() {
        for q in [1.0f64, 0.5, 0.25, 1.0 / 6.0] {
            assert_eq!(growth(q, 0.0), 1.0);
            assert!((growth(q, 1e-9) - 1.0).abs() < 1e-8);
            let m: f64 = 0.4;
            let direct = ((1.0 - m).powf(-q) - 1.0) / (q * m);
            assert!((growth(q, m) - direct).abs() < 1e-14);
            assert_eq!(growth(q, 1.0), f64::INFINITY);
        }
        // The numbers of the derivation at β = 0.995, p = 2.
        let g = |steps| growth(0.5, largest_loss(0.995, false, 0, steps));
        assert!((g(20) - 1.08).abs() < 0.01 && (g(200) - 2.05).abs() < 0.01, "{} {}", g(20), g(200));
    }

    #[test]
    fn a_plain_sum_loses_nothing() {
        assert_eq!(largest_loss(1.0, true, 3, 50), 0.0);
    }

    #[test]
    fn bias_correction_makes_the_loss_larger() {
        let plain = largest_loss(0.99, false, 10, 30);
        let corrected = largest_loss(0.99, true, 10, 30);
        assert!(corrected > plain && corrected < 1.0);
    }
}
