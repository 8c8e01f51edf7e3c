//! An array that shares what is not changed: a copy costs nothing, a change copies one page, and a
//! look is two steps. What workers look up and one thread changes.

use std::sync::Arc;

/// Entries of a page.
const PAGE: usize = 256;

/// Entries by small indices; one that was never set is the default.
#[derive(Clone, Default)]
pub(crate) struct Table<T> {
    pages: Vec<Arc<[T; PAGE]>>,
}

impl<T: Clone + Default> Table<T> {
    /// The entry; `None` behind the last page.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        Some(&self.pages.get(index / PAGE)?[index % PAGE])
    }

    /// Puts an entry in; gives the one before.
    pub fn set(&mut self, index: usize, value: T) -> T {
        while self.pages.len() <= index / PAGE {
            let page = std::array::from_fn(|_| T::default());
            self.pages.push(Arc::new(page));
        }
        let page = Arc::make_mut(&mut self.pages[index / PAGE]);
        std::mem::replace(&mut page[index % PAGE], value)
    }

    /// Entries that there is room for: those from here on are the default.
    pub fn len(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().flat_map(|page| page.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_shares_the_pages_that_do_not_change() {
        let mut table: Table<u32> = Table::default();
        assert_eq!((table.get(0), table.len()), (None, 0));
        assert_eq!(table.set(3 * PAGE, 7), 0);
        assert_eq!((table.get(3 * PAGE), table.get(5)), (Some(&7), Some(&0)));
        let before = table.clone();
        assert_eq!(table.set(5, 9), 0);
        assert_eq!((before.get(5), table.get(5)), (Some(&0), Some(&9)));
        assert!(!Arc::ptr_eq(&before.pages[0], &table.pages[0]));
        assert!(Arc::ptr_eq(&before.pages[3], &table.pages[3]));
        assert_eq!(table.iter().sum::<u32>(), 16);
    }
}
