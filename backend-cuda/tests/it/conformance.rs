//! The conformance suite on the first NVIDIA GPU, with the default options and with each copy route.
//!
//! All tests are `#[ignore]`d: `cargo xtask test-gpu` runs them, and they fail without an NVIDIA GPU.

use std::sync::{Arc, LazyLock};

use backend_api::{Device, Reach};
use backend_cuda::{CudaDevice, CudaOptions, Route};
use vmarray_conformance::{Limits, Outcome, check_drop, random, run_peers};

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

/// Random kernels, compared with the interpreter. `VMARRAY_TEST_KERNELS` sets their number (default 48),
/// and `VMARRAY_TEST_SEED` the first seed.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn random_kernels_match_the_interpreter() {
    let device = open(&CudaOptions::new());
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (count, seed) =
        (number("VMARRAY_TEST_KERNELS").unwrap_or(48), number("VMARRAY_TEST_SEED").unwrap_or(1000));
    // Collect all kernels that differ, so that the failure lists them.
    let (mut next, mut failed) = (seed, Vec::new());
    while next < seed + count && failed.len() < 20 {
        let run = || random::launch_all(&device, next..seed + count);
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
            Ok(run) => {
                assert_eq!(run, seed + count - next, "not all were carried out");
                break;
            }
            Err(why) => {
                let words = why.downcast_ref::<String>().map_or("", String::as_str);
                let case = words.strip_prefix("case ").and_then(|words| words.split_once(':'));
                let Some(Ok(case)) = case.map(|(number, _)| number.parse::<u64>()) else {
                    std::panic::resume_unwind(why);
                };
                failed.push(words.lines().next().unwrap_or("").to_owned());
                next = case + 1;
            }
        }
    }
    println!("{} of {count} random kernels differ", failed.len());
    assert!(failed.is_empty(), "{failed:#?}");
}
