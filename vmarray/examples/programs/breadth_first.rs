//! Breadth-first search: the distance of each node of a graph from the first node. Each launch runs one
//! work-item (GPU thread) for each node of the frontier; the work-item appends unvisited neighbours to the
//! next frontier.

use crate::setting::{Setting, starts_of};
use vmarray::kernel::{Anywhere, Append, Appended, Own, Shared};
use vmarray::{Result, prelude::*};

const UNSEEN: u32 = u32::MAX;

/// Visits the neighbours of each node of the frontier. An atomic exchange ensures that only one work-item
/// appends a node.
#[vmarray::kernel]
fn expand(
    frontier: &Own<u32>,
    starts: &Anywhere<u64>,
    targets: &Anywhere<u32>,
    depth: u32,
    depths: &Shared<u32>,
    next: &Append<u32>,
) {
    let node = frontier.get() as usize;
    for k in starts[node] as usize..starts[node + 1] as usize {
        let target = targets[k];
        if depths.compare_exchange(target as usize, UNSEEN, depth) == UNSEEN {
            next.push(target);
        }
    }
}

fn run(on: &mut Setting, starts: &[u64], targets: &[u32]) -> Result<Vec<u32>> {
    let nodes = starts.len() - 1;
    let mut depths = on.array_on_one(&vec![UNSEEN; nodes])?;
    depths.set(0, 0)?;
    let (starts, targets) = (on.array_on_one(starts)?, on.array_on_one(targets)?);
    let (mut frontier, mut depth) = (vec![0], 0);
    while !frontier.is_empty() {
        depth += 1;
        let mut next = Vec::new();
        let nodes_now = on.array_on_one(&frontier)?;
        expand::run((&nodes_now, &starts, &targets, depth, &mut depths, Appended::to(&mut next, nodes)))?;
        frontier = next;
    }
    depths.to_vec(..)
}

fn natively(starts: &[u64], targets: &[u32]) -> Vec<u32> {
    let mut depths = vec![UNSEEN; starts.len() - 1];
    let mut queue = std::collections::VecDeque::from([0]);
    depths[0] = 0;
    while let Some(node) = queue.pop_front() {
        for target in &targets[starts[node] as usize..starts[node + 1] as usize] {
            let target = *target as usize;
            if depths[target] == UNSEEN {
                depths[target] = depths[node] + 1;
                queue.push_back(target);
            }
        }
    }
    depths
}

pub fn show(on: &mut Setting) -> Result<()> {
    // The graph is a binary tree: node n has the children 2 n + 1 and 2 n + 2.
    let nodes = 4095;
    let targets: Vec<u32> = (0..nodes / 2).flat_map(|node| [2 * node + 1, 2 * node + 2]).collect();
    let starts: Vec<u64> = (0..=nodes).map(|node| u64::from(2 * node.min(nodes / 2))).collect();
    let depths = run(on, &starts, &targets)?;
    println!("    a tree of {nodes} nodes is {} steps deep", depths[nodes as usize - 1]);
    assert!(depths.iter().zip(1..).all(|(depth, number)| *depth == u32::ilog2(number)));
    Ok(())
}

pub fn check(on: &mut Setting) -> Result<()> {
    let nodes = 1 + on.below(1500);
    let starts = starts_of((0..nodes).map(|_| on.below(4) as u64));
    let targets: Vec<u32> = (0..starts[nodes]).map(|_| on.below(nodes) as u32).collect();
    assert_eq!(run(on, &starts, &targets)?, natively(&starts, &targets));
    Ok(())
}
