//! Where stores are.

use std::fmt;
use std::path::{Path, PathBuf};

use zarrs::storage::ReadableWritableStorage;

use super::folder;
#[cfg(feature = "object_store")]
use super::objects::Objects;
#[cfg(any(doc, feature = "object_store"))]
use crate::error::Error;
use crate::error::Result;
use crate::files::{self, Unfinished};

/// Where a Zarr store is, or is to be: a folder, which any path stands for, or objects of a server.
///
/// With the feature `object_store` that is any [`ObjectStore`] and a prefix of names in it: S3 and what
/// speaks its protocol, Google's and Azure's storage, HTTP. How often requests are tried again, and how long
/// is waited for them, is set where that is made ([`RetryConfig`], `ClientOptions`); what fails in the end
/// is [`Error::Zarr`]. Requests are made by two threads of the crate's own, so threads of a program's
/// asynchronous runtime may call all functions, which block them; give a location an `ObjectStore` that the
/// program uses for nothing else, since the connections of one are served by the runtime that opened them.
/// One writer at a time: of two that make a store in one place both may find it empty.
///
/// [`ObjectStore`]: https://docs.rs/object_store/latest/object_store/trait.ObjectStore.html
/// [`RetryConfig`]: https://docs.rs/object_store/latest/object_store/struct.RetryConfig.html
///
#[cfg_attr(feature = "object_store", doc = "```")]
#[cfg_attr(not(feature = "object_store"), doc = "```ignore")]
/// use std::sync::Arc;
/// use vmarray::prelude::*;
/// use vmarray_formats::{Options, object_store::memory::InMemory, zarr::{self, Encoding, Location, Zarr}};
/// // AmazonS3Builder::from_env().with_bucket_name("images").build()?, with the feature `aws` of object_store
/// let bucket = Arc::new(InMemory::new());
/// let place = Location::objects(bucket, "2026/nov/holiday.zarr");
/// let image = NdArray::<u16, 2>::new([480, 640])?;
/// image.set([10, 20], 7)?;
/// zarr::write(place.clone(), &image, Encoding::new().chunk([64, 64]), Options::new())?;
///
/// // Chunks are fetched as they are wanted.
/// let image: NdArray<u16, 2> = Zarr::open(place)?.into_read_only_array(|elements| elements)?;
/// assert_eq!(image.get([10, 20])?, 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Location {
    /// A folder's path, or what objects are called in messages.
    path: PathBuf,
    #[cfg(feature = "object_store")]
    objects: Option<Objects>,
}

impl<P: AsRef<Path>> From<P> for Location {
    /// A folder.
    fn from(path: P) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            #[cfg(feature = "object_store")]
            objects: None,
        }
    }
}

impl Location {
    /// Objects whose names begin with `prefix` and a slash.
    #[cfg(feature = "object_store")]
    #[cfg_attr(docsrs, doc(cfg(feature = "object_store")))]
    #[must_use]
    pub fn objects(store: std::sync::Arc<dyn object_store::ObjectStore>, prefix: &str) -> Self {
        let objects = Objects::new(store, prefix);
        Self { path: objects.to_string().into(), objects: Some(objects) }
    }

    /// What it is called in messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What is there already, that others may read.
    pub(super) fn open(&self) -> Result<ReadableWritableStorage> {
        #[cfg(feature = "object_store")]
        if let Some(objects) = &self.objects {
            return Ok(std::sync::Arc::new(objects.clone()));
        }
        folder::open(&self.path)
    }

    /// Makes a new store, which is whole once it can be opened, or not there.
    pub(super) fn make(&self, fill: impl FnOnce(&ReadableWritableStorage) -> Result<()>) -> Result<()> {
        #[cfg(feature = "object_store")]
        if let Some(objects) = &self.objects {
            if !objects.is_empty().map_err(Error::zarr(&self.path))? {
                return Err(Error::Exists { path: self.path.clone() });
            }
            return fill(&self.open()?).inspect_err(|_| objects.remove());
        }
        let unfinished = Unfinished::folder(&self.path)?;
        fill(&folder::create(unfinished.temporary())?)?;
        files::sync_folders(unfinished.temporary())?;
        unfinished.finish()
    }

    /// Waits until the names of files are kept, whose contents are. Servers keep what they have taken.
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
