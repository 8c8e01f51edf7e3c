//! Interfaces that a feature was given, by name: an interface that is removed and made again is
//! another one to the kernel and the same one to whoever asked for it. So it is given back when it
//! goes and taken again when it comes.
//!
//! Who has them, how they are attached, and why one is not; what is done to an interface its
//! feature does ([`Driver`]). Owned by the router's thread (`router/thread.rs`) and the balancer's
//! engine (`balancer/engine/attached.rs`).

use control::InterfaceStatus;
use xdp::Mode;

/// An interface that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    /// How it is attached; `None`: it is not, at the moment.
    pub mode: Option<Mode>,
    /// Why it, or a part of it, is not attached.
    pub why: String,
    /// The mode that was asked for; `None`: native where the driver can.
    pub asked: Option<Mode>,
    /// Its index while it is attached.
    pub index: u32,
}

/// What a feature does to interfaces.
pub trait Driver {
    /// The index of an interface; `None`: there is none of that name.
    fn find(&self, name: &str) -> Option<u32>;

    /// Runs the feature's program on it, all or nothing: the mode in force, or a sentence.
    async fn take(&mut self, name: &str, mode: Option<Mode>) -> Result<Mode, String>;

    /// One that was taken under this name stays, but something about it has changed. Why it is not
    /// wholly attached any more.
    fn keep(&mut self, _name: &str) -> Result<(), String> {
        Ok(())
    }

    /// Leaves an interface to the kernel that was taken under this name; it may be gone.
    fn leave(&mut self, name: &str);
}

/// The interfaces of a feature, in the order they were given.
#[derive(Debug, Default)]
pub struct TrackedInterfaces {
    members: Vec<Member>,
    /// Another process has them, or takes them: see [`stand_still`](Self::stand_still).
    still: bool,
}

impl TrackedInterfaces {
    /// From now on nothing is [followed](Self::follow): those that come are another process's to
    /// take. Of two that take the same interface each keeps the other out.
    pub fn stand_still(&mut self) {
        self.still = true;
    }

    /// They are this process's to take, which is to [follow](Self::follow) them at once.
    pub fn go_on(&mut self) {
        self.still = false;
    }

    /// Whether another process takes those that come.
    pub fn is_still(&self) -> bool {
        self.still
    }

    /// All interfaces that were asked for, attached or not.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Takes an interface that is there, and from now on again whenever it comes back; or attaches
    /// it in another mode. The flag says whether anything has changed.
    ///
    /// # Errors
    /// The driver's; an interface that was attached before is attached as it was.
    pub async fn want(
        &mut self,
        name: &str,
        asked: Option<Mode>,
        driver: &mut impl Driver,
    ) -> Result<(Member, bool), String> {
        let known = self.members.iter().position(|member| member.name == name);
        let found = driver.find(name);
        if let Some(at) = known {
            let member = &self.members[at];
            let same = Some(member.index) == found && (asked.is_none() || asked == member.mode);
            if member.mode.is_some() && same {
                self.members[at].asked = asked.or(self.members[at].asked);
                return Ok((self.members[at].clone(), false));
            }
        }
        let index = found.ok_or_else(|| format!("interface {name}: there is no such interface"))?;
        // A program is attached anew to change its mode; refused, it is put back as it was.
        let before = known.and_then(|at| self.members[at].mode);
        if before.is_some() {
            driver.leave(name);
        }
        let taken = driver.take(name, asked).await;
        let (mode, asked) = match (&taken, before) {
            (Ok(mode), _) => (*mode, asked),
            (Err(_), Some(old)) => {
                // It worked a moment ago; if it does not now, the next change of links tries again.
                let again = driver.take(name, Some(old)).await;
                let at = known.unwrap_or_default();
                self.members[at].attach(index, again);
                return Err(taken.err().unwrap_or_default());
            }
            (Err(why), None) => return Err(why.clone()),
        };
        let member = Member {
            name: name.to_owned(),
            mode: Some(mode),
            why: String::new(),
            asked,
            index,
        };
        match known {
            Some(at) => self.members[at] = member.clone(),
            None => self.members.push(member.clone()),
        }
        Ok((member, true))
    }

