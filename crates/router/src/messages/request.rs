//! What a request for routes asks for.

use std::net::IpAddr;

use api::v1;
use ipnet::IpNet;

use super::refusal::Refusal;
use crate::view::Selection;

/// Which routes are asked for.
pub enum Asked {
    /// The one that packets to an address take.
    To(IpAddr),
    /// Those of a table or a prefix, or all.
    All(Selection),
}

impl Asked {
    /// What a request means.
    ///
    /// # Errors
    /// It is neither an address nor a prefix.
    pub fn of(request: v1::ListRoutesRequest) -> Result<Asked, Refusal> {
        let v1::ListRoutesRequest { to, table } = request;
        let within = match to.as_str() {
            "" => None,
            text => match (text.parse::<IpAddr>(), text.parse::<IpNet>()) {
                (Ok(_), _) if table.is_some() => {
                    let why = "packets to an address go by the rules, not by one table";
                    return Err(Refusal::Invalid(format!("to '{text}': {why}")));
                }
                (Ok(ip), _) => return Ok(Asked::To(ip)),
                (_, Ok(net)) => Some(net.trunc()),
                _ => {
                    let text = text.escape_debug();
                    return Err(Refusal::Invalid(format!(
                        "to '{text}' is neither an address nor a prefix"
                    )));
                }
            },
        };
        Ok(Asked::All(Selection { within, table }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_a_prefix_or_all() {
        let ask = |to: &str, table| {
            let to = to.to_owned();
            Asked::of(v1::ListRoutesRequest { to, table })
        };
        assert!(matches!(ask("10.0.0.1", None), Ok(Asked::To(ip)) if ip.is_ipv4()));
        let within = |to, table| match ask(to, table) {
            Ok(Asked::All(selection)) => selection,
            _ => panic!("{to} is no prefix"),
        };
        assert_eq!(within("", None), Selection::default());
        // The host's bits of a network do not count.
        assert_eq!(
            within("2001:db8::7/32", Some(7)),
            Selection {
                within: "2001:db8::/32".parse().ok(),
                table: Some(7)
            }
        );
        let refused = |to, table| ask(to, table).err().map(|refusal| refusal.to_string());
        assert_eq!(
            refused("eth1\n", None).as_deref(),
            Some("to 'eth1\\n' is neither an address nor a prefix")
        );
        assert_eq!(
            refused("::1", Some(7)).as_deref(),
            Some("to '::1': packets to an address go by the rules, not by one table")
        );
    }
}
