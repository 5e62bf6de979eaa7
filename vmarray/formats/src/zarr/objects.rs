//! Objects on a server (such as S3) as a Zarr store.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::{Arc, OnceLock, mpsc};

use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{
    Error as ObjectError, GetOptions, GetRange, ObjectStore, ObjectStoreExt as _, PutPayload,
};
use tokio::runtime::{Builder, Runtime};
use zarrs::storage::byte_range::{ByteRange, ByteRangeIterator};
use zarrs::storage::{
    Bytes, MaybeBytesIterator, OffsetBytesIterator, ReadableStorageTraits, StorageError, StoreKey,
    StorePrefix, WritableStorageTraits, store_set_partial_many,
};

use super::folder::FILE_MAX;

/// Length in bytes of the parts in which longer objects are sent. Only failed parts are retried.
const PART_BYTES: usize = 8 << 20;
/// Maximum number of concurrent requests for parts of an object, or for names.
const AT_ONCE: usize = 8;

/// Objects of a server whose names begin with a prefix.
#[derive(Clone, Debug)]
pub(super) struct Objects {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
}

/// Returns the async runtime whose threads make all requests.
fn runtime() -> io::Result<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let runtime =
        Builder::new_multi_thread().worker_threads(2).thread_name("vmarray-objects").enable_all().build()?;
    // If another thread stored its runtime first, use that one, and drop the new runtime, which has no work.
    Ok(RUNTIME.get_or_init(|| runtime))
}

/// Blocks on work in threads of this crate. The calling thread may belong to an async runtime, and must not
/// enter another one.
fn wait_for<T: Send + 'static>(
    work: impl Future<Output = Result<T, ObjectError>> + Send + 'static,
) -> Result<T, StorageError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    runtime()?.spawn(async move { sender.send(work.await) });
    match receiver.recv() {
        Ok(outcome) => outcome.map_err(failed),
        Err(mpsc::RecvError) => Err(StorageError::Other("a request to the server panicked".into())),
    }
}

fn failed(error: ObjectError) -> StorageError {
    let kind = match error {
        ObjectError::NotFound { .. } => io::ErrorKind::NotFound,
        ObjectError::PermissionDenied { .. } | ObjectError::Unauthenticated { .. } => {
            io::ErrorKind::PermissionDenied
        }
        ObjectError::AlreadyExists { .. } => io::ErrorKind::AlreadyExists,
        ObjectError::NotSupported { .. } | ObjectError::NotImplemented { .. } => io::ErrorKind::Unsupported,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error).into()
}

/// Converts the error "not found" to `None`.
fn found<T>(outcome: Result<T, ObjectError>) -> Result<Option<T>, ObjectError> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(ObjectError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Objects {
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str) -> Self {
        Self { store, prefix: Path::from(prefix) }
    }

    fn path(&self, key: &StoreKey) -> Path {
        self.within(key.as_str())
    }

    /// Returns the path of an object below the prefix.
    fn within(&self, names: &str) -> Path {
        let names = names.split('/').filter(|name| !name.is_empty());
        names.fold(self.prefix.clone(), |path, name| path.join(name))
    }

    /// Returns true if the server has no object with the prefix.
    pub fn is_empty(&self) -> Result<bool, StorageError> {
        let Self { store, prefix } = self.clone();
        wait_for(async move { Ok(store.list(Some(&prefix)).try_next().await?.is_none()) })
    }

    /// Removes all objects with the prefix. If one of them is the description of a store (`zarr.json`),
    /// removes nothing, because another writer has then completed a store there.
    pub fn remove(&self) {
        let Self { store, prefix } = self.clone();
        // Ignore the result of the removal, because the caller reports the first error.
        let _ = wait_for(async move {
            if found(store.head(&prefix.clone().join("zarr.json")).await)?.is_some() {
                return Ok(());
            }
            remove_all(&*store, &prefix).await
        });
    }
}

/// Uploads an object in parts; readers see it only when it is complete.
async fn put_in_parts(store: &dyn ObjectStore, path: &Path, value: &Bytes) -> Result<(), ObjectError> {
    let mut upload = store.put_multipart(path).await?;
    let starts = (0..value.len()).step_by(PART_BYTES);
    let parts = starts.map(|at| value.slice(at..value.len().min(at + PART_BYTES)));
    let mut parts = parts.map(|part| upload.put_part(part.into())).collect::<Vec<_>>().into_iter();
    let (mut under_way, mut sent) = (FuturesUnordered::new(), Ok(()));
    loop {
        while sent.is_ok()
            && under_way.len() < AT_ONCE
            && let Some(part) = parts.next()
        {
            under_way.push(tokio::spawn(part));
        }
        // After a failure, wait for the parts in flight before the abort: a part that reaches the server
        // after the abort may remain there.
        let Some(ended) = under_way.next().await else { break };
        sent = sent.and(ended.map_err(ObjectError::from).flatten());
    }
    let outcome = match sent {
        Ok(()) => upload.complete().await.map(drop),
        Err(error) => Err(error),
    };
    if outcome.is_err() {
        // Ignore the result of the abort, because the caller reports the first error.
        let _ = upload.abort().await;
    }
    outcome
}

