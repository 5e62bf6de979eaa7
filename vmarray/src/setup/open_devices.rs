//! The open devices of this process, one for each GPU. Arrays built without a list of devices share them.

use std::sync::Arc;

use backend_api::{Device, ErrorKind};
use parking_lot::Mutex;

use crate::base::error::Result;
use crate::setup::any::AnyDevice;
use crate::setup::inherited;

/// The key of a GPU in the list of open devices, valid while the process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CardKey {
    pub(crate) backend: &'static str,
    /// The name of the driver, for backends that have several; otherwise empty.
    pub(crate) platform: String,
    pub(crate) identity: String,
    /// Number of GPUs with the same three names that precede this one in discovery's list.
    pub(crate) number: usize,
}

/// The open device of one GPU. The thread that opens it holds the lock, so no other thread opens it again.
type CardSlot = Arc<Mutex<Option<Arc<AnyDevice>>>>;

#[derive(Debug)]
struct OpenCard {
    key: CardKey,
    slot: CardSlot,
}

// A forked process takes none of these locks, because `inherited` makes calls there fail first.

/// The open GPUs. They stay open until the process ends or calls [`close_unused`]: opening takes time.
static CARDS: Mutex<Vec<OpenCard>> = Mutex::new(Vec::new());
/// The devices that the program [has set](set_devices).
static SET: Mutex<Option<Vec<Arc<AnyDevice>>>> = Mutex::new(None);

fn slot_of(key: &CardKey) -> CardSlot {
    let mut cards = CARDS.lock();
    if let Some(card) = cards.iter().find(|card| card.key == *key) {
        return Arc::clone(&card.slot);
    }
    let slot = CardSlot::default();
    cards.push(OpenCard { key: key.clone(), slot: Arc::clone(&slot) });
    slot
}

fn is_lost(device: &AnyDevice) -> bool {
    device.memory().is_err_and(|error| error.kind() == ErrorKind::Lost)
}

/// Returns the open device of a GPU, and true if this call opened it. Replaces a lost device.
pub(crate) fn shared(
    key: &CardKey,
    open: impl Fn() -> Result<AnyDevice, backend_api::Error>,
) -> Result<(Arc<AnyDevice>, bool), backend_api::Error> {
    inherited::expect_own_process("open")?;
    let slot = slot_of(key);
    loop {
        let mut held = slot.lock();
        match held.take() {
            Some(device) if !is_lost(&device) => {
                *held = Some(Arc::clone(&device));
                return Ok((device, false));
            }
            Some(lost) => {
                // Drop outside of the locks, because the drop may run wakers of the program. Drop before the
                // next open, because a driver opens a lost card again only after its old context is gone.
                drop(held);
                drop(lost);
            }
            None => {
                let device = Arc::new(open()?);
                *held = Some(Arc::clone(&device));
                return Ok((device, true));
            }
        }
    }
}

/// Returns the devices of some GPUs, if all are open and none is lost.
pub(crate) fn all_open(cards: &[CardKey]) -> Option<Vec<Arc<AnyDevice>>> {
    let open = |key| slot_of(key).lock().clone().filter(|device| !is_lost(device));
    cards.iter().map(open).collect()
}

/// Returns the shared device in host RAM, which operations use if another device is full.
pub(crate) fn in_ram() -> Result<Arc<dyn Device>> {
    #[cfg(feature = "host")]
    let device = {
        let open = || backend_host::HostDevice::builder().build().map(AnyDevice::from);
        Ok(shared(&CardKey::host_ram(), open)?.0 as Arc<dyn Device>)
    };
    #[cfg(not(feature = "host"))]
    let device = {
        let error = backend_api::Error::new(ErrorKind::Unsupported, "allocate");
        Err(error.with_detail("RAM in place of a file needs the feature `host`").into())
    };
    device
}

impl CardKey {
    /// Returns the key of host RAM.
    #[cfg(feature = "host")]
    pub(crate) fn host_ram() -> Self {
        Self { backend: "host", platform: String::new(), identity: "host:0".into(), number: 0 }
    }
}

/// Closes all shared devices of the process that are not in use, and returns their number. The next array
/// without a list of devices opens them again. No effect in a forked process.
///
/// Without this call, shared devices stay open until the process ends: an open GPU keeps its driver context,
/// its compiled kernels and some threads. A device is in use while an array, a source or the program holds a
/// reference to it.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::discovery::close_unused;
/// let array = VirtualArray::<u32>::new(1000)?;
/// array.fill(.., 7)?;
/// close_unused(); // not the device of `array`
/// assert_eq!(array.get(999)?, 7);
/// drop(array);
/// close_unused();
/// assert_eq!(VirtualArray::<u32>::new(1000)?.get(999)?, 0);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub fn close_unused() -> usize {
    if inherited::is_child() {
        return 0;
    }
    let slots: Vec<_> = CARDS.lock().iter().map(|card| Arc::clone(&card.slot)).collect();
    // Skip a locked list entry, because the thread that is opening the entry's card will use the card.
    let take_unused = |slot: &CardSlot| slot.try_lock()?.take_if(|device| Arc::strong_count(device) == 1);
    let unused: Vec<_> = slots.iter().filter_map(take_unused).collect();
    unused.len()
}

