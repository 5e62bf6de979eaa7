//! `cargo xtask mutants`: mutation tests of the engine. Changes its code in small ways, and checks that a
//! test fails.
//!
//! The command compiles all mutants of a sample in one build, and selects a mutant at run time. So a mutant
//! costs a run of its module's tests, and no build (see [`sites`]). The command stores results, and a later
//! call continues with the remaining mutants. It tries surviving mutants again after a change of a test.

mod sites;

use crate::project;
use crate::steps::{Outcome, Steps};
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use sites::Site;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use xshell::{Shell, cmd};

/// Minimum share of mutants that tests must kill.
const KILLED_AT_LEAST: f64 = 0.9;
/// Number of cases of each random test.
const CASES: &str = "32";
/// Files of tests next to the code.
const TESTS: [&str; 3] = ["tests.rs", "model.rs", "litmus.rs"];
/// Limits of a sample: the commit since which lines have changed, the number of mutants, and the number of
/// minutes.
const SAMPLE: (&str, usize, u64) = ("HEAD~1", 40, 2);
/// The list of accepted survivors, each with a reason.
const ALLOWED: &str = "vmarray/tests/mutants.toml";
/// Module that the changed code calls to find out which mutant is active.
const SWITCH: &str = r#"
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
static ACTIVE: AtomicU32 = AtomicU32::new(u32::MAX);
#[inline]
pub fn on(number: u32) -> bool {
    let mut active = ACTIVE.load(Relaxed);
    if active == u32::MAX {
        active = std::env::var("VMARRAY_MUTANT").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        ACTIVE.store(active, Relaxed);
    }
    active == number
}
"#;

/// An area of code, with parts of the names of the tests that must detect changes of it.
struct Area {
    name: &'static str,
    code: &'static [&'static str],
    /// Unit tests of the engine's crate.
    engine: &'static [&'static str],
    unit: &'static [&'static str],
    integration: &'static [&'static str],
    /// Integration tests that take tens of seconds. They run last, and not for a sample.
    long: &'static [&'static str],
}

/// Number of test runs of an area: unit tests of two crates, integration tests, and long tests.
const RUNS: usize = 4;

const AREAS: [Area; 7] = [
    Area {
        name: "page",
        code: &["engine/page/", "engine/page.rs", "engine/guards"],
        engine: &["page::", "guards::"],
        unit: &["engine::channel::tests"],
        integration: &["guards::", "contention::", "errors::", "traffic::", "asynchronous::"],
        long: &["threads::"],
    },
    Area {
        name: "pager",
        code: &["engine/pager"],
        engine: &[],
        unit: &["engine::channel::tests"],
        integration: &["ranges::", "guards::", "wiping::", "errors::", "traffic::", "asynchronous::"],
        long: &[],
    },
    Area {
        name: "channel",
        code: &["engine/channel"],
        engine: &[],
        unit: &["engine::"],
        integration: &["traffic::", "errors::", "asynchronous::", "ranges::"],
        long: &["schedules::", "gather::"],
    },
    Area {
        name: "evict",
        code: &["engine/evict"],
        engine: &["evict::"],
        unit: &[],
        integration: &["traffic::", "model::"],
        long: &[],
    },
    Area {
        name: "gather",
        code: &["ops/gather"],
        engine: &[],
        unit: &["ops::gather", "engine::channel::tests", "::a_gather_that"],
        integration: &["gather::", "asynchronous::", "registered::"],
        long: &["schedules::"],
    },
    Area {
        name: "geometry",
        code: &["shapes/nd/geometry.rs", "shapes/nd/region.rs"],
        engine: &[],
        unit: &["shapes::nd"],
        integration: &["nd::", "nd_compute::", "boundary::"],
        long: &[],
    },
    Area {
        name: "modes",
        code: &["shapes/boundary/modes.rs"],
        engine: &[],
        unit: &["shapes::boundary"],
        integration: &["boundary::"],
        long: &[],
    },
];

