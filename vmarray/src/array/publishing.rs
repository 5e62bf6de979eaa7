//! Connects an array with the statistics that the process publishes for `vmarray-monitor`.

use std::sync::{Arc, Weak};

use backend_api::HostMemory;

use crate::base::stats_export::{Publication, PublishedArray, PublishedChannel};
use crate::engine::channel::Channel;
use crate::engine::page::hits;
use crate::engine::pager::Pager;
use crate::setup::profile::Profile;

/// Publishes statistics of an array until its pager is dropped.
pub(super) fn begin(pager: &mut Pager, name: String, element_bytes: usize) {
    // Use weak references, so that the publication never keeps a channel (share of a device) alive.
    let channels: Vec<Weak<Channel>> = pager.channels().iter().map(Arc::downgrade).collect();
    let (table, counter) = (pager.weak_table(), pager.counter());
    // Earlier arrays may have used the same hit counter, so subtract their hits.
    let before = hits(counter).unwrap_or(0);
    pager.publish(Publication::begin(move || PublishedArray {
        name: name.clone(),
        bytes: table.upgrade().map_or(0, |table| (table.lengths().len() * element_bytes) as u64),
        hits: hits(counter).map(|hits| hits.wrapping_sub(before)),
        channels: channels.iter().filter_map(Weak::upgrade).map(|channel| describe(&channel)).collect(),
    }));
}

fn describe(channel: &Channel) -> PublishedChannel {
    let (cache_bytes, _, kind) = channel.cache_memory();
    let profile = Profile::known(channel.device().info());
    let locked = if kind == HostMemory::Pinned { cache_bytes + channel.staging_bytes() } else { 0 };
    PublishedChannel {
        device: channel.device().info().to_string(),
        stats: channel.counters.snapshot(),
        cache_bytes: cache_bytes as u64,
        pinned_bytes: locked as u64,
        read_limit: profile.map(|profile| profile.read),
        write_limit: profile.map(|profile| profile.write),
    }
}
