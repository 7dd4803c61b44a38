//! From the reference's hyperparameters to the library's options.

use serde_json::{Map, Value};

/// A configuration: a preset and the options that differ from it.
pub struct Setup {
    /// "reference", "paper" or "soap".
    pub preset: &'static str,
    /// The policy's name.
    pub policy: &'static str,
    /// Options in text form.
    pub options: Vec<(String, String)>,
    /// exponent_multiplier, which scales every inverse root's exponent.
    pub exponent_multiplier: f64,
    /// `inv_root_override` where it is a list: the root by block order.
    roots_by_order: Vec<f64>,
}

impl Setup {
    /// The setup of a run of the authors' code.
    pub fn official(hp: &Map<String, Value>) -> Result<Setup, String> {
        let mode = hp.get("preconditioner_update_mode").and_then(Value::as_str);
        let mut setup = Setup::new("reference", mode)?;
        let [uses_tau, uses_cap] = match setup.policy {
            "foam" | "foam_no_refresh" => [true, true],
            "foam_fixed_epsilon" => [true, false],
            _ => [false, false],
        };
        for (key, value) in hp {
            // A missing value means the default here as there.
            if value.is_null() && key != "grafting" {
                continue;
            }
            match key.as_str() {
                "preconditioner_update_mode" => {}
                "lr" | "epsilon" | "epsilon_left" | "epsilon_right" | "momentum" | "weight_decay" => {
                    setup.set(key, value)?
                }
                "exponent_multiplier" => {
                    setup.exponent_multiplier =
                        value.as_f64().ok_or("exponent_multiplier is not a number")?;
                    setup.set(key, value)?
                }
                "betas" => {
                    setup.set("beta1", &value[0])?;
                    setup.set("beta2", &value[1])?
                }
                "max_preconditioner_dim" => setup.set("max_factor_dim", value)?,
                "precondition_frequency" => setup.set("check_period", value)?,
                "start_preconditioning_step" => setup.set("start_step", value)?,
                "inv_root_override" => setup.root(value)?,
                "use_nadam" => setup.set("nadam", value)?,
                "use_nesterov" => setup.set("nesterov", value)?,
                "use_bias_correction" => setup.set("bias_correction", value)?,
                "use_decoupled_weight_decay" => setup.set("decoupled_weight_decay", value)?,
                "use_normalized_grafting" => setup.set("normalized_grafting", value)?,
                "use_ema_momentum" => setup.set("ema_momentum", value)?,
                "use_merge_dims" => setup.set("merge_dims", value)?,
                "grafting" => setup.grafting(value)?,
                "diagonal_residual_threshold" => setup.set("residual_threshold", value)?,
                // The reference writes 0 into thresholds that its mode never looks at; the library refuses a 0.
                "matrix_root_inv_threshold" if uses_tau => setup.set("tau", value)?,
                "max_epsilon" if uses_cap => setup.set("epsilon_max", value)?,
                "matrix_root_inv_threshold" | "max_epsilon" => {}
                other => return Err(format!("hyperparameter '{other}' has no counterpart here")),
            }
        }
        Ok(setup)
    }

    /// The setup of a run of the paper's algorithms as printed.
    pub fn paper(hp: &Map<String, Value>) -> Result<Setup, String> {
        let mut setup = Setup::new("paper", hp.get("mode").and_then(Value::as_str))?;
        for (key, value) in hp {
            match key.as_str() {
                "mode" => {}
                "p" => setup.set("root", value)?,
                "f" => setup.set("check_period", value)?,
                "beta" => setup.set("beta2", value)?,
                "eta" => setup.set("lr", value)?,
                "eps0" => setup.set("epsilon", value)?,
                "eps_max" => setup.set("epsilon_max", value)?,
                "tau" => setup.set("tau", value)?,
                other => return Err(format!("hyperparameter '{other}' has no counterpart here")),
            }
        }
        Ok(setup)
    }

    /// The setup of a run of the SOAP authors' code: every option of theirs is named.
    pub fn soap(hp: &Map<String, Value>) -> Result<Setup, String> {
        let mut setup = Setup::new("soap", Some("stale"))?;
        setup.options.push(("soap_form".into(), "exact".into()));
        setup.options.push(("refresh_schedule".into(), "fixed".into()));
        let betas = hp.get("betas").ok_or("no betas")?;
        for (key, value) in hp {
            match key.as_str() {
                "lr" | "weight_decay" | "max_precond_dim" | "merge_dims" | "precondition_1d"
                | "normalize_grads" => setup.set(key, value)?,
                "betas" => {
                    setup.set("beta1", &value[0])?;
                    setup.set("grafting_beta2", &value[1])?
                }
                "shampoo_beta" => {
                    let own = value.as_f64().is_some_and(|beta| beta >= 0.0);
                    setup.set("beta2", if own { value } else { &betas[1] })?
                }
                "eps" => setup.set("grafting_epsilon", value)?,
                "precondition_frequency" => setup.set("check_period", value)?,
                "correct_bias" => setup.set("bias_correction", value)?,
                other => return Err(format!("hyperparameter '{other}' has no counterpart here")),
            }
        }
        Ok(setup)
    }

    /// The root of a parameter whose blocks have `order` dimensions; 0 for the configuration's.
    pub fn root_of_order(&self, order: usize) -> f64 {
        self.roots_by_order.get(order).copied().unwrap_or(0.0)
    }

    fn new(preset: &'static str, mode: Option<&str>) -> Result<Setup, String> {
        let policy = match mode {
            Some("stale") => "stale",
            Some("foam") => "foam",
            Some("foam_no_adaptive_epsilon") => "foam_fixed_epsilon",
            Some("foam_no_evd_refresh") => "foam_no_refresh",
            Some("dr_shampoo") => "diagonal_residual",
            other => return Err(format!("update mode {other:?} has no counterpart here")),
        };
        // Results do not depend on the number of threads; one per run is fastest when runs are parallel and small.
        let options = [("policy", policy), ("num_threads", "1")];
        let options = options.map(|(key, value)| (key.to_string(), value.to_string())).to_vec();
        Ok(Setup { preset, policy, options, exponent_multiplier: 1.0, roots_by_order: Vec::new() })
    }

    fn set(&mut self, option: &str, value: &Value) -> Result<(), String> {
        let text = match value {
            // JSON numbers print as the shortest text that reads back as the same double.
            Value::Number(number) => number.to_string(),
            Value::Bool(flag) => flag.to_string(),
            Value::String(text) => text.clone(),
            other => {
                return Err(format!("value of '{option}' is {other}; expected a number, a flag or a name"));
            }
        };
        self.options.push((option.to_string(), text));
        Ok(())
    }

    /// An integer r > 0 is the root, 0 is twice the order, a list gives it by order.
    fn root(&mut self, value: &Value) -> Result<(), String> {
        let Value::Array(list) = value else { return self.set("root", value) };
        let number = |v: &Value| v.as_f64().ok_or_else(|| format!("inv_root_override has {v} in it"));
        self.roots_by_order = list.iter().map(number).collect::<Result<_, _>>()?;
        self.set("root", &Value::from(0))
    }

    fn grafting(&mut self, value: &Value) -> Result<(), String> {
        let Value::Object(fields) = value else { return self.set("grafting", &Value::from("none")) };
        for (key, value) in fields {
            match key.as_str() {
                "type" => self.set("grafting", value)?,
                "beta2" => self.set("grafting_beta2", value)?,
                "epsilon" => self.set("grafting_epsilon", value)?,
                other => return Err(format!("hyperparameter 'grafting.{other}' has no counterpart here")),
            }
        }
        Ok(())
    }
}
