//! The S3 test servers that are available on this machine.

use std::sync::OnceLock;

use crate::keys::Keys;
use crate::moto::Moto;
#[cfg(feature = "s3s")]
use crate::s3s::S3s;

/// An S3 server on a local port.
pub enum Server {
    Moto(Moto),
    #[cfg(feature = "s3s")]
    S3s(S3s),
}

impl Server {
    /// Returns all test servers. The first call starts them, and they end with the program.
    pub fn all() -> &'static [Self] {
        static ALL: OnceLock<Vec<Server>> = OnceLock::new();
        ALL.get_or_init(|| {
            vec![
                #[cfg(feature = "s3s")]
                Self::S3s(S3s::start()),
            ]
            .into_iter()
            .chain(Moto::start().map(Self::Moto))
            .collect()
        })
    }

    /// Returns the moto server, or `None` if this is another server.
    pub fn moto(&self) -> Option<&Moto> {
        match self {
            Self::Moto(moto) => Some(moto),
            #[cfg(feature = "s3s")]
            Self::S3s(_) => None,
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Moto(_) => "moto",
            #[cfg(feature = "s3s")]
            Self::S3s(_) => "s3s-fs",
        }
    }

    pub fn port(&self) -> u16 {
        match self {
            Self::Moto(moto) => moto.port,
            #[cfg(feature = "s3s")]
            Self::S3s(s3s) => s3s.port,
        }
    }

    /// Returns the credentials of a user with all rights on the server.
    pub fn keys(&self) -> Keys {
        match self {
            Self::Moto(moto) => moto.keys.clone(),
            #[cfg(feature = "s3s")]
            Self::S3s(s3s) => s3s.keys.clone(),
        }
    }

    pub(crate) fn make_bucket(&self, name: &str) {
        match self {
            Self::Moto(moto) => drop(moto.ask("make", &[name])),
            #[cfg(feature = "s3s")]
            Self::S3s(s3s) => s3s.make(name),
        }
    }

    pub(crate) fn remove_bucket(&self, name: &str) {
        match self {
            Self::Moto(moto) => drop(moto.ask("remove", &[name])),
            #[cfg(feature = "s3s")]
            Self::S3s(s3s) => s3s.remove(name),
        }
    }

    pub(crate) fn forget_bucket(&self, name: &str) {
        match self {
            // Remove nothing, because moto stores all data in RAM.
            Self::Moto(_) => _ = name,
            #[cfg(feature = "s3s")]
            Self::S3s(s3s) => s3s.forget(name),
        }
    }

    /// Number of multipart uploads that are neither completed nor aborted.
    pub(crate) fn uploads(&self, bucket: &str) -> usize {
        match self {
            Self::Moto(moto) => moto.ask("uploads", &[bucket]).parse().expect("the answer must be a number"),
            #[cfg(feature = "s3s")]
            Self::S3s(s3s) => s3s.uploads(),
        }
    }
}
