//! Methods that a wrapper passes on to the device in its field `inner`.

/// Writes the named methods of [`Device`](crate::Device) so that they do what the inner device does.
macro_rules! forward {
    ($($method:ident)*) => { $($crate::wrap::forward::forward!(@$method);)* };
    (@info) => {
        fn info(&self) -> &$crate::DeviceInfo {
            self.inner.info()
        }
    };
    (@routes) => {
        fn routes(&self) -> &[$crate::Route] {
            self.inner.routes()
        }
    };
    (@set_routing) => {
        fn set_routing(&self, routing: $crate::Routing) {
            self.inner.set_routing(routing);
        }
    };
    (@routing) => {
        fn routing(&self) -> $crate::Routing {
            self.inner.routing()
        }
    };
    (@memory) => {
        fn memory(&self) -> $crate::Result<$crate::MemoryStatus> {
            self.inner.memory()
        }
    };
    (@allocate) => {
        fn allocate(&self, bytes: u64, commit: $crate::Commit) -> $crate::Result<$crate::BufferId> {
            self.inner.allocate(bytes, commit)
        }
    };
    (@allocate_host) => {
        fn allocate_host(
            &self,
            bytes: usize,
            kind: $crate::HostMemory,
        ) -> $crate::Result<$crate::HostAllocation> {
            self.inner.allocate_host(bytes, kind)
        }
    };
    (@import_host) => {
        unsafe fn import_host(
            &self,
            address: std::ptr::NonNull<u8>,
            bytes: usize,
            kind: $crate::HostMemory,
        ) -> $crate::Result<$crate::HostId> {
            // SAFETY: the caller's promise is passed on.
            unsafe { self.inner.import_host(address, bytes, kind) }
        }
    };
    (@prepare) => {
        fn prepare(&self, compute: &$crate::Compute<'_>) -> $crate::Result<()> {
            self.inner.prepare(compute)
        }
    };
    (@release) => {
        fn release(&self, buffer: $crate::BufferId) {
            self.inner.release(buffer);
        }
    };
    (@release_host) => {
        fn release_host(&self, host: $crate::HostId) {
            self.inner.release_host(host);
        }
    };
}

pub(crate) use forward;
