//! The words for networks that hear nobody on other hosts, where nobody has asked for that: for the
//! log and for a status. With the first thing that is declared of any network all of them hear
//! their hosts alone, and those that none is declared for were heard by multicast until then.

use wire::Vni;

/// That many are named.
const NAMED: usize = 5;

/// What is said of these; nothing where there are none.
pub fn sentence(deaf: &[Vni]) -> Option<String> {
    let named: Vec<String> = deaf.iter().take(NAMED).map(Vni::to_string).collect();
    let more = match deaf.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!deaf.is_empty()).then(|| {
        format!(
            "nobody on other hosts is heard in network {}{more}: something is declared of a \
             network and no host is, so that networks hear anybody no more; butterfly network set \
             VNI --from anybody has one do that, as it may be reached by multicast, and butterfly \
             host add says who is there (docs/daemon.md)",
            named.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_are_named() {
        let all: Vec<Vni> = (42..50).map(|vni| Vni::new(vni).unwrap()).collect();
        assert_eq!(sentence(&[]), None);
        let one = sentence(&all[..1]).unwrap();
        assert!(one.contains("in network 42: "), "{one}");
        let five = sentence(&all[..5]).unwrap();
        assert!(five.contains("in network 42, 43, 44, 45, 46: "), "{five}");
        let all = sentence(&all).unwrap();
        assert!(all.contains(" 42, 43, 44, 45, 46 and 3 more: "), "{all}");
        assert!(all.contains("--from anybody"), "{all}");
    }
}
