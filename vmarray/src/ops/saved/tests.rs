//! Tests that a snapshot saves a page before any kind of change to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use backend_host::{HostDevice, SimulatedDevice};
use futures::executor::block_on;
use parking_lot::Mutex;

use crate::array::testing::{host, one_channel};
use crate::base::error::Result;
use crate::engine::pager::{PageSaver, Pager};
use crate::prelude::*;
use crate::{ErrorKind, VirtualArray};

const PAGE_LEN: usize = 64;
const PAGES: usize = 24;
const LEN: usize = PAGE_LEN * PAGES;

type Saved = Arc<Mutex<BTreeMap<u64, Vec<u32>>>>;

/// Records the contents of pages.
struct Notes(Saved);

impl PageSaver for Notes {
    fn save(&self, pager: &Pager, page: u64) -> Result<()> {
        let mut elements = vec![0_u32; PAGE_LEN];
        pager.read_uncached(page, 0, bytemuck::cast_slice_mut(&mut elements))?;
        assert!(self.0.lock().insert(page, elements).is_none(), "page {page} is saved once");
        Ok(())
    }
}

fn array<D: backend_api::Device>(device: &Arc<D>) -> VirtualArray<u32, D> {
    let array = one_channel::<u32, _>(device, (PAGES, PAGE_LEN), 6).max_len(2 * LEN).build().unwrap();
    // The last pages are never written.
    array.write(0, &(0..(LEN - 3 * PAGE_LEN) as u32).map(|i| i + 1).collect::<Vec<_>>()).unwrap();
    array.set(5, 6).unwrap();
    array.set(5, 6).unwrap();
    array
}

/// Each way saves a page's old contents, once, before the change. A page that is only read, or was changed
/// already, is not saved.
#[test]
fn each_way_of_changing_a_page_saves_it_before() {
    type Change<D> = fn(&VirtualArray<u32, D>, usize);
    fn all_ways<D: backend_api::Device>(device: &Arc<D>) {
        let ways: [(&str, Change<D>); 16] = [
            ("set", |array, at| array.set(at, 0).unwrap()),
            ("replace", |array, at| _ = array.replace(at, 0).unwrap()),
            ("update", |array, at| _ = array.update(at, |x| x ^ 7).unwrap()),
            ("set_uncached", |array, at| array.set_uncached(at, 0).unwrap()),
            ("write", |array, at| array.write(at, &[0; 100][..100.min(LEN - at)]).unwrap()),
            ("write much", |array, at| array.write(0, &vec![at as u32; LEN]).unwrap()),
            ("fill", |array, at| array.fill(at.., 0).unwrap()),
            ("page_mut", |array, at| {
                let page = at / PAGE_LEN;
                array.page_mut(page).unwrap()[at % PAGE_LEN] = 0;
            }),
            ("two guards", |array, at| {
                let (page, other) = (at / PAGE_LEN, (at / PAGE_LEN + 1) % PAGES);
                let (page, other) = (page.min(other), page.max(other));
                let mut one = array.page_mut(page).unwrap();
                let mut two = array.page_mut(other).unwrap();
                std::mem::swap(&mut one[0], &mut two[1]);
            }),
            ("scatter", |array, at| {
                let indices: Vec<usize> = (0..200).map(|i| (at + i * 37) % LEN).collect();
                array.scatter(&indices, &[9; 200]).unwrap();
            }),
            ("transform", |array, at| {
                let value = Field::<u32, u32>::whole();
                array.transform(at / 2.., value.set(value + 1)).unwrap();
            }),
            ("assign_where", |array, _| {
                let value = Field::<u32, u32>::whole();
                array.assign_where(.., value.lt(500), value.set(3)).unwrap();
            }),
            ("discard", |array, at| array.discard(at / PAGE_LEN * PAGE_LEN..).unwrap()),
            ("copy_from", |array, at| {
                let count = (LEN / 2).min(LEN - at);
                array.copy_from(at, array.section(..count).unwrap()).unwrap();
            }),
            ("push", |array, _| _ = array.push(1).unwrap()),
            ("cursor", |array, at| {
                let mut cursor = array.cursor_mut();
                cursor.set(at, 0).unwrap();
            }),
        ];
        for (name, change) in ways {
            for at in [0, 5, 700, LEN - 1] {
                let array = array(device);
                let before = array.to_vec(..).unwrap();
                let saved = Saved::default();
                let snapshot = array.pager().snapshot().unwrap();
                assert_eq!(snapshot.len(), LEN);
                snapshot.save_by(Box::new(Notes(Arc::clone(&saved))));
                // A snapshot does not delay reads.
                assert_eq!(array.to_vec(..).unwrap(), before);
                assert_eq!(array.gather(&[5, 1000]).unwrap(), [before[5], before[1000]]);
                assert_eq!(array.count(.., Field::whole(), &6_u32).unwrap(), 1);
                let page = array.page(at / PAGE_LEN).unwrap();
                assert_eq!(page[..], before[page.range()]);
                drop(page);
                assert!(saved.lock().is_empty(), "{name}");
                change(&array, at);
                change(&array, at);
                let after = array.to_vec(..LEN).unwrap();
                let saved_now = saved.lock().clone();
                for page in 0..PAGES {
                    let range = page * PAGE_LEN..(page + 1) * PAGE_LEN;
                    match saved_now.get(&(page as u64)) {
                        Some(saved) => assert_eq!(saved[..], before[range], "{name} at {at}"),
                        None => assert_eq!(after[range.clone()], before[range], "{name} at {at}"),
                    }
                }
                // The snapshot itself saves the other pages.
                let taken: usize =
                    snapshot.take(0..PAGES as u64).unwrap().iter().map(|taken| taken.pages().count()).sum();
                assert_eq!(taken + saved_now.range(..PAGES as u64).count(), PAGES, "{name}");
                snapshot.finish().unwrap();
                array.fill(.., 1).unwrap();
                array.set(3, 4).unwrap();
                assert_eq!(array.count(.., Field::whole(), &1_u32).unwrap(), array.len() - 1);
            }
        }
    }
    all_ways::<HostDevice>(&Arc::new(host()));
    all_ways::<SimulatedDevice>(&Arc::new(SimulatedDevice::builder(3).build()));
}

