//! Symbols, held once a chunk however many ticks name them.

use std::collections::HashMap;

/// Known symbols beyond this many are forgotten between chunks, so that a feed of ever new names stays bounded.
const MAX_KNOWN: usize = 65_536;

/// Gives each symbol of a chunk its index. What is known survives the chunk, so that a symbol which comes again is
/// found and not built again.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    /// The symbols of this chunk, in order of first appearance.
    list: Vec<Box<str>>,
    known: HashMap<Box<str>, Place>,
    /// Counts chunks.
    chunk: u64,
    /// The index given last: ticks of one symbol come in rows.
    last: u32,
}

/// Where a symbol was seen last.
#[derive(Debug, Clone, Copy)]
struct Place {
    chunk: u64,
    index: u32,
}

impl Symbols {
    /// The index of `symbol` in this chunk.
    pub(super) fn index_of(&mut self, symbol: &str) -> u32 {
        if self.list.get(self.last as usize).is_some_and(|last| **last == *symbol) {
            return self.last;
        }
        let next = Place { chunk: self.chunk, index: self.list.len() as u32 };
        self.last = match self.known.get_mut(symbol) {
            Some(place) if place.chunk == self.chunk => place.index,
            Some(place) => {
                *place = next;
                self.list.push(symbol.into());
                next.index
            }
            None => {
                self.known.insert(symbol.into(), next);
                self.list.push(symbol.into());
                next.index
            }
        };
        self.last
    }

    /// The symbols of this chunk; the next one starts without any.
    pub(super) fn take(&mut self) -> Vec<Box<str>> {
        self.chunk += 1;
        self.last = 0;
        if self.known.len() > MAX_KNOWN {
            self.known.clear();
        }
        std::mem::take(&mut self.list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chunk_holds_its_symbols_once_in_order_of_appearance() {
        let mut symbols = Symbols::default();
        let indexes: Vec<u32> = ["A", "B", "B", "A", "C"].map(|symbol| symbols.index_of(symbol)).into();
        assert_eq!(indexes, [0, 1, 1, 0, 2]);
        assert_eq!(symbols.take(), ["A", "B", "C"].map(Box::from));
        assert_eq!(["C", "A", "C"].map(|symbol| symbols.index_of(symbol)), [0, 1, 0]);
        assert_eq!(symbols.take(), ["C", "A"].map(Box::from));
        assert!(symbols.take().is_empty());
    }

    #[test]
    fn what_is_known_stays_bounded() {
        let mut symbols = Symbols::default();
        for i in 0..=MAX_KNOWN {
            symbols.index_of(&i.to_string());
        }
        assert_eq!(symbols.take().len(), MAX_KNOWN + 1);
        assert_eq!(symbols.known.len(), 0);
        assert_eq!(symbols.index_of("1"), 0);
    }
}
