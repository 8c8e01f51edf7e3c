//! Target `cni`: how a container runtime calls `butterfly-cni`, by its environment and a network's
//! configuration.
//!
//! Promises: what is refused is the specification's error, a number and a sentence; what is taken
//! has an id that a NIC can have, names no file where a plugin is to be; an address that is given
//! lies in its network and is not its gateway; and the answer is of the version that was asked in.
//!
//! Input: the environment's variables, each with its length before it, and the configuration.

use cni::meant;

use crate::input::Input;

/// In the order of the input.
pub const VARIABLES: [&str; 6] = [
    "CNI_COMMAND",
    "CNI_CONTAINERID",
    "CNI_NETNS",
    "CNI_IFNAME",
    "CNI_ARGS",
    "CNI_PATH",
];
/// Bytes of a NIC's id.
const ID_MAX: usize = 128;

/// Reads a call.
pub fn cni(data: &[u8]) {
    let mut input = Input::new(data);
    let environment =
        VARIABLES.map(|name| (name, String::from_utf8_lossy(input.piece()).into_owned()));
    let configuration = String::from_utf8_lossy(input.take(data.len())).into_owned();
    let variable = |name: &str| {
        let mut known = environment.iter().filter(|(known, _)| *known == name);
        known
            .next()
            .map(|(_, value)| value.clone())
            .unwrap_or_default()
    };
    let meant = match meant(variable, &configuration) {
        Ok(Some(meant)) => meant,
        Ok(None) => return,
        Err(error) => {
            let code = error["code"].as_u64().expect("an error has a number");
            let why = error["msg"].as_str().expect("an error has a sentence");
            assert!(code > 0 && !why.is_empty() && error["cniVersion"].is_string());
            return;
        }
    };
    assert!(
        (1..=ID_MAX).contains(&meant.nic.len()) && !meant.nic.contains(char::is_whitespace),
        "{:?}",
        meant.nic
    );
    assert!(
        meant.mac.starts_with("02:") && meant.mac.len() == 17,
        "{}",
        meant.mac
    );
    if let Some(plugin) = &meant.plugin {
        assert!(
            !plugin.contains('/') && !plugin.starts_with('.'),
            "{plugin}"
        );
    }
    for (ip, prefix, gateway) in &meant.given {
        assert!(*prefix <= if ip.is_ipv4() { 32 } else { 128 });
        let Some(gateway) = gateway else { continue };
        assert_ne!(ip, gateway, "a container is given its gateway's address");
        assert_eq!(ip.is_ipv4(), gateway.is_ipv4());
    }
    let version = meant.answer["cniVersion"].as_str();
    let version = version.expect("an answer says its version");
    assert!(
        meant.answer.is_object() && version.starts_with(['0', '1']),
        "{version}"
    );
    if !matches!(version, "0.1.0" | "0.2.0") {
        let interfaces = meant.answer["interfaces"].as_array();
        let interfaces = interfaces.expect("an answer has interfaces");
        assert!(interfaces.len() >= 2, "{}", meant.answer);
        let own = meant.answer["ips"]
            .as_array()
            .expect("an answer has addresses");
        assert!(own.len() >= meant.given.len(), "{}", meant.answer);
    }
}