/// Changes the code in small ways (mutants), and checks that tests detect the changes. 300 mutants take an
/// hour on two cores.
#[derive(clap::Args)]
pub struct Args {
    /// Number of mutants.
    #[arg(long, default_value_t = 300)]
    count: usize,
    /// Seed that selects the mutants.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Mutates only lines that were changed since this commit. Lists survivors without an error.
    #[arg(long, value_name = "COMMIT")]
    since: Option<String>,
    /// Mutates only these areas: page, pager, channel, evict, gather, geometry, modes.
    #[arg(long, value_name = "AREA")]
    only: Vec<String>,
    /// Tries only mutants whose printed name contains one of these texts, for example the name of a function.
    #[arg(long, value_name = "TEXT")]
    like: Vec<String>,
    /// Number of minutes after the build at which the command ends. The next call continues.
    #[arg(long, value_name = "N")]
    minutes: Option<u64>,
    /// Forgets earlier results.
    #[arg(long)]
    afresh: bool,
    /// Tries all survivors again, including accepted ones.
    #[arg(long)]
    survivors: bool,
    /// Runs a sample: mutates lines that the last commit changed, for two minutes, without long tests.
    #[arg(long, conflicts_with_all = ["count", "since", "only", "like", "minutes", "survivors"])]
    sample: bool,
}

/// A change of a file, as a mutant.
#[derive(Clone)]
struct Mutant {
    number: u32,
    file: String,
    area: usize,
    site: Site,
    key: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Fate {
    Killed,
    Survived,
    /// The mutant does not compile.
    Impossible,
}

/// Stored results by the file and the key of each mutant, with the fingerprint of the tests that ran.
type Kept = BTreeMap<String, (Fate, u64)>;

#[derive(Deserialize, Default)]
struct Allowed {
    #[serde(default)]
    survivor: Vec<Survivor>,
}

#[derive(Deserialize)]
struct Survivor {
    file: String,
    change: String,
    why: String,
}

/// Runs `cargo xtask mutants`.
pub fn run(mut args: Args) -> Result<()> {
    let (sh, mut steps) = (project::shell()?, Steps::new());
    if args.sample {
        let (commit, count, minutes) = SAMPLE;
        (args.since, args.count, args.minutes) = (Some(commit.into()), count, Some(minutes));
    }
    steps.run("mutants", || {
        let has_commit =
            |commit: &str| cmd!(sh, "git cat-file -e {commit}").quiet().ignore_stderr().run().is_ok();
        match &args.since {
            Some(commit) if !has_commit(commit) => {
                Ok(Outcome::Skipped(format!("this checkout lacks the commit {commit}")))
            }
            _ => check(&sh, &args),
        }
    });
    steps.finish()
}

fn check(sh: &Shell, args: &Args) -> Result<Outcome> {
    let folder = project::members()?.target_directory.into_std_path_buf().join("mutants");
    let kept_at = folder.join("outcomes.json");
    let mut kept: Kept = match std::fs::read(&kept_at) {
        Ok(bytes) if !args.afresh => serde_json::from_slice(&bytes).context("earlier results")?,
        _ => Kept::new(),
    };
    let allowed: Allowed = toml::from_str(&sh.read_file(ALLOWED)?).context(ALLOWED)?;
    for survivor in &allowed.survivor {
        ensure!(!survivor.why.trim().is_empty(), "{ALLOWED}: {} has no reason", survivor.change);
    }
    let sample = sample(sh, args)?;
    // The tests of a sample are not all tests, so they get another fingerprint.
    let tests = fingerprint(sh)? ^ u64::from(args.sample);
    let is_open = |mutant: &&Mutant| match kept.get(&mutant.name()) {
        None => true,
        Some((Fate::Survived, with)) => args.survivors || *with != tests && allowed.reason(mutant).is_none(),
        Some(_) => false,
    };
    let open: Vec<Mutant> = sample.iter().filter(is_open).cloned().collect();
    println!("{} mutants, {} to be tried", sample.len(), open.len());
    if !open.is_empty() {
        let tree = folder.join("tree");
        copy_sources(sh, &tree)?;
        let runs = if args.sample { RUNS - 1 } else { RUNS };
        let build = build(sh, &tree, open, runs, |mutant| {
            kept.insert(mutant.name(), (Fate::Impossible, tests));
        })?;
        save(&kept_at, &kept)?;
        let end = args.minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        let baseline = build.baseline(workers)?;
        let (kept, next) = (Mutex::new(&mut kept), Mutex::new(build.mutants.iter()));
        std::thread::scope(|scope| {
            let worker = || -> Result<()> {
                while end.is_none_or(|end| Instant::now() < end) {
                    let Some(mutant) = next.lock().expect("no panic").next() else { break };
                    let fate = build.fate(mutant, &baseline)?;
                    println!("{fate:?}: {} line {}", mutant.name(), mutant.site.line);
                    let mut kept = kept.lock().expect("no panic");
                    kept.insert(mutant.name(), (fate, tests));
                    save(&kept_at, &kept)?;
                }
                Ok(())
            };
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("no panic"))
        })?;
    }
    report(&sample, &kept, &allowed, args.since.is_some())
}

