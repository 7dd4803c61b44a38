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
//!
//! # The sandwich
//! Let S = diag(a) be any positive spectrum, B = Q S Qᵀ, X = L + εI, M = S^(−½)(QᵀXQ − S)S^(−½), N = I + M,
//! f(x) = x^(−q), q = 1/p, Δ = f(X) − f(B), and C_ij = √(a_i a_j)·|f[a_i, a_j]| with the divided difference f[·,·].
//! Then
//!
//! Λ := −C∘M ⪯ QᵀΔQ ⪯ Υ := C∘(N⁻¹ − I),   hence   ‖Δ‖_F ≤ ‖(Λ+Υ)/2‖_F + ‖(Υ−Λ)/2‖_F.
//!
//! x^(−q) is operator convex, so that f(X) is at least its tangent at B, which is Λ (Daleckii–Krein). y^q is operator
//! concave: its tangent at B⁻¹, taken at X⁻¹, is Υ. With Λ ⪯ Δ ⪯ Υ, tr((Υ−Δ)(Δ−Λ)) ≥ 0 puts Δ into the ball with the
//! centre (Λ+Υ)/2 and the radius ‖(Υ−Λ)/2‖_F. It needs no m.
//!
//! # The remainder
//! Where diag M = 0 and M ⪰ −m, 0 ≤ m < 1, with the norms divided by ‖f(B)‖_F,
//!
//! gap² ≤ ‖Λ‖² + (q·m + (1−m)^(−q) − 1)·m·t / ((1−m)(m+t)),   t = k·Σ f(a_i)² M_ij² − ‖Λ‖²/2,
//!
//! k = q for q ≤ 1/2, q(1+2q)/2 above. Z = Δ − Λ is positive semidefinite; Λ ⪯ q·m·f(B) and Δ ⪯ ((1−m)^(−q) − 1)·f(B),
//! so that ‖Δ‖² = ‖Λ‖² + ⟨Z, Λ+Δ⟩ needs only the diagonal of Z, which the numbers M_ij² bound. `docs/theory.md` has the
//! proof. It needs m, but no inverse: M ⪰ −m is shown by a Cholesky factorization of mI + M.

use super::damping::inverse_power;

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

/// m when the gradients in the statistic went from `refreshed` to `t` of them: 1 − β^ℓ, times the change of the bias
/// correction if there is one.
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

/// The spectral form: gap ≤ max(1 − (1+m₊)^(−q), (1−m)^(−q) − 1), for m₊ ≥ λ_max(M), m ≥ −λ_min(M).
pub fn spectral_form(exponent: f64, loss: f64, gain: f64) -> f64 {
    if loss >= 1.0 {
        return f64::INFINITY;
    }
    let above = (-exponent * (-loss).ln_1p()).exp_m1();
    let below = -(-exponent * gain.ln_1p()).exp_m1();
    above.max(below)
}

/// The largest m, but for rounding, for which the spectral form is at most `target`; 0 if there is none.
pub fn spectral_loss(exponent: f64, target: f64, gain: f64) -> f64 {
    if spectral_form(exponent, 0.0, gain) > target {
        0.0
    } else {
        (1.0 - 1e-12 - inverse_power(1.0 + target, 1.0 / exponent)).max(0.0)
    }
}

/// A bound above this says little: it is not looked for with a Cholesky factorization alone.
pub const LARGEST_AIM: f64 = 1.0;

/// What the remainder's bound needs of a drift with diag M = 0.
#[derive(Clone, Copy, Debug)]
pub struct Remainder {
    exponent: f64,
    /// ‖Λ‖² / ‖f(B)‖².
    first_order: f64,
    /// t.
    second_order: f64,
}

impl Remainder {
    /// `first_order` is ‖Λ‖², `weighted` is Σ f(a_i)² M_ij², both divided by ‖f(B)‖².
    pub fn new(exponent: f64, first_order: f64, weighted: f64) -> Remainder {
        let factor = if exponent <= 0.5 { exponent } else { exponent * (0.5 + exponent) };
        let second_order = (factor * weighted - 0.5 * first_order).max(0.0);
        Remainder { exponent, first_order, second_order }
    }

    /// The bound for M ⪰ −m; infinite when m ≥ 1.
    pub fn bound(&self, m: f64) -> f64 {
        if m >= 1.0 {
            return f64::INFINITY;
        }
        if m <= 0.0 || self.second_order == 0.0 {
            return self.first_order.sqrt();
        }
        let (q, t) = (self.exponent, self.second_order);
        let diagonal = m * t / ((1.0 - m) * (m + t));
        let spread = q * m + inverse_power(1.0 - m, q) - 1.0;
        (self.first_order + spread * diagonal).sqrt()
    }

