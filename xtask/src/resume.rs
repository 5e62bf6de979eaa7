//! Progress files of interrupted commands. Progress of another version of the sources is discarded.

use crate::project;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use xshell::cmd;

/// Identity of the sources: the commit, and a hash of the changes since. Without git the sources are unknown.
fn sources() -> String {
    let changes = || -> Result<String> {
        let sh = project::shell()?;
        let changed = cmd!(sh, "git diff HEAD --binary").quiet().ignore_stderr().read()?;
        let files = cmd!(sh, "git status --porcelain").quiet().ignore_stderr().read()?;
        let hash = cmd!(sh, "git hash-object --stdin").stdin(changed + &files).quiet().read()?;
        Ok(format!("{}, changes {hash}", cmd!(sh, "git rev-parse HEAD").quiet().read()?))
    };
    changes().unwrap_or_else(|_| "unknown".into())
}

/// Path of the file that stores the identity of the sources for a progress file.
fn path_of_sources(file: &Path) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(".sources");
    path.into()
}

/// Prepares a progress file: deletes the progress if another version of the sources has written it.
pub fn begin(file: &Path) -> Result<()> {
    begin_with(file, &sources())
}

fn begin_with(file: &Path, sources: &str) -> Result<()> {
    let of_sources = path_of_sources(file);
    let is_same = std::fs::read_to_string(&of_sources).is_ok_and(|before| before == sources);
    if !is_same && file.exists() {
        println!("{} is of other sources: begins again", file.display());
        std::fs::remove_file(file).with_context(|| format!("cannot remove {}", file.display()))?;
    }
    std::fs::write(&of_sources, sources).with_context(|| format!("cannot write {}", of_sources.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_counts_for_its_sources_alone() {
        let folder = project::root().join("target");
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join(format!("resume-test-{}.txt", std::process::id()));
        std::fs::write(&file, "100 of an unknown commit").unwrap();
        begin_with(&file, "a").unwrap();
        assert!(!file.exists());
        std::fs::write(&file, "100").unwrap();
        begin_with(&file, "a").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "100");
        begin_with(&file, "b").unwrap();
        assert!(!file.exists(), "a later commit begins again");
        std::fs::remove_file(path_of_sources(&file)).unwrap();
        assert_eq!(sources() == "unknown", project::commit().is_none(), "known wherever git is");
    }
}