fn save(at: &Path, kept: &Kept) -> Result<()> {
    Ok(std::fs::write(at, serde_json::to_vec_pretty(kept)?)?)
}

impl Allowed {
    /// Returns the reason for which a surviving mutant is accepted.
    fn reason(&self, mutant: &Mutant) -> Option<&str> {
        let is = |survivor: &&Survivor| survivor.file == mutant.file && survivor.change == mutant.key;
        self.survivor.iter().find(is).map(|survivor| survivor.why.as_str())
    }
}

impl Mutant {
    fn name(&self) -> String {
        format!("{}: {}", self.file, self.key)
    }
}

/// Returns mutants of all areas, selected by the seed.
fn sample(sh: &Shell, args: &Args) -> Result<Vec<Mutant>> {
    let known = AREAS.map(|area| area.name);
    if let Some(unknown) = args.only.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("unknown area {unknown}; the areas are {}", known.join(", "));
    }
    let changed = args.since.as_deref().map(|commit| changed_lines(sh, commit)).transpose()?;
    let mut all = Vec::new();
    let mut names: HashMap<String, usize> = HashMap::new();
    for file in cmd!(sh, "git ls-files vmarray/src vmarray/engine/src").quiet().read()?.lines() {
        let inner = file.replace("vmarray/engine/src/", "engine/").replace("vmarray/src/", "");
        let area = AREAS.iter().position(|area| area.code.iter().any(|code| inner.starts_with(code)));
        let Some(area) =
            area.filter(|&area| args.only.is_empty() || args.only.iter().any(|n| n == known[area]))
        else {
            continue;
        };
        if is_test(file) {
            continue;
        }
        let text = sh.read_file(file)?;
        for site in sites::find(&text).with_context(|| file.to_string())? {
            let key = site.key(&text);
            // If a function contains a text twice, the second one is another mutant.
            let times = names.entry(format!("{file}: {key}")).or_default();
            *times += 1;
            let key = if *times == 1 { key } else { format!("{key} #{times}") };
            let is_wanted = changed
                .as_ref()
                .is_none_or(|lines| lines.get(file).is_some_and(|lines| lines.contains(&site.line)));
            let mutant = Mutant { number: 0, file: file.to_string(), area, site, key };
            let is_like = args.like.is_empty() || args.like.iter().any(|part| mutant.name().contains(part));
            if is_wanted && is_like {
                all.push(mutant);
            }
        }
    }
    // The order depends only on the seed and the mutant, not on the other mutants.
    all.sort_by_cached_key(|mutant| scrambled(args.seed, &mutant.name()));
    all.truncate(args.count);
    all.iter_mut().zip(1..).for_each(|(mutant, number)| mutant.number = number);
    Ok(all)
}

