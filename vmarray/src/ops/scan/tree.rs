//! Carries (sums of all earlier elements) between blocks of a prefix sum, by a binary tree over the blocks. A
//! node is the sum of its two halves. The carry into the right half of a node is the carry into the node plus
//! the sum of its left half. G. Blelloch, "Prefix Sums and Their Applications", 1990.
//!
//! Devices and the host compute the same bits, so the host or a device may compute a node.

use super::number::PrefixSummed;

/// A node of the tree: the sum of its elements, from the start of the last element's row on.
#[derive(Clone)]
pub(super) struct SumTreeNode<T: PrefixSummed> {
    pub sum: T::Sum,
    /// True if a row begins within the blocks of this node. The carry (sum of earlier elements) into the node
    /// then does not reach later nodes.
    pub begins: bool,
}

impl<T: PrefixSummed> Default for SumTreeNode<T> {
    fn default() -> Self {
        Self { sum: T::Sum::default(), begins: false }
    }
}

impl<T: PrefixSummed> SumTreeNode<T> {
    /// Combines this node with the node `later`, which follows it.
    fn then(&self, later: &Self) -> Self {
        if later.begins {
            return later.clone();
        }
        Self { sum: T::added(&self.sum, &later.sum), begins: self.begins }
    }
}

/// The carry into the next block, or into a tile with the length of a node.
pub(super) struct Carried<T: PrefixSummed> {
    /// Number of the next block.
    number: u64,
    /// For each n, the last complete node of 2^n blocks before the next block.
    nodes: Vec<SumTreeNode<T>>,
    /// For each n, the carry into the last block so far whose number is an odd multiple of 2^n.
    before: Vec<SumTreeNode<T>>,
}

impl<T: PrefixSummed> Carried<T> {
    /// Returns the state of the scan before block `number`, with a carry (sum of earlier blocks) of zero.
    pub fn before(number: u64) -> Self {
        let empty = || vec![SumTreeNode::default(); u64::BITS as usize];
        Self { number, nodes: empty(), before: empty() }
    }

    pub fn sum(&self) -> T::Sum {
        self.at(self.number).sum
    }

    /// Returns the carry into an earlier block, whose number is the present one with some low bits cleared.
    fn at(&self, number: u64) -> SumTreeNode<T> {
        self.before.get(number.trailing_zeros() as usize).cloned().unwrap_or_default()
    }

    /// Advances the scan past the next block, whose sum is `node`.
    pub fn pass(&mut self, mut node: SumTreeNode<T>) {
        let level = self.number.trailing_ones() as usize;
        for left in &self.nodes[..level] {
            node = left.then(&node);
        }
        self.number += 1;
        self.before[level] = self.at(self.number & (self.number - 1)).then(&node);
        self.nodes[level] = node;
    }
}