    /// Takes an interface that is wanted anew, in the mode that was asked for, whatever the kernel
    /// says of it. How it is then; `None`: nobody asked for it. One that cannot be taken is wanted
    /// still.
    pub async fn reattach(&mut self, name: &str, driver: &mut impl Driver) -> Option<Member> {
        let mut members = self.members.iter_mut();
        let member = members.find(|member| member.name == name)?;
        if member.mode.is_some() {
            driver.leave(name);
        }
        let found = driver.find(name);
        let taken = match found {
            Some(_) => driver.take(name, member.asked).await,
            None => Err(format!("interface {name}: there is no such interface")),
        };
        member.attach(found.unwrap_or_default(), taken);
        Some(member.clone())
    }

    /// How an interface is; `None`: nobody asked for it.
    pub fn status(&self, name: &str) -> Option<InterfaceStatus> {
        self.member(name).map(Member::status)
    }

    /// One of the members.
    pub fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name)
    }

    /// Makes an interface what it was when [`status`](Self::status) said this of it.
    ///
    /// # Errors
    /// The driver's: it is not attached as it was.
    pub async fn restore(
        &mut self,
        name: &str,
        before: Option<InterfaceStatus>,
        driver: &mut impl Driver,
    ) -> Result<(), String> {
        let Some(before) = before else {
            self.give_back(name, driver);
            return Ok(());
        };
        let attached = match before.mode {
            Some(mode) => self.want(name, Some(mode), driver).await.map(drop),
            None => Ok(()),
        };
        match self.members.iter_mut().find(|member| member.name == name) {
            Some(member) => member.asked = before.asked,
            // It is wanted all the same, and taken when it can be.
            None => self.members.push(Member {
                name: before.name,
                mode: None,
                why: before.why,
                asked: before.asked,
                index: 0,
            }),
        }
        attached
    }

    /// Leaves an interface to the kernel for good; whether it was one of these.
    pub fn give_back(&mut self, name: &str, driver: &mut impl Driver) -> bool {
        let Some(at) = self.members.iter().position(|member| member.name == name) else {
            return false;
        };
        if self.members.remove(at).mode.is_some() {
            driver.leave(name);
        }
        true
    }

    /// Interfaces have come, gone or changed: those that are wanted are taken, those that are
    /// another now are let go. Which are other than before. None while it stands still.
    pub async fn follow(&mut self, driver: &mut impl Driver) -> Vec<Member> {
        let mut changed = Vec::new();
        if self.still {
            return changed;
        }
        for member in &mut self.members {
            let found = driver.find(&member.name);
            if member.mode.is_some() && found == Some(member.index) {
                let why = driver.keep(&member.name).err().unwrap_or_default();
                if why != member.why {
                    member.why = why;
                    changed.push(member.clone());
                }
                continue;
            }
            let before = member.clone();
            if member.mode.is_some() {
                driver.leave(&member.name);
            }
            let taken = match found {
                Some(_) => driver.take(&member.name, member.asked).await,
                None => Err("it has gone".into()),
            };
            member.attach(found.unwrap_or_default(), taken);
            // One that is taken anew is another one, even if it looks the same.
            if before.mode.is_some() || *member != before {
                changed.push(member.clone());
            }
        }
        changed
    }

    /// Leaves all to the kernel, and does not take them again: they stay listed with the reason.
    pub fn give_up(&mut self, why: &str, mut leave: impl FnMut(&str)) {
        for member in &mut self.members {
            if member.mode.take().is_some() {
                leave(&member.name);
            }
            why.clone_into(&mut member.why);
        }
    }
}

impl Member {
    /// As the controller is told of it.
    pub fn status(&self) -> InterfaceStatus {
        InterfaceStatus {
            name: self.name.clone(),
            mode: self.mode,
            why: self.why.clone(),
            asked: self.asked,
        }
    }

