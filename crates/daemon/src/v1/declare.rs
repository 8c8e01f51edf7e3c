//! The whole configuration as one document: what GetConfig gives, and what Apply makes it in one step.
//!
//! Its parts belong to different owners, each of which takes its own part whole or not at all. Here all are read and compared
//! before any is touched, and a part that was taken is given back when a later one is refused.

use api::v1;
use control::Controller;
use tonic::Status;

use super::service::refused;
use super::{convert, render};
use crate::app::App;
use crate::balancer::declared::{self, Declared};

/// All parts as they are.
pub fn config(app: &App, control: &Controller) -> v1::Config {
    v1::Config {
        balancer: Some(declared::config(&app.balancer)),
        ..render::config(&control.config())
    }
}

/// Makes all parts that are given what is given.
///
/// # Errors
/// A part is not well-formed, too large or impossible; nothing has changed then.
pub fn apply(
    app: &App,
    control: &mut Controller,
    mut config: v1::Config,
    dry_run: bool,
) -> Result<v1::ApplyResponse, Status> {
    let services = config.balancer.take().map(Declared::read).transpose()?;
    let config = convert::config(config, control.settings()).map_err(refused)?;
    let changes = match &services {
        Some(services) => services.compare(&app.balancer)?,
        None => vec![],
    };
    let diff = match services {
        Some(services) if !dry_run && !changes.is_empty() => {
            // What can be foreseen is refused before a packet of a service meets any of it.
            control.apply(config.clone(), true).map_err(refused)?;
            let taken = services.apply(&app.balancer)?;
            control
                .apply(config, false)
                .inspect_err(|_| taken.give_back(&app.balancer))
        }
        _ => control.apply(config, dry_run),
    };
    let diff = diff.map_err(refused)?;
    Ok(v1::ApplyResponse {
        changes: render::changes(&diff).into_iter().chain(changes).collect(),
        bindings: diff.bindings.len() as u64,
    })
}
