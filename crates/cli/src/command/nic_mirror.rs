//! A NIC's mirror as people write and read it: `erspan:192.0.2.9,id=7,direction=out,snap-len=128`.

use api::v1;
use api::v1::mirror::Kind;

/// The mirror that a text says; `none`: none.
pub fn parse(text: &str) -> Result<v1::Mirror, String> {
    if text.eq_ignore_ascii_case("none") {
        return Ok(v1::Mirror::default());
    }
    let (whole, options) = text.split_once(',').unwrap_or((text, ""));
    let how = || format!("{whole:?} is not vxlan:ADDRESS or erspan:ADDRESS");
    let (kind, address) = whole.split_once(':').ok_or_else(how)?;
    let kind = match kind.to_ascii_lowercase().as_str() {
        "vxlan" => Kind::Vxlan,
        "erspan" => Kind::Erspan,
        _ => return Err(how()),
    };
    let address = address.trim_start_matches('[').trim_end_matches(']');
    let parsed: Result<std::net::IpAddr, _> = address.parse();
    if parsed.is_err() {
        return Err(format!(
            "{address:?} is not an address: the port is an option of its own, port=N"
        ));
    }
    let mut mirror = v1::Mirror {
        kind: kind.into(),
        address: address.to_owned(),
        ..Default::default()
    };
    let mut said = Vec::new();
    for part in options.split(',').filter(|part| !part.is_empty()) {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| format!("{part:?} is not KEY=VALUE"))?;
        let number = || {
            let number = value.parse().ok().filter(|number: &u32| *number > 0);
            number.ok_or_else(|| format!("{key}={value}: it is a number from 1 on"))
        };
        match key {
            "port" => mirror.port = number()?,
            "id" => mirror.id = number()?,
            "snap-len" => mirror.snap_len = number()?,
            "direction" => {
                let direction = match value {
                    "in" => v1::Direction::Ingress,
                    "out" => v1::Direction::Egress,
                    "both" => v1::Direction::Unspecified,
                    _ => return Err(format!("direction={value}: it is in, out or both")),
                };
                mirror.direction = direction.into();
            }
            _ => {
                return Err(format!("{key:?} is none of port, id, direction, snap-len"));
            }
        }
        if said.contains(&key) {
            return Err(format!("{key:?} is said twice"));
        }
        said.push(key);
    }
    Ok(mirror)
}

/// As [`parse`] takes it.
pub fn text(mirror: &v1::Mirror) -> String {
    let kind = match mirror.kind() {
        Kind::Erspan => "erspan",
        Kind::Vxlan | Kind::Unspecified => "vxlan",
    };
    let mut text = format!("{kind}:{}", mirror.address);
    for (key, value) in [
        ("port", mirror.port),
        ("id", mirror.id),
        ("snap-len", mirror.snap_len),
    ] {
        if value != 0 {
            text += &format!(",{key}={value}");
        }
    }
    match mirror.direction() {
        v1::Direction::Unspecified => {}
        v1::Direction::Ingress => text += ",direction=in",
        v1::Direction::Egress => text += ",direction=out",
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_again() {
        for text in [
            "vxlan:192.0.2.9",
            "vxlan:2001:db8::9,port=8472,id=77,snap-len=128,direction=in",
            "erspan:192.0.2.9,id=7,direction=out",
        ] {
            assert_eq!(super::text(&parse(text).unwrap()), text);
        }
        assert_eq!(parse("none").unwrap(), v1::Mirror::default());
        let bracketed = parse("vxlan:[2001:db8::9],direction=both").unwrap();
        assert_eq!(super::text(&bracketed), "vxlan:2001:db8::9");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, why) in [
            ("192.0.2.9", "is not vxlan:ADDRESS"),
            ("gre:192.0.2.9", "is not vxlan:ADDRESS"),
            ("vxlan:192.0.2.9:4789", "port=N"),
            ("erspan:192.0.2.9,session=1", "is none of port"),
            ("erspan:192.0.2.9,id=0", "a number from 1 on"),
            ("erspan:192.0.2.9,id", "is not KEY=VALUE"),
            ("erspan:192.0.2.9,id=1,id=2", "is said twice"),
            ("erspan:192.0.2.9,direction=up", "in, out or both"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
