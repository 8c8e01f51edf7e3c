//! Which network's NIC a sniffer is to hear. Of the NIC's id alone that is not said for good:
//! whoever comes by it next, in whichever network, would be heard by who was given the one before.
//! So it is settled when the sniffer is declared, and stored with it.

use control::Controller;
use control::model::{Config, Nic, NicId};
use wire::Vni;

use super::Permitted;

impl Permitted<'_> {
    /// A NIC with the network of its target, where nothing is said of it.
    pub(super) fn sniffing(&self, mut nic: Nic) -> Nic {
        let of = |id: &NicId| Some(self.control.nic(id).ok()?.nic.vni);
        let before = self.declared_nic(&nic.id).ok().flatten();
        // Of who has a part of the networks, what was said stays as it is.
        name_network(&mut nic, before.as_deref(), self.is_whole(), of);
        nic
    }
}

/// The same of all that is to be, by somebody who has the whole host.
pub fn name_networks(control: &Controller, config: &mut Config) {
    let sniffers = config.nics.values();
    let sniffers = sniffers.filter(|nic| nic.sniff_target.is_some());
    let named: Vec<Nic> = sniffers
        .map(|nic| {
            let mut nic = nic.clone();
            let of = |id: &NicId| Some(config.nics.get(id)?.vni);
            let made = control.nic(&nic.id).ok().map(|status| status.nic);
            let unmade = || control.unmade().nics.get(&nic.id);
            let before = made.as_deref().or_else(unmade);
            name_network(&mut nic, before, true, of);
            nic
        })
        .collect();
    config
        .nics
        .extend(named.into_iter().map(|nic| (nic.id.clone(), nic)));
}

/// As it was said of the same target before; else that in which there is a NIC of that id now, and
/// the sniffer's own where there is none.
fn name_network(
    nic: &mut Nic,
    before: Option<&Nic>,
    by_whole: bool,
    network: impl Fn(&NicId) -> Option<Vni>,
) {
    let Some(target) = nic
        .sniff_target
        .as_ref()
        .filter(|_| nic.sniff_vni.is_none())
    else {
        return;
    };
    let before = before.filter(|before| before.sniff_target.as_ref() == Some(target));
    let named = before.and_then(|before| before.sniff_vni);
    let now = || network(target).or(Some(nic.vni));
    // What a version of before has stored without one stays so until an operator says it anew.
    let stays = before.is_some() && !by_whole;
    let named = named.or_else(|| if stays { None } else { now() });
    nic.sniff_vni = named;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vni(id: u32) -> Vni {
        Vni::new(id).unwrap()
    }

    fn sniffer(of: Option<u32>) -> Nic {
        let mac = "52:54:00:12:34:01".parse().unwrap();
        Nic {
            sniff_target: Some(NicId::new("web-1").unwrap()),
            sniff_vni: of.map(vni),
            ..Nic::new(NicId::new("s").unwrap(), mac, vni(42))
        }
    }

    fn named(nic: Nic, before: Option<&Nic>, by_whole: bool, now: Option<u32>) -> Option<u32> {
        let mut nic = nic;
        name_network(&mut nic, before, by_whole, |_| now.map(vni));
        nic.sniff_vni.map(Vni::id)
    }

    #[test]
    fn it_is_the_one_of_the_target_that_is_there_or_its_own() {
        assert_eq!(named(sniffer(None), None, true, Some(7)), Some(7));
        assert_eq!(named(sniffer(None), None, true, None), Some(42));
        assert_eq!(named(sniffer(Some(9)), None, true, Some(7)), Some(9));
    }

    #[test]
    fn what_was_said_stays_whoever_has_the_id_by_now() {
        let before = sniffer(Some(42));
        for by_whole in [true, false] {
            let again = named(sniffer(None), Some(&before), by_whole, Some(7));
            assert_eq!(again, Some(42));
        }
        let other = Nic {
            sniff_target: Some(NicId::new("web-2").unwrap()),
            ..sniffer(None)
        };
        assert_eq!(named(other, Some(&before), true, Some(7)), Some(7));
        // Of a version of before.
        let before = sniffer(None);
        let by = |whole| named(sniffer(None), Some(&before), whole, Some(7));
        assert_eq!((by(true), by(false)), (Some(7), None));
    }
}
