//! Sessions kept between calls: planning a stack costs more than a small step. A call takes a session out
//! and gives it back, so calls at the same time never share one.

use super::session::Session;
use super::stack::{Stack, normal};
use crate::config::Config;
use crate::error::Result;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Idle sessions that are kept, the most recently used last.
static IDLE: Mutex<Vec<Session>> = Mutex::new(Vec::new());
/// A model has a stack for each shape of block; twice as many as that are plenty.
const MOST: usize = 128;

fn idle() -> MutexGuard<'static, Vec<Session>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A session for `stack`, made if there is none. Validates both arguments.
pub fn take(config: &Config, stack: &Stack) -> Result<Session> {
    let config = normal(config);
    {
        let mut idle = idle();
        if let Some(place) = idle.iter().rposition(|session| session.serves(&config, stack)) {
            return Ok(idle.remove(place));
        }
    }
    Session::new(config, stack.copy()?)
}

/// Keeps a session for the next call, unless there is no memory to keep it in. One whose call panicked is not given
/// back.
pub fn give(session: Session) {
    let surplus = {
        let mut idle = idle();
        let surplus = (idle.len() == MOST).then(|| idle.remove(0));
        match idle.try_reserve(1) {
            Ok(()) => idle.push(session),
            Err(_) => {
                drop(idle);
                drop(session);
            }
        }
        surplus
    };
    drop(surplus);
}

/// Lets go of all idle sessions, and of what they hold on devices.
pub fn clear() {
    let sessions = std::mem::take(&mut *idle());
    drop(sessions);
}