/// Sets the default devices of the process, for all later arrays, sources and index sets without a list of
/// devices. An empty list restores the [devices of the machine](crate::devices). Existing arrays do not
/// change. No effect in a forked process.
///
/// Use this for devices with a memory limit, with driver options, or in the context of another library. Call
/// it once, before the program creates the first array.
///
/// ```
/// use vmarray::prelude::*;
/// use std::sync::Arc;
/// use vmarray::{AnyDevice, discovery::set_devices, host::HostDevice};
/// let small = HostDevice::builder().bytes(1 << 20).name("small").build()?;
/// set_devices([Arc::new(AnyDevice::from(small))]);
/// assert!(VirtualArray::<u8>::new(2 << 20).is_err());
/// let array = VirtualArray::<u8>::new(1000)?;
/// assert!(array.homes()[0].replicas[0].device.contains("small"));
/// set_devices([]);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub fn set_devices(devices: impl IntoIterator<Item = Arc<AnyDevice>>) {
    let devices: Vec<_> = devices.into_iter().collect();
    if inherited::is_child() {
        return;
    }
    let before = std::mem::replace(&mut *SET.lock(), (!devices.is_empty()).then_some(devices));
    // Drop the devices without the lock, because a drop may run code of the program.
    drop(before);
}

/// Returns the devices that the program has set as default.
pub(crate) fn set_by_program() -> Option<Vec<Arc<AnyDevice>>> {
    SET.lock().clone()
}

/// Runs a function while the calling thread holds all locks of this module, of choices, and of host RAM.
#[cfg(all(test, feature = "host"))]
pub(crate) fn with_all_locks(run: impl FnOnce()) {
    let slot = slot_of(&CardKey::host_ram());
    let _locks = (slot.lock(), CARDS.lock(), super::discovery::CHOICES.lock(), SET.lock());
    run();
}

#[cfg(all(test, feature = "host"))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use backend_host::SimulatedDevice;

    use super::*;

    fn key(identity: &str) -> CardKey {
        CardKey { backend: "test", platform: String::new(), identity: identity.into(), number: 0 }
    }

    fn simulated() -> Result<AnyDevice, backend_api::Error> {
        Ok(SimulatedDevice::builder(1).build().into())
    }

    #[test]
    fn threads_open_a_card_once() {
        let opened = AtomicUsize::new(0);
        let open = || {
            opened.fetch_add(1, Ordering::Relaxed);
            simulated()
        };
        let own = || shared(&key("threads"), open).unwrap().0;
        let devices: Vec<_> = std::thread::scope(|threads| {
            let threads: Vec<_> = (0..8).map(|_| threads.spawn(own)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(devices.iter().all(|device| Arc::ptr_eq(device, &devices[0])));
        assert_eq!(opened.into_inner(), 1);
    }

    #[test]
    fn a_lost_device_is_opened_again_and_stays_lost_for_its_owners() {
        let (first, is_new) = shared(&key("lost"), simulated).unwrap();
        let AnyDevice::Simulated(device) = &*first else { unreachable!("this test opens simulated devices") };
        assert!(is_new && !shared(&key("lost"), simulated).unwrap().1);
        device.lose();
        let (second, is_new) = shared(&key("lost"), simulated).unwrap();
        assert!(is_new && !Arc::ptr_eq(&first, &second));
        assert!(is_lost(&first) && !is_lost(&second));
    }

    #[test]
    fn a_card_that_cannot_be_opened_is_tried_again() {
        let refused = || Err(backend_api::Error::new(ErrorKind::Driver, "open"));
        assert!(shared(&key("refused"), refused).is_err());
        assert!(shared(&key("refused"), simulated).is_ok());
    }

    #[test]
    fn devices_in_use_are_not_closed() {
        let used = shared(&key("used"), simulated).unwrap().0;
        let unused = Arc::downgrade(&shared(&key("unused"), simulated).unwrap().0);
        // Ignore the returned number, because another test of the process may have closed the device.
        close_unused();
        assert!(unused.upgrade().is_none());
        assert!(Arc::ptr_eq(&used, &shared(&key("used"), simulated).unwrap().0));
    }
}
