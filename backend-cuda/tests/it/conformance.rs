//! The contract's suite on the first card, with the defaults and with each way that can be forced.
//!
//! Without a card the tests say so and pass; with `VMARRAY_REQUIRE=cuda` in the environment they fail then.

use std::sync::{Arc, OnceLock};

use backend_cuda::{CudaDevice, Options, Route};

type Slot = OnceLock<Option<Arc<CudaDevice>>>;

/// The first card, opened once for each set of options.
fn card(slot: &'static Slot, options: Options) -> Option<Arc<CudaDevice>> {
    slot.get_or_init(|| {
        let Some(card) = backend_cuda::devices().into_iter().next() else {
            let required = std::env::var("VMARRAY_REQUIRE").is_ok_and(|wanted| wanted.contains("cuda"));
            assert!(!required, "VMARRAY_REQUIRE names cuda, and there is no NVIDIA card or no driver");
            return None;
        };
        Some(Arc::new(CudaDevice::open_with(card.index, &options).expect("the card opens")))
    })
    .clone()
}

macro_rules! suite {
    ($name:ident, $options:expr) => {
        mod $name {
            use super::*;
            static SLOT: Slot = Slot::new();
            backend_api::conformance_tests!(card(&SLOT, $options));
        }
    };
}
suite!(by_default, Options::new());
suite!(copies_singly, Options::new().with_route(Route::Single));
suite!(copies_in_batches, Options::new().with_route(Route::Batch));
suite!(copies_by_kernel, Options::new().with_route(Route::Kernel));
