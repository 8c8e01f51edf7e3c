//! The whole configuration as one document: what GetConfig gives, and what Apply makes it in one
//! step.
//!
//! Its parts belong to different owners, each of which takes its own part whole or not at all. Here
//! all are read and compared before any is touched, and a part that was taken is given back when a
//! later one is refused.

use api::v1;
use control::Controller;
use tonic::Status;

use super::service::refused;
use super::{convert, render};
use crate::app::App;
use crate::{balancer, router};

/// All parts as they are.
///
/// # Errors
/// The daemon is stopping.
pub fn config(app: &App, control: &Controller) -> Result<v1::Config, Status> {
    Ok(v1::Config {
        balancer: Some(balancer::declared::config(&app.balancer)),
        router: Some(router::declared::config(&app.router)?),
        ..render::config(&control.config())
    })
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
    let services = config.balancer.take();
    let services = services
        .map(balancer::declared::Declared::read)
        .transpose()?;
    let interfaces = config.router.take();
    let interfaces = interfaces
        .map(router::declared::Declared::read)
        .transpose()?;
    let config = convert::config(config, control.settings()).map_err(refused)?;
    let mut changes = Vec::new();
    if let Some(services) = &services {
        changes.extend(services.compare(&app.balancer)?);
    }
    if let Some(interfaces) = &interfaces {
        changes.extend(interfaces.compare(&app.router)?);
    }
    if dry_run || changes.is_empty() {
        let diff = control.apply(config, dry_run).map_err(refused)?;
        return Ok(answer(&diff, changes));
    }
    // What can be foreseen is refused before a packet of a service meets any of it.
    control.apply(config.clone(), true).map_err(refused)?;
    let services = services
        .map(|services| services.apply(&app.balancer))
        .transpose()?;
    let give_back_services = || {
        services
            .iter()
            .for_each(|taken| taken.give_back(&app.balancer))
    };
    let interfaces = interfaces.map(|interfaces| interfaces.apply(&app.router));
    let interfaces = interfaces
        .transpose()
        .inspect_err(|_| give_back_services())?;
    let diff = control.apply(config, false).inspect_err(|_| {
        interfaces
            .iter()
            .for_each(|taken| taken.give_back(&app.router));
        give_back_services();
    });
    Ok(answer(&diff.map_err(refused)?, changes))
}

fn answer(diff: &control::Diff, changes: Vec<v1::Change>) -> v1::ApplyResponse {
    v1::ApplyResponse {
        changes: render::changes(diff).into_iter().chain(changes).collect(),
        bindings: diff.bindings.len() as u64,
    }
}
