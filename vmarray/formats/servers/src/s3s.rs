//! The S3 test server of the crate s3s-fs, which stores objects as files.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use tokio::net::TcpListener;

use crate::keys::Keys;

/// The S3 server of the crate `s3s`, in this process.
pub struct S3s {
    pub(crate) port: u16,
    pub(crate) keys: Keys,
    /// Folder that contains the buckets, while there are any.
    folder: PathBuf,
    buckets: Mutex<usize>,
}

impl S3s {
    pub(crate) fn start() -> Self {
        let folder = std::env::temp_dir().join(format!("vmarray-s3s {}", std::process::id()));
        fs::create_dir_all(&folder).expect("the server must create the folder");
        let keys = Keys { id: "vmarray".into(), secret: "rayvma".into() };
        let mut service = S3ServiceBuilder::new(FileSystem::new(&folder).expect("the folder must exist"));
        service.set_auth(SimpleAuth::from_single(keys.id.clone(), keys.secret.clone()));
        let service = service.build();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("the system can start threads");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let listener = runtime.block_on(listener).expect("the system has a free port");
        let port = listener.local_addr().expect("a bound socket has a port").port();
        std::thread::spawn(move || {
            runtime.block_on(async move {
                while let Ok((client, _)) = listener.accept().await {
                    let service = service.clone();
                    tokio::spawn(async move {
                        let server = Builder::new(TokioExecutor::new());
                        drop(server.serve_connection(TokioIo::new(client), service).await);
                    });
                }
            });
        });
        Self { port, keys, folder, buckets: Mutex::new(0) }
    }

    pub(crate) fn make(&self, bucket: &str) {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        *buckets += 1;
        fs::create_dir_all(self.folder.join(bucket)).expect("the server must create the folder");
    }

    pub(crate) fn remove(&self, bucket: &str) {
        fs::remove_dir_all(self.folder.join(bucket)).expect("the bucket must exist");
    }

    /// Removes a bucket, which may be deleted already, from the list. The last one removes the server's
    /// files.
    pub(crate) fn forget(&self, bucket: &str) {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        *buckets -= 1;
        let rest = if *buckets == 0 { self.folder.clone() } else { self.folder.join(bucket) };
        // Also remove the folder that contains the server's other files.
        let _ = fs::remove_dir_all(rest);
    }

    pub(crate) fn uploads(&self) -> usize {
        let names = fs::read_dir(&self.folder).expect("the folder must exist").flatten();
        names.filter(|entry| entry.file_name().to_string_lossy().starts_with(".upload")).count()
    }
}
