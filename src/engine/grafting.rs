//! Grafting: whose step length the preconditioned direction takes. What a device needs of it are the numbers
//! below and whether there is a second moment; no device knows a method's name.

use crate::config::{Config, Grafting};

/// What a grafted method comes to.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// There is a method to graft from.
    pub grafts: bool,
    /// The second moment becomes `keep`·v + `take`·g².
    pub keep: f64,
    /// See `keep`.
    pub take: f64,
    /// ln of its decay.
    pub log_beta: f64,
    /// It is corrected for its start.
    pub corrects: bool,
}

impl Numbers {
    /// The numbers of the configuration's method.
    pub fn of(config: &Config) -> Numbers {
        let beta = config.grafting_beta2;
        let (keep, take) = match config.grafting {
            Grafting::Adagrad => (1.0, 1.0),
            _ => (beta, 1.0 - beta),
        };
        Numbers {
            grafts: config.grafting != Grafting::None,
            keep,
            take,
            log_beta: beta.ln(),
            corrects: config.grafting == Grafting::Adam,
        }
    }
}

/// Whether the method keeps a second moment.
pub fn has_moment(grafting: Grafting) -> bool {
    !matches!(grafting, Grafting::None | Grafting::Sgd)
}