    /// The largest m, up to a millionth, whose bound is at most `target`; 0 if there is none.
    pub fn largest_loss(&self, target: f64) -> f64 {
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..20 {
            let middle = 0.5 * (low + high);
            if self.bound(middle) <= target {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// C_ij = √(a_i a_j)·|f[a_i, a_j]| of the sandwich.
pub struct Coupling<'a> {
    /// a^(1/p) for whole p; else ln a.
    numbers: &'a [f64],
    /// What the two factors of C_ij outside the quotient are: x^(p/2−1) of x = a^(1/p), or a^(−q/2).
    halves: &'a [f64],
    exponent: f64,
    /// p, if it is a whole number up to [`LARGEST_ROOT`].
    root: Option<u32>,
}

/// Roots up to this one have a closed form; above it a quotient of hyperbolic sines is cheaper.
pub const LARGEST_ROOT: u32 = 8;

impl<'a> Coupling<'a> {
    /// The coefficients of the spectrum `a`, all of it positive; `room` takes two numbers per eigenvalue.
    pub fn new(a: &[f64], exponent: f64, room: &'a mut [f64]) -> Coupling<'a> {
        let p = 1.0 / exponent;
        let whole = (p - p.round()).abs() < 1e-12 && p < f64::from(LARGEST_ROOT) + 0.5;
        let root = whole.then(|| p.round() as u32);
        let (numbers, halves) = room.split_at_mut(a.len());
        for ((a, number), half) in a.iter().zip(&mut *numbers).zip(&mut *halves) {
            // Roots are far cheaper than powers, which matter for small factors.
            (*number, *half) = match root {
                Some(2) => (a.sqrt(), 1.0),
                Some(4) => (a.sqrt().sqrt(), a.sqrt().sqrt()),
                Some(p) => (a.powf(exponent), a.powf(exponent).powf(0.5 * f64::from(p) - 1.0)),
                None => (a.ln(), a.powf(-0.5 * exponent)),
            };
        }
        Coupling { numbers, halves, exponent, root }
    }

    /// √a, if p = 2 and C_ij therefore 1/(√a_i + √a_j).
    pub fn square_roots(&self) -> Option<&[f64]> {
        (self.root == Some(2)).then_some(self.numbers)
    }

    /// `column` becomes C_ij for i = `from`, `from` + 1, ….
    #[inline(always)]
    pub fn column(&self, from: usize, j: usize, column: &mut [f64]) {
        let (numbers, y) = (&self.numbers[from..], self.numbers[j]);
        let pairs = column.iter_mut().zip(numbers);
        // The common roots without a choice per pair, so that they are computed in vectors.
        match self.root {
            Some(2) => pairs.for_each(|(c, x)| *c = 1.0 / (x + y)),
            Some(4) => pairs.for_each(|(c, x)| *c = x * y / ((x + y) * (x * x + y * y))),
            _ => column.iter_mut().enumerate().for_each(|(k, c)| *c = self.at(from + k, j)),
        }
    }

    /// C_ij. With x = a^(1/p) it is (x_i x_j)^(p/2−1) / Σ_k x_i^(p−1−k) x_j^k.
    #[inline(always)]
    pub fn at(&self, i: usize, j: usize) -> f64 {
        let (x, y) = (self.numbers[i], self.numbers[j]);
        match self.root {
            Some(2) => 1.0 / (x + y),
            Some(4) => x * y / ((x + y) * (x * x + y * y)),
            Some(p) => {
                let (mut sum, mut power) = (1.0, 1.0);
                for _ in 1..p {
                    power *= y;
                    sum = sum * x + power;
                }
                self.halves[i] * self.halves[j] / sum
            }
            None => {
                // √(ab)·(b^(−q) − a^(−q))/(a − b) = (ab)^(−q/2)·sinh(qδ/2)/sinh(δ/2), δ = ln(a/b).
                let half = 0.5 * (x - y).abs();
                let ratio =
                    if half < 1e-9 { self.exponent } else { (self.exponent * half).sinh() / half.sinh() };
                let ratio = if ratio.is_finite() { ratio } else { (-(1.0 - self.exponent) * half).exp() };
                self.halves[i] * self.halves[j] * ratio
            }
        }
    }
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
    fn couplings_are_divided_differences() {
        let a = [1e-6, 0.3, 0.30000001, 0.3, 7.0, 2e4];
        for p in [1.0, 1.5, 2.0, 3.0, 4.0, 4.7, 6.0, 8.0, 12.0] {
            let mut room = [0.0; 12];
            let (q, coupling) = (1.0 / p, Coupling::new(&a, 1.0 / p, &mut room));
            for i in 0..a.len() {
                for j in 0..a.len() {
                    let (x, y): (f64, f64) = (a[i], a[j]);
                    let difference = if (x - y).abs() < 1e-6 * x {
                        q * (0.5 * (x + y)).powf(-q - 1.0)
                    } else {
                        ((x.powf(-q) - y.powf(-q)) / (x - y)).abs()
                    };
                    let expected = (x * y).sqrt() * difference;
                    let got = coupling.at(i, j);
                    assert!((got / expected - 1.0).abs() < 1e-7, "p {p}: {got} {expected}");
                }
            }
        }
    }

    #[test]
    fn the_remainder_is_exact_to_first_order_and_its_inverse_is_one() {
        for q in [1.0, 0.7, 0.5, 0.25] {
            let remainder = Remainder::new(q, 0.04, 0.3);
            assert_eq!((remainder.bound(0.0), remainder.bound(1.0)), (0.2, f64::INFINITY));
            for target in [0.21, 0.5, 1.0] {
                let m = remainder.largest_loss(target);
                assert!(remainder.bound(m) <= target && remainder.bound(m + 2e-6) > target, "{q} {target}");
            }
            assert_eq!(remainder.largest_loss(0.1), 0.0);
        }
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
