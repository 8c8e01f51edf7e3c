//! The kernel's neighbours, with their times and with whether the router sends to them.

use std::time::Duration;

use api::v1;
use netlink::ages::Ages;
use netlink::{Neighbour, Requests};

use super::control::Control;
use super::refusal::Refusal;
use super::render::interface_name;

/// Those that are asked for, by interface and address.
pub async fn list(
    control: &Control,
    request: &v1::ListNeighboursRequest,
) -> Result<Vec<v1::Neighbour>, Refusal> {
    let failed = |e: netlink::Error| Refusal::Unavailable(e.to_string());
    let snapshot = control.mirror().await?.snapshot();
    let ifindex = match request.interface.as_str() {
        "" => None,
        name => Some(
            snapshot
                .link_named(name)
                .map(|link| link.index)
                .ok_or_else(|| {
                    Refusal::NotFound(format!("interface {name}: there is no such interface"))
                })?,
        ),
    };
    let both = request.ipv4 == request.ipv6;
    let asked = |neighbour: &&Neighbour| {
        (both || neighbour.ip.is_ipv4() == request.ipv4)
            && ifindex.is_none_or(|ifindex| neighbour.ifindex == ifindex)
    };
    let found: Vec<Neighbour> = snapshot
        .neighbours
        .values()
        .filter(asked)
        .copied()
        .collect();
    let ages = Requests::new()
        .map_err(failed)?
        .ages()
        .await
        .map_err(failed)?;
    let judged = control
        .look(move |keeper| {
            let fast = |neighbour: &Neighbour| {
                let router = keeper.router();
                router.is_some_and(|router| router.forwards_to(neighbour))
            };
            let judge = |neighbour: Neighbour| (neighbour, fast(&neighbour));
            found.into_iter().map(judge).collect::<Vec<_>>()
        })
        .await?;
    let rendered = judged.iter().map(|(neighbour, fast)| {
        let interface = interface_name(neighbour.ifindex, &snapshot);
        with_times(render(neighbour, interface, *fast), neighbour, &ages)
    });
    Ok(rendered.collect())
}

/// A neighbour without its times.
pub fn render(neighbour: &Neighbour, interface: String, fast: bool) -> v1::Neighbour {
    v1::Neighbour {
        address: neighbour.ip.to_string(),
        interface,
        mac: neighbour.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        state: neighbour.state_name().into(),
        router: neighbour.router,
        fast,
        ..Default::default()
    }
}

fn with_times(message: v1::Neighbour, neighbour: &Neighbour, ages: &Ages) -> v1::Neighbour {
    let ms = |time: Duration| time.as_millis() as u64;
    let age = ages.of(neighbour.ifindex, neighbour.ip).unwrap_or_default();
    v1::Neighbour {
        confirmed_ms: ms(age.confirmed),
        used_ms: ms(age.used),
        updated_ms: ms(age.updated),
        expires_ms: ages.left(neighbour).map(ms),
        ..message
    }
}
