//! The engine's answer to a frame that an eviction policy proposes: claim it, keep it, or skip it.

/// The pager's reply to a frame that [`Evictor::victims`](super::Evictor::victims) proposes for eviction.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The caller has claimed the frame, so the policy forgets it.
    Take,
    /// The frame cannot go now, because it is pinned, in flight, or dirty. It keeps its place.
    Skip,
    /// The referenced bit was set and the caller has cleared it. The frame gets a second chance.
    Referenced,
    /// As [`Skip`](Self::Skip), and the search ends.
    Stop,
}

/// The callback of [`Evictor::victims`](super::Evictor::victims): maps a frame number to the caller's reply.
#[doc(hidden)]
pub type Candidate<'a> = dyn FnMut(u32) -> Verdict + 'a;
