//! Groups of volumes: one atomic commit of several files.
//!
//! Each volume first stores the new commit. It keeps the data of the previous commit until all volumes have
//! stored the new one. So after a crash every volume still has the previous commit, and opening finds the
//! last commit that all volumes have. This is a two-phase commit without a coordinator: a commit is valid
//! when all volumes have stored it.

use std::ops::{Deref, DerefMut};
use std::panic::resume_unwind;

use backend_api::{Error, Result};

use super::super::disk::Disk;
use super::super::format::CommitId;
use super::recover::OpenedVolume;
use super::{CommitState, Volume, corrupted};

/// Error of one file of a group, with the number of the file.
pub(crate) type FileError = (usize, Error);

impl Volume {
    /// Opens the volume of a disk in the state of its last complete commit.
    pub fn open(disk: Box<dyn Disk>, is_read_only: bool) -> Result<Self> {
        let opened = OpenedVolume::read(disk, is_read_only)?;
        let mut volumes = open_together(vec![opened], is_read_only).map_err(|(_, error)| error)?;
        Ok(volumes.remove(0))
    }
}

/// Commits a group of volumes: returns when all pages are durable in their present state, or in a later one.
/// After a crash all volumes are in the state of this commit, or all in the state of the previous one. One
/// thread commits at a time. Writers wait while it collects the changes, and, if a log is full, while it
/// copies the map in RAM. The collection starts after running requests are done.
///
/// # Errors
/// Errors of the disks. The next successful commit stores the changes.
pub(crate) fn sync_together<V: Deref<Target = Volume> + Sync>(volumes: &[V]) -> Result<(), FileError> {
    each(volumes, |volume| volume.expect_disk("sync"))?;
    if volumes.iter().any(|volume| volume.is_read_only) {
        return Ok(());
    }
    // All threads lock the volumes in the same order, so they cannot deadlock.
    let mut commits: Vec<_> = volumes.iter().map(|volume| volume.commit.lock()).collect();
    for (file, (volume, commit)) in volumes.iter().zip(&commits).enumerate() {
        volume.expect_superblock(commit).map_err(|error| (file, error))?;
    }
    commit_together(volumes, &mut commits, None)
}

/// Commits with the identity `id`; without `id`, with a new identity.
pub(super) fn commit_together<V: Deref<Target = Volume> + Sync>(
    volumes: &[V],
    commits: &mut [impl DerefMut<Target = CommitState>],
    id: Option<CommitId>,
) -> Result<(), FileError> {
    let Some(first) = volumes.first() else { return Ok(()) };
    // Read the note (three numbers, such as the array's length) before collecting the pages: the commit then
    // contains all writes from before the note.
    let note = first.note();
    for (file, (volume, commit)) in volumes.iter().zip(commits.iter_mut()).enumerate() {
        volume.collect(commit, note).map_err(|error| (file, error))?;
    }
    if !commits.iter().any(|commit| commit.is_needed()) {
        return Ok(());
    }
    each(volumes, |volume| volume.expect_not_closed("sync"))?;
    let last = commits.iter().map(|commit| commit.id).max().unwrap_or_default();
    let id = id.unwrap_or_else(|| last.next());
    // Prepare all volumes at the same time, because drives work in parallel.
    let prepared = std::thread::scope(|scope| {
        let mut works: Vec<_> = volumes
            .iter()
            .zip(commits.iter_mut())
            .map(|(volume, commit)| {
                let (volume, commit): (&Volume, &mut CommitState) = (volume, commit);
                move || volume.prepare(commit, id)
            })
            .collect();
        let mut own = works.remove(0);
        let others: Vec<_> = works.into_iter().map(|work| scope.spawn(work)).collect();
        let mut outcomes = vec![own()];
        outcomes.extend(
            others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic))),
        );
        outcomes
    });
    if prepared.iter().all(Result::is_ok) {
        for ((volume, commit), prepared) in volumes.iter().zip(commits).zip(prepared.into_iter().flatten()) {
            volume.settle(commit, id, prepared);
        }
        return Ok(());
    }
    let mut first_error = Ok(());
    for (file, (commit, prepared)) in commits.iter_mut().zip(prepared).enumerate() {
        match prepared {
            Ok(prepared) => Volume::withdraw(commit, prepared),
            Err(error) if first_error.is_ok() => first_error = Err((file, error)),
            Err(_) => {}
        }
    }
    first_error
}

