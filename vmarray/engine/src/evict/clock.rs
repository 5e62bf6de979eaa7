//! The CLOCK eviction policy: a hand moves over the cache frames in a circle and proposes frames that were
//! not used since its last visit. The caller stores the referenced bits.

use super::verdict::{Candidate, Verdict};

/// State of a frame, as the hand last saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Referenced {
    /// Not tracked.
    Absent,
    /// Tracked.
    Present,
    /// Tracked, and found referenced at the hand's last visit.
    Spared,
}

/// The state of the CLOCK policy: the frames as a ring, and the position of the hand.
#[derive(Debug)]
pub struct Clock {
    /// The state of each frame. Grows with the numbers of inserted frames; frames after its end are absent.
    states: Vec<Referenced>,
    frames: usize,
    /// The frame to propose next.
    hand: usize,
    /// Number of tracked frames.
    len: usize,
}

impl Clock {
    pub(super) fn new(frames: usize) -> Self {
        Self { states: Vec::new(), frames, hand: 0, len: 0 }
    }

    pub(super) fn inserted(&mut self, frame: u32) {
        let frame = frame as usize;
        debug_assert!(frame < self.frames, "frame {frame} must be below {}", self.frames);
        if self.states.len() <= frame {
            self.states.resize(frame + 1, Referenced::Absent);
        }
        let state = &mut self.states[frame];
        self.len += usize::from(*state == Referenced::Absent);
        *state = Referenced::Present;
    }

    pub(super) fn removed(&mut self, frame: u32) {
        let Some(state) = self.states.get_mut(frame as usize) else { return };
        self.len -= usize::from(*state != Referenced::Absent);
        *state = Referenced::Absent;
    }

    /// Makes at most two revolutions of the hand. The first one proposes every tracked frame, and rewrites
    /// the frame's state. The second one proposes only frames that the first found referenced, so a skipped
    /// frame is not proposed twice, and `Spared` marks of earlier calls have no effect.
    pub(super) fn victims(&mut self, want: usize, candidate: &mut Candidate<'_>) -> usize {
        let frames = self.frames;
        let mut taken = 0;
        for step in 0..2 * frames {
            if taken == want || self.len == 0 {
                break;
            }
            let frame = self.hand;
            self.hand = if frame + 1 == frames { 0 } else { frame + 1 };
            let first_turn = step < frames;
            match self.states.get(frame) {
                None | Some(Referenced::Absent) => continue,
                Some(Referenced::Present) if !first_turn => continue,
                Some(Referenced::Present | Referenced::Spared) => {}
            }
            let verdict = candidate(frame as u32);
            self.states[frame] = match verdict {
                Verdict::Take => {
                    taken += 1;
                    self.len -= 1;
                    Referenced::Absent
                }
                Verdict::Referenced if first_turn => Referenced::Spared,
                Verdict::Referenced | Verdict::Skip | Verdict::Stop => Referenced::Present,
            };
            if verdict == Verdict::Stop {
                break;
            }
        }
        taken
    }
}
