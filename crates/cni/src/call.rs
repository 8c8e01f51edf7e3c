//! What the environment says: the operation, the container, and arguments of its own.

use std::collections::BTreeMap;

use crate::error::Error;

/// The operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Add,
    Del,
    Check,
    Gc,
    Status,
    Version,
}

/// One call of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub command: Command,
    /// Empty where the operation is about no container.
    pub container: String,
    /// The path of its network namespace. DEL may have none.
    pub netns: String,
    /// The interface's name in it.
    pub ifname: String,
    /// `CNI_ARGS`.
    pub arguments: Arguments,
    /// Folders of plugins.
    pub path: String,
}

/// What a caller says about one container, in the place of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Arguments {
    /// `BUTTERFLY_VNI`.
    pub vni: Option<u32>,
    /// `BUTTERFLY_GROUPS`, commas between.
    pub groups: Option<Vec<String>>,
    /// `MAC`.
    pub mac: Option<String>,
    /// `IP`, commas between.
    pub ips: Vec<String>,
}

impl Call {
    /// Reads and checks it.
    pub fn from_environment() -> Result<Call, Error> {
        Self::read(|name| std::env::var(name).unwrap_or_default())
    }

    /// Reads and checks it, of variables that are given.
    pub fn read(variable: impl Fn(&str) -> String) -> Result<Call, Error> {
        let named = variable("CNI_COMMAND");
        let command = match named.as_str() {
            "ADD" => Command::Add,
            "DEL" => Command::Del,
            "CHECK" => Command::Check,
            "GC" => Command::Gc,
            "STATUS" => Command::Status,
            "VERSION" => Command::Version,
            "" => {
                return Err(Error::environment(
                    "CNI_COMMAND is not set: this is a CNI plugin, for container runtimes to call",
                ));
            }
            other => {
                return Err(Error::environment(format!(
                    "CNI_COMMAND {other} is unknown"
                )));
            }
        };
        let call = Call {
            command,
            container: variable("CNI_CONTAINERID"),
            netns: variable("CNI_NETNS"),
            ifname: variable("CNI_IFNAME"),
            path: variable("CNI_PATH"),
            arguments: Arguments::parse(&variable("CNI_ARGS"))?,
        };
        if matches!(command, Command::Add | Command::Del | Command::Check) {
            call.names_a_container()?;
        }
        if matches!(command, Command::Add | Command::Check) && call.netns.is_empty() {
            return Err(Error::environment("CNI_NETNS is not set"));
        }
        Ok(call)
    }

    fn names_a_container(&self) -> Result<(), Error> {
        let container = &self.container;
        if !is_name(container) {
            let why = "is not letters, digits, '_', '.' and '-', the first a letter or digit";
            return Err(Error::environment(format!(
                "CNI_CONTAINERID '{container}' {why}"
            )));
        }
        let ifname = &self.ifname;
        match is_interface(ifname) {
            true => Ok(()),
            false => Err(Error::environment(format!(
                "CNI_IFNAME '{ifname}' is not the name of an interface"
            ))),
        }
    }
}

/// Names of networks and containers (SPEC.md, section 1 and 2).
pub fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(allowed)
}

/// Names of interfaces.
pub fn is_interface(text: &str) -> bool {
    let plain = |c: char| !c.is_whitespace() && c != '/' && c != ':';
    (1..=15).contains(&text.len()) && text.chars().all(plain) && text != "." && text != ".."
}

impl Arguments {
    /// `KEY=VALUE`, semicolons between. What is not ours is refused, unless `IgnoreUnknown` says
    /// that it is another plugin's.
    fn parse(text: &str) -> Result<Arguments, Error> {
        let mut given = BTreeMap::new();
        for pair in text.split(';').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                let why = format!("CNI_ARGS: '{pair}' is not KEY=VALUE");
                return Err(Error::environment(why));
            };
            given.insert(key, value);
        }
        let list = |text: &str| -> Vec<String> {
            let parts = text.split(',').filter(|part| !part.is_empty());
            parts.map(str::to_owned).collect()
        };
        let vni = given.remove("BUTTERFLY_VNI").map(|text| {
            let refused =
                |_| Error::environment(format!("CNI_ARGS: BUTTERFLY_VNI '{text}' is no VNI"));
            text.parse().map_err(refused)
        });
        let arguments = Arguments {
            vni: vni.transpose()?,
            groups: given.remove("BUTTERFLY_GROUPS").map(list),
            mac: given.remove("MAC").map(str::to_owned),
            ips: given.remove("IP").map(list).unwrap_or_default(),
        };
        let ignore = given.remove("IgnoreUnknown").unwrap_or_default();
        let ignores = matches!(ignore, "1" | "true" | "True" | "TRUE" | "t" | "T");
        match given.keys().next() {
            Some(key) if !ignores => Err(Error::environment(format!(
                "CNI_ARGS: {key} is not known, and IgnoreUnknown is not set"
            ))),
            _ => Ok(arguments),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(changes: &[(&str, &str)]) -> Result<Call, Error> {
        let mut all: BTreeMap<&str, &str> = [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", "/run/netns/c1"),
            ("CNI_IFNAME", "eth0"),
        ]
        .into();
        all.extend(changes.iter().copied());
        Call::read(|name| all.get(name).unwrap_or(&"").to_string())
    }

    #[test]
    fn the_environment_names_the_container() {
        assert_eq!(read(&[]).unwrap().container, "c1");
        for (name, value) in [
            ("CNI_COMMAND", ""),
            ("CNI_COMMAND", "add"),
            ("CNI_CONTAINERID", ""),
            ("CNI_CONTAINERID", "-x"),
            ("CNI_CONTAINERID", "a/b"),
            ("CNI_NETNS", ""),
            ("CNI_IFNAME", "a b"),
            ("CNI_IFNAME", "sixteen-bytes-xx"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(
                error.code == 4 && error.message.contains(name),
                "{name} {value}: {error:?}"
            );
        }
        // DEL knows the namespace where it is still there; the others have no container.
        assert!(read(&[("CNI_COMMAND", "DEL"), ("CNI_NETNS", "")]).is_ok());
        for command in ["GC", "STATUS", "VERSION"] {
            assert!(read(&[("CNI_COMMAND", command), ("CNI_CONTAINERID", "")]).is_ok());
        }
    }

    #[test]
    fn arguments_are_ours_or_said_to_be_ignored() {
        let of = |text: &str| read(&[("CNI_ARGS", text)]).map(|call| call.arguments);
        let all = "BUTTERFLY_VNI=42;BUTTERFLY_GROUPS=web,ssh;MAC=02:00:00:00:00:01;IP=10.0.0.9";
        let arguments = of(all).unwrap();
        assert_eq!(arguments.vni, Some(42));
        assert_eq!(
            arguments.groups,
            Some(vec!["web".to_owned(), "ssh".to_owned()])
        );
        assert_eq!(arguments.ips, ["10.0.0.9"]);
        assert!(of("K8S_POD_NAME=a;IgnoreUnknown=1").is_ok());
        assert!(
            of("K8S_POD_NAME=a")
                .unwrap_err()
                .message
                .contains("K8S_POD_NAME")
        );
        assert!(of("BUTTERFLY_VNI=many").is_err());
        assert!(of("what").is_err());
    }
}
