//! The one namespace helper of this process ([`container::namespace_helper`]), which those share
//! who have something done in another network namespace: containers' NICs and health checks.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use container::NamespaceHelper;

static HELPER: Mutex<Option<NamespaceHelper>> = Mutex::new(None);

/// It; it is started when it is first asked. The error is a sentence.
pub fn helper() -> Result<NamespaceHelper, String> {
    let mut helper = HELPER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(helper) = &*helper {
        return Ok(helper.clone());
    }
    let program = program()?;
    Ok(helper.insert(NamespaceHelper::new(program)).clone())
}

/// Starts it ahead, for a process that gives up what it takes. The error is a sentence.
pub fn prepare() -> Result<(), String> {
    helper()?.start()
}

/// Goes on with that of a daemon which gives way to this one: a process that is started so has not
/// the capability for another. The error is a sentence.
pub fn go_on_with(socket: OwnedFd) -> Result<(), String> {
    let helper = NamespaceHelper::handed(program()?, socket);
    *HELPER.lock().unwrap_or_else(PoisonError::into_inner) = Some(helper);
    Ok(())
}

/// The socket to it, if it runs, for a process that this one gives way to.
pub fn descriptor() -> Option<std::io::Result<OwnedFd>> {
    let helper = HELPER.lock().unwrap_or_else(PoisonError::into_inner);
    helper.as_ref()?.descriptor()
}

fn program() -> Result<std::path::PathBuf, String> {
    let program = std::env::current_exe();
    program.map_err(|e| format!("the daemon does not find its own program: {e}"))
}
