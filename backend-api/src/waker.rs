//! Wakers that call a function.

use std::sync::Arc;
use std::task::{Wake, Waker};

/// Returns a waker that calls a function at each wake-up.
pub fn waker(call: impl Fn() + Send + Sync + 'static) -> Waker {
    struct Call<F>(F);
    impl<F: Fn() + Send + Sync> Wake for Call<F> {
        fn wake(self: Arc<Self>) {
            (self.0)();
        }
    }
    Arc::new(Call(call)).into()
}
