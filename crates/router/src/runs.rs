//! What a node of a trie says, before it is written: the runs of addresses that have one answer, in
//! order. No memory of its own, and no tree: see [`Trie`](crate::trie::Trie); how runs are written
//! is `node.rs`'s.

/// A prefix that ends within a node: the first of its slots, the bits beyond the node's own, and
/// what it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Own {
    /// The first of the node's `1 << width` slots that it covers.
    pub first: u16,
    /// From 1 to the width.
    pub len: u8,
    /// Not zero.
    pub value: u32,
}

/// Slots from `first` up to the next run's have one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first slot.
    pub first: u32,
    /// A value, 0 for what the node's own is, or with `CHILD` where to go on.
    pub entry: u32,
}

/// The runs of sorted prefixes and children (slot, entry), and for each child what its slot has
/// without it.
pub fn runs(prefixes: &[Own], children: &[(u16, u32)], width: u8) -> (Vec<Run>, Vec<u32>) {
    let mut runs = Vec::with_capacity(2 * (prefixes.len() + children.len()) + 1);
    let mut covers = Vec::with_capacity(children.len());
    // Prefixes around the one in hand, the shortest first: where each ends, and its entry.
    let mut open = vec![(1u32 << width, 0u32)];
    let (mut prefixes, mut children) = (prefixes.iter().peekable(), children.iter().peekable());
    push(&mut runs, 0, 0);
    loop {
        let prefix = prefixes.peek().map(|own| u32::from(own.first));
        let child = children.peek().map(|(slot, _)| u32::from(*slot));
        let Some(first) = prefix.into_iter().chain(child).min() else {
            break;
        };
        close(&mut runs, &mut open, first);
        // The prefixes that begin at a child's slot cover it.
        let (end, entry) = match prefixes.next_if(|own| u32::from(own.first) == first) {
            Some(own) => (first + (1 << (width - own.len)), own.value),
            None => {
                covers.push(open[open.len() - 1].1);
                let child = children.next().map_or(0, |(_, entry)| *entry);
                (first + 1, child)
            }
        };
        push(&mut runs, first, entry);
        open.push((end, entry));
    }
    close(&mut runs, &mut open, (1 << width) - 1);
    (runs, covers)
}

/// For each value of the first bits: the number of the run that it begins in, and that one with all
/// that begin within.
pub fn buckets(runs: &[Run], width: u8, bits: u8) -> impl Iterator<Item = (usize, &[Run])> {
    let slots = 1u32 << (width - bits);
    let mut end = 0;
    (0..1u32 << bits).map(move |bucket| {
        let next = (bucket + 1) * slots;
        // The last one before goes on, unless another begins here.
        let begins = runs.get(end).is_some_and(|run| run.first == bucket * slots);
        let first = if begins { end } else { end - 1 };
        while runs.get(end).is_some_and(|run| run.first < next) {
            end += 1;
        }
        (first, &runs[first..end])
    })
}

/// What ends at or before `at` gives way to what is around it.
fn close(runs: &mut Vec<Run>, open: &mut Vec<(u32, u32)>, at: u32) {
    while open.len() > 1 && open[open.len() - 1].0 <= at {
        let end = open[open.len() - 1].0;
        open.pop();
        push(runs, end, open[open.len() - 1].1);
    }
}

/// A run from here on: what began here before is nothing, and what goes on is one.
fn push(runs: &mut Vec<Run>, first: u32, entry: u32) {
    if runs.last().is_some_and(|last| last.first == first) {
        runs.pop();
    }
    if runs.last().is_none_or(|last| last.entry != entry) {
        runs.push(Run { first, entry });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::CHILD;

    #[test]
    fn runs_are_what_the_longest_prefix_says() {
        let own = |first, len, value| Own { first, len, value };
        let prefixes = [own(0, 1, 1), own(4, 3, 2), own(4, 4, 1), own(8, 2, 3)];
        let (runs, covers) = runs(&prefixes, &[(5, CHILD), (15, CHILD | 1)], 4);
        let run = |first, entry| Run { first, entry };
        // 0..8 has 1, within it 4..6 has 2, within that 4 has 1 and 5 a child; 8..12 has 3; the
        // rest is the node's.
        let expected = [
            run(0, 1),
            run(5, CHILD),
            run(6, 1),
            run(8, 3),
            run(12, 0),
            run(15, CHILD | 1),
        ];
        assert_eq!(runs, expected);
        assert_eq!(covers, [2, 0]);
    }
}
