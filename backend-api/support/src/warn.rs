//! Warnings about failures that a call cannot return as an error. They go to the program's `tracing`
//! subscriber, or to standard error if it has none.

use std::fmt;
use std::io::Write;

use parking_lot::Mutex;
use tracing::subscriber::NoSubscriber;

/// Maximum number of different texts on standard error. A `tracing` subscriber receives all warnings.
const SAID_MAX: usize = 64;

/// Warns that a release did not wipe memory (overwrite it with zeros), with the reason.
#[doc(hidden)]
pub fn not_wiped(what: &str, place: &dyn fmt::Display, reason: &dyn fmt::Display) {
    warn(format!("{what} of {place} was not wiped before its release: {reason}"));
}

/// Logs a warning by `tracing`. Without a subscriber, prints each text once on standard error instead.
#[doc(hidden)]
pub fn warn(text: String) {
    if !tracing::dispatcher::get_default(|subscriber| subscriber.is::<NoSubscriber>()) {
        tracing::warn!("{text}");
        return;
    }
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut said = SAID.lock();
    if said.len() < SAID_MAX && !said.contains(&text) {
        // `eprintln` panics if standard error is closed, but a release of memory must not panic.
        let _ = writeln!(std::io::stderr(), "vmarray: {text}");
        said.push(text);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// The test below runs it as a process of its own.
    #[test]
    fn child_warns() {
        for _ in 0..3 {
            not_wiped("memory", &"a card", &"the driver refused");
        }
    }

    #[test]
    #[cfg(not(miri))]
    fn without_a_subscriber_standard_error_gets_it_once() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "warn::tests::child_warns"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        let wanted = "vmarray: memory of a card was not wiped before its release: the driver refused\n";
        assert!(output.status.success() && text.matches(wanted).count() == 1, "{output:?}");
    }

    struct Count(AtomicUsize);

    impl Subscriber for Count {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_subscriber_gets_it_each_time() {
        let count = tracing::Dispatch::new(Count(AtomicUsize::new(0)));
        tracing::dispatcher::with_default(&count, child_warns);
        assert_eq!(count.downcast_ref::<Count>().unwrap().0.load(Ordering::Relaxed), 3);
    }
}
