//! Fuzz target: the parser of the device filter in the environment variable `VMARRAY_DEVICES`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vmarray::Discovery;

fuzz_target!(|filters: &str| {
    match Discovery::new().select(filters) {
        Ok(discovery) => {
            let _ = discovery.report().to_string();
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
