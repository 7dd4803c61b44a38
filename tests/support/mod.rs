//! What the numerical tests share: the library through its C functions, random numbers with a seed, small
//! matrices, and a naive optimizer to compare with.

#![allow(dead_code, reason = "each test uses a part of it")]

pub mod agree;
pub mod gpu;
pub mod matrix;
pub mod model;
pub mod random;
pub mod reference;
pub mod run;
pub mod stack;
pub mod tensor;

/// Every policy; the last has no factors.
pub const POLICIES: [&str; 8] = [
    "stale",
    "foam",
    "foam_fixed_epsilon",
    "foam_no_refresh",
    "diagonal_residual",
    "foam_certified",
    "sandwich",
    "grafting_only",
];

/// Every policy, and refreshes and schedules of other kinds.
pub fn policies_and_schedules() -> impl Iterator<Item = &'static str> {
    let others = [
        "sandwich refresh_method=qr tau=0.2",
        "stale refresh_schedule=geometric correction_period=2",
        "sandwich refresh_schedule=geometric correction_period=2",
        "sandwich refresh_schedule=combined",
        "foam refresh_schedule=combined refresh_growth=3",
        "sandwich refresh_method=qr qr_track=true tau=0.1 beta2=0.5",
        "foam statistics_period=3",
        "sandwich statistics_period=4",
        "foam keep_inverse_root=false",
        "sandwich keep_inverse_root=false refresh_method=qr tau=0.2",
        "foam refresh_delay=3",
        "sandwich refresh_delay=2",
        "foam_certified refresh_delay=5 keep_inverse_root=false",
        "stale refresh_delay=1",
        "sandwich refresh_schedule=geometric correction_period=2 refresh_delay=4",
    ];
    POLICIES.into_iter().chain(others)
}