/// Tasks save no pages themselves. They continue when the snapshot has saved their pages, early or at its
/// end.
#[test]
fn tasks_wait_until_their_page_is_saved() {
    for is_cancelled in [false, true] {
        let array = array(&Arc::new(host()));
        let saved = Saved::default();
        let snapshot = array.pager().snapshot().unwrap();
        snapshot.save_by(Box::new(Notes(Arc::clone(&saved))));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                block_on(async {
                    // Write to pages that are resident, absent, and without contents.
                    for at in [5, 700, LEN - 1] {
                        array.set_async(at, 1_000_000).await.unwrap();
                        assert_eq!(array.get_async(at).await.unwrap(), 1_000_000);
                    }
                    array.page_mut_async(3).await.unwrap()[0] = 7;
                });
                is_over.store(true, Ordering::SeqCst);
            });
            if is_cancelled {
                drop(snapshot);
                return;
            }
            while !is_over.load(Ordering::SeqCst) {
                // This call saves only the pages that tasks wait for.
                assert!(snapshot.take(0..0).unwrap().is_empty());
                std::thread::yield_now();
            }
            let pages: Vec<u64> = saved.lock().keys().copied().collect();
            assert_eq!(pages, [0, 3, 700 / PAGE_LEN as u64, PAGES as u64 - 1]);
            assert_eq!(saved.lock()[&0][5], 6);
            snapshot.finish().unwrap();
        });
        assert_eq!(array.get(700).unwrap(), 1_000_000);
    }
}

/// A snapshot with a page that cannot be saved fails; the thread that changes the page continues.
#[test]
fn a_failed_save_fails_the_snapshot_only() {
    struct Full;
    impl PageSaver for Full {
        fn save(&self, _: &Pager, _: u64) -> Result<()> {
            Err(ErrorKind::Cancelled.into())
        }
    }
    let array = array(&Arc::new(host()));
    let snapshot = array.pager().snapshot().unwrap();
    snapshot.save_by(Box::new(Full));
    array.fill(.., 3).unwrap();
    assert!(snapshot.take(0..5).is_err());
    drop(snapshot);
    assert_eq!(array.count(.., Field::whole(), &3_u32).unwrap(), LEN);
}

/// A snapshot does not wait for guards of its own thread, only for guards of other threads.
#[test]
fn guards_and_snapshots_do_not_wait_for_each_other() {
    let array = array(&Arc::new(host()));
    let guard = array.page(3).unwrap();
    let error = array.pager().snapshot().err().unwrap();
    assert_eq!(*error.kind(), ErrorKind::WouldDeadlock { page: 3 });
    drop(guard);
    let (held, go_on) = (std::sync::Barrier::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut first = array.page_mut(0).unwrap();
            held.wait();
            // The snapshot marks other pages during this loop. A thread with guards must not be blocked by
            // that.
            while !go_on.load(Ordering::SeqCst) {
                array.set(17 * PAGE_LEN, 5).unwrap();
                array.page_mut(9).unwrap()[0] += 1;
            }
            first[0] = 5;
        });
        held.wait();
        let marker = scope.spawn(|| {
            let snapshot = array.pager().snapshot().unwrap();
            let saved = Saved::default();
            snapshot.save_by(Box::new(Notes(Arc::clone(&saved))));
            // The snapshot contains the writes under the guard, but not this later write.
            array.set(0, 6).unwrap();
            assert_eq!(saved.lock()[&0][0], 5);
            snapshot.finish().unwrap();
        });
        while !array.pager().entry(20).state(Ordering::SeqCst).any(crate::engine::page::state::UNSAVED) {
            std::thread::yield_now();
        }
        go_on.store(true, Ordering::SeqCst);
        marker.join().unwrap();
    });
}
