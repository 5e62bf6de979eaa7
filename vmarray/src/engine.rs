//! The part of the engine that submits work to devices; `vmarray_engine` has the part without devices.

pub(crate) use vmarray_engine::{
    combiner, event_count, evict, guards, links, page, parallel_copy, read_ahead, redundancy, shared_work,
};

pub(crate) mod channel;
pub(crate) mod pager;
