//! Target `access`: the file of `--access`, which says who may do what.
//!
//! Promises: what is no such file is a sentence; nobody is given anything who is not in it; who may
//! change something may see it, and who may stop the daemon has the whole host; and a grant that
//! is added takes nothing away.
//!
//! Input: the text.

use daemon::decoders::{Asker, Reaches, granted};

/// In no file but by an accident that [`says`] sees.
const NOBODY: u32 = 3_987_654_321;
const NOBODYS: &str = "nobody-has-this-name";
/// A grant to who comes over v0.
const MORE: &str = "\n[[grant]]\nrole = \"view\"\nv0_tcp = true\n";

/// Reads a file.
pub fn access(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let askers = [
        Asker::Unknown,
        Asker::User(NOBODY, NOBODY),
        Asker::Certificate(NOBODYS.to_owned()),
        Asker::User(0, 0),
        Asker::User(1000, 2000),
        Asker::User(1001, 1001),
        Asker::Certificate("blue".to_owned()),
        Asker::PageToken,
        Asker::V0Tcp,
    ];
    let before = match granted(text, &askers) {
        Ok(before) => before,
        Err(why) => {
            assert!(!why.trim().is_empty());
            return;
        }
    };
    assert_eq!(before[0], [Reaches::Nothing; 3], "to who is unknown");
    if !says_a_number(text) {
        assert_eq!(before[1], [Reaches::Nothing; 3], "to a user of no grant");
    }
    if !text.contains(NOBODYS) && !text.contains('\\') {
        assert_eq!(before[2], [Reaches::Nothing; 3], "to a name of no grant");
    }
    for (asker, [view, operate, admin]) in askers.iter().zip(&before) {
        assert!(operate <= view, "{asker:?} changes what it does not see");
        assert!(admin <= operate, "{asker:?} ends what it does not change");
        assert_ne!(*admin, Reaches::Part, "{asker:?} ends a part of a daemon");
    }
    // A table may be open where the text ends, or `grant` be no list of tables.
    let Ok(after) = granted(&format!("{text}{MORE}"), &askers) else {
        return;
    };
    let (others, v0) = (askers.len() - 1, askers.len() - 1);
    assert_eq!(before[..others], after[..others], "a grant to another");
    assert!(after[v0][0] == Reaches::Whole && after[v0][1..] == before[v0][1..]);
}

/// The number may be in the text, however it is written (TOML, Integer).
fn says_a_number(text: &str) -> bool {
    let digits = text.replace('_', "");
    digits.contains(&NOBODY.to_string()) || ["0x", "0o", "0b"].iter().any(|it| text.contains(it))
}
