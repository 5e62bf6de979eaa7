//! Tests of every policy against a naive model, and small hit-rate tests.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use super::{Candidate, EvictionPolicy, Evictor, Verdict};

const POLICIES: [EvictionPolicy; 3] = [EvictionPolicy::Clock, EvictionPolicy::Lru, EvictionPolicy::TwoQueue];

/// Simple version of each policy: walks copies, searches everything, allocates freely.
enum Model {
    /// Textbook CLOCK: a ring of places, and a hand.
    Clock { present: Vec<bool>, hand: usize },
    /// Newest first; ghosts with their expiry, counted in evictions from `recent`. Exact LRU has all frames
    /// in `hot`.
    Queues {
        is_lru: bool,
        frames: usize,
        keys: HashMap<u32, u64>,
        recent: VecDeque<u32>,
        hot: VecDeque<u32>,
        ghosts: ModelGhosts,
    },
}

#[derive(Default)]
struct ModelGhosts {
    /// Oldest first; `None` once taken.
    keys: VecDeque<Option<u64>>,
}

impl ModelGhosts {
    fn take(&mut self, key: u64) -> bool {
        let found = self.keys.iter_mut().find(|ghost| **ghost == Some(key));
        found.is_some_and(|ghost| ghost.take().is_some())
    }

    fn push(&mut self, key: u64, capacity: usize) {
        self.take(key);
        self.keys.push_back(Some(key));
        if self.keys.len() > capacity {
            self.keys.pop_front();
        }
    }
}

fn drop_frame(queue: &mut VecDeque<u32>, frame: u32) {
    queue.retain(|&other| other != frame);
}

impl Model {
    fn new(policy: EvictionPolicy, frames: usize) -> Self {
        match policy {
            EvictionPolicy::Clock => Self::Clock { present: vec![false; frames], hand: 0 },
            EvictionPolicy::Lru | EvictionPolicy::TwoQueue => Self::Queues {
                is_lru: policy == EvictionPolicy::Lru,
                frames,
                keys: HashMap::new(),
                recent: VecDeque::new(),
                hot: VecDeque::new(),
                ghosts: ModelGhosts::default(),
            },
        }
    }

    fn tracked(&self) -> Vec<u32> {
        let mut tracked: Vec<u32> = match self {
            Self::Clock { present, .. } => {
                (0..).zip(present).filter(|(_, on)| **on).map(|(f, _)| f).collect()
            }
            Self::Queues { recent, hot, .. } => recent.iter().chain(hot).copied().collect(),
        };
        tracked.sort_unstable();
        tracked
    }

    fn inserted(&mut self, frame: u32, key: u64) {
        self.removed(frame);
        match self {
            Self::Clock { present, .. } => present[frame as usize] = true,
            Self::Queues { is_lru, keys, recent, hot, ghosts, .. } => {
                keys.insert(frame, key);
                if *is_lru || ghosts.take(key) { hot.push_front(frame) } else { recent.push_front(frame) }
            }
        }
    }

    fn touched(&mut self, frame: u32) {
        if let Self::Queues { is_lru: true, hot, .. } = self
            && hot.contains(&frame)
        {
            drop_frame(hot, frame);
            hot.push_front(frame);
        }
    }

    fn removed(&mut self, frame: u32) {
        match self {
            Self::Clock { present, .. } => present[frame as usize] = false,
            Self::Queues { recent, hot, .. } => {
                drop_frame(recent, frame);
                drop_frame(hot, frame);
            }
        }
    }

