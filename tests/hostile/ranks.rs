//! Ranks on threads of this process: random worlds, ways to hold the parameters and faults. Without a fault every rank
//! ends in the bits of one process; with one, every rank ends with an error that says what became of its parameters, or
//! in the bits of one process, and none hangs.

use crate::comm::Fault;
use crate::rank::{Hold, P, Rank, cut, grads, p, ranks, values};
use crate::support::random::Random;
use crate::{Tally, count};
use foam::abi::*;
use std::time::Duration;

const STEPS: u64 = 5;

fn model(random: &mut Random) -> Vec<P> {
    let shapes: [&[i64]; 6] = [&[20, 11], &[7], &[1], &[3, 4, 5], &[16, 16], &[9, 2]];
    let mut params: Vec<P> =
        (0..2 + random.below(4)).map(|number| p(&format!("p{number}"), random.pick(&shapes))).collect();
    params.iter_mut().for_each(|p| p.grafting_only = random.below(6) == 0);
    params
}

/// How a rank ended: its own parts of the values after the steps, or its refusal.
type End = Result<Vec<Vec<u8>>, (foam_status, String)>;

pub fn case(seed: u64, tally: &mut Tally) {
    let mut random = Random::new(seed);
    let params = model(&mut random);
    let policies = ["foam", "stale", "sandwich", "foam_certified", "grafting_only"];
    let options = format!(
        "policy={} check_period={} max_factor_dim={} epsilon=1e-4 epsilon_max=1e-1 num_threads=1 momentum={}",
        random.pick(&policies),
        1 + random.below(3),
        random.pick(&[8, 64]),
        random.pick(&["0", "0.5"]),
    );
    let size = 1 + random.below(4);
    let hold = match random.below(4) {
        0 => Hold::Replicated,
        1 if size.is_multiple_of(2) => Hold::Hybrid(0),
        2 => Hold::Mixed,
        _ => Hold::Sharded(random.below(2)),
    };
    let (rank, at) = (random.below(size), random.below(30));
    let fault = match random.below(3) {
        0 => Fault::None,
        1 => Fault::Fails { rank, at },
        _ => Fault::Short { rank, at },
    };
    let start = values(&params, seed);
    // A step in which the gradient of the first parameter is not finite anywhere.
    let bad = random.below(2 * STEPS as usize) as u64;
    let gradients = |step: u64| {
        let mut all = grads(&params, step);
        if step == bad {
            all[0].iter_mut().for_each(|values| values.fill(f64::NAN));
        }
        all
    };
    let mut alone = Rank::new(&options, &params, Hold::Replicated, &start, None).unwrap();
    for step in 0..STEPS {
        assert_eq!(alone.step(&gradients(step), 0.01).is_err(), step == bad, "{options}");
    }
    let ended = ranks(size, fault, |_, mut member| {
        member.patience = Duration::from_secs(20);
        let mut own = Rank::new(&options, &params, hold, &start, Some(member))?;
        for step in 0..STEPS {
            let before = own.values.clone();
            let Err((status, message)) = own.step(&gradients(step), 0.01) else { continue };
            let kept = status == FOAM_NOT_FINITE || message.contains("no parameter of this rank was written");
            assert!(kept || message.contains("they are lost"), "{fault:?}: {message}");
            assert!(!kept || own.values == before, "{fault:?}: {message}");
            if status != FOAM_NOT_FINITE {
                let (again, _) = own.step(&gradients(step), 0.01).unwrap_err();
                assert_eq!(again, FOAM_POISONED);
                return End::Err((status, message));
            }
            assert_eq!(step, bad, "{message}");
        }
        for (index, p) in params.iter().enumerate() {
            let expected = cut(&alone.values[index], &p.shape, p.width(), own.parts[index]);
            assert!(
                own.values[index] == expected,
                "{}: {size} ranks, {hold:?}, {fault:?}, {options}",
                p.name
            );
        }
        Ok(own.values.clone())
    });
    for end in &ended {
        match end {
            Ok(_) => count(tally, "ranks compared", 1),
            Err((status, message)) => {
                assert!(fault != Fault::None, "{hold:?}, {size} ranks, {options}: {message}");
                assert_eq!(*status, FOAM_COLLECTIVE_FAILED, "{fault:?}: {message}");
                count(tally, "ranks stopped", 1);
            }
        }
    }
    count(tally, "worlds", 1);
}