    fn attach(&mut self, index: u32, taken: Result<Mode, String>) {
        self.index = index;
        self.mode = taken.as_ref().ok().copied();
        self.why = taken.err().unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A machine with interfaces, some of which have no native mode.
    #[derive(Default)]
    struct Machine {
        links: BTreeMap<&'static str, u32>,
        attached: BTreeMap<String, Mode>,
        native: bool,
        broken: bool,
    }

    impl Driver for Machine {
        fn find(&self, name: &str) -> Option<u32> {
            self.links.get(name).copied()
        }

        async fn take(&mut self, name: &str, mode: Option<Mode>) -> Result<Mode, String> {
            assert!(!self.attached.contains_key(name), "it is taken once");
            let mode = match mode {
                Some(Mode::Native) if !self.native => {
                    return Err(format!("interface {name}: no native XDP"));
                }
                Some(mode) => mode,
                None if self.native => Mode::Native,
                None => Mode::Generic,
            };
            self.attached.insert(name.to_owned(), mode);
            Ok(mode)
        }

        fn keep(&mut self, _: &str) -> Result<(), String> {
            match self.broken {
                true => Err("a port refuses".into()),
                false => Ok(()),
            }
        }

        fn leave(&mut self, name: &str) {
            assert!(
                self.attached.remove(name).is_some(),
                "only what was taken is left"
            );
        }
    }

    #[tokio::test]
    async fn a_mode_that_is_refused_changes_nothing() {
        let (mut tracked, mut machine) = (TrackedInterfaces::default(), Machine::default());
        machine.links.insert("eth0", 3);
        let (member, new) = tracked
            .want("eth0", None, &mut machine)
            .await
            .expect("it is there");
        assert_eq!((member.mode, new), (Some(Mode::Generic), true));
        let refused = tracked.want("eth0", Some(Mode::Native), &mut machine).await;
        assert_eq!(refused, Err("interface eth0: no native XDP".into()));
        assert_eq!(
            machine.attached["eth0"],
            Mode::Generic,
            "attached as before"
        );
        assert_eq!(tracked.members(), [member], "and listed as before");
        let refused = tracked.want("eth9", None, &mut machine).await;
        assert_eq!(
            refused,
            Err("interface eth9: there is no such interface".into())
        );
        assert_eq!(tracked.members().len(), 1);
        machine.native = true;
        let (member, new) = tracked
            .want("eth0", Some(Mode::Native), &mut machine)
            .await
            .expect("now it can");
        assert_eq!(
            (member.mode, member.asked, new),
            (Some(Mode::Native), Some(Mode::Native), true)
        );
        let (_, new) = tracked
            .want("eth0", None, &mut machine)
            .await
            .expect("any mode will do");
        assert!(!new, "it is attached already");
    }

    #[tokio::test]
    async fn what_was_done_to_one_is_undone() {
        let (mut tracked, mut machine) = (TrackedInterfaces::default(), Machine::default());
        machine.links.insert("eth0", 3);
        machine.native = true;
        let before = tracked.status("eth0");
        assert_eq!(before, None);
        let want = tracked.want("eth0", None, &mut machine).await;
        want.expect("it is there");
        let taken = tracked.status("eth0");
        let want = tracked.want("eth0", Some(Mode::Generic), &mut machine);
        want.await.expect("it can be");
        let restored = tracked.restore("eth0", taken.clone(), &mut machine).await;
        assert_eq!(restored, Ok(()));
        assert_eq!(machine.attached["eth0"], Mode::Native);
        assert_eq!(tracked.status("eth0"), taken, "and any mode will do again");
        assert!(tracked.give_back("eth0", &mut machine));
        let restored = tracked.restore("eth0", taken.clone(), &mut machine).await;
        assert_eq!((restored, tracked.status("eth0")), (Ok(()), taken.clone()));
        // What has gone meanwhile is wanted still.
        assert!(tracked.give_back("eth0", &mut machine));
        machine.links.clear();
        let restored = tracked.restore("eth0", taken, &mut machine).await;
        restored.expect_err("there is none");
        assert_eq!(tracked.status("eth0").map(|status| status.mode), Some(None));
        machine.links.insert("eth0", 4);
        assert_eq!(tracked.follow(&mut machine).await.len(), 1);
        assert_eq!(
            tracked.restore("eth0", None, &mut machine).await,
            Ok(()),
            "given back"
        );
        assert!(machine.attached.is_empty() && tracked.members().is_empty());
    }

    #[tokio::test]
    async fn it_goes_and_comes_back_under_its_name() {
        let (mut tracked, mut machine) = (TrackedInterfaces::default(), Machine::default());
        machine.links.insert("eth0", 3);
        tracked
            .want("eth0", Some(Mode::Generic), &mut machine)
            .await
            .expect("it is there");
        assert_eq!(
            tracked.follow(&mut machine).await,
            [],
            "nothing has happened"
        );
        machine.broken = true;
        let changed = tracked.follow(&mut machine).await;
        assert_eq!(
            (changed[0].mode, changed[0].why.as_str()),
            (Some(Mode::Generic), "a port refuses")
        );
        assert_eq!(tracked.follow(&mut machine).await, [], "said once");
        machine.broken = false;
        assert_eq!(
            tracked.follow(&mut machine).await[0].why,
            "",
            "and that it is over"
        );
        machine.links.clear();
        let changed = tracked.follow(&mut machine).await;
        assert_eq!(
            (changed[0].mode, changed[0].why.as_str()),
            (None, "it has gone")
        );
        assert!(machine.attached.is_empty());
        assert_eq!(tracked.follow(&mut machine).await, [], "said once");
        machine.links.insert("eth0", 7);
        let changed = tracked.follow(&mut machine).await;
        assert_eq!(
            (changed[0].mode, changed[0].why.as_str()),
            (Some(Mode::Generic), "")
        );
        // Removed and made again between two looks.
        machine.links.insert("eth0", 8);
        assert_eq!(
            tracked.follow(&mut machine).await.len(),
            1,
            "it is another one"
        );
        assert!(tracked.give_back("eth0", &mut machine));
        assert!(!tracked.give_back("eth0", &mut machine));
        assert!(machine.attached.is_empty() && tracked.members().is_empty());
    }

    #[tokio::test]
    async fn taken_anew_it_is_in_the_mode_that_was_asked_for_and_wanted_whatever_comes() {
        let (mut tracked, mut machine) = (TrackedInterfaces::default(), Machine::default());
        assert_eq!(tracked.reattach("eth0", &mut machine).await, None);
        machine.links.insert("eth0", 3);
        let want = tracked.want("eth0", None, &mut machine).await;
        assert_eq!(want.expect("it is there").0.mode, Some(Mode::Generic));
        // Any mode was asked for: another one may be the best by now.
        machine.native = true;
        let again = tracked.reattach("eth0", &mut machine).await.unwrap();
        assert_eq!((again.mode, again.asked), (Some(Mode::Native), None));
        let want = tracked.want("eth0", Some(Mode::Native), &mut machine);
        want.await.expect("it is so already");
        // The driver has no native mode for a moment.
        machine.native = false;
        let refused = tracked.reattach("eth0", &mut machine).await.unwrap();
        let native = Some(Mode::Native);
        assert_eq!((refused.mode, refused.asked), (None, native));
        assert_eq!(refused.why, "interface eth0: no native XDP");
        assert_eq!(tracked.members(), [refused], "it is wanted");
        let again = tracked.reattach("eth0", &mut machine).await.unwrap();
        assert_eq!(again.mode, None, "nothing is left that was not taken");
        machine.native = true;
        let changed = tracked.follow(&mut machine).await;
        assert_eq!((changed.len(), changed[0].mode), (1, native));
        // It goes between two requests.
        machine.links.clear();
        let gone = tracked.reattach("eth0", &mut machine).await.unwrap();
        assert_eq!((gone.mode, gone.asked), (None, native));
        assert!(gone.why.contains("no such interface"), "{}", gone.why);
        machine.links.insert("eth0", 4);
        let changed = tracked.follow(&mut machine).await;
        assert_eq!((changed[0].index, changed[0].mode), (4, native));
    }

    #[tokio::test]
    async fn while_another_process_takes_them_none_is_taken_or_let_go() {
        let (mut tracked, mut machine) = (TrackedInterfaces::default(), Machine::default());
        machine.links.extend([("eth0", 3), ("eth1", 4)]);
        for name in ["eth0", "eth1"] {
            let want = tracked.want(name, None, &mut machine).await;
            want.expect("it is there");
        }
        tracked.stand_still();
        // The one is made anew, the other one goes.
        machine.links.insert("eth0", 7);
        machine.links.remove("eth1");
        let before = tracked.members().to_vec();
        assert_eq!(tracked.follow(&mut machine).await, [], "it is another's");
        assert_eq!(tracked.members(), before);
        assert_eq!(machine.attached.len(), 2, "what was taken stays so");
        tracked.go_on();
        let changed = tracked.follow(&mut machine).await;
        let changed: Vec<_> = changed.iter().map(|one| (one.index, one.mode)).collect();
        assert_eq!(changed, [(7, Some(Mode::Generic)), (0, None)]);
        machine.links.insert("eth1", 8);
        assert_eq!(tracked.follow(&mut machine).await.len(), 1, "it is back");
    }

    #[tokio::test]
    async fn given_up_they_are_listed_with_the_reason() {
        let (mut tracked, mut machine) = (TrackedInterfaces::default(), Machine::default());
        machine.links.insert("eth0", 3);
        tracked
            .want("eth0", None, &mut machine)
            .await
            .expect("it is there");
        let mut left = Vec::new();
        tracked.give_up("see the log", |name| left.push(name.to_owned()));
        assert_eq!(left, ["eth0"]);
        let listed = &tracked.members()[0];
        assert_eq!((listed.mode, listed.why.as_str()), (None, "see the log"));
    }
}
