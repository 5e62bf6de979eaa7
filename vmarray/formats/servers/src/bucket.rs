//! A bucket on an S3 test server, and the clients that access it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::TryStreamExt as _;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{BackoffConfig, ObjectStore, ObjectStoreExt as _, RetryConfig};
use vmarray_formats::zarr::Location;

use crate::keys::Keys;
use crate::proxy::{Fault, Proxy, Request};
use crate::server::Server;

/// An S3 bucket for one test; dropping it removes the bucket from the server.
pub struct Bucket {
    pub server: &'static Server,
    pub name: String,
    client: Arc<dyn ObjectStore>,
}

/// Runs `test` once for each S3 server, with a new bucket.
///
/// # Panics
/// If there is no server, or the test panics.
pub fn each(test: impl Fn(&Bucket)) {
    let servers = Server::all();
    assert!(!servers.is_empty(), "there is no server: run `cargo xtask formats`, which sets one up");
    for server in servers {
        eprintln!("at {}", server.name());
        test(&Bucket::new(server));
    }
}

/// Returns a client configuration with at most `most` retries, almost without delay.
fn retries(most: usize) -> RetryConfig {
    let backoff = BackoffConfig {
        init_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(2),
        base: 2.0,
    };
    RetryConfig { backoff, max_retries: most, ..RetryConfig::default() }
}

impl Bucket {
    /// Creates a new bucket on the server.
    pub fn new(server: &'static Server) -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("bucket-{}", MADE.fetch_add(1, Ordering::Relaxed));
        server.make_bucket(&name);
        let client = client(&name, server.port(), server.keys(), 0);
        Self { server, name, client }
    }

    /// Returns the location of the Zarr store whose object names begin with `prefix`. The location's client
    /// does not retry requests, because the local server answers every request.
    pub fn at(&self, prefix: &str) -> Location {
        Location::objects(Arc::clone(&self.client), prefix)
    }

    /// Returns the same location as [`at`](Self::at), with a separate client that uses the credentials
    /// `keys`.
    pub fn at_with(&self, prefix: &str, keys: Keys) -> Location {
        Location::objects(client(&self.name, self.server.port(), keys, 0), prefix)
    }

    /// Returns the same location as [`at`](Self::at), with a client that connects through `proxy`, and
    /// repeats a failed request at most `retries` times.
    pub fn at_by(&self, proxy: &Proxy, prefix: &str, retries: usize) -> Location {
        Location::objects(client(&self.name, proxy.port(), self.server.keys(), retries), prefix)
    }

    /// Starts a proxy in front of the server. `decide` selects the requests that fail.
    pub fn proxy(&self, decide: impl FnMut(&Request) -> Option<Fault> + Send + 'static) -> Proxy {
        Proxy::new(self.server.port(), decide)
    }

    /// Returns the names of all objects in the bucket, sorted.
    pub fn names(&self) -> Vec<String> {
        let client = Arc::clone(&self.client);
        let mut names: Vec<String> = wait_for(async move {
            client.list(None).map_ok(|object| object.location.to_string()).try_collect().await
        });
        names.sort();
        names
    }

    /// Length of an object in bytes.
    pub fn size(&self, name: &str) -> u64 {
        let (client, path) = (Arc::clone(&self.client), Path::from(name));
        wait_for(async move { client.head(&path).await }).size
    }

    /// Removes an object from the bucket.
    pub fn delete(&self, name: &str) {
        let (client, path) = (Arc::clone(&self.client), Path::from(name));
        wait_for(async move { client.delete(&path).await });
    }

    /// Removes all objects of the bucket.
    pub fn clear(&self) {
        let client = Arc::clone(&self.client);
        wait_for(async move {
            let names = client.list(None).map_ok(|object| object.location);
            client.delete_stream(Box::pin(names)).try_for_each(|_| async { Ok(()) }).await
        });
    }

    /// Removes the bucket from the server, with all objects.
    pub fn remove(&self) {
        self.clear();
        self.server.remove_bucket(&self.name);
    }

    /// Number of multipart uploads that are neither completed nor aborted.
    pub fn uploads(&self) -> usize {
        self.server.uploads(&self.name)
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        self.server.forget_bucket(&self.name);
    }
}

fn client(bucket: &str, port: u16, keys: Keys, most: usize) -> Arc<dyn ObjectStore> {
    // Ignore an error, which means that other code has already set a crypto provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = AmazonS3Builder::new()
        .with_endpoint(format!("http://127.0.0.1:{port}"))
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_bucket_name(bucket)
        .with_access_key_id(keys.id)
        .with_secret_access_key(keys.secret)
        .with_retry(retries(most));
    Arc::new(client.build().expect("the settings of the S3 client must be valid"))
}

/// Blocks on a request of the test itself, in a separate async runtime.
fn wait_for<T>(work: impl Future<Output = object_store::Result<T>>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the runtime must start");
    runtime.block_on(work).expect("the request must succeed")
}
