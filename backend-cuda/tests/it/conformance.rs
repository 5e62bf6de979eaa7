//! The conformance suite on the first NVIDIA GPU, with the default options and with each copy route.
//!
//! All tests are `#[ignore]`d: `cargo xtask test-gpu` runs them, and they fail without an NVIDIA GPU.

use std::sync::{Arc, LazyLock};

use backend_api::{Device, Reach};
use backend_cuda::{CudaDevice, CudaOptions, Route};
use vmarray_conformance::{Limits, Outcome, check_drop, run_peers};

/// Opens the first NVIDIA GPU.
fn open(options: &CudaOptions) -> Arc<CudaDevice> {
    let card = backend_cuda::devices().into_iter().next().expect("an NVIDIA GPU and its driver");
    Arc::new(CudaDevice::open_with(card.index, options).expect("the card opens"))
}

macro_rules! suite {
    ($name:ident, $options:expr) => {
        mod $name {
            use super::*;
            static DEVICE: LazyLock<Arc<CudaDevice>> = LazyLock::new(|| open(&$options));
            vmarray_conformance::conformance_tests!(
                #[ignore = "needs an NVIDIA GPU"]
                DEVICE.clone()
            );
        }
    };
}
suite!(by_default, CudaOptions::new());
suite!(copies_singly, CudaOptions::new().with_route(Route::Single));
suite!(copies_in_batches, CudaOptions::new().with_route(Route::Batch));
suite!(copies_by_kernel, CudaOptions::new().with_route(Route::Kernel));

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_drop_waits_for_no_waker() {
    assert_eq!(check_drop(open(&CudaOptions::new())), Outcome::Passed);
}

/// Two devices for the first GPU, and each GPU with each other one.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn devices_keep_the_contract_with_each_other() {
    let open = |index| Arc::new(CudaDevice::open(index).expect("the card opens"));
    let cards = backend_cuda::devices();
    let mut devices: Vec<_> = cards.iter().map(|card| open(card.index)).collect();
    devices.extend(cards.first().map(|card| open(card.index)));
    for (number, device) in devices.iter().enumerate() {
        for (_, peer) in devices.iter().enumerate().filter(|(other, _)| *other != number) {
            println!("{} reaches {}: {:?}", device.info(), peer.info(), device.reaches(peer.info()));
            run_peers(device, peer, &Limits::default()).assert_passed();
        }
    }
    if let [first, .., again] = &devices[..] {
        assert_eq!(first.reaches(again.info()), Reach::Maps, "two devices for one card");
    }
}