    fn victims(&mut self, want: usize, candidate: &mut Candidate<'_>) -> usize {
        let stopped = Cell::new(false);
        let candidate: &mut Candidate<'_> = &mut |frame| match candidate(frame) {
            Verdict::Stop => {
                stopped.set(true);
                Verdict::Skip
            }
            verdict => verdict,
        };
        let mut taken = 0;
        match self {
            Self::Clock { present, hand } => {
                let mut spared = vec![];
                for turn in 0..2 {
                    for _ in 0..present.len() {
                        if taken == want || !present.contains(&true) || stopped.get() {
                            return taken;
                        }
                        let frame = *hand;
                        *hand = (*hand + 1) % present.len();
                        if !present[frame] || (turn == 1 && !spared.contains(&frame)) {
                            continue;
                        }
                        match candidate(frame as u32) {
                            Verdict::Take => {
                                present[frame] = false;
                                taken += 1;
                            }
                            Verdict::Referenced => spared.push(frame),
                            Verdict::Skip | Verdict::Stop => {}
                        }
                    }
                }
            }
            Self::Queues { frames, keys, recent, hot, ghosts, .. } => {
                let mut recent_pending: VecDeque<u32> = recent.iter().rev().copied().collect();
                let mut hot_pending: VecDeque<(u32, bool)> = hot.iter().rev().map(|&f| (f, true)).collect();
                while taken < want && !stopped.get() {
                    let too_long = recent.len() > (*frames / 4).max(1);
                    if !recent_pending.is_empty() && (too_long || hot_pending.is_empty()) {
                        let frame = recent_pending.pop_front().unwrap();
                        let mut verdict = candidate(frame);
                        if verdict == Verdict::Referenced {
                            verdict = candidate(frame);
                        }
                        if verdict == Verdict::Take {
                            drop_frame(recent, frame);
                            ghosts.push(keys[&frame], (*frames / 2).max(1));
                            taken += 1;
                        }
                    } else if !hot_pending.is_empty() {
                        taken += ask_lru(hot, &mut hot_pending, candidate).is_some() as usize;
                    } else {
                        break;
                    }
                }
            }
        }
        taken
    }
}

/// Proposes the first pending frame; it is queued again if it was referenced at its first proposal.
fn ask_lru(
    order: &mut VecDeque<u32>,
    pending: &mut VecDeque<(u32, bool)>,
    candidate: &mut Candidate<'_>,
) -> Option<u32> {
    let (frame, first_time) = pending.pop_front().unwrap();
    match candidate(frame) {
        Verdict::Take => {
            drop_frame(order, frame);
            return Some(frame);
        }
        Verdict::Skip | Verdict::Stop => {}
        Verdict::Referenced => {
            drop_frame(order, frame);
            order.push_front(frame);
            if first_time {
                pending.push_back((frame, false));
            }
        }
    }
    None
}

#[derive(Clone, Debug)]
enum Step {
    Inserted(u32, u64),
    Touched(u32),
    Removed(u32),
    /// The wanted number, and the replies in a cycle.
    Victims(usize, Vec<Verdict>),
}

fn steps() -> impl Strategy<Value = (usize, Vec<Step>)> {
    (1_usize..24).prop_flat_map(|frames| {
        let frame = || 0..frames as u32;
        let verdict = prop_oneof![
            5 => Just(Verdict::Take),
            5 => Just(Verdict::Skip),
            5 => Just(Verdict::Referenced),
            1 => Just(Verdict::Stop),
        ];
        let step = prop_oneof![
            6 => (frame(), 0_u64..40).prop_map(|(frame, key)| Step::Inserted(frame, key)),
            3 => frame().prop_map(Step::Touched),
            1 => frame().prop_map(Step::Removed),
            3 => (0_usize..30, prop::collection::vec(verdict, 1..12)).prop_map(|(n, v)| Step::Victims(n, v)),
        ];
        (Just(frames), prop::collection::vec(step, 0..120))
    })
}

