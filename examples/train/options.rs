//! The command line.

use std::path::PathBuf;

/// What `--help` prints.
pub const HELP: &str = "\
Trains a small network on the UCI digits with several policies of libfoam and compares them.

Usage: cargo run --release --example train -- [FLAGS]

  --policy NAME      run this policy, or the preset `default` or `soap`; repeat it for several
                     (default: grafting_only, stale, foam, foam_certified, default and soap)
  --epochs N         passes over the training set (default 60)
  --seed N           seed of the weights and of the batches' order (default 1)
  --threads N        threads of the optimizer; 0 means one for each core (default 0)
  --set KEY=VALUE    an option of the library, as in foam_config_set, for all policies; repeatable
  --out DIR          where the plots and stats.csv go (default target/train)
  --help             this text
";

/// The flags, with their defaults filled in.
#[derive(Debug, PartialEq)]
pub struct Options {
    pub policies: Vec<String>,
    pub epochs: usize,
    pub seed: u64,
    pub threads: Option<String>,
    pub settings: Vec<(String, String)>,
    pub out: PathBuf,
    pub help: bool,
}

impl Options {
    /// Reads the arguments that follow the program's name; the error is a sentence for the user.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut options = Options {
            policies: Vec::new(),
            epochs: 60,
            seed: 1,
            threads: None,
            settings: Vec::new(),
            out: PathBuf::from("target/train"),
            help: false,
        };
        let mut rest = arguments.into_iter();
        while let Some(argument) = rest.next() {
            let (flag, attached) = match argument.split_once('=') {
                Some((flag, value)) if flag.starts_with("--") => (flag.to_string(), Some(value.to_string())),
                _ => (argument, None),
            };
            let mut value =
                || attached.clone().or_else(|| rest.next()).ok_or_else(|| format!("{flag} needs a value"));
            match flag.as_str() {
                "--policy" => options.add_policy(value()?)?,
                "--epochs" => options.epochs = number(&flag, &value()?, 1)?,
                "--seed" => options.seed = number(&flag, &value()?, 0)?,
                "--threads" => options.threads = Some(number::<u32>(&flag, &value()?, 0)?.to_string()),
                "--set" => options.settings.push(setting(&value()?)?),
                "--out" => options.out = PathBuf::from(value()?),
                "--help" | "-h" => options.help = true,
                _ => return Err(format!("unknown flag '{flag}'; --help lists the known ones")),
            }
        }
        if options.policies.is_empty() {
            options.policies = ["grafting_only", "stale", "foam", "foam_certified", "default", "soap"]
                .map(String::from)
                .to_vec();
        }
        Ok(options)
    }

    fn add_policy(&mut self, name: String) -> Result<(), String> {
        if self.policies.contains(&name) {
            return Err(format!("--policy {name} is given twice"));
        }
        self.policies.push(name);
        Ok(())
    }
}

fn number<T: std::str::FromStr + PartialOrd + std::fmt::Display>(
    flag: &str,
    text: &str,
    least: T,
) -> Result<T, String> {
    match text.parse::<T>() {
        Ok(number) if number >= least => Ok(number),
        _ => Err(format!("{flag} {text}: expected a whole number >= {least}")),
    }
}

fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some(("policy", name)) => Err(format!("--set {text}: choose a policy with --policy {name}")),
        Some((key, value)) => Ok((key.trim().to_string(), value.to_string())),
        None => Err(format!("--set {text}: expected KEY=VALUE, for example --set tau=0.5")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn flags_are_read_in_both_spellings() {
        let options = parse("--epochs 3 --seed=9 --policy foam --set tau=0.5 --set=epsilon=1e-6").unwrap();
        assert_eq!((options.epochs, options.seed), (3, 9));
        assert_eq!(options.policies, ["foam"]);
        let keys: Vec<&str> = options.settings.iter().map(|s| s.0.as_str()).collect();
        assert_eq!(keys, ["tau", "epsilon"]);
        assert_eq!(parse("").unwrap().policies.len(), 6);
    }

    #[test]
    fn refusals_say_what_was_expected() {
        let cases = [
            ("--epoch 3", "unknown flag '--epoch'"),
            ("--epochs", "needs a value"),
            ("--epochs 0", ">= 1"),
            ("--seed -1", ">= 0"),
            ("--set tau", "KEY=VALUE"),
            ("--set policy=foam", "--policy foam"),
            ("--policy foam --policy foam", "twice"),
            ("extra", "unknown flag 'extra'"),
        ];
        for (line, expected) in cases {
            let message = parse(line).unwrap_err();
            assert!(message.contains(expected), "{line}: {message}");
        }
    }
}
