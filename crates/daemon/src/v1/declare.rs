//! The whole configuration as one document: what GetConfig gives, and what Apply makes it in one
//! step.

use api::v1;
use control::{Amounts, Declared, Diff, Healed};

use super::{convert, render};
use crate::access::permitted::name_networks;
use crate::access::{Permitted, Refusal};

/// All parts as they are; those that are the whole host's for who sees that.
pub fn config(control: &Permitted) -> v1::Config {
    render::config(&control.config())
}

/// Makes all parts that are given what is given, and tries again what is broken.
///
/// # Errors
/// A part is not well-formed, too large or impossible, or the caller has not the whole host;
/// nothing has changed then.
pub fn apply(
    control: &mut Permitted,
    config: v1::Config,
    dry_run: bool,
) -> Result<v1::ApplyResponse, Refusal> {
    let control = control.whole()?;
    let mut config = convert::config(config, control.settings())?;
    name_networks(control, &mut config);
    let before = control.amounts();
    let diff = control.apply(config, dry_run)?;
    let healed = control.heal(Declared::InDocument, &diff, dry_run);
    Ok(answer(&before, &diff, &healed))
}

/// What an operation on the whole configuration changes, of which there was so much before.
pub fn answer(before: &Amounts, diff: &Diff, healed: &[Healed]) -> v1::ApplyResponse {
    v1::ApplyResponse {
        deleted: Some(render::amounts(&diff.deleted())),
        before: Some(render::amounts(before)),
        changes: render::changes(diff),
        bindings: diff.bindings.len() as u64,
        healed: healed.iter().map(render::healed).collect(),
    }
}
