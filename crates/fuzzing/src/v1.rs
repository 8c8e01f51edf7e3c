//! Target `v1`: whole configurations of the v1 API, through the daemon's converter and the model's
//! checks.
//!
//! Promises: as of `v0`; and one configuration after another leads where the last one alone leads.
//!
//! Input: `v1.Config`s in protobuf with their lengths before them.

use api::v1::Config;
use daemon::decoders;
use prost::Message;

use crate::input::Input;
use crate::world;

/// Configurations that are applied one after the other.
const CONFIGS_MAX: usize = 4;

/// Applies configurations.
pub fn v1(data: &[u8]) {
    let mut input = Input::new(data);
    let mut control = world::controller();
    for _ in 0..CONFIGS_MAX {
        if input.is_empty() {
            return;
        }
        let Ok(config) = Config::decode(input.piece()) else {
            continue;
        };
        // Parts that are left out would stay as they are: here they become empty.
        let mut balancer = config.balancer.clone().unwrap_or_default();
        balancer.interfaces.get_or_insert_default();
        let config = Config {
            balancer: Some(balancer),
            router: Some(config.router.clone().unwrap_or_default()),
            uplinks: Some(config.uplinks.clone().unwrap_or_default()),
            ..config
        };
        let Ok(config) = decoders::config(config, control.settings()) else {
            continue;
        };
        let tried = control.apply(config.clone(), true);
        let before = control.config();
        match control.apply(config.clone(), false) {
            Ok(diff) => {
                assert_eq!(Ok(diff), tried, "a dry run said something else");
                let mut fresh = world::controller();
                fresh
                    .apply(config, false)
                    .expect("a configuration that was accepted");
                assert_eq!(in_any_order(fresh.config()), in_any_order(control.config()));
            }
            Err(_) => assert_eq!(control.config(), before, "an error changed something"),
        }
        world::check(&mut control);
    }
}

/// Interfaces are kept in the order in which they were taken, which is not the last document's.
fn in_any_order(mut config: control::model::Config) -> control::model::Config {
    for interfaces in config.interfaces.values_mut() {
        interfaces.sort_by(|one, other| one.name.cmp(&other.name));
    }
    config
}