/// Removes all objects with a prefix. Lists their names first, because some servers abort a changing listing.
async fn remove_all(store: &dyn ObjectStore, prefix: &Path) -> Result<(), ObjectError> {
    let names: Vec<_> = store.list(Some(prefix)).map_ok(|object| object.location).try_collect().await?;
    let names = futures_util::stream::iter(names).map(Ok).boxed();
    store.delete_stream(names).try_for_each(|_| async { Ok(()) }).await
}

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.store, self.prefix)
    }
}

impl ReadableStorageTraits for Objects {
    fn get(&self, key: &StoreKey) -> Result<Option<Bytes>, StorageError> {
        let (store, path) = (Arc::clone(&self.store), self.path(key));
        wait_for(async move {
            let Some(object) = found(store.get(&path).await)? else { return Ok(None) };
            expect_short(&path, object.meta.size)?;
            object.bytes().await.map(Some)
        })
    }

    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        let (store, path) = (Arc::clone(&self.store), self.path(key));
        let ranges: Vec<ByteRange> = ranges.collect();
        let parts = wait_for(async move {
            let read = |range: ByteRange| {
                let (store, path) = (Arc::clone(&store), path.clone());
                async move {
                    let (range, wanted) = match range {
                        ByteRange::FromStart(start, Some(len)) => {
                            (GetRange::Bounded(start..start.saturating_add(len)), Some(len))
                        }
                        ByteRange::FromStart(start, None) => (GetRange::Offset(start), None),
                        ByteRange::Suffix(len) => (GetRange::Suffix(len), Some(len)),
                    };
                    expect_short(&path, wanted.unwrap_or(0))?;
                    let get = |range: GetRange| {
                        store.get_opts(&path, GetOptions { range: Some(range), ..GetOptions::default() })
                    };
                    let object = match (get(range).await, wanted) {
                        // Some servers do not support ranges from the end, so query the length first.
                        (Err(ObjectError::NotSupported { .. }), Some(wanted)) => {
                            let Some(head) = found(store.head(&path).await)? else { return Ok(None) };
                            found(get(GetRange::Bounded(head.size.saturating_sub(wanted)..head.size)).await)?
                        }
                        (object, _) => found(object)?,
                    };
                    let Some(object) = object else { return Ok(None) };
                    let len = object.range.end.saturating_sub(object.range.start);
                    expect_short(&path, len)?;
                    let bytes = object.bytes().await?;
                    if wanted.is_some_and(|wanted| wanted != bytes.len() as u64) {
                        let requested = wanted.unwrap_or(0);
                        let source = format!("{path} gave {} of {requested} requested bytes", bytes.len());
                        return Err(ObjectError::Generic { store: "object", source: source.into() });
                    }
                    Ok(Some(bytes))
                }
            };
            let reads = futures_util::stream::iter(ranges).map(read).buffered(AT_ONCE);
            reads.try_collect::<Vec<Option<Bytes>>>().await
        })?;
        let Some(parts) = parts.into_iter().collect::<Option<Vec<_>>>() else { return Ok(None) };
        Ok(Some(Box::new(parts.into_iter().map(Ok))))
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        let (store, path) = (Arc::clone(&self.store), self.path(key));
        wait_for(async move { Ok(found(store.head(&path).await)?.map(|object| object.size)) })
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

/// Returns an error for objects longer than the longest chunk, before memory is allocated for them.
fn expect_short(path: &Path, bytes: u64) -> Result<(), ObjectError> {
    if bytes <= FILE_MAX {
        return Ok(());
    }
    let source = format!("{path} has more than {FILE_MAX} bytes").into();
    Err(ObjectError::Generic { store: "object", source })
}

impl WritableStorageTraits for Objects {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        let (store, path) = (Arc::clone(&self.store), self.path(key));
        wait_for(async move {
            if value.len() <= PART_BYTES {
                return store.put(&path, PutPayload::from_bytes(value)).await.map(drop);
            }
            put_in_parts(&*store, &path, &value).await
        })
    }

    fn set_partial_many(&self, key: &StoreKey, values: OffsetBytesIterator<'_>) -> Result<(), StorageError> {
        store_set_partial_many(self, key, values)
    }

    fn supports_set_partial(&self) -> bool {
        false
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        let (store, path) = (Arc::clone(&self.store), self.path(key));
        wait_for(async move { found(store.delete(&path).await).map(drop) })
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        let (store, prefix) = (Arc::clone(&self.store), self.within(prefix.as_str()));
        wait_for(async move { remove_all(&*store, &prefix).await })
    }
}