fn is_test(file: &str) -> bool {
    TESTS.iter().any(|name| Path::new(file).file_name().is_some_and(|of| of == *name))
}

/// Returns a number that changes when a test changes.
fn fingerprint(sh: &Shell) -> Result<u64> {
    let files = cmd!(sh, "git ls-files vmarray/src vmarray/engine/src vmarray/tests/it").quiet().read()?;
    let tests = files.lines().filter(|file| is_test(file) || file.starts_with("vmarray/tests"));
    let texts = tests.map(|file| Ok(sh.read_file(file).unwrap_or_default())).collect::<Result<String>>()?;
    Ok(scrambled(0, &texts))
}

/// Returns the FNV-1a hash of a text, which is equal on all machines.
fn scrambled(seed: u64, text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Returns the added or changed lines of each file.
fn changed_lines(sh: &Shell, commit: &str) -> Result<HashMap<String, BTreeSet<usize>>> {
    let diff = cmd!(sh, "git diff --unified=0 {commit} -- vmarray/src vmarray/engine/src").quiet().read()?;
    let mut lines: HashMap<String, BTreeSet<usize>> = HashMap::new();
    let mut file = String::new();
    for line in diff.lines() {
        if let Some(name) = line.strip_prefix("+++ b/") {
            file = name.to_string();
        } else if let Some(place) = line.strip_prefix("@@ ").and_then(|rest| rest.split('+').nth(1)) {
            let place = place.split(' ').next().unwrap_or_default();
            let (first, count) = place.split_once(',').unwrap_or((place, "1"));
            let (first, count): (usize, usize) = (first.parse()?, count.parse()?);
            lines.entry(file.clone()).or_default().extend(first..first + count);
        }
    }
    Ok(lines)
}

fn copy_sources(sh: &Shell, tree: &Path) -> Result<()> {
    for file in cmd!(sh, "git ls-files").quiet().read()?.lines() {
        let (from, to) = (sh.current_dir().join(file), tree.join(file));
        // The read follows links. It fails for files whose deletion is not committed yet.
        let Ok(bytes) = std::fs::read(&from) else { continue };
        if std::fs::read(&to).is_ok_and(|known| known == bytes) {
            continue;
        }
        std::fs::create_dir_all(to.parent().context("a folder")?)?;
        std::fs::write(&to, bytes)?;
    }
    for (lib, item) in [("vmarray/engine/src", "mod mutant"), ("vmarray/src", "use vmarray_engine::mutant")] {
        let lib = tree.join(lib).join("lib.rs");
        let text = std::fs::read_to_string(&lib)?;
        std::fs::write(&lib, format!("{text}\n#[doc(hidden)]\npub {item};\n"))?;
    }
    Ok(std::fs::write(tree.join("vmarray/engine/src/mutant.rs"), SWITCH)?)
}

/// The compiled tests of the code with all mutants.
struct Build {
    folder: PathBuf,
    mutants: Vec<Mutant>,
    engine: PathBuf,
    unit: PathBuf,
    integration: PathBuf,
    /// Number of test runs of an area.
    runs: usize,
}

/// Compiles all mutants. Reports the mutants that do not compile, and omits them.
fn build(
    sh: &Shell,
    tree: &Path,
    mut mutants: Vec<Mutant>,
    runs: usize,
    mut is_impossible: impl FnMut(&Mutant),
) -> Result<Build> {
    let target = &tree.with_file_name("target");
    let files: BTreeSet<String> = mutants.iter().map(|mutant| mutant.file.clone()).collect();
    for _ in 0..30 {
        let mut changed = HashMap::new();
        for file in &files {
            let of_file = mutants.iter().filter(|mutant| mutant.file == *file);
            let sites: Vec<_> = of_file.map(|mutant| (mutant.number, mutant.site.clone())).collect();
            let text = sites::apply(&sh.read_file(file)?, &sites);
            if std::fs::read_to_string(tree.join(file)).is_ok_and(|known| known != text) {
                std::fs::write(tree.join(file), &text)?;
            }
            changed.insert(file.clone(), text);
        }
        let messages = cargo(tree, target, true)?;
        let errors: Vec<&serde_json::Value> =
            messages.iter().filter(|message| message["level"] == "error").collect();
        if errors.is_empty() {
            return finish(tree, target, mutants, runs);
        }
        let mut wrong = BTreeSet::new();
        for error in &errors {
            let spans = error["spans"].as_array().into_iter().flatten();
            let of_children = error["children"].as_array().into_iter().flatten();
            let of_children = of_children.filter_map(|child| child["spans"].as_array()).flatten();
            wrong.extend(spans.chain(of_children).filter_map(|span| {
                let text = changed.get(span["file_name"].as_str()?)?;
                sites::around(text, span["byte_start"].as_u64()? as usize)
            }));
        }
        let text = errors.iter().filter_map(|error| error["rendered"].as_str()).take(3).collect::<String>();
        ensure!(!wrong.is_empty(), "the tree does not compile, even without mutants:\n{text}");
        mutants.retain(|mutant| {
            let compiles = !wrong.contains(&mutant.number);
            if !compiles {
                is_impossible(mutant);
            }
            compiles
        });
        println!("{} mutants do not compile", wrong.len());
    }
    bail!("the last build still has mutants that do not compile")
}

fn finish(tree: &Path, target: &Path, mutants: Vec<Mutant>, runs: usize) -> Result<Build> {
    let messages = cargo(tree, target, false)?;
    let executable = |name: &str| -> Result<PathBuf> {
        let found = messages.iter().find(|message| {
            message["executable"].is_string()
                && message["target"]["name"] == name
                && message["profile"]["test"] == true
        });
        Ok(found
            .and_then(|message| message["executable"].as_str())
            .with_context(|| format!("no tests {name}"))?
            .into())
    };
    // The folder is outside of the checkout: random tests search for their sources in all parent folders, and
    // would store the failing inputs of mutants there.
    let folder = std::env::temp_dir().join("vmarray-mutants");
    std::fs::create_dir_all(&folder)?;
    let [engine, unit, integration] = ["vmarray_engine", "vmarray", "it"].map(executable);
    Ok(Build { folder, mutants, engine: engine?, unit: unit?, integration: integration?, runs })
}

/// Runs cargo, and returns its messages and the compiler's messages, which are JSON.
fn cargo(tree: &Path, target: &Path, is_check: bool) -> Result<Vec<serde_json::Value>> {
    let mut command = Command::new("cargo");
    if is_check {
        command.args(["check", "--lib"]);
    } else {
        command.args(["test", "--no-run", "--lib", "--test", "it"]);
    }
    command.args(["-p", "vmarray", "-p", "vmarray-engine", "-p", "vmarray-tests", "--no-default-features"]);
    command.args(["--features", "vmarray/host,vmarray-tests/host", "--message-format=json"]);
    let output =
        command.current_dir(tree).env("CARGO_TARGET_DIR", target).stderr(Stdio::inherit()).output()?;
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let values: Vec<serde_json::Value> =
        lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let messages = values.into_iter().map(|mut value| match value.get_mut("message") {
        Some(message) => message.take(),
        None => value,
    });
    let messages: Vec<_> = messages.collect();
    ensure!(output.status.success() || messages.iter().any(|m| m["level"] == "error"), "cargo failed");
    Ok(messages)
}

impl Build {
    /// Returns the duration of each test run of each area without a mutant, if `workers` runs execute at the
    /// same time.
    fn baseline(&self, workers: usize) -> Result<Vec<[Duration; RUNS]>> {
        let areas = AREAS.iter().enumerate();
        areas
            .map(|(number, area)| {
                if !self.mutants.iter().any(|mutant| mutant.area == number) {
                    return Ok([Duration::ZERO; RUNS]);
                }
                let mut longest = [Duration::ZERO; RUNS];
                for (run, longest) in longest.iter_mut().enumerate().take(self.runs) {
                    let measured: Vec<Result<Option<Duration>>> = std::thread::scope(|scope| {
                        let test = || self.test(area, run, 0, Duration::from_secs(600));
                        let tests: Vec<_> = (0..workers).map(|_| scope.spawn(test)).collect();
                        tests.into_iter().map(|test| test.join().expect("no panic")).collect()
                    });
                    for took in measured {
                        let took =
                            took?.with_context(|| format!("{}: a test fails without a mutant", area.name))?;
                        *longest = took.max(*longest);
                    }
                }
                println!("{}: {longest:.1?} without a mutant", area.name);
                Ok(longest)
            })
            .collect()
    }

    fn fate(&self, mutant: &Mutant, baseline: &[[Duration; RUNS]]) -> Result<Fate> {
        for (run, took) in baseline[mutant.area].iter().enumerate().take(self.runs) {
            // A mutant that exceeds this limit counts as endless.
            let limit = 2 * *took + Duration::from_secs(10);
            if self.test(&AREAS[mutant.area], run, mutant.number, limit)?.is_none() {
                return Ok(Fate::Killed);
            }
        }
        Ok(Fate::Survived)
    }

    /// Returns the duration of a test run of an area. `None` if a test fails, or if the run exceeds the
    /// limit.
    fn test(&self, area: &Area, run: usize, number: u32, limit: Duration) -> Result<Option<Duration>> {
        let (tests, names) = match run {
            0 => (&self.engine, area.engine),
            1 => (&self.unit, area.unit),
            2 => (&self.integration, area.integration),
            _ => (&self.integration, area.long),
        };
        let begun = Instant::now();
        if names.is_empty() {
            return Ok(Some(Duration::ZERO));
        }
        let mut child = Command::new(tests)
            .args(names)
            // Stop at the first failure. The unstable option needs the variable `RUSTC_BOOTSTRAP`.
            .args(["--quiet", "--test-threads", "4", "-Zunstable-options", "--fail-fast"])
            .env("RUSTC_BOOTSTRAP", "1")
            .env("PROPTEST_CASES", CASES)
            .current_dir(&self.folder)
            .env("VMARRAY_MUTANT", number.to_string())
            .env("VMARRAY_TEST_DEVICES", "host")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status.success().then(|| begun.elapsed()));
            }
            if begun.elapsed() > limit {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn report(sample: &[Mutant], kept: &Kept, allowed: &Allowed, is_lenient: bool) -> Result<Outcome> {
    let of = |fate: Fate| {
        let is = |mutant: &&Mutant| kept.get(&mutant.name()).is_some_and(|(of, _)| *of == fate);
        sample.iter().filter(is).collect::<Vec<_>>()
    };
    let (killed, survived) = (of(Fate::Killed).len(), of(Fate::Survived));
    let tested = killed + survived.len();
    let mut list = String::new();
    let mut without_reason = 0;
    for mutant in &survived {
        let why = allowed.reason(mutant);
        without_reason += usize::from(why.is_none());
        writeln!(list, "{}:{}: {}", mutant.file, mutant.site.line, mutant.key)?;
        writeln!(list, "    {}", why.unwrap_or("NO REASON GIVEN"))?;
    }
    print!("{list}");
    std::io::stdout().flush()?;
    let note = format!(
        "{tested} mutants tested of {}, {} more do not compile: {killed} killed, {} survived, {without_reason} of them \
         without a reason in {ALLOWED}",
        sample.len(),
        of(Fate::Impossible).len(),
        survived.len()
    );
    let share = killed as f64 / tested.max(1) as f64;
    let is_enough = is_lenient || tested == 0 || share >= KILLED_AT_LEAST;
    Ok(if is_enough { Outcome::Passed(note) } else { Outcome::Failed(note) })
}
