//! Damping: ε₀ and ε_max, as plain numbers (the paper) or as shares of the factor's largest eigenvalue.
//!
//! An absolute ε has the unit of a squared gradient: multiply the loss by a number, and the same option means
//! another method. A relative one has no unit: gradients multiplied by 2ᵏ give the same steps.

use crate::config::{Config, EpsilonMode};

/// How an ε is found for a factor: `floor`, or `ratio`·λmax but at least `floor`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Damping {
    /// Share of the largest eigenvalue; 0 for an absolute ε.
    pub ratio: f64,
    /// The absolute ε, or the least relative one.
    pub floor: f64,
}

/// The least ε of a relative damping: its inverse roots stay finite in single precision.
pub const LEAST_EPSILON: f64 = 1.0 / (1u128 << 120) as f64;

impl Damping {
    /// ε as it is.
    pub const fn absolute(epsilon: f64) -> Damping {
        Damping { ratio: 0.0, floor: epsilon }
    }

    /// `value` in the unit that the configuration says.
    pub fn new(config: &Config, value: f64) -> Damping {
        match config.epsilon_mode {
            EpsilonMode::Absolute => Damping::absolute(value),
            EpsilonMode::Relative => Damping { ratio: value, floor: LEAST_EPSILON },
        }
    }

    /// ε for a factor whose largest eigenvalue is `largest`. A statistic of zeros has no scale: ε = 1, and its
    /// inverse root is the identity.
    pub fn at(&self, largest: f64) -> f64 {
        if self.ratio == 0.0 {
            self.floor
        } else if largest > 0.0 {
            (self.ratio * largest).max(self.floor)
        } else {
            1.0
        }
    }
}

/// x^(−exponent/2), the weight of an eigenvector in the square root of an inverse root. Where 2/exponent = 2p is a
/// whole number, x multiplied by a power of 2²ᵖ gives the same digits.
pub fn root_weight(x: f64, exponent: f64) -> f64 {
    let period = 2.0 / exponent;
    if period != period.round() || !(x >= f64::MIN_POSITIVE && x.is_finite()) {
        return inverse_power(x, 0.5 * exponent);
    }
    let steps = (f64::from(binary_exponent(x)) / period).floor();
    let near_one = x * 2f64.powi(-(steps * period) as i32);
    inverse_power(near_one, 0.5 * exponent) * 2f64.powi(-steps as i32)
}

/// x^(−q), by square roots where q is 1/2 or 1/4: a general power costs ten times as much.
#[inline]
pub fn inverse_power(x: f64, q: f64) -> f64 {
    if q == 0.5 {
        1.0 / x.sqrt()
    } else if q == 0.25 {
        1.0 / x.sqrt().sqrt()
    } else {
        x.powf(-q)
    }
}

/// e of x = m·2ᵉ with 1 ≤ m < 2, for a positive normal x.
fn binary_exponent(x: f64) -> i32 {
    ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_damping_follows_the_scale_and_an_absolute_one_does_not() {
        let config = Config { epsilon_mode: EpsilonMode::Relative, ..Config::reference() };
        let relative = Damping::new(&config, 3e-4);
        for k in [-80, -3, 0, 7, 80] {
            let scale = 2f64.powi(k);
            assert_eq!(relative.at(5.0 * scale), 3e-4 * 5.0 * scale);
        }
        assert_eq!((relative.at(0.0), relative.at(f64::NAN)), (1.0, 1.0));
        assert_eq!(relative.at(1e-300), LEAST_EPSILON);
        assert_eq!(Damping::new(&Config::reference(), 3e-4).at(7.0), 3e-4);
    }

    #[test]
    fn roots_are_powers() {
        for x in [1e-300, 1e-9, 0.3, 1.0, 7e4, 1e300] {
            for q in [0.125, 0.25, 0.5, 1.0] {
                assert!((inverse_power(x, q) / x.powf(-q) - 1.0).abs() < 4e-16, "x {x}, q {q}");
            }
        }
    }

    #[test]
    fn weights_keep_their_digits_under_powers_of_two() {
        for p in [1.0, 2.0, 3.0, 4.0, 6.0] {
            for x in [1e-30, 0.7, 1.0, 3.3e-4, 12345.6] {
                let weight = root_weight(x, 1.0 / p);
                assert!((weight / f64::powf(x, -0.5 / p) - 1.0).abs() < 1e-15, "p {p}, x {x}");
                for k in [-3, 1, 5] {
                    let scaled = root_weight(x * 2f64.powi(2 * p as i32 * k), 1.0 / p);
                    assert_eq!(scaled, weight * 2f64.powi(-k), "p {p}, x {x}, k {k}");
                }
            }
        }
        assert_eq!(root_weight(0.5, 0.3), 0.5f64.powf(-0.15));
    }
}
