//! State of a volume's commits: the last commit on the disk, and the next one.

use std::ops::Range;

use super::super::format::{CommitId, CommitMetadata, PageMove, Superblock};

/// State of the last commit, and of the next one.
#[derive(Debug)]
pub(super) struct CommitState {
    /// The superblock that is valid on the disk.
    pub stored: Superblock,
    /// The last commit that all volumes of the group (the files of one array) have stored.
    pub id: CommitId,
    /// Places (page-sized ranges of the disk) of the stored page map; empty if there is none.
    pub map: Range<u64>,
    pub log_used: u64,
    pub next_record: u64,
    /// The checksum of the last record in the log; 0 if the log is empty.
    pub last_checksum: u64,
    /// True if the write of a record failed. That record may still follow the last valid record on the disk.
    pub has_tail: bool,
    /// The note (three numbers of the program) of the last stored commit.
    pub noted: CommitMetadata,
    /// Page changes that the next commit stores: each page once, in order.
    pub changes: Vec<PageMove>,
    /// Number of pages, and the note (three numbers of the program), when the commit collected `changes`.
    pub moment: (u64, CommitMetadata),
    /// Places (page-sized ranges of the disk) that the next commit frees.
    pub left: Vec<Range<u64>>,
    /// New metadata of the program, if the program set it after the last commit.
    pub metadata: Option<Vec<u8>>,
    /// True after a failed sync: the drive may have lost pages, so the next commit writes them again.
    pub is_suspect: bool,
    /// True if the next commit must write the map and a superblock. Either the previous write of a superblock
    /// failed, or it is unknown how much of the log is stored.
    pub needs_map: bool,
    /// Places (page-sized ranges of the disk) that are reserved for the next page map. So a commit that frees
    /// pages succeeds even on a full disk.
    pub spare: Option<Range<u64>>,
}

impl CommitState {
    pub fn metadata(&self) -> &[u8] {
        self.metadata.as_deref().unwrap_or(&self.stored.metadata)
    }
}
