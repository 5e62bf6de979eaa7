//! What is carried from block to block: a binary tree over the blocks of a store, in which a node is the sum
//! of its left half and its right one, and what comes before a right half is what comes before the whole, and
//! then the left half. G. Blelloch, "Prefix Sums and Their Applications", 1990.
//!
//! So it does not matter who adds up which nodes: devices and the host do as they can, and agree to the bit.

use super::PrefixSummed;

/// A node of the tree: what its elements come to, as far back as the row of the last one begins.
#[derive(Clone)]
pub(super) struct Node<T: PrefixSummed> {
    pub sum: T::Sum,
    /// Whether a row begins among them.
    pub begins: bool,
}

impl<T: PrefixSummed> Default for Node<T> {
    fn default() -> Self {
        Self { sum: T::Sum::default(), begins: false }
    }
}

impl<T: PrefixSummed> Node<T> {
    /// Both, of which the other one comes later.
    fn then(&self, later: &Self) -> Self {
        if later.begins {
            return later.clone();
        }
        Self { sum: T::added(&self.sum, &later.sum), begins: self.begins }
    }
}

/// What comes before a block, or before a tile of as many blocks as a node has.
pub(super) struct Carried<T: PrefixSummed> {
    /// The number of the block.
    number: u64,
    /// Nodes of 2^n blocks each that end before it, the last of each n.
    nodes: Vec<Node<T>>,
    /// What comes before a block whose number is an odd multiple of 2^n, the last that was reached of each n.
    before: Vec<Node<T>>,
}

impl<T: PrefixSummed> Carried<T> {
    /// Nothing, before a block with a number.
    pub fn before(number: u64) -> Self {
        let empty = || vec![Node::default(); u64::BITS as usize];
        Self { number, nodes: empty(), before: empty() }
    }

    pub fn sum(&self) -> T::Sum {
        self.at(self.number).sum
    }

    /// What comes before a block that is not behind this one, and is this one without some of the lowest bits
    /// of its number.
    fn at(&self, number: u64) -> Node<T> {
        self.before.get(number.trailing_zeros() as usize).cloned().unwrap_or_default()
    }

    /// Goes past a block.
    pub fn pass(&mut self, mut node: Node<T>) {
        let level = self.number.trailing_ones() as usize;
        for left in &self.nodes[..level] {
            node = left.then(&node);
        }
        self.number += 1;
        self.before[level] = self.at(self.number & (self.number - 1)).then(&node);
        self.nodes[level] = node;
    }
}
