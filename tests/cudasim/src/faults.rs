//! Faults that tests ask for: a status from the n-th call of an entry point, a bad n-th decomposition.

/// How a decomposition goes wrong: of eigenvalues, or an orthogonal factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spoil {
    /// `info` is not zero.
    Info,
    /// Two vectors are not orthogonal, or all too long.
    NonOrthogonal,
    /// An entry is NaN.
    Nan,
    /// The eigenvalues are wrong (of a factor: as `NonOrthogonal`).
    Values,
}

impl Spoil {
    /// Reads `info`, `nonorthogonal`, `nan` or `values`.
    pub fn parse(name: &str) -> Option<Spoil> {
        match name {
            "info" => Some(Spoil::Info),
            "nonorthogonal" => Some(Spoil::NonOrthogonal),
            "nan" => Some(Spoil::Nan),
            "values" => Some(Spoil::Values),
            _ => None,
        }
    }
}

/// The faults to come.
#[derive(Default)]
pub struct Faults {
    /// Entry point, calls until it strikes, status.
    calls: Vec<(String, u64, i32)>,
    /// Decompositions until it strikes, and how.
    evds: Vec<(u64, Spoil)>,
}

impl Faults {
    /// `CUDASIM_FAIL="cuMemAlloc_v2:3:2,cublasSgemm_v2:1:13"` and `CUDASIM_FAIL_EVD="2:nan"`.
    pub fn from_env() -> Faults {
        let mut faults = Faults::default();
        for item in std::env::var("CUDASIM_FAIL").unwrap_or_default().split(',').filter(|i| !i.is_empty()) {
            let parts: Vec<&str> = item.split(':').collect();
            match parts[..] {
                [name, nth, status] if nth.parse::<u64>().is_ok() && status.parse::<i32>().is_ok() => {
                    faults.fail(name, nth.parse().unwrap_or(1), status.parse().unwrap_or(1));
                }
                _ => eprintln!("cudasim: CUDASIM_FAIL item `{item}` is not name:nth:status"),
            }
        }
        for item in std::env::var("CUDASIM_FAIL_EVD").unwrap_or_default().split(',').filter(|i| !i.is_empty())
        {
            let parsed =
                item.split_once(':').and_then(|(nth, kind)| Some((nth.parse().ok()?, Spoil::parse(kind)?)));
            match parsed {
                Some((nth, spoil)) => faults.spoil(nth, spoil),
                None => eprintln!("cudasim: CUDASIM_FAIL_EVD item `{item}` is not nth:kind"),
            }
        }
        faults
    }

    /// The `nth` call of `name` from now on (1 is the next) returns `status`.
    pub fn fail(&mut self, name: &str, nth: u64, status: i32) {
        self.calls.push((name.to_string(), nth.max(1), status));
    }

    /// The `nth` decomposition from now on goes wrong.
    pub fn spoil(&mut self, nth: u64, spoil: Spoil) {
        self.evds.push((nth.max(1), spoil));
    }

    /// Counts a call; the status to return if a fault strikes.
    pub fn strike(&mut self, name: &str) -> Option<i32> {
        let mut status = None;
        self.calls.retain_mut(|(wanted, left, value)| {
            if wanted == name {
                *left -= 1;
                if *left == 0 {
                    status = Some(*value);
                    return false;
                }
            }
            true
        });
        status
    }

    /// Counts a decomposition; how it goes wrong, if it does.
    pub fn strike_evd(&mut self) -> Option<Spoil> {
        let mut found = None;
        self.evds.retain_mut(|(left, spoil)| {
            *left -= 1;
            if *left == 0 {
                found = Some(*spoil);
            }
            *left > 0
        });
        found
    }

    /// Forgets all faults.
    pub fn clear(&mut self) {
        self.calls.clear();
        self.evds.clear();
    }
}