/// Calls `victims` with replies from `verdicts` in a cycle; returns the count, and all proposals with their
/// replies.
fn record(
    verdicts: &[Verdict],
    victims: impl FnOnce(&mut Candidate<'_>) -> usize,
) -> (usize, Vec<(u32, Verdict)>) {
    let mut log = vec![];
    let taken = victims(&mut |frame| {
        let verdict = verdicts[log.len() % verdicts.len()];
        log.push((frame, verdict));
        verdict
    });
    (taken, log)
}

/// The guarantees of `Evictor::victims` for every policy.
fn check_promises(tracked: &[u32], want: usize, taken: usize, log: &[(u32, Verdict)]) {
    let mut answers: HashMap<u32, Vec<Verdict>> = HashMap::new();
    for &(frame, verdict) in log {
        assert!(tracked.contains(&frame), "frame {frame} is not tracked");
        let earlier = answers.entry(frame).or_default();
        assert!(matches!(earlier[..], [] | [Verdict::Referenced]), "frame {frame} after {earlier:?}");
        earlier.push(verdict);
    }
    assert_eq!(taken, log.iter().filter(|(_, verdict)| *verdict == Verdict::Take).count());
    assert!(taken <= want);
    let stops = log.iter().filter(|(_, verdict)| *verdict == Verdict::Stop).count();
    assert!(stops == 0 || (stops == 1 && log.last().is_some_and(|(_, verdict)| *verdict == Verdict::Stop)));
    if taken < want && stops == 0 {
        // The policy returned every frame.
        for frame in tracked {
            assert!(answers.contains_key(frame), "frame {frame} was not proposed");
            assert_ne!(answers[frame], [Verdict::Referenced], "frame {frame} got no second chance");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_policy_equals_its_model((frames, steps) in steps()) {
        for policy in POLICIES {
            let mut evictor = Evictor::new(policy, frames);
            let mut model = Model::new(policy, frames);
            for step in &steps {
                match *step {
                    Step::Inserted(frame, key) => {
                        evictor.inserted(frame, key);
                        model.inserted(frame, key);
                    }
                    Step::Touched(frame) => {
                        evictor.touched(frame);
                        model.touched(frame);
                    }
                    Step::Removed(frame) => {
                        evictor.removed(frame);
                        model.removed(frame);
                    }
                    Step::Victims(want, ref verdicts) => {
                        let tracked = model.tracked();
                        let (taken, log) = record(verdicts, |candidate| evictor.victims(want, candidate));
                        check_promises(&tracked, want, taken, &log);
                        let expected = record(verdicts, |candidate| model.victims(want, candidate));
                        prop_assert_eq!((taken, log), expected, "{:?}", policy);
                    }
                }
            }
            // The policy returns all remaining frames, each once.
            let left = model.tracked();
            let (taken, log) = record(&[Verdict::Take], |candidate| evictor.victims(usize::MAX, candidate));
            let mut frames: Vec<u32> = log.iter().map(|&(frame, _)| frame).collect();
            frames.sort_unstable();
            prop_assert_eq!(taken, frames.len());
            prop_assert_eq!(frames, left);
            prop_assert_eq!(evictor.victims(1, &mut |_| panic!("nothing is tracked")), 0);
        }
    }
}

#[test]
fn all_pinned_or_all_in_use_ends() {
    for policy in POLICIES {
        for frames in [1, 2, 8, 9, 100] {
            let mut evictor = Evictor::new(policy, frames);
            assert_eq!(evictor.victims(1, &mut |_| Verdict::Take), 0);
            (0..frames as u32).for_each(|frame| evictor.inserted(frame, frame.into()));
            let (taken, log) = record(&[Verdict::Skip], |candidate| evictor.victims(1, candidate));
            assert_eq!((taken, log.len()), (0, frames), "{policy:?}");
            let (taken, log) = record(&[Verdict::Referenced], |candidate| evictor.victims(1, candidate));
            assert_eq!((taken, log.len()), (0, 2 * frames), "{policy:?}");
            assert_eq!(evictor.victims(frames + 1, &mut |_| Verdict::Take), frames, "{policy:?}");
        }
    }
}

#[test]
fn only_exact_lru_wants_touches() {
    let wants = |policy, frames| Evictor::new(policy, frames).wants_touches();
    for frames in [1, 100] {
        assert!(wants(EvictionPolicy::Lru, frames));
        assert!(!wants(EvictionPolicy::Clock, frames));
        assert!(!wants(EvictionPolicy::TwoQueue, frames));
    }
}

/// A cache without contents, driven like the paging core does.
struct Cache {
    evictor: Evictor,
    frame_of: HashMap<u64, u32>,
    pages: Vec<(u64, bool)>,
}

impl Cache {
    /// Returns true if the page was resident. A hit sets the bit, and a fetch does not.
    fn access(&mut self, key: u64) -> bool {
        if let Some(&frame) = self.frame_of.get(&key) {
            self.pages[frame as usize].1 = true;
            if self.evictor.wants_touches() {
                self.evictor.touched(frame);
            }
            return true;
        }
        let mut frame = self.frame_of.len() as u32;
        if self.frame_of.len() == self.pages.len() {
            let (pages, exact) = (&mut self.pages, self.evictor.wants_touches());
            let taken = self.evictor.victims(1, &mut |proposed| {
                let referenced = std::mem::take(&mut pages[proposed as usize].1);
                if referenced && !exact {
                    return Verdict::Referenced;
                }
                frame = proposed;
                Verdict::Take
            });
            assert_eq!(taken, 1);
            self.frame_of.remove(&self.pages[frame as usize].0);
        }
        self.pages[frame as usize] = (key, false);
        self.frame_of.insert(key, frame);
        self.evictor.inserted(frame, key);
        false
    }
}

/// Hits per thousand visits after the first quarter; every visit reads `burst` elements of its page.
fn hits_per_mille(policy: EvictionPolicy, frames: usize, burst: usize, trace: &[u64]) -> usize {
    let mut cache = Cache {
        evictor: Evictor::new(policy, frames),
        frame_of: HashMap::new(),
        pages: vec![(0, false); frames],
    };
    let mut hits = 0;
    let warm_up = trace.len() / 4;
    for (visit, &key) in trace.iter().enumerate() {
        let hit = cache.access(key);
        (1..burst).for_each(|_| assert!(cache.access(key)));
        hits += usize::from(hit && visit >= warm_up);
    }
    1000 * hits / (trace.len() - warm_up)
}

/// Page ranks below `pages` with probabilities proportional to `rank^-0.9`, always the same ones.
fn zipf(pages: usize, visits: usize) -> impl Iterator<Item = u64> {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=pages)
        .map(|rank| {
            sum += (rank as f64).powf(-0.9);
            sum
        })
        .collect();
    let mut state = 42_u64;
    (0..visits).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let uniform = (state >> 11) as f64 / (1_u64 << 53) as f64 * sum;
        sums.partition_point(|&sum| sum < uniform).min(pages - 1) as u64
    })
}

