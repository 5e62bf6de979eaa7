//! State of a volume's commits: the last commit on the disk, and the next one.

use std::ops::Range;

use super::super::format::{CommitId, CommitMetadata, PageMove, Superblock};

/// State of the last commit, and of the next one.
#[derive(Debug)]
pub(super) struct CommitState {
    /// The superblock that is valid on the disk.
    pub stored: Superblock,
    /// The last commit that is stored in all volumes of the group.
    pub id: CommitId,
    /// Places of the superblock's map; empty if there is no map.
    pub map: Range<u64>,
    pub log_used: u64,
    pub next_record: u64,
    /// The checksum of the last record in the log, or 0.
    pub last_checksum: u64,
    /// True if another record may follow the last one, because the write of that record failed.
    pub has_tail: bool,
    /// The note (three numbers of the store's user) of the last stored commit.
    pub noted: CommitMetadata,
    /// Changes of the next commit: each page once, in order.
    pub changes: Vec<PageMove>,
    /// Number of pages, and note, when `changes` were collected.
    pub moment: (u64, CommitMetadata),
    /// Places that the next commit frees.
    pub left: Vec<Range<u64>>,
    /// New metadata of the store's user, if it was set since the last commit.
    pub metadata: Option<Vec<u8>>,
    /// True after a failed sync: the drive may have lost changed pages, so the next commit writes them again.
    pub is_suspect: bool,
    /// True if the next commit must write a superblock: either the previous write of a superblock failed, or
    /// the stored part of the log is unknown.
    pub needs_map: bool,
    /// Places for the next map, so that a commit that frees places succeeds on a full disk.
    pub spare: Option<Range<u64>>,
}

impl CommitState {
    pub fn metadata(&self) -> &[u8] {
        self.metadata.as_deref().unwrap_or(&self.stored.metadata)
    }
}
