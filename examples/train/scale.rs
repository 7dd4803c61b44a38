//! Axes: from data to a range, from a range to round ticks.

/// A linear or logarithmic axis.
pub struct Scale {
    pub low: f64,
    pub high: f64,
    pub log: bool,
}

impl Scale {
    /// The axis that holds every finite value (every positive one, if logarithmic), with a little air.
    pub fn fit(values: impl Iterator<Item = f64>, log: bool) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|v| v.is_finite() && (!log || *v > 0.0)) {
            low = low.min(value);
            high = high.max(value);
        }
        if low > high {
            (low, high) = (if log { 0.1 } else { 0.0 }, 1.0);
        }
        if log {
            let air = (high / low).powf(0.04).max(1.1);
            return Scale { low: low / air, high: high * air, log };
        }
        if low == high {
            high = low + 1.0;
        }
        Scale { low, high, log }
    }

    /// Where `value` lies between the ends: 0 at the low one, 1 at the high one.
    pub fn fraction(&self, value: f64) -> f64 {
        if self.log {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        }
    }
}

/// About `wanted` ticks (or a few more) at round values, with their labels.
pub fn ticks(scale: &Scale, wanted: usize) -> Vec<(f64, String)> {
    let wanted = wanted.max(2) as f64;
    if scale.log {
        return log_ticks(scale, wanted);
    }
    let rough = (scale.high - scale.low) / wanted;
    let decade = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * decade).into_iter().find(|s| *s >= rough * 0.999);
    let step = step.unwrap_or(10.0 * decade);
    let decimals = (-step.log10().floor()).max(0.0) as usize;
    let first = (scale.low / step - 1e-9).ceil() as i64;
    let last = (scale.high / step + 1e-9).floor() as i64;
    (first..=last).map(|n| (n as f64 * step, format!("{:.decimals$}", n as f64 * step))).collect()
}

fn log_ticks(scale: &Scale, wanted: f64) -> Vec<(f64, String)> {
    let (low, high) = (scale.low.log10(), scale.high.log10());
    let every = ((high - low) / wanted).ceil().max(1.0) as i32;
    // Less than two decades: powers of ten alone would leave the axis nearly bare.
    let steps: &[f64] = if high - low < 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let mut marks = Vec::new();
    for power in low.floor() as i32..=high.ceil() as i32 {
        if power.rem_euclid(every) != 0 {
            continue;
        }
        for mantissa in steps {
            let value = mantissa * 10f64.powi(power);
            if value >= scale.low && value <= scale.high {
                marks.push((value, power_label(*mantissa, power)));
            }
        }
    }
    marks
}

/// 0.001 to 1000 as they are, other powers as 10⁻⁷.
fn power_label(mantissa: f64, power: i32) -> String {
    if (-3..=3).contains(&power) {
        return format!("{:.*}", (-power).max(0) as usize, mantissa * 10f64.powi(power));
    }
    let raised: String = power
        .to_string()
        .chars()
        .map(|c| match c {
            '-' => '⁻',
            '1' => '¹',
            '2' => '²',
            '3' => '³',
            digit => char::from_u32('⁰' as u32 + digit as u32 - '0' as u32).unwrap_or(digit),
        })
        .collect();
    if mantissa == 1.0 { format!("10{raised}") } else { format!("{mantissa}·10{raised}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: &Scale, wanted: usize) -> Vec<String> {
        ticks(scale, wanted).into_iter().map(|t| t.1).collect()
    }

    #[test]
    fn ticks_are_round_and_inside() {
        let scale = Scale { low: 0.0, high: 660.0, log: false };
        assert_eq!(labels(&scale, 6), ["0", "200", "400", "600"]);
        let scale = Scale { low: 0.0, high: 1.0, log: false };
        assert_eq!(labels(&scale, 5), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        let scale = Scale { low: 5e-8, high: 2e-3, log: true };
        assert_eq!(labels(&scale, 5), ["10⁻⁷", "10⁻⁶", "10⁻⁵", "10⁻⁴", "0.001"]);
        let scale = Scale { low: 0.09, high: 0.6, log: true };
        assert_eq!(labels(&scale, 5), ["0.1", "0.2", "0.5"]);
    }

    #[test]
    fn an_axis_without_data_still_has_a_range() {
        let scale = Scale::fit([f64::NAN, -1.0].into_iter(), true);
        assert!(scale.low < scale.high && scale.fraction(scale.high) == 1.0);
    }
}
