//! Credentials of the clients of an S3 test server.

/// Credentials of an S3 client.
#[derive(Clone, Debug)]
pub struct Keys {
    pub id: String,
    pub secret: String,
}
