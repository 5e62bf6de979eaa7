//! The device of a build without backends: there is none.

use backend_api::Device;

/// Has no values, so that [`AnyDevice`](crate::AnyDevice) is a type in every build.
#[derive(Clone, Copy, Debug)]
pub enum NoDevice {}

impl NoDevice {
    fn device(&self) -> &dyn Device {
        match *self {}
    }
}

// SAFETY: nothing can be called.
unsafe impl Device for NoDevice {
    backend_api::forward! { self => self.device();
        info memory create_queue release_queue allocate release allocate_host import_host release_host wipe_on_release
        submit fill search gather scatter compute poll wait wake order_after
    }
}