/// Purpose of `TwoQueue`: one visit in two belongs to a scan.
#[test]
fn two_queue_keeps_popular_pages_through_a_scan() {
    let scan = 1_000_000_u64..;
    let trace: Vec<u64> = zipf(5000, 40_000).zip(scan).flat_map(|(popular, once)| [popular, once]).collect();
    for burst in [1, 4] {
        let [clock, lru, two_queue] = POLICIES.map(|policy| hits_per_mille(policy, 256, burst, &trace));
        assert!(two_queue > clock * 14 / 10, "burst {burst}: {two_queue} against {clock} of CLOCK");
        assert!(two_queue > lru * 14 / 10, "burst {burst}: {two_queue} against {lru} of LRU");
    }
}

#[test]
fn two_queue_survives_a_loop_slightly_too_long() {
    let trace: Vec<u64> = (0..50_000).map(|visit| visit % 282).collect();
    for burst in [1, 4] {
        let [clock, lru, two_queue] = POLICIES.map(|policy| hits_per_mille(policy, 256, burst, &trace));
        assert_eq!((clock, lru), (0, 0), "these lose every page just before it is needed");
        assert!(two_queue > 600, "burst {burst}: {two_queue}");
    }
}

/// Without scans all policies are close, and CLOCK is near LRU.
#[test]
fn clock_is_near_lru() {
    let trace: Vec<u64> = zipf(5000, 80_000).collect();
    let [clock, lru, two_queue] = POLICIES.map(|policy| hits_per_mille(policy, 256, 1, &trace));
    assert!(clock.abs_diff(lru) < 30, "CLOCK {clock}, LRU {lru}");
    assert!(two_queue > lru, "2Q {two_queue}, LRU {lru}");
}
