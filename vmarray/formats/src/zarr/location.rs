//! Location of a Zarr store: a folder, or objects on a server.

use std::fmt;
use std::path::{Path, PathBuf};

use zarrs::storage::ReadableWritableStorage;

use super::folder;
#[cfg(feature = "object_store")]
use super::objects::Objects;
#[cfg(any(doc, feature = "object_store"))]
use crate::error::Error;
use crate::error::Result;
use crate::files::{self, TemporaryFile};

/// Location of a Zarr store: a folder, given by its path, or objects of a server.
///
/// With the feature `object_store`, a location can be in any [`ObjectStore`], with a prefix of object names:
/// S3 and compatible servers, Google's and Azure's storage, HTTP. Configure retries and timeouts of the
/// `ObjectStore` itself ([`RetryConfig`], `ClientOptions`); a final failure is [`Error::Zarr`].
///
/// Two threads of the crate make all requests. Functions block the calling thread, which may be a thread of
/// an asynchronous runtime. Give a location its own `ObjectStore`, because a connection works only in the
/// runtime that opened it. Only one writer may create a store at a location: two writers could both find it
/// empty.
///
/// [`ObjectStore`]: https://docs.rs/object_store/latest/object_store/trait.ObjectStore.html
/// [`RetryConfig`]: https://docs.rs/object_store/latest/object_store/struct.RetryConfig.html
///
#[cfg_attr(feature = "object_store", doc = "```")]
#[cfg_attr(not(feature = "object_store"), doc = "```ignore")]
/// use std::sync::Arc;
/// use vmarray::prelude::*;
/// use vmarray_formats::zarr::{self, Encoding, Location, Zarr};
/// use vmarray_formats::{FileOptions, object_store::memory::InMemory};
/// // AmazonS3Builder::from_env().with_bucket_name("images").build()?, with the feature `aws` of object_store
/// let bucket = Arc::new(InMemory::new());
/// let place = Location::objects(bucket, "2026/nov/holiday.zarr");
/// let image = NdArray::<u16, 2>::new([480, 640])?;
/// image.set([10, 20], 7)?;
/// zarr::write(place.clone(), &image, Encoding::new().chunk([64, 64]), FileOptions::new())?;
///
/// // The array fetches chunks on demand.
/// let image: NdArray<u16, 2> = Zarr::open(place)?.into_read_only_array(|elements| elements)?;
/// assert_eq!(image.get([10, 20])?, 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Location {
    /// The path of a folder, or the name of the objects, for messages.
    path: PathBuf,
    #[cfg(feature = "object_store")]
    objects: Option<Objects>,
}

impl<P: AsRef<Path>> From<P> for Location {
    /// Location of the folder with this path.
    fn from(path: P) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            #[cfg(feature = "object_store")]
            objects: None,
        }
    }
}

impl Location {
    /// Creates the location of a Zarr store whose object names begin with `prefix` and a slash.
    #[cfg(feature = "object_store")]
    #[cfg_attr(docsrs, doc(cfg(feature = "object_store")))]
    #[must_use]
    pub fn objects(store: std::sync::Arc<dyn object_store::ObjectStore>, prefix: &str) -> Self {
        let objects = Objects::new(store, prefix);
        Self { path: objects.to_string().into(), objects: Some(objects) }
    }

    /// Name of the location in messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the existing store, which other programs may read.
    pub(super) fn open(&self) -> Result<ReadableWritableStorage> {
        #[cfg(feature = "object_store")]
        if let Some(objects) = &self.objects {
            return Ok(std::sync::Arc::new(objects.clone()));
        }
        folder::open(&self.path)
    }

    /// Creates a store by calling `fill`. The store exists only if `fill` succeeds.
    pub(super) fn make(&self, fill: impl FnOnce(&ReadableWritableStorage) -> Result<()>) -> Result<()> {
        #[cfg(feature = "object_store")]
        if let Some(objects) = &self.objects {
            if !objects.is_empty().map_err(Error::zarr(&self.path))? {
                return Err(Error::Exists { path: self.path.clone() });
            }
            return fill(&self.open()?).inspect_err(|_| objects.remove());
        }
        let unfinished = TemporaryFile::folder(&self.path)?;
        fill(&folder::create(unfinished.temporary())?)?;
        files::sync_folders(unfinished.temporary())?;
        unfinished.finish()
    }

    /// Waits until the names of synchronised files are durable. Servers need no call, because they store
    /// accepted objects durably.
    pub(super) fn sync(&self) -> Result<()> {
        #[cfg(feature = "object_store")]
        if self.objects.is_some() {
            return Ok(());
        }
        files::sync_folders(&self.path)
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Location").field(&self.path).finish()
    }
}