/// Calls a function for each volume, and returns the first error with the number of its file.
fn each<V: Deref<Target = Volume>>(
    volumes: &[V],
    work: impl Fn(&Volume) -> Result<()>,
) -> Result<(), FileError> {
    volumes.iter().enumerate().try_for_each(|(file, volume)| work(volume).map_err(|error| (file, error)))
}

/// Opens a group of volumes at the last commit that all of them have.
///
/// # Errors
/// [`Corrupted`](backend_api::ErrorKind::Corrupted) if there is no such commit, because a file is older or
/// newer than the other files.
pub(crate) fn open_together(files: Vec<OpenedVolume>, is_read_only: bool) -> Result<Vec<Volume>, FileError> {
    let commits: Vec<Vec<CommitId>> = files.iter().map(OpenedVolume::commits).collect();
    let common = common(&commits).map_err(|(file, detail)| (file, mixed(detail)))?;
    let (mut volumes, mut ends) = (Vec::new(), Vec::new());
    for (file, opened) in files.into_iter().enumerate() {
        let (volume, end) = opened.at(common, is_read_only).map_err(|error| (file, error))?;
        volumes.push(volume);
        ends.push(end);
    }
    if is_read_only {
        return Ok(volumes);
    }
    let group: Vec<&Volume> = volumes.iter().collect();
    let mut commits: Vec<_> = group.iter().map(|volume| volume.commit.lock()).collect();
    for (file, (volume, end)) in group.iter().zip(&ends).enumerate() {
        volume.drop_commit(end).map_err(|error| (file, error))?;
    }
    for (file, ((volume, commit), end)) in group.iter().zip(&mut commits).zip(ends).enumerate() {
        volume.begin_to_write(commit, end).map_err(|error| (file, error))?;
    }
    commit_together(&group, &mut commits, None)?;
    group.iter().zip(&mut commits).for_each(|(volume, commit)| volume.take_spare(commit));
    drop((commits, group));
    Ok(volumes)
}

/// Returns the last commit that all files have. Each file lists its commits, the last one first. Without a
/// common commit, returns the file that differs, and a description.
fn common(commits: &[Vec<CommitId>]) -> Result<CommitId, (usize, String)> {
    let [first, others @ ..] = commits else { return Ok(CommitId::default()) };
    let is_common = |id: &&CommitId| others.iter().all(|of| of.contains(id));
    if let Some(id) = first.iter().find(is_common) {
        return Ok(*id);
    }
    // Report the file that has a commit in common with the fewest other files. Of two files, report the older
    // one.
    let agrees = |one: usize, other: usize| commits[one].iter().any(|id| commits[other].contains(id));
    let friends = |file: usize| (0..commits.len()).filter(|other| agrees(file, *other)).count();
    let number = |file: usize| commits[file].first().map_or(0, |id| id.number);
    let odd = (0..commits.len()).min_by_key(|file| (friends(*file), number(*file))).unwrap_or(0);
    let other = (0..commits.len()).find(|other| !agrees(odd, *other)).unwrap_or(odd);
    let (own, of_other) = (number(odd), number(other));
    let detail = if own == of_other {
        format!("this file and file {} of the array have different commits of number {own}", other + 1)
    } else {
        format!("this file is at commit {own}, but file {} of the array is at commit {of_other}", other + 1)
    };
    Err((odd, detail))
}

/// Returns the error of files from different commits.
fn mixed(detail: String) -> Error {
    let advice = "another program has replaced a file; restore all files of the array from one copy";
    corrupted("open", detail).with_advice(advice)
}
